//! Changes of points split by shard.

use std::collections::BTreeMap;

use base::{Error, Result};
use search::points::PointId;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::split::{
    OPERATION_BYTES_MAX, RawMembers, ShardOperations, chunks, ids_by_shard, raw, shard_of_id,
};

/// Lists of a batch upsert, each point as its text.
#[derive(Deserialize)]
struct BatchText<'a> {
    ids: Vec<PointId>,
    #[serde(borrow)]
    vectors: &'a RawValue,
    #[serde(borrow)]
    payloads: Option<Vec<Option<&'a RawValue>>>,
}

#[derive(Deserialize)]
struct UpsertText<'a> {
    #[serde(borrow)]
    points: Option<Vec<&'a RawValue>>,
    #[serde(borrow)]
    batch: Option<BatchText<'a>>,
}

#[derive(Deserialize)]
struct PointText {
    id: PointId,
}

/// Splits a checked upsert, and adds its operations.
///
/// # Errors
/// `InvalidArgument` if the body is not an upsert.
pub(super) fn upsert(body: &str, shards: u32, split: &mut ShardOperations) -> Result<()> {
    let body: UpsertText<'_> = read(body)?;
    let mut points: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    for point in body.points.into_iter().flatten() {
        let id = read::<PointText>(point.get())?.id;
        points.entry(shard_of_id(&id, shards)?).or_default().push(point.get().to_owned());
    }
    if let Some(batch) = body.batch {
        for (id, text) in batch_points(&batch)? {
            points.entry(shard_of_id(&id, shards)?).or_default().push(text);
        }
    }
    add_points("upsert", points, split);
    Ok(())
}

/// Splits a checked change of vectors, and adds its operations.
///
/// # Errors
/// `InvalidArgument` if the body is not such a change.
pub(super) fn update_vectors(body: &str, shards: u32, split: &mut ShardOperations) -> Result<()> {
    #[derive(Deserialize)]
    struct VectorsText<'a> {
        #[serde(borrow)]
        points: Vec<&'a RawValue>,
    }
    let body: VectorsText<'_> = read(body)?;
    let mut points: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    for point in body.points {
        let id = read::<PointText>(point.get())?.id;
        points.entry(shard_of_id(&id, shards)?).or_default().push(point.get().to_owned());
    }
    add_points("update_vectors", points, split);
    Ok(())
}

/// Adds operations that have a list of points, each as its text. `kind` is their name in a batch.
fn add_points(kind: &str, points: BTreeMap<u32, Vec<String>>, split: &mut ShardOperations) {
    for (shard, points) in points {
        let operations = split.entry(shard).or_default();
        for chunk in chunks(&points, OPERATION_BYTES_MAX) {
            operations.push(format!("{{\"{kind}\":{{\"points\":[{}]}}}}", chunk.join(",")));
        }
    }
}

/// Returns the points of a batch, each as the text of an element of `points`.
fn batch_points(batch: &BatchText<'_>) -> Result<Vec<(PointId, String)>> {
    let vectors = batch_vectors(batch.vectors.get())?;
    let payload = |at: usize| batch.payloads.as_ref().and_then(|all| *all.get(at)?);
    let mut points = Vec::with_capacity(batch.ids.len());
    for (at, (id, vector)) in batch.ids.iter().zip(vectors).enumerate() {
        let payload = payload(at).map_or("null", RawValue::get);
        let id_text = raw(id)?;
        points
            .push((*id, format!("{{\"id\":{id_text},\"vector\":{vector},\"payload\":{payload}}}")));
    }
    Ok(points)
}

/// Returns the vectors of a batch, each as the text of a point's `vector`.
fn batch_vectors(vectors: &str) -> Result<Vec<String>> {
    if vectors.trim_start().starts_with('[') {
        let plain: Vec<&RawValue> = read(vectors)?;
        return Ok(plain.into_iter().map(|vector| vector.get().to_owned()).collect());
    }
    let named: BTreeMap<String, Vec<&RawValue>> = read(vectors)?;
    let mut texts = Vec::new();
    // The check has found one name.
    for (name, column) in named {
        let name = raw(&name)?;
        texts.extend(column.iter().map(|vector| format!("{{{name}:{vector}}}")));
    }
    Ok(texts)
}

/// A change of points that a filter chooses.
pub(super) struct FilterChange {
    /// Name of the change in a batch.
    kind: String,
    /// Members of the change besides the filter.
    members: RawMembers,
    pub(super) filter: Box<RawValue>,
}

impl FilterChange {
    /// Returns true if the new size of a payload depends on the stored payload. Such a change
    /// merges members into it, or replaces it except for the block of an image.
    pub(super) fn needs_payloads(&self, holds_images: bool) -> bool {
        self.kind == "set_payload" || (holds_images && self.kind == "overwrite_payload")
    }

    /// Returns true if the change deletes points.
    pub(super) fn deletes(&self) -> bool {
        self.kind == "delete"
    }

    /// Returns the operation that makes the change for points by their ids.
    ///
    /// # Errors
    /// As [`raw`].
    pub(super) fn of(&self, ids: &[PointId]) -> Result<String> {
        let ids = raw(&ids)?;
        let mut members: BTreeMap<&str, &RawValue> =
            self.members.iter().map(|(name, value)| (name.as_str(), &**value)).collect();
        members.insert("points", &ids);
        Ok(format!("{{\"{}\":{}}}", self.kind, raw(&members)?))
    }
}

/// A step of a request's changes.
pub(super) enum ChangeStep {
    /// Operations by ids, which go to the log.
    ByIds(ShardOperations),
    /// A change whose points are looked up first.
    ByFilter(FilterChange),
}

/// Steps of a request's changes, in the order in which they are made.
#[derive(Default)]
pub(super) struct ChangeSteps(Vec<ChangeStep>);

impl ChangeSteps {
    /// Returns the operations to which changes by ids are added.
    pub(super) fn by_ids(&mut self) -> &mut ShardOperations {
        if !matches!(self.0.last(), Some(ChangeStep::ByIds(_))) {
            self.0.push(ChangeStep::ByIds(ShardOperations::new()));
        }
        match self.0.last_mut() {
            Some(ChangeStep::ByIds(split)) => split,
            _ => unreachable!("it was added"),
        }
    }

    /// Returns the steps.
    pub(super) fn into_list(self) -> Vec<ChangeStep> {
        self.0
    }
}

/// Adds a checked change of points that are chosen by ids or by a filter. `kind` is its name in a
/// batch.
///
/// # Errors
/// `InvalidArgument` if the body is not such a change.
pub(super) fn selection(
    kind: &str,
    body: &str,
    shards: u32,
    steps: &mut ChangeSteps,
) -> Result<()> {
    let mut members: RawMembers = read(body)?;
    let filter = members.remove("filter").filter(|filter| filter.get() != "null");
    let points = members.remove("points").filter(|points| points.get() != "null");
    let Some(points) = points else {
        let filter = filter.ok_or_else(|| Error::invalid(format!("{kind}: no points")))?;
        steps.0.push(ChangeStep::ByFilter(FilterChange { kind: kind.to_owned(), members, filter }));
        return Ok(());
    };
    let ids: Vec<PointId> = read(points.get())?;
    let split = steps.by_ids();
    for (shard, ids) in ids_by_shard(&ids, shards)? {
        members.insert("points".to_owned(), raw(&ids)?);
        let own = raw(&members)?;
        split.entry(shard).or_default().push(format!("{{\"{kind}\":{own}}}"));
    }
    Ok(())
}

/// Splits a checked batch, in the order of its operations. Returns their number.
///
/// # Errors
/// `InvalidArgument` if the body is not a batch.
pub(super) fn batch(body: &str, shards: u32, steps: &mut ChangeSteps) -> Result<usize> {
    #[derive(Deserialize)]
    struct OperationsText<'a> {
        #[serde(borrow)]
        operations: Vec<BTreeMap<String, &'a RawValue>>,
    }
    let body: OperationsText<'_> = read(body)?;
    for operation in &body.operations {
        for (kind, body) in operation {
            match kind.as_str() {
                "upsert" => upsert(body.get(), shards, steps.by_ids())?,
                "update_vectors" => update_vectors(body.get(), shards, steps.by_ids())?,
                kind => selection(kind, body.get(), shards, steps)?,
            }
        }
    }
    Ok(body.operations.len())
}

fn read<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T> {
    serde_json::from_str(text)
        .map_err(|error| Error::invalid("the request's JSON").caused_by(error))
}

#[cfg(test)]
mod tests {
    use api_qdrant::json::{self, UpdateOperation};
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    const UUID: &str = "5c56c793-69f3-4fbf-87e6-c4bf54c28c26";

    fn operations(split: &ShardOperations) -> Vec<(u32, Value)> {
        let parsed = |(shard, text): (u32, &String)| {
            json::parse::<UpdateOperation>(text.as_bytes()).unwrap();
            (shard, serde_json::from_str(text).unwrap())
        };
        let all = split.iter().flat_map(|(shard, texts)| texts.iter().map(|text| (*shard, text)));
        all.map(parsed).collect()
    }

    #[test]
    fn numbers_of_points_keep_their_text() {
        let body = r#"{"points":[{"id":1,"vector":[0.1000000000000000055, 2e0],
            "payload":{"f":0.30000000000000004441,"n":18446744073709551615}}]}"#;
        let mut split = ShardOperations::new();
        upsert(body, 1, &mut split).unwrap();
        assert_eq!(split.len(), 1);
        assert!(split[&0][0].contains("[0.1000000000000000055, 2e0]"));
        assert!(split[&0][0].contains("0.30000000000000004441"));
        json::parse::<UpdateOperation>(split[&0][0].as_bytes()).unwrap();
    }

    #[test]
    fn batches_of_columns_become_points() {
        let plain = json!({"batch": {"ids": [1, UUID], "vectors": [[1, 2], [3, 4]],
                                     "payloads": [null, {"a": 1}]}});
        let mut split = ShardOperations::new();
        upsert(&plain.to_string(), 1, &mut split).unwrap();
        assert_eq!(
            operations(&split)[0].1["upsert"]["points"],
            json!([{"id": 1, "vector": [1, 2], "payload": null},
                   {"id": UUID, "vector": [3, 4], "payload": {"a": 1}}])
        );
        let named = json!({"batch": {"ids": [1], "vectors": {"v \"": [[1, 2]]}}});
        let mut split = ShardOperations::new();
        upsert(&named.to_string(), 1, &mut split).unwrap();
        assert_eq!(
            operations(&split)[0].1["upsert"]["points"][0]["vector"],
            json!({"v \"": [1, 2]})
        );
    }

    #[test]
    fn ids_go_to_their_shards_and_filters_are_looked_up() {
        let mut steps = ChangeSteps::default();
        let delete = json!({"filter": {"must": [{"key": "a", "match": {"value": 1}}]}});
        selection("delete", &delete.to_string(), 3, &mut steps).unwrap();
        let [ChangeStep::ByFilter(change)] = &steps.into_list()[..] else { panic!() };
        assert_eq!(change.filter.get(), delete["filter"].to_string());
        let operation: Value =
            serde_json::from_str(&change.of(&[PointId::Number(4)]).unwrap()).unwrap();
        assert_eq!(operation, json!({"delete": {"points": [4]}}));
        // Holders parse the log again, and a later program may refuse a filter of it.
        let both = json!({"filter": {"must": [{"key": "a..b"}]}, "points": [4]});
        let mut steps = ChangeSteps::default();
        selection("delete", &both.to_string(), 1, &mut steps).unwrap();
        let logged = operations(steps.by_ids());
        assert_eq!(logged, [(0, json!({"delete": {"points": [4]}}))]);
        let mut steps = ChangeSteps::default();
        let set = json!({"payload": {"a": 1}, "points": (0..20).collect::<Vec<u64>>()});
        selection("set_payload", &set.to_string(), 3, &mut steps).unwrap();
        for (shard, operation) in operations(steps.by_ids()) {
            let ids = operation["set_payload"]["points"].as_array().unwrap();
            assert!(!ids.is_empty());
            for id in ids {
                let id = PointId::Number(id.as_u64().unwrap());
                assert_eq!(shard_of_id(&id, 3).unwrap(), shard);
            }
            assert_eq!(operation["set_payload"]["payload"], json!({"a": 1}));
        }
    }

    #[test]
    fn the_order_of_a_batch_stays() {
        let body = json!({"operations": [
            {"upsert": {"points": [{"id": 1, "vector": [1]}]}},
            {"delete": {"points": [1]}},
            {"clear_payload": {"filter": {}}},
            {"upsert": {"points": [{"id": 1, "vector": [2]}]}},
        ]});
        let mut steps = ChangeSteps::default();
        assert_eq!(batch(&body.to_string(), 2, &mut steps).unwrap(), 4);
        let kinds = |step: &ChangeStep| -> Vec<String> {
            let ChangeStep::ByIds(split) = step else { return vec!["filter".to_owned()] };
            let own = operations(split).into_iter();
            own.map(|(_, it)| it.as_object().unwrap().keys().next().unwrap().clone()).collect()
        };
        let kinds: Vec<Vec<String>> = steps.into_list().iter().map(kinds).collect();
        assert_eq!(kinds, [vec!["upsert", "delete"], vec!["filter"], vec!["upsert"]]);
    }

    proptest! {
        #[test]
        fn every_point_is_in_its_shard_once(
            ids in prop::collection::vec(0u64..1000, 0..60),
            shards in 1u32..9,
        ) {
            let point = |id: &u64| json!({"id": id, "vector": [*id as f32]});
            let body = json!({"points": ids.iter().map(point).collect::<Vec<_>>()});
            let mut split = ShardOperations::new();
            upsert(&body.to_string(), shards, &mut split).unwrap();
            let mut found = Vec::new();
            for (shard, operation) in operations(&split) {
                for point in operation["upsert"]["points"].as_array().unwrap() {
                    let id = point["id"].as_u64().unwrap();
                    prop_assert_eq!(shard_of_id(&PointId::Number(id), shards).unwrap(), shard);
                    found.push(id);
                }
            }
            let mut ids = ids;
            ids.sort_unstable();
            found.sort_unstable();
            prop_assert_eq!(found, ids);
        }
    }
}
