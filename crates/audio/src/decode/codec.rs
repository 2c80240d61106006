//! Decodes compressed sound, packet by packet.

use base::{Error, Result};
use symphonia::core::audio::SampleBuffer;
use symphonia::core::codecs::{
    CODEC_TYPE_AAC, CODEC_TYPE_ALAC, CODEC_TYPE_VORBIS, CodecParameters, CodecType, Decoder,
    DecoderOptions,
};
use symphonia::core::formats::Packet;

use super::read::guarded;
use super::sniff::KNOWN;
use super::{CHANNELS_MAX, vorbis};

/// Maximum samples of each channel in an ALAC packet. The decoder reserves as many as the
/// description states. Encoders write 4096.
const ALAC_FRAMES_MAX: u32 = 1 << 16;

/// A decoder that survives damaged packets.
pub(super) struct PacketDecoder {
    parameters: CodecParameters,
    /// Decoder of the library. `None` between a panic and the next packet.
    decoder: Option<Box<dyn Decoder>>,
    buffer: Option<SampleBuffer<f32>>,
    /// Number of channels of every block: as many as in the first.
    channels: Option<usize>,
    rate: Option<u32>,
}

impl PacketDecoder {
    /// Creates the decoder of a codec.
    ///
    /// # Errors
    /// `Unimplemented` for an unknown codec, `DataLoss` if its description is damaged.
    pub(super) fn new(mut parameters: CodecParameters) -> Result<PacketDecoder> {
        if parameters.codec == CODEC_TYPE_VORBIS {
            let headers = parameters.extra_data.as_deref().unwrap_or_default();
            vorbis::check(headers)?;
            if let Some(changed) = vorbis::readable(headers)? {
                parameters.extra_data = Some(changed);
            }
        }
        if parameters.codec == CODEC_TYPE_ALAC {
            check_alac(parameters.extra_data.as_deref().unwrap_or_default())?;
        }
        let decoder = Some(decoder(&parameters)?);
        Ok(PacketDecoder { parameters, decoder, buffer: None, channels: None, rate: None })
    }

    /// Decodes a packet and appends its samples.
    ///
    /// # Errors
    /// A sentence that describes the damage.
    pub(super) fn decode(&mut self, packet: &Packet, samples: &mut Vec<f32>) -> Result<(), String> {
        let mut decoder = match self.decoder.take() {
            Some(decoder) => decoder,
            None => decoder(&self.parameters).map_err(|error| error.message().to_owned())?,
        };
        let buffer = &mut self.buffer;
        let decoded = guarded(|| {
            let sound = decoder.decode(packet).map_err(|error| error.to_string())?;
            let spec = *sound.spec();
            let needed = sound.frames() * spec.channels.count();
            if buffer.as_ref().is_none_or(|buffer| buffer.capacity() < needed) {
                *buffer = Some(SampleBuffer::new(sound.capacity() as u64, spec));
            }
            if let Some(buffer) = buffer {
                buffer.copy_interleaved_ref(sound);
            }
            Ok((spec.rate, spec.channels.count(), decoder))
        });
        let (rate, channels) = match decoded {
            Some(Ok((rate, channels, decoder))) => {
                self.decoder = Some(decoder);
                (rate, channels)
            }
            Some(Err(error)) => {
                self.buffer = None;
                return Err(error);
            }
            None => {
                self.buffer = None;
                return Err("the decoder failed on it".to_owned());
            }
        };
        if *self.rate.get_or_insert(rate) != rate {
            return Err(format!("its rate is {rate} Hz unlike the rest"));
        }
        if !(1..=CHANNELS_MAX).contains(&channels) {
            return Err(format!("it has {channels} channels"));
        }
        let wanted = *self.channels.get_or_insert(channels);
        let decoded = self.buffer.as_ref().map_or(&[][..], |buffer| buffer.samples());
        if wanted == channels {
            samples.extend_from_slice(decoded);
        } else if wanted == 1 {
            let frames = decoded.chunks_exact(channels);
            samples.extend(frames.map(|frame| frame.iter().sum::<f32>() / channels as f32));
        } else {
            // A frame with fewer channels than the first gets copies of its last one.
            for frame in decoded.chunks_exact(channels) {
                samples.extend((0..wanted).map(|channel| frame[channel.min(channels - 1)]));
            }
        }
        Ok(())
    }

    /// Sets the rate that every block must have, and the channels that every block gets.
    pub(super) fn announce(&mut self, rate: u32, channels: usize) {
        self.rate = Some(rate);
        self.channels = Some(channels);
    }

    /// Continues with another codec. Its blocks keep the channels and must have the same rate.
    pub(super) fn follow(&mut self, next: PacketDecoder) {
        let channels = self.channels;
        let rate = self.rate;
        *self = PacketDecoder { channels, rate, ..next };
    }

    /// Returns the codec's type.
    pub(super) fn kind(&self) -> CodecType {
        self.parameters.codec
    }

    /// Returns rate and channels once a packet was decoded.
    pub(super) fn rate_and_channels(&self) -> Option<(u32, usize)> {
        self.rate.zip(self.channels)
    }
}

/// Refuses an ALAC description whose first field, the frames of a packet, is more than
/// [`ALAC_FRAMES_MAX`]. The decoder checks descriptions without the field.
fn check_alac(description: &[u8]) -> Result<()> {
    let frames = description.first_chunk().map_or(0, |field| u32::from_be_bytes(*field));
    if frames > ALAC_FRAMES_MAX {
        return Err(Error::data_loss(format!(
            "the description of the codec is damaged: packets of {frames} samples, at most {ALAC_FRAMES_MAX} are possible"
        )));
    }
    Ok(())
}

/// Returns the error for a codec, or a profile of it, that has no decoder.
fn unsupported(codec: CodecType, what: &str) -> Error {
    let limit = if codec == CODEC_TYPE_AAC {
        "; of AAC, only AAC-LC with one or two channels is supported"
    } else {
        ""
    };
    Error::unimplemented(format!(
        "the codec of this recording is not supported ({what}){limit}; {KNOWN}"
    ))
}

/// Creates the decoder of a codec. A panic of the library becomes an error.
///
/// # Errors
/// `DataLoss` if the description of the codec is damaged; the error of [`unsupported`].
fn decoder(parameters: &CodecParameters) -> Result<Box<dyn Decoder>> {
    let made =
        guarded(|| symphonia::default::get_codecs().make(parameters, &DecoderOptions::default()));
    match made {
        Some(Ok(decoder)) => Ok(decoder),
        Some(Err(symphonia::core::errors::Error::Unsupported(what))) => {
            Err(unsupported(parameters.codec, what))
        }
        Some(Err(error)) => {
            Err(Error::data_loss(format!("the description of the codec is damaged: {error}")))
        }
        None => Err(Error::data_loss("the description of the codec is damaged")),
    }
}

#[cfg(test)]
mod tests {
    use base::ErrorKind;

    use super::*;

    /// Returns parameters of ALAC, 16 bits, stereo, with `frames` samples per packet.
    fn alac(frames: u32) -> CodecParameters {
        let mut description = frames.to_be_bytes().to_vec();
        description
            .extend([0, 16, 40, 10, 14, 2, 0, 255, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xac, 0x44]);
        let mut parameters = CodecParameters::new();
        parameters.for_codec(CODEC_TYPE_ALAC).with_extra_data(description.into_boxed_slice());
        parameters
    }

    #[test]
    fn aac_with_six_channels_is_refused_with_the_limit() {
        // Descriptions of AAC-LC at 44.1 kHz with two and with six channels.
        for (description, channels) in [([0x12_u8, 0x10], 2), ([0x12, 0x30], 6)] {
            let mut parameters = CodecParameters::new();
            parameters
                .for_codec(CODEC_TYPE_AAC)
                .with_sample_rate(44_100)
                .with_extra_data(Box::new(description));
            let error = PacketDecoder::new(parameters).err();
            assert_eq!(error.is_some(), channels == 6, "{channels} channels: {error:?}");
            if let Some(error) = error {
                assert_eq!(error.kind(), ErrorKind::Unimplemented);
                assert!(error.message().contains("only AAC-LC with one or two"), "{error}");
                assert!(error.message().contains("send wav"), "{error}");
            }
        }
    }

    #[test]
    fn an_alac_description_reserves_limited_memory() {
        assert!(PacketDecoder::new(alac(4096)).is_ok());
        assert!(PacketDecoder::new(alac(ALAC_FRAMES_MAX)).is_ok());
        for frames in [ALAC_FRAMES_MAX + 1, u32::MAX] {
            assert_eq!(
                PacketDecoder::new(alac(frames)).err().unwrap().kind(),
                ErrorKind::DataLoss,
                "{frames}"
            );
        }
    }
}
