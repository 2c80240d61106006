//! Queries by several vectors: recommendations, discovery and context.

use serde::de::Error as DeError;
use serde_json::Value;

use super::unique::UniqueMembers;
use super::{VectorInput, VectorQuery, limits};
use crate::examples::{ExampleQuery, ExampleRule};

/// Members of `recommend`.
#[derive(Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RecommendParams {
    positive: Option<Vec<VectorInput>>,
    negative: Option<Vec<VectorInput>>,
    strategy: Option<String>,
}

/// Returns the query for points similar to examples.
///
/// # Errors
/// Names the strategy if it is unknown; an error if there is no example, or no positive one for the
/// means of vectors.
pub(super) fn recommend<E: DeError>(params: RecommendParams) -> Result<VectorQuery, E> {
    let rule = match params.strategy.as_deref() {
        None | Some("average_vector") => None,
        Some("best_score") => Some(ExampleRule::BestScore),
        Some("sum_scores") => Some(ExampleRule::SumScores),
        Some(_) => {
            return Err(E::custom(
                "strategy: average_vector, best_score or sum_scores is expected",
            ));
        }
    };
    let positive = params.positive.unwrap_or_default();
    let negative = params.negative.unwrap_or_default();
    let Some(rule) = rule else {
        if positive.is_empty() {
            return Err(E::custom(limits("recommend needs at least one positive example")));
        }
        return Ok(VectorQuery::Recommend { positive, negative });
    };
    if positive.is_empty() && negative.is_empty() {
        return Err(E::custom(limits("recommend needs at least one example")));
    }
    Ok(VectorQuery::Examples(ExampleQuery { rule, target: None, positive, negative }))
}

/// A pair of examples in `context`.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct ContextPair {
    positive: VectorInput,
    negative: VectorInput,
}

/// Members of `discover`.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DiscoverParams {
    target: VectorInput,
    context: Option<UniqueMembers>,
}

/// Returns the query for points near a target, in the part of the space that pairs of examples
/// limit.
///
/// # Errors
/// As [`context_pairs`].
pub(super) fn discover<E: DeError>(params: DiscoverParams) -> Result<VectorQuery, E> {
    let pairs = params.context.map_or(Value::Null, |UniqueMembers(pairs)| pairs);
    let pairs = context_pairs::<E>(pairs)?;
    Ok(by_pairs(ExampleRule::Discover, Some(params.target), pairs))
}

/// Returns the query for points in the part of the space that pairs of examples limit.
///
/// # Errors
/// As [`context_pairs`]; an error if there is no pair.
pub(super) fn context<E: DeError>(value: Value) -> Result<VectorQuery, E> {
    let pairs = context_pairs::<E>(value)?;
    if pairs.is_empty() {
        return Err(E::custom(limits("context needs at least one pair of examples")));
    }
    Ok(by_pairs(ExampleRule::Context, None, pairs))
}

/// Reads one pair of examples or a list of them; null is none.
///
/// # Errors
/// The error of a pair.
fn context_pairs<E: DeError>(value: Value) -> Result<Vec<ContextPair>, E> {
    // Through a value: an untagged enum would hide the messages of errors inside.
    let list = match value {
        Value::Null => return Ok(Vec::new()),
        Value::Array(list) => list,
        one => vec![one],
    };
    list.into_iter()
        .enumerate()
        .map(|(at, pair)| {
            let pair = serde_json::from_value::<ContextPair>(pair);
            pair.map_err(|error| E::custom(format_args!("context[{at}]: {error}")))
        })
        .collect()
}

fn by_pairs(
    rule: ExampleRule,
    target: Option<VectorInput>,
    pairs: Vec<ContextPair>,
) -> VectorQuery {
    let (positive, negative) = pairs.into_iter().map(|pair| (pair.positive, pair.negative)).unzip();
    VectorQuery::Examples(ExampleQuery { rule, target, positive, negative })
}
