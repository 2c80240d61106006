//! Recordings, images and fingerprint templates.

use std::io::{Cursor, Write};

use audio::decode::{AudioInput, CHANNELS_MAX, Decoder};
use matching::{Graph, MatchOptions, Probe, Scratch, iso, template};
use vision::{Format, Header, Limits};

use crate::bounded;

/// Blocks to read of a recording: enough to reach every state of a codec, few enough for thousands
/// of runs a minute.
const BLOCKS_MAX: usize = 64;
/// Maximum pixels of an image. Larger ones are refused by their header, as in the server.
const PIXELS_MAX: u64 = 1 << 20;
/// Bytes of an image's pixels and of a decoder's copies of them.
const IMAGE_BYTES: usize = 8 << 20;
/// Images of an ANSI/NIST-ITL file that are decoded.
const IMAGES_MAX: usize = 4;

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
        assert!(block.samples.iter().all(|sample| sample.is_finite()), "a sample is not a number");
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
    let limits = limits();
    let formats = [
        Format::Jpeg,
        Format::Png,
        Format::WebP,
        Format::Tiff,
        Format::Bmp,
        Format::Wsq,
        Format::Nist,
    ];
    for format in formats {
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

fn limits() -> Limits {
    Limits { pixels_max: PIXELS_MAX, side_max: 65_535, bytes_max: IMAGE_BYTES as u64 }
}

/// Fuzzes WSQ files. Other bytes get the first four of such a file.
///
/// Asserts that the decoder does not panic, and that an image has the size that its header
/// announces.
pub fn wsq_decode(data: &[u8]) {
    let mut file = vec![0xff, 0xa0, 0xff, 0xa8];
    file.extend(data.get(4..).unwrap_or_default());
    if Format::sniff(data) == Some(Format::Wsq) {
        file = data.to_vec();
    }
    let header = bounded(data, 0, || Header::read(&file, &limits()));
    // Two planes of coefficients, the grey levels, and the 8-bit pixels.
    let decoded = match bounded(data, 4 * IMAGE_BYTES, || vision::decode(&file, &limits())) {
        Ok(decoded) => decoded,
        // The message of a panic, which leaves no decoder.
        Err(error) => return assert_ne!(error.message(), "this image is damaged"),
    };
    let header = header.expect("the header of a decoded image");
    assert_eq!(
        (decoded.image.width, decoded.image.height, decoded.format),
        (header.width, header.height, Format::Wsq)
    );
}

/// Fuzzes ANSI/NIST-ITL files: the list of images, and each image.
///
/// Asserts that the data of an image lie in the file, that the file of one image has these data,
/// and that a decoded image has the size that its header announces.
pub fn nist_parse(data: &[u8]) {
    let Ok(images) = bounded(data, 0, || vision::nist_images(data)) else { return };
    assert!(images.iter().map(|image| image.data.len()).sum::<usize>() <= data.len());
    for image in images.iter().take(IMAGES_MAX) {
        let one = vision::nist_file_of(data, image).expect("the file of a listed image");
        let read = vision::nist_images(&one).expect("the images of such a file");
        assert_eq!(read.iter().map(|read| read.data).collect::<Vec<_>>(), [image.data]);
        let header = bounded(data, 0, || image.header(&limits()));
        let Ok(decoded) = bounded(data, 4 * IMAGE_BYTES, || image.decode(&limits())) else {
            continue;
        };
        let header = header.expect("the header of a decoded image");
        let stored = [header.width, header.height];
        let upright = [decoded.image.width, decoded.image.height];
        // A JPEG file in a record may be turned by its EXIF data.
        assert!(upright == stored || upright == [stored[1], stored[0]]);
        assert_eq!(decoded.format, Format::Nist);
    }
}

/// Fuzzes ISO/IEC 19794-2 templates and graph records: parses, writes, parses again, and scores.
pub fn iso_template(data: &[u8]) {
    let views = bounded(data, 0, || template::views(data)).unwrap_or_default();
    for view in views.iter().take(IMAGES_MAX) {
        if let Ok(one) = template::one_view(data, view) {
            let read = template::read(&one).expect("the view of such a template");
            assert_eq!(read, std::slice::from_ref(&view.graph));
        }
    }
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
