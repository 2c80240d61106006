//! Comparison of stored objects with the checksums in the lists.

use std::collections::BTreeMap;

use base::{Error, ErrorKind, Result};
use serde::Serialize;

use crate::list::{BackupFile, BackupId, BackupList, BackupProblem};
use crate::transfer::BackupContext;

/// Maximum problems in a report. Further ones are only counted.
const PROBLEMS_MAX: usize = 1000;

/// Outcome of a verification.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct VerifyReport {
    /// Number of backups whose lists were read. Backups that were found to be removed later do not
    /// count.
    pub backups: usize,
    /// Number of objects that were compared.
    pub objects: usize,
    /// Bytes of the compared objects.
    pub bytes: u64,
    /// Damage, up to a maximum of 1000.
    pub problems: Vec<BackupProblem>,
    /// Number of all problems, which may exceed the listed ones.
    pub problem_count: usize,
    /// Backups whose lists are of a newer program or may not be read. They were not compared.
    pub unreadable: Vec<BackupProblem>,
}

impl VerifyReport {
    fn add(&mut self, backups: Vec<BackupId>, problem: String) {
        self.problem_count += 1;
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(BackupProblem { backups, problem });
        }
    }
}

/// Objects that the lists of some backups name, and damage of these lists.
#[derive(Default)]
struct ListedObjects {
    report: VerifyReport,
    /// Backups whose lists were read.
    read: Vec<BackupId>,
    /// Objects by name and checksum. An object may have different checksums in different lists, and
    /// then one of them is wrong.
    files: BTreeMap<(String, String), ListedObject>,
}

/// An object, and the backups whose lists name it.
struct ListedObject {
    file: BackupFile,
    backups: Vec<BackupId>,
}

impl ListedObjects {
    /// Adds the list of a backup, its damage, or the reason why it cannot be read.
    ///
    /// # Errors
    /// The error of the list, if it is neither damage nor `FailedPrecondition`.
    fn add(&mut self, id: &BackupId, list: Result<BackupList>) -> Result<()> {
        match list {
            Ok(list) => {
                self.read.push(id.clone());
                for file in list.files {
                    let key = (file.object.clone(), file.blake3.clone());
                    let listed = self.files.entry(key);
                    let listed = listed.or_insert(ListedObject { file, backups: Vec::new() });
                    listed.backups.push(id.clone());
                }
            }
            Err(error) if error.kind() == ErrorKind::DataLoss => {
                self.report.add(vec![id.clone()], error.message().to_owned());
            }
            Err(error) if error.kind() == ErrorKind::FailedPrecondition => {
                let problem = error.message().to_owned();
                self.report.unreadable.push(BackupProblem { backups: vec![id.clone()], problem });
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Reads the objects and compares them. An absent object is no damage if all its backups were
    /// removed in the meantime. Another server with the same store may have removed them. `backup`
    /// is the only backup to verify, if one was requested.
    ///
    /// # Errors
    /// `NotFound` if `backup` was removed in the meantime; the store's error. Damage is no error.
    async fn compare(
        self,
        context: &BackupContext<'_>,
        collection: &str,
        backup: Option<&BackupId>,
    ) -> Result<VerifyReport> {
        let ListedObjects { mut report, mut read, files } = self;
        context.progress.set_total(files.values().map(|listed| listed.file.bytes).sum());
        let mut damage = Vec::new();
        for ListedObject { file, backups } in files.into_values() {
            report.objects += 1;
            report.bytes += file.bytes;
            match context.download(collection, &file, |_| Ok(())).await {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::DataLoss => {
                    damage.push((backups, error.message().to_owned()));
                }
                Err(error) => return Err(error),
            }
        }
        if !damage.is_empty() {
            let stored = context.store.ids(collection).await?;
            if let Some(id) = backup.filter(|id| !stored.contains(id)) {
                return Err(Error::not_found(format!(
                    "{}: backup {id} of {collection:?} was removed while it was verified",
                    context.store.shown()
                )));
            }
            read.retain(|id| stored.contains(id));
            for (mut backups, problem) in damage {
                backups.retain(|id| stored.contains(id));
                if !backups.is_empty() {
                    report.add(backups, problem);
                }
            }
        }
        report.backups = read.len();
        Ok(report)
    }
}

/// Reads every object of one backup of a collection, or of all of them, and compares it with its
/// checksum. Leaves out backups that are removed in the meantime, and names the ones of a newer
/// program without comparing them.
///
/// # Errors
/// `NotFound` if there is no such backup or none at all, or if it is removed in the meantime;
/// `FailedPrecondition` if `backup` is of a newer program; the store's error. Damage is no error.
pub async fn verify(
    context: &BackupContext<'_>,
    collection: &str,
    backup: Option<&BackupId>,
) -> Result<VerifyReport> {
    let ids = match backup {
        Some(id) => vec![id.clone()],
        None => context.store.ids(collection).await?,
    };
    // Success would hide a wrong name, and backups that are lost.
    if ids.is_empty() {
        return Err(context.store.no_backup(collection));
    }
    let mut listed = ListedObjects::default();
    for id in &ids {
        match context.store.list(collection, id).await {
            // It was removed after it was listed.
            Err(error) if error.kind() == ErrorKind::NotFound && backup.is_none() => {}
            Err(error) if error.kind() == ErrorKind::FailedPrecondition && backup.is_some() => {
                return Err(error);
            }
            list => listed.add(id, list)?,
        }
    }
    listed.compare(context, collection, backup).await
}

#[cfg(test)]
mod tests {
    use model_store::block_on;
    use os::{Pacer, Rate};

    use super::*;
    use crate::store::BackupStore;
    use crate::transfer::BackupProgress;

    #[test]
    fn backups_that_are_removed_meanwhile_have_no_damage() {
        let directory = tempfile::tempdir().unwrap();
        let store = BackupStore::open(directory.path().to_str().unwrap(), &[]).unwrap();
        let pacer = Pacer::new(Rate::unlimited());
        let progress = BackupProgress::default();
        let context = BackupContext { store: &store, pacer: &pacer, progress: &progress };
        let ids: [BackupId; 2] = ["20200101T000000000Z-00000000", "20200102T000000000Z-00000000"]
            .map(|id| id.parse().unwrap());
        let missing = |object: &str| BackupFile {
            name: object.to_owned(),
            object: object.to_owned(),
            bytes: 1,
            blake3: "ab".to_owned(),
        };
        let lists = ids.clone().map(|id| BackupList {
            files: vec![missing("both"), missing(id.as_str())],
            ..BackupList::empty(&id)
        });
        let compare = |lists: &[BackupList], backup: Option<&BackupId>| {
            let mut listed = ListedObjects::default();
            for list in lists {
                listed.add(&list.id, Ok(list.clone())).unwrap();
            }
            block_on(listed.compare(&context, "c", backup))
        };
        let problems = || {
            let report = compare(&lists, None).unwrap();
            assert_eq!((report.objects, report.bytes), (3, 3));
            assert_eq!(report.problem_count, report.problems.len());
            let problems = report.problems.into_iter();
            (report.backups, problems.map(|problem| problem.backups).collect::<Vec<_>>())
        };
        let [first, second] = ids.clone().map(|id| vec![id]);
        lists.iter().for_each(|list| block_on(store.put_list(list)).unwrap());
        assert_eq!(problems(), (2, vec![first, second.clone(), ids.to_vec()]));
        let named = compare(&lists[..1], Some(&ids[0])).unwrap();
        assert_eq!((named.backups, named.problem_count), (1, 2));
        block_on(store.remove(&store.list_key("c", &ids[0]))).unwrap();
        assert_eq!(problems(), (1, vec![second.clone(), second]));
        let named = compare(&lists[..1], Some(&ids[0])).unwrap_err();
        assert_eq!(named.kind(), ErrorKind::NotFound);
        let named = block_on(verify(&context, "c", Some(&ids[0]))).unwrap_err();
        assert_eq!(named.kind(), ErrorKind::NotFound);
        block_on(store.remove(&store.list_key("c", &ids[1]))).unwrap();
        assert_eq!(problems(), (0, vec![]));
        let none = block_on(verify(&context, "c", None)).unwrap_err();
        assert!(none.message().ends_with("no backup of \"c\""), "{none}");
    }

    #[test]
    fn a_backup_of_a_newer_program_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let store = BackupStore::open(directory.path().to_str().unwrap(), &[]).unwrap();
        let pacer = Pacer::new(Rate::unlimited());
        let progress = BackupProgress::default();
        let context = BackupContext { store: &store, pacer: &pacer, progress: &progress };
        let ids: [BackupId; 2] = ["20200101T000000000Z-00000000", "20200102T000000000Z-00000000"]
            .map(|id| id.parse().unwrap());
        let text = String::from_utf8(BackupList::empty(&ids[0]).encode().unwrap()).unwrap();
        let newer = text.replacen("\"version\":1,", "\"version\":999,", 1).into_bytes();
        block_on(store.put(&store.list_key("c", &ids[0]), newer.into())).unwrap();
        block_on(store.put_list(&BackupList::empty(&ids[1]))).unwrap();
        let report = block_on(verify(&context, "c", None)).unwrap();
        assert_eq!((report.backups, report.problem_count), (1, 0));
        let unreadable = report.unreadable.into_iter().map(|found| found.backups);
        assert_eq!(unreadable.collect::<Vec<_>>(), [vec![ids[0].clone()]]);
        let named = block_on(verify(&context, "c", Some(&ids[0]))).unwrap_err();
        assert_eq!(named.kind(), ErrorKind::FailedPrecondition);
    }
}
