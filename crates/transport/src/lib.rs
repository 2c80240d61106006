//! Sockets, HTTP/1.1 and HTTP/2 connections, request and response bodies, and their limits.
//!
//! # Layers
//! [`Listener`] accepts connections and runs an HTTP service on them. A handler reads a body
//! through [`RequestResources`], which counts its bytes in a [`ByteBudget`], and answers with a
//! [`Reply`]. [`upload`] and [`result_stream`] connect a handler with a thread that reads a long
//! body or writes a long answer.
//!
//! # Invariant
//! Everything a client can make the server hold is bounded. That is connections, headers, control
//! frames, bytes of bodies and answers, and the time for each of them.
//!
//! # Not here
//! Models, collections and the protocols above HTTP: `server` and the endpoint crates know them.
//!
//! # Modules
//! * Accepting: `socket` binds, `listen` accepts, `opening` reads the first bytes, `tls`
//!   decrypts, `connection_threads` serve, `socket_authority`, `http_version` and `peer` say what
//!   a client is.
//! * Answers to clients that a listener is not for: `grpc_refusal`.
//! * Limits of a connection: `header_timeout`, `progress_timeout`, `control_frames`,
//!   `unread_answers`, `linger`, `descriptors`.
//! * Requests: `resources` is the entry of handlers; `body_reader`, `request_body`, `decompress`,
//!   `query` and `codec_threads` read.
//! * Bounds of all requests: `byte_budget`, `receive_permits`, `upload_permits`.
//! * Answers: `reply`, `response_body`, `result_stream`, `write_coalescer`.
//! * Long uploads: `upload`.
//! * Keys, tokens, sessions, host names, origins: `access`.

pub mod access;
pub mod body_reader;
mod byte_budget;
mod codec_threads;
mod connection_threads;
mod control_frames;
pub mod decompress;
pub mod descriptors;
mod grpc_refusal;
mod header_timeout;
mod http_version;
mod linger;
mod listen;
mod opening;
mod peer;
mod progress_timeout;
mod query;
mod receive_permits;
mod reply;
mod request_body;
mod resources;
mod response_body;
pub mod result_stream;
mod socket;
mod socket_authority;
mod tls;
mod unread_answers;
pub mod upload;
mod upload_permits;
mod write_coalescer;

pub use byte_budget::{ByteBudget, FREE_BYTES_MAX, HeldAnswer, Reservation};
pub use codec_threads::{CodecStep, CodecThreads, INLINE_BYTES_MAX, INLINE_WORK_MAX};
pub use connection_threads::ConnectionThreads;
pub use header_timeout::HeaderTimeout;
pub use http_version::HttpVersion;
pub use listen::{ConnectionLimits, Listener};
pub use peer::Peer;
pub use progress_timeout::ProgressTimeout;
pub use query::{QueryResult, check_no_query, query_flag, query_parameters};
pub use receive_permits::ReceivePermits;
pub use reply::{Reply, set_stream_headers};
pub use request_body::RequestBody;
pub use resources::{RequestLimits, RequestResources, Shared, json_values_max};
pub use response_body::{ANSWER_WINDOW, ResponseBody, count_body};
pub use socket::{AddressFlags, ListenSocket, UnixSocket, bind};
pub use tls::{PemSource, TlsFiles, TlsIdentity};
pub use unread_answers::StreamAnswers;
pub use upload_permits::{UploadPermit, UploadPermits};

/// Runs the future of a test to its end.
#[cfg(test)]
fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime starts").block_on(future)
}
