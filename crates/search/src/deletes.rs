//! Deleted rows of a segment: a bitmap that queries share while writers change it, and its file.
//!
//! A segment never changes, so its deletes are kept beside it. In memory the bitmap is divided into
//! chunks, and a writer copies a chunk only if a query still uses it. On disk it is a file of
//! checksummed pages. A newer version is a new file. If a page is damaged, all of its rows count as
//! unavailable, because it is unknown which of them are deleted.
//!
//! A segment that is not open must still lose points that are deleted or replaced. Their ids are
//! kept in the same file as pending deletes until the segment can be searched for them.

use std::sync::Arc;

use base::{Error, Result};

/// Bytes of a page, on every medium.
const PAGE_BYTES: usize = 4096;
/// Bytes before the words of a page.
const PAGE_HEADER_BYTES: usize = 16;
/// Words of 64 rows per page, and per chunk in memory.
const CHUNK_WORDS: usize = (PAGE_BYTES - PAGE_HEADER_BYTES) / 8;
/// Rows per chunk.
const CHUNK_ROWS: u32 = (CHUNK_WORDS * 64) as u32;
const MAGIC: [u8; 8] = *b"MPDELETE";
const VERSION: u32 = 1;
/// Flag of a page whose rows were unknown when the page was written.
const FLAG_UNKNOWN: u32 = 1;

/// Maximum pending deletes of a segment that is not open.
pub(crate) const PENDING_DELETES_MAX: usize = 1 << 20;

/// Deleted rows of one segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deletes {
    rows: u32,
    count: u32,
    chunks: Vec<Option<Arc<DeletesChunk>>>,
}

/// Bits of some rows.
#[derive(Clone, Debug, PartialEq, Eq)]
struct DeletesChunk {
    words: [u64; CHUNK_WORDS],
    /// True if the words were lost. They are then all ones.
    unknown: bool,
}

impl Deletes {
    /// Creates deletes of `rows` live rows.
    pub fn none(rows: u32) -> Deletes {
        Deletes { rows, count: 0, chunks: vec![None; rows.div_ceil(CHUNK_ROWS) as usize] }
    }

    /// Returns the number of rows, live or deleted.
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// Counts the deleted rows, including all rows of damaged pages.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Returns true if `row` is deleted or beyond the segment.
    pub fn contains(&self, row: u32) -> bool {
        if row >= self.rows {
            return true;
        }
        let RowBit { chunk, word, bit } = RowBit::of(row);
        self.chunks[chunk].as_ref().is_some_and(|chunk| chunk.words[word] >> bit & 1 == 1)
    }

    /// Marks `row` as deleted. Returns false if it already was, or is beyond the segment.
    pub fn insert(&mut self, row: u32) -> bool {
        if self.contains(row) {
            return false;
        }
        let RowBit { chunk, word, bit } = RowBit::of(row);
        let empty = || Arc::new(DeletesChunk { words: [0; CHUNK_WORDS], unknown: false });
        Arc::make_mut(self.chunks[chunk].get_or_insert_with(empty)).words[word] |= 1 << bit;
        self.count += 1;
        true
    }

    /// Returns true if some rows count as deleted only because a page of the file was damaged.
    pub(crate) fn has_unknown(&self) -> bool {
        self.chunks.iter().flatten().any(|chunk| chunk.unknown)
    }

    /// Returns true if it is unknown whether `row` is deleted.
    pub(crate) fn is_unknown(&self, row: u32) -> bool {
        let chunk = self.chunks.get((row / CHUNK_ROWS) as usize);
        row < self.rows
            && chunk.is_some_and(|chunk| chunk.as_ref().is_some_and(|chunk| chunk.unknown))
    }

    /// Returns the rows that were deleted since `before`, an earlier state of these deletes. Skips
    /// chunks that both share.
    pub(crate) fn since<'a>(&'a self, before: &'a Deletes) -> impl Iterator<Item = u32> + 'a {
        let changed = (0_u32..).zip(&self.chunks).filter_map(|(at, chunk)| {
            let old = before.chunks.get(at as usize).and_then(Option::as_ref);
            let new = chunk.as_ref()?;
            (!old.is_some_and(|old| Arc::ptr_eq(old, new))).then_some((at, new, old))
        });
        changed.flat_map(|(at, new, old)| {
            (0_u32..).zip(&new.words).flat_map(move |(word, &bits)| {
                let fresh = bits & !old.map_or(0, |old| old.words[word as usize]);
                let first = at * CHUNK_ROWS + word * 64;
                (0..64).filter(move |bit| fresh >> bit & 1 == 1).map(move |bit| first + bit)
            })
        })
    }

    /// Returns a bit per row, 1 if it is deleted, first row lowest: `rows / 64` words, rounded up.
    pub(crate) fn words(&self) -> impl Iterator<Item = u64> + '_ {
        let words = self.chunks.iter().flat_map(|chunk| {
            let words = chunk.as_deref().map(|chunk| &chunk.words);
            (0..CHUNK_WORDS).map(move |at| words.map_or(0, |words| words[at]))
        });
        words.take(self.rows.div_ceil(64) as usize)
    }

    #[cfg(test)]
    fn memory_bytes(&self) -> u64 {
        (self.chunks.iter().flatten().count() * PAGE_BYTES) as u64
    }

    /// Returns the maximum bytes of memory of the deletes of `rows` rows.
    pub(crate) fn memory_bytes_max(rows: u32) -> u64 {
        u64::from(rows.div_ceil(CHUNK_ROWS)) * PAGE_BYTES as u64
    }

    /// Marks all rows of a damaged chunk as deleted, because it is unknown which are.
    fn lose(&mut self, chunk: usize) {
        let first = chunk as u32 * CHUNK_ROWS;
        let rows = (self.rows - first).min(CHUNK_ROWS);
        let mut words = [0; CHUNK_WORDS];
        for row in 0..rows as usize {
            words[row / 64] |= 1 << (row % 64);
        }
        self.chunks[chunk] = Some(Arc::new(DeletesChunk { words, unknown: true }));
    }

    /// Counts the deleted rows of all chunks again.
    fn recount(&mut self) {
        let words = self.chunks.iter().flatten().flat_map(|chunk| chunk.words);
        self.count = words.map(u64::count_ones).sum();
    }
}

/// Position of the bit of a row.
struct RowBit {
    chunk: usize,
    /// Index of the word of 64 bits in the chunk.
    word: usize,
    /// Index of the bit in the word.
    bit: u32,
}

impl RowBit {
    fn of(row: u32) -> RowBit {
        let within = row % CHUNK_ROWS;
        RowBit {
            chunk: (row / CHUNK_ROWS) as usize,
            word: (within / 64) as usize,
            bit: within % 64,
        }
    }
}

/// Content of a file of deletes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeletesFile {
    /// UUID of the segment.
    pub segment: [u8; 16],
    /// Deleted rows.
    pub deletes: Deletes,
    /// Ids to look up and delete once the segment is open.
    pub pending_deletes: Vec<u64>,
}

impl DeletesFile {
    /// Encodes the file, which is a header page, one page per chunk, and pages of ids.
    pub fn encode(&self) -> Vec<u8> {
        let chunks = self.deletes.chunks.len();
        let mut out = Vec::with_capacity(
            (1 + chunks + self.pending_deletes.len().div_ceil(CHUNK_WORDS)) * PAGE_BYTES,
        );
        let mut header = [0; PAGE_BYTES];
        header[8..16].copy_from_slice(&MAGIC);
        header[16..20].copy_from_slice(&VERSION.to_le_bytes());
        header[20..24].copy_from_slice(&self.deletes.rows.to_le_bytes());
        header[24..40].copy_from_slice(&self.segment);
        header[40..48].copy_from_slice(&(self.pending_deletes.len() as u64).to_le_bytes());
        finish_page(&mut out, header, 0, 0);
        for chunk in &self.deletes.chunks {
            let mut page = [0; PAGE_BYTES];
            let mut flags = 0;
            if let Some(chunk) = chunk {
                put_words(&mut page, &chunk.words);
                flags = if chunk.unknown { FLAG_UNKNOWN } else { 0 };
            }
            finish_page(&mut out, page, self.page_seed(), flags);
        }
        for ids in self.pending_deletes.chunks(CHUNK_WORDS) {
            let mut page = [0; PAGE_BYTES];
            put_words(&mut page, ids);
            finish_page(&mut out, page, self.page_seed(), 0);
        }
        out
    }

    /// Decodes a file of the segment `segment`, which has `rows` rows. Also returns the numbers of
    /// damaged pages, whose rows all count as deleted.
    ///
    /// # Errors
    /// `DataLoss` if the header or the ids are damaged, or the file belongs to another segment. It
    /// is then unknown which rows are deleted.
    pub fn decode(bytes: &[u8], segment: [u8; 16], rows: u32) -> Result<(DeletesFile, Vec<u32>)> {
        let header = page(bytes, 0, 0)?;
        let field = |at: usize| {
            u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        if header[8..16] != MAGIC {
            return Err(Error::data_loss("deletes: not such a file"));
        }
        if field(16) != VERSION {
            return Err(Error::data_loss(format!(
                "deletes: format {}, this program knows {VERSION}; use a newer one",
                field(16)
            )));
        }
        if header[24..40] != segment || field(20) != rows {
            return Err(Error::data_loss("deletes: they belong to another segment"));
        }
        let pending_deletes = u64::from(field(40)) | u64::from(field(44)) << 32;
        if pending_deletes > bytes.len() as u64 / 8 {
            return Err(Error::data_loss(format!(
                "deletes: {pending_deletes} ids wait in {} bytes",
                bytes.len()
            )));
        }
        let mut file =
            DeletesFile { segment, deletes: Deletes::none(rows), pending_deletes: Vec::new() };
        let damaged = file.read_chunks(bytes);
        let mut at = 1 + file.deletes.chunks.len();
        while (file.pending_deletes.len() as u64) < pending_deletes {
            let ids = page(bytes, at, file.page_seed())?;
            let left = pending_deletes as usize - file.pending_deletes.len();
            file.pending_deletes.extend(get_words(ids).take(left));
            at += 1;
        }
        Ok((file, damaged))
    }

    /// Checks that every page of a file is as it was written.
    ///
    /// # Errors
    /// `DataLoss` with the number of the first damaged page.
    pub(crate) fn check_pages(bytes: &[u8]) -> Result<()> {
        let header = page(bytes, 0, 0)?;
        let seed = crc32c::crc32c(&header[24..40]);
        let pages = bytes.len().div_ceil(PAGE_BYTES);
        (1..pages).try_for_each(|number| page(bytes, number, seed).map(drop))
    }

    /// Reads the chunks of the bitmap. Returns damaged pages, whose rows are unknown.
    fn read_chunks(&mut self, bytes: &[u8]) -> Vec<u32> {
        let mut damaged = Vec::new();
        let seed = self.page_seed();
        let rows = self.deletes.rows;
        for chunk in 0..self.deletes.chunks.len() {
            let Ok(page) = page(bytes, chunk + 1, seed) else {
                damaged.push(chunk as u32 + 1);
                self.deletes.lose(chunk);
                continue;
            };
            let mut words = [0; CHUNK_WORDS];
            for (word, value) in words.iter_mut().zip(get_words(page)) {
                *word = value;
            }
            // Bits beyond the last row would be counted; an intact file has none.
            let first = chunk as u32 * CHUNK_ROWS;
            for row in rows.saturating_sub(first)..CHUNK_ROWS {
                words[(row / 64) as usize] &= !(1 << (row % 64));
            }
            if page[4..8] == FLAG_UNKNOWN.to_le_bytes() {
                damaged.push(chunk as u32 + 1);
                self.deletes.lose(chunk);
            } else if words.iter().any(|&word| word != 0) {
                self.deletes.chunks[chunk] = Some(Arc::new(DeletesChunk { words, unknown: false }));
            }
        }
        self.deletes.recount();
        damaged
    }

    /// Returns the seed of the pages' checksums, so that no page of another segment is accepted.
    fn page_seed(&self) -> u32 {
        crc32c::crc32c(&self.segment)
    }
}

fn put_words(page: &mut [u8; PAGE_BYTES], words: &[u64]) {
    for (bytes, word) in page[PAGE_HEADER_BYTES..].chunks_exact_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
}

fn get_words(page: &[u8]) -> impl Iterator<Item = u64> + '_ {
    let words = page[PAGE_HEADER_BYTES..].chunks_exact(8);
    words.map(|bytes| bytes.try_into().map_or(0, u64::from_le_bytes))
}

/// Adds number, flags and checksum. With the number, a page is not accepted at another position.
fn finish_page(out: &mut Vec<u8>, mut page: [u8; PAGE_BYTES], seed: u32, flags: u32) {
    let number = (out.len() / PAGE_BYTES) as u32;
    if number > 0 {
        page[4..8].copy_from_slice(&flags.to_le_bytes());
        page[8..12].copy_from_slice(&number.to_le_bytes());
    }
    let check = crc32c::crc32c_append(seed, &page[4..]);
    page[..4].copy_from_slice(&check.to_le_bytes());
    out.extend_from_slice(&page);
}

fn page(bytes: &[u8], number: usize, seed: u32) -> Result<&[u8]> {
    let lost = || Error::data_loss(format!("deletes: page {number} is damaged"));
    let page = bytes.get(number * PAGE_BYTES..(number + 1) * PAGE_BYTES).ok_or_else(lost)?;
    let right = page[..4] == crc32c::crc32c_append(seed, &page[4..]).to_le_bytes();
    let placed = number == 0 || page[8..12] == (number as u32).to_le_bytes();
    if right && placed { Ok(page) } else { Err(lost()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const SEGMENT: [u8; 16] = *b"0123456789abcdef";

    fn of(rows: u32, gone: &BTreeSet<u32>) -> Deletes {
        let mut deletes = Deletes::none(rows);
        gone.iter().for_each(|&row| assert!(deletes.insert(row)));
        deletes
    }

    #[test]
    fn a_clone_keeps_its_state() {
        let mut deletes = Deletes::none(100_000);
        assert!(deletes.insert(7) && !deletes.insert(7));
        let held = deletes.clone();
        assert!(deletes.insert(8) && deletes.insert(99_999));
        assert!(!held.contains(8) && held.contains(7) && !held.contains(99_999));
        assert_eq!((held.count(), deletes.count()), (1, 3));
        assert!(deletes.contains(100_000) && !deletes.insert(100_000), "beyond the segment");
        assert!(deletes.memory_bytes() <= Deletes::memory_bytes_max(100_000));
    }

    #[test]
    fn since_lists_new_deletes() {
        let mut deletes = of(100_000, &BTreeSet::from([3, 64, 40_000]));
        let before = deletes.clone();
        assert_eq!(deletes.since(&before).count(), 0);
        for row in [4, 99_999, 65, 40_001] {
            assert!(deletes.insert(row));
        }
        assert_eq!(deletes.since(&before).collect::<Vec<_>>(), [4, 65, 40_001, 99_999]);
        assert_eq!(deletes.since(&Deletes::none(100_000)).count(), 7);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn a_file_decodes_to_its_content(
            rows in 1_u32..100_000,
            picks in prop::collection::vec(any::<u32>(), 0..300),
            pending_deletes in prop::collection::vec(any::<u64>(), 0..1200),
        ) {
            let gone: BTreeSet<u32> = picks.iter().map(|pick| pick % rows).collect();
            let deletes = of(rows, &gone);
            let words: Vec<u64> = deletes.words().collect();
            prop_assert_eq!(words.len(), rows.div_ceil(64) as usize);
            for row in 0..rows {
                prop_assert_eq!(words[row as usize / 64] >> (row % 64) & 1 == 1, gone.contains(&row));
            }
            let file = DeletesFile { segment: SEGMENT, deletes, pending_deletes };
            let (back, damaged) = DeletesFile::decode(&file.encode(), SEGMENT, rows).unwrap();
            prop_assert!(damaged.is_empty());
            prop_assert_eq!(back, file);
        }

        #[test]
        fn any_bytes_cause_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..9000), rows in 0_u32..70_000) {
            prop_assert!(DeletesFile::decode(&bytes, SEGMENT, rows).is_err());
        }
    }

    #[test]
    fn a_flipped_bit_loses_a_page_at_most() {
        let gone: BTreeSet<u32> = (0..70_000).step_by(977).collect();
        let file = DeletesFile {
            segment: SEGMENT,
            deletes: of(70_000, &gone),
            pending_deletes: vec![5, 6],
        };
        let sound = file.encode();
        assert_eq!(sound.len(), (1 + 3 + 1) * PAGE_BYTES);
        for at in (0..sound.len()).step_by(509) {
            let mut bytes = sound.clone();
            bytes[at] ^= 1 << (at % 8);
            match DeletesFile::decode(&bytes, SEGMENT, 70_000) {
                Ok((back, damaged)) => {
                    assert_eq!(damaged, [(at / PAGE_BYTES) as u32]);
                    assert!(back.deletes.has_unknown());
                    assert!(gone.iter().all(|&row| back.deletes.contains(row)));
                    // Writing it again does not turn "unknown" into "deleted".
                    let (again, still) =
                        DeletesFile::decode(&back.encode(), SEGMENT, 70_000).unwrap();
                    assert_eq!((again, still), (back, damaged));
                }
                Err(error) => {
                    assert!(matches!(at / PAGE_BYTES, 0 | 4), "{at}");
                    assert_eq!(error.kind(), base::ErrorKind::DataLoss);
                }
            }
        }
    }

    #[test]
    fn pages_do_not_pass_for_one_another() {
        let gone: BTreeSet<u32> = (0..70_000).step_by(977).collect();
        let file =
            DeletesFile { segment: SEGMENT, deletes: of(70_000, &gone), pending_deletes: vec![] };
        let mut bytes = file.encode();
        bytes.copy_within(PAGE_BYTES..2 * PAGE_BYTES, 2 * PAGE_BYTES);
        assert_eq!(DeletesFile::decode(&bytes, SEGMENT, 70_000).unwrap().1, [2]);
        assert!(DeletesFile::decode(&file.encode(), *b"another segment!", 70_000).is_err());
        assert!(DeletesFile::decode(&file.encode(), SEGMENT, 69_999).is_err());
        assert!(
            DeletesFile::decode(&file.encode()[..PAGE_BYTES * 2], SEGMENT, 70_000).unwrap().1
                == [2, 3]
        );
    }
}
