//! Extraction of one image from an ANSI/NIST-ITL file with several images.

use base::Result;

use super::NistImage;
use super::records::{CONTENTS, RECORD_END, Transaction, fields, number};

/// Maximum bytes of a field of the record of type 1 that is copied.
const FIELD_BYTES_MAX: usize = 256;
/// Maximum fields of the record of type 1 that are copied. The standard has fewer.
const FIELDS_MAX: usize = 32;
/// Field of a record of type 1 with its length.
const LENGTH: u32 = 1;
/// Field of a record of type 14 with its number in the file.
const INDEX: u32 = 2;
/// Offset of that number in a record of type 4.
const INDEX_AT: usize = 4;
/// Start of a file, which the length follows.
const START: &str = "1.001:";

/// Returns the ANSI/NIST-ITL file of one image of the file `bytes`. It has the record of the image
/// as it is, and a record of type 1 that lists it. Other records, such as those with names of
/// persons, are left out.
///
/// # Errors
/// `InvalidArgument` if `bytes` are not such a file.
pub fn nist_file_of(bytes: &[u8], image: &NistImage<'_>) -> Result<Vec<u8>> {
    let transaction = Transaction::open(bytes)?;
    let kept = fields(transaction.first)
        .filter(|field| ![LENGTH, CONTENTS].contains(&field.number))
        .filter(|field| field.value.len() <= FIELD_BYTES_MAX)
        .take(FIELDS_MAX);
    let mut head = Vec::new();
    let contents = format!("1\x1f1\x1e{}\x1f{:02}", image.record_type, index(image));
    let mut contents = Some(contents);
    for field in kept {
        if field.number > CONTENTS
            && let Some(contents) = contents.take()
        {
            put_field(CONTENTS, contents.as_bytes(), &mut head);
        }
        put_field(field.number, field.value, &mut head);
    }
    if let Some(contents) = contents {
        put_field(CONTENTS, contents.as_bytes(), &mut head);
    }
    head.push(RECORD_END);
    let length = own_length(START.len() + head.len());
    Ok([START.as_bytes(), length.to_string().as_bytes(), &head, image.record].concat())
}

/// Returns the number that the record of an image has in its file, or 0 if it states none.
fn index(image: &NistImage<'_>) -> u8 {
    let index = if image.record_type == 4 {
        image.record.get(INDEX_AT).copied()
    } else {
        fields(image.record).find(|field| field.number == INDEX).and_then(|it| number(it.value))
    };
    index.unwrap_or(0)
}

/// Appends a field of a record of type 1.
fn put_field(number: u32, value: &[u8], record: &mut Vec<u8>) {
    record.extend(format!("\x1d1.{number:03}:").bytes());
    record.extend(value);
}

/// Returns the length of a record that has `others` bytes besides the digits of the length.
fn own_length(others: usize) -> usize {
    let mut length = others + 1;
    while others + length.to_string().len() > length {
        length += 1;
    }
    length
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_counts_its_own_digits() {
        for (others, length) in [(8, 9), (9, 11), (97, 99), (98, 101), (996, 999), (997, 1001)] {
            assert_eq!(own_length(others), length);
        }
    }
}
