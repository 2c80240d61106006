//! Keys of a fleet in etcd and the entries below them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base::{UtcTime, VersionId};
use etcd::EtcdEntry;
use serde::{Deserialize, Serialize};

/// Maximum number of characters of an error that a hold keeps.
const ERROR_CHARACTERS_MAX: usize = 1000;

#[derive(Clone, Debug)]
pub(super) struct FleetKeys {
    prefix: String,
}

impl FleetKeys {
    pub(super) fn new(fleet: &str) -> FleetKeys {
        FleetKeys { prefix: format!("millpond-updates/{fleet}/") }
    }

    /// Returns the start of all keys.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns the key of a slot, which one process has at a time.
    pub(super) fn slot(&self, model: &str, slot: u32) -> String {
        format!("{}slots/{model}/{slot}", self.prefix)
    }

    /// Returns the key of a load that began with a slot.
    pub(super) fn trial(&self, id: &VersionId, slot: u32) -> String {
        format!("{}{slot}", self.trials(id))
    }

    /// Returns the start of the keys of all loads of a version.
    pub(super) fn trials(&self, id: &VersionId) -> String {
        format!("{}trials/{}/{}/", self.prefix, id.model, id.version)
    }

    /// Returns the key that holds a version back.
    pub(super) fn hold(&self, id: &VersionId) -> String {
        format!("{}holds/{}/{}", self.prefix, id.model, id.version)
    }
}

/// Value of a slot and of a trial: the process that loads, and the version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SlotHolder {
    pub(super) process: String,
    pub(super) version: u64,
}

/// Value of a hold: the process in which the version failed, and the error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct VersionHold {
    pub(super) process: String,
    pub(super) error: String,
    /// Time of the failure in seconds since 1970.
    pub(super) at: u64,
}

impl VersionHold {
    pub(super) fn new(process: &str, error: &str) -> VersionHold {
        let at = base::unix_time(SystemTime::now()).as_secs();
        let error = error.chars().take(ERROR_CHARACTERS_MAX).collect();
        VersionHold { process: process.to_owned(), error, at }
    }
}

impl std::fmt::Display for VersionHold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "it failed in {}", self.process)?;
        // The number comes from etcd, and may be too large for a time.
        if let Some(at) = UNIX_EPOCH.checked_add(Duration::from_secs(self.at)) {
            write!(f, " at {}", UtcTime::of(at))?;
        }
        write!(f, ": {}", self.error)
    }
}

/// Returns the bytes of a value.
pub(super) fn encoded(value: &impl Serialize) -> Vec<u8> {
    // Structs with string keys can always be written.
    serde_json::to_vec(value).unwrap_or_default()
}

/// Slots, trials and holds of a fleet as stored in etcd.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct FleetSnapshot {
    /// Taken slots by model and number.
    pub(super) slots: BTreeMap<String, BTreeMap<u32, SlotHolder>>,
    /// Processes that have begun to load a version in their turn.
    pub(super) trials: BTreeMap<VersionId, BTreeSet<String>>,
    pub(super) holds: BTreeMap<VersionId, VersionHold>,
}

impl FleetSnapshot {
    /// Reads the entries. Keys of another form are left out. A value of another form still takes
    /// its slot and holds its version back, since another build may have written it.
    pub(super) fn new(keys: &FleetKeys, entries: &[EtcdEntry]) -> FleetSnapshot {
        let mut snapshot = FleetSnapshot::default();
        for entry in entries {
            if snapshot.add(keys, entry).is_none() {
                tracing::debug!(key = entry.key, "a key of the fleet is not understood");
            }
        }
        snapshot
    }

    /// Returns a process other than `own` that ended while it loaded the version. It has begun, and
    /// has no slot for the version any more.
    pub(super) fn ended_trial(&self, id: &VersionId, own: &str) -> Option<&str> {
        let slots = self.slots.get(&*id.model);
        let has_slot = |process: &str| {
            let mut holders = slots.into_iter().flat_map(BTreeMap::values);
            holders.any(|holder| holder.process == process && holder.version == id.version)
        };
        let mut processes = self.trials.get(id)?.iter().map(String::as_str);
        processes.find(|process| *process != own && !has_slot(process))
    }

    /// Adds an entry below the prefix of the fleet. Returns `None` for a key of another form.
    fn add(&mut self, keys: &FleetKeys, entry: &EtcdEntry) -> Option<()> {
        let (kind, rest) = entry.key.strip_prefix(&keys.prefix)?.split_once('/')?;
        let (model, number) = rest.rsplit_once('/')?;
        match kind {
            "slots" => {
                let holder = serde_json::from_slice(&entry.value)
                    .unwrap_or(SlotHolder { process: "another process".to_owned(), version: 0 });
                let slots = self.slots.entry(model.to_owned()).or_default();
                slots.insert(number.parse().ok()?, holder);
            }
            "trials" => {
                // The last part is the number of the slot.
                let (model, version) = model.rsplit_once('/')?;
                let id = VersionId { model: model.into(), version: version.parse().ok()? };
                let holder: SlotHolder = serde_json::from_slice(&entry.value).ok()?;
                self.trials.entry(id).or_default().insert(holder.process);
            }
            "holds" => {
                let id = VersionId { model: model.into(), version: number.parse().ok()? };
                let hold = serde_json::from_slice(&entry.value).unwrap_or(VersionHold {
                    process: "another process".to_owned(),
                    error: "its error cannot be read".to_owned(),
                    at: 0,
                });
                self.holds.insert(id, hold);
            }
            _ => return None,
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use etcd::LeaseId;

    use super::*;

    fn entry(key: String, value: &[u8]) -> EtcdEntry {
        let value = Bytes::copy_from_slice(value);
        EtcdEntry { key, value, create_revision: 1, lease: LeaseId(1) }
    }

    #[test]
    fn entries_are_read_as_they_were_written() {
        let keys = FleetKeys::new("f");
        let id = VersionId { model: "a model%".into(), version: 7 };
        let holder = SlotHolder { process: "a".to_owned(), version: 7 };
        let hold =
            VersionHold { process: "b".to_owned(), error: "bad".to_owned(), at: 1_795_642_245 };
        let snapshot = FleetSnapshot::new(
            &keys,
            &[
                entry(keys.slot(&id.model, 1), &encoded(&holder)),
                entry(keys.trial(&id, 1), &encoded(&holder)),
                entry(keys.hold(&id), &encoded(&hold)),
            ],
        );
        assert_eq!(snapshot.slots["a model%"], BTreeMap::from([(1, holder)]));
        assert_eq!(snapshot.trials[&id], BTreeSet::from(["a".to_owned()]));
        assert_eq!(snapshot.holds, BTreeMap::from([(id, hold.clone())]));
        assert_eq!(hold.to_string(), "it failed in b at 2026-11-25 21:30:45 UTC: bad");
        assert_eq!(VersionHold::new("b", &"x".repeat(2000)).error.len(), ERROR_CHARACTERS_MAX);
    }

    #[test]
    fn a_hold_of_an_impossible_time_has_its_reason() {
        let value = format!(r#"{{"process":"b","error":"bad","at":{}}}"#, u64::MAX);
        let hold: VersionHold = serde_json::from_str(&value).unwrap();
        assert_eq!(hold.to_string(), "it failed in b: bad");
    }

    #[test]
    fn unknown_values_count_and_unknown_keys_do_not() {
        let keys = FleetKeys::new("f");
        let id = VersionId { model: "m".into(), version: 7 };
        let snapshot = FleetSnapshot::new(
            &keys,
            &[
                entry(keys.slot("m", 0), b"later"),
                entry(keys.hold(&id), b"{}"),
                entry(format!("{}slots/m/x", keys.prefix()), b""),
                entry(format!("{}holds/7", keys.prefix()), b""),
                entry(format!("{}trials/m/7", keys.prefix()), b"{}"),
                entry(keys.trial(&id, 0), b"later"),
                entry(format!("{}others/m/1", keys.prefix()), b""),
                entry("millpond-updates/g/slots/m/1".to_owned(), b""),
            ],
        );
        assert_eq!(snapshot.slots["m"].keys().collect::<Vec<_>>(), [&0]);
        assert_eq!(snapshot.holds.keys().collect::<Vec<_>>(), [&id]);
        assert!(snapshot.trials.is_empty());
    }
}
