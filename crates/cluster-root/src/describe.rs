//! Descriptions of collections and of the cluster.

use std::sync::Arc;

use api_qdrant::json::{CreateCollection, index_hints};
use api_qdrant::{described_config, without_effect};
use base::{Error, Result};
use bytes::Bytes;
use cluster_node::{ClusterView, CollectionChanges, CollectionRecord, NodeInfo, ShardKey};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::call::RootContext;
use super::collections::settings;
use super::envelope::RootAnswer;
use super::merge::CountedPoints;
use super::read;

/// Describes a collection. The configuration is Qdrant's default, because clients require one.
pub(super) async fn describe(context: RootContext, _: Bytes) -> Result<RootAnswer> {
    let record = context.state.record(&context.collection)?;
    let counted = read::count_points(&context, &record, &json!({})).await;
    let view = context.state.view.current();
    let (points, error) = match counted {
        Ok(CountedPoints { count, partial: false }) => (Value::from(count), None),
        Ok(CountedPoints { count, partial: true }) => {
            (Value::from(count), Some("points of some shards are not counted".to_owned()))
        }
        Err(error) => (Value::Null, Some(error.message().to_owned())),
    };
    let indexes = payload_schema(&context, &record, &view, !points.is_null()).await;
    let error = error.or(indexes.error);
    let mut described = description(&record, &view, &points, error.as_deref())?;
    described["payload_schema"] = Value::Object(indexes.fields);
    RootAnswer::of(&described)
}

/// Declared indexes of a collection.
struct DescribedIndexes {
    /// Payload fields, each with the number of points that have a value of it.
    fields: Map<String, Value>,
    /// Error of the first count that failed.
    error: Option<String>,
}

/// Returns the declared indexes. If `counts` is false, and after an error, the fields have 0
/// points. A collection is described even if no shard can be read.
async fn payload_schema(
    context: &RootContext,
    record: &Arc<CollectionRecord>,
    view: &ClusterView,
    counts: bool,
) -> DescribedIndexes {
    let declared = view.changes.collections.get(&record.id).map(|it| &it.payload_schema);
    let mut fields = Map::new();
    let mut error = None;
    for (field, schema) in declared.into_iter().flatten() {
        let filled = json!({ "filter": { "must_not": [{ "is_empty": { "key": field } }] } });
        let mut points = 0;
        if counts && error.is_none() {
            match read::count_points(context, record, &filled).await {
                Ok(counted) => points = counted.count,
                Err(failed) => error = Some(failed.message().to_owned()),
            }
        }
        let mut described = json!({ "data_type": schema["data_type"], "points": points });
        if !schema["params"].is_null() {
            described["params"] = schema["params"].clone();
        }
        fields.insert(field.clone(), described);
    }
    DescribedIndexes { fields, error }
}

/// Returns the description of a collection, as Qdrant's interface has it.
fn description(
    record: &CollectionRecord,
    view: &ClusterView,
    points: &Value,
    error: Option<&str>,
) -> Result<Value> {
    let settings = settings(record)?;
    let create = CreateCollection::deserialize(&record.create)
        .map_err(|error| Error::internal(error.to_string()))?;
    let none = CollectionChanges::default();
    let changes = view.changes.collections.get(&record.id).unwrap_or(&none);
    let mut hints = create.hints()?;
    hints.extend(changes.hints.clone());
    let warnings = hints.keys().map(|name| without_effect(name));
    let warnings = warnings.chain(index_warnings(changes)).chain(holders_warning(record, view));
    let warnings: Vec<Value> = warnings.map(|message| json!({ "message": message })).collect();
    let metadata = changes.metadata_over(create.metadata);
    Ok(json!({
        "warnings": warnings,
        "status": status(record, view),
        "optimizer_status": error.map_or_else(|| json!("ok"), |error| json!({ "error": error })),
        "points_count": points,
        "indexed_vectors_count": points,
        "segments_count": record.shards,
        "config": described_config(&settings, record.shards, record.copies, metadata),
    }))
}

/// Returns warnings about declared indexes: parameters without effect, and indexes for UUIDs, which
/// the shards do not know.
fn index_warnings(changes: &CollectionChanges) -> Vec<String> {
    let mut warnings = Vec::new();
    for (field, schema) in &changes.payload_schema {
        let hints = index_hints(field, &schema["params"]);
        warnings.extend(hints.iter().map(|name| without_effect(name)));
        if schema["data_type"] == "uuid" {
            warnings.push(format!(
                "payload_schema.{field}: a cluster compares UUIDs as texts, so write all of them \
                 in one way"
            ));
        }
    }
    warnings
}

/// Returns the state of a collection: red if shards cannot be read, yellow if some have fewer whole
/// copies than they should.
fn status(record: &CollectionRecord, view: &ClusterView) -> &'static str {
    if view.unserved_shards(record) > 0 {
        return "red";
    }
    let is_short = |key: ShardKey| {
        let whole = view.nodes.values().filter(|node| node.serves_whole(&key)).count();
        whole < view.wanted_holders(&key, record.copies).len()
    };
    if record.shard_keys().any(is_short) { "yellow" } else { "green" }
}

/// Returns a warning if shards have no holder.
fn holders_warning(record: &CollectionRecord, view: &ClusterView) -> Option<String> {
    let unserved = view.unserved_shards(record);
    let shards = record.shards;
    (unserved > 0).then(|| format!("{unserved} of {shards} shards have no holder"))
}

/// Describes the cluster: nodes, and the shards of the collections that the request's key may use.
pub(super) async fn cluster(context: RootContext, _: Bytes) -> Result<RootAnswer> {
    let view = context.state.loaded_view()?;
    let nodes: Vec<Value> = view.nodes.values().map(node_text).collect();
    let seen = view.collections.values().filter(|record| context.sees(&record.name));
    let collections: Vec<Value> = seen.map(|record| collection(record, &view)).collect();
    RootAnswer::of(&cluster_text(&view, &nodes, &collections))
}

/// Returns the JSON of a node.
fn node_text(node: &NodeInfo) -> Value {
    let shards: usize = node.serving.values().map(std::collections::BTreeSet::len).sum();
    let mut described = json!({
        "name": node.name,
        "address": node.address,
        "roles": node.roles,
        "weight": node.weight,
        "build": node.build,
        "protocol": node.protocol,
        "serving": shards,
    });
    if node.store.is_failing() {
        described["store"] = json!(node.store);
    }
    described
}

fn cluster_text(view: &ClusterView, nodes: &[Value], collections: &[Value]) -> Value {
    let mut described = json!({ "nodes": nodes, "collections": collections });
    if let Some(reason) = &view.stale {
        described["stale"] = json!(reason);
    }
    described
}

fn collection(record: &CollectionRecord, view: &ClusterView) -> Value {
    let shards: Vec<Value> = record.shard_keys().map(|key| shard(&key, record, view)).collect();
    json!({
        "name": record.name,
        "id": record.id,
        "copies": record.copies,
        "status": status(record, view),
        "coverage": { "shards": record.shards - view.unserved_shards(record), "of": record.shards },
        "shards": shards,
    })
}

/// Returns the JSON of a shard: nodes that should serve it, that serve it and that have damaged
/// copies, and its owner.
fn shard(key: &ShardKey, record: &CollectionRecord, view: &ClusterView) -> Value {
    let serving: Vec<&str> =
        view.serving_holders(key, record.copies).iter().map(|node| node.name.as_str()).collect();
    let mut described = Map::new();
    described.insert("shard".to_owned(), json!(key.shard.0));
    described.insert("wanted".to_owned(), json!(view.wanted_holders(key, record.copies)));
    described.insert("serving".to_owned(), json!(serving));
    let damaged = view.nodes.values().filter(|node| node.is_damaged(key));
    let damaged: Vec<&str> = damaged.map(|node| node.name.as_str()).collect();
    if !damaged.is_empty() {
        described.insert("damaged".to_owned(), json!(damaged));
    }
    if let Some(owner) = view.owners.get(key) {
        described.insert("owner".to_owned(), json!(owner.node));
        described.insert("epoch".to_owned(), json!(owner.epoch.0));
    }
    Value::Object(described)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use cluster::Epoch;

    use super::*;
    use cluster_node::{Owner, Roles, StoreAccess};

    fn record() -> CollectionRecord {
        CollectionRecord {
            name: "c".to_owned(),
            id: "1".to_owned(),
            shards: 2,
            copies: 2,
            create: json!({"vectors": {"v": {"size": 4, "distance": "Cosine"}},
                           "hnsw_config": {"m": 4}, "metadata": {"a": 1}}),
            images: None,
        }
    }

    fn view(serving: &[(&str, &[u32])]) -> ClusterView {
        let mut view = ClusterView::default();
        for (name, shards) in serving {
            let shards: BTreeSet<u32> = shards.iter().copied().collect();
            let node = NodeInfo {
                name: (*name).to_owned(),
                address: "127.0.0.1:1".to_owned(),
                roles: Roles::ALL,
                weight: 1,
                build: "1".to_owned(),
                serving: BTreeMap::from([("1".to_owned(), shards)]),
                ..NodeInfo::default()
            };
            view.nodes.insert(node.name.clone(), node);
        }
        view.owners.insert(ShardKey::new("1", 0), Owner { node: "a".to_owned(), epoch: Epoch(7) });
        view.collections.insert("c".to_owned(), record());
        view
    }

    #[test]
    fn an_old_view_has_its_reason() {
        let mut old = view(&[]);
        let text = |view: &ClusterView| cluster_text(view, &[], &[]);
        assert_eq!(text(&old), json!({ "nodes": [], "collections": [] }));
        old.stale = Some("etcd does not answer".to_owned());
        assert_eq!(text(&old)["stale"], "etcd does not answer");
    }

    #[test]
    fn a_node_that_cannot_read_the_store_says_so() {
        let mut node = view(&[("a", &[0, 1])]).nodes.remove("a").unwrap();
        for store in [StoreAccess::Unknown, StoreAccess::Working] {
            node.store = store;
            let shown = node_text(&node);
            assert_eq!((&shown["name"], &shown["serving"]), (&json!("a"), &json!(2)));
            assert_eq!(shown.get("store"), None);
        }
        node.store = StoreAccess::Lost;
        node.protocol = 7;
        let shown = node_text(&node);
        assert_eq!((&shown["store"], &shown["protocol"]), (&json!("lost"), &json!(7)));
    }

    #[test]
    fn the_status_follows_the_holders() {
        for (serving, expected) in [
            (view(&[("a", &[0, 1]), ("b", &[0, 1])]), "green"),
            (view(&[("a", &[0, 1])]), "green"),
            (view(&[("a", &[0, 1]), ("b", &[0])]), "yellow"),
            (view(&[("a", &[0]), ("b", &[0])]), "red"),
        ] {
            assert_eq!(status(&record(), &serving), expected);
        }
    }

    #[test]
    fn damaged_copies_are_named() {
        let mut view = view(&[("a", &[0, 1]), ("b", &[0, 1])]);
        let shown = collection(&record(), &view);
        assert_eq!(shown["shards"][0]["damaged"], Value::Null);
        let damaged = BTreeMap::from([("1".to_owned(), BTreeSet::from([0]))]);
        view.nodes.get_mut("b").unwrap().damaged = damaged;
        let shown = collection(&record(), &view);
        assert_eq!(shown["status"], "yellow");
        assert_eq!(shown["shards"][0]["damaged"], json!(["b"]));
        assert_eq!(shown["shards"][0]["serving"], json!(["a", "b"]));
        assert_eq!(shown["shards"][1]["damaged"], Value::Null);
    }

    #[test]
    fn descriptions_name_settings_and_what_is_missing() {
        let mut view = view(&[("a", &[0])]);
        let params = json!({"type": "keyword", "is_tenant": true});
        let index = json!({ "data_type": "keyword", "params": params });
        let uuid = json!({ "data_type": "uuid", "params": null });
        let payload_schema = Map::from_iter([("city".to_owned(), index), ("u".to_owned(), uuid)]);
        let changes = CollectionChanges { payload_schema, ..CollectionChanges::default() };
        Arc::make_mut(&mut view.changes).collections.insert("1".to_owned(), changes);
        let described = description(&record(), &view, &json!(5), None).unwrap();
        assert_eq!(described["points_count"], 5);
        let params = &described["config"]["params"];
        assert_eq!(params["vectors"]["v"], json!({"size": 4, "distance": "Cosine"}));
        assert_eq!(
            (&params["shard_number"], &params["replication_factor"]),
            (&json!(2), &json!(2))
        );
        assert_eq!(described["config"]["metadata"], json!({"a": 1}));
        let warnings = described["warnings"].to_string();
        let parts =
            ["hnsw_config", "1 of 2 shards", "payload_schema.city.is_tenant", "payload_schema.u"];
        for part in parts {
            assert!(warnings.contains(part), "{part}: {warnings}");
        }
        let shown = collection(&record(), &view);
        assert_eq!(shown["coverage"], json!({"shards": 1, "of": 2}));
        assert_eq!(shown["shards"][0]["owner"], "a");
        assert_eq!(shown["shards"][0]["serving"], json!(["a"]));
        assert_eq!(
            (&shown["shards"][0]["epoch"], &shown["shards"][1]["owner"]),
            (&json!(7), &Value::Null)
        );
    }
}
