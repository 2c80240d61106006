//! ANSI/NIST-ITL files. `scripts/wsq_files.py` made the card.

use base::ErrorKind;
use image::{DynamicImage, GrayImage, ImageFormat};
use proptest::prelude::*;
use vision::{Format, Limits, NistCompression, decode, nist_file_of, nist_images};

use crate::files::encoded;

/// Records of type 2, 14 (WSQ, 48 x 40), 4 (bare, 24 x 20) and 14 (PNG, 33 x 21).
pub(crate) const CARD: &[u8] = include_bytes!("../data/wsq/card.an2");

/// Returns a record with tags, with its length.
fn tagged(record_type: u8, fields: &[(u32, &[u8])]) -> Vec<u8> {
    let mut body = Vec::new();
    for (number, value) in fields {
        body.extend(format!("\x1d{record_type}.{number:03}:").bytes());
        body.extend(*value);
    }
    body.push(0x1c);
    let head = format!("{record_type}.001:");
    let digits =
        (1..9).find(|digits| (head.len() + digits + body.len()).to_string().len() == *digits);
    let length = (head.len() + digits.unwrap() + body.len()).to_string();
    [head.as_bytes(), length.as_bytes(), &body].concat()
}

/// Returns a file of records with their types.
fn file(records: &[(u8, Vec<u8>)]) -> Vec<u8> {
    let mut contents = format!("1\x1f{}", records.len());
    for (index, (record_type, _)) in records.iter().enumerate() {
        contents.push_str(&format!("\x1e{record_type}\x1f{index:02}"));
    }
    let first = tagged(1, &[(2, b"0500"), (3, contents.as_bytes()), (12, b"19.69")]);
    records.iter().fold(first, |file, (_, record)| [&file[..], record].concat())
}

/// Returns a record of type 14 of 2 x 2 pixels.
fn print(compression: &str, data: &[u8]) -> (u8, Vec<u8>) {
    let fields: &[(u32, &[u8])] =
        &[(6, b"2"), (7, b"2"), (11, compression.as_bytes()), (12, b"8"), (13, b"4"), (999, data)];
    (14, tagged(14, fields))
}

#[test]
fn all_images_of_a_card() {
    let images = nist_images(CARD).unwrap();
    let seen: Vec<_> = images
        .iter()
        .map(|image| {
            let decoded = image.decode(&Limits::default()).unwrap();
            assert_eq!(decoded.format, Format::Nist);
            assert_eq!((image.width, image.height), (decoded.image.width, decoded.image.height));
            let header = image.header(&Limits::default()).unwrap();
            assert_eq!((image.width, image.height), (header.width, header.height));
            (
                image.record_type,
                image.fingers[0],
                image.width,
                decoded.dots_per_inch.map(f32::round),
            )
        })
        .collect();
    assert_eq!(
        seen,
        [(14, 2, 48, Some(500.0)), (4, 7, 24, Some(1000.0)), (14, 3, 33, Some(500.0))]
    );
    assert_eq!(images[0].compression, NistCompression::Wsq);
    assert_eq!(images[1].compression, NistCompression::Uncompressed);
}

#[test]
fn a_file_decodes_to_its_first_readable_image() {
    let decoded = decode(CARD, &Limits::default()).unwrap();
    assert_eq!((decoded.format, decoded.image.width, decoded.image.height), (Format::Nist, 48, 40));
    assert_eq!((Format::Nist.name(), decoded.dots_per_inch), ("nist", Some(500.0)));
    let wanted = [1, 2, 3, 0x1c];
    let two = file(&[print("JP2", b"\0\0\0\x0cjP"), print("NONE", &wanted)]);
    let decoded = decode(&two, &Limits::default()).unwrap();
    assert_eq!(decoded.image.gray().pixels, wanted);
    assert_eq!(decoded.dots_per_inch, None);
    let grey = GrayImage::from_raw(2, 2, vec![0, 90, 180, 255]).unwrap();
    let grey = DynamicImage::ImageLuma8(grey);
    for (compression, format) in [("JPEGB", ImageFormat::Jpeg), ("PNG", ImageFormat::Png)] {
        let one =
            file(&[(2, tagged(2, &[(2, b"00")])), print(compression, &encoded(&grey, format))]);
        let decoded = decode(&one, &Limits::default()).unwrap();
        assert!(decoded.image.gray().pixels[3] > 240, "{compression}");
    }
}

#[test]
fn unreadable_images_are_refused_with_the_reason() {
    let refused = |records: &[(u8, Vec<u8>)]| {
        let error = decode(&file(records), &Limits::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        error.message().to_owned()
    };
    assert!(refused(&[print("JP2", b"x")]).contains("JPEG 2000"));
    assert!(refused(&[print("JPEGL", b"x")]).contains("lossless JPEG"));
    assert!(refused(&[]).contains("no fingerprint image"));
    assert!(refused(&[(2, tagged(2, &[]))]).contains("no fingerprint image"));
    assert!(refused(&[print("NONE", b"12345")]).contains("2 x 2 pixels has 5 bytes"));
    assert!(refused(&[print("WSQ20", b"12345")]).contains("wsq"));
    assert!(refused(&[(14, tagged(13, &[]))]).contains("type 14"));
    // A file in a record cannot be such a file again.
    assert!(refused(&[print("WSQ20", CARD)]).contains("wsq"));
}

#[test]
fn every_truncation_of_a_card_is_refused() {
    for end in 7..CARD.len() {
        let error = decode(&CARD[..end], &Limits::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{end}: {error}");
    }
}

#[test]
fn an_image_becomes_a_file_of_its_own() {
    let images = nist_images(CARD).unwrap();
    let fingers: Vec<Option<u8>> = images.iter().map(|image| image.finger()).collect();
    assert_eq!(fingers, [Some(2), Some(7), Some(3)]);
    for image in &images {
        let one = nist_file_of(CARD, image).unwrap();
        let read = nist_images(&one).unwrap();
        assert_eq!(read, std::slice::from_ref(image));
        let limits = Limits::default();
        assert_eq!(decode(&one, &limits).unwrap(), image.decode(&limits).unwrap());
        // The record of type 2 has names of persons.
        assert!(!String::from_utf8_lossy(&one).contains("made-up text"));
        assert!(String::from_utf8_lossy(&one).contains("\x1d1.004:TEST\x1d"));
        // A file of one image stays as it is.
        assert_eq!(nist_file_of(&one, &read[0]).unwrap(), one);
    }
}

#[test]
fn a_file_of_one_image_does_not_repeat_long_heads() {
    let long = vec![b'x'; 10_000];
    let contents = b"1\x1f2\x1e14\x1f00\x1e14\x1f01";
    let first = tagged(1, &[(2, b"0500"), (4, &long[..]), (3, contents), (12, b"19.69")]);
    let records = [1, 2].map(|_| print("NONE", &[1, 2, 3, 4]).1).concat();
    let all = [first, records].concat();
    let images = nist_images(&all).unwrap();
    assert_eq!(images.len(), 2);
    let one = nist_file_of(&all, &images[1]).unwrap();
    assert!(one.len() < 1000, "{}", one.len());
    assert_eq!(nist_images(&one).unwrap(), [images[1].clone()]);
}

#[test]
fn images_of_several_fingers_are_slaps() {
    let cases: [(&[u8], Option<u8>, bool); 6] = [
        (b"0", None, false),
        (b"10", Some(10), false),
        (b"11", Some(1), false),
        (b"12", Some(6), false),
        (b"13", None, true),
        (b"1\x1e6", None, false),
    ];
    for (positions, finger, is_slap) in cases {
        let fields: &[(u32, &[u8])] = &[(6, b"1"), (7, b"1"), (13, positions), (999, b"x")];
        let file = file(&[(14, tagged(14, fields))]);
        let images = nist_images(&file).unwrap();
        assert_eq!((images[0].finger(), images[0].is_slap()), (finger, is_slap), "{positions:?}");
    }
}

#[test]
fn records_are_bounded_in_number() {
    let empty = |count| file(&vec![(8, vec![0, 0, 0, 5, 1]); count]);
    assert_eq!(nist_images(&empty(1000)).unwrap(), []);
    assert!(nist_images(&empty(1001)).unwrap_err().message().contains("1000 records"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_damage_gives_an_error_or_a_list(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        early in any::<bool>(),
        tail in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut file = CARD.to_vec();
        for (at, byte) in changes {
            // Most of the bytes are pixels.
            let at = at.index(if early { 200 } else { file.len() });
            file[at] = byte;
        }
        for file in [&file[..], &[b"1.001:20\x1d1.003:1\x1f9\x1e", &tail[..]].concat()] {
            let limits = Limits { pixels_max: 1 << 16, ..Limits::default() };
            if let Err(error) = decode(file, &limits) {
                // The message of a panic.
                prop_assert!(error.message() != "this image is damaged");
            }
            for image in nist_images(file).unwrap_or_default() {
                let header = image.header(&limits);
                if let Ok(decoded) = image.decode(&limits) {
                    let header = header.unwrap();
                    let found = (decoded.image.width, decoded.image.height);
                    prop_assert_eq!(found, (header.width, header.height));
                }
            }
        }
    }
}
