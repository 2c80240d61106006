//! The policy by which backups are kept.

use std::collections::BTreeMap;
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

    /// Returns the backups to remove. `lists` has the time at which the list of each backup was
    /// written, by the store's clock. The newest one always stays.
    pub(crate) fn expired(
        &self,
        lists: &BTreeMap<BackupId, DateTime<Utc>>,
        now: DateTime<Utc>,
    ) -> Vec<BackupId> {
        let kept = self.newest.unwrap_or(0).max(1);
        let candidates = lists.iter().take(lists.len().saturating_sub(kept));
        let is_old = |list: &(&BackupId, &DateTime<Utc>)| {
            // A backup begins before its list is written, unless the clock of its server was wrong.
            let created = list.0.created().min(*list.1);
            let age = (now - created).to_std().unwrap_or_default();
            self.age_max.is_none_or(|age_max| age > age_max)
        };
        candidates.filter(is_old).map(|list| list.0.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(day: u32) -> BackupId {
        format!("202601{day:02}T000000000Z-00000000").parse().unwrap()
    }

    #[test]
    fn a_backup_stays_if_one_rule_keeps_it() {
        let all = [1, 2, 3, 10].map(|day| (id(day), id(day).created())).into();
        let now = id(11).created();
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
    fn a_wrong_clock_makes_no_backup_younger_than_its_list() {
        let written = id(1).created();
        let of_wrong_clock: [BackupId; 2] =
            ["20990101T000000000Z-00000000", "20990101T000000001Z-00000000"]
                .map(|id| id.parse().unwrap());
        let lists = of_wrong_clock.clone().map(|id| (id, written)).into();
        let policy = RetentionPolicy { newest: None, age_max: Some(Duration::from_secs(86_400)) };
        assert_eq!(policy.expired(&lists, written), []);
        assert_eq!(policy.expired(&lists, id(3).created()), of_wrong_clock[..1]);
    }

    #[test]
    fn a_policy_keeps_something() {
        assert!(RetentionPolicy::default().check().is_err());
        assert!(RetentionPolicy { newest: Some(0), age_max: None }.check().is_err());
        assert!(RetentionPolicy { newest: Some(1), age_max: None }.check().is_ok());
    }
}
