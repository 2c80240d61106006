//! Versions of HTTP.

/// The version of HTTP that a listener speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpVersion {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2 with prior knowledge, as gRPC uses it.
    Http2,
}
