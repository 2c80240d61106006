//! What handlers return.

use axum::response::{IntoResponse, Response};
use base::Error;
use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode, header};
use protocol::status::Dialect;

use crate::app::App;
use crate::byte_budget::Reservation;
use crate::response_body::{BodyCounted, ResponseBody};

/// A response being put together.
pub(crate) struct Reply {
    status: StatusCode,
    content_type: &'static str,
    body: Bytes,
    extra: Vec<(HeaderName, HeaderValue)>,
    /// The body as it is counted, if the handler has reserved its bytes; `body` is empty then.
    answer: Option<ResponseBody>,
}

impl Reply {
    /// A body with its type.
    pub(crate) fn body(content_type: &'static str, body: impl Into<Bytes>) -> Reply {
        Reply { status: StatusCode::OK, content_type, body: body.into(), extra: Vec::new(), answer: None }
    }

    pub(crate) fn json(body: impl Into<Bytes>) -> Reply {
        Reply::body("application/json", body)
    }

    pub(crate) fn text(body: impl Into<Bytes>) -> Reply {
        Reply::body("text/plain; charset=utf-8", body)
    }

    /// An error with the statuses of the Open Inference Protocol.
    pub(crate) fn error(error: &Error) -> Reply {
        Reply::error_in(error, Dialect::OpenInference)
    }

    /// An error in the form both protocols use, with `Retry-After` where there is advice.
    fn error_in(error: &Error, dialect: Dialect) -> Reply {
        let status = StatusCode::from_u16(protocol::status::http(error.kind(), dialect))
            .unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::json!({ "error": error.message() }).to_string();
        let mut reply = Reply::json(body).with_status(status);
        if let Some(after) = error.retry_after() {
            reply = reply.with_header(header::RETRY_AFTER, HeaderValue::from(after.as_secs().max(1)));
        }
        if status == StatusCode::PAYLOAD_TOO_LARGE {
            // The rest of the body was not read, so the connection cannot be used again.
            reply = reply.with_header(header::CONNECTION, HeaderValue::from_static("close"));
        }
        reply
    }

    pub(crate) fn with_status(mut self, status: StatusCode) -> Reply {
        self.status = status;
        self
    }

    pub(crate) fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Reply {
        self.extra.push((name, value));
        self
    }

    /// Gives the body the bytes that `held` has reserved for it.
    pub(crate) fn holding(mut self, app: &App, held: Reservation) -> Reply {
        if held.bytes() > 0 {
            self.answer = Some(ResponseBody::new(app, std::mem::take(&mut self.body), held));
        }
        self
    }

    /// The reply, or the error as a reply.
    pub(crate) fn of(result: base::Result<Reply>) -> Reply {
        result.unwrap_or_else(|error| Reply::error(&error))
    }

    /// The same with TensorFlow Serving's statuses.
    pub(crate) fn of_tensorflow(result: base::Result<Reply>) -> Reply {
        result.unwrap_or_else(|error| Reply::error_in(&error, Dialect::TensorFlow))
    }
}

impl IntoResponse for Reply {
    fn into_response(self) -> Response {
        let mut response = match self.answer {
            None => Response::new(axum::body::Body::from(self.body)),
            Some(answer) => {
                let mut response = Response::new(axum::body::Body::new(answer));
                response.extensions_mut().insert(BodyCounted);
                response
            }
        };
        *response.status_mut() = self.status;
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(self.content_type));
        for (name, value) in self.extra {
            response.headers_mut().insert(name, value);
        }
        response
    }
}
