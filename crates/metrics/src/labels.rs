//! Labels of the series, and the values that protocols and outcomes have.

use std::sync::Arc;

use prometheus_client::encoding::EncodeLabelSet;

/// Protocols in request labels. The series of others would stay after the release of a version.
/// "images" is an embedding that a request of `/v1/images` needs.
pub const PROTOCOLS: [&str; 5] = ["oip-grpc", "oip-http", "tfs-grpc", "tfs-http", "images"];
/// Outcomes in request labels.
pub const STATUSES: [&str; 16] = [
    "ok",
    "invalid_argument",
    "too_large",
    "not_found",
    "already_exists",
    "failed_precondition",
    "permission_denied",
    "resource_exhausted",
    "storage_full",
    "unavailable",
    "deadline_exceeded",
    "client_timeout",
    "cancelled",
    "unimplemented",
    "data_loss",
    "internal",
];

/// Label of a directory of models.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RootLabels {
    /// Path of the directory.
    pub root: String,
}

/// Labels of an exemplar.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct TraceLabels {
    /// Id of the trace in hexadecimal.
    pub trace_id: String,
}

/// Labels of answered requests.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RequestLabels {
    /// Model name. Empty if the request named none that exists.
    pub model: Arc<str>,
    /// Version that answered, or 0 if none did.
    pub version: u64,
    /// One of [`PROTOCOLS`].
    pub protocol: &'static str,
    /// One of [`STATUSES`]: "ok" or the error kind in snake case.
    pub status: &'static str,
}

/// A version and a phase of its requests.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct PhaseLabels {
    /// Model name.
    pub model: Arc<str>,
    /// Version number.
    pub version: u64,
    /// "queue", "compute" or "total".
    pub phase: &'static str,
}

/// Label of a model.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ModelLabels {
    /// Model name.
    pub model: Arc<str>,
}

/// A model's quantile over the sliding window.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct QuantileLabels {
    /// Model name.
    pub model: Arc<str>,
    /// "0.5", "0.8", "0.9", "0.99", "0.999".
    pub quantile: &'static str,
}

/// Label of a version's bytes in one kind of memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct BytesLabels {
    /// "dram" (slot pool) or "heap".
    pub home: &'static str,
    /// Model name.
    pub model: Arc<str>,
    /// Version number.
    pub version: u64,
}

/// Label of a version.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct VersionLabels {
    /// Model name.
    pub model: Arc<str>,
    /// Version number.
    pub version: u64,
}

/// A version and its state.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct StateLabels {
    /// Model name.
    pub model: Arc<str>,
    /// Version number.
    pub version: u64,
    /// The state's name in lower case.
    pub state: &'static str,
}

/// One label called `kind`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct KindLabels {
    /// Kind of the counted thing.
    pub kind: &'static str,
}

/// A model and the cause of its slow requests.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct CauseLabels {
    /// Model name.
    pub model: Arc<str>,
    /// Cause with the largest part, such as "cpu_contention".
    pub cause: &'static str,
}

/// A model and a step of its swap.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct SwapLabels {
    /// Model name.
    pub model: Arc<str>,
    /// "load", "warm", "drain", "unload".
    pub step: &'static str,
}
