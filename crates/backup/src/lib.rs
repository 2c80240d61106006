//! Backups of collections in a directory or an object store: S3, Google Cloud Storage, Azure Blob
//! Storage, HTTP (WebDAV) and `file://`.
//!
//! Segments never change, so a backup stores only files that the store lacks, then one list of all
//! its files. A backup is therefore complete once its list exists, and a stopped one is continued
//! by the next. The collection is served meanwhile; its pinned files are of one moment.
//!
//! # Objects
//! Below the root, each collection has a directory with its name:
//!
//! | key | content |
//! |---|---|
//! | `backups/ID` | list of a backup; the id begins with the time |
//! | `objects/segment-UUID` | segment; shared by all backups that have it |
//! | `objects/POINTS-deletes-N-HASH` | deleted rows; `POINTS` is unique to a collection |
//! | `objects/ID-log-N` | changes that no segment has |
//! | `running/ID`, `pruning/ID` | marks of work in progress |
//!
//! Objects that never change, such as original images, are backed up in the same way
//! ([`back_up_objects`]).
//!
//! # Removal
//! `prune` removes lists by a policy, then objects that no list names. It does not remove objects
//! while a backup runs, even one of another server. Both put a mark before they look for the mark
//! of the other.
//!
//! # Modules
//! * The thread, its requests and its schedule: `service`, `policy`.
//! * Work on a backup: `create`, `plain`, `copy`, `verify`, `restore`, `prune`.
//! * Content of a backup: `list`; `archive` is a backup as one file.
//! * The store: `store`, `location`, `marks`.
//! * Bytes: `transfer`, `upload_source`, `local_object`.

mod archive;
mod copy;
mod create;
mod list;
mod local_object;
mod location;
mod marks;
mod plain;
mod policy;
mod prune;
mod restore;
mod service;
mod store;
mod transfer;
mod upload_source;
mod verify;

pub use archive::{ArchiveLabel, archive_bytes, read_archive, write_archive, write_collection};
pub use copy::{BackupCopy, copy};
pub use create::{BackupExtent, BackupReport, create, create_with_room};
pub use list::{BackupFile, BackupId, BackupList, BackupProblem};
pub use location::{LocationReader, open_location};
pub use model_store::block_on;
pub use plain::{ObjectDirectory, back_up_objects, restore_objects};
pub use policy::RetentionPolicy;
pub use prune::{PruneReport, delete, prune, prune_among, remove_unused};
pub use restore::{RestoreReport, RestoreTarget, restore};
pub use service::{
    BackupConfig, BackupJob, BackupJobState, BackupRequest, BackupService, RegistryAccess,
    SubmittedJob,
};
pub use store::{BackupStore, StoredCollection, StoredLists};
pub use transfer::{BackupContext, BackupProgress};
pub use verify::{VerifyReport, verify};
