//! WSQ files against the pixels of NIST's decoder. `scripts/wsq_files.py` made both.

use base::ErrorKind;
use image::GrayImage;
use proptest::prelude::*;
use vision::{Format, Header, Limits, decode, decode_bytes};

/// A file, and its pixels decoded by NIST's decoder.
struct Sample {
    name: &'static str,
    file: &'static [u8],
    expected: &'static [u8],
    dots_per_inch: f32,
}

macro_rules! sample {
    ($name:literal, $dots_per_inch:literal) => {
        Sample {
            name: $name,
            file: include_bytes!(concat!("../data/wsq/", $name, ".wsq")),
            expected: include_bytes!(concat!("../data/wsq/", $name, ".png")),
            dots_per_inch: $dots_per_inch,
        }
    };
}

/// Of NIST's encoder; of finer quantisation; of filters of even length; with restarts.
const SAMPLES: [Sample; 4] = [
    sample!("nist-107x131", 500.0),
    sample!("fine-121x98", 1000.0),
    sample!("even-taps-110x97", 500.0),
    sample!("restarts-100x97", 500.0),
];
/// Share of pixels that may differ by one level, because sums have another order.
const DIFFERENT_MAX: f64 = 0.002;

fn grey(file: &[u8]) -> vision::Decoded {
    let decoded = decode(file, &Limits::default()).unwrap();
    assert!(decoded.image.rgb.as_chunks::<3>().0.iter().all(|[r, g, b]| r == g && g == b));
    decoded
}

#[test]
fn pixels_are_those_of_the_reference_decoder() {
    for Sample { name, file, expected, dots_per_inch } in SAMPLES {
        let decoded = grey(file);
        assert_eq!((decoded.format, decoded.orientation), (Format::Wsq, 1), "{name}");
        assert_eq!(decoded.dots_per_inch, Some(dots_per_inch), "{name}");
        let expected = image::load_from_memory(expected).unwrap().into_luma8();
        assert_eq!((decoded.image.width, decoded.image.height), expected.dimensions(), "{name}");
        let found = decoded.image.gray().pixels;
        let far = found.iter().zip(expected.iter()).map(|(&a, &b)| a.abs_diff(b));
        let different = far.filter(|&by| by > 0).inspect(|&by| assert_eq!(by, 1, "{name}")).count();
        let share = different as f64 / found.len() as f64;
        assert!(share <= DIFFERENT_MAX, "{name}: {share}");
    }
}

/// Returns the file with its frame header's height and width replaced.
fn claiming(file: &[u8], width: u16, height: u16) -> Vec<u8> {
    let mut file = file.to_vec();
    let frame = file.windows(4).position(|bytes| bytes == [0xff, 0xa2, 0, 17]).unwrap();
    file[frame + 6..frame + 8].copy_from_slice(&height.to_be_bytes());
    file[frame + 8..frame + 10].copy_from_slice(&width.to_be_bytes());
    file
}

fn refusal(file: &[u8]) -> (ErrorKind, String) {
    let error = decode(file, &Limits::default()).unwrap_err();
    (error.kind(), error.message().to_owned())
}

#[test]
fn sizes_that_disagree_with_the_data_are_refused() {
    let file = SAMPLES[0].file;
    let bound = decode_bytes(file, &Limits::default()).unwrap();
    assert!(bound >= 107 * 131 * 9, "{bound}");
    assert_eq!(refusal(&claiming(file, 65_535, 65_535)).0, ErrorKind::TooLarge);
    for (width, height, wanted) in
        [(0, 131, "no pixels"), (107, 132, "ends early"), (50, 50, "more coefficients")]
    {
        let (kind, message) = refusal(&claiming(file, width, height));
        assert_eq!(kind, ErrorKind::InvalidArgument);
        assert!(message.contains(wanted), "{message}");
    }
}

#[test]
fn every_truncation_is_refused() {
    for Sample { name, file, .. } in SAMPLES {
        // Sniffing needs four bytes.
        for end in (4..file.len()).step_by(if cfg!(debug_assertions) { 7 } else { 1 }) {
            let (kind, message) = refusal(&file[..end]);
            assert_eq!(kind, ErrorKind::InvalidArgument, "{name} at {end}");
            assert!(message.contains("ends early"), "{name} at {end}: {message}");
        }
        let (_, message) = refusal(&file[..file.len() - 2]);
        assert!(message.contains("send all of it"), "{message}");
    }
}

#[test]
fn a_file_without_a_table_is_refused() {
    let file = SAMPLES[1].file;
    for (marker, wanted) in [
        (0xa2, "frame header"),
        (0xa4, "transform table"),
        (0xa5, "quantisation table"),
        (0xa6, "Huffman table"),
    ] {
        let mut file = file.to_vec();
        while let Some(at) = file.windows(2).position(|bytes| bytes == [0xff, marker]) {
            let length = usize::from(u16::from_be_bytes([file[at + 2], file[at + 3]]));
            file.drain(at..at + 2 + length);
        }
        let (kind, message) = refusal(&file);
        assert_eq!(kind, ErrorKind::InvalidArgument);
        assert!(message.contains(wanted), "{message}");
    }
    let unknown = [&file[..2], &[0xff, 0xa9, 0, 2], &file[2..]].concat();
    assert_eq!(
        decode(&unknown, &Limits::default()).unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );
}

/// Returns a file without coded subbands: an image of the level 100, which its frame header has.
pub(crate) fn flat(width: u16, height: u16) -> Vec<u8> {
    let quantizer = [&[0xff, 0xa5, 1, 133, 2, 0, 44][..], &[0; 384]].concat();
    let taps = [0, 1, 0, 0, 0, 10].repeat(2);
    [
        &[0xff, 0xa0, 0xff, 0xa4, 0, 16, 1, 1][..],
        &taps,
        &quantizer,
        &[0xff, 0xa2, 0, 17, 0, 255],
        &height.to_be_bytes(),
        &width.to_be_bytes(),
        &[1, 3, 232, 0, 0, 1, 0, 0, 0],
        &[0xff, 0xa6, 0, 20, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 180],
        &[0xff, 0xa3, 0, 3, 0, 0xff, 0xa1],
    ]
    .concat()
}

#[test]
fn flat_and_tiny_images() {
    for (width, height) in [(1, 1), (1, 9), (2, 3), (31, 33), (200, 100)] {
        let image = grey(&flat(width, height)).image;
        let expected = GrayImage::from_pixel(width.into(), height.into(), image::Luma([100]));
        assert_eq!(image.gray().pixels, expected.into_raw(), "{width} x {height}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_damage_gives_an_error_or_an_image_of_the_announced_size(
        which in 0..SAMPLES.len(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut file = SAMPLES[which].file.to_vec();
        for (at, byte) in changes {
            let at = at.index(file.len());
            file[at] = byte;
        }
        file.truncate(cut.map_or(file.len(), |at| at.index(file.len())));
        let limits = Limits { pixels_max: 1 << 16, ..Limits::default() };
        let header = Header::read(&file, &limits);
        match decode(&file, &limits) {
            Ok(decoded) => {
                let header = header.unwrap();
                let image = decoded.image;
                prop_assert_eq!((image.width, image.height), (header.width, header.height));
                prop_assert_eq!(image.rgb.len() as u32, 3 * header.width * header.height);
            }
            Err(error) => {
                let refused = [ErrorKind::InvalidArgument, ErrorKind::TooLarge];
                prop_assert!(refused.contains(&error.kind()), "{error}");
                // The message of a panic.
                prop_assert!(error.message() != "this image is damaged");
            }
        }
    }
}
