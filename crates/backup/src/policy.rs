//! The policy by which backups are kept.

use std::time::Duration;

use base::{Error, Result};
use chrono::{DateTime, Utc};

use crate::list::BackupId;

/// Backups that are kept. A backup stays if one of the rules keeps it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetentionPolicy {
    /// Number of newest backups.
    pub newest: Option<usize>,
    /// Age up to which backups are kept.
    pub age_max: Option<Duration>,
}

impl RetentionPolicy {
    /// Checks that there is a rule, and that it keeps a backup.
    ///
    /// # Errors
    /// `InvalidArgument`.
    pub fn check(&self) -> Result<()> {
        match self {
            RetentionPolicy { newest: None, age_max: None } => Err(Error::invalid(
                "name the backups to keep: a number of newest ones, an age in days, or both",
            )),
            RetentionPolicy { newest: Some(0), .. } => Err(Error::invalid(
                "at least one backup is kept; delete backups one by one to remove all",
            )),
            _ => Ok(()),
        }
    }

    /// Returns the backups to remove. `ids` are sorted, oldest first. The newest one always stays.
    pub(crate) fn expired(&self, ids: &[BackupId], now: DateTime<Utc>) -> Vec<BackupId> {
        let kept = self.newest.unwrap_or(0).max(1);
        let candidates = &ids[..ids.len().saturating_sub(kept)];
        let is_old = |id: &&BackupId| self.age_max.is_none_or(|age_max| id.age(now) > age_max);
        candidates.iter().filter(is_old).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(days: &[u32]) -> Vec<BackupId> {
        days.iter()
            .map(|day| format!("202601{day:02}T000000000Z-00000000").parse().unwrap())
            .collect()
    }

    #[test]
    fn a_backup_stays_if_one_rule_keeps_it() {
        let all = ids(&[1, 2, 3, 10]);
        let now = ids(&[11])[0].created();
        let removed = |newest: Option<usize>, days: Option<u64>| {
            let age_max = days.map(|days| Duration::from_secs(days * 86_400));
            RetentionPolicy { newest, age_max }.expired(&all, now).len()
        };
        assert_eq!(removed(Some(2), None), 2);
        assert_eq!(removed(Some(9), None), 0);
        assert_eq!(removed(None, Some(8)), 2);
        assert_eq!(removed(Some(3), Some(1)), 1);
        assert_eq!(removed(None, Some(0)), 3, "the newest stays");
    }

    #[test]
    fn a_policy_keeps_something() {
        assert!(RetentionPolicy::default().check().is_err());
        assert!(RetentionPolicy { newest: Some(0), age_max: None }.check().is_err());
        assert!(RetentionPolicy { newest: Some(1), age_max: None }.check().is_ok());
    }
}
