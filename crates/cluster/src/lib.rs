//! Decisions of a cluster of search servers: who holds a segment, who may write a shard's log, and
//! when a second holder is asked.
//!
//! Everything here is a function of its arguments or a state machine without clock, network or
//! storage. A caller carries out the [`WriterAction`]s of a [`LogWriter`] or the calls of a
//! [`ReadFanOut`], and reports what happened. The simulations in `tests/worlds` do the same with
//! faults drawn from a seed (`make simulate`).
//!
//! The object store holds the truth, and etcd says who should write (ADR 0025). The log stays
//! correct even if two processes believe that they own a shard.
//!
//! # Modules
//! * Who has a shard: `shard` is a part of a collection, `placement` chooses holders, `copies`
//!   keeps or removes a node's copy, `ownership` decides who writes.
//! * The log: `entry` is the rule of reading, `writer` the state of an owner, `recent_writes`
//!   decides conditional writes. `end_search` finds the end, `snapshots` decides which snapshots
//!   may be removed.
//! * Copies that cannot serve: `damage`, `stall`; `store_access` chooses a writer if a node has
//!   lost the store.
//! * Reads: `fan_out` asks holders, `hedge` permits second requests, `latency` orders holders
//!   and times second requests.

mod copies;
mod damage;
mod end_search;
mod entry;
mod fan_out;
mod hedge;
mod latency;
mod ownership;
mod placement;
mod recent_writes;
mod shard;
mod snapshots;
mod stall;
mod store_access;
mod writer;

pub use copies::{CopyNeed, UNNEEDED_STAYS, UnneededTimer};
pub use damage::{
    DECISION_AGE_MAX, DamagedCopyUse, DecisionAge, HolderReading, REPLACEMENT_DELAY,
    REPLACEMENT_TURN,
};
pub use end_search::{END_DISTANCE_MAX, EndSearch};
pub use entry::{EntryBody, EntryNumber, Epoch, LogEntry, LogReplay, WriterId};
pub use fan_out::{AnswerTaken, CallId, CallReason, NodeCall, ReadFanOut};
pub use hedge::{BURST_MAX, HEDGED_PERCENT_MAX, HedgeBudget, LatencyEstimate};
pub use latency::{CallTimers, NodeLatencies};
pub use ownership::{
    KnownOwnership, OwnerReading, OwnershipStep, SeenOwner, keeps_ownership, ownership_step,
};
pub use placement::{COPIES_MAX, SearchServer, WEIGHT_MAX, holders};
pub use recent_writes::{RECENT_WRITES_MAX, RecentWrites};
pub use shard::{SHARDS_MAX, ShardId, ShardKey, shard_of};
pub use snapshots::{SNAPSHOTS_KEPT, SnapshotRead, replaced_snapshots};
pub use stall::{
    AppliedReadStep, CertainHolders, FULL_SHARD_DELAY, FullShardTimer, STALL_DECISION_DELAY,
    StallMark, StalledServiceChange,
};
pub use store_access::{StoreAccessDecision, StoreReading, first_with_store};
pub use writer::{
    LogWriter, PIPELINE_MAX, RequestId, Ticket, WriterAction, WriterEvent, WriterState,
};
