//! The watermark is a second record of the durable position of each log. A log whose file is cut
//! off or missing cannot show that position.
//!
//! The file `watermark` has two slots of a page, A for even epochs and B for odd ones. Recording
//! overwrites the older slot in place, so it needs no room, and makes it durable. It follows a
//! flush of the logs and never triggers one. So a watermark may be behind its logs by the writes
//! since it was last recorded, and is ahead of them only if bytes were lost.
//!
//! A slot has 4096 bytes. Numbers are little-endian. After the first 32 bytes, each log has three
//! numbers of 8 bytes. They are its own number, its durable bytes, and the number before which its
//! payloads are durable.
//!
//! | bytes | content |
//! |---|---|
//! | 0..8 | `MPMARKS` and a zero |
//! | 8..12 | version |
//! | 12..16 | number of logs |
//! | 16..24 | epoch |
//! | 24..32 | zeros |
//! | 32.. | the logs, then zeros |
//! | 4092..4096 | crc32c of bytes 0..4092 |

use std::collections::BTreeMap;
use std::sync::Arc;

use base::{ErrorKind, Result};

use crate::bytes::{put, u32_at, u64_at};
use crate::log::LogPosition;
use crate::medium::{Medium, Writer};
use crate::page::PAGE_BYTES;

/// Maximum logs of a watermark. The logs with the highest numbers stay.
pub const MARKS_MAX: usize = (SUM_AT - HEADER_BYTES) / MARK_BYTES;

const FILE: &str = "watermark";
const MAGIC: &[u8; 8] = b"MPMARKS\0";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 32;
const MARK_BYTES: usize = 24;
const SUM_AT: usize = PAGE_BYTES - 4;

/// Positions by the numbers of their logs.
pub type LogPositions = BTreeMap<u64, LogPosition>;

/// The watermark file, for one thread at a time.
pub struct Watermark {
    medium: Arc<dyn Medium>,
    /// `None` until the file is there, and after a failure.
    writer: Option<Box<dyn Writer>>,
    epoch: u64,
    recorded: Option<LogPositions>,
}

impl Watermark {
    /// Opens the watermark and returns the positions recorded last. They are `None` if there is no
    /// file or both slots are damaged. [`record`](Self::record) creates the file.
    ///
    /// # Errors
    /// The medium's error. Damage is not an error.
    pub fn open(medium: &Arc<dyn Medium>) -> Result<(Watermark, Option<LogPositions>)> {
        let bytes = match medium.salvage(FILE) {
            Ok(found) => found.bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        let slots = (0..2)
            .filter_map(|index| decode(bytes.get(index * PAGE_BYTES..(index + 1) * PAGE_BYTES)?));
        let (epoch, marks) = slots.max_by_key(|(epoch, _)| *epoch).unzip();
        let epoch = epoch.unwrap_or(0);
        Ok((Watermark { medium: medium.clone(), writer: None, epoch, recorded: None }, marks))
    }

    /// Makes `marks` durable, unless they are equal to the last ones. The caller has made the logs
    /// durable up to there before.
    ///
    /// # Errors
    /// The medium's error. The positions recorded before stay valid.
    pub fn record(&mut self, marks: LogPositions) -> Result<()> {
        if self.recorded.as_ref() == Some(&marks) {
            return Ok(());
        }
        let mut writer = match self.writer.take() {
            Some(writer) => writer,
            None => self.file()?,
        };
        let epoch = self.epoch + 1;
        // After a failure the same slot is written again, so that the other one stays whole.
        writer.write_at((epoch % 2) * PAGE_BYTES as u64, &encode(epoch, &marks))?;
        writer.persist()?;
        self.writer = Some(writer);
        self.epoch = epoch;
        self.recorded = Some(marks);
        Ok(())
    }

    /// Opens the file and gives it room for both slots.
    fn file(&self) -> Result<Box<dyn Writer>> {
        let mut writer = match self.medium.reopen(FILE) {
            Err(error) if error.kind() == ErrorKind::NotFound => self.medium.create(FILE)?,
            reopened => reopened?,
        };
        let missing = (2 * PAGE_BYTES as u64).saturating_sub(writer.bytes());
        if missing > 0 {
            writer.append(&vec![0; missing as usize])?;
            writer.persist()?;
            self.medium.persist_names()?;
        }
        Ok(writer)
    }
}

impl std::fmt::Debug for Watermark {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Watermark(epoch {})", self.epoch)
    }
}

fn encode(epoch: u64, marks: &LogPositions) -> [u8; PAGE_BYTES] {
    let mut slot = [0; PAGE_BYTES];
    let kept = marks.len().min(MARKS_MAX);
    put(&mut slot, 0, MAGIC);
    put(&mut slot, 8, &VERSION.to_le_bytes());
    put(&mut slot, 12, &(kept as u32).to_le_bytes());
    put(&mut slot, 16, &epoch.to_le_bytes());
    for (index, (log, mark)) in marks.iter().rev().take(kept).enumerate() {
        let at = HEADER_BYTES + index * MARK_BYTES;
        put(&mut slot, at, &log.to_le_bytes());
        put(&mut slot, at + 8, &mark.bytes.to_le_bytes());
        put(&mut slot, at + 16, &mark.next.to_le_bytes());
    }
    let sum = crc32c::crc32c(&slot[..SUM_AT]);
    put(&mut slot, SUM_AT, &sum.to_le_bytes());
    slot
}

/// Reads the epoch and the positions of a whole slot.
fn decode(slot: &[u8]) -> Option<(u64, LogPositions)> {
    let count = u32_at(slot, 12) as usize;
    let whole = crc32c::crc32c(slot.get(..SUM_AT)?) == u32_at(slot, SUM_AT);
    if !whole || &slot[..8] != MAGIC || u32_at(slot, 8) != VERSION || count > MARKS_MAX {
        return None;
    }
    let mark = |index: usize| {
        let at = HEADER_BYTES + index * MARK_BYTES;
        (u64_at(slot, at), LogPosition { bytes: u64_at(slot, at + 8), next: u64_at(slot, at + 16) })
    };
    Some((u64_at(slot, 16), (0..count).map(mark).collect()))
}
