//! Enrolled speakers: names with the mean of their embeddings, in memory or in a file.
//!
//! The file is one JSON document, small enough to be rewritten each time. A temporary file beside
//! it is written, synced and renamed over it. Then the directory is synced. So the file is always a
//! complete document, and it contains every acknowledged enrolment. Several processes may share a
//! file: a writer holds the lock of `FILE.lock` and starts from the file's current contents. A
//! server renames a damaged file and continues. A command leaves it unchanged and reports it,
//! because the file may be something else entirely.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::{Error, Result};
use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};

/// Maximum speakers of one store.
const SPEAKERS_MAX: usize = 4096;
/// Maximum bytes of a name.
const NAME_BYTES_MAX: usize = 256;
/// Maximum values of an embedding.
const DIMENSION_MAX: usize = 4096;
/// Maximum bytes of a file.
const FILE_BYTES_MAX: u64 = 1 << 28;
/// Maximum links that are followed, as in the kernel.
const LINKS_MAX: usize = 40;
/// Maximum damaged files that are kept.
const CORRUPT_MAX: u32 = 1000;
/// Version of the document.
const FORMAT: u32 = 1;

/// Enrolled speakers. Clones share one store, which any number of threads may use.
#[derive(Clone, Debug)]
pub struct Speakers(Arc<SpeakerStore>);

#[derive(Debug)]
struct SpeakerStore {
    path: Option<PathBuf>,
    /// Lock that a change holds. Readers do not wait for it.
    writing: Mutex<()>,
    document: RwLock<Arc<SpeakerFile>>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SpeakerFile {
    format: u32,
    /// Values of each vector; 0 if no speaker is enrolled.
    dimension: usize,
    speakers: BTreeMap<String, Voice>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Voice {
    /// Number of enrolled embeddings.
    embeddings: u64,
    /// Mean of the unit vectors of the enrolled embeddings.
    vector: Vec<f32>,
}

impl Default for SpeakerFile {
    fn default() -> SpeakerFile {
        SpeakerFile { format: FORMAT, dimension: 0, speakers: BTreeMap::new() }
    }
}

impl Speakers {
    /// Opens the store in the file at `path`, which the first enrolment creates.
    ///
    /// # Errors
    /// Returns the errors of reading the file; `DataLoss` if it is damaged or holds something else,
    /// `FailedPrecondition` if its version is newer. The file stays as it is.
    pub fn open(path: &Path) -> Result<Speakers> {
        Ok(Speakers::with(Some(path.to_owned()), document(path)?.unwrap_or_default()))
    }

    /// Opens the store for a server. A damaged file is renamed to `PATH.corrupt-N` and logged, and
    /// the store begins empty. Of a link, the target is renamed.
    ///
    /// # Errors
    /// Returns the errors of reading or renaming the file; `FailedPrecondition` if its version is
    /// newer.
    pub fn open_or_set_aside(path: &Path) -> Result<Speakers> {
        match Speakers::open(path) {
            Err(error) if error.kind() == base::ErrorKind::DataLoss => {
                let aside = set_aside(&target(path))?;
                let shown = path.display();
                let aside = aside.display();
                tracing::error!(path = %shown, %aside, %error, "enrolled speakers cannot be read and were set aside");
                Ok(Speakers::with(Some(path.to_owned()), SpeakerFile::default()))
            }
            speakers => speakers,
        }
    }

    /// Makes a store that is lost with its last clone.
    pub fn in_memory() -> Speakers {
        Speakers::with(None, SpeakerFile::default())
    }

    fn with(path: Option<PathBuf>, document: SpeakerFile) -> Speakers {
        let document = RwLock::new(Arc::new(document));
        Speakers(Arc::new(SpeakerStore { path, writing: Mutex::new(()), document }))
    }

    /// Adds an embedding of the voice of `name`. Only its direction counts. The stored voice is the
    /// mean of all directions. The change is durable when this returns.
    ///
    /// # Errors
    /// `InvalidArgument` for a name that is empty, too long or has control characters, and for an
    /// embedding without a direction or of another dimension than the others; `ResourceExhausted`
    /// if the store is full; the errors of writing the file. An error changes nothing.
    pub fn enrol(&self, name: &str, embedding: &[f32]) -> Result<()> {
        check_name(name)?;
        if embedding.len() > DIMENSION_MAX {
            return Err(Error::invalid(format!("an embedding has at most {DIMENSION_MAX} values")));
        }
        let vector =
            unit(embedding).ok_or_else(|| Error::invalid("the embedding has no direction"))?;
        self.change(|document| {
            if document.speakers.is_empty() {
                document.dimension = vector.len();
            }
            let dimension = document.dimension;
            if vector.len() != dimension {
                let got = vector.len();
                return Err(Error::invalid(format!(
                    "the embedding has {got} values and those of the enrolled speakers {dimension}: use the \
                     recogniser that they were enrolled with"
                )));
            }
            if document.speakers.len() >= SPEAKERS_MAX && !document.speakers.contains_key(name) {
                return Err(Error::exhausted(format!(
                    "{SPEAKERS_MAX} speakers are enrolled; remove some first"
                )));
            }
            let none = || Voice { embeddings: 0, vector: vec![0.0; dimension] };
            let voice = document.speakers.entry(name.to_owned()).or_insert_with(none);
            // A file may hold any number.
            voice.embeddings = voice.embeddings.saturating_add(1);
            let share = 1.0 / voice.embeddings as f32;
            voice.vector.iter_mut().zip(&vector).for_each(|(mean, new)| *mean += (new - *mean) * share);
            Ok(true)
        })?;
        Ok(())
    }

    /// Removes `name` durably. Returns false if it was not enrolled.
    ///
    /// # Errors
    /// Returns the errors of writing the file. An error changes nothing.
    pub fn remove(&self, name: &str) -> Result<bool> {
        let file_is_there = self.0.path.as_ref().is_none_or(|path| path.exists());
        if !file_is_there && !self.now().speakers.contains_key(name) {
            return Ok(false);
        }
        self.change(|document| Ok(document.speakers.remove(name).is_some()))
    }

    /// Returns the enrolled names, sorted.
    pub fn names(&self) -> Vec<String> {
        self.now().speakers.keys().cloned().collect()
    }

    /// Checks that an embedding can be compared with the enrolled voices, if there are any.
    ///
    /// # Errors
    /// `FailedPrecondition` for an embedding of another dimension.
    pub fn check_dimension(&self, embedding: &[f32]) -> Result<()> {
        let document = self.now();
        let found = embedding.len();
        let dimension = document.dimension;
        if document.speakers.is_empty() || found == dimension {
            return Ok(());
        }
        Err(Error::precondition(format!(
            "the embedding has {found} values and those of the enrolled speakers {dimension}: enrol the speakers \
             again, or use the model that they were enrolled with"
        )))
    }

    /// Returns the speaker whose voice is most similar to `embedding`, with the cosine similarity,
    /// -1 to 1. `None` if no speaker is enrolled, and for an embedding of another dimension or
    /// without a direction.
    pub fn nearest(&self, embedding: &[f32]) -> Option<(String, f32)> {
        let document = self.now();
        let each = document.speakers.iter();
        let each = each.filter_map(|(name, voice)| Some((name, cosine(&voice.vector, embedding)?)));
        each.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(name, similarity)| (name.clone(), similarity))
    }

    /// Returns the cosine similarity, -1 to 1, of `embedding` and `name`'s voice. `None` if `name`
    /// is not enrolled, and for an embedding of another dimension or without a direction.
    pub fn similarity(&self, name: &str, embedding: &[f32]) -> Option<f32> {
        cosine(&self.now().speakers.get(name)?.vector, embedding)
    }

    fn now(&self) -> Arc<SpeakerFile> {
        self.0.document.read().clone()
    }

    /// Changes a copy, writes it if `change` returns true, and only then publishes it. Returns what
    /// `change` returned.
    fn change(&self, change: impl FnOnce(&mut SpeakerFile) -> Result<bool>) -> Result<bool> {
        let _one_at_a_time = self.0.writing.lock();
        let path = self.0.path.as_deref().map(target);
        let _one_process = path.as_deref().map(lock).transpose()?;
        // Without a file, no other process has added anything.
        let mut document = match path.as_deref().map(document).transpose()?.flatten() {
            Some(document) => document,
            None => SpeakerFile::clone(&self.now()),
        };
        let changed = change(&mut document)?;
        if let Some(path) = path.filter(|_| changed) {
            write(&path, &document)?;
        }
        *self.0.document.write() = Arc::new(document);
        Ok(changed)
    }
}

/// Checks the name of a speaker.
///
/// # Errors
/// `InvalidArgument` for a name that is empty, too long or has control characters.
pub fn check_name(name: &str) -> Result<()> {
    if name.trim().is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
        return Err(Error::invalid(format!(
            "a speaker's name has 1 to {NAME_BYTES_MAX} bytes, not only spaces, and no control characters"
        )));
    }
    Ok(())
}

impl Default for Speakers {
    fn default() -> Speakers {
        Speakers::in_memory()
    }
}

/// Returns `vector` at length one; `None` if it has no direction.
pub(crate) fn unit(vector: &[f32]) -> Option<Vec<f32>> {
    let squares: f64 = vector.iter().map(|value| f64::from(*value) * f64::from(*value)).sum();
    let length = squares.sqrt();
    (length > 0.0 && length.is_finite())
        .then(|| vector.iter().map(|value| (f64::from(*value) / length) as f32).collect())
}

/// Returns the cosine of two vectors. `None` if their lengths differ or one of them has no
/// direction.
fn cosine(mean: &[f32], embedding: &[f32]) -> Option<f32> {
    let dot = |a: &[f32], b: &[f32]| {
        a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>()
    };
    let lengths = (dot(mean, mean) * dot(embedding, embedding)).sqrt();
    let fits = mean.len() == embedding.len() && lengths > 0.0 && lengths.is_finite();
    fits.then(|| (dot(mean, embedding) / lengths).clamp(-1.0, 1.0) as f32)
}

/// Returns the file to write for `path`: the target of a link, which a rename would replace. The
/// target may not exist yet.
fn target(path: &Path) -> PathBuf {
    let mut target = path.to_owned();
    for _ in 0..LINKS_MAX {
        let Ok(next) = std::fs::read_link(&target) else { break };
        // An absolute target replaces the whole path.
        target = target.parent().unwrap_or(Path::new("")).join(next);
    }
    target
}

/// Locks the file at `path` against other processes until the result is dropped.
fn lock(path: &Path) -> Result<File> {
    let beside = beside(path, ".lock");
    let locked = create(&beside).and_then(|file| file.lock().map(|()| file));
    locked.map_err(|error| Error::io(&beside, &error).context("speakers cannot be saved"))
}

/// Creates a file that other users of the machine cannot read, or empties it.
fn create(path: &Path) -> std::io::Result<File> {
    File::options().write(true).create(true).truncate(true).mode(0o640).open(path)
}

/// Reads the document; `None` if there is no file.
fn document(path: &Path) -> Result<Option<SpeakerFile>> {
    let parsed = read(path)?.map(|bytes| parse(&bytes)).transpose();
    parsed.map_err(|error| error.context("no file of enrolled voices").context(path.display()))
}

/// Reads the file; `None` if there is none.
fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        file => file.map_err(|error| Error::io(path, &error))?,
    };
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| Error::io(path, &error))?;
    Ok(Some(bytes))
}

/// Parses and checks the file of speakers.
///
/// # Errors
/// `DataLoss` if the file is damaged; `FailedPrecondition` if a later version wrote it.
fn parse(bytes: &[u8]) -> Result<SpeakerFile> {
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(Error::data_loss("the file is too large"));
    }
    #[derive(Deserialize)]
    struct FileVersion {
        format: u32,
    }
    let damaged = |error: serde_json::Error| Error::data_loss(error.to_string()).with_source(error);
    let FileVersion { format } = serde_json::from_slice(bytes).map_err(damaged)?;
    if format > FORMAT {
        return Err(Error::precondition(format!(
            "format {format} was written by a later version; use that one"
        )));
    }
    let document: SpeakerFile = serde_json::from_slice(bytes).map_err(damaged)?;
    let sound = |voice: &Voice| {
        voice.vector.len() == document.dimension
            && voice.embeddings > 0
            && voice.vector.iter().all(|value| value.is_finite())
    };
    if document.dimension > DIMENSION_MAX
        || document.speakers.len() > SPEAKERS_MAX
        || !document.speakers.values().all(sound)
    {
        return Err(Error::data_loss("its vectors are not what it says"));
    }
    Ok(document)
}

/// Renames a damaged file to the first free name.
fn set_aside(path: &Path) -> Result<PathBuf> {
    let aside = |number: u32| beside(path, &format!(".corrupt-{number}"));
    let free = (1..=CORRUPT_MAX).map(aside).find(|aside| !aside.exists());
    let aside = free.ok_or_else(|| {
        let path = path.display();
        Error::precondition(format!(
            "{path} is damaged, and {CORRUPT_MAX} such files are kept already: remove some"
        ))
    })?;
    std::fs::rename(path, &aside).map_err(|error| Error::io(path, &error))?;
    sync_directory(path)?;
    Ok(aside)
}

/// Returns `path` with `suffix` after its name.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Replaces the file with `document`, durably.
fn write(path: &Path, document: &SpeakerFile) -> Result<()> {
    let temporary = beside(path, ".tmp");
    let bytes = serde_json::to_vec(document)
        .map_err(|error| Error::internal(error.to_string()).with_source(error))?;
    let written = || {
        let mut file = create(&temporary)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)
    };
    written().map_err(|error| {
        // It may not exist.
        let _ = std::fs::remove_file(&temporary);
        Error::io(path, &error).context("speakers cannot be saved")
    })?;
    sync_directory(path)
}

fn sync_directory(path: &Path) -> Result<()> {
    let directory =
        path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let synced = File::open(directory).and_then(|directory| directory.sync_all());
    synced.map_err(|error| Error::io(directory, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(folder: &tempfile::TempDir) -> PathBuf {
        folder.path().join("speakers.json")
    }

    #[test]
    fn enrolling_again_averages_and_the_nearest_is_found() {
        let speakers = Speakers::in_memory();
        assert_eq!(speakers.nearest(&[1.0, 0.0]), None);
        speakers.enrol("Ada", &[2.0, 0.0]).unwrap();
        speakers.enrol("Ada", &[0.0, 5.0]).unwrap();
        speakers.enrol("Bob", &[-1.0, 0.0]).unwrap();
        assert_eq!(speakers.names(), ["Ada", "Bob"]);
        let similarity = speakers.similarity("Ada", &[1.0, 1.0]).unwrap();
        assert!((similarity - 1.0).abs() < 1e-6, "both count alike: {similarity}");
        assert_eq!(speakers.nearest(&[-3.0, 1.0]).unwrap().0, "Bob");
        assert_eq!(speakers.similarity("Eve", &[1.0, 1.0]), None);
        assert_eq!(speakers.nearest(&[1.0, 1.0, 1.0]), None);
        assert_eq!(speakers.check_dimension(&[1.0, 1.0]), Ok(()));
        let other = speakers.check_dimension(&[1.0, 1.0, 1.0]).unwrap_err();
        assert_eq!(other.kind(), base::ErrorKind::FailedPrecondition);
        assert!(Speakers::in_memory().check_dimension(&[1.0]).is_ok());
        assert!(speakers.remove("Ada").unwrap());
        assert!(!speakers.remove("Ada").unwrap());
        assert_eq!(speakers.clone().names(), ["Bob"]);
    }

    #[test]
    fn unusable_voices_are_refused() {
        let speakers = Speakers::in_memory();
        let long = "x".repeat(NAME_BYTES_MAX + 1);
        for name in ["", "  ", "a\nb", "a\tb", &long] {
            assert!(speakers.enrol(name, &[1.0]).is_err(), "{name:?}");
        }
        for embedding in [&[][..], &[0.0, 0.0], &[f32::NAN, 1.0], &[f32::INFINITY]] {
            assert!(speakers.enrol("Ada", embedding).is_err(), "{embedding:?}");
        }
        assert!(speakers.enrol("Ada", &vec![1.0; DIMENSION_MAX + 1]).is_err());
        speakers.enrol("Ada", &[1.0, 0.0]).unwrap();
        assert!(speakers.enrol("Bob", &[1.0]).unwrap_err().message().contains("recogniser"));
        assert_eq!(speakers.names(), ["Ada"]);
        for number in 1..SPEAKERS_MAX {
            let mut document = SpeakerFile::clone(&speakers.now());
            let voice = Voice { embeddings: 1, vector: vec![1.0, 0.0] };
            document
                .speakers
                .extend((0..SPEAKERS_MAX - 1).map(|n| (format!("n{n}"), voice.clone())));
            *speakers.0.document.write() = Arc::new(document);
            if number == 1 {
                break;
            }
        }
        assert_eq!(
            speakers.enrol("more", &[1.0, 0.0]).unwrap_err().kind(),
            base::ErrorKind::ResourceExhausted
        );
        speakers.enrol("Ada", &[1.0, 0.0]).unwrap();
    }

    #[test]
    fn a_file_keeps_the_speakers() {
        let folder = tempfile::tempdir().unwrap();
        let path = file(&folder);
        let speakers = Speakers::open(&path).unwrap();
        speakers.enrol("Zoë \"Z\", a", &[0.1, 0.7, -0.3]).unwrap();
        speakers.enrol("Bob", &[1.0, 2.0, 3.0]).unwrap();
        speakers.remove("Bob").unwrap();
        let again = Speakers::open(&path).unwrap();
        assert_eq!(*again.now(), *speakers.now());
        assert!(!beside(&path, ".tmp").exists());
    }

    #[test]
    fn the_number_of_embeddings_in_a_file_has_no_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = file(&folder);
        let most = u64::MAX;
        let voice = format!(r#"{{"embeddings":{most},"vector":[1.0,0.0]}}"#);
        let text = format!(r#"{{"format":1,"dimension":2,"speakers":{{"Ada":{voice}}}}}"#);
        std::fs::write(&path, text).unwrap();
        let speakers = Speakers::open(&path).unwrap();
        speakers.enrol("Ada", &[0.0, 1.0]).unwrap();
        assert_eq!(*Speakers::open(&path).unwrap().now(), *speakers.now());
        assert_eq!(speakers.now().speakers["Ada"].embeddings, most);
    }

    #[test]
    fn a_cut_temporary_file_loses_no_acknowledged_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = file(&folder);
        Speakers::open(&path).unwrap().enrol("Ada", &[1.0, 0.5]).unwrap();
        let next = {
            let mut document = SpeakerFile::clone(&Speakers::open(&path).unwrap().now());
            document.speakers.insert("Bob".into(), Voice { embeddings: 1, vector: vec![0.0, 1.0] });
            serde_json::to_vec(&document).unwrap()
        };
        for length in 0..=next.len() {
            std::fs::write(beside(&path, ".tmp"), &next[..length]).unwrap();
            let speakers = Speakers::open(&path).unwrap();
            assert_eq!(speakers.names(), ["Ada"]);
        }
        let speakers = Speakers::open(&path).unwrap();
        speakers.enrol("Cem", &[1.0, 0.5]).unwrap();
        assert_eq!(Speakers::open(&path).unwrap().names(), ["Ada", "Cem"]);
    }

    #[test]
    fn a_damaged_file_is_left_or_set_aside_and_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = file(&folder);
        Speakers::open(&path).unwrap().enrol("Ada", &[1.0, 0.5]).unwrap();
        let whole = std::fs::read(&path).unwrap();
        let wrong_dimension =
            br#"{"format":1,"dimension":3,"speakers":{"a":{"embeddings":1,"vector":[1.0]}}}"#;
        let damaged = [&whole[..whole.len() / 2], b"", b"not json", wrong_dimension];
        for (number, damaged) in damaged.iter().enumerate() {
            std::fs::write(&path, damaged).unwrap();
            let error = Speakers::open(&path).unwrap_err();
            assert!(error.message().contains("no file of enrolled voices"), "{error}");
            let has_cause = std::error::Error::source(&error).is_some();
            assert_eq!(has_cause, number < 3, "the last one is JSON, with a wrong dimension");
            assert_eq!(std::fs::read(&path).unwrap(), *damaged, "a command leaves it");
            let speakers = Speakers::open_or_set_aside(&path).unwrap();
            assert_eq!(speakers.names(), [""; 0]);
            let aside = beside(&path, &format!(".corrupt-{}", number + 1));
            assert_eq!(std::fs::read(aside).unwrap(), *damaged);
            assert!(!path.exists());
        }
        std::fs::write(&path, br#"{"format":2,"anything":1}"#).unwrap();
        assert_eq!(
            Speakers::open_or_set_aside(&path).unwrap_err().kind(),
            base::ErrorKind::FailedPrecondition
        );
        assert!(path.exists(), "a later version's file stays where it is");
    }

    #[test]
    fn a_speaker_that_another_process_enrols_meanwhile_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = file(&folder);
        let (one, other) = (Speakers::open(&path).unwrap(), Speakers::open(&path).unwrap());
        one.enrol("Ada", &[1.0, 0.5]).unwrap();
        other.enrol("Bob", &[0.5, 1.0]).unwrap();
        assert_eq!(other.names(), ["Ada", "Bob"]);
        assert!(one.remove("Bob").unwrap(), "though it had not seen him");
        assert_eq!(Speakers::open(&path).unwrap().names(), ["Ada"]);
        let held = lock(&path).unwrap();
        let elsewhere = File::open(beside(&path, ".lock")).unwrap();
        assert!(elsewhere.try_lock().is_err());
        drop(held);
        elsewhere.try_lock().unwrap();
    }

    #[test]
    fn a_link_to_the_file_stays_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let path = file(&folder);
        Speakers::open(&path).unwrap().enrol("Ada", &[1.0, 0.5]).unwrap();
        let link = folder.path().join("link.json");
        std::os::unix::fs::symlink("speakers.json", &link).unwrap();
        Speakers::open(&link).unwrap().enrol("Bob", &[0.5, 1.0]).unwrap();
        assert!(link.is_symlink());
        assert_eq!(Speakers::open(&path).unwrap().names(), ["Ada", "Bob"]);
        assert!(!beside(&link, ".lock").exists(), "both names have one lock");
    }

    #[test]
    fn a_link_to_a_missing_or_damaged_file_stays_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let path = file(&folder);
        let links = tempfile::tempdir().unwrap();
        let link = links.path().join("link.json");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        Speakers::open(&link).unwrap().enrol("Ada", &[1.0, 0.5]).unwrap();
        assert_eq!(Speakers::open(&path).unwrap().names(), ["Ada"]);
        std::fs::write(&path, "damaged").unwrap();
        Speakers::open_or_set_aside(&link).unwrap().enrol("Bob", &[0.5, 1.0]).unwrap();
        assert_eq!(Speakers::open(&path).unwrap().names(), ["Bob"]);
        assert_eq!(std::fs::read(beside(&path, ".corrupt-1")).unwrap(), b"damaged");
        assert!(link.is_symlink());
        assert_eq!(std::fs::read_dir(links.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_change_that_cannot_be_saved_does_not_happen() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("absent/speakers.json");
        let speakers = Speakers::open(&path).unwrap();
        assert!(speakers.enrol("Ada", &[1.0]).unwrap_err().message().contains("cannot be saved"));
        assert_eq!(speakers.names(), [""; 0]);
        // A file cannot replace a directory.
        let path = folder.path().join("directory");
        std::fs::create_dir(&path).unwrap();
        assert!(write(&path, &SpeakerFile::default()).is_err());
        assert!(!beside(&path, ".tmp").exists());
    }
}
