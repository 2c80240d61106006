//! Reads a line of text from a picture with the PP-OCR recogniser.

use std::path::Path;

use base::{Error, NamedTensor, Result, Tensor};
use engine::{Engine as _, LoadRequest, SessionOptions};
use engine_onnx::OnnxEngine;
use image::imageops::FilterType;

use crate::caller::Caller;

/// Height of the pictures that the model takes.
const HEIGHT_PX: u32 = 48;
/// Widest picture after scaling.
const WIDTH_PX_MAX: u32 = 4096;
/// Where the model's metadata has its characters, one a line.
const CHARACTERS_KEY: &str = "character";

/// The characters that the model's outputs stand for; the first output is "no character", the last a space.
///
/// # Errors
/// When the model cannot be opened or does not carry them.
pub(super) fn characters(engine: &OnnxEngine, model: &Path) -> Result<Vec<String>> {
    let request =
        LoadRequest { graph: model.to_owned(), parameters: Vec::new(), options: SessionOptions::default() };
    let session = engine.load(&request)?;
    let listed = session.metadata().get(CHARACTERS_KEY).ok_or_else(|| {
        Error::invalid(format!("{}: its metadata has no \"{CHARACTERS_KEY}\"", model.display()))
    })?;
    Ok(listed.lines().map(str::to_owned).chain([" ".to_owned()]).collect())
}

/// The text in `picture`.
///
/// # Errors
/// When the picture cannot be read or the server does not answer as the model's signature says.
pub(super) fn read(
    caller: &mut Caller,
    model: &str,
    picture: &Path,
    characters: &[String],
) -> Result<String> {
    let answer = caller.ask(model, vec![NamedTensor::new("x", pixels(picture)?)])?;
    let output = answer.tensors.first().map(|(name, ..)| name.clone()).unwrap_or_default();
    let (shape, scores) = answer.floats(&output)?;
    match shape {
        [1, _, classes] if *classes as usize == characters.len() + 1 => {
            // White margins read as spaces.
            Ok(decode(&scores, *classes as usize, characters).trim().to_owned())
        }
        _ => Err(Error::data_loss(format!(
            "the answer has shape {shape:?}, wanted [1, steps, {}]",
            characters.len() + 1
        ))),
    }
}

/// Scaled to the model's height, channels first, -1 to 1.
fn pixels(path: &Path) -> Result<Tensor> {
    let picture =
        image::open(path).map_err(|e| Error::invalid(format!("{}: {e}", path.display())))?.to_rgb8();
    let width =
        (u64::from(picture.width()) * u64::from(HEIGHT_PX) / u64::from(picture.height().max(1))) as u32;
    let width = width.clamp(1, WIDTH_PX_MAX);
    let scaled = image::imageops::resize(&picture, width, HEIGHT_PX, FilterType::Triangle);
    let channel =
        |channel: usize| scaled.pixels().map(move |pixel| f32::from(pixel.0[channel]) / 127.5 - 1.0);
    let values: Vec<f32> = (0..3).flat_map(channel).collect();
    Tensor::from_vec([1, 3, HEIGHT_PX as usize, width as usize].as_slice(), values)
}

/// The most likely character of each step; repetitions without a gap between them are one.
fn decode(scores: &[f32], classes: usize, characters: &[String]) -> String {
    let best = |step: &[f32]| {
        step.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(index, _)| index)
    };
    let mut steps: Vec<usize> = scores.chunks_exact(classes).map(best).collect();
    steps.dedup();
    steps.iter().filter_map(|&class| characters.get(class.checked_sub(1)?)).map(String::as_str).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_steps_are_one_character_unless_a_gap_parts_them() {
        let characters = ["a".to_owned(), "b".to_owned(), " ".to_owned()];
        let step = |class: usize| (0..4).map(move |index| if index == class { 0.9 } else { 0.1 });
        let scores: Vec<f32> = [1, 1, 0, 1, 2, 3, 0].into_iter().flat_map(step).collect();
        assert_eq!(decode(&scores, 4, &characters), "aab ");
        assert_eq!(decode(&[], 4, &characters), "");
    }

    #[test]
    fn pictures_become_tensors_of_the_models_height() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("white.png");
        image::RgbImage::from_pixel(200, 96, image::Rgb([255, 255, 255])).save(&path).unwrap();
        let tensor = pixels(&path).unwrap();
        assert_eq!(tensor.shape(), [1, 3, 48, 100]);
        assert!(tensor.to_vec::<f32>().unwrap().iter().all(|&value| value == 1.0));
        assert!(pixels(&dir.path().join("none.png")).is_err());
    }
}
