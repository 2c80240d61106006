//! Reading request bodies: bounded in size and in the time between two pieces.

use std::time::Duration;

use base::{Error, ErrorKind, Result};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;

/// Limits for one body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyLimits {
    /// Largest body in bytes.
    pub(crate) bytes_max: usize,
    /// Longest wait for the next piece.
    pub(crate) piece_timeout: Duration,
}

/// The whole body; a body of one piece is not copied.
///
/// # Errors
/// `TooLarge` as soon as the announced or the received length passes the limit, `ClientTimeout` when the client
/// stalls, `InvalidArgument` when it breaks off.
pub(crate) async fn read<B>(mut body: B, announced: Option<u64>, limits: BodyLimits) -> Result<Bytes>
where
    B: hyper::body::Body<Data = Bytes> + Unpin,
    B::Error: std::fmt::Display,
{
    let too_large = || {
        Error::too_large(format!(
            "the body is larger than {} bytes; send less or raise --max-body",
            limits.bytes_max
        ))
    };
    if announced.is_some_and(|length| length > limits.bytes_max as u64) {
        return Err(too_large());
    }
    let mut first = Bytes::new();
    let mut rest: Option<BytesMut> = None;
    loop {
        let frame = match tokio::time::timeout(limits.piece_timeout, body.frame()).await {
            Err(_) => return Err(stalled(limits.piece_timeout)),
            Ok(None) => break,
            Ok(Some(Err(error))) => return Err(Error::invalid(format!("the body broke off: {error}"))),
            Ok(Some(Ok(frame))) => frame,
        };
        let Ok(data) = frame.into_data() else { continue };
        let so_far = rest.as_ref().map_or(first.len(), BytesMut::len);
        if so_far + data.len() > limits.bytes_max {
            return Err(too_large());
        }
        match &mut rest {
            Some(rest) => rest.extend_from_slice(&data),
            None if first.is_empty() => first = data,
            None => {
                // The announced length is a hint from outside: trust it only up to the limit already checked.
                let mut joined = BytesMut::with_capacity(
                    announced.map_or(0, |n| n as usize).max(first.len() + data.len()),
                );
                joined.extend_from_slice(&first);
                joined.extend_from_slice(&data);
                rest = Some(joined);
            }
        }
    }
    Ok(rest.map_or(first, BytesMut::freeze))
}

fn stalled(after: Duration) -> Error {
    Error::new(ErrorKind::ClientTimeout, format!("the client sent nothing for {} s", after.as_secs_f32()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::Full;

    const LIMITS: BodyLimits = BodyLimits { bytes_max: 8, piece_timeout: Duration::from_secs(5) };

    fn kind(body: &'static [u8], announced: Option<u64>) -> std::result::Result<Bytes, ErrorKind> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(read(Full::new(Bytes::from_static(body)), announced, LIMITS)).map_err(|e| e.kind())
    }

    #[test]
    fn the_bound_holds_announced_or_not() {
        assert_eq!(kind(b"12345678", None), Ok(Bytes::from_static(b"12345678")));
        assert_eq!(kind(b"123456789", None), Err(ErrorKind::TooLarge));
        assert_eq!(kind(b"", Some(9)), Err(ErrorKind::TooLarge));
    }
}
