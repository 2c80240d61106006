//! Building a segment: the coarse index decides the order of rows, and everything else is laid out
//! in it.

use base::Result;
use coarse::{BuildThreads, BuildVectors, CoarseKind, StreamedBuild};
use matching::index::EdgeIndexBuilder;
use storage::Medium;
use storage::page::{Packer, RECORD_BYTES_MAX};

use super::file::{IoStep, SegmentFileWriter};
use super::ids::SegmentIds;
use super::layout::{RecordKind, SegmentSettings, VectorEncoding, kind};
use super::rows::RowMapBuilder;
use crate::payload_index::{self, PayloadIndexBuilder, SpareIndexMemory};

/// Bytes of finished pages collected per write.
const DRAIN_BYTES: usize = 1 << 18;

/// Bytes of embeddings that are copied at once.
const VECTOR_BYTES: usize = 1 << 18;

/// Source of the rows of a new segment, in the source's own numbering. Embeddings are read in
/// passes.
pub(crate) trait RowSource: BuildVectors {
    /// Writes the record of a row to `out`, which is empty.
    ///
    /// # Errors
    /// An error if it cannot be read.
    fn record(&mut self, row: u32, out: &mut Vec<u8>) -> Result<()>;

    /// Writes the payload of a row to `out`, which is empty.
    ///
    /// # Errors
    /// An error if it cannot be read.
    fn payload(&mut self, row: u32, out: &mut Vec<u8>) -> Result<()>;
}

/// Settings of a new segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentPlan<'a> {
    /// Shape of the rows.
    pub(crate) settings: SegmentSettings,
    /// Content of the records.
    pub(crate) records: RecordKind,
    /// Kind of the coarse index.
    pub(crate) kind: CoarseKind,
    /// Threads that build the index.
    pub(crate) threads: BuildThreads<'a>,
    /// UUID of the segment.
    pub(crate) uuid: [u8; 16],
    /// Maximum bytes of memory for building the payload index. At least
    /// [`SegmentForm::payload_index_bytes`].
    pub(crate) index_bytes: u64,
    /// More memory for the payload index.
    pub(crate) index_spare: Option<&'a SpareIndexMemory>,
}

/// Segment that was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WrittenSegment {
    /// `order[row]` is the row of the source.
    pub(crate) order: Vec<u32>,
}

impl WrittenSegment {
    /// Returns the new row of each source row: the inverse of `order`.
    pub(crate) fn rows(&self) -> Vec<u32> {
        let mut rows = vec![0; self.order.len()];
        for (row, &from) in (0..).zip(&self.order) {
            if let Some(place) = rows.get_mut(from as usize) {
                *place = row;
            }
        }
        rows
    }
}

/// Bytes of a fingerprint in its index, or in the index's bytes.
const PRINT_BYTES: u64 = 320;
/// Bytes of a fingerprint in the block of rows that is being indexed.
const INDEXED_PRINT_BYTES: u64 = 832;

/// Properties that decide the memory of a segment besides its number of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentForm {
    /// Coarse index.
    pub(crate) kind: CoarseKind,
    /// Values of an embedding.
    pub(crate) dims: usize,
    /// Content of the records.
    pub(crate) records: RecordKind,
}

impl SegmentForm {
    /// Returns the bytes of memory that [`write`] needs. They are for the coarse index or the
    /// sample to train it, and for the indexes of payloads and fingerprints. Numbers of rows, ids,
    /// maps and buffers need some too. The embeddings do not count. The source's memory is extra.
    pub(crate) fn working_bytes(self, rows: u64) -> u64 {
        let all = self.payload_index_bytes(rows) + rows * 48 + (3 << 20);
        match self.records {
            RecordKind::Opaque => all,
            RecordKind::Fingerprint => {
                // The last block is released before the index is encoded.
                let indexed = rows.min(matching::index::BLOCK_ROWS as u64) * INDEXED_PRINT_BYTES;
                all + rows * PRINT_BYTES + indexed.max(rows * PRINT_BYTES)
            }
        }
    }

    /// Returns true if the codes of a segment of `rows` rows can stay on the medium. Codes of an
    /// index that compares all rows are always in memory.
    pub(crate) fn codes_can_move(self, rows: u64) -> bool {
        !coarse::compares_all(self.kind, rows, self.dims)
    }

    /// Returns the bytes of memory for building the index of payloads. It is built after the coarse
    /// index, in the memory of that index.
    pub(crate) fn payload_index_bytes(self, rows: u64) -> u64 {
        let index = coarse::index_bytes(self.kind, rows, self.dims);
        payload_index::memory_bytes(rows) + coarse::build_bytes(rows, self.dims, index)
    }

    /// Returns an upper bound of the bytes of memory of an open segment, and of the bytes that
    /// opening it needs.
    pub(crate) fn opening_bytes(self, rows: u64) -> u64 {
        let index = coarse::index_bytes(self.kind, rows, self.dims);
        let prints = match self.records {
            RecordKind::Opaque => 0,
            RecordKind::Fingerprint => rows * PRINT_BYTES,
        };
        // Terms and factors are decoded from their bytes, and ids too.
        index + index / 4 + prints + rows * 48 + (1 << 20)
    }
}

/// Embeddings as they are stored.
struct StoredVectors<'a> {
    source: &'a dyn RowSource,
    encoding: VectorEncoding,
}

impl BuildVectors for StoredVectors<'_> {
    fn rows(&self) -> usize {
        self.source.rows()
    }

    fn scan(&self, each: &mut dyn FnMut(&[f32]) -> Result<()>) -> Result<()> {
        if self.encoding == VectorEncoding::F32 {
            return self.source.scan(each);
        }
        let mut stored = Vec::new();
        self.source.scan(&mut |vectors| {
            stored.clear();
            stored.extend_from_slice(vectors);
            self.encoding.round(&mut stored);
            each(&stored)
        })
    }

    fn gather(&self, rows: &[u32], out: &mut Vec<f32>) -> Result<()> {
        let start = out.len();
        self.source.gather(rows, out)?;
        self.encoding.round(&mut out[start..]);
        Ok(())
    }

    fn id(&self, row: u32) -> u64 {
        self.source.id(row)
    }
}

/// Writes a segment to a new file and makes it durable. The caller makes the file name durable.
///
/// # Errors
/// The error of the source, the medium, the coarse index or `step`. The caller then removes the
/// file.
pub(crate) fn write(
    medium: &dyn Medium,
    name: &str,
    plan: &SegmentPlan<'_>,
    source: &mut dyn RowSource,
    step: IoStep<'_>,
) -> Result<WrittenSegment> {
    let SegmentSettings { dims, metric, encoding } = plan.settings;
    let seed = u64::from(crc32c::crc32c(&plan.uuid));
    let vectors = StoredVectors { source: &*source, encoding };
    let build = StreamedBuild { vectors: &vectors, dims, metric, threads: plan.threads, seed };
    let coarse::BuiltIndex { order, index } = coarse::build_streamed(plan.kind, &build)?;
    let mut file = SegmentFileWriter::create(medium, name, step)?;
    file.section(kind::SETTINGS, &plan.settings.encode())?;
    for (kind, bytes) in index.sections() {
        file.section(kind, &bytes)?;
    }
    drop(index);
    write_vectors(&mut file, &plan.settings, &*source, &order)?;
    let ids = SegmentIds::new(order.iter().map(|&row| source.id(row)).collect())?;
    let (by_row, by_id) = ids.encode();
    file.section(kind::IDS, &by_row)?;
    file.section(kind::ID_ORDER, &by_id)?;
    drop((ids, by_row, by_id));
    write_records(&mut file, plan.records, &order, source)?;
    let mut index = PayloadIndexBuilder::new(plan.index_bytes, plan.index_spare);
    let payloads = write_pages(&mut file, kind::PAYLOADS, &order, |row, out| {
        source.payload(row, out)?;
        index.add(out);
        Ok(())
    })?;
    file.section(kind::PAYLOAD_MAP, &payloads.encode())?;
    write_index(&mut file, index)?;
    file.finish(plan.uuid, order.len() as u32)?;
    Ok(WrittenSegment { order })
}

/// Writes the records, their map and, for fingerprints, the index of their edges.
fn write_records(
    file: &mut SegmentFileWriter<'_>,
    records: RecordKind,
    order: &[u32],
    source: &mut dyn RowSource,
) -> Result<()> {
    let mut edges = (records == RecordKind::Fingerprint).then(EdgeIndexBuilder::new);
    let map = write_pages(file, kind::RECORDS, order, |row, out| {
        source.record(row, out)?;
        if let Some(edges) = &mut edges {
            edges.push(out);
        }
        Ok(())
    })?;
    file.section(kind::RECORD_MAP, &map.encode())?;
    match edges {
        Some(edges) => file.section(kind::EDGES, &edges.finish().encode()),
        None => Ok(()),
    }
}

fn write_index(file: &mut SegmentFileWriter<'_>, index: PayloadIndexBuilder<'_>) -> Result<()> {
    if !index.is_sound() {
        return Ok(());
    }
    file.begin(kind::PAYLOAD_INDEX);
    index.write(&mut |bytes| file.put(bytes))?;
    file.end()
}

/// Writes the embeddings of `order`, rows of the source in the order of the segment.
fn write_vectors(
    file: &mut SegmentFileWriter<'_>,
    settings: &SegmentSettings,
    source: &dyn RowSource,
    order: &[u32],
) -> Result<()> {
    let mut vectors = Vec::new();
    let mut bytes = Vec::new();
    file.begin(kind::VECTORS);
    for rows in order.chunks((VECTOR_BYTES / settings.stride()).max(1)) {
        vectors.clear();
        bytes.clear();
        source.gather(rows, &mut vectors)?;
        settings.encoding.encode(&vectors, &mut bytes);
        file.put(&bytes)?;
    }
    file.end()
}

/// Writes the records of the rows in `order` as a section of pages. Returns the pages of the rows.
fn write_pages(
    file: &mut SegmentFileWriter<'_>,
    kind: u32,
    order: &[u32],
    mut read: impl FnMut(u32, &mut Vec<u8>) -> Result<()>,
) -> Result<RowMapBuilder> {
    let mut packer = Packer::new();
    let mut map = RowMapBuilder::default();
    let mut record = Vec::new();
    let mut pages = Vec::with_capacity(DRAIN_BYTES + RECORD_BYTES_MAX);
    file.begin_pages(kind);
    for &row in order {
        record.clear();
        read(row, &mut record)?;
        map.push(packer.push(&record)?)?;
        packer.drain(&mut pages);
        if pages.len() >= DRAIN_BYTES {
            file.put(&pages)?;
            pages.clear();
        }
    }
    packer.finish(&mut pages)?;
    file.put(&pages)?;
    file.end()?;
    Ok(map)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_million_long_rows_are_merged_within_two_gibibytes() {
        let (kind, rows, dims) = (CoarseKind::Auto, 1_000_000, 768);
        let form = SegmentForm { kind, dims, records: RecordKind::Opaque };
        // The old segments are open, as large as the merged one; caches and flushes take the rest.
        let old = coarse::index_bytes(kind, rows, dims) + rows * 48;
        let others = (256 << 20) + ((5 * 32) << 20);
        for needed in [form.working_bytes(rows), form.opening_bytes(rows)] {
            assert!(old + others + needed < 2 << 30, "{needed} beside {old}");
        }
        assert!(form.working_bytes(rows) < rows * dims as u64 * 2, "two bytes a value");
    }
}
