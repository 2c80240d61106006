//! Application of a log's entries to the local collection of a shard.
//!
//! All holders apply the same operations in the same order. An operation that no holder can make,
//! such as a vector of the wrong length, is skipped by all of them. Any other failure is one of
//! this machine and is tried again: an operation is never skipped because of it. An operation of an
//! unknown name is not skipped either. Holders of a newer version make it, so this holder stops at
//! it until it is upgraded.

use std::sync::Arc;
use std::time::Duration;

use base::{Error, ErrorKind, Result};
use search::registry::NamedCollection;
use tokio::sync::Semaphore;

use super::local::{at_low_priority, blocking};
use cluster_log::Batch;

/// First pause before an operation is tried again. Doubled each time.
const PAUSE_MIN: Duration = Duration::from_millis(50);
/// Longest pause before an operation is tried again.
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Maximum number of tries of one operation. Then the follower starts over.
const TRIES_MAX: u32 = 30;

/// Time after which a shard that is still behind applies its log at ordinary priority. On a machine
/// that is always busy, its log might otherwise grow faster than it is applied.
const LOW_PRIORITY_MAX: Duration = Duration::from_secs(60);

/// Longest wait for a turn. Then the operations are tried without a turn, because a disk that hangs
/// under one shard must not stop the other shards.
const TURN_WAIT_MAX: Duration = Duration::from_secs(10);

/// Priority at which entries are applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ApplyPriority {
    /// Reads may wait for the entry.
    Ordinary,
    /// No read waits, and other shards of this node may be serving.
    Low,
}

impl ApplyPriority {
    /// Returns the priority of a shard whose local collection was opened before `since_open`.
    /// `is_behind` is true if the shard has not reached the end of its log.
    pub(super) fn of(is_behind: bool, since_open: Duration) -> ApplyPriority {
        if is_behind && since_open < LOW_PRIORITY_MAX {
            ApplyPriority::Low
        } else {
            ApplyPriority::Ordinary
        }
    }
}

/// Outcome of an entry.
#[derive(Clone, Debug, Default)]
pub(crate) struct AppliedBatch {
    /// Number of operations that were made.
    pub(super) made: u64,
    /// Number of operations that no holder can make.
    pub(super) skipped: u64,
    /// Reason of the first skipped operation.
    pub(super) skip_reason: Option<Error>,
}

/// Applies the operations of an entry, in order. They are durable when this returns.
///
/// # Errors
/// As [`apply_rest`].
pub(crate) async fn apply(
    named: &Arc<NamedCollection>,
    batch: &Batch,
    priority: ApplyPriority,
) -> Result<AppliedBatch> {
    let mut applied = AppliedBatch::default();
    apply_rest(named, batch, priority, None, &mut applied).await?;
    Ok(applied)
}

/// Applies the operations of an entry that `applied` does not count yet, in order, and counts them
/// there. If one fails, `applied` has the operations before it. They are durable when this returns.
/// Each try takes one of `turns` and returns it before the next try, so that an operation that
/// fails repeatedly does not stop other shards.
///
/// # Errors
/// `DataLoss` if the local collection is damaged, `StorageFull` if its disk is full, and
/// `Unimplemented` for an operation that only a newer version knows; an error without further tries
/// if the collection was replaced; otherwise the error of the last try.
pub(super) async fn apply_rest(
    named: &Arc<NamedCollection>,
    batch: &Batch,
    priority: ApplyPriority,
    turns: Option<&Semaphore>,
    applied: &mut AppliedBatch,
) -> Result<()> {
    let mut pause = PAUSE_MIN;
    let mut tries = 0;
    loop {
        let at = (applied.made + applied.skipped) as usize;
        if at >= batch.0.len() {
            return Ok(());
        }
        let target = named.clone();
        let rest = batch.clone();
        let work = move || Ok(apply_from(&target, &rest, at));
        let turn = match turns {
            // `None` after the longest wait. The semaphore is never closed.
            Some(turns) => tokio::time::timeout(TURN_WAIT_MAX, turns.acquire()).await.ok(),
            None => None,
        };
        let step = match priority {
            ApplyPriority::Ordinary => blocking(work).await?,
            ApplyPriority::Low => at_low_priority("applying a log", work).await?,
        };
        drop(turn);
        applied.made += step.made;
        applied.skipped += step.skipped;
        applied.skip_reason = applied.skip_reason.take().or(step.skip_reason);
        let Some(error) = step.failure else { continue };
        if step.made + step.skipped > 0 {
            (tries, pause) = (0, PAUSE_MIN);
        }
        tries += 1;
        let is_lasting = matches!(
            error.kind(),
            ErrorKind::DataLoss | ErrorKind::StorageFull | ErrorKind::Unimplemented
        );
        let is_final = is_lasting || named.removed();
        if is_final || tries >= TRIES_MAX {
            return Err(error);
        }
        if tries == 1 {
            tracing::warn!(collection = named.name(), %error, "an operation of the log is tried again");
        } else {
            tracing::debug!(collection = named.name(), tries, %error, "an operation of the log is tried again");
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Outcome of some operations, until the first that failed.
struct AppliedStep {
    made: u64,
    skipped: u64,
    skip_reason: Option<Error>,
    failure: Option<Error>,
}

/// Makes the operations from number `from` on, until one fails on this machine.
fn apply_from(named: &NamedCollection, batch: &Batch, from: usize) -> AppliedStep {
    let mut step = AppliedStep { made: 0, skipped: 0, skip_reason: None, failure: None };
    for operation in &batch.0[from..] {
        match apply_operation(named, operation) {
            Ok(()) => step.made += 1,
            Err(error) if is_same_everywhere(&error) && !named.removed() => {
                step.skipped += 1;
                tracing::debug!(collection = named.name(), %error, "an operation changes nothing");
                step.skip_reason.get_or_insert(error);
            }
            Err(error) => {
                step.failure = Some(error);
                break;
            }
        }
    }
    step
}

/// Makes an operation of images, or one of Qdrant's.
fn apply_operation(named: &NamedCollection, operation: &[u8]) -> Result<()> {
    if api_images::is_image_operation(operation) {
        return api_images::apply_image_operation(named, operation);
    }
    api_qdrant::apply_operation(named, operation)
}

/// Returns true if every holder gets this error for the operation.
fn is_same_everywhere(error: &Error) -> bool {
    use ErrorKind::{AlreadyExists, InvalidArgument, TooLarge};
    // `AlreadyExists`: the hash of a UUID belongs to another point. `NotFound` is a file that this
    // machine lost, because an absent point is not an error.
    matches!(error.kind(), InvalidArgument | TooLarge | AlreadyExists)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_that_stays_behind_gets_ordinary_priority() {
        let soon = Duration::from_secs(1);
        assert_eq!(ApplyPriority::of(true, soon), ApplyPriority::Low);
        assert_eq!(ApplyPriority::of(true, LOW_PRIORITY_MAX), ApplyPriority::Ordinary);
        assert_eq!(ApplyPriority::of(false, soon), ApplyPriority::Ordinary);
    }

    #[test]
    fn a_lost_file_is_an_error_of_this_machine() {
        let gone = std::io::Error::from(std::io::ErrorKind::NotFound);
        let error = Error::io(std::path::Path::new("/x/000001.log"), &gone);
        assert!(!is_same_everywhere(&error));
    }
}
