//! The enrolled prints and the background, with their index.

use base::{Error, Result};
use matching::index::{EdgeIndex, EdgeIndexBuilder};
use matching::{Graph, synthetic};

use super::super::Impression;

/// Seed of the first made-up print.
const SEED: u64 = 2004;

/// Prints to search.
pub(super) struct Gallery {
    /// Records, one after the other.
    bytes: Vec<u8>,
    /// Start of each record, and the end of the last.
    starts: Vec<usize>,
    /// Number of enrolled prints, which come first.
    pub(super) enrolled: usize,
    pub(super) index: EdgeIndex,
    /// Seconds that the index took.
    pub(super) build_s: f64,
}

impl Gallery {
    /// Enrols the first impression of each finger and makes up the background.
    pub(super) fn new(impressions: &[Impression], background: usize) -> Result<Gallery> {
        let mut bytes = Vec::new();
        let mut starts = vec![0];
        for first in firsts(impressions) {
            bytes.extend(&first.record);
            starts.push(bytes.len());
        }
        let enrolled = starts.len() - 1;
        for part in made_up(background)? {
            let offset = bytes.len();
            starts.extend(part.ends.iter().map(|end| offset + end));
            bytes.extend(part.bytes);
        }
        let start = std::time::Instant::now();
        let mut builder = EdgeIndexBuilder::new();
        for bounds in starts.windows(2) {
            builder.push(&bytes[bounds[0]..bounds[1]]);
        }
        let index = builder.finish();
        let build_s = start.elapsed().as_secs_f64();
        Ok(Gallery { bytes, starts, enrolled, index, build_s })
    }

    /// Returns the number of prints.
    pub(super) fn len(&self) -> usize {
        self.starts.len() - 1
    }

    /// Returns the record of a row; empty beyond the last.
    pub(super) fn record(&self, row: usize) -> &[u8] {
        let bounds = self.starts.get(row).zip(self.starts.get(row + 1));
        bounds.map(|(&from, &to)| &self.bytes[from..to]).unwrap_or_default()
    }
}

/// Returns the first impression of each finger. Impressions are ordered by finger.
pub(super) fn firsts(impressions: &[Impression]) -> impl Iterator<Item = &Impression> {
    let first = |at: usize| at == 0 || !impressions[at].same_finger(&impressions[at - 1]);
    impressions.iter().enumerate().filter(move |(at, _)| first(*at)).map(|(_, first)| first)
}

/// Records of made-up prints.
#[derive(Default)]
struct MadeUpPrints {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

/// Returns a made-up print.
pub(super) fn print(number: usize) -> Graph {
    synthetic::impression(SEED + number as u64)
}

/// Generates `count` prints, on all cores.
fn made_up(count: usize) -> Result<Vec<MadeUpPrints>> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let each = count.div_ceil(threads).max(1);
    std::thread::scope(|scope| {
        let work = |from: usize| {
            move || {
                let mut part = MadeUpPrints::default();
                for number in from..(from + each).min(count) {
                    print(number).encode(&mut part.bytes);
                    part.ends.push(part.bytes.len());
                }
                part
            }
        };
        let running: Vec<_> =
            (0..count).step_by(each).map(|from| scope.spawn(work(from))).collect();
        let joined = running.into_iter().map(std::thread::ScopedJoinHandle::join);
        joined.map(|part| part.map_err(|_| Error::internal("a thread failed"))).collect()
    })
}
