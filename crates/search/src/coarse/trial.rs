//! Rows held out as queries, with their exact results. Recall is measured with them.

use base::Result;

use super::tune::{MEASURED_HITS, held_out, nearest_rows, recall_of};
use super::{Coarse, CoarseBuild, CoarseRequest, DenseVectors, Exact, RecallPoint, ScanParams};

/// Maximum exact comparisons per hit. A search for few hits makes fewer anyway; the limit is for
/// outliers.
const REFINE_FACTOR: usize = 32;

/// Queries with known results.
pub(super) struct Trial {
    queries: Vec<f32>,
    own: Vec<u32>,
    truth: Vec<Vec<u32>>,
    exact: DenseVectors,
}

impl Trial {
    /// Holds out rows of `vectors` (as compared), which an index has laid out in `order`. Returns
    /// `None` if there are too few rows.
    ///
    /// # Errors
    /// An error if `order` names rows that do not exist.
    pub(super) fn new(
        vectors: &[f32],
        order: &[u32],
        build: &CoarseBuild,
    ) -> Result<Option<Trial>> {
        if order.len() <= MEASURED_HITS {
            return Ok(None);
        }
        let dims = build.dims;
        let own = held_out(order.len(), build.seed);
        let row_of = |row: &u32| &vectors[order[*row as usize] as usize * dims..][..dims];
        let queries: Vec<f32> = own.iter().flat_map(row_of).copied().collect();
        let truth = nearest_rows(&queries, &own, vectors, order, build)?;
        let exact = DenseVectors::new(vectors, dims, build.metric, order)?;
        Ok(Some(Trial { queries, own, truth, exact }))
    }

    /// Returns the share of the nearest rows that `index` finds with `probes` lists.
    ///
    /// # Errors
    /// As the search.
    pub(super) fn recall(&self, index: &dyn Coarse, probes: usize) -> Result<RecallPoint> {
        let refine = MEASURED_HITS * REFINE_FACTOR;
        let params = ScanParams { probes, refine };
        let exact = Some(&self.exact as &dyn Exact);
        let ask = CoarseRequest { params, exact, ..CoarseRequest::best(MEASURED_HITS + 1) };
        let recall = recall_of(index, &self.queries, &self.own, &self.truth, &ask)?;
        Ok(RecallPoint {
            k: MEASURED_HITS as u32,
            recall,
            probes: probes as u32,
            refine: refine as u32,
        })
    }
}
