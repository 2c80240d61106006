//! Memory: decoding allocates at most the bound of the header, for any contents of the file.

use base::{ErrorKind, Result};
use flate2::{Compress, Compression, FlushCompress};
use image::{DynamicImage, ImageFormat};
use tikv_jemalloc_ctl::thread::allocatedp;
use vision::{
    Decoded, Fit, Image, Limits, Preprocess, decode, decode_bytes, photo, thumbnail,
    thumbnail_bytes,
};

use crate::files::{Tiff, chunk, corners, crc32, encoded, jpeg, turned, u24};

/// Bytes that a decoder may allocate and free beside its bound: small buffers, several times.
const SMALL: u64 = 4 << 20;

/// Returns the result of `work` and the bytes that it allocated, freed or not.
fn spent<T>(work: impl FnOnce() -> T) -> (T, u64) {
    let before = allocatedp::read().unwrap().get();
    let value = work();
    (value, allocatedp::read().unwrap().get() - before)
}

/// Decodes, and checks that all allocations together are at most twice the bound of those held at
/// once.
#[track_caller]
fn bounded(what: &str, file: &[u8]) -> Result<Decoded> {
    let limits = Limits::default();
    let (bound, spent_on_header) = spent(|| decode_bytes(file, &limits));
    assert!(
        spent_on_header < SMALL + 2 * file.len() as u64,
        "{what}: the header took {spent_on_header}"
    );
    let (decoded, spent) = spent(|| decode(file, &limits));
    let bound = bound.unwrap_or(0).max(file.len() as u64);
    assert!(spent <= 2 * bound + SMALL, "{what}: {spent} bytes, {bound} announced");
    assert!(spent <= limits.bytes_max * 3, "{what}: {spent} bytes");
    decoded
}

/// Returns a zlib stream of 4 MB that inflates to 4 GB of zeros.
fn bomb() -> Vec<u8> {
    let mut deflate = Compress::new(Compression::best(), false);
    let mut block = Vec::with_capacity(1 << 20);
    deflate.compress_vec(&vec![0; 16 << 20], &mut block, FlushCompress::Full).unwrap();
    let blocks = (4 << 30) / (16 << 20);
    [&[0x78, 0x01][..], &block.repeat(blocks), &[3, 0]].concat()
}

fn png_chunk(kind: &[u8; 4], data: &[u8]) -> Vec<u8> {
    let body = [&kind[..], data].concat();
    [&(data.len() as u32).to_be_bytes()[..], &body, &crc32(&body).to_be_bytes()].concat()
}

#[test]
fn png_metadata_is_not_unpacked() {
    let file = encoded(&DynamicImage::ImageRgb8(corners(32, 24)), ImageFormat::Png);
    let bomb = bomb();
    assert!((3 << 20..8 << 20).contains(&bomb.len()), "{}", bomb.len());
    let chunks = [
        (b"iCCP", [b"profile\0\0", &bomb[..]].concat()),
        (b"zTXt", [b"Raw profile type iptc\0\0", &bomb[..]].concat()),
        (b"iTXt", [b"XML:com.adobe.xmp\0\x01\0\0\0", &bomb[..]].concat()),
        (b"tEXt", [b"Comment\0", &vec![b'x'; 4 << 20][..]].concat()),
        (b"eXIf", vec![0; 4 << 20]),
        (b"juNk", vec![7; 4 << 20]),
    ];
    let plain = decode(&file, &Limits::default()).unwrap();
    for (kind, data) in chunks {
        let name = String::from_utf8_lossy(kind).into_owned();
        let chunk = png_chunk(kind, &data);
        // After the header of 25 bytes, and after the pixels, before the end of 12 bytes.
        for at in [33, file.len() - 12] {
            let held = [&file[..at], &chunk, &file[at..]].concat();
            assert_eq!(bounded(&name, &held).unwrap().image, plain.image, "{name} at {at}");
        }
    }
    // Kept: transparency of a palette's colours is in a chunk, and so is the
    // orientation.
    let exif = Tiff { entries: vec![(274, 3, vec![3])], dots: None }.file(&[]);
    let held = [&file[..33], &png_chunk(b"eXIf", &exif), &file[33..]].concat();
    assert_eq!(bounded("orientation", &held).unwrap().orientation, 3);
}

#[test]
fn false_claims_of_a_webp_allocate_nothing() {
    let still = encoded(&DynamicImage::ImageRgb8(corners(16, 16)), ImageFormat::WebP);
    let extended = |flags: u8, chunks: &[u8]| {
        let canvas = [&[flags, 0, 0, 0][..], &u24(15), &u24(15)].concat();
        chunk(b"RIFF", &[b"WEBP", &chunk(b"VP8X", &canvas)[..], chunks].concat())
    };
    // EXIF data of 4 GB.
    let exif = [&still[12..], b"EXIF\xf0\xff\xff\xff", b"II*\0"].concat();
    assert_eq!(bounded("exif", &extended(8, &exif)).unwrap().orientation, 1);
    let turned = Tiff { entries: vec![(274, 3, vec![6])], dots: None }.file(&[]);
    let turned = [&still[12..], &chunk(b"EXIF", &turned)].concat();
    assert_eq!(bounded("orientation", &extended(8, &turned)).unwrap().orientation, 6);
    // A profile of 4 MB.
    let profile = [&chunk(b"ICCP", &vec![1; 4 << 20]), &still[12..]].concat();
    assert!(bounded("profile", &extended(0x20, &profile)).is_ok());
    // A frame of 16,383 x 16,383 on a canvas of 16 x 16.
    let frame = [&[0x10, 0, 0, 0x9d, 0x01, 0x2a, 0xff, 0x3f, 0xff, 0x3f][..], &[0; 64]].concat();
    let frame = chunk(b"VP8 ", &frame);
    assert_eq!(
        bounded("frame", &extended(0, &frame)).unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );
    let animation =
        [&chunk(b"ANIM", &[0; 6])[..], &chunk(b"ANMF", &[&[0; 16][..], &frame].concat())].concat();
    assert_eq!(
        bounded("animation", &extended(2, &animation)).unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );
}

#[test]
fn false_claims_of_a_tiff_allocate_nothing() {
    // Values that would lie beyond the file.
    let mut file = Tiff::of(8, 8, &[8; 3], 2).file(&[7; 192]);
    let entry = file.windows(4).position(|window| window == [2, 1, 3, 0]).unwrap();
    file[entry + 4..entry + 8].copy_from_slice(&(16_u32 << 20).to_le_bytes());
    let refused = bounded("count", &file).unwrap_err().kind();
    assert!(matches!(refused, ErrorKind::InvalidArgument | ErrorKind::TooLarge), "{refused:?}");
    // A strip that is a JPEG file of its own, of another size.
    let mut strip = jpeg(&corners(16, 16));
    let frame = strip.windows(2).position(|pair| pair == [0xff, 0xc0]).unwrap();
    strip[frame + 5..frame + 9].copy_from_slice(&[0x3f, 0xff, 0x3f, 0xff]);
    let mut file = Tiff::of(16, 16, &[8; 3], 6);
    file.entries.retain(|entry| entry.0 != 259);
    let file = file.with(259, 3, vec![7]).file(&strip);
    assert_eq!(bounded("strip", &file).unwrap_err().kind(), ErrorKind::TooLarge);
    // A colour profile and a text of 4 MB.
    let file =
        Tiff::of(8, 8, &[8; 3], 2).with(34_675, 4, vec![1; 1 << 20]).with(700, 4, vec![1; 1 << 20]);
    assert!(bounded("profile", &file.file(&[7; 192])).is_ok());
}

/// Returns a TIFF file of `count` strips that are all the same JPEG file.
fn overlapping(count: u32, strip: &[u8]) -> Vec<u8> {
    let mut file = Tiff::of(16, count, &[8; 3], 6);
    file.entries.retain(|entry| entry.0 != 259 && entry.0 != 278);
    let file = file
        .with(259, 3, vec![7])
        .with(278, 4, vec![1])
        .with(273, 4, vec![8; count as usize])
        .with(279, 4, vec![strip.len() as u32; count as usize]);
    file.written(file.entries.clone(), strip)
}

#[test]
fn strips_of_a_tiff_that_overlap_are_refused() {
    let bound = |file: &[u8]| decode_bytes(file, &Limits::default()).map_err(|error| error.kind());
    let small = jpeg(&corners(16, 16));
    assert!(bound(&overlapping(4, &small)).is_ok());
    // The bytes of the strips are read again and again.
    assert_eq!(bound(&overlapping(200, &small)), Err(ErrorKind::TooLarge));
    // Each strip is an image of 8,000 x 8,000 pixels, of which one row is used.
    let mut large = small;
    let frame = large.windows(2).position(|pair| pair == [0xff, 0xc0]).unwrap();
    large[frame + 5..frame + 9].copy_from_slice(&[0x1f, 0x40, 0x1f, 0x40]);
    assert!(bound(&overlapping(8, &large)).is_ok());
    assert_eq!(bound(&overlapping(9, &large)), Err(ErrorKind::TooLarge));
}

#[test]
fn a_jpeg_s_segments_and_scans_are_within_the_bound() {
    let file = jpeg(&corners(64, 48));
    for marker in [0xe1, 0xe2, 0xed, 0xfe] {
        let body = [b"ICC_PROFILE\0\x01\x01", &vec![5; 65_000][..]].concat();
        let length = (body.len() as u16 + 2).to_be_bytes();
        let segment = [&[0xff, marker][..], &length, &body].concat();
        let held = [&file[..2], &segment.repeat(60), &file[2..]].concat();
        assert!(bounded("segments", &held).is_ok(), "{marker:x}");
    }
    // A progressive file keeps all coefficients: here it announces 7,000 x 7,000 of them, and has
    // none.
    let mut claims = file;
    let frame = claims.windows(2).position(|pair| pair == [0xff, 0xc0]).unwrap();
    claims[frame + 1] = 0xc2;
    claims[frame + 5..frame + 9].copy_from_slice(&[0x1b, 0x58, 0x1b, 0x58]);
    let bound = decode_bytes(&claims, &Limits::default()).unwrap();
    assert!(bound >= 7000 * 7000 * (3 + 2), "{bound}");
    drop(bounded("progressive", &claims));
}

#[test]
fn the_bound_of_a_header_holds_for_every_format_and_depth() {
    let image = DynamicImage::ImageRgb8(corners(1000, 700));
    let deep = [
        image.clone(),
        DynamicImage::ImageLuma8(image.to_luma8()),
        DynamicImage::ImageLumaA8(image.to_luma_alpha8()),
        DynamicImage::ImageRgba8(image.to_rgba8()),
        DynamicImage::ImageLuma16(image.to_luma16()),
        DynamicImage::ImageRgb16(image.to_rgb16()),
        DynamicImage::ImageRgba16(image.to_rgba16()),
    ];
    for image in &deep {
        for format in [ImageFormat::Png, ImageFormat::Tiff, ImageFormat::Bmp, ImageFormat::WebP] {
            let mut file = std::io::Cursor::new(Vec::new());
            if image.write_to(&mut file, format).is_err() {
                continue;
            }
            bounded(&format!("{format:?} {:?}", image.color()), &file.into_inner()).unwrap();
        }
    }
    bounded("wsq", &crate::wsq::flat(1000, 700)).unwrap();
    bounded("nist", crate::nist::CARD).unwrap();
    let floats = DynamicImage::ImageRgb32F(image.to_rgb32f());
    bounded("floats", &encoded(&floats, ImageFormat::Tiff)).unwrap();
    bounded("turned", &turned(&image.to_rgb8(), 6, 72)).unwrap();
}

#[test]
fn keypoints_of_a_large_image_are_within_the_bound_of_decoding() {
    let file = encoded(&DynamicImage::ImageRgb8(corners(4000, 3000)), ImageFormat::Png);
    let bound = decode_bytes(&file, &Limits::default()).unwrap();
    let gray = decode(&file, &Limits::default()).unwrap().image.gray();
    let (_, spent) = spent(|| photo::keypoints(&gray, &photo::KeypointOptions::default()));
    assert!(spent <= 2 * bound, "{spent} bytes, {bound} announced");
}

#[test]
fn the_input_of_a_model_is_within_its_bound() {
    for fit in [Fit::Stretch, Fit::CentreCrop, Fit::Pad] {
        let format = Preprocess { fit, ..Preprocess::default() };
        for (width, height) in [(5000, 2), (2, 5000), (300, 200)] {
            let image = Image { width, height, rgb: vec![9; (3 * width * height) as usize] };
            let mut input = vec![0.0; format.len()];
            let (written, spent) = spent(|| format.write(&image, &mut input));
            written.unwrap();
            let bound = format.work_bytes(width, height);
            assert_eq!(bound, format.work_bytes(height, width));
            assert!(
                // In the allocator's size classes.
                spent <= 2 * bound,
                "{fit:?} {width}: {spent} bytes, {bound} announced"
            );
        }
    }
}

#[test]
fn a_thumbnail_is_within_its_bound() {
    for (width, height) in [(700, 600), (5000, 20), (20, 5000)] {
        let image = Image { width, height, rgb: vec![9; (3 * width * height) as usize] };
        let bound = thumbnail_bytes(&image, 500);
        let (made, spent) = spent(|| thumbnail(&image, 500));
        made.unwrap();
        // In the allocator's size classes, with the tables of the encoder.
        assert!(spent <= 2 * bound + (1 << 20), "{width}: {spent} bytes, {bound} announced");
    }
}

#[test]
fn an_image_above_the_limits_is_refused_by_its_header() {
    let file = crate::files::claiming(10_000, 10_000);
    let (refused, spent) = spent(|| decode_bytes(&file, &Limits::default()));
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::TooLarge);
    assert!(spent < 1 << 16, "{spent}");
    assert_eq!(
        decode_bytes(b"hello", &Limits::default()).unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );
}

#[test]
fn minutiae_are_found_within_their_bound() {
    let images = [(1000, 500.0, 0), (500, 250.0, 0), (2000, 1000.0, 0), (1000, 500.0, 500)];
    for (side, dots_per_inch, padding) in images {
        let wave = |at: u32| {
            // Columns of padding, whose mask needs memory too.
            if at % side < padding {
                return 255;
            }
            (128.0 + 100.0 * ((at / side) as f32 * 500.0 / dots_per_inch * 0.7).cos()) as u8
        };
        let gray = vision::Gray {
            width: side,
            height: side,
            pixels: (0..side * side).map(wave).collect(),
        };
        let options = vision::fingerprint::MinutiaeOptions { dots_per_inch };
        let (_, spent) = spent(|| vision::fingerprint::minutiae(&gray, &options));
        let bound = vision::fingerprint::work_bytes(side, side, &options);
        // All allocations together, in the allocator's size classes, and the filters, which are
        // made once.
        assert!(spent <= 2 * bound + SMALL, "{side}: {spent} bytes, {bound} announced");
    }
}
