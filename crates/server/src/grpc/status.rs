//! Turns errors into gRPC statuses.

use base::Error;

/// Longest message in a gRPC status, in bytes.
const MESSAGE_BYTES_MAX: usize = 2048;

/// Returns the gRPC status of an error, with the retry advice in milliseconds as
/// `grpc-retry-pushback-ms`, the name that gRPC's own retry design uses.
pub(super) fn grpc_status(error: &Error) -> tonic::Status {
    let code = tonic::Code::from_i32(error.kind().grpc_code());
    let mut status = tonic::Status::new(code, cut(error.message()));
    if let Some(after) = error.retry_after() {
        status.metadata_mut().insert("grpc-retry-pushback-ms", (after.as_millis() as u64).into());
    }
    status
}

/// Cuts a message to the length of a trailer, in which gRPC sends it: names in it may come from the
/// client.
fn cut(message: &str) -> String {
    if message.len() <= MESSAGE_BYTES_MAX {
        return message.to_owned();
    }
    let end = (0..=MESSAGE_BYTES_MAX).rev().find(|&end| message.is_char_boundary(end)).unwrap_or(0);
    format!("{} ...", &message[..end])
}
