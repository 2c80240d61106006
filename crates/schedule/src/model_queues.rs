//! The queues of all models, and which of them have waiting requests.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use crate::model_queue::ModelQueue;

/// Queues of all models. A choice among waiting requests costs nothing for idle models. A server
/// may have thousands of them, and each worker makes this choice under the lock of all queues.
#[derive(Default)]
pub(crate) struct ModelQueues {
    positions: HashMap<Arc<str>, usize>,
    queues: Vec<ModelQueue>,
    /// Positions of all queues with requests, each once, and of some that have become empty.
    waiting: Vec<usize>,
}

impl ModelQueues {
    /// Returns the number of queues, empty ones included.
    pub(crate) fn len(&self) -> usize {
        self.queues.len()
    }

    /// Returns the position of the model's queue, which it adds if there is none.
    /// [`ModelQueues::remove_unused`] changes the positions.
    pub(crate) fn position(&mut self, model: &Arc<str>) -> usize {
        if let Some(&position) = self.positions.get(model) {
            return position;
        }
        let position = self.queues.len();
        self.queues.push(ModelQueue::new(model));
        self.positions.insert(model.clone(), position);
        position
    }

    /// Returns the queue at `position`.
    pub(crate) fn at(&mut self, position: usize) -> &mut ModelQueue {
        &mut self.queues[position]
    }

    /// Returns the queue of a model if it has one.
    pub(crate) fn get(&mut self, model: &str) -> Option<&mut ModelQueue> {
        let position = *self.positions.get(model)?;
        self.queues.get_mut(position)
    }

    /// Returns the names of all models with a queue.
    pub(crate) fn names(&self) -> Vec<Arc<str>> {
        self.positions.keys().cloned().collect()
    }

    /// Notes that the queue at `position` has requests.
    pub(crate) fn note_waiting(&mut self, position: usize) {
        let queue = &mut self.queues[position];
        if !queue.is_listed {
            queue.is_listed = true;
            self.waiting.push(position);
        }
    }

    /// Returns the positions of the queues with requests. The one that has used the least time
    /// comes first.
    pub(crate) fn by_use(&mut self) -> Vec<usize> {
        self.forget_empty();
        let mut positions = self.waiting.clone();
        let used = |position: &usize| self.queues[*position].used;
        positions.sort_unstable_by(|a, b| used(a).total_cmp(&used(b)));
        positions
    }

    /// Calls `act` for each queue with requests.
    pub(crate) fn for_each_waiting(&mut self, mut act: impl FnMut(&mut ModelQueue)) {
        self.forget_empty();
        for &position in &self.waiting {
            act(&mut self.queues[position]);
        }
    }

    /// Returns true if a request waits.
    pub(crate) fn has_waiting(&mut self) -> bool {
        self.forget_empty();
        !self.waiting.is_empty()
    }

    /// Removes the queues of models whose versions are released.
    pub(crate) fn remove_unused(&mut self) {
        self.remove(|queue| queue.is_unused());
    }

    /// Removes the queues of models whose versions were released long enough before `now`.
    pub(crate) fn remove_expired(&mut self, now: Instant) {
        self.remove(|queue| queue.has_expired(now));
    }

    /// Removes the queues for which `unneeded` returns true. The positions of the others change.
    fn remove(&mut self, mut unneeded: impl FnMut(&mut ModelQueue) -> bool) {
        let count = self.queues.len();
        self.queues.retain_mut(|queue| !unneeded(queue));
        if self.queues.len() == count {
            return;
        }
        self.positions.clear();
        self.waiting.clear();
        for (position, queue) in self.queues.iter_mut().enumerate() {
            self.positions.insert(queue.model().clone(), position);
            queue.is_listed = queue.queued() > 0;
            if queue.is_listed {
                self.waiting.push(position);
            }
        }
    }

    /// Takes queues whose requests were all taken from the list.
    fn forget_empty(&mut self) {
        let queues = &mut self.queues;
        self.waiting.retain(|&position| {
            let queue = &mut queues[position];
            queue.is_listed = queue.queued() > 0;
            queue.is_listed
        });
    }
}

#[cfg(all(test, not(millpond_loom)))]
mod tests {
    use engine::ScheduleOptions;

    use super::*;
    use crate::model_queue::UNUSED_TIME;
    use crate::trial::{model, request};

    #[test]
    fn only_queues_with_requests_are_visited() {
        let mut queues = ModelQueues::default();
        let names: Vec<Arc<str>> = (0..100).map(|number| format!("m{number}").into()).collect();
        for (name, used) in names.iter().zip([2.0, 1.0].into_iter().cycle()) {
            let position = queues.position(name);
            queues.at(position).used = used;
        }
        assert!(!queues.has_waiting() && queues.len() == names.len());
        for name in [&names[10], &names[11], &names[10]] {
            let position = queues.position(name);
            queues.at(position).queued += 1;
            queues.note_waiting(position);
        }
        assert_eq!(
            queues.by_use(),
            [11, 10],
            "the least used one is first, and each is there once"
        );
        let mut visited = 0;
        queues.for_each_waiting(|queue| {
            visited += 1;
            queue.queued = 0;
        });
        assert_eq!(visited, 2);
        assert!(!queues.has_waiting());
        queues.note_waiting(10);
        queues.at(10).queued = 1;
        assert_eq!(queues.by_use(), [10], "a queue that was empty is listed again");
    }

    #[test]
    fn positions_are_right_after_a_removal() {
        let mut queues = ModelQueues::default();
        let servables = ["a", "b", "c"].map(|name| model(name, ScheduleOptions::default()));
        let now = Instant::now();
        for servable in &servables {
            let position = queues.position(&servable.id.model);
            let mut entries = request(servable, 1, now);
            assert!(queues.at(position).push(&mut entries, 8, now, &mut Vec::new()).is_ok());
            queues.note_waiting(position);
        }
        let [a, b, c] = servables;
        let queue = queues.get("a").unwrap();
        queue.levels.clear();
        queue.queued = 0;
        drop(a);
        queues.remove_unused();
        assert!(queues.get("a").is_none());
        for servable in [&b, &c] {
            let name = &servable.id.model;
            assert_eq!(queues.get(name).unwrap().model(), name);
        }
        assert_eq!((queues.by_use().len(), queues.len()), (2, 2));
    }

    /// A new version has not used the queue before its first request.
    #[test]
    fn a_queue_outlives_the_last_used_version() {
        let mut queues = ModelQueues::default();
        let now = Instant::now();
        let use_once = |queues: &mut ModelQueues| {
            let servable = model("a", ScheduleOptions::default());
            let position = queues.position(&servable.id.model);
            let queue = queues.at(position);
            let mut entries = request(&servable, 1, now);
            assert!(queue.push(&mut entries, 8, now, &mut Vec::new()).is_ok());
            queue.levels.clear();
            queue.queued = 0;
        };
        use_once(&mut queues);
        queues.remove_expired(now);
        queues.remove_expired(now + UNUSED_TIME / 2);
        assert_eq!(queues.len(), 1);
        use_once(&mut queues);
        queues.remove_expired(now + UNUSED_TIME);
        assert_eq!(queues.len(), 1, "the time begins again after a request");
        queues.remove_expired(now + 2 * UNUSED_TIME);
        assert_eq!(queues.len(), 0);
    }
}
