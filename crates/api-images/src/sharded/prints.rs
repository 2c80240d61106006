//! Prints of a file that a root of a cluster adds.

use base::{Error, Result};
use image_features::print_files::{FilePrints, SplitPrint};
use image_features::settings::ImageKind;
use serde_json::Value;

use super::extracted::ImageInput;
use crate::file_upload::{self, SplitFile};
use crate::state::ImagesState;

/// Prints of a file that is being added, and the properties that they share. A file of a photograph
/// is one print.
pub struct UploadPrints {
    split: SplitFile,
    input: ImageInput,
}

impl UploadPrints {
    /// Returns the images to add, or the error of a print that cannot be extracted. The image of
    /// the whole file is the last, because a file whose id is in the collection is complete.
    pub fn inputs(&self) -> Vec<Result<ImageInput>> {
        let file = self.file();
        let input = |print: &SplitPrint| -> Result<ImageInput> {
            let print = print.as_ref().map_err(|refused| refused.error.clone())?;
            let payload = file.payload(print, &self.input.payload);
            Ok(ImageInput { payload, bytes: print.bytes.clone(), ..self.input.clone() })
        };
        let order = file.write_order();
        order.into_iter().filter_map(|number| file.prints.get(number)).map(input).collect()
    }

    /// Returns true if the error of a print ends the request: that of the only print, or of the
    /// server.
    pub fn is_ended_by(&self, error: &Error) -> bool {
        self.file().is_ended_by(error)
    }

    /// Returns the response to the upload of the file, from the responses for its prints in the
    /// order of [`UploadPrints::inputs`].
    ///
    /// # Errors
    /// The first error if no print is in the collection.
    pub fn answer(&self, results: Vec<Result<Value>>) -> Result<Value> {
        self.file().answer(&self.input.payload, results)
    }

    fn file(&self) -> &FilePrints {
        &self.split.file
    }
}

impl ImagesState {
    /// Splits the file of an image into its prints if the collection holds fingerprints.
    ///
    /// # Errors
    /// `InvalidArgument` for too many prints; `ResourceExhausted` with retry advice if other
    /// requests hold the memory.
    pub async fn upload_prints(&self, input: ImageInput, kind: ImageKind) -> Result<UploadPrints> {
        let services = &self.services;
        let split = match kind {
            ImageKind::Photo => SplitFile::whole(services, &input.bytes),
            ImageKind::Fingerprint => {
                file_upload::split(services, &input.bytes, input.priority).await?
            }
        };
        Ok(UploadPrints { split, input })
    }
}
