//! Answers to clients: Qdrant's REST interface over the collections of a cluster.
//!
//! The crate `cluster-images` has the routes of `/v1/images`. It uses the state and the context of
//! a request, [`reads`], [`writes`], [`split`] and [`collections`].
//!
//! A read goes to one holder of each shard, grouped by node, and the answers are merged. A write is
//! split by shard and goes to the owners. The root keeps no data: any node can be one.
//!
//! # Reads
//! A holder that fails is replaced at once by another one. A holder that is slower than usual gets
//! a second request at another holder, within the budget of `cluster::HedgeBudget`. If shards stay
//! without an answer, the answer is partial and names its coverage, or fails below `min_coverage`.
//!
//! # Writes
//! All points and filters are checked before anything is sent, because holders cannot refuse an
//! operation of the log. A request is sent again only if it is certain that the owner did not write
//! it. A write that is made twice could undo the write of another client in between.
//!
//! # Consistency
//! A root remembers the last entry that it wrote to each shard, and reads carry its number. So a
//! client of one root reads its own writes. A read by id at any root finds a point whose write was
//! acknowledged before, but maybe not its newest payload. Only `consistency=strong` has all writes
//! of other roots.
//!
//! # Modules
//! * A request: `routes` lists the paths, `state` is what they share, `call` reads one request,
//!   `params` its parameters, `envelope` answers.
//! * Asking nodes: `wire` has the messages, `fan_out` reads some shards, `shard_read` is such a
//!   read and its results, `read_memory` limits their bytes. `served` has the collections whose
//!   holders were seen, `written` the entries that later reads must see. `catch_up` waits until all
//!   holders have the acknowledged changes.
//! * Answers of shards: `merge`, `merged_groups`; `parts` and `payload_members` read payloads of
//!   hits.
//! * Reads without ranking: `read`.
//! * Queries: `query` is the entry, `root_query` its form for shards, `lookup` replaces ids by
//!   vectors. `prefetch` and `formula` rank in rounds, `own_rounds` leads to `mmr` and `sample`.
//!   `groups` and `ranked_groups` group, `matrix` compares a sample, `older` has the routes before
//!   `points/query`.
//! * Writes: `check` and `payload_sizes` refuse, `split` and `split_changes` divide by shard,
//!   `write` sends, `by_filter` changes the points of a filter.
//! * Collections: `collections`, `new_shards`, `collection_changes`, `aliases`, `describe`.
//! * Originals of images: `removed_originals`, `original_cleanup`.
//! * Snapshots: `snapshots`, `snapshot_call`, `snapshot_rights`.
//! * For operators: `plan` shows moves of shards, `node_work` flushes and merges.
//! * Fuzz targets: `fuzzing`.

mod aliases;
mod by_filter;
mod call;
mod catch_up;
pub mod check;
mod collection_changes;
pub mod collections;
mod describe;
mod envelope;
mod fan_out;
mod formula;
#[doc(hidden)]
pub mod fuzzing;
mod groups;
mod lookup;
mod matrix;
mod merge;
mod merged_groups;
mod mmr;
mod new_shards;
mod node_work;
mod older;
mod original_cleanup;
mod own_rounds;
mod params;
mod parts;
mod payload_members;
mod payload_sizes;
mod plan;
mod prefetch;
mod query;
mod ranked_groups;
mod read;
mod read_memory;
mod removed_originals;
mod root_query;
mod routes;
mod sample;
mod served;
mod shard_read;
mod snapshot_call;
mod snapshot_rights;
mod snapshots;
pub mod split;
mod split_changes;
mod state;
mod wire;
mod write;
mod written;

pub use call::RootContext;
pub use envelope::ReadCoverage;
pub use new_shards::NewShards;
pub use original_cleanup::{CleanupTimes, OriginalCleanup};
pub use params::{RootParams, RouteQuery};
pub use routes::routes;
pub use state::RootState;

/// Reads of shards, and the results of the shards that answered.
pub mod reads {
    pub use crate::catch_up::catch_up;
    pub use crate::fan_out::read_shards;
    pub use crate::merge::{CountedPoints, ShardResults, scroll, sum};
    pub use crate::read::{answers, confirmed, count_points, of_all, of_ids};
    pub use crate::shard_read::{
        ReadBody, ReadPriority, ResultTexts, ShardAnswers, ShardRead, check_coverage, result_bytes,
    };
    pub use crate::wire::{is_final, message_of};
}

/// Writes to the owners of shards, and the removal of the originals of deleted points.
pub mod writes {
    pub use crate::removed_originals::{delete_original, delete_originals};
    pub use crate::write::{
        OwnerDecision, ShardWrite, WriteCondition, check_ids, deliver, deliver_each,
        is_shard_refusal, not_written, shard_refusal, was_not_written,
    };
}
