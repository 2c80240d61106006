//! Damaged and truncated recordings of each format.

use std::io::{Cursor, Read};
use std::sync::atomic::{AtomicUsize, Ordering};

use base::ErrorKind;
use millpond_audio::decode::{AudioInput, Decoder};

use super::{AIFF, FLAC, M4A, MP3, OGG, as_floats, clip, decode, file, stream};

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
fn a_stop_ends_a_search_for_the_next_mp3_frame() {
    let length = 2_u32 << 20;
    let noise = vec![0x55_u8; length as usize];
    // A tag in APE format with a header, which states the length.
    let header = b"APETAGEX\xd0\x07\0\0";
    let flags = [0_u8, 0, 0, 0, 0, 0, 0, 0xa0];
    let mut tag = [&header[..], &length.to_le_bytes(), &flags].concat();
    tag.resize(32 + length as usize, 0);
    for tail in [noise, tag] {
        let mut decoder = Decoder::open(file(&[MP3, &tail].concat()), None).unwrap();
        let checks = AtomicUsize::new(0);
        // The clip has fewer than 50 frames, so these checks are made after its end.
        decoder.stop_when(move || checks.fetch_add(1, Ordering::Relaxed) == 100);
        let error = loop {
            match decoder.next() {
                Ok(block) => assert!(block.is_some(), "the search was not stopped"),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::Cancelled);
    }
}

#[test]
fn a_read_error_behind_zeros_is_a_fault() {
    let mut bytes = MP3.to_vec();
    bytes.resize(bytes.len() + 5000, 0);
    let zeros = decode(stream(&bytes)).unwrap();
    assert_eq!(zeros.faults, []);
    let cut = Cursor::new(bytes).chain(FailingRead);
    let broken = decode(AudioInput::Stream(Box::new(cut))).unwrap();
    let faults: Vec<&str> = broken.faults.iter().map(|fault| fault.what.as_str()).collect();
    assert!(faults.iter().any(|what| what.contains("the disk failed")), "{faults:?}");
}

/// A source that cannot be read.
struct FailingRead;

impl Read for FailingRead {
    fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
        Err(std::io::Error::other("the disk failed"))
    }
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
fn an_mp3_tag_that_adds_more_than_all_samples_is_no_error() {
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
fn an_mp3_may_change_between_mono_and_stereo() {
    // Frames of silence with one channel, of the clip's rate and size.
    let mut silence = vec![0xff_u8, 0xf3, 0x88, 0xc0];
    silence.resize(288, 0);
    let silence = silence.repeat(4);
    let clip = &MP3[mp3_frame(0)..];
    let frames = clip.len() / 288;
    let stereo = decode(stream(&[clip, &silence[..]].concat())).unwrap();
    let mono = decode(stream(&[&silence[..], clip].concat())).unwrap();
    assert_eq!(stereo.faults, []);
    assert_eq!(mono.faults, []);
    assert_eq!([stereo.format.channels, mono.format.channels], [2, 1]);
    assert_eq!(stereo.samples.len(), 2 * 576 * (frames + 4));
    assert_eq!(mono.samples.len(), 576 * (frames + 4));
    let mean = stereo.samples.chunks_exact(2).map(|pair| (pair[0] + pair[1]) / 2.0);
    let far =
        mean.zip(&mono.samples[4 * 576..]).filter(|(one, other)| (one - **other).abs() > 1e-4);
    assert_eq!(far.count(), 0);
}

#[test]
fn damaged_ogg_continues() {
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
fn an_ogg_whose_last_page_is_not_whole_has_a_fault() {
    let whole = decode(stream(&OGG.repeat(2))).unwrap();
    assert_eq!(whole.faults, []);
    let mut damaged = OGG.repeat(2);
    *damaged.last_mut().unwrap() ^= 1;
    for bytes in [&damaged[..], &damaged[..damaged.len() - 1], &damaged[..OGG.len() + 2000]] {
        for input in [stream(bytes), file(bytes)] {
            let decoded = decode(input).unwrap();
            assert!(decoded.samples.len() >= 32_000, "{}", decoded.samples.len());
            let last = decoded.faults.last().map(|fault| fault.what.as_str());
            let expected = "the recording ends early: its last page is damaged or incomplete";
            assert_eq!(last, Some(expected));
        }
    }
}

#[test]
fn a_tag_before_ogg_repeats_no_sound() {
    let size = [0, 0, 0x40, 0];
    let tag = [&b"ID3\x03\0\0"[..], &size, &[0; 0x2000]].concat();
    let plain = decode(stream(OGG)).unwrap();
    for input in [stream(&[&tag, OGG].concat()), file(&[&tag, OGG].concat())] {
        let tagged = decode(input).unwrap();
        assert!(tagged.samples == plain.samples, "{} samples", tagged.samples.len());
    }
}

#[test]
fn tags_at_the_end_of_a_file_are_no_sound() {
    let id3 = [b"TAG", &[b' '; 125][..]].concat();
    // A footer without a header: the version, the size of item and footer, one item, no flags.
    let fields = [2000, 42, 1, 0].map(u32::to_le_bytes).concat();
    let ape = [&b"some item!"[..], b"APETAGEX", &fields, &[0; 8], &id3].concat();
    let streamed = decode(stream(&[FLAC, &id3].concat())).unwrap();
    assert_eq!((streamed.samples.len(), streamed.faults), (32_000, vec![]));
    for recording in [FLAC, MP3, M4A, AIFF] {
        let whole = decode(file(recording)).unwrap();
        for tag in [&id3, &ape] {
            let tagged = decode(file(&[recording, tag].concat())).unwrap();
            assert_eq!(tagged.faults, []);
            assert!(tagged.samples == whole.samples && tagged.format == whole.format);
        }
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
