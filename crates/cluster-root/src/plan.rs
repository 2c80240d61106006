//! Plans: the shards that would move if nodes joined or left. A plan moves nothing.

use std::collections::{BTreeMap, BTreeSet};

use base::{Error, Result};
use bytes::Bytes;
use cluster::WEIGHT_MAX;
use cluster_node::{ClusterView, NodeInfo, PlacementCache, Roles};
use serde::Deserialize;
use serde_json::{Value, json};

use super::call::RootContext;
use super::envelope::RootAnswer;

/// Maximum nodes that one plan adds or removes.
const CHANGES_MAX: usize = 1024;

/// Changes of the nodes.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct PlanRequest {
    /// Names of nodes that leave.
    without: Vec<String>,
    /// Nodes that join, or change their weight.
    with: Vec<PlannedNode>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PlannedNode {
    name: String,
    weight: u32,
}

/// Shards of one node, now and after the changes.
#[derive(Debug, Default, PartialEq)]
struct NodePlan {
    /// Number of shards that it serves.
    serves: usize,
    /// Number of shards that it would hold.
    holds: usize,
    /// Number of shards that it would restore from the store first.
    restores: usize,
}

/// Returns the plan for nodes that join and leave: shards before and after, and their moves.
pub(super) async fn plan(context: RootContext, body: Bytes) -> Result<RootAnswer> {
    let request: PlanRequest = if body.is_empty() {
        PlanRequest::default()
    } else {
        serde_json::from_slice(&body)
            .map_err(|error| Error::invalid("the plan").caused_by(error))?
    };
    let now = context.state.view.current();
    let then = changed(&now, &request)?;
    let plans = plans(&now, &then);
    let shards: u32 = now.collections.values().map(|it| it.shards * it.copies).sum();
    let moved: usize = plans.values().map(|plan| plan.restores).sum();
    let nodes: Vec<Value> = plans
        .iter()
        .map(|plan| {
            let NodePlan { serves, holds, restores } = plan.1;
            json!({ "name": plan.0, "serves": serves, "holds": holds, "restores": restores })
        })
        .collect();
    RootAnswer::of(&json!({
        "nodes": nodes,
        "copies_of_shards": shards,
        "moved": moved,
        "lost_roles": lost_roles(&now, &then),
    }))
}

/// Returns the roles that a node has now and none would have after the changes. The role search is
/// left out, because the nodes of the plan show the shards that would have no holder.
fn lost_roles(now: &ClusterView, then: &ClusterView) -> Vec<&'static str> {
    let is_lost =
        |has: fn(&NodeInfo) -> bool| now.nodes.values().any(has) && !then.nodes.values().any(has);
    let mut lost = Vec::new();
    if is_lost(|node: &NodeInfo| node.roles.root) {
        lost.push("root");
    }
    if is_lost(NodeInfo::takes_logs) {
        lost.push("ingest");
    }
    if is_lost(|node: &NodeInfo| node.roles.extract) {
        lost.push("extract");
    }
    lost
}

/// Returns the view after the changes of a request.
fn changed(now: &ClusterView, request: &PlanRequest) -> Result<ClusterView> {
    if request.without.len() + request.with.len() > CHANGES_MAX {
        return Err(Error::invalid(format!("a plan changes at most {CHANGES_MAX} nodes")));
    }
    // Placements on the nodes of now are still needed.
    let mut then = ClusterView { placements: PlacementCache::default(), ..now.clone() };
    for name in &request.without {
        if then.nodes.remove(name).is_none() {
            return Err(Error::not_found(format!("there is no node {name:?} in the cluster")));
        }
    }
    for node in &request.with {
        if node.weight > WEIGHT_MAX {
            return Err(Error::invalid(format!("a weight is at most {WEIGHT_MAX}")));
        }
        let planned = then.nodes.entry(node.name.clone()).or_insert_with(|| NodeInfo {
            name: node.name.clone(),
            roles: Roles { search: true, ..Roles::default() },
            ..NodeInfo::default()
        });
        planned.weight = node.weight;
    }
    Ok(then)
}

/// Returns the plan of each node: the number of shards that it serves now, and of shards that it
/// would hold and restore then.
fn plans(now: &ClusterView, then: &ClusterView) -> BTreeMap<String, NodePlan> {
    let names: BTreeSet<&String> = now.nodes.keys().chain(then.nodes.keys()).collect();
    let mut plans: BTreeMap<String, NodePlan> =
        names.into_iter().map(|name| (name.clone(), NodePlan::default())).collect();
    for record in now.collections.values() {
        for key in record.shard_keys() {
            let serving = now.serving_holders(&key, record.copies);
            for node in &serving {
                plans.entry(node.name.clone()).or_default().serves += 1;
            }
            for name in then.wanted_holders(&key, record.copies) {
                let has = serving.iter().any(|node| node.name == name);
                let plan = plans.entry(name).or_default();
                plan.holds += 1;
                plan.restores += usize::from(!has);
            }
        }
    }
    plans
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster_node::CollectionRecord;

    /// Three nodes that serve what they should.
    fn settled() -> ClusterView {
        let mut view = ClusterView::default();
        let record = CollectionRecord {
            name: "c".to_owned(),
            id: "1".to_owned(),
            shards: 64,
            copies: 2,
            create: Value::Null,
            images: None,
        };
        view.collections.insert("c".to_owned(), record.clone());
        let request = PlanRequest {
            without: Vec::new(),
            with: ["a", "b", "c"]
                .map(|name| PlannedNode { name: name.to_owned(), weight: 1 })
                .into(),
        };
        let mut view = changed(&view, &request).unwrap();
        for key in record.shard_keys() {
            for name in view.wanted_holders(&key, 2) {
                let serving = &mut view.nodes.get_mut(&name).unwrap().serving;
                serving.entry("1".to_owned()).or_default().insert(key.shard.0);
            }
        }
        view
    }

    #[test]
    fn a_plan_moves_the_shards_of_the_changed_node_only() {
        let now = settled();
        let without = PlanRequest { without: vec!["b".to_owned()], with: Vec::new() };
        let plans_without = plans(&now, &changed(&now, &without).unwrap());
        let lost = plans_without["b"].serves;
        assert!(lost > 20, "{lost}");
        assert_eq!(plans_without["b"].holds, 0);
        assert_eq!(plans_without["a"].restores + plans_without["c"].restores, lost);
        let with = PlannedNode { name: "d".to_owned(), weight: 1 };
        let with = PlanRequest { without: Vec::new(), with: vec![with] };
        let plans_with = plans(&now, &changed(&now, &with).unwrap());
        assert_eq!(plans_with["d"].restores, plans_with["d"].holds);
        assert!(["a", "b", "c"].iter().all(|name| plans_with[*name].restores == 0));
        assert_eq!(plans_with.values().map(|plan| plan.holds).sum::<usize>(), 128);
    }

    #[test]
    fn a_plan_names_roles_without_a_node() {
        let mut now = settled();
        let all = PlanRequest { without: vec!["a".to_owned(), "b".to_owned()], with: Vec::new() };
        assert!(lost_roles(&now, &changed(&now, &all).unwrap()).is_empty(), "none had them");
        for name in ["a", "b"] {
            now.nodes.get_mut(name).unwrap().roles = Roles::ALL;
        }
        let one = PlanRequest { without: vec!["a".to_owned()], with: Vec::new() };
        assert!(lost_roles(&now, &changed(&now, &one).unwrap()).is_empty());
        let then = changed(&now, &all).unwrap();
        assert_eq!(lost_roles(&now, &then), ["root", "ingest", "extract"]);
        // A node that drains writes no logs, and answers clients.
        let drained = PlannedNode { name: "b".to_owned(), weight: 0 };
        let drained = PlanRequest { without: vec!["a".to_owned()], with: vec![drained] };
        assert_eq!(lost_roles(&now, &changed(&now, &drained).unwrap()), ["ingest"]);
    }

    #[test]
    fn wrong_plans_are_refused() {
        let now = settled();
        let gone = PlanRequest { without: vec!["x".to_owned()], with: Vec::new() };
        assert!(changed(&now, &gone).unwrap_err().message().contains("\"x\""));
        let heavy = PlannedNode { name: "a".to_owned(), weight: WEIGHT_MAX + 1 };
        let heavy = PlanRequest { without: Vec::new(), with: vec![heavy] };
        assert!(changed(&now, &heavy).is_err());
    }
}
