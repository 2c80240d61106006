//! Numbered permits for long uploads.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

/// Longest wait for a permit. A thread returns its permit a moment after its client has read the
/// whole answer. So the next request of that client may find it still taken.
const WAIT_MAX: Duration = Duration::from_secs(2);

/// A fixed number of permits for uploads that are processed at the same time.
pub struct UploadPermits {
    /// True at `i` if permit `i` is taken.
    taken: Mutex<Vec<bool>>,
    changed: Condvar,
    returned: Notify,
}

/// A permit, returned on drop.
pub struct UploadPermit {
    /// Number of the permit, from 0.
    pub number: usize,
    permits: Arc<UploadPermits>,
}

impl UploadPermits {
    /// Creates `count` permits, numbered from 0, all free.
    pub fn new(count: usize) -> Arc<UploadPermits> {
        Arc::new(UploadPermits {
            taken: Mutex::new(vec![false; count]),
            changed: Condvar::new(),
            returned: Notify::new(),
        })
    }

    /// Takes the free permit with the lowest number. Returns `None` if all are taken.
    pub fn try_acquire(self: &Arc<Self>) -> Option<UploadPermit> {
        let mut taken = self.lock();
        let number = taken.iter().position(|taken| !taken)?;
        if let Some(permit) = taken.get_mut(number) {
            *permit = true;
        }
        Some(UploadPermit { number, permits: self.clone() })
    }

    /// Takes the free permit with the lowest number. Waits up to two seconds if all are taken.
    /// Returns `None` if none was returned by then.
    pub async fn acquire(self: &Arc<Self>) -> Option<UploadPermit> {
        self.acquire_within(WAIT_MAX).await
    }

    /// Waits for a permit, at most `wait`.
    async fn acquire_within(self: &Arc<Self>, wait: Duration) -> Option<UploadPermit> {
        let acquired = async {
            loop {
                let returned = self.returned.notified();
                if let Some(permit) = self.try_acquire() {
                    return permit;
                }
                returned.await;
            }
        };
        tokio::time::timeout(wait, acquired).await.ok()
    }

    /// Returns the number of permits in use.
    pub fn taken(&self) -> usize {
        self.lock().iter().filter(|taken| **taken).count()
    }

    /// Waits until all permits are free. Returns false if `timeout` passed first.
    pub fn wait_free(&self, timeout: Duration) -> bool {
        let busy = |taken: &mut Vec<bool>| taken.contains(&true);
        let waited = self.changed.wait_timeout_while(self.lock(), timeout, busy);
        !waited.unwrap_or_else(PoisonError::into_inner).0.contains(&true)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<bool>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for UploadPermit {
    fn drop(&mut self) {
        if let Some(permit) = self.permits.lock().get_mut(self.number) {
            *permit = false;
        }
        self.permits.changed.notify_all();
        self.permits.returned.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_are_numbered_bounded_and_returned() {
        let permits = UploadPermits::new(2);
        let (first, second) = (permits.try_acquire().unwrap(), permits.try_acquire().unwrap());
        assert_eq!((first.number, second.number, permits.taken()), (0, 1, 2));
        assert!(permits.try_acquire().is_none());
        assert!(!permits.wait_free(Duration::from_millis(1)));
        drop(first);
        assert_eq!(permits.try_acquire().unwrap().number, 0, "the one that is free");
        drop(second);
        assert!(permits.wait_free(Duration::from_millis(1)));
    }

    #[tokio::test]
    async fn a_request_waits_a_moment_for_a_permit() {
        let permits = UploadPermits::new(1);
        let first = permits.acquire().await.unwrap();
        assert!(permits.acquire_within(Duration::from_millis(1)).await.is_none());
        let returned = async {
            tokio::task::yield_now().await;
            drop(first);
        };
        let (second, ()) = tokio::join!(permits.acquire_within(Duration::from_secs(60)), returned);
        assert_eq!(second.unwrap().number, 0);
    }
}
