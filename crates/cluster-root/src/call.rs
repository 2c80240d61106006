//! One request: reads it within its limits, and answers in Qdrant's envelope.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use api_qdrant::{json, refuse};
use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, MatchedPath, Path, Request};
use base::{Error, ErrorKind, Result};
use bytes::Bytes;
use cluster_node::CollectionRecord;
use http::request::Parts;
use http::{HeaderMap, Method};
use transport::access::KeyGrant;
use transport::{CodecStep, INLINE_BYTES_MAX, Reply};

use super::envelope::{RootAnswer, reply};
use super::params::RootParams;
use super::shard_read::{ResultTexts, ShardAnswers, result_bytes};
use super::state::RootState;

/// A request that is not handled yet.
pub(super) struct RootCall {
    context: RootContext,
    headers: HeaderMap,
    body: Body,
    started: Instant,
}

/// Parts of a request that its handler uses besides the body.
#[derive(Clone)]
pub struct RootContext {
    /// State of the routes.
    pub state: Arc<RootState>,
    /// The collection's name; empty if the path has none.
    pub collection: String,
    /// The part of the collection in the path, such as a point; empty if the path has none.
    pub item: String,
    /// Parameters that every route has.
    pub params: RootParams,
    /// The earlier end of the client's timeout and the server's.
    pub deadline: Instant,
    /// Rights of the request's key; `None` if the server needs no keys.
    grant: Option<KeyGrant>,
}

impl RootContext {
    /// Reads the context of a request from its head, and waits until the collections are known.
    /// The request began at `started`.
    ///
    /// # Errors
    /// `InvalidArgument` for a path that cannot be read, or a name that is too long.
    pub async fn read(
        parts: &mut Parts,
        state: &Arc<RootState>,
        params: RootParams,
        started: Instant,
    ) -> Result<RootContext> {
        let path = Path::<HashMap<String, String>>::from_request_parts(parts, state).await;
        let Path(mut path) = path.map_err(|error| Error::invalid(error.body_text()))?;
        let collection = path.remove("collection").unwrap_or_default();
        if collection.len() > json::NAME_BYTES_MAX {
            return Err(json::name_too_long(collection.len()));
        }
        let timeout = params.timeout.unwrap_or(Duration::MAX);
        let context = RootContext {
            collection,
            item: path.remove("item").or_else(|| path.remove("id")).unwrap_or_default(),
            params,
            deadline: started + timeout.min(state.requests.limits.request_timeout),
            grant: parts.extensions.get().cloned(),
            state: state.clone(),
        };
        state.wait_loaded(context.deadline).await;
        if !context.collection.is_empty() && !changes_whole_collection(parts) {
            state.wait_known(&context.collection, context.deadline).await;
        }
        Ok(context)
    }

    /// Returns true if the request's key may use the collection `name`.
    pub fn sees(&self, name: &str) -> bool {
        self.grant.as_ref().is_none_or(|grant| grant.sees_collection(name))
    }

    /// Returns the rights of the request's key; `None` if the server needs no keys.
    pub(super) fn grant(&self) -> Option<&KeyGrant> {
        self.grant.as_ref()
    }

    /// Returns the record of the collection `name`, which the request names in addition to its own.
    ///
    /// # Errors
    /// `PermissionDenied` if the request's key may not use it; as [`RootState::record`].
    pub(super) fn other_record(&self, name: &str) -> Result<Arc<CollectionRecord>> {
        if !self.sees(name) {
            let shown: String = name.chars().take(80).collect();
            return Err(Error::denied(format!("the key may not use the collection {shown:?}")));
        }
        self.state.record(name)
    }

    /// Lets a strong read see the newest collection of its name ([`RootState::see_newest`]).
    ///
    /// # Errors
    /// As [`RootState::see_newest`].
    pub async fn see_newest_if_strong(&self) -> Result<()> {
        if !self.params.strong {
            return Ok(());
        }
        self.state.see_newest(&self.collection, self.deadline).await
    }

    /// Returns the newest record of the collection ([`RootState::see_newest`]).
    ///
    /// # Errors
    /// As [`RootState::see_newest`] and [`RootState::record`].
    pub(super) async fn newest_record(&self) -> Result<Arc<CollectionRecord>> {
        self.state.see_newest(&self.collection, self.deadline).await?;
        self.state.record(&self.collection)
    }

    /// Reads the collections once more if this root does not know one of `names`, which the request
    /// names in addition to its own. Another root may have created it a moment ago. Lets a strong
    /// read see the newest collections of these names.
    ///
    /// # Errors
    /// As [`RootState::see_newest`].
    pub(super) async fn wait_others(&self, names: &[&str]) -> Result<()> {
        let names: BTreeSet<&str> = names.iter().copied().filter(|name| self.sees(name)).collect();
        let view = self.state.view.current();
        let unknown = names.iter().find(|name| view.collection(name).is_none());
        if let Some(name) = unknown {
            self.state.wait_known(name, self.deadline).await;
        }
        if self.params.strong {
            for name in names {
                self.state.see_newest(name, self.deadline).await?;
            }
        }
        Ok(())
    }

    /// Refuses a request that would create a collection which its key may not create.
    ///
    /// # Errors
    /// `PermissionDenied` for such a request.
    pub fn check_creates(&self) -> Result<()> {
        let Some(grant) = &self.grant else { return Ok(()) };
        match self.state.record(&self.collection) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                grant.check_create(&self.collection)
            }
            _ => Ok(()),
        }
    }

    /// Sets the deadline to `time` from now, or to the client's timeout if that is shorter.
    pub fn with_time(self, time: Duration) -> RootContext {
        let time = self.params.timeout.map_or(time, |timeout| timeout.min(time));
        RootContext { deadline: Instant::now() + time, ..self }
    }

    /// Runs `work` on a codec thread if a text of `bytes` bytes is large, and otherwise at once.
    ///
    /// # Errors
    /// As [`transport::CodecThreads::run_if`].
    pub async fn compute<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.state.requests.codec.run_if(bytes > INLINE_BYTES_MAX, CodecStep::Decode, work).await
    }

    /// Runs `work` on the results of shards, as [`RootContext::compute`] does, and then releases
    /// their memory.
    ///
    /// # Errors
    /// As [`RootContext::compute`].
    pub(super) async fn compute_results<T: Send + 'static>(
        &self,
        answers: ShardAnswers,
        work: impl FnOnce(&ResultTexts) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let ShardAnswers { results, reservation: _reservation, .. } = answers;
        self.compute(result_bytes(&results), move || work(&results)).await
    }
}

/// Returns true if a request creates or removes a collection. These read its record from the store.
fn changes_whole_collection(parts: &Parts) -> bool {
    let is_collection = |path: &MatchedPath| path.as_str().ends_with("/{collection}");
    matches!(parts.method, Method::PUT | Method::DELETE)
        && parts.extensions.get::<MatchedPath>().is_some_and(is_collection)
}

impl FromRequest<Arc<RootState>> for RootCall {
    type Rejection = Reply;

    async fn from_request(request: Request, state: &Arc<RootState>) -> Result<RootCall, Reply> {
        let started = Instant::now();
        let refused = |error: Error| refuse(&error, started.elapsed());
        let (mut parts, body) = request.into_parts();
        let params = RootParams::parse(&parts.uri, &parts.headers).map_err(refused)?;
        let context = RootContext::read(&mut parts, state, params, started).await;
        let context = context.map_err(refused)?;
        Ok(RootCall { context, headers: parts.headers, body, started })
    }
}

impl RootCall {
    /// Answers with the outcome of `handler`. If the client disconnects, the handler stops at its
    /// next wait.
    pub(super) async fn answer<F: Future<Output = Result<RootAnswer>>>(
        self,
        handler: impl FnOnce(RootContext, Bytes) -> F,
    ) -> Reply {
        let RootCall { context, headers, body, started } = self;
        let state = context.state.clone();
        let result = async {
            state.requests.check_room()?;
            let body: Bytes = state.requests.read_json_body(&headers, body).await?;
            let _admitted = state.requests.admit()?;
            context.see_newest_if_strong().await?;
            handler(context, body).await
        };
        let result = Box::pin(result).await;
        reply(result, &state.requests, started.elapsed())
    }
}
