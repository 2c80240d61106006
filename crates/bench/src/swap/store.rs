//! The object store of the arm store: the directory of the published versions, behind an S3 server
//! or as `file://`.
//!
//! The S3 server is a script of the checkout that sends files without a copy. A server for tests
//! (moto) reads the whole object for each range, which would be most of the load.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use base::{Error, Result};
use clap::ValueEnum;
use engine::layout::MANIFEST_NAME;
use loadgen::BenchEnv;
use loadgen::cache::TemporaryDir;
use loadgen::process::{end_with_us, let_go};
use loadgen::scrape::Scrape;

use super::server::SwapServer;
use crate::python::PythonScript;

/// Script that serves files as S3 does.
const SCRIPT: &str = "scripts/s3_files.py";
/// Python of the environment that runs the script.
const PYTHON: &str = ".venv-test/bin/python";
/// Advice if the script cannot run.
const REMEDY: &str = "give --python PATH, or --store file";
/// Name of the bucket, which is a directory.
const BUCKET: &str = "bucket";
/// Longest time until a server lists its store: the longest pause, and the listing.
const LIST_WAIT_MAX: Duration = Duration::from_secs(75);
/// Time between two checks for the first fetched bytes. They are outside the measured window.
const FETCH_POLL: Duration = Duration::from_millis(200);
/// Copies that fit the cache, in halves of a version: the served and the new one. Without a limit,
/// a copy of the version before the served one would have the new tensors.
pub(super) const CACHED_HALVES: u64 = 5;

/// Kind of the object store in the arm store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum StoreKind {
    /// An S3 server on this machine.
    S3,
    /// A directory, by its `file://` URL.
    File,
}

/// A running store. Dropping it ends its server and removes its files.
pub(crate) struct BenchStore {
    /// Directory of the models.
    pub(super) dir: PathBuf,
    /// URL of the directory of the models.
    pub(super) url: String,
    /// Environment of the servers.
    pub(super) variables: Vec<(&'static str, String)>,
    server: Option<Child>,
    /// Directory of the store and of the copies of its versions.
    root: TemporaryDir,
}

impl BenchStore {
    /// Starts a store of the files below `root`, which is removed at the end.
    ///
    /// # Errors
    /// `NotFound` without Python; `Unavailable` if the server does not start.
    pub(super) fn start(
        kind: StoreKind,
        env: &BenchEnv,
        root: TemporaryDir,
        python: Option<&Path>,
    ) -> Result<BenchStore> {
        let dir = root.path().join(BUCKET);
        loadgen::cache::create_empty_dir(&dir)?;
        let url = match kind {
            StoreKind::S3 => format!("s3://{BUCKET}"),
            StoreKind::File => format!("file://{}", dir.display()),
        };
        let mut store = BenchStore { dir, url, variables: Vec::new(), server: None, root };
        if kind == StoreKind::S3 {
            store.serve(PythonScript::find(env, SCRIPT, python, PYTHON, REMEDY)?)?;
        }
        Ok(store)
    }

    /// Starts the S3 server.
    fn serve(&mut self, script: PythonScript) -> Result<()> {
        let root = self.root.path();
        // The script ends when its standard input is closed.
        let mut command = script.command();
        command.arg(root).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|e| Error::io(&script.python, &e))?;
        end_with_us(child.id());
        let output = child.stdout.take();
        self.server = Some(child);
        let mut address = String::new();
        if let Some(output) = output {
            BufReader::new(output).read_line(&mut address).map_err(|e| Error::io(root, &e))?;
        }
        let address = address.trim().to_owned();
        if address.is_empty() {
            return Err(Error::unavailable(format!("{SCRIPT} does not start; {REMEDY}")));
        }
        self.variables = vec![
            ("AWS_ENDPOINT_URL", address),
            ("AWS_REGION", "us-east-1".to_owned()),
            ("AWS_ACCESS_KEY_ID", "bench".to_owned()),
            ("AWS_SECRET_ACCESS_KEY", "bench".to_owned()),
        ];
        Ok(())
    }
}

impl Drop for BenchStore {
    fn drop(&mut self) {
        if let Some(child) = &mut self.server {
            drop(child.stdin.take());
            // An error means that it has ended already.
            let _ = child.kill();
            let _ = child.wait();
            let_go(child.id());
        }
    }
}

/// Checks that `contents` is a version whose files can arrive one by one.
pub(super) fn check_published(contents: &Path) -> Result<()> {
    if contents.join(MANIFEST_NAME).exists() {
        Ok(())
    } else {
        Err(Error::invalid(
            "--store needs versions with a manifest: use --engine onnx or tensorflow",
        ))
    }
}

/// Waits until the server has received bytes of a new version since `before`. Its pause between two
/// listings has grown while nothing changed.
///
/// # Errors
/// `DeadlineExceeded` if it receives none.
pub(super) fn wait_fetching(server: &SwapServer, before: &Scrape) -> Result<()> {
    let fetched = |scrape: &Scrape| scrape.sum("millpond_store_fetched_bytes_total", &[]);
    let deadline = Instant::now() + LIST_WAIT_MAX;
    while fetched(&server.process.metrics()?) <= fetched(before) {
        if Instant::now() > deadline {
            return Err(Error::deadline("the server does not fetch the version from its store"));
        }
        sleep(FETCH_POLL);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bare::tests::env;

    #[test]
    fn a_store_removes_its_files() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("swap-store");
        let root = TemporaryDir::create(path.clone()).unwrap();
        let store = BenchStore::start(StoreKind::File, &env(dir.path()), root, None).unwrap();
        assert_eq!(store.url, format!("file://{}/{BUCKET}", path.display()));
        std::fs::create_dir(path.join("copies")).unwrap();
        drop(store);
        assert!(!path.exists());
    }
}
