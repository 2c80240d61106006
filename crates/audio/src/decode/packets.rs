//! Recordings in containers: flac, ogg, mp4.

use std::io::ErrorKind;
use std::sync::Arc;

use base::{Error, Result};
use symphonia::core::codecs::{
    CODEC_TYPE_NULL, CODEC_TYPE_OPUS, CODEC_TYPE_VORBIS, CodecParameters,
};
use symphonia::core::errors::Error as ReaderError;
use symphonia::core::formats::{FormatOptions, FormatReader, Track};
use symphonia::core::io::{MediaSourceStream, MediaSourceStreamOptions};
use symphonia::default::formats::{FlacReader, IsoMp4Reader, OggReader};

use super::bytes::{ByteWatch, InputBytes};
use super::codec::PacketDecoder;
use super::ogg::{OggEnd, OggWatch};
use super::read::{BlockReader, DecodeStep, PACKET_MAX, guarded};
use super::sniff::KNOWN;

/// Consecutive errors after which a container is abandoned.
const ERRORS_MAX: usize = 64;
/// Consecutive undecodable packets after which a container is abandoned: most of an hour of sound.
const LOST_MAX: usize = 1 << 16;

/// Largest block of Vorbis, in frames.
const BLOCK_MAX: u64 = 8192;

/// Containers of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Container {
    Flac,
    Ogg,
    Mp4,
}

/// Reader of the packets of the first track that has sound.
pub(super) struct Packets {
    container: Container,
    reader: Box<dyn FormatReader>,
    track: u32,
    codec: PacketDecoder,
    /// Ticks of the clock of the track per second.
    ticks: f64,
    /// Time of the first packet, if the recording may begin at any time.
    first: Option<u64>,
    /// True while packets' times count from the recording's beginning.
    timed: bool,
    errors: usize,
    /// Consecutive packets that could not be decoded.
    lost: usize,
    /// Only for a stream of ogg. A reader of a file finds the end itself.
    trim: Option<OggTrim>,
}

/// Removes the frames behind the end of a stream of Vorbis, whose last block is longer than its
/// sound.
struct OggTrim {
    end: Arc<OggEnd>,
    /// Number of frames before the time 0. The reader does not remove them.
    before_zero: u64,
    /// Time of the first packet.
    first: Option<u64>,
    /// Number of frames decoded since.
    decoded: u64,
    /// True once frames behind the end were removed. All later ones are behind it too, unless the
    /// stream continues after its last page.
    is_past_end: bool,
}

impl OggTrim {
    /// `before_zero` is the number of frames that the reader finds before the time 0.
    fn new(end: Arc<OggEnd>, before_zero: u64) -> OggTrim {
        OggTrim { end, before_zero, first: None, decoded: 0, is_past_end: false }
    }

    /// Begins with another stream.
    fn restart(&mut self, before_zero: u64) {
        *self = OggTrim::new(Arc::clone(&self.end), before_zero);
    }

    /// Removes the frames after the end of the sound from `samples`. Their last `frames` frames are
    /// of the packet at `time` of the stream `serial`.
    fn apply(
        &mut self,
        serial: u32,
        time: u64,
        samples: &mut Vec<f32>,
        frames: u64,
        channels: usize,
    ) {
        if self.first.is_none() && self.end.of(serial).is_some() {
            // If the first page is also the last, it has more frames than its time because the
            // sound ends before them. The reader takes them for frames before the time 0.
            self.before_zero = 0;
        }
        let first = *self.first.get_or_insert(time);
        let start = self.decoded;
        self.decoded += frames;
        // A last page with the time 0 states no end: no stream with sound ends where it begins.
        let Some(end) = self.end.of(serial).filter(|end| *end > first) else {
            self.is_past_end = false;
            return;
        };
        let length = end.saturating_sub(first).saturating_add(self.before_zero);
        // A time that is further from the sound is wrong.
        if self.is_past_end || start <= length.saturating_add(BLOCK_MAX) {
            let over = self.decoded.saturating_sub(length).min(frames) as usize;
            samples.truncate(samples.len() - over * channels);
            self.is_past_end |= over > 0;
        }
    }
}

impl Packets {
    /// Opens a container. Also returns the seconds that it announces.
    ///
    /// # Errors
    /// `DataLoss` for a damaged header, `Unimplemented` for unknown codecs.
    pub(super) fn open(
        container: Container,
        mut bytes: InputBytes,
    ) -> Result<(Packets, Option<f64>)> {
        let mut end = None;
        if container == Container::Ogg && bytes.is_file() {
            bytes.watch(ByteWatch::Ogg(OggWatch::default()));
        } else if container == Container::Ogg {
            let times = Arc::new(OggEnd::new());
            bytes.watch(ByteWatch::Ogg(OggWatch::with_end(Arc::clone(&times))));
            end = Some(times);
        }
        let opened = guarded(|| {
            let mut stream =
                MediaSourceStream::new(Box::new(bytes), MediaSourceStreamOptions::default());
            let options = FormatOptions { enable_gapless: true, ..FormatOptions::default() };
            Ok::<Box<dyn FormatReader>, ReaderError>(match container {
                Container::Flac => Box::new(FlacReader::try_new(stream, &options)?),
                Container::Ogg => Box::new(OggReader::try_new(stream, &options)?),
                Container::Mp4 => {
                    // The reader returns to the start of the name that it was found by.
                    symphonia::core::io::ReadBytes::read_quad_bytes(&mut stream)?;
                    Box::new(IsoMp4Reader::try_new(stream, &options)?)
                }
            })
        });
        let reader = match opened {
            Some(Ok(reader)) => reader,
            Some(Err(ReaderError::Unsupported(what))) => {
                return Err(Error::unimplemented(format!(
                    "this kind of recording is not supported ({what}); {KNOWN}"
                )));
            }
            Some(Err(ReaderError::IoError(error))) if error.kind() == ErrorKind::UnexpectedEof => {
                return Err(Error::data_loss("the file ends before any audio"));
            }
            Some(Err(error)) => {
                return Err(Error::data_loss(format!("the header is damaged: {error}")));
            }
            None => return Err(Error::data_loss("the header is damaged")),
        };
        let track = first_sound_track(reader.tracks())?;
        let id = track.id;
        let parameters = track.codec_params.clone();
        let rate = f64::from(parameters.sample_rate.unwrap_or(0));
        let ticks =
            parameters.time_base.map_or(rate, |base| f64::from(base.denom) / f64::from(base.numer));
        let seconds = parameters
            .n_frames
            // The greatest number in an mp4 file stands for an unknown length.
            .filter(|frames| *frames < u64::MAX)
            .map(|frames| frames as f64 / ticks)
            .filter(|seconds| *seconds > 0.0);
        let trim = end.map(|end| OggTrim::new(end, before_zero(&parameters)));
        let codec = PacketDecoder::new(parameters)?;
        let packets = Packets {
            container,
            reader,
            track: id,
            codec,
            ticks,
            first: None,
            timed: ticks > 0.0,
            errors: 0,
            lost: 0,
            trim,
        };
        Ok((packets, seconds.filter(|seconds| seconds.is_finite())))
    }

    /// Returns container and codec for display.
    pub(super) fn name(&self) -> String {
        let codec = symphonia::default::get_codecs().get_codec(self.codec.kind());
        let codec = codec.map_or("sound", |codec| codec.short_name);
        match self.container {
            Container::Flac => "flac".to_owned(),
            Container::Ogg => format!("ogg, {codec}"),
            Container::Mp4 => format!("mp4, {codec}"),
        }
    }

    /// Returns the index of its track in the container.
    pub(super) fn track(&self) -> usize {
        self.track as usize
    }

    /// Returns rate and channels once a packet was decoded.
    pub(super) fn rate_and_channels(&self) -> Option<(u32, usize)> {
        self.codec.rate_and_channels()
    }

    /// Converts ticks to frames of the sound.
    fn frames(&self, ticks: u64) -> Option<u64> {
        let (rate, _) = self.rate_and_channels()?;
        self.timed.then(|| (ticks as f64 / self.ticks * f64::from(rate)).round() as u64)
    }

    /// Continues with the track `id` of another recording, which follows in the same file.
    fn follow(&mut self, id: u32, parameters: CodecParameters) -> DecodeStep {
        let before_zero = before_zero(&parameters);
        match PacketDecoder::new(parameters) {
            Ok(codec) => {
                self.codec.follow(codec);
                self.track = id;
                self.timed = false;
                if let Some(trim) = &mut self.trim {
                    trim.restart(before_zero);
                }
                DecodeStep::Sound { at: None }
            }
            Err(error) => DecodeStep::Broken(error.message().to_owned()),
        }
    }

    /// Returns the step after an error of the reader. Some errors only lose a packet.
    fn step_after_error(&mut self, error: ReaderError) -> DecodeStep {
        self.errors += 1;
        match error {
            ReaderError::IoError(error) if error.kind() == ErrorKind::UnexpectedEof => {
                DecodeStep::End
            }
            ReaderError::ResetRequired => {
                match first_sound_track(self.reader.tracks())
                    .map(|track| (track.id, track.codec_params.clone()))
                {
                    Ok((id, parameters)) => self.follow(id, parameters),
                    Err(error) => DecodeStep::Broken(error.message().to_owned()),
                }
            }
            error if self.errors >= ERRORS_MAX => DecodeStep::Broken(error.to_string()),
            ReaderError::DecodeError(what) => DecodeStep::Lost { frames: 0, what: what.to_owned() },
            error => DecodeStep::Broken(error.to_string()),
        }
    }
}

/// Returns the number of frames that the reader finds before the time 0.
fn before_zero(parameters: &CodecParameters) -> u64 {
    u64::from(parameters.delay.unwrap_or(0))
}

/// Returns the first track that has sound.
fn first_sound_track(tracks: &[Track]) -> Result<&Track> {
    let known = |track: &&Track| {
        track.codec_params.codec != CODEC_TYPE_NULL
            && symphonia::default::get_codecs().get_codec(track.codec_params.codec).is_some()
    };
    tracks.iter().find(known).ok_or_else(|| {
        let is_opus = tracks.iter().any(|track| track.codec_params.codec == CODEC_TYPE_OPUS);
        let what = if is_opus {
            "opus is not supported"
        } else {
            "there is no audio track with a supported codec (flac, mp3, vorbis, aac, alac)"
        };
        Error::unimplemented(format!("{what}; {KNOWN}"))
    })
}

impl BlockReader for Packets {
    fn next(&mut self, samples: &mut Vec<f32>) -> DecodeStep {
        let reader = &mut self.reader;
        let packet = match guarded(|| reader.next_packet()) {
            None => return DecodeStep::Broken("the rest cannot be read".to_owned()),
            Some(Err(error)) => return self.step_after_error(error),
            Some(Ok(packet)) => packet,
        };
        self.errors = 0;
        if packet.track_id() != self.track {
            return DecodeStep::Sound { at: None };
        }
        let first = match self.container {
            Container::Flac => 0,
            Container::Ogg | Container::Mp4 => *self.first.get_or_insert(packet.ts()),
        };
        let before = samples.len();
        let decoded = if packet.data.len() > PACKET_MAX {
            Err("it is too long".to_owned())
        } else if packet.data.is_empty() {
            // A decoder may treat an empty packet as silence, and a table can have billions of
            // them.
            Err("it is empty".to_owned())
        } else {
            self.codec.decode(&packet, samples)
        };
        match decoded {
            Ok(()) => {
                self.lost = 0;
                if let Some(trim) = &mut self.trim
                    && self.codec.kind() == CODEC_TYPE_VORBIS
                    && let Some((_, channels)) = self.codec.rate_and_channels()
                {
                    let frames = ((samples.len() - before) / channels) as u64;
                    trim.apply(self.track, packet.ts(), samples, frames, channels);
                }
                DecodeStep::Sound { at: self.frames(packet.ts().saturating_sub(first)) }
            }
            Err(what) => {
                self.lost += 1;
                if self.lost > LOST_MAX {
                    return DecodeStep::Broken(format!(
                        "{LOST_MAX} frames in a row cannot be decoded: {what}"
                    ));
                }
                // No packet is longer than a second, even if its header says so.
                let second = self.rate_and_channels().map_or(0, |(rate, _)| u64::from(rate));
                let frames = self.frames(packet.dur()).unwrap_or(0).min(second);
                DecodeStep::Lost { frames, what: format!("a frame cannot be decoded: {what}") }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;
    use std::ops::Range;

    use super::*;
    use crate::decode::AudioInput;

    /// Returns the frames that a trim leaves of each of four packets of 5000 frames. The last page,
    /// with the time `end`, is read after `known` packets.
    fn kept(before_zero: u64, end: u64, known: usize) -> [usize; 4] {
        kept_until(before_zero, end, known..4)
    }

    /// As [`kept`], if a further page of the stream is read after `known.end` packets.
    fn kept_until(before_zero: u64, end: u64, known: Range<usize>) -> [usize; 4] {
        let times = Arc::new(OggEnd::new());
        let mut trim = OggTrim::new(Arc::clone(&times), before_zero);
        std::array::from_fn(|packet| {
            times.set(1, if known.contains(&packet) { end } else { u64::MAX });
            let mut samples = vec![0.0; 5000];
            trim.apply(1, 0, &mut samples, 5000, 1);
            samples.len()
        })
    }

    #[test]
    fn all_frames_behind_the_end_are_removed() {
        assert_eq!(kept(0, 17_000, 3), [5000, 5000, 5000, 2000]);
        assert_eq!(kept(0, 6000, 1), [5000, 1000, 0, 0]);
        assert_eq!(kept(0, 100, 2), [5000; 4], "a wrong time");
        assert_eq!(kept(0, 0, 0), [5000; 4], "no time");
        assert_eq!(kept_until(0, 9000, 1..2), [5000, 4000, 5000, 5000], "it was not the last");
    }

    /// A tool that cuts a file may leave a part of a block before the new start.
    #[test]
    fn frames_before_the_time_zero_do_not_move_the_end() {
        assert_eq!(kept(300, 19_700, 3), [5000; 4]);
        assert_eq!(kept(300, 19_700, 0), [5000, 5000, 5000, 4700], "the only page");
    }

    #[test]
    fn a_reader_of_ogg_keeps_no_comments() {
        let clip = include_bytes!("../../tests/data/clip.ogg");
        let input = AudioInput::Stream(Box::new(Cursor::new(clip.repeat(3))));
        let (mut packets, _) = Packets::open(Container::Ogg, InputBytes::new(input)).unwrap();
        let mut samples = Vec::new();
        loop {
            match packets.next(&mut samples) {
                DecodeStep::Sound { .. } => {}
                DecodeStep::End => break,
                step => panic!("{step:?}"),
            }
        }
        assert!(samples.len() >= 3 * 32_000, "{} samples of three recordings", samples.len());
        assert!(packets.reader.metadata().current().is_none());
    }
}
