//! Uploads a published version: its files first, its manifest last.
//!
//! A claim object beside the versions keeps two publishers from using the same number. It is made
//! only if it does not exist, and removed after the manifest is written. So a publisher checks for
//! the version once more after it has the claim.
//!
//! A publisher that is stopped for long seems to have ended. Its claim may be deleted, and another
//! publisher may then use the number. So each claim has a token of its own. A publisher reads its
//! claim again before each file, before the manifest, and before it removes anything.

use std::collections::BTreeSet;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::os::unix::fs::FileExt;
use std::path::Path;

use base::{Error, ErrorKind, Result};
use engine::layout::{Artifact, MANIFEST_NAME};
use engine::publish::{DEPTH_MAX, VERSION_MAX};
use object_store::path::Path as Key;
use object_store::{ObjectStoreExt, PutMode, PutOptions, PutPayload};
use os::{Pacer, Rate};
use tokio::sync::watch;

use crate::listing::group;
use crate::place::{StorePlace, block_on};

/// Bytes of one part of an upload.
const PART_BYTES: u64 = 8 << 20;
/// Maximum number of parts of one object. The limit of S3 is 10,000.
const PARTS_MAX: u64 = 9_000;

/// Bytes of an upload, sent and in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UploadProgress {
    /// Bytes sent.
    pub bytes_done: u64,
    /// Bytes of all files.
    pub bytes_total: u64,
}

/// A number that other publishers do not use.
struct NumberClaim {
    version: u64,
    /// Content of the claim object, which no other claim has.
    token: String,
}

/// An upload of one version.
struct Upload<'a> {
    place: &'a StorePlace,
    claim: NumberClaim,
    pacer: Pacer,
    progress: &'a mut dyn FnMut(UploadProgress),
    /// True once the upload should end.
    stop: watch::Receiver<bool>,
    state: UploadProgress,
}

/// Uploads the published version in `dir` to the model's directory `place`. `version` is its
/// number. By default it is one more than the highest. Returns the number. Blocks the thread. Ends
/// early once `stop` is true.
///
/// # Errors
/// `AlreadyExists` if the version exists, or another publisher writes it. `InvalidArgument` for a
/// number above [`VERSION_MAX`]. `NotFound` if `dir` is not a published version. `Cancelled` if it
/// was stopped. Otherwise the errors of the store. The sent parts of a failed or stopped upload are
/// removed, unless another publisher may have the number. If they cannot be removed, the error says
/// so.
pub fn upload(
    place: &StorePlace,
    dir: &Path,
    version: Option<u64>,
    rate: Rate,
    progress: &mut dyn FnMut(UploadProgress),
    stop: watch::Receiver<bool>,
) -> Result<u64> {
    Artifact::open(dir)?;
    let files = files_of(dir)?;
    block_on(async {
        let claim = claim(place, version).await?;
        let version = claim.version;
        let state = UploadProgress { bytes_done: 0, bytes_total: bytes_of(dir, &files) };
        let mut upload = Upload { place, claim, pacer: Pacer::new(rate), progress, stop, state };
        let sent = upload.files(dir, &files).await;
        let held = upload.claim.is_held(place).await;
        let Err(error) = sent else {
            if matches!(held, Ok(true)) {
                // The version is complete. A claim that stays does not change that.
                let _ = place.objects.delete(&place.key(&claim_name(version))).await;
            }
            return Ok(version);
        };
        let is_removed = match held {
            Ok(true) => {
                // A request that failed may have written the manifest nevertheless. Without it,
                // readers see no version. A manifest of another publisher stays.
                let manifest = (error.kind() != ErrorKind::AlreadyExists).then_some(MANIFEST_NAME);
                remove(place, version, manifest, &files).await
            }
            // The objects of this number belong to another publisher.
            Ok(false) => true,
            // They may.
            Err(_) => false,
        };
        if is_removed {
            return Err(error);
        }
        let text = format!(
            "{}; {} and files of version {version} may be left: delete them, or publish under another \
             number",
            error.message(),
            claim_name(version)
        );
        Err(Error::new(error.kind(), text).with_source(error))
    })
}

/// Removes the manifest, the other files of a version, and its claim. Returns false if one may be
/// left.
async fn remove(
    place: &StorePlace,
    version: u64,
    manifest: Option<&str>,
    files: &[String],
) -> bool {
    let names = manifest.into_iter().chain(files.iter().map(String::as_str));
    let names = names.map(|name| format!("{version}/{name}")).chain([claim_name(version)]);
    let mut all = true;
    for name in names {
        let removed = place.objects.delete(&place.key(&name)).await;
        all &= matches!(removed, Ok(()) | Err(object_store::Error::NotFound { .. }));
    }
    all
}

/// Lists the files of the version in `dir`, without its manifest. They are graph and weights, and
/// the files in directories, such as assets. The names are relative to `dir`.
///
/// # Errors
/// I/O errors. `InvalidArgument` for a name that is not UTF-8 and for directories nested too deep.
fn files_of(dir: &Path) -> Result<Vec<String>> {
    let mut files = Vec::new();
    add_files(dir, "", 0, &mut files)?;
    files.retain(|name| name != MANIFEST_NAME);
    files.sort();
    Ok(files)
}

/// Adds the files in `dir` to `files`. `before` is the name of `dir` with a slash, or empty.
fn add_files(dir: &Path, before: &str, depth: usize, files: &mut Vec<String>) -> Result<()> {
    let wrong = |what: &str| Error::invalid(format!("{}: {what}", dir.display()));
    if depth > DEPTH_MAX {
        return Err(wrong(&format!(
            "directories are nested deeper than {DEPTH_MAX} levels; move the files up"
        )));
    }
    for entry in std::fs::read_dir(dir).map_err(|error| Error::io(dir, &error))? {
        let entry = entry.map_err(|error| Error::io(dir, &error))?;
        let name = entry.file_name();
        let name = name.to_str().ok_or_else(|| wrong("a name is not UTF-8; rename the file"))?;
        let path = entry.path();
        let meta = std::fs::metadata(&path).map_err(|error| Error::io(&path, &error))?;
        if meta.is_dir() {
            add_files(&path, &format!("{before}{name}/"), depth + 1, files)?
        } else {
            files.push(format!("{before}{name}"))
        }
    }
    Ok(())
}

fn bytes_of(dir: &Path, files: &[String]) -> u64 {
    let lengths = files.iter().map(|name| std::fs::metadata(dir.join(name)));
    lengths.map(|meta| meta.map_or(0, |meta| meta.len())).sum()
}

fn claim_name(version: u64) -> String {
    format!(".claim-{version}")
}

/// Chooses the version number, which is `wanted` if it is stated, and claims it. Other publishers
/// cannot claim it then.
async fn claim(place: &StorePlace, wanted: Option<u64>) -> Result<NumberClaim> {
    let listing = group(&place.list().await?, &place.prefix, Some(""));
    let existing: BTreeSet<u64> = listing.models[""].versions.keys().copied().collect();
    let taken = |version: u64| {
        Error::new(
            ErrorKind::AlreadyExists,
            format!(
                "{}: version {version} exists or is being uploaded; publish under another number, or \
                 delete {} if its publisher has ended",
                place.shown(),
                claim_name(version)
            ),
        )
    };
    let highest = existing.last().copied().unwrap_or(0);
    let mut version = wanted.unwrap_or(highest.saturating_add(1));
    if existing.contains(&version) {
        return Err(taken(version));
    }
    loop {
        if version > VERSION_MAX {
            return Err(Error::invalid(format!(
                "{}: version numbers end at {VERSION_MAX}; give a free number with --version",
                place.shown()
            )));
        }
        let token = RandomState::new().hash_one((std::process::id(), version));
        let claim = NumberClaim { version, token: format!("claimed {token:016x}") };
        match (claim.take(place).await?, wanted) {
            (true, _) => return Ok(claim),
            (false, Some(_)) => return Err(taken(version)),
            (false, None) => version = version.saturating_add(1),
        }
    }
}

impl NumberClaim {
    /// Takes the claim. Returns false if another publisher has the number.
    async fn take(&self, place: &StorePlace) -> Result<bool> {
        let NumberClaim { version, token } = self;
        let claim = claim_name(*version);
        match create(place, &claim, PutPayload::from(token.clone())).await {
            // The client of a store repeats a request after an error of the server, and may then
            // find its own claim.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                if !self.is_held(place).await? {
                    return Ok(false);
                }
            }
            created => created?,
        }
        // Another publisher may have written the version and removed its claim since the listing.
        let exists = place.below(&version.to_string()).list().await.map(|objects| {
            let listing = group(&objects, &place.prefix, Some(""));
            listing.models.values().any(|model| model.versions.contains_key(version))
        });
        if !matches!(exists, Ok(false)) {
            let _ = place.objects.delete(&place.key(&claim)).await;
        }
        exists.map(|exists| !exists)
    }

    /// Returns true if the claim is still there and belongs to this publisher.
    async fn is_held(&self, place: &StorePlace) -> Result<bool> {
        let key = place.key(&claim_name(self.version));
        let read = async { place.objects.get(&key).await?.bytes().await };
        match read.await {
            Ok(found) => Ok(*found == *self.token.as_bytes()),
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(place.failed(error)),
        }
    }
}

/// Writes an object that must not exist. Stores without conditions replace it.
async fn create(place: &StorePlace, name: &str, payload: PutPayload) -> Result<()> {
    let key = place.key(name);
    let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
    let put = match place.objects.put_opts(&key, payload.clone(), options).await {
        Err(
            object_store::Error::NotImplemented { .. } | object_store::Error::NotSupported { .. },
        ) => place.objects.put(&key, payload).await,
        put => put,
    };
    put.map(drop).map_err(|error| place.failed(error))
}

impl Upload<'_> {
    /// Sends the files in `dir`, and then the manifest. The version exists once the manifest is
    /// there.
    async fn files(&mut self, dir: &Path, files: &[String]) -> Result<()> {
        let version = self.claim.version;
        for name in files {
            self.file(&dir.join(name), &self.place.key(&format!("{version}/{name}"))).await?;
        }
        let path = dir.join(MANIFEST_NAME);
        let manifest = std::fs::read(&path).map_err(|error| Error::io(&path, &error))?;
        let key = format!("{version}/{MANIFEST_NAME}");
        let content = PutPayload::from(manifest.clone());
        self.check_claim().await?;
        let created = self.unless_stopped(create(self.place, &key, content)).await;
        // The client of a store repeats a request after an error of the server, and may then find
        // its own object.
        let is_there = matches!(&created, Err(error) if error.kind() == ErrorKind::AlreadyExists);
        if is_there && self.holds(&key, &manifest).await { Ok(()) } else { created }
    }

    /// Checks that no other publisher has taken the number.
    ///
    /// # Errors
    /// `AlreadyExists` if one has, or if the claim was deleted. Also the store's error.
    async fn check_claim(&self) -> Result<()> {
        if self.claim.is_held(self.place).await? {
            return Ok(());
        }
        let version = self.claim.version;
        Err(Error::new(
            ErrorKind::AlreadyExists,
            format!(
                "{}: {} was deleted during the upload, and another publisher may use version {version}; \
                 publish under another number",
                self.place.shown(),
                claim_name(version)
            ),
        ))
    }

    /// Returns true if the store has the object `key` with this content.
    async fn holds(&self, key: &str, content: &[u8]) -> bool {
        let key = self.place.key(key);
        let read = async { self.place.objects.get(&key).await?.bytes().await };
        read.await.is_ok_and(|found| *found == *content)
    }

    /// Does `work` unless the upload is stopped before its end.
    async fn unless_stopped<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let mut stop = self.stop.clone();
        let stopped = async {
            if stop.wait_for(|stop| *stop).await.is_err() {
                // Nothing can stop it any more.
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            biased;
            () = stopped => Err(Error::cancelled("the upload was stopped; the uploaded files are removed")),
            done = work => done,
        }
    }

    async fn put(&self, key: &Key, content: PutPayload) -> Result<()> {
        let put = async {
            let put = self.place.objects.put(key, content).await;
            put.map(drop).map_err(|error| self.place.failed(error))
        };
        self.unless_stopped(put).await
    }

    /// Uploads the file at `path` as the object `key`. A long file is sent in parts, if the store
    /// has a request that joins parts.
    async fn file(&mut self, path: &Path, key: &Key) -> Result<()> {
        let io = |error: std::io::Error| Error::io(path, &error);
        let file = File::open(path).map_err(io)?;
        let bytes = file.metadata().map_err(io)?.len();
        if bytes <= PART_BYTES {
            return self.whole_file(&file, path, bytes, key).await;
        }
        let mut parts = match self.place.objects.put_multipart(key).await {
            Err(object_store::Error::NotImplemented { .. }) => {
                return self.whole_file(&file, path, bytes, key).await;
            }
            parts => parts.map_err(|error| self.place.failed(error))?,
        };
        let sent = match self.parts(&file, path, bytes, parts.as_mut()).await {
            Ok(()) => {
                let complete = parts.complete().await;
                complete.map(drop).map_err(|error| self.place.failed(error))
            }
            Err(error) => Err(error),
        };
        if sent.is_err() {
            // Otherwise the store keeps, and bills, the parts.
            let _ = parts.abort().await;
        }
        sent
    }

    /// Uploads a file of `bytes` bytes by one request.
    async fn whole_file(&mut self, file: &File, path: &Path, bytes: u64, key: &Key) -> Result<()> {
        let content = self.read(file, path, 0, bytes).await?;
        self.check_claim().await?;
        self.put(key, content).await?;
        self.add(bytes);
        Ok(())
    }

    /// Sends a file in parts of at least [`PART_BYTES`], of which the store permits [`PARTS_MAX`].
    async fn parts(
        &mut self,
        file: &File,
        path: &Path,
        bytes: u64,
        parts: &mut dyn object_store::MultipartUpload,
    ) -> Result<()> {
        let part_bytes = PART_BYTES.max(bytes.div_ceil(PARTS_MAX).next_multiple_of(1 << 20));
        let mut at = 0;
        while at < bytes {
            let length = part_bytes.min(bytes - at);
            let content = self.read(file, path, at, length).await?;
            let put = parts.put_part(content);
            let put = async { put.await.map_err(|error| self.place.failed(error)) };
            self.unless_stopped(put).await?;
            self.add(length);
            at += length;
        }
        // The object appears once all parts are joined.
        self.check_claim().await
    }

    async fn read(&self, file: &File, path: &Path, at: u64, bytes: u64) -> Result<PutPayload> {
        let turn = self.pacer.reserve(bytes);
        let wait = async {
            tokio::time::sleep_until(turn.into()).await;
            Ok(())
        };
        self.unless_stopped(wait).await?;
        let mut content = vec![0; bytes as usize];
        file.read_exact_at(&mut content, at).map_err(|error| Error::io(path, &error))?;
        Ok(content.into())
    }

    fn add(&mut self, bytes: u64) {
        self.state.bytes_done += bytes;
        (self.progress)(self.state);
    }
}
