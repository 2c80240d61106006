//! Reads of pinned files: damage of the disk is found before it gets into a copy.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use base::ErrorKind;
use search::collection::{FileRole, PinnedFile, PinnedFiles};
use storage::page::PAGE_BYTES;
use storage::superblock::{Section, Superblock};
use storage::{FaultMedium, FaultPlan, Medium, ReadFault, UringMedium};

use crate::points::{TestCollection, memory_medium, open, options, point, stored};

/// Bytes of one read, as in an upload.
const STEP_BYTES: usize = 256 << 10;
const PAGE: u64 = PAGE_BYTES as u64;
/// Kinds of sections.
const IDS: u32 = 2;
const VECTORS: u32 = 4;

/// Returns a collection in files of `root`.
fn filled(root: &Path) -> TestCollection {
    let medium: Arc<dyn Medium> = Arc::new(UringMedium::plain(root.to_owned()).unwrap());
    filled_on(&medium)
}

/// Returns a collection with a segment and deletes.
fn filled_on(medium: &Arc<dyn Medium>) -> TestCollection {
    let collection = open(medium, options());
    (0..40).for_each(|id| collection.upsert(point(&stored(id, 1))).unwrap());
    collection.flush().unwrap();
    collection.delete(3).unwrap();
    collection
}

fn read_all(pinned: &PinnedFiles<'_>, file: &PinnedFile) -> base::Result<Vec<u8>> {
    let reader = pinned.open(file)?;
    let mut bytes = vec![0; usize::try_from(reader.bytes()).unwrap()];
    for (index, step) in bytes.chunks_mut(STEP_BYTES).enumerate() {
        reader.read_at((index * STEP_BYTES) as u64, step)?;
    }
    Ok(bytes)
}

fn flip(path: &Path, at: u64) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

fn segment<'a>(pinned: &'a PinnedFiles<'_>) -> &'a PinnedFile {
    let is_segment = |file: &&PinnedFile| matches!(file.role, FileRole::Segment { .. });
    pinned.files().iter().find(is_segment).unwrap()
}

/// Flips a byte of a section in the only segment, and reads the segment. Returns its name.
fn damage(root: &Path, collection: &TestCollection, kind: u32) -> String {
    let pinned = collection.pin().unwrap();
    let file = segment(&pinned);
    let path = root.join(&file.name);
    let superblock = Superblock::decode(&std::fs::read(&path).unwrap()).unwrap();
    let Section { offset, .. } = *superblock.section(kind).unwrap();
    flip(&path, offset + 5);
    let error = read_all(&pinned, file).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DataLoss);
    assert!(error.message().starts_with(&format!("page {}: ", offset / PAGE)), "{error}");
    let quarantined = collection.status().quarantined;
    assert_eq!(quarantined.len(), 1, "{quarantined:?}");
    assert_eq!((&quarantined[0].file, quarantined[0].page), (&file.name, Some(offset / PAGE)));
    file.name.clone()
}

#[test]
fn a_damaged_page_does_not_get_into_a_copy() {
    let root = tempfile::tempdir().unwrap();
    let collection = filled(root.path());
    let pinned = collection.pin().unwrap();
    let mut damaged = [0, 0];
    for file in pinned.files() {
        let path = root.path().join(&file.name);
        let mut wanted = std::fs::read(&path).unwrap();
        wanted.truncate(usize::try_from(file.bytes).unwrap());
        assert_eq!(read_all(&pinned, file).unwrap(), wanted, "{}", file.name);
        let place = match file.role {
            FileRole::Segment { .. } => 0,
            FileRole::Deletes => 1,
            FileRole::Log => continue,
        };
        for page in 0..file.bytes / PAGE {
            let at = page * PAGE + page % 8;
            flip(&path, at);
            let error = read_all(&pinned, file).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::DataLoss, "{} at {at}", file.name);
            flip(&path, at);
            damaged[place] += 1;
        }
        read_all(&pinned, file).unwrap();
    }
    assert!(damaged[0] > 15 && damaged[1] == 2, "{damaged:?}");
}

#[test]
fn a_copy_reads_a_segment_in_order() {
    let root = tempfile::tempdir().unwrap();
    let collection = filled(root.path());
    let pinned = collection.pin().unwrap();
    let reader = pinned.open(segment(&pinned)).unwrap();
    let mut bytes = [0; 100];
    reader.read_at(0, &mut bytes).unwrap();
    assert_eq!(reader.read_at(101, &mut bytes).unwrap_err().kind(), ErrorKind::Internal);
    reader.read_at(100, &mut bytes).unwrap();
}

#[test]
fn a_merge_repairs_data_that_is_also_in_memory() {
    let root = tempfile::tempdir().unwrap();
    let collection = filled(root.path());
    let name = damage(root.path(), &collection, IDS);
    assert_eq!(collection.loss(), None);
    assert!(collection.merge().unwrap());
    let pinned = collection.pin().unwrap();
    assert_ne!(segment(&pinned).name, name);
    read_all(&pinned, segment(&pinned)).unwrap();
    assert!(collection.status().quarantined.is_empty());
    assert_eq!(collection.get(7).unwrap(), Some(stored(7, 1)));
}

#[test]
fn damaged_points_that_a_copy_finds_are_a_loss() {
    let root = tempfile::tempdir().unwrap();
    let collection = filled(root.path());
    let name = damage(root.path(), &collection, VECTORS);
    assert_eq!(collection.loss().unwrap().file, name);
    assert!(!collection.merge().unwrap(), "a merge would lose the points");
}

#[test]
fn an_unreadable_page_of_points_is_a_loss() {
    let inner = memory_medium();
    let collection = filled_on(&inner);
    let pinned = collection.pin().unwrap();
    let name = segment(&pinned).name.clone();
    drop(pinned);
    drop(collection);
    let superblock = Superblock::decode(&inner.load(&name).unwrap()).unwrap();
    let page = superblock.section(VECTORS).unwrap().offset / PAGE;
    let damage = vec![(name.clone(), page, ReadFault::Error)];
    let plan = FaultPlan { damage, ..FaultPlan::default() };
    let medium: Arc<dyn Medium> = Arc::new(FaultMedium::new(inner, plan).unwrap());
    let collection = open(&medium, options());
    let pinned = collection.pin().unwrap();
    let error = read_all(&pinned, segment(&pinned)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DataLoss);
    assert!(error.message().starts_with(&format!("page {page}: vectors: ")), "{error}");
    assert_eq!(collection.loss().unwrap().file, name);
}
