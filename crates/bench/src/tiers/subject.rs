//! Records, their positions, and queries. All follow from the arguments, so that the processes of
//! the arms share only the segments' bytes.

use std::path::Path;
use std::sync::Arc;

use base::{Error, Result};
use matching::{Graph, Vertex, synthetic};
use search::rerank::{Address, Records, RerankCandidate};
use storage::page::{PAGE_BYTES, Packer};
use storage::{Medium, Sealed};

use super::{TierRecords, TiersArgs};
use loadgen::random::{RandomSequence, at};

/// Seeds of the generated data.
const RECORD_SEED: u64 = 71;
const QUERY_SEED: u64 = 72;
const CANDIDATE_SEED: u64 = 73;
/// Number of photographs from which others are composed.
const PHOTO_BASES: u64 = 512;
/// Number of records made and written at a time.
const BATCH_RECORDS: usize = 8192;
/// Size in bytes of a [`PackedPosition`] in the file of positions.
const POSITION_BYTES: usize = 8;

/// Sizes that follow from the arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TierShape {
    pub(super) kind: TierRecords,
    pub(super) records: u32,
    pub(super) segments: u32,
    /// Number of records of a cluster of the coarse stage, which lie together.
    pub(super) cluster: u32,
    /// Number of clusters that a query's candidates come from.
    pub(super) probes: u32,
    /// Number of candidates of a query.
    pub(super) candidates: u32,
    /// Candidates from the nearest cluster, in thousandths.
    pub(super) near: u32,
}

impl TierShape {
    pub(super) fn new(args: &TiersArgs, records: u32, segments: u32) -> TierShape {
        TierShape {
            kind: args.kind,
            records,
            segments,
            cluster: args.cluster,
            probes: args.probes,
            candidates: args.candidates,
            near: (args.near * 1000.0).round() as u32,
        }
    }

    pub(super) fn segment_records(&self) -> u32 {
        self.records.div_ceil(self.segments.max(1))
    }

    /// Returns the position of record `number`.
    fn position(&self, number: u32) -> TierPosition {
        TierPosition {
            segment: number / self.segment_records(),
            row: number % self.segment_records(),
        }
    }

    /// Returns the shape of the first segments only.
    pub(super) fn first_segments(self, segments: u32) -> TierShape {
        let records = (self.segment_records() * segments).min(self.records);
        TierShape { records, segments, ..self }
    }
}

/// Position of a record in the benchmark's segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TierPosition {
    pub(super) segment: u32,
    pub(super) row: u32,
}

/// Generator of records.
pub(super) struct TierRecordMaker {
    kind: TierRecords,
    bases: Vec<Graph>,
}

impl TierRecordMaker {
    pub(super) fn new(kind: TierRecords) -> TierRecordMaker {
        let bases = match kind {
            TierRecords::Fingerprint => Vec::new(),
            TierRecords::Photo => {
                (0..PHOTO_BASES).map(|seed| synthetic::photo(RECORD_SEED + seed)).collect()
            }
        };
        TierRecordMaker { kind, bases }
    }

    /// Returns the graph of record `number`.
    pub(super) fn graph(&self, number: u32) -> Graph {
        match self.kind {
            TierRecords::Fingerprint => synthetic::fingerprint(at(RECORD_SEED, u64::from(number))),
            TierRecords::Photo => self.mixed(number),
        }
    }

    /// Composes a photograph of several: columns of one, rows of another, descriptors of a third
    /// with its own bits. Two of them have nothing in common, and making one is as fast as writing
    /// it.
    fn mixed(&self, number: u32) -> Graph {
        let mut random = RandomSequence::new(at(RECORD_SEED, u64::from(number)));
        let mut base = || &self.bases[(random.bits() % self.bases.len() as u64) as usize];
        let columns = base();
        let rows = base();
        let descriptors = base();
        let shift = random.bits() as usize;
        let turn = random.bits() as u8;
        let bits = random.bits().to_le_bytes();
        let count =
            columns.vertices.len().min(rows.vertices.len()).min(descriptors.descriptors.len());
        let vertices = (0..count).map(|index| {
            let other = rows.vertices[(index + shift) % count];
            let own = columns.vertices[index];
            Vertex { y: other.y, direction: other.direction.wrapping_add(turn), ..own }
        });
        let own_bits =
            |descriptor: &[u8; 32]| std::array::from_fn(|at| descriptor[at] ^ bits[at % 8]);
        Graph {
            width: columns.width,
            height: columns.height,
            vertices: vertices.collect(),
            descriptors: descriptors.descriptors.iter().take(count).map(own_bits).collect(),
        }
    }
}

pub(super) struct TierQuery {
    /// Another impression of the wanted record.
    pub(super) graph: Graph,
    /// Position of the wanted record.
    pub(super) target: TierPosition,
    pub(super) candidates: Vec<RerankCandidate>,
}

/// Returns the query `index` of a stream.
pub(super) fn query_of(
    shape: &TierShape,
    maker: &TierRecordMaker,
    stream: u64,
    index: u32,
) -> TierQuery {
    let seed = at(QUERY_SEED + stream, u64::from(index));
    let target = (at(seed, 1) % u64::from(shape.records)) as u32;
    let graph = synthetic::distorted(&maker.graph(target), seed);
    let candidates = candidates(shape, target, at(CANDIDATE_SEED + stream, u64::from(index)));
    TierQuery { graph, target: shape.position(target), candidates }
}

/// Simulates the candidates of a coarse stage over clusters: a share from the record's cluster, the
/// others from random clusters, at random positions in each. Each once, best first.
pub(super) fn candidates(shape: &TierShape, target: u32, seed: u64) -> Vec<RerankCandidate> {
    let mut random = RandomSequence::new(seed);
    let clusters = shape.records.div_ceil(shape.cluster).max(1);
    let wanted = shape.candidates.min(shape.records);
    let others: Vec<u32> =
        (1..shape.probes.max(2)).map(|_| (random.bits() % u64::from(clusters)) as u32).collect();
    let mut numbers = vec![target];
    let mut seen = std::collections::HashSet::from([target]);
    // If few records of the clusters remain, any record is chosen after these tries.
    let mut tries_left = 20 * wanted;
    while (numbers.len() as u32) < wanted {
        let near = (random.bits() % 1000) < u64::from(shape.near);
        let cluster = if near {
            target / shape.cluster
        } else {
            others[(random.bits() % others.len() as u64) as usize]
        };
        let mut number =
            cluster * shape.cluster + (random.bits() % u64::from(shape.cluster)) as u32;
        tries_left = tries_left.saturating_sub(1);
        if number >= shape.records || tries_left == 0 {
            number = (random.bits() % u64::from(shape.records)) as u32;
        }
        if seen.insert(number) {
            numbers.push(number);
        }
    }
    // The record itself is somewhere among them: coarse filters are not exact.
    let place = (random.bits() % numbers.len() as u64) as usize;
    numbers.swap(0, place);
    let candidate = |(rank, number): (usize, u32)| {
        let TierPosition { segment, row } = shape.position(number);
        RerankCandidate { segment, row, id: number.into(), coarse: -(rank as f32) }
    };
    numbers.into_iter().enumerate().map(candidate).collect()
}

/// Returns the name of a segment's file. The file with the positions of its records has another
/// extension.
pub(super) fn segment_name(segment: u32) -> String {
    format!("records-{segment}.seg")
}

fn positions_path(dir: &Path, segment: u32) -> std::path::PathBuf {
    dir.join("places").join(format!("places-{segment}.bin"))
}

/// Sizes of written segments.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SegmentSizes {
    /// Bytes of all pages.
    pub(super) bytes: u64,
    /// Bytes of all records, without page headers and gaps.
    pub(super) record_bytes: u64,
}

/// Encodes the records `numbers` in `threads` threads. Returns their bytes one after another, and
/// the end of each.
fn encode(
    maker: &TierRecordMaker,
    numbers: std::ops::Range<u32>,
    threads: usize,
) -> Result<(Vec<u8>, Vec<usize>)> {
    let part = (numbers.len() as u32).div_ceil(threads.max(1) as u32).max(1);
    let one = |first: u32| {
        let mut bytes = Vec::new();
        let mut ends = Vec::new();
        for number in first..(first + part).min(numbers.end) {
            maker.graph(number).encode(&mut bytes);
            ends.push(bytes.len());
        }
        (bytes, ends)
    };
    let parts: Result<Vec<_>> = std::thread::scope(|scope| {
        let threads: Vec<_> = numbers
            .clone()
            .step_by(part as usize)
            .map(|first| scope.spawn(move || one(first)))
            .collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread.join().map_err(|_| Error::internal("making records panicked"))
        };
        threads.into_iter().map(join).collect()
    });
    let mut bytes = Vec::new();
    let mut ends = Vec::new();
    for (part, part_ends) in parts? {
        ends.extend(part_ends.into_iter().map(|end| bytes.len() + end));
        bytes.extend_from_slice(&part);
    }
    Ok((bytes, ends))
}

/// Generates the records of a segment and writes them to `medium`. Returns the sizes of what was
/// written.
pub(super) fn write_segment(
    shape: &TierShape,
    maker: &TierRecordMaker,
    medium: &dyn Medium,
    dir: &Path,
    segment: u32,
    threads: usize,
) -> Result<SegmentSizes> {
    let mut writer = medium.create(&segment_name(segment))?;
    let mut packer = Packer::new();
    let mut pages = Vec::new();
    let mut positions = Vec::new();
    let mut written = SegmentSizes::default();
    let first = segment * shape.segment_records();
    let end = (first + shape.segment_records()).min(shape.records);
    for batch in (first..end).step_by(BATCH_RECORDS) {
        let (records, ends) =
            encode(maker, batch..(batch + BATCH_RECORDS as u32).min(end), threads)?;
        let mut start = 0;
        for end in ends {
            let placed = packer.push(records.get(start..end).unwrap_or(&[]))?;
            positions.extend_from_slice(&placed.page.to_le_bytes());
            positions.extend_from_slice(&placed.pages.to_le_bytes());
            positions.extend_from_slice(&placed.slot.to_le_bytes());
            start = end;
        }
        written.record_bytes += start as u64;
        packer.drain(&mut pages);
        writer.append(&pages)?;
        pages.clear();
    }
    packer.finish(&mut pages)?;
    writer.append(&pages)?;
    writer.persist()?;
    written.bytes = writer.bytes();
    let path = positions_path(dir, segment);
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(|e| Error::io(parent, &e))?;
    }
    std::fs::write(&path, positions).map_err(|e| Error::io(&path, &e))?;
    Ok(written)
}

/// Position of a record in the file of its segment.
#[derive(Clone, Copy, Debug)]
struct PackedPosition {
    /// Index of the first page.
    page: u32,
    /// Number of pages.
    pages: u16,
    slot: u16,
}

impl PackedPosition {
    /// Reads the numbers in the order in which [`write_segment`] writes them.
    fn read(bytes: &[u8; POSITION_BYTES]) -> PackedPosition {
        let &[p0, p1, p2, p3, n0, n1, s0, s1] = bytes;
        PackedPosition {
            page: u32::from_le_bytes([p0, p1, p2, p3]),
            pages: u16::from_le_bytes([n0, n1]),
            slot: u16::from_le_bytes([s0, s1]),
        }
    }
}

/// A segment, and the positions of its records by row.
#[derive(Debug)]
pub(super) struct OpenSegment {
    file: Arc<dyn Sealed>,
    positions: Vec<PackedPosition>,
}

impl OpenSegment {
    /// Opens segment `segment` on `medium`. The positions of its records are read from `dir`.
    pub(super) fn open(medium: &dyn Medium, dir: &Path, segment: u32) -> Result<OpenSegment> {
        let file = medium.open(&segment_name(segment))?;
        let path = positions_path(dir, segment);
        let bytes = std::fs::read(&path).map_err(|e| Error::io(&path, &e))?;
        let positions = bytes.as_chunks().0.iter().map(PackedPosition::read).collect();
        Ok(OpenSegment { file, positions })
    }
}

impl Records for OpenSegment {
    fn file(&self) -> &Arc<dyn Sealed> {
        &self.file
    }

    fn locate(&self, row: u32) -> Option<Address> {
        let &PackedPosition { page, pages, slot } = self.positions.get(row as usize)?;
        let page_bytes = PAGE_BYTES as u64;
        Some(Address {
            offset: u64::from(page) * page_bytes,
            bytes: u32::from(pages) * PAGE_BYTES as u32,
            slot,
        })
    }

    fn pages_start(&self) -> Option<u64> {
        Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const SHAPE: TierShape = TierShape {
        kind: TierRecords::Fingerprint,
        records: 100_000,
        segments: 3,
        cluster: 1000,
        probes: 32,
        candidates: 500,
        near: 250,
    };

    #[test]
    fn candidates_are_different_and_from_the_stated_clusters() {
        for seed in 0..20 {
            let all = candidates(&SHAPE, 54_321, seed);
            let numbers: BTreeSet<u32> =
                all.iter().map(|c| c.segment * SHAPE.segment_records() + c.row).collect();
            assert_eq!((all.len(), numbers.len()), (500, 500));
            assert!(numbers.contains(&54_321));
            let near = numbers.iter().filter(|&&number| number / 1000 == 54).count();
            assert!((90..=190).contains(&near), "{near}");
            let clusters: BTreeSet<u32> = numbers.iter().map(|number| number / 1000).collect();
            assert!((20..=32).contains(&clusters.len()), "{}", clusters.len());
            assert!(all.windows(2).all(|pair| pair[0].coarse > pair[1].coarse));
        }
        let few = TierShape { records: 300, segments: 1, ..SHAPE };
        assert_eq!(candidates(&few, 7, 1).len(), 300);
    }

    #[test]
    fn composed_photographs_are_valid_and_differ() {
        let maker = TierRecordMaker::new(TierRecords::Photo);
        let (one, two) = (maker.graph(1), maker.graph(2));
        assert!(one.described() && one.vertices.len() > 200);
        assert_ne!(one, two);
        assert_eq!(one, maker.graph(1));
    }
}
