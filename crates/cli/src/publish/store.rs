//! `millpond publish --to URL`: writes the version on this machine, then uploads it.

use std::fs::{File, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use base::Error;
use command_line::environment;
use command_line::exit::{CommandError, CommandResult, print, print_note};
use model_store::{PlaceContent, StorePlace, UploadProgress, upload};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use super::{PublishArgs, announce, check_models, progress_bar, rate, show, write};

/// Exit status if the second signal is Ctrl-C: 128 plus the number of SIGINT, as in a shell.
const INTERRUPTED: i32 = 130;
/// Exit status if the second signal is SIGTERM.
const TERMINATED: i32 = 143;
/// Number of the version in the scratch directory.
const SCRATCH_VERSION: u64 = 1;
/// Maximum scratch directories of processes with the same number. Containers that share a cache
/// directory often have processes with the same number.
const SCRATCH_DIRS_MAX: u32 = 64;

/// Publishes to the model's directory at `url` and prints the version's URL.
pub(super) fn run(args: &PublishArgs, url: &str) -> CommandResult {
    let place = StorePlace::open(url, &environment::object_stores())
        .map_err(|error| CommandError::usage(format!("--to {}", error.message())))?;
    // Wrong credentials and an existing version are reported before the model is converted.
    check_content(&place, args.version)?;
    let scratch = ScratchDir::new(&environment::cache_dir().join("publish"))?;
    let published = write(args, scratch.path(), Some(SCRATCH_VERSION))?;
    let bar = progress_bar();
    let mut progress =
        |progress: UploadProgress| show(&bar, progress.bytes_done, progress.bytes_total);
    let rate = rate(args.rate);
    let version =
        upload(&place, &published.dir, args.version, rate, &mut progress, until_interrupted()?);
    bar.finish_and_clear();
    let version = version?;
    announce(version, &published);
    print(&format!("{}/{version}\n", place.shown()))
}

/// Returns a signal that becomes true at Ctrl-C and at SIGTERM, by which CI and Kubernetes stop a
/// job. The upload then removes what it has sent. A second signal ends the process at once.
///
/// # Errors
/// Returns an error if the system refuses the handlers or the thread that waits.
fn until_interrupted() -> CommandResult<watch::Receiver<bool>> {
    let (stop, stopped) = watch::channel(false);
    let failed =
        |error: std::io::Error| CommandError::failed(format!("cannot wait for Ctrl-C: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(failed)?;
    // Before the upload starts: a signal without a handler would end the process.
    let signals = {
        let _entered = runtime.enter();
        let interrupts = signal(SignalKind::interrupt()).map_err(failed)?;
        let terminations = signal(SignalKind::terminate()).map_err(failed)?;
        StopSignals { interrupts, terminations }
    };
    let wait = move || stop_upload(&runtime, signals, &stop);
    std::thread::Builder::new().name("interrupts".into()).spawn(wait).map_err(failed)?;
    Ok(stopped)
}

/// Sets `stop` at the first of `signals`, and ends the process at the second.
fn stop_upload(runtime: &Runtime, mut signals: StopSignals, stop: &watch::Sender<bool>) {
    runtime.block_on(signals.wait());
    print_note("stopping: the uploaded files are removed; press Ctrl-C again to keep them");
    // Fails if the upload has ended.
    let _ = stop.send(true);
    std::process::exit(runtime.block_on(signals.wait()));
}

/// The signals that stop an upload.
struct StopSignals {
    interrupts: Signal,
    terminations: Signal,
}

impl StopSignals {
    /// Waits for the next signal. Returns the exit status of a process that it ends.
    async fn wait(&mut self) -> i32 {
        tokio::select! {
            _ = self.interrupts.recv() => INTERRUPTED,
            _ = self.terminations.recv() => TERMINATED,
        }
    }
}

/// Refuses a directory of models, and a version that exists.
fn check_content(place: &StorePlace, version: Option<u64>) -> CommandResult {
    let PlaceContent { versions, models } = place.content()?;
    if versions.is_empty() {
        check_models(place.shown(), &models.into_iter().collect::<Vec<_>>())?;
    }
    match version.filter(|version| versions.contains(version)) {
        None => Ok(()),
        Some(version) => Err(CommandError::failed(format!(
            "{}: version {version} exists, complete or not; versions never change",
            place.shown()
        ))
        .hint("leave out --version for the next number, or give another one")),
    }
}

/// A directory that is removed when this value is dropped. A process that was killed leaves its
/// directory, which the next one removes.
struct ScratchDir {
    path: PathBuf,
    lock_path: PathBuf,
    _lock: File,
}

impl ScratchDir {
    /// Makes a directory of this process below `parent`, which no other process uses.
    ///
    /// # Errors
    /// Returns the error of the file system, and an error if too many processes with the number of
    /// this one use `parent`.
    fn new(parent: &Path) -> CommandResult<ScratchDir> {
        let io = |error: std::io::Error| {
            CommandError::from(Error::io(parent, &error))
                .hint("name a directory with room for the version with MILLPOND_CACHE_DIR")
        };
        os::private::create_dir_all(parent).map_err(io)?;
        remove_abandoned(parent);
        let process = std::process::id();
        for number in 0..SCRATCH_DIRS_MAX {
            let path = parent.join(format!("{process}-{number}"));
            let lock_path = path.with_extension("lock");
            let mut options = os::private::options();
            let lock = options.write(true).create(true).truncate(false).open(&lock_path);
            let lock = lock.and_then(|lock| locked(lock, &lock_path)).map_err(io)?;
            let Some(lock) = lock else { continue };
            match os::private::create_dir(&path) {
                Ok(()) => return Ok(ScratchDir { path, lock_path, _lock: lock }),
                // An abandoned directory that cannot be removed. Its lock file stays, so that a
                // later publication tries again.
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(io(error)),
            }
        }
        Err(CommandError::failed(format!(
            "{}: {SCRATCH_DIRS_MAX} directories of other publications are in use or cannot be removed",
            parent.display()
        ))
        .hint("remove unused ones, or name another directory with MILLPOND_CACHE_DIR"))
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        remove(&self.path, &self.lock_path);
    }
}

/// Locks the file `lock`, which was opened at `path`. Returns `None` if another process has locked
/// it, or if `path` names another file by now. The lock of a file without a name protects no
/// directory.
///
/// # Errors
/// Returns the error of the file system.
fn locked(lock: File, path: &Path) -> std::io::Result<Option<File>> {
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    let own = lock.metadata()?.ino();
    let is_current = std::fs::metadata(path).is_ok_and(|found| found.ino() == own);
    Ok(is_current.then_some(lock))
}

/// Removes a directory and then its lock. The lock of a directory that cannot be removed stays, so
/// that the next publication removes both.
fn remove(dir: &Path, lock_path: &Path) {
    if std::fs::remove_dir_all(dir).is_ok() || !dir.exists() {
        let _ = std::fs::remove_file(lock_path);
    }
}

/// Removes the directories below `parent` whose process has ended: no process holds their locks.
fn remove_abandoned(parent: &Path) {
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        let lock_path = entry.path();
        if lock_path.extension().is_none_or(|extension| extension != "lock") {
            continue;
        }
        let lock = File::open(&lock_path).and_then(|lock| locked(lock, &lock_path));
        // The lock is held until both are removed.
        if let Ok(Some(_lock)) = lock {
            remove(&lock_path.with_extension(""), &lock_path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn abandoned_directories_are_removed() {
        let parent = tempfile::tempdir().unwrap();
        let abandoned = parent.path().join("999999999");
        std::fs::create_dir(&abandoned).unwrap();
        std::fs::write(abandoned.with_extension("lock"), "").unwrap();
        let scratch = ScratchDir::new(parent.path()).unwrap();
        assert!(!abandoned.exists() && scratch.path().is_dir());
        remove_abandoned(parent.path());
        assert!(scratch.path().is_dir(), "its process lives");
        // Another process with the same number, in a container of its own.
        let other = ScratchDir::new(parent.path()).unwrap();
        assert!(scratch.path() != other.path() && scratch.path().is_dir() && other.path().is_dir());
        drop(other);
        // The lock was removed and made again after another process had opened it.
        let lock_path = scratch.lock_path.clone();
        let opened = File::open(&lock_path).unwrap();
        drop(scratch);
        let scratch = ScratchDir::new(parent.path()).unwrap();
        assert_eq!(scratch.lock_path, lock_path);
        assert!(locked(opened, &lock_path).unwrap().is_none());
        drop(scratch);
        assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_directory_that_cannot_be_removed_is_skipped() {
        let parent = tempfile::tempdir().unwrap();
        let kept = parent.path().join(format!("{}-0", std::process::id()));
        std::fs::create_dir(&kept).unwrap();
        let scratch = ScratchDir::new(parent.path()).unwrap();
        assert!(scratch.path() != kept && scratch.path().is_dir());
        // A later publication that takes this lock removes both.
        assert!(kept.with_extension("lock").is_file());
    }
}
