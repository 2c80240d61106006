//! Queries of requests: by vectors, by a payload field, or by the hits of prefetches.

use std::collections::BTreeSet;
use std::fmt;

use serde::de::{
    Deserialize, Deserializer, Error as DeError, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use serde_json::{Map, Value};

use super::examples::{context, discover, recommend};
use super::unique::UniqueMembers;
use super::vector::{DenseVector, is_inference, no_vector, object};
use search::collection::OrderValue;
use search::points::PointId;

use crate::examples::ExampleQuery;
use crate::formula::Formula;
use crate::fusion::Fusion;
pub use crate::vector_input::VectorInput;

use super::{limits, unsupported};

/// A query: by vectors, or by a payload field.
#[derive(Clone, Debug, PartialEq)]
pub enum VectorQuery {
    /// Points in the order of a payload field.
    OrderBy(OrderBy),
    /// The most similar points.
    Nearest(VectorInput),
    /// Points similar to the target and different from each other (maximal marginal relevance).
    Mmr {
        /// The vector to be similar to.
        target: VectorInput,
        /// Weight of the difference between hits, 0 to 1. At 0 only the similarity to the target
        /// counts, at 1 only the difference.
        diversity: f32,
        /// Number of most similar points to choose from; the limit by default.
        candidates: Option<usize>,
    },
    /// Points similar to some examples and not to others, by the means of their vectors.
    Recommend {
        /// Examples to be similar to.
        positive: Vec<VectorInput>,
        /// Examples to differ from.
        negative: Vec<VectorInput>,
    },
    /// Points by their similarities to each of several vectors.
    Examples(ExampleQuery),
    /// The hits of all prefetches as one list.
    Fuse(Fusion),
    /// Points chosen at random, in random order.
    Sample,
    /// The hits of the prefetches, scored by a formula.
    Formula(Box<Formula>),
}

impl VectorQuery {
    /// Returns true if the query compares vectors of the collection with others.
    pub fn has_vector(&self) -> bool {
        self.scores_by_distance() || matches!(self, VectorQuery::Examples(_))
    }

    /// Returns true if the hits depend on each other or on the limits of the prefetches. A search
    /// of some of the points then orders them in another way.
    pub fn ranks_together(&self) -> bool {
        matches!(self, VectorQuery::Mmr { .. } | VectorQuery::Fuse(_) | VectorQuery::Formula(_))
    }

    /// Returns true if the scores of hits are similarities or distances to one vector, so that for
    /// L2 a lower score is better.
    pub fn scores_by_distance(&self) -> bool {
        matches!(
            self,
            VectorQuery::Nearest(_) | VectorQuery::Mmr { .. } | VectorQuery::Recommend { .. }
        )
    }
}

/// Order of points by the numbers and dates of a payload field.
#[derive(Clone, Debug, PartialEq)]
pub struct OrderBy {
    /// Path of the field, as in a filter.
    pub key: String,
    /// True to begin with the largest value.
    pub descending: bool,
    /// Value at which the order begins; `None` begins with the first point.
    pub start_from: Option<OrderValue>,
}

impl<'de> Deserialize<'de> for OrderBy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<OrderBy, D::Error> {
        #[derive(serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct OrderByMembers {
            #[serde(deserialize_with = "super::filter::path")]
            key: String,
            direction: Option<String>,
            start_from: Option<Value>,
        }
        let UniqueMembers(value) = UniqueMembers::deserialize(deserializer)?;
        if let Value::String(key) = value {
            super::filter::check_path(&key).map_err(D::Error::custom)?;
            return Ok(OrderBy { key, descending: false, start_from: None });
        }
        let members: OrderByMembers = serde_json::from_value(value).map_err(D::Error::custom)?;
        let descending = match members.direction.as_deref() {
            None | Some("asc") => false,
            Some("desc") => true,
            Some(_) => return Err(D::Error::custom("direction: asc or desc is expected")),
        };
        let start_from = members.start_from.map(|value| {
            let wrong = || D::Error::custom("start_from: a number or a date is expected");
            OrderValue::of(&value).ok_or_else(wrong)
        });
        Ok(OrderBy { key: members.key, descending, start_from: start_from.transpose()? })
    }
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
        PointId::uuid(value).map(VectorInput::Id).map_err(E::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<VectorInput, A::Error> {
        Err(object(&mut map)?)
    }
}

impl<'de> Deserialize<'de> for VectorQuery {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<VectorQuery, D::Error> {
        struct VectorQueryVisitor;
        impl<'de> Visitor<'de> for VectorQueryVisitor {
            type Value = VectorQuery;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a query: a vector, a point's id, nearest, recommend, discover, context, order_by, \
                     fusion, formula or sample",
                )
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
                query_from_map(map)
            }
        }
        deserializer.deserialize_any(VectorQueryVisitor)
    }
}

/// Diversity of a query with mmr if the request does not set it.
const DEFAULT_DIVERSITY: f32 = 0.5;

/// Members of `mmr`.
#[derive(Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
struct MmrParams {
    diversity: Option<f32>,
    candidates_limit: Option<usize>,
}

/// Reads a query from an object. Members that are null are absent, as in Qdrant.
///
/// # Errors
/// Names the member that is unknown, unsupported or misplaced.
fn query_from_map<'de, A: MapAccess<'de>>(mut map: A) -> Result<VectorQuery, A::Error> {
    let mut query = None;
    let mut mmr = None;
    let mut formula = None;
    let mut defaults = None;
    let mut names = BTreeSet::new();
    while let Some(key) = map.next_key::<String>()? {
        if !names.insert(key.clone()) {
            return Err(A::Error::custom(format_args!("duplicate field `{key}`")));
        }
        let read = match key.as_str() {
            "mmr" => {
                mmr = map.next_value::<Option<MmrParams>>()?;
                continue;
            }
            "formula" => {
                formula = map.next_value::<Option<UniqueMembers>>()?;
                continue;
            }
            "defaults" => {
                defaults = map.next_value::<Option<Map<String, Value>>>()?;
                continue;
            }
            name => query_member(name, &mut map)?,
        };
        if let Some(read) = read
            && query.replace(read).is_some()
        {
            return Err(A::Error::custom(format_args!(
                "{key}: the object has another query already; give one of them"
            )));
        }
    }
    if let Some(UniqueMembers(expression)) = formula {
        if query.is_some() || mmr.is_some() {
            return Err(A::Error::custom("only defaults can be combined with formula"));
        }
        let formula = super::formula::formula(&expression, defaults.unwrap_or_default());
        return formula.map(|it| VectorQuery::Formula(Box::new(it))).map_err(A::Error::custom);
    }
    if defaults.is_some() {
        return Err(A::Error::custom("defaults go with formula only"));
    }
    match (query, mmr) {
        (Some(VectorQuery::Nearest(target)), Some(mmr)) => with_mmr(target, &mmr),
        (Some(query), None) => Ok(query),
        (Some(_), Some(_)) => Err(A::Error::custom("mmr can be combined with nearest only")),
        (None, _) => Err(A::Error::custom(
            "an empty object is not a query; give nearest, recommend, discover, context, order_by, \
             fusion, formula or sample",
        )),
    }
}

/// Reads the query of one member of an object; `None` if its value is null.
///
/// # Errors
/// Names the member if it is unknown or unsupported.
fn query_member<'de, A: MapAccess<'de>>(
    name: &str,
    map: &mut A,
) -> Result<Option<VectorQuery>, A::Error> {
    Ok(match name {
        "nearest" => map.next_value::<Option<VectorInput>>()?.map(VectorQuery::Nearest),
        "recommend" => map.next_value::<Option<_>>()?.map(recommend::<A::Error>).transpose()?,
        "order_by" => map.next_value::<Option<OrderBy>>()?.map(VectorQuery::OrderBy),
        "fusion" => {
            let name = map.next_value::<Option<String>>()?;
            let fusion = name.map(|name| fusion::<A::Error>(&name)).transpose()?;
            fusion.map(VectorQuery::Fuse)
        }
        "rrf" => {
            let params = map.next_value::<Option<RrfParams>>()?;
            let fusion = params.map(RrfParams::fusion::<A::Error>).transpose()?;
            fusion.map(VectorQuery::Fuse)
        }
        "discover" => map.next_value::<Option<_>>()?.map(discover::<A::Error>).transpose()?,
        "context" => {
            let pairs = map.next_value::<Option<UniqueMembers>>()?;
            pairs.map(|UniqueMembers(pairs)| context::<A::Error>(pairs)).transpose()?
        }
        "sample" => {
            let name = map.next_value::<Option<String>>()?;
            name.map(|name| sample::<A::Error>(&name)).transpose()?
        }
        "relevance_feedback" => {
            if map.next_value::<Option<IgnoredAny>>()?.is_some() {
                return Err(A::Error::custom(unsupported(format_args!("the query {name}"))));
            }
            None
        }
        other => {
            map.next_value::<IgnoredAny>()?;
            return Err(if is_inference(other) { no_vector(Some(other)) } else { object(map)? });
        }
    })
}

/// Parameters of reciprocal rank fusion.
#[derive(Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
struct RrfParams {
    k: Option<u32>,
    weights: Option<Vec<f32>>,
}

impl RrfParams {
    /// Returns the fusion with these parameters.
    ///
    /// # Errors
    /// Names the parameter that is out of range.
    fn fusion<E: DeError>(self) -> Result<Fusion, E> {
        if self.k == Some(0) {
            return Err(E::custom(limits("rrf.k: value 0 invalid, must be 1 or larger")));
        }
        let is_weight = |weight: &f32| weight.is_finite() && *weight >= 0.0;
        if !self.weights.iter().flatten().all(is_weight) {
            return Err(E::custom("rrf.weights: a weight is a number of at least 0"));
        }
        Ok(Fusion::ReciprocalRank { constant: self.k, weights: self.weights })
    }
}

/// Returns the fusion of a name, with default parameters.
fn fusion<E: DeError>(name: &str) -> Result<Fusion, E> {
    match name {
        "rrf" => Ok(Fusion::ReciprocalRank { constant: None, weights: None }),
        "dbsf" => Ok(Fusion::DistributionBased),
        _ => Err(E::custom("fusion: rrf or dbsf is expected")),
    }
}

/// Returns the query for a sample by its name.
fn sample<E: DeError>(name: &str) -> Result<VectorQuery, E> {
    match name {
        "random" => Ok(VectorQuery::Sample),
        _ => Err(E::custom("sample: random is expected")),
    }
}

/// Returns the query for points similar to `target` and different from each other.
///
/// # Errors
/// Names the diversity if it is not within 0 and 1.
fn with_mmr<E: DeError>(target: VectorInput, mmr: &MmrParams) -> Result<VectorQuery, E> {
    let diversity = mmr.diversity.unwrap_or(DEFAULT_DIVERSITY);
    if !(0.0..=1.0).contains(&diversity) {
        return Err(E::custom(format_args!("mmr.diversity: {diversity} is not within 0 and 1")));
    }
    Ok(VectorQuery::Mmr { target, diversity, candidates: mmr.candidates_limit })
}
