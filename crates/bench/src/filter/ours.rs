//! Millpond's collection, searched with filters by one thread.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use base::Result;
use loadgen::stats::Latencies;
use os::Rate;
use search::coarse::Metric;
use search::collection::{CollectionQuery, SearchThread};
use search::filter::Filter;
use search::points::{NewPoint, PointId};
use search::registry::{CollectionSettings, NamedCollection, Registry, RegistryOptions};
use search::rerank::SearchLimits;
use serde::Serialize;

use super::HITS;
use super::data::{FilterCase, FilterData};
use crate::settle::{QUIET_TIMES, flush_and_settle};

/// Rows of one write.
const BATCH: usize = 1000;
/// Memory of the collection beside that of its rows.
const MEMORY_BYTES: u64 = 1 << 30;
/// Bytes of memory a row and dimension, for merges of half of all rows.
const DIM_BYTES: u64 = 40;
/// Queries of a case whose filters are counted too.
const COUNTED: usize = 20;

/// Figures of the queries of one case.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct CaseFigures {
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    /// Share of the true nearest rows that were found.
    pub(super) recall: f64,
}

/// The collection and its folder, which is removed at the end.
pub(super) struct OurCollection {
    named: Arc<NamedCollection>,
    registry: Arc<Registry>,
    pub(super) build_s: f64,
    _folder: FilterFolder,
}

struct FilterFolder(PathBuf);

impl Drop for FilterFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl OurCollection {
    /// Writes all rows, and merges until there is nothing to merge.
    pub(super) fn build(data: &FilterData, folder: PathBuf) -> Result<OurCollection> {
        let folder = FilterFolder(folder);
        let started = Instant::now();
        let row_bytes = data.dims as u64 * DIM_BYTES + 1024;
        let registry = Registry::open(RegistryOptions {
            memory_bytes: MEMORY_BYTES + data.rows() as u64 * row_bytes,
            background_rate: Rate::unlimited(),
            threads: 1,
            quiet: QUIET_TIMES,
            ..RegistryOptions::new(&folder.0)
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
            named.upsert(&points.collect::<Vec<_>>())?;
        }
        let build_s = (flush_and_settle(&named)?.since - started).as_secs_f64();
        Ok(OurCollection { named, registry, build_s, _folder: folder })
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

    /// Searches without a filter for the vectors of a case.
    pub(super) fn unfiltered(
        &self,
        thread: &mut SearchThread,
        data: &FilterData,
        case: &FilterCase,
    ) -> Result<CaseFigures> {
        let mut figures = CaseMeasure::default();
        for query in &case.queries {
            let truth = data.nearest(&query.vector);
            figures.add(self.search(thread, &query.vector, None, &truth)?);
        }
        Ok(figures.finish())
    }

    /// Searches with the filters of a case.
    pub(super) fn filtered(
        &self,
        thread: &mut SearchThread,
        case: &FilterCase,
    ) -> Result<CaseFigures> {
        let mut figures = CaseMeasure::default();
        for query in &case.queries {
            let filter = query.condition.filter();
            figures.add(self.search(thread, &query.vector, Some(&filter), &query.nearest)?);
        }
        Ok(figures.finish())
    }

    fn search(
        &self,
        thread: &mut SearchThread,
        vector: &[f32],
        filter: Option<&Filter>,
        truth: &[u32],
    ) -> Result<OneSearch> {
        let query = CollectionQuery { filter, ..CollectionQuery::nearest(vector, HITS) };
        let started = Instant::now();
        let found = self.named.collection().nearest(thread, &query)?;
        let took = started.elapsed();
        let hits = found.hits.iter().filter(|hit| truth.contains(&(hit.id as u32))).count();
        Ok(OneSearch { took, found: hits, wanted: truth.len() })
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

struct OneSearch {
    took: std::time::Duration,
    found: usize,
    wanted: usize,
}

#[derive(Default)]
struct CaseMeasure {
    latencies: Latencies,
    found: usize,
    wanted: usize,
}

impl CaseMeasure {
    fn add(&mut self, one: OneSearch) {
        self.latencies.record(one.took);
        self.found += one.found;
        self.wanted += one.wanted;
    }

    fn finish(self) -> CaseFigures {
        CaseFigures {
            p50_ms: self.latencies.quantile_ms(0.5),
            p99_ms: self.latencies.quantile_ms(0.99),
            recall: self.found as f64 / self.wanted.max(1) as f64,
        }
    }
}
