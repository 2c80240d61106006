//! Files that are read again after a change.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use base::Result;

use crate::FileStamp;

/// Age at which a changed file counts as complete. A program may write it in several steps.
const COMPLETE_AGE: Duration = Duration::from_secs(2);
/// Checks in a row that find the same files, after which they count as complete at any age.
const SAME_CHECKS_MIN: u32 = 2;
/// As [`COMPLETE_AGE`] for an empty file. A shell empties a file before the program that makes its
/// content starts.
const EMPTY_AGE: Duration = Duration::from_secs(5);
/// As [`SAME_CHECKS_MIN`] for an empty file.
const EMPTY_CHECKS_MIN: u32 = 8;
/// Checks between two reads of files that could not be used. They may become usable without a
/// change, for example once the process has a free file descriptor.
const RETRY_CHECKS: u32 = 10;

/// Files that are read together, at the start and again after each change.
#[derive(Debug)]
pub struct WatchedFiles {
    paths: Vec<PathBuf>,
    /// Stamps before the last read, or `None` for a file that cannot be found.
    read: Vec<Option<FileStamp>>,
    /// Stamps of the last check.
    found: Vec<Option<FileStamp>>,
    /// Checks in a row that have found these stamps.
    checks: u32,
    /// Reported error of the last read.
    failure: Option<String>,
}

impl WatchedFiles {
    /// Begins to watch `paths`. Called before the first read, so that no change is missed.
    pub fn new(paths: Vec<PathBuf>) -> WatchedFiles {
        let read = stamps(&paths);
        WatchedFiles { paths, found: read.clone(), read, checks: 1, failure: None }
    }

    /// Calls `read` if the files have changed since the last read and seem complete, or if `forced`
    /// is true. `None` if it was not called, or if it has failed for the same reason as before.
    ///
    /// # Errors
    /// The errors of `read`, each once until the next change. Then `read` is called again after
    /// some checks, because success may need no change of the files.
    pub fn read_changed<T>(
        &mut self,
        forced: bool,
        read: impl FnOnce() -> Result<T>,
    ) -> Option<Result<T>> {
        // Before the read, so that a change during the read is seen.
        let now = stamps(&self.paths);
        if now == self.found {
            self.checks = self.checks.saturating_add(1);
        } else {
            self.found = now;
            self.checks = 1;
        }
        if forced || (self.found != self.read && self.seem_complete()) {
            self.failure = None;
        } else if self.failure.is_none() || !self.checks.is_multiple_of(RETRY_CHECKS) {
            return None;
        }
        self.read.clone_from(&self.found);
        let result = read();
        let failure = result.as_ref().err().map(ToString::to_string);
        let is_known = failure.is_some() && failure == self.failure;
        self.failure = failure;
        (!is_known).then_some(result)
    }

    /// Notes that the files have to be read again although they have not changed.
    pub fn forget(&mut self) {
        self.read.clear();
    }

    /// Returns true if no program seems to write the files at this moment.
    fn seem_complete(&self) -> bool {
        let now = SystemTime::now();
        self.found.iter().all(|stamp| {
            let is_empty = stamp.is_some_and(|stamp| stamp.bytes() == 0);
            let (age, checks) = if is_empty {
                (EMPTY_AGE, EMPTY_CHECKS_MIN)
            } else {
                (COMPLETE_AGE, SAME_CHECKS_MIN)
            };
            let modified = stamp.and_then(FileStamp::modified);
            // A time in the future, by another clock, says nothing.
            let since = modified.and_then(|modified| now.duration_since(modified).ok());
            self.checks >= checks || since.is_some_and(|since| since >= age)
        })
    }
}

fn stamps(paths: &[PathBuf]) -> Vec<Option<FileStamp>> {
    paths.iter().map(|path| FileStamp::of(path)).collect()
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::path::Path;

    use base::Error;

    use super::*;

    /// A file that is watched, and the number of its reads.
    struct CountedReads {
        files: WatchedFiles,
        reads: u32,
    }

    impl CountedReads {
        fn new(path: &Path) -> CountedReads {
            CountedReads { files: WatchedFiles::new(vec![path.to_owned()]), reads: 0 }
        }

        fn check(&mut self, forced: bool, result: Result<()>) -> Option<Result<()>> {
            self.files.read_changed(forced, || {
                self.reads += 1;
                result
            })
        }
    }

    /// Writes a file whose time is that of another clock, so that its age is unknown.
    fn write(path: &Path, text: &str) {
        std::fs::write(path, text).unwrap();
        let future = SystemTime::now() + Duration::from_secs(3600);
        File::options().write(true).open(path).unwrap().set_modified(future).unwrap();
    }

    #[test]
    fn a_file_that_is_being_written_is_read_once_it_is_complete() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys.toml");
        write(&path, "old");
        let mut watched = CountedReads::new(&path);
        for _ in 0..9 {
            assert!(watched.check(false, Ok(())).is_none());
        }
        // The file is empty while the program that makes its content works.
        write(&path, "");
        for _ in 1..EMPTY_CHECKS_MIN {
            assert!(watched.check(false, Ok(())).is_none());
        }
        write(&path, "ha");
        assert!(watched.check(false, Ok(())).is_none());
        write(&path, "half");
        assert!(watched.check(false, Ok(())).is_none() && watched.reads == 0);
        assert!(watched.check(false, Ok(())).is_some() && watched.reads == 1);
        write(&path, "");
        assert!((0..EMPTY_CHECKS_MIN).any(|_| watched.check(false, Ok(())).is_some()));
        write(&path, "forced");
        assert!(watched.check(true, Ok(())).is_some());
        // A file that was written long ago, and then given this name.
        let old = dir.path().join("old.toml");
        std::fs::write(&old, "long ago").unwrap();
        let long_ago = SystemTime::now() - Duration::from_secs(3600);
        File::options().write(true).open(&old).unwrap().set_modified(long_ago).unwrap();
        std::fs::rename(&old, &path).unwrap();
        assert!(watched.check(false, Ok(())).is_some() && watched.reads == 4);
    }

    #[test]
    fn a_failed_read_is_reported_once_and_repeated() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cert.pem");
        write(&path, "new");
        let mut watched = CountedReads::new(&path);
        let failed = || Err(Error::exhausted("too many open files"));
        assert!(watched.check(true, failed()).is_some_and(|result| result.is_err()));
        for _ in 0..2 * RETRY_CHECKS {
            assert!(watched.check(false, failed()).is_none());
        }
        assert_eq!(watched.reads, 3);
        let read = (0..RETRY_CHECKS).find_map(|_| watched.check(false, Ok(())));
        assert!(read.is_some_and(|result| result.is_ok()));
        for _ in 0..2 * RETRY_CHECKS {
            assert!(watched.check(false, Ok(())).is_none());
        }
        assert_eq!(watched.reads, 4);
    }
}
