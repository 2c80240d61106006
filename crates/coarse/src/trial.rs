//! Rows held out as queries, with their exact results. Recall is measured with them.

use base::{Error, Result};

use kernels::float;

use super::refine::inverse_length;
use super::tune::{MEASURED_HITS, held_out, nearest_rows, recall_of};
use super::{
    BuildThreads, BuildVectors, Coarse, CoarseRequest, Exact, Metric, RecallPoint, ScanParams,
    StreamedBuild,
};

/// Maximum exact comparisons per hit. A search for few hits makes fewer anyway; the limit is for
/// outliers.
const REFINE_FACTOR: usize = 32;

/// Queries with known results.
pub(super) struct TrialQueries<'a> {
    queries: Vec<f32>,
    own: Vec<u32>,
    truth: Vec<Vec<u32>>,
    exact: SourceVectors<'a>,
    threads: BuildThreads<'a>,
}

/// Source of exact scores: the vectors of a build, in the form in which they are compared.
struct SourceVectors<'a> {
    vectors: &'a dyn BuildVectors,
    dims: usize,
    metric: Metric,
    /// Row of the source for each row of the index.
    order: &'a [u32],
}

impl Exact for SourceVectors<'_> {
    fn scores(&self, query: &[f32], rows: &[u32], out: &mut Vec<f32>) -> Result<()> {
        let from: Option<Vec<u32>> =
            rows.iter().map(|row| self.order.get(*row as usize).copied()).collect();
        let from =
            from.ok_or_else(|| Error::internal("a trial requests a row that does not exist"))?;
        let mut vectors = Vec::with_capacity(rows.len() * self.dims);
        self.vectors.gather(&from, &mut vectors)?;
        let scale = if self.metric == Metric::Cosine { inverse_length(query) } else { 1.0 };
        out.clear();
        out.extend(vectors.chunks_exact(self.dims).map(|vector| match self.metric {
            Metric::L2 => -float::l2(query, vector),
            _ => scale * float::dot(query, vector),
        }));
        Ok(())
    }
}

impl<'a> TrialQueries<'a> {
    /// Holds out rows of `build` (vectors as compared), which an index has laid out in `order`.
    /// Returns `None` if there are too few rows.
    ///
    /// # Errors
    /// An error if `order` names rows that do not exist or cannot be read.
    pub(super) fn new(
        build: &StreamedBuild<'a>,
        order: &'a [u32],
    ) -> Result<Option<TrialQueries<'a>>> {
        if order.len() <= MEASURED_HITS {
            return Ok(None);
        }
        let own = held_out(order.len(), build.seed);
        let from: Vec<u32> = own.iter().map(|row| order[*row as usize]).collect();
        let mut queries = Vec::with_capacity(own.len() * build.dims);
        build.vectors.gather(&from, &mut queries)?;
        let truth = nearest_rows(&queries, &own, build, order)?;
        let StreamedBuild { vectors, dims, metric, threads, .. } = *build;
        let exact = SourceVectors { vectors, dims, metric, order };
        Ok(Some(TrialQueries { queries, own, truth, exact, threads }))
    }

    /// Returns the share of the nearest rows that `index` finds with `probes` lists.
    ///
    /// # Errors
    /// As the search; `Cancelled`.
    pub(super) fn recall(&self, index: &dyn Coarse, probes: usize) -> Result<RecallPoint> {
        let refine = MEASURED_HITS * REFINE_FACTOR;
        let params = ScanParams { probes, refine };
        let exact = Some(&self.exact as &dyn Exact);
        let request = CoarseRequest { params, exact, ..CoarseRequest::best(MEASURED_HITS + 1) };
        let TrialQueries { queries, own, truth, threads, .. } = self;
        let recall = recall_of(index, queries, own, truth, &request, *threads)?;
        Ok(RecallPoint {
            k: MEASURED_HITS as u32,
            recall,
            probes: probes as u32,
            refine: refine as u32,
        })
    }
}
