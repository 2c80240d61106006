//! Files of ANSI/NIST-ITL 1-2007 and 1-2011 in the traditional encoding: fingerprint images of the
//! record types 4 and 14.

mod image_records;
mod one_image;
mod records;

use base::{Error, Result};
use image::{DynamicImage, GrayImage};

use crate::Format;
use records::{Record, Transaction};

pub use one_image::nist_file_of;

/// Maximum records of a file. The standard numbers images 0 to 99.
const RECORDS_MAX: usize = 1000;
/// Positions of the plain impressions of both thumbs.
const PLAIN_RIGHT_THUMB: u8 = 11;
const PLAIN_LEFT_THUMB: u8 = 12;

/// Compression of the image in a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NistCompression {
    /// Grey levels of 8 bits, row by row.
    Uncompressed,
    /// A WSQ file.
    Wsq,
    /// A JPEG file.
    Jpeg,
    /// A PNG file.
    Png,
    /// A compression that is not read, by its name: "JP2" (JPEG 2000), "JPEGL".
    Unsupported(String),
}

/// Fingerprint image in an ANSI/NIST-ITL file.
#[derive(Clone, Debug, PartialEq)]
pub struct NistImage<'a> {
    /// Type of the record: 4 or 14.
    pub record_type: u8,
    /// Finger positions. 1 to 5 are the right thumb to the right little finger, 6 to 10 the same of
    /// the left hand, and 0 is unknown. Others are as the standard numbers thumbs and slaps.
    /// Several if the record names several.
    pub fingers: Vec<u8>,
    /// Columns, as the record states.
    pub width: u32,
    /// Rows, as the record states.
    pub height: u32,
    /// Resolution along the rows, as the record states, or `None` if it names none.
    pub dots_per_inch: Option<f32>,
    /// Compression, as the record states.
    pub compression: NistCompression,
    /// Bytes of the image.
    pub data: &'a [u8],
    /// The whole record.
    pub(crate) record: &'a [u8],
}

/// Lists the fingerprint images of an ANSI/NIST-ITL file in the order of its records. Records of
/// other types and records without an image are passed over. No image is decoded.
///
/// # Errors
/// `InvalidArgument` if the bytes are not such a file, are damaged or end early.
pub fn nist_images(bytes: &[u8]) -> Result<Vec<NistImage<'_>>> {
    let mut transaction = Transaction::open(bytes)?;
    let resolution = transaction.dots_per_inch();
    let mut images = Vec::new();
    let mut count = 0;
    while let Some(record) = transaction.next_record()? {
        count += 1;
        if count > RECORDS_MAX {
            return Err(Error::invalid(format!(
                "this ANSI/NIST-ITL file has more than {RECORDS_MAX} records; split it"
            )));
        }
        let image = match record {
            Record { record_type: 4, bytes } => image_records::read_type_4(bytes, resolution)?,
            Record { record_type: 14, bytes } => image_records::read_type_14(bytes)?,
            _ => None,
        };
        images.extend(image);
    }
    Ok(images)
}

/// Returns the first image of a file whose compression is supported.
///
/// # Errors
/// As [`nist_images`]. `InvalidArgument` if there is none.
pub(crate) fn first(bytes: &[u8]) -> Result<NistImage<'_>> {
    let images = nist_images(bytes)?;
    let supported = |image: &&NistImage| image.check_compression().is_ok();
    if let Some(image) = images.iter().find(supported) {
        return Ok(image.clone());
    }
    match images.first() {
        Some(image) => Err(image.check_compression().err().unwrap_or_else(no_images)),
        None => Err(no_images()),
    }
}

fn no_images() -> Error {
    Error::invalid("this ANSI/NIST-ITL file has no fingerprint image (record type 4 or 14)")
}

impl NistImage<'_> {
    /// Returns the finger of the image. 1 to 5 are the right thumb to the right little finger, and
    /// 6 to 10 the same of the left hand. `None` if the record names no finger, or several.
    #[must_use]
    pub fn finger(&self) -> Option<u8> {
        match self.fingers[..] {
            [finger @ 1..=10] => Some(finger),
            [PLAIN_RIGHT_THUMB] => Some(1),
            [PLAIN_LEFT_THUMB] => Some(6),
            _ => None,
        }
    }

    /// Returns true if the image shows several fingers, such as the four of a hand.
    #[must_use]
    pub fn is_slap(&self) -> bool {
        !self.fingers.is_empty() && self.fingers.iter().all(|&finger| finger > PLAIN_LEFT_THUMB)
    }

    /// Returns the grey levels of an uncompressed image.
    ///
    /// # Errors
    /// As [`NistImage::check_levels`].
    pub(crate) fn levels(&self) -> Result<DynamicImage> {
        self.check_levels()?;
        GrayImage::from_raw(self.width, self.height, self.data.to_vec())
            .map(DynamicImage::ImageLuma8)
            .ok_or_else(|| damaged("rows are missing"))
    }

    /// Checks that an uncompressed image has one byte of data a pixel.
    ///
    /// # Errors
    /// `InvalidArgument` if they are not.
    pub(crate) fn check_levels(&self) -> Result<()> {
        let (width, height) = (self.width, self.height);
        if u64::from(width) * u64::from(height) == self.data.len() as u64 {
            return Ok(());
        }
        Err(damaged(&format!(
            "an image of {width} x {height} pixels has {} bytes of data",
            self.data.len()
        )))
    }

    /// Returns the format of the file that the image is, or `None` for uncompressed grey levels.
    ///
    /// # Errors
    /// `InvalidArgument` for an unsupported compression, or if the data are not such a file.
    pub(crate) fn file_format(&self) -> Result<Option<Format>> {
        self.check_compression()?;
        let wanted = match self.compression {
            NistCompression::Wsq => Format::Wsq,
            NistCompression::Jpeg => Format::Jpeg,
            NistCompression::Png => Format::Png,
            NistCompression::Uncompressed | NistCompression::Unsupported(_) => return Ok(None),
        };
        if Format::sniff(self.data) == Some(wanted) {
            return Ok(Some(wanted));
        }
        Err(damaged(&format!("the data of a {} image are not in that format", wanted.name())))
    }

    /// Checks that the compression is supported.
    ///
    /// # Errors
    /// `InvalidArgument` with the name of another compression.
    pub fn check_compression(&self) -> Result<()> {
        let NistCompression::Unsupported(name) = &self.compression else { return Ok(()) };
        let full = match name.as_str() {
            "JP2" | "JP2L" => " (JPEG 2000)",
            "JPEGL" => " (lossless JPEG)",
            _ => "",
        };
        Err(Error::invalid(format!(
            "this ANSI/NIST-ITL file's image has the compression {name}{full}, which is not read; \
             convert it to WSQ or PNG"
        )))
    }
}

fn damaged(what: &str) -> Error {
    Error::invalid(format!("this ANSI/NIST-ITL file is damaged: {what}"))
}

fn truncated() -> Error {
    Error::invalid("this ANSI/NIST-ITL file ends early: the file is truncated; send all of it")
}
