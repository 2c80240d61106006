//! The repository extension over HTTP: index, load, unload.

use std::collections::BTreeMap;

use api_models::view;
use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, State};
use base::Result;
use http::{HeaderMap, Uri};
use lifecycle::LoadSpec;
use protocol::oip;
use transport::access::{Caller, KeyGrant};
use transport::{Peer, Reply, Shared, check_no_query};

use super::oip::ModelPath;
use crate::admin;
use crate::models::ModelsState;

#[derive(Default, serde::Deserialize)]
struct IndexRequest {
    #[serde(default)]
    ready: bool,
}

pub(super) async fn index(
    State(state): Shared<ModelsState>,
    grant: Option<Extension<KeyGrant>>,
    headers: HeaderMap,
    body: Body,
) -> Reply {
    let request = json_or_default::<IndexRequest>(&state, &headers, body).await;
    Reply::of(request.map(|request| {
        let entries = view::repository_index(&state.lifecycle, request.ready, grant.as_deref());
        Reply::json(oip::json::repository_index(&entries))
    }))
}

/// Millpond's own parameter of a load: the version to load.
#[derive(Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct RepositoryLoadRequest {
    #[serde(default)]
    parameters: LoadParameters,
}

#[derive(Default, serde::Deserialize)]
struct LoadParameters {
    version: Option<u64>,
    /// Other parameters, which are refused by their names.
    #[serde(flatten)]
    others: BTreeMap<String, serde::de::IgnoredAny>,
}

/// Loads the versions that the policy selects, or the version that the body names.
pub(super) async fn load(
    State(state): Shared<ModelsState>,
    Path(target): Path<ModelPath>,
    Extension(peer): Extension<Peer>,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Reply {
    let caller = Caller { peer: Some(peer), headers: &headers };
    let request = admin::request("load model", &target.model, caller);
    let loaded = async {
        // Otherwise `load?version=3` would load the versions of the policy.
        check_no_query(&uri)?;
        let message = json_or_default::<RepositoryLoadRequest>(&state, &headers, body).await?;
        if let Some(name) = message.parameters.others.keys().next() {
            return Err(oip::refused_load_parameter(name));
        }
        let spec = LoadSpec { version: message.parameters.version, ..LoadSpec::default() };
        admin::load(&state, &target.model, spec).await
    };
    let loaded = state.access.admin(request, loaded).await;
    Reply::of(loaded.map(|()| Reply::json("{}")))
}

pub(super) async fn unload(
    State(state): Shared<ModelsState>,
    Path(target): Path<ModelPath>,
    Extension(peer): Extension<Peer>,
    headers: HeaderMap,
) -> Reply {
    let caller = Caller { peer: Some(peer), headers: &headers };
    let request = admin::request("unload model", &target.model, caller);
    let unloaded = admin::unload(&state.lifecycle, &target.model);
    let unloaded = state.access.admin(request, unloaded).await;
    Reply::of(unloaded.map(|()| Reply::json("{}")))
}

async fn json_or_default<T>(state: &ModelsState, headers: &HeaderMap, body: Body) -> Result<T>
where
    T: Default + serde::de::DeserializeOwned + Send + 'static,
{
    let body = state.requests.read_json_body(headers, body).await?;
    if body.iter().all(u8::is_ascii_whitespace) {
        return Ok(T::default());
    }
    state.requests.parse_json(body).await
}
