//! A trained model that the program contains: a classifier of handwritten digits, and the images
//! that were held out of its training. `scripts/digits_model.py` makes both.

use std::path::Path;

use base::{Error, NamedTensor, Result, Tensor};

use crate::caller::GrpcCaller;

/// Name of the model.
pub(super) const MODEL: &str = "digits";
/// The model. It takes `pixels`, float32 [-1, 64], and returns `digit` and `probabilities`.
static ONNX: &[u8] = include_bytes!("digits/model.onnx");
/// Held-out images: the pixels of each, and its label.
static HELD_OUT: &[u8] = include_bytes!("digits/held_out.bin");
/// Width and height of an image, in pixels.
const SIDE: usize = 8;
/// Number of pixels of an image.
const PIXELS: usize = SIDE * SIDE;
/// Bytes of an image and its digit.
const RECORD: usize = PIXELS + 1;
/// Number of digits.
const CLASSES: usize = 10;
/// Number of images that are drawn.
const DRAWN: usize = 4;
/// Brightness from 0 (paper) to 16 (ink), in steps of 4.
const INK: [&str; 5] = ["  ", "░░", "▒▒", "▓▓", "██"];
/// Minimum held-out images that the model must read correctly: 349 of 360 after its training, less
/// a few for other processors' rounding.
const RIGHT_MIN: usize = 345;

/// Writes the model to `path`.
///
/// # Errors
/// Returns an error if the file cannot be written.
pub(super) fn write(path: &Path) -> Result<()> {
    std::fs::write(path, ONNX).map_err(|e| Error::io(path, &e))
}

/// Writes a file unless another one has its name.
fn write_new(path: &Path, bytes: &[u8]) -> Result<()> {
    match std::fs::read(path) {
        Ok(found) if found == bytes => Ok(()),
        Ok(_) => Err(Error::precondition(format!(
            "{} exists and is another file; give another directory",
            path.display()
        ))),
        Err(_) => std::fs::write(path, bytes).map_err(|e| Error::io(path, &e)),
    }
}

/// Writes the model and a request for it into `dir`. Returns the commands that serve it.
///
/// # Errors
/// `FailedPrecondition` if another file has the name of one; if a file cannot be written.
pub(super) fn export(dir: &Path, program: &str) -> Result<String> {
    std::fs::create_dir_all(dir).map_err(|e| Error::io(dir, &e))?;
    let model = dir.join("digits.onnx");
    write_new(&model, ONNX)?;
    let request = dir.join("digit.json");
    let (pixels, label) = HELD_OUT.split_at(PIXELS);
    let body = serde_json::json!({ "instances": [&pixels] });
    write_new(&request, body.to_string().as_bytes())?;
    let models = dir.join("models");
    Ok(format!(
        "  {program} publish {} --to {}\n  {program} serve {}\n  \
         curl -d @{} http://127.0.0.1:8501/v1/models/{MODEL}:predict    # \"digit\" is {}",
        model.display(),
        models.join(MODEL).display(),
        models.display(),
        request.display(),
        label.first().copied().unwrap_or_default()
    ))
}

/// Result of [`check`], for people.
pub(super) struct DigitsReport {
    /// A few images, and the digit that the model reads in each.
    pub(super) drawing: Vec<String>,
    /// Number of images that were read correctly.
    pub(super) summary: String,
}

/// Asks the served model for all held-out images.
///
/// # Errors
/// Returns an error if an answer does not fit the model's signature, or too few images are read
/// correctly.
pub(super) fn check(caller: &mut GrpcCaller) -> Result<DigitsReport> {
    let records: Vec<&[u8]> = HELD_OUT.chunks_exact(RECORD).collect();
    let pixels: Vec<f32> =
        records.iter().flat_map(|record| &record[..PIXELS]).map(|&ink| f32::from(ink)).collect();
    let tensor = Tensor::from_vec([records.len(), PIXELS].as_slice(), pixels)?;
    let answer = caller.call(MODEL, vec![NamedTensor::new("pixels", tensor)])?;
    let (shape, probabilities) = answer.floats("probabilities")?;
    if shape != [records.len() as i64, CLASSES as i64] {
        return Err(Error::data_loss(format!(
            "the answer has shape {shape:?}, wanted [{}, {CLASSES}]",
            records.len()
        )));
    }
    let read: Vec<u8> = probabilities.chunks_exact(CLASSES).map(most_probable).collect();
    let right = records.iter().zip(&read).filter(|(record, digit)| record[PIXELS] == **digit);
    let right = right.count();
    if right < RIGHT_MIN {
        return Err(Error::internal(format!(
            "\"{MODEL}\" read {right} of {} digits correctly, expected at least {RIGHT_MIN}",
            records.len()
        )));
    }
    let mut drawing = draw(&records[..DRAWN]);
    let names: Vec<String> = read.iter().take(DRAWN).map(|digit| format!("{digit:^16}")).collect();
    drawing.push(names.concat().trim_end().to_owned());
    let summary = format!("{right} of {} held-out handwritten digits read rightly", records.len());
    Ok(DigitsReport { drawing, summary })
}

fn most_probable(probabilities: &[f32]) -> u8 {
    let best = probabilities.iter().enumerate().max_by(|(_, a), (_, b)| a.total_cmp(b));
    best.map_or(0, |(digit, _)| digit as u8)
}

/// Draws images side by side.
fn draw(records: &[&[u8]]) -> Vec<String> {
    let row = |row: usize| {
        let pixels = records.iter().flat_map(|record| &record[row * SIDE..(row + 1) * SIDE]);
        let line: String =
            pixels.map(|&ink| INK[usize::from(ink / 4).min(INK.len() - 1)]).collect();
        line.trim_end().to_owned()
    };
    (0..SIDE).map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_export_replaces_no_other_file() {
        let dir = tempfile::tempdir().unwrap();
        export(dir.path(), "bin/millpond").unwrap();
        export(dir.path(), "bin/millpond").unwrap();
        std::fs::write(dir.path().join("digits.onnx"), "mine").unwrap();
        let refused = export(dir.path(), "bin/millpond").unwrap_err();
        assert!(refused.message().contains("another directory"), "{refused}");
        assert_eq!(std::fs::read(dir.path().join("digits.onnx")).unwrap(), b"mine");
    }

    #[test]
    fn held_out_images_are_whole() {
        assert_eq!(HELD_OUT.len() % RECORD, 0);
        assert!(HELD_OUT.chunks_exact(RECORD).all(|record| {
            record[..PIXELS].iter().all(|&ink| ink <= 16) && usize::from(record[PIXELS]) < CLASSES
        }));
    }

    #[test]
    fn the_exported_request_has_its_label() {
        let dir = tempfile::tempdir().unwrap();
        let commands = export(dir.path(), "bin/millpond").unwrap();
        let body = std::fs::read_to_string(dir.path().join("digit.json")).unwrap();
        let body: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(body["instances"][0].as_array().unwrap().len(), PIXELS);
        assert_eq!(std::fs::read(dir.path().join("digits.onnx")).unwrap(), ONNX);
        assert!(commands.ends_with(&format!("\"digit\" is {}", HELD_OUT[PIXELS])));
    }

    #[test]
    fn the_most_probable_class_wins() {
        assert_eq!(most_probable(&[0.1, 0.7, 0.2]), 1);
        assert_eq!(draw(&[&[16; RECORD]]), vec!["██".repeat(SIDE); SIDE]);
    }
}
