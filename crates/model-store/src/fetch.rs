//! Fetches one version into the cache: by range, paced, checked, and continued after an
//! interruption.
//!
//! A journal beside the staged files holds the ranges that were written. Its first line is the
//! fingerprint of the listing, so a version that was replaced meanwhile is fetched again from its
//! start. Every tensor and the graph are hashed before the version becomes visible, so a wrong
//! journal costs time and nothing else.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fs::File;
use std::io::Write as _;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use base::{Error, ErrorKind, Result};
use bytes::Bytes;
use engine::layout::{LayoutManifest, MANIFEST_BYTES_MAX, MANIFEST_NAME, TensorEntry};
use object_store::{GetOptions, GetRange, ObjectStore};
use os::{AlignedBuffer, DirectFile, DirectWriter, Pacer};
use tokio::task::JoinSet;

use crate::cache::{StoreCache, recorded_text};
use crate::hashed_file::HashedFile;
use crate::listing::{RemoteFile, RemoteKind, RemoteVersion};
use crate::place::StorePlace;
use crate::plan::{CachedContents, CachedTensor, parts, ranges_of, uncovered};

/// Maximum number of requests in flight of one fetch. Each has a part in memory.
const CONCURRENT: usize = 4;
/// Requests in flight that the fetches of all stores share. Each fetch has at least one.
const ALL_CONCURRENT: usize = 16;
/// Tries of one part.
const TRIES: u32 = 4;
/// Pause before the second try. It doubles.
const RETRY_PAUSE: Duration = Duration::from_millis(250);
/// Longest time of one part. A part that took so long is not requested again in the same check.
const PART_TIMEOUT: Duration = Duration::from_secs(120);
/// Bytes written between two syncs, so that the kernel never has a long queue to write, and a kill
/// loses little.
const SYNC_BYTES: u64 = 16 << 20;
/// Bytes that are copied at once.
const BLOCK_BYTES: usize = 1 << 20;

/// Bytes of a fetch by source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FetchedBytes {
    /// Received from the store.
    pub(crate) fetched: u64,
    /// Copied from cached versions.
    pub(crate) reused: u64,
}

/// Number of fetches that run at the same time. They share the memory for parts.
#[derive(Default)]
pub(crate) struct RunningFetches(Cell<usize>);

/// A fetch that runs, until this is dropped.
struct RunningFetch<'a>(&'a RunningFetches);

impl RunningFetches {
    fn begin(&self) -> RunningFetch<'_> {
        self.0.set(self.0.get() + 1);
        RunningFetch(self)
    }
}

impl RunningFetch<'_> {
    /// Returns the most requests that this fetch may have in flight at this moment.
    fn requests_max(&self) -> usize {
        (ALL_CONCURRENT / self.0.0.get()).clamp(1, CONCURRENT)
    }
}

impl Drop for RunningFetch<'_> {
    fn drop(&mut self) {
        self.0.0.set(self.0.0.get() - 1);
    }
}

/// Parameters of the fetch of one version.
pub(crate) struct VersionFetch<'a> {
    pub(crate) place: &'a StorePlace,
    pub(crate) cache: &'a StoreCache,
    /// Contents of the cached versions, which all fetches of one listing share.
    pub(crate) contents: &'a RefCell<CachedContents>,
    pub(crate) pacer: &'a Pacer,
    pub(crate) running: &'a RunningFetches,
    pub(crate) model: &'a str,
    pub(crate) version: u64,
    pub(crate) remote: &'a RemoteVersion,
    /// Counts received bytes at once, so that a long fetch shows progress.
    pub(crate) count: &'a dyn Fn(u64),
}

/// The ranges of each staged file that were written.
struct FetchJournal {
    path: PathBuf,
    file: File,
    done: Vec<(String, Range<u64>)>,
}

/// A file of a version in staging.
struct StagedFile<'a> {
    path: &'a str,
    local: &'a mut DirectWriter,
    /// Ranges that are written and not in the journal yet.
    unsynced: Vec<Range<u64>>,
    journal: &'a mut FetchJournal,
}

impl StagedFile<'_> {
    /// Writes the bytes `range` of the file. Syncs if many bytes are not synced yet.
    fn write(&mut self, range: Range<u64>, content: &[u8]) -> Result<()> {
        self.local.write_all_at(content, range.start)?;
        self.unsynced.push(range);
        let bytes: u64 = self.unsynced.iter().map(|range| range.end - range.start).sum();
        if bytes >= SYNC_BYTES { self.sync() } else { Ok(()) }
    }

    /// Makes the written ranges durable, then adds them to the journal.
    fn sync(&mut self) -> Result<()> {
        self.local.sync()?;
        for range in self.unsynced.drain(..) {
            self.journal.add(self.path, range)?;
        }
        Ok(())
    }
}

impl VersionFetch<'_> {
    /// Fetches the version and moves it to the models. Returns `None` if it is not complete in the
    /// store.
    ///
    /// # Errors
    /// `DataLoss` if bytes do not have the hash of the manifest. Otherwise the errors of the store
    /// and of the disk. The fetched bytes are kept for the next call.
    pub(crate) async fn run(&self) -> Result<Option<FetchedBytes>> {
        let manifest = match self.remote.kind() {
            RemoteKind::Published => match self.manifest().await? {
                Some(manifest) => Some(manifest),
                None => return Ok(None),
            },
            RemoteKind::Foreign => None,
            RemoteKind::Unfinished => return Ok(None),
        };
        if manifest.is_some() {
            self.contents.borrow_mut().read_once(|| self.cache.version_dirs());
        }
        let staging = self.cache.staging(self.model, self.version);
        let mut journal = FetchJournal::open(&staging, &self.remote.fingerprint())?;
        let fetched = self.files(&staging, manifest.as_ref(), &mut journal).await;
        match fetched {
            Ok(bytes) => {
                self.cache.commit(self.model, self.version, &self.remote.fingerprint())?;
                journal.remove();
                if manifest.is_some() {
                    let dir = self.cache.version_dir(self.model, self.version);
                    self.contents.borrow_mut().add(&dir);
                }
                Ok(Some(bytes))
            }
            Err(error) => {
                if error.kind() == ErrorKind::DataLoss {
                    journal.remove();
                }
                // The rest of an earlier fetch can be damaged here, and not in the store.
                if error.kind() == ErrorKind::DataLoss && !journal.done.is_empty() {
                    Err(Error::unavailable(error.message()))
                } else {
                    Err(error)
                }
            }
        }
    }

    /// Reads the manifest. `None` if its files are not all there yet.
    async fn manifest(&self) -> Result<Option<(LayoutManifest, Bytes)>> {
        let Some(file) = self.remote.file(MANIFEST_NAME) else { return Ok(None) };
        if file.bytes > MANIFEST_BYTES_MAX {
            return Err(self.damaged(&format!("{MANIFEST_NAME} is larger than a manifest can be")));
        }
        let text = self.part(file, 0..file.bytes).await?;
        let manifest = LayoutManifest::parse(&text)
            .map_err(|error| self.damaged(&format!("{MANIFEST_NAME}: {}", error.message())))?;
        let files = [Some(&manifest.graph), manifest.weights.as_ref()];
        let there = files.into_iter().flatten().all(|entry| {
            self.remote.file(&entry.name).is_some_and(|file| file.bytes == entry.bytes)
        });
        Ok(there.then_some((manifest, text)))
    }

    fn damaged(&self, what: &str) -> Error {
        Error::data_loss(format!(
            "{}: model \"{}\" version {}: {what}; publish it again under another number",
            self.place.shown(),
            self.model,
            self.version
        ))
    }

    /// Fetches all files, the manifest last.
    async fn files(
        &self,
        staging: &Path,
        manifest: Option<&(LayoutManifest, Bytes)>,
        journal: &mut FetchJournal,
    ) -> Result<FetchedBytes> {
        let mut bytes = FetchedBytes::default();
        let (layout, text) = manifest.map(|(layout, text)| (layout, text)).unzip();
        let weights = layout.and_then(|layout| layout.weights.as_ref()).map(|it| it.name.as_str());
        for file in
            self.remote.files.iter().filter(|file| file.path != MANIFEST_NAME || layout.is_none())
        {
            let path = staging.join(&file.path);
            let mut local = create(&path, file.bytes)?;
            match layout {
                Some(layout) if weights == Some(file.path.as_str()) => {
                    self.weights(file, &mut local, layout, journal, &mut bytes).await?;
                }
                Some(layout) if layout.graph.name == file.path => {
                    self.graph(file, &mut local, layout, journal, &mut bytes).await?;
                }
                _ => {
                    let whole = 0..file.bytes;
                    let parts = std::slice::from_ref(&whole);
                    self.ranges(file, &mut local, parts, journal, &mut bytes).await?;
                }
            }
            local.sync()?;
        }
        if let Some(text) = text {
            let path = staging.join(MANIFEST_NAME);
            let mut file = create(&path, text.len() as u64)?;
            file.write_all_at(text, 0)?;
            file.sync()?;
            bytes.fetched += text.len() as u64;
        }
        Ok(bytes)
    }

    /// Copies the graph from a cached version, or fetches it.
    async fn graph(
        &self,
        file: &RemoteFile,
        local: &mut DirectWriter,
        layout: &LayoutManifest,
        journal: &mut FetchJournal,
        bytes: &mut FetchedBytes,
    ) -> Result<()> {
        let hash = layout.graph.blake3.as_deref();
        let whole = 0..file.bytes;
        let cached = hash.and_then(|hash| self.contents.borrow().graph(hash));
        if let (Some(path), Some(hash)) = (cached, hash)
            && self.copy(&CachedTensor { file: path, offset: 0 }, local, whole.clone(), hash).await
        {
            bytes.reused += file.bytes;
            return Ok(());
        }
        self.ranges(file, local, std::slice::from_ref(&whole), journal, bytes).await?;
        match hash {
            Some(hash) if !HashedFile::open(local.path())?.has(whole, hash, None).await => {
                Err(self.damaged(&format!("{} does not have the hash of the manifest", file.path)))
            }
            _ => Ok(()),
        }
    }

    /// Copies the tensors that cached versions have, fetches the others, and checks them.
    async fn weights(
        &self,
        file: &RemoteFile,
        local: &mut DirectWriter,
        layout: &LayoutManifest,
        journal: &mut FetchJournal,
        bytes: &mut FetchedBytes,
    ) -> Result<()> {
        let mut missing: Vec<&TensorEntry> = Vec::new();
        for tensor in &layout.tensors {
            let range = tensor.offset..tensor.offset + tensor.bytes;
            let cached = self.contents.borrow().tensor(tensor);
            let copied = match &cached {
                Some(cached) => self.copy(cached, local, range, &tensor.blake3).await,
                None => false,
            };
            if copied {
                bytes.reused += tensor.bytes;
            } else {
                missing.push(tensor);
            }
        }
        self.ranges(file, local, &ranges_of(&missing), journal, bytes).await?;
        let mut written = HashedFile::open(local.path())?;
        for tensor in missing {
            let range = tensor.offset..tensor.offset + tensor.bytes;
            if !written.has(range, &tensor.blake3, None).await {
                return Err(self.damaged(&format!(
                    "tensor \"{}\" does not have the hash of the manifest",
                    tensor.name
                )));
            }
        }
        Ok(())
    }

    /// Copies bytes from a cached version. Returns false if they do not have `hash`.
    async fn copy(
        &self,
        from: &CachedTensor,
        to: &mut DirectWriter,
        range: Range<u64>,
        hash: &str,
    ) -> bool {
        let Ok(mut source) = DirectFile::open_direct(&from.file) else { return false };
        let mut hasher = blake3::Hasher::new();
        let mut buffer = AlignedBuffer::new(BLOCK_BYTES);
        let mut at = range.start;
        while at < range.end {
            let bytes = (range.end - at).min(BLOCK_BYTES as u64);
            tokio::time::sleep_until(self.pacer.reserve(bytes).into()).await;
            // Without a pause in the work, a stop of the server would wait for its end.
            tokio::task::yield_now().await;
            let offset = from.offset + (at - range.start);
            let Ok(block) = source.read_block(&mut buffer, offset, bytes as usize) else {
                return false;
            };
            if to.write_all_at(block, at).is_err() {
                return false;
            }
            hasher.update(block);
            at += block.len() as u64;
        }
        hasher.finalize().to_hex().as_str() == hash
    }

    /// Fetches the ranges `wanted` of `file`, except for the parts in the journal. Records the
    /// written ranges, even after a failure.
    async fn ranges(
        &self,
        file: &RemoteFile,
        local: &mut DirectWriter,
        wanted: &[Range<u64>],
        journal: &mut FetchJournal,
        bytes: &mut FetchedBytes,
    ) -> Result<()> {
        let left = uncovered(wanted, &journal.done_of(&file.path));
        let mut staged = StagedFile { path: &file.path, local, unsynced: Vec::new(), journal };
        let received = self.receive(file, &left, &mut staged, bytes).await;
        staged.sync()?;
        received
    }

    /// Requests `left` with several requests in flight, and writes the parts as they arrive.
    async fn receive(
        &self,
        file: &RemoteFile,
        left: &[Range<u64>],
        staged: &mut StagedFile<'_>,
        bytes: &mut FetchedBytes,
    ) -> Result<()> {
        let mut waiting: VecDeque<Range<u64>> = parts(left).into();
        let fetch = self.running.begin();
        let mut running = JoinSet::new();
        loop {
            while running.len() < fetch.requests_max()
                && let Some(range) = waiting.pop_front()
            {
                let turn = self.pacer.reserve(range.end - range.start);
                tokio::time::sleep_until(turn.into()).await;
                let place = self.place.clone();
                let file = file.clone();
                running.spawn(async move {
                    let content = part(&place, &file, range.clone()).await;
                    content.map(|content| (range, content))
                });
            }
            let Some(done) = running.join_next().await else { return Ok(()) };
            let (range, content) = done.map_err(|e| Error::internal(e.to_string()))??;
            (self.count)(content.len() as u64);
            bytes.fetched += content.len() as u64;
            staged.write(range, &content)?;
        }
    }

    async fn part(&self, file: &RemoteFile, range: Range<u64>) -> Result<Bytes> {
        let content = part(self.place, file, range).await?;
        (self.count)(content.len() as u64);
        Ok(content)
    }
}

/// Reads a range of a file, and tries again after a short failure.
///
/// # Errors
/// Returns the store's error.
pub(crate) async fn part(
    place: &StorePlace,
    file: &RemoteFile,
    range: Range<u64>,
) -> Result<Bytes> {
    if range.is_empty() {
        return Ok(Bytes::new());
    }
    let started = Instant::now();
    let mut pause = RETRY_PAUSE;
    let mut tries = 1;
    loop {
        match try_part(place, file, range.clone()).await {
            Err(error)
                if error.kind() == ErrorKind::Unavailable
                    && is_requested_again(tries, started.elapsed()) =>
            {
                tracing::debug!(%error, file = file.path, ?range, "a part is requested again");
            }
            result => return result,
        }
        tokio::time::sleep(pause).await;
        pause *= 2;
        tries += 1;
    }
}

/// Returns true if a part is requested again after `tries` in the time `elapsed`. The other models
/// of a store wait meanwhile.
fn is_requested_again(tries: u32, elapsed: Duration) -> bool {
    tries < TRIES && elapsed < PART_TIMEOUT
}

/// Requests the bytes `range` of a file once. The store refuses if the file has changed since it
/// was listed. A shorter answer is `Unavailable`.
async fn try_part(place: &StorePlace, file: &RemoteFile, range: Range<u64>) -> Result<Bytes> {
    let options = GetOptions {
        range: Some(GetRange::Bounded(range.clone())),
        if_match: file.e_tag.clone(),
        ..GetOptions::default()
    };
    let content = async { place.objects.get_opts(&file.key, options).await?.bytes().await };
    let content = tokio::time::timeout(PART_TIMEOUT, content).await;
    let content = content.map_err(|_| {
        Error::unavailable(format!(
            "{}: {}: no answer within {} s; the store may be unreachable or overloaded",
            place.shown(),
            file.path,
            PART_TIMEOUT.as_secs()
        ))
    })?;
    let content = content.map_err(|error| place.failed_at(&file.path, error))?;
    if content.len() as u64 == range.end - range.start {
        Ok(content)
    } else {
        Err(Error::unavailable(format!(
            "{}: {}: {} bytes instead of {}",
            place.shown(),
            file.path,
            content.len(),
            range.end - range.start
        )))
    }
}

impl FetchJournal {
    /// Opens the journal of a staged version. Empties both if they are of another listing, or if a
    /// file of the journal is missing. A kill after the version was moved to the models leaves only
    /// the journal. The missing bytes of a version without hashes would then count as fetched.
    fn open(staging: &Path, fingerprint: &str) -> Result<FetchJournal> {
        let path = staging.with_extension("journal");
        let text = recorded_text(&path, std::fs::read_to_string(&path))?;
        let mut lines = text.lines();
        let is_current = lines.next() == Some(fingerprint);
        let mut done: Vec<_> = lines.filter(|_| is_current).filter_map(parse_line).collect();
        let same = is_current && done.iter().all(|(file, _)| staging.join(file).is_file());
        if !same {
            done.clear();
            let _ = std::fs::remove_dir_all(staging);
            let _ = std::fs::remove_file(&path);
        }
        let io = |error: std::io::Error| Error::io(&path, &error);
        os::private::create_dir_all(staging).map_err(io)?;
        let mut file = os::private::options().append(true).create(true).open(&path).map_err(io)?;
        if !same {
            writeln!(file, "{fingerprint}").map_err(io)?;
        }
        Ok(FetchJournal { path, file, done })
    }

    fn done_of(&self, path: &str) -> Vec<Range<u64>> {
        let of_file = self.done.iter().filter(|(file, _)| file == path);
        of_file.map(|(_, range)| range.clone()).collect()
    }

    fn add(&mut self, path: &str, range: Range<u64>) -> Result<()> {
        let line = format!("{} {} {path}\n", range.start, range.end);
        self.file.write_all(line.as_bytes()).map_err(|error| Error::io(&self.path, &error))
    }

    fn remove(&self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Parses "START END PATH".
fn parse_line(line: &str) -> Option<(String, Range<u64>)> {
    let mut words = line.splitn(3, ' ');
    let start = words.next()?.parse().ok()?;
    let end = words.next()?.parse().ok()?;
    Some((words.next()?.to_owned(), start..end))
}

/// Opens a file of `bytes` for writing, and makes its directory. Keeps its content.
fn create(path: &Path, bytes: u64) -> Result<DirectWriter> {
    let parent = path.parent().unwrap_or(path);
    os::private::create_dir_all(parent).map_err(|error| Error::io(parent, &error))?;
    DirectWriter::open(path, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_without_an_answer_is_not_requested_again() {
        assert!(is_requested_again(1, Duration::ZERO) && is_requested_again(3, Duration::ZERO));
        assert!(!is_requested_again(4, Duration::ZERO));
        assert!(!is_requested_again(1, PART_TIMEOUT));
    }

    #[test]
    fn many_fetches_have_few_requests_each() {
        let fetches = RunningFetches::default();
        let mut running: Vec<RunningFetch<'_>> = (0..4).map(|_| fetches.begin()).collect();
        assert_eq!(running[0].requests_max(), CONCURRENT);
        running.extend((4..40).map(|_| fetches.begin()));
        assert_eq!(running[0].requests_max(), 1);
        running.truncate(5);
        assert_eq!(running[0].requests_max(), 3);
    }
}
