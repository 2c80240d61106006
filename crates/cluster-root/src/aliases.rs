//! Aliases of collections: list and change them.

use api_qdrant::json;
use base::{ErrorKind, Result};
use bytes::Bytes;
use cluster_node::CatalogChanges;
use search::registry::AliasChange;

use super::call::RootContext;
use super::envelope::RootAnswer;

/// Lists the aliases by which the request's key may use a collection.
pub(super) async fn list(context: RootContext, _: Bytes) -> Result<RootAnswer> {
    let view = context.state.loaded_view()?;
    let seen = view.changes.aliases.iter().filter(|(alias, _)| context.sees(alias));
    let seen = seen.map(|(alias, collection)| (alias.clone(), collection.clone()));
    RootAnswer::of(&json::listed_aliases(seen))
}

/// Lists the aliases of a collection that the request's key may use.
pub(super) async fn of_collection(context: RootContext, _: Bytes) -> Result<RootAnswer> {
    let name = context.state.record(&context.collection)?.name.clone();
    let view = context.state.loaded_view()?;
    let aliases = view.changes.aliases.iter();
    let seen = aliases.filter(|(alias, collection)| **collection == name && context.sees(alias));
    let seen = seen.map(|(alias, collection)| (alias.clone(), collection.clone()));
    RootAnswer::of(&json::listed_aliases(seen))
}

/// Changes aliases, all or none. Other roots see the change within a second.
pub(super) async fn change(context: RootContext, body: Bytes) -> Result<RootAnswer> {
    let request: json::ChangeAliases = json::parse(&body)?;
    let actions = request.changes();
    match make(&context, &actions).await {
        // Another root may have created or removed a collection a moment ago.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::AlreadyExists) => {
            context.state.read_again(context.deadline).await;
            make(&context, &actions).await?
        }
        made => made?,
    };
    RootAnswer::of(&true)
}

/// Makes changes of aliases of the collections that the view has. Returns the number of the
/// version.
async fn make(context: &RootContext, actions: &[AliasChange]) -> Result<u64> {
    let view = context.state.loaded_view()?;
    let change = |changes: &CatalogChanges| {
        changes.with_aliases(actions, |name| view.collections.contains_key(name))
    };
    context.state.catalog.change(&change).await
}
