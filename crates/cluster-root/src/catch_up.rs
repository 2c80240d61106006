//! Reads that bring all holders of a collection up to date.

use std::time::Instant;

use base::{Error, Result};
use cluster_node::{CollectionRecord, NodeInfo, ShardKey};
use serde_json::json;

use super::read_memory::ReadMemory;
use super::split;
use super::state::RootState;
use super::wire::{NodeReadBody, read_node, timeout_ms};

/// Waits until each node that serves a shard of the collection has applied all changes of the shard
/// that were acknowledged before this call. A node that serves a shard later has read the log to
/// its end before, unless its copy is stalled.
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
    let view = state.view.current();
    for node in view.nodes.values() {
        let serves = |shard: &u32| node.serves(&ShardKey::new(&record.id, *shard));
        let body = NodeReadBody {
            collection: &record.id,
            shards: (0..record.shards).filter(serves).map(|shard| (shard, 0)).collect(),
            path: "points",
            body: &no_points,
            timeout_ms: timeout_ms(deadline),
            strong: true,
        };
        if !body.shards.is_empty() {
            Box::pin(read_ends(state, node, &body, deadline)).await?;
        }
    }
    Ok(())
}

/// Sends a strong read to a node, and checks that each shard has answered.
///
/// # Errors
/// As [`catch_up`].
async fn read_ends(
    state: &RootState,
    node: &NodeInfo,
    body: &NodeReadBody<'_>,
    deadline: Instant,
) -> Result<()> {
    let text = serde_json::to_vec(body)
        .map_err(|error| Error::internal("a read cannot be written").caused_by(error))?;
    state.count("background");
    let left = deadline.saturating_duration_since(Instant::now());
    let client = state.client.clone();
    let requests = state.requests.clone();
    let memory = ReadMemory::new(requests.clone()).answer();
    let read = read_node(client, requests, node.address.clone(), text.into(), left, memory);
    let mut answer = Box::pin(read).await?;
    for shard in body.shards.keys() {
        let missing =
            || Error::unavailable(format!("{} answered without shard {shard}", node.name));
        answer.shards.remove(shard).ok_or_else(missing)?.map_err(|it| it.context(&node.name))?;
    }
    Ok(())
}
