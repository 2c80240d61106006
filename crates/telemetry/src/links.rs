//! Links between spans of different traces: requests of one batch, and loads that ran meanwhile.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use parking_lot::Mutex;

use crate::context::{SpanId, TraceId};

/// Maximum number of links from a run to the runs of other requests in its batch.
const BATCH_LINKS_MAX: usize = 16;
/// Maximum number of traced requests of one batch that are remembered.
const MEMBERS_MAX: usize = 64;
/// Maximum number of batches that are remembered.
const BATCHES_MAX: usize = 4096;
/// Maximum number of loads that are remembered.
const LOADS_MAX: usize = 64;
/// Maximum number of links to loads.
const LOAD_LINKS_MAX: usize = 4;

/// A span of another trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpanLink {
    pub(crate) trace: TraceId,
    pub(crate) span: SpanId,
    /// Relation of the two spans.
    pub(crate) relation: &'static str,
}

/// Links of a span.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct SpanLinks {
    pub(crate) links: Vec<SpanLink>,
    /// Number of links that were left out.
    pub(crate) dropped: u32,
}

/// The traced runs of recent batches.
#[derive(Debug, Default)]
pub(crate) struct BatchIndex {
    members: HashMap<u64, Vec<SpanLink>>,
    /// The batches, oldest first.
    order: VecDeque<u64>,
}

impl BatchIndex {
    /// Adds the run of a traced request.
    pub(crate) fn add(&mut self, batch: u64, trace: TraceId, span: SpanId) {
        let members = self.members.entry(batch).or_default();
        if members.is_empty() {
            self.order.push_back(batch);
        }
        if members.len() < MEMBERS_MAX {
            members.push(SpanLink { trace, span, relation: "batch" });
        }
        if self.order.len() > BATCHES_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.members.remove(&oldest);
        }
    }

    /// Returns links to the other traced requests of `batch`.
    pub(crate) fn others(&self, batch: u64, own: SpanId) -> SpanLinks {
        let members = self.members.get(&batch).map_or(&[][..], Vec::as_slice);
        limited(members.iter().filter(|member| member.span != own).copied(), BATCH_LINKS_MAX)
    }
}

/// Collects at most `max` links, and counts the others as dropped.
fn limited(links: impl Iterator<Item = SpanLink>, max: usize) -> SpanLinks {
    let mut all = SpanLinks::default();
    for link in links {
        if all.links.len() < max {
            all.links.push(link);
        } else {
            all.dropped += 1;
        }
    }
    all
}

/// Recent loads of versions, which the thread of the lifecycle records.
#[derive(Debug, Default)]
pub(crate) struct LoadLog(Mutex<VecDeque<LoadInterval>>);

/// Time of a load, and the span to link.
#[derive(Debug)]
struct LoadInterval {
    link: SpanLink,
    start: Instant,
    /// End of the load, or `None` while it runs.
    end: Option<Instant>,
}

impl LoadLog {
    pub(crate) fn begin(&self, trace: TraceId, span: SpanId, start: Instant) {
        let mut loads = self.0.lock();
        if loads.len() == LOADS_MAX {
            loads.pop_front();
        }
        let link = SpanLink { trace, span, relation: "load" };
        loads.push_back(LoadInterval { link, start, end: None });
    }

    pub(crate) fn end(&self, span: SpanId, end: Instant) {
        let mut loads = self.0.lock();
        if let Some(load) = loads.iter_mut().find(|load| load.link.span == span) {
            load.end = Some(end);
        }
    }

    /// Returns links to the loads that ran between `start` and `end`, except `own`.
    pub(crate) fn during(&self, start: Instant, end: Instant, own: SpanId) -> SpanLinks {
        let loads = self.0.lock();
        let overlaps = |load: &&LoadInterval| {
            load.link.span != own && load.start < end && load.end.is_none_or(|ended| ended > start)
        };
        limited(loads.iter().filter(overlaps).map(|load| load.link), LOAD_LINKS_MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn trace(number: u128) -> TraceId {
        TraceId(number.to_be_bytes())
    }

    fn span(number: u64) -> SpanId {
        SpanId(number.to_be_bytes())
    }

    #[test]
    fn mates_are_linked_and_bounded() {
        let mut index = BatchIndex::default();
        for number in 1..=20 {
            index.add(7, trace(number.into()), span(number));
        }
        index.add(8, trace(99), span(99));
        let links = index.others(7, span(3));
        assert_eq!((links.links.len(), links.dropped), (BATCH_LINKS_MAX, 3));
        assert!(links.links.iter().all(|link| link.span != span(3) && link.span != span(99)));
        assert_eq!(index.others(8, span(99)), SpanLinks::default());
        for batch in 9..9 + BATCHES_MAX as u64 {
            index.add(batch, trace(1), span(1));
        }
        assert_eq!(index.members.len(), BATCHES_MAX);
        assert!(index.others(7, span(3)).links.is_empty(), "forgotten");
    }

    #[test]
    fn loads_are_linked_while_they_run() {
        let log = LoadLog::default();
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        log.begin(trace(1), span(1), at(10));
        assert!(log.during(at(0), at(5), span(9)).links.is_empty());
        assert_eq!(log.during(at(20), at(25), span(9)).links.len(), 1, "it still runs");
        log.end(span(1), at(30));
        assert_eq!(log.during(at(29), at(40), span(9)).links.len(), 1);
        assert!(log.during(at(31), at(40), span(9)).links.is_empty());
        assert!(log.during(at(15), at(20), span(1)).links.is_empty(), "not to itself");
    }
}
