//! The searched collection, opened as the server does.

use std::path::PathBuf;
use std::sync::Arc;

use base::{Error, Result};
use clap::ValueEnum;
use coarse::{Metric, ScanParams};
use loadgen::run_folder::RunFolder;
use matching::rank::{StageScores, best_first};
use matching::{Graph, MatchOptions, Probe, Scratch};
use search::Scorer;
use search::collection::{self, CollectionQuery, SearchThread};
use search::points::{NewPoint, PointId};
use search::registry::{
    CollectionSettings, MediumChoice, NamedCollection, Registry, RegistryOptions,
};
use search::rerank::SearchLimits;
use vision::photo::ACCEPT;

use crate::settle::QUIET_TIMES;

/// Maximum memory of the collection. Half of it is for segments if they are kept in memory.
const MEMORY_BYTES: u64 = 4 << 30;
/// Memory of the record cache.
const CACHE_BYTES: u64 = 8 << 20;

/// Medium of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum IndexMedium {
    /// Files read by `io_uring` without the page cache
    Nvme,
    /// Memory
    Dram,
}

/// An image as a point.
pub(super) struct IndexedPhoto {
    pub(super) id: u64,
    pub(super) embedding: Vec<f32>,
    pub(super) graph: Graph,
}

/// A hit of a search.
#[derive(Clone, Copy, Debug)]
pub(super) struct PhotoHit {
    pub(super) id: u64,
    pub(super) similarity: StageScores,
}

/// The collection and its folder, which is removed at the end.
pub(super) struct PhotoIndex {
    named: Arc<NamedCollection>,
    _registry: Arc<Registry>,
    _folder: RunFolder,
}

impl PhotoIndex {
    /// Builds an index of `entries` as one segment in `folder`.
    pub(super) fn build(
        entries: &[IndexedPhoto],
        medium: IndexMedium,
        folder: PathBuf,
    ) -> Result<PhotoIndex> {
        let folder = RunFolder::new(folder);
        let dims = entries.first().map_or(0, |entry| entry.embedding.len());
        let registry = Registry::open(RegistryOptions {
            memory_bytes: MEMORY_BYTES,
            cache_bytes: CACHE_BYTES,
            medium: match medium {
                IndexMedium::Nvme => MediumChoice::Nvme,
                IndexMedium::Dram => MediumChoice::Dram,
            },
            quiet: QUIET_TIMES,
            ..RegistryOptions::new(folder.path())
        })?;
        let named = registry.create("images", CollectionSettings::new(dims, Metric::Cosine))?;
        for entry in entries {
            let mut record = Vec::new();
            entry.graph.encode(&mut record);
            let id = PointId::Number(entry.id);
            let payload = &serde_json::Map::new();
            named.upsert(&[NewPoint {
                id,
                embedding: &entry.embedding,
                record: &record,
                payload,
            }])?;
        }
        named.collection().flush()?;
        Ok(PhotoIndex { named, _registry: registry, _folder: folder })
    }

    /// Removes images.
    pub(super) fn remove(&self, ids: impl Iterator<Item = u64>) -> Result<()> {
        let ids: Vec<PointId> = ids.map(PointId::Number).collect();
        self.named.delete(&ids).map(drop)
    }

    /// Returns the number of images.
    pub(super) fn count(&self) -> u64 {
        self.named.collection().count()
    }

    /// Returns the search state of one thread.
    pub(super) fn thread(&self) -> Result<SearchThread> {
        self.named.collection().thread(SearchLimits::default())
    }

    /// Returns all candidates of a query, best first.
    pub(super) fn search(
        &self,
        thread: &mut SearchThread,
        embedding: &[f32],
        graph: &Graph,
        candidates: usize,
    ) -> Result<Vec<PhotoHit>> {
        let query = CollectionQuery {
            embedding,
            k: candidates,
            candidates,
            params: ScanParams::default(),
            filter: None,
            exact: false,
            deadline: None,
        };
        let scorer = PhotoMatcher { probe: Probe::new(graph, MatchOptions::default()) };
        let found = self.named.collection().search(thread, &query, &scorer)?;
        if found.partial || found.damaged > 0 {
            return Err(Error::internal("an answer of the collection is partial"));
        }
        let similarity =
            |hit: &collection::QueryHit| StageScores { score: hit.score, coarse: hit.coarse };
        let mut hits: Vec<PhotoHit> = found
            .hits
            .iter()
            .map(|hit| PhotoHit { id: hit.id, similarity: similarity(hit) })
            .collect();
        hits.sort_by(|a, b| best_first(ACCEPT, a.similarity, b.similarity).then(a.id.cmp(&b.id)));
        Ok(hits)
    }
}

#[derive(Clone)]
struct PhotoMatcher {
    probe: Probe,
}

impl Scorer for PhotoMatcher {
    type Scratch = Scratch;

    fn scratch(&self) -> Scratch {
        Scratch::new()
    }

    fn score(&self, record: &[u8], scratch: &mut Scratch) -> Result<f32> {
        matching::score(&self.probe, record, scratch)
    }
}
