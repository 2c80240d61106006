//! Builds a payload index while a segment's payloads are written.

use std::collections::HashMap;

use base::{Error, Result};
use roaring::RoaringBitmap;
use serde_json::Value;

use super::directory::{
    BitmapPlace, DenseValue, DictionaryBlock, FieldBitmaps, FieldDirectory, IndexDirectory,
    UnindexedField, encode_trailer,
};
use super::key::{IndexKey, KeyOf, KeyRef, encode_number};
use super::paths::{PathValue, ValueParent, each_path};
use super::prefix::{PREFIX_STEP_MIN, PREFIXES_MAX, PrefixBitmap, bitmap_bytes};
use super::spare::SpareIndexMemory;
use super::{
    BLOCK_BYTES, DENSE_MAX, DENSE_ROWS_MIN, DENSE_SHARE, DIRECTORY_BYTES_MAX, FIELDS_MAX, KINDS,
    READ_BYTES_MAX, SMALL_BLOCK_BYTES, SMALL_BLOCKS_DIRECTORY_BYTES, TEXT_BYTES_MAX, UNINDEXED_MAX,
};
use crate::filter::parse_date;
use crate::points::RESERVED_KEY;

/// Bytes of memory of a distinct value besides its text: its entry in a hash table that may be half
/// empty, and in the sorted list.
const VALUE_BYTES: u64 = 96;
/// Bytes of memory of one value of one row: an entry in a growing list.
const POSTING_BYTES: u64 = 16;
/// Bytes of memory for values per row.
const ROW_BYTES: u64 = 256;

/// Bytes by which the memory of a builder grows at least.
const GROWTH_BYTES: u64 = 1 << 20;
/// Maximum bytes of memory of a builder. The rows of a field are counted in 32 bits.
const MEMORY_BYTES_MAX: u64 = u32::MAX as u64 * POSTING_BYTES;

/// Returns the bytes of memory of a builder for `rows` rows, in addition to the memory that the
/// coarse index has used before.
pub(crate) fn memory_bytes(rows: u64) -> u64 {
    rows * ROW_BYTES + (1 << 20)
}

/// Builder of a payload index, in the order of rows.
pub(crate) struct PayloadIndexBuilder<'a> {
    rows: u32,
    fields: Vec<FieldBuilder>,
    by_path: HashMap<String, FieldState>,
    unindexed: Vec<UnindexedField>,
    /// False once a path was left out and not named.
    complete: bool,
    bytes: u64,
    bytes_max: u64,
    spare: Option<&'a SpareIndexMemory>,
    /// Bytes of `spare`, which `bytes_max` includes.
    spare_bytes: u64,
    /// True once a payload was not JSON. The segment then has no index, so that queries notice the
    /// payload.
    broken: bool,
}

/// State of a field while the index is built.
#[derive(Clone, Copy)]
enum FieldState {
    Indexed(usize),
    Unindexed,
}

/// Values of one field, until they are written.
#[derive(Default)]
struct FieldBuilder {
    path: String,
    /// Number of each value, in the order of their first rows.
    values: HashMap<IndexKey, u32>,
    /// Rows and the numbers of their values, by row.
    postings: Vec<ValuePosting>,
    bitmaps: FieldSets,
    bytes: u64,
}

/// One value of one row.
#[derive(Clone, Copy)]
struct ValuePosting {
    row: u32,
    value: u32,
}

/// Rows of a field by a property.
#[derive(Default)]
struct FieldSets {
    present: RoaringBitmap,
    other: RoaringBitmap,
    null: RoaringBitmap,
    several: RoaringBitmap,
    long: RoaringBitmap,
    bare: RoaringBitmap,
}

impl<'a> PayloadIndexBuilder<'a> {
    /// Creates a builder that uses at most `bytes_max` bytes of memory, and what `spare` has. A
    /// field that does not fit gets no index.
    pub(crate) fn new(
        bytes_max: u64,
        spare: Option<&'a SpareIndexMemory>,
    ) -> PayloadIndexBuilder<'a> {
        PayloadIndexBuilder {
            rows: 0,
            fields: Vec::new(),
            by_path: HashMap::new(),
            unindexed: Vec::new(),
            complete: true,
            bytes: 0,
            bytes_max: bytes_max.min(MEMORY_BYTES_MAX),
            spare,
            spare_bytes: 0,
            broken: false,
        }
    }

    /// Adds the payload of the next row.
    pub(crate) fn add(&mut self, payload: &[u8]) {
        let row = self.rows;
        self.rows += 1;
        if payload.is_empty() || self.broken {
            return;
        }
        let Ok(payload) = serde_json::from_slice::<Value>(payload) else {
            self.broken = true;
            self.fields.clear();
            return;
        };
        each_path(&payload, &mut |path, value, parent| self.value(row, path, value, parent));
        while self.bytes > self.bytes_max {
            if !self.has_grown() {
                self.drop_largest();
            }
        }
    }

    /// Reserves memory for more values. Returns false if there is none.
    fn has_grown(&mut self) -> bool {
        // Memory that other work needs is not reserved before it is used.
        let more = GROWTH_BYTES.max(self.bytes_max / 8).max(self.bytes - self.bytes_max);
        let spare_bytes = self.spare_bytes + more;
        let grows = self.bytes_max + more <= MEMORY_BYTES_MAX
            && self.spare.is_some_and(|spare| spare.grow(spare_bytes));
        if grows {
            self.spare_bytes = spare_bytes;
            self.bytes_max += more;
        }
        grows
    }

    fn value(&mut self, row: u32, path: &str, value: PathValue<'_>, parent: ValueParent) {
        let Some(field) = self.field(path) else { return };
        let before = field.bytes;
        field.add(row, value, parent);
        let grown = field.bytes - before;
        self.bytes += grown;
    }

    /// Returns the builder of the field at `path`, or `None` if the field is not indexed.
    fn field(&mut self, path: &str) -> Option<&mut FieldBuilder> {
        let state = match self.by_path.get(path) {
            Some(state) => *state,
            None => self.new_field(path)?,
        };
        match state {
            FieldState::Indexed(at) => self.fields.get_mut(at),
            FieldState::Unindexed => None,
        }
    }

    /// Adds a field. Returns `None` for the reserved key, and for a field beyond [`FIELDS_MAX`].
    fn new_field(&mut self, path: &str) -> Option<FieldState> {
        if path == RESERVED_KEY {
            return None;
        }
        if self.by_path.len() >= FIELDS_MAX {
            if self.unindexed.len() < UNINDEXED_MAX && path.len() <= TEXT_BYTES_MAX {
                let reason = format!("a segment indexes at most {FIELDS_MAX} fields");
                self.unindexed.push(UnindexedField { path: path.to_owned(), reason });
                self.by_path.insert(path.to_owned(), FieldState::Unindexed);
            } else {
                self.complete = false;
            }
            return None;
        }
        let state = FieldState::Indexed(self.fields.len());
        self.fields.push(FieldBuilder { path: path.to_owned(), ..FieldBuilder::default() });
        self.by_path.insert(path.to_owned(), state);
        Some(state)
    }

    /// Drops the field that takes the most memory.
    fn drop_largest(&mut self) {
        let Some(field) = self.fields.iter_mut().max_by_key(|field| field.bytes) else {
            self.bytes = 0;
            return;
        };
        self.bytes -= field.bytes;
        let path = std::mem::take(field).path;
        self.by_path.insert(path.clone(), FieldState::Unindexed);
        let reason = "its values take too much memory to sort".to_owned();
        self.unindexed.push(UnindexedField { path, reason });
    }

    /// Returns false if a payload was not JSON. The segment must have no index then.
    pub(crate) fn is_sound(&self) -> bool {
        !self.broken
    }

    /// Writes the index through `put`.
    ///
    /// # Errors
    /// The error of `put`.
    pub(crate) fn write(mut self, put: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let mut writer = IndexWriter { put, offset: 0, rows: self.rows, collected: Vec::new() };
        let mut directory = IndexDirectory {
            rows: self.rows,
            complete: self.complete,
            fields: Vec::new(),
            unindexed: std::mem::take(&mut self.unindexed),
        };
        // The other half is for paths and reasons of fields without an index.
        let mut room = DIRECTORY_BYTES_MAX / 2;
        for (at, field) in self.fields.drain(..).enumerate() {
            // A dropped field left an empty field without a name. A real field may have an empty
            // name too.
            let state = self.by_path.get(&field.path);
            if matches!(state, Some(FieldState::Indexed(of)) if *of == at) {
                let field = field.write(&mut writer)?;
                match room.checked_sub(field.encoded_bytes()) {
                    Some(left) => {
                        room = left;
                        directory.fields.push(field);
                    }
                    None => directory.unindexed.push(UnindexedField {
                        path: field.path.into(),
                        reason: "its directory does not fit in memory".to_owned(),
                    }),
                }
            }
        }
        directory.fields.sort_by(|a, b| a.path.cmp(&b.path));
        let places = directory.encode_prefixes(writer.offset);
        writer.put(&places)?;
        let bytes = directory.encode();
        let trailer = encode_trailer(writer.offset, bytes.len() as u64);
        writer.put(&bytes)?;
        writer.put(&trailer)
    }
}

impl FieldBuilder {
    /// Adds a value of `row`.
    fn add(&mut self, row: u32, value: PathValue<'_>, parent: ValueParent) {
        if value == PathValue::Null {
            self.bitmaps.null.insert(row);
            return;
        }
        self.bitmaps.present.insert(row);
        if parent == ValueParent::Object {
            self.bitmaps.bare.insert(row);
        }
        let PathValue::Scalar(scalar) = value else {
            self.bitmaps.other.insert(row);
            return;
        };
        match KeyRef::of(scalar) {
            Some(key) if key.text_bytes() <= TEXT_BYTES_MAX => self.add_key(row, key),
            _ => {
                self.bitmaps.long.insert(row);
            }
        }
    }

    /// Adds a value of a row. A text that is a date is also added as a date.
    fn add_key(&mut self, row: u32, key: KeyRef<'_>) {
        let value = self.number_of(key);
        if self.postings.last().is_some_and(|last| last.row == row && last.value != value) {
            self.bitmaps.several.insert(row);
        }
        self.post(row, value);
        if let KeyOf::Text(text) = key
            && let Some(micros) = parse_date(text)
        {
            let date = self.number_of(KeyOf::Date(micros));
            // Written before the text, so that the last entry of the row belongs to a value.
            self.post(row, date);
            let last = self.postings.len() - 1;
            self.postings.swap(last - 1, last);
        }
    }

    fn post(&mut self, row: u32, value: u32) {
        self.postings.push(ValuePosting { row, value });
        self.bytes += POSTING_BYTES;
    }

    fn number_of(&mut self, key: KeyRef<'_>) -> u32 {
        let key = key.into_owned();
        let next = self.values.len() as u32;
        let bytes = VALUE_BYTES + key.as_ref().text_bytes() as u64;
        let number = *self.values.entry(key).or_insert(next);
        if number == next {
            self.bytes += bytes;
        }
        number
    }

    /// Writes everything but the directory's entry, which it returns.
    fn write(self, writer: &mut IndexWriter<'_>) -> Result<FieldDirectory> {
        let FieldBuilder { path, values, postings, bitmaps, .. } = self;
        let mut rows_of = RowsOfValues::new(values.len(), &postings);
        drop(postings);
        rows_of.remove_repeated();
        let mut values: Vec<(IndexKey, u32)> = values.into_iter().collect();
        values.sort_unstable();
        let mut kinds = [0; KINDS];
        values.iter().for_each(|(key, _)| kinds[key.as_ref().kind()] += 1);
        let dense = rows_of.dense(writer.rows);
        let mut field = FieldDirectory {
            path: path.into(),
            kinds,
            bitmaps: bitmaps.write(writer)?,
            dense: Vec::with_capacity(dense.len()),
            rows_offset: 0,
            postings: 0,
            blocks: Vec::new(),
            prefixes: Vec::new(),
        };
        for (key, number) in &values {
            if dense.contains(number) {
                let rows = RoaringBitmap::from_sorted_iter(rows_of.rows(*number).iter().copied());
                let rows = rows.map_err(|error| {
                    Error::internal("rows of a value are not sorted").with_source(error)
                })?;
                let place = writer.bitmap(&rows)?;
                field.dense.push(DenseValue { key: key.clone(), rows: place });
            }
        }
        values.retain(|(_, number)| !dense.contains(number));
        field.rows_offset = writer.offset;
        for (_, number) in &values {
            let rows = rows_of.rows(*number);
            field.postings += rows.len() as u64;
            writer.rows(rows)?;
        }
        writer.end_rows()?;
        field.blocks = writer.dictionary(&values, &rows_of)?;
        if bitmaps.several.is_empty() {
            field.prefixes = writer.prefixes(&values, &rows_of)?;
        }
        Ok(field)
    }
}

/// Rows of each value, sorted by value.
struct RowsOfValues {
    /// First row of each value in `rows`, and the number of rows.
    starts: Vec<u32>,
    /// Rows of each value without repeated ones.
    counts: Vec<u32>,
    rows: Vec<u32>,
}

impl RowsOfValues {
    /// Sorts `postings`, which are in the order of rows, by value.
    fn new(values: usize, postings: &[ValuePosting]) -> RowsOfValues {
        let mut starts = vec![0_u32; values + 1];
        postings.iter().for_each(|posting| starts[posting.value as usize + 1] += 1);
        let mut total = 0;
        for start in &mut starts {
            total += *start;
            *start = total;
        }
        let mut next = starts.clone();
        let mut rows = vec![0; postings.len()];
        for posting in postings {
            let place = &mut next[posting.value as usize];
            rows[*place as usize] = posting.row;
            *place += 1;
        }
        let counts = starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
        RowsOfValues { starts, counts, rows }
    }

    /// Removes rows that a list names twice for the same value.
    fn remove_repeated(&mut self) {
        for (value, count) in self.counts.iter_mut().enumerate() {
            let first = self.starts[value] as usize;
            let rows = &mut self.rows[first..first + *count as usize];
            let mut kept = 0;
            for at in 0..rows.len() {
                if kept == 0 || rows[kept - 1] != rows[at] {
                    rows[kept] = rows[at];
                    kept += 1;
                }
            }
            *count = kept as u32;
        }
    }

    /// Returns the rows with the value number `value`, in ascending order.
    fn rows(&self, value: u32) -> &[u32] {
        let first = self.starts[value as usize] as usize;
        &self.rows[first..first + self.counts[value as usize] as usize]
    }

    /// Returns the numbers of the values that get a bitmap.
    fn dense(&self, rows: u32) -> std::collections::HashSet<u32> {
        let least = (u64::from(rows) / DENSE_SHARE).max(DENSE_ROWS_MIN);
        let mut dense: Vec<u32> = (0..self.counts.len() as u32)
            .filter(|value| u64::from(self.counts[*value as usize]) >= least)
            .collect();
        dense.sort_unstable_by_key(|value| std::cmp::Reverse(self.counts[*value as usize]));
        dense.truncate(DENSE_MAX);
        dense.into_iter().collect()
    }
}

impl FieldSets {
    fn write(&self, writer: &mut IndexWriter<'_>) -> Result<FieldBitmaps> {
        Ok(FieldBitmaps {
            present: writer.bitmap(&self.present)?,
            other: writer.bitmap(&self.other)?,
            null: writer.bitmap(&self.null)?,
            several: writer.bitmap(&self.several)?,
            long: writer.bitmap(&self.long)?,
            bare: writer.bitmap(&self.bare)?,
        })
    }
}

/// Writer that counts the bytes of the section.
struct IndexWriter<'a> {
    put: &'a mut dyn FnMut(&[u8]) -> Result<()>,
    offset: u64,
    /// Rows of the segment.
    rows: u32,
    /// Bytes of rows that are not written yet.
    collected: Vec<u8>,
}

impl IndexWriter<'_> {
    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.offset += bytes.len() as u64;
        (self.put)(bytes)
    }

    /// Collects rows, which are written once they are many.
    fn rows(&mut self, rows: &[u32]) -> Result<()> {
        for row in rows {
            self.collected.extend_from_slice(&row.to_le_bytes());
            if self.collected.len() >= READ_BYTES_MAX {
                self.end_rows()?;
            }
        }
        Ok(())
    }

    fn end_rows(&mut self) -> Result<()> {
        let bytes = std::mem::take(&mut self.collected);
        self.put(&bytes)?;
        self.collected = bytes;
        self.collected.clear();
        Ok(())
    }

    /// Writes a bitmap, unless it has no row or all rows.
    fn bitmap(&mut self, rows: &RoaringBitmap) -> Result<BitmapPlace> {
        let mut place = BitmapPlace { count: rows.len(), offset: self.offset, bytes: 0 };
        if rows.is_empty() || rows.len() == u64::from(self.rows) {
            return Ok(place);
        }
        let mut bytes = Vec::with_capacity(rows.serialized_size());
        rows.serialize_into(&mut bytes)
            .map_err(|error| Error::internal("a bitmap cannot be written").caused_by(error))?;
        place.bytes = bytes.len() as u64;
        self.put(&bytes)?;
        Ok(place)
    }

    /// Writes bitmaps of the rows before positions of the list, up to the first text. No row is
    /// there twice before it.
    fn prefixes(
        &mut self,
        values: &[(IndexKey, u32)],
        rows_of: &RowsOfValues,
    ) -> Result<Vec<PrefixBitmap>> {
        let step = u64::from(self.rows).div_ceil(PREFIXES_MAX).max(PREFIX_STEP_MIN);
        let mut words = vec![0_u64; self.rows.div_ceil(64) as usize];
        let mut bytes = Vec::new();
        let mut prefixes: Vec<PrefixBitmap> = Vec::new();
        let mut position = 0;
        for (_, number) in values.iter().take_while(|(key, _)| !matches!(key, KeyOf::Text(_))) {
            let rows = rows_of.rows(*number);
            rows.iter().for_each(|row| words[*row as usize / 64] |= 1 << (row % 64));
            position += rows.len() as u64;
            if position - prefixes.last().map_or(0, |it| it.end) >= step {
                bytes.clear();
                bytes.reserve(bitmap_bytes(self.rows) as usize);
                words.iter().for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
                prefixes.push(PrefixBitmap { end: position, offset: self.offset });
                self.put(&bytes)?;
            }
        }
        Ok(prefixes)
    }

    /// Writes the dictionary of `values` in blocks.
    fn dictionary(
        &mut self,
        values: &[(IndexKey, u32)],
        rows_of: &RowsOfValues,
    ) -> Result<Vec<DictionaryBlock>> {
        let mut blocks = Vec::new();
        let mut bytes = Vec::with_capacity(BLOCK_BYTES + TEXT_BYTES_MAX);
        let mut position = 0;
        let mut first: Option<(&IndexKey, u64)> = None;
        // Of the directory, estimated.
        let mut directory_bytes = 0;
        for (at, (key, number)) in values.iter().enumerate() {
            let count = rows_of.rows(*number).len() as u64;
            first.get_or_insert((key, position));
            key.as_ref().encode(&mut bytes);
            encode_number(count, &mut bytes);
            position += count;
            let is_small = directory_bytes < SMALL_BLOCKS_DIRECTORY_BYTES;
            let end = if is_small { SMALL_BLOCK_BYTES } else { BLOCK_BYTES };
            if (bytes.len() >= end || at + 1 == values.len())
                && let Some((key, position)) = first.take()
            {
                directory_bytes += size_of::<DictionaryBlock>() + key.as_ref().text_bytes();
                let offset = self.offset;
                self.put(&bytes)?;
                blocks.push(DictionaryBlock {
                    first: key.clone(),
                    offset,
                    bytes: bytes.len() as u64,
                    position,
                });
                bytes.clear();
            }
        }
        Ok(blocks)
    }
}
