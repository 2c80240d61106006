//! The bytes of a file as segments, and the data of a block as bits.

use base::Result;

use super::{damaged, truncated};
use crate::bytes::be16;

/// Second bytes of the markers. The first is ff.
pub(super) mod marker {
    pub(crate) const START_OF_IMAGE: u8 = 0xa0;
    pub(crate) const END_OF_IMAGE: u8 = 0xa1;
    pub(crate) const START_OF_FRAME: u8 = 0xa2;
    pub(crate) const START_OF_BLOCK: u8 = 0xa3;
    pub(crate) const TRANSFORM: u8 = 0xa4;
    pub(crate) const QUANTIZATION: u8 = 0xa5;
    pub(crate) const HUFFMAN: u8 = 0xa6;
    pub(crate) const RESTART_INTERVAL: u8 = 0xa7;
    pub(crate) const COMMENT: u8 = 0xa8;
    pub(crate) const RESTART_FIRST: u8 = 0xb0;
    pub(crate) const RESTART_LAST: u8 = 0xb7;
}

/// Maximum bits of an incomplete code before a marker. They are the padding of the last byte.
const PADDING_BITS_MAX: u32 = 7;

/// A marker and the bytes that belong to it, without their length.
pub(super) struct MarkerSegment<'a> {
    pub(super) marker: u8,
    pub(super) body: &'a [u8],
}

/// A position in a file.
pub(super) struct Stream<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Current byte of a block, and its bits that are not read yet.
    byte: u8,
    bits: u32,
}

impl<'a> Stream<'a> {
    /// Begins after the marker for the start of the image.
    pub(super) fn open(bytes: &'a [u8]) -> Result<Stream<'a>> {
        if !bytes.starts_with(&[0xff, marker::START_OF_IMAGE]) {
            return Err(damaged("it does not begin with ffa0"));
        }
        Ok(Stream { bytes, at: 2, byte: 0, bits: 0 })
    }

    /// Reads the next segment. The data of a block follow its segment.
    pub(super) fn segment(&mut self) -> Result<MarkerSegment<'a>> {
        self.bits = 0;
        if self.take()? != 0xff {
            return Err(damaged("a marker is missing"));
        }
        // Any number of fill bytes may come before a marker.
        let mut marker = self.take()?;
        while marker == 0xff {
            marker = self.take()?;
        }
        if marker == marker::END_OF_IMAGE {
            return Ok(MarkerSegment { marker, body: &[] });
        }
        let length = usize::from(be16(self.bytes, self.at).ok_or_else(truncated)?);
        if length < 2 {
            return Err(damaged("a segment has no length"));
        }
        let body = self.bytes.get(self.at + 2..self.at + length).ok_or_else(truncated)?;
        self.at += length;
        Ok(MarkerSegment { marker, body })
    }

    fn take(&mut self) -> Result<u8> {
        let byte = *self.bytes.get(self.at).ok_or_else(truncated)?;
        self.at += 1;
        Ok(byte)
    }

    /// Reads a bit of a block. Returns `None` at a marker. Markers for a restart are passed over.
    pub(super) fn bit(&mut self) -> Result<Option<u32>> {
        if self.bits == 0 {
            let byte = *self.bytes.get(self.at).ok_or_else(truncated)?;
            if byte == 0xff {
                match *self.bytes.get(self.at + 1).ok_or_else(truncated)? {
                    // A stuffed zero: the byte ff is data.
                    0 => self.at += 1,
                    _ => return Ok(None),
                }
            }
            self.at += 1;
            (self.byte, self.bits) = (byte, 8);
        }
        self.bits -= 1;
        Ok(Some(u32::from(self.byte >> self.bits) & 1))
    }

    /// Reads a number of `count` bits of a block.
    pub(super) fn number(&mut self, count: u32) -> Result<u32> {
        let mut number = 0;
        for _ in 0..count {
            let bit = self.bit()?.ok_or_else(|| damaged("a block ends inside a number"))?;
            number = number << 1 | bit;
        }
        Ok(number)
    }

    /// Ends a run of codes at a marker, after `unused` bits that are not a code. Returns true if
    /// the marker is a restart, after which the same block continues.
    pub(super) fn restarts(&mut self, unused: u32) -> Result<bool> {
        if unused > PADDING_BITS_MAX {
            return Err(damaged("a code of a block is unknown"));
        }
        self.bits = 0;
        let marker = self.bytes.get(self.at + 1);
        let restart =
            marker.is_some_and(|it| (marker::RESTART_FIRST..=marker::RESTART_LAST).contains(it));
        if restart {
            self.at += 2;
        }
        Ok(restart)
    }

    /// Passes over the rest of a block's data.
    pub(super) fn skip_block(&mut self) -> Result<()> {
        self.bits = 0;
        loop {
            while self.bit()?.is_some() {
                self.bits = 0;
            }
            if !self.restarts(0)? {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(data: &[u8]) -> Vec<u8> {
        [&[0xff, 0xa0, 0xff, 0xa3, 0, 3, 7][..], data].concat()
    }

    #[test]
    fn bits_end_at_a_marker() {
        let file = block(&[0xa5, 0xff, 0x00, 0xff, 0xa1]);
        let mut stream = Stream::open(&file).unwrap();
        assert_eq!(stream.segment().unwrap().body, [7]);
        assert_eq!(stream.number(16).unwrap(), 0xa5ff);
        assert_eq!(stream.bit().unwrap(), None);
        assert!(!stream.restarts(7).unwrap());
        assert!(stream.restarts(8).is_err());
        assert_eq!(stream.segment().unwrap().marker, marker::END_OF_IMAGE);
        assert!(stream.segment().is_err());
    }

    #[test]
    fn a_restart_continues_the_block() {
        let file = block(&[0x80, 0xff, 0xb0, 0x40, 0xff, 0xa1]);
        let mut stream = Stream::open(&file).unwrap();
        stream.segment().unwrap();
        assert_eq!(stream.number(8).unwrap(), 0x80);
        assert_eq!(stream.bit().unwrap(), None);
        assert!(stream.restarts(0).unwrap());
        assert_eq!(stream.number(8).unwrap(), 0x40);
        let mut stream = Stream::open(&file).unwrap();
        stream.segment().unwrap();
        stream.skip_block().unwrap();
        assert_eq!(stream.segment().unwrap().marker, marker::END_OF_IMAGE);
    }

    #[test]
    fn a_file_may_end_anywhere() {
        let file = block(&[1, 2, 0xff, 0, 3]);
        for end in 0..file.len() {
            let Ok(mut stream) = Stream::open(&file[..end]) else { continue };
            assert!(stream.segment().and_then(|_| stream.number(64)).is_err(), "{end}");
        }
    }
}
