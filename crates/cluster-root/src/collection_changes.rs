//! Changes of a collection's settings: declared indexes, metadata and hints.
//!
//! Segments index the fields of payloads by themselves, so a declared index only shows in the
//! collection's description, as on one server.

use api_qdrant::json;
use base::{Error, Result};
use bytes::Bytes;
use cluster_node::{CatalogChanges, CollectionChanges, CollectionRecord};
use serde_json::{Value, json};

use super::call::RootContext;
use super::envelope::RootAnswer;

/// Declares an index on a field.
pub(super) async fn declare_index(context: RootContext, body: Bytes) -> Result<RootAnswer> {
    let request: json::CreateIndex = json::parse(&body)?;
    // Shards do not know the declared indexes, so their conditions on texts use the default.
    request.check_default_tokenizer()?;
    let (data_type, params) = request.schema()?;
    let schema = json!({ "data_type": data_type, "params": params });
    let record = context.newest_record().await?;
    let declare =
        |changes: &mut CollectionChanges| changes.declare(&request.field_name, schema.clone());
    let number = change(&context, &record, declare).await?;
    RootAnswer::of(&completed(number))
}

/// Removes the declaration of an index.
pub(super) async fn drop_index(context: RootContext, _: Bytes) -> Result<RootAnswer> {
    let record = context.newest_record().await?;
    let number = change(&context, &record, |changes| {
        changes.payload_schema.remove(&context.item);
        Ok(())
    });
    RootAnswer::of(&completed(number.await?))
}

/// Name of the setting for the number of copies of each shard.
const COPIES: &str = "replication_factor";

/// Merges metadata. All other settings are hints without effect, which `warnings` name. Refuses a
/// request that sets nothing but another number of copies of the shards.
pub(super) async fn update(context: RootContext, body: Bytes) -> Result<RootAnswer> {
    let request: json::UpdateCollection =
        if body.is_empty() { Default::default() } else { json::parse(&body)? };
    let mut hints = request.hints()?;
    let names_copies = request.replication_factor().is_some();
    // `hints` leaves out the value 1, which holds for one server, instead of `copies`.
    hints.remove(COPIES);
    let record = context.newest_record().await?;
    if let Some(wanted) = other_copies(&record, &request)? {
        hints.insert(COPIES.to_owned(), json!(wanted));
    }
    let metadata = request.metadata.unwrap_or_default();
    change(&context, &record, |changes| {
        if names_copies {
            // The warning about an earlier request ends.
            changes.hints.remove(COPIES);
        }
        changes.hints.extend(hints.clone());
        changes.metadata.extend(metadata.clone());
        Ok(())
    })
    .await?;
    RootAnswer::of(&true)
}

/// Returns the wanted number of copies if the shards of the collection have another one.
///
/// # Errors
/// `Unimplemented` if the request sets nothing else: it would have no effect at all.
fn other_copies(
    record: &CollectionRecord,
    request: &json::UpdateCollection,
) -> Result<Option<u64>> {
    let copies = record.copies;
    let wanted = request.replication_factor().filter(|wanted| *wanted != u64::from(copies));
    match wanted {
        Some(wanted) if request.sets_only_replication_factor() => {
            Err(Error::unimplemented(format!(
                "{COPIES}: the shards of this collection have {copies} copies each, and their number cannot be \
                 changed; download a snapshot, upload it under a new name with ?{COPIES}={wanted}, and move the \
                 alias that clients use"
            )))
        }
        wanted => Ok(wanted),
    }
}

/// Changes the collection of `record`. Returns the number of the change.
async fn change(
    context: &RootContext,
    record: &CollectionRecord,
    change: impl Fn(&mut CollectionChanges) -> Result<()> + Send + Sync,
) -> Result<u64> {
    let make = |all: &CatalogChanges| all.with_collection(&record.id, &change);
    context.state.catalog.change(&make).await
}

fn completed(number: u64) -> Value {
    json!({ "operation_id": number, "status": "completed" })
}
