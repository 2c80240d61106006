//! Millpond's collection, searched with filters by one thread.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use base::Result;
use coarse::Metric;
use loadgen::stats::Latencies;
use os::Rate;
use search::collection::{CollectionQuery, SearchThread};
use search::filter::Filter;
use search::points::{NewPoint, PointId};
use search::registry::{CollectionSettings, NamedCollection, Registry, RegistryOptions};
use search::rerank::SearchLimits;
use serde::Serialize;

use super::HITS;
use super::data::{FilterCase, FilterData, RowCondition};
use crate::settle::{QUIET_TIMES, flush_and_settle, upsert};

/// Number of rows of one write.
const BATCH: usize = 1000;
/// Memory of the collection beside that of its rows.
const MEMORY_BYTES: u64 = 1 << 30;
/// Bytes of memory a row and dimension, for merges of half of all rows.
const DIM_BYTES: u64 = 40;
/// Number of queries of a case whose filters are counted too.
const COUNTED: usize = 20;

/// Figures of the queries of one case.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct CaseFigures {
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    /// Share of the true nearest rows that were found.
    pub(super) recall: f64,
    /// Number of hits that do not meet the filter.
    pub(super) wrong: usize,
}

/// The collection.
pub(super) struct OurCollection {
    named: Arc<NamedCollection>,
    registry: Arc<Registry>,
    pub(super) build_s: f64,
}

impl OurCollection {
    /// Writes all rows to `folder`, and merges until there is nothing to merge. `threads` build
    /// indexes.
    pub(super) fn build(data: &FilterData, folder: &Path, threads: usize) -> Result<OurCollection> {
        let started = Instant::now();
        let row_bytes = data.dims as u64 * DIM_BYTES + 1024;
        let registry = Registry::open(RegistryOptions {
            memory_bytes: MEMORY_BYTES + data.rows() as u64 * row_bytes,
            background_rate: Rate::unlimited(),
            threads: 1,
            build_threads: threads,
            quiet: QUIET_TIMES,
            ..RegistryOptions::new(folder)
        })?;
        let named = registry.create("filter", CollectionSettings::new(data.dims, Metric::L2))?;
        let rows: Vec<usize> = (0..data.rows()).collect();
        for rows in rows.chunks(BATCH) {
            let payloads: Vec<_> = rows.iter().map(|row| data.payload(*row)).collect();
            let points = rows.iter().zip(&payloads).map(|(row, payload)| NewPoint {
                id: PointId::Number(*row as u64),
                embedding: &data.base[row * data.dims..][..data.dims],
                record: &[],
                payload,
            });
            upsert(&named, &points.collect::<Vec<_>>())?;
        }
        let build_s = (flush_and_settle(&named)?.since - started).as_secs_f64();
        Ok(OurCollection { named, registry, build_s })
    }

    /// Returns the number of segments.
    pub(super) fn segments(&self) -> usize {
        self.named.collection().status().segments.len()
    }

    /// Returns the filters that the payload index did not decide alone.
    pub(super) fn undecided(&self) -> u64 {
        let filters = self.registry.stats().filters;
        filters.verified + filters.scanned
    }

    pub(super) fn thread(&self) -> Result<SearchThread> {
        self.named.collection().thread(SearchLimits::default())
    }

    /// Searches without a filter for the vectors of a case, whose nearest rows are `truth`.
    pub(super) fn unfiltered(
        &self,
        thread: &mut SearchThread,
        case: &FilterCase,
        truth: &[Vec<u32>],
    ) -> Result<CaseFigures> {
        let mut figures = CaseMeasure::default();
        for (query, truth) in case.queries.iter().zip(truth) {
            self.search(thread, &query.vector, None, truth, &mut figures)?;
        }
        Ok(figures.finish())
    }

    /// Searches with the filters of a case, and checks every hit.
    pub(super) fn filtered(
        &self,
        thread: &mut SearchThread,
        data: &FilterData,
        case: &FilterCase,
    ) -> Result<CaseFigures> {
        let mut figures = CaseMeasure::default();
        for query in &case.queries {
            let filter = query.condition.filter();
            let truth = &query.nearest;
            let ids = self.search(thread, &query.vector, Some(&filter), truth, &mut figures)?;
            figures.wrong += wrong_hits(data, &query.condition, &ids);
        }
        Ok(figures.finish())
    }

    /// Searches once. Returns the ids of the hits.
    fn search(
        &self,
        thread: &mut SearchThread,
        vector: &[f32],
        filter: Option<&Filter>,
        truth: &[u32],
        figures: &mut CaseMeasure,
    ) -> Result<Vec<u64>> {
        let query = CollectionQuery { filter, ..CollectionQuery::nearest(vector, HITS) };
        let started = Instant::now();
        let found = self.named.collection().nearest(thread, &query)?;
        figures.latencies.record(started.elapsed());
        let ids: Vec<u64> = found.hits.iter().map(|hit| hit.id).collect();
        figures.found += truth.iter().filter(|row| ids.contains(&u64::from(**row))).count();
        figures.wanted += truth.len();
        Ok(ids)
    }

    /// Returns true if the counts of some filters of a case are exact.
    pub(super) fn counts_exactly(&self, case: &FilterCase) -> Result<bool> {
        for query in case.queries.iter().take(COUNTED) {
            if self.named.count(Some(&query.condition.filter()))?.count != query.allowed {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Returns the number of hits that are no rows, or do not meet the condition.
fn wrong_hits(data: &FilterData, condition: &RowCondition, ids: &[u64]) -> usize {
    let right = |id: &u64| *id < data.rows() as u64 && data.meets(*id as usize, condition);
    ids.iter().filter(|id| !right(id)).count()
}

#[derive(Default)]
struct CaseMeasure {
    latencies: Latencies,
    found: usize,
    wanted: usize,
    wrong: usize,
}

impl CaseMeasure {
    fn finish(self) -> CaseFigures {
        CaseFigures {
            p50_ms: self.latencies.quantile_ms(0.5),
            p99_ms: self.latencies.quantile_ms(0.99),
            recall: self.found as f64 / self.wanted.max(1) as f64,
            wrong: self.wrong,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hits_are_compared_with_their_filter() {
        let data = FilterData::generate(1000, 4, 10);
        let row = |tenant| data.tenants.iter().position(|it| *it == tenant).unwrap() as u64;
        let hits = [row(3), row(4), 5_000_000];
        assert_eq!(wrong_hits(&data, &RowCondition::Tenant(3), &hits), 2);
        assert_eq!(wrong_hits(&data, &RowCondition::Tenant(3), &hits[..1]), 0);
    }
}
