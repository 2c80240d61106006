//! Metrics of images and their collections.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use crate::{KindLabels, LevelGauge, ModelKindLabels};

/// Bounds of a search's stages: a millisecond to a minute.
const BOUNDS: [f64; 14] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0];

/// Metrics of images and collections.
pub struct ImageMetrics {
    /// Images by outcome: "added", "present" or the error kind in snake case.
    pub put: Family<KindLabels, Counter>,
    /// Duration of the stages of a search: "decode", "embed", "keypoints", "search",
    /// "views".
    pub search_seconds: Family<KindLabels, Histogram, fn() -> Histogram>,
    /// Waiting images: "interactive", "bulk".
    pub waiting: Family<KindLabels, LevelGauge>,
    /// Removed collections whose originals are not all checked, and checks after failed removals of
    /// images.
    pub removals_waiting: LevelGauge,
    /// Removal of the originals of removed collections, by kind:
    /// * "checked": originals.
    /// * "failed": attempts.
    /// * "damaged": records of removals.
    /// * "unused": directories of originals at the start.
    pub removals: Family<KindLabels, Counter>,
    /// Collections by state: "opening", "ready", "broken".
    pub collections: Family<KindLabels, LevelGauge>,
    /// Collections by the medium that serves them: "nvme", "dram", "mmap", "dax".
    pub media: Family<KindLabels, LevelGauge>,
    /// Size of each collection (as `model`): "points", "segments".
    pub collection: Family<ModelKindLabels, LevelGauge>,
    /// Memory of all collections: "used", "cached", "max".
    pub memory_bytes: Family<KindLabels, LevelGauge>,
    /// Queries of search threads: "waiting", "max", "done", "refused", and "helped", parts of
    /// queries done by a second thread.
    pub queries: Family<KindLabels, LevelGauge>,
    /// Filters evaluated on a segment, by kind:
    /// * "indexed": by its payload index alone.
    /// * "verified": with the payloads of some rows.
    /// * "scanned": with all payloads.
    /// * "paused": to let other requests run.
    /// * "late": ended by a deadline.
    pub filters: Family<KindLabels, LevelGauge>,
    /// Writes, by kind:
    /// * "waiting", "waited", "refused": found no room for their points.
    /// * "slowed": slowed down, so that other writes need not wait for long.
    /// * "hurried": 1 during an escalated flush, which slows queries down.
    pub writes: Family<KindLabels, LevelGauge>,
    /// Figures of the caches of collections. Of single records: "record_lookups", "record_hits",
    /// "records_in", "records_out". Of blocks of their files: "block_lookups", "block_hits",
    /// "blocks_in", "blocks_out", "blocks", "blocks_max". Of segment files: "lookups", "hits",
    /// "reads" and "read_bytes" after "code_", "index_", "vector_" or "payload_", and "codes_out",
    /// "codes_refused" and "code_bytes" for all four.
    pub search_caches: Family<KindLabels, LevelGauge>,
    /// Figures of the coarse stage's GPU, by kind:
    /// * "queries", "device_bytes", "pinned_bytes".
    /// * "fallbacks": searches done by the processor after a failure of the GPU.
    /// * "limited": searches done by the processor, because they request too many rows.
    /// * "passes": passes of searches for many rows.
    pub gpu: Family<KindLabels, LevelGauge>,
}

impl Default for ImageMetrics {
    fn default() -> Self {
        ImageMetrics {
            put: Family::default(),
            search_seconds: Family::new_with_constructor(|| Histogram::new(BOUNDS)),
            waiting: Family::default(),
            removals_waiting: LevelGauge::default(),
            removals: Family::default(),
            collections: Family::default(),
            media: Family::default(),
            collection: Family::default(),
            memory_bytes: Family::default(),
            queries: Family::default(),
            filters: Family::default(),
            writes: Family::default(),
            search_caches: Family::default(),
            gpu: Family::default(),
        }
    }
}

impl ImageMetrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        let r = registry;
        r.register(
            "images",
            "Uploaded images by outcome: added, present, or an error",
            self.put.clone(),
        );
        r.register_with_unit(
            "image_search",
            "Duration of the stages of image searches",
            Unit::Seconds,
            self.search_seconds.clone(),
        );
        r.register("images_waiting", "Images that wait for a thread", self.waiting.clone());
        r.register(
            "image_removals_waiting",
            "Removed collections whose originals are not all checked, and checks after failed removals of images",
            self.removals_waiting.clone(),
        );
        r.register(
            "image_removals",
            "Removals of the originals of removed collections: originals checked (checked), failed attempts (failed), damaged records (damaged), and directories of originals without a collection at the start (unused)",
            self.removals.clone(),
        );
        r.register("collections", "Collections by state", self.collections.clone());
        r.register(
            "collections_by_medium",
            "Served collections by medium: nvme, dram, mmap, dax",
            self.media.clone(),
        );
        r.register("collection", "Size and work of each collection (label model): points, segments, bytes of codes that queries read from the medium, flushes (seals), merges, writes refused because the disk is full", self.collection.clone());
        r.register_with_unit(
            "collections_memory",
            "Memory of all collections: what they need (used), cached parts of files, whose memory is released on demand (cached), and the limit (max)",
            Unit::Bytes,
            self.memory_bytes.clone(),
        );
        r.register(
            "collection_queries",
            "Queries of search threads: waiting now (waiting), the limit (max), answered (done), refused, and parts of queries that an idle thread did (helped)",
            self.queries.clone(),
        );
        r.register(
            "collection_filters",
            "Filters evaluated on a segment: by its payload index alone (indexed), by reading some payloads (verified) or all payloads (scanned); evaluations that paused for other requests (paused) or that a deadline ended (late)",
            self.filters.clone(),
        );
        r.register(
            "collection_writes",
            "Writes that wait for room now (waiting), waited, were refused or slowed down; hurried is 1 during an escalated flush",
            self.writes.clone(),
        );
        r.register(
            "search_cache",
            "Lookups, hits, reads, added (in) and evicted (out) entries of caches: records and blocks of the exact stage, codes on the medium (code), payload indexes (index), embeddings (vector) and payloads; codes_out, codes_refused, code_bytes and blocks_preloaded (read before a request needed them) count codes, payload indexes, embeddings and payloads together",
            self.search_caches.clone(),
        );
        r.register(
            "search_gpu",
            "Coarse stage on the GPU: its queries, queries that shared a pass (joined), failures after which the processor searched (fallbacks), queries for too many rows that the processor did (limited), passes of queries for many rows, and bytes of codes on the GPU and in pinned memory",
            self.gpu.clone(),
        );
    }
}
