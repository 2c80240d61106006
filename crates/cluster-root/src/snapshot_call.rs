//! A request that transfers a snapshot. Its body, or its answer, is a stream.

use std::sync::Arc;
use std::time::Instant;

use api_qdrant::refuse;
use axum::body::Body;
use axum::extract::{FromRequest, Request};
use base::{Error, Result};
use cluster_node::backups::ImportTarget;
use http::HeaderMap;
use search::registry::check_name;
use serde::Deserialize;
use transport::{HeaderTimeout, Peer, Reply};

use super::call::RootContext;
use super::envelope::{RootAnswer, reply};
use super::new_shards::NewShards;
use super::params::RouteQuery;
use super::state::RootState;

/// A request whose body is not read yet.
pub(super) struct SnapshotCall {
    pub(super) context: RootContext,
    pub(super) params: TransferParams,
    pub(super) headers: HeaderMap,
    pub(super) peer: Option<Peer>,
    pub(super) header_timeout: HeaderTimeout,
    pub(super) body: Body,
    started: Instant,
}

/// Parameters of the query string besides those of every route.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TransferParams {
    wait: Option<bool>,
    /// Without effect, because the new collection has no replicas yet.
    #[serde(rename = "priority")]
    _priority: Option<RecoverPriority>,
    checksum: Option<String>,
    shard_number: Option<u32>,
    replication_factor: Option<u32>,
}

/// Qdrant's rule for replicas that differ.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum RecoverPriority {
    NoSync,
    Snapshot,
    Replica,
}

impl TransferParams {
    /// Returns the collection that the archive of a request becomes.
    ///
    /// # Errors
    /// `InvalidArgument` for a name or a number that no collection has; `Unimplemented` for
    /// `checksum`.
    pub(super) fn target(&self, name: &str) -> Result<ImportTarget> {
        check_name(name)?;
        check_checksum(self.checksum.as_deref())?;
        let new = NewShards::checked(self.shard_number, self.replication_factor)?;
        Ok(ImportTarget { name: name.to_owned(), shards: new.shards, copies: new.copies })
    }

    /// Returns true if the request names the shards of the new collection.
    pub(super) fn names_shards(&self) -> bool {
        self.shard_number.is_some() || self.replication_factor.is_some()
    }
}

/// Checks that a request gives no checksum of a snapshot.
///
/// # Errors
/// `Unimplemented` for a checksum.
pub(super) fn check_checksum(checksum: Option<&str>) -> Result<()> {
    match checksum {
        Some(_) => Err(Error::unimplemented(
            "\"checksum\" is not supported; each file in a snapshot has its own checksum, which is compared",
        )),
        None => Ok(()),
    }
}

impl FromRequest<Arc<RootState>> for SnapshotCall {
    type Rejection = Reply;

    async fn from_request(request: Request, state: &Arc<RootState>) -> Result<SnapshotCall, Reply> {
        let started = Instant::now();
        let refused = |error: Error| refuse(&error, started.elapsed());
        let (mut parts, body) = request.into_parts();
        let mut query = RouteQuery::split(&parts.uri, &parts.headers).map_err(refused)?;
        let params: TransferParams = query.route_parameters().map_err(refused)?;
        query.params.wait = params.wait.unwrap_or(true);
        let context = RootContext::read(&mut parts, state, query.params, started).await;
        let context = context.map_err(refused)?;
        let peer = parts.extensions.remove();
        let header_timeout = parts.extensions.remove().unwrap_or_default();
        let headers = parts.headers;
        Ok(SnapshotCall { context, params, headers, peer, header_timeout, body, started })
    }
}

impl SnapshotCall {
    /// Answers with the outcome of `handler`. If the client disconnects, the handler stops at its
    /// next wait.
    pub(super) async fn answer<F: Future<Output = Result<RootAnswer>>>(
        self,
        handler: impl FnOnce(SnapshotCall) -> F,
    ) -> Reply {
        let state = self.context.state.clone();
        let started = self.started;
        let result = Box::pin(handler(self)).await;
        reply(result, &state.requests, started.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use base::ErrorKind;

    use super::super::collections::{COPIES_DEFAULT, SHARDS_DEFAULT};
    use super::*;

    #[test]
    fn shards_of_an_uploaded_collection_have_limits() {
        let target = TransferParams::default().target("c").unwrap();
        assert_eq!((target.shards, target.copies), (SHARDS_DEFAULT, COPIES_DEFAULT));
        let own = TransferParams {
            shard_number: Some(3),
            replication_factor: Some(1),
            ..TransferParams::default()
        };
        assert!(own.names_shards());
        let target = own.target("c").unwrap();
        assert_eq!((target.shards, target.copies), (3, 1));
        assert!(own.target(".c").is_err());
        let wrong = TransferParams { shard_number: Some(0), ..TransferParams::default() };
        assert!(wrong.target("c").unwrap_err().message().contains("shard_number"));
        let checksum = Some("ab".to_owned());
        let wrong = TransferParams { checksum, ..TransferParams::default() };
        assert_eq!(wrong.target("c").unwrap_err().kind(), ErrorKind::Unimplemented);
    }
}
