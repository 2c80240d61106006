//! Details of a gRPC status: `google.rpc.Status` with `google.rpc.RetryInfo`, which clients read to
//! wait before they try again.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use prost::Message;

/// Name of the trailer of details.
pub const STATUS_DETAILS: &str = "grpc-status-details-bin";
/// Type of the detail.
const RETRY_INFO: &str = "type.googleapis.com/google.rpc.RetryInfo";

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, Message)]
struct RpcStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<prost_types::Any>,
}

/// `google.rpc.RetryInfo`.
#[derive(Clone, PartialEq, Message)]
struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    retry_delay: Option<prost_types::Duration>,
}

/// Returns the value of [`STATUS_DETAILS`] for a failed call, which may be tried again `after` a
/// time.
pub fn retry_details(code: i32, message: &str, after: Duration) -> String {
    let delay = prost_types::Duration {
        seconds: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(after.subsec_nanos()).unwrap_or_default(),
    };
    let info = RetryInfo { retry_delay: Some(delay) };
    let status = RpcStatus {
        code,
        message: message.to_owned(),
        details: vec![prost_types::Any {
            type_url: RETRY_INFO.to_owned(),
            value: info.encode_to_vec(),
        }],
    };
    STANDARD_NO_PAD.encode(status.encode_to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_carry_the_delay() {
        let text = retry_details(8, "wait", Duration::from_millis(1500));
        let status = RpcStatus::decode(&*STANDARD_NO_PAD.decode(text).unwrap()).unwrap();
        assert_eq!((status.code, status.message.as_str()), (8, "wait"));
        let info = RetryInfo::decode(&*status.details[0].value).unwrap();
        let delay = prost_types::Duration { seconds: 1, nanos: 500_000_000 };
        assert_eq!(info.retry_delay, Some(delay));
    }
}
