//! Removal of backups by a policy, and of objects that no backup needs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base::{Error, ErrorKind, Result};
use chrono::{DateTime, Utc};
use model_store::is_full;
use serde::Serialize;

use crate::list::{BackupId, BackupList};
use crate::marks::{Mark, MarkKind};
use crate::policy::RetentionPolicy;
use crate::transfer::BackupContext;

/// Backups, each with the time at which the store wrote its list.
type BackupTimes = BTreeMap<BackupId, DateTime<Utc>>;

/// Outcome of a removal.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PruneReport {
    /// Backups that were removed.
    pub removed: Vec<BackupId>,
    /// Number of backups that stay.
    pub kept: usize,
    /// Number of objects that were removed.
    pub objects: usize,
    /// Bytes of the removed objects.
    pub bytes: u64,
    /// Reason why no object was removed, if there is one. The next removal removes them.
    pub objects_kept: Option<String>,
}

/// Lists of the backups that stay, before others are removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeptLists {
    /// Every kept list is read. If one cannot be read, no backup is removed.
    Read,
    /// No kept list is read.
    Unread,
}

/// Removes the backups of a collection that `policy` does not keep, then objects that no list
/// names. An object stays for `grace` after it was written, so that the next backup continues a
/// stopped one.
///
/// # Errors
/// `InvalidArgument` for a policy without a rule, `DataLoss` if a list that is kept cannot be read
/// (neither a backup nor an object is then removed); otherwise the store's error.
pub async fn prune(
    context: &BackupContext<'_>,
    collection: &str,
    policy: &RetentionPolicy,
    grace: Duration,
) -> Result<PruneReport> {
    policy.check()?;
    let expired = |lists: &BackupTimes, now| policy.expired(lists, now);
    remove(context, collection, grace, KeptLists::Read, expired).await
}

/// Does the same as [`prune`], but removes no backup that is not in `among`. A backup that was
/// listed after the caller chose `among` stays. So does a backup whose list was written less than
/// `grace` ago by the store's clock. Its id can look older, if the clock of its server is late.
///
/// # Errors
/// As [`prune`].
pub async fn prune_among(
    context: &BackupContext<'_>,
    collection: &str,
    policy: &RetentionPolicy,
    among: &BTreeSet<BackupId>,
    grace: Duration,
) -> Result<PruneReport> {
    policy.check()?;
    let expired = |lists: &BackupTimes, now| {
        let is_old = |id: &BackupId| lists.get(id).is_some_and(|list| age_of(*list, now) >= grace);
        let mut expired = policy.expired(lists, now);
        expired.retain(|id| among.contains(id) && is_old(id));
        expired
    };
    remove(context, collection, grace, KeptLists::Read, expired).await
}

/// Removes one backup, and objects that no other one needs, as [`prune`] does.
///
/// # Errors
/// `NotFound` if there is no such backup, `DataLoss` if another list cannot be read (no object is
/// then removed); otherwise the store's error.
pub async fn delete(
    context: &BackupContext<'_>,
    collection: &str,
    backup: &BackupId,
    grace: Duration,
) -> Result<PruneReport> {
    if !context.store.ids(collection).await?.contains(backup) {
        return Err(Error::not_found(format!(
            "{}: there is no backup {backup} of {collection:?}",
            context.store.shown()
        )));
    }
    let one = |_: &BackupTimes, _| vec![backup.clone()];
    match remove(context, collection, grace, KeptLists::Unread, one).await {
        Err(error) if is_full(&error) => {
            // In memory of its own, because it is seldom needed and as large as the first attempt.
            Box::pin(delete_on_full_disk(context, collection, backup, grace)).await
        }
        report => report,
    }
}

/// Removes the list of a backup first, which makes room for the mark of the removal of objects. No
/// mark protects lists: each removal and each backup reads them again.
///
/// # Errors
/// As [`delete`].
async fn delete_on_full_disk(
    context: &BackupContext<'_>,
    collection: &str,
    backup: &BackupId,
    grace: Duration,
) -> Result<PruneReport> {
    context.store.remove(&context.store.list_key(collection, backup)).await?;
    let objects = remove(context, collection, grace, KeptLists::Unread, |_, _| Vec::new()).await;
    let report = match objects {
        Err(error) if is_full(&error) => PruneReport {
            kept: context.store.ids(collection).await?.len(),
            objects_kept: Some(error.message().to_owned()),
            ..PruneReport::default()
        },
        report => report?,
    };
    Ok(PruneReport { removed: vec![backup.clone()], ..report })
}

/// Removes objects of a collection that no backup needs, such as those of a backup that was stopped
/// before it had a list. Otherwise does the same as [`prune`].
///
/// # Errors
/// As [`prune`].
pub async fn remove_unused(
    context: &BackupContext<'_>,
    collection: &str,
    grace: Duration,
) -> Result<PruneReport> {
    if context.store.objects(collection).await?.is_empty() {
        return Ok(PruneReport::default());
    }
    remove(context, collection, grace, KeptLists::Unread, |_, _| Vec::new()).await
}

/// Removes the backups that `expired` chooses, under a mark that other removals see.
async fn remove(
    context: &BackupContext<'_>,
    collection: &str,
    grace: Duration,
    kept: KeptLists,
    expired: impl Fn(&BackupTimes, DateTime<Utc>) -> Vec<BackupId>,
) -> Result<PruneReport> {
    let id = BackupId::now();
    let mark = Mark::put(context.store, collection, MarkKind::Removal, &id).await?;
    let work = async {
        if kept == KeptLists::Read {
            check_kept(context, collection, &mark, &expired).await?;
        }
        remove_marked(context, collection, grace, &mark, expired).await
    };
    // A removal of many backups may take longer than a mark stays valid without a renewal.
    let outcome = mark.during(work).await;
    mark.remove().await;
    outcome
}

/// Checks that the lists of the backups that stay can be read, unless none is removed. A damaged
/// backup may be the newest one, and must not be the only one that is left.
///
/// # Errors
/// `DataLoss` that names a damaged backup; `FailedPrecondition` for one of a newer program;
/// otherwise the store's error.
async fn check_kept(
    context: &BackupContext<'_>,
    collection: &str,
    mark: &Mark<'_>,
    expired: &impl Fn(&BackupTimes, DateTime<Utc>) -> Vec<BackupId>,
) -> Result<()> {
    let lists = context.store.list_times(collection).await?;
    let removed = expired(&lists, mark.store_time().await?);
    if removed.is_empty() {
        return Ok(());
    }
    let kept = lists.into_keys().filter(|id| !removed.contains(id));
    let kept: Vec<BackupId> = kept.collect();
    let check = |_, list: Result<BackupList>| match list {
        // Another server has removed it since.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == ErrorKind::DataLoss => Err(Error::data_loss(format!(
            "{}; no other backup is removed before this one is removed by its id",
            error.message()
        ))),
        list => list.map(drop),
    };
    context.store.read_lists(collection, &kept, check).await
}

/// Does the work of [`remove`], whose mark is `mark`.
///
/// # Errors
/// As [`prune`], and as [`Mark::renew`]. No further backup and no further object is removed then.
pub(crate) async fn remove_marked(
    context: &BackupContext<'_>,
    collection: &str,
    grace: Duration,
    mark: &Mark<'_>,
    expired: impl Fn(&BackupTimes, DateTime<Utc>) -> Vec<BackupId>,
) -> Result<PruneReport> {
    let lists = context.store.list_times(collection).await?;
    let removed = expired(&lists, mark.store_time().await?);
    for id in &removed {
        context.progress.check()?;
        // After a long stop, other programs may have removed backups that should stay.
        mark.renew().await?;
        context.store.remove(&context.store.list_key(collection, id)).await?;
    }
    // Another server may have removed some of them since.
    let kept = lists.keys().filter(|id| !removed.contains(id)).count();
    let mut report = PruneReport { removed, kept, ..PruneReport::default() };
    remove_objects(context, collection, grace, mark, &mut report).await?;
    Ok(report)
}

/// Removes objects that no list names and that are older than `grace`, unless a backup runs.
///
/// Lists the objects first, then checks for marks of backups, then reads the lists. A backup puts
/// its mark before its objects, and its list before it removes its mark. So each object of a backup
/// that was listed here has a mark or a list that is read after it.
async fn remove_objects(
    context: &BackupContext<'_>,
    collection: &str,
    grace: Duration,
    mark: &Mark<'_>,
    report: &mut PruneReport,
) -> Result<()> {
    let objects = context.store.objects(collection).await?;
    if mark.sees(MarkKind::Backup).await? {
        let why = "a backup is in progress; the next removal takes unused objects";
        report.objects_kept = Some(why.to_owned());
        return Ok(());
    }
    let mut named = BTreeSet::new();
    let add = |list: BackupList| named.extend(list.files.into_iter().map(|file| file.object));
    context.store.each_list(collection, add).await?;
    let now = mark.store_time().await?;
    for (object, stored) in objects {
        if named.contains(&object) || age_of(stored.modified, now) < grace {
            continue;
        }
        context.progress.check()?;
        mark.renew().await?;
        context.store.remove(&context.store.object_key(collection, &object)).await?;
        report.objects += 1;
        report.bytes += stored.bytes;
    }
    Ok(())
}

/// Returns the age of an object at `now`, the time of the same store.
fn age_of(written: DateTime<Utc>, now: DateTime<Utc>) -> Duration {
    (now - written).to_std().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use model_store::block_on;
    use os::{Pacer, Rate};

    use super::*;
    use crate::list::BackupList;
    use crate::store::BackupStore;
    use crate::transfer::BackupProgress;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn a_late_clock_makes_no_new_backup_old() {
        let directory = tempfile::tempdir().unwrap();
        let store = BackupStore::open(directory.path().to_str().unwrap(), &[]).unwrap();
        let pacer = Pacer::new(Rate::unlimited());
        let progress = BackupProgress::default();
        let context = BackupContext { store: &store, pacer: &pacer, progress: &progress };
        let ids: [BackupId; 3] = [
            "20200101T000000000Z-00000000",
            "20200102T000000000Z-00000000",
            "20200103T000000000Z-00000000",
        ]
        .map(|id| id.parse().unwrap());
        let among = BTreeSet::from(ids.clone());
        let policy = RetentionPolicy { newest: Some(1), age_max: Some(HOUR) };
        let work = async {
            for id in &ids {
                store.put_list(&BackupList::empty(id)).await?;
            }
            let within = prune_among(&context, "c", &policy, &among, HOUR).await?;
            let after = prune_among(&context, "c", &policy, &among, Duration::ZERO).await?;
            Ok::<_, Error>([within.removed, after.removed])
        };
        let [within, after] = block_on(work).unwrap();
        assert_eq!(within, []);
        assert_eq!(after, ids[..2]);
    }
}
