//! Points without ranking: by id, in the order of ids, counted.

use base::{Error, ErrorKind, Result};
use protocol::qdrant::{self as wire, PointRecord, Vector, WithPayload, WithVector};
use search::collection::{FacetValue, IDS_MAX, PointParts, SearchThread};
use search::points::FetchedPoint;
use search::registry::NamedCollection;
use serde::Serialize;
use serde_json::{Map, Value};

use super::call::CallContext;
use super::convert;

/// Bytes that the points of one answer may take, about.
const ANSWER_BYTES_MAX: usize = 128 << 20;
/// Points that are read at once: few enough that an answer's bound is passed by little.
pub(super) const CHUNK: usize = 1024;

/// Adds up what an answer takes.
#[derive(Default)]
pub(super) struct ResponseBudget(usize);

impl ResponseBudget {
    /// Adds a point; false where the answer is now as large as it may be.
    pub(super) fn add(&mut self, payload: Option<&Map<String, Value>>, vector: Option<&Vector>) -> bool {
        // A number takes about ten characters.
        let values = match vector {
            Some(Vector::Plain(values)) => values.len(),
            Some(Vector::Named(vectors)) => vectors.iter().map(|(_, values)| values.len()).sum(),
            None => 0,
        };
        self.0 += 64 + 10 * values + payload.map_or(0, weight_of_members);
        self.0 <= ANSWER_BYTES_MAX
    }

    /// [`Weight::add`] where points cannot be left for later.
    ///
    /// # Errors
    /// `InvalidArgument`.
    pub(super) fn must_add(
        &mut self,
        payload: Option<&Map<String, Value>>,
        vector: Option<&Vector>,
    ) -> Result<()> {
        if self.add(payload, vector) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "the answer is larger than {ANSWER_BYTES_MAX} bytes; ask for fewer points or for less of each"
        )))
    }
}

fn weight_of_members(members: &Map<String, Value>) -> usize {
    members.iter().map(|(name, value)| 32 + name.len() + budget(value)).sum()
}

fn budget(value: &Value) -> usize {
    match value {
        Value::String(text) => 32 + text.len(),
        Value::Array(list) => list.iter().map(budget).sum::<usize>() + 32,
        Value::Object(members) => weight_of_members(members) + 32,
        _ => 32,
    }
}

/// What is wanted of each point.
pub(super) struct Projection {
    pub(super) payload: WithPayload,
    pub(super) vector: bool,
    name: String,
}

impl Projection {
    /// `payload` is whether payloads are given where the request does not say.
    pub(super) fn new(
        named: &NamedCollection,
        payload: bool,
        with_payload: Option<WithPayload>,
        with_vector: Option<&WithVector>,
    ) -> Projection {
        let name = named.settings().vector_name.clone();
        Projection {
            payload: with_payload.unwrap_or(WithPayload::All(payload)),
            vector: with_vector.is_some_and(|projection| projection.wants(&name)),
            name,
        }
    }

    pub(super) fn parts(&self) -> PointParts {
        PointParts { embedding: self.vector, record: false, payload: self.payload.any() }
    }

    pub(super) fn record(&self, point: FetchedPoint) -> PointRecord {
        let vector = self.vector.then(|| Vector::given(&self.name, point.embedding));
        PointRecord { id: convert::given_id(point.id), payload: self.payload.of(point.payload), vector }
    }
}

pub(super) fn fetch(
    named: &NamedCollection,
    _: &mut SearchThread,
    _: &CallContext,
    body: &[u8],
) -> Result<Vec<PointRecord>> {
    let request: wire::RetrieveRequest = wire::parse(body)?;
    if request.ids.len() > IDS_MAX {
        return Err(Error::invalid(format!(
            "ids: {} are more than the {IDS_MAX} of one request",
            request.ids.len()
        )));
    }
    let ids = convert::point_ids(&request.ids)?;
    let projection = Projection::new(named, true, request.with_payload, request.with_vector.as_ref());
    let (mut records, mut budget) = (Vec::new(), ResponseBudget::default());
    for ids in ids.chunks(CHUNK) {
        for (found, id) in named.get_parts(ids, projection.parts()).into_iter().zip(ids) {
            // A client that names its points must hear of one that is damaged.
            let found = found.map_err(|error| error.context(format_args!("point {id}")))?;
            let Some(record) = found.map(|point| projection.record(point)) else { continue };
            budget.must_add(record.payload.as_ref(), record.vector.as_ref())?;
            records.push(record);
        }
    }
    Ok(records)
}

pub(super) fn one(
    named: &NamedCollection,
    _: &mut SearchThread,
    context: &CallContext,
    _: &[u8],
) -> Result<PointRecord> {
    let id: search::points::PointId = context.item.parse()?;
    let projection = Projection::new(named, true, None, Some(&WithVector::All(true)));
    let found = named.get_parts(&[id], projection.parts()).pop().unwrap_or(Ok(None))?;
    found
        .map(|point| projection.record(point))
        .ok_or_else(|| Error::not_found(format!("Not found: Point with id {id} does not exist")))
}

/// Points in the order of their ids.
#[derive(Serialize)]
pub(super) struct ScrollResponse {
    pub(super) points: Vec<PointRecord>,
    pub(super) next_page_offset: Option<wire::PointId>,
    #[serde(skip_serializing_if = "is_false")]
    pub(super) partial: bool,
}

pub(super) fn is_false(value: &bool) -> bool {
    !*value
}

pub(super) fn scroll(
    named: &NamedCollection,
    _: &mut SearchThread,
    _: &CallContext,
    body: &[u8],
) -> Result<ScrollResponse> {
    let request: wire::ScrollRequest = wire::parse(body)?;
    let limit = request.limit();
    if limit == 0 {
        return Err(Error::invalid("limit: 0 points cannot be asked for; 1 or more"));
    }
    let projection = Projection::new(named, true, request.with_payload, request.with_vector.as_ref());
    let clause = request.filter.as_ref().map(|filter| convert::clause(named, filter)).transpose()?;
    let mut from = request.offset.map(convert::point_id).transpose()?;
    let (mut page, mut budget) = (
        ScrollResponse { points: Vec::new(), next_page_offset: None, partial: false },
        ResponseBudget::default(),
    );
    // What is asked for beyond the most of one page comes with the next one.
    let limit = limit.min(IDS_MAX);
    let mut room = true;
    while room && page.points.len() < limit {
        let chunk = (limit - page.points.len()).min(CHUNK);
        let found = named.scroll(from.as_ref(), chunk, clause.as_ref(), projection.parts())?;
        page.partial |= found.partial;
        for record in found.points.into_iter().map(|point| projection.record(point)) {
            room &= budget.add(record.payload.as_ref(), record.vector.as_ref());
            page.points.push(record);
        }
        from = found.next;
        page.next_page_offset = from.map(convert::given_id);
        room &= from.is_some();
    }
    Ok(page)
}

/// How many points there are.
#[derive(Serialize)]
pub(super) struct CountResponse {
    pub(super) count: u64,
    #[serde(skip_serializing_if = "is_false")]
    partial: bool,
}

pub(super) fn count(
    named: &NamedCollection,
    _: &mut SearchThread,
    _: &CallContext,
    body: &[u8],
) -> Result<CountResponse> {
    let request: wire::CountRequest = if body.is_empty() { Default::default() } else { wire::parse(body)? };
    let clause = request.filter.as_ref().map(|filter| convert::clause(named, filter)).transpose()?;
    let counted = named.count(clause.as_ref())?;
    Ok(CountResponse { count: counted.count, partial: counted.partial })
}

/// Values of a field, the most frequent first.
#[derive(Serialize)]
pub(super) struct FacetResponse {
    hits: Vec<FacetHit>,
    #[serde(skip_serializing_if = "is_false")]
    partial: bool,
}

#[derive(Serialize)]
struct FacetHit {
    value: Value,
    count: u64,
}

pub(super) fn facet(
    named: &NamedCollection,
    _: &mut SearchThread,
    _: &CallContext,
    body: &[u8],
) -> Result<FacetResponse> {
    let request: wire::FacetRequest = wire::parse(body)?;
    if request.limit() == 0 {
        return Err(Error::invalid("limit: 0 values cannot be asked for; 1 or more"));
    }
    let clause = request.filter.as_ref().map(|filter| convert::clause(named, filter)).transpose()?;
    let found = named.facet(&request.key, clause.as_ref(), request.limit())?;
    let value = |value| match value {
        FacetValue::Bool(value) => Value::from(value),
        FacetValue::Whole(value) => Value::from(value),
        FacetValue::Text(text) => Value::from(text),
    };
    let hits = found.hits.into_iter().map(|(found, count)| FacetHit { value: value(found), count }).collect();
    Ok(FacetResponse { hits, partial: found.partial })
}

/// Whether an error concerns one point only, which is then left out of an answer that says so.
pub(super) fn concerns_one(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::DataLoss | ErrorKind::Unavailable)
}
