//! The collection that is searched: the one of a server, without doors.

use std::path::PathBuf;
use std::sync::Arc;

use base::{Error, Result};
use clap::ValueEnum;
use matching::rank::{Likeness, best_first};
use matching::{Graph, Options, Probe, Scratch};
use memory::{PoolConfig, Rate, SlotPool};
use search::Scorer;
use search::coarse::{Metric, ScanParams};
use search::collection::{self, Collection, CollectionQuery, SearchThread};
use search::ingest::{Op, PointRef};
use search::rerank::{SearchLimits, SharedCaches};
use storage::{DramMedium, Medium, UringMedium};
use vision::photo::ACCEPT;

/// Memory of the collection.
const MEMORY_BYTES: u64 = 1 << 30;
/// Memory of the record cache, and bytes of a usual record.
const CACHE: (u64, u32) = (8 << 20, 10 << 10);
/// Memory for segments, where they are kept there.
const POOL_BYTES: u64 = 2 << 30;

/// Where records lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum IndexMedium {
    /// Files read by `io_uring` past the page cache
    Nvme,
    /// Memory
    Dram,
}

/// A picture as a point.
pub(super) struct IndexedPhoto {
    pub(super) id: u64,
    pub(super) embedding: Vec<f32>,
    pub(super) graph: Graph,
}

/// A picture that was found.
#[derive(Clone, Copy, Debug)]
pub(super) struct PhotoHit {
    pub(super) id: u64,
    pub(super) likeness: Likeness,
}

/// The collection and its folder, which is removed in the end.
pub(super) struct PhotoIndex {
    collection: Collection,
    _folder: IndexFolder,
}

struct IndexFolder(PathBuf);

impl Drop for IndexFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl PhotoIndex {
    /// Of `entries`, in a segment, in `folder`.
    pub(super) fn build(
        entries: &[IndexedPhoto],
        medium: IndexMedium,
        folder: PathBuf,
    ) -> Result<PhotoIndex> {
        std::fs::create_dir_all(&folder).map_err(|e| Error::io(&folder, &e))?;
        let folder = IndexFolder(folder);
        let path = folder.0.clone();
        let medium: Arc<dyn Medium> = match medium {
            IndexMedium::Nvme => Arc::new(UringMedium::new(path)?),
            IndexMedium::Dram => {
                let config =
                    PoolConfig { bytes_max: POOL_BYTES, huge_pages: false, fault_rate: Rate::unlimited() };
                Arc::new(DramMedium::new(SlotPool::new(config)?, Some(path))?)
            }
        };
        let dims = entries.first().map_or(0, |entry| entry.embedding.len());
        let options = collection::CollectionOptions {
            background: false,
            ..collection::CollectionOptions::new(dims, Metric::Cosine, MEMORY_BYTES)
        };
        let shared = Arc::new(SharedCaches::new(CACHE.0, CACHE.1));
        let collection = Collection::open(medium, options, shared)?;
        for entry in entries {
            let mut record = Vec::new();
            entry.graph.encode(&mut record);
            let point =
                PointRef { id: entry.id, embedding: &entry.embedding, record: &record, payload: b"{}" };
            collection.write(&[Op::Upsert(point)])?;
        }
        collection.flush()?;
        Ok(PhotoIndex { collection, _folder: folder })
    }

    /// Takes pictures out.
    pub(super) fn remove(&self, ids: impl Iterator<Item = u64>) -> Result<()> {
        let ops: Vec<Op<'_>> = ids.map(Op::Delete).collect();
        self.collection.write(&ops)
    }

    /// Pictures in it.
    pub(super) fn count(&self) -> u64 {
        self.collection.count()
    }

    /// What one thread needs.
    pub(super) fn thread(&self) -> Result<SearchThread> {
        self.collection.thread(SearchLimits::default())
    }

    /// All candidates of a query, best first.
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
        let scorer = PhotoMatcher { probe: Probe::new(graph, Options::default()) };
        let found = self.collection.search(thread, &query, &scorer)?;
        if found.partial || found.damaged > 0 {
            return Err(Error::internal("an answer of the collection is partial"));
        }
        let likeness = |hit: &collection::QueryHit| Likeness { score: hit.score, coarse: hit.coarse };
        let mut hits: Vec<PhotoHit> =
            found.hits.iter().map(|hit| PhotoHit { id: hit.id, likeness: likeness(hit) }).collect();
        hits.sort_by(|a, b| best_first(ACCEPT, a.likeness, b.likeness).then(a.id.cmp(&b.id)));
        Ok(hits)
    }
}

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
