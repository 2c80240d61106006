//! Login of browsers: a form takes a key, and a cookie holds a session.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use base::{Error, ErrorKind};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use serde_json::json;
use transport::access::{
    AccessPolicy, Caller, KeyGrant, KeyRing, KeyRole, SESSION_COOKIE, SESSION_LIFETIME, SessionId,
    check_same_site, session_of,
};
use transport::{Peer, Reply, RequestResources, Shared};

use crate::files::wants_page;
use crate::login_form::login_page;

/// Path of the form.
const LOGIN: &str = "/login";
/// Description of the changes of the console in the errors of the access check.
const ADMIN_CALLS: &str = "changes of models and rollouts are accepted";
/// Maximum bytes of the path to which a login redirects.
const NEXT_BYTES_MAX: usize = 2048;
/// Largest body of the form.
const FORM_BYTES_MAX: usize = 16 << 10;

struct LoginState {
    access: Arc<AccessPolicy>,
    requests: Arc<RequestResources>,
    /// True if the HTTP port is encrypted.
    encrypted: bool,
}

/// Returns the routes of the login. `encrypted` is true if the HTTP port is encrypted.
pub fn login_routes(
    access: Arc<AccessPolicy>,
    requests: Arc<RequestResources>,
    encrypted: bool,
) -> Router {
    let state = LoginState { access, requests, encrypted };
    Router::new()
        .route(LOGIN, get(form).post(log_in))
        .route("/logout", post(log_out))
        .route("/session", get(session))
        .with_state(Arc::new(state))
}

/// Answers a request without a key. Redirects a browser that opens a page to the form, and answers
/// others with the required header.
pub fn unauthenticated(parts: &Parts, error: &Error) -> Response {
    if parts.method != Method::GET || !wants_page(&parts.headers) {
        return transport::access::unauthenticated(error);
    }
    let next = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let query = form_urlencoded::Serializer::new(String::new()).append_pair("next", next).finish();
    see_other(&format!("{LOGIN}?{query}")).into_response()
}

/// Fields of the form, and of the query of its page.
#[derive(Default)]
struct LoginFields {
    key: String,
    next: String,
}

impl LoginFields {
    fn parse(text: &[u8]) -> LoginFields {
        let mut fields = LoginFields::default();
        for (name, value) in form_urlencoded::parse(text) {
            match &*name {
                "key" => fields.key = value.trim().to_owned(),
                "next" => fields.next = value.into_owned(),
                _ => {}
            }
        }
        fields
    }

    /// Returns the path to which the login redirects: one of this server, or the front page.
    fn next(&self) -> &str {
        // Browsers read a backslash as a slash, and "//host" as another site.
        let own = self.next.starts_with('/')
            && !self.next[1..].starts_with(['/', '\\'])
            && self.next.len() <= NEXT_BYTES_MAX
            && self.next.bytes().all(|byte| byte.is_ascii_graphic());
        if own { &self.next } else { "/" }
    }
}

async fn form(State(state): Shared<LoginState>, uri: Uri, headers: HeaderMap) -> Reply {
    let fields = LoginFields::parse(uri.query().unwrap_or_default().as_bytes());
    let Some(keys) = &state.access.keys else { return see_other(fields.next()) };
    let grant = session_of(&headers).and_then(|session| keys.session_key(&session));
    match grant.as_ref().map(check_pages) {
        Some(Ok(())) => see_other(fields.next()),
        // The role of a key can change after a login.
        Some(Err(error)) => login_page(fields.next(), Some(error.message())),
        None => login_page(fields.next(), None),
    }
}

/// Opens a session for the key `text` of `caller`, if the key may read pages. Counts a wrong key.
///
/// # Errors
/// Those of `KeyRing::open_session`, `AccessPolicy::failed_attempt` and `check_pages`.
fn open_page_session(
    access: &AccessPolicy,
    keys: &KeyRing,
    caller: Caller<'_>,
    text: &str,
) -> base::Result<SessionId> {
    let session = keys.open_session(text).map_err(|error| match error.kind() {
        ErrorKind::PermissionDenied => access.failed_attempt(caller.peer, error),
        _ => error,
    })?;
    if let Some(grant) = keys.session_key(&session)
        && let Err(error) = check_pages(&grant)
    {
        keys.close_session(&session);
        return Err(error);
    }
    Ok(session)
}

/// Checks that a key may read pages.
///
/// # Errors
/// `PermissionDenied` if its role is below `read`.
fn check_pages(grant: &KeyGrant) -> base::Result<()> {
    if grant.role() >= KeyRole::Read {
        return Ok(());
    }
    Err(Error::denied(format!(
        "the key {} has the role {}, and pages need the role {}; log in with another key",
        grant.name(),
        grant.role().name(),
        KeyRole::Read.name()
    )))
}

/// Opens a session for the key of the form, and redirects to the page that the browser wanted.
async fn log_in(
    State(state): Shared<LoginState>,
    Extension(peer): Extension<Peer>,
    headers: HeaderMap,
    body: Body,
) -> Reply {
    let read = async {
        check_same_site(&headers)?;
        check_length(&headers)?;
        let body = state.requests.read_body(&headers, body).await?;
        Ok(LoginFields::parse(&body))
    };
    let fields = match read.await {
        Ok(fields) => fields,
        Err(error) => return Reply::error(&error),
    };
    let Some(keys) = &state.access.keys else { return see_other(fields.next()) };
    let caller = Caller { peer: Some(peer), headers: &headers };
    match open_page_session(&state.access, keys, caller, &fields.key) {
        Ok(session) => {
            let name = keys.session_key(&session);
            let name = name.as_ref().map_or("-", |grant| grant.name());
            state.access.log_login(caller, name, "ok");
            see_other(fields.next())
                .with_header(header::SET_COOKIE, state.cookie(&headers, &session))
        }
        Err(error) => {
            state.access.log_login(caller, "-", error.kind().name());
            let status = match error.kind() {
                ErrorKind::PermissionDenied => StatusCode::UNAUTHORIZED,
                ErrorKind::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
                _ => StatusCode::SERVICE_UNAVAILABLE,
            };
            login_page(fields.next(), Some(error.message()))
                .with_status(status)
                .with_retry_after(&error)
        }
    }
}

/// Refuses a form that is too large before it is read, because its sender has shown no key yet.
fn check_length(headers: &HeaderMap) -> base::Result<()> {
    let length = headers.get(header::CONTENT_LENGTH).and_then(|text| text.to_str().ok());
    let length: Option<usize> = length.and_then(|text| text.parse().ok());
    let plain = !headers.contains_key(header::CONTENT_ENCODING);
    if length.is_some_and(|length| length <= FORM_BYTES_MAX) && plain {
        Ok(())
    } else {
        Err(Error::too_large(format!(
            "a login sends its length, at most {FORM_BYTES_MAX} bytes, without compression"
        )))
    }
}

async fn log_out(State(state): Shared<LoginState>, headers: HeaderMap) -> Reply {
    if let Err(error) = check_same_site(&headers) {
        return Reply::error(&error);
    }
    if let (Some(keys), Some(session)) = (&state.access.keys, session_of(&headers)) {
        keys.close_session(&session);
    }
    let cookie = format!("{SESSION_COOKIE}=; Path=/; Max-Age=0; HttpOnly; SameSite=Strict");
    let reply = see_other(LOGIN);
    match HeaderValue::try_from(cookie) {
        Ok(cookie) => reply.with_header(header::SET_COOKIE, cookie),
        Err(_) => reply,
    }
}

/// Reports if the server needs keys, the key and role of the browser's session, and the reason why
/// its admin calls would be refused.
async fn session(
    State(state): Shared<LoginState>,
    Extension(peer): Extension<Peer>,
    headers: HeaderMap,
) -> Reply {
    let keys = state.access.keys.as_ref();
    let session = session_of(&headers);
    let grant = keys.zip(session).and_then(|(keys, session)| keys.session_key(&session));
    let caller = Caller { peer: Some(peer), headers: &headers };
    let refused = state.access.check_administrator(ADMIN_CALLS, caller).err();
    let body = json!({
        "keys": keys.is_some(),
        "name": grant.as_ref().map(|grant| grant.name()),
        "role": grant.as_ref().map(|grant| grant.role().name()),
        "admin_refused": refused.as_ref().map(Error::message),
    });
    Reply::json(body.to_string())
        .with_header(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))
}

impl LoginState {
    /// Returns the cookie of a session. Browsers send it over encrypted connections only, if this
    /// one is encrypted.
    fn cookie(&self, headers: &HeaderMap, session: &SessionId) -> HeaderValue {
        let forwarded = headers.get("x-forwarded-proto").is_some_and(|proto| proto == "https");
        let secure = if self.encrypted || forwarded { "; Secure" } else { "" };
        let text = format!(
            "{SESSION_COOKIE}={}; Path=/; Max-Age={}; HttpOnly; SameSite=Strict{secure}",
            session.cookie(),
            SESSION_LIFETIME.as_secs()
        );
        HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static(""))
    }
}

fn see_other(path: &str) -> Reply {
    let location = HeaderValue::try_from(path).unwrap_or_else(|_| HeaderValue::from_static("/"));
    Reply::text("")
        .with_status(StatusCode::SEE_OTHER)
        .with_header(header::LOCATION, location)
        .with_header(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_redirects_to_a_page_of_this_server() {
        let next = |query: &str| LoginFields::parse(query.as_bytes()).next().to_owned();
        assert_eq!(next("next=%2Fimages%3Fa%3Db"), "/images?a=b");
        for foreign in [
            "",
            "next=",
            "next=https://evil.example",
            "next=//evil.example",
            "next=/%5Cevil.example",
            "next=/a%0d%0aset-cookie:x",
            "next=javascript:alert(1)",
        ] {
            assert_eq!(next(foreign), "/", "{foreign}");
        }
        assert_eq!(next(&format!("next=/{}", "a".repeat(NEXT_BYTES_MAX))), "/");
    }

    #[test]
    fn fields_are_decoded() {
        let fields = LoginFields::parse(b"key=+a%2Bb%26+&next=%2F&other=1");
        assert_eq!((fields.key.as_str(), fields.next()), ("a+b&", "/"));
    }
}
