//! The settings file while serving: models, roots and schedules follow it.

use std::path::{Path, PathBuf};

use base::{Error, Result};
use lifecycle::ConfigSet;
use os::WatchedFiles;
use server::ConfigSource;
use toml::{Table, Value};

use super::ServeArgs;
use super::config::config_set;
use super::file::FILE_BYTES_MAX;
use super::settings::ServeSettings;

/// Tables and keys that take effect while serving.
const MODELS: [&str; 4] = ["models", "roots", "schedule", "rollout"];

/// A settings file that is read again when it changes.
pub(super) struct SettingsWatch {
    args: ServeArgs,
    path: PathBuf,
    file: WatchedFiles,
    /// Content at the start, for settings that cannot change.
    started: Table,
    /// Settings whose change was warned of.
    warned: Vec<String>,
}

impl SettingsWatch {
    /// Creates a watch, which keeps the present content of the file.
    pub(super) fn new(args: ServeArgs, path: PathBuf) -> SettingsWatch {
        let file = WatchedFiles::new(vec![path.clone()]);
        let started = table(&path);
        SettingsWatch { args, path, file, started, warned: Vec::new() }
    }

    /// Warns once of settings that need a restart.
    fn warn(&mut self) {
        let changed = changed(&self.started, &table(&self.path));
        if !changed.is_empty() && changed != self.warned {
            tracing::warn!(
                file = %self.path.display(),
                "changed settings need a restart and have no effect until then: {}",
                changed.join(", ")
            );
        }
        self.warned = changed;
    }
}

impl ConfigSource for SettingsWatch {
    fn poll(&mut self, current: &ConfigSet, forced: bool) -> Result<Option<ConfigSet>> {
        let args = &self.args;
        let read = || ServeSettings::resolve(args).map_err(|error| Error::invalid(error.message()));
        let Some(settings) = self.file.read_changed(forced, read) else { return Ok(None) };
        let settings = settings?;
        self.warn();
        let set = config_set(&settings);
        Ok((set != *current).then_some(set))
    }

    fn not_applied(&mut self) {
        self.file.forget();
    }
}

/// Reads the file as a table. A file with a mistake counts as empty, because the reader of the
/// settings reports the mistake. A named pipe and a device count as empty too.
fn table(path: &Path) -> Table {
    let bytes = os::read_regular_file(path, FILE_BYTES_MAX).unwrap_or_default();
    let text = std::str::from_utf8(&bytes).unwrap_or_default();
    text.parse().unwrap_or_default()
}

/// Returns true for a key of another table than [`MODELS`] that takes effect while serving.
/// `runtime-threads` is another form of `[schedule]`.
fn takes_effect(section: &str, key: &str) -> bool {
    match section {
        "lifecycle" => ["versions", "transition"].contains(&key),
        "inference" => key == "runtime-threads",
        _ => false,
    }
}

/// Returns the settings that differ and need a restart, as "[server] http-port".
fn changed(before: &Table, after: &Table) -> Vec<String> {
    let empty = Value::Table(Table::new());
    let names = before.keys().chain(after.keys().filter(|name| !before.contains_key(*name)));
    let sections = names.filter(|name| !MODELS.contains(&name.as_str()));
    let keys = |section: &String| {
        let of = |table: &Table| table.get(section).unwrap_or(&empty).as_table().cloned();
        let before = of(before).unwrap_or_default();
        let after = of(after).unwrap_or_default();
        let added = after.keys().filter(|key| !before.contains_key(*key));
        let all = before.keys().chain(added);
        all.filter(|key| before.get(*key) != after.get(*key))
            .filter(|key| !takes_effect(section, key))
            .map(|key| format!("[{section}] {key}"))
            .collect::<Vec<_>>()
    };
    sections.flat_map(keys).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_no_settings_file_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("millpond.toml");
        std::fs::write(&path, "roots = ['a']\n").unwrap();
        assert_eq!(table(&path).len(), 1);
        let end = "#".repeat(FILE_BYTES_MAX as usize);
        std::fs::write(&path, format!("roots = ['a']\n{end}")).unwrap();
        assert!(table(&path).is_empty(), "larger than a settings file");
    }

    #[test]
    fn settings_that_need_a_restart_are_named() {
        let table = |text: &str| text.parse::<Table>().unwrap();
        let before = table(
            "roots = ['a']\n[server]\nhttp-port = 1\nhost = 'x'\n[lifecycle]\nversions = 'all'\npoll = '1s'\n\
             [memory]\npool = '1GiB'",
        );
        assert!(changed(&before, &before).is_empty());
        let after = table(
            "roots = ['b']\n[server]\nhttp-port = 2\nhost = 'x'\n[lifecycle]\nversions = '1'\npoll = '2s'\n\
             [inference]\nqueue = 3\nruntime-threads = 1\n[models.m]\npath = 'm'\n[rollout]\nauto = true",
        );
        let wanted =
            ["[lifecycle] poll", "[memory] pool", "[server] http-port", "[inference] queue"];
        assert_eq!(changed(&before, &after), wanted);
    }
}
