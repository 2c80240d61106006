//! Where errors become statuses: the only place that knows both.

use base::{Error, ErrorKind};

/// Longest message in a gRPC status, in bytes.
const MESSAGE_BYTES_MAX: usize = 2048;

/// The gRPC status of an error, with the retry advice as `retry-pushback` metadata in milliseconds, the name
/// gRPC's own retry design uses.
pub(crate) fn grpc_status(error: &Error) -> tonic::Status {
    let code = tonic::Code::from_i32(protocol::status::grpc(error.kind()));
    let mut status = tonic::Status::new(code, cut(error.message()));
    if let Some(after) = error.retry_after() {
        status.metadata_mut().insert("grpc-retry-pushback-ms", (after.as_millis() as u64).into());
    }
    status
}

/// A message short enough for a trailer, which is where gRPC sends it: names in it may be the client's.
fn cut(message: &str) -> String {
    if message.len() <= MESSAGE_BYTES_MAX {
        return message.to_owned();
    }
    let end = (0..=MESSAGE_BYTES_MAX).rev().find(|&end| message.is_char_boundary(end)).unwrap_or(0);
    format!("{} ...", &message[..end])
}

/// The snake-case name of a kind, as the `status` label of metrics.
pub(crate) fn label(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::InvalidArgument => "invalid_argument",
        ErrorKind::TooLarge => "too_large",
        ErrorKind::NotFound => "not_found",
        ErrorKind::AlreadyExists => "already_exists",
        ErrorKind::FailedPrecondition => "failed_precondition",
        ErrorKind::PermissionDenied => "permission_denied",
        ErrorKind::ResourceExhausted => "resource_exhausted",
        ErrorKind::StorageFull => "storage_full",
        ErrorKind::Unavailable => "unavailable",
        ErrorKind::DeadlineExceeded => "deadline_exceeded",
        ErrorKind::ClientTimeout => "client_timeout",
        ErrorKind::Cancelled => "cancelled",
        ErrorKind::Unimplemented => "unimplemented",
        ErrorKind::DataLoss => "data_loss",
        _ => "internal",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A label that the metrics do not know would stay in the exposition for ever.
    #[test]
    fn the_metrics_know_every_label() {
        let statuses = (100..600).map(|status| label(protocol::status::from_http(status)));
        let codes = (0..17).map(|code| label(protocol::status::from_grpc(code)));
        for label in statuses.chain(codes) {
            assert!(metrics::STATUSES.contains(&label), "{label}");
        }
    }
}
