//! Image files of every kind, made here.

use std::io::Cursor;

use image::codecs::jpeg::JpegEncoder;
use image::{DynamicImage, ImageFormat, RgbImage};

/// Returns an image with three colours in four corners, so that every rotation looks different: the
/// top row red to black, the bottom green and blue.
pub(crate) fn corners(width: u32, height: u32) -> RgbImage {
    RgbImage::from_fn(width, height, |x, y| {
        let (right, low) = (x >= width / 2, y >= height / 2);
        image::Rgb(match (right, low) {
            (false, false) => [255, 0, 0],
            (true, false) => [0, 0, 0],
            (false, true) => [0, 255, 0],
            (true, true) => [0, 0, 255],
        })
    })
}

pub(crate) fn encoded(image: &DynamicImage, format: ImageFormat) -> Vec<u8> {
    let mut file = Cursor::new(Vec::new());
    image.write_to(&mut file, format).unwrap();
    file.into_inner()
}

pub(crate) fn jpeg(image: &RgbImage) -> Vec<u8> {
    let mut file = Vec::new();
    JpegEncoder::new_with_quality(&mut file, 95).encode_image(image).unwrap();
    file
}

/// Returns EXIF data with an orientation and a resolution, in the form of TIFF.
fn exif(orientation: u16, dots: u32) -> Vec<u8> {
    Tiff { entries: vec![(274, 3, vec![u32::from(orientation)])], dots: Some(dots) }.file(&[])
}

/// Returns a JPEG file as a camera that was turned writes it.
pub(crate) fn turned(image: &RgbImage, orientation: u16, dots: u32) -> Vec<u8> {
    let file = jpeg(image);
    let exif = [b"Exif\0\0", &exif(orientation, dots)[..]].concat();
    let length = (exif.len() as u16 + 2).to_be_bytes();
    // Without JFIF's segment, whose density would come first.
    let after = 4 + usize::from(u16::from_be_bytes([file[4], file[5]]));
    assert_eq!(file[..4], [0xff, 0xd8, 0xff, 0xe0]);
    [&[0xff, 0xd8, 0xff, 0xe1][..], &length, &exif, &file[after..]].concat()
}

/// A TIFF file without compression, of one strip or of tiles.
pub(crate) struct Tiff {
    /// Tag, type (3: 16 bits, 4: 32 bits), values.
    pub(crate) entries: Vec<(u16, u16, Vec<u32>)>,
    pub(crate) dots: Option<u32>,
}

impl Tiff {
    pub(crate) fn of(width: u32, height: u32, bits: &[u32], photometric: u32) -> Tiff {
        let entries = vec![
            (256, 4, vec![width]),
            (257, 4, vec![height]),
            (258, 3, bits.to_vec()),
            (259, 3, vec![1]),
            (262, 3, vec![photometric]),
            (277, 3, vec![bits.len() as u32]),
            (278, 4, vec![height]),
        ];
        Tiff { entries, dots: None }
    }

    pub(crate) fn with(mut self, tag: u16, kind: u16, values: Vec<u32>) -> Tiff {
        self.entries.push((tag, kind, values));
        self
    }

    pub(crate) fn file(&self, pixels: &[u8]) -> Vec<u8> {
        let mut entries = self.entries.clone();
        if !pixels.is_empty() {
            entries.push((273, 4, vec![8]));
            entries.push((279, 4, vec![pixels.len() as u32]));
        }
        self.written(entries, pixels)
    }

    /// Returns a file whose `pixels` are tiles of `bytes` bytes each.
    pub(crate) fn tiled(&self, bytes: u32, pixels: &[u8]) -> Vec<u8> {
        let count = pixels.len() as u32 / bytes;
        let mut entries = self.entries.clone();
        entries.push((324, 4, (0..count).map(|tile| 8 + tile * bytes).collect()));
        entries.push((325, 4, vec![bytes; count as usize]));
        self.written(entries, pixels)
    }

    /// Returns a file with these entries, whose `pixels` begin at byte 8.
    pub(crate) fn written(&self, mut entries: Vec<(u16, u16, Vec<u32>)>, pixels: &[u8]) -> Vec<u8> {
        if let Some(dots) = self.dots {
            entries.push((282, 5, vec![dots, 1]));
            entries.push((296, 3, vec![2]));
        }
        entries.sort_by_key(|entry| entry.0);
        let directory = 8 + pixels.len() as u32 + pixels.len() as u32 % 2;
        let mut outside = Vec::new();
        let after = directory + 2 + 12 * entries.len() as u32 + 4;
        let mut file = [b"II*\0", &directory.to_le_bytes()[..], pixels].concat();
        file.resize(directory as usize, 0);
        file.extend((entries.len() as u16).to_le_bytes());
        for (tag, kind, values) in &entries {
            let bytes: Vec<u8> = match kind {
                3 => values.iter().flat_map(|value| (*value as u16).to_le_bytes()).collect(),
                _ => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
            };
            let count = if *kind == 5 { 1 } else { values.len() as u32 };
            file.extend(
                [&tag.to_le_bytes()[..], &kind.to_le_bytes(), &count.to_le_bytes()].concat(),
            );
            if bytes.len() <= 4 {
                file.extend(&bytes);
                file.extend(vec![0; 4 - bytes.len()]);
            } else {
                file.extend((after + outside.len() as u32).to_le_bytes());
                outside.extend(bytes);
            }
        }
        file.extend([0; 4]);
        file.extend(outside);
        file
    }
}

pub(crate) fn chunk(name: &[u8; 4], body: &[u8]) -> Vec<u8> {
    let mut chunk = [&name[..], &(body.len() as u32).to_le_bytes(), body].concat();
    chunk.resize(chunk.len() + chunk.len() % 2, 0);
    chunk
}

pub(crate) fn u24(value: u32) -> [u8; 3] {
    let [a, b, c, _] = value.to_le_bytes();
    [a, b, c]
}

/// Returns a WebP file of several frames of one size.
pub(crate) fn animated(frames: &[RgbImage]) -> Vec<u8> {
    let (width, height) = frames[0].dimensions();
    let size = [u24(width - 1), u24(height - 1)].concat();
    let mut body = b"WEBP".to_vec();
    body.extend(chunk(b"VP8X", &[&[2, 0, 0, 0][..], &size].concat()));
    body.extend(chunk(b"ANIM", &[255, 255, 255, 255, 0, 0]));
    for frame in frames {
        // After the outer header: the one chunk of the still image.
        let still = encoded(&DynamicImage::ImageRgb8(frame.clone()), ImageFormat::WebP);
        body.extend(chunk(b"ANMF", &[&[0; 6][..], &size, &u24(100), &[2], &still[12..]].concat()));
    }
    chunk(b"RIFF", &body)
}

/// Returns a PNG file whose header claims another size.
pub(crate) fn claiming(width: u32, height: u32) -> Vec<u8> {
    let mut file = encoded(&DynamicImage::ImageRgb8(corners(4, 4)), ImageFormat::Png);
    file[16..20].copy_from_slice(&width.to_be_bytes());
    file[20..24].copy_from_slice(&height.to_be_bytes());
    let sum = crc32(&file[12..29]).to_be_bytes();
    file[29..33].copy_from_slice(&sum);
    file
}

pub(crate) fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |mut sum, &byte| {
        sum ^= u32::from(byte);
        for _ in 0..8 {
            sum = if sum & 1 == 1 { (sum >> 1) ^ 0xedb8_8320 } else { sum >> 1 };
        }
        sum
    })
}
