//! Directory of a payload index: fields, bitmaps, frequent values and the first value of each
//! dictionary block. It is in memory while the segment is open.

use base::{Error, Result};

use super::key::{IndexKey, KeyOf, KeyRef, decode_number, encode_number, take_u64};
use super::prefix::PrefixBitmap;
use super::{IndexedFieldInfo, KINDS};

const MAGIC: [u8; 8] = *b"MPPAYIDX";
const VERSION: u32 = 1;
/// Bytes at the end of the section: magic, version u32, zero u32, offset and bytes of the directory
/// u64.
pub(super) const TRAILER_BYTES: u64 = 32;

/// Bitmap of rows. It has no bytes if no row or every row is in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct BitmapPlace {
    /// Number of rows in the bitmap.
    pub(super) count: u64,
    /// Offset in the section.
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

/// Bitmaps of the rows of one field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FieldBitmaps {
    /// Rows with a value other than null.
    pub(super) present: BitmapPlace,
    /// Rows with an object, or a list inside a list.
    pub(super) other: BitmapPlace,
    /// Rows with null.
    pub(super) null: BitmapPlace,
    /// Rows with several different values of the dictionary.
    pub(super) several: BitmapPlace,
    /// Rows with a text that is too long for the dictionary.
    pub(super) long: BitmapPlace,
    /// Rows with a value that is not an element of a list.
    pub(super) bare: BitmapPlace,
}

impl FieldBitmaps {
    /// Returns true if the values of the dictionary are those under the path with `[]` at its end.
    /// That is the case if no value is outside of a list, and no list is in a list.
    pub(super) fn has_all_elements(&self) -> bool {
        self.bare.count == 0 && self.other.count == 0
    }

    fn all(&self) -> [&BitmapPlace; 6] {
        [&self.present, &self.other, &self.null, &self.several, &self.long, &self.bare]
    }
}

/// Value with a bitmap of its rows.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct DenseValue {
    pub(super) key: IndexKey,
    pub(super) rows: BitmapPlace,
}

/// Values in ascending order, each with its number of rows.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct DictionaryBlock {
    pub(super) first: IndexKey,
    /// Offset in the section.
    pub(super) offset: u64,
    pub(super) bytes: u64,
    /// Position of its first row in the field's list.
    pub(super) position: u64,
}

/// Field with an index.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct FieldDirectory {
    pub(super) path: Box<str>,
    /// Different values by [`KeyRef::kind`].
    pub(super) kinds: [u64; KINDS],
    pub(super) bitmaps: FieldBitmaps,
    /// Frequent values, ascending.
    pub(super) dense: Vec<DenseValue>,
    /// Offset of the list of rows of all other values, u32 each.
    pub(super) rows_offset: u64,
    /// Length of that list.
    pub(super) postings: u64,
    pub(super) blocks: Vec<DictionaryBlock>,
    /// Bitmaps of the rows before some positions of the list, ascending. The encoded directory
    /// does not have their places.
    pub(super) prefixes: Vec<PrefixBitmap>,
}

/// Field without an index, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UnindexedField {
    pub(super) path: String,
    pub(super) reason: String,
}

/// All fields of a segment.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct IndexDirectory {
    pub(super) rows: u32,
    /// True if every field of the segment is named here.
    pub(super) complete: bool,
    /// Indexed fields, in the order of their paths.
    pub(super) fields: Vec<FieldDirectory>,
    pub(super) unindexed: Vec<UnindexedField>,
}

/// Encodes the end of the section.
pub(super) fn encode_trailer(offset: u64, bytes: u64) -> Vec<u8> {
    let mut trailer = MAGIC.to_vec();
    trailer.extend_from_slice(&VERSION.to_le_bytes());
    trailer.extend_from_slice(&[0; 4]);
    trailer.extend_from_slice(&offset.to_le_bytes());
    trailer.extend_from_slice(&bytes.to_le_bytes());
    trailer
}

/// Place of the directory in the section.
#[derive(Clone, Copy, Debug)]
pub(super) struct DirectoryPlace {
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

/// Returns the place of the directory.
///
/// # Errors
/// `DataLoss` if the section ends otherwise, or was written by a newer program.
pub(super) fn decode_trailer(mut trailer: &[u8]) -> Result<DirectoryPlace> {
    let odd = || Error::data_loss("the payload index does not end as this program writes it");
    trailer = trailer.strip_prefix(&MAGIC).ok_or_else(odd)?;
    let version = take_u64(&mut trailer).ok_or_else(odd)?;
    let offset = take_u64(&mut trailer).ok_or_else(odd)?;
    let bytes = take_u64(&mut trailer).ok_or_else(odd)?;
    if version != u64::from(VERSION) || !trailer.is_empty() {
        return Err(odd());
    }
    Ok(DirectoryPlace { offset, bytes })
}

fn encode_text(text: &str, out: &mut Vec<u8>) {
    encode_number(text.len() as u64, out);
    out.extend_from_slice(text.as_bytes());
}

fn encode_bitmap(place: &BitmapPlace, out: &mut Vec<u8>) {
    [place.count, place.offset, place.bytes].iter().for_each(|number| encode_number(*number, out));
}

impl FieldDirectory {
    fn encode(&self, out: &mut Vec<u8>) {
        encode_text(&self.path, out);
        self.kinds.iter().for_each(|count| encode_number(*count, out));
        self.bitmaps.all().iter().for_each(|place| encode_bitmap(place, out));
        encode_number(self.dense.len() as u64, out);
        for dense in &self.dense {
            dense.key.as_ref().encode(out);
            encode_bitmap(&dense.rows, out);
        }
        encode_number(self.rows_offset, out);
        encode_number(self.postings, out);
        encode_number(self.blocks.len() as u64, out);
        for block in &self.blocks {
            block.first.as_ref().encode(out);
            [block.offset, block.bytes, block.position]
                .iter()
                .for_each(|number| encode_number(*number, out));
        }
    }

    /// Returns the length of its bytes.
    pub(super) fn encoded_bytes(&self) -> usize {
        let mut bytes = Vec::new();
        self.encode(&mut bytes);
        bytes.len()
    }

    fn memory_bytes(&self) -> u64 {
        let keys = self.dense.iter().map(|dense| &dense.key);
        let keys = keys.chain(self.blocks.iter().map(|block| &block.first));
        let texts: usize = keys.map(|key| key.as_ref().text_bytes()).sum();
        (size_of::<FieldDirectory>()
            + self.path.len()
            + texts
            + size_of_val(&self.dense[..])
            + size_of_val(&self.blocks[..])
            + size_of_val(&self.prefixes[..])) as u64
    }

    pub(super) fn info(&self) -> IndexedFieldInfo {
        IndexedFieldInfo {
            path: self.path.clone().into(),
            rows: self.bitmaps.present.count,
            values: self.kinds,
            unindexed: String::new(),
        }
    }
}

impl IndexDirectory {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        encode_number(u64::from(self.rows), &mut out);
        encode_number(u64::from(self.complete), &mut out);
        encode_number(self.fields.len() as u64, &mut out);
        self.fields.iter().for_each(|field| field.encode(&mut out));
        encode_number(self.unindexed.len() as u64, &mut out);
        for UnindexedField { path, reason } in &self.unindexed {
            encode_text(path, &mut out);
            encode_text(reason, &mut out);
        }
        out
    }

    /// Decodes a directory of a section of `section_bytes`.
    ///
    /// # Errors
    /// `DataLoss` if this program does not write such a directory.
    pub(super) fn decode(bytes: &[u8], section_bytes: u64) -> Result<IndexDirectory> {
        let mut input = DirectoryBytes { rest: bytes, section_bytes };
        input
            .directory()
            .filter(|_| input.rest.is_empty())
            .ok_or_else(|| Error::data_loss("the directory of the payload index is wrong"))
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        let fields: u64 = self.fields.iter().map(FieldDirectory::memory_bytes).sum();
        let unindexed = self.unindexed.iter().map(|field| {
            (size_of::<UnindexedField>() + field.path.len() + field.reason.len()) as u64
        });
        fields + unindexed.sum::<u64>()
    }
}

/// Rest of a directory's bytes.
struct DirectoryBytes<'a> {
    rest: &'a [u8],
    section_bytes: u64,
}

impl<'a> DirectoryBytes<'a> {
    fn number(&mut self) -> Option<u64> {
        decode_number(&mut self.rest)
    }

    /// Reads a list. Its length is not trusted before its elements were read.
    fn list<T>(&mut self, mut one: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = self.number()?;
        let mut list = Vec::new();
        for _ in 0..count {
            list.push(one(self)?);
        }
        Some(list)
    }

    fn text(&mut self) -> Option<&'a str> {
        let length = usize::try_from(self.number()?).ok()?;
        let text = self.rest.get(..length)?;
        self.rest = &self.rest[length..];
        std::str::from_utf8(text).ok()
    }

    fn key(&mut self) -> Option<IndexKey> {
        KeyRef::decode(&mut self.rest).map(KeyOf::into_owned)
    }

    /// Returns `offset` if that many bytes from it on are in the section.
    fn within(&self, offset: u64, bytes: u64) -> Option<u64> {
        offset.checked_add(bytes).filter(|end| *end <= self.section_bytes).map(|_| offset)
    }

    fn bitmap(&mut self) -> Option<BitmapPlace> {
        let count = self.number()?;
        let offset = self.number()?;
        let bytes = self.number()?;
        Some(BitmapPlace { count, offset: self.within(offset, bytes)?, bytes })
    }

    /// Reads the directory of one field. Returns `None` if it is damaged.
    fn field(&mut self) -> Option<FieldDirectory> {
        let path = self.text()?.into();
        let mut kinds = [0; KINDS];
        for count in &mut kinds {
            *count = self.number()?;
        }
        let bitmaps = FieldBitmaps {
            present: self.bitmap()?,
            other: self.bitmap()?,
            null: self.bitmap()?,
            several: self.bitmap()?,
            long: self.bitmap()?,
            bare: self.bitmap()?,
        };
        let dense =
            self.list(|input| Some(DenseValue { key: input.key()?, rows: input.bitmap()? }))?;
        let rows_offset = self.number()?;
        let postings = self.number()?;
        self.within(rows_offset, postings.checked_mul(4)?)?;
        let blocks = self.list(|input| {
            let first = input.key()?;
            let offset = input.number()?;
            let bytes = input.number()?;
            let position = input.number().filter(|position| *position <= postings)?;
            Some(DictionaryBlock { first, offset: input.within(offset, bytes)?, bytes, position })
        })?;
        let ascending = dense.is_sorted_by(|a, b| a.key < b.key)
            && blocks.is_sorted_by(|a, b| a.first < b.first && a.position <= b.position);
        ascending.then_some(FieldDirectory {
            path,
            kinds,
            bitmaps,
            dense,
            rows_offset,
            postings,
            blocks,
            prefixes: Vec::new(),
        })
    }

    /// Reads the whole directory. Returns `None` if it is damaged.
    fn directory(&mut self) -> Option<IndexDirectory> {
        let rows = u32::try_from(self.number()?).ok()?;
        let complete = match self.number()? {
            0 => false,
            1 => true,
            _ => return None,
        };
        let fields = self.list(Self::field)?;
        let unindexed = self.list(|input| {
            Some(UnindexedField {
                path: input.text()?.to_owned(),
                reason: input.text()?.to_owned(),
            })
        })?;
        let ascending = fields.is_sorted_by(|a, b| a.path < b.path);
        ascending.then_some(IndexDirectory { rows, complete, fields, unindexed })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_cause_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), length in 0_u64..400) {
            let _ = IndexDirectory::decode(&bytes, length);
            let _ = decode_trailer(&bytes);
        }
    }

    #[test]
    fn a_trailer_decodes_to_itself() {
        let trailer = encode_trailer(7, 9);
        assert_eq!(trailer.len() as u64, TRAILER_BYTES);
        let place = decode_trailer(&trailer).unwrap();
        assert_eq!((place.offset, place.bytes), (7, 9));
        assert!(decode_trailer(&trailer[1..]).is_err());
    }
}
