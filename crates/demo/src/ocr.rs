//! The PP-OCR text recogniser, a trained model that is read from a file. It takes images 48 pixels
//! high and of any width, and gives scores of all characters for each eight columns.

use std::path::{Path, PathBuf};

use base::{Error, NamedTensor, Result, Tensor};
use engine::{Engine as _, LoadRequest};
use engine_onnx::OnnxEngine;
use engine_onnx::publish::{PublishOptions, publish as publish_onnx};
use image::imageops::FilterType;
use os::Rate;

use loadgen::BenchEnv;
use loadgen::cache;

/// Name of its file among the fetched models.
pub const FILE: &str = "ch_PP-OCRv4_rec_infer.onnx";
/// Name of the model's input.
pub const INPUT: &str = "x";
/// Name of the model's output.
pub const OUTPUT: &str = "softmax_11.tmp_0";
/// Number of columns of the image for one step of the output.
pub const STEP_PX: usize = 8;
/// Height of the model's images in pixels.
const HEIGHT_PX: u32 = 48;
/// Maximum width of an image after scaling.
const WIDTH_PX_MAX: u32 = 4096;
/// Key of the model's metadata with its characters, one a line.
const CHARACTERS_KEY: &str = "character";
/// Directory of text lines among the assets.
const LINES_DIR: &str = "lines";
/// File with the words of the text lines.
const LINES_FILE: &str = "lines.txt";
/// Maximum number of lines.
const LINES_MAX: usize = 4096;

/// Publishes the model that was fetched into `models`, if the cache does not have it, and returns
/// its path.
///
/// # Errors
/// `NotFound` if it was not fetched.
pub fn publish(env: &BenchEnv, models: &Path) -> Result<PathBuf> {
    let source = models.join(FILE);
    if !source.is_file() {
        return Err(Error::not_found(format!(
            "{}: not there; `make bench` fetches it, or leave it out with --models small,conv",
            source.display()
        )));
    }
    let bytes = std::fs::metadata(&source).map_err(|e| Error::io(&source, &e))?.len();
    // The cache holds published versions, so the publisher's numbered directory becomes the cache's
    // own.
    let dir = cache::ensure(&env.cache_dir, &format!("ocr-{bytes}"), bytes, |part| {
        let options = PublishOptions {
            source,
            dest_root: part.to_owned(),
            version: Some(1),
            rate: Rate::unlimited(),
            direct: true,
        };
        publish_onnx(&options, &mut |_| {}).map(drop)
    })?;
    Ok(dir.join("1"))
}

/// Lines of text as requests, and their words.
#[derive(Clone, Debug)]
pub struct OcrLines {
    /// Requests of one image each.
    pub requests: Vec<Vec<NamedTensor>>,
    /// Text of each image.
    pub words: Vec<String>,
}

/// Reads the lines drawn into `assets`.
///
/// # Errors
/// `NotFound` if they were not drawn; `InvalidArgument` for a width that is not a multiple of a
/// step, because no rule could cut its output back exactly.
pub fn lines(assets: &Path) -> Result<OcrLines> {
    let dir = assets.join(LINES_DIR);
    let list = dir.join(LINES_FILE);
    let text = std::fs::read_to_string(&list).map_err(|_| {
        Error::not_found(format!(
            "{}: not there; `make bench` draws it, or leave ocr out with --models small,conv",
            list.display()
        ))
    })?;
    let words: Vec<String> = text.lines().take(LINES_MAX).map(str::to_owned).collect();
    let request = |number: usize| {
        let path = dir.join(format!("{number:02}.png"));
        let tensor = pixels(&path)?;
        match tensor.shape().last() {
            Some(width) if width % STEP_PX == 0 => Ok(vec![NamedTensor::new(INPUT, tensor)]),
            _ => Err(Error::invalid(format!(
                "{}: its width after scaling to {HEIGHT_PX} rows is not a multiple of {STEP_PX}",
                path.display()
            ))),
        }
    };
    Ok(OcrLines { requests: (0..words.len()).map(request).collect::<Result<_>>()?, words })
}

/// Reads the characters of the model's outputs. The first output is "no character", the last a
/// space.
///
/// # Errors
/// Returns an error if the model cannot be opened or has no characters.
pub fn characters(engine: &OnnxEngine, model: &Path) -> Result<Vec<String>> {
    let request = LoadRequest { graph: model.to_owned(), ..LoadRequest::default() };
    let session = engine.load(&request)?;
    let listed = session.metadata().get(CHARACTERS_KEY).ok_or_else(|| {
        Error::invalid(format!("{}: its metadata has no \"{CHARACTERS_KEY}\"", model.display()))
    })?;
    Ok(listed.lines().map(str::to_owned).chain([" ".to_owned()]).collect())
}

/// Returns an image scaled to the model's height, channels first, -1 to 1.
///
/// # Errors
/// Returns an error if it cannot be read.
pub(crate) fn pixels(path: &Path) -> Result<Tensor> {
    let image = image::open(path)
        .map_err(|e| Error::invalid(path.display().to_string()).caused_by(e))?
        .to_rgb8();
    let width =
        (u64::from(image.width()) * u64::from(HEIGHT_PX) / u64::from(image.height().max(1))) as u32;
    let width = width.clamp(1, WIDTH_PX_MAX);
    let scaled = image::imageops::resize(&image, width, HEIGHT_PX, FilterType::Triangle);
    let channel = |channel: usize| {
        scaled.pixels().map(move |pixel| f32::from(pixel.0[channel]) / 127.5 - 1.0)
    };
    let values: Vec<f32> = (0..3).flat_map(channel).collect();
    Tensor::from_vec([1, 3, HEIGHT_PX as usize, width as usize].as_slice(), values)
}

/// Returns the most likely character of each step. Repetitions without a gap between them are one
/// character. Spaces at the ends, which come from white margins, are left out.
pub fn decode(scores: &[f32], classes: usize, characters: &[String]) -> String {
    let mut steps: Vec<usize> =
        scores.chunks_exact(classes.max(1)).map(|step| best(step).0).collect();
    steps.dedup();
    let text: String = steps
        .iter()
        .filter_map(|&class| characters.get(class.checked_sub(1)?))
        .map(String::as_str)
        .collect();
    text.trim().to_owned()
}

/// Returns the position and value of the largest score. Two passes let the compiler use wide
/// instructions, because answers are judged while servers are measured.
pub fn best(step: &[f32]) -> (usize, f32) {
    let most =
        step.iter().fold(f32::NEG_INFINITY, |most, &score| if score > most { score } else { most });
    (step.iter().position(|&score| score == most).unwrap_or(0), most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_steps_are_one_character_unless_a_gap_parts_them() {
        let characters = ["a".to_owned(), "b".to_owned(), " ".to_owned()];
        let step = |class: usize| (0..4).map(move |index| if index == class { 0.9 } else { 0.1 });
        let scores: Vec<f32> = [3, 1, 1, 0, 1, 3, 2, 3, 0].into_iter().flat_map(step).collect();
        assert_eq!(decode(&scores, 4, &characters), "aa b");
        assert_eq!(decode(&[], 4, &characters), "");
        assert_eq!(best(&[f32::NAN, 0.5, 0.25]), (1, 0.5));
    }

    #[test]
    fn images_become_tensors_of_the_models_height() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("white.png");
        image::RgbImage::from_pixel(200, 96, image::Rgb([255, 255, 255])).save(&path).unwrap();
        let tensor = pixels(&path).unwrap();
        assert_eq!(tensor.shape(), [1, 3, 48, 100]);
        assert!(tensor.to_vec::<f32>().unwrap().iter().all(|&value| value == 1.0));
        assert!(pixels(&dir.path().join("none.png")).is_err());
    }

    #[test]
    fn lines_come_with_their_words_and_in_whole_steps() {
        let dir = tempfile::tempdir().unwrap();
        assert!(lines(dir.path()).unwrap_err().message().contains("`make bench` draws it"));
        let to = dir.path().join(LINES_DIR);
        std::fs::create_dir(&to).unwrap();
        std::fs::write(to.join(LINES_FILE), "one\ntwo words\n").unwrap();
        for (number, width) in [(0, 64), (1, 128)] {
            let image = image::RgbImage::from_pixel(width, 48, image::Rgb([255, 255, 255]));
            image.save(to.join(format!("{number:02}.png"))).unwrap();
        }
        let read = lines(dir.path()).unwrap();
        assert_eq!(read.words, ["one", "two words"]);
        assert_eq!(read.requests[1][0].tensor.shape(), [1, 3, 48, 128]);
        image::RgbImage::new(60, 48).save(to.join("01.png")).unwrap();
        assert!(lines(dir.path()).unwrap_err().message().contains("not a multiple of 8"));
    }
}
