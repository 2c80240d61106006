//! Comparison of stored objects with the checksums in the lists.

use std::collections::BTreeMap;

use base::{ErrorKind, Result};
use serde::Serialize;

use crate::list::{BackupFile, BackupId, BackupProblem};
use crate::transfer::BackupContext;

/// Maximum problems in a report. Further ones are only counted.
const PROBLEMS_MAX: usize = 1000;

/// Outcome of a verification.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct VerifyReport {
    /// Number of backups whose lists were read.
    pub backups: usize,
    /// Number of objects that were compared.
    pub objects: usize,
    /// Bytes of the compared objects.
    pub bytes: u64,
    /// Damage, up to a maximum of 1000.
    pub problems: Vec<BackupProblem>,
    /// Number of all problems, which may exceed the listed ones.
    pub problem_count: usize,
}

impl VerifyReport {
    fn add(&mut self, backups: Vec<BackupId>, problem: String) {
        self.problem_count += 1;
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(BackupProblem { backups, problem });
        }
    }
}

/// Reads every object of one backup of a collection, or of all of them, and compares it with its
/// checksum.
///
/// # Errors
/// `NotFound` if there is no such backup; the store's error. Damage is no error.
pub async fn verify(
    context: &BackupContext<'_>,
    collection: &str,
    backup: Option<&BackupId>,
) -> Result<VerifyReport> {
    let ids = match backup {
        Some(id) => vec![id.clone()],
        None => context.store.ids(collection).await?,
    };
    let mut report = VerifyReport::default();
    // An object may have different checksums in different lists, and then one of them is wrong.
    let mut files: BTreeMap<(String, String), (BackupFile, Vec<BackupId>)> = BTreeMap::new();
    for id in &ids {
        match context.store.list(collection, id).await {
            Ok(list) => {
                report.backups += 1;
                for file in list.files {
                    let key = (file.object.clone(), file.blake3.clone());
                    files.entry(key).or_insert((file, Vec::new())).1.push(id.clone());
                }
            }
            Err(error) if error.kind() == ErrorKind::DataLoss => {
                report.add(vec![id.clone()], error.message().to_owned());
            }
            Err(error) => return Err(error),
        }
    }
    context.progress.set_total(files.values().map(|(file, _)| file.bytes).sum());
    for (file, backups) in files.into_values() {
        report.objects += 1;
        report.bytes += file.bytes;
        match context.download(collection, &file, |_| Ok(())).await {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::DataLoss => {
                report.add(backups, error.message().to_owned());
            }
            Err(error) => return Err(error),
        }
    }
    Ok(report)
}
