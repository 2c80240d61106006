//! Embeddings of a segment, read from its medium for exact scores. Every page is verified at each
//! read, or only once if the medium is mapped memory and has lost no page. Pages that were read for
//! scores stay in memory while it is free.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::{Error, Result};
use coarse::{CoarseHit, Exact, Metric};
use storage::page::PAGE_BYTES;
use storage::superblock::Section;
use storage::{Read, Reader, ReaderOptions, Sealed};

use super::damage::DamagedPages;
use super::file::IoStep;
use super::ids::SegmentIds;
use super::layout::SegmentSettings;
use super::preload::{CacheableSection, PreloadState, sampled_share};
use super::section_cache::SectionCache;
use crate::segment_cache::block_bytes;

/// Maximum reads of vectors in flight.
const DEPTH: usize = 64;
/// Maximum bytes per read of [`Vectors::all`] and [`Vectors::some`].
const STEP_BYTES: usize = 1 << 20;
/// Maximum pages between two rows that are read together. Another read costs more than these.
const GAP_PAGES: usize = 8;

/// Returns the similarity of two embeddings, higher is more similar, as in
/// [`CoarseHit::score`].
pub fn similarity(metric: Metric, query: &[f32], vector: &[f32]) -> f32 {
    match metric {
        Metric::Dot => kernels::float::dot(query, vector),
        Metric::L2 => -kernels::float::l2(query, vector),
        Metric::Cosine => {
            let dot = kernels::float::dot(query, vector);
            // The product of two squares may be out of the range of 32 bits.
            let square = |of: &[f32]| f64::from(kernels::float::dot(of, of));
            let squares = square(query) * square(vector);
            if squares > 0.0 { (f64::from(dot) / squares.sqrt()) as f32 } else { 0.0 }
        }
    }
}

/// Section of vectors.
#[derive(Debug)]
pub(super) struct Vectors {
    settings: SegmentSettings,
    rows: u32,
    offset: u64,
    checks: Vec<u32>,
    /// One bit per verified page, if the medium is mapped memory.
    sound: Vec<AtomicU64>,
    damaged: Arc<DamagedPages>,
    /// Pages that were read. Not used if the medium is mapped memory.
    cache: SectionCache,
}

/// Pages of the section of vectors.
pub(super) struct VectorPages {
    /// Checksum of each page.
    pub(super) checks: Vec<u32>,
    /// True if the medium is mapped memory.
    pub(super) in_place: bool,
    /// Pages of the segment that are known to be damaged.
    pub(super) damaged: Arc<DamagedPages>,
    /// Pages that were read.
    pub(super) cache: SectionCache,
}

impl Vectors {
    /// Opens the section `section` with the pages `pages`.
    pub(super) fn new(
        settings: SegmentSettings,
        rows: u32,
        section: &Section,
        pages: VectorPages,
    ) -> Result<Vectors> {
        let VectorPages { checks, in_place, damaged, cache } = pages;
        if section.bytes != u64::from(rows) * settings.stride() as u64 {
            return Err(Error::data_loss(format!(
                "vectors: {} bytes for {rows} rows",
                section.bytes
            )));
        }
        let words = if in_place { checks.len().div_ceil(64) } else { 0 };
        let sound = (0..words).map(|_| AtomicU64::new(0)).collect();
        Ok(Vectors { settings, rows, offset: section.offset, checks, sound, damaged, cache })
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        (self.checks.len() * 4 + self.sound.len() * 8) as u64
    }

    /// Returns the pages of the section that hold a row.
    fn pages(&self, row: u32) -> Range<usize> {
        let start = row as usize * self.settings.stride();
        start / PAGE_BYTES..(start + self.settings.stride()).div_ceil(PAGE_BYTES)
    }

    /// Returns the offset of a row in its first page.
    fn within(&self, row: u32) -> usize {
        row as usize * self.settings.stride() % PAGE_BYTES
    }

    /// Returns the first of `pages` whose checksum is wrong. `bytes` are those pages.
    fn first_damaged(&self, pages: Range<usize>, bytes: &[u8]) -> Option<usize> {
        let checks = &self.checks[pages.clone()];
        let mut each = pages.zip(bytes.chunks(PAGE_BYTES).zip(checks));
        each.find(|(_, (page, check))| crc32c::crc32c(page) != **check).map(|(page, _)| page)
    }

    /// Records a page of the section and returns the error that names it.
    fn lose(&self, page: usize, reason: &str) -> Error {
        self.damaged.record_page(
            self.offset / PAGE_BYTES as u64 + page as u64,
            &format!("vectors: {reason}"),
        )
    }

    /// Verifies pages that were read.
    fn check(&self, pages: Range<usize>, bytes: &[u8]) -> Result<()> {
        match self.first_damaged(pages, bytes) {
            Some(page) => Err(self.lose(page, "it does not match its checksum")),
            None => Ok(()),
        }
    }

    fn read(&self, file: &dyn Sealed, pages: &Range<usize>, buffer: &mut Vec<u8>) -> Result<()> {
        let (offset, bytes) = self.file_range(pages);
        buffer.resize(bytes, 0);
        self.damaged.check_read(offset / PAGE_BYTES as u64, file.read_at(offset, buffer))?;
        self.check(pages.clone(), buffer)
    }

    /// Verifies pages that were read for scores, and caches them.
    fn arrived(&self, pages: &Range<usize>, bytes: &[u8]) -> Result<()> {
        self.check(pages.clone(), bytes)?;
        self.cache.put(pages, bytes);
        Ok(())
    }

    /// Verifies pages of mapped memory, once each. If `has_lost` is true, the file has lost pages
    /// that may have been verified before, so all are verified again.
    fn check_in_place(&self, pages: Range<usize>, bytes: &[u8], has_lost: bool) -> Result<()> {
        for (page, bytes) in pages.zip(bytes.chunks(PAGE_BYTES)) {
            let word = &self.sound[page / 64];
            let bit = 1_u64 << (page % 64);
            if !has_lost && word.load(Ordering::Relaxed) & bit != 0 {
                continue;
            }
            if crc32c::crc32c(bytes) != self.checks[page] {
                return Err(self.lose(page, "it does not match its checksum"));
            }
            word.fetch_or(bit, Ordering::Relaxed);
        }
        Ok(())
    }

    fn file_range(&self, pages: &Range<usize>) -> (u64, usize) {
        (self.offset + (pages.start * PAGE_BYTES) as u64, pages.len() * PAGE_BYTES)
    }

    /// Scores a row. `bytes` start with its first page.
    fn score(&self, query: &[f32], row: u32, bytes: &[u8], vector: &mut Vec<f32>) -> f32 {
        let start = self.within(row);
        vector.clear();
        self.settings.encoding.decode(&bytes[start..start + self.settings.stride()], vector);
        similarity(self.settings.metric, query, vector)
    }

    /// Scores rows of a file in mapped memory. The score of a row that cannot be read becomes minus
    /// infinity, and `lose` gets its error.
    fn score_in_place(
        &self,
        file: &dyn Sealed,
        query: &[f32],
        rows: &[u32],
        out: &mut [f32],
        vector: &mut Vec<f32>,
        mut lose: impl FnMut(&Error),
    ) {
        let bytes = file.in_place().unwrap_or_default();
        // Counted once for all rows, because queries score many.
        let lost = file.lost_pages();
        for (&row, score) in rows.iter().zip(&mut *out) {
            match self.mapped_row(bytes, row, lost > 0) {
                Ok(bytes) => *score = self.score(query, row, bytes, vector),
                Err(error) => {
                    *score = f32::NEG_INFINITY;
                    lose(&error);
                }
            }
        }
        if file.lost_pages() == lost {
            return;
        }
        // A page may have been lost before its rows were scored.
        for (&row, score) in rows.iter().zip(out).filter(|(_, score)| **score != f32::NEG_INFINITY)
        {
            if let Err(error) = self.mapped_row(bytes, row, true) {
                *score = f32::NEG_INFINITY;
                lose(&error);
            }
        }
    }

    /// Returns the verified pages of a row of a file in mapped memory. `has_lost` is true if the
    /// file has lost pages, so that pages are verified again.
    fn mapped_row<'b>(&self, file: &'b [u8], row: u32, has_lost: bool) -> Result<&'b [u8]> {
        let pages = self.pages(row);
        let (offset, length) = self.file_range(&pages);
        let start = offset as usize;
        let bytes = file
            .get(start..start + length)
            .ok_or_else(|| Error::data_loss("vectors: the file is shorter than it was"))?;
        self.check_in_place(pages, bytes, has_lost)?;
        Ok(bytes)
    }

    /// Groups rows whose pages overlap into one read. Returns the pages of each read, and the
    /// indices of its rows in `rows`.
    fn groups(&self, rows: &[u32]) -> Vec<(Range<usize>, Vec<usize>)> {
        let mut order: Vec<usize> = (0..rows.len()).collect();
        order.sort_unstable_by_key(|&at| rows[at]);
        let mut groups: Vec<(Range<usize>, Vec<usize>)> = Vec::with_capacity(rows.len());
        for at in order {
            let pages = self.pages(rows[at]);
            match groups.last_mut() {
                Some((range, members)) if pages.start >= range.start && pages.end <= range.end => {
                    members.push(at);
                }
                _ => groups.push((pages, vec![at])),
            }
        }
        groups
    }

    /// Appends the embedding of a row to `out`.
    pub(super) fn append_row(&self, file: &dyn Sealed, row: u32, out: &mut Vec<f32>) -> Result<()> {
        if row >= self.rows {
            return Err(Error::not_found(format!("the segment has no row {row}")));
        }
        let pages = self.pages(row);
        let start = self.within(row);
        let mut decode = |bytes: &[u8]| {
            self.settings.encoding.decode(&bytes[start..start + self.settings.stride()], out);
        };
        let is_cached = file.in_place().is_none();
        if let Some(cached) = is_cached.then(|| self.cache.get(&pages)).flatten() {
            decode(cached.bytes());
            return Ok(());
        }
        let mut buffer = Vec::new();
        self.read(file, &pages, &mut buffer)?;
        if is_cached {
            self.cache.put(&pages, &buffer);
        }
        decode(&buffer);
        Ok(())
    }

    /// Calls `each` with the place in `rows` and the embedding of each of `rows`, which ascend.
    /// Neighbours are read together. Calls `step` with the bytes before each read.
    pub(super) fn each_of(
        &self,
        file: &dyn Sealed,
        rows: &[u32],
        step: &dyn Fn(u64) -> Result<()>,
        each: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<()> {
        if let Some(row) = rows.iter().find(|row| **row >= self.rows) {
            return Err(Error::not_found(format!("the segment has no row {row}")));
        }
        let stride = self.settings.stride();
        let mut buffer = Vec::new();
        let mut vector = Vec::with_capacity(self.settings.dims);
        let mut start = 0;
        while start < rows.len() {
            let end = run_end(self, rows, start);
            let pages = self.pages(rows[start]).start..self.pages(rows[end - 1]).end;
            step(self.file_range(&pages).1 as u64)?;
            self.read(file, &pages, &mut buffer)?;
            for (at, row) in rows.iter().enumerate().take(end).skip(start) {
                let offset = *row as usize * stride - pages.start * PAGE_BYTES;
                vector.clear();
                self.settings.encoding.decode(&buffer[offset..offset + stride], &mut vector);
                each(at, &vector);
            }
            start = end;
        }
        Ok(())
    }

    /// Calls `each` with every row's embedding, in order. Calls `step` with the bytes before each
    /// read.
    pub(super) fn all(
        &self,
        file: &dyn Sealed,
        step: &dyn Fn(u64) -> Result<()>,
        each: &mut dyn FnMut(u32, &[f32]) -> Result<()>,
    ) -> Result<()> {
        let stride = self.settings.stride();
        let rows_at_once = (STEP_BYTES / stride).max(1) as u32;
        let mut buffer = Vec::new();
        let mut vector = Vec::with_capacity(self.settings.dims);
        for first in (0..self.rows).step_by(rows_at_once as usize) {
            let last = (first + rows_at_once).min(self.rows) - 1;
            let pages = self.pages(first).start..self.pages(last).end;
            step(self.file_range(&pages).1 as u64)?;
            self.read(file, &pages, &mut buffer)?;
            let start = self.within(first);
            for (row, bytes) in (first..=last).zip(buffer[start..].chunks_exact(stride)) {
                vector.clear();
                self.settings.encoding.decode(bytes, &mut vector);
                each(row, &vector)?;
            }
        }
        Ok(())
    }
}

impl CacheableSection for Vectors {
    fn cached_bytes_max(&self) -> u64 {
        self.checks.len() as u64 * block_bytes(PAGE_BYTES)
    }

    fn cached_share(&self) -> f64 {
        sampled_share(self.checks.len(), |page| page, |page| self.cache.has(page))
    }

    fn preload_state(&self) -> &PreloadState {
        self.cache.preload_state()
    }

    fn preload(&self, file: &dyn Sealed, step: IoStep<'_>) -> Result<()> {
        self.preload_state().begin();
        let mut buffer = Vec::new();
        for first in (0..self.checks.len()).step_by(STEP_BYTES / PAGE_BYTES) {
            let pages = first..self.checks.len().min(first + STEP_BYTES / PAGE_BYTES);
            if pages.clone().all(|page| self.cache.has(page)) {
                continue;
            }
            let (offset, bytes) = self.file_range(&pages);
            step(bytes as u64)?;
            buffer.resize(bytes, 0);
            file.read_at(offset, &mut buffer)?;
            for (page, bytes) in pages.zip(buffer.chunks_exact(PAGE_BYTES)) {
                let is_sound = crc32c::crc32c(bytes) == self.checks[page];
                if is_sound && !self.cache.preload(page, bytes) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

/// Returns the first place of `rows` after `start` whose pages are not read together with the pages
/// before it. The read is at most [`STEP_BYTES`] long, and gaps in it at most [`GAP_PAGES`].
fn run_end(vectors: &Vectors, rows: &[u32], start: usize) -> usize {
    let first = vectors.pages(rows[start]);
    let mut end = first.end;
    for (at, row) in rows.iter().enumerate().skip(start + 1) {
        let pages = vectors.pages(*row);
        let long = (pages.end.max(end) - first.start) * PAGE_BYTES > STEP_BYTES;
        if long || pages.start > end + GAP_PAGES {
            return at;
        }
        end = end.max(pages.end);
    }
    rows.len()
}

/// Returns the reader options for vectors of `dims` values in any format.
pub(crate) const fn reader_options(dims: usize) -> ReaderOptions {
    ReaderOptions {
        depth: DEPTH,
        read_bytes_max: (dims * 4).next_multiple_of(PAGE_BYTES) + PAGE_BYTES,
    }
}

/// Exact scores of one segment's rows, for one thread. Rows whose vectors cannot be read score
/// minus infinity and are counted.
pub(crate) struct ExactVectors<'a> {
    vectors: &'a Vectors,
    ids: &'a SegmentIds,
    file: &'a Arc<dyn Sealed>,
    reader: RefCell<&'a mut dyn Reader>,
    lost: Cell<u64>,
}

impl<'a> ExactVectors<'a> {
    pub(super) fn new(
        vectors: &'a Vectors,
        ids: &'a SegmentIds,
        file: &'a Arc<dyn Sealed>,
        reader: &'a mut dyn Reader,
    ) -> ExactVectors<'a> {
        ExactVectors { vectors, ids, file, reader: RefCell::new(reader), lost: Cell::new(0) }
    }

    /// Returns the number of rows that could not be scored.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.get()
    }

    fn lose(&self, rows: usize, error: &Error) {
        self.lost.set(self.lost.get() + rows as u64);
        tracing::debug!(%error, rows, "embeddings are not compared");
    }

    fn in_place(&self, query: &[f32], rows: &[u32], out: &mut [f32]) {
        let mut vector = Vec::with_capacity(self.vectors.settings.dims);
        self.vectors.score_in_place(self.file.as_ref(), query, rows, out, &mut vector, |error| {
            self.lose(1, error);
        });
    }

    fn read(&self, query: &[f32], rows: &[u32], out: &mut [f32]) -> Result<()> {
        let outcome = self.read_groups(query, rows, out);
        if outcome.is_err() {
            // Reads in flight must not reach later callers.
            let mut reader = self.reader.borrow_mut();
            while reader.in_flight() > 0 && reader.complete(usize::MAX, &mut |_, _| {}).is_ok() {}
        }
        outcome
    }

    /// Scores `rows` into `out`, from cached pages or by reads that are in flight together.
    fn read_groups(&self, query: &[f32], rows: &[u32], out: &mut [f32]) -> Result<()> {
        let mut vector = Vec::with_capacity(self.vectors.settings.dims);
        let mut score = |pages: &Range<usize>, members: &[usize], bytes: &[u8], out: &mut [f32]| {
            for &at in members {
                let skip = (self.vectors.pages(rows[at]).start - pages.start) * PAGE_BYTES;
                out[at] = self.vectors.score(query, rows[at], &bytes[skip..], &mut vector);
            }
        };
        let mut groups = self.vectors.groups(rows);
        groups.retain(|(pages, members)| {
            let cached = self.vectors.cache.get(pages);
            if let Some(cached) = &cached {
                score(pages, members, cached.bytes(), out);
            }
            cached.is_none()
        });
        let mut reader = self.reader.borrow_mut();
        let mut next = 0;
        while next < groups.len() || reader.in_flight() > 0 {
            while next < groups.len() && reader.room() > 0 {
                let (offset, bytes) = self.vectors.file_range(&groups[next].0);
                reader.submit(Read { file: self.file, offset, bytes, tag: next as u64 })?;
                next += 1;
            }
            reader.complete(1, &mut |tag, bytes| {
                let Some((pages, members)) = groups.get(tag as usize) else { return };
                let sound =
                    bytes.and_then(|bytes| self.vectors.arrived(pages, bytes).map(|()| bytes));
                match sound {
                    Err(error) => self.lose(members.len(), &error),
                    Ok(bytes) => score(pages, members, bytes, out),
                }
            })?;
        }
        Ok(())
    }
}

/// Exact scores of rows of one segment, which [`score_rows`] computes.
pub(crate) struct RowScores<'a> {
    vectors: &'a Vectors,
    file: &'a Arc<dyn Sealed>,
    rows: &'a [u32],
    /// Score of each row, or minus infinity if its vector was not read.
    scores: Vec<f32>,
    lost: u64,
}

/// Read of vectors of one segment.
struct VectorRead {
    /// Index of the segment in the list of segments.
    segment: usize,
    pages: Range<usize>,
    /// Indices of the rows in the rows of the segment.
    members: Vec<usize>,
}

impl<'a> RowScores<'a> {
    pub(super) fn new(
        vectors: &'a Vectors,
        file: &'a Arc<dyn Sealed>,
        rows: &'a [u32],
    ) -> RowScores<'a> {
        let scores = vec![f32::NEG_INFINITY; rows.len()];
        RowScores { vectors, file, rows, scores, lost: 0 }
    }

    /// Returns the number of rows that could not be scored.
    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }

    /// Returns the rows with their scores. A row that could not be scored has minus infinity.
    pub(crate) fn hits(&self) -> impl Iterator<Item = CoarseHit> + '_ {
        let hit = |(row, score): (&u32, &f32)| CoarseHit { row: *row, score: *score };
        self.rows.iter().zip(&self.scores).map(hit)
    }

    /// Scores all rows of a file in mapped memory.
    fn score_in_place(&mut self, query: &[f32], vector: &mut Vec<f32>) {
        let file = self.file.as_ref();
        let mut lost = 0;
        // A damaged page was recorded.
        let lose = |_: &Error| lost += 1;
        self.vectors.score_in_place(file, query, self.rows, &mut self.scores, vector, lose);
        self.lost += lost;
    }

    /// Scores the rows of a read.
    fn arrived(
        &mut self,
        read: &VectorRead,
        bytes: Result<&[u8]>,
        query: &[f32],
        vector: &mut Vec<f32>,
    ) {
        let sound =
            bytes.and_then(|bytes| self.vectors.arrived(&read.pages, bytes).map(|()| bytes));
        match sound {
            Ok(bytes) => self.score(read, bytes, query, vector),
            Err(_) => self.lost += read.members.len() as u64,
        }
    }

    /// Scores the rows of a read, whose verified pages are `bytes`.
    fn score(&mut self, read: &VectorRead, bytes: &[u8], query: &[f32], vector: &mut Vec<f32>) {
        for &at in &read.members {
            let row = self.rows[at];
            let skip = (self.vectors.pages(row).start - read.pages.start) * PAGE_BYTES;
            self.scores[at] = self.vectors.score(query, row, &bytes[skip..], vector);
        }
    }
}

/// Scores rows of several segments. All reads are in flight together, up to the depth of `reader`,
/// which [`reader_options`] describes.
///
/// # Errors
/// The error of the reader if its queue fails. `NotFound` for a row that a segment does not have.
pub(crate) fn score_rows(
    reader: &mut dyn Reader,
    query: &[f32],
    segments: &mut [RowScores<'_>],
) -> Result<()> {
    let mut vector = Vec::with_capacity(query.len());
    let mut reads: Vec<VectorRead> = Vec::new();
    for (segment, scores) in segments.iter_mut().enumerate() {
        if let Some(row) = scores.rows.iter().find(|row| **row >= scores.vectors.rows) {
            return Err(Error::not_found(format!("the segment has no row {row}")));
        }
        if scores.file.in_place().is_some() {
            scores.score_in_place(query, &mut vector);
        } else {
            for (pages, members) in scores.vectors.groups(scores.rows) {
                let read = VectorRead { segment, pages, members };
                match scores.vectors.cache.get(&read.pages) {
                    Some(cached) => scores.score(&read, cached.bytes(), query, &mut vector),
                    None => reads.push(read),
                }
            }
        }
    }
    let outcome = read_rows(reader, query, segments, &reads, &mut vector);
    if outcome.is_err() {
        // Reads in flight must not reach later callers.
        while reader.in_flight() > 0 && reader.complete(usize::MAX, &mut |_, _| {}).is_ok() {}
    }
    outcome
}

/// Submits `reads` as far as the reader has room, and scores each as it completes.
fn read_rows(
    reader: &mut dyn Reader,
    query: &[f32],
    segments: &mut [RowScores<'_>],
    reads: &[VectorRead],
    vector: &mut Vec<f32>,
) -> Result<()> {
    let mut next = 0;
    while next < reads.len() || reader.in_flight() > 0 {
        while next < reads.len() && reader.room() > 0 {
            let RowScores { vectors, file, .. } = &segments[reads[next].segment];
            let (offset, bytes) = vectors.file_range(&reads[next].pages);
            reader.submit(Read { file, offset, bytes, tag: next as u64 })?;
            next += 1;
        }
        reader.complete(1, &mut |tag, bytes| {
            if let Some(read) = reads.get(tag as usize) {
                segments[read.segment].arrived(read, bytes, query, vector);
            }
        })?;
    }
    Ok(())
}

impl Exact for ExactVectors<'_> {
    fn scores(&self, query: &[f32], rows: &[u32], out: &mut Vec<f32>) -> Result<()> {
        out.clear();
        out.resize(rows.len(), f32::NEG_INFINITY);
        if let Some(row) = rows.iter().find(|&&row| row >= self.vectors.rows) {
            return Err(Error::not_found(format!("the segment has no row {row}")));
        }
        if self.file.in_place().is_some() {
            self.in_place(query, rows, out);
            return Ok(());
        }
        self.read(query, rows, out)
    }

    fn id(&self, row: u32) -> u64 {
        self.ids.id(row).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cosine_does_not_depend_on_the_length() {
        for length in [1e-15, 1.0, 1e15] {
            let same = similarity(Metric::Cosine, &[length, 0.0], &[length, 0.0]);
            assert!((same - 1.0).abs() < 1e-6, "{length}: {same}");
        }
        assert!(similarity(Metric::Cosine, &[0.0], &[1.0]).abs() < 1e-6);
    }
}
