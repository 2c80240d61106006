//! Request bodies that come compressed.

use std::io::Read;

use base::{Error, Result};
use bytes::Bytes;
use flate2::read::{MultiGzDecoder, ZlibDecoder};
use http::{HeaderMap, HeaderName, header};

use crate::byte_budget::Reservation;

/// How a body is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContentCoding {
    /// Several in a row are one.
    Gzip,
    /// What HTTP calls deflate: zlib's form of it.
    Deflate,
}

/// How the body that comes with `headers` is compressed, if it is.
///
/// # Errors
/// `InvalidArgument` for a compression that is not offered, and for several on top of each other.
pub(crate) fn coding(headers: &HeaderMap) -> Result<Option<ContentCoding>> {
    coding_of(headers, header::CONTENT_ENCODING)
}

/// Does the same for the header `name`.
///
/// # Errors
/// As [`coding`].
pub(crate) fn coding_of(headers: &HeaderMap, name: HeaderName) -> Result<Option<ContentCoding>> {
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

/// Room for a decompressed body at first, in bytes; it is doubled when it is full.
const ROOM_MIN: usize = 64 << 10;

/// Returns the body as it was before it was compressed; it holds what it takes of the budget of `reservation`.
///
/// # Errors
/// `TooLarge` if that is more than `bytes_max`, `InvalidArgument` for a damaged body, and those of the budget.
pub(crate) fn decompress(
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

fn read_all(mut from: impl Read, bytes_max: usize, mut reservation: Reservation) -> Result<Bytes> {
    let damaged = |error| Error::invalid(format!("the body cannot be decompressed: {error}"));
    let mut all = Vec::new();
    loop {
        // One byte more than is allowed shows that there is more.
        let room = (2 * all.len()).max(ROOM_MIN).min(bytes_max.saturating_add(1));
        reservation.grow(room as u64)?;
        let before = all.len();
        all.reserve_exact(room - before);
        let read = from.by_ref().take((room - before) as u64).read_to_end(&mut all).map_err(damaged)?;
        // The smaller place is gone by now.
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
        let unpacked = super::decompress(coding, body, bytes_max, budget.nothing());
        assert_eq!(budget.used() > 0, unpacked.is_ok());
        unpacked
    }

    #[test]
    fn a_bomb_stops_where_the_budget_ends() {
        let budget = ByteBudget::new(1 << 20, Default::default());
        let bomb = packed(ContentCoding::Gzip, &vec![0; 32 << 20]);
        let error = super::decompress(ContentCoding::Gzip, &bomb, 64 << 20, budget.nothing()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ResourceExhausted, "{error}");
        let fits = packed(ContentCoding::Gzip, &vec![0; 300_000]);
        let bytes = super::decompress(ContentCoding::Gzip, &fits, 64 << 20, budget.nothing()).unwrap();
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
    fn bodies_come_back_within_the_limit() {
        for coding in [ContentCoding::Gzip, ContentCoding::Deflate] {
            let bytes = vec![7; 10_000];
            let body = packed(coding, &bytes);
            assert_eq!(decompress(coding, &body, 10_000).unwrap(), bytes);
            assert_eq!(decompress(coding, &body, 9_999).unwrap_err().kind(), ErrorKind::TooLarge);
            let error = decompress(coding, &body[..body.len() / 2], 10_000).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        }
        let twice = [packed(ContentCoding::Gzip, b"one "), packed(ContentCoding::Gzip, b"two")].concat();
        assert_eq!(decompress(ContentCoding::Gzip, &twice, 100).unwrap(), &b"one two"[..]);
    }

    #[test]
    fn what_is_not_offered_is_told() {
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
