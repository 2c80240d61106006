//! Decompresses request bodies.

use std::io::Read;

use base::{Error, Result};
use bytes::Bytes;
use flate2::read::{MultiGzDecoder, ZlibDecoder};
use http::{HeaderMap, HeaderName, header};

use crate::byte_budget::Reservation;

/// A compression of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentCoding {
    /// RFC 1952, with any number of members.
    Gzip,
    /// HTTP's "deflate": the zlib format (RFC 1950).
    Deflate,
}

/// Returns the compression that `content-encoding` names, or `None` for an uncompressed body.
///
/// # Errors
/// `InvalidArgument` for any other compression, and for several of them.
pub(crate) fn coding(headers: &HeaderMap) -> Result<Option<ContentCoding>> {
    coding_of(headers, header::CONTENT_ENCODING)
}

/// Returns the compression that the header `name` names, or `None` for an uncompressed body.
///
/// # Errors
/// `InvalidArgument` for a compression other than gzip and deflate, and for several of them.
pub fn coding_of(headers: &HeaderMap, name: HeaderName) -> Result<Option<ContentCoding>> {
    let Some(encoding) = headers.get(name) else { return Ok(None) };
    match encoding.as_bytes().to_ascii_lowercase().as_slice() {
        b"" | b"identity" => Ok(None),
        b"gzip" | b"x-gzip" => Ok(Some(ContentCoding::Gzip)),
        b"deflate" => Ok(Some(ContentCoding::Deflate)),
        _ => Err(Error::invalid(
            "the body's compression is not offered; use gzip or deflate, or send it as it is",
        )),
    }
}

/// First buffer of a decompressed body in bytes. A full buffer is doubled.
const ROOM_MIN: usize = 64 << 10;

/// Decompresses `body`. The returned bytes hold their part of the budget through `reservation`.
///
/// # Errors
/// `TooLarge` for more than `bytes_max` bytes, `InvalidArgument` for a damaged body, and the errors
/// of the budget.
pub fn decompress(
    coding: ContentCoding,
    body: &[u8],
    bytes_max: usize,
    reservation: Reservation,
) -> Result<Bytes> {
    match coding {
        ContentCoding::Gzip => read_all(MultiGzDecoder::new(body), bytes_max, reservation),
        ContentCoding::Deflate => read_all(ZlibDecoder::new(body), bytes_max, reservation),
    }
}

/// Reads `from` to its end. The buffer doubles, and `reservation` counts its bytes.
///
/// # Errors
/// `TooLarge` above `bytes_max` bytes. `InvalidArgument` for damaged data. Also the errors of the
/// budget.
fn read_all(mut from: impl Read, bytes_max: usize, mut reservation: Reservation) -> Result<Bytes> {
    let damaged = |error| Error::invalid("the body cannot be decompressed").caused_by(error);
    let mut all = Vec::new();
    loop {
        // One byte above the limit shows that the body is too large.
        let room = (2 * all.len()).max(ROOM_MIN).min(bytes_max.saturating_add(1));
        reservation.grow(room as u64)?;
        let before = all.len();
        all.reserve_exact(room - before);
        let read =
            from.by_ref().take((room - before) as u64).read_to_end(&mut all).map_err(damaged)?;
        // The smaller buffer is freed by now.
        reservation.shrink_to(all.capacity() as u64);
        if all.len() > bytes_max {
            return Err(Error::too_large(format!(
                "the body is larger than {bytes_max} bytes when decompressed; send less or raise --max-body"
            )));
        }
        if read < room - before {
            return Ok(reservation.attach(all.into()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use base::ErrorKind;
    use flate2::Compression;
    use flate2::write::{GzEncoder, ZlibEncoder};

    use super::*;
    use crate::byte_budget::ByteBudget;

    fn decompress(coding: ContentCoding, body: &[u8], bytes_max: usize) -> Result<Bytes> {
        let budget = ByteBudget::new(1 << 20, Default::default());
        let unpacked = super::decompress(coding, body, bytes_max, budget.empty());
        assert_eq!(budget.used() > 0, unpacked.is_ok());
        unpacked
    }

    #[test]
    fn a_bomb_stops_at_the_budget() {
        let budget = ByteBudget::new(1 << 20, Default::default());
        let bomb = packed(ContentCoding::Gzip, &vec![0; 32 << 20]);
        let error =
            super::decompress(ContentCoding::Gzip, &bomb, 64 << 20, budget.empty()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ResourceExhausted, "{error}");
        let fits = packed(ContentCoding::Gzip, &vec![0; 300_000]);
        let bytes =
            super::decompress(ContentCoding::Gzip, &fits, 64 << 20, budget.empty()).unwrap();
        assert!(bytes.len() == 300_000 && budget.used() >= 300_000 && budget.peak() <= 1 << 20);
        drop(bytes);
        assert_eq!(budget.used(), 0);
    }

    fn packed(coding: ContentCoding, bytes: &[u8]) -> Vec<u8> {
        match coding {
            ContentCoding::Gzip => {
                let mut to = GzEncoder::new(Vec::new(), Compression::fast());
                to.write_all(bytes).unwrap();
                to.finish().unwrap()
            }
            ContentCoding::Deflate => {
                let mut to = ZlibEncoder::new(Vec::new(), Compression::fast());
                to.write_all(bytes).unwrap();
                to.finish().unwrap()
            }
        }
    }

    #[test]
    fn bodies_are_decompressed_within_the_limit() {
        for coding in [ContentCoding::Gzip, ContentCoding::Deflate] {
            let bytes = vec![7; 10_000];
            let body = packed(coding, &bytes);
            assert_eq!(decompress(coding, &body, 10_000).unwrap(), bytes);
            assert_eq!(decompress(coding, &body, 9_999).unwrap_err().kind(), ErrorKind::TooLarge);
            let error = decompress(coding, &body[..body.len() / 2], 10_000).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        }
        let twice =
            [packed(ContentCoding::Gzip, b"one "), packed(ContentCoding::Gzip, b"two")].concat();
        assert_eq!(decompress(ContentCoding::Gzip, &twice, 100).unwrap(), &b"one two"[..]);
    }

    #[test]
    fn other_compressions_are_refused() {
        let with = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_ENCODING, value.parse().unwrap());
            coding(&headers).map_err(|error| error.kind())
        };
        assert_eq!(coding(&HeaderMap::new()).unwrap(), None);
        assert_eq!((with("identity"), with("GZIP")), (Ok(None), Ok(Some(ContentCoding::Gzip))));
        assert_eq!(with("deflate"), Ok(Some(ContentCoding::Deflate)));
        assert_eq!(with("br"), Err(ErrorKind::InvalidArgument));
        assert_eq!(with("gzip, gzip"), Err(ErrorKind::InvalidArgument));
    }
}
