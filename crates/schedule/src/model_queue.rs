//! One model's waiting requests, and which of them run next.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use base::Error;
use engine::{BatchPlan, Mode, ScheduleOptions, Servable};

use crate::cost::ModelCost;
use crate::entry::Entry;
use crate::form::Form;
use crate::snapshot::{BATCH_SIZE_BOUNDS, CLASSES_SHOWN_MAX, ClassSnapshot, ModelSnapshot};

/// Different forms looked at for one that is ready; what is behind them waits for the next look.
const HEADS_MAX: usize = 16;
/// Below this share of lingers that brought company, lingering stops.
const LINGER_USEFUL_MIN: f64 = 0.1;
/// Then one batch in so many still lingers, to find out whether times have changed.
const LINGER_TRY_EVERY: u64 = 32;
/// Weight of the last linger in that share.
const LINGER_WEIGHT: f64 = 0.1;
/// Versions remembered as not to be merged.
const MISFITS_MAX: usize = 16;

/// Requests for one run.
pub(crate) struct Batch {
    pub(crate) entries: Vec<Entry>,
    /// What all are padded to; `None` where the only one runs as it is.
    pub(crate) form: Option<Form>,
    /// Cores that the run takes.
    pub(crate) cores: usize,
    /// Time charged to the model in advance.
    pub(crate) charge: f64,
}

impl Batch {
    /// The model it is for.
    pub(crate) fn model(&self) -> Arc<str> {
        self.entries.first().map_or_else(|| Arc::from(""), |entry| entry.servable.id.model.clone())
    }
}

/// What a model has for a worker.
pub(crate) enum Next {
    /// Run this.
    Run(Batch),
    /// Not before then.
    Wait(Instant),
    /// Nothing.
    Nothing,
}

/// What a run has shown.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ran {
    /// Version that ran.
    pub(crate) version: u64,
    /// Its model's weight.
    pub(crate) weight: u32,
    /// What was charged in advance, in microseconds.
    pub(crate) charge: f64,
    /// Requests it answered.
    pub(crate) requests: usize,
    /// Their items.
    pub(crate) items: usize,
    /// Elements of padded inputs: real, and padding.
    pub(crate) elements: (u64, u64),
    /// Processor time of the run, or wall time where other threads take part.
    pub(crate) time: Duration,
    /// What the time teaches; nothing after a failure.
    pub(crate) lesson: Option<Lesson>,
    /// The requests were run again one by one.
    pub(crate) rerun: bool,
    /// The outputs could not be cut apart.
    pub(crate) misfit: bool,
}

/// What was measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lesson {
    /// The shape's number; `None` where different shapes were padded.
    pub(crate) shape: Option<u64>,
    /// Elements an item, padding included.
    pub(crate) elements: f64,
}

/// The waiting requests of one model.
pub(crate) struct ModelQueue {
    levels: Vec<VecDeque<Entry>>,
    queued: usize,
    servable: Weak<Servable>,
    /// Versions whose requests are not merged, because their outputs could not be cut apart.
    misfit: Vec<u64>,
    cost: ModelCost,
    /// Time used, divided by the weight: the model with the least goes first.
    pub(crate) used: f64,
    /// What the last run used, charged in advance.
    pub(crate) charge: f64,
    pub(crate) running: usize,
    linger_useful: f64,
    batches_taken: u64,
    counts: ModelSnapshot,
}

impl ModelQueue {
    pub(crate) fn new(model: &Arc<str>) -> ModelQueue {
        ModelQueue {
            levels: Vec::new(),
            queued: 0,
            servable: Weak::new(),
            misfit: Vec::new(),
            cost: ModelCost::default(),
            used: 0.0,
            charge: 0.0,
            running: 0,
            linger_useful: 1.0,
            batches_taken: 0,
            counts: ModelSnapshot { model: model.clone(), ..ModelSnapshot::default() },
        }
    }

    pub(crate) fn queued(&self) -> usize {
        self.queued
    }

    /// Whether nothing waits or runs and the last version it served is gone. Nothing is upgraded here: a version
    /// must be dropped on an unload thread only.
    pub(crate) fn gone(&self) -> bool {
        self.queued == 0 && self.running == 0 && self.servable.strong_count() == 0
    }

    /// Takes the entries of one request, or gives them back when the model's or their level's queue is full.
    pub(crate) fn push(
        &mut self,
        entries: Vec<Entry>,
        server_max: usize,
        now: Instant,
        dead: &mut Vec<(Entry, Error)>,
    ) -> Result<(), (Vec<Entry>, usize)> {
        let Some(first) = entries.first() else { return Ok(()) };
        let options = first.servable.schedule();
        let (level, levels) = (first.level, options.levels());
        let model_max = options.queue_max.unwrap_or(server_max);
        let level_max = options.priorities.get(level).and_then(|l| l.queue_max).unwrap_or(model_max);
        if self.levels.len() < levels {
            self.levels.resize_with(levels, VecDeque::new);
        }
        let full = |queue: &ModelQueue| queue.queued >= model_max || queue.levels[level].len() >= level_max;
        if full(self) {
            self.bury(now, dead);
        }
        if full(self) {
            self.counts.refused += 1;
            let limit = if self.queued >= model_max { model_max } else { level_max };
            return Err((entries, limit));
        }
        self.counts.mode = options.mode;
        self.servable = Arc::downgrade(&first.servable);
        self.queued += entries.len();
        self.levels[level].extend(entries);
        Ok(())
    }

    /// Takes out those nobody waits for.
    pub(crate) fn bury(&mut self, now: Instant, dead: &mut Vec<(Entry, Error)>) {
        for level in &mut self.levels {
            if !level.iter().any(|entry| entry.dead(now).is_some()) {
                continue;
            }
            for entry in std::mem::take(level) {
                match entry.dead(now) {
                    Some(error) => {
                        match error.kind() {
                            base::ErrorKind::Cancelled => self.counts.cancelled += 1,
                            _ => self.counts.expired += 1,
                        }
                        self.queued -= 1;
                        dead.push((entry, error));
                    }
                    None => level.push_back(entry),
                }
            }
        }
    }

    /// What the next free worker of `workers` should run, when all that waits is alive.
    pub(crate) fn next(&mut self, now: Instant, workers: usize, closed: bool) -> Next {
        let order = self.order();
        let Some(&first) = order.first() else { return Next::Nothing };
        let threads = self.at(first).servable.schedule().threads.unwrap_or(workers).min(workers);
        if self.running >= threads {
            return Next::Nothing;
        }
        let mut heads: Vec<Place> = Vec::new();
        let mut earliest: Option<Instant> = None;
        for &place in &order {
            if heads.len() >= HEADS_MAX || heads.iter().any(|&head| self.at(head).same_form(self.at(place))) {
                continue;
            }
            match self.group(place, &order, threads, now, closed) {
                Ok(group) => return Next::Run(self.take(group, workers)),
                Err(until) => earliest = Some(earliest.map_or(until, |earliest| earliest.min(until))),
            }
            heads.push(place);
        }
        earliest.map_or(Next::Nothing, Next::Wait)
    }

    /// Cores that a run of the request at the head takes.
    pub(crate) fn cores(&self, workers: usize) -> usize {
        let head = self.levels.iter().find_map(VecDeque::front);
        head.map_or(1, |entry| entry.servable.threads_per_run.min(workers))
    }

    /// All places, by priority and then by arrival.
    fn order(&self) -> Vec<Place> {
        let level =
            |(level, queue): (usize, &VecDeque<Entry>)| (0..queue.len()).map(move |index| (level, index));
        self.levels.iter().enumerate().flat_map(level).collect()
    }

    fn at(&self, (level, index): Place) -> &Entry {
        &self.levels[level][index]
    }

    /// Those that run together with `head`, or when it is time to ask again.
    fn group(
        &mut self,
        head: Place,
        order: &[Place],
        threads: usize,
        now: Instant,
        closed: bool,
    ) -> Result<Group, Instant> {
        let servable = self.at(head).servable.clone();
        let (options, plan) = (servable.schedule(), servable.plan());
        let misfit = self.misfit.contains(&servable.id.version);
        let mergeable = options.mode == Mode::Async && plan.batchable && options.max_batch > 1;
        if !mergeable || self.at(head).form.is_none() || misfit {
            let form = self.at(head).form.clone().filter(|_| !misfit);
            return Ok(Group { places: vec![head], form });
        }
        let (mut places, mut items) = (vec![], 0);
        let mut waiting = 0;
        for &place in order {
            let entry = self.at(place);
            if entry.same_form(self.at(head)) {
                waiting += entry.items;
                if items + entry.items <= options.max_batch {
                    items += entry.items;
                    places.push(place);
                }
            }
        }
        let (target, more_may_pay) = self.target(head, plan, options, items, waiting.div_ceil(threads));
        let preferred = options.preferred_batch_sizes.iter().copied().filter(|&size| size <= target).max();
        let target = preferred.unwrap_or(target);
        let until = self.at(head).submitted + options.max_queue_delay;
        let full = items >= options.max_batch || preferred.is_some();
        if !full && more_may_pay && now < until && !closed && self.lingers() {
            return Err(until);
        }
        let whole = target >= items;
        self.shorten(&mut places, target);
        let mut form = self.at(head).form.clone();
        if whole
            && items < options.max_batch
            && plan.inputs.iter().any(|i| i.rule.as_ref().is_some_and(|r| r.merge))
        {
            self.pad(&mut places, &mut form, order, plan, options);
        }
        Ok(Group { places, form })
    }

    /// How many items to take of those offered, and whether more might pay.
    fn target(
        &mut self,
        head: Place,
        plan: &BatchPlan,
        options: &ScheduleOptions,
        offered: usize,
        share: usize,
    ) -> (usize, bool) {
        let entry = &self.levels[head.0][head.1];
        let describe = || entry.form.as_ref().map_or_else(String::new, |form| form.describe(plan));
        let cost = self.cost.shape(entry.key, describe);
        if options.always_merge {
            return (offered, true);
        }
        let choice = cost.choose(offered, share.max(1), options.max_batch);
        (choice.items, choice.more_may_pay)
    }

    /// Leaves the first places whose items fit `target`, at least one.
    fn shorten(&self, places: &mut Vec<Place>, target: usize) {
        let mut items = 0;
        let mut keep = 0;
        for &place in &*places {
            items += self.at(place).items;
            if items > target && keep > 0 {
                break;
            }
            keep += 1;
        }
        places.truncate(keep.max(1));
    }

    /// Adds requests of other forms that may be padded and for which padding pays.
    fn pad(
        &mut self,
        places: &mut Vec<Place>,
        form: &mut Option<Form>,
        order: &[Place],
        plan: &BatchPlan,
        options: &ScheduleOptions,
    ) {
        let Some(mut padded) = form.take() else { return };
        let mut items: usize = places.iter().map(|&place| self.at(place).items).sum();
        let mut forms = vec![padded.clone()];
        for &place in order {
            if items >= options.max_batch {
                break;
            }
            let entry = self.at(place);
            let (Some(own), true) = (&entry.form, entry.same_question(self.at(places[0]))) else { continue };
            if places.contains(&place) || items + entry.items > options.max_batch {
                continue;
            }
            let Some(cover) = padded.cover(own, plan) else { continue };
            if !forms.iter().chain([own]).all(|form| form.may_pad(&cover, plan)) {
                continue;
            }
            let (count, own) = (entry.items, own.clone());
            let together = cover.elements(plan) * (items + count) as f64;
            let apart = [padded.elements(plan) * items as f64, own.elements(plan) * count as f64];
            if !options.always_merge && !self.cost.padding_pays(together, apart) {
                continue;
            }
            if !forms.contains(&own) {
                forms.push(own);
            }
            (padded, items) = (cover, items + count);
            places.push(place);
        }
        *form = Some(padded);
    }

    /// Whether to wait for company, seen from how often waiting brought any.
    fn lingers(&self) -> bool {
        self.linger_useful >= LINGER_USEFUL_MIN || self.batches_taken.is_multiple_of(LINGER_TRY_EVERY)
    }

    /// Takes a group out of the queue.
    fn take(&mut self, group: Group, workers: usize) -> Batch {
        let servable = self.at(group.places[0]).servable.clone();
        let delay = servable.schedule().max_queue_delay;
        if !delay.is_zero() && self.lingers() {
            let brought = f64::from(u8::from(group.places.len() > 1));
            self.linger_useful += LINGER_WEIGHT * (brought - self.linger_useful);
        }
        let mut entries = Vec::with_capacity(group.places.len());
        // From the back, so that the places before stay where they are.
        let mut places = group.places;
        places.sort_unstable();
        for &(level, index) in places.iter().rev() {
            entries.extend(self.levels[level].remove(index));
        }
        entries.reverse();
        self.queued -= entries.len();
        self.running += 1;
        self.batches_taken += 1;
        let weight = f64::from(servable.schedule().weight);
        self.used += self.charge / weight;
        let cores = servable.threads_per_run.min(workers);
        Batch { entries, form: group.form, cores, charge: self.charge }
    }

    /// Learns from a run.
    pub(crate) fn finish(&mut self, ran: &Ran) {
        let us = ran.time.as_secs_f64() * 1e6;
        self.running -= 1;
        self.used += (us - ran.charge) / f64::from(ran.weight.max(1));
        self.charge = us;
        if let Some(lesson) = &ran.lesson {
            let elements = lesson.elements * ran.items as f64;
            match &lesson.shape {
                Some(key) => self.cost.add(*key, ran.items, elements, us),
                None => self.cost.add_padded(elements, us),
            }
        }
        if ran.misfit && !self.misfit.contains(&ran.version) {
            if self.misfit.len() >= MISFITS_MAX {
                self.misfit.remove(0);
            }
            self.misfit.push(ran.version);
        }
        let counts = &mut self.counts;
        counts.requests += ran.requests as u64;
        counts.batches += 1;
        counts.items += ran.items as u64;
        counts.batch_sizes[BATCH_SIZE_BOUNDS.partition_point(|&bound| bound < ran.items)] += 1;
        counts.real_elements += ran.elements.0;
        counts.padding_elements += ran.elements.1;
        counts.reruns += u64::from(ran.rerun);
    }

    pub(crate) fn snapshot(&self) -> ModelSnapshot {
        let class = |(shape, cost): (&str, &crate::cost::ShapeCost)| ClassSnapshot {
            shape: shape.to_owned(),
            runs: cost.runs(),
            item_us: cost.known(),
            best: cost.best_size(),
        };
        ModelSnapshot {
            queued: self.queued,
            queued_by_priority: self.levels.iter().map(VecDeque::len).collect(),
            running: self.running,
            classes: self.cost.top(CLASSES_SHOWN_MAX).into_iter().map(class).collect(),
            ..self.counts.clone()
        }
    }
}

/// Level and position.
type Place = (usize, usize);

/// Those that run together, and what they are padded to.
struct Group {
    places: Vec<Place>,
    form: Option<Form>,
}
