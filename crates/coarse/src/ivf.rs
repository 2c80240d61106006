//! Inverted lists with 4-bit product quantisation: the index for short vectors.
//!
//! Rows are clustered, and a query scans only the clusters with the nearest centres. It ranks their
//! rows by looked-up sums ([`super::pq`]). It ranks the best of these again by vectors of one byte
//! per dimension ([`super::refine`]). If the caller has the exact vectors, the best are compared by
//! them in the end. The centres are found the same way: they form one more list with its own codes,
//! and the best are compared exactly.

mod build;
mod medium;

use std::borrow::Cow;
use std::ops::Range;

use base::{Error, Result};
use kernels::TopK;
use kernels::float;
use kernels::pq::{BLOCK, CostTable};

use super::kmeans::block_starts;
use super::parted::{OfferedLists, PartedScan};
use super::pq::{Codebooks, PqCodes, PqShape, subtract};
use super::refine::{ByteQuery, ByteVectors, inverse_length};
use super::section::{self, *};
use super::tune::{self, PROBE_COST, ScanChoice};
use super::widen::{FilteredProbes, ListGoal};
use super::{
    Coarse, CoarseHeader, CoarseHit, CoarseKind, CoarseRequest, CoarseScratch, Exact, HITS_MAX,
    LoadSection, Metric, Recall, check_query, keep_best,
};
use crate::RowSet;

pub(super) use self::build::build;

/// Maximum clusters.
const CLUSTERS_MAX: usize = 1 << 17;
/// Number of centres up to which all are compared exactly.
const CENTRES_EXACT_MAX: usize = 64;
/// Number of centres to prefetch ahead.
const CENTRES_AHEAD: usize = 3;
/// Measured cost of one row compared by its bytes. The unit is a row compared by looked-up sums.
const BYTES_COST: usize = 12;

/// Index with inverted lists and product quantisation.
pub(crate) struct IvfPq {
    metric: Metric,
    dims: usize,
    /// First row of each cluster. The last entry is the number of rows.
    starts: Vec<u32>,
    /// First block of codes of each cluster. The last entry is the number of blocks.
    block_starts: Vec<u32>,
    /// Mean that is subtracted from rows and queries before codes compare them; empty if nothing
    /// is subtracted, as for inner products.
    mean: Vec<f32>,
    /// Centres of the clusters, `dims` values each, relative to `mean`.
    centres: Vec<f32>,
    directory: ListDirectory,
    books: Codebooks,
    /// Codes of the rows, by cluster.
    codes: PqCodes,
    /// Vectors of one byte per dimension, by cluster.
    bytes: ByteVectors,
    /// True if `codes` and the codes of `bytes` are empty, because they are on a medium.
    on_medium: bool,
    recall: Option<Recall>,
}

/// Codes of the centres, as one list around their mean.
struct ListDirectory {
    /// Mean of the centres.
    middle: Vec<f32>,
    books: Codebooks,
    codes: PqCodes,
}

/// Working memory of one search.
#[derive(Default)]
pub(crate) struct IvfScratch {
    /// Query relative to the mean of the index.
    relative: Vec<f32>,
    table: CostTable,
    top: TopK,
    /// Clusters whose centres are compared exactly.
    near: Vec<u32>,
    /// Clusters to scan with their costs, nearest first.
    probes: Vec<(f32, u32)>,
    byte_query: ByteQuery,
}

impl IvfScratch {
    /// Returns the highest cost of a row that can be among the `k` best. It can be above the `k`-th
    /// cost, because the bytes give only bounds of costs. Returns `None` if all such rows are among
    /// the `kept` ones of `top`. `always` is that of [`ByteQuery::highest_nearer`].
    fn highest_missing(&mut self, k: usize, kept: usize, always: bool) -> Option<f32> {
        let mut costs = self.top.sorted().map(|(cost, _)| cost);
        if costs.len() < kept {
            return None;
        }
        let needed = costs.nth(k.saturating_sub(1))?;
        let last = costs.last().unwrap_or(needed);
        let highest = self.byte_query.highest_nearer(needed, always);
        (last <= highest).then_some(highest)
    }

    /// Calls `each` with the rows of `top` that can be among the `k` best and can reach the score
    /// `floor`. The second argument is an upper bound of the score, because the bytes of a row give
    /// only bounds of its cost. The highest bound comes first.
    fn possible_rows(&mut self, k: usize, floor: f32, mut each: impl FnMut(u32, f32)) {
        // Upper bound of the k-th cost, which all others have to beat.
        let mut limit = -floor;
        for (at, (cost, row)) in self.top.sorted().enumerate() {
            let (least, most) = self.byte_query.bounds(cost);
            if least > limit {
                break;
            }
            each(row, -least);
            if at + 1 == k {
                limit = limit.min(most);
            }
        }
    }
}

/// Returns the metric of the lists. Vectors of unit length have the same order by distance as by
/// cosine.
fn inner_metric(metric: Metric) -> Metric {
    if metric == Metric::Dot { Metric::Dot } else { Metric::L2 }
}

/// Returns true if ranking all `allowed` rows by their bytes costs no more than a search of the
/// nearest lists. `probes` has the number of lists and of allowed rows of such a search. It finds
/// the lists, and scans them or ranks their allowed rows.
fn all_cost_less(allowed: usize, rows_per_list: usize, probes: FilteredProbes) -> bool {
    let rows = (rows_per_list * probes.lists).min(probes.rows * BYTES_COST);
    allowed * BYTES_COST <= probes.lists * PROBE_COST + rows
}

impl IvfPq {
    /// Opens an index whose header was decoded already.
    ///
    /// # Errors
    /// `DataLoss` if a section is missing or its length does not match the header.
    pub(crate) fn open(header: &CoarseHeader, find: LoadSection<'_>) -> Result<IvfPq> {
        let mut index = IvfPq::open_without_codes(header, find)?;
        let shape = index.books.shape();
        let blocks = index.blocks();
        let dims = index.dims;
        index.codes = PqCodes::open(find(CODES)?.into_owned(), &find(TERMS)?, blocks, shape)?;
        let bytes = find(BYTE_CODES)?.into_owned();
        index.bytes = ByteVectors::open(&find(BYTE_SCALE)?, bytes, header.rows, dims)?;
        index.on_medium = false;
        Ok(index)
    }

    /// Opens the index without the codes of rows, as an index on a medium does.
    fn open_without_codes(header: &CoarseHeader, find: LoadSection<'_>) -> Result<IvfPq> {
        let dims = header.dims;
        let shape = PqShape::new(header.dims);
        let starts = find(LIST_STARTS)?;
        let starts: Vec<u32> = section::words(&starts, starts.len() / 4)?.collect();
        let clusters = starts.len().saturating_sub(1);
        let covers_rows =
            starts.first() == Some(&0) && starts.last() == Some(&(header.rows as u32));
        if !covers_rows || !starts.is_sorted() || clusters > CLUSTERS_MAX {
            return Err(Error::data_loss(
                "the coarse index's lists do not hold its rows; build the segment again",
            ));
        }
        let centres = section::floats(&find(CENTRES)?, clusters * dims)?;
        let mean =
            if header.is_relative { section::floats(&find(LIST_MEAN)?, dims)? } else { Vec::new() };
        Ok(IvfPq {
            metric: header.metric,
            dims,
            mean,
            centres,
            directory: ListDirectory {
                middle: section::floats(&find(DIRECTORY_MIDDLE)?, dims)?,
                books: Codebooks::open(&find(DIRECTORY_BOOKS)?, shape)?,
                codes: PqCodes::open(
                    find(DIRECTORY_CODES)?.into_owned(),
                    &find(DIRECTORY_TERMS)?,
                    clusters.div_ceil(BLOCK),
                    shape,
                )?,
            },
            books: Codebooks::open(&find(CODEBOOKS)?, shape)?,
            codes: PqCodes::default(),
            bytes: ByteVectors::open_scale(&find(BYTE_SCALE)?, dims)?,
            on_medium: true,
            block_starts: block_starts(&starts, BLOCK),
            starts,
            recall: header.recall.clone(),
        })
    }

    /// Returns the number of blocks of all lists.
    fn blocks(&self) -> usize {
        self.block_starts.last().copied().unwrap_or(0) as usize
    }

    /// Returns the number of clusters.
    pub(crate) fn clusters(&self) -> usize {
        self.starts.len() - 1
    }

    /// Prepares the query for comparisons in `scratch`. Cosines need a query of the length 1, and
    /// codes a query relative to the mean of the index.
    fn prepare(&self, query: &[f32], scratch: &mut CoarseScratch) {
        let scale = if self.metric == Metric::Cosine { inverse_length(query) } else { 1.0 };
        scratch.query.clear();
        scratch.query.extend(query.iter().map(|value| value * scale));
        let relative = &mut scratch.ivf.relative;
        relative.clear();
        if self.mean.is_empty() {
            relative.extend_from_slice(&scratch.query);
        } else {
            subtract(&scratch.query, &self.mean, relative);
        }
    }

    /// Returns the part of costs that a centre has. `relative` is the query relative to the mean.
    fn centre_cost(&self, relative: &[f32], centre: &[f32]) -> f32 {
        match inner_metric(self.metric) {
            Metric::Dot => -float::dot(relative, centre),
            _ => float::l2(relative, centre),
        }
    }

    /// Finds the clusters to scan with their part of the cost, nearest first.
    fn find_clusters(&self, probes: usize, scratch: &mut IvfScratch) {
        let clusters = self.clusters();
        let IvfScratch { relative, table, top, near, probes: found, .. } = scratch;
        // Codes rank centres only roughly, so more of them are compared exactly than are needed.
        let considered = probes + probes / 2 + 16;
        near.clear();
        if clusters <= CENTRES_EXACT_MAX || considered >= clusters {
            near.extend(0..clusters as u32);
        } else {
            let ListDirectory { middle, books, codes } = &self.directory;
            books.table(relative, inner_metric(self.metric), table);
            let base = self.centre_cost(relative, middle);
            top.reset(considered);
            let blocks = 0..clusters.div_ceil(BLOCK);
            codes.scan(books.shape(), blocks, table, base, 0, top, |_| true);
            near.extend(top.unsorted().map(|(_, cluster)| cluster));
        }
        top.reset(probes);
        for (at, cluster) in near.iter().enumerate() {
            if let Some(later) = near.get(at + CENTRES_AHEAD) {
                kernels::prefetch(self.centre(*later));
            }
            top.push(self.centre_cost(relative, self.centre(*cluster)), *cluster);
        }
        found.clear();
        found.extend(top.sorted());
    }

    /// Returns the rows of a cluster.
    fn list_range(&self, cluster: u32) -> Range<u32> {
        let cluster = cluster as usize;
        self.starts[cluster]..self.starts[cluster + 1]
    }

    fn centre(&self, cluster: u32) -> &[f32] {
        &self.centres[cluster as usize * self.dims..][..self.dims]
    }

    /// Finds the `refine` rows with the lowest looked-up costs. Writes them to `scratch.top`.
    ///
    /// # Errors
    /// `Internal` if a helper panicked; the error of [`CoarseRequest::codes`], of helpers too.
    fn look_up(
        &self,
        refine: usize,
        request: &CoarseRequest<'_>,
        scratch: &mut IvfScratch,
    ) -> Result<()> {
        let IvfScratch { relative, table, top, probes, .. } = scratch;
        let helpers = request.helpers;
        self.books.table(relative, inner_metric(self.metric), table);
        top.reset(refine);
        let size = |(_, cluster): &(f32, u32)| self.list_range(*cluster).len();
        let rows = if helpers.is_some() { probes.iter().map(size).sum() } else { 0 };
        let on_medium = self.on_medium;
        let query = &relative[..];
        let offered = OfferedLists { query, lists: probes, rows, kept: refine, on_medium };
        let Some(scan) = PartedScan::offer(helpers, &offered) else {
            return self.scan_lists(probes, table, request, top);
        };
        let _owner = scan.owner();
        while let Some(lists) = scan.claim() {
            self.scan_lists(lists, table, request, top)?;
        }
        scan.finish()?.iter().for_each(|(cost, row)| top.push(*cost, *row));
        Ok(())
    }

    /// Offers the allowed rows of lists to `top`, by looked-up costs.
    ///
    /// # Errors
    /// The error of [`CoarseRequest::codes`].
    fn scan_lists(
        &self,
        lists: &[(f32, u32)],
        table: &CostTable,
        request: &CoarseRequest<'_>,
        top: &mut TopK,
    ) -> Result<()> {
        if self.on_medium {
            return self.scan_on_medium(lists, table, request, top);
        }
        match request.allow {
            Some(allow) => self.scan_accepted(lists, table, top, |row| allow.contains(row)),
            None => self.scan_accepted(lists, table, top, |_| true),
        }
        Ok(())
    }

    /// Offers the rows of lists that `accept` accepts to `top`, by looked-up costs.
    fn scan_accepted(
        &self,
        lists: &[(f32, u32)],
        table: &CostTable,
        top: &mut TopK,
        accept: impl Fn(u32) -> bool,
    ) {
        let shape = self.books.shape();
        for (at, (base, cluster)) in lists.iter().enumerate() {
            if let Some((_, next)) = lists.get(at + 1) {
                self.codes.prefetch(shape, self.block_starts[*next as usize] as usize);
            }
            let cluster = *cluster as usize;
            let blocks =
                self.block_starts[cluster] as usize..self.block_starts[cluster + 1] as usize;
            let first = self.starts[cluster];
            self.codes.scan(shape, blocks, table, *base, first, top, &accept);
        }
    }

    /// Writes the rows to rank to `scratch.rows`: the best `refine` of `probes` clusters. Scans
    /// more clusters if these hold fewer than `wanted` rows.
    ///
    /// # Errors
    /// As [`IvfPq::look_up`].
    fn find_rows(
        &self,
        wanted: usize,
        choice: ScanChoice,
        request: &CoarseRequest<'_>,
        scratch: &mut CoarseScratch,
    ) -> Result<()> {
        let ScanChoice { mut probes, refine } = choice;
        let CoarseScratch { ivf, rows, .. } = scratch;
        loop {
            self.find_clusters(probes, ivf);
            self.look_up(refine, request, ivf)?;
            rows.clear();
            rows.extend(ivf.top.unsorted().map(|(_, row)| row));
            if rows.len() >= wanted || probes >= self.clusters() {
                return Ok(());
            }
            probes = FilteredProbes::more(probes, self.clusters());
        }
    }

    /// Writes the rows to rank to `scratch.rows`. These are the best `refine` allowed rows of the
    /// nearest clusters, or all of their allowed rows if they are few.
    ///
    /// # Errors
    /// As [`IvfPq::look_up`].
    fn find_allowed_rows(
        &self,
        probes: FilteredProbes,
        refine: usize,
        request: &CoarseRequest<'_>,
        allow: &RowSet,
        scratch: &mut CoarseScratch,
    ) -> Result<()> {
        let CoarseScratch { ivf, rows, .. } = scratch;
        let mut nearest = probes.first(self.clusters());
        loop {
            self.find_clusters(nearest, ivf);
            let goal = probes.choose(&mut ivf.probes, &self.starts, allow);
            if goal == ListGoal::Reached || nearest >= self.clusters() {
                break;
            }
            let all = allow.count() as usize * BYTES_COST;
            if goal == ListGoal::NeedsAll && all <= self.clusters() * PROBE_COST {
                rows.clear();
                rows.extend(allow.iter());
                return Ok(());
            }
            nearest = FilteredProbes::more(nearest, self.clusters());
        }
        let lists = ivf.probes.iter().map(|(_, list)| self.list_range(*list));
        let scanned: usize = lists.clone().map(|list| list.len()).sum();
        let allowed: u32 = lists.clone().map(|list| allow.count_within(list.start, list.end)).sum();
        if allowed as usize * BYTES_COST <= scanned {
            rows.clear();
            rows.extend(lists.flat_map(|list| allow.iter_within(list.start, list.end)));
            return Ok(());
        }
        self.look_up(refine, request, ivf)?;
        rows.clear();
        rows.extend(ivf.top.unsorted().map(|(_, row)| row));
        Ok(())
    }

    /// Returns the source of exact scores, unless the bytes have them.
    fn exact_source<'a>(&self, request: &CoarseRequest<'a>) -> Option<&'a dyn Exact> {
        request.exact.filter(|_| !self.bytes.lossless() || self.metric == Metric::Cosine)
    }

    /// Ranks `scratch.rows` by their bytes. Writes the best to `scratch.ivf.top`. With
    /// [`CoarseRequest::exact`], these are more than `request.k`. They include all rows that can be
    /// among the best if the bytes cannot tell rows apart, or if their scores are equal and their
    /// ids decide.
    ///
    /// # Errors
    /// The error of [`CoarseRequest::codes`].
    fn rank_by_bytes(
        &self,
        request: &CoarseRequest<'_>,
        scratch: &mut CoarseScratch,
    ) -> Result<()> {
        let k = request.k.min(HITS_MAX);
        let keeps_more = request.exact.is_some();
        let kept = if keeps_more { tune::kept_for_exact(k) } else { k };
        let CoarseScratch { ivf, query, rows, .. } = scratch;
        self.bytes.prepare(query, self.metric != Metric::L2, &mut ivf.byte_query);
        if self.on_medium {
            // Neighbouring rows share a read.
            rows.sort_unstable();
        }
        self.offer_by_bytes(rows, kept, f32::INFINITY, request, ivf)?;
        let most = rows.len().min(HITS_MAX);
        if keeps_more
            && kept < most
            && let Some(highest) = ivf.highest_missing(k, kept, request.params.wants_all())
        {
            // Once more at most, because codes on a medium are read again.
            self.offer_by_bytes(rows, most, highest, request, ivf)?;
        }
        Ok(())
    }

    /// Writes the best `kept` of `rows` by their bytes to `ivf.top`, and none with a cost above
    /// `highest`.
    ///
    /// # Errors
    /// The error of [`CoarseRequest::codes`].
    fn offer_by_bytes(
        &self,
        rows: &[u32],
        kept: usize,
        highest: f32,
        request: &CoarseRequest<'_>,
        ivf: &mut IvfScratch,
    ) -> Result<()> {
        let IvfScratch { top, byte_query, .. } = ivf;
        top.reset(kept);
        let offer = |row: u32, cost: f32| {
            if cost <= highest {
                top.push(cost, row);
            }
        };
        if self.on_medium {
            return self.rank_on_medium(byte_query, rows, request, offer);
        }
        self.bytes.costs(byte_query, rows, offer);
        Ok(())
    }

    /// Writes the rows to rank to `scratch.rows`. Returns false if there are none.
    ///
    /// # Errors
    /// As [`IvfPq::look_up`] and [`check_query`].
    fn find_ranked_rows(
        &self,
        query: &[f32],
        request: &CoarseRequest<'_>,
        scratch: &mut CoarseScratch,
    ) -> Result<bool> {
        let CoarseRequest { k, allow, .. } = *request;
        check_query(query, self.dims, k)?;
        let choice = ScanChoice::resolve(request, self.recall.as_ref(), self.clusters());
        let allowed = allow.map_or(self.rows() as usize, |allow| allow.count() as usize);
        if k == 0 || allowed == 0 || self.rows() == 0 {
            return Ok(false);
        }
        self.prepare(query, scratch);
        scratch.rows.clear();
        let Some(allow) = allow else {
            self.find_rows(k.min(allowed), choice, request, scratch)?;
            return Ok(true);
        };
        let probes = choice.for_share(allowed, self.rows() as usize, self.clusters());
        let rows_per_list = self.rows() as usize / self.clusters();
        if allowed <= choice.refine || all_cost_less(allowed, rows_per_list, probes) {
            scratch.rows.extend(allow.iter());
        } else {
            let rows = probes.rows.max(k.min(allowed));
            let probes = FilteredProbes { rows, ..probes };
            self.find_allowed_rows(probes, choice.refine, request, allow, scratch)?;
        }
        Ok(true)
    }

    /// Ranks `scratch.rows` by their bytes, and the best of those exactly if the bytes are lossy.
    /// Appends the best `request.k` to `out`, best first.
    ///
    /// # Errors
    /// The errors of the medium and of [`CoarseRequest::exact`].
    fn rank(
        &self,
        query: &[f32],
        request: &CoarseRequest<'_>,
        scratch: &mut CoarseScratch,
        out: &mut Vec<CoarseHit>,
    ) -> Result<()> {
        let k = request.k.min(HITS_MAX);
        self.rank_by_bytes(request, scratch)?;
        let CoarseScratch { ivf, rows, .. } = &mut *scratch;
        let Some(exact) = self.exact_source(request) else {
            out.extend(ivf.top.sorted().map(|(cost, row)| CoarseHit { row, score: -cost }));
            keep_best(out, k, request.exact);
            return Ok(());
        };
        rows.clear();
        ivf.possible_rows(k, request.floor, |row, _| rows.push(row));
        exact.scores(query, &scratch.rows, &mut scratch.scores)?;
        if scratch.scores.len() != scratch.rows.len() {
            return Err(Error::internal("exact scores are not one for each row"));
        }
        let hits = scratch.rows.iter().zip(&scratch.scores);
        let hits = hits.map(|(row, score)| CoarseHit { row: *row, score: *score });
        // Rows that could not be read have the score minus infinity.
        out.extend(hits.filter(|hit| hit.score > f32::NEG_INFINITY));
        keep_best(out, k, Some(exact));
        Ok(())
    }
}

impl Coarse for IvfPq {
    fn rows(&self) -> u32 {
        self.starts.last().copied().unwrap_or(0)
    }

    fn dims(&self) -> usize {
        self.dims
    }

    fn metric(&self) -> Metric {
        self.metric
    }

    fn memory_bytes(&self) -> u64 {
        let values = self.centres.len() + self.mean.len();
        let numbers = values + self.starts.len() + self.block_starts.len();
        let books = 2 * self.books.shape().book_values();
        self.codes.memory_bytes()
            + self.bytes.memory_bytes()
            + self.directory.codes.memory_bytes()
            + (numbers + books) as u64 * 4
    }

    fn search(
        &self,
        query: &[f32],
        request: &CoarseRequest<'_>,
        scratch: &mut CoarseScratch,
        out: &mut Vec<CoarseHit>,
    ) -> Result<()> {
        out.clear();
        if self.find_ranked_rows(query, request, scratch)? {
            self.rank(query, request, scratch, out)?;
        }
        Ok(())
    }

    fn bounds(
        &self,
        query: &[f32],
        request: &CoarseRequest<'_>,
        scratch: &mut CoarseScratch,
        out: &mut Vec<CoarseHit>,
    ) -> Result<bool> {
        out.clear();
        if self.exact_source(request).is_none() {
            return Ok(false);
        }
        if self.find_ranked_rows(query, request, scratch)? {
            self.rank_by_bytes(request, scratch)?;
            let k = request.k.min(HITS_MAX);
            let push = |row, score| out.push(CoarseHit { row, score });
            scratch.ivf.possible_rows(k, request.floor, push);
        }
        Ok(true)
    }

    fn scan_parts(
        &self,
        scan: &PartedScan,
        request: &CoarseRequest<'_>,
        scratch: &mut CoarseScratch,
        leave: &dyn Fn() -> bool,
    ) -> usize {
        let _helper = scan.enter();
        let IvfScratch { table, top, .. } = &mut scratch.ivf;
        let mut parts = 0;
        while !leave()
            && let Some(lists) = scan.claim()
        {
            if parts == 0 {
                self.books.table(&scan.query, inner_metric(self.metric), table);
                top.reset(scan.kept);
            }
            parts += 1;
            if let Err(error) = self.scan_lists(lists, table, request, top) {
                scan.fail(error);
                break;
            }
        }
        if parts > 0 {
            scan.add(top.unsorted());
        }
        parts
    }

    fn sections(&self) -> Vec<(u32, Cow<'_, [u8]>)> {
        let header = CoarseHeader {
            kind: CoarseKind::IvfPq,
            metric: self.metric,
            dims: self.dims,
            rows: self.rows() as usize,
            recall: self.recall.clone(),
            is_relative: !self.mean.is_empty(),
        };
        let starts: Vec<u8> = self.starts.iter().flat_map(|start| start.to_le_bytes()).collect();
        let ListDirectory { middle, books, codes } = &self.directory;
        let mut sections: Vec<(u32, Cow<'_, [u8]>)> = vec![
            (HEADER, Cow::Owned(header.encode())),
            (LIST_STARTS, Cow::Owned(starts)),
            (CENTRES, Cow::Owned(from_floats(&self.centres))),
            (CODEBOOKS, Cow::Owned(self.books.bytes())),
            (CODES, Cow::Borrowed(self.codes.block_bytes())),
            (TERMS, Cow::Owned(self.codes.term_bytes())),
            (BYTE_SCALE, Cow::Owned(self.bytes.scale_bytes())),
            (BYTE_CODES, Cow::Borrowed(self.bytes.code_bytes())),
            (DIRECTORY_MIDDLE, Cow::Owned(from_floats(middle))),
            (DIRECTORY_BOOKS, Cow::Owned(books.bytes())),
            (DIRECTORY_CODES, Cow::Borrowed(codes.block_bytes())),
            (DIRECTORY_TERMS, Cow::Owned(codes.term_bytes())),
        ];
        if header.is_relative {
            sections.push((LIST_MEAN, Cow::Owned(from_floats(&self.mean))));
        }
        sections
    }

    fn recall(&self) -> Option<Recall> {
        self.recall.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_rows_of_a_filter_are_ranked_if_they_are_few() {
        let (rows, clusters) = (1_000_000, 4512);
        let choice = ScanChoice { probes: 6, refine: 80 };
        let all = |allowed| {
            let probes = choice.for_share(allowed, rows, clusters);
            all_cost_less(allowed, rows / clusters, probes)
        };
        assert!(all(1) && all(1000));
        // 10,000 rows are in all lists, and 600 lists have the 1,330 rows of the goal.
        assert!(!all(10_000) && !all(100_000) && !all(rows));
    }
}
