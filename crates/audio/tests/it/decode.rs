//! Recordings of all formats: whole, damaged and made up.

use std::collections::HashMap;
use std::io::{Cursor, Read, Write};

use base::ErrorKind;
use millpond_audio::Fault;
use millpond_audio::decode::{AudioFormat, AudioInput, Decoder};
use proptest::prelude::*;

const FLAC: &[u8] = include_bytes!("../data/clip.flac");
const MP3: &[u8] = include_bytes!("../data/clip.mp3");
const OGG: &[u8] = include_bytes!("../data/clip.ogg");
const M4A: &[u8] = include_bytes!("../data/clip.m4a");
const M4A_LAST: &[u8] = include_bytes!("../data/clip-last.m4a");
const ALAC: &[u8] = include_bytes!("../data/clip-alac.m4a");
const AIFF: &[u8] = include_bytes!("../data/clip.aiff");

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
            if decoded.format.seconds.is_none() {
                // Only the end of an ogg file states how much of its last block is sound.
                assert!(name == "ogg" && (32000..33000).contains(&decoded.samples.len()));
            } else {
                assert_eq!(
                    (decoded.samples.len(), decoded.format.seconds),
                    (32000, Some(1.0)),
                    "{name}"
                );
            }
            // A delay of one sample alone would make -8 dB.
            let off = difference(&decoded.samples, &expected, 1000..15000);
            eprintln!("{name}: the difference is {off:.1} dB");
            assert!(off < -20.0, "{name}: the difference is {off:.1} dB");
        }
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

/// An atom of an mp4 file.
fn atom(name: &[u8; 4], inside: &[u8]) -> Vec<u8> {
    [&(inside.len() as u32 + 8).to_be_bytes()[..], name, inside].concat()
}

/// Returns `atoms` with `change` applied to the contents of each one named `name`, on any level of
/// the tables.
fn changed(atoms: &[u8], name: &[u8; 4], change: &dyn Fn(&[u8]) -> Vec<u8>) -> Vec<u8> {
    let (mut rest, mut result) = (atoms, Vec::new());
    while let Some(length) =
        rest.first_chunk::<4>().map(|length| u32::from_be_bytes(*length) as usize)
    {
        let (this, after) = rest.split_at(length);
        let (own, inside): (&[u8; 4], _) = (this[4..8].try_into().unwrap(), &this[8..]);
        result.extend(match own {
            _ if own == name => change(inside),
            b"moov" | b"trak" | b"mdia" | b"minf" | b"stbl" => {
                atom(own, &changed(inside, name, change))
            }
            _ => this.to_vec(),
        });
        rest = after;
    }
    result
}

#[test]
fn a_track_of_images_does_not_move_the_sound() {
    let numbers = |numbers: &[u32]| {
        numbers.iter().flat_map(|number| number.to_be_bytes()).collect::<Vec<u8>>()
    };
    let nothing = |name| atom(name, &[0; 8]);
    let tables = [
        atom(b"stsd", &[numbers(&[0, 1]), atom(b"avc1", &[0; 78])].concat()),
        nothing(b"stts"),
        nothing(b"stsc"),
        atom(b"stsz", &[0; 12]),
        nothing(b"stco"),
    ]
    .concat();
    let media = [
        atom(b"mdhd", &numbers(&[0, 0, 0, 90_000, 90_000, 0])),
        atom(b"hdlr", &[&numbers(&[0, 0])[..], b"vide", &[0; 13]].concat()),
        atom(
            b"minf",
            &[atom(b"hdlr", &[&[0; 8][..], b"soun", &[0; 13]].concat()), atom(b"stbl", &tables)]
                .concat(),
        ),
    ]
    .concat();
    let pictures = [
        atom(
            b"tkhd",
            &numbers(&[0, 0, 0, 9, 0, 90_000, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        ),
        atom(b"edts", &atom(b"elst", &numbers(&[0, 1, 300, 30_000, 0x10000]))),
        atom(b"mdia", &media),
    ]
    .concat();
    let film = changed(M4A_LAST, b"moov", &|inside| {
        atom(b"moov", &[atom(b"trak", &pictures), inside.to_vec()].concat())
    });
    let (alone, beside) = (decode(file(M4A_LAST)).unwrap(), decode(file(&film)).unwrap());
    assert_eq!((beside.samples.len(), beside.faults.len()), (32000, 0));
    assert!(alone.samples == beside.samples && alone.format == beside.format);
}

#[test]
fn packets_without_end_that_hold_nothing_end_a_recording() {
    // An excessive number of packets follows the clip's sound, all empty and at the same time.
    let extra = 1u32 << 20;
    let number =
        |bytes: &[u8], at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    let longer = changed(M4A_LAST, b"stsz", &|inside| {
        let count = number(inside, 8) + extra;
        atom(
            b"stsz",
            &[&inside[..8], &count.to_be_bytes(), &inside[12..], &vec![0; 4 * extra as usize]]
                .concat(),
        )
    });
    let longer = changed(&longer, b"stts", &|inside| {
        let entries = number(inside, 4) + 1;
        let added = [extra.to_be_bytes(), [0; 4]].concat();
        atom(b"stts", &[&inside[..4], &entries.to_be_bytes(), &inside[8..], &added].concat())
    });
    let longer = changed(&longer, b"stsc", &|_| {
        let all = [0, 1, 1, 1 << 30, 1].map(u32::to_be_bytes).concat();
        atom(b"stsc", &all)
    });
    let decoded = decode(file(&longer)).unwrap();
    let last =
        decoded.faults.iter().find(|fault| fault.what.contains("in a row cannot be decoded"));
    assert!(last.is_some(), "{:?}", decoded.faults);
    assert_eq!(decoded.samples.len(), 32000);
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
fn every_width_of_wav_is_exact() {
    for bits in [8_u16, 16, 24, 32] {
        let high = 1_i64 << (bits - 1);
        let values: Vec<i32> = [0, 1, -1, high - 1, -high, high / 3]
            .iter()
            .map(|value| i32::try_from(*value).unwrap())
            .collect();
        let bytes = wav(spec(1, 8000, bits, hound::SampleFormat::Int), |writer| {
            values.iter().for_each(|value| writer.write_sample(*value).unwrap());
        });
        let expected: Vec<f32> =
            values.iter().map(|value| (f64::from(*value) / high as f64) as f32).collect();
        let decoded = decode(stream(&bytes)).unwrap();
        assert_eq!(decoded.samples, expected, "{bits} bits");
        assert_eq!(decoded.format.container_and_codec, format!("wav, {bits}-bit"));
    }
    let values = [0.0, 0.5, -1.0, 1.5];
    let bytes = wav(spec(1, 8000, 32, hound::SampleFormat::Float), |writer| {
        values.iter().for_each(|value| writer.write_sample(*value).unwrap());
    });
    assert_eq!(decode(stream(&bytes)).unwrap().samples, values);
    let bytes = wav(spec(1, 8000, 32, hound::SampleFormat::Float), |writer| {
        [0.25, f32::NAN, f32::INFINITY]
            .iter()
            .for_each(|value| writer.write_sample(*value).unwrap());
    });
    let decoded = decode(stream(&bytes)).unwrap();
    assert_eq!((decoded.samples, decoded.faults.len()), (vec![0.25, 0.0, 0.0], 1));
}

#[test]
fn seven_channels_at_192_khz() {
    let bytes = wav(spec(7, 192_000, 24, hound::SampleFormat::Int), |writer| {
        (0..7 * 19200).for_each(|value| writer.write_sample(value * 62).unwrap());
    });
    let decoded = decode(stream(&bytes)).unwrap();
    assert_eq!(
        (decoded.format.channels, decoded.format.rate, decoded.format.seconds),
        (7, 192_000, Some(0.1))
    );
    assert!(
        decoded.samples.iter().enumerate().all(|(at, got)| *got == (at * 62) as f32 / 8_388_608.0)
    );
    assert_eq!(decoded.samples.len(), 7 * 19200);
}

#[test]
fn telephone_codings_are_those_of_the_standard() {
    // A wav header of one channel at 8 kHz with a code, and four bytes.
    let telephone = |code: u8, bytes: [u8; 4]| {
        let mut wav = b"RIFF\x28\0\0\0WAVEfmt \x10\0\0\0".to_vec();
        wav.extend([code, 0, 1, 0, 0x40, 0x1f, 0, 0, 0x40, 0x1f, 0, 0, 1, 0, 8, 0]);
        wav.extend(b"data\x04\0\0\0");
        wav.extend(bytes);
        let decoded = decode(stream(&wav)).unwrap();
        decoded.samples.iter().map(|sample| (sample * 32768.0) as i32).collect::<Vec<_>>()
    };
    assert_eq!(telephone(7, [0xff, 0x00, 0x80, 0x7f]), [0, -32124, 32124, 0]);
    assert_eq!(telephone(6, [0xd5, 0x2a, 0xaa, 0x55]), [8, -32256, 32256, -8]);
}

/// Returns the wav with another length in its data chunk and in the file's.
fn lying(wav: &[u8], riff: u32, data: u32) -> Vec<u8> {
    let mut wav = wav.to_vec();
    let at = wav.windows(4).position(|name| name == b"data").unwrap() + 4;
    wav[4..8].copy_from_slice(&riff.to_le_bytes());
    wav[at..at + 4].copy_from_slice(&data.to_le_bytes());
    wav
}

#[test]
fn wav_headers_that_lie_cost_nothing() {
    let clip = clip();
    let whole = sixteen(&clip);
    // The lengths that `arecord` and `sox` write to a pipe are among them.
    let unknown = [0, u32::MAX, u32::MAX - 44, 0x8000_0000, 0x7fff_ff00, 0x7fff_f000, 0x7fff_effc];
    for (riff, data) in
        unknown.map(|data: u32| (data.wrapping_add(36), data)).into_iter().chain([(36, 0)])
    {
        let wav = lying(&whole, riff, data);
        for input in [stream(&wav), file(&wav)] {
            let decoded = decode(input).unwrap();
            assert_eq!((decoded.samples.len(), decoded.faults.len()), (32000, 0), "{riff} {data}");
            assert_eq!(decoded.format.seconds, None);
        }
    }
    let decoded = decode(stream(&lying(&whole, 0, 0x9000_0000))).unwrap();
    assert_eq!(
        (decoded.samples.len(), decoded.faults.len()),
        (32000, 1),
        "a length that may be true"
    );
    // Longer than the file: the existing sound, and a fault at its end.
    let decoded = decode(stream(&lying(&whole, 64036, 128_000))).unwrap();
    assert!(decoded.samples == as_floats(&clip));
    let expected =
        Fault { at: 1.0, what: "the file ends early: its header says 2.000 s".to_owned() };
    assert_eq!(decoded.faults, [expected]);
    // Shorter: the stated length.
    let decoded = decode(stream(&lying(&whole, 36, 32_000))).unwrap();
    assert_eq!((decoded.samples.len(), decoded.faults.len()), (16000, 0));
    // Cut inside a frame.
    let decoded = decode(stream(&whole[..whole.len() - 32_001])).unwrap();
    assert_eq!((decoded.samples.len(), decoded.faults.len()), (15998, 1));
}

#[test]
fn an_rf64_without_a_length_is_read_to_its_end() {
    let whole = sixteen(&clip());
    let lengths = |data: u64| {
        let mut wav = lying(&whole, u32::MAX, u32::MAX);
        wav[..4].copy_from_slice(b"RF64");
        let sizes = [0, data, 0].map(u64::to_le_bytes).concat();
        wav.splice(12..12, [&b"ds64\x1c\0\0\0"[..], &sizes, &[0; 4]].concat());
        wav
    };
    for (data, samples) in [(0, 32_000), (u64::MAX, 32_000), (32_000, 16_000)] {
        let decoded = decode(stream(&lengths(data))).unwrap();
        assert_eq!((decoded.samples.len(), decoded.faults.len()), (samples, 0), "{data}");
    }
}

#[test]
fn a_truncated_flac_gives_its_beginning() {
    let decoded = decode(stream(&FLAC[..FLAC.len() * 3 / 4])).unwrap();
    let have = decoded.samples.len();
    assert!(have > 12_000 && have < 24_000, "{have}");
    assert!(decoded.samples == as_floats(&clip()[..have]));
    let last = decoded.faults.last().unwrap();
    assert_eq!(last.what, "the file ends early: its header says 1.000 s");
    assert!((last.at - have as f64 / 32000.0).abs() < 1e-9);
}

#[test]
fn a_damaged_frame_of_flac_becomes_silence() {
    let mut bytes = FLAC.to_vec();
    let middle = bytes.len() * 3 / 4;
    bytes[middle] ^= 0x55;
    let decoded = decode(stream(&bytes)).unwrap();
    assert_eq!(decoded.samples.len(), 32000, "{:?}", decoded.faults);
    assert_eq!(decoded.faults.len(), 1, "{:?}", decoded.faults);
    let expected = as_floats(&clip());
    let off: Vec<usize> = (0..16000)
        .filter(|frame| decoded.samples[frame * 2..][..2] != expected[frame * 2..][..2])
        .collect();
    let (first, last) = (off[0], off[off.len() - 1]);
    assert!(last - first < 1024, "more than a frame is gone: {first} to {last}");
    let at = decoded.faults[0].at * 16000.0;
    assert!(at <= first as f64 && at + 1024.0 > last as f64, "the fault is at {at}");
}

/// Returns the offsets of the mp3's frames: 288 bytes each, after its tags.
fn mp3_frame(index: usize) -> usize {
    20 + 288 * (index + 1)
}

#[test]
fn a_damaged_frame_of_mp3_costs_that_frame() {
    let whole = decode(stream(MP3)).unwrap().samples;
    let mut wiped = MP3.to_vec();
    wiped[mp3_frame(10)..mp3_frame(11)].fill(0);
    let mut headless = MP3.to_vec();
    headless[mp3_frame(10)] = 0;
    let mut missing = MP3.to_vec();
    missing.drain(mp3_frame(10) + 200..mp3_frame(11) + 200);
    let mut garbled = MP3.to_vec();
    garbled[mp3_frame(10) + 4..mp3_frame(12)].iter_mut().for_each(|byte| *byte ^= 0xa5);
    for (name, bytes, alike) in [
        ("wiped", wiped, true),
        ("headless", headless, true),
        ("missing", missing, false),
        ("garbled", garbled, true),
    ] {
        let decoded = decode(stream(&bytes)).unwrap();
        assert!(!decoded.faults.is_empty(), "{name}");
        assert!(
            !alike || (decoded.faults[0].at - 0.33).abs() < 0.1,
            "{name}: {:?}",
            decoded.faults
        );
        let end = if alike { 32000 } else { decoded.samples.len() };
        assert_eq!(decoded.samples.len(), end, "{name}: {:?}", decoded.faults);
        assert!(decoded.samples[..8000] == whole[..8000], "{name}: before the damage");
        // If half a frame is missing, two become one, and only the length shows it.
        assert!(!alike || decoded.samples[20000..] == whole[20000..], "{name}: after the damage");
    }
}

#[test]
fn an_mp3_tag_that_adds_more_than_there_is_is_survived() {
    // Announces one frame of 576 samples, of which 4095 are added at each end.
    let mut bytes = MP3.to_vec();
    bytes[49..53].copy_from_slice(&1_u32.to_be_bytes());
    bytes[182..185].fill(0xff);
    let decoded = decode(stream(&bytes)).unwrap();
    assert_eq!(decoded.samples.len(), (30 * 576 - 4095 - 529) * 2, "{:?}", decoded.faults);
    // Damage inside the added samples counts from the beginning of the sound.
    bytes[mp3_frame(2)..mp3_frame(3)].fill(0);
    let damaged = decode(stream(&bytes)).unwrap();
    assert_eq!(damaged.faults.first().map(|fault| fault.at), Some(0.0));
}

#[test]
fn a_long_mp3_with_damage_and_tags_keeps_its_times() {
    let mut bytes = Vec::new();
    for part in 0..20 {
        let begin = bytes.len();
        bytes.extend_from_slice(&MP3[mp3_frame(0)..]);
        if part == 7 {
            bytes[begin + 2880..begin + 4320].fill(0x11);
        }
    }
    bytes.extend_from_slice(b"TAG");
    bytes.extend_from_slice(&[b' '; 125]);
    bytes.extend_from_slice(&[0; 5000]);
    let decoded = decode(stream(&bytes)).unwrap();
    let frames = (MP3.len() - mp3_frame(0)) / 288 * 20;
    assert_eq!(decoded.samples.len(), frames * 576 * 2, "{:?}", decoded.faults);
    assert!(!decoded.faults.is_empty() && decoded.faults.len() <= 3, "{:?}", decoded.faults);
}

#[test]
fn damaged_ogg_goes_on() {
    let mut bytes = OGG.to_vec();
    let at = bytes.len() * 3 / 4;
    bytes[at] ^= 0xff;
    // One page may hold all of a short clip: then nothing is left, and that is reported.
    match decode(stream(&bytes)) {
        Ok(decoded) => assert!(!decoded.faults.is_empty()),
        Err(error) => assert_eq!(error.kind(), ErrorKind::DataLoss),
    }
}

#[test]
fn a_truncated_m4a_gives_its_beginning() {
    for input in [stream(&M4A[..6000]), file(&M4A[..6000])] {
        let decoded = decode(input).unwrap();
        let have = decoded.samples.len();
        assert!(have > 8000 && have < 32000, "{have}");
        assert!(decoded.faults.last().unwrap().what.contains("1.000 s"), "{:?}", decoded.faults);
    }
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
fn an_upload_that_breaks_off_says_so() {
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
    fn no_bytes_bring_it_down(
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
            // A clip of a second cannot become hours, except of silence that a damaged clock asks
            // for.
            prop_assert!(frames < 768_000 * 64 * 10);
            if frames > 4_000_000 { break; }
        }
    }
}
