//! Enrolled speakers of all recognisers, with one store each.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use audio::speakers::Speakers;
use base::{Error, Result};
use parking_lot::Mutex;

/// Stores of a directory, each opened when it is first used.
pub(crate) struct SpeakerRegistry {
    /// Directory of the files; `None` disables enrolment.
    dir: Option<PathBuf>,
    open: Arc<Mutex<BTreeMap<String, Speakers>>>,
    /// Held while a store is opened, because two tasks must not set the same damaged file aside.
    opening: Arc<tokio::sync::Mutex<()>>,
}

impl SpeakerRegistry {
    /// Creates a registry of the stores in `dir`, which is made when it is first used.
    pub(crate) fn new(dir: Option<PathBuf>) -> SpeakerRegistry {
        SpeakerRegistry { dir, open: Arc::default(), opening: Arc::default() }
    }

    /// Returns the enrolled speakers of a recogniser, which must be the name of a served model.
    ///
    /// # Errors
    /// `FailedPrecondition` if the server has no directory for speakers; errors of the store's
    /// file.
    pub(crate) async fn get(&self, recogniser: &str) -> Result<Speakers> {
        let dir = self.dir.clone().ok_or_else(|| {
            Error::precondition(
                "this server has no directory for speakers; start it with --speakers-dir DIR",
            )
        })?;
        if recogniser.starts_with('.') || recogniser.contains(['/', '\\', '\0']) {
            return Err(Error::precondition(format!(
                "\"{recogniser}\" cannot be the name of a file of speakers; rename the model's \
                 directory"
            )));
        }
        if let Some(speakers) = self.opened(recogniser) {
            return Ok(speakers);
        }
        let one_at_a_time = self.opening.clone().lock_owned().await;
        if let Some(speakers) = self.opened(recogniser) {
            return Ok(speakers);
        }
        let file = dir.join(format!("{recogniser}.json"));
        let name = recogniser.to_owned();
        let stores = self.open.clone();
        // Reading the file, which may have many megabytes, would block a connection thread. The
        // task continues if its request is cancelled, so the task itself holds the lock.
        let task = tokio::task::spawn_blocking(move || {
            let _one_at_a_time = one_at_a_time;
            let opened = open(&dir, &file);
            if let Ok(speakers) = &opened {
                stores.lock().insert(name, speakers.clone());
            }
            opened
        });
        task.await.map_err(|error| Error::internal("the file of speakers").caused_by(error))?
    }

    /// Returns the store of a recogniser if it is open.
    fn opened(&self, recogniser: &str) -> Option<Speakers> {
        self.open.lock().get(recogniser).cloned()
    }
}

fn open(dir: &Path, file: &Path) -> Result<Speakers> {
    os::private::create_dir_all(dir).map_err(|error| Error::io(dir, &error))?;
    Speakers::open_or_set_aside(file)
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::{Pin, pin};
    use std::sync::mpsc;
    use std::task::Poll;

    use base::ErrorKind;

    use super::*;

    /// Polls `future` once.
    async fn polled<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
        poll_fn(|context| Poll::Ready(Pin::new(&mut *future).poll(context))).await
    }

    #[test]
    fn a_file_is_read_on_another_thread() {
        let folder = tempfile::tempdir().unwrap();
        let registry = SpeakerRegistry::new(Some(folder.path().join("speakers")));
        let mut threads = tokio::runtime::Builder::new_current_thread();
        threads.max_blocking_threads(1).build().unwrap().block_on(async {
            // The only other thread is busy, so the file is read only after it is released.
            let (release, released) = mpsc::channel::<()>();
            let busy = tokio::task::spawn_blocking(move || released.recv().is_err());
            let mut first = pin!(registry.get("voices"));
            assert!(polled(&mut first).await.is_pending());
            assert!(registry.opened("voices").is_none(), "no lock is held meanwhile");
            drop(release);
            first.await.unwrap().enrol("Ada", &[1.0]).unwrap();
            assert!(busy.await.unwrap());
            let mut second = pin!(registry.get("voices"));
            let Poll::Ready(again) = polled(&mut second).await else { panic!("it is open") };
            assert_eq!(again.unwrap().names(), ["Ada"]);
        });
    }

    #[test]
    fn a_cancelled_request_still_opens_the_store() {
        let folder = tempfile::tempdir().unwrap();
        let registry = SpeakerRegistry::new(Some(folder.path().to_owned()));
        let mut threads = tokio::runtime::Builder::new_current_thread();
        threads.max_blocking_threads(1).build().unwrap().block_on(async {
            let (release, released) = mpsc::channel::<()>();
            let busy = tokio::task::spawn_blocking(move || released.recv().is_err());
            let mut cancelled = Box::pin(registry.get("voices"));
            assert!(polled(&mut cancelled).await.is_pending());
            drop(cancelled);
            // Another task would read the file, and could set a new file aside.
            assert!(registry.opening.try_lock().is_err(), "the first task has not ended");
            drop(release);
            assert!(busy.await.unwrap());
            registry.get("voices").await.unwrap();
            assert!(registry.opening.try_lock().is_ok());
        });
    }

    #[test]
    fn names_stay_inside_the_directory() {
        let folder = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let kind = |dir: Option<&Path>, name: &str| {
            let registry = SpeakerRegistry::new(dir.map(Path::to_owned));
            runtime.block_on(registry.get(name)).unwrap_err().kind()
        };
        for name in ["../voices", ".hidden", "a\\b", "a\0b"] {
            assert_eq!(kind(Some(folder.path()), name), ErrorKind::FailedPrecondition, "{name:?}");
        }
        assert_eq!(kind(None, "voices"), ErrorKind::FailedPrecondition);
    }
}
