//! Reading the view of the cluster from etcd.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use base::{Error, Result};
use parking_lot::Mutex;
use tracing::{info, warn};

use super::keys::ClusterSnapshot;
use super::protocol::ProtocolWarnings;
use super::state::MemberState;

/// State of the readings so far. A reading holds its lock from the request to the view's change,
/// so that an older reading never replaces a newer one.
#[derive(Debug, Default)]
pub(super) struct ViewReadings {
    /// Revision of the view; `None` if the next reading must be complete.
    revision: Option<i64>,
    /// Time of the last answer of etcd.
    answered: Option<Instant>,
    /// Time at which etcd answered again after an outage, for one lease's time after that.
    returned: Option<Instant>,
    /// True if the last reading failed, which has been logged.
    failing: bool,
    /// Keys with unreadable values, which have been logged.
    unreadable: BTreeSet<String>,
    protocols: ProtocolWarnings,
}

impl ViewReadings {
    /// Makes the next reading complete.
    pub(super) fn forget_revision(&mut self) {
        self.revision = None;
    }

    /// Records an answer of etcd. Returns true if nodes and owners that are absent from it are to
    /// be kept.
    ///
    /// A network partition between etcd and all nodes ends every lease. After it, nodes register
    /// again at different moments. Without a grace period, the first reading would show an empty
    /// cluster, and all reads would fail for some seconds. Half a lease is the shortest partition
    /// that can end a lease.
    fn record_answer(&mut self, now: Instant, lease: Duration) -> bool {
        let silent = self.answered.map(|last| now.duration_since(last));
        if silent.is_some_and(|silent| silent > lease / 2) {
            self.returned = Some(now);
        }
        self.answered = Some(now);
        let grace = self.returned.is_some_and(|returned| now.duration_since(returned) < lease);
        if self.returned.is_some() {
            self.revision = None;
        }
        if !grace {
            self.returned = None;
        }
        grace
    }

    fn succeeded(&mut self) {
        if self.failing {
            info!("etcd answers again");
        }
        self.failing = false;
    }

    /// Records that the view could not be read. Logs the first of several failures.
    fn failed(&mut self, error: &Error) {
        if !self.failing {
            warn!(%error, "the view of the cluster stays as it is until it can be read from etcd");
        }
        self.failing = true;
        // An etcd that was set up again may reach the same revision.
        self.revision = None;
    }

    fn log_unreadable(&mut self, unreadable: BTreeSet<String>) {
        for key in unreadable.difference(&self.unreadable) {
            warn!(key, "the value of a key in etcd is unreadable, so it is ignored");
        }
        self.unreadable = unreadable;
    }
}

/// Time up to which the view is known to be as etcd has it.
#[derive(Debug, Default)]
pub(super) struct ViewCertainty {
    /// Time of the request for the newest reading, or `None` if that kept absent nodes.
    requested_at: Mutex<Option<Instant>>,
}

impl ViewCertainty {
    /// Takes a reading that was requested at `requested_at`.
    fn read(&self, requested_at: Instant, keeps_absent: bool) {
        *self.requested_at.lock() = (!keeps_absent).then_some(requested_at);
    }

    /// Returns the time of the request for the view. Returns `None` if the view at `now` is older
    /// than half a lease, or has nodes that may be dead for longer than a lease.
    pub(super) fn certain_since(&self, now: Instant, lease: Duration) -> Option<Instant> {
        let requested_at = *self.requested_at.lock();
        requested_at
            .filter(|requested_at| now.saturating_duration_since(*requested_at) <= lease / 2)
    }
}

impl MemberState {
    /// Reads the view at fixed intervals and after changes of this node.
    pub(super) async fn follow_view(&self) {
        loop {
            // The pause ends early if this node changed something.
            let _ = tokio::time::timeout(self.times.poll, self.view_work.notified()).await;
            // Without the id of its store, the node cannot know if the nodes in etcd share it.
            if self.store.known().is_some() {
                let _ = self.refresh().await;
            }
        }
    }

    /// Reads the view once. Keeps the last view if etcd does not answer, or has the nodes of
    /// another store.
    ///
    /// # Errors
    /// As [`etcd::Etcd::range`] and [`MemberState::compare_store`]; logged already.
    pub(super) async fn refresh(&self) -> Result<()> {
        let mut readings = self.readings.lock().await;
        let result = self.read_view(&mut readings).await;
        match &result {
            Ok(()) => readings.succeeded(),
            Err(error) => readings.failed(error),
        }
        let stale = result.as_ref().err().map(|error| error.message().to_owned());
        // A change copies the view and wakes its readers.
        if self.view.source().current().stale != stale {
            self.view.update(|view| view.stale = stale);
        }
        result
    }

    /// Reads all keys of the cluster if they have changed, and updates the view. An answer without
    /// a change confirms the view too.
    async fn read_view(&self, readings: &mut ViewReadings) -> Result<()> {
        let requested_at = Instant::now();
        let revision = self.etcd.revision(self.keys.prefix()).await?;
        let keep_absent = readings.record_answer(Instant::now(), self.times.lease);
        if readings.revision == Some(revision) {
            self.certainty.read(requested_at, keep_absent);
            return Ok(());
        }
        let range = self.etcd.range(self.keys.prefix()).await?;
        let mut snapshot = ClusterSnapshot::new(&self.keys, &range.entries);
        readings.log_unreadable(std::mem::take(&mut snapshot.unreadable));
        if let Some(store) = &snapshot.store {
            self.compare_store(store)?;
        }
        let protocol = self.own.lock().info.protocol;
        readings.protocols.log(protocol, &snapshot.nodes);
        self.take_drain(snapshot.drains.get(&self.name).copied());
        self.compare_info(&snapshot);
        self.compare_ownership(&mut snapshot);
        self.view.update(|view| {
            if keep_absent {
                snapshot.keep_absent(view);
            }
            view.nodes = snapshot.nodes;
            view.owners = snapshot.owners;
        });
        self.certainty.read(requested_at, keep_absent);
        readings.revision = Some(range.revision);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(10);

    #[test]
    fn absent_entries_are_kept_for_one_lease_after_an_outage() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut readings = ViewReadings::default();
        // (second of an answer, absent entries are kept)
        let answers =
            [(0, false), (4, false), (9, false), (15, true), (20, true), (24, true), (25, false)];
        for (second, kept) in answers {
            assert_eq!(readings.record_answer(after(second), LEASE), kept, "at {second} s");
        }
        assert!(!readings.record_answer(after(29), LEASE));
        // A second outage within the time of grace begins another one.
        assert!(readings.record_answer(after(40), LEASE));
        assert!(readings.record_answer(after(46), LEASE));
        assert!(readings.record_answer(after(51), LEASE));
        assert!(!readings.record_answer(after(56), LEASE));
    }

    #[test]
    fn an_old_view_and_one_with_kept_nodes_are_not_certain() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let certainty = ViewCertainty::default();
        assert_eq!(certainty.certain_since(start, LEASE), None);
        certainty.read(start, false);
        assert_eq!(certainty.certain_since(after(5), LEASE), Some(start));
        assert_eq!(certainty.certain_since(after(6), LEASE), None);
        certainty.read(after(7), true);
        assert_eq!(certainty.certain_since(after(7), LEASE), None);
    }

    #[test]
    fn readings_are_complete_through_the_end_of_grace() {
        let start = Instant::now();
        let mut readings = ViewReadings { revision: Some(3), ..ViewReadings::default() };
        readings.record_answer(start, LEASE);
        assert_eq!(readings.revision, Some(3));
        for second in [6, 10, 15, 16] {
            readings.revision = Some(3);
            readings.record_answer(start + Duration::from_secs(second), LEASE);
            assert_eq!(readings.revision, None, "at {second} s");
        }
        readings.revision = Some(3);
        readings.record_answer(start + Duration::from_secs(17), LEASE);
        assert_eq!(readings.revision, Some(3));
    }
}
