//! A followed store, also while a check of it runs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::StoreSource;
use super::follower::Follower;
use super::usage::CacheUsage;

/// Time of a check after which no request for a listing waits for a store that could not be listed
/// the last time.
const SILENT_AFTER: Duration = Duration::from_secs(5);

/// A followed store.
pub(super) struct StoreSlot {
    /// Source by the current configuration.
    pub(super) source: StoreSource,
    /// Store in labels of metrics.
    pub(super) label: Arc<str>,
    /// `None` while a check has it.
    pub(super) follower: Option<Follower>,
    /// Start of the check that runs.
    check_start: Option<Instant>,
    /// True once that check has listed the store.
    has_listed: Arc<AtomicBool>,
    /// State after the last check.
    pub(super) state: StoreState,
    /// Number of the last request for a listing that a check has answered.
    pub(super) answered: u64,
}

/// State of a store after a check.
#[derive(Default)]
pub(super) struct StoreState {
    /// Problems by name of the model.
    pub(super) errors: BTreeMap<Arc<str>, String>,
    /// Reasons why versions are not copied although nothing failed, by name of the model.
    pub(super) unfinished: BTreeMap<Arc<str>, String>,
    /// Error of the last listing.
    pub(super) unlisted: Option<String>,
}

impl StoreSlot {
    pub(super) fn new(follower: Follower, usage: &CacheUsage) -> StoreSlot {
        usage.set(&follower.source.models_dir, follower.bytes());
        let mut slot = StoreSlot {
            source: follower.source.clone(),
            label: follower.label(),
            has_listed: follower.has_listed.clone(),
            follower: Some(follower),
            check_start: None,
            state: StoreState::default(),
            answered: 0,
        };
        slot.update();
        slot
    }

    /// Returns true if the store was copied once, or if a check runs.
    pub(super) fn is_synced(&self) -> bool {
        self.follower.as_ref().is_none_or(|follower| follower.cache.is_synced())
    }

    /// Takes over changed settings, during a check at its end.
    pub(super) fn set_source(&mut self, source: StoreSource) {
        if source != self.source {
            self.source = source;
            self.update();
        }
    }

    /// Returns the follower for a check that begins, unless a check has it.
    pub(super) fn begin_check(&mut self, now: Instant) -> Option<Follower> {
        let follower = self.follower.take()?;
        self.check_start = Some(now);
        self.has_listed.store(false, Ordering::Relaxed);
        Some(follower)
    }

    /// Returns true if the store could not be listed the last time and does not answer now either.
    /// A check of another store may take long because it copies.
    pub(super) fn is_silent(&self, now: Instant) -> bool {
        let is_long = |start| now.saturating_duration_since(start) >= SILENT_AFTER;
        self.state.unlisted.is_some()
            && !self.has_listed.load(Ordering::Relaxed)
            && self.check_start.is_some_and(is_long)
    }

    /// Takes the follower back from a check, which began after the request number `request`.
    pub(super) fn end_check(&mut self, follower: Follower, request: u64) {
        self.follower = Some(follower);
        self.check_start = None;
        self.answered = request;
        self.update();
    }

    /// Passes the settings to the follower and reads its state, unless a check has it.
    pub(super) fn update(&mut self) {
        let Some(follower) = &mut self.follower else { return };
        follower.set_source(self.source.clone());
        self.state = StoreState {
            errors: follower.errors(),
            unfinished: follower.unfinished(),
            unlisted: follower.listing_error(),
        };
    }
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;

    use super::*;
    use crate::place::StorePlace;

    #[test]
    fn a_store_that_stays_silent_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let url: Arc<str> = "s3://b/models".into();
        let source = StoreSource::new(&url, &dir.path().join("c/models"), None);
        let place = StorePlace::new(Arc::new(InMemory::new()), "models", &url);
        let follower = Follower::open(source, place, Duration::from_secs(1)).unwrap();
        let mut slot = StoreSlot::new(follower, &CacheUsage::default());
        let start = Instant::now();
        let late = start + SILENT_AFTER;
        let follower = slot.begin_check(start).unwrap();
        assert!(!slot.is_silent(late), "its check may copy a large version");
        slot.state.unlisted = Some("no answer".to_owned());
        assert!(!slot.is_silent(start) && slot.is_silent(late));
        follower.has_listed.store(true, Ordering::Relaxed);
        assert!(!slot.is_silent(late), "it answers again, and its changes are copied");
        slot.end_check(follower, 1);
        assert!(!slot.is_silent(late), "it was listed");
    }
}
