//! Plan of a load: which spans of the file go where. Pure: chunks in, places out.

use std::collections::HashMap;

use base::{Error, Result};

use crate::store::{Chunk, SHARE_MIN, SLICE_BYTES};
use os::DIRECT_ALIGNMENT;

/// Plan of a load. `R` stands for a region that is alive already.
#[derive(Debug)]
pub(crate) struct LoadPlan<R> {
    /// Place of each chunk, in the order of the chunks.
    pub(crate) places: Vec<ChunkPlace<R>>,
    /// Bytes of the regions to allocate, in whole blocks.
    pub(crate) regions: Vec<usize>,
    /// Spans to read, in file order.
    pub(crate) spans: Vec<FileSpan>,
}

/// Place of a chunk in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ChunkPlace<R> {
    /// Place in a region that another load filled.
    Alive(R),
    /// Place in a region of this load.
    Fresh { region: usize, offset: usize },
}

/// A contiguous part of the file that goes to a contiguous part of a region. It is one large chunk,
/// or several neighbouring small chunks of at most [`SLICE_BYTES`] together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileSpan {
    /// Offset in the file.
    pub(crate) offset: u64,
    /// Bytes up to the end of the last chunk.
    pub(crate) bytes: usize,
    /// Index of the region.
    pub(crate) region: usize,
    /// Offset in the region.
    pub(crate) region_offset: usize,
    /// Indexes of its chunks.
    pub(crate) chunks: Vec<usize>,
}

impl FileSpan {
    /// Returns the bytes in file and region, in whole blocks.
    pub(crate) fn whole(&self) -> usize {
        self.bytes.next_multiple_of(DIRECT_ALIGNMENT)
    }
}

impl<R> LoadPlan<R> {
    /// Places `chunks`. `alive` finds the region that already holds a chunk.
    ///
    /// # Errors
    /// `DataLoss` for a chunk that is not aligned, or that ends beyond all addresses.
    pub(crate) fn new(
        chunks: &[Chunk],
        alive: impl Fn(&Chunk) -> Option<R>,
    ) -> Result<LoadPlan<R>> {
        let mut order: Vec<usize> = (0..chunks.len()).collect();
        order.sort_by_key(|&index| chunks[index].offset);
        let mut places: Vec<Option<ChunkPlace<R>>> = chunks.iter().map(|_| None).collect();
        let mut builder = LoadPlanBuilder::default();
        for index in order {
            let chunk = &chunks[index];
            let bytes = checked_bytes(index, chunk)?;
            places[index] = Some(if chunk.bytes < SHARE_MIN {
                builder.pack(index, chunk, bytes)
            } else if let Some(region) = alive(chunk) {
                ChunkPlace::Alive(region)
            } else {
                builder.place(index, chunk, bytes)
            });
        }
        Ok(LoadPlan {
            places: places.into_iter().flatten().collect(),
            regions: builder.regions,
            spans: builder.spans,
        })
    }
}

/// State while a plan is made.
#[derive(Default)]
struct LoadPlanBuilder {
    regions: Vec<usize>,
    spans: Vec<FileSpan>,
    /// Regions of this load by content, for chunks that occur twice.
    twins: HashMap<(blake3::Hash, u64), usize>,
    /// Region of the small chunks, once there is one.
    packed: Option<usize>,
}

impl LoadPlanBuilder {
    /// Places a large chunk in a separate region, or in the region of an equal chunk.
    fn place<R>(&mut self, index: usize, chunk: &Chunk, bytes: usize) -> ChunkPlace<R> {
        let next = self.regions.len();
        let region = *self.twins.entry((chunk.hash, chunk.bytes)).or_insert(next);
        if region == next {
            self.regions.push(bytes.next_multiple_of(DIRECT_ALIGNMENT));
            self.spans.push(FileSpan {
                offset: chunk.offset,
                bytes,
                region,
                region_offset: 0,
                chunks: vec![index],
            });
        }
        ChunkPlace::Fresh { region, offset: 0 }
    }

    /// Places a small chunk in the next blocks of the packed region. It joins its neighbour's span
    /// if possible.
    fn pack<R>(&mut self, index: usize, chunk: &Chunk, bytes: usize) -> ChunkPlace<R> {
        let region = *self.packed.get_or_insert_with(|| {
            self.regions.push(0);
            self.regions.len() - 1
        });
        let offset = self.regions[region];
        self.regions[region] += bytes.next_multiple_of(DIRECT_ALIGNMENT);
        match self.spans.last_mut() {
            Some(span)
                if span.region == region
                    && span.offset + span.whole() as u64 == chunk.offset
                    && span.whole() + bytes <= SLICE_BYTES =>
            {
                span.bytes = span.whole() + bytes;
                span.chunks.push(index);
            }
            _ => {
                let span = FileSpan {
                    offset: chunk.offset,
                    bytes,
                    region,
                    region_offset: offset,
                    chunks: vec![index],
                };
                self.spans.push(span);
            }
        }
        ChunkPlace::Fresh { region, offset }
    }
}

/// Returns the bytes of the chunk with this index in its plan, if the chunk is aligned and fits a
/// file.
fn checked_bytes(index: usize, chunk: &Chunk) -> Result<usize> {
    let aligned = chunk.offset.is_multiple_of(DIRECT_ALIGNMENT as u64);
    // Half of all addresses, so that rounding up and a few sums never overflow.
    let bytes = usize::try_from(chunk.bytes).ok().filter(|&bytes| bytes <= isize::MAX as usize / 2);
    match bytes {
        Some(bytes) if aligned && chunk.offset.checked_add(chunk.bytes).is_some() => Ok(bytes),
        _ => Err(Error::data_loss(format!(
            "chunk {index}: {} bytes at {} do not lie at a multiple of {DIRECT_ALIGNMENT} within a file",
            chunk.bytes, chunk.offset
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn chunk(name: u8, offset: u64, bytes: u64) -> Chunk {
        Chunk { hash: blake3::hash(&[name]), offset, bytes }
    }

    fn plan(chunks: &[Chunk]) -> LoadPlan<u8> {
        let nine = blake3::hash(&[9]);
        LoadPlan::new(chunks, |chunk| (chunk.hash == nine).then_some(9)).unwrap()
    }

    #[test]
    fn neighbouring_small_chunks_are_read_at_once() {
        let plan = plan(&[
            chunk(0, 0, 10),
            chunk(1, 4096, 5000),
            chunk(2, 12288, 0),
            chunk(3, 16384, 4096),
        ]);
        assert_eq!(plan.regions, [4096 + 8192 + 4096]);
        assert_eq!(plan.places[3], ChunkPlace::Fresh { region: 0, offset: 12288 });
        assert_eq!(plan.spans.len(), 2);
        assert_eq!((plan.spans[0].bytes, &plan.spans[0].chunks[..]), (12288, &[0, 1, 2][..]));
        assert_eq!((plan.spans[1].offset, plan.spans[1].region_offset), (16384, 12288));
    }

    #[test]
    fn a_group_of_small_chunks_fits_a_slice() {
        let piece = 1 << 19;
        let chunks: Vec<Chunk> = (0..20).map(|i| chunk(i, u64::from(i) * piece, piece)).collect();
        let plan = plan(&chunks);
        assert_eq!(plan.regions, [20 * piece as usize]);
        assert_eq!(
            plan.spans.iter().map(|span| span.bytes).collect::<Vec<_>>(),
            [SLICE_BYTES, SLICE_BYTES, 2 << 20]
        );
    }

    #[test]
    fn large_chunks_are_shared_with_live_and_equal_ones() {
        let plan =
            plan(&[chunk(1, 2 * MIB, 2 * MIB), chunk(9, 4 * MIB, 2 * MIB), chunk(1, 0, 2 * MIB)]);
        let fresh = ChunkPlace::Fresh { region: 0, offset: 0 };
        assert_eq!(plan.places, [fresh.clone(), ChunkPlace::Alive(9), fresh]);
        assert_eq!(plan.regions, [2 << 20]);
        assert_eq!(plan.spans.len(), 1);
        assert_eq!(plan.spans[0].chunks, [2]);
    }

    #[test]
    fn equal_hashes_of_other_lengths_are_not_twins() {
        let plan = plan(&[chunk(1, 0, 2 * MIB), chunk(1, 2 * MIB, 3 * MIB)]);
        assert_eq!(plan.regions, [2 << 20, 3 << 20]);
    }

    #[test]
    fn small_chunks_are_never_shared() {
        let plan = plan(&[chunk(9, 0, SHARE_MIN - 1)]);
        assert_eq!(plan.spans.len(), 1);
    }

    #[test]
    fn impossible_chunks_are_refused() {
        for bad in [chunk(0, 1, 5), chunk(0, 0, u64::MAX), chunk(0, u64::MAX - 4095, 4096)] {
            let error = LoadPlan::<u8>::new(&[bad], |_| None).unwrap_err();
            assert_eq!(error.kind(), base::ErrorKind::DataLoss);
        }
    }
}
