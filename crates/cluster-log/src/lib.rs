//! The log of a shard in the object store: its objects, its writer and its followers.
//!
//! `cluster::LogWriter` and `cluster::LogReplay` decide; this crate carries out. [`ShardLog`]
//! reads and creates objects. [`ShardWriter`] drives a writer with a task and gathers writes of
//! clients into entries. [`LogFollower`] returns the entries of a log in order.
//!
//! # Objects
//! Below `data/ID/` of the cluster's store, SSSS being the shard with 4 decimal digits and all
//! other numbers having 16 hexadecimal digits:
//! * `wal/SSSS/NUMBER` is an entry ([`codec`]), created only if it is absent.
//! * `floor/SSSS/NUMBER-EPOCH` is an empty object: entries below NUMBER may be removed, and EPOCH
//!   is the largest epoch below NUMBER. The largest counts.
//!
//! # Failures
//! Each request to the store has a timeout. A create without a clear answer is followed by a read
//! of its entry, because it may succeed late. Reads are repeated with growing pauses. A process
//! that slept can create a removed number again. So an entry that was read counts only if the
//! floor, read after it, is not above it.
//!
//! # Invariant
//! A write is acknowledged only once it is in the log in the store and no later owner can have
//! missed it.
//!
//! # Modules
//! * Objects: `store` reads and creates them, `codec` is the form of an entry, `retry` repeats
//!   requests.
//! * Writing: `writer` is the handle, `driver` the task and `shared` their state. `append` and
//!   `queue` are the writes, `options` the settings.
//! * Reading: `follower`; `read_ahead` reads several entries at a time.

mod append;
pub mod codec;
mod driver;
mod follower;
mod options;
mod queue;
mod read_ahead;
mod retry;
mod shared;
mod store;
mod writer;

pub use append::{AppendOutcome, LogWrite};
pub use codec::{Batch, ENTRY_BYTES_MAX, decode_entry, encode_entry};
pub use follower::{FollowPosition, FollowStep, LogFollower};
pub use options::{GATHER_MAX, WriterOptions};
pub use queue::was_not_made;
pub use shared::{WriterPhase, WriterStatus};
pub use store::{CreateOutcome, LogFloor, REQUEST_TIMEOUT_DEFAULT, ShardLog};
pub use writer::{OnEntry, ShardWriter};

/// Exposes parsers to the fuzz targets. Not part of the API.
#[doc(hidden)]
pub mod fuzzing {
    use crate::LogFloor;

    /// Reads the name of the object of a log's floor.
    pub fn floor_name(name: &str) -> Option<LogFloor> {
        LogFloor::parse(name)
    }
}
