//! Image search for everyone to see: pictures are put into a collection, and cropped, turned and
//! recompressed copies of some of them find their originals.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use base::{Error, Result};
use serde_json::Value;

/// The embedding model's name, which is its directory's too.
pub(super) const MODEL: &str = "mobilenet-v2";
/// The collection.
const COLLECTION: &str = "pictures";
/// Pictures of the folder that are taken: one request each.
const PICTURES_MAX: usize = 200;
/// How long one picture may take, also on a busy machine.
const ANSWER_MAX: Duration = Duration::from_secs(300);
/// An answer that is larger is refused.
const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// What `make images-model` has made.
#[derive(Debug)]
pub(super) struct Gallery {
    /// The embedding model's file.
    pub(super) model: PathBuf,
    pictures: Vec<PathBuf>,
    changed: Vec<PathBuf>,
}

impl Gallery {
    /// What is in `dir`; `None` where the model or the pictures are missing.
    pub(super) fn find(dir: &Path) -> Option<Gallery> {
        let model = dir.join("models").join(MODEL).join("1/model.onnx");
        let (pictures, changed) = (files(&dir.join("pictures")), files(&dir.join("changed")));
        let there = model.is_file() && !pictures.is_empty() && !changed.is_empty();
        there.then_some(Gallery { model, pictures, changed })
    }
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| path.is_file())
        .take(PICTURES_MAX)
        .collect();
    files.sort();
    files
}

/// The pictures in a server's collection.
pub(super) struct Wall<'a> {
    gallery: &'a Gallery,
    agent: ureq::Agent,
    base: String,
}

impl<'a> Wall<'a> {
    /// Puts every picture into the collection; a line that says so.
    ///
    /// # Errors
    /// When the server does not take one.
    pub(super) fn hang(gallery: &'a Gallery, base: String) -> Result<(Wall<'a>, String)> {
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(ANSWER_MAX))
            .build()
            .into();
        let wall = Wall { gallery, agent, base };
        let started = Instant::now();
        for picture in &gallery.pictures {
            let query = format!("?name={}&model={MODEL}", escaped(&name(picture)));
            let request = ureq::http::Request::put(wall.url(&query));
            wall.ask(request, picture)?;
        }
        let count = gallery.pictures.len();
        let line = format!("{count} pictures indexed in {:.1} s", started.elapsed().as_secs_f64());
        Ok((wall, line))
    }

    /// The page that shows them.
    pub(super) fn page(&self) -> String {
        format!("{}/images?collection={COLLECTION}", self.base)
    }

    /// Searches with each changed copy; a line for each.
    ///
    /// # Errors
    /// When a copy does not find its original.
    pub(super) fn find(&self) -> Result<Vec<String>> {
        self.gallery.changed.iter().map(|copy| self.find_one(copy)).collect()
    }

    fn find_one(&self, copy: &Path) -> Result<String> {
        let query = format!("/search?k={}", self.gallery.pictures.len());
        let answer = self.ask(ureq::http::Request::post(self.url(&query)), copy)?;
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

    fn ask(&self, request: ureq::http::request::Builder, picture: &Path) -> Result<Value> {
        let bytes = std::fs::read(picture).map_err(|e| Error::io(picture, &e))?;
        let wrong = |e: &dyn std::fmt::Display| {
            Error::unavailable(format!("image search, {}: {e}", picture.display()))
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

/// As a value in an address.
fn escaped(text: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    text.bytes()
        .map(|byte| if plain(&byte) { char::from(byte).into() } else { format!("%{byte:02X}") })
        .collect()
}

fn stem(name: &str) -> &str {
    name.split_once('.').map_or(name, |(stem, _)| stem)
}

/// The first result, and where the coarse stage had it.
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

    /// Which stage found it, in words.
    fn line(&self, copy: &str) -> String {
        let stage = match self.coarse_rank {
            1 => "the embedding had it first and the keypoints confirm it".to_owned(),
            rank => format!(
                "the embedding had it only as {rank} of {}, the keypoints found it",
                self.of
            ),
        };
        format!(
            "{copy}, cropped, turned and recompressed, is {}: score {:.0}, coarse likeness {:.2}; {stage}",
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
        assert_eq!(escaped("a b&é.png"), "a%20b%26%C3%A9.png");
    }

    #[test]
    fn what_is_not_there_is_left_out() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Gallery::find(dir.path()).is_none());
        let model = dir.path().join("models").join(MODEL).join("1");
        std::fs::create_dir_all(&model).unwrap();
        std::fs::write(model.join("model.onnx"), "x").unwrap();
        for folder in ["pictures", "changed"] {
            assert!(Gallery::find(dir.path()).is_none());
            std::fs::create_dir(dir.path().join(folder)).unwrap();
            std::fs::write(dir.path().join(folder).join("a.png"), "x").unwrap();
        }
        assert_eq!(Gallery::find(dir.path()).unwrap().pictures.len(), 1);
    }
}
