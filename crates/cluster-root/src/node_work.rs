//! Flushes and merges that run or wait on the search nodes, for an operator who sees high latency.
//!
//! Each request reads them from the nodes: such work begins and ends too often for keys in etcd.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base::{Error, Result};
use bytes::Bytes;
use cluster_node::NodeInfo;
use http_client::HttpClient;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::call::RootContext;
use super::envelope::RootAnswer;
use super::wire::message_of;

/// Path of the work of a node.
const PATH: &str = "/cluster/v1/node/work";
/// Longest time of the request to a node.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Longest time of all requests. Nodes without an answer by then have an error.
const TIME_MAX: Duration = Duration::from_secs(3);
/// Maximum requests at the same time.
const REQUESTS_AT_ONCE_MAX: usize = 64;

/// Flushes and merges of a node.
#[derive(Debug, Deserialize, Serialize)]
struct NodeWork {
    /// Full memtables that are being flushed or wait for it.
    flushes: u64,
    /// Number of merges that run.
    merges: u64,
    /// Number of shards whose segments wait to be merged.
    merges_waiting: u64,
}

/// Returns the work of each node that holds shards, or the error of its request, by name.
pub(super) async fn of_nodes(context: RootContext, _: Bytes) -> Result<RootAnswer> {
    let view = context.state.view.current();
    let nodes = view.nodes.values().filter(|node| node.roles.search);
    let mut answers: BTreeMap<String, Result<NodeWork>> = BTreeMap::new();
    let mut running = JoinSet::new();
    let turns = Arc::new(Semaphore::new(REQUESTS_AT_ONCE_MAX));
    for node in nodes {
        let late = Error::unavailable("it did not answer in time");
        answers.insert(node.name.clone(), Err(late));
        running.spawn(of_node(context.state.client.clone(), node.clone(), turns.clone()));
    }
    let collected = async {
        while let Some(done) = running.join_next().await {
            // A request that panicked leaves the error from above.
            answers.extend(done);
        }
    };
    // The rest of the requests ends with the set.
    let _ = tokio::time::timeout(TIME_MAX, collected).await;
    let described = answers.into_iter().map(|(name, work)| match work {
        Ok(work) => (name, json!(work)),
        Err(error) => (name, json!({ "error": error.message() })),
    });
    RootAnswer::of(&json!({ "nodes": described.collect::<BTreeMap<String, Value>>() }))
}

/// Returns the name of a node, and its work or the reason why it is not known.
async fn of_node(
    client: HttpClient,
    node: NodeInfo,
    turns: Arc<Semaphore>,
) -> (String, Result<NodeWork>) {
    let work = async {
        // The semaphore is never closed.
        let _turn = turns.acquire().await;
        let answer = client.get(&node.address, PATH, TIMEOUT).await?;
        match answer.status {
            200 => serde_json::from_slice(&answer.body)
                .map_err(|error| Error::internal("the work of a node").caused_by(error)),
            404 => Err(Error::unavailable("its version does not report them; upgrade the node")),
            status => {
                let message = message_of(&String::from_utf8_lossy(&answer.body));
                Err(Error::unavailable(format!("status {status}: {message}")))
            }
        }
    };
    let work = work.await;
    (node.name, work)
}
