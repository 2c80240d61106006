//! The thread that keeps the turns of this process in etcd.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{Error, Result, VersionId};
use etcd::{Etcd, LeaseId};
use lifecycle::{TurnState, UpdateEnd};
use metrics::{ModelLabels, UpdateMetrics};

use crate::decide::{TurnRules, TurnStep, WaitingVersion, next_step, reading_pause, without_etcd};
use crate::keys::{FleetKeys, FleetSnapshot, SlotHolder, VersionHold, encoded};
use crate::{EndedUpdate, FleetTimes, SharedFleet};

/// Longest time in which the end of an update is written again after a failure.
const END_TIME_MAX: Duration = Duration::from_secs(60);
/// Longest time in which ends are written and turns are released at the stop.
const STOP_TIME_MAX: Duration = Duration::from_secs(2);
/// Longest pause between two rounds without news.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// A slot that this process has.
#[derive(Clone, Copy, Debug)]
struct HeldSlot {
    lease: LeaseId,
    taken: Instant,
    /// Time at which the last successful keep-alive began.
    renewed: Instant,
}

/// Trials of a version to remove.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RemovedTrials {
    /// Trials with the name of this process, also those of an earlier start.
    Own,
    /// Trials of all processes.
    All,
}

/// State of the thread that takes and keeps the turns of this process.
pub(super) struct FleetWorker {
    etcd: Etcd,
    keys: FleetKeys,
    rules: TurnRules,
    times: FleetTimes,
    metrics: UpdateMetrics,
    shared: Arc<SharedFleet>,
    slots: BTreeMap<VersionId, HeldSlot>,
    /// Versions whose turn ended before their load.
    turns_lost: BTreeSet<VersionId>,
    /// Start of etcd's silence, by version that wants to load.
    silent: BTreeMap<VersionId, Instant>,
    /// Error of the last request. The same error is logged once.
    logged: Option<Error>,
}

impl FleetWorker {
    pub(super) fn new(
        etcd: Etcd,
        keys: FleetKeys,
        rules: TurnRules,
        times: FleetTimes,
        metrics: UpdateMetrics,
        shared: Arc<SharedFleet>,
    ) -> FleetWorker {
        FleetWorker {
            etcd,
            keys,
            rules,
            times,
            metrics,
            shared,
            slots: BTreeMap::new(),
            turns_lost: BTreeSet::new(),
            silent: BTreeMap::new(),
            logged: None,
        }
    }

    /// Works until the stop.
    pub(super) async fn run(mut self) {
        let shared = self.shared.clone();
        tokio::select! {
            () = self.work() => {}
            () = shared.stop.notified() => {}
        }
        let end = async {
            // A version that failed is held back before its slot is free.
            if self.finish_ended().await {
                tracing::warn!("the ends of some updates are not recorded in etcd");
            }
            self.release_all().await;
        };
        if tokio::time::timeout(STOP_TIME_MAX, end).await.is_err() {
            tracing::warn!("etcd does not answer; turns of updates end with their leases");
        }
    }

    async fn work(&mut self) {
        let shared = self.shared.clone();
        loop {
            let pause = self.round().await;
            // News and the end of the pause lead to the same round.
            let _ = tokio::time::timeout(pause, shared.changed.notified()).await;
        }
    }

    /// Takes every step that is possible now. Returns the time until the next round.
    async fn round(&mut self) -> Duration {
        self.keep_slots().await;
        let ends = self.finish_ended().await;
        let waiting = self.waiting();
        self.silent.retain(|id, _| waiting.iter().any(|version| version.id == *id));
        let mut pause = if ends { self.times.keep_alive } else { PAUSE_MAX };
        if !self.slots.is_empty() {
            pause = pause.min(self.times.keep_alive / 2);
        }
        if waiting.is_empty() {
            return pause;
        }
        pause = pause.min(reading_pause(&waiting, &self.times));
        let range = match self.etcd.range(self.keys.prefix()).await {
            Ok(range) => range,
            Err(error) => {
                waiting.iter().for_each(|version| self.wait_without_etcd(version, &error));
                return pause;
            }
        };
        let snapshot = FleetSnapshot::new(&self.keys, &range.entries);
        for version in &waiting {
            match self.advance(&snapshot, version).await {
                // The holds are read again before the slot counts.
                Ok(true) => pause = Duration::ZERO,
                Ok(false) => {
                    self.silent.remove(&version.id);
                    self.logged = None;
                }
                Err(error) => self.wait_without_etcd(version, &error),
            }
        }
        pause
    }

    /// Returns the versions that wait.
    fn waiting(&self) -> Vec<WaitingVersion> {
        let state = self.shared.state.lock();
        let waits = state
            .iter()
            .filter(|(_, update)| update.end.is_none() && update.state != TurnState::Granted);
        waits
            .map(|(id, update)| WaitingVersion {
                id: id.clone(),
                due: update.due.map(|since| since.elapsed()),
                has_slot: self.slots.contains_key(id),
            })
            .collect()
    }

    fn set(&self, id: &VersionId, state: TurnState) {
        if let Some(update) = self.shared.state.lock().get_mut(id) {
            update.state = state;
        }
    }

    /// Takes the next step of a version. Returns true if it took a slot.
    ///
    /// # Errors
    /// etcd's error; `Unavailable` if the lease of the version's slot was not renewed in time.
    async fn advance(
        &mut self,
        snapshot: &FleetSnapshot,
        version: &WaitingVersion,
    ) -> Result<bool> {
        let id = &version.id;
        match next_step(&self.rules, snapshot, version) {
            TurnStep::HoldBack(reason) => {
                self.release(id).await;
                self.set(id, TurnState::HeldBack(reason));
            }
            // This process may have been stopped since it renewed the lease. Then another process
            // may have the slot, and the holds may be old. The next round renews it, or finds that
            // it has ended. A lease that is never renewed counts as silence of etcd, so the wait
            // has an end.
            TurnStep::Grant if !self.has_lease(id) => {
                return Err(Error::unavailable("etcd has not renewed the lease of its turn"));
            }
            TurnStep::Grant => {
                tracing::debug!(%id, "has its turn");
                self.set(id, TurnState::Granted);
            }
            TurnStep::Wait(reason) => self.set(id, TurnState::Waiting(reason)),
            TurnStep::TakeSlot(free) => return self.take_slot(id, &free).await,
        }
        Ok(false)
    }

    /// Returns true if the lease of the version's slot was renewed a short time ago.
    fn has_lease(&self, id: &VersionId) -> bool {
        self.slots.get(id).is_some_and(|slot| slot.renewed.elapsed() < self.times.lease)
    }

    /// Takes one of the slots for a version. Returns false if other processes were faster.
    async fn take_slot(&mut self, id: &VersionId, free: &[u32]) -> Result<bool> {
        let taken = Instant::now();
        let lease = self.etcd.grant(self.times.lease).await?;
        let holder = SlotHolder { process: self.rules.process.clone(), version: id.version };
        for slot in free {
            let key = self.keys.slot(&id.model, *slot);
            let created = self.etcd.create(&key, &encoded(&holder), lease).await?.is_some();
            // An earlier try of the same request may have created it.
            let own =
                created || self.etcd.get(&key).await?.is_some_and(|entry| entry.lease == lease);
            if own {
                self.slots.insert(id.clone(), HeldSlot { lease, taken, renewed: taken });
                self.turns_lost.remove(id);
                // After the slot: without one, a trial shows that its process has ended.
                let trial = self.etcd.grant(self.times.turn).await?;
                self.etcd.put(&self.keys.trial(id, *slot), &encoded(&holder), trial).await?;
                return Ok(true);
            }
        }
        self.etcd.revoke(lease).await?;
        Ok(false)
    }

    /// Releases the slot of a version, if it has one. If etcd does not answer, the lease ends.
    async fn release(&mut self, id: &VersionId) {
        let Some(slot) = self.slots.get(id).copied() else { return };
        let released = async {
            // First: a trial without a slot holds the version back.
            self.remove_trials(id, RemovedTrials::Own).await?;
            self.etcd.revoke(slot.lease).await
        };
        if let Err(error) = released.await {
            tracing::debug!(%id, %error, "a turn ends with its lease");
        }
        // After the requests: the stop interrupts them, and then releases the slots that are left.
        self.slots.remove(id);
    }

    /// Removes trials of a version.
    async fn remove_trials(&self, id: &VersionId, removed: RemovedTrials) -> Result<()> {
        for entry in self.etcd.range(&self.keys.trials(id)).await?.entries {
            let holder = serde_json::from_slice::<SlotHolder>(&entry.value).ok();
            let is_own = holder.is_some_and(|holder| holder.process == self.rules.process);
            if removed == RemovedTrials::All || is_own {
                self.etcd.delete_if_created(&entry.key, entry.create_revision).await?;
            }
        }
        Ok(())
    }

    async fn release_all(&mut self) {
        while let Some(id) = self.slots.keys().next().cloned() {
            self.release(&id).await;
        }
    }

    /// Renews the leases of the slots.
    async fn keep_slots(&mut self) {
        for (id, slot) in self.slots.clone() {
            if slot.taken.elapsed() >= self.times.turn {
                tracing::warn!(%id, "the load takes too long and lost its turn; other servers may load it");
                self.release(&id).await;
                self.turns_lost.insert(id);
                continue;
            }
            if slot.renewed.elapsed() < self.times.keep_alive {
                continue;
            }
            let began = Instant::now();
            match self.etcd.keep_alive(slot.lease).await {
                Ok(true) => {
                    self.slots.insert(id, HeldSlot { renewed: began, ..slot });
                }
                Ok(false) => {
                    tracing::warn!(%id, "its turn ended, because etcd did not answer; its load continues");
                    if let Err(error) = self.remove_trials(&id, RemovedTrials::Own).await {
                        tracing::debug!(%id, %error, "the version is held back for a while");
                    }
                    self.slots.remove(&id);
                    self.turns_lost.insert(id);
                }
                Err(error) => tracing::debug!(%id, %error, "a turn could not be renewed"),
            }
        }
    }

    /// Writes the ends of updates to etcd. Returns true if some are not written yet.
    async fn finish_ended(&mut self) -> bool {
        let mut left = false;
        for (id, EndedUpdate { end, since }) in self.ended_updates() {
            if let Err(error) = self.write_end(&id, &end).await {
                if since.elapsed() < END_TIME_MAX {
                    left = true;
                    continue;
                }
                tracing::warn!(%id, %error, %end, "the end of an update is not recorded in etcd");
            }
            self.release(&id).await;
            let mut state = self.shared.state.lock();
            let last = state.get(&id).and_then(|update| update.end.as_ref());
            // Another end that came meanwhile is written in the next round.
            if last.is_some_and(|last| last.since == since) {
                state.remove(&id);
                self.turns_lost.remove(&id);
            }
        }
        left
    }

    fn ended_updates(&self) -> Vec<(VersionId, EndedUpdate)> {
        let state = self.shared.state.lock();
        let ended = |(id, update): (&VersionId, &super::FleetUpdate)| {
            Some((id.clone(), update.end.clone()?))
        };
        state.iter().filter_map(ended).collect()
    }

    /// Holds back a version that failed. Removes the hold and the trials of a version that was
    /// loaded by hand. If the version had failed here and was loaded later, removes those of this
    /// process. Removes the trials of this process if its load was dropped.
    async fn write_end(&self, id: &VersionId, end: &UpdateEnd) -> Result<()> {
        let key = self.keys.hold(id);
        match end {
            // Without the slot, its trial would hold the version back.
            UpdateEnd::Dropped if self.has_begun(id) => {
                self.remove_trials(id, RemovedTrials::Own).await
            }
            UpdateEnd::Dropped => Ok(()),
            UpdateEnd::Failed(error) => {
                let is_late = self.has_lost_turn(id);
                let lease = self.etcd.grant(self.hold_time(is_late)).await?;
                let hold = VersionHold::new(&self.rules.process, error);
                tracing::warn!(%id, is_late, "no other process of the fleet loads it, since it failed here");
                if is_late {
                    // A hold of a process that failed within its turn stays as it is.
                    self.etcd.create(&key, &encoded(&hold), lease).await.map(drop)
                } else {
                    self.etcd.put(&key, &encoded(&hold), lease).await
                }
            }
            UpdateEnd::Loaded { by_hand } => {
                // This process may have ended during an earlier load.
                let removed = if *by_hand { RemovedTrials::All } else { RemovedTrials::Own };
                self.remove_trials(id, removed).await?;
                let Some(entry) = self.etcd.get(&key).await? else { return Ok(()) };
                let hold = serde_json::from_slice::<VersionHold>(&entry.value).ok();
                let own = hold.is_some_and(|hold| hold.process == self.rules.process);
                if *by_hand || own {
                    tracing::info!(%id, "the version loaded; the fleet continues with it");
                    // Another process may have failed since the read. Its hold stays.
                    self.etcd.delete_if_value(&key, &entry.value).await?;
                }
                Ok(())
            }
        }
    }

    /// Returns true if this process has, or has lost, a turn for the version.
    fn has_begun(&self, id: &VersionId) -> bool {
        self.slots.contains_key(id) || self.turns_lost.contains(id)
    }

    /// Returns true if the version's turn has ended, so that other processes may have loaded the
    /// version since.
    fn has_lost_turn(&self, id: &VersionId) -> bool {
        self.turns_lost.contains(id) || (self.slots.contains_key(id) && !self.has_lease(id))
    }

    /// Returns the time for which a failure holds a version back. After a late failure, another
    /// process tries the version again once a turn would have ended.
    fn hold_time(&self, is_late: bool) -> Duration {
        if is_late { self.times.turn.min(self.times.hold) } else { self.times.hold }
    }

    /// Lets a version load without a turn once it has waited long enough for an answer.
    fn wait_without_etcd(&mut self, version: &WaitingVersion, error: &Error) {
        let id = &version.id;
        if self.logged.as_ref() != Some(error) {
            tracing::warn!(%id, %error, "the turns of updates cannot be read from etcd");
            self.logged = Some(error.clone());
        }
        let state = self.shared.state.lock().get(id).map(|update| update.state.clone());
        if version.due.is_none() || matches!(state, None | Some(TurnState::HeldBack(_))) {
            return;
        }
        let since = *self.silent.entry(id.clone()).or_insert_with(Instant::now);
        let state = without_etcd(since.elapsed(), self.times.silence, error);
        if state == TurnState::Granted {
            tracing::warn!(%id, "is loaded without a turn, since etcd does not answer");
            let labels = ModelLabels { model: id.model.clone() };
            self.metrics.without_turn.get_or_create(&labels).inc();
        }
        self.set(id, state);
    }
}

#[cfg(test)]
mod tests {
    use http_client::HttpClient;

    use super::*;
    use crate::FleetUpdate;

    /// Returns a worker that sends no request, and a version that is due and has a slot, whose
    /// lease was renewed before `slept`.
    fn worker_with_slot(slept: Duration, times: FleetTimes) -> (FleetWorker, WaitingVersion) {
        let etcd = Etcd::new(&["http://127.0.0.1:1".to_owned()], HttpClient::new(None)).unwrap();
        let rules = TurnRules { process: "a".to_owned(), concurrency: 1 };
        let shared = Arc::new(SharedFleet::default());
        let id = VersionId { model: "m".into(), version: 2 };
        let asked = TurnState::Waiting("it waits".to_owned());
        let update = FleetUpdate { due: None, state: asked, end: None };
        shared.state.lock().insert(id.clone(), update);
        let metrics = UpdateMetrics::default();
        let mut worker = FleetWorker::new(etcd, FleetKeys::new("f"), rules, times, metrics, shared);
        let renewed = Instant::now().checked_sub(slept).unwrap();
        worker.slots.insert(id.clone(), HeldSlot { lease: LeaseId(1), taken: renewed, renewed });
        (worker, WaitingVersion { id, due: Some(Duration::ZERO), has_slot: true })
    }

    #[test]
    fn a_process_that_slept_grants_no_turn() {
        let times = FleetTimes::default();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for (slept, is_granted) in [(times.lease, false), (Duration::ZERO, true)] {
            let (mut worker, version) = worker_with_slot(slept, times);
            let snapshot = FleetSnapshot::default();
            let advanced = runtime.block_on(worker.advance(&snapshot, &version));
            assert_eq!(advanced.is_ok(), is_granted);
            let state = worker.shared.state.lock()[&version.id].state.clone();
            assert_eq!(state == TurnState::Granted, is_granted, "{state:?}");
        }
    }

    #[test]
    fn a_failure_after_the_turn_holds_back_for_one_turn() {
        let times = FleetTimes { turn: Duration::from_secs(20), ..FleetTimes::default() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        // The age of the slot and of its last keep-alive.
        for (age, is_late) in [(Duration::ZERO, false), (times.lease, true), (times.turn, true)] {
            let (mut worker, version) = worker_with_slot(age, times);
            runtime.block_on(worker.keep_slots());
            assert_eq!(worker.slots.is_empty(), age >= times.turn, "{age:?}");
            assert_eq!(worker.has_lost_turn(&version.id), is_late, "{age:?}");
            let hold = if is_late { times.turn } else { times.hold };
            assert_eq!(worker.hold_time(is_late), hold);
            let without_turn = VersionId { version: 3, ..version.id };
            assert!(!worker.has_lost_turn(&without_turn));
        }
    }

    #[test]
    fn the_end_of_a_dropped_load_waits_for_etcd() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        for has_slot in [true, false] {
            let (mut worker, version) = worker_with_slot(Duration::ZERO, FleetTimes::default());
            if !has_slot {
                worker.slots.clear();
            }
            let end = EndedUpdate { end: UpdateEnd::Dropped, since: Instant::now() };
            worker.shared.state.lock().get_mut(&version.id).unwrap().end = Some(end);
            assert_eq!(runtime.block_on(worker.finish_ended()), has_slot);
            assert_eq!(worker.shared.state.lock().contains_key(&version.id), has_slot);
        }
    }

    #[test]
    fn a_lease_that_is_never_renewed_is_silence_of_etcd() {
        let times = FleetTimes::default();
        let (mut worker, version) = worker_with_slot(times.lease, times);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let snapshot = FleetSnapshot::default();
        let error = runtime.block_on(worker.advance(&snapshot, &version)).unwrap_err();
        worker.wait_without_etcd(&version, &error);
        let state = |worker: &FleetWorker| worker.shared.state.lock()[&version.id].state.clone();
        assert!(matches!(state(&worker), TurnState::Waiting(_)), "{:?}", state(&worker));
        let since = Instant::now().checked_sub(times.silence).unwrap();
        worker.silent.insert(version.id.clone(), since);
        worker.wait_without_etcd(&version, &error);
        assert_eq!(state(&worker), TurnState::Granted);
    }

    #[test]
    fn a_release_that_the_stop_interrupts_keeps_the_slot() {
        // The system accepts connections for it, and no thread answers.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", silent.local_addr().unwrap());
        let (mut worker, version) = worker_with_slot(Duration::ZERO, FleetTimes::default());
        worker.etcd = Etcd::new(&[url], HttpClient::new(None)).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            tokio::select! {
                biased;
                () = worker.release(&version.id) => panic!("etcd has answered"),
                () = std::future::ready(()) => {}
            }
        });
        assert!(worker.slots.contains_key(&version.id), "the stop releases it again");
    }
}
