//! Decoding of every kind of file, and of damaged files.

use std::io::Write;

use base::ErrorKind;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use image::{DynamicImage, ImageFormat, RgbImage};
use proptest::prelude::*;
use vision::{Format, Limits, decode};

use crate::files::{Tiff, animated, claiming, corners, encoded, jpeg, turned};

fn decoded(file: &[u8]) -> vision::Decoded {
    decode(file, &Limits::default()).unwrap()
}

/// Returns the colours of the four corners' middles, each to the nearest of three levels.
fn seen(file: &[u8]) -> [[u8; 3]; 4] {
    let image = decoded(file).image;
    let (width, height) = (image.width, image.height);
    assert_eq!(image.rgb.len() as u32, 3 * width * height);
    [(1, 1), (3, 1), (1, 3), (3, 3)].map(|(x, y)| {
        let at = 3 * ((height * y / 4) * width + width * x / 4) as usize;
        std::array::from_fn(|channel| {
            ((u32::from(image.rgb[at + channel]) + 64) / 128 * 128).min(255) as u8
        })
    })
}

const RED: [u8; 3] = [255, 0, 0];
const BLACK: [u8; 3] = [0, 0, 0];
const GREEN: [u8; 3] = [0, 255, 0];
const BLUE: [u8; 3] = [0, 0, 255];
const UPRIGHT: [[u8; 3]; 4] = [RED, BLACK, GREEN, BLUE];

#[test]
fn every_format_and_depth_becomes_the_same_image() {
    let image = DynamicImage::ImageRgb8(corners(32, 24));
    let formats = [
        (ImageFormat::Png, Format::Png),
        (ImageFormat::WebP, Format::WebP),
        (ImageFormat::Tiff, Format::Tiff),
        (ImageFormat::Bmp, Format::Bmp),
    ];
    for (format, wanted) in formats {
        let file = encoded(&image, format);
        assert_eq!((decoded(&file).format, Format::sniff(&file)), (wanted, Some(wanted)));
        assert_eq!(seen(&file), UPRIGHT, "{wanted:?}");
    }
    assert_eq!(seen(&jpeg(&corners(32, 24))), UPRIGHT);
    for deep in
        [DynamicImage::ImageRgb16(image.to_rgb16()), DynamicImage::ImageRgba16(image.to_rgba16())]
    {
        for format in [ImageFormat::Png, ImageFormat::Tiff] {
            assert_eq!(seen(&encoded(&deep, format)), UPRIGHT, "{format:?}");
        }
    }
    let grey =
        decoded(&encoded(&DynamicImage::ImageLuma16(image.to_luma16()), ImageFormat::Png)).image;
    assert!(grey.rgb.as_chunks::<3>().0.iter().all(|[r, g, b]| r == g && g == b));
    let floats = DynamicImage::ImageRgb32F(image.to_rgb32f());
    assert_eq!(seen(&encoded(&floats, ImageFormat::Tiff)), UPRIGHT);
}

#[test]
fn transparency_becomes_white() {
    let image = image::RgbaImage::from_fn(8, 8, |x, _| {
        image::Rgba(if x < 4 { [0, 0, 0, 0] } else { [0, 0, 0, 255] })
    });
    for format in [ImageFormat::Png, ImageFormat::WebP] {
        let [left, right, ..] = seen(&encoded(&DynamicImage::ImageRgba8(image.clone()), format));
        assert_eq!((left, right), ([255; 3], BLACK));
    }
    let half = image::RgbaImage::from_pixel(2, 2, image::Rgba([0, 100, 200, 128]));
    let image = decoded(&encoded(&DynamicImage::ImageRgba8(half), ImageFormat::Png)).image;
    assert_eq!(image.rgb[..3], [127, 177, 227]);
}

#[test]
fn a_bitmap_that_is_all_transparent_has_its_colours() {
    let mut image = DynamicImage::ImageRgb8(corners(8, 8)).to_rgba8();
    image.pixels_mut().for_each(|pixel| pixel.0[3] = 0);
    let file = |image: &image::RgbaImage| {
        encoded(&DynamicImage::ImageRgba8(image.clone()), ImageFormat::Bmp)
    };
    assert_eq!(seen(&file(&image)), UPRIGHT);
    // One pixel shows that the transparency is meant.
    image.get_pixel_mut(0, 0).0[3] = 255;
    assert_eq!(seen(&file(&image)), [[255; 3]; 4]);
}

#[test]
fn exif_orientation_is_undone() {
    // An upright image as stored with each orientation: EXIF 2.32, 4.6.4,
    // tag 0x0112.
    let upright = DynamicImage::ImageRgb8(corners(40, 24));
    let stored = [
        upright.clone(),
        upright.fliph(),
        upright.rotate180(),
        upright.flipv(),
        upright.rotate90().fliph(),
        upright.rotate270(),
        upright.rotate90().flipv(),
        upright.rotate90(),
    ];
    for (orientation, stored) in (1..).zip(stored) {
        let file = turned(&stored.to_rgb8(), orientation, 300);
        let decoded = decoded(&file);
        assert_eq!(u16::from(decoded.orientation), orientation);
        assert_eq!((decoded.image.width, decoded.image.height), (40, 24), "{orientation}");
        assert_eq!(seen(&file), UPRIGHT, "{orientation}");
        assert_eq!(decoded.dots_per_inch, Some(300.0));
    }
    assert_eq!(decoded(&turned(&corners(8, 8), 99, 5)).orientation, 1, "no such orientation");
}

fn by_corner(pixel: impl Fn(usize) -> Vec<u8>) -> Vec<u8> {
    (0..8 * 8)
        .flat_map(|at| pixel(usize::from(at % 8 >= 4) + 2 * usize::from(at / 8 >= 4)))
        .collect()
}

#[test]
fn tiff_files_of_printers_scanners_and_old_programs() {
    let inks = [[0, 255, 255, 0], [0, 0, 0, 255], [255, 0, 255, 0], [255, 255, 0, 0]];
    let cmyk = Tiff::of(8, 8, &[8; 4], 5).file(&by_corner(|corner| inks[corner].to_vec()));
    assert_eq!(seen(&cmyk), UPRIGHT);
    let mut map = vec![0; 3 * 256];
    for (colour, [red, green, blue]) in UPRIGHT.into_iter().enumerate() {
        [map[colour], map[256 + colour], map[512 + colour]] =
            [red, green, blue].map(|level| u32::from(level) * 257);
    }
    let palette = Tiff::of(8, 8, &[8], 3)
        .with(320, 3, map.clone())
        .file(&by_corner(|corner| vec![corner as u8]));
    assert_eq!(seen(&palette), UPRIGHT);
    let levels = map.iter().map(|level| level / 257).collect();
    let old = Tiff::of(8, 8, &[8], 3).with(320, 3, levels);
    assert_eq!(seen(&old.file(&by_corner(|corner| vec![corner as u8]))), UPRIGHT);
    let small: Vec<u32> =
        (0..3).flat_map(|plane| map[plane * 256..plane * 256 + 16].to_vec()).collect();
    let nibbles: Vec<u8> = by_corner(|corner| vec![corner as u8])
        .chunks(2)
        .map(|two| (two[0] << 4) | two[1])
        .collect();
    let palette = Tiff::of(8, 8, &[4], 3).with(320, 3, small).file(&nibbles);
    assert_eq!(seen(&palette), UPRIGHT);
    let white_is_zero = Tiff::of(8, 8, &[4], 0).file(&[0xf0; 32]);
    assert_eq!(decoded(&white_is_zero).image.rgb[..6], [0, 0, 0, 255, 255, 255]);
    let two = decoded(&Tiff::of(8, 8, &[2], 0).file(&[0b11_00_10_01; 16])).image.rgb;
    assert_eq!([two[0], two[3], two[6], two[9]], [0, 255, 85, 170]);
    let grey = Tiff::of(8, 8, &[4], 1).file(&[0xf0; 32]);
    assert_eq!(decoded(&grey).image.rgb[..6], [255, 255, 255, 0, 0, 0]);
    let scan = Tiff { dots: Some(500), ..Tiff::of(8, 8, &[8], 1) }.with(274, 3, vec![3]);
    let scan = decoded(&scan.file(&by_corner(|corner| vec![corner as u8 * 80])));
    assert_eq!((scan.dots_per_inch, scan.orientation), (Some(500.0), 3));
    assert_eq!((scan.image.rgb[0], scan.image.rgb[3 * 63]), (240, 0));
}

#[test]
fn extra_samples_of_a_tiff_keep_its_colours() {
    // Red, green, blue and a mask, each less the sample of the pixel before, as Photoshop writes.
    let file = |extra: &[u32]| {
        let mut rows =
            by_corner(|corner| [&UPRIGHT[corner][..], &vec![9; extra.len()][..]].concat());
        let samples = 3 + extra.len();
        for row in rows.chunks_mut(8 * samples) {
            for at in (samples..row.len()).rev() {
                row[at] = row[at].wrapping_sub(row[at - samples]);
            }
        }
        let mut packed = ZlibEncoder::new(Vec::new(), Compression::default());
        packed.write_all(&rows).unwrap();
        let mut tiff = Tiff::of(8, 8, &vec![8; samples], 2);
        tiff.entries.retain(|entry| entry.0 != 259);
        let tiff = tiff.with(259, 3, vec![8]).with(317, 3, vec![2]).with(338, 3, extra.to_vec());
        tiff.file(&packed.finish().unwrap())
    };
    assert_eq!(seen(&file(&[0])), UPRIGHT);
    let error = decode(&file(&[0, 0]), &Limits::default()).unwrap_err();
    assert!(error.message().contains("extra channels"), "{error}");
    // Half transparent red, whose levels were multiplied by alpha.
    let half = Tiff::of(1, 1, &[8; 4], 2).with(338, 3, vec![1]).file(&[64, 0, 0, 128]);
    assert_eq!(decoded(&half).image.rgb, [191, 127, 127]);
}

#[test]
fn a_raw_file_of_a_camera_is_not_its_thumbnail() {
    let pixels = by_corner(|corner| UPRIGHT[corner].to_vec());
    let thumbnail = Tiff::of(8, 8, &[8; 3], 2).with(254, 4, vec![1]);
    // Alone, the page is the image of the file.
    assert_eq!(seen(&thumbnail.file(&pixels)), UPRIGHT);
    // The directory of the photograph is not read.
    let raw = thumbnail.with(330, 4, vec![8]).file(&pixels);
    let error = decode(&raw, &Limits::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains("only a thumbnail"), "{error}");
}

#[test]
fn a_tiff_may_begin_its_bytes_with_the_lowest_bit() {
    let file = |order: u32| Tiff::of(8, 2, &[1], 1).with(266, 3, vec![order]).file(&[0x01, 0x80]);
    for (order, first) in [(1, 0), (2, 255)] {
        let rgb = decoded(&file(order)).image.rgb;
        assert_eq!([rgb[0], rgb[3 * 7], rgb[3 * 8]], [first, 255 - first, 255 - first]);
    }
}

#[test]
fn a_tiff_of_luma_and_chroma_has_its_colours() {
    let scan = |compression: u32, pixels: &[u8]| {
        let mut tiff = Tiff::of(32, 32, &[8; 3], 6);
        tiff.entries.retain(|entry| entry.0 != 259);
        tiff.with(259, 3, vec![compression]).with(530, 3, vec![1, 1]).file(pixels)
    };
    // A strip of JPEG, as scanners write it, and plain samples.
    assert_eq!(seen(&scan(7, &jpeg(&corners(32, 32)))), UPRIGHT);
    let samples: [[u8; 3]; 4] = [[76, 85, 255], [0, 128, 128], [150, 44, 21], [29, 255, 107]];
    let plain: Vec<u8> = (0..32 * 32)
        .flat_map(|at| samples[usize::from(at % 32 >= 16) + 2 * usize::from(at / 32 >= 16)])
        .collect();
    assert_eq!(seen(&scan(1, &plain)), UPRIGHT);
    let cut = decode(&scan(1, &plain[..96]), &Limits::default()).unwrap_err();
    assert_eq!(cut.kind(), ErrorKind::InvalidArgument, "{cut}");
}

#[test]
fn tiles_of_one_colour_are_refused_by_name_if_they_are_padded() {
    // Tiles of 16 x 16 pixels, one for each colour.
    let tiles: Vec<u8> = [255_u8, 0, 128].into_iter().flat_map(|level| [level; 256]).collect();
    let file = |height: u32| {
        let mut tiff = Tiff::of(16, height, &[8; 3], 2);
        tiff.entries.retain(|entry| entry.0 != 278);
        tiff.with(284, 3, vec![2]).with(322, 4, vec![16]).with(323, 4, vec![16]).tiled(256, &tiles)
    };
    assert_eq!(decoded(&file(16)).image.rgb[..3], [255, 0, 128]);
    let error = decode(&file(12), &Limits::default()).unwrap_err();
    assert!(error.message().contains("separate colours"), "{error}");
    // A file of strips is read, even if it states a length of tiles.
    let planes: Vec<u8> = [255_u8, 0, 128].into_iter().flat_map(|level| [level; 192]).collect();
    let strips = Tiff::of(16, 12, &[8; 3], 2)
        .with(284, 3, vec![2])
        .with(323, 4, vec![16])
        .with(273, 4, vec![8, 8 + 192, 8 + 384])
        .with(279, 4, vec![192; 3]);
    let file = strips.written(strips.entries.clone(), &planes);
    assert_eq!(decoded(&file).image.rgb[..3], [255, 0, 128]);
}

/// The decoder of LZW refuses a read near the end of such a tile, for which it has all bits.
#[test]
fn tiles_of_lzw_with_flat_areas_are_read() {
    // 16 x 16 pixels of the level 7: of each row 7 and then differences of 0.
    let tile = b"\x80\x01\xc0\x10\x38\x24\x16\x0d\x02\x83\x42\x60\x90\x88\x54\x26\x19\x0d\x82\xc3\
        \xe2\x10\x38\x94\x4e\x2b\x10\x8b\xc3\x63\x30\xa8\xdc\x3a\x27\x07\x8f\xc4\x64\x30\
        \xb9\x1c\x52\x4a\x00\x8e\xc1\xa0\x20";
    let mut tiff = Tiff::of(32, 32, &[8], 1);
    tiff.entries.retain(|entry| entry.0 != 259 && entry.0 != 278);
    let tiff = tiff.with(259, 3, vec![5]).with(317, 3, vec![2]);
    let tiff = tiff.with(322, 4, vec![16]).with(323, 4, vec![16]);
    let file = tiff.tiled(tile.len() as u32, &tile.repeat(4));
    assert!(decoded(&file).image.rgb.iter().all(|level| *level == 7));
    let cut = tiff.tiled(24, &tile[..24].repeat(4));
    assert!(decode(&cut, &Limits::default()).is_err());
}

#[test]
fn an_animation_gives_its_first_frame() {
    let file = animated(&[corners(16, 16), RgbImage::from_pixel(16, 16, image::Rgb([9, 9, 9]))]);
    let decoded = decoded(&file);
    assert_eq!((decoded.format, decoded.image.width), (Format::WebP, 16));
    assert_eq!(seen(&file), UPRIGHT);
}

#[test]
fn a_bomb_is_refused_by_its_header() {
    let kind = |file: &[u8]| decode(file, &Limits::default()).unwrap_err().kind();
    assert_eq!(kind(&claiming(10_000, 10_000)), ErrorKind::TooLarge);
    assert_eq!(kind(&claiming(70_000, 1)), ErrorKind::TooLarge);
    assert_eq!(kind(&claiming(0x7fff_ffff, 0x7fff_ffff)), ErrorKind::TooLarge);
    assert_eq!(kind(&Tiff::of(60_000, 60_000, &[8; 3], 2).file(&[0; 8])), ErrorKind::TooLarge);
    assert_eq!(
        kind(&Tiff::of(60_000, 60_000, &[8], 3).with(320, 3, vec![0; 768]).file(&[0; 8])),
        ErrorKind::TooLarge
    );
    let mut jpeg = jpeg(&corners(16, 16));
    let frame = jpeg.windows(2).position(|pair| pair == [0xff, 0xc0]).unwrap();
    jpeg[frame + 5..frame + 9].copy_from_slice(&[0xff, 0xff, 0xff, 0xff]);
    assert_eq!(kind(&jpeg), ErrorKind::TooLarge);
    let mut bmp = encoded(&DynamicImage::ImageRgb8(corners(4, 4)), ImageFormat::Bmp);
    bmp[18..22].copy_from_slice(&60_000_u32.to_le_bytes());
    bmp[22..26].copy_from_slice(&60_000_u32.to_le_bytes());
    assert_eq!(kind(&bmp), ErrorKind::TooLarge);
    let small = Limits { pixels_max: 100, ..Limits::default() };
    let error =
        decode(&encoded(&DynamicImage::ImageRgb8(corners(11, 10)), ImageFormat::Png), &small)
            .unwrap_err();
    assert!(error.message().contains("11 x 10 pixels"), "{error}");
}

/// Returns small files of all kinds.
fn files() -> Vec<Vec<u8>> {
    let image = DynamicImage::ImageRgb8(corners(24, 16));
    let mut files: Vec<Vec<u8>> =
        [ImageFormat::Png, ImageFormat::WebP, ImageFormat::Tiff, ImageFormat::Bmp]
            .into_iter()
            .map(|format| encoded(&image, format))
            .collect();
    files.push(jpeg(&corners(24, 16)));
    files.push(turned(&corners(24, 16), 6, 72));
    files.push(animated(&[corners(16, 16), corners(16, 16)]));
    files.push(Tiff::of(8, 8, &[8; 4], 5).file(&[7; 256]));
    files.push(Tiff::of(8, 8, &[8], 3).with(320, 3, vec![500; 768]).file(&[3; 64]));
    files
}

#[test]
fn a_file_that_ends_early_is_refused_with_the_reason() {
    for file in files() {
        let format = Format::sniff(&file).unwrap();
        // TIFF and BMP may end with bytes without a use; half of any file is too little.
        let error = decode(&file[..file.len() / 2], &Limits::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{format:?}: {error}");
    }
    let whole = jpeg(&corners(200, 200));
    for part in 1..10 {
        let error = decode(&whole[..whole.len() * part / 10], &Limits::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{part}: {error}");
    }
    let error = decode(&whole[..whole.len() - 2], &Limits::default()).unwrap_err();
    assert!(error.message().contains("ends early"), "{error}");
    let trailing = [&whole[..], b"what a phone adds after the image"].concat();
    assert!(decode(&trailing, &Limits::default()).is_ok());
    assert_eq!(decode(b"", &Limits::default()).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(
        decode(b"GIF89a", &Limits::default()).unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );
}

fn check(file: &[u8]) -> Result<(), TestCaseError> {
    // Small limits: the claims of a damaged header must not be allocated.
    let limits = Limits { pixels_max: 1 << 16, side_max: 1 << 12, bytes_max: 1 << 20 };
    match decode(file, &limits) {
        Ok(decoded) => {
            let image = decoded.image;
            let pixels = u64::from(image.width) * u64::from(image.height);
            prop_assert!(pixels <= limits.pixels_max && image.rgb.len() as u64 == 3 * pixels);
        }
        Err(error) => {
            prop_assert!(
                matches!(error.kind(), ErrorKind::InvalidArgument | ErrorKind::TooLarge),
                "{error}"
            );
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_bytes_decode_without_panic(
        head in prop::sample::select(vec![
            &b"\xff\xa0\xff\xa8\0\x02\xff\xa2\0\x11"[..],
            b"1.001:24\x1d1.003:1\x1f1\x1e4\x1f00\x1c",
            b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"RIFF\xff\0\0\0WEBP", b"II*\0\x08\0\0\0", b"MM\0*", b"BM",
        ]),
        tail in prop::collection::vec(any::<u8>(), 0..400),
    ) {
        check(&[head, &tail[..]].concat())?;
        check(&tail)?;
    }

    #[test]
    fn damaged_files_decode_without_panic(
        which in 0_usize..9,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<prop::sample::Index>(),
        whole in any::<bool>(),
    ) {
        let mut file = files()[which].clone();
        for (at, byte) in changes {
            let at = at.index(file.len());
            file[at] = byte;
        }
        let end = if whole { file.len() } else { cut.index(file.len()) };
        check(&file[..end])?;
    }
}
