//! Options of image search and of a cluster.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use command_line::values::{ByteRate, ByteSize, TimeSpan};
use serde::Deserialize;

/// `[search]`: collections, and images in them.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
#[command(next_help_heading = "Search")]
pub(crate) struct SearchOptions {
    /// Directory of collections, or "none" to serve none [default: in the user's data directory]
    #[arg(long, value_name = "DIR")]
    pub(crate) collections_dir: Option<PathBuf>,
    /// Memory limit for all collections. Data that requests have read stays in memory up to this
    /// limit [default: 2GiB, at most a quarter of the memory of the machine or the control group; a
    /// stated --search-cache raises a lower default to twice its size, or four times with dram, up
    /// to 2GiB]
    #[arg(long, value_name = "BYTES")]
    pub(crate) search_memory: Option<ByteSize>,
    /// Cache for frequently read records, as a part of --search-memory [default: 256MiB, at most
    /// half of --search-memory, or a quarter with dram]
    #[arg(long, value_name = "BYTES")]
    pub(crate) search_cache: Option<ByteSize>,
    /// Free space to keep on the disk of the collections. If less is free, writes are refused; 0
    /// keeps none [default: 1 % of the disk, 64MiB to 4GiB, at most 1/8 of it]
    #[arg(long, value_name = "BYTES")]
    pub(crate) search_disk_reserve: Option<ByteSize>,
    /// Search threads; 0 is one per core [default: 0]
    #[arg(long, value_name = "N")]
    pub(crate) search_threads: Option<usize>,
    /// Way to read the files of collections: in place on persistent memory (dax), without the page
    /// cache (nvme), from a copy in memory (dram), or through the page cache (mmap). A collection
    /// may choose another medium when it is created [default: auto, which is dax for new
    /// collections on a file system with DAX, else nvme]
    #[arg(long, value_enum, value_name = "MEDIUM")]
    pub(crate) search_medium: Option<MediumName>,
    /// NUMA node whose memory holds the files with --search-medium dram, for example a CXL memory
    /// expander [default: any]
    #[arg(long, value_name = "NODE")]
    pub(crate) search_memory_node: Option<u32>,
    /// Place of the codes that queries scan: in memory (dram), or on the medium with a cache in
    /// free memory (medium) [default: auto, which is dram while they fit in --search-memory]
    #[arg(long, value_enum, value_name = "PLACE")]
    pub(crate) search_codes: Option<CodesName>,
    /// Threads that build the index of a segment [default: a quarter of the cores, at least 1]
    #[arg(long, value_name = "N")]
    pub(crate) search_build_threads: Option<usize>,
    /// Maximum rate of flushes, merges and the reading of segments into free memory, all together,
    /// in bytes per second, or "unlimited" [default: 64MiB]
    #[arg(long, value_name = "BYTES")]
    pub(crate) search_background_rate: Option<ByteRate>,
    /// Number of segments of similar size that one merge joins. With a small number, searches are
    /// faster; with a large number, data is rewritten less often. After 30 seconds without new
    /// points, half as many are enough [default: 4]
    #[arg(long, value_name = "N")]
    pub(crate) search_merge_segments: Option<usize>,
    /// Maximum points of a merged segment [default: 8388608]
    #[arg(long, value_name = "N")]
    pub(crate) search_segment_rows: Option<u32>,
    /// Directory or object store URL of original images [default: beside the collections]
    #[arg(long, value_name = "DIR|URL")]
    pub(crate) originals: Option<String>,
    /// Directory or object store URL of backups of collections [default: .backups in the directory
    /// of collections, on the same disk; in a cluster, backups in --cluster-store]
    #[arg(long, value_name = "DIR|URL")]
    pub(crate) backup_dir: Option<String>,
    /// Time between two scheduled backups, 1m to 24h. Each backs up the collections that have
    /// changed [default: no schedule]
    #[arg(long, value_name = "TIME")]
    pub(crate) backup_every: Option<TimeSpan>,
    /// Number of backups of each collection to keep: after each scheduled backup, older ones are
    /// removed [default: all]
    #[arg(long, value_name = "N")]
    pub(crate) backup_keep: Option<usize>,
    /// Maximum rate of backups and restores, in bytes per second, or "unlimited" [default: 64MiB]
    #[arg(long, value_name = "BYTES")]
    pub(crate) backup_rate: Option<ByteRate>,
    /// Model that embeds photographs [default: the only one that takes images]
    #[arg(long, value_name = "NAME")]
    pub(crate) embedding_model: Option<String>,
    /// Search large segments on a GPU; applies to segments built from now on [default: none]
    #[arg(long, value_enum)]
    pub(crate) gpu: Option<GpuUse>,
    /// Pinned host memory for codes that do not fit the GPU's memory [default: 0]
    #[arg(long, value_name = "BYTES")]
    pub(crate) gpu_pinned: Option<ByteSize>,
    /// Key with the role write, or admin if there is no other key. It also signs tokens (JWT) with
    /// the claims exp, nbf and access of Qdrant. Prefer the variable MILLPOND_API_KEY, which other
    /// users cannot read
    #[arg(long, value_name = "KEY")]
    pub(crate) api_key: Option<String>,
}

/// `[cluster]`: several search servers that hold collections together.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
#[command(next_help_heading = "Cluster")]
pub(crate) struct ClusterOptions {
    /// Directory or object store URL of the cluster: the logs and snapshots of its collections. All
    /// nodes name the same one. With this flag, /collections has the collections of the cluster
    #[arg(long, value_name = "DIR|URL")]
    pub(crate) cluster_store: Option<String>,
    /// Addresses of etcd, such as http://10.0.0.1:2379, separated by commas. If etcd has users, set
    /// the variables MILLPOND_ETCD_USER and MILLPOND_ETCD_PASSWORD
    #[arg(long, value_name = "URLS", value_delimiter = ',')]
    #[serde(default)]
    pub(crate) cluster_etcd: Vec<String>,
    /// Issuers of etcd's certificates (PEM), for addresses that begin with https://
    #[arg(long, value_name = "FILE")]
    pub(crate) cluster_etcd_ca: Option<PathBuf>,
    /// Certificate that this node shows to etcd (PEM), if etcd requires client certificates
    #[arg(long, value_name = "FILE")]
    pub(crate) cluster_etcd_cert: Option<PathBuf>,
    /// Private key of --cluster-etcd-cert (PEM)
    #[arg(long, value_name = "FILE")]
    pub(crate) cluster_etcd_key: Option<PathBuf>,
    /// Issuers of the nodes' certificates (PEM). Required with --tls-cert: the nodes then speak TLS
    /// to each other. Each certificate must name the host of its node's --cluster-address
    #[arg(long, value_name = "FILE")]
    pub(crate) cluster_tls_ca: Option<PathBuf>,
    /// Name of this node, which stays the same across restarts [default: the address]
    #[arg(long, value_name = "NAME")]
    pub(crate) cluster_node: Option<String>,
    /// Work of this node: root answers clients, search holds shards, ingest writes their logs,
    /// extract finds the features of images [default: root,search,ingest,extract]
    #[arg(long, value_name = "ROLES")]
    pub(crate) cluster_roles: Option<String>,
    /// Address at which other nodes reach the HTTP port of this one [default: --host and the port]
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) cluster_address: Option<String>,
    /// Name of the cluster in etcd, if several share it [default: millpond]
    #[arg(long, value_name = "NAME")]
    pub(crate) cluster_name: Option<String>,
    /// Share of the shards that this node holds and of the logs that it writes, relative to the
    /// other nodes; 0 takes none, 64 at most [default: 1]
    #[arg(long, value_name = "N")]
    pub(crate) cluster_weight: Option<u32>,
    /// Entries of a shard's log between two snapshots [default: 4096]
    #[arg(long, value_name = "N")]
    pub(crate) cluster_snapshot_entries: Option<u32>,
}

/// Access to the files of collections.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum MediumName {
    /// Persistent memory if there is any, else io_uring
    Auto,
    /// io_uring, without the page cache
    Nvme,
    /// A copy in memory, made when a segment is opened
    Dram,
    /// Mapped through the page cache
    Mmap,
    /// In place on persistent memory; its file system is mounted with -o dax
    Dax,
}

/// Place of codes.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum CodesName {
    /// In memory while they fit, else on the medium; chosen for each segment
    Auto,
    /// In memory; a segment that does not fit is not searched
    Dram,
    /// On the medium
    Medium,
}

/// Use of a GPU.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum GpuUse {
    /// Search on the processor
    None,
    /// Search large segments on the first GPU, or on the processor if there is none or it fails
    Auto,
}
