//! Direct reads: ends, refusals, misuse.

use base::ErrorKind;
use memory::SLOT_BYTES;
use os::DirectFile;

use crate::{noise, pool, scratch};

#[test]
fn both_ways_read_the_same_up_to_the_last_byte() {
    let dir = scratch();
    for bytes in [1, 4095, 4096, 4097, 3 * 4096 + 100] {
        let data = noise(1, bytes);
        let path = dir.path().join("file");
        std::fs::write(&path, &data).unwrap();
        for direct in [true, false] {
            let mut region = pool(1).allocate(SLOT_BYTES).unwrap();
            let mut file = DirectFile::open(&path, direct).unwrap();
            assert_eq!(file.bytes(), bytes as u64);
            file.read_exact_at(region.as_mut_slice(), 0, bytes).unwrap();
            assert_eq!(region.as_mut_slice()[..bytes], data[..]);
            assert_eq!(file.is_direct(), direct && file.refusal().is_none());
            let tail = bytes / 4096 * 4096;
            file.read_exact_at(region.as_mut_slice(), tail as u64, bytes - tail).unwrap();
            assert_eq!(region.as_mut_slice()[..bytes - tail], data[tail..]);
        }
    }
}

#[test]
fn a_file_that_ends_early_is_damaged() {
    let dir = scratch();
    let path = dir.path().join("short.bin");
    for bytes in [0, 100, 4096, 5000] {
        std::fs::write(&path, noise(2, bytes)).unwrap();
        for direct in [true, false] {
            let mut region = pool(1).allocate(SLOT_BYTES).unwrap();
            let mut file = DirectFile::open(&path, direct).unwrap();
            let error = file.read_exact_at(region.as_mut_slice(), 0, bytes + 1).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::DataLoss);
            assert!(
                error.message().contains(&format!("short.bin: truncated at byte {bytes};")),
                "{error}"
            );
        }
    }
}

#[test]
fn misplaced_reads_are_refused() {
    let dir = scratch();
    let path = dir.path().join("file");
    std::fs::write(&path, noise(3, 8192)).unwrap();
    let mut region = pool(1).allocate(SLOT_BYTES).unwrap();
    let buffer = region.as_mut_slice();
    let mut file = DirectFile::open_direct(&path).unwrap();
    for error in [
        file.read_exact_at(&mut buffer[1..], 0, 4096),
        file.read_exact_at(buffer, 512, 4096),
        file.read_exact_at(&mut buffer[..4096], 0, 4097),
    ] {
        assert_eq!(error.unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
}

#[test]
fn a_file_system_without_direct_reads_still_reads() {
    // procfs refuses O_DIRECT.
    let path = std::path::Path::new("/proc/self/cmdline");
    let mut file = DirectFile::open_direct(path).unwrap();
    let mut region = pool(1).allocate(SLOT_BYTES).unwrap();
    file.read_exact_at(region.as_mut_slice(), 0, 4).unwrap();
    assert!(!file.is_direct());
    assert!(file.refusal().unwrap().contains("refuses O_DIRECT"));
}

#[test]
fn a_missing_file_is_named() {
    let error = DirectFile::open(std::path::Path::new("/nowhere/weights.bin"), true).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.message().starts_with("/nowhere/weights.bin: "), "{error}");
}
