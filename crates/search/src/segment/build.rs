//! Building a segment: the coarse index decides the order of rows, and everything else is laid out
//! in it.

use base::{Error, Result};
use storage::Medium;
use storage::page::{Packer, RECORD_BYTES_MAX};

use super::file::{IoStep, SegmentFileWriter};
use super::ids::SegmentIds;
use super::layout::{SegmentSettings, kind};
use super::rows::RowMapBuilder;
use crate::coarse::{self, BuildThreads, CoarseKind};

/// Bytes of finished pages collected per write.
const DRAIN_BYTES: usize = 1 << 18;

/// Source of the rows of a new segment, in the source's own numbering.
pub(crate) trait RowSource {
    /// Returns the number of rows.
    fn rows(&self) -> u32;

    /// Returns the id of a row; ids are unique.
    fn id(&self, row: u32) -> u64;

    /// Appends the embeddings of all rows to `out`, in order.
    ///
    /// # Errors
    /// An error if one cannot be read.
    fn vectors(&mut self, out: &mut Vec<f32>) -> Result<()>;

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
    /// Kind of the coarse index.
    pub(crate) kind: CoarseKind,
    /// Threads that build it.
    pub(crate) crew: BuildThreads<'a>,
    /// UUID of the segment.
    pub(crate) uuid: [u8; 16],
}

/// Segment that was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WrittenSegment {
    /// `order[row]` is the row of the source.
    pub(crate) order: Vec<u32>,
    /// Length of the file.
    pub(crate) bytes: u64,
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

/// Returns the bytes of memory that [`write`] needs: the embeddings, as much again for the coarse
/// index and its training, ids, maps and buffers. The source's memory is extra.
pub(crate) fn working_bytes(rows: u64, dims: usize) -> u64 {
    rows * (dims as u64 * 8 + 64) + (4 << 20)
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
    let mut vectors = Vec::with_capacity(source.rows() as usize * dims);
    source.vectors(&mut vectors)?;
    if vectors.len() != source.rows() as usize * dims {
        return Err(Error::internal(format!(
            "{} values for {} rows of {dims}",
            vectors.len(),
            source.rows()
        )));
    }
    encoding.round(&mut vectors);
    let seed = u64::from(crc32c::crc32c(&plan.uuid));
    let build = coarse::CoarseBuild { vectors: &vectors, dims, metric, crew: plan.crew, seed };
    let coarse::BuiltIndex { order, index } = coarse::build(plan.kind, &build)?;
    let mut file = SegmentFileWriter::create(medium, name, step)?;
    file.section(kind::SETTINGS, &plan.settings.encode())?;
    for (kind, bytes) in index.sections() {
        file.section(kind, &bytes)?;
    }
    drop(index);
    write_vectors(&mut file, &plan.settings, &vectors, &order)?;
    drop(vectors);
    let ids = SegmentIds::new(order.iter().map(|&row| source.id(row)).collect())?;
    let (by_row, by_id) = ids.encode();
    file.section(kind::IDS, &by_row)?;
    file.section(kind::ID_ORDER, &by_id)?;
    drop((ids, by_row, by_id));
    let records =
        write_pages(&mut file, kind::RECORDS, &order, |row, out| source.record(row, out))?;
    file.section(kind::RECORD_MAP, &records.encode())?;
    let payloads =
        write_pages(&mut file, kind::PAYLOADS, &order, |row, out| source.payload(row, out))?;
    file.section(kind::PAYLOAD_MAP, &payloads.encode())?;
    let bytes = file.finish(plan.uuid, order.len() as u32)?;
    Ok(WrittenSegment { order, bytes })
}

fn write_vectors(
    file: &mut SegmentFileWriter<'_>,
    settings: &SegmentSettings,
    vectors: &[f32],
    order: &[u32],
) -> Result<()> {
    let mut bytes = Vec::with_capacity(settings.stride());
    file.begin(kind::VECTORS, true);
    for &row in order {
        let start = row as usize * settings.dims;
        let vector = vectors.get(start..start + settings.dims);
        let vector =
            vector.ok_or_else(|| Error::internal(format!("the coarse index made up row {row}")))?;
        bytes.clear();
        settings.encoding.encode(vector, &mut bytes);
        file.put(&bytes)?;
    }
    file.end()
}

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
    file.begin(kind, false);
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
