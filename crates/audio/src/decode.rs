//! Decodes sound files into blocks of samples with their times.
//!
//! A recording is read once from front to back and never held. Blocks have no gaps between them, so
//! sample `i` of each channel is the sound at `i / rate` seconds. Damage becomes silence of about
//! its length and a [`Fault`]. No bytes cause a panic, and memory is bounded by the constants here
//! and in the submodules. The codecs are symphonia's. Wav, aiff and the framing of mp3 are read
//! here, because symphonia's readers stop at wrong headers and flipped bits from which a reader can
//! recover.

mod aiff;
mod bytes;
mod codec;
mod flac;
mod mp4;
mod mpeg;
mod ogg;
mod packets;
mod pcm;
mod read;
mod sniff;
mod tags;
mod vorbis;
mod wave;

use std::ops::Range;

use base::{Error, Result};

use crate::Fault;
use crate::resample::{RATE_MAX, RATE_MIN};
use bytes::InputBytes;
use mpeg::Mpeg;
use packets::{Container, Packets};
use pcm::{Pcm, PcmLayout};
use read::{BlockReader, DecodeStep, guarded};
use sniff::FileKind;

/// Maximum channels of a recording.
pub const CHANNELS_MAX: usize = 64;
/// Maximum faults kept until they are taken; further ones are counted.
const FAULTS_MAX: usize = 1000;
/// Longest gap in seconds that is filled with silence. A longer one is ignored.
const GAP_SECONDS_MAX: u64 = 600;
/// Maximum seconds by which filled silence may exceed sound. Beyond it gaps are ignored.
const SILENCE_SECONDS_MAX: u64 = 3600;
/// Number of frames of a block of silence.
const SILENCE_FRAMES: u64 = 4096;
/// Maximum steps before the first sound.
const STEPS_MAX: usize = 4096;
/// Tolerated difference of clocks, as 1 / JITTER seconds.
const JITTER: u64 = 100;

/// Source of a recording's bytes.
pub enum AudioInput {
    /// A file, which can be read at any position.
    File(std::fs::File),
    /// An upload that may still be running. An mp4 file whose table of contents comes last cannot
    /// be decoded from it: see [`Decoder::open`].
    Stream(Box<dyn std::io::Read + Send + Sync>),
}

/// Format of a recording according to its header.
#[derive(Clone, Debug, PartialEq)]
pub struct AudioFormat {
    /// Container and codec for display: "wav, 16-bit".
    pub container_and_codec: String,
    /// Samples per second of each channel.
    pub rate: u32,
    /// Number of channels.
    pub channels: usize,
    /// Length in seconds, if the header announces it.
    pub seconds: Option<f64>,
}

/// A stretch of decoded sound.
#[derive(Clone, Debug, PartialEq)]
pub struct AudioBlock {
    /// Start in seconds.
    pub start: f64,
    /// Interleaved samples, -1 to 1; beyond it only in files of floating-point numbers.
    pub samples: Vec<f32>,
}

/// Function that returns true to stop the decoder.
type StopCheck = Box<dyn Fn() -> bool + Send>;

/// The end and the text of the last damaged stretch of a recording.
struct LastDamage {
    /// Frame of the file after the stretch.
    end: u64,
    what: String,
}

/// Decoder of one recording.
pub struct Decoder {
    reader: Box<dyn BlockReader>,
    format: AudioFormat,
    /// Frames that encoders added, by their position in the file.
    silent: Vec<Range<u64>>,
    /// Number of frames that the header announces, without those of `silent`.
    announced: Option<u64>,
    /// True if the file ends inside its last part. Taken at the end.
    is_cut: bool,
    /// Number of frames of silence before the sound, which the recording's own clock does not
    /// count.
    delay: u64,
    /// Number of frames read or lost, including those of `silent`.
    read: u64,
    /// Number of frames returned.
    given: u64,
    /// Number of frames by which the recording's own clock is ahead of `read`, after a jump that
    /// was ignored.
    ahead: u64,
    /// Number of frames of silence due before `waiting`.
    lost: u64,
    waiting: Vec<f32>,
    /// Number of frames decoded.
    heard: u64,
    /// Number of frames of silence filled in.
    filled: u64,
    ended: bool,
    /// Called before every step.
    stop: StopCheck,
    /// The last damage. Damage with the same text that follows at once belongs to the same fault.
    damage: Option<LastDamage>,
    /// Text of the first fault of all.
    first_fault: Option<String>,
    faults: Vec<Fault>,
    faults_left_out: u64,
}

impl Decoder {
    /// Reads the beginning of `input`. `hint` is a file name's extension or a MIME type. It
    /// improves error messages only.
    ///
    /// # Errors
    /// `InvalidArgument` if it is not sound, `Unimplemented` for an unknown format, `DataLoss` if
    /// it is damaged from the beginning. `FailedPrecondition` for a stream of an mp4 file whose
    /// table of contents comes last: such a recording must be a file.
    pub fn open(input: AudioInput, hint: Option<&str>) -> Result<Decoder> {
        let mut bytes = InputBytes::new(input);
        match sniff::kind(&mut bytes, hint)? {
            FileKind::Wave => wave::open(&mut bytes).and_then(|layout| Decoder::pcm(bytes, layout)),
            FileKind::Aiff => aiff::open(&mut bytes).and_then(|layout| Decoder::pcm(bytes, layout)),
            FileKind::Mp3 => {
                tags::hide_at_end(&mut bytes);
                Decoder::mpeg(bytes)
            }
            FileKind::Flac => {
                tags::hide_at_end(&mut bytes);
                flac::strip(&mut bytes)?;
                Decoder::packets(Container::Flac, bytes, Vec::new())
            }
            FileKind::Ogg => Decoder::packets(Container::Ogg, bytes, Vec::new()),
            FileKind::Mp4 => {
                let edits = mp4::check(&mut bytes)?;
                let bytes = bytes
                    .rewound()
                    .map_err(|error| Error::internal("cannot go back").caused_by(error))?;
                Decoder::packets(Container::Mp4, bytes, edits)
            }
        }
    }

    fn pcm(bytes: InputBytes, layout: PcmLayout) -> Result<Decoder> {
        let format = layout.format();
        let announced = layout.frames();
        Decoder::new(format, announced, Vec::new(), |_| Ok(Box::new(Pcm::new(bytes, layout))))
    }

    fn mpeg(bytes: InputBytes) -> Result<Decoder> {
        let mpeg = Mpeg::open(bytes)?;
        let (rate, channels) = mpeg.rate_and_channels();
        let silent = mpeg.silent();
        let announced = mpeg.announced().map(|all| count_audible(all, &silent));
        let seconds = announced.map(|frames| frames as f64 / f64::from(rate));
        let format = AudioFormat { container_and_codec: "mp3".to_owned(), rate, channels, seconds };
        Decoder::new(format, announced, silent, |_| Ok(Box::new(mpeg)))
    }

    /// Opens a container whose format is known only from its packets: decodes the first ones.
    fn packets(container: Container, bytes: InputBytes, edits: mp4::Mp4Edits) -> Result<Decoder> {
        let (mut packets, seconds) = Packets::open(container, bytes)?;
        let name = packets.name();
        let unknown = AudioFormat { container_and_codec: name, rate: 0, channels: 0, seconds };
        let mut steps = Vec::new();
        let mut samples = Vec::new();
        while packets.rate_and_channels().is_none() && steps.len() < STEPS_MAX {
            let step = packets.next(&mut samples);
            let ended = matches!(step, DecodeStep::End | DecodeStep::Broken(_));
            steps.push(step);
            if ended {
                break;
            }
        }
        let Some((rate, channels)) = packets.rate_and_channels() else {
            let first = steps.into_iter().find_map(|step| match step {
                DecodeStep::Lost { what, .. } | DecodeStep::Broken(what) => Some(what),
                DecodeStep::Sound { .. } | DecodeStep::End => None,
            });
            let why = first.unwrap_or_else(|| "it ends before any audio".to_owned());
            return Err(Error::data_loss(format!("this recording cannot be decoded: {why}")));
        };
        let edit = edits.get(packets.track()).cloned().unwrap_or_default();
        let late = edit.delay(rate);
        let delay = if late > GAP_SECONDS_MAX * u64::from(rate) { 0 } else { late };
        let after = |frame: u64| frame.saturating_add(delay);
        let silent: Vec<Range<u64>> = edit
            .silent(rate)
            .into_iter()
            .map(|range| after(range.start)..after(range.end))
            .collect();
        let seconds = seconds.filter(|_| !edit.is_fragmented);
        let all = seconds.map(|seconds| (seconds * f64::from(rate)).round() as u64);
        let announced = all.map(|all| count_audible(after(all), &silent));
        let seconds = announced.map(|frames| frames as f64 / f64::from(rate));
        let format = AudioFormat { rate, channels, seconds, ..unknown };
        Decoder::new(format, announced, silent, |decoder| {
            // The length shows it in a file without fragments.
            decoder.is_cut = edit.is_fragmented && edit.is_cut;
            decoder.delay = delay;
            decoder.lost = delay;
            decoder.filled = delay;
            if late > delay {
                let seconds = late as f64 / f64::from(rate);
                let what = format!("the first {seconds:.0} s have no audio and were left out");
                decoder.record_fault(0, 0, what);
            }
            for step in steps {
                let sound = if matches!(step, DecodeStep::Sound { .. }) {
                    std::mem::take(&mut samples)
                } else {
                    Vec::new()
                };
                decoder.handle_step(step, sound);
            }
            Ok(Box::new(packets))
        })
    }

    /// Creates a decoder of the samples of `reader`. `announced` is the number of frames that the
    /// header states, without the frames in `silent`, which encoders added.
    ///
    /// # Errors
    /// `DataLoss` for a rate or a number of channels that is not supported; the error of `reader`.
    fn new(
        format: AudioFormat,
        announced: Option<u64>,
        silent: Vec<Range<u64>>,
        reader: impl FnOnce(&mut Decoder) -> Result<Box<dyn BlockReader>>,
    ) -> Result<Decoder> {
        if !(RATE_MIN..=RATE_MAX).contains(&format.rate) {
            return Err(Error::data_loss(format!(
                "the header says {} samples per second; {RATE_MIN} to {RATE_MAX} are supported",
                format.rate
            )));
        }
        if !(1..=CHANNELS_MAX).contains(&format.channels) {
            return Err(Error::data_loss(format!(
                "the header says {} channels; 1 to {CHANNELS_MAX} are supported",
                format.channels
            )));
        }
        let mut decoder = Decoder {
            reader: Box::new(EmptyReader),
            format,
            silent,
            announced,
            is_cut: false,
            delay: 0,
            read: 0,
            given: 0,
            ahead: 0,
            lost: 0,
            waiting: Vec::new(),
            heard: 0,
            filled: 0,
            ended: false,
            stop: Box::new(|| false),
            damage: None,
            first_fault: None,
            faults: Vec::new(),
            faults_left_out: 0,
        };
        decoder.reader = reader(&mut decoder)?;
        Ok(decoder)
    }

    /// Returns the recording's format.
    pub fn format(&self) -> &AudioFormat {
        &self.format
    }

    /// Makes [`next`](Decoder::next) fail once `stop` returns true. `stop` is called before every
    /// step. Any number of steps without sound may lie between two blocks.
    pub fn stop_when(&mut self, stop: impl Fn() -> bool + Send + 'static) {
        self.stop = Box::new(stop);
    }

    /// Returns the next block, or `None` at the end. Blocks follow each other without gaps: damage
    /// becomes a fault, and silence of about its length.
    ///
    /// # Errors
    /// `DataLoss` if nothing was decoded and nothing can be decoded; `Cancelled` after a stop.
    #[expect(clippy::should_implement_trait, reason = "it can fail, and it also collects faults")]
    pub fn next(&mut self) -> Result<Option<AudioBlock>> {
        loop {
            if self.lost > 0 {
                let frames = self.lost.min(SILENCE_FRAMES);
                self.lost -= frames;
                if let Some(block) =
                    self.trimmed_block(vec![0.0; frames as usize * self.format.channels])
                {
                    return Ok(Some(block));
                }
                continue;
            }
            let waiting = std::mem::take(&mut self.waiting);
            if let Some(block) = self.trimmed_block(waiting) {
                return Ok(Some(block));
            }
            if self.ended {
                return self.end();
            }
            if (self.stop)() {
                return Err(Error::cancelled("stopped before the end of the recording"));
            }
            let mut samples = Vec::new();
            let step = guarded(|| self.reader.next(&mut samples))
                .unwrap_or_else(|| DecodeStep::Broken("the rest cannot be decoded".to_owned()));
            self.handle_step(step, samples);
        }
    }

    /// Takes the faults found since the last call, in time order.
    pub fn take_faults(&mut self) -> Vec<Fault> {
        let mut faults = std::mem::take(&mut self.faults);
        if self.faults_left_out > 0 {
            let at = faults.last().map_or(0.0, |fault| fault.at);
            faults.push(Fault {
                at,
                what: format!("{} more faults follow, which are not listed", self.faults_left_out),
            });
            self.faults_left_out = 0;
        }
        faults
    }

    /// Handles one step of a reader.
    fn handle_step(&mut self, step: DecodeStep, samples: Vec<f32>) {
        let place = self.read + self.lost + (self.waiting.len() / self.format.channels) as u64;
        match step {
            DecodeStep::Sound { at } => self.add_sound(place, at, samples),
            DecodeStep::Lost { frames, what } => {
                let frames = frames.min(self.gap_max());
                self.lost += frames;
                self.filled += frames;
                self.record_fault(place, frames, what);
            }
            DecodeStep::End => self.ended = true,
            DecodeStep::Broken(what) => {
                self.ended = true;
                self.record_fault(place, 0, format!("the recording ends early: {what}"));
            }
        }
    }

    /// Adds samples that follow at frame `place` of the file. `at` is their frame by the clock of
    /// the recording. It shows a gap before them.
    fn add_sound(&mut self, place: u64, at: Option<u64>, mut samples: Vec<f32>) {
        let rate = u64::from(self.format.rate);
        // A clock that has jumped may be at the greatest number.
        let clock = place.saturating_add(self.ahead);
        let gap = at.map_or(0, |at| at.saturating_add(self.delay).saturating_sub(clock));
        if gap > self.gap_max() {
            self.ahead += gap;
            self.record_fault(place, 0, "the recording's own clock jumps here".to_owned());
        } else if gap > rate / JITTER {
            self.lost += gap;
            self.filled += gap;
            self.record_fault(
                place,
                gap,
                format!("{:.3} s cannot be decoded", gap as f64 / rate as f64),
            );
        }
        let wrong = samples.iter_mut().filter(|sample| !sample.is_finite());
        if wrong.map(|sample| *sample = 0.0).count() > 0 {
            self.record_fault(
                place,
                0,
                "some samples are not finite numbers; they were treated as silence".to_owned(),
            );
        }
        self.heard += (samples.len() / self.format.channels) as u64;
        if self.waiting.is_empty() {
            self.waiting = samples;
        } else {
            self.waiting.append(&mut samples);
        }
    }

    /// Returns the longest gap in frames that is filled with silence now. It is bounded, because a
    /// few bytes must not become days of silence.
    fn gap_max(&self) -> u64 {
        let rate = u64::from(self.format.rate);
        let left = (self.heard + SILENCE_SECONDS_MAX * rate).saturating_sub(self.filled);
        left.min(GAP_SECONDS_MAX * rate)
    }

    /// Returns a block of `samples` without the frames that encoders add, or `None` if no frame is
    /// left.
    fn trimmed_block(&mut self, mut samples: Vec<f32>) -> Option<AudioBlock> {
        let channels = self.format.channels;
        let from = self.read;
        let to = self.read + (samples.len() / channels) as u64;
        self.read = to;
        for range in self.silent.iter().rev() {
            let start = range.start.clamp(from, to);
            let end = range.end.clamp(from, to);
            samples.drain((start - from) as usize * channels..(end - from) as usize * channels);
        }
        if samples.is_empty() {
            return None;
        }
        let start = self.given as f64 / f64::from(self.format.rate);
        self.given += (samples.len() / channels) as u64;
        Some(AudioBlock { start, samples })
    }

    /// Records a fault of `frames` frames at frame `at` of the file.
    fn record_fault(&mut self, at: u64, frames: u64, what: String) {
        let is_same = |last: &LastDamage| last.end == at && last.what == what;
        let follows = self.damage.as_ref().is_some_and(is_same);
        self.damage = Some(LastDamage { end: at + frames, what: what.clone() });
        if follows {
            return;
        }
        if self.first_fault.is_none() {
            self.first_fault = Some(what.clone());
        }
        if self.faults.len() >= FAULTS_MAX {
            self.faults_left_out += 1;
            return;
        }
        let at = count_audible(at, &self.silent) as f64 / f64::from(self.format.rate);
        self.faults.push(Fault { at, what });
    }

    /// Returns the block after the last one, or the final error.
    fn end(&mut self) -> Result<Option<AudioBlock>> {
        if let Some(announced) = self.announced.take()
            && self.given + u64::from(self.format.rate) / JITTER < announced
        {
            let seconds = announced as f64 / f64::from(self.format.rate);
            self.record_fault(
                self.read,
                0,
                format!("the file ends early: its header says {seconds:.3} s"),
            );
        }
        if std::mem::take(&mut self.is_cut) {
            self.record_fault(self.read, 0, "the file ends inside its last part".to_owned());
        }
        // The caller may have taken the faults.
        if self.heard == 0
            && let Some(what) = &self.first_fault
        {
            return Err(Error::data_loss(format!("this recording cannot be decoded: {what}")));
        }
        Ok(None)
    }
}

/// Counts the first `frames` frames that lie outside of `silent`, whose ranges do not overlap.
fn count_audible(frames: u64, silent: &[Range<u64>]) -> u64 {
    let hidden: u64 =
        silent.iter().map(|range| range.end.min(frames) - range.start.min(frames)).sum();
    frames - hidden
}

/// Placeholder reader while a decoder is made.
struct EmptyReader;

impl BlockReader for EmptyReader {
    fn next(&mut self, _: &mut Vec<f32>) -> DecodeStep {
        DecodeStep::End
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use base::ErrorKind;

    use super::*;

    /// A reader that loses packets without end.
    struct Losing(Arc<AtomicUsize>);

    impl BlockReader for Losing {
        fn next(&mut self, _: &mut Vec<f32>) -> DecodeStep {
            self.0.fetch_add(1, Ordering::Relaxed);
            DecodeStep::Lost { frames: 0, what: "a frame cannot be decoded".to_owned() }
        }
    }

    /// A reader that loses a second and ends.
    struct Lost(bool);

    impl BlockReader for Lost {
        fn next(&mut self, _: &mut Vec<f32>) -> DecodeStep {
            if std::mem::replace(&mut self.0, true) {
                DecodeStep::End
            } else {
                DecodeStep::Lost { frames: 16000, what: "a frame is damaged".to_owned() }
            }
        }
    }

    /// A reader of frames of silence, all at the greatest time.
    struct EndlessClock(usize);

    impl BlockReader for EndlessClock {
        fn next(&mut self, samples: &mut Vec<f32>) -> DecodeStep {
            if self.0 == 0 {
                return DecodeStep::End;
            }
            self.0 -= 1;
            samples.push(0.0);
            DecodeStep::Sound { at: Some(u64::MAX) }
        }
    }

    #[test]
    fn a_clock_at_its_end_is_one_jump() {
        let container_and_codec = "none".to_owned();
        let format = AudioFormat { container_and_codec, rate: 16000, channels: 1, seconds: None };
        let mut decoder =
            Decoder::new(format, None, Vec::new(), |_| Ok(Box::new(EndlessClock(3)))).unwrap();
        let mut frames = 0;
        while let Some(block) = decoder.next().unwrap() {
            frames += block.samples.len();
        }
        let faults = decoder.take_faults();
        assert_eq!((frames, faults.len()), (3, 1), "{faults:?}");
    }

    /// A reader of packets that are damaged in different ways.
    struct ManyFaults(usize);

    impl BlockReader for ManyFaults {
        fn next(&mut self, _: &mut Vec<f32>) -> DecodeStep {
            if self.0 == 0 {
                return DecodeStep::End;
            }
            self.0 -= 1;
            DecodeStep::Lost { frames: 0, what: format!("fault {}", self.0) }
        }
    }

    #[test]
    fn faults_above_the_limit_are_counted() {
        let container_and_codec = "none".to_owned();
        let format = AudioFormat { container_and_codec, rate: 16000, channels: 1, seconds: None };
        let reader = ManyFaults(FAULTS_MAX + 5);
        let mut decoder = Decoder::new(format, None, Vec::new(), |_| Ok(Box::new(reader))).unwrap();
        assert!(decoder.next().is_err(), "there is no sound");
        let faults = decoder.take_faults();
        assert_eq!(faults.len(), FAULTS_MAX + 1);
        assert_eq!(faults[FAULTS_MAX].what, "5 more faults follow, which are not listed");
        assert_eq!(decoder.take_faults(), []);
    }

    #[test]
    fn silence_instead_of_all_sound_is_an_error() {
        let container_and_codec = "none".to_owned();
        let format = AudioFormat { container_and_codec, rate: 16000, channels: 1, seconds: None };
        let mut decoder =
            Decoder::new(format, None, Vec::new(), |_| Ok(Box::new(Lost(false)))).unwrap();
        let error = loop {
            match decoder.next() {
                Ok(Some(_)) => drop(decoder.take_faults()),
                Ok(None) => panic!("there is no sound"),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::DataLoss);
        assert!(error.message().contains("a frame is damaged"), "{error}");
    }

    #[test]
    fn a_stop_is_seen_without_sound() {
        let steps = Arc::new(AtomicUsize::new(0));
        let format = AudioFormat {
            container_and_codec: "none".to_owned(),
            rate: 16000,
            channels: 1,
            seconds: None,
        };
        let reader = Losing(steps.clone());
        let mut decoder = Decoder::new(format, None, Vec::new(), |_| Ok(Box::new(reader))).unwrap();
        let seen = steps.clone();
        decoder.stop_when(move || seen.load(Ordering::Relaxed) >= 5000);
        assert_eq!(decoder.next().unwrap_err().kind(), ErrorKind::Cancelled);
        assert_eq!(steps.load(Ordering::Relaxed), 5000);
    }
}
