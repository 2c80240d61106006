//! Puts labels and faults in time order. Each waits until no earlier entry can come.
//!
//! An event of an hour would delay every event that starts after it. So at most [`WAITING_MAX`]
//! entries wait; then the earliest leaves, even if an earlier one may follow.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use base::Result;

use super::PipelineEvent;
use crate::{Fault, Label};

/// Maximum labels and faults that wait.
const WAITING_MAX: usize = 1 << 16;
/// Maximum faults that are listed; more are counted.
const FAULTS_MAX: u64 = 1000;

struct OrderedEvent {
    at: f64,
    number: u64,
    event: PipelineEvent,
}

impl Ord for OrderedEvent {
    /// Orders the earliest as the greatest, because the heap returns the greatest.
    fn cmp(&self, other: &OrderedEvent) -> Ordering {
        other.at.total_cmp(&self.at).then(other.number.cmp(&self.number))
    }
}

impl PartialOrd for OrderedEvent {
    fn partial_cmp(&self, other: &OrderedEvent) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for OrderedEvent {
    fn eq(&self, other: &OrderedEvent) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for OrderedEvent {}

/// Numbers of labels and faults of a recording. Faults that are not listed count too.
pub(super) struct EventTotals {
    pub(super) labels: u64,
    pub(super) faults: u64,
}

/// Sorts and counts events that arrive nearly in order.
pub(super) struct EventOrder<'a> {
    sink: &'a mut dyn FnMut(PipelineEvent) -> Result<()>,
    waiting: BinaryHeap<OrderedEvent>,
    number: u64,
    labels: u64,
    faults: u64,
}

impl<'a> EventOrder<'a> {
    pub(super) fn new(sink: &'a mut dyn FnMut(PipelineEvent) -> Result<()>) -> EventOrder<'a> {
        EventOrder { sink, waiting: BinaryHeap::new(), number: 0, labels: 0, faults: 0 }
    }

    /// Passes on an event that has no time.
    pub(super) fn pass(&mut self, event: PipelineEvent) -> Result<()> {
        (self.sink)(event)
    }

    pub(super) fn label(&mut self, label: Label) -> Result<()> {
        self.labels += 1;
        self.queue(label.start, PipelineEvent::Label(label))
    }

    /// Queues a fault. The fault number [`FAULTS_MAX`] says that further faults are only counted.
    pub(super) fn fault(&mut self, fault: Fault) -> Result<()> {
        self.faults += 1;
        let at = fault.at;
        match self.faults.cmp(&FAULTS_MAX) {
            Ordering::Less => self.queue(at, PipelineEvent::Fault(fault)),
            Ordering::Equal => {
                let what =
                    "there are more faults than can be listed; from here they are only counted"
                        .into();
                self.queue(at, PipelineEvent::Fault(Fault { at, what }))
            }
            Ordering::Greater => Ok(()),
        }
    }

    /// Adds an event that starts at `at` seconds to the waiting ones. If there are too many, passes
    /// on the earliest.
    fn queue(&mut self, at: f64, event: PipelineEvent) -> Result<()> {
        self.number += 1;
        self.waiting.push(OrderedEvent { at, number: self.number, event });
        if self.waiting.len() > WAITING_MAX
            && let Some(entry) = self.waiting.pop()
        {
            (self.sink)(entry.event)?;
        }
        Ok(())
    }

    /// Passes on everything that starts before `settled` seconds.
    pub(super) fn release(&mut self, settled: f64) -> Result<()> {
        while self.waiting.peek().is_some_and(|entry| entry.at < settled)
            && let Some(entry) = self.waiting.pop()
        {
            (self.sink)(entry.event)?;
        }
        Ok(())
    }

    /// Passes on everything, and then `last`.
    pub(super) fn finish(mut self, last: PipelineEvent) -> Result<EventTotals> {
        self.release(f64::INFINITY)?;
        (self.sink)(last)?;
        Ok(EventTotals { labels: self.labels, faults: self.faults })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label(start: f64) -> Label {
        Label { start, end: start + 1.0, text: "x".into(), score: 1.0, embedding: None }
    }

    fn starts(steps: impl FnOnce(&mut EventOrder<'_>)) -> Vec<f64> {
        let mut starts = Vec::new();
        let mut sink = |event: PipelineEvent| {
            match event {
                PipelineEvent::Label(label) => starts.push(label.start),
                PipelineEvent::Fault(fault) => starts.push(fault.at),
                _ => {}
            }
            Ok(())
        };
        let mut order = EventOrder::new(&mut sink);
        steps(&mut order);
        order.finish(PipelineEvent::Progress { seconds: 0.0, total: None }).unwrap();
        starts
    }

    #[test]
    fn nothing_leaves_before_it_is_settled() {
        let order = starts(|order| {
            order.label(label(5.0)).unwrap();
            order.fault(Fault { at: 3.5, what: "damaged".into() }).unwrap();
            order.release(3.0).unwrap();
            order.label(label(3.0)).unwrap();
            order.label(label(4.0)).unwrap();
            order.release(5.0).unwrap();
            order.label(label(5.0)).unwrap();
        });
        assert_eq!(order, [3.0, 3.5, 4.0, 5.0, 5.0]);
    }

    #[test]
    fn waiting_pieces_are_bounded_and_all_faults_counted() {
        let order = starts(|order| {
            (0..WAITING_MAX + 10).for_each(|n| order.label(label(n as f64)).unwrap());
            assert_eq!(order.waiting.len(), WAITING_MAX);
        });
        assert_eq!(order.len(), WAITING_MAX + 10);
        let listed = starts(|order| {
            for n in 0..2 * FAULTS_MAX {
                order.fault(Fault { at: n as f64, what: "damaged".into() }).unwrap();
            }
            assert_eq!(order.faults, 2 * FAULTS_MAX);
        });
        assert_eq!(listed.len() as u64, FAULTS_MAX);
    }
}
