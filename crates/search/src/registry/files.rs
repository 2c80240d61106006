//! Files of the registry: small checksummed texts that are replaced as a whole.
//!
//! A file has two lines. The first is `{"millpond":KIND,"version":1,"crc32c":"8 digits"}`. The
//! second is JSON, and the checksum covers its bytes. A new version is written to a temporary file,
//! synced and renamed, so a crash leaves the old file or the new one. Later damage is detected.

use std::fs::File;
use std::io::{ErrorKind as IoKind, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base::{Error, Result};
use coarse::{DIMS_MAX, Metric};
use os::private;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::media::{FileLayout, MediumChoice};
use crate::segment::RecordKind;

/// Maximum bytes of the name of a collection or alias.
pub const NAME_BYTES_MAX: usize = 255;
/// Maximum bytes of a file of settings or aliases.
const SETTINGS_BYTES_MAX: usize = 4 << 20;
/// Version that this program writes.
const VERSION: u32 = 1;
/// Suffix of a file that is being written.
const TEMPORARY_SUFFIX: &str = ".tmp";

/// Settings of a collection, kept in its settings file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CollectionSettings {
    /// Values per embedding.
    pub dims: usize,
    /// Measure of similarity.
    pub metric: Metric,
    /// Clients' name of the embedding. Empty if it has none.
    pub vector_name: String,
    /// Content of the records.
    pub records: RecordKind,
    /// Access to its files. `None` follows the server.
    pub medium: Option<MediumChoice>,
    /// JSON that an API keeps with the collection: its kind, its model, the client's configuration.
    pub extra: Value,
}

impl CollectionSettings {
    /// Creates settings for embeddings of `dims` values.
    pub fn new(dims: usize, metric: Metric) -> CollectionSettings {
        CollectionSettings {
            dims,
            metric,
            vector_name: String::new(),
            records: RecordKind::Opaque,
            medium: None,
            extra: Value::Null,
        }
    }

    pub(super) fn check(&self) -> Result<()> {
        if !(1..=DIMS_MAX).contains(&self.dims) {
            return Err(Error::invalid(format!(
                "a collection has 1 to {DIMS_MAX} dimensions, not {}",
                self.dims
            )));
        }
        if self.vector_name.len() > NAME_BYTES_MAX {
            return Err(Error::invalid(format!(
                "a vector's name has at most {NAME_BYTES_MAX} bytes"
            )));
        }
        Ok(())
    }
}

/// Stored settings, and the directory of the points.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct StoredSettings {
    dims: usize,
    metric: Metric,
    #[serde(default)]
    vector_name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    medium: Option<MediumChoice>,
    /// True if the files have the layout of persistent memory.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    dax: bool,
    #[serde(default)]
    records: RecordKind,
    #[serde(default)]
    extra: Value,
    /// Directory of the points, unique among all collections that ever existed. Work that continues
    /// on a removed collection cannot write to a later one of the same name.
    pub(super) points: String,
}

impl StoredSettings {
    pub(super) fn new(
        settings: &CollectionSettings,
        points: &str,
        layout: FileLayout,
    ) -> StoredSettings {
        StoredSettings {
            dims: settings.dims,
            metric: settings.metric,
            vector_name: settings.vector_name.clone(),
            records: settings.records,
            medium: settings.medium,
            dax: layout == FileLayout::Dax,
            extra: settings.extra.clone(),
            points: points.into(),
        }
    }

    /// Returns the layout of the files.
    pub(super) fn layout(&self) -> FileLayout {
        if self.dax { FileLayout::Dax } else { FileLayout::Plain }
    }

    /// Returns the settings of the collection, after checks of their values.
    pub(super) fn settings(&self) -> Result<CollectionSettings> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        if !self.points.starts_with("points-") || !self.points.bytes().all(plain) {
            return Err(Error::data_loss("the settings do not say where the points are"));
        }
        let settings = CollectionSettings {
            dims: self.dims,
            metric: self.metric,
            vector_name: self.vector_name.clone(),
            records: self.records,
            medium: self.medium,
            extra: self.extra.clone(),
        };
        settings.check().map_err(|error| Error::data_loss(error.message()))?;
        Ok(settings)
    }
}

/// Returns true if `name` is that of a version of the collection of images `collection`, such as
/// "photos.v2" of "photos".
pub fn is_version_of(name: &str, collection: &str) -> bool {
    let number = name.strip_prefix(collection).and_then(|rest| rest.strip_prefix(".v"));
    number.is_some_and(|number| number.parse::<u32>().is_ok())
}

/// Checks the name of a collection or alias.
///
/// # Errors
/// `InvalidArgument`.
pub fn check_name(name: &str) -> Result<()> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if name.is_empty()
        || name.len() > NAME_BYTES_MAX
        || name.starts_with('.')
        || !name.bytes().all(allowed)
    {
        let shown: String = name.chars().take(80).collect();
        return Err(Error::invalid(format!(
            "{shown:?} cannot name a collection: a name has 1 to {NAME_BYTES_MAX} of A-Z, a-z, 0-9, '.', '_', '-', and \
             does not begin with a dot"
        )));
    }
    Ok(())
}

/// First line of a file, with the checksum of the rest.
#[derive(Serialize, Deserialize)]
struct FileHead {
    millpond: String,
    version: u32,
    crc32c: String,
}

/// Encodes a file.
pub(super) fn encode(kind: &str, content: &impl Serialize) -> Result<Vec<u8>> {
    let broken = |error| Error::internal(kind).caused_by(error);
    let body = serde_json::to_vec(content).map_err(broken)?;
    if body.len() > SETTINGS_BYTES_MAX / 2 {
        return Err(Error::too_large(format!(
            "the {kind} have {} bytes, {} at most",
            body.len(),
            SETTINGS_BYTES_MAX / 2
        )));
    }
    let crc32c = format!("{:08x}", crc32c::crc32c(&body));
    let head = FileHead { millpond: kind.into(), version: VERSION, crc32c };
    let mut text = serde_json::to_vec(&head).map_err(broken)?;
    text.push(b'\n');
    text.extend_from_slice(&body);
    text.push(b'\n');
    Ok(text)
}

/// Decodes the output of [`encode`].
///
/// # Errors
/// `DataLoss` for a damaged text, `FailedPrecondition` for one of a newer program.
pub(super) fn decode<T: DeserializeOwned>(kind: &str, text: &[u8]) -> Result<T> {
    let odd = |why: String| {
        Error::data_loss(format!("the {kind} cannot be read: {why}; restore them from a copy"))
    };
    let at =
        text.iter().position(|&byte| byte == b'\n').ok_or_else(|| odd("no second line".into()))?;
    let head = &text[..at];
    let body = &text[at + 1..];
    let head: FileHead = serde_json::from_slice(head).map_err(|error| odd(error.to_string()))?;
    if head.millpond != kind {
        return Err(odd(format!("they are {:?}", head.millpond)));
    }
    if head.version != VERSION {
        return Err(Error::precondition(format!(
            "the {kind} have version {}, this program reads {VERSION}; use the program that wrote them",
            head.version
        )));
    }
    let body = body.strip_suffix(b"\n").ok_or_else(|| odd("the end is missing".into()))?;
    if format!("{:08x}", crc32c::crc32c(body)) != head.crc32c {
        return Err(odd("they do not match their checksum".into()));
    }
    serde_json::from_slice(body).map_err(|error| odd(error.to_string()))
}

/// Reads a file. Returns `None` if it does not exist.
pub(crate) fn read<T: DeserializeOwned>(kind: &str, path: &Path) -> Result<Option<T>> {
    let fail = |error: std::io::Error| Error::io(path, &error);
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == IoKind::NotFound => return Ok(None),
        Err(error) => return Err(fail(error)),
    };
    let mut text = Vec::new();
    file.take(SETTINGS_BYTES_MAX as u64 + 1).read_to_end(&mut text).map_err(fail)?;
    if text.len() > SETTINGS_BYTES_MAX {
        return Err(Error::data_loss(format!("{}: longer than the {kind} can be", path.display())));
    }
    decode(kind, &text).map(Some).map_err(|error| error.context(path.display()))
}

/// Replaces a file, durably.
pub(crate) fn replace(kind: &str, path: &Path, content: &impl Serialize) -> Result<()> {
    let text = encode(kind, content)?;
    let mut aside = path.as_os_str().to_owned();
    aside.push(TEMPORARY_SUFFIX);
    let aside = PathBuf::from(aside);
    let fail = |error: std::io::Error| Error::io(&aside, &error);
    let mut file =
        private::options().write(true).create(true).truncate(true).open(&aside).map_err(fail)?;
    if let Err(error) = file.write_all(&text).and_then(|()| file.sync_all()) {
        // On a full disk, half a file takes room that is needed.
        let _ = std::fs::remove_file(&aside);
        return Err(fail(error));
    }
    std::fs::rename(&aside, path).map_err(|error| Error::io(path, &error))?;
    sync(path.parent().unwrap_or(Path::new(".")))
}

/// Syncs a directory, which makes its names durable.
pub(super) fn sync(directory: &Path) -> Result<()> {
    let synced = File::open(directory).and_then(|file| file.sync_all());
    synced.map_err(|error| Error::io(directory, &error))
}

/// Longest wait for the lock of a directory, which a process that was just killed may still have.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(2);

/// File whose lock keeps other processes out of a directory.
const LOCK: &str = ".lock";

/// Checks that a path still leads to the directory that `lock` was opened in.
///
/// # Errors
/// `Unavailable` if it leads to another directory, for example because a disk was unmounted.
pub(super) fn check_locked(directory: &Path, lock: &File) -> Result<()> {
    let path = directory.join(LOCK);
    let fail = |error: std::io::Error| Error::io(&path, &error);
    let held = lock.metadata().map_err(fail)?;
    let is_held = match std::fs::metadata(&path) {
        Ok(found) => (found.dev(), found.ino()) == (held.dev(), held.ino()),
        Err(error) if error.kind() == IoKind::NotFound => false,
        Err(error) => return Err(fail(error)),
    };
    if is_held {
        Ok(())
    } else {
        Err(Error::unavailable(format!(
            "{} is not the directory that was opened at the start; mount its disk, or start again",
            directory.display()
        )))
    }
}

/// Locks a directory against other processes while the returned file is open.
///
/// # Errors
/// `FailedPrecondition` if another process has the lock for [`LOCK_WAIT_MAX`]. Also I/O errors.
pub(super) fn lock(directory: &Path) -> Result<File> {
    let path = directory.join(LOCK);
    let open = private::options().write(true).create(true).truncate(false).open(&path);
    let file = open.map_err(|error| Error::io(&path, &error))?;
    if os::lock_file(&file, LOCK_WAIT_MAX).map_err(|error| Error::io(&path, &error))? {
        return Ok(file);
    }
    Err(Error::precondition(format!(
        "another process serves the collections in {}; end it, or use another directory",
        directory.display()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn names() {
        for name in
            ["a", "A-b_c.9", "points", "settings", "..a".trim_start_matches('.'), &"x".repeat(255)]
        {
            assert!(check_name(name).is_ok(), "{name}");
        }
        for name in [
            "",
            ".",
            "..",
            ".lock",
            "a/b",
            "a b",
            "é",
            "a\0",
            "a\n",
            &"x".repeat(256),
            "../a",
            "a\\b",
        ] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }

    #[test]
    fn settings_round_trip_and_damage_is_found() {
        let extra = json!({"model": "m", "float": 0.1, "list": [1, {"a": null}]});
        let settings = CollectionSettings {
            vector_name: "image".into(),
            medium: Some(MediumChoice::Dram),
            extra,
            ..CollectionSettings::new(7, Metric::Dot)
        };
        let text = encode("settings", &StoredSettings::new(&settings, "points-1", FileLayout::Dax))
            .unwrap();
        let back = |text: &[u8]| {
            decode::<StoredSettings>("settings", text).and_then(|stored| stored.settings())
        };
        assert_eq!(back(&text), Ok(settings));
        for at in 0..text.len() {
            let mut damaged = text.clone();
            damaged[at] ^= 4;
            assert!(back(&damaged).is_err(), "byte {at}");
            assert!(back(&text[..at]).is_err(), "cut at {at}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_cause_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            prop_assert!(decode::<StoredSettings>("settings", &bytes).is_err());
        }
    }
}
