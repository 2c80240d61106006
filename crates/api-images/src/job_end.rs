//! The end of a job in the background: its permit, its outcome and its panics.

use std::panic::{AssertUnwindSafe, catch_unwind};

use base::{Error, Result};
use parking_lot::Mutex;
use transport::UploadPermit;

pub(crate) struct BackgroundJob<'a, T> {
    /// Name for messages, such as "the rebuild".
    pub(crate) name: &'a str,
    /// Name of its collection.
    pub(crate) collection: &'a str,
    /// Permit, which is returned at the end.
    pub(crate) permit: UploadPermit,
    /// Outcome; `None` while the job runs.
    pub(crate) ended: &'a Mutex<Option<Result<T>>>,
}

impl<T> BackgroundJob<'_, T> {
    /// Runs `work`, logs a failure and publishes the outcome. A panic is a failure too.
    pub(crate) fn run(self, work: impl FnOnce() -> Result<T>) {
        let outcome = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
            let name = self.name;
            Err(Error::internal(format!("a panic ended {name}; continue it with the same request")))
        });
        if let Err(error) = &outcome {
            tracing::error!(collection = self.collection, %error, "{} has failed", self.name);
        }
        // A client that sees the end can begin the next work.
        drop(self.permit);
        *self.ended.lock() = Some(outcome);
    }
}

#[cfg(test)]
mod tests {
    use base::ErrorKind;
    use transport::UploadPermits;

    use super::*;

    #[test]
    fn a_panic_is_a_failure_and_returns_the_permit() {
        let permits = UploadPermits::new(1);
        for name in ["the rebuild", "the search for duplicates"] {
            let ended: Mutex<Option<Result<()>>> = Mutex::default();
            let permit = permits.try_acquire().unwrap();
            let job = BackgroundJob { name, collection: "c", permit, ended: &ended };
            job.run(|| panic!("on purpose"));
            assert_eq!(permits.taken(), 0);
            let outcome = ended.lock().take();
            let error = outcome.unwrap().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Internal);
            assert!(error.message().contains(name), "{error}");
        }
    }

    #[test]
    fn the_permit_is_held_until_the_end() {
        let permits = UploadPermits::new(1);
        let ended: Mutex<Option<Result<bool>>> = Mutex::default();
        let permit = permits.try_acquire().unwrap();
        let job = BackgroundJob { name: "the rebuild", collection: "c", permit, ended: &ended };
        job.run(|| {
            assert!(permits.taken() == 1 && ended.lock().is_none());
            Ok(true)
        });
        assert_eq!((permits.taken(), ended.lock().take()), (0, Some(Ok(true))));
    }
}
