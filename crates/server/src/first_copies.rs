//! State of the first copies of models from object stores.

use base::Error;
use model_store::FirstCopy;
use tokio::sync::watch;

/// State of the first copies of models from object stores.
#[derive(Clone)]
pub(crate) struct FirstCopies(watch::Receiver<FirstCopy>);

impl FirstCopies {
    pub(crate) fn new(state: watch::Receiver<FirstCopy>) -> FirstCopies {
        FirstCopies(state)
    }

    /// Returns the state of a server without stores.
    #[cfg(test)]
    pub(crate) fn none() -> FirstCopies {
        FirstCopies(watch::channel(FirstCopy::Done).1)
    }

    /// Returns true if a store has no complete copy yet.
    pub(crate) fn are_missing(&self) -> bool {
        !matches!(*self.0.borrow(), FirstCopy::Done)
    }

    /// Returns why the server is not ready, or `None` once every store has been copied.
    pub(crate) fn reason(&self) -> Option<String> {
        match &*self.0.borrow() {
            FirstCopy::Running(store) => {
                Some(format!("the models of {store} are being copied for the first time"))
            }
            FirstCopy::Failed(error) => Some(error.message().to_owned()),
            FirstCopy::Done => None,
        }
    }

    /// Waits until a store cannot be copied, for ever if each can. Returns the error.
    pub(crate) async fn failed(mut self) -> Error {
        let failed = self.0.wait_for(|state| matches!(state, FirstCopy::Failed(_))).await;
        let failed = failed.map(|state| state.clone());
        match failed {
            Ok(FirstCopy::Failed(error)) => error,
            // The thread has ended, so nothing fails any more.
            _ => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_failed_copy_keeps_its_cause() {
        let cause = Error::internal("no route to host");
        let failed = Error::unavailable("s3://models cannot be listed").caused_by(cause.clone());
        let (_state, copies) = watch::channel(FirstCopy::Failed(failed.clone()));
        let error = FirstCopies::new(copies).failed().await;
        assert_eq!(error, failed);
        let source = std::error::Error::source(&error);
        assert_eq!(source.and_then(|source| source.downcast_ref::<Error>()), Some(&cause));
    }
}
