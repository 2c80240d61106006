//! Conversion of foreign versions by a child process, to keep their weights out of this process.
//!
//! Results lie in a directory of this run, with a file under an exclusive lock. The next run
//! removes directories whose lock is free.

use std::fs::{File, TryLockError};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use base::{Error, ErrorKind, Result, VersionId};
use os::background::{Attempt, Priority, StarvationWatch};
use os::{SchedStat, private};
use parking_lot::Mutex;

use crate::Converter;

/// A conversion that takes longer is killed.
pub(crate) const CONVERT_TIME_MAX: Duration = Duration::from_secs(3600);
/// Time between two checks of the child.
const CHILD_POLL: Duration = Duration::from_millis(20);
/// Bytes kept of the end of the child's standard error.
const STDERR_BYTES_MAX: usize = 4096;
/// Longest wait for the end of that text after the child has ended.
const STDERR_WAIT_MAX: Duration = Duration::from_secs(1);
/// Maximum number of stale directories that one start removes.
const STALE_RUNS_MAX: usize = 1024;
const RUN_PREFIX: &str = "run-";
const LOCK_NAME: &str = "lock";

/// Directory of this run's conversions, removed on drop.
pub(crate) struct Cache {
    dir: PathBuf,
    next: AtomicU64,
    lock: Mutex<File>,
}

/// The directory of this run's conversions. It is opened once it can be used, because a full disk
/// can get space and a disk can be mounted late.
pub(crate) struct ConversionCache {
    /// Directory of all runs, or `None` if nothing is converted.
    dir: Option<PathBuf>,
    opened: Arc<Mutex<Option<Arc<Cache>>>>,
}

impl ConversionCache {
    pub(crate) fn new(dir: Option<PathBuf>) -> ConversionCache {
        ConversionCache { dir, opened: Arc::default() }
    }

    /// Returns the directory. Opens it, if that has not succeeded before.
    ///
    /// # Errors
    /// As [`Cache::open`]. `FailedPrecondition` if nothing is converted.
    pub(crate) fn get(&self) -> Result<Arc<Cache>> {
        let dir = self
            .dir
            .clone()
            .ok_or_else(|| Error::precondition("versions are converted for the pool only"))?;
        self.get_or_open(move || Cache::open(&dir))
    }

    /// Returns the directory. Opens it by `open`, if that has not succeeded before.
    fn get_or_open(
        &self,
        open: impl FnOnce() -> Result<Arc<Cache>> + Send + 'static,
    ) -> Result<Arc<Cache>> {
        let opened = self.opened.clone();
        // A thread of idle priority could hold the lock for minutes on a busy machine, since stale
        // files are removed meanwhile. A load that escalated would wait for it.
        os::background::at_low_priority(move || {
            let mut opened = opened.lock();
            if let Some(cache) = opened.as_ref() {
                return Ok(cache.clone());
            }
            Ok(opened.insert(open()?).clone())
        })?
    }
}

/// A version to convert.
#[derive(Clone, Copy)]
pub(crate) struct ForeignVersion<'a> {
    /// Directory of the version.
    pub(crate) dir: &'a Path,
    /// Tags of its graph ([`engine::SessionOptions::graph_tags`]).
    pub(crate) graph_tags: &'a [String],
}

/// A converted version. Its directory is removed on the last drop.
#[derive(Clone)]
pub(crate) struct Converted(Arc<ConvertedDirectory>);

struct ConvertedDirectory {
    path: PathBuf,
    _cache: Arc<Cache>,
}

impl Cache {
    /// Removes the directories of dead runs in `cache_dir` and creates one for this run.
    ///
    /// # Errors
    /// Returns the errors of the file system.
    pub(crate) fn open(cache_dir: &Path) -> Result<Arc<Cache>> {
        private::create_dir_all(cache_dir).map_err(|e| cache_error(cache_dir, &e))?;
        remove_stale(cache_dir);
        let nanoseconds = std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
        let unique = format!("{}-{nanoseconds}", std::process::id());
        // Locked before it has the name for which other runs check the lock.
        let starting = cache_dir.join(format!("new-{unique}"));
        let dir = cache_dir.join(format!("{RUN_PREFIX}{unique}"));
        let lock = create_run(&starting, &dir)?;
        Ok(Arc::new(Cache { dir, next: AtomicU64::new(0), lock: Mutex::new(lock) }))
    }

    /// Converts `source` with a child process. See [`Converter`]. Ends early if the attempt is
    /// stopped, or if a background attempt starves.
    ///
    /// # Errors
    /// `InvalidArgument` with the child's last line. `Unavailable` if it exited with
    /// [`Converter::TRY_AGAIN`]. `StorageFull` if the cache's disk is full. `ResourceExhausted` if
    /// it was killed, which the system does if memory is short. `Cancelled` if it was stopped,
    /// `DeadlineExceeded` if it took too long, and `Internal` if it could not be started.
    pub(crate) fn convert(
        self: &Arc<Self>,
        converter: &Converter,
        id: &VersionId,
        source: ForeignVersion<'_>,
        attempt: &Attempt,
    ) -> Result<Converted> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let dir = self.dir.join(format!("{number}-{}", id.version));
        self.ensure_directory()?;
        private::create_dir(&dir).map_err(|e| cache_error(&dir, &e))?;
        let converted = Converted(Arc::new(ConvertedDirectory { path: dir, _cache: self.clone() }));
        let (status, last_line) = run(converter, source, converted.dir(), attempt)?;
        if status.success() {
            return Ok(converted);
        }
        Err(failure(status, last_line, &self.dir))
    }

    /// Creates the directory of this run again if a cleaner of temporary files has removed it.
    fn ensure_directory(&self) -> Result<()> {
        let path = self.dir.join(LOCK_NAME);
        let mut lock = self.lock.lock();
        if path.exists() {
            return Ok(());
        }
        private::create_dir_all(&self.dir).map_err(|e| cache_error(&self.dir, &e))?;
        let file = lock_file(&path).map_err(|e| cache_error(&path, &e))?;
        file.lock().map_err(|e| cache_error(&path, &e))?;
        *lock = file;
        Ok(())
    }
}

/// Creates the directory `dir` of a run by way of `starting`, and returns its lock. Leaves nothing
/// if it fails, so each later load tries again.
///
/// # Errors
/// The error of the file system.
fn create_run(starting: &Path, dir: &Path) -> Result<File> {
    private::create_dir(starting).map_err(|e| cache_error(starting, &e))?;
    let lock_path = starting.join(LOCK_NAME);
    let created = lock_file(&lock_path).and_then(|lock| {
        lock.lock()?;
        std::fs::rename(starting, dir)?;
        Ok(lock)
    });
    created.map_err(|error| {
        // Both need no file descriptor, unlike the removal of a whole tree.
        let _ = std::fs::remove_file(&lock_path);
        let _ = std::fs::remove_dir(starting);
        cache_error(starting, &error)
    })
}

fn lock_file(path: &Path) -> std::io::Result<File> {
    private::options().write(true).create(true).truncate(true).open(path)
}

/// Builds the error of an operation on the cache. `NotFound` becomes `Internal`, because it says
/// nothing about the version.
fn cache_error(path: &Path, error: &std::io::Error) -> Error {
    let error = Error::io(path, error);
    match error.kind() {
        ErrorKind::NotFound => Error::internal(error.message()).with_source(error),
        ErrorKind::StorageFull => no_space(path, error.message()).with_source(error),
        _ => error,
    }
}

fn no_space(cache: &Path, reason: &str) -> Error {
    Error::storage_full(format!(
        "no space left in {} to convert the model: free some, or start with --cache-dir on another disk ({reason})",
        cache.display()
    ))
}

/// Returns true if the child's reason is a full disk or quota. The text is the standard library's
/// and ends with the system's error number.
fn is_full(reason: &str) -> bool {
    ["(os error 28)", "(os error 122)"].iter().any(|number| reason.contains(number))
}

/// Returns the error of a converter that ended with `status`. `last_line` is the end of its
/// standard error.
fn failure(status: ExitStatus, last_line: Option<String>, cache: &Path) -> Error {
    let reason = last_line.unwrap_or_else(|| format!("the converter ended with {status}"));
    match status.code() {
        None => Error::exhausted(format!(
            "conversion failed: the converter was killed ({status}); if memory was short, convert \
             the version with `millpond publish` on another machine"
        )),
        Some(Converter::TRY_AGAIN) if is_full(&reason) => no_space(cache, &reason),
        Some(Converter::TRY_AGAIN) => Error::unavailable(format!("conversion failed: {reason}")),
        Some(_) => Error::invalid(format!("conversion failed: {reason}")),
    }
}

impl Converted {
    pub(crate) fn dir(&self) -> &Path {
        &self.0.path
    }
}

impl Drop for ConvertedDirectory {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.path) {
            tracing::warn!(dir = %self.path.display(), %error, "a converted version stays on disk");
        }
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.dir) {
            tracing::warn!(dir = %self.dir.display(), %error, "the next start removes it");
        }
    }
}

/// Removes the directories of conversions whose process has ended. Their locks are then free.
fn remove_stale(cache_dir: &Path) {
    let entries = std::fs::read_dir(cache_dir).into_iter().flatten().flatten();
    let runs = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(RUN_PREFIX));
    for run in runs.take(STALE_RUNS_MAX) {
        let Ok(lock) = File::open(run.path().join(LOCK_NAME)) else { continue };
        match lock.try_lock() {
            Ok(()) => {
                tracing::info!(dir = %run.path().display(), "removing the files of an earlier run");
                let _ = std::fs::remove_dir_all(run.path());
            }
            Err(TryLockError::WouldBlock | TryLockError::Error(_)) => {}
        }
    }
}

/// Runs the converter, a child process, and waits for its end. Returns its status and the last line
/// that it wrote to standard error.
///
/// # Errors
/// `Cancelled` if the load was stopped or the converter starves at idle priority,
/// `DeadlineExceeded` after [`CONVERT_TIME_MAX`].
fn run(
    converter: &Converter,
    source: ForeignVersion<'_>,
    dir: &Path,
    attempt: &Attempt,
) -> Result<(ExitStatus, Option<String>)> {
    // Not into a file, because the reason would be lost if the cache's disk is full.
    let (reader, stderr) =
        std::io::pipe().map_err(|e| Error::internal("cannot make a pipe").caused_by(e))?;
    let mut command = converter.program.command();
    command.args(&converter.args);
    if !source.graph_tags.is_empty() {
        command.arg(format!("{}={}", Converter::TAGS_FLAG, source.graph_tags.join(",")));
    }
    command.arg(source.dir).arg(dir);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
    // The child inherits the priority of this thread.
    let child = command.spawn().map_err(|e| {
        Error::internal(format!(
            "cannot start the converter {}",
            converter.program.path().display()
        ))
        .caused_by(e)
    })?;
    let mut child = ConverterProcess(child);
    // The command holds the writing end of the pipe.
    drop(command);
    let tail = follow_stderr(reader)?;
    let stat = SchedStat::of_process(child.0.id());
    let watch = StarvationWatch::new(&stat, attempt.starvation_limit)
        .filter(|_| attempt.priority == Priority::Background);
    let started = Instant::now();
    loop {
        if let Some(status) =
            child.0.try_wait().map_err(|e| Error::internal("the converter").caused_by(e))?
        {
            return Ok((status, tail.last_line()));
        }
        if attempt.stop.load(Ordering::Relaxed) {
            return Err(Error::cancelled("the conversion was stopped"));
        }
        if watch.as_ref().is_some_and(StarvationWatch::starves) {
            return Err(Error::cancelled("the converter starves"));
        }
        if started.elapsed() > CONVERT_TIME_MAX {
            let limit = CONVERT_TIME_MAX.as_secs();
            return Err(Error::deadline(format!(
                "conversion took more than {limit} s; convert the version with `millpond publish`"
            )));
        }
        std::thread::sleep(CHILD_POLL);
    }
}

/// A child that is killed on drop.
struct ConverterProcess(Child);

impl Drop for ConverterProcess {
    fn drop(&mut self) {
        // Both fail only for a child that has ended and was waited for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Last bytes of a child's standard error, read on a separate thread so that the child never blocks
/// on a full pipe.
struct StderrTail {
    end: Arc<Mutex<Vec<u8>>>,
    /// Disconnects when the thread has read everything.
    closed: Receiver<()>,
}

/// Starts a thread that reads `pipe` to its end and keeps the last [`STDERR_BYTES_MAX`] bytes.
fn follow_stderr(mut pipe: impl Read + Send + 'static) -> Result<StderrTail> {
    let end = Arc::new(Mutex::new(Vec::new()));
    let kept: Arc<Mutex<Vec<u8>>> = end.clone();
    let (open, closed) = channel();
    let read = move || {
        // Dropped when the thread ends, which disconnects `closed`.
        let _open: Sender<()> = open;
        let mut bytes = [0; STDERR_BYTES_MAX];
        while let Ok(count @ 1..) = pipe.read(&mut bytes) {
            let mut kept = kept.lock();
            kept.extend_from_slice(&bytes[..count]);
            let old = kept.len().saturating_sub(STDERR_BYTES_MAX);
            kept.drain(..old);
        }
    };
    os::thread::spawn("convert-stderr", read)?;
    Ok(StderrTail { end, closed })
}

impl StderrTail {
    /// Returns the last line that is not empty, once the child has ended.
    fn last_line(&self) -> Option<String> {
        // Ends when the pipe is closed. A process left behind by the child may hold it open.
        let _ = self.closed.recv_timeout(STDERR_WAIT_MAX);
        let end = self.end.lock();
        let text = String::from_utf8_lossy(&end);
        text.lines().rev().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned)
    }
}

#[cfg(test)]
mod tests {
    use os::background::BackgroundRunner;

    use super::*;

    #[test]
    fn no_thread_of_idle_priority_opens_the_cache() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_owned();
        let cache = ConversionCache::new(Some(path.clone()));
        let get = move |_: &Attempt| {
            let path = path.clone();
            let open = move || {
                if os::thread::has_idle_priority() {
                    return Err(Error::internal("idle priority"));
                }
                Cache::open(&path)
            };
            cache.get_or_open(open).map(drop)
        };
        let mut runner = BackgroundRunner::new("test", "testing", Duration::MAX);
        assert_eq!(runner.run("opening", &Arc::default(), get), Ok(()));
    }

    fn go() -> Attempt {
        Attempt::ordinary(Arc::default())
    }

    fn id() -> VersionId {
        VersionId { model: "m".into(), version: 3 }
    }

    fn plain(dir: &Path) -> ForeignVersion<'_> {
        ForeignVersion { dir, graph_tags: &[] }
    }

    fn shell(script: &str) -> Converter {
        Converter { program: "/bin/sh".into(), args: vec!["-c".into(), script.into(), "sh".into()] }
    }

    #[test]
    fn a_result_lives_as_long_as_its_holder() {
        let root = tempfile::tempdir().unwrap();
        let cache = Cache::open(root.path()).unwrap();
        let converter = shell("cp \"$1/in\" \"$2/out\"");
        std::fs::write(root.path().join("in"), "x").unwrap();
        let converted = cache.convert(&converter, &id(), plain(root.path()), &go()).unwrap();
        let dir = converted.dir().to_owned();
        assert_eq!(std::fs::read_to_string(dir.join("out")).unwrap(), "x");
        drop(converted);
        assert!(!dir.exists());
        drop(cache);
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 1, "only the source is left");
    }

    #[test]
    fn a_run_that_cannot_begin_leaves_no_directory() {
        let root = tempfile::tempdir().unwrap();
        let (starting, used) = (root.path().join("new-1"), root.path().join("run-1"));
        std::fs::create_dir(&used).unwrap();
        std::fs::write(used.join("in"), "x").unwrap();
        assert!(create_run(&starting, &used).is_err());
        assert!(!starting.exists());
    }

    #[test]
    fn the_last_line_is_the_reason() {
        let root = tempfile::tempdir().unwrap();
        let cache = Cache::open(root.path()).unwrap();
        let fail = |script: &str| {
            cache.convert(&shell(script), &id(), plain(root.path()), &go()).err().unwrap()
        };
        let error = fail("echo progress >&2; echo no such operator >&2; echo >&2; exit 3");
        assert_eq!(error.message(), "conversion failed: no such operator");
        assert!(fail("exit 3").message().contains("exit status: 3"));
        let missing = Converter { program: "/nonexistent".into(), args: vec![] };
        assert!(cache.convert(&missing, &id(), plain(root.path()), &go()).is_err());
        let left = std::fs::read_dir(&cache.dir).unwrap().count();
        assert_eq!(left, 1, "only the lock is left");
    }

    #[test]
    fn temporary_failures_of_the_converter() {
        let root = tempfile::tempdir().unwrap();
        let cache = Cache::open(root.path()).unwrap();
        let kind = |script: &str| {
            cache.convert(&shell(script), &id(), plain(root.path()), &go()).err().unwrap()
        };
        let (killed, later) = (kind("kill -9 $$"), kind("echo no space left >&2; exit 75"));
        assert_eq!(killed.kind(), ErrorKind::ResourceExhausted, "{killed}");
        assert_eq!(
            (later.kind(), later.message()),
            (ErrorKind::Unavailable, "conversion failed: no space left")
        );
        assert_eq!(kind("exit 1").kind(), ErrorKind::InvalidArgument);
        assert!(killed.is_retryable() && later.is_retryable());
    }

    #[test]
    fn a_full_disk_is_named_with_a_remedy() {
        let root = tempfile::tempdir().unwrap();
        let cache = Cache::open(root.path()).unwrap();
        let script = "echo '/c/weights.bin: No space left on device (os error 28)' >&2; exit 75";
        let error = cache.convert(&shell(script), &id(), plain(root.path()), &go()).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
        let place = cache.dir.display().to_string();
        assert!(
            error.message().contains(&place) && error.message().contains("--cache-dir"),
            "{error}"
        );
        assert!(error.is_retryable(), "there may be room later");
    }

    #[test]
    fn errors_of_the_cache_keep_their_causes() {
        for (kind, shown) in [
            (std::io::ErrorKind::NotFound, ErrorKind::Internal),
            (std::io::ErrorKind::StorageFull, ErrorKind::StorageFull),
        ] {
            let error = cache_error(Path::new("/cache"), &kind.into());
            assert_eq!(error.kind(), shown);
            assert!(std::error::Error::source(&error).is_some(), "{error}");
        }
    }

    /// More than a pipe holds, so that the child would block for ever if its output were not read.
    #[test]
    fn long_output_of_a_child_is_read_to_its_end() {
        let root = tempfile::tempdir().unwrap();
        let cache = Cache::open(root.path()).unwrap();
        let script =
            "head -c 300000 /dev/zero | tr '\\0' 'x' >&2; echo >&2; echo the end >&2; exit 1";
        let error = cache.convert(&shell(script), &id(), plain(root.path()), &go()).err().unwrap();
        assert_eq!(error.message(), "conversion failed: the end");
    }

    #[test]
    fn conversions_are_private() {
        use std::os::unix::fs::PermissionsExt;
        let root = tempfile::tempdir().unwrap();
        let cache = Cache::open(&root.path().join("cache")).unwrap();
        let converted = cache.convert(&shell("exit 0"), &id(), plain(root.path()), &go()).unwrap();
        for path in
            [&root.path().join("cache"), &cache.dir, converted.dir(), &cache.dir.join(LOCK_NAME)]
        {
            let mode = std::fs::metadata(path).unwrap().permissions().mode();
            assert_eq!(mode & 0o027, 0, "{}: {mode:o}", path.display());
        }
    }

    #[test]
    fn a_removed_directory_of_the_run_is_created_again() {
        let root = tempfile::tempdir().unwrap();
        let cache = Cache::open(root.path()).unwrap();
        std::fs::remove_dir_all(&cache.dir).unwrap();
        let converted =
            cache.convert(&shell("touch \"$2/out\""), &id(), plain(root.path()), &go()).unwrap();
        assert!(converted.dir().join("out").exists());
        let _second = Cache::open(root.path()).unwrap();
        assert!(converted.dir().exists(), "it is marked as in use again");
    }

    #[test]
    fn stopping_kills_the_child() {
        let root = tempfile::tempdir().unwrap();
        let cache = Cache::open(root.path()).unwrap();
        let attempt = go();
        attempt.stop.store(true, Ordering::Relaxed);
        let error = cache
            .convert(&shell("exec sleep 600"), &id(), plain(root.path()), &attempt)
            .err()
            .unwrap();
        assert_eq!(error.kind(), ErrorKind::Cancelled);
    }

    #[test]
    fn directories_of_dead_runs_are_removed() {
        let root = tempfile::tempdir().unwrap();
        let stale = root.path().join("run-1-1");
        std::fs::create_dir(&stale).unwrap();
        std::fs::write(stale.join(LOCK_NAME), "").unwrap();
        let first = Cache::open(root.path()).unwrap();
        assert!(!stale.exists());
        let _second = Cache::open(root.path()).unwrap();
        assert!(first.dir.exists(), "a living run is left alone");
    }
}
