//! Routes between nodes for images: extraction of a query, and the stored images of a shard.

use std::sync::Arc;

use api_images::ImageSettings;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use base::{Error, Result};
use http::{HeaderMap, Method, Uri};
use serde::{Deserialize, Serialize};
use transport::Reply;
use transport::access::KeyGrant;

use super::ClusterNode;
use crate::types::ShardKey;

/// Path of the extraction of a query.
pub const EXTRACT_PATH: &str = "/cluster/v1/extract";
/// Header of an extraction: [`ExtractionRequest`] as JSON.
pub const EXTRACT_HEADER: &str = "x-extract";
/// Parts of a stored image that another node may ask for.
const IMAGE_PARTS: [&str; 4] = ["thumbnail", "keypoints", "template", "features"];
/// Route that compares a file with a stored fingerprint.
const VERIFY: &str = "verify";

/// Properties of the features that a root wants.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ExtractionRequest {
    /// Kind and model of the collection.
    pub settings: ImageSettings,
    /// Number of values of an embedding.
    pub dims: usize,
    /// The step whose views are wanted; `None` for the whole image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub views: Option<usize>,
}

/// Returns the path below which another node has the stored images of a shard.
pub fn images_path(key: &ShardKey) -> String {
    format!("/cluster/v1/shards/{}/{}", key.collection, key.shard.0)
}

pub(super) fn routes() -> Router<Arc<ClusterNode>> {
    Router::new()
        .route(EXTRACT_PATH, post(extract))
        .route("/cluster/v1/shards/{id}/{shard}/{*rest}", get(stored).post(stored))
}

/// Extracts the features of the image in the body.
async fn extract(
    State(node): State<Arc<ClusterNode>>,
    grant: Option<Extension<KeyGrant>>,
    headers: HeaderMap,
    body: Body,
) -> Reply {
    Reply::of(extracted(&node, grant.as_deref(), &headers, body).await)
}

async fn extracted(
    node: &ClusterNode,
    grant: Option<&KeyGrant>,
    headers: &HeaderMap,
    body: Body,
) -> Result<Reply> {
    if !node.roles.extract {
        return Err(Error::unavailable(format!("node {} has no role extract", node.name())));
    }
    let wanted = headers.get(EXTRACT_HEADER).and_then(|value| value.to_str().ok());
    let wanted = wanted.ok_or_else(|| Error::invalid(format!("{EXTRACT_HEADER} is missing")))?;
    let wanted: ExtractionRequest = serde_json::from_str(wanted)
        .map_err(|error| Error::invalid(EXTRACT_HEADER).caused_by(error))?;
    check_model(grant, &wanted.settings)?;
    let bytes = node.requests.read_body(headers, body).await?;
    let ExtractionRequest { settings, dims, views } = wanted;
    let encoded = match views {
        Some(step) => {
            serde_json::to_vec(&node.images.extract_views(&settings, dims, bytes, step).await?)
        }
        None => serde_json::to_vec(&node.images.extract_query(&settings, dims, bytes).await?),
    };
    encoded
        .map(Reply::json)
        .map_err(|error| Error::internal("features cannot be written").caused_by(error))
}

/// Checks that a key permits the model of an extraction. The key of the nodes permits all models,
/// but each key that may read all collections reaches this route.
///
/// # Errors
/// `PermissionDenied` if it does not.
fn check_model(grant: Option<&KeyGrant>, settings: &ImageSettings) -> Result<()> {
    match grant {
        Some(grant) if settings.has_embeddings() => grant.check_model(&settings.model),
        _ => Ok(()),
    }
}

/// Answers with the local route of a stored image.
async fn stored(
    State(node): State<Arc<ClusterNode>>,
    Path((id, shard, rest)): Path<(String, u32, String)>,
    request: Request,
) -> Response {
    let key = ShardKey::new(&id, shard);
    let answered = answer_stored(&node, &key, &rest, request).await;
    answered.unwrap_or_else(|error| Reply::error(&error).into_response())
}

/// Answers a request for a stored image from the local copy of the shard.
///
/// # Errors
/// `Unavailable` if this node does not serve the shard, or stopped to serve it meanwhile.
async fn answer_stored(
    node: &ClusterNode,
    key: &ShardKey,
    rest: &str,
    request: Request,
) -> Result<Response> {
    let unserved =
        || Error::unavailable(format!("node {} does not serve the shard {key}", node.name()));
    let state = node.held.find(key).ok_or_else(unserved)?;
    // Before the check: otherwise the collection could be opened again between the two.
    let generation = state.generation();
    if !state.is_caught_up() {
        return Err(unserved());
    }
    let response = node.services.local.respond(local_request(key, rest, request)?).await;
    state.check_generation(key, generation)?;
    Ok(response)
}

/// Returns the request to the local collection of a shard.
///
/// # Errors
/// `InvalidArgument` for another route.
fn local_request(key: &ShardKey, rest: &str, request: Request) -> Result<http::Request<Body>> {
    if !is_passed_on(request.method(), rest) {
        return Err(Error::invalid(format!("{rest:?} of an image is not passed between nodes")));
    }
    let (mut parts, body) = request.into_parts();
    let query = parts.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let path = format!("/v1/images/{}/{rest}{query}", key.local_name());
    parts.uri = Uri::try_from(path)
        .map_err(|error| Error::invalid(format!("{rest:?} is not a path")).caused_by(error))?;
    // The path parameters of this route differ from the parameters of the local one.
    parts.extensions = http::Extensions::new();
    Ok(http::Request::from_parts(parts, body))
}

/// Returns true for the routes that read one stored image.
fn is_passed_on(method: &Method, rest: &str) -> bool {
    let post = method == Method::POST;
    match rest.split_once('/') {
        None if post => rest == VERIFY,
        None => method.is_safe() && rest != VERIFY,
        Some((_, part)) => method.is_safe() && IMAGE_PARTS.contains(&part),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use api_images::ImageKind;
    use http::{HeaderValue, header};
    use metrics::Metrics;
    use transport::access::{
        AccessPolicy, BrowserSessions, Caller, CorsPolicy, KeyRing, KeyRole, KeySources, Operation,
    };

    use super::*;

    /// Returns the rights of a key for models "rank*".
    fn grant() -> KeyGrant {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("keys.toml");
        let hash = blake3::hash(b"k").to_hex();
        let entry = "role = \"read\"\nmodels = [\"rank*\"]";
        let text = format!("[[keys]]\nname = \"k\"\nhash = \"blake3:{hash}\"\n{entry}\n");
        std::fs::write(&file, text).unwrap();
        let sources = KeySources { file: Some(&file), api_key: None, admin_key: None };
        let policy = AccessPolicy {
            host: IpAddr::V4(Ipv4Addr::LOCALHOST),
            allowed_hosts: Vec::new(),
            allow_remote_admin: false,
            keys: KeyRing::read(sources).unwrap().map(Arc::new),
            cors: CorsPolicy::default(),
            metrics: Arc::new(Metrics::default()),
        };
        let key = HeaderValue::from_static("Bearer k");
        let headers = HeaderMap::from_iter([(header::AUTHORIZATION, key)]);
        let caller = Caller { peer: None, headers: &headers };
        policy
            .authorize(caller, BrowserSessions::Ignored, &Operation::new(KeyRole::Read))
            .unwrap()
            .unwrap()
    }

    #[test]
    fn an_extraction_runs_only_models_of_the_key() {
        let grant = grant();
        let check = |grant: Option<&KeyGrant>, kind: ImageKind, model: &str| {
            check_model(grant, &ImageSettings { kind, model: model.to_owned() }).is_ok()
        };
        assert!(check(Some(&grant), ImageKind::Photo, "rank1"));
        assert!(!check(Some(&grant), ImageKind::Photo, "echo"));
        assert!(!check(Some(&grant), ImageKind::Fingerprint, "echo"));
        assert!(check(Some(&grant), ImageKind::Fingerprint, "none"), "it runs no model");
        assert!(check(None, ImageKind::Photo, "echo"), "the server needs no keys");
    }

    #[test]
    fn only_reads_of_one_image_are_passed_on() {
        for rest in ["7", "7/thumbnail", "7/keypoints", "7/template", "7/features"] {
            assert!(is_passed_on(&Method::GET, rest), "{rest}");
            assert!(!is_passed_on(&Method::POST, rest), "{rest}");
            assert!(!is_passed_on(&Method::DELETE, rest), "{rest}");
        }
        assert!(is_passed_on(&Method::POST, "verify"));
        for rest in ["rebuild", "duplicates", "search", "features", "7/other", "7/a/thumbnail"] {
            assert!(!is_passed_on(&Method::POST, rest), "{rest}");
        }
        assert!(!is_passed_on(&Method::GET, "7/other"));
        assert!(!is_passed_on(&Method::GET, "duplicates/groups"));
    }
}
