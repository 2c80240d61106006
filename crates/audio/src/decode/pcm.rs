//! Reads uncompressed sound.

use super::AudioFormat;
use super::bytes::InputBytes;
use super::read::{BlockReader, DecodeStep};

/// Number of frames of a block.
const FRAMES: usize = 4096;

/// Encoding of one sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SampleCoding {
    Unsigned8,
    /// Integers of one to four bytes.
    Signed {
        bytes: usize,
        big: bool,
    },
    /// The low three of four bytes, the lowest first.
    Signed24In32,
    Float32 {
        big: bool,
    },
    Float64 {
        big: bool,
    },
    ALaw,
    MuLaw,
}

/// Layout of the sound according to its header.
#[derive(Clone, Copy, Debug)]
pub(super) struct PcmLayout {
    pub(super) container: &'static str,
    pub(super) coding: SampleCoding,
    pub(super) rate: u32,
    pub(super) channels: usize,
    /// Length in bytes, if the header states it.
    pub(super) length: Option<u64>,
}

impl SampleCoding {
    /// Returns the number of bytes of a sample.
    fn size(self) -> usize {
        match self {
            SampleCoding::Unsigned8 | SampleCoding::ALaw | SampleCoding::MuLaw => 1,
            SampleCoding::Signed { bytes, .. } => bytes,
            SampleCoding::Signed24In32 | SampleCoding::Float32 { .. } => 4,
            SampleCoding::Float64 { .. } => 8,
        }
    }

    /// Returns the name that users see.
    fn name(self) -> String {
        match self {
            SampleCoding::Unsigned8 => "8-bit".to_owned(),
            SampleCoding::Signed { bytes, .. } => format!("{}-bit", bytes * 8),
            SampleCoding::Signed24In32 => "24-bit".to_owned(),
            SampleCoding::Float32 { .. } => "32-bit float".to_owned(),
            SampleCoding::Float64 { .. } => "64-bit float".to_owned(),
            SampleCoding::ALaw => "A-law".to_owned(),
            SampleCoding::MuLaw => "mu-law".to_owned(),
        }
    }

    /// Returns one sample's value. Integers are divided by a power of two, so that nothing is
    /// rounded up to 24 bits.
    fn value(self, bytes: &[u8]) -> f32 {
        let whole = |big: bool| {
            let step = |sum: u64, byte: &u8| sum << 8 | u64::from(*byte);
            if big { bytes.iter().fold(0, step) } else { bytes.iter().rev().fold(0, step) }
        };
        match self {
            SampleCoding::Unsigned8 => (f32::from(bytes[0]) - 128.0) / 128.0,
            SampleCoding::Signed { bytes, big } => signed((whole(big) as u32) << (32 - 8 * bytes)),
            SampleCoding::Signed24In32 => signed((whole(false) as u32) << 8),
            SampleCoding::Float32 { big } => f32::from_bits(whole(big) as u32),
            SampleCoding::Float64 { big } => f64::from_bits(whole(big)) as f32,
            SampleCoding::ALaw => a_law(bytes[0]),
            SampleCoding::MuLaw => mu_law(bytes[0]),
        }
    }
}

/// Returns the value of a signed number whose highest bit is that of `high`.
fn signed(high: u32) -> f32 {
    (f64::from(high as i32) / 2_147_483_648.0) as f32
}

/// Returns the value of a byte of G.711 A-law: a sign, three bits of exponent, four of mantissa,
/// every second bit inverted.
fn a_law(byte: u8) -> f32 {
    let turned = byte ^ 0x55;
    let exponent = u32::from(turned >> 4 & 7);
    let mantissa = i32::from(turned & 15);
    let size = if exponent == 0 {
        (mantissa << 4) + 8
    } else {
        ((mantissa << 4) + 0x108) << (exponent - 1)
    };
    let value = if turned & 0x80 == 0 { -size } else { size };
    value as f32 / 32768.0
}

/// Returns the value of a byte of G.711 mu-law: fields as in A-law, all bits inverted, and a bias.
fn mu_law(byte: u8) -> f32 {
    let turned = !byte;
    let exponent = u32::from(turned >> 4 & 7);
    let mantissa = i32::from(turned & 15);
    let size = (((mantissa << 3) + 0x84) << exponent) - 0x84;
    let value = if turned & 0x80 == 0 { size } else { -size };
    value as f32 / 32768.0
}

impl PcmLayout {
    pub(super) fn format(&self) -> AudioFormat {
        let frame = (self.channels * self.coding.size()).max(1) as f64;
        AudioFormat {
            container_and_codec: format!("{}, {}", self.container, self.coding.name()),
            rate: self.rate,
            channels: self.channels,
            seconds: self
                .length
                .map(|length| (length as f64 / frame).floor() / f64::from(self.rate.max(1))),
        }
    }

    /// Returns the frames that the header announces.
    pub(super) fn frames(&self) -> Option<u64> {
        self.length.map(|length| length / (self.channels * self.coding.size()).max(1) as u64)
    }
}

/// Reader of uncompressed samples.
pub(super) struct Pcm {
    bytes: InputBytes,
    layout: PcmLayout,
    left: Option<u64>,
}

impl Pcm {
    pub(super) fn new(bytes: InputBytes, layout: PcmLayout) -> Pcm {
        Pcm { bytes, layout, left: layout.length }
    }
}

impl BlockReader for Pcm {
    fn next(&mut self, samples: &mut Vec<f32>) -> DecodeStep {
        let size = self.layout.coding.size();
        let frame = size * self.layout.channels;
        let wanted = self.left.map_or(u64::MAX, |left| left).min((FRAMES * frame) as u64) as usize;
        let seen = self.bytes.peek(wanted);
        let whole = seen.len() / frame * frame;
        if whole == 0 {
            return self
                .bytes
                .broken()
                .map_or(DecodeStep::End, |why| DecodeStep::Broken(why.to_owned()));
        }
        let coding = self.layout.coding;
        samples.extend(seen[..whole].chunks_exact(size).map(|sample| coding.value(sample)));
        self.bytes.advance(whole);
        self.left = self.left.map(|left| left - whole as u64);
        DecodeStep::Sound { at: None }
    }
}
