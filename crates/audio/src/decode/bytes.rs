//! A recording's bytes, with look-ahead.

use std::io::{self, Read, Seek, SeekFrom};

use symphonia::core::io::MediaSource;

use super::AudioInput;
use super::mp4::Mp4Watch;
use super::ogg::OggWatch;

/// Bytes of an ID3 tag of version 1, which ends a recording.
pub(super) const ID3_BYTES: usize = 128;
/// Bytes of one read.
const PIECE: usize = 32 * 1024;

/// Returns true for an ID3 tag of version 1.
pub(super) fn is_id3(bytes: &[u8]) -> bool {
    bytes.len() == ID3_BYTES && bytes.starts_with(b"TAG")
}

/// Checks that are made while a reader reads.
pub(super) enum ByteWatch {
    /// Only without seeking.
    Mp4(Mp4Watch),
    Ogg(OggWatch),
}

/// A recording's bytes from its beginning on.
pub(super) struct InputBytes {
    rest: AudioInput,
    /// Bytes read from `rest` and not taken, from `used` on.
    ahead: Vec<u8>,
    used: usize,
    ended: bool,
    /// Message of the error that ended `rest`, if one did.
    broken: Option<String>,
    /// Names that are replaced while they are read, by offset. They hide atoms that no reader
    /// needs.
    renamed: Vec<(u64, [u8; 4])>,
    /// Position for a reader that seeks.
    place: u64,
    seekable: bool,
    /// Offset at which a file ends for a reader, if not at its last byte.
    end: Option<u64>,
    /// Bytes that a reader gets only if more follow or if they are no tag.
    held_back: usize,
    /// Checks that are made while a reader reads.
    watch: Option<ByteWatch>,
}

impl InputBytes {
    pub(super) fn new(input: AudioInput) -> InputBytes {
        let seekable = matches!(input, AudioInput::File(_));
        InputBytes {
            rest: input,
            ahead: Vec::new(),
            used: 0,
            ended: false,
            broken: None,
            renamed: Vec::new(),
            place: 0,
            seekable,
            end: None,
            held_back: 0,
            watch: None,
        }
    }

    /// Returns the next `count` bytes without taking them, or fewer at the end.
    pub(super) fn peek(&mut self, count: usize) -> &[u8] {
        while self.ahead.len() - self.used < count && !self.ended {
            self.ahead.drain(..self.used);
            self.used = 0;
            let had = self.ahead.len();
            let room = self.room();
            self.ahead.resize(had + room, 0);
            let read = loop {
                let read = match &mut self.rest {
                    AudioInput::File(file) => file.read(&mut self.ahead[had..]),
                    AudioInput::Stream(stream) => stream.read(&mut self.ahead[had..]),
                };
                match read {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    other => break other,
                }
            };
            let read = match read {
                Ok(read) => read.min(room),
                Err(error) => {
                    self.broken = Some(error.to_string());
                    0
                }
            };
            self.ahead.truncate(had + read);
            self.ended = read == 0;
        }
        let held = &self.ahead[self.used..];
        &held[..count.min(held.len())]
    }

    /// Returns the size of the next read, which does not pass the end of a file.
    fn room(&mut self) -> usize {
        let (AudioInput::File(file), Some(end)) = (&mut self.rest, self.end) else { return PIECE };
        let left = file.stream_position().map_or(0, |position| end.saturating_sub(position));
        usize::try_from(left).unwrap_or(PIECE).min(PIECE)
    }

    /// Makes a file end at `end` for readers. Does nothing to a stream.
    pub(super) fn end_at(&mut self, end: u64) {
        let AudioInput::File(file) = &mut self.rest else { return };
        let Ok(position) = file.stream_position() else { return };
        let over = usize::try_from(position.saturating_sub(end)).unwrap_or(usize::MAX);
        self.ahead.truncate(self.ahead.len().saturating_sub(over));
        self.used = self.used.min(self.ahead.len());
        self.end = Some(end);
    }

    /// Leaves out an ID3 tag at the end of a stream.
    pub(super) fn hold_back_tag(&mut self) {
        self.held_back = ID3_BYTES;
    }

    /// Returns the number of bytes that a reader can have now; 0 at the end only.
    fn available(&mut self) -> usize {
        let held = self.peek(self.held_back + 1).len();
        if held <= self.held_back {
            // These are the last bytes.
            if is_id3(&self.ahead[self.used..]) {
                self.ahead.truncate(self.used);
            }
            self.held_back = 0;
        }
        self.ahead.len() - self.used - self.held_back
    }

    /// Returns the last bytes of a file, at most `count`, and its length. Returns `None` for a
    /// stream and for a file without a length.
    pub(super) fn tail(&mut self, count: usize) -> Option<(Vec<u8>, u64)> {
        let length = self.file_length()?;
        let AudioInput::File(file) = &mut self.rest else { return None };
        let position = file.stream_position().ok()?;
        let mut tail = Vec::new();
        let mut read = file.seek(SeekFrom::Start(length.saturating_sub(count as u64)));
        if read.is_ok() {
            let bytes = Read::by_ref(file).take(count as u64).read_to_end(&mut tail);
            read = bytes.map(|count| count as u64);
        }
        // Reading continues at the same place, also after an error.
        file.seek(SeekFrom::Start(position)).and(read).ok()?;
        Some((tail, length))
    }

    /// Returns `count` peeked bytes, to change them before a reader gets them.
    pub(super) fn peeked_mut(&mut self, count: usize) -> &mut [u8] {
        let held = &mut self.ahead[self.used..];
        let count = count.min(held.len());
        &mut held[..count]
    }

    /// Takes `count` peeked bytes; fewer at the end.
    pub(super) fn advance(&mut self, count: usize) {
        self.used = (self.used + count).min(self.ahead.len());
    }

    /// Skips `count` bytes. Returns false if there are fewer.
    pub(super) fn skip(&mut self, mut count: u64) -> bool {
        while count > 0 {
            let seen = self.peek(usize::try_from(count).unwrap_or(PIECE).min(PIECE)).len();
            if seen == 0 {
                return false;
            }
            self.advance(seen);
            count -= seen as u64;
        }
        true
    }

    /// Inserts `bytes` before the next ones and disables seeking.
    pub(super) fn put_back(&mut self, bytes: &[u8]) {
        self.ahead.splice(..self.used, bytes.iter().copied());
        self.used = 0;
        self.seekable = false;
    }

    /// Disables seeking.
    pub(super) fn forward_only(&mut self) {
        self.seekable = false;
    }

    /// Returns the error that ended reading early, if one did.
    pub(super) fn broken(&self) -> Option<&str> {
        self.broken.as_deref()
    }

    /// Returns true for a file, which can be read at any position.
    pub(super) fn is_file(&self) -> bool {
        self.seekable
    }

    /// Returns up to `count` bytes at `offset` from the beginning. Call it before any bytes are
    /// taken. A stream keeps all bytes up to the end of the returned bytes.
    pub(super) fn read_at(&mut self, offset: u64, count: usize) -> Vec<u8> {
        if let AudioInput::File(file) = &mut self.rest {
            let mut bytes = Vec::new();
            let read = file
                .seek(SeekFrom::Start(offset))
                .and_then(|_| file.take(count as u64).read_to_end(&mut bytes));
            if let Err(error) = read {
                self.broken = Some(error.to_string());
            }
            return bytes;
        }
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        let seen = self.peek(offset.saturating_add(count));
        seen.get(offset..).unwrap_or_default().to_vec()
    }

    /// Makes the four bytes at `offset` from the beginning read as `name`.
    pub(super) fn rename(&mut self, offset: u64, name: [u8; 4]) {
        self.renamed.push((offset, name));
    }

    /// Returns the number of replaced names.
    pub(super) fn renamed(&self) -> usize {
        self.renamed.len()
    }

    /// Makes `watch` check all bytes, from the beginning on, before a reader gets them.
    pub(super) fn watch(&mut self, watch: ByteWatch) {
        self.watch = Some(watch);
    }

    /// Returns the number of bytes that a reader may take before the next check.
    fn watched(&mut self) -> io::Result<u64> {
        let Some(mut watch) = self.watch.take() else { return Ok(u64::MAX) };
        let place = self.place;
        let room = match &mut watch {
            ByteWatch::Mp4(watch) => watch.check_next(self, place),
            ByteWatch::Ogg(watch) => watch.check_next(self, place),
        };
        self.watch = Some(watch);
        room.map_err(|error| io::Error::other(error.message().to_owned()))
    }

    /// Returns to the beginning, for readers that seek. Only before any bytes were taken.
    pub(super) fn rewound(mut self) -> io::Result<InputBytes> {
        if let AudioInput::File(file) = &mut self.rest {
            file.rewind()?;
            self.ahead.clear();
            self.ended = false;
        }
        Ok(self)
    }

    pub(super) fn file_length(&self) -> Option<u64> {
        match &self.rest {
            AudioInput::File(file) => {
                let length = file.metadata().ok().map(|data| data.len());
                self.end.map_or(length, |end| length.map(|length| length.min(end)))
            }
            AudioInput::Stream(_) => None,
        }
    }
}

/// Reads the file as a container's reader sees it: a reader that seeks starts at the beginning.
impl Read for InputBytes {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let room = usize::try_from(self.watched()?).unwrap_or(PIECE).min(PIECE);
        // A stream may pause: no byte that has arrived waits for more.
        let count = into.len().min(room).min(self.available());
        into[..count].copy_from_slice(self.peek(count));
        self.advance(count);
        if count == 0
            && let Some(broken) = &self.broken
        {
            return Err(io::Error::other(broken.clone()));
        }
        for (offset, name) in &self.renamed {
            for (index, byte) in name.iter().enumerate() {
                let at = (offset + index as u64)
                    .checked_sub(self.place)
                    .and_then(|at| usize::try_from(at).ok());
                if let Some(place) = at.and_then(|at| into[..count].get_mut(at)) {
                    *place = *byte;
                }
            }
        }
        self.place += count as u64;
        Ok(count)
    }
}

impl Seek for InputBytes {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let AudioInput::File(file) = &mut self.rest else {
            return Err(io::Error::from(io::ErrorKind::Unsupported));
        };
        let to = match to {
            // The file's own position is ahead of the taken bytes.
            SeekFrom::Current(by) => SeekFrom::Start(
                self.place.checked_add_signed(by).ok_or(io::ErrorKind::InvalidInput)?,
            ),
            other => other,
        };
        self.place = file.seek(to)?;
        self.ahead.clear();
        self.used = 0;
        self.ended = false;
        if let Some(ByteWatch::Ogg(watch)) = &mut self.watch {
            watch.moved(self.place);
        }
        Ok(self.place)
    }
}

impl MediaSource for InputBytes {
    fn is_seekable(&self) -> bool {
        self.is_file()
    }

    fn byte_len(&self) -> Option<u64> {
        self.file_length()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_bytes_do_not_grow() {
        let mut bytes = InputBytes::new(AudioInput::Stream(Box::new(io::repeat(7).take(64 << 20))));
        let mut seen = 0;
        loop {
            let piece = bytes.peek(5000).len();
            if piece == 0 {
                break;
            }
            bytes.advance(piece);
            seen += piece;
            assert!(
                bytes.ahead.capacity() <= 4 * PIECE,
                "{} bytes are held",
                bytes.ahead.capacity()
            );
        }
        assert_eq!(seen, 64 << 20);
    }

    /// A stream of pieces, of which one is not sent yet.
    struct PausedStream(Vec<&'static [u8]>);

    impl Read for PausedStream {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let piece = self.0.pop().expect("a read during the pause would wait for ever");
            into[..piece.len()].copy_from_slice(piece);
            Ok(piece.len())
        }
    }

    #[test]
    fn a_read_waits_for_no_more_than_a_byte() {
        let stream = PausedStream(vec![b"second", b"first"]);
        let mut bytes = InputBytes::new(AudioInput::Stream(Box::new(stream)));
        let mut into = [0; 100];
        for piece in [&b"first"[..], b"second"] {
            let count = bytes.read(&mut into).unwrap();
            assert_eq!(&into[..count], piece);
        }
    }

    #[test]
    fn bytes_are_renamed_at_every_read_position() {
        let mut file = tempfile::tempfile().unwrap();
        io::Write::write_all(&mut file, b"0123456789").unwrap();
        file.rewind().unwrap();
        let mut bytes = InputBytes::new(AudioInput::File(file));
        assert_eq!(bytes.read_at(8, 5), b"89");
        bytes.rename(3, *b"abcd");
        let mut bytes = bytes.rewound().unwrap();
        let mut text = String::new();
        bytes.read_to_string(&mut text).unwrap();
        assert_eq!(text, "012abcd789");
        for start in 0..10 {
            bytes.seek(SeekFrom::Start(start as u64)).unwrap();
            let mut two = [0; 2];
            let count = bytes.read(&mut two).unwrap();
            assert_eq!(&two[..count], &text.as_bytes()[start..(start + 2).min(10)]);
            assert_eq!(bytes.stream_position().unwrap(), (start + count) as u64);
        }
    }
}
