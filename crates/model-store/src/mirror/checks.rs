//! Checks of several stores at the same time.

use std::future::poll_fn;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use base::Result;

use super::follower::{Follower, SyncContext, SyncOutcome};
use super::slot::StoreSlot;
use super::{CONFIG_POLL, MirroredStores, StoreMirror, UNUSED_POLL};

/// Maximum number of stores that are checked at the same time. Their fetches share the memory for
/// parts. A check of a store that does not answer ends by the timeouts of its requests.
const CHECKS_MAX: usize = 16;

/// A check of a store that runs.
struct RunningCheck<'a> {
    models_dir: PathBuf,
    /// Number of the last request for a listing before the check.
    request: u64,
    work: Pin<Box<dyn Future<Output = (Follower, Result<SyncOutcome>)> + 'a>>,
}

/// A check of a store that has ended.
pub(super) struct EndedCheck {
    pub(super) follower: Follower,
    /// Number of the last request for a listing before the check.
    pub(super) request: u64,
    /// Result of the check. The follower has reported its error.
    pub(super) outcome: Result<SyncOutcome>,
}

/// Checks that run. A check that is dropped is stopped. The fetched part of a version is kept.
#[derive(Default)]
pub(super) struct RunningChecks<'a>(Vec<RunningCheck<'a>>);

impl<'a> RunningChecks<'a> {
    pub(super) fn start(&mut self, mut follower: Follower, request: u64, context: &'a SyncContext) {
        let models_dir = follower.source.models_dir.clone();
        let work = Box::pin(async move {
            let outcome = follower.poll(context).await;
            (follower, outcome)
        });
        self.0.push(RunningCheck { models_dir, request, work });
    }

    pub(super) fn is_full(&self) -> bool {
        self.0.len() >= CHECKS_MAX
    }

    /// Stops the checks of stores that are not followed any more.
    fn stop_removed(&mut self, slots: &[StoreSlot]) {
        let is_followed = |check: &RunningCheck<'_>| {
            slots.iter().any(|slot| slot.source.models_dir == check.models_dir)
        };
        self.0.retain(is_followed);
    }

    /// Waits until a check ends, or for ever if none runs.
    pub(super) async fn next(&mut self) -> EndedCheck {
        poll_fn(|context| {
            for at in 0..self.0.len() {
                if let Poll::Ready(ended) = self.0[at].work.as_mut().poll(context) {
                    let (follower, outcome) = ended;
                    let request = self.0.remove(at).request;
                    return Poll::Ready(EndedCheck { follower, request, outcome });
                }
            }
            Poll::Pending
        })
        .await
    }
}

impl StoreMirror {
    /// Follows the stores of the configuration. Never returns.
    pub(super) async fn follow_all(&mut self) {
        let StoreMirror { context, stores } = self;
        let context: &SyncContext = context;
        let mut running = RunningChecks::default();
        let mut seen_request = 0;
        let mut next_config = Instant::now();
        let mut next_unused = Instant::now();
        loop {
            let request = stores.queue.pending();
            let now = Instant::now();
            if next_config <= now || request.is_some_and(|number| number > seen_request) {
                let sources = (stores.sources)();
                stores.set_sources(context, sources);
                running.stop_removed(&stores.slots);
                seen_request = request.unwrap_or(seen_request);
                next_config = now + CONFIG_POLL;
            }
            if next_unused <= now {
                context.remove_unused();
                next_unused = now + UNUSED_POLL;
            }
            if let Some(number) = request {
                stores.answer(number, now);
            }
            stores.start_due(context, &mut running, request.unwrap_or(0), now);
            let pause = stores.pause(running.is_full(), next_config);
            tokio::select! {
                ended = running.next() => {
                    stores.end_check(context, ended.follower, ended.request);
                }
                () = stores.queue.wait(pause) => {}
            }
        }
    }
}

impl MirroredStores {
    /// Answers the requests for listings, up to `number`, that checks of all stores have answered.
    fn answer(&self, number: u64, now: Instant) {
        let awaited = self.slots.iter().filter(|slot| !slot.is_silent(now));
        let answered = awaited.map(|slot| slot.answered).min().unwrap_or(number);
        self.queue.answer(answered.min(number));
    }

    /// Starts checks of the stores that are due or that have not answered `request`, the longest
    /// due first.
    fn start_due<'a>(
        &mut self,
        context: &'a SyncContext,
        running: &mut RunningChecks<'a>,
        request: u64,
        now: Instant,
    ) {
        let due_at = |slot: &StoreSlot| {
            let next = slot.follower.as_ref()?.next;
            (next <= now || slot.answered < request).then_some(next)
        };
        let slots = self.slots.iter().enumerate();
        let mut due: Vec<(Instant, usize)> =
            slots.filter_map(|(at, slot)| Some((due_at(slot)?, at))).collect();
        due.sort_unstable();
        for (_, at) in due {
            if running.is_full() {
                return;
            }
            if let Some(follower) = self.slots[at].begin_check(now) {
                running.start(follower, request, context);
            }
        }
    }

    /// Returns the time until a check is due or the configuration is read. `is_full` is true if no
    /// further check can start.
    fn pause(&self, is_full: bool, next_config: Instant) -> Duration {
        let idle = self.slots.iter().filter_map(|slot| slot.follower.as_ref());
        let due = idle.map(|follower| follower.next).filter(|_| !is_full);
        let next = due.min().map_or(next_config, |due| due.min(next_config));
        next.saturating_duration_since(Instant::now())
    }

    /// Takes the follower back from a check. Returns the position of its store if the store is
    /// still followed.
    pub(super) fn end_check(
        &mut self,
        context: &SyncContext,
        follower: Follower,
        request: u64,
    ) -> Option<usize> {
        let models_dir = &follower.source.models_dir;
        let slot = self.slots.iter().position(|slot| slot.source.models_dir == *models_dir);
        if let Some(at) = slot {
            self.slots[at].end_check(follower, request);
        }
        self.note_check(context);
        slot
    }
}
