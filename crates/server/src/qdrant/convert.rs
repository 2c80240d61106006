//! Between the vocabulary of the requests and that of the collections.

use base::{Error, Result};
use protocol::qdrant::{self as wire, Distance, PointsSelection, VectorShape};
use search::coarse::Metric;
use search::filter::{Condition, Filter, Match, Range};
use search::points::PointId;
use search::registry::{CollectionSettings, NamedCollection};

use super::describe::EXTRA;

/// A norm below this is taken for zero, and the vector left as it is.
const NORM_MIN: f32 = f32::EPSILON;

pub(super) fn metric(distance: Distance) -> Metric {
    match distance {
        Distance::Cosine => Metric::Cosine,
        Distance::Dot => Metric::Dot,
        Distance::Euclid => Metric::L2,
    }
}

pub(super) fn distance(metric: Metric) -> Distance {
    match metric {
        Metric::Cosine => Distance::Cosine,
        Metric::Dot => Distance::Dot,
        Metric::L2 => Distance::Euclid,
    }
}

/// A score as clients know it, from one that is higher for what is more alike.
pub(super) fn score(metric: Metric, similarity: f32) -> f32 {
    match metric {
        Metric::Cosine | Metric::Dot => similarity,
        Metric::L2 => (-similarity).max(0.0).sqrt(),
    }
}

/// The other way round.
pub(super) fn similarity(metric: Metric, score: f32) -> f32 {
    match metric {
        Metric::Cosine | Metric::Dot => score,
        Metric::L2 => -(score * score),
    }
}

/// Whether a client's score is good enough; distances are better the smaller they are.
pub(super) fn passes(metric: Metric, score: f32, threshold: Option<f32>) -> bool {
    threshold.is_none_or(|threshold| match metric {
        Metric::Cosine | Metric::Dot => score >= threshold,
        Metric::L2 => score <= threshold,
    })
}

pub(super) fn settings(shape: &VectorShape, extra: serde_json::Value) -> CollectionSettings {
    CollectionSettings {
        dims: shape.size,
        metric: metric(shape.distance),
        vector_name: shape.name.clone(),
        extra,
    }
}

pub(super) fn point_id(id: wire::PointId) -> Result<PointId> {
    match id {
        wire::PointId::Number(number) => PointId::number(number),
        wire::PointId::Uuid(bytes) => Ok(PointId::Uuid(bytes)),
    }
}

pub(super) fn point_ids(ids: &[wire::PointId]) -> Result<Vec<PointId>> {
    ids.iter().map(|id| point_id(*id)).collect()
}

pub(super) fn given_id(id: PointId) -> wire::PointId {
    match id {
        PointId::Number(number) => wire::PointId::Number(number),
        PointId::Uuid(bytes) => wire::PointId::Uuid(bytes),
    }
}

/// Refuses a vector's name that is not the collection's.
pub(super) fn check_using(settings: &CollectionSettings, using: &str) -> Result<()> {
    if using == settings.vector_name {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "using: Not existing vector name error: \"{using}\"; the collection's vector is called \"{}\"",
        settings.vector_name
    )))
}

/// A vector as the collection keeps and compares it: for the cosine with length one.
pub(super) fn embedding(settings: &CollectionSettings, mut values: Vec<f32>) -> Result<Vec<f32>> {
    if values.len() != settings.dims {
        return Err(Error::invalid(format!(
            "Vector dimension error: expected dim: {}, got {}",
            settings.dims,
            values.len()
        )));
    }
    if settings.metric == Metric::Cosine {
        let norm = values.iter().map(|value| value * value).sum::<f32>().sqrt();
        if norm > NORM_MIN && norm.is_finite() {
            values.iter_mut().for_each(|value| *value /= norm);
        }
    }
    Ok(values)
}

/// A filter as the collection evaluates it.
pub(super) fn clause(named: &NamedCollection, filter: &wire::Filter) -> Result<Filter> {
    let clause = within(named, filter)?;
    clause.check().map_err(|error| error.context("filter"))?;
    Ok(clause)
}

fn within(named: &NamedCollection, filter: &wire::Filter) -> Result<Filter> {
    let all = |list: &[wire::Condition]| list.iter().map(|it| condition(named, it)).collect::<Result<_>>();
    Ok(Filter { must: all(&filter.must)?, should: all(&filter.should)?, must_not: all(&filter.must_not)? })
}

fn condition(named: &NamedCollection, condition: &wire::Condition) -> Result<Condition> {
    Ok(match condition {
        wire::Condition::Match { key, matching } => {
            let uuid = holds_uuids(named, key);
            let matching = match matching {
                wire::Match::Value(value) if uuid => {
                    Match::Any(spellings(std::slice::from_ref(value)).into())
                }
                wire::Match::Any(values) if uuid => Match::Any(spellings(values).into()),
                wire::Match::Except(values) if uuid => Match::Except(spellings(values).into()),
                wire::Match::Value(value) => Match::Value(value.clone()),
                wire::Match::Any(values) => Match::Any(values.clone().into()),
                wire::Match::Except(values) => Match::Except(values.clone().into()),
            };
            Condition::Match { key: key.clone(), matching }
        }
        wire::Condition::Range { key, range } => {
            let wire::Range { gt, gte, lt, lte } = *range;
            Condition::Range { key: key.clone(), range: Range { gt, gte, lt, lte } }
        }
        wire::Condition::HasId(ids) => named.has_id(&point_ids(ids)?),
        wire::Condition::IsEmpty { key } => Condition::IsEmpty { key: key.clone() },
        wire::Condition::Filter(filter) => Condition::Nested(within(named, filter)?),
    })
}

/// Says whether the field has an index for UUIDs, which compares them by what they mean.
fn holds_uuids(named: &NamedCollection, key: &str) -> bool {
    let settings = named.settings();
    let schema = settings.extra.get(EXTRA).and_then(|own| own.get("payload_schema"));
    schema.and_then(|schema| schema.get(key)).is_some_and(|field| field["data_type"] == "uuid")
}

/// Returns values together with the other usual spellings of those that are UUIDs.
fn spellings(values: &[serde_json::Value]) -> Vec<serde_json::Value> {
    let mut all = values.to_vec();
    for value in values.iter().filter_map(serde_json::Value::as_str) {
        let Some(id @ wire::PointId::Uuid(_)) = wire::PointId::parse(value) else { continue };
        let hyphenated = id.to_string();
        let simple = hyphenated.replace('-', "");
        let others = [
            hyphenated.to_uppercase(),
            simple.to_uppercase(),
            format!("urn:uuid:{hyphenated}"),
            format!("{{{hyphenated}}}"),
            simple,
            hyphenated,
        ];
        all.extend(others.map(serde_json::Value::from));
    }
    all
}

/// Which points are meant, with a filter that can be evaluated.
pub(super) enum PointChoice {
    Ids(Vec<PointId>),
    Filter(Filter),
}

pub(super) fn chosen(named: &NamedCollection, what: &PointsSelection) -> Result<PointChoice> {
    match what {
        PointsSelection::Ids(ids) => Ok(PointChoice::Ids(point_ids(ids)?)),
        PointsSelection::Filter(filter) => Ok(PointChoice::Filter(clause(named, filter)?)),
    }
}
