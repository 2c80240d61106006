//! Demonstration of image search. Adds images to a collection. Then cropped, turned and
//! recompressed copies of some of them find their originals.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use base::{Error, Result};
use loadgen::connection::url_segment;
use serde_json::Value;

/// Name of the embedding model and of its directory.
pub(super) const MODEL: &str = "mobilenet-v2";
/// Name of the collection.
const COLLECTION: &str = "pictures";
/// Maximum number of images of the folder: one request each.
const IMAGES_MAX: usize = 200;
/// Timeout of one image, also on a busy machine.
const ANSWER_MAX: Duration = Duration::from_secs(300);
/// Maximum size of a response.
const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// Files that `make images-model` makes.
#[derive(Debug)]
pub(super) struct ImageModelFiles {
    /// File of the embedding model.
    pub(super) model: PathBuf,
    images: Vec<PathBuf>,
    changed: Vec<PathBuf>,
}

impl ImageModelFiles {
    /// Finds the files in `dir`.
    ///
    /// # Errors
    /// `NotFound` with the remedy if the model or the images are missing.
    pub(super) fn find(dir: &Path) -> Result<ImageModelFiles> {
        let model = dir.join("models").join(MODEL).join("1/model.onnx");
        let images = files(&dir.join("pictures"));
        let changed = files(&dir.join("changed"));
        let there = model.is_file() && !images.is_empty() && !changed.is_empty();
        there.then_some(ImageModelFiles { model, images, changed }).ok_or_else(|| {
            Error::not_found(format!(
                "{} lacks the model or the images of image search; run `make images-model` in a \
                 checkout, which makes them, or leave --images out",
                dir.display()
            ))
        })
    }
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> =
        entries.map(|entry| entry.path()).filter(|path| path.is_file()).take(IMAGES_MAX).collect();
    files.sort();
    files
}

/// The images in a server's collection.
pub(super) struct IndexedGallery<'a> {
    gallery: &'a ImageModelFiles,
    agent: ureq::Agent,
    base: String,
}

impl<'a> IndexedGallery<'a> {
    /// Puts every image into the collection. Returns a line for people.
    ///
    /// # Errors
    /// Returns an error if the server refuses an image.
    pub(super) fn index(
        gallery: &'a ImageModelFiles,
        base: String,
    ) -> Result<(IndexedGallery<'a>, String)> {
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .proxy(None)
            .timeout_global(Some(ANSWER_MAX))
            .build()
            .into();
        let indexed = IndexedGallery { gallery, agent, base };
        let started = Instant::now();
        for image in &gallery.images {
            let query = format!("?name={}&model={MODEL}", url_segment(&name(image)));
            let request = ureq::http::Request::put(indexed.url(&query));
            indexed.send(request, image)?;
        }
        let count = gallery.images.len();
        let line = format!("{count} images indexed in {:.1} s", started.elapsed().as_secs_f64());
        Ok((indexed, line))
    }

    /// Returns the address of the page that shows the images.
    pub(super) fn page(&self) -> String {
        format!("{}/images?collection={COLLECTION}", self.base)
    }

    /// Searches with each changed copy. Returns a line for each.
    ///
    /// # Errors
    /// Returns an error if a copy does not find its original.
    pub(super) fn find(&self) -> Result<Vec<String>> {
        self.gallery.changed.iter().map(|copy| self.find_one(copy)).collect()
    }

    fn find_one(&self, copy: &Path) -> Result<String> {
        let query = format!("/search?k={}", self.gallery.images.len());
        let answer = self.send(ureq::http::Request::post(self.url(&query)), copy)?;
        let found = FirstHit::parse(&answer).ok_or_else(|| {
            Error::data_loss(format!("the answer to a search has no results: {answer}"))
        })?;
        if !found.accepted || stem(&found.name) != stem(&name(copy)) {
            return Err(Error::internal(format!(
                "{} found {} (score {:.0}, coarse {:.2}), not its original",
                copy.display(),
                found.name,
                found.score,
                found.coarse
            )));
        }
        Ok(found.line(&name(copy)))
    }

    fn url(&self, rest: &str) -> String {
        format!("{}/v1/images/{COLLECTION}{rest}", self.base)
    }

    fn send(&self, request: ureq::http::request::Builder, image: &Path) -> Result<Value> {
        let bytes = std::fs::read(image).map_err(|e| Error::io(image, &e))?;
        let wrong = |e: &dyn std::fmt::Display| {
            Error::unavailable(format!("image search, {}: {e}", image.display()))
        };
        let request = request.header("content-type", "application/octet-stream").body(bytes);
        let mut answer = self.agent.run(request.map_err(|e| wrong(&e))?).map_err(|e| wrong(&e))?;
        let status = answer.status();
        let text = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_string();
        let text = text.map_err(|e| wrong(&e))?;
        if !status.is_success() {
            return Err(wrong(&format!("{status}: {text}")));
        }
        serde_json::from_str(&text).map_err(|e| wrong(&e))
    }
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn stem(name: &str) -> &str {
    name.split_once('.').map_or(name, |(stem, _)| stem)
}

/// First result, and its rank in the coarse stage.
#[derive(Debug, PartialEq)]
struct FirstHit {
    name: String,
    score: f64,
    coarse: f64,
    accepted: bool,
    coarse_rank: usize,
    of: usize,
}

impl FirstHit {
    /// Reads the first hit of an answer and its rank by the coarse score. `None` if there is no
    /// hit.
    fn parse(answer: &Value) -> Option<FirstHit> {
        let results = answer.get("results")?.as_array()?;
        let coarse = |result: &Value| result.get("coarse").and_then(Value::as_f64);
        let first = results.first()?;
        let own = coarse(first)?;
        Some(FirstHit {
            name: first.get("name")?.as_str()?.to_owned(),
            score: first.get("score")?.as_f64()?,
            coarse: own,
            accepted: first.get("accepted")?.as_bool()?,
            coarse_rank: 1 + results.iter().filter_map(coarse).filter(|&other| other > own).count(),
            of: results.len(),
        })
    }

    /// Describes the stage that found it.
    fn line(&self, copy: &str) -> String {
        let stage = match self.coarse_rank {
            1 => "the embedding had it first and the keypoints confirm it".to_owned(),
            rank => format!(
                "the embedding had it only as {rank} of {}, the keypoints found it",
                self.of
            ),
        };
        format!(
            "{copy}, cropped, turned and recompressed, is {}: score {:.0}, coarse similarity {:.2}; {stage}",
            self.name, self.score, self.coarse
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_which_stage_found_it() {
        let answer = serde_json::json!({"results": [
            {"name": "coffee.png", "score": 900.0, "coarse": 0.5, "accepted": true},
            {"name": "coins.png", "score": 0.0, "coarse": 0.6, "accepted": false},
        ]});
        let found = FirstHit::parse(&answer).unwrap();
        assert_eq!((found.coarse_rank, found.of), (2, 2));
        let line = found.line("coffee.jpg");
        assert!(
            line.contains("is coffee.png: score 900") && line.contains("only as 2 of 2"),
            "{line}"
        );
        assert_eq!(FirstHit::parse(&serde_json::json!({"results": []})), None);
        assert_eq!(stem("coffee.jpg"), stem("coffee.png"));
        assert_eq!(url_segment("a b&é.png"), "a%20b%26%C3%A9.png");
    }

    #[test]
    fn a_gallery_needs_its_model_and_images() {
        let dir = tempfile::tempdir().unwrap();
        assert!(ImageModelFiles::find(dir.path()).is_err());
        let model = dir.path().join("models").join(MODEL).join("1");
        std::fs::create_dir_all(&model).unwrap();
        std::fs::write(model.join("model.onnx"), "x").unwrap();
        for folder in ["pictures", "changed"] {
            assert!(ImageModelFiles::find(dir.path()).is_err());
            std::fs::create_dir(dir.path().join(folder)).unwrap();
            std::fs::write(dir.path().join(folder).join("a.png"), "x").unwrap();
        }
        assert_eq!(ImageModelFiles::find(dir.path()).unwrap().images.len(), 1);
    }
}
