//! Record pages: the unit of one read of the re-rank stage, which checks itself.
//!
//! A page has 4096 bytes. A record that fits into a page is never split between two. A longer one
//! takes whole pages of its own. The checksum covers all bytes of the page (of all its pages, for a
//! long record), so any flipped bit is detected. It also covers the page's number, so a page from
//! another position is detected.
//!
//! Layout, little-endian:
//!
//! | bytes | what |
//! |---|---|
//! | 0..4 | crc32c of everything after it |
//! | 4..8 | number of the first page, as [`Placed::page`] gave it |
//! | 8..10 | records n, at least 1; exactly 1 if there are several pages |
//! | 10..12 | pages p that belong together, at least 1 |
//! | p = 1: 12..12+2(n+1) | start of each record and end of the last, from the page's start |
//! | p > 1: 12..16 | length of the record, which starts at 16 |
//! | then | the records, then zeros |

use base::{Error, Result};

use crate::bytes::{u16_at, u32_at};

/// Bytes of a page, header included.
pub const PAGE_BYTES: usize = 4096;
/// Maximum bytes of a record.
pub const RECORD_BYTES_MAX: usize = 1 << 20;

/// Bytes before the table of offsets.
const HEADER_BYTES: usize = 12;
/// Offset of the record in a run of several pages.
const LONG_START: usize = 16;
/// Maximum pages of one record.
const RUN_PAGES_MAX: usize = (LONG_START + RECORD_BYTES_MAX).div_ceil(PAGE_BYTES);
/// Maximum bytes of a record that fits in a page besides its two offsets.
const SHORT_BYTES_MAX: usize = PAGE_BYTES - HEADER_BYTES - 4;

/// Position of a packed record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Number of its first page, from the packer's start.
    pub page: u32,
    /// Number of pages to read for it: 1, or more for a long record.
    pub pages: u16,
    /// Index of the record in the page.
    pub slot: u16,
}

/// Packs records into pages in the order they come.
#[derive(Debug, Default)]
pub struct Packer {
    /// Records of the current page, one after another.
    records: Vec<u8>,
    /// End of each of them in `records`.
    ends: Vec<usize>,
    /// Finished pages not yet drained.
    finished: Vec<u8>,
    /// Number of the current page.
    page: u32,
}

impl Packer {
    /// Returns an empty packer, whose first page has number 0.
    pub fn new() -> Packer {
        Packer::default()
    }

    /// Appends a record and returns its final position.
    ///
    /// # Errors
    /// `InvalidArgument` for a record longer than [`RECORD_BYTES_MAX`], `ResourceExhausted` after
    /// 2^32 pages.
    pub fn push(&mut self, record: &[u8]) -> Result<Placed> {
        if record.len() > RECORD_BYTES_MAX {
            let bytes = record.len();
            return Err(Error::invalid(format!(
                "a record of {bytes} bytes is longer than the {RECORD_BYTES_MAX} a page run holds"
            )));
        }
        if record.len() > SHORT_BYTES_MAX {
            return self.push_long(record);
        }
        let table = HEADER_BYTES + 2 * (self.ends.len() + 2);
        if table + self.records.len() + record.len() > PAGE_BYTES {
            self.finish_page()?;
        }
        // At most 2042 records of no bytes fit in a page.
        let slot = self.ends.len() as u16;
        self.records.extend_from_slice(record);
        self.ends.push(self.records.len());
        Ok(Placed { page: self.page, pages: 1, slot })
    }

    /// Appends the finished pages to `out`, without the current one.
    pub fn drain(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.finished);
    }

    /// Ends the last page and appends the remaining pages to `out`.
    ///
    /// # Errors
    /// `ResourceExhausted` after 2^32 pages.
    pub fn finish(mut self, out: &mut Vec<u8>) -> Result<()> {
        self.finish_page()?;
        self.drain(out);
        Ok(())
    }

    /// Returns the number of pages so far, with the current one.
    pub fn pages(&self) -> u64 {
        u64::from(self.page) + u64::from(!self.ends.is_empty())
    }

    fn push_long(&mut self, record: &[u8]) -> Result<Placed> {
        self.finish_page()?;
        // Fits: RECORD_BYTES_MAX is 256 pages.
        let pages = (LONG_START + record.len()).div_ceil(PAGE_BYTES) as u16;
        let placed = Placed { page: self.page, pages, slot: 0 };
        let start = self.begin(1, pages);
        self.finished.extend_from_slice(&(record.len() as u32).to_le_bytes());
        self.finished.extend_from_slice(record);
        self.end(start, pages)?;
        Ok(placed)
    }

    /// Completes the current page, unless it is empty.
    fn finish_page(&mut self) -> Result<()> {
        if self.ends.is_empty() {
            return Ok(());
        }
        let start = self.begin(self.ends.len() as u16, 1);
        let first = HEADER_BYTES + 2 * (self.ends.len() + 1);
        for end in std::iter::once(0).chain(self.ends.drain(..)) {
            self.finished.extend_from_slice(&((first + end) as u16).to_le_bytes());
        }
        self.finished.append(&mut self.records);
        self.end(start, 1)
    }

    /// Begins a run of pages and returns its start in `finished`.
    fn begin(&mut self, count: u16, pages: u16) -> usize {
        let start = self.finished.len();
        self.finished.extend_from_slice(&[0; 4]);
        self.finished.extend_from_slice(&self.page.to_le_bytes());
        self.finished.extend_from_slice(&count.to_le_bytes());
        self.finished.extend_from_slice(&pages.to_le_bytes());
        start
    }

    fn end(&mut self, start: usize, pages: u16) -> Result<()> {
        self.finished.resize(start + usize::from(pages) * PAGE_BYTES, 0);
        let sum = crc32c::crc32c(&self.finished[start + 4..]);
        self.finished[start..start + 4].copy_from_slice(&sum.to_le_bytes());
        self.page = self.page.checked_add(u32::from(pages)).ok_or_else(|| {
            Error::exhausted("a segment holds at most 2^32 pages; write fewer records to it")
        })?;
        Ok(())
    }
}

/// A page with a valid checksum.
#[derive(Clone, Copy, Debug)]
pub struct RecordPage<'a> {
    bytes: &'a [u8],
    number: u32,
    count: u16,
    pages: u16,
}

impl<'a> RecordPage<'a> {
    /// Checks the page, or the pages of a long record, at the start of `bytes`. Later bytes are
    /// ignored.
    ///
    /// # Errors
    /// `DataLoss` if the bytes are not a whole undamaged page.
    pub fn open(bytes: &'a [u8]) -> Result<RecordPage<'a>> {
        let page = RecordPage::trusted(bytes)?;
        if crc32c::crc32c(&page.bytes[4..]) != u32_at(page.bytes, 0) {
            return Err(Error::data_loss(format!(
                "page {} does not match its checksum",
                page.number
            )));
        }
        Ok(page)
    }

    /// Opens a page as [`RecordPage::open`] does, but does not check the checksum. Use it for a
    /// page in memory that was opened before.
    ///
    /// # Errors
    /// `DataLoss` if the bytes cannot be a page.
    pub fn trusted(bytes: &'a [u8]) -> Result<RecordPage<'a>> {
        let short = || Error::data_loss(format!("{} bytes are not a page", bytes.len()));
        if bytes.len() < PAGE_BYTES {
            return Err(short());
        }
        let number = u32_at(bytes, 4);
        let count = u16_at(bytes, 8);
        let pages = u16_at(bytes, 10);
        let run = usize::from(pages) * PAGE_BYTES;
        if !is_shaped(count, pages) || bytes.len() < run {
            return Err(Error::data_loss(format!(
                "a damaged page: it says {count} records in {pages} pages, {} bytes were read",
                bytes.len()
            )));
        }
        Ok(RecordPage { bytes: &bytes[..run], number, count, pages })
    }

    /// Returns the number of the page, as in [`Placed::page`].
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Returns the number of records.
    pub fn count(&self) -> u16 {
        self.count
    }

    /// Returns the number of pages of the record, if it is long, and otherwise 1.
    pub fn pages(&self) -> u16 {
        self.pages
    }

    /// Returns one record, or `None` if the page has no such slot.
    pub fn record(&self, slot: u16) -> Option<&'a [u8]> {
        if slot >= self.count {
            return None;
        }
        if self.pages > 1 {
            let length = u32_at(self.bytes, HEADER_BYTES) as usize;
            return self.bytes.get(LONG_START..LONG_START.checked_add(length)?);
        }
        // A checksum proves that the bytes are as written, not that the writer was correct, so the
        // table is checked too.
        let at = HEADER_BYTES + 2 * usize::from(slot);
        let table = self.bytes.get(at..at + 4)?;
        self.bytes.get(usize::from(u16_at(table, 0))..usize::from(u16_at(table, 2)))
    }
}

/// Check of all pages of a section in their order. It holds no page, so a long record needs no
/// memory.
#[derive(Debug, Default)]
pub struct PageRunCheck {
    /// Number of the first page of the current run.
    first: u32,
    /// Number of the next page.
    next: u32,
    /// Pages of the current run that are still to come, or 0 between two runs.
    missing: u16,
    /// Checksum in the header of the current run.
    expected: u32,
    /// Checksum of the bytes of the current run so far.
    crc32c: u32,
}

impl PageRunCheck {
    /// Returns a check whose first page has number 0.
    pub fn new() -> PageRunCheck {
        PageRunCheck::default()
    }

    /// Returns the number of the first page of the last run.
    pub fn first(&self) -> u32 {
        self.first
    }

    /// Checks the next page. The last page of a long record completes the check of its run.
    ///
    /// # Errors
    /// `DataLoss` if the run of the page is damaged. No page may be added afterwards.
    pub fn add(&mut self, page: &[u8]) -> Result<()> {
        let mut covered = page;
        if self.missing == 0 {
            self.begin(page)?;
            covered = page.get(4..).unwrap_or_default();
        }
        self.crc32c = crc32c::crc32c_append(self.crc32c, covered);
        self.missing -= 1;
        self.next = self.next.wrapping_add(1);
        if self.missing == 0 && self.crc32c != self.expected {
            return Err(Error::data_loss("it does not match its checksum"));
        }
        Ok(())
    }

    /// Checks that the section ends with the last page of a run.
    ///
    /// # Errors
    /// `DataLoss` if it ends within a run.
    pub fn finish(&self) -> Result<()> {
        match self.missing {
            0 => Ok(()),
            missing => Err(Error::data_loss(format!("{missing} pages of its record are missing"))),
        }
    }

    /// Begins the check of a run of pages with its first page.
    fn begin(&mut self, page: &[u8]) -> Result<()> {
        self.first = self.next;
        let number = u32_at(page, 4);
        let count = u16_at(page, 8);
        let pages = u16_at(page, 10);
        if page.len() != PAGE_BYTES
            || number != self.first
            || !is_shaped(count, pages)
            || usize::from(pages) > RUN_PAGES_MAX
        {
            return Err(Error::data_loss(format!(
                "its header is damaged: it says page {number}, {count} records in {pages} pages"
            )));
        }
        self.missing = pages;
        self.expected = u32_at(page, 0);
        self.crc32c = 0;
        Ok(())
    }
}

/// Returns true if a run of `pages` pages can have `count` records.
fn is_shaped(count: u16, pages: u16) -> bool {
    count > 0 && (pages == 1 || (pages > 1 && count == 1))
}
