//! A directory for the temporary files of a worker process.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Mode, OFlags};

/// First part of the names of these directories.
const PREFIX: &str = "millpond-worker-";

/// A new directory, which is removed when this is dropped. A process that is killed cannot remove
/// its own files. For example, LibTorch copies a compiled package here, and removes the copy in a
/// destructor.
pub(crate) struct TemporaryDirectory {
    path: PathBuf,
    /// Locked while the server runs, so that other servers leave the directory.
    _lock: File,
}

impl TemporaryDirectory {
    /// Creates a directory in that of the system. The first call removes directories of servers
    /// that were killed. Returns `None` if none can be created: most engines need none.
    pub(crate) fn create() -> Option<TemporaryDirectory> {
        static FIRST: Once = Once::new();
        let parent = std::env::temp_dir();
        FIRST.call_once(|| remove_stale(&parent));
        TemporaryDirectory::create_in(&parent)
            .inspect_err(|error| tracing::debug!(%error, "no temporary directory for a worker"))
            .ok()
    }

    fn create_in(parent: &Path) -> io::Result<TemporaryDirectory> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let time = std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
        let unique = format!("{}-{time}-{number}", std::process::id());
        // Locked before it has the name for which other servers check the lock.
        let starting = parent.join(format!("millpond-new-{unique}"));
        os::private::create_dir(&starting)?;
        let lock = File::open(&starting)?;
        lock.lock()?;
        let path = parent.join(format!("{PREFIX}{unique}"));
        std::fs::rename(&starting, &path)?;
        Ok(TemporaryDirectory { path, _lock: lock })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.path) {
            let path = self.path.display();
            tracing::warn!(%error, %path, "the temporary files of a worker process stay");
        }
    }
}

/// Removes the directories of servers that have ended. Those of other users stay.
fn remove_stale(parent: &Path) {
    let Ok(entries) = std::fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        if !name.as_encoded_bytes().starts_with(PREFIX.as_bytes()) {
            continue;
        }
        let Ok(directory) = open_directory(&entry.path()) else { continue };
        if directory.try_lock().is_ok()
            && let Err(error) = std::fs::remove_dir_all(entry.path())
        {
            tracing::debug!(%error, path = %entry.path().display(), "a stale directory stays");
        }
    }
}

/// Opens a directory. Another user may have created a pipe with its name, and `File::open` would
/// wait for a writer of the pipe.
fn open_directory(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?.into())
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn only_directories_of_ended_servers_are_removed() {
        let parent = tempfile::tempdir().unwrap();
        let used = TemporaryDirectory::create_in(parent.path()).unwrap();
        std::fs::write(used.path().join("file"), "used").unwrap();
        let stale = parent.path().join(format!("{PREFIX}1"));
        let other = parent.path().join("other");
        for directory in [&stale, &other] {
            std::fs::create_dir(directory).unwrap();
            std::fs::write(directory.join("file"), "old").unwrap();
        }
        remove_stale(parent.path());
        assert!(used.path().join("file").exists() && other.exists() && !stale.exists());
        let path = used.path().to_owned();
        drop(used);
        assert!(!path.exists());
    }

    #[test]
    fn a_pipe_of_another_user_does_not_stop_the_start() {
        let parent = tempfile::tempdir().unwrap();
        let pipe = parent.path().join(format!("{PREFIX}1"));
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let (done, ended) = mpsc::channel();
        let shared = parent.path().to_owned();
        std::thread::spawn(move || {
            remove_stale(&shared);
            done.send(())
        });
        assert!(ended.recv_timeout(Duration::from_secs(60)).is_ok());
        assert!(pipe.exists());
    }
}
