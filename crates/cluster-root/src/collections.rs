//! Collections: list, create and remove them.

use std::time::{Duration, Instant};

use api_qdrant::json;
use base::{Error, Result};
use bytes::Bytes;
use cluster::{COPIES_MAX, SHARDS_MAX};
use cluster_node::{ClusterView, CollectionRecord, new_id};
use search::registry::{CollectionSettings, NAME_BYTES_MAX, check_name};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::call::RootContext;
use super::check;
use super::envelope::RootAnswer;

/// Number of shards of a collection without `shard_number`.
pub(super) const SHARDS_DEFAULT: u32 = 8;
/// Number of holders of each shard of a collection without `replication_factor`.
pub(super) const COPIES_DEFAULT: u32 = 2;
/// Maximum bytes of a request that creates a collection. The record holds it, and the settings of
/// each shard.
const CREATE_BYTES_MAX: usize = 256 << 10;
/// Longest wait for the holders of a new collection.
pub(super) const HOLDERS_WAIT_MAX: Duration = Duration::from_secs(30);
/// Longest wait until a removed collection is not in the view, and no node writes its logs.
const REMOVED_WAIT_MAX: Duration = Duration::from_secs(5);
/// Retry advice for a collection without holders.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// Lists the collections that the request's key may use.
pub(super) async fn list(context: RootContext, _: Bytes) -> Result<RootAnswer> {
    let view = context.state.loaded_view()?;
    let seen = view.collections.keys().filter(|name| context.sees(name));
    let names: Vec<Value> = seen.map(|name| json!({ "name": name })).collect();
    RootAnswer::of(&json!({ "collections": names }))
}

/// Responds with true if a collection has this name or alias.
pub(super) async fn exists(context: RootContext, _: Bytes) -> Result<RootAnswer> {
    let exists = context.state.loaded_view()?.collection(&context.collection).is_some();
    RootAnswer::of(&json!({ "exists": exists }))
}

/// Creates a collection, and waits until each shard has a holder.
pub(super) async fn create(context: RootContext, body: Bytes) -> Result<RootAnswer> {
    let record = new_record(&context.collection, &body)?;
    // The catalog compares the name with the newest aliases, which this root may not have seen.
    if !context.state.catalog.create(&record).await? {
        let message = format!(
            "collection \"{}\" already exists; remove it, or use another name",
            record.name
        );
        return Err(Error::new(base::ErrorKind::AlreadyExists, message));
    }
    wait_for_holders(&context, &record).await?;
    RootAnswer::of(&true)
}

/// Waits until each shard of a new collection has a holder.
///
/// # Errors
/// `Unavailable` with retry advice if some shards have no holder in time.
pub async fn wait_for_holders(context: &RootContext, record: &CollectionRecord) -> Result<()> {
    let until = context.deadline.min(Instant::now() + HOLDERS_WAIT_MAX);
    wait_for_holders_until(context, record, until).await
}

/// Does the same as [`wait_for_holders`], but waits until `until` at most.
///
/// # Errors
/// As [`wait_for_holders`].
pub(super) async fn wait_for_holders_until(
    context: &RootContext,
    record: &CollectionRecord,
    until: Instant,
) -> Result<()> {
    let served = wait_for(context, until, |view| {
        view.by_id(&record.id).is_some() && view.unserved_shards(record) == 0
    });
    if !served.await {
        let unserved = context.state.view.current().unserved_shards(record);
        let message = format!(
            "the collection is created, but {unserved} of its {} shards have no holder yet; check \
             the search nodes with `millpond cluster status`",
            record.shards
        );
        return Err(Error::unavailable(message).with_retry_after(RETRY_AFTER));
    }
    Ok(())
}

/// Reads a request for a new collection.
///
/// # Errors
/// Errors of the name and the body.
fn new_record(name: &str, body: &[u8]) -> Result<CollectionRecord> {
    check_name(name)?;
    if body.len() > CREATE_BYTES_MAX {
        return Err(Error::too_large(format!(
            "the request has {} bytes, {CREATE_BYTES_MAX} at most; store less metadata",
            body.len()
        )));
    }
    check::depth(body)?;
    let request: json::CreateCollection = json::parse(body)?;
    let settings = request.settings()?;
    if settings.vector_name.len() > NAME_BYTES_MAX {
        return Err(Error::invalid(format!("a vector's name has 1 to {NAME_BYTES_MAX} bytes")));
    }
    request.hints()?;
    let mut create: Map<String, Value> = json::parse(body)?;
    let shards = take_number(&mut create, "shard_number", SHARDS_DEFAULT, SHARDS_MAX)?;
    let copies = take_number(&mut create, "replication_factor", COPIES_DEFAULT, COPIES_MAX as u32)?;
    let create = Value::Object(create);
    Ok(CollectionRecord {
        name: name.to_owned(),
        id: new_id(),
        shards,
        copies,
        create,
        images: None,
    })
}

/// Removes a whole number from 1 to `max` from a request, and returns it.
fn take_number(create: &mut Map<String, Value>, name: &str, default: u32, max: u32) -> Result<u32> {
    let value = match create.remove(name) {
        None | Some(Value::Null) => return Ok(default),
        Some(value) => value,
    };
    let number = value.as_u64().filter(|number| (1..=u64::from(max)).contains(number));
    let number = number.and_then(|number| u32::try_from(number).ok());
    number
        .ok_or_else(|| json::out_of_limits(name, format_args!("{value} is not within 1 and {max}")))
}

/// Waits until the view is as `is_ready` says. Returns false if it is not until `until`.
pub async fn wait_for(
    context: &RootContext,
    until: Instant,
    is_ready: impl Fn(&ClusterView) -> bool,
) -> bool {
    let mut source = context.state.view.clone();
    let ready = async {
        while !is_ready(&source.current()) {
            source.changed().await;
        }
    };
    tokio::time::timeout_at(until.into(), ready).await.is_ok()
}

/// Removes a collection. Returns false if there is none of this name.
pub(super) async fn remove(context: RootContext, _: Bytes) -> Result<RootAnswer> {
    RootAnswer::of(&remove_named(&context).await?)
}

/// Removes the collection of a request, and waits until it is not in the view and no node writes
/// its logs. Returns false if there is none of this name.
///
/// # Errors
/// `InvalidArgument` for a name that no collection has; the store's error.
pub async fn remove_named(context: &RootContext) -> Result<bool> {
    let name = &context.collection;
    check_name(name)?;
    let id = context.state.view.current().collections.get(name).map(|record| record.id.clone());
    let catalog = context.state.catalog.clone();
    let owned = name.clone();
    // A removal has several steps. It continues if the client disconnects.
    let removal = tokio::spawn(async move { catalog.remove(&owned).await });
    let ended = |error| Error::internal("the removal of a collection ended").caused_by(error);
    let removed = removal.await.map_err(ended)??;
    if let Some(id) = id.filter(|_| removed) {
        let until = Instant::now() + REMOVED_WAIT_MAX;
        // A view that lags shows the collection for a moment longer. Another root that lags could
        // still write to it, and the client could have made a new one of this name by then.
        let is_gone = |view: &ClusterView| {
            view.by_id(&id).is_none() && view.owners.keys().all(|key| *key.collection != *id)
        };
        wait_for(context, until, is_gone).await;
    }
    Ok(removed)
}

/// Returns the settings of a collection.
///
/// # Errors
/// `Internal` for a record that this build cannot read.
pub fn settings(record: &CollectionRecord) -> Result<CollectionSettings> {
    let create = json::CreateCollection::deserialize(&record.create);
    let settings = create
        .map_err(|error| Error::internal(error.to_string()))
        .and_then(|create| create.settings());
    let mut settings = settings.map_err(|error| {
        Error::internal(format!("the record of collection \"{}\"", record.name)).caused_by(error)
    })?;
    if let Some(images) = &record.images {
        if !settings.extra.is_object() {
            settings.extra = json!({});
        }
        settings.extra[check::IMAGES] = json!(images);
    }
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use search::DIMS_MAX;

    use super::*;

    fn record(body: &Value) -> Result<CollectionRecord> {
        new_record("c", body.to_string().as_bytes())
    }

    #[test]
    fn shards_and_copies_have_defaults_and_limits() {
        let vectors = json!({"size": 4, "distance": "Dot"});
        let plain = record(&json!({ "vectors": vectors })).unwrap();
        assert_eq!((plain.shards, plain.copies), (8, 2));
        let body = json!({"vectors": vectors, "shard_number": 3, "replication_factor": 1});
        let own = record(&body).unwrap();
        assert_eq!((own.shards, own.copies), (3, 1));
        assert_eq!(own.create, json!({ "vectors": vectors }), "no hint for the shards");
        assert_ne!(plain.id, own.id);
        assert_eq!(settings(&own).unwrap().dims, 4);
        for (name, value) in [
            ("shard_number", json!(0)),
            ("shard_number", json!(1025)),
            ("shard_number", json!("8")),
            ("replication_factor", json!(9)),
        ] {
            let error = record(&json!({"vectors": vectors, name: value})).unwrap_err();
            assert!(error.message().contains(name), "{error}");
        }
    }

    #[test]
    fn collections_that_no_holder_can_create_are_refused() {
        for body in [
            json!({}),
            json!({"vectors": {"size": 0, "distance": "Dot"}}),
            json!({"vectors": {"size": 4, "distance": "Manhattan"}}),
            json!({"vectors": {"x".repeat(300): {"size": 4, "distance": "Dot"}}}),
            json!({"vectors": {"size": 4, "distance": "Dot"}, "sharts": 3}),
        ] {
            assert!(record(&body).is_err(), "{body}");
        }
        assert!(new_record(".c", br#"{"vectors":{"size":4,"distance":"Dot"}}"#).is_err());
    }

    #[test]
    fn a_vector_size_outside_the_limits_is_a_validation_error() {
        assert!(record(&json!({"vectors": {"size": DIMS_MAX, "distance": "Dot"}})).is_ok());
        for size in [0, DIMS_MAX + 1, 65_536] {
            let error = record(&json!({"vectors": {"size": size, "distance": "Dot"}})).unwrap_err();
            assert!(json::is_validation(error.message()), "{error}");
            assert!(error.message().contains(&DIMS_MAX.to_string()), "{error}");
        }
    }
}
