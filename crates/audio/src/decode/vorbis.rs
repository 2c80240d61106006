//! Counts the numbers in vorbis code books before a decoder reserves memory for them, and changes
//! headers that the decoder reads wrongly.

mod setup;

use base::{Error, Result};

pub(super) use setup::readable;

/// Bytes of the identification header, which comes before the setup header.
const IDENTIFICATION: usize = 30;
/// First bytes of a setup header.
const SETUP: &[u8] = b"\x05vorbis";
/// Maximum numbers in all code books. Encoders write about a hundred thousand.
const NUMBERS_MAX: u64 = 1 << 22;

/// Checks the setup header in `headers`, which begin with the identification header. A few bytes of
/// it can make a decoder reserve gigabytes.
///
/// # Errors
/// `DataLoss` if the code books are larger than any encoder's.
pub(super) fn check(headers: &[u8]) -> Result<()> {
    // The decoder reads the setup at this place only. The fields before it can hold any bytes, even
    // the name of a setup header.
    let setup = headers.get(IDENTIFICATION..).and_then(|setup| setup.strip_prefix(SETUP));
    let Some(bytes) = setup else { return Ok(()) };
    // If the bits end, the decoder reports it.
    match numbers(&mut BitReader { bytes, at: 0 }) {
        Some(numbers) if numbers > NUMBERS_MAX => Err(Error::data_loss(
            "the code books of this vorbis recording are too large, so they must be damaged",
        )),
        _ => Ok(()),
    }
}

/// Reader of bits. The lowest bit of a byte comes first.
struct BitReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl BitReader<'_> {
    /// Returns the next `count` bits as a number, lowest bit first. `None` if the bytes end.
    fn next(&mut self, count: usize) -> Option<u64> {
        let mut value = 0;
        for place in 0..count {
            let byte = self.bytes.get((self.at + place) / 8)?;
            value |= u64::from(byte >> ((self.at + place) % 8) & 1) << place;
        }
        self.at += count;
        Some(value)
    }
}

/// Returns the numbers in the code books. Stops at the first book that makes them too many.
fn numbers(bits: &mut BitReader<'_>) -> Option<u64> {
    let books = bits.next(8)? + 1;
    let mut sum = 0;
    for _ in 0..books {
        let (dimensions, entries) = book_size(bits)?;
        sum += entries * dimensions.max(1);
        if sum > NUMBERS_MAX {
            break;
        }
        skip_book(bits, dimensions, entries)?;
    }
    Some(sum)
}

/// Reads the dimensions and the entries of a code book.
fn book_size(bits: &mut BitReader<'_>) -> Option<(u64, u64)> {
    bits.next(24)?;
    let dimensions = bits.next(16)?;
    let entries = bits.next(24)?;
    Some((dimensions, entries))
}

/// Skips the rest of a code book.
fn skip_book(bits: &mut BitReader<'_>, dimensions: u64, entries: u64) -> Option<()> {
    skip_lengths(bits, entries)?;
    let lookup = bits.next(4)?;
    if lookup == 0 {
        return Some(());
    }
    bits.next(64)?;
    let width = bits.next(4)? + 1;
    bits.next(1)?;
    let values = if lookup == 1 { root(entries, dimensions) } else { entries * dimensions };
    bits.at = bits.at.checked_add(usize::try_from(values * width).ok()?)?;
    Some(())
}

/// Skips the lengths of a book's code words.
fn skip_lengths(bits: &mut BitReader<'_>, entries: u64) -> Option<()> {
    let ordered = bits.next(1)? == 1;
    if ordered {
        bits.next(5)?;
        let mut have = 0;
        while have < entries {
            let width = (entries - have).checked_ilog2().map_or(0, |log| log + 1);
            let more = bits.next(width as usize)?;
            have += more;
        }
        return Some(());
    }
    let sparse = bits.next(1)? == 1;
    for _ in 0..entries {
        if !sparse || bits.next(1)? == 1 {
            bits.next(5)?;
        }
    }
    Some(())
}

/// Returns the greatest integer whose `power`th power is at most `limit`.
fn root(limit: u64, power: u64) -> u64 {
    let power = u32::try_from(power).unwrap_or(u32::MAX);
    let fits = |value: u64| value.checked_pow(power).is_some_and(|raised| raised <= limit);
    // Code books have at most 2^24 entries, so with two dimensions or more this ends after 4096
    // steps.
    if power == 0 {
        0
    } else if power == 1 {
        limit
    } else {
        (1..).find(|value| !fits(*value)).map_or(0, |value| value - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes numbers of so many bits.
    fn bits(parts: &[(u64, usize)]) -> Vec<u8> {
        let all: Vec<bool> = parts
            .iter()
            .flat_map(|(value, count)| (0..*count).map(move |bit| value >> bit & 1 == 1))
            .collect();
        all.chunks(8)
            .map(|byte| byte.iter().rev().fold(0, |sum, bit| sum << 1 | u8::from(*bit)))
            .collect()
    }

    #[test]
    fn code_books_that_need_gigabytes_are_refused() {
        let book = [(0x564342, 24), (5, 16), ((1 << 24) - 1, 24)];
        let setup = [SETUP, b"\xff", &bits(&book)].concat();
        let plain = [0_u8; IDENTIFICATION];
        // Bytes 12 to 27 are the rate and the bit rates, which can have any value. They can look
        // like a setup header with one empty code book.
        let mut hiding = plain;
        hiding[12..19].copy_from_slice(SETUP);
        for identification in [plain, hiding] {
            let headers = [&identification[..], &setup].concat();
            assert_eq!(check(&headers).unwrap_err().kind(), base::ErrorKind::DataLoss);
        }
        let short = [&plain[..], SETUP].concat();
        assert!(check(&short).is_ok(), "the decoder will say what is missing");
        assert!(check(b"").is_ok());
    }

    #[test]
    fn roots_are_rounded_down() {
        assert_eq!([root(81, 4), root(80, 4), root(1, 9), root(0, 2), root(7, 1)], [3, 2, 1, 0, 7]);
    }
}
