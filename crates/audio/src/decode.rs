//! Sound files to blocks of samples with their times.
//!
//! A recording is read once from front to back and never held: what comes out are blocks without gaps between them,
//! so that sample `i` of each channel is the sound at `i / rate` seconds. Where a file is damaged, silence as long as
//! what was lost stands in its place and a [`Fault`] says so. Whatever the bytes are, nothing here panics, and what
//! it holds is bounded by the constants here and in its parts. The codecs are symphonia's; wav, aiff and the framing
//! of mp3 are read here, because there headers lie and bits rot in ways that those readers give up on.

mod aiff;
mod bytes;
mod codec;
mod flac;
mod mp4;
mod mpeg;
mod packets;
mod pcm;
mod read;
mod sniff;
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

/// The most channels of a recording.
pub const CHANNELS_MAX: usize = 64;
/// The faults kept until they are taken; the rest is counted.
pub const FAULTS_MAX: usize = 1000;
/// The longest gap that is filled with silence, in seconds. A longer one is not believed.
pub const GAP_SECONDS_MAX: u64 = 600;
/// How much more silence than sound is filled in, in seconds, before gaps are not believed any more.
pub const SILENCE_SECONDS_MAX: u64 = 3600;
/// The frames of a block of silence.
const SILENCE_FRAMES: u64 = 4096;
/// Steps before the first sound.
const STEPS_MAX: usize = 4096;
/// A difference of clocks that is no gap, as a fraction of a second.
const JITTER: u64 = 100;

/// Where a recording's bytes come from.
pub enum AudioInput {
    /// A file, which can be read from any place.
    File(std::fs::File),
    /// An upload that may still be running. One mp4 file in two cannot be decoded from it: see [`Decoder::open`].
    Stream(Box<dyn std::io::Read + Send + Sync>),
}

/// What a recording says about itself.
#[derive(Clone, Debug, PartialEq)]
pub struct AudioFormat {
    /// For people: "wav, 16-bit".
    pub container_and_codec: String,
    /// Samples a second of each channel.
    pub rate: u32,
    /// Channels.
    pub channels: usize,
    /// Its length in seconds as its header announces it, if it does.
    pub seconds: Option<f64>,
}

/// A stretch of decoded sound.
#[derive(Clone, Debug, PartialEq)]
pub struct AudioBlock {
    /// Seconds from the beginning.
    pub start: f64,
    /// Interleaved, -1 to 1 (beyond it only in files of floating-point numbers that are).
    pub samples: Vec<f32>,
}

/// Whether to stop.
type StopCheck = Box<dyn Fn() -> bool + Send>;

/// Decodes one recording.
pub struct Decoder {
    reader: Box<dyn BlockReader>,
    format: AudioFormat,
    /// Stretches that encoders added, in frames as they are read.
    silent: Vec<Range<u64>>,
    /// The frames that the header announces, without `silent`.
    announced: Option<u64>,
    /// Frames read or lost, with `silent`.
    read: u64,
    /// Frames given.
    given: u64,
    /// What a recording's own clock is ahead of `read`, where a jump was not believed.
    ahead: u64,
    /// Silence that is due before `waiting`.
    lost: u64,
    waiting: Vec<f32>,
    /// Frames decoded.
    heard: u64,
    /// Frames of silence filled in.
    filled: u64,
    ended: bool,
    /// Whether somebody wants no more of it.
    stop: StopCheck,
    /// Where the last fault's stretch ends, so that what follows it at once is the same fault.
    damage: Option<(u64, String)>,
    faults: Vec<Fault>,
    faults_left_out: u64,
}

impl Decoder {
    /// Looks at the beginning of `input`; `hint` is a file name's extension or a MIME type, and helps only to say what
    /// is wrong.
    ///
    /// # Errors
    /// `InvalidArgument` when it is no sound, `Unimplemented` when it is of a kind that is not known here, `DataLoss`
    /// when it is damaged from the beginning, and `FailedPrecondition` for an mp4 file on a stream whose table of
    /// contents comes last: that one has to be a file.
    pub fn open(input: AudioInput, hint: Option<&str>) -> Result<Decoder> {
        let mut bytes = InputBytes::new(input);
        match sniff::kind(&mut bytes, hint)? {
            FileKind::Wave => wave::open(&mut bytes).and_then(|layout| Decoder::pcm(bytes, layout)),
            FileKind::Aiff => aiff::open(&mut bytes).and_then(|layout| Decoder::pcm(bytes, layout)),
            FileKind::Mp3 => Decoder::mpeg(bytes),
            FileKind::Flac => {
                flac::strip(&mut bytes)?;
                Decoder::packets(Container::Flac, bytes, Vec::new())
            }
            FileKind::Ogg => Decoder::packets(Container::Ogg, bytes, Vec::new()),
            FileKind::Mp4 => {
                let edits = mp4::check(&mut bytes)?;
                let bytes =
                    bytes.rewound().map_err(|error| Error::internal(format!("cannot go back: {error}")))?;
                Decoder::packets(Container::Mp4, bytes, edits)
            }
        }
    }

    fn pcm(bytes: InputBytes, layout: PcmLayout) -> Result<Decoder> {
        let (format, announced) = (layout.format(), layout.frames());
        Decoder::new(format, announced, Vec::new(), |_| Ok(Box::new(Pcm::new(bytes, layout))))
    }

    fn mpeg(bytes: InputBytes) -> Result<Decoder> {
        let mpeg = Mpeg::open(bytes)?;
        let (rate, channels) = mpeg.heard();
        let silent = mpeg.silent();
        let added: u64 = silent.iter().map(|range| range.end - range.start).sum();
        let announced = mpeg.announced().map(|all| all.saturating_sub(added));
        let seconds = announced.map(|frames| frames as f64 / f64::from(rate));
        let format = AudioFormat { container_and_codec: "mp3".to_owned(), rate, channels, seconds };
        Decoder::new(format, announced, silent, |_| Ok(Box::new(mpeg)))
    }

    /// Containers whose packets alone say what their sound is like: the first are decoded at once.
    fn packets(container: Container, bytes: InputBytes, edits: mp4::Mp4Edits) -> Result<Decoder> {
        let (mut packets, seconds) = Packets::open(container, bytes)?;
        let name = packets.name();
        let unknown = AudioFormat { container_and_codec: name, rate: 0, channels: 0, seconds };
        let mut steps = Vec::new();
        let mut samples = Vec::new();
        while packets.heard().is_none() && steps.len() < STEPS_MAX {
            let step = packets.next(&mut samples);
            let ended = matches!(step, DecodeStep::End | DecodeStep::Broken(_));
            steps.push(step);
            if ended {
                break;
            }
        }
        let Some((rate, channels)) = packets.heard() else {
            let first = steps.into_iter().find_map(|step| match step {
                DecodeStep::Lost { what, .. } | DecodeStep::Broken(what) => Some(what),
                DecodeStep::Sound { .. } | DecodeStep::End => None,
            });
            let why = first.unwrap_or_else(|| "it ends before any".to_owned());
            return Err(Error::data_loss(format!("no sound can be had of this recording: {why}")));
        };
        let silent = edits.get(packets.track()).map(|edit| edit.silent(rate)).unwrap_or_default();
        let mut announced = seconds.map(|seconds| (seconds * f64::from(rate)).round() as u64);
        for range in &silent {
            announced = announced.map(|all| all - (range.end.min(all) - range.start.min(all)));
        }
        let seconds = announced.map(|frames| frames as f64 / f64::from(rate));
        let format = AudioFormat { rate, channels, seconds, ..unknown };
        Decoder::new(format, announced, silent, |decoder| {
            for step in steps {
                let sound = if matches!(step, DecodeStep::Sound { .. }) {
                    std::mem::take(&mut samples)
                } else {
                    Vec::new()
                };
                decoder.step(step, sound);
            }
            Ok(Box::new(packets))
        })
    }

    fn new(
        format: AudioFormat,
        announced: Option<u64>,
        silent: Vec<Range<u64>>,
        reader: impl FnOnce(&mut Decoder) -> Result<Box<dyn BlockReader>>,
    ) -> Result<Decoder> {
        if !(RATE_MIN..=RATE_MAX).contains(&format.rate) {
            return Err(Error::data_loss(format!(
                "the header says {} samples a second; {RATE_MIN} to {RATE_MAX} can be",
                format.rate
            )));
        }
        if !(1..=CHANNELS_MAX).contains(&format.channels) {
            return Err(Error::data_loss(format!(
                "the header says {} channels; 1 to {CHANNELS_MAX} can be",
                format.channels
            )));
        }
        let mut decoder = Decoder {
            reader: Box::new(EmptyReader),
            format,
            silent,
            announced,
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
            faults: Vec::new(),
            faults_left_out: 0,
        };
        decoder.reader = reader(&mut decoder)?;
        Ok(decoder)
    }

    /// What the recording says about itself.
    pub fn format(&self) -> &AudioFormat {
        &self.format
    }

    /// From now on [`next`](Decoder::next) fails once `stop` says so, which it asks before every step. Between two blocks
    /// there may be any number of steps that bring no sound.
    pub fn stop_when(&mut self, stop: impl Fn() -> bool + Send + 'static) {
        self.stop = Box::new(stop);
    }

    /// The next block, or `None` at the end. Blocks follow each other without gaps: what is damaged becomes a fault,
    /// and silence of about its length.
    ///
    /// # Errors
    /// `DataLoss` when nothing was decoded and nothing can be; `Cancelled` after a stop.
    #[expect(clippy::should_implement_trait, reason = "it can fail, and has faults besides")]
    pub fn next(&mut self) -> Result<Option<AudioBlock>> {
        loop {
            if self.lost > 0 {
                let frames = self.lost.min(SILENCE_FRAMES);
                self.lost -= frames;
                if let Some(block) = self.give(vec![0.0; frames as usize * self.format.channels]) {
                    return Ok(Some(block));
                }
                continue;
            }
            let waiting = std::mem::take(&mut self.waiting);
            if let Some(block) = self.give(waiting) {
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
            self.step(step, samples);
        }
    }

    /// The faults found since the last call, in time order.
    pub fn take_faults(&mut self) -> Vec<Fault> {
        let mut faults = std::mem::take(&mut self.faults);
        if self.faults_left_out > 0 {
            let at = faults.last().map_or(0.0, |fault| fault.at);
            faults.push(Fault { at, what: format!("{} more faults until later", self.faults_left_out) });
            self.faults_left_out = 0;
        }
        faults
    }

    /// Takes in what a reader brought.
    fn step(&mut self, step: DecodeStep, mut samples: Vec<f32>) {
        let place = self.read + self.lost + (self.waiting.len() / self.format.channels) as u64;
        let rate = u64::from(self.format.rate);
        match step {
            DecodeStep::Sound { at } => {
                let gap = at.map_or(0, |at| at.saturating_sub(place + self.ahead));
                if gap > self.believed() {
                    self.ahead += gap;
                    self.fault(place, 0, "the recording's own clock jumps here".to_owned());
                } else if gap > rate / JITTER {
                    self.lost += gap;
                    self.filled += gap;
                    self.fault(place, gap, format!("{:.3} s cannot be decoded", gap as f64 / rate as f64));
                }
                let wrong = samples.iter_mut().filter(|sample| !sample.is_finite());
                if wrong.map(|sample| *sample = 0.0).count() > 0 {
                    self.fault(
                        place,
                        0,
                        "some samples are no finite numbers; they were taken as silence".to_owned(),
                    );
                }
                self.heard += (samples.len() / self.format.channels) as u64;
                match self.waiting.is_empty() {
                    true => self.waiting = samples,
                    false => self.waiting.append(&mut samples),
                }
            }
            DecodeStep::Lost { frames, what } => {
                let frames = frames.min(self.believed());
                self.lost += frames;
                self.filled += frames;
                self.fault(place, frames, what);
            }
            DecodeStep::End => self.ended = true,
            DecodeStep::Broken(what) => {
                self.ended = true;
                self.fault(place, 0, format!("the recording breaks off: {what}"));
            }
        }
    }

    /// The longest gap that is filled with silence now, in frames: a few bytes must not become days of it.
    fn believed(&self) -> u64 {
        let rate = u64::from(self.format.rate);
        let left = (self.heard + SILENCE_SECONDS_MAX * rate).saturating_sub(self.filled);
        left.min(GAP_SECONDS_MAX * rate)
    }

    /// A block of `samples`, without what encoders added; `None` if nothing is left.
    fn give(&mut self, mut samples: Vec<f32>) -> Option<AudioBlock> {
        let channels = self.format.channels;
        let (from, to) = (self.read, self.read + (samples.len() / channels) as u64);
        self.read = to;
        for range in self.silent.iter().rev() {
            let (start, end) = (range.start.clamp(from, to), range.end.clamp(from, to));
            samples.drain((start - from) as usize * channels..(end - from) as usize * channels);
        }
        if samples.is_empty() {
            return None;
        }
        let start = self.given as f64 / f64::from(self.format.rate);
        self.given += (samples.len() / channels) as u64;
        Some(AudioBlock { start, samples })
    }

    /// Keeps a fault at a frame that is read, of so many frames.
    fn fault(&mut self, at: u64, frames: u64, what: String) {
        let follows = self.damage.as_ref().is_some_and(|(end, before)| *end == at && *before == what);
        self.damage = Some((at + frames, what.clone()));
        if follows {
            return;
        }
        if self.faults.len() >= FAULTS_MAX {
            self.faults_left_out += 1;
            return;
        }
        let hidden: u64 = self.silent.iter().map(|range| range.end.min(at) - range.start.min(at)).sum();
        self.faults.push(Fault { at: (at - hidden) as f64 / f64::from(self.format.rate), what });
    }

    /// What comes after the last block.
    fn end(&mut self) -> Result<Option<AudioBlock>> {
        if let Some(announced) = self.announced.take()
            && self.given + u64::from(self.format.rate) / JITTER < announced
        {
            let seconds = announced as f64 / f64::from(self.format.rate);
            self.fault(self.read, 0, format!("the file ends early: its header says {seconds:.3} s"));
        }
        if self.heard == 0
            && let Some(fault) = self.faults.first()
        {
            return Err(Error::data_loss(format!("no sound can be had of this recording: {}", fault.what)));
        }
        Ok(None)
    }
}

/// Stands for a reader while a decoder is made.
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

    /// Loses packets for ever.
    struct Losing(Arc<AtomicUsize>);

    impl BlockReader for Losing {
        fn next(&mut self, _: &mut Vec<f32>) -> DecodeStep {
            self.0.fetch_add(1, Ordering::Relaxed);
            DecodeStep::Lost { frames: 0, what: "a frame cannot be decoded".to_owned() }
        }
    }

    #[test]
    fn a_stop_is_seen_where_no_sound_comes() {
        let steps = Arc::new(AtomicUsize::new(0));
        let format =
            AudioFormat { container_and_codec: "none".to_owned(), rate: 16000, channels: 1, seconds: None };
        let reader = Losing(steps.clone());
        let mut decoder = Decoder::new(format, None, Vec::new(), |_| Ok(Box::new(reader))).unwrap();
        let seen = steps.clone();
        decoder.stop_when(move || seen.load(Ordering::Relaxed) >= 5000);
        assert_eq!(decoder.next().unwrap_err().kind(), ErrorKind::Cancelled);
        assert_eq!(steps.load(Ordering::Relaxed), 5000);
    }
}
