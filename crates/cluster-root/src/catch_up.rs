//! Reads that bring all holders of a collection up to date.

use std::collections::BTreeMap;
use std::time::Instant;

use base::{Error, Result};
use cluster_node::{CollectionRecord, ShardKey};
use serde_json::json;
use tokio::task::JoinSet;

use super::read_memory::ReadMemory;
use super::split;
use super::state::RootState;
use super::wire::{NodeReadAnswer, NodeReadBody, read_node, timeout_ms};

/// Waits until each node that serves a shard of the collection has applied all changes of the shard
/// that were acknowledged before this call. A node that serves a shard later has read the log to
/// its end before, unless its copy is stalled. All nodes are asked at the same time, so a node that
/// fails or hangs does not prevent the others from reading their logs.
///
/// # Errors
/// `Unavailable` if a node does not answer for one of its shards; the errors of the connection.
pub async fn catch_up(
    state: &RootState,
    record: &CollectionRecord,
    deadline: Instant,
) -> Result<()> {
    // A strong read of no points waits for the end of the log, and reads nothing else.
    let no_points = split::raw(&json!({ "ids": [] }))?;
    let mut running = JoinSet::new();
    for node in state.view.current().nodes.values() {
        let serves = |shard: &u32| node.serves(&ShardKey::new(&record.id, *shard));
        let shards: BTreeMap<u32, u64> =
            (0..record.shards).filter(serves).map(|shard| (shard, 0)).collect();
        if shards.is_empty() {
            continue;
        }
        let expected = shards.keys().copied().collect();
        let body = NodeReadBody {
            collection: &record.id,
            shards,
            path: "points",
            body: &no_points,
            timeout_ms: timeout_ms(deadline),
            strong: true,
        };
        let text = serde_json::to_vec(&body)
            .map_err(|error| Error::internal("a read cannot be written").caused_by(error))?;
        state.count("background");
        let left = deadline.saturating_duration_since(Instant::now());
        let client = state.client.clone();
        let requests = state.requests.clone();
        let memory = ReadMemory::new(requests.clone()).answer();
        let read = read_node(client, requests, node.address.clone(), text.into(), left, memory);
        running.spawn(check_ends(node.name.clone(), expected, read));
    }
    let mut failure = None;
    while let Some(ended) = running.join_next().await {
        let early = |error| Err(Error::internal("a read ended early").caused_by(error));
        failure = failure.or(ended.unwrap_or_else(early).err());
    }
    failure.map_or(Ok(()), Err)
}

/// Makes a strong read at a node, and checks that each shard has answered.
///
/// # Errors
/// As [`catch_up`].
async fn check_ends(
    node: String,
    shards: Vec<u32>,
    read: impl Future<Output = Result<NodeReadAnswer>>,
) -> Result<()> {
    let mut answer = Box::pin(read).await?;
    for shard in shards {
        let missing = || Error::unavailable(format!("{node} answered without shard {shard}"));
        answer.shards.remove(&shard).ok_or_else(missing)?.map_err(|it| it.context(&node))?;
    }
    Ok(())
}
