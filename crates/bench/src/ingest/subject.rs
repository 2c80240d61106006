//! The measured server: a process with a collection of images, and calls to it.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use base::{Error, Result};
use serde_json::{Value, json};

use super::{IngestArgs, images, model};
use loadgen::BenchEnv;
use loadgen::cache;
use loadgen::process::{ServerPlan, ServerProcess};
use loadgen::run_folder::RunFolder;
use loadgen::scrape::Scrape;

pub(super) const COLLECTION: &str = "photos";
/// Record cache of the server: small, so that searches read the disk.
const CACHE: &str = "4MiB";
/// Maximum number of ids in a call.
const IDS_AT_ONCE: usize = 1000;
/// Timeout of a call.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Timeout of background work.
const QUIET_TIMEOUT: Duration = Duration::from_secs(120);
/// Time without events after which background work counts as done.
const QUIET: Duration = Duration::from_millis(1500);
/// Time between two checks for such events.
const QUIET_POLL: Duration = Duration::from_millis(100);
/// Maximum size of a response.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// Acknowledged images: their ids with the files that they came from.
pub(super) type Acknowledged = BTreeMap<String, PathBuf>;

/// Background events since a server's start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct BackgroundCounts {
    pub(super) images: f64,
    pub(super) failed: f64,
    pub(super) waiting: f64,
    pub(super) points: f64,
    pub(super) segments: f64,
    pub(super) flushes: f64,
    pub(super) merges: f64,
}

/// The server, and the images that it must have.
pub(super) struct IngestSubject {
    env: BenchEnv,
    plan: ServerPlan,
    /// Directory of its files. They are of no use to another run.
    root: RunFolder,
    server: Option<ServerProcess>,
    /// All images that were ever acknowledged.
    pub(super) acknowledged: Acknowledged,
    /// Number of the next image that is drawn.
    next: u64,
    /// Client for calls that a server answers at once.
    calls: ureq::Agent,
    /// Client for folders, whose answers last until all images are added.
    streams: ureq::Agent,
}

/// Returns a client that waits at most [`CALL_TIMEOUT`] for a connection, and `answer_timeout` for
/// a whole answer.
fn agent(answer_timeout: Option<Duration>) -> ureq::Agent {
    ureq::Agent::config_builder()
        .proxy(None)
        .timeout_connect(Some(CALL_TIMEOUT))
        .timeout_global(answer_timeout)
        .http_status_as_error(false)
        .build()
        .into()
}

impl IngestSubject {
    /// Starts a server without collections.
    pub(super) fn new(args: &IngestArgs, env: &BenchEnv) -> Result<IngestSubject> {
        let root = RunFolder::new(env.cache_dir.join("run").join("ingest"));
        cache::create_empty_dir(root.path())?;
        let model_dir = root.path().join(model::NAME);
        cache::create_empty_dir(&model_dir)?;
        cache::publish_link(&model::publish(env)?, &model_dir, 1)?;
        let mut plan_args = vec![format!("{}={}", model::NAME, model_dir.display())];
        let collections = root.path().join("collections").display().to_string();
        plan_args.extend(["--collections-dir".into(), collections]);
        plan_args.extend(["--search-memory".into(), args.search_memory.clone()]);
        plan_args.extend(["--search-cache".into(), CACHE.into()]);
        let plan = ServerPlan::new("ingest", plan_args);
        let mut subject = IngestSubject {
            env: env.clone(),
            plan,
            root,
            server: None,
            acknowledged: Acknowledged::new(),
            next: 0,
            calls: agent(Some(CALL_TIMEOUT)),
            streams: agent(None),
        };
        subject.start()?;
        Ok(subject)
    }

    pub(super) fn start(&mut self) -> Result<()> {
        self.server = None;
        self.server = Some(ServerProcess::start(&self.env, &self.plan)?);
        Ok(())
    }

    /// Kills the server, as a fault would.
    pub(super) fn kill(&mut self) {
        self.server = None;
    }

    pub(super) fn server(&self) -> Result<&ServerProcess> {
        self.server.as_ref().ok_or_else(|| Error::internal("no server runs"))
    }

    fn url(&self, path: &str) -> Result<String> {
        Ok(format!("http://{}{path}", self.server()?.http().authority))
    }

    /// Draws `count` new images into a new folder.
    pub(super) fn draw(&mut self, name: &str, count: u64) -> Result<PathBuf> {
        let folder = self.root.path().join("images").join(name);
        images::write(&folder, self.next, count)?;
        self.next += count;
        Ok(folder)
    }

    /// Returns the request that adds the images of a folder.
    pub(super) fn ingest(&self, folder: &Path) -> Result<IngestFolder> {
        Ok(IngestFolder {
            agent: self.streams.clone(),
            url: self.url(&format!("/v1/images/{COLLECTION}"))?,
            folder: folder.into(),
        })
    }

    /// Reads the server's counters of background work.
    pub(super) fn counters(&self) -> Result<BackgroundCounts> {
        let metrics: Scrape = self.server()?.metrics()?;
        let of = |kind| metrics.sum("millpond_collection", &[("kind", kind)]);
        let all = metrics.sum("millpond_images_total", &[]);
        let added = metrics.sum("millpond_images_total", &[("kind", "added")]);
        let present = metrics.sum("millpond_images_total", &[("kind", "present")]);
        Ok(BackgroundCounts {
            images: added,
            failed: all - added - present,
            waiting: metrics.sum("millpond_images_waiting", &[("kind", "bulk")]),
            points: of("points"),
            segments: of("segments"),
            flushes: of("seals"),
            merges: of("merges"),
        })
    }

    /// Waits until background work has ended.
    pub(super) fn wait_quiet(&self) -> Result<BackgroundCounts> {
        let deadline = Instant::now() + QUIET_TIMEOUT;
        let mut last = self.counters()?;
        let mut since = Instant::now();
        loop {
            sleep(QUIET_POLL);
            let now = self.counters()?;
            if now != last || now.waiting > 0.0 {
                (last, since) = (now, Instant::now());
            } else if since.elapsed() >= QUIET {
                return Ok(now);
            }
            if Instant::now() > deadline {
                return Err(Error::deadline("the server's background work does not end"));
            }
        }
    }

    /// Returns the ids of `ids` that the server does not have.
    pub(super) fn missing(&self, ids: &[&String]) -> Result<Vec<String>> {
        let mut missing = Vec::new();
        for chunk in ids.chunks(IDS_AT_ONCE) {
            let answer =
                self.call(&format!("/v1/images/{COLLECTION}/missing"), &json!({ "ids": chunk }))?;
            let list = answer.get("missing").and_then(Value::as_array);
            let list =
                list.ok_or_else(|| Error::internal("the answer has no list of missing images"))?;
            missing.extend(list.iter().filter_map(Value::as_str).map(str::to_owned));
        }
        Ok(missing)
    }

    /// Waits until the collection answers. It does not while it is being opened.
    pub(super) fn wait_open(&self) -> Result<()> {
        let deadline = Instant::now() + CALL_TIMEOUT;
        loop {
            match self.missing(&self.acknowledged.keys().take(1).collect::<Vec<_>>()) {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() > deadline => return Err(error),
                Err(_) => sleep(QUIET_POLL),
            }
        }
    }

    /// Returns true if the server's image for an id equals the file that it came from.
    pub(super) fn is_whole(&self, id: &str, file: &Path) -> Result<bool> {
        let url = self.url(&format!("/v1/images/{COLLECTION}/{id}"))?;
        let failed = |error: ureq::Error| Error::unavailable(&url).caused_by(error);
        let mut answer = self.calls.get(&url).call().map_err(failed)?;
        let bytes = answer
            .body_mut()
            .with_config()
            .limit(ANSWER_BYTES_MAX)
            .read_to_vec()
            .map_err(failed)?;
        let wanted = std::fs::read(file).map_err(|error| Error::io(file, &error))?;
        Ok(answer.status().is_success() && bytes == wanted)
    }

    /// Posts JSON and reads JSON.
    fn call(&self, path: &str, body: &Value) -> Result<Value> {
        let url = self.url(path)?;
        let failed = |error: ureq::Error| Error::unavailable(&url).caused_by(error);
        let request = self.calls.post(&url).header("content-type", "application/json");
        let mut answer = request.send(body.to_string()).map_err(failed)?;
        let text = answer
            .body_mut()
            .with_config()
            .limit(ANSWER_BYTES_MAX)
            .read_to_string()
            .map_err(failed)?;
        if !answer.status().is_success() {
            return Err(Error::unavailable(format!("{url}: {}: {text}", answer.status())));
        }
        serde_json::from_str(&text).map_err(|error| Error::internal(&url).caused_by(error))
    }
}

impl Drop for IngestSubject {
    fn drop(&mut self) {
        // It writes to the directory, which is removed next.
        self.server = None;
    }
}

pub(super) struct IngestFolder {
    agent: ureq::Agent,
    url: String,
    folder: PathBuf,
}

impl IngestFolder {
    /// Makes the server read the folder and calls `acknowledged` for every image that it confirms.
    /// Returns true at the folder's end, false after `stop` or the server's end.
    ///
    /// # Errors
    /// Returns an error if the server refuses.
    pub(super) fn run(
        &self,
        stop: &AtomicBool,
        mut acknowledged: impl FnMut(String, PathBuf),
    ) -> Result<bool> {
        let failed = |error: ureq::Error| Error::unavailable(&self.url).caused_by(error);
        let request = self.agent.put(&self.url).header("content-type", "application/json");
        let mut answer =
            request.send(json!({ "folder": self.folder }).to_string()).map_err(failed)?;
        if !answer.status().is_success() {
            let text = answer.body_mut().read_to_string().unwrap_or_default();
            return Err(Error::unavailable(format!("{}: {}: {text}", self.url, answer.status())));
        }
        for line in BufReader::new(answer.body_mut().as_reader()).lines() {
            // The connection ends with the server.
            let Ok(line) = line else { return Ok(false) };
            let Ok(line) = serde_json::from_str::<Value>(&line) else { return Ok(false) };
            let text = |key: &str| line.get(key).and_then(Value::as_str);
            match (text("id"), text("name"), text("status")) {
                (Some(id), Some(name), Some("added" | "present")) => {
                    acknowledged(id.to_owned(), self.folder.join(name));
                }
                _ if line.get("summary").is_some() => return Ok(true),
                _ => {
                    return Err(Error::internal(format!(
                        "a generated image was not added: {line}"
                    )));
                }
            }
            if stop.load(Ordering::Relaxed) {
                return Ok(false);
            }
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_is_never_answered_is_an_error() {
        // The system accepts the connection; no program reads from it.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        assert!(agent(Some(Duration::from_millis(50))).get(&url).call().is_err());
    }
}
