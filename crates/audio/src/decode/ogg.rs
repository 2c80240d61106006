//! Empties the comments of ogg recordings before a reader sees them.
//!
//! The reader keeps all comments until the recording ends, and a recording may have any number of
//! them. It also reserves as many bytes as a comment says that it has. No label needs a comment. So
//! the packets that hold them lose their contents or their type, and their pages get the checksum
//! that fits. Pages are found as the reader finds them, because it must not see one that this
//! module has skipped.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use base::{Error, Result};

use super::bytes::InputBytes;

/// Bytes of a page before the lengths of its segments.
const HEAD: usize = 27;
/// Bytes that begin a page.
const NAME: &[u8] = b"OggS";
/// Position in a page of the time at which it ends.
const TIME: Range<usize> = 6..14;
/// Position of the checksum in a page.
const CHECKSUM: Range<usize> = 22..26;
/// Flag of a page that begins with the rest of a packet.
const CONTINUED: u8 = 1;
/// Flag of the first page of a stream.
const FIRST: u8 = 2;
/// Flag of the last page of a stream.
const LAST: u8 = 4;
/// Maximum streams that begin together. The reader holds a packet of each.
const STREAMS_MAX: usize = 16;
/// Maximum setup headers of the streams that begin together. The reader joins them.
const SETUPS_MAX: usize = STREAMS_MAX;
/// Maximum streams of flac whose numbers are kept. A reader that returns from the end of a small
/// file needs all of them, otherwise only the streams that began together last.
const FLAC_STREAMS_MAX: usize = 4096;
/// First bytes of the packet of Vorbis that holds comments.
const COMMENTS: &[u8] = b"\x03vorbis";
/// First bytes of the packet of Vorbis that holds settings.
const SETUP: &[u8] = b"\x05vorbis";
/// Comments of Opus up to the length of the first text, which the number of comments follows.
const OPUS_COMMENTS: &[u8] = b"OpusTags";

/// Time of the last page of a stream, once a reader has reached that page. Reader and watch run on
/// one thread.
pub(super) struct OggEnd {
    /// Number of the stream.
    serial: AtomicU32,
    /// Time in frames; the greatest number if no stream has ended.
    frames: AtomicU64,
}

impl OggEnd {
    pub(super) fn new() -> OggEnd {
        OggEnd { serial: AtomicU32::new(0), frames: AtomicU64::new(u64::MAX) }
    }

    /// Records that the stream `serial` ends at `frames`.
    pub(super) fn set(&self, serial: u32, frames: u64) {
        self.serial.store(serial, Ordering::Relaxed);
        self.frames.store(frames, Ordering::Relaxed);
    }

    /// Returns the time in frames at which the stream `serial` ends, or `None` if it is unknown.
    pub(super) fn of(&self, serial: u32) -> Option<u64> {
        let frames = self.frames.load(Ordering::Relaxed);
        let is_known = frames < u64::MAX && self.serial.load(Ordering::Relaxed) == serial;
        is_known.then_some(frames)
    }
}

/// Check of the pages of a recording while a reader reads it.
#[derive(Default)]
pub(super) struct OggWatch {
    /// Offset of the next page, or of a byte that may begin one. It is the greatest number while a
    /// reader looks for the end of a file, because the reader takes only times from these pages.
    next: u64,
    /// Greatest offset of a next page so far. Pages before it were counted.
    furthest: u64,
    /// Number of pages that begin a stream, since the last other page.
    firsts: usize,
    /// Number of setup headers of Vorbis since the last page that begins a stream.
    setups: usize,
    /// Numbers of the streams of flac.
    flac: BTreeSet<u32>,
    /// True after a page that is damaged or incomplete, until the next whole one.
    is_damaged: bool,
    /// Receives the time of the last page of a stream.
    end: Option<Arc<OggEnd>>,
}

impl OggWatch {
    /// Creates a watch that also records the time of the last page of a stream in `end`.
    pub(super) fn with_end(end: Arc<OggEnd>) -> OggWatch {
        OggWatch { end: Some(end), ..OggWatch::default() }
    }

    /// Checks the page at `place`, the next byte of `bytes`, if one begins there. Returns the bytes
    /// up to the next check. They must be read before it.
    ///
    /// # Errors
    /// `DataLoss` for more streams or headers than a recording can have, and at the end of a
    /// recording whose last page is damaged or incomplete.
    pub(super) fn check_next(&mut self, bytes: &mut InputBytes, place: u64) -> Result<u64> {
        if place == self.next {
            let length = match OggPart::find(bytes) {
                OggPart::Page(length) => {
                    self.filter_page(bytes.peeked_mut(length), place >= self.furthest)?;
                    self.is_damaged = false;
                    length
                }
                OggPart::Damaged(length) => {
                    self.is_damaged = true;
                    length
                }
                OggPart::Junk(length) => length,
                OggPart::End if self.is_damaged && bytes.broken().is_none() => {
                    return Err(Error::data_loss("its last page is damaged or incomplete"));
                }
                OggPart::End => 1,
            };
            self.next = place.saturating_add(length as u64);
            self.furthest = self.furthest.max(self.next);
        }
        Ok(self.next.saturating_sub(place))
    }

    /// Continues at `place`, to which a reader has moved.
    pub(super) fn moved(&mut self, place: u64) {
        self.next = if place > self.furthest { u64::MAX } else { place };
    }

    /// Empties the comments of a page. Counts its headers if it `is_new`.
    fn filter_page(&mut self, page: &mut [u8], is_new: bool) -> Result<()> {
        let body = HEAD + usize::from(page[HEAD - 1]);
        let serial = u32::from_le_bytes([page[14], page[15], page[16], page[17]]);
        let flags = page[5];
        if let Some(end) = &self.end {
            if flags & (FIRST | LAST) == LAST {
                let bytes = page[TIME].iter().rev();
                end.set(serial, bytes.fold(0, |time, byte| time << 8 | u64::from(*byte)));
            } else if end.of(serial).is_some() {
                // The stream continues after all, or another one has its number.
                end.set(serial, u64::MAX);
            }
        }
        if flags & FIRST != 0 {
            return if is_new { self.begin_stream(&page[body..], serial) } else { Ok(()) };
        }
        if is_new {
            self.firsts = 0;
        }
        let mut is_changed = false;
        let mut start = (flags & CONTINUED == 0).then_some(body);
        let mut end = body;
        let segments = page[HEAD..body].to_vec();
        for (index, length) in segments.iter().enumerate() {
            end += usize::from(*length);
            // The last packet of a page may continue on the next one.
            if *length < 255 || index + 1 == segments.len() {
                if let Some(start) = start {
                    let packet = &mut page[start..end];
                    is_changed |= self.empty(packet, serial);
                    self.setups += usize::from(is_new && packet.starts_with(SETUP));
                }
                start = Some(end);
            }
        }
        if self.setups > SETUPS_MAX {
            return Err(too_many());
        }
        if is_changed {
            let sum = checksum(page).to_le_bytes();
            page[CHECKSUM].copy_from_slice(&sum);
        }
        Ok(())
    }

    /// Handles the first page of a stream. Several streams may begin together.
    fn begin_stream(&mut self, packet: &[u8], serial: u32) -> Result<()> {
        if self.firsts == 0 {
            self.setups = 0;
            // A radio station may begin a stream for each song.
            if self.flac.len() >= FLAC_STREAMS_MAX {
                self.flac.clear();
            }
        }
        self.firsts += 1;
        if packet.starts_with(b"\x7fFLAC") {
            self.flac.insert(serial);
        }
        if self.firsts > STREAMS_MAX { Err(too_many()) } else { Ok(()) }
    }

    /// Empties a packet that holds comments or an image. Returns true if it was one. A packet that
    /// continues on the next page has at least 255 bytes here.
    fn empty(&self, packet: &mut [u8], serial: u32) -> bool {
        if packet.starts_with(COMMENTS) {
            // A type that the reader ignores.
            packet[0] = 7;
            true
        } else if packet.starts_with(OPUS_COMMENTS) && packet.len() >= OPUS_COMMENTS.len() + 8 {
            // An empty first text, and no comments.
            packet[OPUS_COMMENTS.len()..OPUS_COMMENTS.len() + 8].fill(0);
            true
        } else if self.flac.contains(&serial) && matches!(packet.first(), Some(4 | 6 | 0x84 | 0x86))
        {
            // Comments and images become padding.
            packet[0] = (packet[0] & 0x80) | 1;
            true
        } else {
            false
        }
    }
}

fn too_many() -> Error {
    Error::data_loss(format!(
        "this ogg recording has more than {STREAMS_MAX} streams or headers at a time, which is \
         impossible"
    ))
}

/// The next bytes of a recording.
enum OggPart {
    /// A page of so many bytes.
    Page(usize),
    /// So many bytes that begin no page.
    Junk(usize),
    /// A page that is not whole. Has the number of its bytes that are there.
    Damaged(usize),
    /// No byte.
    End,
}

impl OggPart {
    /// Finds the part that begins at the next byte. Reads no further than the reader will.
    fn find(bytes: &mut InputBytes) -> OggPart {
        let head = bytes.peek(HEAD);
        if head.is_empty() {
            return OggPart::End;
        }
        if !head.starts_with(NAME) {
            let next = head.iter().skip(1).position(|byte| *byte == NAME[0]);
            return OggPart::Junk(next.map_or(head.len(), |at| at + 1));
        }
        if head.len() < HEAD {
            return OggPart::Damaged(head.len());
        }
        // The reader takes the whole head before it looks at the version and the flags.
        if head[4] != 0 || head[5] & 0xf8 != 0 {
            return OggPart::Junk(HEAD);
        }
        let body = HEAD + usize::from(head[HEAD - 1]);
        let segments = bytes.peek(body).get(HEAD..).unwrap_or_default();
        let length = body + segments.iter().map(|length| usize::from(*length)).sum::<usize>();
        let page = bytes.peek(length);
        if page.len() == length && page[CHECKSUM] == checksum(page).to_le_bytes() {
            OggPart::Page(length)
        } else {
            // After a wrong checksum the reader continues behind the name.
            OggPart::Damaged(NAME.len())
        }
    }
}

/// Sums of the bytes, for a checksum with the polynomial of ogg.
const SUMS: [u32; 256] = sums();

/// Returns the table of the checksum of Ogg pages, which is a CRC with the polynomial 0x04c11db7.
const fn sums() -> [u32; 256] {
    let mut sums = [0; 256];
    let mut index = 0;
    while index < sums.len() {
        let mut sum = (index as u32) << 24;
        let mut bit = 0;
        while bit < 8 {
            sum = if sum >> 31 == 1 { (sum << 1) ^ 0x04c1_1db7 } else { sum << 1 };
            bit += 1;
        }
        sums[index] = sum;
        index += 1;
    }
    sums
}

/// Returns the checksum of a page, in which its own field counts as zero.
fn checksum(page: &[u8]) -> u32 {
    page.iter().enumerate().fold(0, |sum: u32, (index, byte)| {
        let byte = if CHECKSUM.contains(&index) { 0 } else { *byte };
        (sum << 8) ^ SUMS[usize::from((sum >> 24) as u8 ^ byte)]
    })
}

#[cfg(test)]
mod tests {
    use std::io::{Cursor, Read, Seek, SeekFrom, Write};

    use super::*;
    use crate::decode::AudioInput;
    use crate::decode::bytes::ByteWatch;

    const CLIP: &[u8] = include_bytes!("../../tests/data/clip.ogg");

    /// Builds a page of packets with fewer than 255 bytes each.
    fn page(flags: u8, serial: u32, packets: &[&[u8]]) -> Vec<u8> {
        let mut page = [NAME, &[0, flags], &[0; 8], &serial.to_le_bytes(), &[0; 8]].concat();
        page.push(packets.len() as u8);
        page.extend(packets.iter().map(|packet| packet.len() as u8));
        page.extend(packets.concat());
        let sum = checksum(&page).to_le_bytes();
        page[CHECKSUM].copy_from_slice(&sum);
        page
    }

    fn watched(input: AudioInput) -> InputBytes {
        let mut bytes = InputBytes::new(input);
        bytes.watch(ByteWatch::Ogg(OggWatch::default()));
        bytes
    }

    /// Returns the bytes that a reader of `bytes` gets.
    fn seen(bytes: &[u8]) -> std::io::Result<Vec<u8>> {
        let mut seen = Vec::new();
        let input = AudioInput::Stream(Box::new(Cursor::new(bytes.to_vec())));
        watched(input).read_to_end(&mut seen).map(|_| seen)
    }

    #[test]
    fn only_comments_are_changed_and_checksums_fit() {
        let read = seen(CLIP).unwrap();
        assert_eq!(read.len(), CLIP.len());
        let changed: Vec<usize> = (0..CLIP.len()).filter(|at| CLIP[*at] != read[*at]).collect();
        let comment = CLIP.windows(7).position(|bytes| bytes == b"\x03vorbis").unwrap();
        let sums = changed.iter().filter(|at| **at != comment);
        // The page of the comment begins at byte 58.
        assert!(sums.copied().all(|at| (58 + 22..58 + 26).contains(&at)), "{changed:?}");
        assert_eq!(read[comment], 7);
        let input = AudioInput::Stream(Box::new(Cursor::new(read.clone())));
        let mut bytes = InputBytes::new(input);
        let mut at = 0;
        while at < read.len() {
            let OggPart::Page(length) = OggPart::find(&mut bytes) else { panic!("at {at}") };
            bytes.advance(length);
            at += length;
        }
    }

    #[test]
    fn a_stream_ends_at_its_last_page_unless_it_continues() {
        let end = Arc::new(OggEnd::new());
        let mut watch = OggWatch::with_end(Arc::clone(&end));
        let pages = [(FIRST, 5), (LAST, 5), (0, 6), (0, 5), (LAST, 5), (FIRST, 5)];
        let known = pages.map(|(flags, serial)| {
            watch.filter_page(&mut page(flags, serial, &[b"sound"]), true).unwrap();
            end.of(5)
        });
        assert_eq!(known, [None, Some(0), Some(0), None, Some(0), None]);
    }

    #[test]
    fn comments_of_each_codec_are_emptied() {
        let opus = [OPUS_COMMENTS, &[0xff; 20]].concat();
        let flac = [
            page(FIRST, 5, &[b"\x7fFLAC and more"]),
            page(0, 5, &[b"\x04text", b"\x86image", b"\xff\xf8sound"]),
        ];
        let other = page(0, 6, &[b"\x04not flac", &opus, b"\x05vorbis"]);
        let read = seen(&[flac.concat(), other].concat()).unwrap();
        let empty = [OPUS_COMMENTS, &[0; 8], &[0xff; 12]].concat();
        let expected = [
            flac[0].clone(),
            page(0, 5, &[b"\x01text", b"\x81image", b"\xff\xf8sound"]),
            page(0, 6, &[b"\x04not flac", &empty, b"\x05vorbis"]),
        ];
        assert!(read == expected.concat());
    }

    #[test]
    fn a_radio_station_may_play_any_number_of_songs() {
        let mut watch = OggWatch::default();
        for song in 0..2 * FLAC_STREAMS_MAX as u32 {
            watch.filter_page(&mut page(FIRST, song, &[b"\x7fFLAC"]), true).unwrap();
            let mut comment = page(0, song, &[b"\x04text"]);
            watch.filter_page(&mut comment, true).unwrap();
            assert_eq!(comment, page(0, song, &[b"\x01text"]));
        }
        assert!(watch.flac.len() <= FLAC_STREAMS_MAX);
    }

    #[test]
    fn a_page_inside_a_damaged_one_is_found() {
        let (inner, emptied) =
            (page(0, 1, &[b"\x03vorbis text"]), page(0, 1, &[b"\x07vorbis text"]));
        let mut damaged = page(0, 1, &[&inner]);
        damaged[CHECKSUM.start] ^= 1;
        // A head with a wrong version hides the page that begins inside it from a reader.
        let mut hidden = b"OggS\x01      ".to_vec();
        hidden.extend(page(0, 1, &[&inner]));
        for bytes in [damaged, hidden] {
            let read = seen(&bytes).unwrap();
            assert!(read.ends_with(&emptied), "{read:?}");
        }
    }

    #[test]
    fn a_reader_that_moves_gets_the_same_bytes() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(CLIP).unwrap();
        file.rewind().unwrap();
        let expected = seen(CLIP).unwrap();
        let mut bytes = watched(AudioInput::File(file));
        let mut start = [0; 200];
        bytes.read_exact(&mut start).unwrap();
        bytes.seek(SeekFrom::End(-100)).unwrap();
        let mut end = Vec::new();
        bytes.read_to_end(&mut end).unwrap();
        assert!(end == CLIP[CLIP.len() - 100..]);
        bytes.seek(SeekFrom::Start(58)).unwrap();
        let mut rest = Vec::new();
        bytes.read_to_end(&mut rest).unwrap();
        assert!(rest == expected[58..]);
    }

    #[test]
    fn streams_and_setups_without_end_are_refused() {
        let first = page(FIRST, 1, &[b"\x01vorbis"]);
        let setups = page(0, 1, &[b"\x05vorbis"]).repeat(SETUPS_MAX);
        let group = [first.repeat(STREAMS_MAX), setups].concat();
        // Another group may follow.
        assert!(seen(&group.repeat(3)).is_ok());
        assert!(seen(&[&first[..], &group].concat()).is_err());
        assert!(seen(&[group, page(0, 1, &[b"\x05vorbis"])].concat()).is_err());
    }
}
