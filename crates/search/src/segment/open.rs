//! Open segment: its data in memory, and reads of the rest.

use std::borrow::Cow;
use std::fmt::{self, Debug};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use base::{Error, Result};
use coarse::{Coarse, RowSet};
use matching::index::EdgeIndex;
use storage::page::PAGE_BYTES;
use storage::{Reader, Sealed};

use super::check::SegmentFileDamage;
use super::codes::{CodeReader, SegmentCodes};
use super::damage::{DamagedPages, Quarantined};
use super::file::{IoStep, SegmentContents};
use super::ids::SegmentIds;
use super::layout::{SegmentSettings, kind};
use super::opening_index::OpenPayloadIndex;
use super::opening_plan::{CodesOptions, OpenedCodes, OpeningPlan, code_bytes, opening_bytes};
use super::pages::{PageCache, PayloadPass, SegmentPages};
use super::preload::CacheableSection;
use super::rows::RowLocation;
use super::section_cache::SectionCache;
use super::vectors::{ExactVectors, RowScores, VectorPages, Vectors};
use crate::budget::{BudgetReservation, MemoryBudget};
use crate::deletes::Deletes;
use crate::filter::Filter;
use crate::payload_index::{
    self, CountPosition, FilterInput, IndexAnswer, IndexedFieldInfo, OrderPosition, OrderRange,
    OrderedRowVisitor, OrderedVisit, PayloadIndex, ValueCounts, ValueVisitor,
};
use crate::rerank::{Address, Records};
use crate::segment_cache::{CachedFile, CachedSection};

/// Segment that can be searched. Queries share it and keep it open.
pub(crate) struct Segment {
    name: String,
    uuid: [u8; 16],
    settings: SegmentSettings,
    rows: u32,
    pub(super) file: Arc<dyn Sealed>,
    index: Box<dyn Coarse>,
    /// Codes of `index`, if they are on the medium.
    codes: Option<SegmentCodes>,
    /// Bytes of the codes that can stay on the medium.
    code_bytes: u64,
    /// Bytes of memory for opening it with its codes in memory.
    opening_bytes: u64,
    /// True if the codes could not be read into memory, so no further attempt is made.
    unreadable_codes: AtomicBool,
    edges: Option<EdgeIndex>,
    ids: SegmentIds,
    records: SegmentPages,
    pub(super) payloads: SegmentPages,
    /// `None` for segments of older programs, and if it is damaged.
    payload_index: Option<PayloadIndex>,
    pub(super) vectors: Vectors,
    damaged: Arc<DamagedPages>,
    held: BudgetReservation,
}

/// Reads only the ids of the segment in `file`, for a segment that cannot be opened.
///
/// # Errors
/// `DataLoss` if they are damaged too, or the file is another segment.
pub(crate) fn ids_alone(file: &dyn Sealed, uuid: [u8; 16], rows: u32) -> Result<SegmentIds> {
    let contents = SegmentContents::read(file)?;
    if contents.superblock.uuid != uuid || contents.superblock.rows != u64::from(rows) {
        return Err(Error::data_loss("it is another segment"));
    }
    SegmentIds::read(&contents, file, rows)
}

impl Segment {
    /// Returns the sections that can be preloaded, the payload index last. Returns none if the
    /// medium is mapped memory.
    pub(super) fn cacheable(&self) -> impl Iterator<Item = &dyn CacheableSection> {
        let sections: [&dyn CacheableSection; 2] = [&self.vectors, &self.payloads];
        let index = self.payload_index.as_ref().map(PayloadIndex::section);
        let index = index.map(|section| section as &dyn CacheableSection);
        let is_cached = self.file.in_place().is_none();
        sections.into_iter().chain(index).filter(move |_| is_cached)
    }

    /// Opens the segment in `file`. `name` is used in messages. Reads and verifies everything but
    /// embeddings, records, payloads, and codes that stay on the medium. Its memory, including the
    /// maximum of its deletes, is reserved from `budget`.
    ///
    /// # Errors
    /// `DataLoss` with section and page if something is damaged, `FailedPrecondition` for a newer
    /// format, `ResourceExhausted` if it does not fit the budget.
    pub(crate) fn open(
        file: Arc<dyn Sealed>,
        name: &str,
        budget: &Arc<MemoryBudget>,
        codes: &CodesOptions,
    ) -> Result<Segment> {
        let held = budget.reserve(0, name)?;
        Segment::open_with(file, name, held, codes)
    }

    /// Opens the segment with memory that was reserved before. Releases the unused part.
    ///
    /// # Errors
    /// As [`Segment::open`].
    pub(crate) fn open_with(
        file: Arc<dyn Sealed>,
        name: &str,
        held: BudgetReservation,
        codes: &CodesOptions,
    ) -> Result<Segment> {
        Segment::read(file, name, held, codes).map_err(|error| error.context(name))
    }

    /// Reads the parts of a segment that stay in memory, and prepares the reads of the others.
    /// `held` becomes the memory that the segment takes.
    fn read(
        file: Arc<dyn Sealed>,
        name: &str,
        mut held: BudgetReservation,
        options: &CodesOptions,
    ) -> Result<Segment> {
        let contents = SegmentContents::read(&*file)?;
        let rows = contents.superblock.rows as u32;
        let damaged = DamagedPages::new(name);
        let plan = OpeningPlan::reserve(&contents, options, name, &mut held)?;
        let on_medium = plan.codes == OpenedCodes::OnMedium;
        let settings = SegmentSettings::decode(&contents.load(&*file, kind::SETTINGS)?)?;
        let codes = if on_medium {
            Some(SegmentCodes::open(&contents, &*file, &options.cache, &damaged)?)
        } else {
            None
        };
        let index = open_index(&contents, &*file, &settings, rows, on_medium)?;
        let edges = open_edges(&contents, &*file, rows)?;
        let ids = SegmentIds::read(&contents, &*file, rows)?;
        let pages = |pages, map| {
            SegmentPages::open(&contents, &*file, pages, map, &damaged, &options.cache)
        };
        let records = pages(kind::RECORDS, kind::RECORD_MAP)?;
        let payloads = pages(kind::PAYLOADS, kind::PAYLOAD_MAP)?;
        let payload_index = match contents.section(kind::PAYLOAD_INDEX) {
            Ok(section) => {
                let contents = &contents;
                let file = &*file;
                let damaged = &damaged;
                let cache = &options.cache;
                let others_bytes = plan.bytes;
                OpenPayloadIndex { contents, section, file, damaged, cache, others_bytes }
                    .open(&mut held)?
            }
            Err(_) => None,
        };
        let section = contents.section(kind::VECTORS)?;
        let checks = contents.checks_of(section)?;
        let in_place = file.in_place().is_some();
        let cached_file = CachedFile::new(&options.cache, file.id());
        let cache = SectionCache::new(cached_file, CachedSection::Vectors, section.offset);
        let vector_pages = VectorPages { checks, in_place, damaged: damaged.clone(), cache };
        let vectors = Vectors::new(settings, rows, section, vector_pages)?;
        let uuid = contents.superblock.uuid;
        let mut segment = Segment {
            name: name.to_owned(),
            uuid,
            settings,
            rows,
            file,
            index,
            codes,
            code_bytes: code_bytes(&contents),
            opening_bytes: opening_bytes(&contents, OpenedCodes::InMemory),
            unreadable_codes: AtomicBool::new(false),
            edges,
            ids,
            records,
            payloads,
            payload_index,
            vectors,
            damaged,
            held,
        };
        let bytes = segment.memory_bytes();
        segment.held.resize(bytes, name)?;
        Ok(segment)
    }

    /// Returns the name of the file.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the UUID, which does not depend on the file's name.
    pub(crate) fn uuid(&self) -> [u8; 16] {
        self.uuid
    }

    /// Returns the shape of the rows.
    pub(crate) fn settings(&self) -> &SegmentSettings {
        &self.settings
    }

    /// Returns the budget that counts its memory.
    pub(crate) fn budget(&self) -> &Arc<MemoryBudget> {
        self.held.budget()
    }

    /// Returns the number of rows, including deleted ones.
    pub(crate) fn rows(&self) -> u32 {
        self.rows
    }

    /// Returns the coarse index.
    pub(crate) fn index(&self) -> &dyn Coarse {
        &*self.index
    }

    /// Returns the index of its fingerprints, if it has one.
    pub(crate) fn edges(&self) -> Option<&EdgeIndex> {
        self.edges.as_ref()
    }

    /// Returns the map of rows and ids.
    pub(crate) fn ids(&self) -> &SegmentIds {
        &self.ids
    }

    /// Returns the bytes of memory, including the maximum of its deletes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.index.memory_bytes()
            + self.codes.as_ref().map_or(0, SegmentCodes::memory_bytes)
            + self.edges.as_ref().map_or(0, EdgeIndex::memory_bytes)
            + self.ids.memory_bytes()
            + self.records.map.memory_bytes()
            + self.payloads.map.memory_bytes()
            + self.payload_index.as_ref().map_or(0, PayloadIndex::memory_bytes)
            + self.vectors.memory_bytes()
            + Deletes::memory_bytes_max(self.rows)
    }

    /// Returns exact scores of its rows, read through `reader`, which [`super::reader_options`]
    /// describes.
    pub(crate) fn exact<'a>(&'a self, reader: &'a mut dyn Reader) -> ExactVectors<'a> {
        ExactVectors::new(&self.vectors, &self.ids, &self.file, reader)
    }

    /// Returns the scores of `rows`, which [`super::score_rows`] computes.
    pub(crate) fn row_scores<'a>(&'a self, rows: &'a [u32]) -> RowScores<'a> {
        RowScores::new(&self.vectors, &self.file, rows)
    }

    /// Returns the bytes of its codes on the medium, or 0 if they are in memory.
    pub(crate) fn codes_on_medium(&self) -> u64 {
        self.codes.as_ref().map_or(0, SegmentCodes::bytes)
    }

    /// Returns the bytes of its codes in memory that could be on the medium.
    pub(crate) fn movable_codes(&self) -> u64 {
        if self.codes.is_some() { 0 } else { self.code_bytes }
    }

    /// Returns the bytes of memory for opening it with its codes in memory, if they are on the
    /// medium and can be read.
    pub(crate) fn bytes_with_codes(&self) -> Option<u64> {
        let loadable = self.codes.is_some() && !self.unreadable_codes.load(Ordering::Relaxed);
        // While one section is decoded, its bytes exist twice. With fewer bytes than the plan of
        // the opening, the codes would stay on the medium, and the next attempt would do the same.
        loadable.then(|| (self.memory_bytes() + 2 * self.code_bytes).max(self.opening_bytes))
    }

    /// Records that the codes on the medium cannot be read into memory.
    pub(crate) fn set_unreadable_codes(&self) {
        self.unreadable_codes.store(true, Ordering::Relaxed);
    }

    /// Returns true if a reader of the medium helps to read codes. Then they are on it, and it is
    /// not mapped memory.
    pub(crate) fn reads_codes(&self) -> bool {
        self.codes.is_some() && self.file.in_place().is_none()
    }

    /// Returns a reader of its codes, if they are on the medium. They are read through `reader`,
    /// which [`super::CODES_READER`] describes, until `deadline`.
    pub(crate) fn codes<'a>(
        &'a self,
        reader: Option<&'a mut dyn Reader>,
        deadline: Option<Instant>,
    ) -> Option<CodeReader<'a>> {
        self.codes.as_ref().map(|codes| CodeReader::new(codes, &self.file, reader, deadline))
    }

    /// Appends the embedding of a row to `out`.
    ///
    /// # Errors
    /// `NotFound` beyond the last row. `DataLoss` for a damaged page, which is remembered.
    pub(crate) fn vector(&self, row: u32, out: &mut Vec<f32>) -> Result<()> {
        self.vectors.append_row(&*self.file, row, out)
    }

    /// Calls `each` with all embeddings, in the order of rows. Calls `step` with the bytes before
    /// each read.
    ///
    /// # Errors
    /// As [`Segment::vector`]. Also the errors of `step` and `each`.
    pub(crate) fn vectors(
        &self,
        step: IoStep<'_>,
        each: &mut dyn FnMut(u32, &[f32]) -> Result<()>,
    ) -> Result<()> {
        self.vectors.all(&*self.file, step, each)
    }

    /// Calls `each` with the place in `rows` and the embedding of each of `rows`, which ascend.
    /// Calls `step` with the bytes before each read.
    ///
    /// # Errors
    /// As [`Segment::vector`]. Also the error of `step`.
    pub(crate) fn vectors_of(
        &self,
        rows: &[u32],
        step: IoStep<'_>,
        each: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<()> {
        self.vectors.each_of(&*self.file, rows, step, each)
    }

    /// Appends the record of a row to `out`.
    ///
    /// # Errors
    /// As [`Segment::vector`].
    pub(crate) fn record(&self, row: u32, cache: &mut PageCache, out: &mut Vec<u8>) -> Result<()> {
        self.records.append_row(&*self.file, row, cache, out)
    }

    /// Appends the payload of a row to `out`.
    ///
    /// # Errors
    /// As [`Segment::vector`].
    pub(crate) fn payload(&self, row: u32, cache: &mut PageCache, out: &mut Vec<u8>) -> Result<()> {
        self.payloads.append_row(&*self.file, row, cache, out)
    }

    /// Selects the rows that meet `filter` with the payload index. Without an index, conditions on
    /// fields leave all rows undecided.
    ///
    /// # Errors
    /// The error of the medium.
    pub(crate) fn select(&self, filter: &Filter) -> Result<IndexAnswer> {
        let input = FilterInput {
            index: self.payload_index.as_ref(),
            file: &*self.file,
            ids: &self.ids,
            rows: self.rows,
        };
        payload_index::select(input, filter)
    }

    /// Returns the fields of the payload index, or none without an index.
    pub(crate) fn indexed_fields(&self) -> Vec<IndexedFieldInfo> {
        self.payload_index.as_ref().map_or_else(Vec::new, PayloadIndex::fields)
    }

    /// Returns true if its payload index has the values under `path`, or knows that there are none.
    pub(crate) fn indexes(&self, path: &str) -> bool {
        self.payload_index.as_ref().is_some_and(|index| index.covers(path))
    }

    /// Counts the rows of `allow` with a value under `path`. Returns `None` if the payload index
    /// does not have that information.
    ///
    /// # Errors
    /// The error of the medium.
    pub(crate) fn present(&self, path: &str, allow: Option<&RowSet>) -> Result<Option<u64>> {
        let index = self.payload_index.as_ref();
        index.map_or(Ok(None), |index| index.present(&*self.file, path, allow))
    }

    /// Returns the bytes of the file that hold the payload index.
    #[cfg(test)]
    pub(crate) fn index_range(&self) -> Option<std::ops::Range<u64>> {
        self.payload_index.as_ref().map(PayloadIndex::file_range)
    }

    /// Counts the values of a field as [`PayloadIndex::count_values`] does.
    ///
    /// # Errors
    /// As [`PayloadIndex::count_values`].
    pub(crate) fn count_values(
        &self,
        path: &str,
        allow: Option<&RowSet>,
        position: &mut CountPosition,
        visitor: &mut dyn ValueVisitor,
    ) -> Result<ValueCounts> {
        match &self.payload_index {
            Some(index) => index.count_values(&*self.file, path, allow, position, visitor),
            None => Ok(ValueCounts::Undecided),
        }
    }

    /// Visits a field's numbers and dates in order, as [`PayloadIndex::ordered_rows`] does.
    ///
    /// # Errors
    /// As [`PayloadIndex::ordered_rows`].
    pub(crate) fn ordered_rows(
        &self,
        path: &str,
        range: OrderRange,
        position: &mut OrderPosition,
        visitor: &mut dyn OrderedRowVisitor,
    ) -> Result<OrderedVisit> {
        match &self.payload_index {
            Some(index) => index.ordered_rows(&*self.file, path, range, position, visitor),
            None => Ok(OrderedVisit::Unindexed),
        }
    }

    /// Calls `each` with the payloads of `rows` from `first` on, in ascending order, until it
    /// returns [`ControlFlow::Break`]. Rows of damaged pages are skipped and counted.
    ///
    /// # Errors
    /// The error of the medium if it cannot be read at all.
    pub(crate) fn payloads_of(
        &self,
        rows: &RowSet,
        first: u32,
        each: &mut dyn FnMut(u32, &[u8]) -> ControlFlow<()>,
    ) -> Result<PayloadPass> {
        self.payloads.each_of(&*self.file, rows, first, each)
    }

    /// Returns the length of the file.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.file.bytes()
    }

    /// Returns the damage found so far. The segment is served without it.
    pub(crate) fn damaged(&self) -> Vec<Quarantined> {
        self.damaged.list()
    }

    /// Returns true if damage was found that a copy of the segment would make permanent.
    pub(crate) fn loses_data(&self) -> bool {
        self.damaged.loses_data()
    }

    /// Records that the page at `offset` of the file is damaged, found by a reader outside the
    /// segment.
    pub(crate) fn note_page(&self, offset: u64, reason: &str) {
        let _ = self.damaged.record_page(offset / PAGE_BYTES as u64, reason);
    }

    /// Records damage that a copy of its files found.
    pub(crate) fn note_copied(&self, damage: &SegmentFileDamage) {
        self.damaged.record_copied(damage);
    }
}

impl Records for Segment {
    fn file(&self) -> &Arc<dyn Sealed> {
        &self.file
    }

    fn locate(&self, row: u32) -> Option<Address> {
        let RowLocation { page, pages, slot } = self.records.map.locate(row)?;
        let offset = self.records.offset + u64::from(page) * PAGE_BYTES as u64;
        Some(Address { offset, bytes: pages * PAGE_BYTES as u32, slot })
    }

    fn pages_start(&self) -> Option<u64> {
        Some(self.records.offset)
    }
}

impl Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Segment")
            .field("name", &self.name)
            .field("rows", &self.rows)
            .finish_non_exhaustive()
    }
}

/// Opens the coarse index, and checks that it is the index of this segment. `on_medium` leaves its
/// codes on the medium.
fn open_index(
    contents: &SegmentContents,
    file: &dyn Sealed,
    settings: &SegmentSettings,
    rows: u32,
    on_medium: bool,
) -> Result<Box<dyn Coarse>> {
    let load = |kind: u32| contents.load(file, kind).map(Cow::Owned);
    let bytes_of = |kind: u32| contents.section(kind).map(|section| section.bytes);
    let index = if on_medium {
        coarse::open_on_medium(&load, &bytes_of)?
    } else {
        coarse::open_with(&load)?
    };
    if index.rows() != rows || index.dims() != settings.dims || index.metric() != settings.metric {
        return Err(Error::data_loss("the coarse index belongs to another segment"));
    }
    Ok(index)
}

/// Reads the fingerprint index of a segment of `rows` rows, or returns `None` if it has none.
fn open_edges(
    contents: &SegmentContents,
    file: &dyn Sealed,
    rows: u32,
) -> Result<Option<EdgeIndex>> {
    if !contents.superblock.sections.iter().any(|section| section.kind == kind::EDGES) {
        return Ok(None);
    }
    let index = EdgeIndex::decode(&contents.load(file, kind::EDGES)?)?;
    if index.rows() != rows {
        return Err(Error::data_loss("the fingerprint index belongs to another segment"));
    }
    Ok(Some(index))
}
