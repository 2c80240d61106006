//! Reads a line of text from an image with the PP-OCR recogniser.

use std::path::Path;

use base::{Error, NamedTensor, Result};

use crate::caller::GrpcCaller;
use crate::ocr;

/// Returns the text in the image.
///
/// # Errors
/// Returns an error if the image cannot be read, or the response does not fit the model's
/// signature.
pub(super) fn read(
    caller: &mut GrpcCaller,
    model: &str,
    image: &Path,
    characters: &[String],
) -> Result<String> {
    let answer = caller.call(model, vec![NamedTensor::new(ocr::INPUT, ocr::pixels(image)?)])?;
    let output = answer.tensors.first().map(|(name, ..)| name.clone()).unwrap_or_default();
    let (shape, scores) = answer.floats(&output)?;
    match shape {
        [1, _, classes] if *classes as usize == characters.len() + 1 => {
            Ok(ocr::decode(&scores, *classes as usize, characters))
        }
        _ => Err(Error::data_loss(format!(
            "the answer has shape {shape:?}, wanted [1, steps, {}]",
            characters.len() + 1
        ))),
    }
}
