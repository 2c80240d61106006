//! Frames on a socket: a length of 8 bytes, and as many bytes.

use std::io::{Error, ErrorKind, Read, Result, Write};

use bytes::Bytes;

/// Maximum bytes of a frame, which bounds the inputs and the outputs of a run. Protocol buffers
/// have the same limit.
pub(crate) const FRAME_BYTES_MAX: u64 = (2 << 30) - 1;
/// Bytes that are allocated for a frame before they have arrived.
const RESERVED_BYTES_MAX: u64 = 64 << 20;

/// Writes `body` as one frame. The first 8 bytes of `body` are kept free for the length, which this
/// function fills in.
pub(crate) fn write(to: &mut impl Write, mut body: Vec<u8>) -> Result<()> {
    let length = body.len() as u64 - LENGTH_BYTES as u64;
    if length > FRAME_BYTES_MAX {
        return Err(Error::new(ErrorKind::InvalidInput, too_large(length)));
    }
    body[..LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
    to.write_all(&body)
}

/// Bytes of the length before a frame.
pub(crate) const LENGTH_BYTES: usize = 8;

/// Reads a frame; `None` at the end of the stream.
pub(crate) fn read(from: &mut impl Read) -> Result<Option<Bytes>> {
    let mut length = [0; LENGTH_BYTES];
    // A read with a time limit is interrupted if the process is stopped and continued.
    let count = loop {
        match from.read(&mut length) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            read => break read?,
        }
    };
    match count {
        0 => return Ok(None),
        count => from.read_exact(&mut length[count..])?,
    }
    let length = u64::from_le_bytes(length);
    if length > FRAME_BYTES_MAX {
        return Err(Error::new(ErrorKind::InvalidData, too_large(length)));
    }
    let mut body = Vec::with_capacity(length.min(RESERVED_BYTES_MAX) as usize);
    if from.take(length).read_to_end(&mut body)? as u64 != length {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok(Some(body.into()))
}

fn too_large(length: u64) -> String {
    format!(
        "{length} bytes of tensors are more than an isolated model can take in one run ({FRAME_BYTES_MAX})"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stream whose first read is interrupted.
    struct Interrupted<'a> {
        was_read: bool,
        stream: &'a [u8],
    }

    impl Read for Interrupted<'_> {
        fn read(&mut self, into: &mut [u8]) -> Result<usize> {
            if std::mem::replace(&mut self.was_read, true) {
                self.stream.read(into)
            } else {
                Err(ErrorKind::Interrupted.into())
            }
        }
    }

    #[test]
    fn an_interrupted_read_continues() {
        let mut stream = Vec::new();
        write(&mut stream, [vec![0; LENGTH_BYTES], b"abc".to_vec()].concat()).unwrap();
        let mut stream = Interrupted { was_read: false, stream: &stream };
        assert_eq!(read(&mut stream).unwrap().unwrap(), b"abc".as_slice());
    }

    #[test]
    fn frames_round_trip() {
        let mut stream = Vec::new();
        for text in ["", "one", "another"] {
            let mut body = vec![0; LENGTH_BYTES];
            body.extend_from_slice(text.as_bytes());
            write(&mut stream, body).unwrap();
        }
        let mut rest = stream.as_slice();
        for text in ["", "one", "another"] {
            assert_eq!(read(&mut rest).unwrap().unwrap(), text.as_bytes());
        }
        assert!(read(&mut rest).unwrap().is_none());
    }

    #[test]
    fn cut_and_huge_frames_are_errors() {
        let mut stream = Vec::new();
        write(&mut stream, [vec![0; LENGTH_BYTES], b"abc".to_vec()].concat()).unwrap();
        for length in 1..stream.len() {
            assert!(read(&mut &stream[..length]).is_err());
        }
        assert!(read(&mut u64::MAX.to_le_bytes().as_slice()).is_err());
    }
}
