//! Points without ranking: by id, in the order of ids, counted, faceted.

use std::ops::Range;
use std::sync::Arc;

use crate::json::{self, OrderBy, PointRecord, Vector, WithPayload, WithVector};
use base::{Error, ErrorKind, Result};
use search::collection::{
    FacetValue, IDS_MAX, OrderValue, OrderedPoint, OrderedPoints, PointOrder, PointParts,
    SearchThread,
};
use search::filter::Filter;
use search::points::{FetchedPoint, PointId};
use search::registry::NamedCollection;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::call::CallContext;
use crate::filters;
use crate::response_memory::{ResponseMemory, record_bytes};

/// Approximate maximum bytes of the points of one response.
const RESPONSE_BYTES_MAX: usize = 128 << 20;
/// Bytes that a response counts for a number in a vector. Its text may be longer.
const NUMBER_BYTES: usize = 10;
/// Maximum numbers in the vectors of one response.
pub const RESPONSE_NUMBERS_MAX: usize = RESPONSE_BYTES_MAX / NUMBER_BYTES;
/// Number of points that are read at once.
pub(crate) const CHUNK: usize = 1024;

/// Approximate bytes of the points in a response so far, and their maximum.
pub(crate) struct ResponseBudget {
    used: usize,
    max: usize,
    memory: Arc<ResponseMemory>,
}

impl ResponseBudget {
    /// Creates the budget of a response without points. A request that continues after a pause has
    /// dropped the points that it had before.
    pub(crate) fn new(context: &CallContext) -> ResponseBudget {
        ResponseBudget::with_max(&context.memory, RESPONSE_BYTES_MAX)
    }

    fn with_max(memory: &Arc<ResponseMemory>, max: usize) -> ResponseBudget {
        memory.release();
        ResponseBudget { used: 0, max, memory: memory.clone() }
    }

    /// Adds a point, and returns false if the response has reached its limit, or if it gets no more
    /// memory.
    fn add(&mut self, record: &PointRecord) -> bool {
        self.count_text(record) && self.memory.add_if_free(record_bytes(record))
    }

    /// Adds a point that cannot be left for a later response.
    ///
    /// # Errors
    /// `InvalidArgument` if the response exceeds its limit; the errors of [`ResponseMemory::add`].
    pub(crate) fn add_or_fail(&mut self, record: &PointRecord) -> Result<()> {
        if !self.count_text(record) {
            return Err(Error::invalid(format!(
                "the answer is larger than {} bytes; request fewer points, or less of each",
                self.max
            )));
        }
        self.memory.add(record_bytes(record))
    }

    /// Counts the text of a point. Returns false if the response exceeds its limit.
    fn count_text(&mut self, record: &PointRecord) -> bool {
        let values = match &record.vector {
            Some(Vector::Plain(values)) => values.len(),
            Some(Vector::Named(vectors)) => vectors.iter().map(|(_, values)| values.len()).sum(),
            None => 0,
        };
        self.used += 64 + NUMBER_BYTES * values + record.payload.as_ref().map_or(0, members_bytes);
        self.used <= self.max
    }

    /// Counts the memory of `count` values of a `T`: hits, or points without payloads and vectors.
    ///
    /// # Errors
    /// As [`ResponseMemory::add`].
    pub(crate) fn add_values<T>(&self, count: usize) -> Result<()> {
        self.memory.add((count * size_of::<T>()) as u64)
    }
}

fn members_bytes(members: &Map<String, Value>) -> usize {
    members.iter().map(|(name, value)| 32 + name.len() + value_bytes(value)).sum()
}

fn value_bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => 32 + text.len(),
        Value::Array(list) => list.iter().map(value_bytes).sum::<usize>() + 32,
        Value::Object(members) => members_bytes(members) + 32,
        _ => 32,
    }
}

/// The requested parts of each point.
pub(crate) struct Projection {
    pub(crate) payload: WithPayload,
    pub(crate) vector: bool,
    vector_name: String,
}

impl Projection {
    /// Builds the projection of a request.
    ///
    /// # Errors
    /// `InvalidArgument` for a requested vector that the collection does not have.
    pub(crate) fn new(
        named: &NamedCollection,
        payload: WithPayload,
        with_vector: Option<&WithVector>,
    ) -> Result<Projection> {
        let vector_name = named.settings().vector_name.clone();
        let vector = with_vector.map(|requested| requested.includes(&vector_name)).transpose()?;
        Ok(Projection { payload, vector: vector.unwrap_or(false), vector_name })
    }

    pub(crate) fn parts(&self) -> PointParts {
        PointParts { embedding: self.vector, record: false, payload: self.payload.any() }
    }

    /// Returns the requested parts of a point.
    pub(crate) fn record(&self, point: FetchedPoint) -> PointRecord {
        let vector = self.vector.then(|| Vector::labelled(&self.vector_name, point.embedding));
        PointRecord {
            id: point.id,
            payload: self.payload.project(point.payload),
            vector,
            order_value: None,
        }
    }
}

/// Returns points by their ids, each once. Ids without a point are left out.
///
/// # Errors
/// `InvalidArgument` for too many ids; the error of a damaged point; the error of
/// [`ResponseBudget::add_or_fail`].
pub(crate) fn fetch(
    named: &NamedCollection,
    _: &mut SearchThread,
    context: &CallContext,
    body: &[u8],
) -> Result<Vec<PointRecord>> {
    let request: json::RetrieveRequest = json::parse(body)?;
    if request.ids.len() > IDS_MAX {
        return Err(Error::invalid(format!(
            "ids: {} are more than the {IDS_MAX} of one request",
            request.ids.len()
        )));
    }
    let ids = request.distinct_ids();
    let payload = request.with_payload.unwrap_or(WithPayload::All(true));
    let projection = Projection::new(named, payload, request.with_vector.as_ref())?;
    let mut records = Vec::new();
    let mut budget = ResponseBudget::new(context);
    for ids in ids.chunks(CHUNK) {
        for (point, id) in named.get_parts(ids, projection.parts()).into_iter().zip(ids) {
            // A damaged point fails the request, because the client requested it by its id.
            let point = point.map_err(|error| error.context(format_args!("point {id}")))?;
            let Some(record) = point.map(|point| projection.record(point)) else { continue };
            budget.add_or_fail(&record)?;
            records.push(record);
        }
    }
    Ok(records)
}

pub(crate) fn get_point(
    named: &NamedCollection,
    _: &mut SearchThread,
    context: &CallContext,
    _: &[u8],
) -> Result<PointRecord> {
    let id: PointId = context.item.parse()?;
    let projection = Projection::new(named, WithPayload::All(true), Some(&WithVector::All(true)))?;
    let point = named.get_parts(&[id], projection.parts()).pop().unwrap_or(Ok(None))?;
    point
        .map(|point| projection.record(point))
        .ok_or_else(|| Error::not_found(format!("Not found: Point with id {id} does not exist")))
}

/// Points in the order of their ids.
#[derive(Serialize)]
pub(crate) struct ScrollResponse {
    pub(crate) points: Vec<PointRecord>,
    pub(crate) next_page_offset: Option<PointId>,
    #[serde(skip_serializing_if = "is_false")]
    pub(crate) partial: bool,
    /// Positions of the points that a date ordered. Only for a root of a cluster, which cannot
    /// distinguish a date from a number by `order_value`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) order_dates: Option<Range<usize>>,
}

/// Adds the position `at` to `dates` if `value` is a date. Numbers come before dates, so the
/// positions of dates follow each other.
pub(crate) fn add_date(dates: &mut Option<Range<usize>>, at: usize, value: Option<OrderValue>) {
    if value.is_some_and(OrderValue::is_date) {
        dates.get_or_insert(at..at).end = at + 1;
    }
}

pub(crate) fn is_false(value: &bool) -> bool {
    !*value
}

/// Returns a page of points, in the order of their ids or of a field of the payload.
///
/// # Errors
/// `InvalidArgument` for a filter or an order that is not possible; the errors of the collection.
pub(crate) fn scroll(
    named: &NamedCollection,
    _: &mut SearchThread,
    context: &CallContext,
    body: &[u8],
) -> Result<ScrollResponse> {
    let request: json::ScrollRequest = json::parse(body)?;
    let requested = request.limit();
    let payload = request.with_payload.unwrap_or(WithPayload::All(true));
    let projection = Projection::new(named, payload, request.with_vector.as_ref())?;
    let filter = request.filter.map(|filter| filters::prepare(named, filter)).transpose()?;
    if let Some(order) = &request.order_by {
        if request.offset.is_some() {
            return Err(Error::invalid(
                "offset cannot be used with order_by; continue with order_by.start_from, and exclude the points of \
                 that value that you already have, by has_id",
            ));
        }
        let mut budget = ResponseBudget::new(context);
        let filter = filter.as_ref();
        let page = scroll_in_order(named, order, filter, requested, &projection, &mut budget)?;
        let order_dates = page.order_dates.filter(|_| context.for_root());
        return Ok(ScrollResponse { order_dates, ..page });
    }
    // Points beyond the maximum of one page come with the next page.
    let limit = requested.min(IDS_MAX);
    let mut budget = ResponseBudget::new(context);
    scroll_by_ids(named, request.offset, limit, filter.as_ref(), &projection, &mut budget)
}

/// Returns the first `limit` points from `offset` on, or those for which `budget` has room, at
/// least one. The next page begins with the first point that was left out.
///
/// # Errors
/// As [`NamedCollection::scroll`].
fn scroll_by_ids(
    named: &NamedCollection,
    offset: Option<PointId>,
    limit: usize,
    filter: Option<&Filter>,
    projection: &Projection,
    budget: &mut ResponseBudget,
) -> Result<ScrollResponse> {
    let mut page = ScrollResponse {
        points: Vec::new(),
        next_page_offset: offset,
        partial: false,
        order_dates: None,
    };
    while page.points.len() < limit {
        let chunk = (limit - page.points.len()).min(CHUNK);
        let next = page.next_page_offset.as_ref();
        let found = named.scroll(next, chunk, filter, projection.parts())?;
        page.partial |= found.partial;
        for record in found.points.into_iter().map(|point| projection.record(point)) {
            if !budget.add(&record) && !page.points.is_empty() {
                page.next_page_offset = Some(record.id);
                return Ok(page);
            }
            page.points.push(record);
        }
        page.next_page_offset = found.next;
        if found.next.is_none() {
            break;
        }
    }
    Ok(page)
}

/// Returns the first points in the order of a field.
///
/// # Errors
/// As [`ordered`], [`json::check_ordered_limit`] and [`ResponseBudget::add_or_fail`].
fn scroll_in_order(
    named: &NamedCollection,
    order: &OrderBy,
    filter: Option<&Filter>,
    limit: usize,
    projection: &Projection,
    budget: &mut ResponseBudget,
) -> Result<ScrollResponse> {
    let found = ordered(named, order, filter, limit.min(IDS_MAX))?;
    json::check_ordered_limit(limit, found.points.len())?;
    let mut page = ScrollResponse {
        points: Vec::new(),
        next_page_offset: None,
        partial: found.partial,
        order_dates: None,
    };
    for points in found.points.chunks(CHUNK) {
        let ids: Vec<u64> = points.iter().map(|point| point.id).collect();
        for (point, ordered) in named.resolve(&ids, projection.parts()).into_iter().zip(points) {
            match point {
                Ok(Some(point)) => {
                    let order_value = ordered.value.to_number();
                    let record = PointRecord { order_value, ..projection.record(point) };
                    budget.add_or_fail(&record)?;
                    add_date(&mut page.order_dates, page.points.len(), Some(ordered.value));
                    page.points.push(record);
                }
                // The point was removed meanwhile.
                Ok(None) => {}
                Err(error) if concerns_one_point(&error) => page.partial = true,
                Err(error) => return Err(error),
            }
        }
    }
    Ok(page)
}

/// Returns the first `limit` points in the order of a field. If the order begins at a whole number
/// and no number follows, it begins at a date. The number is then the microseconds of the date
/// since 1970. Clients continue with the `order_value` of the last point, which has this form.
///
/// # Errors
/// As [`NamedCollection::ordered`].
pub(crate) fn ordered(
    named: &NamedCollection,
    order: &OrderBy,
    filter: Option<&Filter>,
    limit: usize,
) -> Result<OrderedPoints> {
    let OrderBy { key, descending, start_from } = order;
    let from = |from| PointOrder { key, descending: *descending, from };
    let found = named.ordered(&from(*start_from), filter, limit)?;
    let number = start_from.filter(|from| !from.is_date()).and_then(OrderValue::to_number);
    let micros = number.and_then(|number| number.as_i64());
    let is_number = |point: &OrderedPoint| !point.value.is_date();
    let Some(micros) = micros.filter(|_| !found.points.iter().any(is_number)) else {
        return Ok(found);
    };
    let mut dates = named.ordered(&from(Some(OrderValue::date(micros))), filter, limit)?;
    // In descending order, all numbers follow the dates.
    dates.points.retain(|point| point.value.is_date());
    Ok(dates)
}

/// The number of points.
#[derive(Serialize)]
pub(crate) struct CountResponse {
    pub(crate) count: u64,
    #[serde(skip_serializing_if = "is_false")]
    partial: bool,
}

pub(crate) fn count(
    named: &NamedCollection,
    _: &mut SearchThread,
    _: &CallContext,
    body: &[u8],
) -> Result<CountResponse> {
    let request: json::CountRequest =
        if body.is_empty() { Default::default() } else { json::parse(body)? };
    let filter = request.filter.map(|filter| filters::prepare(named, filter)).transpose()?;
    let counted = named.count(filter.as_ref())?;
    Ok(CountResponse { count: counted.count, partial: counted.partial })
}

/// Values of a field, the most frequent first.
#[derive(Serialize)]
pub(crate) struct FacetResponse {
    hits: Vec<FacetHit>,
    #[serde(skip_serializing_if = "is_false")]
    partial: bool,
}

#[derive(Serialize)]
struct FacetHit {
    value: Value,
    count: u64,
}

pub(crate) fn facet(
    named: &NamedCollection,
    _: &mut SearchThread,
    _: &CallContext,
    body: &[u8],
) -> Result<FacetResponse> {
    let request: json::FacetRequest = json::parse(body)?;
    let limit = request.limit();
    let filter = request.filter.map(|filter| filters::prepare(named, filter)).transpose()?;
    let facet = named.facet(&request.key, filter.as_ref(), limit)?;
    let value = |value| match value {
        FacetValue::Bool(value) => Value::from(value),
        FacetValue::Whole(value) => Value::from(value),
        FacetValue::Text(text) => Value::from(text),
    };
    let hits = facet
        .hits
        .into_iter()
        .map(|(found, count)| FacetHit { value: value(found), count })
        .collect();
    Ok(FacetResponse { hits, partial: facet.partial })
}

/// Returns true if an error concerns one point only. The response leaves the point out and is
/// partial then.
pub(crate) fn concerns_one_point(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::DataLoss | ErrorKind::Unavailable)
}

#[cfg(test)]
mod tests {
    use metrics::{KindLabels, Metrics};
    use search::Metric;
    use search::points::NewPoint;
    use search::registry::{CollectionSettings, Registry, RegistryOptions};
    use transport::ByteBudget;

    use super::*;

    #[test]
    fn a_page_ends_before_the_first_point_without_room() {
        let directory = tempfile::tempdir().unwrap();
        let registry = Registry::open(RegistryOptions::for_tests(directory.path())).unwrap();
        let named = registry.create("c", CollectionSettings::new(2, Metric::L2)).unwrap();
        let payload = Map::new();
        let point = |number: u64| NewPoint {
            id: PointId::Number(number),
            embedding: &[1.0, 0.0],
            record: &[],
            payload: &payload,
        };
        let points: Vec<NewPoint<'_>> = (1..=5).map(point).collect();
        named.upsert(&points).unwrap();
        let projection =
            Projection::new(&named, WithPayload::All(false), Some(&WithVector::All(true))).unwrap();
        let memory = ResponseMemory::new(&ByteBudget::new(1 << 20, Arc::default()));
        // Two points, with 84 bytes each, fit in 200 bytes.
        for (offset, bytes_max, ids, next) in [
            (None, 200, vec![1, 2], Some(3)),
            (Some(3), 200, vec![3, 4], Some(5)),
            (Some(5), 200, vec![5], None),
            (None, 1, vec![1], Some(2)),
            (None, usize::MAX, vec![1, 2, 3, 4, 5], None),
        ] {
            let mut budget = ResponseBudget::with_max(&memory, bytes_max);
            let offset = offset.map(PointId::Number);
            let page = scroll_by_ids(&named, offset, 10, None, &projection, &mut budget).unwrap();
            let found: Vec<PointId> = page.points.iter().map(|record| record.id).collect();
            let ids: Vec<PointId> = ids.into_iter().map(PointId::Number).collect();
            assert_eq!((found, page.next_page_offset), (ids, next.map(PointId::Number)));
        }
    }

    #[test]
    fn a_page_ends_if_other_requests_use_the_memory() {
        let directory = tempfile::tempdir().unwrap();
        let registry = Registry::open(RegistryOptions::for_tests(directory.path())).unwrap();
        let named = registry.create("c", CollectionSettings::new(2, Metric::L2)).unwrap();
        let text = Value::String("x".repeat(40 << 10));
        let payload: Map<String, Value> = [("text".to_owned(), text)].into_iter().collect();
        let point = |number: u64| NewPoint {
            id: PointId::Number(number),
            embedding: &[1.0, 0.0],
            record: &[],
            payload: &payload,
        };
        let points: Vec<NewPoint<'_>> = (1..=5).map(point).collect();
        named.upsert(&points).unwrap();
        let projection = Projection::new(&named, WithPayload::All(true), None).unwrap();
        let metrics = Arc::<Metrics>::default();
        let requests = ByteBudget::new(1 << 20, metrics.clone());
        let memory = ResponseMemory::new(&requests);
        let page = |offset: Option<PointId>| {
            let mut budget = ResponseBudget::with_max(&memory, usize::MAX);
            scroll_by_ids(&named, offset, 10, None, &projection, &mut budget).unwrap()
        };
        let all = page(None);
        assert_eq!((all.points.len(), all.next_page_offset), (5, None));
        memory.release();
        // A quarter stays free for other requests. 64 KiB are left besides, and 64 KiB of each
        // response are not counted.
        let others = requests.reserve((768 << 10) - (64 << 10)).unwrap();
        let first = page(None);
        assert_eq!(first.points.len(), 3);
        assert_eq!(first.next_page_offset, Some(PointId::Number(4)));
        let refused = KindLabels { kind: "request_memory" };
        assert_eq!(metrics.refused.get_or_create(&refused).get(), 0, "no request was refused");
        drop(others);
        assert_eq!(page(first.next_page_offset).points.len(), 2);
    }
}
