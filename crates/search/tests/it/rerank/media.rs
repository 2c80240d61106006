//! The exact stage on each medium, and with faults of a device.

use std::collections::BTreeSet;
use std::sync::Arc;

use memory::{PoolConfig, SlotPool};
use os::Rate;
use search::rerank::{RerankResult, SearchLimits, Searcher, SharedCaches};
use storage::{DaxMedium, DramMedium, FaultMedium, FaultPlan, Medium, MmapMedium, UringMedium};

use super::{First, Segment, one_query, rows, segment};

/// Writes records with these scores to a medium.
fn written(medium: &dyn Medium, scores: &[u8]) -> Segment {
    let records: Vec<(u8, usize)> =
        scores.iter().enumerate().map(|(at, &score)| (score, 200 + at % 7 * 90)).collect();
    let made = segment(&records, &[], true);
    let mut writer = medium.create("segment").unwrap();
    writer.append(made.file.in_place().unwrap()).unwrap();
    writer.persist().unwrap();
    medium.persist_names().unwrap();
    Segment { file: medium.open("segment").unwrap(), ..made }
}

fn volatile() -> DramMedium {
    let config =
        PoolConfig { bytes_max: 8 << 20, huge_pages: false, fault_rate: Rate::unlimited() };
    DramMedium::new(SlotPool::new(config).unwrap(), None).unwrap()
}

/// Returns the result of a query for all rows, as (row, score).
fn ask_all(medium: &dyn Medium, own: &Segment, k: usize, limits: SearchLimits) -> RerankResult {
    let reader = medium.reader(limits.reader_options()).unwrap();
    let mut searcher =
        Searcher::new(reader, limits, Arc::new(SharedCaches::new(1 << 20, 400))).unwrap();
    let file = own.file.clone();
    let places = own.places.clone();
    let candidates = rows(0..places.len() as u32, |_| 0.0);
    let same = Segment { file, places, start: own.start };
    searcher.run_one(one_query(same, candidates, k, First { bounded: false })).unwrap()
}

#[test]
fn all_media_give_equal_results() {
    let scores: Vec<u8> = (0..900u32).map(|row| (row * 37 % 251) as u8).collect();
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    let mut media: Vec<Box<dyn Medium>> = vec![
        Box::new(volatile()),
        Box::new(MmapMedium::new(place("mmap")).unwrap()),
        Box::new(DaxMedium::simulated(place("dax")).unwrap()),
        Box::new(UringMedium::plain(place("plain")).unwrap()),
    ];
    match UringMedium::new(place("nvme")) {
        Ok(medium) => media.push(Box::new(medium)),
        Err(error) => eprintln!("skipped: {error}"),
    }
    let mut wanted: Vec<(u32, f32)> =
        scores.iter().enumerate().map(|(row, &score)| (row as u32, f32::from(score))).collect();
    wanted.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    wanted.truncate(40);
    for medium in media {
        let own = written(medium.as_ref(), &scores);
        let ranked = ask_all(medium.as_ref(), &own, 40, SearchLimits::default());
        let hits: Vec<(u32, f32)> =
            ranked.hits.iter().map(|(hit, score)| (hit.row, *score)).collect();
        assert_eq!(hits, wanted, "{:?}", medium.kind());
        assert!(!ranked.partial, "{:?}", medium.kind());
    }
}

/// Two pages are damaged in each way and their rows reported; all others are ranked.
#[test]
fn device_faults_lose_only_their_pages() {
    for seed in 0..24 {
        let scores: Vec<u8> = (0..700u32).map(|row| (row * 91 % 250) as u8).collect();
        let rates = FaultPlan {
            seed,
            read_errors: 15,
            short_reads: 15,
            torn_pages: 15,
            bit_flips: 15,
            reorder: true,
            ..FaultPlan::default()
        };
        let medium = FaultMedium::new(Arc::new(volatile()), rates).unwrap();
        let own = written(&medium, &scores);
        let lost: BTreeSet<u32> = (0..700).filter(|&row| own.is_damaged(row)).collect();
        let mut wanted: Vec<u32> = (0..700).filter(|row| !lost.contains(row)).collect();
        wanted.sort_by_key(|&row| (std::cmp::Reverse(scores[row as usize]), row));
        wanted.truncate(30);
        let limits = SearchLimits { query_in_flight: 1 + seed as usize, ..SearchLimits::default() };
        let ranked = ask_all(&medium, &own, 30, limits);
        let hits: Vec<u32> = ranked.hits.iter().map(|(hit, _)| hit.row).collect();
        assert_eq!(hits, wanted);
        assert_eq!(ranked.damaged_count as usize, lost.len());
        assert!(ranked.damaged.iter().all(|damage| lost.contains(&damage.candidate.row)));
        assert_eq!(ranked.partial, !lost.is_empty());
    }
}
