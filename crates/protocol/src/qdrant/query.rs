//! Questions: nearest, by id, recommended, all in order; and what else is asked of points.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as DeError, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::vector::{DenseVector, is_inference, no_vector, object};
use super::{
    AbsentField, Filter, IgnoredField, PointId, WithPayload, WithVector, limits, positive, unsupported,
};

/// Points in an answer where the request does not say.
const LIMIT: usize = 10;

/// A query, perhaps over what others found.
#[derive(Clone, Debug, PartialEq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueryRequest {
    /// What is asked first; the query is then asked of what these found.
    #[serde(default, deserialize_with = "prefetches")]
    pub prefetch: Vec<Prefetch>,
    /// What is looked for; everything in the order of ids where there is none.
    pub query: Option<VectorQuery>,
    /// The name of the vector.
    #[serde(default, deserialize_with = "null_is_default")]
    pub using: String,
    /// Which points may be found.
    pub filter: Option<Filter>,
    /// How hard to look.
    #[serde(default, deserialize_with = "null_is_default")]
    pub params: SearchParams,
    /// Scores worse than this are left out.
    pub score_threshold: Option<f32>,
    /// Points wanted; ten where it does not say.
    #[serde(default, deserialize_with = "positive")]
    pub limit: Option<usize>,
    /// Points left out at the front.
    pub offset: Option<usize>,
    /// Whether vectors are wanted; none where it does not say.
    #[serde(alias = "with_vectors")]
    pub with_vector: Option<WithVector>,
    /// Whether payloads are wanted; none where it does not say.
    pub with_payload: Option<WithPayload>,
    #[serde(default, rename = "lookup_from")]
    _lookup_from: AbsentField,
    #[serde(default, rename = "shard_key")]
    _shard_key: AbsentField,
}

impl QueryRequest {
    /// Points wanted.
    pub fn limit(&self) -> usize {
        self.limit.unwrap_or(LIMIT)
    }

    /// Points left out at the front.
    pub fn offset(&self) -> usize {
        self.offset.unwrap_or(0)
    }
}

/// Several queries of one collection.
#[derive(Clone, Debug, PartialEq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueryBatchRequest {
    /// In the order of their answers.
    pub searches: Vec<QueryRequest>,
}

/// A query whose hits another one ranks again.
#[derive(Clone, Debug, PartialEq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prefetch {
    /// What is looked for.
    pub query: Option<VectorQuery>,
    /// The name of the vector.
    #[serde(default, deserialize_with = "null_is_default")]
    pub using: String,
    /// Which points may be found.
    pub filter: Option<Filter>,
    /// How hard to look.
    #[serde(default, deserialize_with = "null_is_default")]
    pub params: SearchParams,
    /// Scores worse than this are left out.
    pub score_threshold: Option<f32>,
    /// Points wanted; ten where it does not say.
    #[serde(default, deserialize_with = "positive")]
    pub limit: Option<usize>,
    #[serde(default, rename = "prefetch")]
    _prefetch: AbsentField,
    #[serde(default, rename = "lookup_from")]
    _lookup_from: AbsentField,
}

impl Prefetch {
    /// Points wanted.
    pub fn limit(&self) -> usize {
        self.limit.unwrap_or(LIMIT)
    }
}

fn prefetches<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Prefetch>, D::Error> {
    // Through a value, so that what is wrong inside keeps its own message.
    let value = Value::deserialize(deserializer)?;
    let list = match value {
        Value::Null => return Ok(Vec::new()),
        Value::Array(list) => list,
        one => vec![one],
    };
    list.into_iter().map(|one| serde_json::from_value(one).map_err(D::Error::custom)).collect()
}

fn null_is_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

/// How hard a query looks.
#[derive(Clone, Debug, Default, PartialEq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SearchParams {
    /// How many candidates a graph's search keeps.
    #[serde(default, deserialize_with = "positive")]
    pub hnsw_ef: Option<usize>,
    /// Whether every vector is to be compared.
    pub exact: Option<bool>,
    /// How codes are used.
    pub quantization: Option<QuantizationParams>,
    // Points that no index has yet are always compared, so answers have them as well.
    #[serde(default, rename = "indexed_only")]
    _indexed_only: IgnoredField,
    // A filter is evaluated before ranking, so it needs no such search of a graph.
    #[serde(default, rename = "acorn")]
    _acorn: IgnoredField,
    #[serde(default, rename = "idf")]
    _idf: AbsentField,
}

/// How codes are used.
#[derive(Clone, Debug, Default, PartialEq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QuantizationParams {
    /// Whether they are not to be used.
    pub ignore: Option<bool>,
    /// Whether the best by their codes are compared with the vectors themselves.
    pub rescore: Option<bool>,
    /// How many times more candidates than hits.
    pub oversampling: Option<f64>,
}

/// What is looked for.
#[derive(Clone, Debug, PartialEq)]
pub enum VectorQuery {
    /// What is most alike.
    Nearest(VectorInput),
    /// What is alike to it and not to each other (maximal marginal relevance).
    Diverse {
        /// Alike to this.
        target: VectorInput,
        /// From 0, only alike, to 1, only different from each other.
        diversity: f32,
        /// How many of the most alike are chosen from; as many as are wanted where it does not say.
        candidates: Option<usize>,
    },
    /// What is like some and unlike others, by the mean of their vectors.
    Recommend {
        /// Like these.
        positive: Vec<VectorInput>,
        /// Unlike these.
        negative: Vec<VectorInput>,
    },
}

/// A vector, or the point that has it.
#[derive(Clone, Debug, PartialEq)]
pub enum VectorInput {
    /// The values.
    Vector(Vec<f32>),
    /// The point, which is itself left out of the answer.
    Id(PointId),
}

impl<'de> Deserialize<'de> for VectorInput {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<VectorInput, D::Error> {
        deserializer.deserialize_any(VectorInputVisitor)
    }
}

struct VectorInputVisitor;

impl<'de> Visitor<'de> for VectorInputVisitor {
    type Value = VectorInput;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a vector or a point's id")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<VectorInput, A::Error> {
        let dense = DenseVector::deserialize(serde::de::value::SeqAccessDeserializer::new(seq))?;
        Ok(VectorInput::Vector(dense.0))
    }

    fn visit_u64<E: DeError>(self, value: u64) -> Result<VectorInput, E> {
        Ok(VectorInput::Id(PointId::Number(value)))
    }

    fn visit_str<E: DeError>(self, value: &str) -> Result<VectorInput, E> {
        let id = serde::de::value::StrDeserializer::new(value);
        PointId::deserialize(id).map(VectorInput::Id)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<VectorInput, A::Error> {
        Err(object(&mut map)?)
    }
}

impl<'de> Deserialize<'de> for VectorQuery {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<VectorQuery, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = VectorQuery;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a query: a vector, a point's id, nearest or recommend")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<VectorQuery, A::Error> {
                VectorInputVisitor.visit_seq(seq).map(VectorQuery::Nearest)
            }

            fn visit_u64<E: DeError>(self, value: u64) -> Result<VectorQuery, E> {
                VectorInputVisitor.visit_u64(value).map(VectorQuery::Nearest)
            }

            fn visit_str<E: DeError>(self, value: &str) -> Result<VectorQuery, E> {
                VectorInputVisitor.visit_str(value).map(VectorQuery::Nearest)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<VectorQuery, A::Error> {
                from_map(map)
            }
        }
        deserializer.deserialize_any(Either)
    }
}

/// How different from each other answers are where a request for different ones does not say.
const DIVERSITY: f32 = 0.5;

#[derive(Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
struct MmrParams {
    diversity: Option<f32>,
    candidates_limit: Option<usize>,
}

#[derive(Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
struct RecommendParams {
    positive: Option<Vec<VectorInput>>,
    negative: Option<Vec<VectorInput>>,
    strategy: Option<String>,
}

fn from_map<'de, A: MapAccess<'de>>(mut map: A) -> Result<VectorQuery, A::Error> {
    let (mut query, mut mmr) = (None, None);
    while let Some(key) = map.next_key::<String>()? {
        match key.as_str() {
            "nearest" => query = Some(VectorQuery::Nearest(map.next_value()?)),
            "recommend" => query = Some(recommend(map.next_value()?)?),
            "mmr" => mmr = map.next_value::<Option<MmrParams>>()?,
            "discover" | "context" | "order_by" | "fusion" | "rrf" | "formula" | "sample"
            | "relevance_feedback" | "defaults" => {
                return Err(A::Error::custom(unsupported(format_args!("the query {key}"))));
            }
            other => {
                map.next_value::<serde::de::IgnoredAny>()?;
                return Err(if is_inference(other) { no_vector(Some(other)) } else { object(&mut map)? });
            }
        }
    }
    match (query, mmr) {
        (Some(VectorQuery::Nearest(target)), Some(mmr)) => diverse(target, &mmr),
        (Some(query), None) => Ok(query),
        (Some(_), Some(_)) => Err(A::Error::custom("mmr goes with nearest only")),
        (None, _) => Err(A::Error::custom("an empty object is no query; give nearest or recommend")),
    }
}

fn diverse<E: DeError>(target: VectorInput, mmr: &MmrParams) -> Result<VectorQuery, E> {
    let diversity = mmr.diversity.unwrap_or(DIVERSITY);
    if !(0.0..=1.0).contains(&diversity) {
        return Err(E::custom(format_args!("mmr.diversity: {diversity} is not within 0 and 1")));
    }
    Ok(VectorQuery::Diverse { target, diversity, candidates: mmr.candidates_limit })
}

fn recommend<E: DeError>(asked: RecommendParams) -> Result<VectorQuery, E> {
    match asked.strategy.as_deref() {
        None | Some("average_vector") => {}
        Some("best_score" | "sum_scores") => {
            return Err(E::custom(unsupported("recommend by another strategy than average_vector")));
        }
        Some(_) => return Err(E::custom("strategy: average_vector is expected")),
    }
    let positive = asked.positive.unwrap_or_default();
    if positive.is_empty() {
        return Err(E::custom(limits("recommend needs at least one positive example")));
    }
    Ok(VectorQuery::Recommend { positive, negative: asked.negative.unwrap_or_default() })
}

/// Points in the order of their ids.
#[derive(Clone, Debug, PartialEq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScrollRequest {
    /// The first point wanted.
    pub offset: Option<PointId>,
    /// Points wanted; ten where it does not say.
    #[serde(default, deserialize_with = "positive")]
    pub limit: Option<usize>,
    /// Which points.
    pub filter: Option<Filter>,
    /// Which part of the payload; all where it does not say.
    pub with_payload: Option<WithPayload>,
    /// Whether vectors are wanted; none where it does not say.
    #[serde(alias = "with_vectors")]
    pub with_vector: Option<WithVector>,
    #[serde(default, rename = "order_by")]
    _order_by: AbsentField,
    #[serde(default, rename = "shard_key")]
    _shard_key: AbsentField,
}

impl ScrollRequest {
    /// Points wanted.
    pub fn limit(&self) -> usize {
        self.limit.unwrap_or(LIMIT)
    }
}

/// How many points there are.
#[derive(Clone, Debug, Default, PartialEq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CountRequest {
    /// Which points.
    pub filter: Option<Filter>,
    // A count is always exact.
    #[serde(default, rename = "exact")]
    _exact: IgnoredField,
    #[serde(default, rename = "shard_key")]
    _shard_key: AbsentField,
}

/// How many points have which value of a field.
#[derive(Clone, Debug, PartialEq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FacetRequest {
    /// The field's path, as in a filter.
    pub key: String,
    #[serde(default, deserialize_with = "positive")]
    limit: Option<usize>,
    /// Which points.
    pub filter: Option<Filter>,
    // A count is always exact.
    #[serde(default, rename = "exact")]
    _exact: IgnoredField,
    #[serde(default, rename = "shard_key")]
    _shard_key: AbsentField,
}

impl FacetRequest {
    /// How many values.
    pub fn limit(&self) -> usize {
        self.limit.unwrap_or(LIMIT)
    }
}

/// Points by their ids.
#[derive(Clone, Debug, PartialEq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetrieveRequest {
    /// The ids.
    pub ids: Vec<PointId>,
    /// Which part of the payload; all where it does not say.
    pub with_payload: Option<WithPayload>,
    /// Whether vectors are wanted; none where it does not say.
    #[serde(alias = "with_vectors")]
    pub with_vector: Option<WithVector>,
    #[serde(default, rename = "shard_key")]
    _shard_key: AbsentField,
}
