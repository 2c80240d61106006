//! Collections: list, create, change and remove them, and their aliases and indexes.

use crate::json::{self, INDEXES_MAX};
use base::{Error, ErrorKind, Result};
use search::registry::Registry;
use serde_json::{Map, Value, json};

use crate::call::CallContext;
use crate::describe::EXTRA;
use crate::update::{UpdateResponse, updated};

/// Lists the collections that the request's key may use.
pub(crate) fn list(registry: &Registry, context: &CallContext) -> Result<Value> {
    let listed = registry.list().into_iter().filter(|listed| context.sees(&listed.name));
    let names: Vec<Value> = listed.map(|listed| json!({ "name": listed.name })).collect();
    Ok(json!({ "collections": names }))
}

/// Responds with true if a collection has this name or alias, in any state.
pub(crate) fn exists(registry: &Registry, context: &CallContext) -> Result<Value> {
    let found = match registry.get(&context.collection) {
        Err(error) => error.kind() != ErrorKind::NotFound,
        Ok(_) => true,
    };
    Ok(json!({ "exists": found }))
}

pub(crate) fn create(registry: &Registry, context: &CallContext, body: &[u8]) -> Result<bool> {
    let request: json::CreateCollection = json::parse(body)?;
    let mut settings = request.settings()?;
    let own =
        json!({ "hints": request.hints()?, "metadata": request.metadata.unwrap_or_default() });
    settings.extra = json!({ EXTRA: own });
    let created = registry.create(&context.collection, settings);
    match created {
        // Qdrant answers an alias with 400 and a collection with 409.
        Err(error)
            if error.kind() == ErrorKind::AlreadyExists
                && is_alias(registry, &context.collection) =>
        {
            Err(Error::invalid(error.message().to_owned()))
        }
        created => created.map(|_| true),
    }
}

fn is_alias(registry: &Registry, name: &str) -> bool {
    registry.aliases().iter().any(|(alias, _)| alias == name)
}

/// Returns false if no collection has the name.
pub(crate) fn remove(registry: &Registry, context: &CallContext, _: &[u8]) -> Result<bool> {
    registry.remove(&context.collection)
}

/// Abandons a damaged segment. Qdrant has no such call.
pub(crate) fn give_up(registry: &Registry, context: &CallContext, _: &[u8]) -> Result<bool> {
    registry.get(&context.collection)?.collection().abandon(&context.item)?;
    Ok(true)
}

/// Merges metadata. All other settings are hints without effect, which are stored for `warnings`.
pub(crate) fn update(registry: &Registry, context: &CallContext, body: &[u8]) -> Result<bool> {
    let named = registry.get(&context.collection)?;
    let request: json::UpdateCollection =
        if body.is_empty() { Default::default() } else { json::parse(body)? };
    let hints = request.hints()?;
    if !hints.is_empty() {
        named.change_extra(|extra| {
            interface_object(extra, "hints").extend(hints);
            Ok(())
        })?;
    }
    if let Some(metadata) = request.metadata {
        named.change_extra(|extra| {
            let kept = interface_object(extra, "metadata");
            json::merge_metadata(kept, metadata);
            Ok(())
        })?;
    }
    Ok(true)
}

/// Returns an object of this interface in the extra data of a collection, and creates it if it is
/// missing.
fn interface_object<'a>(extra: &'a mut Value, name: &str) -> &'a mut Map<String, Value> {
    object(
        object(object(extra).entry(EXTRA).or_insert(Value::Null))
            .entry(name)
            .or_insert(Value::Null),
    )
}

/// Returns the value as an object. Replaces another value by an empty object.
fn object(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    match value {
        Value::Object(map) => map,
        _ => unreachable!("the value was made an object above"),
    }
}

/// Records a declared index in the collection's description. Flushes and merges index every field,
/// so nothing else changes.
pub(crate) fn index(
    registry: &Registry,
    context: &CallContext,
    body: &[u8],
) -> Result<UpdateResponse> {
    let named = registry.get(&context.collection)?;
    let request: json::CreateIndex = json::parse(body)?;
    let (data_type, params) = request.schema()?;
    named.change_extra(|extra| {
        let schema = interface_object(extra, "payload_schema");
        schema.insert(
            request.field_name.clone(),
            json!({ "data_type": data_type, "params": params }),
        );
        if schema.len() > INDEXES_MAX {
            return Err(Error::exhausted(format!(
                "a collection has at most {INDEXES_MAX} indexed fields"
            )));
        }
        Ok(())
    })?;
    Ok(updated(&named))
}

pub(crate) fn drop_index(
    registry: &Registry,
    context: &CallContext,
    _: &[u8],
) -> Result<UpdateResponse> {
    let named = registry.get(&context.collection)?;
    named.change_extra(|extra| {
        interface_object(extra, "payload_schema").remove(&context.item);
        Ok(())
    })?;
    Ok(updated(&named))
}

/// Lists the aliases by which the request's key may use a collection.
pub(crate) fn aliases(registry: &Registry, context: &CallContext) -> Result<Value> {
    let seen = registry.aliases().into_iter().filter(|(alias, _)| context.sees(alias));
    Ok(json::listed_aliases(seen))
}

/// Lists the aliases of a collection that the request's key may use.
pub(crate) fn aliases_of(registry: &Registry, context: &CallContext) -> Result<Value> {
    let name = registry.get(&context.collection)?.name().to_owned();
    let aliases = registry.aliases().into_iter();
    let seen = aliases.filter(|(alias, collection)| *collection == name && context.sees(alias));
    Ok(json::listed_aliases(seen))
}

pub(crate) fn change_aliases(registry: &Registry, _: &CallContext, body: &[u8]) -> Result<bool> {
    let request: json::ChangeAliases = json::parse(body)?;
    registry.change_aliases(&request.changes())?;
    Ok(true)
}

/// Returns no issues. Qdrant gives advice here, and this server in the `warnings` of each
/// collection.
pub(crate) fn issues(_: &Registry, _: &CallContext) -> Result<Value> {
    Ok(json!({ "issues": [] }))
}

/// Does nothing, because no issues are stored.
pub(crate) fn clear_issues(_: &Registry, _: &CallContext) -> Result<bool> {
    Ok(true)
}

/// Answers as Qdrant does without a cluster.
pub(crate) fn cluster(_: &Registry, _: &CallContext) -> Result<Value> {
    Ok(json!({ "status": "disabled" }))
}
