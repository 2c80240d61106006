//! Inverted lists with one-bit codes and error bounds: the index for long vectors.
//!
//! Vectors are rotated at random ([`rotation`]) and clustered, and each residual is stored with one
//! bit and with four bits per dimension ([`codes`]). A query scans the lists of the nearest centres
//! ([`scan`]). One-bit codes give lower bounds of costs, 32 rows at a time. Only rows whose bound
//! beats the k-th best so far are compared by four-bit codes. Of those, only rows whose finer bound
//! still beats it are compared exactly, best first, until no bound is below the k-th exact cost.
//! The centres are found the same way: they form one more list. Queries for inner products are
//! scaled first ([`dot_scale`]), and costs are scaled back at the end.

mod build;
mod codes;
mod dot_scale;
mod measure;
mod medium;
mod rotation;
mod scan;
mod store;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use base::Result;
use kernels::float;
use kernels::rabitq::{BLOCK, block_bytes};

use self::codes::RabitqCodes;
use self::dot_scale::DotScale;
use self::medium::HeldLevels;
use self::rotation::Rotation;
use self::scan::{
    EXACT_ERRORS, ErrorRadii, RabitqQuery, RabitqScan, ScannedList, Smallest, squared_distance,
};
use super::kmeans::block_starts;
use super::refine::inverse_length;
use super::tune::{self, ScanChoice};
use super::widen::{FAR_ROWS, FilteredProbes, ListGoal};
use super::{
    Coarse, CoarseHit, CoarseRequest, CoarseScratch, Exact, Metric, Recall, ScanParams,
    StreamedBuild, check_query, keep_best,
};
use crate::RowSet;

pub(super) use build::build;
pub use scan::RabitqCandidate;
pub(super) use store::is_codes;

/// Bound of the rounding error of a cost, as a share of it; far above the real error. Some rows
/// have no other error.
const ROUNDING: f32 = 1e-5;
/// Measured number of rows that are compared by four bits one by one, with their centres, in the
/// time of one more list.
const ROWS_ONE_BY_ONE: usize = 2;

/// Returns the number of bytes of one row's codes and factors.
pub(super) fn row_bytes(dims: usize) -> usize {
    let padded = rotation::padded(dims);
    padded.div_ceil(8) + padded.div_ceil(2) + 2 * std::mem::size_of::<[f32; 3]>()
}

/// Index with inverted lists and one-bit codes.
pub(crate) struct Rabitq {
    metric: Metric,
    dims: usize,
    seed: u64,
    rotation: Rotation,
    mean: Vec<f32>,
    /// First row of each cluster, and the number of rows.
    starts: Vec<u32>,
    /// First block of each cluster, and the number of blocks.
    block_starts: Vec<u32>,
    /// Rotated centres.
    centres: Vec<f32>,
    /// Codes of the centres.
    directory: RabitqCodes,
    /// Lengths of the rows, for inner products only.
    dot_scale: Option<DotScale>,
    codes: RabitqCodes,
    /// True if `codes` is empty, because the codes are on a medium.
    on_medium: bool,
    recall: Option<Recall>,
}

#[derive(Default)]
struct RabitqScratch {
    query: RabitqQuery,
    /// Factor of the query in `shifted`.
    scale: f64,
    /// Scaled query relative to the mean.
    shifted: Vec<f32>,
    found: RabitqScan,
    /// Clusters to scan: cost of the centre, number.
    probed: Vec<(f32, u32)>,
    rows: Vec<u32>,
    scores: Vec<f32>,
    exact: Smallest,
    levels: HeldLevels,
}

impl Rabitq {
    /// Builds the index from its parts, without a measured recall.
    fn assemble(
        build: &StreamedBuild<'_>,
        mean: Vec<f32>,
        rotation: Rotation,
        starts: Vec<u32>,
        centres: Vec<f32>,
        codes: RabitqCodes,
    ) -> Rabitq {
        let directory = build::encode_centres(&centres, &rotation.rotated(&mean), build.metric);
        let dot_scale = (build.metric == Metric::Dot)
            .then(|| DotScale::new(&mean, &rotation, &centres, &starts));
        Rabitq {
            metric: build.metric,
            dims: build.dims,
            seed: build.seed,
            mean,
            block_starts: block_starts(&starts, BLOCK),
            starts,
            directory,
            dot_scale,
            rotation,
            centres,
            codes,
            on_medium: false,
            recall: None,
        }
    }

    /// Returns the number of clusters.
    pub(crate) fn clusters(&self) -> usize {
        self.starts.len() - 1
    }

    /// Rotates and scales a query. For inner products, the scale depends on the nearest centre.
    fn prepare(&self, query: &[f32], params: ScanParams, work: &mut RabitqScratch) {
        work.query.error_factor = if params.wants_all() { EXACT_ERRORS } else { 1.0 };
        let Some(lengths) = &self.dot_scale else {
            let is_cosine = self.metric == Metric::Cosine;
            let scale = if is_cosine { f64::from(inverse_length(query)) } else { 1.0 };
            return self.prepare_scaled(query, scale, work);
        };
        let scale = lengths.to_centres(query);
        self.prepare_scaled(query, scale, work);
        self.find_clusters(1, work);
        let Some((_, nearest)) = work.probed.first() else { return };
        let stretch = lengths.stretch(&work.query.rotated, self.centre(*nearest));
        if stretch > 1.0 {
            self.prepare_scaled(query, scale * stretch, work);
        }
    }

    /// Prepares the query multiplied by `scale`.
    fn prepare_scaled(&self, query: &[f32], scale: f64, work: &mut RabitqScratch) {
        work.scale = scale;
        work.shifted.clear();
        let scaled = query.iter().map(|value| (f64::from(*value) * scale) as f32);
        work.shifted.extend(scaled.zip(&self.mean).map(|(value, mean)| value - mean));
        work.query.rotated.resize(self.rotation.padded(), 0.0);
        self.rotation.rotate(&work.shifted, &mut work.query.rotated);
        work.query.prepare();
    }

    fn centre(&self, cluster: u32) -> &[f32] {
        let padded = self.rotation.padded();
        &self.centres[cluster as usize * padded..][..padded]
    }

    /// Writes the `probes` nearest clusters to `work.probed`, nearest first.
    fn find_clusters(&self, probes: usize, work: &mut RabitqScratch) {
        let length_squared = float::dot(&work.query.rotated, &work.query.rotated);
        let length = length_squared.sqrt();
        let all = ScannedList {
            first_row: 0,
            end_row: self.clusters() as u32,
            first_block: 0,
            offset: if self.metric == Metric::Dot { 0.0 } else { length_squared },
            radii: ErrorRadii { signs: length, levels: length },
        };
        work.found.reset(probes);
        work.found.scan_list(&self.directory, &work.query, &all, None);
        work.probed.clear();
        work.probed
            .extend(work.found.candidates.iter().map(|candidate| (candidate.cost, candidate.row)));
        let by_cost = |one: &(f32, u32), other: &(f32, u32)| {
            one.0.total_cmp(&other.0).then(one.1.cmp(&other.1))
        };
        if probes < work.probed.len() {
            work.probed.select_nth_unstable_by(probes, by_cost);
            work.probed.truncate(probes);
        }
        work.probed.sort_unstable_by(by_cost);
    }

    /// Prefetches the data that [`Self::list`] and the scan of the first block read.
    fn prefetch(&self, cluster: u32) {
        kernels::prefetch(self.centre(cluster));
        let block = self.block_starts[cluster as usize] as usize;
        let bytes = block_bytes(self.rotation.padded());
        if let Some(signs) = self.codes.signs.get(block * bytes..(block + 1) * bytes) {
            kernels::prefetch(signs);
        }
    }

    /// Prepares a cluster for a query. `constant` belongs to the query alone.
    fn list(&self, query: &RabitqQuery, constant: f32, cluster: u32) -> ScannedList {
        let centre = self.centre(cluster);
        let cluster = cluster as usize;
        let square = squared_distance(query, centre);
        ScannedList {
            first_row: self.starts[cluster],
            end_row: self.starts[cluster + 1],
            first_block: self.block_starts[cluster] as usize,
            offset: match self.metric {
                Metric::Dot => constant - float::dot(&query.rotated, centre),
                _ => square,
            },
            radii: query.radii(square),
        }
    }

    /// Returns the part of every cost that comes from the mean subtracted from rows and query, for
    /// inner products. `shifted` is the scaled query relative to the mean.
    fn constant(&self, shifted: &[f32]) -> f32 {
        match self.metric {
            Metric::Dot => -float::dot(&self.mean, shifted),
            _ => 0.0,
        }
    }

    /// Scans the nearest `probes` lists, and more if these have fewer than `wanted` rows.
    fn scan_nearest(
        &self,
        constant: f32,
        mut probes: usize,
        wanted: usize,
        request: &CoarseRequest<'_>,
        work: &mut RabitqScratch,
    ) -> Result<()> {
        loop {
            self.find_clusters(probes, work);
            self.scan_probed(constant, wanted, request, work)?;
            if work.found.candidates.len() >= wanted || probes >= self.clusters() {
                return Ok(());
            }
            probes = FilteredProbes::more(probes, self.clusters());
        }
    }

    /// Scans the allowed rows of the nearest lists that have enough of them.
    fn scan_nearest_allowed(
        &self,
        constant: f32,
        probes: FilteredProbes,
        wanted: usize,
        request: &CoarseRequest<'_>,
        allow: &RowSet,
        work: &mut RabitqScratch,
    ) -> Result<()> {
        let mut found = probes.first(self.clusters());
        loop {
            self.find_clusters(found, work);
            let goal = probes.choose(&mut work.probed, &self.starts, allow);
            if goal == ListGoal::Reached || found >= self.clusters() {
                return self.scan_probed(constant, wanted, request, work);
            }
            found = FilteredProbes::more(found, self.clusters());
        }
    }

    /// Scans the lists in `work.probed`.
    ///
    /// # Errors
    /// The error of [`CoarseRequest::codes`].
    fn scan_probed(
        &self,
        constant: f32,
        wanted: usize,
        request: &CoarseRequest<'_>,
        work: &mut RabitqScratch,
    ) -> Result<()> {
        work.found.reset(wanted);
        if self.on_medium {
            return self.scan_probed_on_medium(constant, request, work);
        }
        for at in 0..work.probed.len() {
            if let Some((_, next)) = work.probed.get(at + 1) {
                self.prefetch(*next);
            }
            let list = self.list(&work.query, constant, work.probed[at].1);
            work.found.scan_list(&self.codes, &work.query, &list, request.allow);
        }
        Ok(())
    }

    /// Compares every allowed row by its four-bit codes. It is for filters that allow few rows.
    ///
    /// # Errors
    /// The error of [`CoarseRequest::codes`].
    fn compare_allowed(
        &self,
        constant: f32,
        request: &CoarseRequest<'_>,
        allow: &RowSet,
        work: &mut RabitqScratch,
    ) -> Result<()> {
        if self.on_medium {
            return self.compare_allowed_on_medium(constant, request, allow, work);
        }
        let mut list: Option<ScannedList> = None;
        for row in allow.iter().take_while(|row| *row < self.rows()) {
            if list.is_none_or(|list| row >= list.end_row) {
                let cluster = self.starts.partition_point(|start| *start <= row) - 1;
                list = Some(self.list(&work.query, constant, cluster as u32));
            }
            if let Some(list) = &list {
                work.found.compare(row, &self.codes, &work.query, list);
            }
        }
        Ok(())
    }

    fn cost_of_score(&self, score: f32) -> f32 {
        match self.metric {
            Metric::Cosine => 2.0 - 2.0 * score,
            Metric::Dot | Metric::L2 => -score,
        }
    }

    fn score_of_cost(&self, cost: f32) -> f32 {
        match self.metric {
            Metric::Cosine => 1.0 - 0.5 * cost,
            Metric::Dot | Metric::L2 => -cost,
        }
    }

    /// Compares candidates exactly, best first. After the first few, skips candidates whose bound
    /// is not below the `k`-th exact cost. Bounds hold only with high probability, and the first
    /// few comparisons compensate for that. The floor applies to the first few too. It therefore
    /// skips a candidate only if its cost exceeds that of the floor by twice the distance to its
    /// bound.
    fn compare_exactly(
        &self,
        query: &[f32],
        request: &CoarseRequest<'_>,
        exact: &dyn Exact,
        candidates: &[RabitqCandidate],
        work: &mut RabitqScratch,
        out: &mut Vec<CoarseHit>,
    ) -> Result<()> {
        work.exact.reset(request.k);
        let most = self.cost_of_score(request.floor);
        let most = most + ROUNDING * most.abs();
        let mut rest = candidates;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(tune::kept_for_exact(request.k)));
            rest = later;
            let limit = work.exact.limit();
            work.rows.clear();
            work.rows.extend(
                now.iter()
                    .filter(|one| one.bound < limit && 2.0 * one.bound - one.cost <= most)
                    .map(|one| one.row),
            );
            if work.rows.is_empty() {
                continue;
            }
            exact.scores(query, &work.rows, &mut work.scores)?;
            for (row, score) in work.rows.iter().zip(&work.scores) {
                work.exact.push(self.cost_of_score(*score));
                out.push(CoarseHit { row: *row, score: *score });
            }
        }
        Ok(())
    }

    /// Writes the rows that can be among the best by their codes to `work.found.candidates`, best
    /// first.
    ///
    /// # Errors
    /// As [`check_query`].
    fn find_candidates(
        &self,
        query: &[f32],
        request: &CoarseRequest<'_>,
        work: &mut RabitqScratch,
    ) -> Result<()> {
        let CoarseRequest { k, allow, .. } = *request;
        check_query(query, self.dims, k)?;
        work.found.candidates.clear();
        let count = allow.map_or(self.rows(), |allow| allow.count().min(self.rows())) as usize;
        if k == 0 || count == 0 {
            return Ok(());
        }
        let choice = ScanChoice::resolve(request, self.recall.as_ref(), self.clusters());
        self.prepare(query, request.params, work);
        let constant = self.constant(&work.shifted);
        match allow {
            Some(allow) => {
                let probes = choice.for_share(count, self.rows() as usize, self.clusters());
                if count <= (probes.lists * ROWS_ONE_BY_ONE).max(k) {
                    work.found.reset(k.min(count));
                    self.compare_allowed(constant, request, allow, work)?;
                } else {
                    let probes = FilteredProbes { rows: probes.rows.max(k), ..probes };
                    self.scan_nearest_allowed(
                        constant,
                        probes,
                        k.min(count),
                        request,
                        allow,
                        work,
                    )?;
                }
            }
            None => self.scan_nearest(constant, choice.probes, k.min(count), request, work)?,
        }
        let limit = work.found.smallest.limit();
        work.found.candidates.retain(|candidate| candidate.bound <= limit);
        work.found.candidates.sort_unstable_by(nearer);
        if request.exact.is_some() {
            // Bounds exclude few rows if the allowed ones are far away, so more are compared.
            let more = if allow.is_some() { FAR_ROWS } else { 1 };
            work.found.candidates.truncate((choice.refine * more).max(k));
        }
        if self.dot_scale.is_some() {
            let scale = work.scale;
            let unscaled = |cost: f32| (f64::from(cost) / scale) as f32;
            for candidate in &mut work.found.candidates {
                candidate.cost = unscaled(candidate.cost);
                candidate.bound = unscaled(candidate.bound);
            }
        }
        Ok(())
    }

    /// Ranks candidates, exactly if possible.
    fn rank(
        &self,
        query: &[f32],
        request: &CoarseRequest<'_>,
        candidates: &[RabitqCandidate],
        work: &mut RabitqScratch,
        out: &mut Vec<CoarseHit>,
    ) -> Result<()> {
        out.clear();
        match request.exact {
            Some(exact) => self.compare_exactly(query, request, exact, candidates, work, out)?,
            None => out.extend(
                candidates
                    .iter()
                    .map(|one| CoarseHit { row: one.row, score: self.score_of_cost(one.cost) }),
            ),
        }
        keep_best(out, request.k, request.exact);
        Ok(())
    }
}

impl Coarse for Rabitq {
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
        self.codes.memory_bytes() + store::other_bytes(self)
    }

    fn search(
        &self,
        query: &[f32],
        request: &CoarseRequest<'_>,
        scratch: &mut CoarseScratch,
        out: &mut Vec<CoarseHit>,
    ) -> Result<()> {
        out.clear();
        let work = work_of(scratch);
        self.find_candidates(query, request, work)?;
        let candidates = std::mem::take(&mut work.found.candidates);
        let outcome = self.rank(query, request, &candidates, work, out);
        work.found.candidates = candidates;
        outcome
    }

    fn floor_is_exact(&self) -> bool {
        false
    }

    fn candidates(
        &self,
        query: &[f32],
        request: &CoarseRequest<'_>,
        scratch: &mut CoarseScratch,
    ) -> Result<Vec<RabitqCandidate>> {
        let work = work_of(scratch);
        self.find_candidates(query, request, work)?;
        Ok(work.found.candidates.clone())
    }

    fn compare(
        &self,
        query: &[f32],
        request: &CoarseRequest<'_>,
        candidates: &[RabitqCandidate],
        scratch: &mut CoarseScratch,
        out: &mut Vec<CoarseHit>,
    ) -> Result<()> {
        self.rank(query, request, candidates, work_of(scratch), out)
    }

    fn sections(&self) -> Vec<(u32, Cow<'_, [u8]>)> {
        self.to_sections()
    }

    fn recall(&self) -> Option<Recall> {
        self.recall.clone()
    }
}

fn nearer(one: &RabitqCandidate, other: &RabitqCandidate) -> std::cmp::Ordering {
    one.cost.total_cmp(&other.cost).then(one.row.cmp(&other.row))
}

/// Returns the working memory of this index. Replaces the memory of another kind of index.
fn work_of(scratch: &mut CoarseScratch) -> &mut RabitqScratch {
    if !scratch.other.as_ref().is_some_and(|other| other.is::<RabitqScratch>()) {
        scratch.other = Some(Box::new(RabitqScratch::default()));
    }
    // Set by the line above.
    match scratch.other.as_mut().and_then(|other| other.downcast_mut::<RabitqScratch>()) {
        Some(work) => work,
        None => unreachable!("working memory was just put in"),
    }
}
