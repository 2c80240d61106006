//! Settings of collections and images, and of their backups.

use std::path::PathBuf;
use std::time::Duration;

use base::units::{GIB, MIB};
use model_store::StoreOptions;
use search::codes::CodesPlace;
use search::registry::MediumChoice as SearchMedium;

/// Default directory of backups, inside the directory of the collections. No collection has a name
/// that starts with a dot.
const BACKUPS_DIRECTORY: &str = ".backups";

/// Collections and images: directories and limits.
#[derive(Clone, PartialEq)]
pub struct SearchConfig {
    /// Directory of the collections. `None` serves none.
    pub directory: Option<PathBuf>,
    /// True if the server must not start without the directory. Otherwise it starts without
    /// collections.
    pub required: bool,
    /// Maximum bytes of memory of all collections together.
    pub memory_bytes: u64,
    /// Part of that memory which caches the most read records.
    pub cache_bytes: u64,
    /// Bytes of the collections' disk that stay free. `None` is a share of the disk, 0 is no
    /// reserve.
    pub disk_reserve: Option<u64>,
    /// Threads that search. 0 is one per core.
    pub threads: usize,
    /// Access to the files of collections that do not choose themselves.
    pub medium: SearchMedium,
    /// NUMA node of files in DRAM, or any if `None`.
    pub memory_node: Option<u32>,
    /// Place of the codes of segments.
    pub codes: CodesPlace,
    /// Threads that build the index of a segment. A quarter of the cores by default.
    pub build_threads: usize,
    /// Bytes per second that flushes and merges read and write together. 0 means no limit.
    pub background_rate: u64,
    /// Segments of similar size that are merged into one.
    pub merge_segments: usize,
    /// Maximum live rows of a merged segment.
    pub segment_rows: u32,
    /// Directory or URL of the original images. `None` is a directory beside the collections.
    pub originals: Option<String>,
    /// Options of that URL.
    pub originals_options: StoreOptions,
    /// Model that embeds images. `None` is the only served model whose input can be an image.
    pub embedding_model: Option<String>,
    /// Maximum collections.
    pub collections_max: usize,
    /// Key that may write, or that has an administrator's rights if there is no other key. It signs
    /// tokens.
    pub api_key: Option<String>,
    /// GPU that ranks large segments. `None` uses the processor only.
    pub gpu: Option<coarse::device::GpuOptions>,
    /// Backups of collections.
    pub backups: BackupSettings,
}

/// Backups of collections: their store, rate and schedule.
#[derive(Clone, Debug, PartialEq)]
pub struct BackupSettings {
    /// Directory or URL of the store. `None` is a directory inside the directory of the
    /// collections.
    pub place: Option<String>,
    /// Options of that URL.
    pub options: StoreOptions,
    /// Limit of the bytes per second that backups read and send.
    pub rate: os::Rate,
    /// Interval of backups of all collections. `None` makes none.
    pub every: Option<Duration>,
    /// Newest backups of a collection that are kept after a scheduled backup. `None` keeps all.
    pub keep_newest: Option<usize>,
}

impl Default for BackupSettings {
    fn default() -> Self {
        let rate = backup::BackupConfig::default().rate;
        BackupSettings {
            place: None,
            options: StoreOptions::default(),
            rate,
            every: None,
            keep_newest: None,
        }
    }
}

impl SearchConfig {
    /// Default limit of the memory of collections, on a machine that has four times as much.
    pub const MEMORY_BYTES: u64 = 2 * GIB;

    /// Returns the settings of backups.
    pub(crate) fn backups(&self) -> backup::BackupConfig {
        let BackupSettings { place, options, rate, every, keep_newest } = self.backups.clone();
        let beside = self.directory.as_ref().map(|directory| directory.join(BACKUPS_DIRECTORY));
        let place = place.or_else(|| beside.map(|directory| directory.display().to_string()));
        let keep = backup::RetentionPolicy { newest: keep_newest, age_max: None };
        let originals = api_images::originals_space;
        backup::BackupConfig { place, options, rate, every, keep, originals, ..Default::default() }
    }

    /// Returns the settings of image collections.
    pub(super) fn images(&self) -> api_images::ImagesConfig {
        api_images::ImagesConfig {
            directory: self.directory.clone(),
            originals: self.originals.clone(),
            originals_options: self.originals_options.clone(),
            embedding_model: self.embedding_model.clone(),
        }
    }
}

impl std::fmt::Debug for SearchConfig {
    /// Leaves out keys, as the text may be logged.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("SearchConfig")
            .field("directory", &self.directory)
            .field("required", &self.required)
            .field("memory_bytes", &self.memory_bytes)
            .field("cache_bytes", &self.cache_bytes)
            .field("disk_reserve", &self.disk_reserve)
            .field("threads", &self.threads)
            .field("medium", &self.medium)
            .field("memory_node", &self.memory_node)
            .field("codes", &self.codes)
            .field("build_threads", &self.build_threads)
            .field("background_rate", &self.background_rate)
            .field("merge_segments", &self.merge_segments)
            .field("segment_rows", &self.segment_rows)
            .field("originals", &self.originals)
            .field("embedding_model", &self.embedding_model)
            .field("collections_max", &self.collections_max)
            .field("gpu", &self.gpu)
            .field("originals_options", &self.originals_options)
            .field("backups", &self.backups)
            .field("api_key", &self.api_key.as_ref().map(|_| "..."))
            .finish()
    }
}

/// Smallest default limit of the memory of collections.
const MEMORY_BYTES_MIN: u64 = 128 * MIB;

/// Returns 2 GiB, or a quarter of the memory of a smaller machine or control group. Data that
/// requests have read stays in memory up to this limit.
fn default_memory_bytes() -> u64 {
    let total = os::process::machine().map_or(u64::MAX, |machine| machine.total);
    (total / 4).clamp(MEMORY_BYTES_MIN, SearchConfig::MEMORY_BYTES)
}

/// Returns a quarter of the cores, at least 1. The others search, and decode new points.
fn default_build_threads() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (cores / 4).max(1)
}

impl Default for SearchConfig {
    fn default() -> Self {
        let merging = search::collection::Merging::default();
        let memory_bytes = default_memory_bytes();
        SearchConfig {
            directory: None,
            required: false,
            memory_bytes,
            cache_bytes: (256 * MIB).min(memory_bytes / 2),
            disk_reserve: None,
            threads: 0,
            medium: SearchMedium::Auto,
            memory_node: None,
            codes: CodesPlace::Auto,
            build_threads: default_build_threads(),
            background_rate: 64 * MIB,
            merge_segments: merging.fan_in,
            segment_rows: merging.rows_max,
            originals: None,
            originals_options: StoreOptions::default(),
            embedding_model: None,
            collections_max: crate::descriptors::COLLECTIONS_MAX,
            api_key: None,
            gpu: None,
            backups: BackupSettings::default(),
        }
    }
}
