//! Recordings of all formats: whole, damaged and made up.

mod damage;
mod mp4_tables;
mod wav_files;

use std::collections::HashMap;
use std::io::{Cursor, Read, Write};

use base::ErrorKind;
use millpond_audio::Fault;
use millpond_audio::decode::{AudioFormat, AudioInput, Decoder};
use proptest::prelude::*;

const FLAC: &[u8] = include_bytes!("../data/clip.flac");
const MP3: &[u8] = include_bytes!("../data/clip.mp3");
const OGG: &[u8] = include_bytes!("../data/clip.ogg");
/// Files with a chirp in each channel.
const OGG_4: &[u8] = include_bytes!("../data/clip-4.ogg");
const OGG_6: &[u8] = include_bytes!("../data/clip-6.ogg");
const M4A: &[u8] = include_bytes!("../data/clip.m4a");
const M4A_LAST: &[u8] = include_bytes!("../data/clip-last.m4a");
const ALAC: &[u8] = include_bytes!("../data/clip-alac.m4a");
const AIFF: &[u8] = include_bytes!("../data/clip.aiff");
const OPUS: &[u8] = include_bytes!("../data/clip.opus");
/// A wav file of GSM frames.
const GSM: &[u8] =
    b"RIFF\x24\0\0\0WAVEfmt \x10\0\0\0\x31\0\x01\0\x40\x1f\0\0\x59\x06\0\0\x41\0\0\0data\0\0\0\0";
/// The header of an aifc file of IMA ADPCM.
const IMA: &[u8] =
    b"FORM\0\0\0\x22AIFCCOMM\0\0\0\x16\0\x01\0\0\0\0\0\x10\x40\x0e\xac\x44\0\0\0\0\0\0ima4";

struct Decoded {
    format: AudioFormat,
    samples: Vec<f32>,
    faults: Vec<Fault>,
}

fn stream(bytes: &[u8]) -> AudioInput {
    AudioInput::Stream(Box::new(Cursor::new(bytes.to_vec())))
}

fn file(bytes: &[u8]) -> AudioInput {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    std::io::Seek::rewind(&mut file).unwrap();
    AudioInput::File(file)
}

/// Decodes everything and checks that blocks follow each other.
fn decode(input: AudioInput) -> base::Result<Decoded> {
    let mut decoder = Decoder::open(input, Some("clip"))?;
    let format = decoder.format().clone();
    let (mut samples, mut faults) = (Vec::new(), Vec::new());
    while let Some(block) = decoder.next()? {
        let due = (samples.len() / format.channels) as f64 / f64::from(format.rate);
        assert!((block.start - due).abs() < 1e-9, "a block at {} where {due} was due", block.start);
        assert!(!block.samples.is_empty() && block.samples.len() % format.channels == 0);
        assert!(block.samples.len() <= 1 << 20, "a block of {} samples", block.samples.len());
        samples.extend(block.samples);
        faults.extend(decoder.take_faults());
    }
    faults.extend(decoder.take_faults());
    assert!(decoder.next()?.is_none(), "the end stays the end");
    assert!(
        faults.windows(2).all(|pair| pair[0].at <= pair[1].at),
        "faults come in time order: {faults:?}"
    );
    Ok(Decoded { format, samples, faults })
}

/// The signal of `make_clips.py`, interleaved.
fn clip() -> Vec<i16> {
    let frame = |index: u32| {
        let time = f64::from(index) / 16000.0;
        let left = 0.5 * (std::f64::consts::TAU * (200.0 * time + 900.0 * time * time)).sin();
        let right = 0.25 * (std::f64::consts::TAU * 440.0 * time).sin();
        [left, right].map(|value| (value * 32767.0).round_ties_even() as i16)
    };
    (0..16000).flat_map(frame).collect()
}

fn as_floats(samples: &[i16]) -> Vec<f32> {
    samples.iter().map(|sample| f32::from(*sample) / 32768.0).collect()
}

/// Returns the level of the difference below the original, in dB, over `frames`.
fn difference(got: &[f32], expected: &[f32], frames: std::ops::Range<usize>) -> f64 {
    let (mut error, mut power) = (0.0, 0.0);
    for index in frames.start * 2..frames.end * 2 {
        error += f64::from(got[index] - expected[index]).powi(2);
        power += f64::from(expected[index]).powi(2);
    }
    10.0 * (error / power).log10()
}

#[test]
fn lossless_kinds_are_exact() {
    for (name, bytes, kind) in
        [("flac", FLAC, "flac"), ("alac", ALAC, "mp4, alac"), ("aiff", AIFF, "aiff, 16-bit")]
    {
        for input in [stream(bytes), file(bytes)] {
            if name == "alac" && matches!(input, AudioInput::Stream(_)) {
                continue;
            }
            let decoded = decode(input).unwrap();
            let length = HashMap::from([("flac", 32000), ("alac", 16000), ("aiff", 3200)])[name];
            assert_eq!(decoded.format.container_and_codec, kind);
            assert_eq!((decoded.format.rate, decoded.format.channels), (16000, 2));
            assert_eq!(decoded.format.seconds, Some(length as f64 / 32000.0), "{name}");
            assert_eq!(decoded.faults, [], "{name}");
            assert!(decoded.samples == as_floats(&clip()[..length]), "{name}: samples differ");
        }
    }
}

#[test]
fn lossy_kinds_are_close_and_in_place() {
    let expected = as_floats(&clip());
    for (name, bytes) in [("mp3", MP3), ("ogg", OGG), ("m4a", M4A)] {
        for input in [stream(bytes), file(bytes)] {
            let decoded = decode(input).unwrap();
            assert_eq!((decoded.format.rate, decoded.format.channels), (16000, 2), "{name}");
            assert_eq!(decoded.faults, [], "{name}");
            assert_eq!(decoded.samples.len(), 32000, "{name}");
            // Only the end of an ogg file states its length.
            assert!(decoded.format.seconds.map_or(name == "ogg", |seconds| seconds == 1.0));
            // A delay of one sample alone would give -8 dB.
            let off = difference(&decoded.samples, &expected, 1000..15000);
            eprintln!("{name}: the difference is {off:.1} dB");
            assert!(off < -20.0, "{name}: the difference is {off:.1} dB");
        }
    }
}

/// The decoder alone mixes the channels of these files up.
#[test]
fn vorbis_of_several_channels_is_close_and_in_place() {
    for (bytes, channels) in [(OGG_4, 4), (OGG_6, 6)] {
        let decoded = decode(file(bytes)).unwrap();
        assert_eq!((decoded.format.rate, decoded.format.channels), (44_100, channels));
        assert_eq!(decoded.faults, []);
        let (mut error, mut power) = (0.0, 0.0);
        for (index, frame) in decoded.samples.chunks(channels).enumerate().take(5500).skip(500) {
            let time = index as f64 / 44_100.0;
            // The fourth of six channels is silent.
            let sounding = (0..channels).filter(|channel| (channels, *channel) != (6, 3));
            let expected: f64 = sounding
                .map(|channel| {
                    let turns = (150 + 170 * channel) as f64 * time + 900.0 * time * time;
                    0.15 * (std::f64::consts::TAU * turns).sin()
                })
                .sum();
            let got: f64 = frame.iter().map(|sample| f64::from(*sample)).sum();
            error += (got - expected).powi(2);
            power += expected.powi(2);
        }
        let off = 10.0 * (error / power).log10();
        assert!(off < -20.0, "{channels} channels: the difference is {off:.1} dB");
    }
}

#[test]
fn a_table_of_contents_at_the_end_needs_a_file() {
    let decoded = decode(file(M4A_LAST)).unwrap();
    assert_eq!((decoded.samples.len(), decoded.faults.len()), (32000, 0));
    let error = Decoder::open(stream(M4A_LAST), None).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::FailedPrecondition);
    assert!(error.message().contains("send a whole file"), "{error}");
}

fn wav(
    spec: hound::WavSpec,
    write: impl Fn(&mut hound::WavWriter<&mut Cursor<Vec<u8>>>),
) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    let mut writer = hound::WavWriter::new(&mut bytes, spec).unwrap();
    write(&mut writer);
    writer.finalize().unwrap();
    bytes.into_inner()
}

fn spec(channels: u16, rate: u32, bits: u16, format: hound::SampleFormat) -> hound::WavSpec {
    hound::WavSpec { channels, sample_rate: rate, bits_per_sample: bits, sample_format: format }
}

fn sixteen(samples: &[i16]) -> Vec<u8> {
    wav(spec(2, 16000, 16, hound::SampleFormat::Int), |writer| {
        samples.iter().for_each(|sample| writer.write_sample(*sample).unwrap());
    })
}

#[test]
fn files_without_sound_are_named() {
    let noise: Vec<u8> = (0..100_000_u64)
        .map(|index| (index.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8)
        .collect();
    for (bytes, kind, says) in [
        (&b""[..], ErrorKind::InvalidArgument, "empty"),
        (b"Dear Sir or Madam,\nthis is no sound.\n", ErrorKind::InvalidArgument, "text"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", ErrorKind::InvalidArgument, "png"),
        (b"\xff\xd8\xff\xe0\0\x10JFIF\0", ErrorKind::InvalidArgument, "jpeg"),
        (b"\x1a\x45\xdf\xa3\0\0\0", ErrorKind::Unimplemented, "webm"),
        // A tag of 2048 bytes, as the first bytes of an mp3 file with an image have it.
        (b"ID3\x03\0\0\0\0\x10\0APIC", ErrorKind::DataLoss, "inside its tags"),
        (b"\0\0\0\x08wide\0\0\0\0mdat", ErrorKind::Unimplemented, "quicktime"),
        (b"riff\x2e\x91\xcf\x11\xa5\xd6", ErrorKind::Unimplemented, "wave64"),
        (OPUS, ErrorKind::Unimplemented, "opus is not supported; send wav"),
        (GSM, ErrorKind::Unimplemented, "(code 49, 0 bits); convert it to PCM or flac"),
        (IMA, ErrorKind::Unimplemented, "(\"ima4\", 16 bits); convert it to PCM or flac"),
        (&noise, ErrorKind::InvalidArgument, "not a recording"),
        (b"RIFF\x24\0\0\0WAVE", ErrorKind::DataLoss, "no data chunk"),
        (&FLAC[..30], ErrorKind::DataLoss, "flac"),
        (&M4A[..200], ErrorKind::DataLoss, "table of contents"),
    ] {
        for input in [stream(bytes), file(bytes)] {
            let error = Decoder::open(input, Some("wav")).err().unwrap();
            assert_eq!((error.kind(), error.message().contains(says)), (kind, true), "{error}");
        }
    }
}

/// A reader that fails after `left` bytes and returns few at a time.
struct Breaks(Cursor<Vec<u8>>, u64);

impl Read for Breaks {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        if self.0.position() >= self.1 {
            return Err(std::io::Error::other("the client went away"));
        }
        let count = into.len().min(100);
        self.0.read(&mut into[..count])
    }
}

#[test]
fn an_upload_that_ends_early_is_reported() {
    let wav = sixteen(&clip());
    for bytes in [&wav[..], MP3, FLAC] {
        let breaks = Breaks(Cursor::new(bytes.to_vec()), bytes.len() as u64 * 3 / 4);
        let decoded = decode(AudioInput::Stream(Box::new(breaks))).unwrap();
        assert!(decoded.samples.len() > 8000);
        assert!(!decoded.faults.is_empty());
    }
}

/// Undamaged recordings from a local folder, for evaluation.
#[test]
fn real_clips_decode_without_a_fault() {
    let Some(folder) = std::env::var_os("MILLPOND_AUDIO_DATA") else {
        eprintln!("SKIPPED: MILLPOND_AUDIO_DATA does not name a folder of clips");
        return;
    };
    let mut folders = vec![std::path::PathBuf::from(folder)];
    let mut clips = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let extension =
                path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
            if !["wav", "flac", "mp3", "ogg", "m4a", "aiff"].contains(&extension) {
                continue;
            }
            let decoded = decode(AudioInput::File(std::fs::File::open(&path).unwrap())).unwrap();
            let frames = decoded.samples.len() / decoded.format.channels;
            let seconds = frames as f64 / f64::from(decoded.format.rate);
            assert_eq!(decoded.faults, [], "{}", path.display());
            let announced = decoded.format.seconds.unwrap_or(seconds);
            assert!(
                (announced - seconds).abs() < 0.1,
                "{}: {announced} s, not {seconds}",
                path.display()
            );
            clips += 1;
        }
    }
    eprintln!("{clips} clips decoded");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_bytes_make_the_decoder_panic(
        which in 0usize..8, cut in 0usize..40_000,
        changes in proptest::collection::vec((0usize..3000, any::<u8>()), 0..12), as_file: bool,
        junk in proptest::collection::vec(any::<u8>(), 0..64),
    ) {
        let wav = sixteen(&clip()[..2000]);
        let empty: &[u8] = &[];
        let mut bytes = [FLAC, MP3, OGG, M4A, ALAC, AIFF, &wav, empty][which].to_vec();
        bytes.truncate(cut);
        for (at, value) in changes {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
        }
        bytes.extend(junk);
        let input = if as_file { file(&bytes) } else { stream(&bytes) };
        let Ok(mut decoder) = Decoder::open(input, None) else { return Ok(()) };
        let mut frames = 0;
        while let Ok(Some(block)) = decoder.next() {
            frames += block.samples.len();
            decoder.take_faults();
            // A clip of a second cannot become hours, except for silence because of a damaged
            // clock.
            prop_assert!(frames < 768_000 * 64 * 10);
            if frames > 4_000_000 { break; }
        }
    }
}
