//! Threads that open, flush and merge, for all collections. Two threads flush and two merge: one of
//! low priority, and one that takes over if the first makes too little progress.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use base::{Error, Result};

use super::core::RegistryCore;
use super::named::{BackgroundTask, NamedCollection};

/// Time between checks for work without a notification.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// Minimum unflushed bytes of a collection that is flushed because memory is short.
const RELIEF_BYTES_MIN: u64 = 256 << 10;

pub(super) fn start(core: &Arc<RegistryCore>) -> Result<Vec<JoinHandle<()>>> {
    let spawn = |name: &str, work: fn(&RegistryCore)| {
        let core = core.clone();
        let spawned = std::thread::Builder::new().name(name.into()).spawn(move || work(&core));
        spawned.map_err(|error| Error::exhausted(format!("thread {name}: {error}")))
    };
    let threads = [
        spawn("search-open", RegistryCore::open_all)?,
        spawn("search-flush", |core| {
            os::thread::enter_low_priority("flushing");
            repeat(core, BackgroundTask::Flush, |named| named.collection().flush_oldest(), relieve);
        })?,
        spawn("search-flush-hi", |core| {
            let work = |named: &NamedCollection| {
                named.collection().record_progress();
                named.collection().flush_if_stalled()
            };
            repeat(core, BackgroundTask::Flush, work, |_| false);
        })?,
        spawn("search-merge", |core| {
            os::thread::enter_low_priority("merging");
            repeat(core, BackgroundTask::Merge, |named| named.collection().merge(), |_| false);
        })?,
        spawn("search-merge-hi", |core| {
            repeat(
                core,
                BackgroundTask::Merge,
                |named| named.collection().merge_if_behind(),
                |_| false,
            );
        })?,
    ];
    Ok(threads.into())
}

/// Runs `one` on every collection. If there was nothing to do, runs `otherwise`, and then waits for
/// the next event.
fn repeat(
    core: &RegistryCore,
    chore: BackgroundTask,
    one: impl Fn(&NamedCollection) -> Result<bool>,
    otherwise: impl Fn(&RegistryCore) -> bool,
) {
    while !core.stopped() {
        let seen = core.resources.events();
        let mut busy = false;
        for named in core.ready() {
            if !core.stopped() && named.may(chore) {
                let outcome = one(&named);
                named.tried(chore, &outcome);
                busy |= outcome.is_ok_and(|did| did);
            }
        }
        if !busy && !otherwise(core) {
            core.resources.wait_past(seen, LOOK_AGAIN);
        }
    }
}

/// Freezes the memtable of the collection with the most unflushed points if memory is short: many
/// small collections must not fill the memory with points that none of them would flush. Returns
/// true if there was one.
fn relieve(core: &RegistryCore) -> bool {
    let memory = core.resources.memory();
    if memory.used < memory.limit / 4 * 3 {
        return false;
    }
    let sizes = core.ready().into_iter().filter(|named| named.may(BackgroundTask::Flush));
    let largest = sizes
        .map(|named| (named.collection().unflushed_bytes(), named))
        .max_by_key(|(bytes, _)| *bytes);
    match largest.filter(|(bytes, _)| *bytes >= RELIEF_BYTES_MIN) {
        Some((_, named)) => {
            let frozen = named.collection().freeze().map(|()| true);
            named.tried(BackgroundTask::Flush, &frozen);
            frozen.is_ok()
        }
        None => false,
    }
}
