//! Simulated persistent memory: files stored to in place survive a loss of power.

use std::sync::Arc;

use base::ErrorKind;
use storage::dax::{PREFIX_BYTES, Recorder, StoreEvent, Watch, crash_images};
use storage::log::Log;
use storage::{DaxMedium, Medium};
use tempfile::TempDir;

use crate::pattern;

const IMAGES_MAX: usize = 300;

/// Opens a file whose memory is `image`, and returns its contents.
fn open_image(directory: &TempDir, image: &[u8]) -> Vec<u8> {
    let medium = DaxMedium::simulated(directory.path().join("after")).unwrap();
    std::fs::write(directory.path().join("after/f"), image).unwrap();
    medium.load("f").unwrap()
}

#[test]
fn dax_is_refused_if_the_file_system_has_none() {
    let directory = TempDir::new().unwrap();
    match DaxMedium::new(directory.path().into()) {
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unimplemented);
            assert!(error.message().contains("-o dax"), "{error}");
        }
        // This machine has DAX.
        Ok(medium) => crate::write(&medium, "f", b"x"),
    }
    assert!(
        std::fs::read_dir(directory.path()).unwrap().all(|entry| entry.unwrap().file_name() == "f")
    );
}

/// Every moment of a file's life, every image of memory at that moment: the length is one that was
/// committed or is being committed, it is not below the last that was acknowledged, and all bytes
/// up to it are right.
#[test]
fn a_length_is_never_ahead_of_its_bytes() {
    let directory = TempDir::new().unwrap();
    let recorder = Arc::new(Recorder::default());
    let medium = DaxMedium::watched(directory.path().join("before"), recorder.clone()).unwrap();
    let bytes = pattern(900, 1);
    let mut writer = medium.create("f").unwrap();
    let mut lengths = vec![0];
    for part in [1, 7, 64, 130, 300, 398] {
        let start = writer.bytes() as usize;
        writer.append(&bytes[start..start + part]).unwrap();
        writer.persist().unwrap();
        recorder.note(writer.bytes());
        lengths.push(writer.bytes());
    }
    let events = recorder.take();
    let size = PREFIX_BYTES + 4096;
    let mut images = 0;
    for moment in 0..=events.len() {
        let sure = events[..moment].iter().rev().find_map(|event| match event {
            StoreEvent::Noted(length) => Some(*length),
            _ => None,
        });
        // Before the prefix is written, no caller has the file.
        let started =
            events[..moment].iter().filter(|event| matches!(event, StoreEvent::Fenced(_))).count()
                >= 2;
        for image in crash_images(&events[..moment], size, IMAGES_MAX, moment as u64)
            .iter()
            .filter(|_| started)
        {
            let found = open_image(&directory, image);
            assert!(lengths.contains(&(found.len() as u64)), "{} at {moment}", found.len());
            assert!(found.len() as u64 >= sure.unwrap_or(0));
            assert_eq!(found, bytes[..found.len()]);
            images += 1;
        }
    }
    assert!(images > 1000, "{images}");
}

/// The same for a log: acknowledged payloads are replayed from every image.
#[test]
fn acknowledged_payloads_survive_in_persistent_memory() {
    let directory = TempDir::new().unwrap();
    let recorder = Arc::new(Recorder::default());
    let medium: Arc<dyn Medium> =
        Arc::new(DaxMedium::watched(directory.path().join("before"), recorder.clone()).unwrap());
    let payload = |number: u64| pattern(number as usize * 30, number);
    let (log, _) = Log::open(&medium, "f").unwrap();
    let header = recorder.take();
    for number in 1..=4 {
        log.commit(log.append(&payload(number)).unwrap()).unwrap();
        recorder.note(number);
    }
    let mut events = header;
    let start = events.len();
    events.extend(recorder.take());
    let after: Arc<dyn Medium> =
        Arc::new(DaxMedium::simulated(directory.path().join("after")).unwrap());
    for moment in start..=events.len() {
        let sure = events[..moment].iter().rev().find_map(|event| match event {
            StoreEvent::Noted(number) => Some(*number),
            _ => None,
        });
        for image in crash_images(&events[..moment], PREFIX_BYTES + 4096, 60, moment as u64) {
            std::fs::write(directory.path().join("after/f"), &image).unwrap();
            let (_, replay) = Log::open(&after, "f").unwrap();
            assert!(replay.records.len() as u64 >= sure.unwrap_or(0), "at {moment}");
            assert!(replay.damaged.is_empty());
            for (number, bytes) in replay.records {
                assert_eq!(bytes, payload(number));
            }
        }
    }
}

/// Without a fence between bytes and length, some image has the length and not the bytes.
#[test]
fn a_missing_fence_is_found() {
    let store = |offset: u64, bytes: &[u8]| StoreEvent::Stored(1, offset, bytes.to_vec());
    let wrong = |events: &[StoreEvent]| {
        let images = crash_images(events, 256, 1000, 1);
        images.iter().any(|image| image[0] == 1 && image[64..72] != [7; 8])
    };
    let careful = [
        store(64, &[7; 8]),
        StoreEvent::Flushed(1, 64, 8),
        StoreEvent::Fenced(1),
        store(0, &[1]),
        StoreEvent::Flushed(1, 0, 1),
    ];
    assert!(!wrong(&careful));
    for missing in [1, 2] {
        let mut careless = careful.to_vec();
        careless.remove(missing);
        assert!(wrong(&careless), "without event {missing}");
    }
    // A flush before the store does not count.
    let mut early = careful.to_vec();
    early.swap(0, 1);
    assert!(wrong(&early));
}

#[test]
fn lines_and_words_are_what_tears() {
    let event = StoreEvent::Stored(1, 60, vec![9; 20]);
    let images = crash_images(&[event], 128, 1000, 1);
    let parts: Vec<[u8; 3]> =
        images.iter().map(|image| [image[60], image[64], image[72]]).collect();
    // The first line alone, the second alone in part or whole, in either order.
    for expected in [[0, 0, 0], [9, 0, 0], [0, 9, 9], [9, 9, 9], [0, 9, 0], [0, 0, 9]] {
        assert!(parts.contains(&expected), "{expected:?} of {parts:?}");
    }
    assert!(
        images.iter().all(|image| image[64..72].iter().all(|byte| *byte == image[64])),
        "a word was torn"
    );
}

#[test]
fn a_lost_prefix_costs_only_the_length() {
    let directory = TempDir::new().unwrap();
    let medium: Arc<dyn Medium> = Arc::new(DaxMedium::simulated(directory.path().into()).unwrap());
    let (log, _) = Log::open(&medium, "log").unwrap();
    for number in 1..=10 {
        log.append(&pattern(100, number)).unwrap();
    }
    log.commit(10).unwrap();
    drop(log);
    let path = directory.path().join("log");
    for prefix in [vec![0; 16], vec![0xff; 16], b"MPDAXFIL\x01\0\0\0\0\0\0\0".to_vec()] {
        let mut file = std::fs::read(&path).unwrap();
        file[..16].copy_from_slice(&prefix);
        std::fs::write(&path, file).unwrap();
        let (_, replay) = Log::open(&medium, "log").unwrap();
        assert_eq!(replay.records.len(), 10);
    }
}

#[test]
fn a_file_grows_far_and_returns_unused_room() {
    let directory = TempDir::new().unwrap();
    let medium = DaxMedium::simulated(directory.path().into()).unwrap();
    let bytes = pattern(5 << 20, 3);
    let mut writer = medium.create("f").unwrap();
    for chunk in bytes.chunks(700_001) {
        writer.append(chunk).unwrap();
    }
    writer.persist().unwrap();
    let physical = || std::fs::metadata(directory.path().join("f")).unwrap().len();
    assert!(physical() >= bytes.len() as u64);
    drop(writer);
    assert_eq!(physical(), (PREFIX_BYTES + bytes.len()) as u64);
    assert_eq!(medium.load("f").unwrap(), bytes);
}

/// A watcher that ignores all steps.
#[derive(Debug)]
struct Blind;

impl Watch for Blind {
    fn stored(&self, _: u64, _: u64, _: &[u8]) {}
    fn flushed(&self, _: u64, _: u64, _: usize) {}
    fn fenced(&self, _: u64) {}
}

#[test]
fn a_watched_file_is_like_any_other() {
    let directory = TempDir::new().unwrap();
    let medium = DaxMedium::watched(directory.path().into(), Arc::new(Blind)).unwrap();
    crate::write(&medium, "f", &pattern(10_000, 4));
    assert_eq!(medium.load("f").unwrap(), pattern(10_000, 4));
}
