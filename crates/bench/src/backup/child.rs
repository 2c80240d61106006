//! The program that backs up or restores until it is killed.

use std::path::Path;

use backup::BackupExtent;
use base::Result;
use os::Rate;

use super::collection::COLLECTION;
use super::{BackupBenchArgs, RunStore, collection};

/// Rate at which the work takes long enough for a kill, in bytes per second.
const RATE: u64 = 16 << 20;
/// Number of points that change before each backup.
const CHANGED: u64 = 200;

/// Runs until the process is killed.
pub(super) fn run(args: &BackupBenchArgs, directory: &Path) -> Result<()> {
    let registry = collection::open(&directory.join("collections"))?;
    let store = RunStore::open(&directory.join("store"), Rate::per_second(RATE))?;
    for round in 0.. {
        if args.restores {
            store.restore_over(&registry)?;
        } else {
            let named = registry.get(COLLECTION)?;
            let ids = (0..CHANGED).map(|id| (id * 7919 + round * 31) % args.rows);
            collection::put(&named, args, ids, 2 + round)?;
            store.back_up(&named, BackupExtent::Missing)?;
        }
    }
    Ok(())
}
