//! The one table from an error's kind to the status that each protocol shows, and back for clients; and the states
//! and statistics that the protocols show, before they take the form of one of them.

use std::sync::Arc;
use std::time::Duration;

use base::{ErrorKind, VersionId};

use crate::tensorflow::serving::model_version_status::State;

/// Which protocol's habits an HTTP status follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// Open Inference Protocol.
    OpenInference,
    /// TensorFlow Serving, which answers 400 where the model's state forbids a request.
    TensorFlow,
}

/// One row: the kind, HTTP status, gRPC code.
type Row = (ErrorKind, u16, i32);

const TABLE: [Row; 15] = [
    (ErrorKind::InvalidArgument, 400, 3),
    (ErrorKind::TooLarge, 413, 8),
    (ErrorKind::NotFound, 404, 5),
    (ErrorKind::AlreadyExists, 409, 6),
    (ErrorKind::FailedPrecondition, 409, 9),
    (ErrorKind::PermissionDenied, 403, 7),
    (ErrorKind::StorageFull, 507, 8),
    (ErrorKind::ResourceExhausted, 429, 8),
    (ErrorKind::Unavailable, 503, 14),
    (ErrorKind::ClientTimeout, 408, 4),
    (ErrorKind::DeadlineExceeded, 504, 4),
    (ErrorKind::Cancelled, 499, 1),
    (ErrorKind::Unimplemented, 501, 12),
    (ErrorKind::Internal, 500, 13),
    (ErrorKind::DataLoss, 500, 15),
];

/// The HTTP status of an error.
pub fn http(kind: ErrorKind, dialect: Dialect) -> u16 {
    match (kind, dialect) {
        (ErrorKind::FailedPrecondition, Dialect::TensorFlow) => 400,
        _ => row(kind).1,
    }
}

/// The gRPC status code of an error.
pub fn grpc(kind: ErrorKind) -> i32 {
    row(kind).2
}

/// The kind behind an HTTP status that a server answered with; `Internal` for one that means nothing here.
pub fn from_http(status: u16) -> ErrorKind {
    TABLE.iter().find(|row| row.1 == status).map_or(ErrorKind::Internal, |row| row.0)
}

/// The kind behind a gRPC code; `ResourceExhausted` for 8 and `DeadlineExceeded` for 4, which others share.
pub fn from_grpc(code: i32) -> ErrorKind {
    TABLE.iter().rev().find(|row| row.2 == code).map_or(ErrorKind::Internal, |row| row.0)
}

fn row(kind: ErrorKind) -> Row {
    // A kind that is new in `base` and not yet here is a failure of ours.
    TABLE.iter().copied().find(|row| row.0 == kind).unwrap_or((kind, 500, 13))
}

/// The state of a version in the words of TensorFlow Serving, which the numbers on its wire are in step with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TfsState {
    /// Found, not yet being loaded.
    Start,
    /// Being loaded or warmed up.
    Loading,
    /// Answers.
    Available,
    /// Answers nothing new; on its way out.
    Unloading,
    /// Gone, or failed.
    End,
}

impl TfsState {
    /// The state of the message.
    pub fn message(self) -> State {
        match self {
            TfsState::Start => State::Start,
            TfsState::Loading => State::Loading,
            TfsState::Available => State::Available,
            TfsState::Unloading => State::Unloading,
            TfsState::End => State::End,
        }
    }
}

/// The state of one version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionState {
    /// Its number.
    pub version: u64,
    /// Its state.
    pub state: TfsState,
    /// Why it failed, if it did.
    pub error: Option<String>,
}

/// One line of the repository index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// The model.
    pub name: Arc<str>,
    /// The version; none for a model without any.
    pub version: Option<u64>,
    /// "READY", "LOADING", "UNLOADING" or "UNAVAILABLE".
    pub state: &'static str,
    /// Why it is in this state; may be empty.
    pub reason: String,
}

/// How often something happened and how long it took in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Total {
    /// How often.
    pub count: u64,
    /// Nanoseconds in all.
    pub nanos: u64,
}

/// What is counted of one version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatisticsEntry {
    /// Which version.
    pub id: VersionId,
    /// Milliseconds since the epoch of the last answer; 0 before the first.
    pub last_ms: u64,
    /// Answered.
    pub success: Total,
    /// Not answered, for any reason.
    pub fail: Total,
    /// Waited for a worker.
    pub queue: Total,
    /// Was computed; of a merged run each request has the whole time.
    pub compute: Total,
    /// Items of the answered requests.
    pub items: u64,
    /// Runs that answered them.
    pub executions: u64,
    /// The runs by size, smallest first.
    pub batches: Vec<BatchTotal>,
}

/// What is counted of one version's runs of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchTotal {
    /// Items of each run.
    pub size: u64,
    /// The runs.
    pub compute: Total,
}

/// How a model's requests are merged, as its configuration shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batching {
    /// Items of a merged batch at most; 0 where requests are not joined along axis 0.
    pub batch_max: u32,
    /// Sizes that do not linger.
    pub preferred: Vec<u32>,
    /// How long the oldest request waits for company.
    pub delay: Duration,
    /// Limits of a request without a level.
    pub limits: QueueLimits,
    /// Limits of each priority level, level 1 first; empty where there is only one.
    pub levels: Vec<QueueLimits>,
    /// Level of a request that names none.
    pub default_level: u32,
}

/// Limits of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueLimits {
    /// Requests that may wait; 0 is the server's bound.
    pub queue_max: u32,
    /// Deadline of a request without one of its own; zero is the server's.
    pub timeout: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_lead_back_to_their_kind() {
        for (kind, http_status, code) in TABLE {
            assert_eq!(http(kind, Dialect::OpenInference), http_status);
            assert_eq!(grpc(kind), code);
            let back = match kind {
                ErrorKind::TooLarge | ErrorKind::StorageFull => ErrorKind::ResourceExhausted,
                ErrorKind::ClientTimeout => ErrorKind::DeadlineExceeded,
                kind => kind,
            };
            assert_eq!(from_grpc(code), back);
        }
        assert_eq!(http(ErrorKind::FailedPrecondition, Dialect::TensorFlow), 400);
        assert_eq!(from_http(500), ErrorKind::Internal);
        assert_eq!(from_http(418), ErrorKind::Internal);
    }
}
