//! Files of collections. Checksums would stop nearly every mutation at the first check, so each
//! target also runs with corrected checksums.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use coarse::{
    BuildThreads, CoarseHeader, CoarseKind, CoarseRequest, CoarseScratch, Metric, section,
};
use memory::{PoolConfig, SlotPool};
use os::Rate;
use search::deletes::DeletesFile;
use search::ingest::{LoggedOp, Op, PointRef};
use search::payload_index::fuzzing;
use search::segment::{RowMap, SegmentIds, SegmentSettings};
use storage::log::Log;
use storage::manifest::Manifest;
use storage::page::{PAGE_BYTES, RecordPage};
use storage::superblock::Superblock;
use storage::{DramMedium, Medium};

use crate::bounded;

const POOL_BYTES: u64 = 64 << 20;

/// Returns an empty medium in memory.
fn medium() -> Arc<dyn Medium> {
    static POOL: OnceLock<Arc<SlotPool>> = OnceLock::new();
    let config =
        PoolConfig { bytes_max: POOL_BYTES, huge_pages: false, fault_rate: Rate::unlimited() };
    let pool = POOL.get_or_init(|| SlotPool::new(config).expect("a pool of 64 MiB"));
    Arc::new(DramMedium::new(pool.clone(), None).expect("a medium without a directory"))
}

fn put(medium: &Arc<dyn Medium>, name: &str, bytes: &[u8]) {
    let mut writer = medium.create(name).expect("a new file");
    writer.append(bytes).expect("a file in memory");
    writer.persist().expect("a file in memory");
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|field| field.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn seal(bytes: &mut [u8], covered: std::ops::Range<usize>, at: usize) {
    let sum = crc32c::crc32c(&bytes[covered]);
    bytes[at..at + 4].copy_from_slice(&sum.to_le_bytes());
}

/// Fuzzes a page of records. Asserts that every record lies inside the page, and that slots beyond
/// the count have none.
pub fn record_page(data: &[u8]) {
    let mut mended = data.to_vec();
    mended.resize(data.len().next_multiple_of(PAGE_BYTES).max(PAGE_BYTES), 0);
    let pages = usize::from(u16::from_le_bytes([mended[10], mended[11]])).max(1);
    let run = (pages * PAGE_BYTES).min(mended.len());
    seal(&mut mended, 4..run, 0);
    for bytes in [data, &mended] {
        let Ok(page) = bounded(data, 0, || RecordPage::open(bytes)) else { continue };
        assert!(usize::from(page.pages()) * PAGE_BYTES <= bytes.len());
        for slot in 0..page.count() {
            assert!(page.record(slot).is_none_or(|record| record.len() <= bytes.len()));
        }
        assert!(page.record(page.count()).is_none());
    }
}

/// Fuzzes the first page of a segment. Asserts that a parsed one is written unchanged, apart from
/// bytes without a meaning.
pub fn superblock(data: &[u8]) {
    let mut mended = data.to_vec();
    mended.resize(PAGE_BYTES, 0);
    seal(&mut mended, 0..PAGE_BYTES - 4, PAGE_BYTES - 4);
    for bytes in [data, &mended] {
        let Ok(block) = bounded(data, 0, || Superblock::decode(bytes)) else { continue };
        let _ = (block.check(0), block.check(1 << 40), block.check(u64::MAX));
        let again =
            Superblock::decode(&block.encode().expect("as many sections")).expect("own page");
        assert_eq!(again, block);
    }
}

/// Fuzzes the manifest's slots and lists: publishes two lists, then overwrites a part of one file
/// with the input.
///
/// Asserts that opening returns one of the two lists or an error, never other bytes.
pub fn manifest(data: &[u8]) {
    let Some((&[file, low, high], patch)) = data.split_first_chunk() else { return };
    let medium = medium();
    let lists: [&[u8]; 2] = [b"the first list", b"the second, which is longer"];
    let (mut manifest, _) = Manifest::open(&medium).expect("an empty medium");
    for list in lists {
        manifest.publish(list).expect("a list in memory");
    }
    drop(manifest);
    let files = medium.list().expect("a medium in memory");
    let (name, length) = &files[usize::from(file & 0x7f) % files.len()];
    let mut bytes = medium.load(name).expect("a file in memory");
    assert_eq!(bytes.len() as u64, *length);
    let at = usize::from(u16::from_le_bytes([low, high])) % (bytes.len() + 1);
    let end = (at + patch.len()).min(bytes.len());
    bytes[at..end].copy_from_slice(&patch[..end - at]);
    if file & 0x80 != 0 {
        bytes.truncate(at);
    } else if bytes.len() == 2 * PAGE_BYTES {
        for slot in bytes.chunks_exact_mut(PAGE_BYTES) {
            seal(slot, 0..PAGE_BYTES - 4, PAGE_BYTES - 4);
        }
    }
    medium.remove(name).expect("a file in memory");
    put(&medium, name, &bytes);
    if let Ok((_, payload)) = bounded(data, 0, || Manifest::open(&medium)) {
        assert!(
            payload.is_none_or(|payload| lists.contains(&&payload[..])),
            "a list that nobody published"
        );
    }
}

const LOG_HEADER_BYTES: usize = 64;
const FRAME_BYTES: usize = 32;

/// Corrects the checksums of a log's header and of everything that looks like a frame.
fn mend_log(log: &mut [u8]) {
    if log.len() >= LOG_HEADER_BYTES {
        seal(log, 0..60, 60);
    }
    let mut at = LOG_HEADER_BYTES;
    while at + FRAME_BYTES <= log.len() {
        let frame = &mut log[at..];
        if !frame.starts_with(b"mpfr") && !frame.starts_with(b"mpcl") {
            at += 8;
            continue;
        }
        let end = FRAME_BYTES.saturating_add(u32_at(frame, 4) as usize);
        if frame.starts_with(b"mpfr") && end <= frame.len() {
            seal(frame, FRAME_BYTES..end, 16);
        }
        seal(frame, 0..28, 28);
        at += end.min(frame.len()).next_multiple_of(8);
    }
}

/// Fuzzes the replay of a collection's log.
///
/// Asserts that numbers rise, and that after one more payload a second opening finds the payloads
/// of the first one and the new one.
pub fn log_frames(data: &[u8]) {
    let mut mended = data.to_vec();
    mend_log(&mut mended);
    for bytes in [data, &mended] {
        let medium = medium();
        put(&medium, "log", bytes);
        let Ok((log, first)) = bounded(data, 0, || Log::open(&medium, "log")) else { continue };
        assert!(first.records.windows(2).all(|pair| pair[0].0 < pair[1].0), "numbers do not rise");
        assert!(first.records.iter().all(|(number, _)| *number < first.next));
        let added = log.append(b"one more");
        let Ok(number) = added else { continue };
        assert_eq!(number, first.next);
        log.commit(number).expect("a log in memory");
        drop(log);
        let (_, again) = Log::open(&medium, "log").expect("a log in memory");
        let mut expected = first.records;
        expected.push((number, b"one more".to_vec()));
        assert_eq!(again.records, expected);
        assert_eq!(again.torn_tail, None);
    }
}

/// Fuzzes the coarse index's header and sections. The first byte selects an index, the second a
/// section of it, and two more an offset. The rest of the input is written there.
///
/// Asserts that a parsed header is written unchanged, and that an index that opens answers a query
/// with its own rows.
pub fn coarse_index(data: &[u8]) {
    if let Ok(header) = bounded(data, 0, || CoarseHeader::decode(data)) {
        let again = CoarseHeader::decode(&header.encode()).expect("own header");
        assert_eq!((again.kind, again.dims, again.rows), (header.kind, header.dims, header.rows));
        assert_eq!(again.is_relative, header.is_relative);
    }
    let Some((&[kind, section, low, high], patch)) = data.split_first_chunk() else { return };
    let mut sections = built(kind).clone();
    let count = sections.len();
    let bytes = &mut sections[usize::from(section & 0x7f) % count].1;
    let at = usize::from(u16::from_le_bytes([low, high])) % (bytes.len() + 1);
    let end = (at + patch.len()).min(bytes.len());
    bytes[at..end].copy_from_slice(&patch[..end - at]);
    if section & 0x80 != 0 {
        bytes.truncate(at);
    }
    let sections: Vec<(u32, &[u8])> =
        sections.iter().map(|(kind, bytes)| (*kind, &bytes[..])).collect();
    assert!(section::find(&sections, section::HEADER).is_ok());
    let Ok(index) = bounded(data, 0, || coarse::open(&sections)) else { return };
    let query = vec![0.5; index.dims()];
    let mut hits = Vec::new();
    let found = bounded(data, 0, || {
        index.search(&query, &CoarseRequest::best(10), &mut CoarseScratch::default(), &mut hits)
    });
    if found.is_ok() {
        assert!(
            hits.len() <= 10 && hits.iter().all(|hit| hit.row < index.rows()),
            "rows that are not there"
        );
    }
}

/// Sections of an index: the kind and the bytes of each.
type Sections = Vec<(u32, Vec<u8>)>;

/// Returns the sections of a small index of one kind.
fn built(kind: u8) -> &'static Sections {
    static BUILT: OnceLock<Vec<Sections>> = OnceLock::new();
    const DIMS: usize = 16;
    let all = BUILT.get_or_init(|| {
        let vectors = |common: f32| -> Vec<f32> {
            let value = |at: usize| ((at * at * 7919) % 2003) as f32 / 1001.5 - 1.0;
            (0..400 * DIMS).map(|at| value(at) + common).collect()
        };
        let indexes = [
            (CoarseKind::Flat, 0.0),
            (CoarseKind::IvfPq, 0.0),
            (CoarseKind::Rabitq, 0.0),
            // A large common part makes its codes relative to a mean.
            (CoarseKind::IvfPq, 8.0),
        ];
        let build = |(kind, common): (CoarseKind, f32)| {
            let vectors = vectors(common);
            let plan = coarse::CoarseBuild {
                vectors: &vectors,
                dims: DIMS,
                metric: Metric::L2,
                threads: BuildThreads::of(1),
                seed: 7,
            };
            let built = coarse::build(kind, &plan).expect("an index of 400 rows");
            let owned = |(kind, bytes): (u32, Cow<'_, [u8]>)| (kind, bytes.into_owned());
            built.index.sections().into_iter().map(owned).collect()
        };
        let all: Vec<Sections> = indexes.map(build).into();
        assert!(all[3].iter().any(|(kind, _)| *kind == section::LIST_MEAN));
        all
    });
    &all[usize::from(kind) % all.len()]
}

/// Fuzzes smaller sections of a segment: settings, the map from rows to pages, ids, deletes,
/// changes of the log, and the directory of a payload index with the places of its bitmaps.
pub fn segment_parts(data: &[u8]) {
    let Some((&[part, rows], rest)) = data.split_first_chunk() else { return };
    let rows = u32::from(rows);
    match part % 7 {
        0 => {
            if let Ok(settings) = bounded(data, 0, || SegmentSettings::decode(rest)) {
                assert_eq!(
                    SegmentSettings::decode(&settings.encode()).expect("own settings"),
                    settings
                );
            }
        }
        1 => {
            let section_bytes = u64::from(u32_at(rest, 4)) * PAGE_BYTES as u64;
            let Ok(map) = bounded(data, 0, || RowMap::decode(rest, rows, section_bytes)) else {
                return;
            };
            for row in 0..rows {
                let place = map.locate(row).expect("every row has a place");
                assert!(u64::from(place.page) + u64::from(place.pages) <= u64::from(map.pages()));
            }
            assert!(map.locate(rows).is_none());
        }
        2 => {
            let (ids, order) = rest.split_at((rows as usize * 8).min(rest.len()));
            let Ok(read) = bounded(data, 0, || SegmentIds::decode(ids, order, rows)) else {
                return;
            };
            assert_eq!(read.encode(), (ids.to_vec(), order.to_vec()));
            assert!((0..rows).all(|row| read.id(row).and_then(|id| read.find(id)) == Some(row)));
        }
        3 => deletes(data, rest, rows),
        4 => change(data, rest),
        5 => {
            let directory = |bytes: &[u8]| fuzzing::directory(bytes, u64::from(rows) << 12);
            if let Ok(encoded) = bounded(data, 0, || directory(rest)) {
                assert_eq!(directory(&encoded).expect("own directory"), encoded);
            }
        }
        _ => {
            let Some((length, rest)) = rest.split_first_chunk() else { return };
            let length = usize::from(u16::from_le_bytes(*length)).min(rest.len());
            let (directory, places) = rest.split_at(length);
            let prefixes =
                |bytes: &[u8]| fuzzing::prefixes(directory, bytes, u64::from(rows) << 12);
            if let Ok(encoded) = bounded(data, 0, || prefixes(places)) {
                assert_eq!(prefixes(&encoded).expect("own places"), encoded);
            }
        }
    }
}

fn deletes(data: &[u8], rest: &[u8], rows: u32) {
    let mut mended = rest.to_vec();
    mended.resize(rest.len().next_multiple_of(PAGE_BYTES).max(PAGE_BYTES), 0);
    seal(&mut mended, 4..PAGE_BYTES, 0);
    let segment = std::array::from_fn(|at| mended[24 + at]);
    for bytes in [rest, &mended] {
        let Ok((file, damaged)) = bounded(data, 0, || DeletesFile::decode(bytes, segment, rows))
        else {
            continue;
        };
        assert!(file.deletes.count() <= rows);
        // A page whose rows are unknown stays so.
        let again = DeletesFile::decode(&file.encode(), segment, rows).expect("own file");
        assert_eq!(again, (file, damaged));
    }
}

fn change(data: &[u8], rest: &[u8]) {
    let Ok(logged) = bounded(data, 0, || LoggedOp::decode(rest)) else { return };
    let mut written = Vec::new();
    match &logged {
        LoggedOp::Delete(id) => Op::Delete(*id).encode(&mut written),
        LoggedOp::Upsert(point) => {
            let (embedding, record, payload) =
                (&point.embedding[..], &point.record[..], &point.payload[..]);
            Op::Upsert(PointRef { id: point.id, embedding, record, payload }).encode(&mut written);
        }
    }
    // Three bytes behind the kind are unused.
    assert_eq!((written[0], &written[4..]), (rest[0], &rest[4..]));
}
