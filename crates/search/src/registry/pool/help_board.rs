//! Offers of parts of queries to search threads that are idle.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use crossbeam_channel::{Receiver, Sender};
use os::CpuAccount;

use super::PoolJob;
use crate::collection::{HelpWork, Helpers};
use crate::registry::NamedCollection;

/// Maximum offers of parts that wait for a thread. Beyond it, owners do their parts alone.
pub(super) const OFFERS_MAX: usize = 1024;

/// Offers of parts, for threads that are not busy with a task.
pub(super) struct HelpBoard {
    pub(super) offers: Sender<HelpOffer>,
    /// Waiting tasks.
    pub(super) jobs: Receiver<PoolJob>,
    /// Threads that do not run a task.
    pub(super) idle: AtomicUsize,
}

impl HelpBoard {
    /// Drops the offers in `offered` whose work is done. They keep the segments of their queries
    /// open, and threads that always find a task take no offers.
    pub(super) fn drop_done_offers(&self, offered: &Receiver<HelpOffer>) {
        for _ in 0..offered.len() {
            let Ok(offer) = offered.try_recv() else { return };
            // If the board is full, the owner does the parts.
            if offer.work.is_left() && self.offers.try_send(offer).is_err() {
                return;
            }
        }
    }
}

/// Work of which idle threads may do parts.
pub(super) struct HelpOffer {
    pub(super) named: Arc<NamedCollection>,
    pub(super) work: Arc<dyn HelpWork>,
    /// Account of the caller, to which the work of helpers is charged too.
    pub(super) account: Option<Arc<CpuAccount>>,
}

/// Helpers for queries of one collection.
pub(super) struct PoolHelpers {
    pub(super) named: Weak<NamedCollection>,
    pub(super) board: Arc<HelpBoard>,
}

impl Helpers for PoolHelpers {
    fn idle(&self) -> usize {
        self.board.idle.load(Ordering::Relaxed)
    }

    fn offer(&self, count: usize, work: Arc<dyn HelpWork>) {
        let Some(named) = self.named.upgrade() else { return };
        let account = CpuAccount::current();
        for _ in 0..count {
            let offer =
                HelpOffer { named: named.clone(), work: work.clone(), account: account.clone() };
            // If the board is full, the owner does the parts.
            if self.board.offers.try_send(offer).is_err() {
                return;
            }
        }
    }

    fn queries_wait(&self) -> bool {
        !self.board.jobs.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use coarse::Metric;
    use crossbeam_channel::bounded;

    use super::*;
    use crate::collection::SearchThread;
    use crate::registry::CollectionSettings;
    use crate::registry::core::tests::small_core;

    /// Work with a part that is left, or not.
    struct FixedWork {
        is_left: bool,
    }

    impl HelpWork for FixedWork {
        fn is_left(&self) -> bool {
            self.is_left
        }

        fn help(&self, _: &crate::collection::Collection, _: &mut SearchThread) -> usize {
            0
        }
    }

    #[test]
    fn offers_of_ended_queries_are_dropped() {
        let directory = tempfile::tempdir().unwrap();
        let core = small_core(directory.path());
        let named = core.create("a", CollectionSettings::new(4, Metric::L2)).unwrap();
        let (offers, offered) = bounded(OFFERS_MAX);
        let (_jobs, waiting) = bounded(1);
        let board = HelpBoard { offers, jobs: waiting, idle: AtomicUsize::new(0) };
        let ended = Arc::new(FixedWork { is_left: false });
        let running = Arc::new(FixedWork { is_left: true });
        for work in [&ended, &running, &ended, &running] {
            let offer = HelpOffer { named: named.clone(), work: work.clone(), account: None };
            assert!(board.offers.try_send(offer).is_ok());
        }
        board.drop_done_offers(&offered);
        assert_eq!((Arc::strong_count(&ended), Arc::strong_count(&running)), (1, 3));
        assert_eq!(offered.len(), 2);
    }
}
