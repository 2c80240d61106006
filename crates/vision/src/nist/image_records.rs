//! Records with fingerprint images.

use base::Result;

use super::records::{self, IMAGE_DATA, fields, number};
use super::{NistCompression, NistImage, damaged};
use crate::bytes::be16;

/// Bytes of a record of type 4 before its image.
const HEAD_BYTES: usize = 18;
/// Maximum bytes of a compression's name that are read.
const NAME_BYTES_MAX: usize = 16;
/// Maximum finger positions of an image.
const FINGERS_MAX: usize = 16;
/// Finger position of an unused place.
const NO_FINGER: u8 = 255;
/// Lowest resolution of the standard, in dots per inch. Images that were scaled have it.
const RESOLUTION_MIN: f32 = 500.0;

/// Reads a record of type 4 (binary). Returns `None` if it has no image, such as the record of an
/// amputated finger. `native` is the resolution of an image that was not scaled.
pub(super) fn read_type_4(record: &[u8], native: Option<f32>) -> Result<Option<NistImage<'_>>> {
    let parse = || {
        // Bytes: length 4, index 1, impression 1, fingers 6, resolution 1, columns 2, rows 2,
        // compression 1.
        let (head, data) = record.split_first_chunk::<HEAD_BYTES>()?;
        let [.., compression] = *head;
        let scaled = *head.get(12)? == 0;
        Some(NistImage {
            record_type: 4,
            fingers: head.get(6..12)?.iter().copied().filter(|&it| it != NO_FINGER).collect(),
            width: be16(head, 13)?.into(),
            height: be16(head, 15)?.into(),
            dots_per_inch: if scaled { Some(RESOLUTION_MIN) } else { native },
            compression: by_code(compression),
            data,
            record,
        })
    };
    let image = parse().ok_or_else(|| damaged("a record of type 4 is too short"))?;
    Ok(Some(image).filter(|image| !image.data.is_empty()))
}

/// Returns the compression with this code of a record of type 4.
fn by_code(code: u8) -> NistCompression {
    let unsupported = |name: &str| NistCompression::Unsupported(name.into());
    match code {
        0 => NistCompression::Uncompressed,
        1 => NistCompression::Wsq,
        2 => NistCompression::Jpeg,
        3 => unsupported("JPEGL"),
        4 => unsupported("JP2"),
        5 => unsupported("JP2L"),
        6 => NistCompression::Png,
        other => unsupported(&other.to_string()),
    }
}

/// Returns the compression with this name of a record of type 14.
fn by_name(name: &[u8]) -> NistCompression {
    let name = name.trim_ascii();
    let name = name.get(..NAME_BYTES_MAX).unwrap_or(name);
    let name = String::from_utf8_lossy(name).to_ascii_uppercase();
    match name.as_str() {
        "NONE" => NistCompression::Uncompressed,
        "WSQ" | "WSQ20" => NistCompression::Wsq,
        "JPEGB" => NistCompression::Jpeg,
        "PNG" => NistCompression::Png,
        _ => NistCompression::Unsupported(name),
    }
}

/// Reads a record of type 14 (tagged fields). Returns `None` if it has no image, such as the record
/// of an amputated finger.
pub(super) fn read_type_14(record: &[u8]) -> Result<Option<NistImage<'_>>> {
    let mut image = NistImage {
        record_type: 14,
        fingers: Vec::new(),
        width: 0,
        height: 0,
        dots_per_inch: None,
        compression: NistCompression::Uncompressed,
        data: &[],
        record,
    };
    let mut unit = 0;
    let mut resolution = None;
    let mut depth = 8;
    let wrong = |name: &str| damaged(&format!("the field 14.{name} is not a number"));
    for field in fields(record) {
        let value = field.value;
        match field.number {
            6 => image.width = number(value).ok_or_else(|| wrong("006"))?,
            7 => image.height = number(value).ok_or_else(|| wrong("007"))?,
            8 => unit = number(value).ok_or_else(|| wrong("008"))?,
            9 => resolution = number(value),
            11 => image.compression = by_name(value),
            12 => depth = number(value).ok_or_else(|| wrong("012"))?,
            13 => image.fingers = records::numbers(value).take(FINGERS_MAX).flatten().collect(),
            IMAGE_DATA => image.data = value,
            _ => {}
        }
    }
    image.dots_per_inch = per_inch(unit, resolution).and_then(records::plausible);
    if image.data.is_empty() {
        return Ok(None);
    }
    if image.compression == NistCompression::Uncompressed && depth != 8 {
        image.compression = NistCompression::Unsupported(format!("NONE with {depth} bits"));
    }
    Ok(Some(image))
}

/// Converts a resolution. The unit is 1 for pixels per inch and 2 for pixels per centimetre.
fn per_inch(unit: u8, resolution: Option<f32>) -> Option<f32> {
    match unit {
        1 => resolution,
        2 => resolution.map(|centimetre| centimetre * 2.54),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small(compression: u8) -> Vec<u8> {
        let head = [0, 0, 0, 22, 1, 3, 7, 255, 255, 255, 255, 255, 1, 0, 2, 0, 2];
        [&head[..], &[compression, 1, 2, 3, 4]].concat()
    }

    #[test]
    fn a_record_of_type_4() {
        let record = small(0);
        let image = read_type_4(&record, Some(1000.0)).unwrap().unwrap();
        assert_eq!((image.width, image.height, &image.fingers[..]), (2, 2, &[7][..]));
        assert_eq!((image.dots_per_inch, image.data), (Some(1000.0), &[1, 2, 3, 4][..]));
        for end in 0..HEAD_BYTES {
            assert!(read_type_4(&record[..end], None).is_err());
        }
        assert_eq!(read_type_4(&record[..HEAD_BYTES], None), Ok(None));
        let compression = |code| read_type_4(&small(code), None).unwrap().unwrap().compression;
        assert_eq!(
            [1, 2, 6].map(compression),
            [NistCompression::Wsq, NistCompression::Jpeg, NistCompression::Png]
        );
        assert_eq!(compression(4), NistCompression::Unsupported("JP2".into()));
    }

    #[test]
    fn a_record_of_type_14() {
        let record = b"14.001:0\x1d14.006:30\x1d14.007:40\x1d14.008:2\x1d14.009:200\x1d\
            14.011:wsq20\x1d14.012:8\x1d14.013:13\x1d14.999:ab\x1c";
        let image = read_type_14(record).unwrap().unwrap();
        assert_eq!((image.width, image.height, image.dots_per_inch), (30, 40, Some(508.0)));
        assert_eq!(
            (image.compression, image.fingers, image.data),
            (NistCompression::Wsq, vec![13], &b"ab"[..])
        );
        assert!(read_type_14(b"14.001:0\x1d14.013:2\x1d14.018:2\x1fXX\x1c").unwrap().is_none());
        assert!(read_type_14(b"14.001:0\x1d14.006:x\x1d").is_err());
        let deep = read_type_14(b"14.001:0\x1d14.011:NONE\x1d14.012:16\x1d14.999:ab\x1c")
            .unwrap()
            .unwrap();
        assert_eq!(deep.compression, NistCompression::Unsupported("NONE with 16 bits".into()));
    }
}
