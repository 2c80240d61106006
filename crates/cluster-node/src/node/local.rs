//! Local collections of a node: one for each shard that it holds.

use std::sync::Arc;

use api_qdrant::{RegistrySource, ShardCall};
use axum::Router;
use axum::body::Body;
use axum::response::Response;
use base::{Error, ErrorKind, Result};
use bytes::Bytes;
use cluster::{EntryNumber, Epoch};
use http::{Method, Request, StatusCode, header};
use http_body_util::BodyExt;
use search::collection::OptimizerWork;
use search::registry::{ListedCollection, ListedState, NamedCollection};
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::types::{CollectionRecord, ShardKey};
use cluster_log::FollowPosition;

/// Member of a collection's extra data that has the position in the log.
const EXTRA: &str = "cluster";

/// The answer of a local collection.
#[derive(Clone, Debug)]
pub struct LocalAnswer {
    /// HTTP status.
    pub status: StatusCode,
    /// Qdrant's JSON.
    pub body: Bytes,
}

/// The collections of this process: Qdrant's routes over them, and the registry below.
#[derive(Clone)]
pub struct LocalCollections {
    router: Router,
    registry: Arc<dyn RegistrySource>,
}

impl LocalCollections {
    /// Wraps `router`, the routes of `api_qdrant` and `api_images` with their states, and the
    /// registry of these states.
    pub fn new(router: Router, registry: Arc<dyn RegistrySource>) -> LocalCollections {
        LocalCollections { router, registry }
    }

    /// Calls a route of a shard's collection. `path` begins after the name of the collection, such
    /// as `points/query`; `images/..` are the routes of [`api_images::shard_routes`].
    ///
    /// # Errors
    /// `Internal` if the path is not valid, or the answer breaks off.
    pub async fn call(
        &self,
        method: Method,
        key: &ShardKey,
        path: &str,
        body: Bytes,
    ) -> Result<LocalAnswer> {
        self.call_as(ShardCall::default(), method, key, path, body).await
    }

    /// Posts `body` to a route of a shard's collection, as [`LocalCollections::call`] does. Reads
    /// with the same body share clones of `call`.
    ///
    /// # Errors
    /// As [`LocalCollections::call`].
    pub(super) async fn read(
        &self,
        call: ShardCall,
        key: &ShardKey,
        path: &str,
        body: Bytes,
    ) -> Result<LocalAnswer> {
        self.call_as(call, Method::POST, key, path, body).await
    }

    /// Sends a request to the local collection of the shard `key`. `path` is the path below the
    /// collection; below `images/` it is one of the rounds of a search for images.
    async fn call_as(
        &self,
        call: ShardCall,
        method: Method,
        key: &ShardKey,
        path: &str,
        body: Bytes,
    ) -> Result<LocalAnswer> {
        let broken = |error: &dyn std::fmt::Display| {
            Error::internal(format!("shard {key}: {path}: {error}"))
        };
        let name = key.local_name();
        let path = match path.strip_prefix("images/") {
            Some(round) => format!("/v1/shards/{name}/{round}"),
            None if path.is_empty() => format!("/collections/{name}"),
            None => format!("/collections/{name}/{path}"),
        };
        let request = Request::builder()
            .method(method)
            .uri(&path)
            .header(header::CONTENT_TYPE, "application/json")
            .extension(call)
            .body(Body::from(body))
            .map_err(|error| broken(&error))?;
        let response = self.respond(request).await;
        let status = response.status();
        let body = response.into_body().collect().await.map_err(|error| broken(&error))?;
        Ok(LocalAnswer { status, body: body.to_bytes() })
    }

    /// Returns the response of the local routes to a request.
    pub(super) async fn respond(&self, request: Request<Body>) -> Response {
        let Ok(response) = self.router.clone().oneshot(request).await;
        response
    }

    /// Returns the collection of a shard, or `None` if there is none.
    ///
    /// # Errors
    /// `Unavailable` while it is being opened; the error of a broken one.
    pub fn find(&self, key: &ShardKey) -> Result<Option<Arc<NamedCollection>>> {
        match self.registry.registry()?.get(&key.local_name()) {
            Ok(named) => Ok(Some(named)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Creates the empty collection of a shard.
    ///
    /// # Errors
    /// `StorageFull` if the disk is full; `InvalidArgument` with the message of another refusal;
    /// `Internal` for a record that this build cannot read.
    pub async fn create(
        &self,
        key: &ShardKey,
        record: &CollectionRecord,
    ) -> Result<Arc<NamedCollection>> {
        if let Some(images) = record.images.clone() {
            let dims = record.image_dims().ok_or_else(|| {
                Error::internal(format!("the record of collection \"{}\" has no size", record.name))
            })?;
            let registry = self.registry.registry()?;
            let name = key.local_name();
            let space = record.originals_space();
            return blocking(move || images.create_shard(&registry, &name, dims, &space)).await;
        }
        let body = Bytes::from(record.create.to_string());
        let answer = self.call(Method::PUT, key, "", body).await?;
        if !answer.status.is_success() {
            let reason = error_text(&answer.body);
            let message = format!("the shard {key} cannot be created: {reason}");
            return Err(if answer.status == StatusCode::INSUFFICIENT_STORAGE {
                Error::storage_full(message)
            } else {
                Error::invalid(message)
            });
        }
        let missing = || Error::internal(format!("the shard {key} was created and is not there"));
        self.find(key)?.ok_or_else(missing)
    }

    /// Removes the collection of a shard if there is one.
    ///
    /// # Errors
    /// `Unavailable` while it is being opened; the error of the file system.
    pub async fn remove(&self, key: &ShardKey) -> Result<()> {
        let registry = self.registry.registry()?;
        let name = key.local_name();
        blocking(move || registry.remove(&name).map(drop)).await
    }

    /// Returns the shards that have a local collection which follows a log. Other collections of
    /// this directory are not shards.
    ///
    /// # Errors
    /// The error of the registry.
    pub(crate) fn shards(&self) -> Result<Vec<ShardKey>> {
        let is_shard = |listed: &ListedCollection| match &listed.state {
            ListedState::Ready(named) => position(named).is_some(),
            ListedState::Opening | ListedState::Broken(_) => false,
        };
        let listed = self.registry.registry()?.list();
        let shards = listed.iter().filter(|listed| is_shard(listed));
        Ok(shards.filter_map(|listed| shard_of_name(&listed.name)).collect())
    }

    /// Returns the flushes and merges that run or wait in all collections.
    ///
    /// # Errors
    /// The error of the registry.
    pub(super) async fn optimizer_work(&self) -> Result<OptimizerWork> {
        let registry = self.registry.registry()?;
        // Each collection takes locks, and a node has up to a thousand.
        blocking(move || {
            let mut work = OptimizerWork::default();
            for listed in registry.list() {
                if let ListedState::Ready(named) = listed.state {
                    work.add(named.collection().optimizer_work());
                }
            }
            Ok(work)
        })
        .await
    }

    /// Returns the registry.
    ///
    /// # Errors
    /// The error of the registry.
    pub fn registry(&self) -> Result<Arc<search::registry::Registry>> {
        self.registry.registry()
    }
}

/// Returns the shard of a local collection's name, or `None` for another collection.
fn shard_of_name(name: &str) -> Option<ShardKey> {
    let (collection, shard) = name.rsplit_once('.')?;
    let digits = shard.len() == 4 && shard.bytes().all(|byte| byte.is_ascii_digit());
    let number = shard.parse().ok().filter(|_| digits)?;
    Some(ShardKey::new(collection, number))
}

/// Returns the position that the collection has applied, or `None` if it has none.
pub(super) fn position(named: &NamedCollection) -> Option<FollowPosition> {
    position_in(&named.settings().extra)
}

/// Returns the position in the extra data of a collection, if there is one.
pub(super) fn position_in(extra: &Value) -> Option<FollowPosition> {
    let stored = extra.get(EXTRA)?;
    let next = EntryNumber(stored.get("next")?.as_u64()?);
    let epoch = Epoch(stored.get("epoch")?.as_u64()?);
    Some(FollowPosition { next, epoch })
}

/// Stores the position with the collection. Durable when this returns. Blocks the thread.
///
/// # Errors
/// `NotFound` if the collection was removed; the error of the file system.
pub(super) fn store_position(named: &NamedCollection, position: FollowPosition) -> Result<()> {
    named.change_extra(|extra| {
        set_position(extra, position);
        Ok(())
    })
}

/// Sets the position in the extra data of a collection.
pub(crate) fn set_position(extra: &mut Value, position: FollowPosition) {
    if !extra.is_object() {
        *extra = json!({});
    }
    extra[EXTRA] = json!({ "next": position.next.0, "epoch": position.epoch.0 });
}

/// Runs `work` on a thread that may block.
///
/// # Errors
/// The error of `work`; `Internal` if it panicked.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(Error::internal("work of the cluster").caused_by(error)))
}

/// Runs `work` at low priority on a thread of its own. `doing` ("restoring a snapshot") is for
/// messages.
///
/// # Errors
/// The error of `work`; `ResourceExhausted` if there is no thread; `Internal` if it panicked.
pub(crate) async fn at_low_priority<T: Send + 'static>(
    doing: &'static str,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let (sender, done) = tokio::sync::oneshot::channel();
    let body = move || {
        // Not idle priority, because it takes locks of queries.
        os::thread::enter_low_priority(doing);
        // The waiting task may have been dropped.
        let _ = sender.send(work());
    };
    os::thread::spawn("low-priority", body).map_err(|error| error.context(doing))?;
    done.await.unwrap_or_else(|_| Err(Error::internal(format!("{doing}: the thread panicked"))))
}

/// Returns the message of an error response of Qdrant's interface, or the body if it has none.
fn error_text(body: &[u8]) -> String {
    let json: Option<Value> = serde_json::from_slice(body).ok();
    let text = json.as_ref().and_then(|json| json.pointer("/status/error")?.as_str());
    text.map_or_else(|| String::from_utf8_lossy(body).into_owned(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{TestRegistry, open_registry};

    #[tokio::test]
    async fn work_at_low_priority_returns_its_outcome() {
        assert_eq!(at_low_priority("counting", || Ok(7)).await.unwrap(), 7);
        let failed = at_low_priority("counting", || Err::<(), _>(Error::invalid("why"))).await;
        assert_eq!(failed.unwrap_err().message(), "why");
        let panicked = at_low_priority("counting", || -> Result<()> { panic!("a test") }).await;
        assert!(panicked.unwrap_err().message().contains("counting"));
    }

    #[tokio::test]
    async fn a_shard_that_cannot_be_created_names_a_full_disk() {
        let directory = tempfile::tempdir().unwrap();
        let registry = open_registry(directory.path());
        let record = CollectionRecord {
            name: "docs".to_owned(),
            id: "1".to_owned(),
            shards: 1,
            copies: 1,
            create: json!({}),
            images: None,
        };
        for (status, kind, body) in [
            (StatusCode::INSUFFICIENT_STORAGE, ErrorKind::StorageFull, "full"),
            (
                StatusCode::BAD_REQUEST,
                ErrorKind::InvalidArgument,
                r#"{"status":{"error":"full"},"time":0.1}"#,
            ),
        ] {
            let router = Router::new().fallback(move || async move { (status, body) });
            let local = LocalCollections::new(router, Arc::new(TestRegistry(registry.clone())));
            let error = local.create(&ShardKey::new("1", 0), &record).await.map(drop).unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            assert_eq!(error.message(), "the shard 1/0000 cannot be created: full");
        }
    }

    #[test]
    fn local_names_lead_to_their_shards() {
        let key = ShardKey::new("photos-0a1b2c3d", 7);
        assert_eq!(key.local_name(), "photos-0a1b2c3d.0007");
        assert_eq!(shard_of_name(&key.local_name()), Some(key));
        for other in ["photos", "a.7", "a.00007", "a.+007", ".x"] {
            assert_eq!(shard_of_name(other), None, "{other}");
        }
    }
}
