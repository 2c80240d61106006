//! The files of the request log. Each holds the records of one model and works as a warm-up file.
//!
//! Two servers can have one directory, at least while the new one of an upgrade starts beside the
//! old one. So a server locks its open files, and neither cuts nor removes a file that another one
//! has locked. Files that are not open end with a whole record, and one that was removed is
//! replaced.

use std::collections::BTreeMap;
use std::fs::{File, Metadata, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use base::units::MIB;
use base::{Error, ErrorKind, Result};
use protocol::tfs::warmup::{RECORDS_MAX, append, record_bytes};

use super::{RequestLogConfig, RequestLogFormat};

/// Maximum bytes of a file. A file ends before the record that would exceed them.
const FILE_BYTES_MAX: u64 = 64 * MIB;
/// Maximum files. The oldest are removed.
const FILES_MAX: usize = 10_000;
/// Maximum models with a file that further records are added to.
const UNFINISHED_MAX: usize = 4096;
/// Maximum open files.
const OPEN_MAX: usize = 64;
/// Bytes that are read at a time to find the end of the last whole line.
const PIECE_BYTES: usize = 8192;
/// Maximum bytes of a model's name in the name of a file, which can have 255.
const MODEL_BYTES_MAX: usize = 160;
/// Beginning of the files' names.
const STEM: &str = "requests-";

/// The files of one place.
pub(super) struct LogFiles {
    dir: PathBuf,
    bytes_max: u64,
    /// Format of new files.
    format: RequestLogFormat,
    /// Unfinished files by model. At most [`OPEN_MAX`] of them are open.
    unfinished: BTreeMap<Arc<str>, LogFile>,
    /// Finished files, oldest first, and their bytes.
    closed: Vec<(PathBuf, u64)>,
    /// Number of the next file, which orders files of the same second.
    number: u64,
}

/// A file that is not finished.
struct LogFile {
    /// `None` while other models use the open files.
    file: Option<File>,
    /// Device and inode.
    identity: (u64, u64),
    path: PathBuf,
    bytes: u64,
    records: usize,
    used: Instant,
}

impl LogFile {
    /// Returns true if the path still leads to this file and the file has the written length. This
    /// is false after another program has removed, moved or cut the file.
    ///
    /// # Errors
    /// Errors of the file system.
    fn is_intact(&self) -> std::io::Result<bool> {
        match std::fs::metadata(&self.path) {
            Ok(found) => Ok(identity(&found) == self.identity && found.len() == self.bytes),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns the open file, at its end.
    ///
    /// # Errors
    /// Errors of the file system.
    fn opened(&mut self) -> Result<&mut File> {
        let file = match self.file.take() {
            Some(file) => file,
            None => self.reopen().map_err(|e| Error::io(&self.path, &e))?,
        };
        Ok(self.file.insert(file))
    }

    fn reopen(&self) -> std::io::Result<File> {
        let mut file = File::options().write(true).open(&self.path)?;
        // If the file system has no locks, another server takes the file for one of an earlier run.
        let _ = file.try_lock();
        file.seek(SeekFrom::Start(self.bytes))?;
        Ok(file)
    }
}

/// Returns device and inode of a file.
fn identity(meta: &Metadata) -> (u64, u64) {
    (meta.dev(), meta.ino())
}

impl LogFiles {
    /// Creates the directory and finds the files of earlier runs and of other servers. Cuts an
    /// incomplete record off their ends, which a crash may have left, unless another server writes
    /// the file.
    ///
    /// # Errors
    /// Errors of the directory.
    pub(super) fn open(config: &RequestLogConfig) -> Result<LogFiles> {
        let dir = config.dir.clone();
        os::private::create_dir_all(&dir).map_err(|e| Error::io(&dir, &e))?;
        let mut closed = Vec::new();
        for entry in std::fs::read_dir(&dir).map_err(|e| Error::io(&dir, &e))? {
            let entry = entry.map_err(|e| Error::io(&dir, &e))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let formats = [RequestLogFormat::TfRecord, RequestLogFormat::Json];
            let format = formats.into_iter().find(|format| name.ends_with(format.extension()));
            if let Some(format) = format.filter(|_| name.starts_with(STEM)) {
                let path = entry.path();
                let bytes = match repair(&path, format) {
                    Ok(bytes) => bytes,
                    // Another server has removed it since the directory was read.
                    Err(error) if error.kind() == ErrorKind::NotFound => continue,
                    Err(error) => return Err(error),
                };
                let changed = entry.metadata().and_then(|meta| meta.modified());
                closed.push((changed.unwrap_or(SystemTime::UNIX_EPOCH), path, bytes));
            }
        }
        closed.sort();
        let closed = closed.into_iter().map(|(_, path, bytes)| (path, bytes)).collect();
        let bytes_max = config.bytes_max;
        let format = config.format;
        Ok(LogFiles { dir, bytes_max, format, unfinished: BTreeMap::new(), closed, number: 0 })
    }

    /// Appends a record of `model` with one write, so that a crash leaves whole records. Returns
    /// false, and changes nothing, if the record is larger than a file may be.
    ///
    /// # Errors
    /// Errors of the file system. The file then ends after the last whole record.
    pub(super) fn append(&mut self, model: &Arc<str>, record: &[u8]) -> Result<bool> {
        let mut framed = Vec::with_capacity(record.len() + 16);
        match self.format {
            RequestLogFormat::TfRecord => append(&mut framed, record),
            RequestLogFormat::Json => framed.extend_from_slice(record),
        }
        let length = framed.len() as u64;
        let file_max = FILE_BYTES_MAX.min(self.bytes_max);
        if length > file_max {
            return Ok(false);
        }
        let full = |file: &LogFile| file.records == RECORDS_MAX || file.bytes + length > file_max;
        if self.unfinished.get(model).is_some_and(full) {
            self.close(model);
        }
        self.close_changed(model)?;
        if !self.unfinished.contains_key(model) {
            self.create(model)?;
        }
        self.close_idle(model, length);
        self.make_room(length);
        self.free_descriptor(model);
        let Some(file) = self.unfinished.get_mut(model) else { return Ok(false) };
        file.used = Instant::now();
        let whole = file.bytes;
        let opened = file.opened()?;
        if let Err(error) = opened.write_all(&framed) {
            // If this fails too, the next start cuts the rest off.
            let _ = opened.set_len(whole).and_then(|()| opened.seek(SeekFrom::Start(whole)));
            return Err(Error::io(&file.path, &error));
        }
        file.bytes += length;
        file.records += 1;
        Ok(true)
    }

    /// Closes the longest unused open file if `model` needs one. Its records continue later.
    fn free_descriptor(&mut self, model: &Arc<str>) {
        if self.unfinished.get(model).is_some_and(|file| file.file.is_some()) {
            return;
        }
        let open: Vec<&mut LogFile> =
            self.unfinished.values_mut().filter(|file| file.file.is_some()).collect();
        if open.len() >= OPEN_MAX
            && let Some(oldest) = open.into_iter().min_by_key(|file| file.used)
        {
            oldest.file = None;
        }
    }

    /// Creates a file for the records of `model`. If too many files are unfinished, closes the one
    /// that was used least recently.
    fn create(&mut self, model: &Arc<str>) -> Result<()> {
        if self.unfinished.len() >= UNFINISHED_MAX {
            let oldest = self.unfinished.iter().min_by_key(|(_, file)| file.used);
            if let Some(oldest) = oldest.map(|(model, _)| model.clone()) {
                self.close(&oldest);
            }
        }
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let seconds = now.map_or(0, |since| since.as_secs());
        let pid = std::process::id();
        let number = self.number;
        self.number += 1;
        let extension = self.format.extension();
        let model_name = &model[..model.floor_char_boundary(MODEL_BYTES_MAX)];
        let name = format!("{STEM}{model_name}-{seconds}-{pid}-{number}{extension}");
        let path = self.dir.join(name.replace('/', "_"));
        let mut options = os::private::options();
        let file = options.write(true).create_new(true).open(&path);
        let meta = file.and_then(|file| file.metadata());
        let identity = identity(&meta.map_err(|e| Error::io(&path, &e))?);
        // It is opened again for the first record, within the maximum of open files.
        let used = Instant::now();
        let file = LogFile { file: None, identity, path, bytes: 0, records: 0, used };
        self.unfinished.insert(model.clone(), file);
        Ok(())
    }

    fn close(&mut self, model: &Arc<str>) {
        if let Some(file) = self.unfinished.remove(model) {
            self.closed.push((file.path, file.bytes));
        }
    }

    /// Closes the file of `model` if another program has removed, moved or changed it. Records
    /// would go to a file without a name, which keeps its disk space, or to a wrong position.
    ///
    /// # Errors
    /// Errors of the file system.
    fn close_changed(&mut self, model: &Arc<str>) -> Result<()> {
        let Some(file) = self.unfinished.get(model) else { return Ok(()) };
        if file.is_intact().map_err(|e| Error::io(&file.path, &e))? {
            return Ok(());
        }
        let found = std::fs::metadata(&file.path).ok();
        if let Some(file) = self.unfinished.remove(model)
            && let Some(found) = found
        {
            self.closed.push((file.path, found.len()));
        }
        Ok(())
    }

    /// Finishes files of other models, the longest idle first, until the unfinished files and
    /// `more` bytes have room. Finished files can be removed.
    fn close_idle(&mut self, model: &Arc<str>, more: u64) {
        while self.unfinished.values().map(|file| file.bytes).sum::<u64>() + more > self.bytes_max {
            let others = self.unfinished.iter().filter(|(other, _)| *other != model);
            let idle = others.min_by_key(|(_, file)| file.used).map(|(other, _)| other.clone());
            let Some(idle) = idle else { return };
            self.close(&idle);
        }
    }

    /// Removes the oldest finished files until `more` bytes have room.
    fn make_room(&mut self, more: u64) {
        let unfinished: u64 = self.unfinished.values().map(|file| file.bytes).sum();
        let mut total = unfinished + more + self.closed.iter().map(|(_, bytes)| bytes).sum::<u64>();
        let mut files = self.unfinished.len() + self.closed.len();
        let removed = self
            .closed
            .iter()
            .take_while(|(path, bytes)| {
                let over = total > self.bytes_max || files > FILES_MAX;
                if over {
                    total -= bytes;
                    files -= 1;
                    remove(path);
                }
                over
            })
            .count();
        self.closed.drain(..removed);
    }
}

/// Returns true if another server, or an open file of this one, has the lock of `file`.
fn is_written(file: &File) -> bool {
    matches!(file.try_lock(), Err(TryLockError::WouldBlock))
}

/// Removes a file, unless another server writes it.
fn remove(path: &Path) {
    // NFS locks only a file that is open for writing.
    let opened = File::options().write(true).open(path);
    if opened.is_ok_and(|file| is_written(&file)) {
        return;
    }
    if let Err(error) = std::fs::remove_file(path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(file = %path.display(), %error, "an old file of the request log stays");
    }
}

/// Cuts an incomplete record off the end of a file, and returns the bytes that stay. Does not
/// change a file that another server writes, because its last record may be incomplete for a
/// moment.
fn repair(path: &Path, format: RequestLogFormat) -> Result<u64> {
    let io = |e: std::io::Error| Error::io(path, &e);
    let mut file = File::options().read(true).write(true).open(path).map_err(io)?;
    let length = file.metadata().map_err(io)?.len();
    if is_written(&file) {
        return Ok(length);
    }
    let whole = match format {
        RequestLogFormat::TfRecord => whole_records(&mut file, length),
        RequestLogFormat::Json => whole_lines(&mut file, length),
    };
    let whole = whole.map_err(io)?;
    if whole < length {
        let file_name = path.display();
        let cut = length - whole;
        tracing::warn!(file = %file_name, "cut {cut} bytes of an incomplete record off its end");
        file.set_len(whole).map_err(io)?;
    }
    Ok(whole)
}

/// Returns the bytes of the whole records at the start of a TFRecord file.
fn whole_records(file: &mut File, length: u64) -> std::io::Result<u64> {
    let mut whole = 0;
    let mut header = [0; 8];
    while whole + 8 <= length {
        file.seek(SeekFrom::Start(whole))?;
        file.read_exact(&mut header)?;
        match whole.checked_add(record_bytes(u64::from_le_bytes(header))) {
            Some(end) if end <= length => whole = end,
            _ => break,
        }
    }
    Ok(whole)
}

/// Returns the bytes of the whole lines at the start of a file, which it searches from its end.
fn whole_lines(file: &mut File, length: u64) -> std::io::Result<u64> {
    let mut piece = [0; PIECE_BYTES];
    let mut end = length;
    while end > 0 {
        let start = end.saturating_sub(PIECE_BYTES as u64);
        let piece = &mut piece[..(end - start) as usize];
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(piece)?;
        if let Some(at) = piece.iter().rposition(|byte| *byte == b'\n') {
            return Ok(start + at as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(dir: &Path, bytes_max: u64) -> LogFiles {
        LogFiles::open(&RequestLogConfig { bytes_max, ..RequestLogConfig::new(dir) }).unwrap()
    }

    fn names(dir: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(dir).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into()).collect();
        names.sort();
        names
    }

    #[test]
    fn files_of_many_models_stay_within_the_limit() {
        let dir = tempfile::tempdir().unwrap();
        // 100 bytes in the file.
        let record = vec![0; 84];
        let mut log = files(dir.path(), 1000);
        for _ in 0..5 {
            for model in ["a", "b", "c", "d"] {
                log.append(&model.into(), &record).unwrap();
                let bytes: u64 = std::fs::read_dir(dir.path())
                    .unwrap()
                    .map(|entry| entry.unwrap().metadata().unwrap().len())
                    .sum();
                assert!(bytes <= 1000, "{bytes}");
            }
        }
    }

    #[test]
    fn a_removed_or_changed_file_is_replaced() {
        type Change = fn(&Path);
        let changes: [(Change, usize); 3] = [
            (|path| std::fs::remove_file(path).unwrap(), 1),
            (|path| std::fs::rename(path, path.with_extension("old")).unwrap(), 2),
            // As a program that copies a log and then cuts it.
            (|path| File::create(path).map(drop).unwrap(), 2),
        ];
        for (change, wanted) in changes {
            let dir = tempfile::tempdir().unwrap();
            let mut log = files(dir.path(), u64::MAX);
            log.append(&"m".into(), b"one").unwrap();
            let first = dir.path().join(&names(dir.path())[0]);
            change(&first);
            for _ in 0..2 {
                assert!(log.append(&"m".into(), b"two").unwrap());
            }
            assert_eq!(names(dir.path()).len(), wanted);
            let last = names(dir.path()).into_iter().rfind(|name| name.ends_with("-1.tfrecord"));
            let last = dir.path().join(last.unwrap());
            assert_eq!(std::fs::metadata(last).unwrap().len(), 2 * 19);
        }
    }

    #[test]
    fn each_model_has_files_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = files(dir.path(), u64::MAX);
        for model in ["a", "b", "a"] {
            log.append(&model.into(), b"record").unwrap();
        }
        let names = names(dir.path());
        assert_eq!(names.len(), 2);
        assert!(names[0].starts_with("requests-a-") && names[1].starts_with("requests-b-"));
        assert_eq!(std::fs::metadata(dir.path().join(&names[0])).unwrap().len(), 2 * 22);
    }

    #[test]
    fn models_continue_their_files_with_few_open_ones() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = files(dir.path(), u64::MAX);
        let models: Vec<Arc<str>> = (0..2 * OPEN_MAX).map(|at| at.to_string().into()).collect();
        for _ in 0..3 {
            for model in &models {
                assert!(log.append(model, b"record").unwrap());
                let is_open = |file: &&LogFile| file.file.is_some();
                assert!(log.unfinished.values().filter(is_open).count() <= OPEN_MAX);
            }
        }
        let names = names(dir.path());
        assert_eq!(names.len(), models.len());
        for name in names {
            assert_eq!(std::fs::metadata(dir.path().join(name)).unwrap().len(), 3 * 22);
        }
    }

    #[test]
    fn models_with_long_names_have_files() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = files(dir.path(), u64::MAX);
        // 252 bytes each, and equal in the part that a file name has.
        for last in ["a", "b"] {
            let model = format!("{}{}", "語".repeat(80), last.repeat(12));
            assert!(log.append(&model.into(), b"record").unwrap());
        }
        assert_eq!(names(dir.path()).len(), 2);
    }

    #[test]
    fn a_file_ends_at_the_limit_of_records() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = files(dir.path(), u64::MAX);
        for _ in 0..=RECORDS_MAX {
            log.append(&"m".into(), b"x").unwrap();
        }
        assert_eq!(names(dir.path()).len(), 2);
    }

    #[test]
    fn the_oldest_files_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let record = vec![0; 84];
        let mut log = files(dir.path(), 1000);
        for _ in 0..50 {
            log.append(&"m".into(), &record).unwrap();
            let bytes: u64 = names(dir.path())
                .iter()
                .map(|name| std::fs::metadata(dir.path().join(name)).unwrap().len())
                .sum();
            assert!(bytes <= 1000, "{bytes}");
        }
    }

    #[test]
    fn a_file_that_another_server_writes_stays_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let mut old = files(dir.path(), 1000);
        assert!(old.append(&"m".into(), &[0; 84]).unwrap());
        let path = dir.path().join(&names(dir.path())[0]);
        // The first half of the next record is on disk.
        let mut written = std::fs::read(&path).unwrap();
        written.extend_from_within(..50);
        std::fs::write(&path, &written).unwrap();
        let mut new = files(dir.path(), 1000);
        for _ in 0..20 {
            assert!(new.append(&"other".into(), &[0; 84]).unwrap());
        }
        assert_eq!(std::fs::read(&path).unwrap(), written);
        drop((old, new));
        drop(files(dir.path(), 1000));
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 100, "no server writes it");
    }

    #[test]
    fn a_start_passes_over_a_file_that_is_removed_meanwhile() {
        let dir = tempfile::tempdir().unwrap();
        let gone = dir.path().join("gone");
        std::os::unix::fs::symlink(&gone, dir.path().join("requests-m-1-1-0.tfrecord")).unwrap();
        assert!(files(dir.path(), 1000).append(&"m".into(), &[0; 84]).unwrap());
        assert!(!gone.exists());
    }

    #[test]
    fn a_record_larger_than_a_file_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = files(dir.path(), 1000);
        assert!(log.append(&"m".into(), &[0; 84]).unwrap());
        let before = names(dir.path());
        // 1001 bytes in the file.
        for model in ["m", "other"] {
            assert!(!log.append(&model.into(), &[0; 985]).unwrap());
            assert_eq!(names(dir.path()), before);
        }
        assert!(log.append(&"m".into(), &[0; 84]).unwrap());
        assert_eq!(names(dir.path()), before);
        assert_eq!(std::fs::metadata(dir.path().join(&before[0])).unwrap().len(), 200);

        let dir = tempfile::tempdir().unwrap();
        let mut log = files(dir.path(), u64::MAX);
        let huge = vec![0; FILE_BYTES_MAX as usize];
        assert!(!log.append(&"m".into(), &huge).unwrap());
        assert!(names(dir.path()).is_empty());
    }

    #[test]
    fn a_cut_line_is_removed_at_the_next_start() {
        let dir = tempfile::tempdir().unwrap();
        let config = RequestLogConfig {
            format: RequestLogFormat::Json,
            ..RequestLogConfig::new(dir.path())
        };
        let mut log = LogFiles::open(&config).unwrap();
        let long = [vec![b'x'; 2 * PIECE_BYTES], b"\n".to_vec()].concat();
        log.append(&"m".into(), b"{}\n").unwrap();
        log.append(&"m".into(), &long).unwrap();
        let path = dir.path().join(&names(dir.path())[0]);
        assert!(path.to_str().unwrap().ends_with(".jsonl"));
        drop(log);
        let whole = std::fs::read(&path).unwrap();
        for (cut, left) in [(0, whole.len()), (1, 3), (long.len() - 1, 3), (long.len() + 1, 0)] {
            std::fs::write(&path, &whole[..whole.len() - cut]).unwrap();
            drop(LogFiles::open(&config).unwrap());
            assert_eq!(std::fs::metadata(&path).unwrap().len(), left as u64, "{cut}");
        }
    }

    #[test]
    fn a_cut_record_is_removed_at_the_next_start() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = files(dir.path(), u64::MAX);
        log.append(&"m".into(), b"one").unwrap();
        log.append(&"m".into(), b"two").unwrap();
        let path = dir.path().join(&names(dir.path())[0]);
        drop(log);
        for cut in 1..19 {
            let whole = std::fs::read(&path).unwrap();
            std::fs::write(&path, &whole[..38 - cut]).unwrap();
            drop(files(dir.path(), u64::MAX));
            assert_eq!(std::fs::read(&path).unwrap(), whole[..19]);
            std::fs::write(&path, &whole).unwrap();
        }
    }
}
