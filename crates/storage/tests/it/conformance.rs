//! Promises of every medium, run on every medium.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::{ErrorKind, Result};
use proptest::prelude::*;
use storage::{Medium, Read, Reader, ReaderOptions, Sealed};
use tempfile::TempDir;

use crate::{PAGE, media, pattern, volatile, write};

const OPTIONS: ReaderOptions = ReaderOptions { depth: 8, read_bytes_max: 3 * PAGE };

fn on_every_medium(check: impl Fn(&Arc<dyn Medium>)) {
    let directory = TempDir::new().unwrap();
    for (name, medium) in media(&directory) {
        eprintln!("{name}");
        check(&medium);
    }
}

fn kind_of<T>(outcome: Result<T>) -> Option<ErrorKind> {
    outcome.err().map(|error| error.kind())
}

/// Waits for `wait` reads and returns the completions.
fn complete(reader: &mut dyn Reader, wait: usize) -> Vec<(u64, Result<Vec<u8>>)> {
    let mut came = Vec::new();
    let count = reader
        .complete(wait, &mut |tag, bytes| came.push((tag, bytes.map(<[u8]>::to_vec))))
        .unwrap();
    assert_eq!(count, came.len());
    came
}

#[test]
fn files_are_created_listed_and_removed() {
    on_every_medium(|medium| {
        assert_eq!(medium.list().unwrap(), []);
        write(&**medium, "b", &pattern(5000, 1));
        write(&**medium, "a.0_1-x", b"");
        assert_eq!(medium.list().unwrap(), [("a.0_1-x".to_owned(), 0), ("b".to_owned(), 5000)]);
        assert_eq!(kind_of(medium.create("b")), Some(ErrorKind::AlreadyExists));
        assert_eq!(kind_of(medium.open("c")), Some(ErrorKind::NotFound));
        assert_eq!(kind_of(medium.reopen("c")), Some(ErrorKind::NotFound));
        assert_eq!(kind_of(medium.load("c")), Some(ErrorKind::NotFound));
        assert_eq!(kind_of(medium.remove("c")), Some(ErrorKind::NotFound));
        medium.remove("b").unwrap();
        medium.persist_names().unwrap();
        assert_eq!(medium.list().unwrap(), [("a.0_1-x".to_owned(), 0)]);
    });
}

#[test]
fn names_cannot_leave_the_medium() {
    on_every_medium(|medium| {
        let long = "x".repeat(storage::NAME_BYTES_MAX + 1);
        for name in ["", ".", "..", ".hidden", "a/b", "/etc/passwd", "A", "a b", "a\0", "ä", &long]
        {
            assert_eq!(kind_of(medium.create(name)), Some(ErrorKind::InvalidArgument), "{name:?}");
            assert!(
                medium.open(name).is_err()
                    && medium.remove(name).is_err()
                    && medium.load(name).is_err()
            );
        }
    });
}

#[test]
fn bytes_are_read_at_any_offset() {
    on_every_medium(|medium| {
        let bytes = pattern(3 * PAGE + 77, 2);
        write(&**medium, "f", &bytes);
        assert_eq!(medium.load("f").unwrap(), bytes);
        let file = medium.open("f").unwrap();
        assert_eq!(file.bytes(), bytes.len() as u64);
        for (offset, length) in [
            (0, 1),
            (1, 4095),
            (4095, 2),
            (4096, 4096),
            (100, 9000),
            (12_288, 77),
            (0, bytes.len()),
        ] {
            let mut buffer = vec![0; length];
            file.read_at(offset, &mut buffer).unwrap();
            assert_eq!(buffer, bytes[offset as usize..][..length], "{length} at {offset}");
        }
        if let Some(whole) = file.in_place() {
            assert_eq!(whole, bytes);
        }
        let past = [
            (bytes.len() as u64, 1),
            (bytes.len() as u64 - 1, 2),
            (u64::MAX, 1),
            (u64::MAX - 1, 2),
        ];
        for (offset, length) in past {
            assert_eq!(
                kind_of(file.read_at(offset, &mut vec![0; length])),
                Some(ErrorKind::DataLoss)
            );
        }
        file.read_at(bytes.len() as u64, &mut []).unwrap();
    });
}

#[test]
fn a_file_is_appended_to_and_truncated() {
    on_every_medium(|medium| {
        let mut expected = pattern(10_000, 3);
        write(&**medium, "log", &expected);
        let mut writer = medium.reopen("log").unwrap();
        assert_eq!(writer.bytes(), 10_000);
        assert_eq!(writer.append(b"end").unwrap(), 10_000);
        writer.write_at(4000, &[7; 200]).unwrap();
        writer.write_at(10_002, b"D and more").unwrap();
        expected.extend_from_slice(b"enD and more");
        expected[4000..4200].fill(7);
        assert_eq!(kind_of(writer.write_at(20_000, b"x")), Some(ErrorKind::InvalidArgument));
        assert_eq!(kind_of(writer.truncate(20_000)), Some(ErrorKind::InvalidArgument));
        writer.persist().unwrap();
        assert_eq!(medium.load("log").unwrap(), expected);
        writer.truncate(5000).unwrap();
        writer.append(b"!").unwrap();
        writer.persist().unwrap();
        drop(writer);
        expected.truncate(5000);
        expected.push(b'!');
        assert_eq!(medium.load("log").unwrap(), expected);
        assert_eq!(medium.reopen("log").unwrap().bytes(), 5001);
    });
}

#[test]
fn a_removed_file_is_readable_while_it_is_open() {
    on_every_medium(|medium| {
        let bytes = pattern(2 * PAGE, 4);
        write(&**medium, "f", &bytes);
        let file = medium.open("f").unwrap();
        medium.remove("f").unwrap();
        write(&**medium, "f", &pattern(PAGE, 5));
        let mut reader = medium.reader(OPTIONS).unwrap();
        reader.submit(Read { file: &file, offset: 0, bytes: 2 * PAGE, tag: 9 }).unwrap();
        // From here on only the reader holds it.
        drop(file);
        assert_eq!(complete(&mut *reader, 1), [(9, Ok(bytes))]);
    });
}

#[test]
fn open_files_have_numbers_of_their_own() {
    on_every_medium(|medium| {
        write(&**medium, "f", &[1; 10]);
        let files: Vec<Arc<dyn Sealed>> = (0..3).map(|_| medium.open("f").unwrap()).collect();
        assert!(files[0].id() != files[1].id() && files[1].id() != files[2].id());
    });
}

#[test]
fn a_reader_keeps_its_limits() {
    on_every_medium(|medium| {
        write(&**medium, "f", &pattern(8 * PAGE + 1, 6));
        let file = medium.open("f").unwrap();
        for (depth, read_bytes_max) in [(0, PAGE), (1, 0), (1, 100), (5000, PAGE), (4096, 1 << 20)]
        {
            let outcome = medium.reader(ReaderOptions { depth, read_bytes_max });
            assert_eq!(kind_of(outcome), Some(ErrorKind::InvalidArgument));
        }
        let mut reader = medium.reader(OPTIONS).unwrap();
        let page = PAGE as u64;
        let misplaced = [
            (1, PAGE),
            (0, 1),
            (0, 0),
            (0, 4 * PAGE),
            (8 * page, PAGE),
            (7 * page, 2 * PAGE),
            (u64::MAX - 4095, PAGE),
        ];
        for (offset, bytes) in misplaced {
            let outcome = reader.submit(Read { file: &file, offset, bytes, tag: 0 });
            assert_eq!(kind_of(outcome), Some(ErrorKind::InvalidArgument), "{bytes} at {offset}");
        }
        assert_eq!((reader.room(), reader.in_flight()), (8, 0));
        for tag in 0..8 {
            reader.submit(Read { file: &file, offset: tag * page, bytes: PAGE, tag }).unwrap();
        }
        assert_eq!((reader.room(), reader.in_flight()), (0, 8));
        let outcome = reader.submit(Read { file: &file, offset: 0, bytes: PAGE, tag: 9 });
        assert_eq!(kind_of(outcome), Some(ErrorKind::ResourceExhausted));
        let first = complete(&mut *reader, 3);
        assert!(first.len() >= 3 && reader.room() == first.len());
        let mut tags: Vec<u64> = first.iter().map(|(tag, _)| *tag).collect();
        tags.extend(complete(&mut *reader, usize::MAX).iter().map(|(tag, _)| *tag));
        tags.sort_unstable();
        assert_eq!(tags, (0..8).collect::<Vec<u64>>());
        assert_eq!((reader.room(), reader.in_flight()), (8, 0));
        assert_eq!(complete(&mut *reader, usize::MAX), []);
    });
}

#[test]
fn a_reader_reads_many_files_and_forgets_them() {
    on_every_medium(|medium| {
        let mut reader = medium.reader(ReaderOptions { depth: 100, read_bytes_max: PAGE }).unwrap();
        // More files than are registered at once, all in flight together, then others in their
        // places.
        for round in 0..3_u64 {
            let files: Vec<Arc<dyn Sealed>> = (0..70)
                .map(|index| {
                    let name = format!("{round}-{index}");
                    medium
                        .create(&name)
                        .unwrap()
                        .append(&pattern(PAGE, round * 100 + index))
                        .unwrap();
                    let file = medium.open(&name).unwrap();
                    medium.remove(&name).unwrap();
                    file
                })
                .take(if medium.kind() == storage::MediumKind::Dram { 20 } else { 70 })
                .collect();
            for (tag, file) in files.iter().enumerate() {
                reader.submit(Read { file, offset: 0, bytes: PAGE, tag: tag as u64 }).unwrap();
            }
            let ids: Vec<_> = files.iter().map(Arc::downgrade).collect();
            drop(files);
            let came = complete(&mut *reader, usize::MAX);
            assert_eq!(came.len(), ids.len());
            for (tag, bytes) in came {
                assert_eq!(bytes, Ok(pattern(PAGE, round * 100 + tag)), "round {round}");
            }
            assert!(
                ids.iter().all(|file| file.strong_count() == 0),
                "the reader holds a file nobody reads"
            );
        }
    });
}

#[test]
fn a_reader_reads_the_files_of_its_group() {
    let directory = TempDir::new().unwrap();
    let media = media(&directory);
    for (number, (_, medium)) in (0..).zip(&media) {
        write(&**medium, "f", &pattern(PAGE, number));
    }
    for (name, medium) in &media {
        let mut reader = medium.reader(OPTIONS).unwrap();
        for (number, (other_name, other)) in (0..).zip(&media) {
            if medium.reader_group().is_some() && medium.reader_group() == other.reader_group() {
                let file = other.open("f").unwrap();
                reader.submit(Read { file: &file, offset: 0, bytes: PAGE, tag: 1 }).unwrap();
                let came = complete(&mut *reader, 1);
                assert_eq!(came, [(1, Ok(pattern(PAGE, number)))], "{name} and {other_name}");
            }
        }
    }
}

#[test]
fn a_reader_may_be_dropped_with_reads_in_flight() {
    on_every_medium(|medium| {
        write(&**medium, "f", &pattern(64 * PAGE, 7));
        let file = medium.open("f").unwrap();
        let mut reader = medium.reader(ReaderOptions { depth: 64, read_bytes_max: PAGE }).unwrap();
        for tag in 0..64 {
            reader
                .submit(Read { file: &file, offset: tag * PAGE as u64, bytes: PAGE, tag })
                .unwrap();
        }
        complete(&mut *reader, 1);
        drop(reader);
    });
}

#[test]
fn a_reader_serves_the_thread_it_is_given_to() {
    on_every_medium(|medium| {
        write(&**medium, "f", &pattern(PAGE, 8));
        let file = medium.open("f").unwrap();
        let mut reader = medium.reader(OPTIONS).unwrap();
        for _ in 0..2 {
            let file = file.clone();
            let work = move || {
                reader.submit(Read { file: &file, offset: 0, bytes: PAGE, tag: 1 }).unwrap();
                assert_eq!(complete(&mut *reader, 1), [(1, Ok(pattern(PAGE, 8)))]);
                reader
            };
            reader = std::thread::spawn(work).join().unwrap();
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// Any reads, submitted and awaited in any pattern, give what a plain copy of the file gives.
    #[test]
    fn reads_are_like_a_copy_of_the_file(
        reads in prop::collection::vec((0_u64..40, 1_usize..4, 0_usize..6), 1..80),
        seed in any::<u64>(),
    ) {
        let bytes = pattern(43 * PAGE, seed);
        on_every_medium(|medium| {
            medium.create("f").unwrap().append(&bytes).unwrap();
            let file = medium.open("f").unwrap();
            let mut reader = medium.reader(OPTIONS).unwrap();
            let mut under_way = BTreeMap::new();
            let take = |came: Vec<(u64, Result<Vec<u8>>)>, under_way: &mut BTreeMap<u64, (u64, usize)>| {
                for (tag, got) in came {
                    let (page, pages) = under_way.remove(&tag).unwrap();
                    assert_eq!(got.unwrap(), bytes[page as usize * PAGE..][..pages * PAGE]);
                }
            };
            for (tag, &(page, pages, wait)) in reads.iter().enumerate() {
                if reader.room() == 0 {
                    take(complete(&mut *reader, wait.max(1)), &mut under_way);
                }
                let tag = tag as u64;
                reader.submit(Read { file: &file, offset: page * PAGE as u64, bytes: pages * PAGE, tag }).unwrap();
                under_way.insert(tag, (page, pages));
                if wait < 3 {
                    take(complete(&mut *reader, wait), &mut under_way);
                }
                assert_eq!(reader.in_flight(), under_way.len());
            }
            take(complete(&mut *reader, usize::MAX), &mut under_way);
            assert!(under_way.is_empty());
        });
    }
}

#[test]
fn missing_memory_is_an_error() {
    let directory = TempDir::new().unwrap();
    let medium = storage::DramMedium::new(crate::pool(1), Some(directory.path().into())).unwrap();
    write(&medium, "large", &vec![1; 3 << 20]);
    write(&medium, "small", &[1; 100]);
    let refused = medium.open("large").err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::ResourceExhausted);
    assert!(refused.message().contains("--search-memory"), "{refused}");
    let held = medium.open("small").unwrap();
    assert_eq!(kind_of(medium.open("small")), Some(ErrorKind::ResourceExhausted));
    drop(held);
    medium.open("small").unwrap();
    // A log is read without memory of the pool.
    assert_eq!(medium.load("large").unwrap().len(), 3 << 20);
    assert!(volatile().reader(OPTIONS).is_ok());
}
