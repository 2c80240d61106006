//! A flipped bit in every page of every file: damaged data is reported and not served, and all
//! other data is served.

use std::sync::Arc;

use base::ErrorKind;
use search::collection::{Collection, CollectionQuery};
use search::filter::{Condition, Filter, Match};
use storage::page::PAGE_BYTES;
use storage::superblock::Superblock;
use storage::{FaultMedium, FaultPlan, LOAD_BYTES_MAX, Medium, MmapMedium, ReadFault, UringMedium};

use crate::points::{
    MEMORY_BYTES, MEMTABLE_BYTES, Model, Sum, distance, limits, memory_medium, open, options,
    point, ranked, resources, stored, try_open,
};

type Files = Vec<(String, Vec<u8>)>;

/// Returns the files and the content of a collection with two segments, deletes, and unflushed
/// points.
fn subject() -> (Files, Model) {
    let medium = memory_medium();
    let collection = open(&medium, options());
    let mut model = Model::new();
    for id in 0..150_u64 {
        collection.upsert(point(&stored(id, 1))).unwrap();
        model.insert(id, stored(id, 1));
        if id % 75 == 74 {
            collection.flush().unwrap();
        }
    }
    for id in (0..150).step_by(10) {
        collection.delete(id).unwrap();
        model.remove(&id);
    }
    collection.upsert(point(&stored(3, 2))).unwrap();
    model.insert(3, stored(3, 2));
    collection.flush().unwrap();
    for id in 150..155 {
        collection.upsert(point(&stored(id, 1))).unwrap();
        model.insert(id, stored(id, 1));
    }
    drop(collection);
    let files = medium.list().unwrap().into_iter();
    (files.map(|(name, _)| (name.clone(), medium.load(&name).unwrap())).collect(), model)
}

fn write(files: &Files) -> Arc<dyn Medium> {
    let medium = memory_medium();
    for (name, bytes) in files {
        let mut writer = medium.create(name).unwrap();
        writer.append(bytes).unwrap();
        writer.persist().unwrap();
    }
    medium.persist_names().unwrap();
    medium
}

/// Points that each kind of look-up did not find.
#[derive(Debug, Default, PartialEq)]
struct Lost {
    got: usize,
    nearest: usize,
    searched: usize,
}

/// Reads everything. Every result is right, and missing points are reported.
fn look(collection: &Collection, model: &Model) -> Lost {
    let mut lost = Lost::default();
    for id in 0..160 {
        match collection.get(id) {
            Ok(found) => assert_eq!(found.as_ref(), model.get(&id), "{id}"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::DataLoss, "{error}");
                lost.got += usize::from(model.contains_key(&id));
            }
        }
    }
    let mut thread = collection.thread(limits()).unwrap();
    let like = stored(77, 9);
    let query =
        CollectionQuery { candidates: 200, ..CollectionQuery::nearest(&like.embedding, 200) };
    let nearest = collection.nearest(&mut thread, &query).unwrap();
    let right = ranked(model, &like.embedding);
    let mut wanted = right.iter().map(|(point, _)| point.id);
    for hit in &nearest.hits {
        // In the order of all points, with some missing.
        assert!(wanted.any(|id| id == hit.id), "{hit:?}");
        assert!((hit.score + distance(&like.embedding, &model[&hit.id])).abs() < 1e-3);
    }
    lost.nearest = model.len() - nearest.hits.len();
    assert!(nearest.partial || lost.nearest == 0);

    let scorer = Sum(5);
    let searched = collection
        .search(&mut thread, &CollectionQuery { exact: false, ..query }, &scorer)
        .unwrap();
    for pair in searched.hits.windows(2) {
        assert!(pair[0].score >= pair[1].score);
    }
    for hit in &searched.hits {
        assert_eq!(hit.score, scorer.of(&model[&hit.id].record), "{hit:?}");
    }
    lost.searched = model.len() - searched.hits.len();
    assert!(searched.partial || lost.searched == 0);

    let colour = Condition::Match { key: "colour".into(), matching: Match::Value(2.into()) };
    let clause = Filter { must: vec![colour], ..Filter::default() };
    let filtered = collection
        .nearest(&mut thread, &CollectionQuery { filter: Some(&clause), ..query })
        .unwrap();
    let is = |id: &u64| model[id].payload.ends_with(br#""colour":2}"#);
    assert!(filtered.hits.iter().all(|hit| is(&hit.id)));
    assert!(filtered.partial || filtered.hits.len() == model.keys().filter(|id| is(id)).count());
    lost
}

/// Flips one bit. Returns true if data was lost.
fn flip(files: &Files, model: &Model, which: usize, place: usize) -> bool {
    let name = &files[which].0;
    let page = (place / PAGE_BYTES) as u64;
    let mut damaged = files.clone();
    damaged[which].1[place] ^= 1 << (place % 8);
    let resources = resources(MEMORY_BYTES, MEMTABLE_BYTES);
    let collection = try_open(write(&damaged), options(), &resources);
    let collection = collection.unwrap_or_else(|error| panic!("{name} page {page}: {error}"));
    let lost = look(&collection, model);
    if lost == Lost::default() {
        // Some bytes of a log lose no change; their damage is reported all the same.
        return name.starts_with("log-") && !collection.status().repairs.is_empty();
    }
    let status = collection.status();
    assert!(status.partial, "{name} page {page}: {lost:?}");
    let of_file = status.quarantined.iter().find(|what| &what.file == name);
    let by_name = status.quarantined.iter().find(|what| what.reason.contains(name.as_str()));
    let named = of_file
        .or(by_name)
        .unwrap_or_else(|| panic!("{name} page {page}: {:?}", status.quarantined));
    if let Some(found) = named.page {
        // A record of several pages is reported by its first.
        assert!(found <= page && page <= found + 3, "{name} page {page}: {named}");
    }
    true
}

/// Returns the bytes of a segment's file that hold its payload index.
fn payload_index(file: &[u8]) -> std::ops::Range<u64> {
    const PAYLOAD_INDEX: u32 = 11;
    let superblock = Superblock::decode(file).unwrap();
    let section = superblock.sections.iter().find(|section| section.kind == PAYLOAD_INDEX);
    section.map_or(0..0, |section| section.offset..section.offset + section.bytes)
}

#[test]
fn a_page_that_is_lost_after_its_check_is_damage() {
    const VECTORS: u32 = 4;
    let directory = tempfile::tempdir().unwrap();
    let medium: Arc<dyn Medium> = Arc::new(MmapMedium::new(directory.path().to_owned()).unwrap());
    let collection = open(&medium, options());
    for id in 0..20 {
        collection.upsert(point(&stored(id, 1))).unwrap();
    }
    collection.flush().unwrap();
    let mut thread = collection.thread(limits()).unwrap();
    let like = stored(7, 9);
    let query = CollectionQuery::nearest(&like.embedding, 20);
    let sound = collection.nearest(&mut thread, &query).unwrap();
    assert_eq!((sound.hits.len(), sound.damaged, sound.partial), (20, 0, false));
    let files = medium.list().unwrap();
    let (name, _) = files.iter().find(|(name, _)| name.starts_with("segment-")).unwrap();
    let superblock = Superblock::decode(&medium.load(name).unwrap()).unwrap();
    let end = superblock.section(VECTORS).unwrap().offset;
    let path = directory.path().join(name);
    std::fs::File::options().write(true).open(path).unwrap().set_len(end).unwrap();
    let damaged = collection.nearest(&mut thread, &query).unwrap();
    assert!(damaged.damaged > 0 && damaged.partial, "{damaged:?}");
}

#[test]
fn a_flipped_bit_in_any_page_of_any_file() {
    let (files, model) = subject();
    let sound = open(&write(&files), options());
    assert_eq!(look(&sound, &model), Lost::default());
    drop(sound);
    let mut segments = 0;
    let mut missed = 0;
    for (which, (name, bytes)) in files.iter().enumerate() {
        for start in (0..bytes.len()).step_by(PAGE_BYTES) {
            // Every section starts on a page, so this hits data and not padding.
            let lost =
                flip(&files, &model, which, (start + start / PAGE_BYTES % 8).min(bytes.len() - 1));
            if name.starts_with("segment-") {
                if payload_index(bytes).contains(&(start as u64)) {
                    // Payloads answer instead.
                    assert!(!lost, "{name} at {start}");
                } else {
                    segments += 1;
                    missed += u32::from(!lost);
                }
            } else {
                // The manifest, its list and the watermark have two copies.
                let twice = name.starts_with("list-") || name == "manifest" || name == "watermark";
                assert!(lost != twice, "{name} at {start}: {lost}");
            }
            if (start / PAGE_BYTES).is_multiple_of(3) {
                flip(
                    &files,
                    &model,
                    which,
                    start + start / PAGE_BYTES * 1237 % PAGE_BYTES.min(bytes.len() - start),
                );
            }
        }
    }
    // Only a page of deleted points loses nothing.
    assert!(
        segments > 60 && missed * 20 < segments,
        "{missed} damaged pages of {segments} were not seen"
    );
}

#[test]
fn damage_that_hides_points_is_a_loss() {
    let (files, _) = subject();
    let segment = files.iter().position(|(name, _)| name.starts_with("segment-")).unwrap();
    let name = &files[segment].0;
    // Pages without which the segment cannot be opened, and pages of points in an open segment.
    let mut found = [0, 0];
    for place in (0..files[segment].1.len()).step_by(PAGE_BYTES) {
        let mut damaged = files.clone();
        damaged[segment].1[place] ^= 1;
        let collection = open(&write(&damaged), options());
        let is_open = collection.status().segments.iter().all(|segment| segment.open);
        // The points of the first segment that are live.
        let fails = (0..75).any(|id| collection.get(id).is_err());
        if fails {
            found[usize::from(is_open)] += 1;
            assert_eq!(collection.loss().unwrap().file, *name, "byte {place}, {is_open}");
        }
    }
    assert!(found.iter().all(|count| *count > 0), "{found:?}");
}

#[test]
fn a_served_segment_with_lost_pages_can_be_abandoned() {
    let (files, model) = subject();
    let segment = files.iter().position(|(name, _)| name.starts_with("segment-")).unwrap();
    let (name, bytes) = &files[segment];
    let sound = open(&write(&files), options()).abandon(name).unwrap_err();
    assert_eq!(sound.kind(), ErrorKind::FailedPrecondition);
    let mut abandoned = 0;
    for place in (0..bytes.len()).step_by(PAGE_BYTES) {
        let mut damaged = files.clone();
        damaged[segment].1[place] ^= 1;
        let medium = write(&damaged);
        let collection = open(&medium, options());
        let is_open = collection.status().segments.iter().all(|segment| segment.open);
        if !is_open || (0..75).all(|id| collection.get(id).is_ok()) {
            continue;
        }
        collection.abandon(name).unwrap();
        let status = collection.status();
        assert_eq!((status.quarantined, status.partial), (Vec::new(), false), "byte {place}");
        assert_eq!(collection.get(7).unwrap(), None, "it was in the segment");
        // 3 was written again later.
        for id in (75..155).chain([3]) {
            assert_eq!(collection.get(id).unwrap().as_ref(), model.get(&id), "{id}");
        }
        drop(collection);
        let listed = open(&medium, options()).status().segments;
        assert!(listed.iter().all(|segment| segment.name != *name), "byte {place}");
        abandoned += 1;
    }
    assert!(abandoned > 0, "no page hides a point of a served segment");
}

#[test]
fn a_lost_segment_keeps_its_pending_deletes() {
    let (files, model) = subject();
    let segments: Vec<usize> =
        (0..files.len()).filter(|&at| files[at].0.starts_with("segment-")).collect();
    let mut damaged = files.clone();
    damaged[segments[0]].1[100] ^= 1;
    let medium = write(&damaged);
    let collection = open(&medium, options());
    let name = files[segments[0]].0.clone();
    assert_eq!(collection.status().quarantined[0].file, name);
    assert_eq!(collection.get(7).unwrap_err().kind(), ErrorKind::DataLoss, "nobody knows");
    // 7 and 8 are in the lost segment.
    collection.upsert(point(&stored(7, 5))).unwrap();
    collection.delete(8).unwrap();
    assert_eq!(collection.get(7).unwrap(), Some(stored(7, 5)));
    assert_eq!(collection.get(8).unwrap(), None);
    collection.flush().unwrap();
    collection.upsert(point(&stored(9, 5))).unwrap();
    drop(collection);
    // Restored from a copy, it has lost the deleted points.
    let mut writer = medium.reopen(&name).unwrap();
    writer.write_at(0, &files[segments[0]].1).unwrap();
    writer.persist().unwrap();
    drop(writer);
    let mut model = model;
    model.insert(7, stored(7, 5));
    model.insert(9, stored(9, 5));
    model.remove(&8);
    for _ in 0..2 {
        let collection = open(&medium, options());
        assert_eq!(look(&collection, &model), Lost::default());
        assert!(!collection.status().partial);
        collection.flush().unwrap();
    }
    // Or it is abandoned.
    let medium = write(&damaged);
    let collection = open(&medium, options());
    assert_eq!(collection.abandon("segment-000000000999").unwrap_err().kind(), ErrorKind::NotFound);
    collection.abandon(&name).unwrap();
    assert_eq!((collection.status().quarantined, collection.status().partial), (Vec::new(), false));
    let mut thread = collection.thread(limits()).unwrap();
    let like = stored(1, 1);
    assert!(
        !collection
            .nearest(&mut thread, &CollectionQuery::nearest(&like.embedding, 5))
            .unwrap()
            .partial
    );
    drop((thread, collection));
    assert!(!open(&medium, options()).status().segments.iter().any(|segment| segment.name == name));
}

#[test]
fn a_full_disk_does_not_keep_the_report_of_a_dropped_segment() {
    let (mut files, _) = subject();
    let segment = files.iter_mut().find(|(name, _)| name.starts_with("segment-")).unwrap();
    segment.1[100] ^= 1;
    let name = segment.0.clone();
    let medium = Arc::new(FaultMedium::new(write(&files), FaultPlan::default()).unwrap());
    let collection = open(&(medium.clone() as Arc<dyn Medium>), options());
    assert_eq!(collection.status().quarantined[0].file, name);
    medium.set_space(Some(0));
    assert_eq!(collection.abandon(&name).unwrap_err().kind(), ErrorKind::StorageFull);
    let status = collection.status();
    assert_eq!((status.quarantined, status.partial), (Vec::new(), false));
    assert!(named(&(medium.clone() as Arc<dyn Medium>), "segment-").contains(&name));
    medium.set_space(None);
    assert!(collection.flush_oldest().unwrap(), "the list without the segment is published");
    assert!(!named(&(medium as Arc<dyn Medium>), "segment-").contains(&name));
}

#[test]
fn a_collection_without_file_numbers_is_not_opened() {
    let (mut files, _) = subject();
    let name = "deletes-999999999999".to_owned();
    files.push((name.clone(), vec![0; 8]));
    let medium = write(&files);
    let opened = try_open(medium.clone(), options(), &resources(MEMORY_BYTES, MEMTABLE_BYTES));
    let error = opened.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::DataLoss);
    assert!(error.message().contains("999999999999 is the highest"), "{error}");
    assert!(named(&medium, "deletes-").contains(&name), "nothing was removed");
}

fn faulty(inner: &Arc<dyn Medium>, plan: FaultPlan) -> Arc<dyn Medium> {
    Arc::new(FaultMedium::new(inner.clone(), plan).unwrap())
}

fn unreadable(name: &str, page: u64) -> FaultPlan {
    FaultPlan { damage: vec![(name.to_owned(), page, ReadFault::Error)], ..FaultPlan::default() }
}

fn named(medium: &Arc<dyn Medium>, kind: &str) -> Vec<String> {
    let names = medium.list().unwrap().into_iter().map(|(name, _)| name);
    names.filter(|name| name.starts_with(kind)).collect()
}

#[test]
fn a_bad_sector_of_a_log_loses_only_its_changes() {
    const POINTS: u64 = 30;
    let inner = memory_medium();
    let collection = open(&inner, options());
    (0..POINTS).for_each(|id| collection.upsert(point(&stored(id, 1))).unwrap());
    assert_eq!(collection.loss(), None);
    drop(collection);
    let log = named(&inner, "log-").pop().unwrap();
    let medium = faulty(&inner, unreadable(&log, 2));
    let found = |collection: &Collection| {
        let there = |id: &u64| match collection.get(*id) {
            Ok(found) => {
                assert_eq!(found, Some(stored(*id, 1)));
                true
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::DataLoss, "{error}");
                false
            }
        };
        (0..POINTS).filter(there).collect::<Vec<u64>>()
    };
    let collection = open(&medium, options());
    let kept = found(&collection);
    let status = collection.status();
    assert!(kept.len() as u64 > POINTS / 2 && (kept.len() as u64) < POINTS, "{kept:?}");
    assert!(
        status.log_damaged && status.quarantined.iter().any(|what| what.file == log),
        "{status:?}"
    );
    assert_eq!(collection.loss().unwrap().file, log);
    collection.upsert(point(&stored(100, 1))).unwrap();
    collection.flush().unwrap();
    drop(collection);
    for round in 0..3 {
        assert!(
            named(&inner, "log-").contains(&log),
            "what is left of it is removed in round {round}"
        );
        let collection = open(&inner, options());
        assert_eq!(found(&collection), kept);
        assert_eq!(collection.get(100).unwrap(), Some(stored(100, 1)));
        collection.upsert(point(&stored(200, round))).unwrap();
        collection.flush().unwrap();
    }
}

#[test]
fn disk_faults_during_open_lose_nothing() {
    const POINTS: u64 = 40;
    let medium = memory_medium();
    let collection = open(&medium, options());
    (0..POINTS).for_each(|id| collection.upsert(point(&stored(id, 1))).unwrap());
    drop(collection);
    let files: Files = named(&medium, "")
        .into_iter()
        .map(|name| (name.clone(), medium.load(&name).unwrap()))
        .collect();
    // Less than the log holds, so that opening has to flush.
    let small = resources(MEMORY_BYTES, 4 << 10);
    let mut refused = (0, 0);
    for at in 1..30 {
        let sync = FaultPlan { persist_error_at: Some(at), ..FaultPlan::default() };
        let write_error = FaultPlan { write_error_at: Some(at), ..FaultPlan::default() };
        for (plan, refused) in [(sync, &mut refused.0), (write_error, &mut refused.1)] {
            let medium = write(&files);
            match try_open(faulty(&medium, plan), options(), &small) {
                Ok(collection) => {
                    assert!(!collection.status().log_damaged, "{at}");
                    assert_eq!(collection.count(), POINTS, "{at}");
                }
                Err(_) => *refused += 1,
            }
            let again = open(&medium, options());
            assert_eq!((again.count(), again.status().log_damaged), (POINTS, false), "{at}");
        }
    }
    assert!(refused.0 > 0 && refused.1 > 0, "{refused:?}");
}

#[test]
fn unreadable_pending_deletes_are_kept() {
    let (files, mut model) = subject();
    let segment = files.iter().position(|(name, _)| name.starts_with("segment-")).unwrap();
    let mut damaged = files.clone();
    damaged[segment].1[100] ^= 1;
    let medium = write(&damaged);
    let collection = open(&medium, options());
    collection.upsert(point(&stored(7, 5))).unwrap();
    collection.delete(8).unwrap();
    collection.flush().unwrap();
    drop(collection);
    let waiting = named(&medium, "waiting-").pop().unwrap();
    let mut writer = medium.reopen(&files[segment].0).unwrap();
    writer.write_at(0, &files[segment].1).unwrap();
    writer.persist().unwrap();
    drop(writer);
    // More pending deletes come while the first are unreadable.
    for id in [9, 11] {
        let collection = open(&faulty(&medium, unreadable(&waiting, 0)), options());
        assert_eq!(collection.get(12).unwrap_err().kind(), ErrorKind::DataLoss, "it is not served");
        collection.upsert(point(&stored(id, 5))).unwrap();
        collection.flush().unwrap();
        drop(collection);
        assert!(named(&medium, "waiting-").contains(&waiting));
    }
    for id in [7, 9, 11] {
        model.insert(id, stored(id, 5));
    }
    model.remove(&8);
    for _ in 0..2 {
        let collection = open(&medium, options());
        assert_eq!(look(&collection, &model), Lost::default());
        collection.flush().unwrap();
    }
}

/// Returns the files of a whole collection whose deletion of point 8 is pending, and the name of
/// the file that holds the deletion.
fn with_pending_deletes() -> (Files, String) {
    let (files, _) = subject();
    let segment = files.iter().position(|(name, _)| name.starts_with("segment-")).unwrap();
    let mut damaged = files.clone();
    damaged[segment].1[100] ^= 1;
    let medium = write(&damaged);
    let collection = open(&medium, options());
    collection.delete(8).unwrap();
    collection.flush().unwrap();
    drop(collection);
    let waiting = named(&medium, "waiting-").pop().unwrap();
    let list = medium.list().unwrap().into_iter();
    let mut written: Files =
        list.map(|(name, _)| (name.clone(), medium.load(&name).unwrap())).collect();
    written.retain(|(name, _)| *name != files[segment].0);
    written.push(files[segment].clone());
    (written, waiting)
}

#[test]
fn pending_deletes_that_cannot_be_read_now_are_no_damage() {
    let (files, waiting) = with_pending_deletes();
    let medium = write(&files);
    // As the system refuses if too many files are open.
    let refused = vec![(waiting.clone(), base::Error::exhausted("too many open files"))];
    let refusing = faulty(&medium, FaultPlan { refused, ..FaultPlan::default() });
    let resources = resources(MEMORY_BYTES, MEMTABLE_BYTES);
    let error = try_open(refusing, options(), &resources).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::ResourceExhausted);
    assert!(error.message().contains(&waiting), "{error}");
    let collection = open(&medium, options());
    assert_eq!(collection.get(8).unwrap(), None);
    assert_eq!(collection.get(12).unwrap(), Some(stored(12, 1)));
}

#[test]
fn pending_deletes_of_a_wrong_length_are_damage() {
    let (files, waiting) = with_pending_deletes();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let medium: Arc<dyn Medium> = Arc::new(UringMedium::plain(path.to_owned()).unwrap());
    for (name, bytes) in &files {
        let mut writer = medium.create(name).unwrap();
        writer.append(bytes).unwrap();
        writer.persist().unwrap();
    }
    let file = std::fs::File::options().write(true).open(path.join(waiting)).unwrap();
    let bytes = file.metadata().unwrap().len();
    file.set_len(LOAD_BYTES_MAX + 1).unwrap();
    let collection = open(&medium, options());
    assert_eq!(collection.get(12).unwrap_err().kind(), ErrorKind::DataLoss, "it is not served");
    drop(collection);
    file.set_len(bytes).unwrap();
    let collection = open(&medium, options());
    assert_eq!(collection.get(8).unwrap(), None);
    assert_eq!(collection.get(12).unwrap(), Some(stored(12, 1)));
}

#[test]
fn readable_ids_limit_the_doubt() {
    let (files, model) = subject();
    let segment = files.iter().position(|(name, _)| name.starts_with("segment-")).unwrap();
    let mut known = 0;
    for place in (0..files[segment].1.len()).step_by(PAGE_BYTES) {
        let mut damaged = files.clone();
        damaged[segment].1[place] ^= 1;
        let medium = write(&damaged);
        let collection = open(&medium, options());
        let closed = collection.status().segments.iter().any(|segment| !segment.open);
        if !closed || collection.get(100_000).is_err() {
            continue;
        }
        known += 1;
        assert_eq!(collection.get(100_000).unwrap(), None);
        let lost: Vec<u64> = (0..160).filter(|&id| collection.get(id).is_err()).collect();
        assert!(lost.len() > 60 && lost.iter().all(|id| *id < 75), "{lost:?}");
        // New points do not depend on a segment that never had them.
        (200..210).for_each(|id| collection.upsert(point(&stored(id, 1))).unwrap());
        collection.flush().unwrap();
        assert!(named(&medium, "waiting-").is_empty());
        assert_eq!(
            collection.count(),
            model.len() as u64 - lost.len() as u64 + deleted(&lost, &model) + 10
        );
    }
    assert!(known > 0);
}

/// Counts the ids that were deleted before.
fn deleted(ids: &[u64], model: &Model) -> u64 {
    ids.iter().filter(|id| !model.contains_key(id)).count() as u64
}
