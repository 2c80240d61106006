//! Every page of every file of a collection with a flipped bit: what is damaged is named and not served, the rest is.

use std::sync::Arc;

use base::ErrorKind;
use search::collection::{Collection, Query};
use search::filter::{Clause, Condition, Match};
use storage::Medium;
use storage::page::PAGE_BYTES;

use crate::points::{
    Model, PATIENCE, Sum, distance, limits, memory_medium, open, options, point, ranked, shared, stored,
};

type Files = Vec<(String, Vec<u8>)>;

/// A collection with two segments, deletes, and unsealed points; its files, and what it holds.
fn subject() -> (Files, Model) {
    let medium = memory_medium();
    let collection = open(&medium, options());
    let mut model = Model::new();
    for id in 0..150_u64 {
        collection.upsert(point(&stored(id, 1))).unwrap();
        model.insert(id, stored(id, 1));
        if id % 75 == 74 {
            collection.seal().unwrap();
        }
    }
    for id in (0..150).step_by(10) {
        collection.delete(id).unwrap();
        model.remove(&id);
    }
    collection.upsert(point(&stored(3, 2))).unwrap();
    model.insert(3, stored(3, 2));
    collection.seal().unwrap();
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

/// How many points each kind of look-up did not find.
#[derive(Debug, Default, PartialEq)]
struct Lost {
    got: usize,
    nearest: usize,
    searched: usize,
}

/// Looks at everything. Whatever is found is right; what is not found is admitted.
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
    let query = Query { candidates: 200, ..Query::nearest(&like.embedding, 200) };
    let nearest = collection.nearest(&mut thread, &query).unwrap();
    let right = ranked(model, &like.embedding);
    let mut wanted = right.iter().map(|(point, _)| point.id);
    for hit in &nearest.hits {
        // In the same order as all would be, with some left out.
        assert!(wanted.any(|id| id == hit.id), "{hit:?}");
        assert!((hit.score + distance(&like.embedding, &model[&hit.id])).abs() < 1e-3);
    }
    lost.nearest = model.len() - nearest.hits.len();
    assert!(nearest.partial || lost.nearest == 0);

    let scorer = Sum(5);
    let searched = collection.search(&mut thread, &Query { exact: false, ..query }, &scorer).unwrap();
    for pair in searched.hits.windows(2) {
        assert!(pair[0].score >= pair[1].score);
    }
    for hit in &searched.hits {
        assert_eq!(hit.score, scorer.of(&model[&hit.id].record), "{hit:?}");
    }
    lost.searched = model.len() - searched.hits.len();
    assert!(searched.partial || lost.searched == 0);

    let colour = Condition::Match { key: "colour".into(), matching: Match::Value(2.into()) };
    let clause = Clause { must: vec![colour], ..Clause::default() };
    let filtered = collection.nearest(&mut thread, &Query { filter: Some(&clause), ..query }).unwrap();
    let is = |id: &u64| model[id].payload.ends_with(br#""colour":2}"#);
    assert!(filtered.hits.iter().all(|hit| is(&hit.id)));
    assert!(filtered.partial || filtered.hits.len() == model.keys().filter(|id| is(id)).count());
    lost
}

/// One flipped bit; whether anything was lost by it.
fn flip(files: &Files, model: &Model, which: usize, place: usize) -> bool {
    let (name, page) = (&files[which].0, (place / PAGE_BYTES) as u64);
    let mut damaged = files.clone();
    damaged[which].1[place] ^= 1 << (place % 8);
    let collection = Collection::open(write(&damaged), options(), shared());
    let collection = collection.unwrap_or_else(|error| panic!("{name} page {page}: {error}"));
    assert!(collection.wait_open(PATIENCE));
    if name.starts_with("log-") {
        // A change that is lost may have replaced a point; that it may be is admitted everywhere.
        return collection.status().log_damaged;
    }
    let lost = look(&collection, model);
    if lost == Lost::default() {
        return false;
    }
    let status = collection.status();
    assert!(status.partial, "{name} page {page}: {lost:?}");
    let of_file = status.quarantined.iter().find(|what| &what.file == name);
    let by_name = status.quarantined.iter().find(|what| what.reason.contains(name.as_str()));
    let named = of_file.or(by_name).unwrap_or_else(|| panic!("{name} page {page}: {:?}", status.quarantined));
    if let Some(found) = named.page {
        // A record of several pages is named by its first.
        assert!(found <= page && page <= found + 3, "{name} page {page}: {named}");
    }
    true
}

#[test]
fn every_page_of_every_file_with_a_flipped_bit() {
    let (files, model) = subject();
    let sound = open(&write(&files), options());
    assert_eq!(look(&sound, &model), Lost::default());
    drop(sound);
    let (mut segments, mut missed) = (0, 0);
    for (which, (name, bytes)) in files.iter().enumerate() {
        for start in (0..bytes.len()).step_by(PAGE_BYTES) {
            // Every section starts on a page, so this hits what is stored, not what fills the page up.
            let lost = flip(&files, &model, which, (start + start / PAGE_BYTES % 8).min(bytes.len() - 1));
            if name.starts_with("segment-") {
                segments += 1;
                missed += u32::from(!lost);
            } else {
                // Of the manifest and its list there are two.
                let twice = name.starts_with("list-") || name == "manifest";
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
    // Only a page of nothing but deleted points costs nothing.
    assert!(segments > 60 && missed * 20 < segments, "{missed} damaged pages of {segments} were not seen");
}

#[test]
fn a_lost_segment_costs_itself_and_what_changes_meanwhile_is_remembered() {
    let (files, model) = subject();
    let segments: Vec<usize> = (0..files.len()).filter(|&at| files[at].0.starts_with("segment-")).collect();
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
    collection.seal().unwrap();
    collection.upsert(point(&stored(9, 5))).unwrap();
    drop(collection);
    // Mended from a copy, it has forgotten them.
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
        collection.seal().unwrap();
    }
    // Or it is given up.
    let medium = write(&damaged);
    let collection = open(&medium, options());
    assert_eq!(collection.give_up("segment-000000000999").unwrap_err().kind(), ErrorKind::NotFound);
    collection.give_up(&name).unwrap();
    let mut thread = collection.thread(limits()).unwrap();
    let like = stored(1, 1);
    assert!(!collection.nearest(&mut thread, &Query::nearest(&like.embedding, 5)).unwrap().partial);
    drop((thread, collection));
    assert!(!open(&medium, options()).status().segments.iter().any(|segment| segment.name == name));
}
