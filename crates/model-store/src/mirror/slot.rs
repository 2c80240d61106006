//! A followed store, also while a check of it runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::StoreSource;
use super::follower::Follower;
use super::usage::CacheUsage;

/// A followed store.
pub(super) struct StoreSlot {
    /// Source by the current configuration.
    pub(super) source: StoreSource,
    /// Store in labels of metrics.
    pub(super) label: Arc<str>,
    /// `None` while a check has it.
    pub(super) follower: Option<Follower>,
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
            follower: Some(follower),
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

    /// Takes the follower back from a check, which began after the request number `request`.
    pub(super) fn end_check(&mut self, follower: Follower, request: u64) {
        self.follower = Some(follower);
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
