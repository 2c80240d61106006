//! A backup as one file: a tar archive whose first entry is the list. The other entries are the
//! files in the order of the list.

use std::collections::BTreeMap;
use std::io::Read;
use std::time::Instant;

use base::{Error, ErrorKind, Result};
use search::collection::PinnedReader;
use search::registry::{CollectionSettings, NamedCollection, Registry};
use storage::Writer;

use crate::list::{BackupFile, BackupId, BackupList, LIST_BYTES_MAX};
use crate::restore::{RestoreReport, RestoreTarget, begin, finish, unexpected};
use crate::transfer::BackupContext;

/// Name of the list in the archive.
const LIST_NAME: &str = "millpond-backup.json";
/// Bytes of a block of a tar archive.
const BLOCK_BYTES: u64 = 512;
/// Bytes of an entry that are copied at once.
const STEP_BYTES: usize = 1 << 20;
/// Number of blocks of zeros at the end.
const END_BLOCKS: u64 = 2;
/// Names in the first entries of Qdrant's own snapshots.
const QDRANT_NAMES: [&str; 4] = ["config.json", "version.info", "shard_", "payload_index"];

/// Returns the number of bytes of the archive of a backup.
///
/// # Errors
/// As [`BackupList::encode`].
pub fn archive_bytes(list: &BackupList) -> Result<u64> {
    let entry = |bytes: u64| BLOCK_BYTES + bytes.next_multiple_of(BLOCK_BYTES);
    let files: u64 = list.files.iter().map(|file| entry(file.bytes)).sum();
    Ok(entry(list.encode()?.len() as u64) + files + END_BLOCKS * BLOCK_BYTES)
}

/// Writes a backup of `collection` as an archive. Compares each object with its checksum.
///
/// # Errors
/// `DataLoss` that names a damaged object; the errors of the store and of `out`. The archive is
/// then incomplete.
pub async fn write_archive(
    context: &BackupContext<'_>,
    collection: &str,
    list: &BackupList,
    out: &mut dyn std::io::Write,
) -> Result<()> {
    context.progress.set_total(list.bytes());
    write_list(list, out)?;
    for file in &list.files {
        out.write_all(header(&file.name, file.bytes)?.as_bytes()).map_err(write_error)?;
        context
            .download(collection, file, |piece| out.write_all(piece).map_err(write_error))
            .await?;
        out.write_all(&padding(file.bytes)).map_err(write_error)?;
    }
    write_end(out)
}

/// Name and id that a collection has in an archive.
#[derive(Clone, Copy, Debug)]
pub struct ArchiveLabel<'a> {
    /// Name of the collection that the list in the archive states.
    pub collection: &'a str,
    /// Id that the list in the archive has.
    pub id: &'a BackupId,
}

/// Writes a collection of this machine as an archive. Calls `begin` with the bytes of the archive
/// before the first of them is written. No store takes part.
///
/// # Errors
/// `Unavailable` while the collection is being opened, `FailedPrecondition` if it is damaged,
/// `DataLoss` if a file does not match its checksums; the errors of the medium and of `out`. The
/// archive is then incomplete.
pub async fn write_collection(
    context: &BackupContext<'_>,
    named: &NamedCollection,
    label: ArchiveLabel<'_>,
    begin: impl FnOnce(u64),
    out: &mut dyn std::io::Write,
) -> Result<()> {
    named.collection().flush_before_pin()?;
    let settings = CollectionSettings::clone(&named.settings());
    let pinned = named.collection().pin()?;
    context.progress.set_total(pinned.files().iter().map(|file| file.bytes).sum());
    let mut files = Vec::with_capacity(pinned.files().len());
    for file in pinned.files() {
        let opened = pinned.open(file)?;
        let hash = context.hash(&opened).await;
        let blake3 = hash.map_err(|error| error.context(&file.name))?;
        let name = file.name.clone();
        let object = file.name.clone();
        files.push(BackupFile { name, object, bytes: file.bytes, blake3 });
    }
    let state = String::from_utf8(pinned.list()?)
        .map_err(|error| Error::internal("the list of files").caused_by(error.utf8_error()))?;
    let list = BackupList {
        id: label.id.clone(),
        collection: label.collection.to_owned(),
        source: named.points_name().to_owned(),
        points: named.collection().count(),
        settings,
        state,
        files,
    };
    begin(archive_bytes(&list)?);
    write_list(&list, out)?;
    for (file, listed) in pinned.files().iter().zip(&list.files) {
        out.write_all(header(&listed.name, listed.bytes)?.as_bytes()).map_err(write_error)?;
        let opened = pinned.open(file)?;
        let sent = send_file(context, &opened, out).await;
        sent.map_err(|error| error.context(&file.name))?;
        out.write_all(&padding(listed.bytes)).map_err(write_error)?;
        context.progress.add_done(listed.bytes);
    }
    write_end(out)
}

/// Writes the bytes of a file in steps, so that no burst disturbs searches.
async fn send_file(
    context: &BackupContext<'_>,
    file: &PinnedReader<'_>,
    out: &mut dyn std::io::Write,
) -> Result<()> {
    let mut step = Vec::new();
    let mut at = 0;
    while at < file.bytes() {
        let length = (file.bytes() - at).min(STEP_BYTES as u64);
        context.pace(length).await?;
        step.resize(length as usize, 0);
        file.read_at(at, &mut step)?;
        out.write_all(&step).map_err(write_error)?;
        at += length;
    }
    Ok(())
}

/// Writes the first entry, which is the list.
fn write_list(list: &BackupList, out: &mut dyn std::io::Write) -> Result<()> {
    let text = list.encode()?;
    out.write_all(header(LIST_NAME, text.len() as u64)?.as_bytes()).map_err(write_error)?;
    out.write_all(&text).map_err(write_error)?;
    out.write_all(&padding(text.len() as u64)).map_err(write_error)
}

fn write_end(out: &mut dyn std::io::Write) -> Result<()> {
    out.write_all(&vec![0; (END_BLOCKS * BLOCK_BYTES) as usize]).map_err(write_error)?;
    out.flush().map_err(write_error)
}

/// Returns the error of an archive that cannot be written.
fn write_error(error: std::io::Error) -> Error {
    Error::cancelled("the archive").caused_by(error)
}

/// Returns the header of a file of `bytes` bytes in an archive.
fn header(name: &str, bytes: u64) -> Result<tar::Header> {
    let mut header = tar::Header::new_gnu();
    header.set_path(name).map_err(|error| Error::internal(name).caused_by(error))?;
    header.set_size(bytes);
    header.set_mode(0o600);
    header.set_entry_type(tar::EntryType::Regular);
    header.set_cksum();
    Ok(header)
}

fn padding(bytes: u64) -> Vec<u8> {
    vec![0; (bytes.next_multiple_of(BLOCK_BYTES) - bytes) as usize]
}

/// Restores an archive that [`write_archive`] has written. `check` may refuse the settings of the
/// collection.
///
/// # Errors
/// `InvalidArgument` for another file, in particular for a snapshot of Qdrant's own, and if a file
/// of the archive is missing, shortened or changed; otherwise the errors of the registry. The
/// collection of the name stays as it was.
pub fn read_archive(
    registry: &Registry,
    archive: impl Read,
    target: &RestoreTarget,
    check: impl FnOnce(&CollectionSettings) -> Result<()>,
) -> Result<RestoreReport> {
    let began = Instant::now();
    let mut archive = tar::Archive::new(archive);
    // Raw entries, since extensions of the format would be read into memory.
    let mut entries = archive.entries().map_err(|error| unreadable(&error))?.raw(true);
    let first = entries.next().ok_or_else(|| Error::invalid("the snapshot is empty"))?;
    let list = read_list(first.map_err(|error| unreadable(&error))?)?;
    check(&list.settings)?;
    let restoring = begin(registry, &list, target)?;
    let mut expected: BTreeMap<&str, &BackupFile> =
        list.files.iter().map(|file| (file.name.as_str(), file)).collect();
    for entry in entries {
        let mut entry = entry.map_err(|error| unreadable(&error))?;
        let name = name_of(&entry);
        let file = expected.remove(name.as_str()).ok_or_else(|| damaged(&unexpected(&name)))?;
        append_checked(&mut entry, file, &mut *restoring.create(&name)?)?;
    }
    if let Some(name) = expected.keys().next() {
        return Err(damaged(&Error::data_loss(format!("it ends before its file {name}"))));
    }
    finish(restoring, &list, began)
}

fn name_of(entry: &tar::Entry<'_, impl Read>) -> String {
    String::from_utf8_lossy(&entry.path_bytes()).into_owned()
}

/// Reads the list of a backup, which is the first entry of an archive.
///
/// # Errors
/// `InvalidArgument` for a damaged list or for another file, such as a snapshot of Qdrant's own.
fn read_list(entry: tar::Entry<'_, impl Read>) -> Result<BackupList> {
    let name = name_of(&entry);
    if name != LIST_NAME {
        let is_qdrant = QDRANT_NAMES.iter().any(|known| name.contains(known));
        let what =
            if is_qdrant { "a snapshot that Qdrant made" } else { "no snapshot of Millpond" };
        return Err(Error::invalid(format!(
            "the file is {what} (its first entry is {name:?}). Only snapshots made here can be \
             restored; to move from Qdrant, read the points with scroll and write them with upsert"
        )));
    }
    let mut text = Vec::new();
    let read = entry.take(LIST_BYTES_MAX + 1).read_to_end(&mut text);
    read.map_err(|error| unreadable(&error))?;
    BackupList::decode(&text).map_err(|error| damaged(&error))
}

/// Converts `DataLoss` to `InvalidArgument`, because a client sent the archive, and no data of this
/// server is lost. Returns other errors as they are.
fn damaged(error: &Error) -> Error {
    if error.kind() != ErrorKind::DataLoss {
        return error.clone();
    }
    Error::invalid(format!(
        "the snapshot is damaged or incomplete; download it again, and send all of it: {error}"
    ))
}

/// Appends all bytes of `from` to `to` and makes them durable. Compares length and checksum with
/// those of `file`.
///
/// # Errors
/// `InvalidArgument` if they differ; the errors of `from` and `to`.
fn append_checked(from: &mut impl Read, file: &BackupFile, to: &mut dyn Writer) -> Result<()> {
    let wrong = |why: String| damaged(&Error::data_loss(format!("{}: {why}", file.name)));
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; STEP_BYTES];
    let mut received = 0;
    loop {
        let count = from.read(&mut buffer).map_err(|error| unreadable(&error))?;
        if count == 0 {
            break;
        }
        received += count as u64;
        if received > file.bytes {
            return Err(wrong(format!("it has more than {} bytes", file.bytes)));
        }
        hasher.update(&buffer[..count]);
        to.append(&buffer[..count])?;
    }
    if received != file.bytes {
        return Err(wrong(format!("it has {received} bytes, and the list says {}", file.bytes)));
    }
    if hasher.finalize().to_hex().as_str() != file.blake3 {
        return Err(wrong("it does not match its checksum".to_owned()));
    }
    to.persist()
}

/// Converts an error of reading an archive. Keeps an error of this program in it, and the words of
/// the operating system.
///
/// Leaves out the words of the library, because they repeat bytes of the file, and a recovery can
/// name any file of the server.
fn unreadable(error: &std::io::Error) -> Error {
    let first = error.get_ref().map(|source| source as &(dyn std::error::Error + 'static));
    let causes = || std::iter::successors(first, |cause| cause.source());
    let own = causes().find_map(|cause| {
        let inner = cause.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        let own = inner.and_then(|inner| inner.downcast_ref::<Error>());
        own.or_else(|| cause.downcast_ref::<Error>())
    });
    own.cloned().unwrap_or_else(|| {
        let inner =
            || causes().find_map(|cause| cause.downcast_ref::<std::io::Error>()?.raw_os_error());
        let reason = match error.raw_os_error().or_else(inner) {
            Some(code) => std::io::Error::from_raw_os_error(code).to_string(),
            None => "it is damaged, or it is another file".to_owned(),
        };
        Error::invalid(format!("the snapshot cannot be read as a tar archive: {reason}"))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn errors_repeat_no_bytes_of_the_file() {
        let file = "root:x:0:0:".repeat(200);
        let mut archive = tar::Archive::new(file.as_bytes());
        let error = archive.entries().unwrap().raw(true).next().unwrap().err().unwrap();
        assert!(error.to_string().contains("root:x"), "{error}");
        let shown = unreadable(&error);
        assert_eq!(shown.kind(), ErrorKind::InvalidArgument);
        assert!(shown.message().contains("tar archive"), "{shown}");
        assert!(!shown.message().contains("root"), "{shown}");
    }

    #[test]
    fn errors_of_the_system_are_kept() {
        let failed = || std::io::Error::from_raw_os_error(5);
        for error in [failed(), std::io::Error::other(failed())] {
            assert!(unreadable(&error).message().ends_with("(os error 5)"), "{error}");
        }
    }

    #[test]
    fn errors_of_this_program_are_kept() {
        let own = std::io::Error::other(Error::unavailable("the store does not answer"));
        assert_eq!(unreadable(&own).kind(), ErrorKind::Unavailable);
    }
}
