//! Sections of record pages: records and payloads of rows, read page by page. Pages of payloads
//! that requests have read stay in memory while it is free.

use std::ops::ControlFlow;
use std::sync::Arc;

use base::{Error, Result};
use coarse::RowSet;
use storage::Sealed;
use storage::page::{PAGE_BYTES, RecordPage};

use super::damage::DamagedPages;
use super::file::{IoStep, SegmentContents};
use super::layout::{kind, kind_name};
use super::preload::{CacheableSection, PreloadState, sampled_share};
use super::rows::{RowLocation, RowMap};
use super::section_cache::SectionCache;
use crate::segment_cache::{CachedFile, CachedSection, SegmentCache, block_bytes};

/// Pages per read of all payloads.
const SCAN_PAGES: u32 = 256;
/// Pages between two wanted rows up to which they are read together.
const GAP_PAGES: u32 = 16;

/// Pass over the payloads of some rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PayloadPass {
    /// Rows that could not be read.
    pub(crate) lost: u32,
    /// Row to continue with, or `None` after the last.
    pub(crate) next: Option<u32>,
}

/// Section of record pages.
pub(super) struct SegmentPages {
    kind: u32,
    pub(super) offset: u64,
    pub(super) map: RowMap,
    damaged: Arc<DamagedPages>,
    /// Runs of pages with payloads. Records have caches of their own.
    cache: SectionCache,
}

impl SegmentPages {
    /// Opens the pages of the section kind `pages`, whose row map is the section kind `map`.
    pub(super) fn open(
        contents: &SegmentContents,
        file: &dyn Sealed,
        pages: u32,
        map: u32,
        damaged: &Arc<DamagedPages>,
        cache: &Arc<SegmentCache>,
    ) -> Result<SegmentPages> {
        let section = contents.section(pages)?;
        let rows = contents.superblock.rows as u32;
        let decoded = RowMap::decode(&contents.load(file, map)?, rows, section.bytes);
        let map = decoded.map_err(|error| error.context(kind_name(map)))?;
        let (offset, damaged) = (section.offset, damaged.clone());
        let cached_file = CachedFile::new(cache, file.id());
        let cache = SectionCache::new(cached_file, CachedSection::Payloads, offset);
        Ok(SegmentPages { kind: pages, offset, map, damaged, cache })
    }

    fn offset_of(&self, page: u32) -> u64 {
        self.offset + u64::from(page) * PAGE_BYTES as u64
    }

    /// Records a page and returns the error that names it.
    fn lose(&self, page: u32, reason: &str) -> Error {
        let reason = format!("{}: {reason}", kind_name(self.kind));
        self.damaged.record_page(self.offset_of(page) / PAGE_BYTES as u64, &reason)
    }

    fn read(&self, file: &dyn Sealed, page: u32, buffer: &mut [u8]) -> Result<()> {
        let offset = self.offset_of(page);
        self.damaged.check_read(offset / PAGE_BYTES as u64, file.read_at(offset, buffer))
    }

    /// Verifies the page at `place`. A damaged page is recorded.
    fn check<'a>(&self, place: RowLocation, bytes: &'a [u8]) -> Result<RecordPage<'a>> {
        let page =
            RecordPage::open(bytes).map_err(|error| self.lose(place.page, error.message()))?;
        if page.number() != place.page || u32::from(page.pages()) != place.pages {
            return Err(
                self.lose(place.page, &format!("it is page {} of another place", page.number()))
            );
        }
        Ok(page)
    }

    fn record<'a>(&self, page: &RecordPage<'a>, place: RowLocation) -> Result<&'a [u8]> {
        let record = page.record(place.slot);
        record.ok_or_else(|| self.lose(place.page, &format!("it has no record {}", place.slot)))
    }

    /// Fills `buffer` with the run of pages at `place`, from the shared cache if it has the run.
    fn read_shared(&self, file: &dyn Sealed, place: RowLocation, buffer: &mut [u8]) -> Result<()> {
        let cached = self.cache.block(place.page as usize);
        if let Some(cached) = cached.filter(|cached| cached.bytes().len() == buffer.len()) {
            buffer.copy_from_slice(cached.bytes());
            return Ok(());
        }
        self.read(file, place.page, buffer)?;
        self.check(place, buffer)?;
        self.cache.put_block(place.page as usize, buffer);
        Ok(())
    }

    /// Appends the record of `row` to `out`. `cache` keeps the last pages of the caller.
    pub(super) fn append_row(
        &self,
        file: &dyn Sealed,
        row: u32,
        cache: &mut PageCache,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let place = self.map.locate(row);
        let place =
            place.ok_or_else(|| Error::not_found(format!("the segment has no row {row}")))?;
        let key = PageKey { file: file.id(), offset: self.offset_of(place.page) };
        let shares = cache.shares && self.kind == kind::PAYLOADS && file.in_place().is_none();
        let bytes = cache.get(key, place.pages, |buffer| {
            if shares {
                self.read_shared(file, place, buffer)
            } else {
                self.read(file, place.page, buffer)
            }
        })?;
        let page = self.check(place, bytes)?;
        out.extend_from_slice(self.record(&page, place)?);
        Ok(())
    }

    /// Calls `each` with the number and the record of every row of `wanted`, beginning at `row`,
    /// until `each` returns `Break`. Returns the next row and the number of rows with unreadable
    /// records.
    pub(super) fn each_of(
        &self,
        file: &dyn Sealed,
        wanted: &RowSet,
        row: u32,
        each: &mut dyn FnMut(u32, &[u8]) -> ControlFlow<()>,
    ) -> Result<PayloadPass> {
        let mut buffer = Vec::new();
        let mut pass = PayloadPass { lost: 0, next: wanted.next_from(row) };
        while let Some(first) = pass.next.and_then(|row| self.map.locate(row)) {
            let pages = self.pages_together(first, pass.next.unwrap_or(row), wanted);
            buffer.resize(pages as usize * PAGE_BYTES, 0);
            let mut end = first.page + pages;
            let whole = file.read_at(self.offset_of(first.page), &mut buffer);
            if whole.is_err() {
                // If a range cannot be read, its pages are read one by one.
                end = first.page + first.pages;
                buffer.resize(first.pages as usize * PAGE_BYTES, 0);
                match self.read(file, first.page, &mut buffer) {
                    Err(error) if error.kind() != base::ErrorKind::DataLoss => return Err(error),
                    // A page of zeros fails its check below.
                    Err(_) => buffer.fill(0),
                    Ok(()) => {}
                }
            }
            while let Some(place) = pass.next.and_then(|row| self.map.locate(row))
                && place.page + place.pages <= end
            {
                let start = (place.page - first.page) as usize * PAGE_BYTES;
                let bytes = &buffer[start..start + place.pages as usize * PAGE_BYTES];
                if self.wanted_of_run(place, bytes, wanted, &mut pass, each).is_break() {
                    return Ok(pass);
                }
            }
        }
        Ok(pass)
    }

    /// Calls `each` with the wanted records of the run of pages at `place`. `bytes` are its pages.
    /// Moves `pass` to the first wanted row after the run.
    fn wanted_of_run(
        &self,
        place: RowLocation,
        bytes: &[u8],
        wanted: &RowSet,
        pass: &mut PayloadPass,
        each: &mut dyn FnMut(u32, &[u8]) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let rows = self.map.rows_of_page(place.page);
        let page = self.check(place, bytes).ok();
        while let Some(row) = pass.next.filter(|row| rows.contains(row)) {
            // It was checked at opening that a run has at most 2^16 rows.
            let place = RowLocation { slot: (row - rows.start) as u16, ..place };
            match page.as_ref().and_then(|page| self.record(page, place).ok()) {
                Some(record) => each(row, record)?,
                None => pass.lost += 1,
            }
            pass.next = row.checked_add(1).and_then(|row| wanted.next_from(row));
        }
        ControlFlow::Continue(())
    }

    /// Returns the number of pages to read together from `first`, the place of `row`. They include
    /// the wanted rows after it that are near each other.
    fn pages_together(&self, first: RowLocation, mut row: u32, wanted: &RowSet) -> u32 {
        let mut end = first.page + first.pages;
        while let Some(next) = row.checked_add(1).and_then(|row| wanted.next_from(row))
            && let Some(place) = self.map.locate(next)
            && place.page <= end + GAP_PAGES
            && place.page + place.pages - first.page <= SCAN_PAGES
        {
            end = end.max(place.page + place.pages);
            row = next;
        }
        end - first.page
    }
}

impl CacheableSection for SegmentPages {
    fn cached_bytes_max(&self) -> u64 {
        let overhead = self.map.runs() as u64 * block_bytes(0);
        u64::from(self.map.pages()) * PAGE_BYTES as u64 + overhead
    }

    fn cached_share(&self) -> f64 {
        let first_page = |run| self.map.run_pages(run).start as usize;
        sampled_share(self.map.runs(), first_page, |page| self.cache.has(page))
    }

    fn preload_state(&self) -> &PreloadState {
        self.cache.preload_state()
    }

    fn preload(&self, file: &dyn Sealed, step: IoStep<'_>) -> Result<()> {
        self.preload_state().begin();
        let mut buffer = Vec::new();
        let mut run = 0;
        while run < self.map.runs() {
            let first = self.map.run_pages(run);
            let near = |run: &usize| self.map.run_pages(*run).end - first.start <= SCAN_PAGES;
            let end = run + 1 + (run + 1..self.map.runs()).take_while(near).count();
            let runs = run..end;
            run = end;
            if runs.clone().all(|run| self.cache.has(self.map.run_pages(run).start as usize)) {
                continue;
            }
            let pages = first.start..self.map.run_pages(end - 1).end;
            let bytes = (pages.end - pages.start) as usize * PAGE_BYTES;
            step(bytes as u64)?;
            buffer.resize(bytes, 0);
            file.read_at(self.offset_of(pages.start), &mut buffer)?;
            for pages in runs.map(|run| self.map.run_pages(run)) {
                let within = |page: u32| (page - first.start) as usize * PAGE_BYTES;
                let bytes = &buffer[within(pages.start)..within(pages.end)];
                let is_sound =
                    RecordPage::open(bytes).is_ok_and(|page| page.number() == pages.start);
                if is_sound && !self.cache.preload(pages.start as usize, bytes) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

/// Recently read pages, so that neighbouring rows cost one read. For one thread. Its memory is one
/// page for each place, and one run of several pages.
#[derive(Debug)]
pub(crate) struct PageCache {
    places: Vec<Option<CachedPage>>,
    /// Last run of several pages. It holds one record, so neighbouring rows do not need it.
    long: Option<CachedPage>,
    /// True if pages of payloads are shared with other requests.
    shares: bool,
}

/// First page of a cached run of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PageKey {
    /// Id of the open file.
    file: u64,
    /// Offset in the file, in bytes.
    offset: u64,
}

#[derive(Clone, Debug)]
struct CachedPage {
    key: PageKey,
    bytes: Vec<u8>,
}

impl PageCache {
    /// Creates a cache of so many pages, for data that is read once.
    pub(crate) fn new(places: usize) -> PageCache {
        PageCache { places: vec![None; places.max(1)], long: None, shares: false }
    }

    /// Creates a cache of so many pages, for a request. Others may need its pages too.
    pub(crate) fn of_request(places: usize) -> PageCache {
        PageCache { shares: true, ..PageCache::new(places) }
    }

    /// Returns the bytes of `pages` pages from `key` on. Calls `read` to fill the buffer if they
    /// are not cached.
    fn get(
        &mut self,
        key: PageKey,
        pages: u32,
        read: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<&[u8]> {
        let count = self.places.len() as u64;
        let place = if pages > 1 {
            &mut self.long
        } else {
            &mut self.places[(key.offset / PAGE_BYTES as u64 % count) as usize]
        };
        if place.as_ref().is_none_or(|held| held.key != key) {
            let mut bytes = place.take().map_or_else(Vec::new, |held| held.bytes);
            bytes.resize(pages as usize * PAGE_BYTES, 0);
            read(&mut bytes)?;
            *place = Some(CachedPage { key, bytes });
        }
        Ok(place.as_ref().map_or(&[], |held| &held.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGES_MAX: u32 = 257;

    #[test]
    fn a_page_cache_keeps_one_long_run() {
        let mut cache = PageCache::new(4);
        for first in 0..8_u64 {
            let short = PageKey { file: 1, offset: first * PAGE_BYTES as u64 };
            assert_eq!(cache.get(short, 1, |_| Ok(())).unwrap().len(), PAGE_BYTES);
            let long = PageKey { file: 2, ..short };
            let bytes = PAGES_MAX as usize * PAGE_BYTES;
            assert_eq!(cache.get(long, PAGES_MAX, |_| Ok(())).unwrap().len(), bytes);
        }
        let held = cache.places.iter().flatten().chain(&cache.long);
        let bytes: usize = held.map(|held| held.bytes.capacity()).sum();
        assert_eq!(bytes, (4 + PAGES_MAX as usize) * PAGE_BYTES);
        let mut reads = 0;
        for _ in 0..2 {
            let read = |_: &mut [u8]| {
                reads += 1;
                Ok(())
            };
            cache.get(PageKey { file: 3, offset: 0 }, 1, read).unwrap();
        }
        assert_eq!(reads, 1);
    }
}
