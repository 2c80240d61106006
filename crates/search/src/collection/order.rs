//! Points in the order of a payload field.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::ops::ControlFlow;

use base::{Error, ErrorKind, Result};
use coarse::RowSet;
use serde_json::{Number, Value};

use super::inner::Collection;
use super::lookup::IDS_MAX;
use super::points_pass::{KeptPasses, PointVisitor, PointsPass};
use super::scan::{self, PayloadScan, ScanStep};
use super::state::SegmentView;
use crate::filter::{Filter, each_value};
use crate::payload_index::{OrderKey, OrderPosition, OrderRange, OrderedRowVisitor, OrderedVisit};

/// Lists of first points that a pass keeps in a pause: of all segments, and of the current index.
const LISTS_KEPT: usize = 2;

/// Number or date of a point. Numbers come before dates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OrderValue(OrderKey);

impl OrderValue {
    /// Converts a value of a payload: a number, or a text with a date. `None` for others.
    pub fn of(value: &Value) -> Option<OrderValue> {
        OrderKey::of(value).map(OrderValue)
    }

    /// Creates the value of a date from microseconds since 1970 in UTC.
    pub fn date(micros: i64) -> OrderValue {
        OrderValue(OrderKey::Date(micros))
    }

    /// Returns true for a date, false for a number.
    pub fn is_date(self) -> bool {
        matches!(self.0, OrderKey::Date(_))
    }

    /// Returns the number. A date is the number of microseconds since 1970 in UTC.
    pub fn to_number(self) -> Option<Number> {
        self.0.to_number()
    }
}

/// Order of points by a payload field.
#[derive(Clone, Copy, Debug)]
pub struct PointOrder<'a> {
    /// Path of the field, as in a filter.
    pub key: &'a str,
    /// True to begin with the largest value.
    pub descending: bool,
    /// First value. `None` begins with the smallest or largest.
    pub from: Option<OrderValue>,
}

/// Point and the value that it was ordered by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrderedPoint {
    /// Internal id of a live point.
    pub id: u64,
    /// The value of the field. A point with several values is listed once for each.
    pub value: OrderValue,
}

/// Points in the order of a field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OrderedPoints {
    /// Points. One with several values appears once for each.
    pub points: Vec<OrderedPoint>,
    /// True if points may be missing because data is damaged or a segment is not open yet.
    pub partial: bool,
}

/// Point in the heap. The last one in the order is the largest.
#[derive(PartialEq, Eq)]
struct OrderedCandidate {
    value: OrderKey,
    id: u64,
    descending: bool,
}

impl Ord for OrderedCandidate {
    fn cmp(&self, other: &OrderedCandidate) -> Ordering {
        let order = self.value.cmp(&other.value).then(self.id.cmp(&other.id));
        if self.descending { order.reverse() } else { order }
    }
}

impl PartialOrd for OrderedCandidate {
    fn partial_cmp(&self, other: &OrderedCandidate) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The first of the offered points.
struct FirstPoints {
    limit: usize,
    range: OrderRange,
    heap: BinaryHeap<OrderedCandidate>,
}

impl FirstPoints {
    fn new(limit: usize, range: OrderRange) -> FirstPoints {
        FirstPoints { limit, range, heap: BinaryHeap::new() }
    }

    /// Keeps a point if it is among the first `limit` ones of the order.
    fn offer(&mut self, value: OrderKey, id: u64) {
        let point = OrderedCandidate { value, id, descending: self.range.descending };
        if self.heap.len() < self.limit {
            self.heap.push(point);
        } else if let Some(mut last) = self.heap.peek_mut()
            && point < *last
        {
            *last = point;
        }
    }

    /// Offers the numbers and dates of a payload that are within the range, each once.
    fn offer_payload(&mut self, payload: &Value, key: &str, id: u64) {
        let mut values = Vec::new();
        each_value(payload, key, &mut |value| values.extend(OrderKey::of(value)));
        values.retain(|value| self.range.contains(*value));
        values.sort_unstable();
        values.dedup();
        values.into_iter().for_each(|value| self.offer(value, id));
    }

    /// Returns true if no point with `value` can be among the first.
    fn is_beyond(&self, value: OrderKey) -> bool {
        let last = self.heap.peek().filter(|_| self.heap.len() >= self.limit);
        last.is_some_and(|last| {
            if self.range.descending { value < last.value } else { value > last.value }
        })
    }

    /// Returns the points in their order. `partial` is true if points may be missing.
    fn into_points(self, partial: bool) -> OrderedPoints {
        let points = self.heap.into_sorted_vec().into_iter();
        let points =
            points.map(|point| OrderedPoint { id: point.id, value: OrderValue(point.value) });
        OrderedPoints { points: points.collect(), partial }
    }
}

/// First points of the current segment's index. Apart, because a damaged index does not count.
struct IndexedPoints {
    position: OrderPosition,
    first: FirstPoints,
}

/// Visitor that offers the rows of an index.
struct IndexOffer<'a> {
    first: &'a mut FirstPoints,
    /// First points of other segments.
    others: &'a FirstPoints,
    view: &'a SegmentView,
    allow: Option<&'a RowSet>,
    scan: &'a mut PayloadScan,
}

impl OrderedRowVisitor for IndexOffer<'_> {
    fn continues(&mut self) -> bool {
        // The pass has reserved the memory for a pause, or has ended the slices.
        self.scan.next_part(|| true) == ScanStep::Read
    }

    fn visit(&mut self, key: OrderKey, rows: &mut dyn Iterator<Item = u32>) -> ControlFlow<()> {
        if self.first.is_beyond(key) || self.others.is_beyond(key) {
            return ControlFlow::Break(());
        }
        let allowed = rows.filter(|row| self.allow.is_none_or(|allow| allow.contains(*row)));
        let ids = allowed.filter_map(|row| self.view.segment.ids().id(row));
        ids.for_each(|id| self.first.offer(key, id));
        ControlFlow::Continue(())
    }
}

/// Order of points that is kept for the next slice of its work.
struct OrderPass {
    call: OrderCall,
    progress: OrderProgress,
}

/// Progress of a read in the order of a field.
enum OrderProgress {
    Reading(Box<OrderReading>),
    /// Points of an order that has ended, because the work may run again after a later pause.
    Ended(OrderedPoints),
}

/// Points that are being read and ordered.
struct OrderReading {
    pass: PointsPass,
    first: FirstPoints,
    /// Points of an index whose visit was paused.
    indexed: Option<IndexedPoints>,
}

/// Call of an order. An equal call of the same work continues its pass.
#[derive(PartialEq)]
struct OrderCall {
    /// Address of the collection.
    collection: usize,
    key: String,
    descending: bool,
    from: Option<OrderValue>,
    filter: Option<Filter>,
    limit: usize,
}

/// Visitor that offers the points of a pass, ordered by a field.
struct OrderVisitor<'a> {
    first: &'a mut FirstPoints,
    indexed: &'a mut Option<IndexedPoints>,
    key: &'a str,
}

impl PointVisitor for OrderVisitor<'_> {
    fn visit_index(
        &mut self,
        view: &SegmentView,
        allow: Option<&RowSet>,
        scan: &mut PayloadScan,
    ) -> Result<Option<RowSet>> {
        let range = self.first.range;
        let mut indexed = self.indexed.take().unwrap_or_else(|| IndexedPoints {
            position: OrderPosition::default(),
            first: FirstPoints::new(self.first.limit, range),
        });
        let others: &FirstPoints = self.first;
        let mut offer = IndexOffer { first: &mut indexed.first, others, view, allow, scan };
        let position = &mut indexed.position;
        let visited = match view.segment.ordered_rows(self.key, range, position, &mut offer) {
            // The payloads have their own checksums, so they can still be read.
            Err(error) if error.kind() == ErrorKind::DataLoss => OrderedVisit::Unindexed,
            visited => visited?,
        };
        match visited {
            OrderedVisit::Paused => {
                *self.indexed = Some(indexed);
                Ok(None)
            }
            OrderedVisit::Complete => {
                let points = indexed.first.heap.into_iter();
                points.for_each(|point| self.first.offer(point.value, point.id));
                Ok(None)
            }
            OrderedVisit::Unindexed => {
                Ok(Some(allow.cloned().unwrap_or_else(|| RowSet::all(view.segment.rows()))))
            }
        }
    }

    fn visit_row(&mut self, view: &SegmentView, row: u32, payload: &Value) -> Result<bool> {
        let Some(id) = view.segment.ids().id(row) else { return Ok(false) };
        self.first.offer_payload(payload, self.key, id);
        Ok(true)
    }

    fn visit_unflushed(&mut self, id: u64, payload: &Value) -> Result<()> {
        self.first.offer_payload(payload, self.key, id);
        Ok(())
    }
}

impl Collection {
    /// Returns the first `limit` points, at most [`IDS_MAX`], that match `filter`. They are in the
    /// order of the numbers and dates of a payload field. Points of equal values are in the order
    /// of their ids, and a fraction such as 1.0 is before the whole number 1. Points without such a
    /// value are left out. Values come from the payload index, or from payloads without one.
    ///
    /// # Errors
    /// As [`Collection::ids_from`]. `InvalidArgument` for an empty key. `DeadlineExceeded` if
    /// payloads had to be read and the time was up. `Cancelled` after a pause of the index or of
    /// payloads, which [`super::in_slice`] notices.
    pub fn ordered(
        &self,
        order: &PointOrder<'_>,
        filter: Option<&Filter>,
        limit: usize,
    ) -> Result<OrderedPoints> {
        if order.key.is_empty() {
            return Err(Error::invalid("the order names no field; give its key"));
        }
        if limit > IDS_MAX {
            return Err(Error::invalid(format!(
                "{limit} points are more than the {IDS_MAX} that one call gives"
            )));
        }
        if limit == 0 {
            return Ok(OrderedPoints::default());
        }
        let call = OrderCall {
            collection: std::ptr::from_ref(self).addr(),
            key: order.key.to_owned(),
            descending: order.descending,
            from: order.from,
            filter: filter.cloned(),
            limit,
        };
        let passes = scan::progress().map(|progress| progress.get::<KeptPasses<OrderPass>>());
        let kept = passes.as_ref().and_then(|passes| passes.take(|pass| pass.call == call));
        let keep = |call, progress| {
            if let Some(passes) = &passes {
                passes.keep(OrderPass { call, progress });
            }
        };
        let mut reading = match kept.map(|kept| kept.progress) {
            Some(OrderProgress::Ended(points)) => {
                keep(call, OrderProgress::Ended(points.clone()));
                return Ok(points);
            }
            Some(OrderProgress::Reading(reading)) => *reading,
            None => {
                let range = OrderRange::new(order.descending, order.from.map(|from| from.0));
                let bytes = LISTS_KEPT * limit * size_of::<OrderedCandidate>();
                let pass = PointsPass::new(self, bytes);
                OrderReading { pass, first: FirstPoints::new(limit, range), indexed: None }
            }
        };
        let mut visitor = OrderVisitor {
            first: &mut reading.first,
            indexed: &mut reading.indexed,
            key: order.key,
        };
        if let Err(error) = reading.pass.run(self, order.key, filter, &mut visitor) {
            if scan::is_paused() {
                keep(call, OrderProgress::Reading(Box::new(reading)));
            }
            return Err(error);
        }
        let OrderReading { pass, first, .. } = reading;
        let points = first.into_points(pass.is_partial());
        if passes.is_some() {
            keep(call, OrderProgress::Ended(points.clone()));
        }
        Ok(points)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn first(limit: usize, descending: bool, values: &[Value]) -> Vec<u64> {
        let mut first = FirstPoints::new(limit, OrderRange::new(descending, None));
        for (id, value) in (0..).zip(values) {
            first.offer_payload(&json!({ "n": value }), "n", id);
        }
        first.heap.into_sorted_vec().into_iter().map(|point| point.id).collect()
    }

    #[test]
    fn the_first_points_are_kept_in_both_directions() {
        let values = [json!(3), json!(1.5), json!("x"), json!([2, 2, 9]), json!(1.5), json!(null)];
        assert_eq!(first(9, false, &values), [1, 4, 3, 0, 3]);
        assert_eq!(first(9, true, &values), [3, 0, 3, 4, 1]);
        assert_eq!(first(2, false, &values), [1, 4]);
        assert_eq!(first(2, true, &values), [3, 0]);
    }

    #[test]
    fn values_behind_the_last_kept_one_end_a_visit() {
        let key = |value: Value| OrderKey::of(&value).unwrap();
        let mut first = FirstPoints::new(1, OrderRange::new(false, None));
        assert!(!first.is_beyond(key(json!(7))));
        first.offer(key(json!(5)), 1);
        assert!(first.is_beyond(key(json!(7))));
        assert!(!first.is_beyond(key(json!(5))), "an equal value may have a smaller id");
    }
}
