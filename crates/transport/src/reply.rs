//! Responses of HTTP handlers.

use axum::response::{IntoResponse, Response};
use base::{Error, RequestClock};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};

use crate::byte_budget::Reservation;
use crate::resources::RequestResources;
use crate::response_body::{BodyCounted, ResponseBody};

/// Response header that switches off nginx's buffering of this response.
const PROXY_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// Sets the headers of a response that is sent part by part. No cache stores it, and nginx passes
/// each part on at once.
pub fn set_stream_headers(headers: &mut HeaderMap, content_type: &'static str) {
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // nginx collects parts until its buffer is full, so an event or a label arrives seconds late.
    headers.insert(PROXY_BUFFERING, HeaderValue::from_static("no"));
}

/// A response under construction.
pub struct Reply {
    status: StatusCode,
    content_type: &'static str,
    body: Bytes,
    headers: Vec<(HeaderName, HeaderValue)>,
    /// The body if its bytes are reserved. `body` is empty then.
    counted: Option<ResponseBody>,
    /// Clock of the request, which ends with the body.
    clock: Option<RequestClock>,
}

impl Reply {
    /// Creates a reply with status 200.
    pub fn body(content_type: &'static str, body: impl Into<Bytes>) -> Reply {
        Reply {
            status: StatusCode::OK,
            content_type,
            body: body.into(),
            headers: Vec::new(),
            counted: None,
            clock: None,
        }
    }

    /// Creates a reply of JSON with status 200.
    pub fn json(body: impl Into<Bytes>) -> Reply {
        Reply::body("application/json", body)
    }

    /// Creates a reply of plain UTF-8 text with status 200.
    pub fn text(body: impl Into<Bytes>) -> Reply {
        Reply::body("text/plain; charset=utf-8", body)
    }

    /// Creates the reply `{"error": MESSAGE}` with the status of `error`.
    pub fn error(error: &Error) -> Reply {
        Reply::error_with_body(error, serde_json::json!({ "error": error.message() }).to_string())
    }

    /// Creates a reply of JSON with the status of `error`, and with `retry-after` if the error has
    /// advice.
    pub fn error_with_body(error: &Error, json: impl Into<Bytes>) -> Reply {
        let status = StatusCode::from_u16(error.kind().http_status())
            .unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut reply = Reply::json(json).with_status(status).with_retry_after(error);
        if status == StatusCode::PAYLOAD_TOO_LARGE {
            // The rest of the body was not read, so the connection cannot be used again.
            reply = reply.with_header(header::CONNECTION, HeaderValue::from_static("close"));
        }
        reply
    }

    /// Returns the reply of `result`, or the reply for its error.
    pub fn of(result: base::Result<Reply>) -> Reply {
        result.unwrap_or_else(|error| Reply::error(&error))
    }

    /// Replaces the status.
    pub fn with_status(mut self, status: StatusCode) -> Reply {
        self.status = status;
        self
    }

    /// Adds the header `retry-after` if `error` has advice.
    pub fn with_retry_after(self, error: &Error) -> Reply {
        let Some(after) = error.retry_after() else { return self };
        let seconds = after.as_secs_f64().ceil().max(1.0) as u64;
        self.with_header(header::RETRY_AFTER, HeaderValue::from(seconds))
    }

    /// Adds a header.
    pub fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Reply {
        self.headers.push((name, value));
        self
    }

    /// Lets the clock of the request run until the connection has taken the body.
    #[must_use]
    pub fn with_clock(self, clock: RequestClock) -> Reply {
        Reply { clock: Some(clock), ..self }
    }

    /// Ties the reserved bytes of the body to it.
    pub fn with_reservation(
        mut self,
        resources: &RequestResources,
        reservation: Reservation,
    ) -> Reply {
        if reservation.bytes() > 0 {
            self.counted =
                Some(ResponseBody::new(resources, std::mem::take(&mut self.body), reservation));
        }
        self
    }
}

impl IntoResponse for Reply {
    fn into_response(self) -> Response {
        let mut response = match self.counted {
            // The body of an uncounted reply is small, and is taken at once.
            None => Response::new(axum::body::Body::from(self.body)),
            Some(body) => {
                let mut body = body.with_clock(self.clock);
                let held = body.take_held();
                let mut response = Response::new(axum::body::Body::new(body));
                response.extensions_mut().insert(BodyCounted);
                if let Some(held) = held {
                    response.extensions_mut().insert(held);
                }
                response
            }
        };
        *response.status_mut() = self.status;
        response
            .headers_mut()
            .insert(header::CONTENT_TYPE, HeaderValue::from_static(self.content_type));
        for (name, value) in self.headers {
            response.headers_mut().insert(name, value);
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_neither_cached_nor_held_back() {
        let mut headers = HeaderMap::new();
        set_stream_headers(&mut headers, "text/event-stream");
        for (name, value) in [
            ("content-type", "text/event-stream"),
            ("cache-control", "no-store"),
            ("x-accel-buffering", "no"),
        ] {
            assert_eq!(headers.get(name), Some(&HeaderValue::from_static(value)), "{name}");
        }
    }
}
