//! Amount of the pool to fault in: the versions that should serve, and room for the next one.

use std::collections::BTreeSet;
use std::time::Instant;

use crossbeam_channel::Sender;
use memory::SlotPool;

use super::model::Model;
use crate::Transition;
use crate::source::{Parameters, VersionContents};

/// Requests to the `prefault` thread, which only grow.
pub(super) struct Prefault {
    to: Sender<u64>,
    bytes_max: u64,
    swap_reserve: Option<u64>,
    requested: u64,
    backed: u64,
}

impl Prefault {
    pub(super) fn new(to: Sender<u64>, bytes_max: u64, swap_reserve: Option<u64>) -> Prefault {
        Prefault { to, bytes_max, swap_reserve, requested: 0, backed: 0 }
    }

    /// Requests the bytes that `models` need now, if they are more than before.
    pub(super) fn want<'a>(&mut self, models: impl Iterator<Item = &'a Model>) {
        let wanted = self.need(models).min(self.bytes_max);
        if wanted > self.requested && self.to.try_send(wanted).is_ok() {
            self.requested = wanted;
        }
    }

    pub(super) fn done_to(&mut self, bytes: u64) {
        self.backed = self.backed.max(bytes);
    }

    /// Returns true if all requested bytes are faulted in.
    pub(super) fn done(&self) -> bool {
        self.backed >= self.requested
    }

    /// Returns the bytes that all chosen versions need, and the largest of them a second time for
    /// its swap, unless the settings have a reserve. Parameters that versions share count once.
    fn need<'a>(&self, models: impl Iterator<Item = &'a Model>) -> u64 {
        let mut shared = BTreeSet::new();
        let mut bytes = 0;
        let mut largest = 0;
        let now = Instant::now();
        // Worker processes have the parameters of isolated models in memory of their own.
        for model in models.filter(|model| !model.config.session.isolate) {
            let choice = model.choice(&model.views(now));
            for version in choice.aspired.iter().filter_map(|number| model.versions.get(number)) {
                let own = match version.disk.as_ref().map(|disk| &disk.found) {
                    Some(VersionContents::Published(parameters)) => {
                        bytes += unshared(parameters, &mut shared);
                        parameters.footprint()
                    }
                    Some(VersionContents::Foreign { bytes: files, .. }) => {
                        bytes += SlotPool::footprint(*files);
                        SlotPool::footprint(*files)
                    }
                    _ => 0,
                };
                if model.config.transition == Transition::AvailabilityPreserving {
                    largest = largest.max(own);
                }
            }
        }
        bytes + self.swap_reserve.unwrap_or(largest)
    }
}

/// Returns the bytes of `parameters` that are not in `shared`, and adds them to it.
fn unshared(parameters: &Parameters, shared: &mut BTreeSet<([u8; 32], u64)>) -> u64 {
    let fresh =
        parameters.large.iter().filter(|(hash, bytes)| shared.insert((*hash.as_bytes(), *bytes)));
    fresh.map(|(_, bytes)| SlotPool::footprint(*bytes)).sum::<u64>()
        + SlotPool::footprint(parameters.packed)
}
