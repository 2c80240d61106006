//! Bitmaps of the rows before some positions of a field's list. They give the rows of a range of
//! values without a list of all its rows. These are the difference of two bitmaps, corrected by the
//! rows between their positions and the ends of the range.
//!
//! Only fields with at most one value in each row have them. Each row is then at most once in the
//! part of the list before the texts, so the difference is exact. A date is there once as a date,
//! and again as a text, which ranges do not select.

use base::{Error, Result};
use coarse::RowSet;
use storage::Sealed;

use super::directory::{FieldDirectory, IndexDirectory};
use super::key::{decode_number, encode_number, take_u64};
use super::read::{PayloadIndex, RowPiece, rows_of};

const MAGIC: [u8; 8] = *b"MPPAYRNG";
const VERSION: u64 = 1;
/// Bytes at the end of the places: magic, version u64, offset and bytes of the places u64. They are
/// directly before the directory, which does not name them, so that older programs skip them.
pub(super) const TRAILER_BYTES: u64 = 32;
/// Maximum bitmaps of a field. One takes an eighth of a byte for each row of the segment, a list of
/// all rows four bytes.
pub(super) const PREFIXES_MAX: u64 = 16;
/// Minimum positions between two bitmaps. Shorter lists are read as quickly as bitmaps.
pub(super) const PREFIX_STEP_MIN: u64 = 16 << 10;

/// Bitmap of the rows before a position of a field's list. Row `r` is bit `r % 64` of the u64 word
/// `r / 64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PrefixBitmap {
    /// Rows of the list before this position are in it.
    pub(super) end: u64,
    /// Offset in the section.
    pub(super) offset: u64,
}

/// Two bitmaps whose difference is about the rows of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PrefixPair {
    /// `None` for the beginning of the list.
    low: Option<PrefixBitmap>,
    high: PrefixBitmap,
}

/// Returns the bytes of a bitmap of `rows` rows.
pub(super) fn bitmap_bytes(rows: u32) -> u64 {
    u64::from(rows.div_ceil(64)) * 8
}

impl PrefixPair {
    /// Returns the bitmaps nearest to the ends of `piece`, unless the list of its rows costs less.
    fn nearest(prefixes: &[PrefixBitmap], piece: RowPiece, rows: u32) -> Option<PrefixPair> {
        let end = piece.position.saturating_add(piece.count);
        let high = *prefixes.iter().min_by_key(|it| it.end.abs_diff(end))?;
        let low = prefixes.iter().filter(|it| it.end < high.end);
        let low = low.min_by_key(|it| it.end.abs_diff(piece.position)).copied();
        let low = low.filter(|it| it.end.abs_diff(piece.position) < piece.position);
        let pair = PrefixPair { low, high };
        let listed: u64 = pair.edges(piece).iter().map(|edge| edge.count).sum();
        // Reading 64 bits of a bitmap costs about as much as one row of a list.
        let bitmaps = (1 + u64::from(low.is_some())) * u64::from(rows / 64);
        (listed + bitmaps < piece.count).then_some(pair)
    }

    /// Returns the parts of the list between the bitmaps' positions and the ends of `piece`.
    fn edges(&self, piece: RowPiece) -> [RowPiece; 2] {
        let low = self.low.map_or(0, |it| it.end);
        let end = piece.position.saturating_add(piece.count);
        [between(low, piece.position), between(self.high.end, end)]
    }
}

fn between(one: u64, other: u64) -> RowPiece {
    RowPiece { position: one.min(other), count: one.abs_diff(other) }
}

impl PayloadIndex {
    /// Adds the rows of a piece of a field's list to `set`. The piece ends before the first text.
    ///
    /// # Errors
    /// As [`PayloadIndex::entries`].
    pub(super) fn add_range(
        &self,
        file: &dyn Sealed,
        field: &FieldDirectory,
        piece: RowPiece,
        set: &mut RowSet,
    ) -> Result<()> {
        let Some(pair) = PrefixPair::nearest(&field.prefixes, piece, self.rows()) else {
            return self.add_rows(file, field, &[piece], set);
        };
        let mut words = vec![0_u64; self.rows().div_ceil(64) as usize];
        let mut bytes = Vec::new();
        for bitmap in pair.low.iter().chain([&pair.high]) {
            self.section().read(file, bitmap.offset, bitmap_bytes(self.rows()), &mut bytes)?;
            for (word, other) in words.iter_mut().zip(bytes.as_chunks().0) {
                *word ^= u64::from_le_bytes(*other);
            }
        }
        // A row outside of the bitmaps' difference belongs to the piece, and the other way round.
        let mut edges = pair.edges(piece);
        edges.sort_unstable_by_key(|edge| edge.position);
        self.listed_rows(file, field, &edges, &mut |_, bytes| {
            for row in rows_of(bytes) {
                if let Some(word) = words.get_mut(row as usize / 64) {
                    *word ^= 1 << (row % 64);
                }
            }
            Ok(())
        })?;
        set.unite(&RowSet::from_words(self.rows(), words));
        Ok(())
    }
}

impl IndexDirectory {
    /// Encodes the places of all bitmaps, and the trailer. `offset` is their place in the section.
    pub(super) fn encode_prefixes(&self, offset: u64) -> Vec<u8> {
        let mut out = Vec::new();
        for field in &self.fields {
            encode_number(field.prefixes.len() as u64, &mut out);
            for PrefixBitmap { end, offset } in &field.prefixes {
                encode_number(*end, &mut out);
                encode_number(*offset, &mut out);
            }
        }
        let bytes = out.len() as u64;
        out.extend_from_slice(&MAGIC);
        [VERSION, offset, bytes].iter().for_each(|it| out.extend_from_slice(&it.to_le_bytes()));
        out
    }

    /// Sets the places of the bitmaps of all fields. The bitmaps are before `section_bytes`.
    ///
    /// # Errors
    /// `DataLoss` if this program does not write such places.
    pub(super) fn decode_prefixes(&mut self, mut bytes: &[u8], section_bytes: u64) -> Result<()> {
        let odd = || Error::data_loss("the bitmaps of ranges in the payload index are wrong");
        let length = bitmap_bytes(self.rows);
        for field in &mut self.fields {
            let count = decode_number(&mut bytes).filter(|it| *it <= PREFIXES_MAX);
            let mut prefixes = Vec::new();
            for _ in 0..count.ok_or_else(odd)? {
                let end = decode_number(&mut bytes).filter(|end| *end <= field.postings);
                let offset = decode_number(&mut bytes).filter(|offset| {
                    offset.checked_add(length).is_some_and(|end| end <= section_bytes)
                });
                let (end, offset) = end.zip(offset).ok_or_else(odd)?;
                prefixes.push(PrefixBitmap { end, offset });
            }
            if !prefixes.is_sorted_by(|one, other| one.end < other.end) {
                return Err(odd());
            }
            field.prefixes = prefixes;
        }
        if bytes.is_empty() { Ok(()) } else { Err(odd()) }
    }
}

/// Returns the offset of the places of the bitmaps. `trailer` are the bytes before the directory at
/// `directory`. Returns `None` if they are not the end of such places, as in segments of older
/// programs.
pub(super) fn decode_trailer(trailer: &[u8], directory: u64) -> Option<u64> {
    let mut rest = trailer.strip_prefix(&MAGIC)?;
    let version = take_u64(&mut rest)?;
    let offset = take_u64(&mut rest)?;
    let bytes = take_u64(&mut rest)?;
    let end = offset.checked_add(bytes)?.checked_add(TRAILER_BYTES)?;
    (version == VERSION && end == directory && rest.is_empty()).then_some(offset)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::super::build::PayloadIndexBuilder;
    use super::super::directory;
    use super::super::tests::segment_of_values;
    use super::*;
    use crate::filter::{Condition, DateRange, Filter, Range, parse_date};

    const ROWS: u32 = 70_000;

    /// Returns a payload with numbers that no other row has, in another order than the rows, and
    /// dates. A third of the rows has `lists`, and one of them two numbers there.
    fn payload(row: u32) -> Value {
        let number = u64::from(row) * 7919 % u64::from(ROWS);
        let date = format!("2024-{:02}-01T00:00:{:02}Z", 1 + number % 12, number / 12 % 60);
        let mixed = if row.is_multiple_of(2) { json!(number) } else { json!(date) };
        let mut payload = json!({ "n": number, "mixed": mixed });
        if row.is_multiple_of(3) {
            payload["lists"] = if row == 6 { json!([1, 60_000]) } else { json!(number) };
        }
        payload
    }

    fn numbers(key: &str, gte: f64, lt: f64) -> Filter {
        let range = Range { gte: Some(gte), lt: Some(lt), ..Range::default() };
        let condition = Condition::Range { key: key.into(), range };
        Filter { must: vec![condition], ..Filter::default() }
    }

    #[test]
    fn fields_with_one_value_per_row_have_bitmaps() {
        let mut builder = PayloadIndexBuilder::new(1 << 30, None);
        (0..ROWS).for_each(|row| builder.add(&serde_json::to_vec(&payload(row)).unwrap()));
        let mut bytes = Vec::new();
        let mut put = |piece: &[u8]| {
            bytes.extend_from_slice(piece);
            Ok(())
        };
        builder.write(&mut put).unwrap();
        let end = bytes.len() - directory::TRAILER_BYTES as usize;
        let offset = directory::decode_trailer(&bytes[end..]).unwrap().offset;
        let end_of_places = (offset - TRAILER_BYTES) as usize;
        let places = decode_trailer(&bytes[end_of_places..offset as usize], offset).unwrap();
        let mut directory = IndexDirectory::decode(&bytes[offset as usize..end], offset).unwrap();
        let read = &bytes[places as usize..end_of_places];
        directory.decode_prefixes(read, places).unwrap();
        let counts = directory.fields.iter().map(|it| (&*it.path, it.prefixes.len()));
        let counts: Vec<_> = counts.collect();
        assert_eq!(counts, [("lists", 0), ("mixed", 4), ("n", 4)]);
        assert_eq!(directory.encode_prefixes(places), bytes[places as usize..offset as usize]);
        assert!(directory.decode_prefixes(&read[1..], places).is_err());
        assert!(directory.decode_prefixes(read, places / 2).is_err());
    }

    #[test]
    fn long_ranges_select_the_rows_that_match() {
        let payloads: Vec<Value> = (0..ROWS).map(payload).collect();
        let test = segment_of_values(&payloads);
        let check = |filter: &Filter| {
            let parts = test.segment.select(filter).unwrap().selection.into_parts();
            let expected = (0..ROWS)
                .filter(|row| filter.matches(u64::from(*row) * 10, &payloads[*row as usize]));
            assert_eq!(parts.sure, RowSet::from_rows(ROWS, expected), "{filter:?}");
            assert_eq!(parts.undecided, None, "{filter:?}");
        };
        for key in ["n", "mixed", "lists"] {
            for start in [0.0, 1.0, 16_384.0, 50_000.0] {
                for width in [1_000.0, 16_384.0, 1e9] {
                    check(&numbers(key, start, start + width));
                }
            }
        }
        let range = DateRange { gte: parse_date("2024-03-01"), ..DateRange::default() };
        let dates = Condition::DateRange { key: "mixed".into(), range };
        check(&Filter { must: vec![dates], ..Filter::default() });
    }

    proptest! {
        #[test]
        fn a_pair_of_bitmaps_and_its_edges_are_the_piece(
            mut ends in prop::collection::vec(1_u64..1_000, 0..16),
            position in 0_u64..1_000,
            count in 1_u64..1_000,
        ) {
            ends.sort_unstable();
            ends.dedup();
            let prefixes = ends.iter().map(|end| PrefixBitmap { end: *end, offset: 0 });
            let prefixes: Vec<_> = prefixes.collect();
            let piece = RowPiece { position, count };
            if let Some(pair) = PrefixPair::nearest(&prefixes, piece, 640) {
                let mut inside = vec![false; 2_000];
                let mut invert = |positions: std::ops::Range<u64>| {
                    let inside = &mut inside[positions.start as usize..positions.end as usize];
                    inside.iter_mut().for_each(|it| *it = !*it);
                };
                invert(0..pair.high.end);
                pair.low.iter().for_each(|low| invert(0..low.end));
                for edge in pair.edges(piece) {
                    invert(edge.position..edge.position + edge.count);
                }
                let expected = (0..2_000).map(|at| at >= position && at < position + count);
                prop_assert!(inside.into_iter().eq(expected));
            }
        }
    }
}
