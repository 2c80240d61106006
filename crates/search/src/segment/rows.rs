//! Page of each row's record.
//!
//! Records are packed in the order of rows, so the first row of every page is enough. That is 4
//! bytes per page, at most half a byte per row for records of a few hundred bytes. If some records
//! take several pages, the first page of each run is stored too. A search for a row starts from a
//! hint stored for every [`HINT_ROWS`] rows.

use std::ops::Range;

use base::{Error, Result};
use storage::page::{PAGE_BYTES, Placed};

/// Rows per hint.
const HINT_ROWS: u32 = 64;
const HEADER_BYTES: usize = 16;
/// Maximum pages of one run: a record of 1 MiB and its page header.
const RUN_PAGES_MAX: u32 = 257;

/// Map from rows to pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowMap {
    rows: u32,
    /// Total pages.
    pages: u32,
    /// First row of every run of pages.
    first_rows: Vec<u32>,
    /// First page of every run. Empty if every run is one page.
    first_pages: Vec<u32>,
    /// Run that holds row `i * HINT_ROWS`.
    hints: Vec<u32>,
}

/// Location of a row, from the start of its section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowLocation {
    /// First page.
    pub page: u32,
    /// Pages to read.
    pub pages: u32,
    /// Index of the record in the page.
    pub slot: u16,
}

/// Builder of a map, in the order of the packer.
#[derive(Debug, Default)]
pub struct RowMapBuilder {
    rows: u32,
    /// Number of pages of the records so far.
    pages: u32,
    first_rows: Vec<u32>,
    first_pages: Vec<u32>,
}

impl RowMapBuilder {
    /// Adds the next row.
    ///
    /// # Errors
    /// `Internal` if the packer did not keep the order.
    pub fn push(&mut self, placed: Placed) -> Result<()> {
        let starts = placed.slot == 0;
        let expected = match (starts, self.first_rows.last(), self.first_pages.last()) {
            (true, ..) => placed.page == self.pages,
            (false, Some(&row), Some(&page)) => {
                placed.page == page
                    && u32::from(placed.slot) == self.rows - row
                    && placed.pages == 1
            }
            (false, ..) => false,
        };
        if !expected || placed.pages == 0 {
            return Err(Error::internal(format!(
                "row {} was packed out of order: {placed:?}",
                self.rows
            )));
        }
        if starts {
            self.first_rows.push(self.rows);
            self.first_pages.push(placed.page);
            self.pages = placed.page + u32::from(placed.pages);
        }
        self.rows += 1;
        Ok(())
    }

    /// Returns the rows so far.
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// Encodes the section in numbers of 32 bits. They are the rows, the pages, the runs, 1 if
    /// first pages follow, the first rows, and the first pages.
    pub fn encode(&self) -> Vec<u8> {
        let wide = self.first_pages.iter().zip(0..).any(|(&page, run)| page != run)
            || self.pages as usize != self.first_pages.len();
        let header = [self.rows, self.pages, self.first_rows.len() as u32, u32::from(wide)];
        let pages = if wide { &self.first_pages[..] } else { &[] };
        let words = header.iter().chain(&self.first_rows).chain(pages);
        words.flat_map(|word| word.to_le_bytes()).collect()
    }
}

impl RowMap {
    /// Decodes the section of a segment of `rows` rows whose pages take `section_bytes`.
    ///
    /// # Errors
    /// `DataLoss` if it does not match.
    pub fn decode(bytes: &[u8], rows: u32, section_bytes: u64) -> Result<RowMap> {
        let odd =
            |what: &str| Error::data_loss(format!("the map from rows to pages is wrong: {what}"));
        let (words, rest) = bytes.as_chunks::<4>();
        let mut words = words.iter().map(|word| u32::from_le_bytes(*word));
        let mut next = || words.next().ok_or_else(|| odd("it is cut off"));
        let of_rows = next()?;
        let pages = next()?;
        let runs = next()?;
        let wide = next()?;
        let arrays = if wide == 1 { 2 } else { 1 };
        let expected = HEADER_BYTES as u64 + u64::from(runs) * 4 * arrays;
        if wide > 1 || bytes.len() as u64 != expected || !rest.is_empty() {
            return Err(odd("its length"));
        }
        if of_rows != rows || u64::from(pages) * PAGE_BYTES as u64 != section_bytes {
            return Err(odd("it is another section's"));
        }
        let first_rows: Vec<u32> = words.by_ref().take(runs as usize).collect();
        let first_pages: Vec<u32> = words.collect();
        let mut map = RowMap { rows, pages, first_rows, first_pages, hints: Vec::new() };
        map.check().map_err(odd)?;
        map.hint();
        Ok(map)
    }

    /// Checks that the runs of pages are in order and of possible sizes. The error is the wrong
    /// part.
    fn check(&self) -> Result<(), &'static str> {
        let runs = self.first_rows.len();
        if (runs == 0) != (self.rows == 0) || self.first_rows.first().is_some_and(|&row| row != 0) {
            return Err("its first row");
        }
        if self.first_pages.is_empty() && self.pages as usize != runs {
            return Err("its pages");
        }
        for run in 0..runs {
            let rows = self.run_rows(run);
            let pages = self.run_pages(run);
            let row_count = rows.1.checked_sub(rows.0).ok_or("its order of rows")?;
            let page_count = pages.end.checked_sub(pages.start).ok_or("its order of pages")?;
            if row_count == 0
                || row_count > 1 << 16
                || page_count == 0
                || page_count > RUN_PAGES_MAX
            {
                return Err("a run of pages");
            }
            if page_count > 1 && row_count > 1 {
                return Err("several rows in a long record");
            }
        }
        if runs > 0 && self.run_pages(0).start != 0 {
            return Err("its first page");
        }
        Ok(())
    }

    /// Computes the run of every [`HINT_ROWS`]-th row, where a search for a row begins.
    fn hint(&mut self) {
        let mut run = 0;
        self.hints = (0..self.rows.div_ceil(HINT_ROWS))
            .map(|hint| {
                while self.run_rows(run).1 <= hint * HINT_ROWS {
                    run += 1;
                }
                run as u32
            })
            .collect();
    }

    /// Returns the first row of a run and the row after its last.
    fn run_rows(&self, run: usize) -> (u32, u32) {
        (self.first_rows[run], self.first_rows.get(run + 1).copied().unwrap_or(self.rows))
    }

    /// Returns the number of runs.
    pub(super) fn runs(&self) -> usize {
        self.first_rows.len()
    }

    /// Returns the pages of a run.
    pub(super) fn run_pages(&self, run: usize) -> Range<u32> {
        if self.first_pages.is_empty() {
            return run as u32..run as u32 + 1;
        }
        self.first_pages[run]..self.first_pages.get(run + 1).copied().unwrap_or(self.pages)
    }

    /// Returns the location of the record of `row`, or `None` beyond the last row.
    pub fn locate(&self, row: u32) -> Option<RowLocation> {
        if row >= self.rows {
            return None;
        }
        let hint = (row / HINT_ROWS) as usize;
        let from = self.hints[hint] as usize;
        let to = self.hints.get(hint + 1).map_or(self.first_rows.len(), |&run| run as usize + 1);
        let run = from + self.first_rows[from..to].partition_point(|&first| first <= row) - 1;
        let pages = self.run_pages(run);
        // It was checked at opening that a run has at most 2^16 rows.
        let slot = (row - self.first_rows[run]) as u16;
        Some(RowLocation { page: pages.start, pages: pages.end - pages.start, slot })
    }

    /// Returns the rows whose records start in the run that holds `page`.
    pub(crate) fn rows_of_page(&self, page: u32) -> Range<u32> {
        let run = if self.first_pages.is_empty() {
            page as usize
        } else {
            self.first_pages.partition_point(|&first| first <= page).wrapping_sub(1)
        };
        if page >= self.pages || run >= self.first_rows.len() {
            return 0..0;
        }
        let rows = self.run_rows(run);
        rows.0..rows.1
    }

    /// Returns the total pages.
    pub fn pages(&self) -> u32 {
        self.pages
    }

    /// Returns the bytes of memory.
    pub fn memory_bytes(&self) -> u64 {
        ((self.first_rows.len() + self.first_pages.len() + self.hints.len()) * 4) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use storage::page::{Packer, RecordPage};

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn every_row_is_located(
            lengths in prop::collection::vec(prop_oneof![8 => 0_usize..600, 1 => 3000_usize..20_000], 0..400),
        ) {
            let mut packer = Packer::new();
            let mut builder = RowMapBuilder::default();
            let mut pages = Vec::new();
            let record = |row: usize, length: usize| vec![row as u8; length];
            for (row, &length) in lengths.iter().enumerate() {
                builder.push(packer.push(&record(row, length)).unwrap()).unwrap();
                packer.drain(&mut pages);
            }
            packer.finish(&mut pages).unwrap();
            let map = RowMap::decode(&builder.encode(), lengths.len() as u32, pages.len() as u64).unwrap();
            for (row, &length) in lengths.iter().enumerate() {
                let place = map.locate(row as u32).unwrap();
                let start = place.page as usize * PAGE_BYTES;
                let page = RecordPage::open(&pages[start..start + place.pages as usize * PAGE_BYTES]).unwrap();
                prop_assert_eq!(page.number(), place.page);
                prop_assert_eq!(page.record(place.slot).unwrap(), record(row, length));
                prop_assert!(map.rows_of_page(place.page).contains(&(row as u32)));
            }
            prop_assert_eq!(map.locate(lengths.len() as u32), None);
            prop_assert_eq!(map.rows_of_page(map.pages()), 0..0);
        }

        #[test]
        fn changed_words_cause_no_panic(
            runs in prop::collection::vec((1_u16..4, 1_u16..3), 0..8),
            changes in prop::collection::vec((any::<prop::sample::Index>(), 0_u32..12), 0..3),
        ) {
            let mut builder = RowMapBuilder::default();
            for (rows, pages) in runs {
                let page = builder.pages;
                // A record of several pages has no other record beside it.
                let rows = if pages > 1 { 1 } else { rows };
                for slot in 0..rows {
                    builder.push(Placed { page, pages, slot }).unwrap();
                }
            }
            let bytes = builder.encode();
            let words = bytes.as_chunks::<4>().0.iter();
            let mut words: Vec<u32> = words.map(|word| u32::from_le_bytes(*word)).collect();
            for (at, word) in changes {
                let at = at.index(words.len());
                words[at] = word;
            }
            let (rows, pages) = (words[0], words[1]);
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            if let Ok(map) = RowMap::decode(&bytes, rows, u64::from(pages) * PAGE_BYTES as u64) {
                for row in 0..rows {
                    let place = map.locate(row).unwrap();
                    prop_assert!(place.pages > 0 && place.page + place.pages <= pages);
                    prop_assert!(map.rows_of_page(place.page).contains(&row));
                }
            }
        }
    }

    #[test]
    fn short_records_take_half_a_byte() {
        let mut builder = RowMapBuilder::default();
        for row in 0..1000_u32 {
            builder.push(Placed { page: row / 10, pages: 1, slot: (row % 10) as u16 }).unwrap();
        }
        let map = RowMap::decode(&builder.encode(), 1000, 100 * PAGE_BYTES as u64).unwrap();
        assert!(map.memory_bytes() < 500, "{}", map.memory_bytes());
        assert!(builder.push(Placed { page: 5, pages: 1, slot: 1 }).is_err(), "out of order");
    }
}
