//! Requests for a listing before it is due.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

/// Handle that requests the thread of a mirror to list all stores at once.
#[derive(Clone)]
pub struct ListingRequests {
    requested: Arc<watch::Sender<u64>>,
    answered: watch::Receiver<u64>,
}

/// The thread's end of the requests.
pub(super) struct ListingQueue {
    requested: watch::Receiver<u64>,
    answered: watch::Sender<u64>,
}

impl ListingRequests {
    pub(super) fn new() -> (ListingRequests, ListingQueue) {
        let (requested, requests) = watch::channel(0);
        let (answers, answered) = watch::channel(0);
        let queue = ListingQueue { requested: requests, answered: answers };
        (ListingRequests { requested: Arc::new(requested), answered }, queue)
    }

    /// Returns requests that no thread answers.
    pub fn none() -> ListingRequests {
        ListingRequests::new().0
    }

    /// Waits for at most `wait` until a listing of each store that began after this call has ended
    /// and its changes are copied. Returns true if it did not take longer. A store that could not
    /// be listed counts as listed. So does one that could not be listed before, if it does not
    /// answer within 5 s.
    pub async fn list(&self, wait: Duration) -> bool {
        let mut number = 0;
        self.requested.send_modify(|requested| {
            *requested += 1;
            number = *requested;
        });
        let mut answered = self.answered.clone();
        let done = answered.wait_for(|answered| *answered >= number);
        matches!(tokio::time::timeout(wait, done).await, Ok(Ok(_)))
    }
}

impl ListingQueue {
    /// Returns the number of the last request, if it is not answered.
    pub(super) fn pending(&mut self) -> Option<u64> {
        let requested = *self.requested.borrow_and_update();
        (requested > *self.answered.borrow()).then_some(requested)
    }

    /// Answers all requests up to `number`.
    pub(super) fn answer(&self, number: u64) {
        self.answered.send_if_modified(|answered| {
            let is_later = number > *answered;
            *answered = number.max(*answered);
            is_later
        });
    }

    /// Waits for a request, for at most `pause`.
    pub(super) async fn wait(&mut self, pause: Duration) {
        if let Ok(Err(_)) = tokio::time::timeout(pause, self.requested.changed()).await {
            // No requests can come any more.
            tokio::time::sleep(pause).await;
        }
    }
}
