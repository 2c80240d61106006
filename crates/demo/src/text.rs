//! Reads a line of text from a picture with the PP-OCR recogniser.

use std::path::Path;

use base::{Error, NamedTensor, Result};

use crate::caller::GrpcCaller;
use crate::ocr;

/// The text in `picture`.
///
/// # Errors
/// When the picture cannot be read or the server does not answer as the model's signature says.
pub(super) fn read(
    caller: &mut GrpcCaller,
    model: &str,
    picture: &Path,
    characters: &[String],
) -> Result<String> {
    let answer = caller.ask(model, vec![NamedTensor::new(ocr::INPUT, ocr::pixels(picture)?)])?;
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
