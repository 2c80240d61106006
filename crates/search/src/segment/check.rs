//! Check of a segment's file while a copy of it reads all bytes in order: the superblock and every
//! page of every section. Only the superblock and the table of checksums are read in addition.

use std::ops::Range;

use base::Result;
use storage::Sealed;
use storage::page::{PAGE_BYTES, PageRunCheck};
use storage::superblock::{Section, Superblock};

use super::file::{SegmentContents, padded_crc32c};
use super::layout::{kind, kind_name};

/// Maximum bytes that are kept from one step for the next one: a page without its last byte.
const CARRY_BYTES_MAX: usize = PAGE_BYTES - 1;

/// Damage of a segment's file, found by a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SegmentFileDamage {
    /// Damaged page, counted from the start of the file, or `None` if no page is known.
    pub(crate) page: Option<u64>,
    /// Section and description of the damage.
    pub(crate) reason: String,
    /// True if an open segment has the data of the page nowhere else.
    pub(crate) loses_data: bool,
}

/// Check of the bytes of a segment's file in their order. Its memory is the table of checksums:
/// 4 bytes for each page of the file.
#[derive(Debug)]
pub(crate) struct SegmentFileCheck {
    contents: SegmentContents,
    /// Sections with bytes, by their place in the file.
    sections: Vec<SectionCheck>,
    /// Index of the section of the next page, or of a section before it.
    current: usize,
    /// Number of the next page.
    next: u64,
    /// Bytes of the next page, if a step ended within it. At most [`CARRY_BYTES_MAX`] between
    /// steps.
    carry: Vec<u8>,
}

/// Check of one section.
#[derive(Debug)]
struct SectionCheck {
    section: Section,
    /// Pages of the file.
    pages: Range<u64>,
    /// Check of the pages, if they have checksums of their own.
    runs: PageRunCheck,
}

impl SegmentFileCheck {
    /// Reads and verifies the superblock and the table of checksums of `file`.
    ///
    /// # Errors
    /// `DataLoss` if they are damaged. Otherwise the error of the medium.
    pub(crate) fn begin(file: &dyn Sealed) -> Result<SegmentFileCheck> {
        let contents = SegmentContents::read(file)?;
        let with_bytes = contents.superblock.sections.iter().filter(|section| section.bytes > 0);
        let mut sections: Vec<SectionCheck> = with_bytes
            .map(|&section| {
                let first = section.offset / PAGE_BYTES as u64;
                let pages = first..first + section.bytes.div_ceil(PAGE_BYTES as u64);
                SectionCheck { section, pages, runs: PageRunCheck::new() }
            })
            .collect();
        sections.sort_by_key(|section| section.pages.start);
        let carry = Vec::with_capacity(CARRY_BYTES_MAX);
        Ok(SegmentFileCheck { contents, sections, current: 0, next: 0, carry })
    }

    /// Returns the offset of the next byte in the file.
    pub(crate) fn position(&self) -> u64 {
        self.next * PAGE_BYTES as u64 + self.carry.len() as u64
    }

    /// Checks the next bytes of the file, in steps of any length.
    ///
    /// # Errors
    /// The first damage. No bytes may be added afterwards.
    pub(crate) fn add(&mut self, bytes: &[u8]) -> Result<(), SegmentFileDamage> {
        let mut rest = bytes;
        if !self.carry.is_empty() {
            let missing = PAGE_BYTES - self.carry.len();
            let (now, later) = rest.split_at(rest.len().min(missing));
            self.carry.extend_from_slice(now);
            if self.carry.len() < PAGE_BYTES {
                return Ok(());
            }
            self.add_carried()?;
            rest = later;
        }
        let (pages, carry) = rest.as_chunks::<PAGE_BYTES>();
        for page in pages {
            self.add_page(page)?;
        }
        self.carry.extend_from_slice(carry);
        Ok(())
    }

    /// Returns the damage of page `page` of the file, which the medium cannot read.
    pub(crate) fn unreadable(&self, page: u64, reason: &str) -> SegmentFileDamage {
        match self.sections.iter().find(|section| section.pages.contains(&page)) {
            Some(section) => section.damage(page, reason),
            None => {
                SegmentFileDamage { page: Some(page), reason: reason.to_owned(), loses_data: false }
            }
        }
    }

    /// Checks the last page after all bytes of the file were added.
    ///
    /// # Errors
    /// As [`SegmentFileCheck::add`].
    pub(crate) fn finish(&mut self) -> Result<(), SegmentFileDamage> {
        if self.carry.is_empty() { Ok(()) } else { self.add_carried() }
    }

    /// Checks the page in `carry`, and empties `carry`.
    fn add_carried(&mut self) -> Result<(), SegmentFileDamage> {
        let mut page = std::mem::take(&mut self.carry);
        let checked = self.add_page(&page);
        page.clear();
        self.carry = page;
        checked
    }

    /// Checks the next page of the file.
    fn add_page(&mut self, bytes: &[u8]) -> Result<(), SegmentFileDamage> {
        let page = self.next;
        self.next += 1;
        if page == 0 {
            return self.check_superblock(bytes);
        }
        while self.sections.get(self.current).is_some_and(|section| section.pages.end <= page) {
            self.current += 1;
        }
        match self.sections.get_mut(self.current) {
            Some(section) if section.pages.contains(&page) => {
                section.add(page, bytes, &self.contents)
            }
            // No section has the page, so no reader uses it.
            _ => Ok(()),
        }
    }

    fn check_superblock(&self, bytes: &[u8]) -> Result<(), SegmentFileDamage> {
        let reason = match Superblock::decode(bytes) {
            Ok(found) if found == self.contents.superblock => return Ok(()),
            Ok(_) => "the superblock changed".to_owned(),
            Err(error) => error.message().to_owned(),
        };
        Err(SegmentFileDamage { page: Some(0), reason, loses_data: false })
    }
}

impl SectionCheck {
    /// Checks page `page` of the file, which is the next page of the section.
    fn add(
        &mut self,
        page: u64,
        bytes: &[u8],
        contents: &SegmentContents,
    ) -> Result<(), SegmentFileDamage> {
        if has_own_checksums(self.section.kind) {
            return self.add_to_run(page, bytes);
        }
        match contents.page_crc32c(&self.section, page - self.pages.start) {
            Some(check) if check == padded_crc32c(bytes) => Ok(()),
            Some(_) => Err(self.damage(page, "it does not match its checksum")),
            None => Err(self.damage(page, "it has no checksum")),
        }
    }

    fn add_to_run(&mut self, page: u64, bytes: &[u8]) -> Result<(), SegmentFileDamage> {
        let mut checked = self.runs.add(bytes);
        if page + 1 == self.pages.end {
            checked = checked.and_then(|()| self.runs.finish());
        }
        checked.map_err(|error| {
            let first = self.pages.start + u64::from(self.runs.first());
            self.damage(first, error.message())
        })
    }

    fn damage(&self, page: u64, reason: &str) -> SegmentFileDamage {
        let kind = self.section.kind;
        let reason = format!("{}: {reason}", kind_name(kind));
        SegmentFileDamage { page: Some(page), reason, loses_data: has_only_copy(kind) }
    }
}

fn has_own_checksums(kind: u32) -> bool {
    matches!(kind, kind::RECORDS | kind::PAYLOADS)
}

/// Returns true for sections that an open segment does not hold in memory and that a merge cannot
/// compute from other sections.
fn has_only_copy(kind: u32) -> bool {
    has_own_checksums(kind) || kind == kind::VECTORS
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use storage::page::Packer;
    use storage::{Medium, UringMedium};

    use super::super::file::SegmentFileWriter;
    use super::*;

    const NAME: &str = "segment";

    struct TestFile {
        file: Arc<dyn Sealed>,
        bytes: Vec<u8>,
        _directory: tempfile::TempDir,
    }

    /// Writes a file whose sections have pages of every kind. `lengths` are those of the records.
    fn written(lengths: &[usize]) -> TestFile {
        let directory = tempfile::tempdir().unwrap();
        let medium = UringMedium::plain(directory.path().to_owned()).unwrap();
        let step = |_: u64| -> Result<()> { Ok(()) };
        let mut file = SegmentFileWriter::create(&medium, NAME, &step).unwrap();
        file.section(kind::SETTINGS, &[1; 32]).unwrap();
        file.section(kind::COARSE_FIRST, &[]).unwrap();
        file.section(kind::VECTORS, &vec![7; 3 * PAGE_BYTES + 100]).unwrap();
        let mut packer = Packer::new();
        let mut pages = Vec::new();
        for (row, &length) in (0_u8..).zip(lengths) {
            packer.push(&vec![row; length]).unwrap();
        }
        packer.finish(&mut pages).unwrap();
        file.begin_pages(kind::RECORDS);
        file.put(&pages).unwrap();
        file.end().unwrap();
        file.section(kind::IDS, &[5; 2 * PAGE_BYTES]).unwrap();
        file.finish([3; 16], 10).unwrap();
        let bytes = medium.load(NAME).unwrap();
        TestFile { file: medium.open(NAME).unwrap(), bytes, _directory: directory }
    }

    /// Passes `bytes` to a check in steps of the lengths `steps`, again and again.
    fn walk(test: &TestFile, bytes: &[u8], steps: &[usize]) -> Result<(), SegmentFileDamage> {
        let mut check = SegmentFileCheck::begin(&*test.file).unwrap();
        let mut rest = bytes;
        for step in steps.iter().cycle() {
            let (now, later) = rest.split_at(rest.len().min(*step));
            check.add(now)?;
            assert!(check.carry.len() <= CARRY_BYTES_MAX);
            rest = later;
            assert_eq!(check.position(), (bytes.len() - rest.len()) as u64);
            if rest.is_empty() {
                break;
            }
        }
        check.finish()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn a_flipped_bit_is_found_with_any_steps(
            lengths in prop::collection::vec(
                prop_oneof![8 => 0_usize..600, 1 => 4000_usize..20_000], 1..40),
            steps in prop::collection::vec(1_usize..10_000, 1..20),
            at in any::<prop::sample::Index>(),
        ) {
            let test = written(&lengths);
            prop_assert_eq!(walk(&test, &test.bytes, &steps), Ok(()));
            let mut bytes = test.bytes.clone();
            let at = at.index(bytes.len());
            bytes[at] ^= 1;
            let damage = walk(&test, &bytes, &steps).unwrap_err();
            let page = (at / PAGE_BYTES) as u64;
            // A record of several pages is named by its first page.
            let found = damage.page.unwrap();
            prop_assert!(found <= page && page <= found + 4, "page {page}: {damage:?}");
        }
    }

    #[test]
    fn damage_names_its_section() {
        let test = written(&[100, 9000, 100]);
        let sections = Superblock::decode(&test.bytes).unwrap().sections;
        for section in sections.iter().filter(|section| section.bytes > 0) {
            let mut bytes = test.bytes.clone();
            bytes[usize::try_from(section.offset).unwrap() + 20] ^= 1;
            let damage = walk(&test, &bytes, &[256 << 10]).unwrap_err();
            assert_eq!(damage.page, Some(section.offset / PAGE_BYTES as u64), "{damage:?}");
            assert!(damage.reason.starts_with(kind_name(section.kind)), "{damage:?}");
            let is_lost = matches!(section.kind, kind::VECTORS | kind::RECORDS);
            assert_eq!(damage.loses_data, is_lost, "{damage:?}");
        }
        let mut bytes = test.bytes.clone();
        bytes[100] ^= 1;
        let damage = walk(&test, &bytes, &[4096]).unwrap_err();
        assert_eq!((damage.page, damage.loses_data), (Some(0), false));
    }
}
