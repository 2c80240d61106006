//! Threads that open, flush and merge, for all collections. Two threads flush and two merge: one of
//! low priority, and one that takes over if the first makes too little progress.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use base::{Error, ErrorKind, Result};
use os::background::Priority;

use super::core::RegistryCore;
use super::named::{BackgroundTask, NamedCollection};

/// Time between checks for work without a notification.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// Minimum unflushed bytes of a collection that is flushed because memory is short.
const RELIEF_BYTES_MIN: u64 = 256 << 10;

pub(super) fn start(core: &Arc<RegistryCore>) -> Result<Vec<JoinHandle<()>>> {
    let opening = core.clone();
    let open = std::thread::Builder::new()
        .name("search-open".into())
        .spawn(move || opening.open_all())
        .map_err(|error| Error::exhausted(format!("thread search-open: {error}")))?;
    let flushing = core.clone();
    let flush = os::background::spawn_pair("search-flush", "flushing", move |priority| {
        let escalated = |named: &NamedCollection| {
            named.collection().record_progress();
            named.collection().flush_if_stalled()
        };
        let paced = |named: &NamedCollection| named.collection().flush_oldest();
        match priority {
            Priority::Background => repeat(&flushing, BackgroundTask::Flush, paced, relieve),
            _ => repeat(&flushing, BackgroundTask::Flush, escalated, |_| false),
        }
    })?;
    let merging = core.clone();
    let merge = os::background::spawn_pair("search-merge", "merging", move |priority| {
        let merge = |named: &NamedCollection| match priority {
            Priority::Background => named.collection().merge(),
            _ => named.collection().merge_if_behind(),
        };
        repeat(&merging, BackgroundTask::Merge, merge, |_| false);
    })?;
    Ok(std::iter::once(open).chain(flush).chain(merge).collect())
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
                busy |= has_room_now(core, chore, &outcome);
                busy |= outcome.is_ok_and(|did| did);
            }
        }
        if !busy && !otherwise(core) {
            core.resources.wait_past(seen, LOOK_AGAIN);
        }
    }
}

/// Returns true if a flush failed for lack of memory, and codes were moved to the medium for it.
fn has_room_now(core: &RegistryCore, chore: BackgroundTask, outcome: &Result<bool>) -> bool {
    let lacks = |error: &Error| error.kind() == ErrorKind::ResourceExhausted;
    chore == BackgroundTask::Flush && outcome.as_ref().is_err_and(lacks) && core.move_codes()
}

/// Freezes the memtable of the collection with the most unflushed points if memory is short: many
/// small collections must not fill the memory with points that none of them would flush. Returns
/// true if there was one.
fn relieve(core: &RegistryCore) -> bool {
    // Cached codes count as free, or a full cache would have every few points flushed.
    if !core.resources.budget().is_short() {
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
