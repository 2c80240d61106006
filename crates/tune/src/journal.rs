//! Journal of all measurements in a file, which makes a search resumable.
//!
//! The search is a function of its measurements alone. So a resumed search runs again from its
//! start, and reads the measurements from before the interruption from the journal. After them it
//! measures. It takes the same decisions, spends the same budget and ends like the uninterrupted
//! search.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base::{Error, Result};
use serde::{Deserialize, Serialize};

use super::space::TunePoint;

/// Version of the file's format. Other versions are not read.
const FORMAT: u32 = 2;
/// Maximum size of a journal's file.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// Parameters of a measurement. They also identify the result, because a search measures nothing
/// twice.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct SliceKey {
    /// Part of the search.
    pub(super) stage: String,
    /// Number of earlier passes over all points of this part.
    pub(super) pass: usize,
    pub(super) point: TunePoint,
    /// Clients that each wait for their answer.
    pub(super) clients: usize,
    /// Length in milliseconds, after warming up.
    pub(super) millis: u64,
}

/// Result of a measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Slice {
    /// Answers a second.
    pub(super) qps: f64,
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    /// Answers in the percentiles.
    pub(super) n: u64,
    /// Requests without an answer.
    pub(super) failed: u64,
    /// Total time including starts of servers. It is charged to the budget.
    pub(super) seconds: f64,
    /// Reason for which the server does not serve the point.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) refused: Option<String>,
    /// Reason of the first failed request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) failure: Option<String>,
}

impl Slice {
    /// Rounds to a thousandth of each unit. Such figures survive the file unchanged, unlike all
    /// digits of a double.
    fn rounded(self) -> Slice {
        let round = |value: f64| (value * 1e3).round() / 1e3;
        Slice {
            qps: round(self.qps),
            p50_ms: round(self.p50_ms),
            p99_ms: round(self.p99_ms),
            seconds: round(self.seconds),
            ..self
        }
    }
}

/// Source of measurements.
pub(super) trait Measurer {
    /// Measures one slice. A point that cannot be served is a result ([`Slice::refused`]), not an
    /// error.
    fn measure(&mut self, key: &SliceKey) -> Result<Slice>;
}

/// The first line: identity of the search.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct JournalHeader {
    millpond_tune: u32,
    /// Facts that must be equal for figures to be comparable.
    search: serde_json::Value,
}

#[derive(Serialize, Deserialize)]
struct JournalLine {
    /// The files of [`FORMAT`] have the name `ask`.
    #[serde(rename = "ask")]
    key: SliceKey,
    slice: Slice,
}

/// A measurer that remembers its results.
pub(super) struct MeasurementJournal<'m> {
    measurer: &'m mut dyn Measurer,
    /// Measurements of an earlier run that were not requested yet.
    known: HashMap<SliceKey, Slice>,
    file: Option<(PathBuf, File)>,
    spent: f64,
}

impl<'m> MeasurementJournal<'m> {
    /// Creates a journal in memory only.
    #[cfg(test)]
    pub(super) fn in_memory(measurer: &'m mut dyn Measurer) -> MeasurementJournal<'m> {
        MeasurementJournal::with(measurer, HashMap::new(), None)
    }

    fn with(
        measurer: &'m mut dyn Measurer,
        known: HashMap<SliceKey, Slice>,
        file: Option<(PathBuf, File)>,
    ) -> MeasurementJournal<'m> {
        MeasurementJournal { measurer, known, file, spent: 0.0 }
    }

    /// Opens the journal at `path` of the search that `search` identifies. An existing journal of
    /// the same search is continued, unless `fresh` is true. An unusable file is kept under a name
    /// with `.old`. `tell` gets a message in both cases.
    ///
    /// # Errors
    /// If the file cannot be read or written.
    pub(super) fn open(
        measurer: &'m mut dyn Measurer,
        path: &Path,
        search: serde_json::Value,
        fresh: bool,
        tell: &dyn Fn(&str),
    ) -> Result<MeasurementJournal<'m>> {
        let header = JournalHeader { millpond_tune: FORMAT, search };
        let known = if fresh { None } else { read(path, &header, tell)? };
        let header =
            serde_json::to_string(&header).map_err(|e| Error::internal("state").caused_by(e))?;
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).map_err(|e| Error::io(parent, &e))?;
        }
        // A continued journal is written anew as well, which drops a line that the interruption cut
        // short.
        let mut text = header + "\n";
        for (key, slice) in known.iter().flatten() {
            text += &line(key, slice)?;
        }
        let part = path.with_extension("part");
        std::fs::write(&part, text).map_err(|e| Error::io(&part, &e))?;
        std::fs::rename(&part, path).map_err(|e| Error::io(path, &e))?;
        let file =
            std::fs::OpenOptions::new().append(true).open(path).map_err(|e| Error::io(path, &e))?;
        let known = known.unwrap_or_default();
        if !known.is_empty() {
            tell(&format!("resuming: {} measurements from {}", known.len(), path.display()));
        }
        Ok(MeasurementJournal::with(measurer, known, Some((path.to_owned(), file))))
    }

    /// Returns the seconds of all measurements requested so far, by this run or an earlier one.
    pub(super) fn spent(&self) -> f64 {
        self.spent
    }

    /// Returns the result of the measurement `key`, from the journal or measured now.
    ///
    /// # Errors
    /// Returns the errors of the measurer, and an error if the file cannot be written.
    pub(super) fn slice(&mut self, key: SliceKey) -> Result<Slice> {
        let slice = match self.known.remove(&key) {
            Some(slice) => slice,
            None => {
                let slice = self.measurer.measure(&key)?.rounded();
                if let Some((path, file)) = &mut self.file {
                    file.write_all(line(&key, &slice)?.as_bytes())
                        .map_err(|e| Error::io(&*path, &e))?;
                }
                slice
            }
        };
        self.spent += slice.seconds;
        Ok(slice)
    }

    /// Removes the file, because the search has ended.
    pub(super) fn finish(self) {
        if let Some((path, _)) = self.file {
            // A file that remains only causes a message at the next start.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Returns the length of a slice in milliseconds.
pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn line(key: &SliceKey, slice: &Slice) -> Result<String> {
    let line = JournalLine { key: key.clone(), slice: slice.clone() };
    Ok(serde_json::to_string(&line).map_err(|e| Error::internal("state").caused_by(e))? + "\n")
}

/// Reads this search's measurements from the file at `path`, or `None` if there are none to
/// continue.
fn read(
    path: &Path,
    header: &JournalHeader,
    tell: &dyn Fn(&str),
) -> Result<Option<HashMap<SliceKey, Slice>>> {
    match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io(path, &error)),
        Ok(meta) if meta.len() > FILE_BYTES_MAX => return aside(path, "it is too large", tell),
        Ok(_) => {}
    }
    let bytes = std::fs::read(path).map_err(|e| Error::io(path, &e))?;
    match parse(&bytes, header) {
        Ok(known) => Ok(Some(known)),
        Err(why) => aside(path, &why, tell),
    }
}

/// Parses a journal. Returns its measurements, or the reason why this search cannot use them.
fn parse(bytes: &[u8], header: &JournalHeader) -> Result<HashMap<SliceKey, Slice>, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "it is not text".to_owned())?;
    // The end of the process may cut the last line short. That measurement is made again.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let mut lines = whole.lines();
    let first: JournalHeader = lines
        .next()
        .and_then(|first| serde_json::from_str(first).ok())
        .filter(|first: &JournalHeader| first.millpond_tune == FORMAT)
        .ok_or_else(|| {
            "it does not begin as a state of this version's `millpond tune` does".to_owned()
        })?;
    if first.search != header.search {
        return Err(
            "it belongs to another search (model, version, machine, target, time or requests)"
                .into(),
        );
    }
    lines
        .enumerate()
        .map(|(index, line)| {
            let JournalLine { key, slice } = serde_json::from_str(line)
                .map_err(|error| format!("line {}: {error}", index + 2))?;
            Ok((key, slice))
        })
        .collect()
}

/// Keeps an unusable file under another name.
fn aside(path: &Path, why: &str, tell: &dyn Fn(&str)) -> Result<Option<HashMap<SliceKey, Slice>>> {
    let mut old = path.as_os_str().to_owned();
    old.push(".old");
    std::fs::rename(path, &old).map_err(|e| Error::io(path, &e))?;
    tell(&format!(
        "the state in {} cannot be used: {why}; it is kept as {} and the search starts again",
        path.display(),
        Path::new(&old).display()
    ));
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use serde_json::json;

    use super::*;

    #[derive(Default)]
    struct Counter {
        measured: usize,
    }

    impl Measurer for Counter {
        fn measure(&mut self, key: &SliceKey) -> Result<Slice> {
            self.measured += 1;
            Ok(Slice { qps: key.clients as f64 / 3.0, seconds: 0.5, n: 7, ..Slice::default() })
        }
    }

    fn slice_key(clients: usize) -> SliceKey {
        SliceKey { stage: "s".into(), pass: 0, point: TunePoint::sync(1, 1), clients, millis: 5 }
    }

    /// Opens the journal at `path` and requests the measurements of `clients`. Returns the
    /// messages, measurements and seconds.
    fn session(path: &Path, search: &str, clients: &[usize]) -> (Vec<String>, usize, f64) {
        let messages = RefCell::new(Vec::new());
        let tell = |text: &str| messages.borrow_mut().push(text.to_owned());
        let mut counter = Counter::default();
        let mut journal =
            MeasurementJournal::open(&mut counter, path, json!(search), false, &tell).unwrap();
        clients.iter().for_each(|&clients| {
            assert_eq!(
                journal.slice(slice_key(clients)).unwrap().qps,
                (clients as f64 * 1e3 / 3.0).round() / 1e3
            );
        });
        let spent = journal.spent();
        drop(journal);
        (messages.into_inner(), counter.measured, spent)
    }

    #[test]
    fn a_resumed_journal_repeats_no_measurement() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/state");
        assert_eq!(session(&path, "a", &[1, 2]), (vec![], 2, 1.0));
        let (messages, measured, spent) = session(&path, "a", &[1, 2]);
        assert!(messages[0].starts_with("resuming: 2 measurements"), "{messages:?}");
        assert_eq!((measured, spent), (0, 1.0), "what is known is not measured");
        // The last line was cut short: that one is measured again.
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, &text[..text.len() - 9]).unwrap();
        assert_eq!(session(&path, "a", &[1, 2]).1, 1);
        assert_eq!(session(&path, "a", &[1, 2, 3]).1, 1);
    }

    #[test]
    fn a_state_that_cannot_be_used_is_kept_aside() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        for (content, why) in [
            (b"\xff\xfe\n".to_vec(), "not text"),
            (b"{}\n".to_vec(), "does not begin"),
            (b"{\"millpond_tune\":2,\"search\":\"b\"}\n".to_vec(), "another search"),
            (b"{\"millpond_tune\":2,\"search\":\"a\"}\n{\"ask\":1}\n".to_vec(), "line 2"),
        ] {
            std::fs::write(&path, &content).unwrap();
            let (messages, measured, _) = session(&path, "a", &[1]);
            assert!(messages[0].contains(why), "{messages:?}");
            assert_eq!(measured, 1);
            assert_eq!(std::fs::read(dir.path().join("state.old")).unwrap(), content);
        }
    }

    #[test]
    fn a_finished_search_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        let mut counter = Counter::default();
        let mut journal =
            MeasurementJournal::open(&mut counter, &path, json!(1), true, &|_| {}).unwrap();
        journal.slice(slice_key(1)).unwrap();
        journal.finish();
        assert!(!path.exists());
    }
}
