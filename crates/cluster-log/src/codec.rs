//! Bytes of a log's entry.
//!
//! | bytes | content |
//! |---|---|
//! | 8 | `MILLPLOG` |
//! | 2 | version of the format, 1 |
//! | 1 | kind: 0 a fence, 1 writes |
//! | 1 | 0 |
//! | 8 | epoch |
//! | 16 | id of the writer |
//! | 4 | number of operations, 0 for a fence |
//! | 4 each | lengths of the operations |
//! | | the operations, one after the other |
//! | 4 | CRC-32C of everything before |
//!
//! Numbers are little-endian. An entry has only one form: bytes that can be decoded encode to the
//! same bytes again.

use std::sync::Arc;

use base::{Error, Result};
use bytes::Bytes;
use cluster::{EntryBody, Epoch, LogEntry, WriterId};

/// Maximum bytes of an entry.
pub const ENTRY_BYTES_MAX: usize = 64 << 20;
/// Maximum operations of an entry.
pub const ENTRY_OPERATIONS_MAX: usize = 1 << 16;

const MAGIC: [u8; 8] = *b"MILLPLOG";
const VERSION: u16 = 1;
const KIND_FENCE: u8 = 0;
const KIND_WRITES: u8 = 1;
const LENGTH_BYTES: usize = size_of::<u32>();
const CHECKSUM_BYTES: usize = size_of::<u32>();
/// Bytes before the lengths.
const HEADER_BYTES: usize = 40;

/// Operations of an entry, in order: each the JSON text of one element of `operations` of Qdrant's
/// `points/batch`, or an operation of images. Clones share the operations.
///
/// The name of an operation is its version. A holder stops at a name that it does not know, until
/// its node is upgraded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch(pub Arc<[Bytes]>);

impl From<Vec<Bytes>> for Batch {
    fn from(operations: Vec<Bytes>) -> Batch {
        Batch(operations.into())
    }
}

impl Batch {
    /// Returns the number of bytes that the operations take in an entry.
    pub fn bytes(&self) -> usize {
        self.0.iter().map(|operation| LENGTH_BYTES + operation.len()).sum()
    }
}

/// Returns the bytes of an entry.
///
/// # Errors
/// `TooLarge` above [`ENTRY_BYTES_MAX`] or [`ENTRY_OPERATIONS_MAX`].
pub fn encode_entry(entry: &LogEntry<Batch>) -> Result<Bytes> {
    let operations: &[Bytes] = match &entry.body {
        EntryBody::Fence => &[],
        EntryBody::Writes(batch) => &batch.0,
    };
    let length: usize = operations.iter().map(|operation| LENGTH_BYTES + operation.len()).sum();
    let length = HEADER_BYTES + length + CHECKSUM_BYTES;
    if length > ENTRY_BYTES_MAX || operations.len() > ENTRY_OPERATIONS_MAX {
        return Err(Error::too_large(format!(
            "an entry of {length} bytes and {} operations; an entry has at most {ENTRY_BYTES_MAX} \
             bytes and {ENTRY_OPERATIONS_MAX} operations",
            operations.len()
        )));
    }
    let mut bytes = Vec::with_capacity(length);
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.push(match &entry.body {
        EntryBody::Fence => KIND_FENCE,
        EntryBody::Writes(_) => KIND_WRITES,
    });
    bytes.push(0);
    bytes.extend_from_slice(&entry.epoch.0.to_le_bytes());
    bytes.extend_from_slice(&entry.writer.0.to_le_bytes());
    // The limits above are below the range of the fields.
    bytes.extend_from_slice(&(operations.len() as u32).to_le_bytes());
    for operation in operations {
        bytes.extend_from_slice(&(operation.len() as u32).to_le_bytes());
    }
    for operation in operations {
        bytes.extend_from_slice(operation);
    }
    bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
    Ok(bytes.into())
}

/// Reads an entry. Its operations share the memory of `bytes`.
///
/// # Errors
/// `DataLoss` for damaged bytes; `Unimplemented` for an entry of a newer program.
pub fn decode_entry(bytes: &Bytes) -> Result<LogEntry<Batch>> {
    let layout = EntryLayout::read(bytes)?;
    let body = match layout.kind {
        KIND_FENCE => EntryBody::Fence,
        _ => EntryBody::Writes(Batch::from(layout.operations(bytes)?)),
    };
    Ok(LogEntry { epoch: layout.epoch, writer: layout.writer, body })
}

/// Reads an entry from any bytes, which it copies. For tests with arbitrary bytes.
///
/// # Errors
/// As [`decode_entry`].
pub fn decode(bytes: &[u8]) -> Result<LogEntry<Batch>> {
    decode_entry(&Bytes::copy_from_slice(bytes))
}

/// Checked fields of an entry, and the lengths of its operations.
struct EntryLayout {
    kind: u8,
    epoch: Epoch,
    writer: WriterId,
    lengths: Vec<usize>,
}

impl EntryLayout {
    /// Checks the bytes of an entry, and returns where its parts are.
    ///
    /// # Errors
    /// `DataLoss` for damaged bytes; `Unimplemented` for an entry of a newer program.
    fn read(bytes: &[u8]) -> Result<EntryLayout> {
        if bytes.len() > ENTRY_BYTES_MAX {
            return Err(damaged("it is longer than an entry can be"));
        }
        let body_end = bytes.len().checked_sub(CHECKSUM_BYTES);
        let (body, checksum) = bytes.split_at(body_end.ok_or_else(|| damaged("it is too short"))?);
        let mut fields = EntryFields(body);
        if fields.take::<8>()? != MAGIC {
            return Err(damaged("its first bytes are not those of an entry"));
        }
        if crc32c::crc32c(body).to_le_bytes() != *checksum {
            return Err(damaged("its checksum does not match"));
        }
        let version = u16::from_le_bytes(fields.take()?);
        if version > VERSION {
            return Err(Error::unimplemented(format!(
                "the entry has format {version}, which a newer program wrote; update this program"
            )));
        }
        let [kind, zero] = fields.take()?;
        if version != VERSION || zero != 0 || !matches!(kind, KIND_FENCE | KIND_WRITES) {
            return Err(damaged("its header is not valid"));
        }
        let epoch = Epoch(u64::from_le_bytes(fields.take()?));
        let writer = WriterId(u128::from_le_bytes(fields.take()?));
        let lengths = fields.take_lengths()?;
        if kind == KIND_FENCE && !lengths.is_empty() {
            return Err(damaged("a fence has no operations"));
        }
        if lengths.iter().sum::<usize>() != fields.0.len() {
            return Err(damaged("the lengths of its operations do not match its length"));
        }
        Ok(EntryLayout { kind, epoch, writer, lengths })
    }

    /// Returns the operations, which share the memory of the entry.
    fn operations(&self, bytes: &Bytes) -> Result<Vec<Bytes>> {
        let total: usize = self.lengths.iter().sum();
        let start = bytes.len().checked_sub(CHECKSUM_BYTES + total);
        let mut at = start.ok_or_else(|| damaged("it is too short"))?;
        let mut operations = Vec::with_capacity(self.lengths.len());
        for length in &self.lengths {
            operations.push(bytes.slice(at..at + length));
            at += length;
        }
        Ok(operations)
    }
}

/// Rest of the bytes that are read.
struct EntryFields<'a>(&'a [u8]);

impl EntryFields<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk().ok_or_else(|| damaged("it is too short"))?;
        self.0 = rest;
        Ok(*field)
    }

    /// Takes the number of operations and their lengths. Each is below 2^32 and there are at most
    /// [`ENTRY_OPERATIONS_MAX`], so their sum does not overflow.
    fn take_lengths(&mut self) -> Result<Vec<usize>> {
        let count = u32::from_le_bytes(self.take()?) as usize;
        if count > ENTRY_OPERATIONS_MAX || count > self.0.len() / LENGTH_BYTES {
            return Err(damaged("it has too many operations"));
        }
        (0..count).map(|_| Ok(u32::from_le_bytes(self.take()?) as usize)).collect()
    }
}

fn damaged(reason: &str) -> Error {
    Error::data_loss(format!("the entry is damaged: {reason}"))
}
