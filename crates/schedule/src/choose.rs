//! Choice of a model's waiting requests that run next, and together.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::{BatchPlan, ScheduleMode, ScheduleOptions};

use crate::batch_key::BatchKey;
use crate::cost::{BatchChoice, Offer};
use crate::entry::Entry;
use crate::model_queue::ModelQueue;

/// Maximum number of different keys that are checked for a ready batch. Requests after them wait
/// for the next check.
const HEADS_MAX: usize = 16;
/// Share of useful lingers below which lingering stops. A linger is useful if more requests arrive.
const LINGER_USEFUL_MIN: f64 = 0.1;
/// One batch in this many still lingers then, to detect a change.
const LINGER_TRY_EVERY: u64 = 32;
/// Weight of the last linger in that share.
const LINGER_WEIGHT: f64 = 0.1;

/// Requests that share a run.
pub(crate) struct RequestBatch {
    /// Number of the run since the start of the scheduler, from 1.
    pub(crate) number: u64,
    pub(crate) entries: Vec<Entry>,
    /// Sizes to which all requests are padded, or `None` if the only request runs as it is.
    pub(crate) batch_key: Option<BatchKey>,
    /// Cores that the run is charged for.
    pub(crate) cores: usize,
    /// Cores that other runs cannot use meanwhile.
    pub(crate) taken: usize,
    /// Time charged to the model in advance.
    pub(crate) charge: f64,
}

impl RequestBatch {
    /// Returns the name of the model.
    pub(crate) fn model(&self) -> Arc<str> {
        self.entries.first().map_or_else(|| Arc::from(""), |entry| entry.servable.id.model.clone())
    }
}

/// Next step of a worker for one model.
pub(crate) enum Next {
    Run(RequestBatch),
    /// Nothing to run before this time.
    Wait(Instant),
    /// Some of the chosen requests have expired. Remove them and ask again.
    Stale,
    Nothing,
}

/// Position of a waiting request. Ordered by priority and then by arrival.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct QueueSlot {
    /// Index of the priority level.
    level: usize,
    /// Position in the queue of the level.
    index: usize,
}

/// Requests that run together.
struct RequestGroup {
    slots: Vec<QueueSlot>,
    batch_key: Option<BatchKey>,
    /// Decision by measured costs, or `None` for a request that cannot be merged.
    decision: Option<MergeDecision>,
}

/// A decision by measured costs.
struct MergeDecision {
    /// Hash of the batch key.
    key: u64,
    /// Items that will be measured for the key, or `None` if requests with other keys joined.
    measured_items: Option<usize>,
}

/// Waiting requests with the batch key of the first one, which can run without padding.
struct SameKeyRequests {
    /// Requests that fit into one batch.
    slots: Vec<QueueSlot>,
    /// Items of `slots`.
    items: usize,
    /// Items of all such requests, counted until there is a full batch for each run.
    waiting_items: usize,
}

impl ModelQueue {
    /// Returns the next batch for a free worker, out of `workers`. If `closed` is true, no batch
    /// lingers for more requests.
    pub(crate) fn next(&mut self, now: Instant, workers: usize, closed: bool) -> Next {
        if self.runs_enough(workers) {
            return Next::Nothing;
        }
        let order = self.order();
        let threads = self.threads(workers);
        let mut heads: Vec<QueueSlot> = Vec::new();
        let mut earliest: Option<Instant> = None;
        for &slot in &order {
            if heads.len() >= HEADS_MAX
                || heads.iter().any(|&head| self.at(head).same_batch_key(self.at(slot)))
            {
                continue;
            }
            match self.group(slot, &order, threads, now, closed) {
                Ok(group)
                    if group.slots.iter().any(|&slot| self.at(slot).expiry(now).is_some()) =>
                {
                    return Next::Stale;
                }
                Ok(group) => return Next::Run(self.take(group, workers)),
                Err(until) => {
                    earliest = Some(earliest.map_or(until, |earliest| earliest.min(until)))
                }
            }
            heads.push(slot);
        }
        earliest.map_or(Next::Nothing, Next::Wait)
    }

    fn head(&self) -> Option<&Entry> {
        self.levels.iter().find_map(VecDeque::front)
    }

    /// Returns the cores that a run of the first request takes.
    pub(crate) fn cores(&self, workers: usize) -> usize {
        self.head().map_or(1, |entry| entry.servable.threads_per_run().min(workers))
    }

    /// Returns the maximum number of concurrent runs, by the settings of the first request.
    fn threads(&self, workers: usize) -> usize {
        self.head()
            .and_then(|entry| entry.servable.schedule().threads)
            .unwrap_or(workers)
            .min(workers)
    }

    /// Returns true if the model has its maximum number of concurrent runs.
    pub(crate) fn runs_enough(&self, workers: usize) -> bool {
        self.running >= self.threads(workers)
    }

    /// Returns all slots, by priority and then by arrival.
    fn order(&self) -> Vec<QueueSlot> {
        let level = |(level, queue): (usize, &VecDeque<Entry>)| {
            (0..queue.len()).map(move |index| QueueSlot { level, index })
        };
        self.levels.iter().enumerate().flat_map(level).collect()
    }

    fn at(&self, slot: QueueSlot) -> &Entry {
        &self.levels[slot.level][slot.index]
    }

    /// Returns the requests that run together with `head`, or the time to ask again.
    fn group(
        &mut self,
        head: QueueSlot,
        order: &[QueueSlot],
        threads: usize,
        now: Instant,
        closed: bool,
    ) -> Result<RequestGroup, Instant> {
        let servable = self.at(head).servable.clone();
        let options = servable.schedule();
        let plan = servable.plan();
        let misfit = servable.mixes_items() || self.misfit.contains(&servable.instance());
        let mergeable =
            options.mode == ScheduleMode::Async && plan.batchable && options.max_batch > 1;
        // A request that is larger than a batch and was not split runs by itself.
        let is_large = self.at(head).items > options.max_batch;
        if !mergeable || is_large || self.at(head).batch_key.is_none() || misfit {
            let batch_key = self.at(head).batch_key.clone().filter(|_| !misfit);
            return Ok(RequestGroup { slots: vec![head], batch_key, decision: None });
        }
        let SameKeyRequests { mut slots, items, waiting_items } =
            self.with_key_of(head, order, options.max_batch, threads);
        let BatchChoice { items: target, more_may_pay } =
            self.target(head, plan, options, items, waiting_items.div_ceil(threads));
        let preferred =
            options.preferred_batch_sizes.iter().copied().filter(|&size| size <= target).max();
        let target = preferred.unwrap_or(target);
        let until = self.linger_until(&slots, options.max_queue_delay);
        let full = items >= options.max_batch || preferred.is_some();
        if !full && more_may_pay && now < until && !closed && self.lingers() {
            let entry = &mut self.levels[head.level][head.index];
            entry.lingered = entry.lingered.or(Some(slots.len()));
            return Err(until);
        }
        let whole = target >= items;
        self.shorten(&mut slots, target);
        let key = self.at(head).key;
        let count = slots.len();
        let items: usize = slots.iter().map(|&slot| self.at(slot).items).sum();
        let mut batch_key = self.at(head).batch_key.clone();
        if whole
            && items < options.max_batch
            && plan.inputs.iter().any(|i| i.rule.as_ref().is_some_and(|r| r.merge))
        {
            self.pad(&mut slots, &mut batch_key, order, plan, options);
        }
        let measured_items = (slots.len() == count).then_some(items);
        Ok(RequestGroup { slots, batch_key, decision: Some(MergeDecision { key, measured_items }) })
    }

    /// Returns the requests of `order` with the batch key of `head`. A batch has at most
    /// `items_max` items, and `threads` runs may be in progress.
    fn with_key_of(
        &self,
        head: QueueSlot,
        order: &[QueueSlot],
        items_max: usize,
        threads: usize,
    ) -> SameKeyRequests {
        let mut slots = vec![];
        let mut items = 0;
        let mut waiting_items = 0;
        // A full batch for each run that may be in progress, because more requests change nothing.
        let enough = items_max * threads;
        for &slot in order {
            let entry = self.at(slot);
            if !entry.same_batch_key(self.at(head)) {
                continue;
            }
            waiting_items += entry.items;
            if items + entry.items <= items_max {
                items += entry.items;
                slots.push(slot);
            }
            if waiting_items >= enough {
                break;
            }
        }
        SameKeyRequests { slots, items, waiting_items }
    }

    /// Returns the number of items to take of `offered`.
    fn target(
        &mut self,
        head: QueueSlot,
        plan: &BatchPlan,
        options: &ScheduleOptions,
        offered: usize,
        share: usize,
    ) -> BatchChoice {
        let entry = &self.levels[head.level][head.index];
        let describe = || {
            entry.batch_key.as_ref().map_or_else(String::new, |batch_key| batch_key.describe(plan))
        };
        let choice = self.cost.choose(
            entry.key,
            describe,
            Offer {
                items: offered,
                least: entry.items,
                share: share.max(1),
                max: options.max_batch,
            },
        );
        if options.always_merge {
            return BatchChoice { items: offered, more_may_pay: true };
        }
        choice
    }

    /// Keeps the first slots whose items fit `target`, at least one.
    fn shorten(&self, slots: &mut Vec<QueueSlot>, target: usize) {
        let mut items = 0;
        let mut keep = 0;
        for &slot in &*slots {
            items += self.at(slot).items;
            if items > target && keep > 0 {
                break;
            }
            keep += 1;
        }
        slots.truncate(keep.max(1));
    }

    /// Adds requests of `order` with other keys to `slots`, if padding them is allowed and costs
    /// less than separate runs. With `always_merge`, the cost does not count. `batch_key` becomes
    /// the key that covers all of them.
    fn pad(
        &mut self,
        slots: &mut Vec<QueueSlot>,
        batch_key: &mut Option<BatchKey>,
        order: &[QueueSlot],
        plan: &BatchPlan,
        options: &ScheduleOptions,
    ) {
        let Some(mut padded) = batch_key.take() else { return };
        let mut items: usize = slots.iter().map(|&slot| self.at(slot).items).sum();
        let mut keys = vec![padded.clone()];
        for &slot in order {
            if items >= options.max_batch {
                break;
            }
            let entry = self.at(slot);
            let (Some(own), true) = (&entry.batch_key, entry.same_outputs(self.at(slots[0])))
            else {
                continue;
            };
            if slots.contains(&slot) || items + entry.items > options.max_batch {
                continue;
            }
            let Some(cover) = padded.cover(own, plan) else { continue };
            if !keys.iter().chain([own]).all(|batch_key| batch_key.may_pad(&cover, plan)) {
                continue;
            }
            let count = entry.items;
            let own = own.clone();
            let together = cover.elements(plan) * (items + count) as f64;
            let apart = [padded.elements(plan) * items as f64, own.elements(plan) * count as f64];
            if !options.always_merge && !self.cost.padding_pays(together, apart) {
                continue;
            }
            if !keys.contains(&own) {
                keys.push(own);
            }
            (padded, items) = (cover, items + count);
            slots.push(slot);
        }
        *batch_key = Some(padded);
    }

    /// Returns the end of lingering. By then the oldest request has waited for `delay`, or one of
    /// them for half of its time limit.
    fn linger_until(&self, slots: &[QueueSlot], delay: Duration) -> Instant {
        let until = |entry: &Entry| {
            let half = entry.deadline.saturating_duration_since(entry.submitted) / 2;
            entry.submitted + delay.min(half)
        };
        slots.iter().map(|&slot| until(self.at(slot))).min().unwrap_or_else(Instant::now)
    }

    /// Returns true if lingering has been useful often enough.
    fn lingers(&self) -> bool {
        self.linger_useful >= LINGER_USEFUL_MIN
            || self.batches_taken.is_multiple_of(LINGER_TRY_EVERY)
    }

    /// Takes a group out of the queue.
    fn take(&mut self, group: RequestGroup, workers: usize) -> RequestBatch {
        let servable = self.at(group.slots[0]).servable.clone();
        // Only a request that lingered shows if lingering is useful.
        let lingered = group.slots.iter().filter_map(|&slot| self.at(slot).lingered).min();
        if let Some(before) = lingered {
            let brought = f64::from(u8::from(group.slots.len() > before));
            self.linger_useful += LINGER_WEIGHT * (brought - self.linger_useful);
        }
        if let Some(MergeDecision { key, measured_items }) = group.decision {
            self.cost.count_decision(key, measured_items);
        }
        let mut entries = Vec::with_capacity(group.slots.len());
        // From the back, so that the slots before keep their index.
        let mut slots = group.slots;
        slots.sort_unstable();
        for &QueueSlot { level, index } in slots.iter().rev() {
            entries.extend(self.levels[level].remove(index));
        }
        entries.reverse();
        self.queued -= entries.len();
        self.running += 1;
        self.batches_taken += 1;
        let weight = f64::from(servable.schedule().weight);
        self.used += self.charge / weight;
        let cores = servable.threads_per_run().min(workers);
        let batch_key = group.batch_key;
        let charge = self.charge;
        RequestBatch { number: 0, entries, batch_key, cores, taken: cores, charge }
    }
}

#[cfg(test)]
mod tests {
    use engine::Servable;

    use super::*;
    use crate::trial::{lingering, model, request};

    const DELAY: Duration = Duration::from_secs(1);

    fn push(queue: &mut ModelQueue, servable: &Arc<Servable>, now: Instant) {
        let mut entries = request(servable, 1, now);
        assert!(queue.push(&mut entries, 512, now, &mut Vec::new()).is_ok());
    }

    /// Returns the number of entries that run now, or 0 if they wait.
    fn runs(queue: &mut ModelQueue, now: Instant) -> usize {
        match queue.next(now, 1, false) {
            Next::Run(batch) => {
                queue.running -= 1;
                batch.entries.len()
            }
            _ => 0,
        }
    }

    #[test]
    fn a_refused_request_stays_with_the_caller() {
        let (servable, now) = (model("m", lingering(DELAY)), Instant::now());
        let mut queue = ModelQueue::new(&servable.id.model);
        let mut outcome = || {
            let mut entries = request(&servable, 1, now);
            let pushed = queue.push(&mut entries, 1, now, &mut Vec::new());
            (pushed, entries.len())
        };
        assert_eq!(outcome(), (Ok(()), 0));
        assert_eq!(outcome(), (Err((1, 1)), 1));
    }

    /// Six shapes may begin to try a size. A check of waiting requests is not a try.
    #[test]
    fn lingering_uses_no_tries_up() {
        let (servable, start) = (model("m", lingering(DELAY)), Instant::now());
        let mut queue = ModelQueue::new(&servable.id.model);
        for _ in 0..2 {
            push(&mut queue, &servable, start);
            assert_eq!(runs(&mut queue, start + DELAY), 1);
            let key = request(&servable, 1, start)[0].key;
            queue.cost.add(key, 1, 3.0, 1000.0);
        }
        push(&mut queue, &servable, start);
        push(&mut queue, &servable, start);
        for _ in 0..500 {
            assert_eq!(runs(&mut queue, start), 0, "more might come");
        }
        assert_eq!(runs(&mut queue, start + DELAY), 2, "two at once were never measured");
    }

    /// One item is never measured, because each request has two.
    #[test]
    fn requests_of_two_items_share_a_run() {
        let (servable, start) = (model("m", lingering(Duration::ZERO)), Instant::now());
        let mut queue = ModelQueue::new(&servable.id.model);
        let push = |queue: &mut ModelQueue| {
            let mut entries = request(&servable, 2, start);
            assert!(queue.push(&mut entries, 512, start, &mut Vec::new()).is_ok());
        };
        let key = request(&servable, 2, start)[0].key;
        for _ in 0..2 {
            push(&mut queue);
            assert_eq!(runs(&mut queue, start), 1);
            queue.cost.add(key, 2, 6.0, 1000.0);
        }
        push(&mut queue);
        push(&mut queue);
        assert_eq!(runs(&mut queue, start), 2, "four items were never measured");
    }

    #[test]
    fn only_lingering_requests_count_as_useless_lingers() {
        let options = ScheduleOptions { always_merge: true, ..lingering(DELAY) };
        let (servable, start) = (model("m", options), Instant::now());
        let mut queue = ModelQueue::new(&servable.id.model);
        for _ in 0..50 {
            push(&mut queue, &servable, start);
            assert_eq!(runs(&mut queue, start + DELAY), 1, "no worker was free before");
        }
        push(&mut queue, &servable, start);
        assert_eq!(runs(&mut queue, start), 0, "it still waits for other requests");
        assert_eq!(runs(&mut queue, start + DELAY), 1);
        // Two that linger together, without a third.
        for _ in 0..50 {
            push(&mut queue, &servable, start);
            push(&mut queue, &servable, start);
            let waited = runs(&mut queue, start) == 0;
            assert!(!waited || runs(&mut queue, start + DELAY) == 2);
        }
        push(&mut queue, &servable, start);
        assert_eq!(runs(&mut queue, start), 1, "lingering has stopped");
    }
}
