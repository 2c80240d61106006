//! Aliases: changes as requests, and lists of responses as messages.

use base::{Error, Result};
use http::Method;
use protocol::qdrant as pb;
use protocol::qdrant::alias_operations::Action;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::rest::{RestRequest, RestResponse, segment};

pub(crate) fn change(message: pb::ChangeAliases) -> Result<RestRequest> {
    let action = |(at, operation): (usize, pb::AliasOperations)| {
        let empty = || Error::invalid(format!("actions[{at}]: the action is empty"));
        Ok(match operation.action.ok_or_else(empty)? {
            Action::CreateAlias(it) => json!({ "create_alias": {
                "collection_name": it.collection_name, "alias_name": it.alias_name } }),
            Action::RenameAlias(it) => json!({ "rename_alias": {
                "old_alias_name": it.old_alias_name, "new_alias_name": it.new_alias_name } }),
            Action::DeleteAlias(it) => json!({ "delete_alias": { "alias_name": it.alias_name } }),
        })
    };
    let actions: Vec<Value> =
        message.actions.into_iter().enumerate().map(action).collect::<Result<_>>()?;
    let request = RestRequest::new(Method::POST, "/collections/aliases".to_owned());
    Ok(request.with_timeout(message.timeout).with_json(&json!({ "actions": actions })))
}

pub(crate) fn list(_: pb::ListAliasesRequest) -> Result<RestRequest> {
    Ok(RestRequest::new(Method::GET, "/aliases".to_owned()))
}

pub(crate) fn list_of_collection(message: pb::ListCollectionAliasesRequest) -> Result<RestRequest> {
    let path = format!("/collections/{}/aliases", segment(&message.collection_name));
    Ok(RestRequest::new(Method::GET, path))
}

#[derive(Deserialize)]
struct AliasList {
    aliases: Vec<AliasJson>,
}

#[derive(Deserialize)]
struct AliasJson {
    alias_name: String,
    collection_name: String,
}

pub(crate) fn listed(response: &RestResponse<'_>) -> Result<pb::ListAliasesResponse> {
    let parsed = response.parse::<AliasList>()?;
    let described = |alias: AliasJson| pb::AliasDescription {
        alias_name: alias.alias_name,
        collection_name: alias.collection_name,
    };
    let aliases = parsed.result.aliases.into_iter().map(described).collect();
    Ok(pb::ListAliasesResponse { aliases, time: parsed.time })
}
