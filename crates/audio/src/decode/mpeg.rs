//! Finds and counts the frames of mp3 files, and resumes after damage.

use base::{Error, Result};
use symphonia::core::audio::Channels;
use symphonia::core::codecs::{CODEC_TYPE_MP3, CodecParameters};
use symphonia::core::formats::Packet;

use super::bytes::InputBytes;
use super::codec::PacketDecoder;
use super::read::{BlockReader, DecodeStep};

/// Maximum offset of the first frame after the tags.
const SEARCH_MAX: usize = 128 * 1024;
/// Bytes that are skipped at a time in a tag and in search of the next frame.
const PASS: usize = 16 * 1024;
/// Maximum bytes of a frame.
const FRAME_MAX: usize = 2881;
/// Maximum tags before the first frame.
const TAGS_MAX: usize = 16;
/// Frames of sound that a decoder adds at the beginning; the same for all decoders of this kind.
const DECODER_DELAY: u64 = 529;

/// A frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MpegHeader {
    /// Bits that are constant within a recording: version, layer and rate.
    kind: u32,
    rate: u32,
    channels: usize,
    /// Number of samples of each channel.
    samples: u64,
    /// Bytes of the frame with its header.
    size: usize,
    /// Bytes between the header and the position of an information tag.
    side: usize,
}

impl MpegHeader {
    /// Reads the header of a frame of layer III. Returns `None` for other bytes, and for the free
    /// format, whose header does not state the size of the frame.
    fn parse(bytes: &[u8]) -> Option<MpegHeader> {
        let word = u32::from_be_bytes(bytes.get(..4)?.try_into().ok()?);
        let version = word >> 19 & 3;
        let layer = word >> 17 & 3;
        let bits = word >> 12 & 15;
        let rate = word >> 10 & 3;
        if word >> 21 != 0x7ff || version == 1 || layer != 1 || bits == 0 || bits == 15 || rate == 3
        {
            return None;
        }
        let is_mpeg1 = version == 3;
        let kilobits = if is_mpeg1 {
            [32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320][bits as usize - 1]
        } else {
            [8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160][bits as usize - 1]
        };
        let halvings = [2, 0, 1, 0][version as usize];
        let rate = [44100, 48000, 32000][rate as usize] >> halvings;
        let samples = if is_mpeg1 { 1152 } else { 576 };
        let size =
            (samples / 8 * kilobits * 1000 / u64::from(rate)) as usize + (word >> 9 & 1) as usize;
        let is_mono = word >> 6 & 3 == 3;
        let side = match (is_mpeg1, is_mono) {
            (true, false) => 32,
            (true, true) | (false, false) => 17,
            (false, true) => 9,
        };
        let channels = if is_mono { 1 } else { 2 };
        Some(MpegHeader { kind: word & 0xfffe_0c00, rate, channels, samples, size, side })
    }
}

/// Fields of the tag in a first frame without sound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct MpegInfo {
    /// Number of mp3 frames that follow.
    frames: Option<u64>,
    /// Number of samples that an encoder added before and after the sound.
    delay: u64,
    padding: u64,
}

/// Reads the tag in the first frame, if it is one.
fn information(frame: &[u8], header: &MpegHeader) -> Option<MpegInfo> {
    let big =
        |at: usize| Some(u64::from(u32::from_be_bytes(frame.get(at..at + 4)?.try_into().ok()?)));
    let at = 4 + header.side;
    if matches!(frame.get(at..at + 4), Some(b"Xing" | b"Info")) {
        let flags = big(at + 4)?;
        let frames = if flags & 1 == 1 { big(at + 8) } else { None };
        let sizes = [(1, 4), (2, 4), (4, 100), (8, 4)];
        let lame = at
            + 8
            + sizes.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, size)| size).sum::<usize>();
        let gaps = frame
            .get(lame + 21..lame + 24)
            .filter(|_| frame.get(lame).is_some_and(u8::is_ascii_alphabetic));
        let (delay, padding) = gaps.map_or((0, 0), |gaps| {
            let all = gaps.iter().fold(0, |sum: u64, byte| sum << 8 | u64::from(*byte));
            (all >> 12, all & 0xfff)
        });
        return Some(MpegInfo { frames, delay, padding });
    }
    if frame.get(36..40) == Some(b"VBRI") {
        return Some(MpegInfo { frames: big(50), ..MpegInfo::default() });
    }
    None
}

/// Skips tags at the beginning.
pub(super) fn pass_tags(bytes: &mut InputBytes) {
    for _ in 0..TAGS_MAX {
        let Some(length) = tag(bytes.peek(32)) else { return };
        bytes.skip(length);
    }
}

/// Returns the length of the tag that begins here, if one does.
fn tag(start: &[u8]) -> Option<u64> {
    match start {
        [b'I', b'D', b'3', _, _, flags, sizes @ ..] if sizes.len() >= 4 => {
            let size =
                sizes[..4].iter().fold(0, |sum: u64, byte| sum << 7 | u64::from(byte & 0x7f));
            Some(10 + size + if flags & 0x10 == 0 { 0 } else { 10 })
        }
        [b'T', b'A', b'G', ..] => Some(128),
        [b'A', b'P', b'E', b'T', b'A', b'G', b'E', b'X', rest @ ..] if rest.len() >= 24 => {
            let size =
                rest[4..8].iter().rev().fold(0, |sum: u64, byte| sum << 8 | u64::from(*byte));
            // A header counts the bytes after it; a footer alone comes last.
            Some(if rest[15] & 0x20 == 0 { 32 } else { 32 + size })
        }
        _ => None,
    }
}

/// Returns the offset of the first frame in `start`: a frame that two more frames follow, or the
/// end.
fn first_frame(start: &[u8], whole: bool) -> Option<usize> {
    (0..start.len().saturating_sub(3)).find(|at| {
        let mut place = *at;
        let Some(header) = MpegHeader::parse(&start[place..]) else { return false };
        for _ in 0..2 {
            let Some(next) =
                MpegHeader::parse(&start[place..]).filter(|next| next.kind == header.kind)
            else {
                return false;
            };
            place += next.size;
            if place >= start.len() {
                // A single frame is accepted only at the beginning.
                return whole && place == start.len() && (*at == 0 || place > at + header.size);
            }
        }
        MpegHeader::parse(&start[place..]).is_some_and(|next| next.kind == header.kind)
            || (whole && (tag(&start[place..]).is_some() || *at == 0))
    })
}

/// Returns the offset of the first frame. Reads no further ahead than needed, because the rest of
/// an upload may arrive slowly.
pub(super) fn find(bytes: &mut InputBytes) -> Option<usize> {
    [SEARCH_MAX / 16, SEARCH_MAX].into_iter().find_map(|look| {
        let start = bytes.peek(look);
        first_frame(start, start.len() < look)
    })
}

/// Bytes that a search for the next frame has skipped so far.
struct SkippedBytes {
    count: usize,
    /// True if all skipped bytes are zero.
    zeros: bool,
}

/// Creates a decoder of frames with the rate and the channels of `header`.
fn packet_decoder(header: &MpegHeader) -> Result<PacketDecoder> {
    let mut parameters = CodecParameters::new();
    let channels = if header.channels == 1 {
        Channels::FRONT_LEFT
    } else {
        Channels::FRONT_LEFT | Channels::FRONT_RIGHT
    };
    parameters.for_codec(CODEC_TYPE_MP3).with_sample_rate(header.rate).with_channels(channels);
    PacketDecoder::new(parameters)
}

/// Reader of MPEG audio frames.
pub(super) struct Mpeg {
    bytes: InputBytes,
    codec: PacketDecoder,
    /// Number of channels of the frames that the codec decodes now.
    codec_channels: usize,
    /// Header of the first frame.
    header: MpegHeader,
    information: MpegInfo,
    /// Mean size of the frames so far, which estimates the length of damage.
    size: f64,
    /// Search in progress. It returns after each window, because a stop is seen between two steps
    /// only, and a file may have gigabytes without a frame.
    skipped: Option<SkippedBytes>,
    /// Bytes of a tag that are still to be skipped, also one window at a time.
    tag_left: u64,
}

impl Mpeg {
    /// Skips to the first frame.
    ///
    /// # Errors
    /// `InvalidArgument` if there is none.
    pub(super) fn open(mut bytes: InputBytes) -> Result<Mpeg> {
        let none = || Error::invalid("there is no frame of mp3");
        let at = find(&mut bytes).ok_or_else(none)?;
        bytes.advance(at);
        let header = MpegHeader::parse(bytes.peek(4)).ok_or_else(none)?;
        let information = information(bytes.peek(header.size), &header);
        if information.is_some() {
            bytes.advance(header.size);
        }
        let mut codec = packet_decoder(&header)?;
        codec.announce(header.rate, header.channels);
        Ok(Mpeg {
            bytes,
            codec,
            codec_channels: header.channels,
            header,
            information: information.unwrap_or_default(),
            size: header.size as f64,
            skipped: None,
            tag_left: 0,
        })
    }

    /// Returns rate and channels.
    pub(super) fn rate_and_channels(&self) -> (u32, usize) {
        (self.header.rate, self.header.channels)
    }

    /// Returns the announced samples of each channel, including the samples of [`Mpeg::silent`].
    pub(super) fn announced(&self) -> Option<u64> {
        self.information.frames?.checked_mul(self.header.samples)
    }

    /// Returns the samples that encoder and decoder added at both ends, as ranges without overlap.
    pub(super) fn silent(&self) -> Vec<std::ops::Range<u64>> {
        let MpegInfo { delay, padding, .. } = self.information;
        if delay == 0 {
            return Vec::new();
        }
        let start = delay + DECODER_DELAY;
        // The two ranges must not overlap, even if the tag announces fewer samples than it adds.
        let end = self.announced().map(|all| {
            let sound = all.saturating_sub(padding.saturating_sub(DECODER_DELAY));
            sound.max(start)..all.max(start)
        });
        std::iter::once(0..start).chain(end).collect()
    }

    /// Decodes a whole frame. A decoder refuses frames with another number of channels than its
    /// first, so these get a decoder of their own. A program may have joined files of mono and
    /// stereo.
    ///
    /// # Errors
    /// A sentence that describes the damage.
    fn decode(
        &mut self,
        header: &MpegHeader,
        packet: &Packet,
        samples: &mut Vec<f32>,
    ) -> Result<(), String> {
        if header.channels != self.codec_channels {
            let codec = packet_decoder(header).map_err(|error| error.message().to_owned())?;
            self.codec.follow(codec);
            self.codec_channels = header.channels;
        }
        self.codec.decode(packet, samples)
    }

    fn header_at(&self, start: &[u8]) -> Option<MpegHeader> {
        MpegHeader::parse(start).filter(|header| header.kind == self.header.kind)
    }

    /// Skips a window of bytes that are not a frame, up to the next frame. The lost frames are
    /// estimated from all skipped bytes. After the last frame there are none.
    fn search(&mut self, before: SkippedBytes) -> DecodeStep {
        let SkippedBytes { count: passed, zeros } = before;
        let window = PASS + 2 * FRAME_MAX + 4;
        let start = self.bytes.peek(window);
        if start.is_empty() {
            // Some programs leave zeros at the end.
            if zeros {
                return self.last_step();
            }
            let what = format!("{passed} bytes at the end are not audio");
            return DecodeStep::Lost { frames: 0, what };
        }
        // After damage, a frame must be followed by another one, or by the end.
        let kind = self.header.kind;
        let whole = start.len() < window;
        let known =
            |at: usize| MpegHeader::parse(start.get(at..)?).filter(|header| header.kind == kind);
        let ends = |at: usize| {
            whole && (at == start.len() || start.get(at..).is_some_and(|end| tag(end).is_some()))
        };
        let found = (usize::from(passed == 0)..start.len().min(PASS)).find(|at| {
            known(*at)
                .is_some_and(|header| known(at + header.size).is_some() || ends(at + header.size))
        });
        let skipped = found.unwrap_or(start.len().min(PASS));
        let zeros = zeros && start[..skipped].iter().all(|byte| *byte == 0);
        self.bytes.advance(skipped);
        let passed = passed + skipped;
        if found.is_none() {
            self.skipped = Some(SkippedBytes { count: passed, zeros });
            return DecodeStep::Sound { at: None };
        }
        let frames = (passed as f64 / self.size).round() as u64;
        DecodeStep::Lost {
            frames: frames * self.header.samples,
            what: format!("{passed} bytes are not audio"),
        }
    }

    /// Skips the next window of a tag.
    fn pass_tag(&mut self) -> DecodeStep {
        let count = self.tag_left.min(PASS as u64);
        let passed = self.bytes.skip(count);
        self.tag_left = if passed { self.tag_left - count } else { 0 };
        DecodeStep::Sound { at: None }
    }

    /// Returns the step after the last byte.
    fn last_step(&self) -> DecodeStep {
        self.bytes.broken().map_or(DecodeStep::End, |why| DecodeStep::Broken(why.to_owned()))
    }
}

impl BlockReader for Mpeg {
    fn next(&mut self, samples: &mut Vec<f32>) -> DecodeStep {
        if let Some(before) = self.skipped.take() {
            return self.search(before);
        }
        if self.tag_left > 0 {
            return self.pass_tag();
        }
        let start = self.bytes.peek(32);
        if start.is_empty() {
            return self.last_step();
        }
        if let Some(length) = tag(start) {
            self.tag_left = length;
            return self.pass_tag();
        }
        let start = start.to_vec();
        let Some(header) = self.header_at(&start) else {
            return self.search(SkippedBytes { count: 0, zeros: true });
        };
        let frame = self.bytes.peek(header.size);
        if frame.len() < header.size {
            let count = frame.len();
            self.bytes.advance(count);
            return DecodeStep::Lost {
                frames: header.samples,
                what: "the last frame is cut short".to_owned(),
            };
        }
        let packet = Packet::new_from_slice(0, 0, header.samples, frame);
        self.bytes.advance(header.size);
        self.size += (header.size as f64 - self.size) / 64.0;
        match self.decode(&header, &packet, samples) {
            Ok(()) => DecodeStep::Sound { at: None },
            Err(what) => DecodeStep::Lost {
                frames: header.samples,
                what: format!("a frame cannot be decoded: {what}"),
            },
        }
    }
}
