//! Request bodies that come compressed.

use std::io::Read;

use base::{Error, Result};
use bytes::Bytes;
use flate2::read::{MultiGzDecoder, ZlibDecoder};
use http::{HeaderMap, header};

/// How a body is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Coding {
    /// Several in a row are one.
    Gzip,
    /// What HTTP calls deflate: zlib's form of it.
    Deflate,
}

/// How the body that comes with `headers` is compressed, if it is.
///
/// # Errors
/// `InvalidArgument` for a compression that is not offered, and for several on top of each other.
pub(crate) fn coding(headers: &HeaderMap) -> Result<Option<Coding>> {
    let Some(encoding) = headers.get(header::CONTENT_ENCODING) else { return Ok(None) };
    match encoding.as_bytes().to_ascii_lowercase().as_slice() {
        b"" | b"identity" => Ok(None),
        b"gzip" | b"x-gzip" => Ok(Some(Coding::Gzip)),
        b"deflate" => Ok(Some(Coding::Deflate)),
        _ => Err(Error::invalid(
            "the body's compression is not offered; use gzip or deflate, or send it as it is",
        )),
    }
}

/// The body as it was before it was compressed.
///
/// # Errors
/// `TooLarge` where that is more than `bytes_max`, `InvalidArgument` for a damaged body.
pub(crate) fn unpack(coding: Coding, body: &[u8], bytes_max: usize) -> Result<Bytes> {
    let mut all = Vec::new();
    let room = (bytes_max as u64).saturating_add(1);
    let read = match coding {
        Coding::Gzip => MultiGzDecoder::new(body).take(room).read_to_end(&mut all),
        Coding::Deflate => ZlibDecoder::new(body).take(room).read_to_end(&mut all),
    };
    read.map_err(|error| Error::invalid(format!("the body cannot be decompressed: {error}")))?;
    if all.len() > bytes_max {
        return Err(Error::too_large(format!(
            "the body is larger than {bytes_max} bytes when decompressed; send less or raise --max-body"
        )));
    }
    Ok(all.into())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use base::ErrorKind;
    use flate2::Compression;
    use flate2::write::{GzEncoder, ZlibEncoder};

    use super::*;

    fn packed(coding: Coding, bytes: &[u8]) -> Vec<u8> {
        match coding {
            Coding::Gzip => {
                let mut to = GzEncoder::new(Vec::new(), Compression::fast());
                to.write_all(bytes).unwrap();
                to.finish().unwrap()
            }
            Coding::Deflate => {
                let mut to = ZlibEncoder::new(Vec::new(), Compression::fast());
                to.write_all(bytes).unwrap();
                to.finish().unwrap()
            }
        }
    }

    #[test]
    fn bodies_come_back_within_the_limit() {
        for coding in [Coding::Gzip, Coding::Deflate] {
            let bytes = vec![7; 10_000];
            let body = packed(coding, &bytes);
            assert_eq!(unpack(coding, &body, 10_000).unwrap(), bytes);
            assert_eq!(unpack(coding, &body, 9_999).unwrap_err().kind(), ErrorKind::TooLarge);
            let error = unpack(coding, &body[..body.len() / 2], 10_000).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        }
        let twice = [packed(Coding::Gzip, b"one "), packed(Coding::Gzip, b"two")].concat();
        assert_eq!(unpack(Coding::Gzip, &twice, 100).unwrap(), &b"one two"[..]);
    }

    #[test]
    fn what_is_not_offered_is_told() {
        let with = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_ENCODING, value.parse().unwrap());
            coding(&headers).map_err(|error| error.kind())
        };
        assert_eq!(coding(&HeaderMap::new()).unwrap(), None);
        assert_eq!((with("identity"), with("GZIP")), (Ok(None), Ok(Some(Coding::Gzip))));
        assert_eq!(with("deflate"), Ok(Some(Coding::Deflate)));
        assert_eq!(with("br"), Err(ErrorKind::InvalidArgument));
        assert_eq!(with("gzip, gzip"), Err(ErrorKind::InvalidArgument));
    }
}
