//! Turns errors into gRPC statuses.

use base::{Error, ErrorKind};
use http::{HeaderMap, HeaderName, HeaderValue, header};
use protocol::status_details::{STATUS_DETAILS, retry_details};

/// Longest message in a gRPC status, in bytes.
const MESSAGE_BYTES_MAX: usize = 2048;
/// Header or trailer of the code.
pub(super) const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");
/// Compressions that [`super::messages::coding`] accepts.
const ACCEPTED_ENCODINGS: &str = "identity,gzip,deflate";

/// Returns the headers that end a failed call: its code and its message. Retry advice is added as
/// `google.rpc.RetryInfo`. It is also added in milliseconds as `grpc-retry-pushback-ms`, the name
/// that gRPC's own retry design uses, and in whole seconds as `retry-after`, which Qdrant's clients
/// read.
pub(super) fn status_headers(error: &Error) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(5);
    headers.insert(GRPC_STATUS, HeaderValue::from(error.kind().grpc_code()));
    if let Ok(message) = HeaderValue::try_from(percent_encoded(cut(error.message()))) {
        headers.insert("grpc-message", message);
    }
    if let Some(after) = error.retry_after() {
        headers.insert("grpc-retry-pushback-ms", HeaderValue::from(after.as_millis() as u64));
        let seconds = after.as_secs_f64().ceil().max(1.0) as u64;
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        let details = retry_details(error.kind().grpc_code(), &cut(error.message()), after);
        if let Ok(details) = HeaderValue::try_from(details) {
            headers.insert(STATUS_DETAILS, details);
        }
    }
    if error.kind() == ErrorKind::Unimplemented {
        // gRPC requires the list if the compression of the request is the reason.
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static(ACCEPTED_ENCODINGS));
    }
    headers
}

/// Cuts a message to [`MESSAGE_BYTES_MAX`], as it travels in a header. Names in it may come from
/// the client.
fn cut(message: &str) -> String {
    if message.len() <= MESSAGE_BYTES_MAX {
        return message.to_owned();
    }
    let end = (0..=MESSAGE_BYTES_MAX).rev().find(|&end| message.is_char_boundary(end)).unwrap_or(0);
    format!("{} ...", &message[..end])
}

/// Encodes a message for its header (gRPC over HTTP/2, "Percent-Encoded"). Printable ASCII but `%`
/// stays as it is.
fn percent_encoded(message: String) -> String {
    if message.bytes().all(is_plain) {
        return message;
    }
    let mut encoded = String::with_capacity(message.len() + 16);
    for byte in message.bytes() {
        if is_plain(byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

fn is_plain(byte: u8) -> bool {
    matches!(byte, b' '..=b'~') && byte != b'%'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_percent_encoded_and_cut() {
        let message = |text: &str| {
            let headers = status_headers(&Error::invalid(text));
            headers["grpc-message"].to_str().unwrap().to_owned()
        };
        assert_eq!(message("\"a\" has 5 {bytes}"), "\"a\" has 5 {bytes}");
        assert_eq!(message("100 %\n\u{e9}"), "100 %25%0A%C3%A9");
        let long = message(&"\u{e9}".repeat(MESSAGE_BYTES_MAX));
        assert_eq!(long.len(), 3 * MESSAGE_BYTES_MAX + " ...".len());
    }

    #[test]
    fn retry_advice_has_whole_seconds_for_qdrants_clients() {
        let after = std::time::Duration::from_millis(1200);
        let headers = status_headers(&Error::exhausted("wait").with_retry_after(after));
        assert_eq!(headers[header::RETRY_AFTER], "2");
        assert_eq!(headers["grpc-retry-pushback-ms"], "1200");
        assert!(!status_headers(&Error::exhausted("too large")).contains_key(header::RETRY_AFTER));
    }
}
