//! Pages lost while mapped: a real SIGBUS from a file truncated under its mapping.

use std::sync::Arc;

use base::ErrorKind;
use storage::page::{Packer, RecordPage};
use storage::{DaxMedium, Medium, MmapMedium, Read, ReaderOptions};
use tempfile::TempDir;

use crate::{PAGE, pattern, write};

fn segment() -> Vec<u8> {
    let (mut packer, mut pages) = (Packer::new(), Vec::new());
    for index in 0..64 {
        packer.push(&pattern(1000, index)).unwrap();
    }
    packer.finish(&mut pages).unwrap();
    pages
}

#[test]
fn a_lost_page_does_not_end_the_process() {
    let directory = TempDir::new().unwrap();
    let media: [Arc<dyn Medium>; 2] = [
        Arc::new(MmapMedium::new(directory.path().join("mmap")).unwrap()),
        Arc::new(DaxMedium::simulated(directory.path().join("pmem")).unwrap()),
    ];
    for (medium, name) in media.iter().zip(["mmap", "pmem"]) {
        let pages = segment();
        write(&**medium, "f", &pages);
        let file = medium.open("f").unwrap();
        let path = directory.path().join(name).join("f");
        let whole = std::fs::metadata(&path).unwrap().len();
        // The last three pages are lost.
        std::fs::File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(whole - 3 * PAGE as u64)
            .unwrap();
        let mut reader = medium.reader(ReaderOptions { depth: 64, read_bytes_max: PAGE }).unwrap();
        let count = (pages.len() / PAGE) as u64;
        for tag in 0..count {
            reader
                .submit(Read { file: &file, offset: tag * PAGE as u64, bytes: PAGE, tag })
                .unwrap();
        }
        let mut damaged = Vec::new();
        reader
            .complete(usize::MAX, &mut |tag, bytes| {
                if let Err(error) = bytes.and_then(RecordPage::open) {
                    assert_eq!(error.kind(), ErrorKind::DataLoss);
                    damaged.push(tag);
                }
            })
            .unwrap();
        assert_eq!(damaged, [count - 3, count - 2, count - 1], "{name}");
    }
}

#[test]
fn a_copy_of_lost_pages_is_an_error() {
    let directory = TempDir::new().unwrap();
    let medium = MmapMedium::new(directory.path().into()).unwrap();
    write(&medium, "f", &pattern(4 * PAGE, 1));
    let file = medium.open("f").unwrap();
    std::fs::File::options()
        .write(true)
        .open(directory.path().join("f"))
        .unwrap()
        .set_len(PAGE as u64)
        .unwrap();
    let kind = file.read_at(0, &mut vec![0; 4 * PAGE]).err().map(|error| error.kind());
    assert_eq!(kind, Some(ErrorKind::DataLoss));
    file.read_at(0, &mut [0; PAGE]).unwrap();
}

#[test]
fn a_writer_in_place_reports_a_lost_page() {
    let directory = TempDir::new().unwrap();
    let medium = DaxMedium::simulated(directory.path().into()).unwrap();
    let mut writer = medium.create("f").unwrap();
    writer.append(&pattern(2 * PAGE, 1)).unwrap();
    writer.persist().unwrap();
    std::fs::File::options()
        .write(true)
        .open(directory.path().join("f"))
        .unwrap()
        .set_len(2 * PAGE as u64)
        .unwrap();
    writer.write_at(PAGE as u64 + 5, b"gone").unwrap();
    assert_eq!(writer.persist().err().map(|error| error.kind()), Some(ErrorKind::DataLoss));
    let kind = writer.append(b"more").err().map(|error| error.kind());
    assert_eq!(kind, Some(ErrorKind::FailedPrecondition));
}
