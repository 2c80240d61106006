//! Adds the file of a request: one image, or each print of a file with several fingerprints.

use base::Result;
use bytes::Bytes;
use image_features::collection::{CollectionSpec, ImageCollection};
use image_features::print_files::{self, FilePrints, PrintFile};
use image_features::settings::ImageKind;
use serde_json::Value;
use transport::Reservation;

use super::add::{self, NewImage};
use super::extraction::ExtractionPriority;
use super::services::ImageServices;
use super::state::ImagesState;
use super::store::PutOutcome;

/// Adds a file. Returns the response: the result of the image, or the results of all prints if the
/// file has several. The images are then durable.
///
/// # Errors
/// As [`add::add`] and [`add::add_in_background`]. Of several prints, an error of one print is a
/// result, unless all have one. An error of the server ends the request after the prints that were
/// added before it. If the caller disconnects, the prints after the current one are not added. The
/// print with the id of the file is the last one.
pub(crate) async fn put_file(
    state: &ImagesState,
    new: NewImage,
    priority: ExtractionPriority,
) -> Result<Value> {
    let SplitFile { file, _memory } = match split_new(state, &new, priority).await {
        Ok(split) => split,
        Err(error) => {
            state.services.count_put(error.kind().name());
            return Err(error);
        }
    };
    let mut results = Vec::with_capacity(file.prints.len());
    for number in file.write_order() {
        let Some(print) = file.prints.get(number) else { continue };
        let result = match print {
            Ok(print) => Box::pin(put_print(state, &new, &file, print, priority)).await,
            Err(refused) => {
                state.services.count_put(refused.error.kind().name());
                Err(refused.error.clone())
            }
        };
        match result {
            Err(error) if file.is_ended_by(&error) => return Err(error),
            result => results.push(result.map(|outcome| outcome.to_json())),
        }
    }
    file.answer(&new.payload, results)
}

/// Prints of a file, and the memory of their files.
pub(crate) struct SplitFile {
    pub(crate) file: FilePrints,
    _memory: Reservation,
}

impl SplitFile {
    /// Returns a file as one print.
    pub(crate) fn whole(services: &ImageServices, file: &Bytes) -> SplitFile {
        let _memory = services.requests.memory.empty();
        SplitFile { file: FilePrints::whole(file), _memory }
    }
}

/// Splits a file into its prints if the collection holds fingerprints.
///
/// # Errors
/// As [`split`].
async fn split_new(
    state: &ImagesState,
    new: &NewImage,
    priority: ExtractionPriority,
) -> Result<SplitFile> {
    let services = &state.services;
    if print_files::may_have_several(&new.bytes) && holds_prints(services, &new.wanted) {
        return split(services, &new.bytes, priority).await;
    }
    Ok(SplitFile::whole(services, &new.bytes))
}

/// Splits the file of a fingerprint into its prints.
///
/// # Errors
/// As [`FilePrints::split`]; `ResourceExhausted` with retry advice if other requests hold the
/// memory.
pub(crate) async fn split(
    services: &ImageServices,
    file: &Bytes,
    priority: ExtractionPriority,
) -> Result<SplitFile> {
    if !print_files::may_have_several(file) {
        return Ok(SplitFile::whole(services, file));
    }
    let budget = services.requests.memory.clone();
    let bytes = file.clone();
    let work = move || {
        let _splitting = budget.reserve(print_files::split_bytes(&bytes))?;
        let mut memory = budget.empty();
        let file = FilePrints::split(&bytes, |bytes| memory.grow(bytes))?;
        Ok(SplitFile { file, _memory: memory })
    };
    let pool = match priority {
        ExtractionPriority::Ordinary => &services.pool,
        ExtractionPriority::Idle => &services.background,
    };
    pool.run_wanted(work).await
}

/// Returns true if the collection of a request holds, or will hold, fingerprints.
pub(crate) fn holds_prints(services: &ImageServices, wanted: &CollectionSpec) -> bool {
    let existing =
        services.registry().and_then(|registry| ImageCollection::existing(&registry, wanted));
    match existing {
        Ok(Some(target)) => target.kind == ImageKind::Fingerprint,
        Ok(None) => wanted.kind == Some(ImageKind::Fingerprint),
        // The upload of the whole file reports the error.
        Err(_) => false,
    }
}

/// Adds one print of a file.
async fn put_print(
    state: &ImagesState,
    new: &NewImage,
    file: &FilePrints,
    print: &PrintFile,
    priority: ExtractionPriority,
) -> Result<PutOutcome> {
    let new = NewImage {
        wanted: new.wanted.clone(),
        name: new.name.clone(),
        payload: file.payload(print, &new.payload),
        bytes: print.bytes.clone(),
    };
    match priority {
        ExtractionPriority::Ordinary => add::add(&state.services, new).await,
        ExtractionPriority::Idle => add::add_in_background(state, new).await,
    }
}
