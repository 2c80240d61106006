//! How many recordings are listened to at the same time: numbered places.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The places.
pub(crate) struct Places {
    /// Whether place `i` is taken.
    taken: Mutex<Vec<bool>>,
    changed: Condvar,
}

/// A place, given back when it is dropped.
pub(crate) struct Place {
    /// From 0.
    pub(crate) number: usize,
    places: Arc<Places>,
}

impl Places {
    pub(crate) fn new(count: usize) -> Arc<Places> {
        Arc::new(Places { taken: Mutex::new(vec![false; count]), changed: Condvar::new() })
    }

    /// The lowest free place.
    pub(crate) fn take(self: &Arc<Self>) -> Option<Place> {
        let mut taken = self.lock();
        let number = taken.iter().position(|taken| !taken)?;
        if let Some(place) = taken.get_mut(number) {
            *place = true;
        }
        Some(Place { number, places: self.clone() })
    }

    /// How many are taken.
    pub(super) fn taken(&self) -> usize {
        self.lock().iter().filter(|taken| **taken).count()
    }

    /// Waits until all are free; false when `timeout` passed first.
    pub(super) fn wait_free(&self, timeout: Duration) -> bool {
        let busy = |taken: &mut Vec<bool>| taken.contains(&true);
        let waited = self.changed.wait_timeout_while(self.lock(), timeout, busy);
        !waited.unwrap_or_else(PoisonError::into_inner).0.contains(&true)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<bool>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(place) = self.places.lock().get_mut(self.number) {
            *place = false;
        }
        self.places.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_numbered_bounded_and_given_back() {
        let places = Places::new(2);
        let (first, second) = (places.take().unwrap(), places.take().unwrap());
        assert_eq!((first.number, second.number, places.taken()), (0, 1, 2));
        assert!(places.take().is_none());
        assert!(!places.wait_free(Duration::from_millis(1)));
        drop(first);
        assert_eq!(places.take().unwrap().number, 0, "the one that is free");
        drop(second);
        assert!(places.wait_free(Duration::from_millis(1)));
    }
}
