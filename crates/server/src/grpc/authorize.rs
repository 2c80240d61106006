//! The right that each call needs, if the server has a file of keys. A call's model is in its
//! message, so it is checked once that is decoded.

use base::{Error, Result};
use http::HeaderValue;
use protocol::grpc::health::v1 as health;
use protocol::inference as oip;
use protocol::oip::RepositoryTarget;
use protocol::tensorflow::serving as tfs;
use qdrant_grpc::QdrantCall;
use transport::Peer;
use transport::access::{BrowserSessions, Caller, KeyGrant, KeyRefusal, KeyRole, Operation};

use super::Request;
use super::response::{self, Response};
use super::status::GRPC_STATUS;
use crate::models::ModelsState;
use crate::surface::Surface;

/// gRPC's code for a call without valid credentials.
const UNAUTHENTICATED: u32 = 16;

/// Services whose methods run models or describe them, if they are in no other list.
const INFER: [&str; 5] = [
    "/inference.GRPCInferenceService/",
    "/tensorflow.serving.PredictionService/",
    "/tensorflow.serving.ModelService/",
    "/grpc.reflection.v1.ServerReflection/",
    "/grpc.reflection.v1alpha.ServerReflection/",
];

/// Returns the least role for the method at `path`, or `None` for a health check. A method that is
/// not known here needs an administrator's key. The calls of Qdrant's interface are not known here.
fn role(path: &str) -> Option<KeyRole> {
    match path {
        "/inference.GRPCInferenceService/ServerLive"
        | "/inference.GRPCInferenceService/ServerReady" => None,
        "/grpc.health.v1.Health/Check" | "/grpc.health.v1.Health/Watch" => None,
        "/qdrant.Qdrant/HealthCheck" => None,
        "/inference.GRPCInferenceService/RepositoryModelLoad"
        | "/inference.GRPCInferenceService/RepositoryModelUnload"
        | "/inference.GRPCInferenceService/TraceSetting"
        | "/inference.GRPCInferenceService/LogSettings"
        | "/tensorflow.serving.ModelService/HandleReloadConfigRequest" => Some(KeyRole::Admin),
        "/inference.GRPCInferenceService/RepositoryIndex" | "/grpc.health.v1.Health/List" => {
            Some(KeyRole::Read)
        }
        _ if INFER.iter().any(|service| path.starts_with(service)) => Some(KeyRole::Infer),
        _ => Some(KeyRole::Admin),
    }
}

/// Checks that a call may be made on `surface` and with its key, and adds the key's rights to the
/// request.
///
/// # Errors
/// The answer to a call that is not accepted.
pub(super) fn authorize(
    state: &ModelsState,
    surface: Surface,
    mut request: Request,
) -> std::result::Result<Request, Box<Response>> {
    if QdrantCall::of(request.uri().path()).is_ok() {
        return authenticate(state, request);
    }
    let Some(role) = role(request.uri().path()) else { return Ok(request) };
    if let (KeyRole::Admin, Some(port)) = (role, surface.elsewhere()) {
        return Err(Box::new(response::failed(&Error::unimplemented(format!(
            "admin calls are not at this port: load and unload models over HTTP at the admin port, {port}, or over gRPC \
             at the Unix socket of --grpc-socket"
        )))));
    }
    let peer = request.extensions().get::<Peer>().copied();
    let caller = Caller { peer, headers: request.headers() };
    // No page of this server calls gRPC, so cookies do not count.
    let admitted = state.access.authorize(caller, BrowserSessions::Ignored, &Operation::new(role));
    if let Err(KeyRefusal::Unauthenticated(error) | KeyRefusal::Refused(error)) = &admitted {
        log_refused(state, caller, request.uri().path(), error);
    }
    match admitted {
        Ok(None) => {}
        Ok(Some(grant)) => drop(request.extensions_mut().insert(grant)),
        Err(KeyRefusal::Unauthenticated(error)) => return Err(Box::new(unauthenticated(&error))),
        Err(KeyRefusal::Refused(error)) => return Err(Box::new(response::failed(&error))),
    }
    Ok(request)
}

/// Logs a refused call to the method at `path`, if it is an admin call.
pub(super) fn log_refused(state: &ModelsState, caller: Caller<'_>, path: &str, error: &Error) {
    if role(path) == Some(KeyRole::Admin) {
        state.access.log_refused_admin(caller, path, error);
    }
}

/// Checks that a call of Qdrant's interface shows a key of the server. The route that answers it
/// checks the rights of the key, once the message names the collection. Clients without a key are
/// refused here, because a message takes memory of requests while it is read.
///
/// # Errors
/// The answer to a call without a key.
fn authenticate(
    state: &ModelsState,
    request: Request,
) -> std::result::Result<Request, Box<Response>> {
    let peer = request.extensions().get::<Peer>().copied();
    let caller = Caller { peer, headers: request.headers() };
    match state.access.authenticate(caller, BrowserSessions::Ignored) {
        // The route finds the key again and charges it.
        Ok(_) => Ok(request),
        Err(KeyRefusal::Unauthenticated(error)) => Err(Box::new(unauthenticated(&error))),
        Err(KeyRefusal::Refused(error)) => Err(Box::new(response::failed(&error))),
    }
}

/// Returns the answer to a call without a key of this server.
fn unauthenticated(error: &Error) -> Response {
    let mut response = response::failed(error);
    response.headers_mut().insert(GRPC_STATUS, HeaderValue::from(UNAUTHENTICATED));
    response
}

/// Checks the models that a message names.
///
/// # Errors
/// `PermissionDenied` if the call's key may not use one of them.
pub(super) fn check_models(grant: Option<&KeyGrant>, message: &impl NamesModels) -> Result<()> {
    let Some(grant) = grant else { return Ok(()) };
    if grant.role() < message.role() {
        return Err(Error::denied(format!(
            "key \"{}\" has the role {}; this needs {}",
            grant.name(),
            grant.role().name(),
            message.role().name()
        )));
    }
    if message.changes_all_models() {
        grant.check_all_models()?;
    }
    message.models().into_iter().try_for_each(|name| grant.check_model(name))
}

/// A message that may name models.
pub(super) trait NamesModels {
    /// Returns the names of the models in the message.
    fn models(&self) -> Vec<&str>;

    /// Returns the lowest role that permits the call.
    fn role(&self) -> KeyRole {
        KeyRole::Infer
    }

    /// Returns true if the call changes all models, also models that the message does not name.
    fn changes_all_models(&self) -> bool {
        false
    }
}

macro_rules! names {
    ($($message:ty: $field:ident),* $(,)?) => { $(
        impl NamesModels for $message {
            fn models(&self) -> Vec<&str> {
                vec![&self.$field]
            }
        }
    )* };
}
names! {
    oip::ModelInferRequest: model_name,
    oip::ModelReadyRequest: name,
    oip::ModelMetadataRequest: name,
    oip::ModelConfigRequest: name,
    oip::TraceSettingRequest: model_name,
}

impl NamesModels for oip::RepositoryModelLoadRequest {
    fn models(&self) -> Vec<&str> {
        vec![RepositoryTarget::new(&self.repository_name, &self.model_name).model]
    }
}

impl NamesModels for oip::RepositoryModelUnloadRequest {
    fn models(&self) -> Vec<&str> {
        vec![RepositoryTarget::new(&self.repository_name, &self.model_name).model]
    }
}

impl NamesModels for oip::ModelStatisticsRequest {
    /// Returns no name for a message about all models, because its answer leaves out the other
    /// ones.
    fn models(&self) -> Vec<&str> {
        if self.name.is_empty() { Vec::new() } else { vec![self.name.as_str()] }
    }

    /// Returns `Read` for a message without a name, because it requests the statistics of all
    /// models.
    fn role(&self) -> KeyRole {
        if self.name.is_empty() { KeyRole::Read } else { KeyRole::Infer }
    }
}

macro_rules! specs {
    ($($message:ty),* $(,)?) => { $(
        impl NamesModels for $message {
            fn models(&self) -> Vec<&str> {
                self.model_spec.iter().map(|spec| spec.name.as_str()).collect()
            }
        }
    )* };
}
specs! {
    tfs::PredictRequest, tfs::ClassificationRequest, tfs::RegressionRequest,
    tfs::GetModelMetadataRequest, tfs::GetModelStatusRequest,
}

impl NamesModels for tfs::MultiInferenceRequest {
    fn models(&self) -> Vec<&str> {
        let specs = self.tasks.iter().filter_map(|task| task.model_spec.as_ref());
        specs.map(|spec| spec.name.as_str()).collect()
    }
}

impl NamesModels for tfs::ReloadConfigRequest {
    fn models(&self) -> Vec<&str> {
        Vec::new()
    }

    fn changes_all_models(&self) -> bool {
        true
    }
}

macro_rules! nameless {
    ($($message:ty),* $(,)?) => { $(
        impl NamesModels for $message {
            fn models(&self) -> Vec<&str> {
                Vec::new()
            }
        }
    )* };
}
nameless! {
    oip::ServerLiveRequest, oip::ServerReadyRequest, oip::ServerMetadataRequest,
    oip::RepositoryIndexRequest, oip::LogSettingsRequest, health::HealthListRequest,
    // These need no key.
    health::HealthCheckRequest, protocol::qdrant::HealthCheckRequest,
}
