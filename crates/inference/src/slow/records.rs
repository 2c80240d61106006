//! The slow requests that are kept.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base::VersionId;

use super::causes::SlowCause;

/// Maximum slow requests that are kept of all models together.
const RECORDS_MAX: usize = 256;
/// Maximum slow requests of each model that are kept even if slow requests of other models follow.
const MODEL_RECORDS_MAX: usize = 8;
/// Maximum models with records of their own.
const MODELS_MAX: usize = 1024;

/// A slow request and its causes.
#[derive(Clone, Debug)]
pub struct SlowRequest {
    /// Number of the slow request since the start, from 1.
    pub number: u64,
    /// Time at which the request arrived.
    pub time: SystemTime,
    /// Version that ran the request.
    pub id: VersionId,
    /// Protocol, as in the metrics.
    pub protocol: &'static str,
    /// "ok" or the kind of the error.
    pub status: &'static str,
    /// Time from the first byte of the request to the last byte of the response.
    pub total: Duration,
    /// Median time of the requests to this model.
    pub expected: Duration,
    /// Causes, the largest first.
    pub causes: Vec<SlowCause>,
}

/// The last slow requests of the server and of each model.
#[derive(Default)]
pub(crate) struct SlowRecords {
    all: VecDeque<Arc<SlowRequest>>,
    by_model: HashMap<Arc<str>, VecDeque<Arc<SlowRequest>>>,
    count: u64,
}

impl SlowRecords {
    /// Adds a request. Returns its number.
    pub(crate) fn add(&mut self, request: SlowRequest) -> u64 {
        self.count += 1;
        let request = Arc::new(SlowRequest { number: self.count, ..request });
        push(&mut self.all, request.clone(), RECORDS_MAX);
        let model = request.id.model.clone();
        if !self.by_model.contains_key(&model) && self.by_model.len() >= MODELS_MAX {
            self.forget_oldest();
        }
        push(self.by_model.entry(model).or_default(), request, MODEL_RECORDS_MAX);
        self.count
    }

    /// Removes the model whose last slow request is the oldest.
    fn forget_oldest(&mut self) {
        let last = |records: &VecDeque<Arc<SlowRequest>>| records.back().map(|last| last.number);
        let oldest = self.by_model.iter().min_by_key(|(_, records)| last(records));
        if let Some(model) = oldest.map(|(model, _)| model.clone()) {
            self.by_model.remove(&model);
        }
    }

    /// Returns the kept requests, the last first.
    pub(crate) fn list(&self) -> Vec<Arc<SlowRequest>> {
        let oldest = self.all.front().map_or(u64::MAX, |first| first.number);
        let older = self.by_model.values().flatten().filter(|request| request.number < oldest);
        let mut list: Vec<_> = self.all.iter().chain(older).cloned().collect();
        list.sort_unstable_by_key(|request| std::cmp::Reverse(request.number));
        list
    }
}

fn push(queue: &mut VecDeque<Arc<SlowRequest>>, request: Arc<SlowRequest>, max: usize) {
    if queue.len() >= max {
        queue.pop_front();
    }
    queue.push_back(request);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(model: &str) -> SlowRequest {
        SlowRequest {
            number: 0,
            time: SystemTime::UNIX_EPOCH,
            id: VersionId { model: model.into(), version: 1 },
            protocol: "oip-http",
            status: "ok",
            total: Duration::from_millis(9),
            expected: Duration::from_millis(1),
            causes: Vec::new(),
        }
    }

    #[test]
    fn the_last_of_a_quiet_model_stay() {
        let mut records = SlowRecords::default();
        for _ in 0..MODEL_RECORDS_MAX + 2 {
            records.add(request("quiet"));
        }
        for _ in 0..2 * RECORDS_MAX {
            records.add(request("busy"));
        }
        let list = records.list();
        assert_eq!(list.len(), RECORDS_MAX + MODEL_RECORDS_MAX);
        assert!(list.windows(2).all(|pair| pair[0].number > pair[1].number));
        let quiet: Vec<u64> =
            list.iter().filter(|slow| &*slow.id.model == "quiet").map(|slow| slow.number).collect();
        assert_eq!(quiet, [10, 9, 8, 7, 6, 5, 4, 3]);
    }

    #[test]
    fn the_number_of_models_is_bounded() {
        let mut records = SlowRecords::default();
        for number in 0..MODELS_MAX + 10 {
            records.add(request(&format!("m{number}")));
        }
        assert_eq!(records.by_model.len(), MODELS_MAX);
        assert!(!records.by_model.contains_key("m9") && records.by_model.contains_key("m10"));
        assert_eq!(records.list().len(), MODELS_MAX);
    }
}
