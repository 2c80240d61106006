//! Recordings, images and fingerprint templates.

use std::io::{Cursor, Write};

use audio::decode::{AudioInput, CHANNELS_MAX, Decoder};
use matching::{Graph, MatchOptions, Probe, Scratch, iso, template};
use vision::{Format, Limits};

use crate::bounded;

/// Blocks to read of a recording: enough to reach every state of a codec, few enough for thousands
/// of runs a minute.
const BLOCKS_MAX: usize = 64;
/// Maximum pixels of an image. Larger ones are refused by their header, as in the server.
const PIXELS_MAX: u64 = 1 << 20;
/// Bytes of an image's pixels and of a decoder's copies of them.
const IMAGE_BYTES: usize = 8 << 20;

/// Fuzzes recordings of every format, as a file and as a stream.
///
/// Asserts that blocks follow each other without gaps, with complete frames, finite samples and at
/// most the permitted channels.
pub fn audio_decode(data: &[u8]) {
    let mut file = tempfile::tempfile().expect("a temporary file");
    file.write_all(data).expect("a temporary file");
    std::io::Seek::rewind(&mut file).expect("a temporary file");
    bounded(data, 0, || recording(AudioInput::File(file)));
    bounded(data, 0, || recording(AudioInput::Stream(Box::new(Cursor::new(data.to_vec())))));
}

fn recording(input: AudioInput) {
    let Ok(mut decoder) = Decoder::open(input, None) else { return };
    let format = decoder.format().clone();
    assert!((1..=CHANNELS_MAX).contains(&format.channels));
    let mut frames = 0;
    for _ in 0..BLOCKS_MAX {
        let Ok(Some(block)) = decoder.next() else { break };
        assert_eq!(block.samples.len() % format.channels, 0, "a block of whole frames");
        assert!(block.samples.iter().all(|sample| sample.is_finite()), "a sample is no number");
        let expected = frames as f64 / f64::from(format.rate);
        assert!(
            (block.start - expected).abs() < 1e-6,
            "a block at {} and not {expected}",
            block.start
        );
        frames += block.samples.len() / format.channels;
    }
    for fault in decoder.take_faults() {
        assert!(fault.at.is_finite() && fault.at >= 0.0);
    }
}

/// Fuzzes images: pixels, EXIF orientation and the resolution in the file.
///
/// Asserts that a decoded image has the size of its pixels and is within the limits. The resolution
/// is also read from incomplete images.
pub fn image_decode(data: &[u8]) {
    let limits = Limits { pixels_max: PIXELS_MAX, side_max: 65_535, bytes_max: IMAGE_BYTES as u64 };
    for format in [Format::Jpeg, Format::Png, Format::WebP, Format::Tiff, Format::Bmp] {
        let dots = bounded(data, 0, || vision::fuzzing::dots_per_inch(format, data));
        assert!(dots.is_none_or(|dots| (1.0..=20_000.0).contains(&dots)));
    }
    // The file's own depth, the 8-bit pixels, and the upright copy.
    let Ok(decoded) = bounded(data, 4 * IMAGE_BYTES, || vision::decode(data, &limits)) else {
        return;
    };
    assert!((1..=8).contains(&decoded.orientation));
    let (width, height) = (decoded.image.width, decoded.image.height);
    assert!(u64::from(width) * u64::from(height) <= PIXELS_MAX);
}

/// Fuzzes ISO/IEC 19794-2 templates and graph records: parses, writes, parses again, and scores.
pub fn iso_template(data: &[u8]) {
    let _ = bounded(data, 0, || template::read(data));
    if let Ok(graphs) = bounded(data, 0, || iso::read(data)) {
        for graph in graphs {
            let Ok(written) = iso::write(&graph) else { continue };
            assert_eq!(iso::read(&written).expect("own template"), [graph]);
        }
    }
    let Ok(graph) = bounded(data, 0, || Graph::decode(data)) else { return };
    let mut record = Vec::new();
    graph.encode(&mut record);
    assert_eq!(Graph::decode(&record).expect("own record"), graph);
    if graph.vertices.len() > 256 {
        return;
    }
    let probe = Probe::new(&graph, MatchOptions::default());
    let score = matching::score(&probe, data, &mut Scratch::default()).expect("a whole record");
    assert!(score >= 0.0, "a score is never NaN or negative: {score}");
}
