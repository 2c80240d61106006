//! Lookups of points by their ids.

use std::collections::HashSet;
use std::sync::Arc;

use base::{Error, Result};
use cluster_node::CollectionRecord;
use cluster_root::reads::{ShardAnswers, check_coverage, confirmed, of_ids, read_shards};
use cluster_root::{ReadCoverage, RootContext, split};
use search::points::PointId;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::merge;

/// A stored point, and the node that returned it.
pub(super) struct LocatedPoint {
    /// Payload; empty if it was not wanted.
    pub(super) payload: Map<String, Value>,
    /// Name of the node.
    pub(super) node: String,
}

/// Properties of the lookup of one point.
#[derive(Clone, Copy, Debug)]
pub(super) struct PointLookup {
    pub(super) payload: bool,
    pub(super) consistency: LookupConsistency,
}

/// Writes that the lookup of a point sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LookupConsistency {
    /// Writes that the holder has applied.
    Default,
    /// The same, but an absent point is looked up again with a strong read.
    Confirmed,
    /// All writes that were acknowledged before.
    Strong,
}

impl LookupConsistency {
    /// Returns the lookup of a request: strong if the request wants that, otherwise this one.
    pub(super) fn or_strong(self, strong: bool) -> LookupConsistency {
        if strong { LookupConsistency::Strong } else { self }
    }
}

#[derive(Deserialize)]
struct StoredPointText {
    id: PointId,
    #[serde(default)]
    payload: Option<Map<String, Value>>,
}

/// Looks up one point.
///
/// # Errors
/// `Unavailable` if its shard does not answer.
pub(super) async fn find(
    context: &RootContext,
    record: &Arc<CollectionRecord>,
    id: PointId,
    lookup: PointLookup,
) -> Result<Option<LocatedPoint>> {
    let text: &[u8] = if lookup.payload {
        br#"{"with_payload":true,"with_vector":false}"#
    } else {
        br#"{"with_payload":false,"with_vector":false}"#
    };
    let members = split::members(text)?;
    let answers = match lookup.consistency {
        LookupConsistency::Confirmed => confirmed(context, record, members, &[id]).await?,
        consistency => {
            let mut read = of_ids(context, record, members, &[id])?;
            read.strong = consistency == LookupConsistency::Strong;
            Box::pin(read_shards(&context.state, &read)).await?
        }
    };
    answers.check(1.0)?;
    for (shard, result) in &answers.results {
        let found = parsed(result)?.into_iter().find(|point| point.id == id);
        if let (Some(point), Some(node)) = (found, answers.nodes.get(shard)) {
            let payload = point.payload.unwrap_or_default();
            return Ok(Some(LocatedPoint { payload, node: node.clone() }));
        }
    }
    Ok(None)
}

/// Ids that the collection has.
pub(super) struct FoundIds {
    pub(super) found: HashSet<PointId>,
    /// Ids of shards that did not answer.
    pub(super) unknown: HashSet<PointId>,
    coverage: ReadCoverage,
    failure: Option<Error>,
}

impl FoundIds {
    /// Checks that every shard answered.
    ///
    /// # Errors
    /// `Unavailable` with retry advice.
    pub(super) fn check_whole(&self) -> Result<()> {
        check_coverage(self.coverage, 1.0, self.failure.as_ref())
    }
}

/// Looks up the points that exist.
///
/// # Errors
/// A shard's refusal of the request; `ResourceExhausted` if the answers take too much memory.
pub(super) async fn find_ids(
    context: &RootContext,
    record: &Arc<CollectionRecord>,
    ids: &[PointId],
    consistency: LookupConsistency,
) -> Result<FoundIds> {
    let members = split::members(br#"{"with_payload":false,"with_vector":false}"#)?;
    let answers = match consistency {
        LookupConsistency::Confirmed => confirmed(context, record, members, ids).await?,
        consistency => {
            let mut read = of_ids(context, record, members, ids)?;
            read.strong = consistency == LookupConsistency::Strong;
            Box::pin(read_shards(&context.state, &read)).await?
        }
    };
    let ShardAnswers { results, coverage, failure, .. } = answers;
    let mut found = HashSet::new();
    let mut unknown = HashSet::new();
    for (shard, ids) in split::ids_by_shard(ids, record.shards)? {
        match results.get(&shard) {
            Some(result) => found.extend(parsed(result)?.into_iter().map(|point| point.id)),
            None => unknown.extend(ids),
        }
    }
    Ok(FoundIds { found, unknown, coverage, failure })
}

fn parsed(result: &RawValue) -> Result<Vec<StoredPointText>> {
    merge::read(result)
}
