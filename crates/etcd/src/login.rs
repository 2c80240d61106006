//! A user of etcd and the token of its login.

use std::time::{Duration, Instant};

use base::{Error, Result};
use bytes::Bytes;
use http::HeaderValue;
use http_client::HttpClient;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use transport::access::Secret;

use super::wire;

const LOGIN_PATH: &str = "/v3/auth/authenticate";
/// Longest time of a login, and of the wait for the login of another request. etcd hashes the
/// password slowly on purpose.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(5);
/// Shortest time between two tokens that are forgotten because etcd did not answer. An etcd that is
/// only slow gets few logins, which would make it slower.
const FORGET_INTERVAL: Duration = Duration::from_secs(30);

/// A user of etcd, for a cluster with authentication enabled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdUser {
    /// User name, as in `etcdctl user add`.
    pub name: String,
    /// Password, which is sent in the body of a login.
    pub password: Secret,
}

/// Logins of a user. All requests share one token.
#[derive(Debug)]
pub(super) struct EtcdLogin {
    user: EtcdUser,
    /// Token of the last login. The lock is held during a login: requests that come meanwhile use
    /// its token.
    token: Mutex<EtcdToken>,
}

/// Token of the last login.
#[derive(Debug, Default)]
struct EtcdToken {
    /// The token. `None` before the first login, and if the token was refused or forgotten.
    value: Option<HeaderValue>,
    /// Time at which a token was last forgotten.
    forgotten: Option<Instant>,
}

impl EtcdLogin {
    pub(super) fn new(user: EtcdUser) -> EtcdLogin {
        EtcdLogin { user, token: Mutex::default() }
    }

    /// Returns the token that requests send, after a login if there is none. `refused` is a token
    /// that etcd has refused.
    ///
    /// # Errors
    /// `PermissionDenied` if etcd refuses name and password, `FailedPrecondition` if it has no
    /// users, `Unavailable` if it does not answer in time.
    pub(super) async fn token(
        &self,
        client: &HttpClient,
        address: &str,
        refused: Option<&HeaderValue>,
    ) -> Result<HeaderValue> {
        let login = async {
            let mut token = self.token.lock().await;
            if let Some(value) = token.value.as_ref().filter(|value| refused != Some(*value)) {
                return Ok(value.clone());
            }
            token.value = None;
            let fresh = self.log_in(client, address).await?;
            Ok(token.value.insert(fresh).clone())
        };
        tokio::time::timeout(LOGIN_TIMEOUT, login).await.unwrap_or_else(|_| {
            let seconds = LOGIN_TIMEOUT.as_secs();
            Err(Error::unavailable(format!(
                "{address} did not finish a login within {seconds} s; check that etcd is not overloaded"
            )))
        })
    }

    /// Forgets a token, if it is that of the last login and no token was forgotten within
    /// [`FORGET_INTERVAL`]. The next request logs in again.
    pub(super) fn forget(&self, token: &HeaderValue) {
        // A login that holds the lock replaces the token.
        let Ok(mut last) = self.token.try_lock() else { return };
        let is_early = last.forgotten.is_some_and(|at| at.elapsed() < FORGET_INTERVAL);
        if last.value.as_ref() == Some(token) && !is_early {
            last.value = None;
            last.forgotten = Some(Instant::now());
        }
    }

    /// Logs in and returns the token.
    ///
    /// # Errors
    /// `PermissionDenied` for a wrong name or password; `FailedPrecondition` if etcd has no users.
    async fn log_in(&self, client: &HttpClient, address: &str) -> Result<HeaderValue> {
        let EtcdUser { name, password } = &self.user;
        let body = Bytes::from(json!({ "name": name, "password": password.0 }).to_string());
        let answer = client.post(address, LOGIN_PATH, body, LOGIN_TIMEOUT).await?;
        if answer.status == 200 {
            tracing::debug!(address, user = name, "logged in to etcd");
            return wire::token(address, &answer.body);
        }
        let error = wire::refusal(address, answer.status, &answer.body);
        let parsed: Option<Value> = serde_json::from_slice(&answer.body).ok();
        Err(match parsed.as_ref().and_then(wire::code) {
            // Wrong passwords and unknown users.
            Some(wire::CODE_INVALID_ARGUMENT) => Error::denied(format!(
                "{}; check MILLPOND_ETCD_USER ({name:?}) and MILLPOND_ETCD_PASSWORD",
                error.message()
            )),
            Some(wire::CODE_FAILED_PRECONDITION) => Error::precondition(format!(
                "{}; enable users in etcd (etcdctl auth enable), or leave out MILLPOND_ETCD_USER and \
                 MILLPOND_ETCD_PASSWORD",
                error.message()
            )),
            _ => error,
        })
    }
}
