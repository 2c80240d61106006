//! Writing a segment's file section by section, and reading sections with their checksums.

use std::ops::Range;

use base::{Error, Result};
use storage::page::PAGE_BYTES;
use storage::superblock::{Section, Superblock, VERSION};
use storage::{Medium, Sealed, Writer};

use super::layout::{kind, kind_name};

/// Bytes collected per write, and the maximum bytes per read. A multiple of all numbers' sizes.
const STEP_BYTES: usize = 1 << 20;

/// Function called before every step of I/O with its bytes, to limit the rate and to cancel.
pub(crate) type IoStep<'a> = &'a dyn Fn(u64) -> Result<()>;

/// Segment file that is being written. The superblock is written last, so a truncated file is never
/// taken for a segment.
pub(super) struct SegmentFileWriter<'a> {
    writer: Box<dyn Writer>,
    step: IoStep<'a>,
    /// Unwritten bytes of the current section, starting on a page.
    buffer: Vec<u8>,
    sections: Vec<Section>,
    checks: Vec<u32>,
    current: Option<OpenSection>,
}

/// The section that is being written.
struct OpenSection {
    kind: u32,
    offset: u64,
    bytes: u64,
    crc32c: u32,
    /// True if the table of checksums covers its pages. Otherwise the pages have their own.
    checked: bool,
    /// Index of its first checksum in the table.
    first_check: u64,
}

impl<'a> SegmentFileWriter<'a> {
    /// Creates the file.
    pub(super) fn create(
        medium: &dyn Medium,
        name: &str,
        step: IoStep<'a>,
    ) -> Result<SegmentFileWriter<'a>> {
        let mut writer = medium.create(name)?;
        writer.append(&[0; PAGE_BYTES])?;
        let buffer = Vec::with_capacity(STEP_BYTES + PAGE_BYTES);
        Ok(SegmentFileWriter {
            writer,
            step,
            buffer,
            sections: Vec::new(),
            checks: Vec::new(),
            current: None,
        })
    }

    /// Writes a whole section whose pages have no checksums of their own.
    pub(super) fn section(&mut self, kind: u32, bytes: &[u8]) -> Result<()> {
        self.begin(kind);
        self.put(bytes)?;
        self.end()
    }

    /// Starts a section whose pages have no checksums of their own.
    pub(super) fn begin(&mut self, kind: u32) {
        self.start(kind, true);
    }

    /// Starts a section of pages that have checksums of their own.
    pub(super) fn begin_pages(&mut self, kind: u32) {
        self.start(kind, false);
    }

    /// Starts a section at the end of the file. `checked` is true if it has a checksum for each
    /// page.
    fn start(&mut self, kind: u32, checked: bool) {
        let offset = self.writer.bytes();
        let first_check = self.checks.len() as u64;
        self.current =
            Some(OpenSection { kind, offset, bytes: 0, crc32c: 0, checked, first_check });
    }

    /// Appends to the section.
    pub(super) fn put(&mut self, mut bytes: &[u8]) -> Result<()> {
        if let Some(current) = &mut self.current {
            current.bytes += bytes.len() as u64;
            if current.checked {
                current.crc32c = crc32c::crc32c_append(current.crc32c, bytes);
            }
        }
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(STEP_BYTES - self.buffer.len()));
            self.buffer.extend_from_slice(now);
            bytes = later;
            if self.buffer.len() == STEP_BYTES {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Ends the section, padded with zeros to a whole page.
    pub(super) fn end(&mut self) -> Result<()> {
        self.buffer.resize(self.buffer.len().next_multiple_of(PAGE_BYTES), 0);
        self.flush()?;
        if let Some(OpenSection { kind, offset, bytes, crc32c, first_check, .. }) =
            self.current.take()
        {
            self.sections.push(Section { kind, offset, bytes, crc32c, aux: first_check });
        }
        Ok(())
    }

    /// Writes the buffered pages, and keeps their checksums if the section has any.
    fn flush(&mut self) -> Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        (self.step)(self.buffer.len() as u64)?;
        if self.current.as_ref().is_some_and(|current| current.checked) {
            self.checks.extend(self.buffer.chunks(PAGE_BYTES).map(crc32c::crc32c));
        }
        self.writer.append(&self.buffer)?;
        self.buffer.clear();
        Ok(())
    }

    /// Writes the table of checksums and syncs, then writes the superblock and syncs again.
    pub(super) fn finish(mut self, uuid: [u8; 16], rows: u32) -> Result<()> {
        let checks: Vec<u8> = self.checks.iter().flat_map(|check| check.to_le_bytes()).collect();
        self.section(kind::CHECKS, &checks)?;
        self.writer.persist()?;
        let sections = std::mem::take(&mut self.sections);
        let superblock = Superblock { uuid, version: VERSION, rows: u64::from(rows), sections };
        self.writer.write_at(0, &superblock.encode()?)?;
        self.writer.persist()
    }
}

/// Superblock and page checksums of a file, both verified.
#[derive(Debug)]
pub(super) struct SegmentContents {
    pub(super) superblock: Superblock,
    checks: Vec<u32>,
}

impl SegmentContents {
    /// Reads and verifies them.
    pub(super) fn read(file: &dyn Sealed) -> Result<SegmentContents> {
        let mut page = [0; PAGE_BYTES];
        file.read_at(0, &mut page).map_err(|error| error.context("superblock"))?;
        let superblock = Superblock::decode(&page)?;
        superblock.check(file.bytes())?;
        if superblock.rows > coarse::ROWS_MAX as u64 {
            return Err(Error::data_loss(format!("the superblock says {} rows", superblock.rows)));
        }
        let mut contents = SegmentContents { superblock, checks: Vec::new() };
        let bytes = contents.load(file, kind::CHECKS)?;
        contents.checks =
            bytes.as_chunks().0.iter().map(|check| u32::from_le_bytes(*check)).collect();
        Ok(contents)
    }

    /// Reads a whole section and verifies its checksum in the superblock. An error names the page.
    pub(super) fn load(&self, file: &dyn Sealed, kind: u32) -> Result<Vec<u8>> {
        let section = self.section(kind)?;
        let mut bytes = vec![0; usize::try_from(section.bytes).unwrap_or(usize::MAX)];
        for (index, part) in bytes.chunks_mut(STEP_BYTES).enumerate() {
            let offset = section.offset + (index * STEP_BYTES) as u64;
            file.read_at(offset, part).map_err(|error| error.context(kind_name(kind)))?;
        }
        if crc32c::crc32c(&bytes) == section.crc32c {
            return Ok(bytes);
        }
        let page = self.first_damaged(section, &bytes);
        let page = page.map_or_else(String::new, |page| format!(", page {page} of the file"));
        Err(Error::data_loss(format!("{}: damaged{page}", kind_name(kind))))
    }

    /// Reads a whole section in steps and calls `each` with the bytes of each step, of which all
    /// except the last are [`STEP_BYTES`] long. The checksum is verified last, so the caller must
    /// not use anything of the section before this returns.
    pub(super) fn read_steps(
        &self,
        file: &dyn Sealed,
        kind: u32,
        each: &mut dyn FnMut(&[u8]),
    ) -> Result<()> {
        let section = self.section(kind)?;
        let mut buffer =
            vec![0; STEP_BYTES.min(usize::try_from(section.bytes).unwrap_or(STEP_BYTES))];
        let mut crc32c = 0;
        let mut read = 0;
        while read < section.bytes {
            let length = (section.bytes - read).min(STEP_BYTES as u64) as usize;
            let part = &mut buffer[..length];
            file.read_at(section.offset + read, part)
                .map_err(|error| error.context(kind_name(kind)))?;
            crc32c = crc32c::crc32c_append(crc32c, part);
            each(part);
            read += length as u64;
        }
        if crc32c == section.crc32c {
            return Ok(());
        }
        // Reads it again to name the page.
        self.load(file, kind)?;
        Err(Error::data_loss(format!("{}: damaged when it was read first", kind_name(kind))))
    }

    fn first_damaged(&self, section: &Section, bytes: &[u8]) -> Option<u64> {
        let checks = self.checks.get(self.check_range(section)?)?;
        let pages = bytes.chunks(PAGE_BYTES).zip(checks);
        let damaged = pages.enumerate().find(|(_, (page, check))| padded_crc32c(page) != **check);
        damaged.map(|(page, _)| section.offset / PAGE_BYTES as u64 + page as u64)
    }

    /// Returns the section of a kind.
    pub(super) fn section(&self, kind: u32) -> Result<&Section> {
        let found = self.superblock.sections.iter().find(|section| section.kind == kind);
        found.ok_or_else(|| {
            Error::data_loss(format!("the segment has no section \"{}\"", kind_name(kind)))
        })
    }

    /// Returns the checksums of a section's pages.
    pub(super) fn checks_of(&self, section: &Section) -> Result<Vec<u32>> {
        let checks = self.check_range(section).and_then(|range| self.checks.get(range));
        checks.map(<[u32]>::to_vec).ok_or_else(|| {
            Error::data_loss(format!("{}: its pages have no checksums", kind_name(section.kind)))
        })
    }

    /// Returns the checksum of page `page` of a section whose pages have none of their own.
    pub(super) fn page_crc32c(&self, section: &Section, page: u64) -> Option<u32> {
        let page = usize::try_from(page).ok()?;
        if section.kind == kind::CHECKS {
            // The table does not cover itself.
            let checks = self.checks.chunks(PAGE_BYTES / size_of::<u32>()).nth(page)?;
            let bytes: Vec<u8> = checks.iter().flat_map(|check| check.to_le_bytes()).collect();
            return Some(padded_crc32c(&bytes));
        }
        self.checks.get(self.check_range(section)?)?.get(page).copied()
    }

    fn check_range(&self, section: &Section) -> Option<Range<usize>> {
        let first = usize::try_from(section.aux).ok()?;
        let pages = usize::try_from(section.bytes.div_ceil(PAGE_BYTES as u64)).ok()?;
        Some(first..first.checked_add(pages)?)
    }
}

/// Returns the checksum of a page whose missing bytes are zeros.
pub(super) fn padded_crc32c(page: &[u8]) -> u32 {
    let zeros = [0; PAGE_BYTES];
    crc32c::crc32c_append(crc32c::crc32c(page), &zeros[page.len().min(PAGE_BYTES)..])
}
