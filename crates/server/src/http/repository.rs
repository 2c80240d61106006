//! The repository extension over HTTP: index, load, unload.

use std::collections::BTreeMap;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, State};
use base::Result;
use http::HeaderMap;
use lifecycle::LoadSpec;
use protocol::oip;
use transport::{Peer, Reply};

use super::oip::ModelPath;
use crate::app::{App, Shared};
use crate::{admin, view};

#[derive(Default, serde::Deserialize)]
struct IndexRequest {
    #[serde(default)]
    ready: bool,
}

pub(super) async fn index(State(app): Shared, headers: HeaderMap, body: Body) -> Reply {
    let request = json_or_default::<IndexRequest>(&app, &headers, body).await;
    Reply::of(request.map(|request| {
        let entries = view::repository_index(&app, request.ready);
        Reply::json(oip::json::repository_index(&entries))
    }))
}

/// Millpond's own parameter of a load: the version to load.
#[derive(Default, serde::Deserialize)]
struct RepositoryLoadRequest {
    #[serde(default)]
    parameters: LoadParameters,
}

#[derive(Default, serde::Deserialize)]
struct LoadParameters {
    version: Option<u64>,
    /// Names of other parameters; their values are ignored.
    #[serde(flatten)]
    others: BTreeMap<String, serde::de::IgnoredAny>,
}

pub(super) async fn load(
    State(app): Shared,
    Path(target): Path<ModelPath>,
    Extension(peer): Extension<Peer>,
    headers: HeaderMap,
    body: Body,
) -> Reply {
    let loaded = async {
        app.access.check_admin(admin::ADMIN_CALL, Some(peer), &headers)?;
        app.access.check_admin_page(&headers)?;
        let request = json_or_default::<RepositoryLoadRequest>(&app, &headers, body).await?;
        request.parameters.others.keys().try_for_each(|name| oip::check_load_parameter(name))?;
        let spec = LoadSpec { version: request.parameters.version, ..LoadSpec::default() };
        admin::load(&app, &target.model, spec).await
    };
    Reply::of(loaded.await.map(|()| Reply::json("{}")))
}

pub(super) async fn unload(
    State(app): Shared,
    Path(target): Path<ModelPath>,
    Extension(peer): Extension<Peer>,
    headers: HeaderMap,
) -> Reply {
    let unloaded = async {
        app.access.check_admin(admin::ADMIN_CALL, Some(peer), &headers)?;
        app.access.check_admin_page(&headers)?;
        admin::unload(&app, &target.model).await
    };
    Reply::of(unloaded.await.map(|()| Reply::json("{}")))
}

async fn json_or_default<T>(app: &App, headers: &HeaderMap, body: Body) -> Result<T>
where
    T: Default + serde::de::DeserializeOwned + Send + 'static,
{
    let body = app.requests.read_json_body(headers, body).await?;
    if body.iter().all(u8::is_ascii_whitespace) {
        return Ok(T::default());
    }
    app.requests.parse_json(body).await
}
