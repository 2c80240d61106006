//! The superblock: the first page of a segment, with the table of its sections.
//!
//! | bytes | what |
//! |---|---|
//! | 0..8 | `MPSEGMNT` |
//! | 8..12 | version of the format, 1 |
//! | 12..16 | 0x01020304, which differs if the bytes were swapped |
//! | 16..32 | uuid of the segment |
//! | 32..40 | rows |
//! | 40..44 | sections n, at most [`SECTIONS_MAX`] |
//! | 44..64 | zero |
//! | 64..64+32n | sections: kind u32, crc32c u32, offset u64, bytes u64, aux u64 |
//! | ..4092 | zero |
//! | 4092..4096 | crc32c of bytes 0..4092 |

use base::{Error, Result};

use crate::bytes::{put, u32_at, u64_at};
use crate::page::PAGE_BYTES;

/// Version of the format that this program writes.
pub const VERSION: u32 = 1;
/// Maximum sections of a superblock.
pub const SECTIONS_MAX: usize = 120;

const MAGIC: &[u8; 8] = b"MPSEGMNT";
const BYTE_ORDER: u32 = 0x0102_0304;
const SECTION_START: usize = 64;
const SECTION_BYTES: usize = 32;
const SUM_AT: usize = PAGE_BYTES - 4;

const _: () = assert!(SECTION_START + SECTIONS_MAX * SECTION_BYTES <= SUM_AT);

/// A part of a segment's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Section {
    /// Type of the contents. The writer assigns the numbers.
    pub kind: u32,
    /// Offset in the file, a multiple of 4096.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// Checksum of all its bytes, or 0 if its pages check themselves.
    pub crc32c: u32,
    /// A number with a meaning that the writer defines for each `kind`.
    pub aux: u64,
}

/// Contents of the first page of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Identity of the segment, independent of the file's location.
    pub uuid: [u8; 16],
    /// Version of the format: [`VERSION`].
    pub version: u32,
    /// Rows of the segment.
    pub rows: u64,
    /// Sections of the file.
    pub sections: Vec<Section>,
}

impl Superblock {
    /// Encodes the page.
    ///
    /// # Errors
    /// `InvalidArgument` for more than [`SECTIONS_MAX`] sections.
    pub fn encode(&self) -> Result<[u8; PAGE_BYTES]> {
        if self.sections.len() > SECTIONS_MAX {
            let count = self.sections.len();
            return Err(Error::invalid(format!(
                "a segment has at most {SECTIONS_MAX} sections, not {count}"
            )));
        }
        let mut page = [0; PAGE_BYTES];
        put(&mut page, 0, MAGIC);
        put(&mut page, 8, &self.version.to_le_bytes());
        put(&mut page, 12, &BYTE_ORDER.to_le_bytes());
        put(&mut page, 16, &self.uuid);
        put(&mut page, 32, &self.rows.to_le_bytes());
        put(&mut page, 40, &(self.sections.len() as u32).to_le_bytes());
        for (section, at) in self.sections.iter().zip((SECTION_START..).step_by(SECTION_BYTES)) {
            put(&mut page, at, &section.kind.to_le_bytes());
            put(&mut page, at + 4, &section.crc32c.to_le_bytes());
            put(&mut page, at + 8, &section.offset.to_le_bytes());
            put(&mut page, at + 16, &section.bytes.to_le_bytes());
            put(&mut page, at + 24, &section.aux.to_le_bytes());
        }
        let sum = crc32c::crc32c(&page[..SUM_AT]);
        put(&mut page, SUM_AT, &sum.to_le_bytes());
        Ok(page)
    }

    /// Reads the page at the start of `bytes`.
    ///
    /// # Errors
    /// `DataLoss` for bytes that are not an intact superblock, `FailedPrecondition` for a version
    /// that this program does not read.
    pub fn decode(bytes: &[u8]) -> Result<Superblock> {
        let Some(page) = bytes.get(..PAGE_BYTES) else {
            return Err(Error::data_loss(format!("{} bytes are not a superblock", bytes.len())));
        };
        if &page[..8] != MAGIC {
            return Err(Error::data_loss("the file does not start with a segment's superblock"));
        }
        if crc32c::crc32c(&page[..SUM_AT]) != u32_at(page, SUM_AT) {
            return Err(Error::data_loss("the superblock does not match its checksum"));
        }
        let (version, order, count) =
            (u32_at(page, 8), u32_at(page, 12), u32_at(page, 40) as usize);
        if version != VERSION || order != BYTE_ORDER {
            return Err(Error::precondition(format!(
                "the segment has version {version} of the format, this program reads version {VERSION}; use the \
                 program that wrote it"
            )));
        }
        if count > SECTIONS_MAX {
            return Err(Error::data_loss(format!("the superblock says {count} sections")));
        }
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&page[16..32]);
        let sections = (0..count)
            .map(|index| section_at(page, SECTION_START + index * SECTION_BYTES))
            .collect();
        Ok(Superblock { uuid, version, rows: u64_at(page, 32), sections })
    }

    /// Returns the section of a kind.
    ///
    /// # Errors
    /// `DataLoss` if there is none.
    pub fn section(&self, kind: u32) -> Result<&Section> {
        let found = self.sections.iter().find(|section| section.kind == kind);
        found.ok_or_else(|| Error::data_loss(format!("the segment has no section of kind {kind}")))
    }

    /// Checks that all sections lie in a file of `file_bytes`, after the superblock, aligned and
    /// without overlap.
    ///
    /// # Errors
    /// `DataLoss` naming the first section that does not.
    pub fn check(&self, file_bytes: u64) -> Result<()> {
        let mut sections: Vec<&Section> = self.sections.iter().collect();
        sections.sort_by_key(|section| (section.offset, section.bytes));
        let mut free = PAGE_BYTES as u64;
        for section in sections {
            let Section { kind, offset, bytes, .. } = *section;
            let end = offset.checked_add(bytes).filter(|&end| end <= file_bytes);
            let (Some(end), true) =
                (end, offset >= free && offset.is_multiple_of(PAGE_BYTES as u64))
            else {
                return Err(Error::data_loss(format!(
                    "section {kind} ({bytes} bytes at {offset}) does not fit in the segment's {file_bytes} bytes"
                )));
            };
            free = end;
        }
        Ok(())
    }
}

fn section_at(page: &[u8], at: usize) -> Section {
    Section {
        kind: u32_at(page, at),
        crc32c: u32_at(page, at + 4),
        offset: u64_at(page, at + 8),
        bytes: u64_at(page, at + 16),
        aux: u64_at(page, at + 24),
    }
}
