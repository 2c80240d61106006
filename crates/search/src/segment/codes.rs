//! Codes of a segment's coarse index on its medium. Every page is verified at each read, or only
//! once if the medium is mapped memory and has lost no page.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use base::{Error, ErrorKind, Result};
use coarse::{CodeBlock, CodeRange, ReadCodes, is_codes};
use storage::page::PAGE_BYTES;
use storage::{Read, Reader, ReaderOptions, Sealed};

use super::damage::DamagedPages;
use super::file::SegmentContents;
use crate::segment_cache::{
    BlockContent, CachedFile, CachedSection, SegmentCache, SegmentCacheKey, VerifiedBlock,
};

/// Maximum reads of codes in flight.
const DEPTH: usize = 64;
/// Maximum bytes per read. Most parts of lists are shorter.
const READ_BYTES_MAX: usize = 64 << 10;
/// Maximum pages between two ranges that are read together. Another read costs more than these.
const GAP_PAGES: u64 = 2;

/// Options of readers of codes.
pub(crate) const CODES_READER: ReaderOptions =
    ReaderOptions { depth: DEPTH, read_bytes_max: READ_BYTES_MAX };

/// Codes of a segment that are read from the medium.
#[derive(Debug)]
pub(super) struct SegmentCodes {
    file: CachedFile,
    sections: Vec<CodeSection>,
    damaged: Arc<DamagedPages>,
}

/// Section of codes.
#[derive(Debug)]
struct CodeSection {
    kind: u32,
    offset: u64,
    bytes: u64,
    /// Checksum of each page.
    checks: Vec<u32>,
    /// One bit per verified page, if the medium is mapped memory.
    sound: Vec<AtomicU64>,
}

impl CodeSection {
    /// Returns the pages of the section that hold `bytes` bytes from `start` on.
    fn pages(&self, start: u64, bytes: usize) -> Range<u64> {
        start / PAGE_BYTES as u64..(start + bytes as u64).div_ceil(PAGE_BYTES as u64)
    }

    fn is_sound(&self, page: u64, bytes: &[u8]) -> bool {
        self.checks.get(page as usize).is_some_and(|check| crc32c::crc32c(bytes) == *check)
    }
}

impl SegmentCodes {
    /// Reads the places and checksums of all sections of codes.
    ///
    /// # Errors
    /// `DataLoss` if their pages have no checksums.
    pub(super) fn open(
        contents: &SegmentContents,
        file: &dyn Sealed,
        cache: &Arc<SegmentCache>,
        damaged: &Arc<DamagedPages>,
    ) -> Result<SegmentCodes> {
        let in_place = file.in_place().is_some();
        let found = contents.superblock.sections.iter().filter(|it| is_codes(it.kind));
        let sections = found.map(|section| {
            let checks = contents.checks_of(section)?;
            let words = if in_place { checks.len().div_ceil(64) } else { 0 };
            let sound = (0..words).map(|_| AtomicU64::new(0)).collect();
            let kind = section.kind;
            let offset = section.offset;
            let bytes = section.bytes;
            Ok(CodeSection { kind, offset, bytes, checks, sound })
        });
        let sections = sections.collect::<Result<_>>()?;
        let file = CachedFile::new(cache, file.id());
        Ok(SegmentCodes { file, sections, damaged: damaged.clone() })
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        let of = |section: &CodeSection| section.checks.len() * 4 + section.sound.len() * 8;
        self.sections.iter().map(of).sum::<usize>() as u64
    }

    /// Returns the bytes of codes on the medium.
    pub(super) fn bytes(&self) -> u64 {
        self.sections.iter().map(|section| section.bytes).sum()
    }

    fn section(&self, range: &CodeRange) -> Result<&CodeSection> {
        let found = self.sections.iter().find(|section| section.kind == range.kind);
        let holds = |section: &&CodeSection| range.start + range.bytes as u64 <= section.bytes;
        found.filter(holds).ok_or_else(|| {
            Error::internal(format!("codes beyond section {:#x} were requested", range.kind))
        })
    }

    /// Records a page of a section.
    fn lose(&self, section: &CodeSection, page: u64, reason: &str) {
        let page = section.offset / PAGE_BYTES as u64 + page;
        let _ = self.damaged.record_derived_page(page, &format!("codes: {reason}"));
    }
}

/// Codes of one segment for one search. Rows whose codes cannot be read are counted.
pub(crate) struct CodeReader<'a> {
    codes: &'a SegmentCodes,
    file: &'a Arc<dyn Sealed>,
    /// `None` reads on the calling thread, one range after the other.
    reader: Option<RefCell<&'a mut dyn Reader>>,
    /// Time after which nothing is read.
    deadline: Option<Instant>,
    lost: Cell<u64>,
    late: Cell<bool>,
}

/// Range that is not cached.
struct MissingRange<'a> {
    /// Place in the answer.
    at: usize,
    range: &'a CodeRange,
    section: &'a CodeSection,
    pages: Range<u64>,
    bytes: Vec<u8>,
    lost: bool,
}

/// Pages of one section that are read together.
struct CodeRead {
    pages: Range<u64>,
    /// Missing ranges that need some of them.
    members: Range<usize>,
}

impl<'a> CodeReader<'a> {
    pub(super) fn new(
        codes: &'a SegmentCodes,
        file: &'a Arc<dyn Sealed>,
        reader: Option<&'a mut dyn Reader>,
        deadline: Option<Instant>,
    ) -> CodeReader<'a> {
        let reader = reader.map(RefCell::new);
        let lost = Cell::new(0);
        let late = Cell::new(false);
        CodeReader { codes, file, reader, deadline, lost, late }
    }

    /// Returns true if codes were not read because the deadline had passed.
    pub(crate) fn is_late(&self) -> bool {
        self.late.get()
    }

    /// Returns the number of rows whose codes could not be read.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.get()
    }

    /// Returns a range of the mapped `file`, or `None` if a page of it is damaged. Verifies each
    /// page once, or each time if the medium has lost pages.
    fn mapped(&self, file: &[u8], range: &CodeRange) -> Result<Option<Arc<dyn CodeBlock>>> {
        let section = self.codes.section(range)?;
        let has_lost = self.file.lost_pages() > 0;
        for page in section.pages(range.start, range.bytes) {
            let word = section.sound.get(page as usize / 64);
            let bit = 1_u64 << (page % 64);
            if !has_lost && word.is_some_and(|word| word.load(Ordering::Relaxed) & bit != 0) {
                continue;
            }
            let start = section.offset as usize + page as usize * PAGE_BYTES;
            if !file.get(start..start + PAGE_BYTES).is_some_and(|it| section.is_sound(page, it)) {
                self.codes.lose(section, page, "it does not match its checksum");
                return Ok(None);
            }
            if let Some(word) = word {
                word.fetch_or(bit, Ordering::Relaxed);
            }
        }
        let start = (section.offset + range.start) as usize;
        let place = start..start + range.bytes;
        let content = if range.floats {
            file.get(place).and_then(floats)
        } else {
            Some(BlockContent::Mapped(self.file.clone(), place))
        };
        let block = content.map(|content| VerifiedBlock::new(content, None));
        Ok(block.map(|block| Arc::new(block) as Arc<dyn CodeBlock>))
    }

    /// Reads the ranges that are not cached.
    fn read_missing(&self, missing: &mut [MissingRange<'_>]) -> Result<()> {
        missing.sort_unstable_by_key(|it| it.section.offset + it.range.start);
        let reads = joined_reads(missing);
        let Some(reader) = &self.reader else {
            let mut buffer = Vec::new();
            for read in &reads {
                let (offset, bytes) = place(missing, read);
                buffer.resize(bytes, 0);
                let outcome = self.file.read_at(offset, &mut buffer);
                self.arrived(missing, read, outcome.map(|()| &buffer[..]));
            }
            return Ok(());
        };
        let mut reader = reader.borrow_mut();
        let outcome = self.read_all(missing, &reads, &mut **reader);
        if outcome.is_err() {
            // Reads in flight must not reach later callers.
            while reader.in_flight() > 0 && reader.complete(usize::MAX, &mut |_, _| {}).is_ok() {}
        }
        outcome
    }

    /// Submits all `reads`, and stores their bytes in `missing` as they arrive.
    fn read_all(
        &self,
        missing: &mut [MissingRange<'_>],
        reads: &[CodeRead],
        reader: &mut dyn Reader,
    ) -> Result<()> {
        let mut next = 0;
        while next < reads.len() || reader.in_flight() > 0 {
            while next < reads.len() && reader.room() > 0 {
                let (offset, bytes) = place(missing, &reads[next]);
                reader.submit(Read { file: self.file, offset, bytes, tag: next as u64 })?;
                next += 1;
            }
            reader.complete(1, &mut |tag, bytes| {
                if let Some(read) = reads.get(tag as usize) {
                    self.arrived(missing, read, bytes);
                }
            })?;
        }
        Ok(())
    }

    /// Takes the pages of a read. If the medium has lost some of them, reads them one by one.
    fn arrived(&self, missing: &mut [MissingRange<'_>], read: &CodeRead, bytes: Result<&[u8]>) {
        let (offset, length) = place(missing, read);
        let Some(members) = missing.get_mut(read.members.clone()) else { return };
        self.codes.file.cache().count_read(CachedSection::Codes, length as u64);
        match bytes {
            Ok(bytes) => {
                for (page, bytes) in read.pages.clone().zip(bytes.chunks(PAGE_BYTES)) {
                    self.page_arrived(members, page, Ok(bytes));
                }
            }
            Err(error) if error.kind() == ErrorKind::DataLoss => {
                let mut buffer = [0; PAGE_BYTES];
                for (at, page) in read.pages.clone().enumerate() {
                    let offset = offset + (at * PAGE_BYTES) as u64;
                    let outcome = self.file.read_at(offset, &mut buffer);
                    self.page_arrived(members, page, outcome.map(|()| &buffer[..]));
                }
            }
            Err(_) => members.iter_mut().for_each(|member| member.lost = true),
        }
    }

    /// Verifies a page and copies it to the ranges that need it.
    fn page_arrived(&self, members: &mut [MissingRange<'_>], page: u64, bytes: Result<&[u8]>) {
        let Some(section) = members.first().map(|member| member.section) else { return };
        let mut using = members.iter_mut().filter(|it| it.pages.contains(&page)).peekable();
        if using.peek().is_none() {
            return;
        }
        let sound = match bytes {
            Ok(bytes) if section.is_sound(page, bytes) => Some(bytes),
            Ok(_) => {
                self.codes.lose(section, page, "it does not match its checksum");
                None
            }
            Err(error) => {
                if error.kind() == ErrorKind::DataLoss {
                    self.codes.lose(section, page, error.message());
                }
                None
            }
        };
        for member in using {
            match sound {
                Some(bytes) => member.copy(page, bytes),
                None => member.lost = true,
            }
        }
    }
}

impl MissingRange<'_> {
    /// Copies the part of a page that belongs to the range.
    fn copy(&mut self, page: u64, bytes: &[u8]) {
        let start = page * PAGE_BYTES as u64;
        let first = self.range.start;
        let end = self.range.start + self.range.bytes as u64;
        let from = first.max(start);
        let to = end.min(start + bytes.len() as u64);
        let target = self.bytes.get_mut((from - first) as usize..to.saturating_sub(first) as usize);
        let source = bytes.get((from - start) as usize..to.saturating_sub(start) as usize);
        if let (Some(target), Some(source)) = (target, source) {
            target.copy_from_slice(source);
        }
    }

    /// Returns the content, or `None` if it is damaged.
    fn content(&mut self) -> Option<BlockContent> {
        let bytes = std::mem::take(&mut self.bytes);
        match (self.lost, self.range.floats) {
            (true, _) => None,
            (false, true) => floats(&bytes),
            (false, false) => Some(BlockContent::Bytes(bytes.into())),
        }
    }
}

/// Decodes little-endian floats. Returns `None` if one is NaN, which no index stores.
fn floats(bytes: &[u8]) -> Option<BlockContent> {
    let values = bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
    let values: Vec<f32> = values.collect();
    let is_sound = !values.iter().any(|value| value.is_nan());
    is_sound.then(|| BlockContent::Floats(values.into()))
}

/// Returns the offset of a read in the file, and its length, both in bytes.
fn place(missing: &[MissingRange<'_>], read: &CodeRead) -> (u64, usize) {
    let page = PAGE_BYTES as u64;
    let section = missing.get(read.members.start).map_or(0, |member| member.section.offset);
    (section + read.pages.start * page, ((read.pages.end - read.pages.start) * page) as usize)
}

/// Joins neighbouring ranges to reads of at most [`READ_BYTES_MAX`], and divides longer ones.
/// `missing` ascend in the file.
fn joined_reads(missing: &[MissingRange<'_>]) -> Vec<CodeRead> {
    let pages_max = (READ_BYTES_MAX / PAGE_BYTES) as u64;
    let mut reads: Vec<CodeRead> = Vec::with_capacity(missing.len());
    for (at, member) in missing.iter().enumerate() {
        let mut start = member.pages.start;
        if let Some(last) = reads.last_mut()
            && missing[last.members.start].section.kind == member.section.kind
            && start <= last.pages.end + GAP_PAGES
        {
            let end = member.pages.end.min(last.pages.start + pages_max).max(last.pages.end);
            if end > start {
                last.pages.end = end;
                last.members.end = at + 1;
                start = end;
            }
        }
        while start < member.pages.end {
            let end = member.pages.end.min(start + pages_max);
            reads.push(CodeRead { pages: start..end, members: at..at + 1 });
            start = end;
        }
    }
    reads
}

impl ReadCodes for CodeReader<'_> {
    fn read(&self, wanted: &[CodeRange], out: &mut Vec<Option<Arc<dyn CodeBlock>>>) -> Result<()> {
        out.clear();
        if self.deadline.is_some_and(|deadline| Instant::now() > deadline) {
            self.late.set(true);
            out.resize(wanted.len(), None);
            return Ok(());
        }
        if let Some(file) = self.file.in_place() {
            for range in wanted {
                out.push(self.mapped(file, range)?);
            }
        } else {
            let mut missing = Vec::new();
            for (at, range) in wanted.iter().enumerate() {
                let section = self.codes.section(range)?;
                let key = self.key(section, range);
                let cached = self.codes.file.cache().get(CachedSection::Codes, key);
                out.push(cached.map(|block| block as Arc<dyn CodeBlock>));
                if out[at].is_none() {
                    let pages = section.pages(range.start, range.bytes);
                    let bytes = vec![0; range.bytes];
                    missing.push(MissingRange { at, range, section, pages, bytes, lost: false });
                }
            }
            if !missing.is_empty() {
                self.read_missing(&mut missing)?;
            }
            for member in &mut missing {
                let key = self.key(member.section, member.range);
                let block = member.content().map(|it| self.codes.file.cache().put(key, it));
                out[member.at] = block.map(|block| block as Arc<dyn CodeBlock>);
            }
        }
        let lost = wanted.iter().zip(&*out).filter(|(_, block)| block.is_none());
        let lost: usize = lost.map(|(range, _)| range.rows).sum();
        self.lost.set(self.lost.get() + lost as u64);
        Ok(())
    }
}

impl CodeReader<'_> {
    fn key(&self, section: &CodeSection, range: &CodeRange) -> SegmentCacheKey {
        SegmentCacheKey { file: self.codes.file.id(), offset: section.offset + range.start }
    }
}
