//! Wav files: widths, channels, codings, and headers with wrong lengths.

use std::io::{Seek, Write};

use millpond_audio::Fault;
use millpond_audio::decode::{AudioInput, Decoder};

use super::{as_floats, clip, decode, file, sixteen, spec, stream, wav};

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
fn seven_channels_at_192_khz_are_decoded() {
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
fn samples_of_24_bits_may_lie_in_four_bytes() {
    // One channel at 8 kHz, 24 bits, frames of four bytes, as `arecord -f S24_LE` writes it.
    let samples = |second: u32| {
        let mut wav = b"RIFF\x30\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0\x40\x1f\0\0".to_vec();
        wav.extend(second.to_le_bytes());
        wav.extend(b"\x04\0\x18\0data\x0c\0\0\0");
        wav.extend([0x40_0000_i32, -0x40_0000, 0].map(i32::to_le_bytes).concat());
        decode(stream(&wav)).unwrap().samples
    };
    assert_eq!(samples(4 * 8000), [0.5, -0.5, 0.0]);
    // If only the size of frames says so, it is wrong.
    assert_eq!(samples(3 * 8000).len(), 4);
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

/// Returns the wav with other lengths in its data chunk and in its file header.
fn lying(wav: &[u8], riff: u32, data: u32) -> Vec<u8> {
    let mut wav = wav.to_vec();
    let at = wav.windows(4).position(|name| name == b"data").unwrap() + 4;
    wav[4..8].copy_from_slice(&riff.to_le_bytes());
    wav[at..at + 4].copy_from_slice(&data.to_le_bytes());
    wav
}

#[test]
fn wrong_lengths_in_wav_headers_lose_no_sound() {
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

/// Some programs write a file of more than 4 GiB with the lower 32 bits of its length.
#[test]
fn a_length_without_its_upper_bits_is_not_the_end() {
    let header = sixteen(&clip());
    for (more, seconds) in [(0_u64, Some(1.0)), (1 << 32, None)] {
        // A file with a hole, of which only the header is read.
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&header).unwrap();
        file.set_len(header.len() as u64 + more).unwrap();
        file.rewind().unwrap();
        let decoder = Decoder::open(AudioInput::File(file), None).unwrap();
        assert_eq!(decoder.format().seconds, seconds, "{more}");
    }
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
