//! The manifest: the list of valid files, replaced as a whole.
//!
//! A list is a file of its own, named by its epoch and never changed. The file `manifest` has two
//! slots of a page, A for even epochs and B for odd ones. Each names a list by epoch, length and
//! hash. Publishing writes the new list, makes it durable, overwrites the older slot, and only then
//! removes the list before the last. So after any crash one slot and its list are whole. Opening
//! takes the newest whole slot with a whole list. If both slots are whole, it removes a newer list,
//! which no slot names yet.
//!
//! A slot has 4096 bytes. Numbers are little-endian.
//!
//! | bytes | content |
//! |---|---|
//! | 0..8 | `MPMANIF` and a zero |
//! | 8..12 | version |
//! | 16..24 | epoch |
//! | 24..32 | bytes of the payload of the list |
//! | 32..64 | BLAKE3 hash of the payload |
//! | 4092..4096 | crc32c of bytes 0..4092 |
//!
//! A list is a header and the payload.
//!
//! | bytes | content |
//! |---|---|
//! | 0..8 | `MPLIST` and two zeros |
//! | 8..12 | version |
//! | 12..16 | crc32c of bytes 0..60, of which these are zero |
//! | 16..24 | epoch |
//! | 24..32 | bytes of the payload |
//! | 32..60 | first bytes of the BLAKE3 hash of the payload |
//! | 60..64 | zeros |

use std::sync::Arc;

use base::{Error, ErrorKind, Result};

use crate::bytes::{put, u32_at, u64_at};
use crate::medium::{Medium, Writer};
use crate::page::PAGE_BYTES;

/// Maximum bytes of a list.
pub const LIST_BYTES_MAX: usize = 64 << 20;

const FILE: &str = "manifest";
const LIST_PREFIX: &str = "list-";
const SLOT_MAGIC: &[u8; 8] = b"MPMANIF\0";
const LIST_MAGIC: &[u8; 8] = b"MPLIST\0\0";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 64;
const SLOT_SUM_AT: usize = PAGE_BYTES - 4;

/// The current list, and the way to replace it. One thread publishes at a time.
pub struct Manifest {
    medium: Arc<dyn Medium>,
    /// `None` after a failure to write a slot.
    writer: Option<Box<dyn Writer>>,
    epoch: u64,
    problems: Vec<String>,
}

impl Manifest {
    /// Opens the manifest, or creates an empty one, and returns the newest valid payload. Damaged
    /// parts are skipped if something whole is left, and reported by [`problems`](Self::problems).
    ///
    /// # Errors
    /// `DataLoss` if there are lists and none is whole. `FailedPrecondition` for a slot of another
    /// version, and nothing is changed. Otherwise the medium's error, also if it refuses to read
    /// the slots or every list and another attempt can succeed.
    pub fn open(medium: &Arc<dyn Medium>) -> Result<(Manifest, Option<Vec<u8>>)> {
        let (mut writer, slots) = match medium.reopen(FILE) {
            Ok(writer) => (writer, medium.load(FILE)),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                (medium.create(FILE)?, Ok(Vec::new()))
            }
            Err(error) => return Err(error),
        };
        let mut problems = Vec::new();
        let slots = match slots {
            Ok(slots) => slots,
            Err(error) if is_temporary(&error) => return Err(error),
            Err(error) => {
                problems.push(format!("the manifest cannot be read: {error}"));
                Vec::new()
            }
        };
        let found = Self::newest(medium, &slots, &mut problems)?;
        for problem in &problems {
            tracing::error!(problem, "the manifest is damaged");
        }
        // A crash ended the publication of a newer list before its slot was written. The caller
        // removes files that only this list names, so it must not count if slots are lost later.
        if let Some((epoch, _)) = &found
            && problems.is_empty()
        {
            remove_lists(medium, |list| list > *epoch);
        }
        repair(medium, &mut *writer, slots.len())?;
        let (epoch, payload) = found.unzip();
        let epoch = epoch.unwrap_or(0);
        let manifest = Manifest { medium: medium.clone(), writer: Some(writer), epoch, problems };
        Ok((manifest, payload))
    }

    /// Makes a list the current one and returns its epoch. After this returns, the list survives a
    /// loss of power.
    ///
    /// # Errors
    /// `InvalidArgument` for more than [`LIST_BYTES_MAX`], otherwise the medium's error. A failure
    /// to write the list changes nothing. If the slot cannot be made durable, a start finds this
    /// list or the one before it. That lasts until a later call succeeds, so the files of both must
    /// stay.
    pub fn publish(&mut self, payload: &[u8]) -> Result<u64> {
        if payload.len() > LIST_BYTES_MAX {
            let bytes = payload.len();
            return Err(Error::invalid(format!(
                "a list of {bytes} bytes is longer than {LIST_BYTES_MAX}"
            )));
        }
        let epoch = self.epoch + 1;
        self.write_list(epoch, payload)?;
        let mut writer = match self.writer.take() {
            Some(writer) => writer,
            None => self.medium.reopen(FILE)?,
        };
        // After a failure the same slot is written again, so that the other one stays whole.
        writer.write_at(slot_at(epoch), &encode_slot(epoch, payload))?;
        writer.persist()?;
        self.writer = Some(writer);
        self.epoch = epoch;
        // A failure costs only space, because the next publication tries again.
        remove_lists(&self.medium, |list| list < epoch.saturating_sub(1));
        Ok(epoch)
    }

    /// Returns the epoch of the current list, or 0 before the first list. For tests.
    #[doc(hidden)]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Descriptions of the damage found at opening.
    pub fn problems(&self) -> &[String] {
        &self.problems
    }

    /// Returns the newest list that is whole, with its number. Returns `None` for a medium that was
    /// never written. Adds a text to `problems` for each damaged slot and list.
    ///
    /// # Errors
    /// `DataLoss` if no list is whole. `FailedPrecondition` for a slot of another version. Also the
    /// error of a list that the system refuses to read.
    fn newest(
        medium: &Arc<dyn Medium>,
        slots: &[u8],
        problems: &mut Vec<String>,
    ) -> Result<Option<(u64, Vec<u8>)>> {
        let mut valid: Vec<ManifestSlot> = Vec::new();
        for index in 0..2 {
            valid.extend(decode_slot(slots, index, problems)?);
        }
        valid.sort_by_key(|slot| std::cmp::Reverse(slot.epoch));
        let mut refused = None;
        for slot in &valid {
            match read_list(medium, slot.epoch) {
                Ok((hash, payload)) if hash == slot.hash && payload.len() as u64 == slot.bytes => {
                    return Ok(Some((slot.epoch, payload)));
                }
                Ok(_) => {
                    problems.push(format!("list {} is not the one its slot names", slot.epoch))
                }
                Err(error) => unreadable(error, problems, &mut refused),
            }
        }
        // Both slots are lost. A list is durable before its slot is written, so the newest whole
        // list was current or about to be.
        let mut epochs: Vec<u64> =
            medium.list()?.iter().filter_map(|(name, _)| epoch_of(name)).collect();
        epochs.sort_unstable_by_key(|&epoch| std::cmp::Reverse(epoch));
        for &epoch in &epochs {
            match read_list(medium, epoch) {
                // The first list may have been written and its slot not.
                Ok(_) if epoch == 1 && valid.is_empty() && slots.iter().all(|&byte| byte == 0) => {
                    return Ok(None);
                }
                Ok((_, payload)) => {
                    problems.push(format!(
                        "both slots are lost; list {epoch} is the newest that is whole"
                    ));
                    return Ok(Some((epoch, payload)));
                }
                Err(error) => unreadable(error, problems, &mut refused),
            }
        }
        // A list that the system refuses to read may be whole.
        if let Some(error) = refused {
            return Err(error);
        }
        // A slot never names an incomplete list, so nothing is lost if there is no trace of slots.
        if slots.iter().all(|&byte| byte == 0) && epochs.iter().all(|&epoch| epoch <= 1) {
            return Ok(None);
        }
        Err(Error::data_loss(format!(
            "the manifest and all its lists are damaged ({}); restore them from a copy",
            problems.join("; ")
        )))
    }

    /// Writes the list of `epoch` as a file of its own, and makes it durable.
    fn write_list(&mut self, epoch: u64, payload: &[u8]) -> Result<()> {
        let name = list_name(epoch);
        // Left by an unfinished publication.
        match self.medium.remove(&name) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut list = self.medium.create(&name)?;
        list.append(&list_header(epoch, payload))?;
        list.append(payload)?;
        list.persist()?;
        self.medium.persist_names()
    }
}

impl std::fmt::Debug for Manifest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Manifest(epoch {})", self.epoch)
    }
}

/// Brings the file to two slots, and makes the slots that were read durable. `length` is the number
/// of bytes that were read.
fn repair(medium: &Arc<dyn Medium>, writer: &mut dyn Writer, length: usize) -> Result<()> {
    if length != 2 * PAGE_BYTES {
        writer.truncate(writer.bytes().min(2 * PAGE_BYTES as u64))?;
        let missing = 2 * PAGE_BYTES - writer.bytes() as usize;
        writer.append(&vec![0; missing])?;
    }
    // A process that was killed may have left the newest slot in the page cache only. The caller
    // removes files that only the list before it names, so the slot must not get lost.
    writer.persist()?;
    medium.persist_names()
}

/// Head of a slot.
struct ManifestSlot {
    epoch: u64,
    bytes: u64,
    hash: [u8; 32],
}

/// Records that a list cannot be read, and keeps the first error of one that another attempt may
/// read.
fn unreadable(error: Error, problems: &mut Vec<String>, refused: &mut Option<Error>) {
    problems.push(error.to_string());
    if refused.is_none() && is_temporary(&error) {
        *refused = Some(error);
    }
}

/// Returns true if another attempt may read the file, because the permission is missing or too many
/// files are open. An unknown failure (`Internal`) may be permanent, so it counts as damage.
fn is_temporary(error: &Error) -> bool {
    error.is_retryable() && error.kind() != ErrorKind::Internal
}

/// Removes the lists whose epochs are `unneeded`. A failure is logged.
fn remove_lists(medium: &Arc<dyn Medium>, unneeded: impl Fn(u64) -> bool) {
    let removed = medium.list().and_then(|files| {
        let names = files.iter().map(|(name, _)| name);
        names
            .filter(|name| epoch_of(name).is_some_and(&unneeded))
            .try_for_each(|name| medium.remove(name))
    });
    if let Err(error) = removed {
        tracing::warn!(%error, "lists of the manifest that are not needed stay");
    }
}

fn slot_at(epoch: u64) -> u64 {
    (epoch % 2) * PAGE_BYTES as u64
}

fn encode_slot(epoch: u64, payload: &[u8]) -> [u8; PAGE_BYTES] {
    let mut slot = [0; PAGE_BYTES];
    put(&mut slot, 0, SLOT_MAGIC);
    put(&mut slot, 8, &VERSION.to_le_bytes());
    put(&mut slot, 16, &epoch.to_le_bytes());
    put(&mut slot, 24, &(payload.len() as u64).to_le_bytes());
    put(&mut slot, 32, blake3::hash(payload).as_bytes());
    let sum = crc32c::crc32c(&slot[..SLOT_SUM_AT]);
    put(&mut slot, SLOT_SUM_AT, &sum.to_le_bytes());
    slot
}

/// Reads one of the two slots if it is whole. A slot of zeros was never written.
///
/// # Errors
/// `FailedPrecondition` for a whole slot of another version. The other slot may be older, and the
/// caller would remove the files of the newer one.
fn decode_slot(
    slots: &[u8],
    index: usize,
    problems: &mut Vec<String>,
) -> Result<Option<ManifestSlot>> {
    let slot = slots.get(index * PAGE_BYTES..(index + 1) * PAGE_BYTES).unwrap_or_default();
    if slot.iter().all(|&byte| byte == 0) {
        return Ok(None);
    }
    let epoch = u64_at(slot, 16);
    let version = u32_at(slot, 8);
    let whole = crc32c::crc32c(&slot[..SLOT_SUM_AT]) == u32_at(slot, SLOT_SUM_AT)
        && &slot[..8] == SLOT_MAGIC;
    if whole && version != VERSION {
        return Err(Error::precondition(format!(
            "the manifest has version {version}, this program reads {VERSION}; use the program \
             that wrote it"
        )));
    }
    if !whole || epoch % 2 != index as u64 {
        problems.push(format!("slot {} of the manifest is damaged", ['A', 'B'][index % 2]));
        return Ok(None);
    }
    let mut hash = [0; 32];
    hash.copy_from_slice(&slot[32..64]);
    Ok(Some(ManifestSlot { epoch, bytes: u64_at(slot, 24), hash }))
}

fn list_name(epoch: u64) -> String {
    format!("{LIST_PREFIX}{epoch:016x}")
}

fn epoch_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(LIST_PREFIX)?;
    (digits.len() == 16).then(|| u64::from_str_radix(digits, 16).ok())?
}

fn list_header(epoch: u64, payload: &[u8]) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    put(&mut header, 0, LIST_MAGIC);
    put(&mut header, 8, &VERSION.to_le_bytes());
    put(&mut header, 16, &epoch.to_le_bytes());
    put(&mut header, 24, &(payload.len() as u64).to_le_bytes());
    put(&mut header, 32, &blake3::hash(payload).as_bytes()[..28]);
    let sum = crc32c::crc32c(&header[..60]);
    put(&mut header, 12, &sum.to_le_bytes());
    header
}

/// Reads the hash and the payload of a list if it is whole.
fn read_list(medium: &Arc<dyn Medium>, epoch: u64) -> Result<([u8; 32], Vec<u8>)> {
    let name = list_name(epoch);
    let mut list = medium.load(&name)?;
    let payload = list.get(HEADER_BYTES..).unwrap_or_default();
    if list.get(..HEADER_BYTES) != Some(&list_header(epoch, payload)[..]) {
        return Err(Error::data_loss(format!("list {name} of the manifest is damaged")));
    }
    let hash = *blake3::hash(payload).as_bytes();
    list.drain(..HEADER_BYTES);
    Ok((hash, list))
}
