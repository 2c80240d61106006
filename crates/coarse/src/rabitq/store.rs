//! Sections of the index.

use std::borrow::Cow;

use base::{Error, Result};
use kernels::rabitq::{BLOCK, FACTORS, block_bytes, nibble_bytes};

use super::build::encode_centres;
use super::codes::RabitqCodes;
use super::dot_scale::DotScale;
use super::rotation::{Rotation, check_dims, padded};
use super::{Metric, Rabitq};
use crate::kmeans::block_starts;
use crate::medium::check_bytes;
use crate::{CoarseHeader, CoarseKind, LoadSection, SectionBytes, section};

/// Seed of the rotation (u64).
const ROTATION: u32 = section::RABITQ_FIRST;
/// Mean of the rows, before rotation (f32).
const MEAN: u32 = section::RABITQ_FIRST + 1;
/// One-bit codes, block by block.
pub(super) const SIGNS: u32 = section::RABITQ_FIRST + 2;
/// Factors of the one-bit codes (f32; 32 times `add`, `scale` and `error` per block).
pub(super) const FACTORS_OF_SIGNS: u32 = section::RABITQ_FIRST + 3;
/// Four-bit codes, row by row.
pub(super) const LEVELS: u32 = section::RABITQ_FIRST + 4;
/// Factors of the four-bit codes (f32; `add`, `scale`, `error` per row).
pub(super) const FACTORS_OF_LEVELS: u32 = section::RABITQ_FIRST + 5;

impl Rabitq {
    pub(super) fn to_sections(&self) -> Vec<(u32, Cow<'_, [u8]>)> {
        let header = CoarseHeader {
            kind: CoarseKind::Rabitq,
            metric: self.metric,
            dims: self.dims,
            rows: self.starts.last().copied().unwrap_or(0) as usize,
            recall: self.recall.clone(),
            is_relative: false,
        };
        let starts = self.starts.iter().flat_map(|start| start.to_le_bytes()).collect();
        vec![
            (section::HEADER, header.encode().into()),
            (ROTATION, self.seed.to_le_bytes().to_vec().into()),
            (MEAN, section::from_floats(&self.mean).into()),
            (section::LIST_STARTS, Cow::Owned(starts)),
            (section::CENTRES, section::from_floats(&self.centres).into()),
            (SIGNS, Cow::Borrowed(&self.codes.signs)),
            (FACTORS_OF_SIGNS, section::from_floats(&self.codes.factors).into()),
            (LEVELS, Cow::Borrowed(&self.codes.levels)),
            (
                FACTORS_OF_LEVELS,
                section::from_floats(self.codes.level_factors.as_flattened()).into(),
            ),
        ]
    }

    /// Opens the index.
    ///
    /// # Errors
    /// `DataLoss` if a section is missing or does not match the others.
    pub(crate) fn open(header: &CoarseHeader, find: LoadSection<'_>) -> Result<Rabitq> {
        let mut index = Rabitq::open_without_codes(header, find)?;
        let blocks = index.blocks();
        let padded = padded(header.dims);
        index.codes = RabitqCodes {
            signs: sized(find(SIGNS)?.into_owned(), blocks * block_bytes(padded))?,
            factors: finite(&find(FACTORS_OF_SIGNS)?, blocks * FACTORS)?,
            levels: sized(find(LEVELS)?.into_owned(), header.rows * nibble_bytes(padded))?,
            level_factors: finite(&find(FACTORS_OF_LEVELS)?, header.rows * 3)?
                .as_chunks::<3>()
                .0
                .to_vec(),
        };
        index.on_medium = false;
        Ok(index)
    }

    /// Opens the index, whose codes stay on the medium.
    ///
    /// # Errors
    /// As [`Rabitq::open`].
    pub(crate) fn open_on_medium(
        header: &CoarseHeader,
        find: LoadSection<'_>,
        bytes_of: SectionBytes<'_>,
    ) -> Result<Rabitq> {
        let index = Rabitq::open_without_codes(header, find)?;
        let blocks = index.blocks();
        let padded = padded(header.dims);
        check_bytes(bytes_of, SIGNS, blocks * block_bytes(padded))?;
        check_bytes(bytes_of, FACTORS_OF_SIGNS, blocks * FACTORS * 4)?;
        check_bytes(bytes_of, LEVELS, header.rows * nibble_bytes(padded))?;
        check_bytes(bytes_of, FACTORS_OF_LEVELS, header.rows * 12)?;
        Ok(index)
    }

    /// Opens the index without the codes of rows, as an index on a medium does.
    fn open_without_codes(header: &CoarseHeader, find: LoadSection<'_>) -> Result<Rabitq> {
        check_dims(header.dims).map_err(|error| damaged_index(error.message()))?;
        let seed = <[u8; 8]>::try_from(&*find(ROTATION)?)
            .map(u64::from_le_bytes)
            .map_err(|_| damaged_index("a seed of other length"))?;
        let starts = find(section::LIST_STARTS)?;
        let starts: Vec<u32> = section::words(&starts, starts.len() / 4)?.collect();
        let clusters = check_starts(&starts, header.rows)?;
        let padded = padded(header.dims);
        let centres = finite(&find(section::CENTRES)?, clusters * padded)?;
        let mean = finite(&find(MEAN)?, header.dims)?;
        let rotation = Rotation::new(header.dims, seed);
        let directory = encode_centres(&centres, &rotation.rotated(&mean), header.metric);
        let dot_scale = (header.metric == Metric::Dot)
            .then(|| DotScale::new(&mean, &rotation, &centres, &starts));
        Ok(Rabitq {
            metric: header.metric,
            dims: header.dims,
            seed,
            rotation,
            mean,
            block_starts: block_starts(&starts, BLOCK),
            starts,
            directory,
            dot_scale,
            centres,
            codes: RabitqCodes::default(),
            on_medium: true,
            recall: header.recall.clone(),
        })
    }

    /// Returns the number of blocks of all lists.
    fn blocks(&self) -> usize {
        self.block_starts.last().copied().unwrap_or(0) as usize
    }
}

/// Returns true for the sections of codes and their factors.
pub(crate) fn is_codes(kind: u32) -> bool {
    matches!(kind, SIGNS | LEVELS | FACTORS_OF_SIGNS | FACTORS_OF_LEVELS)
}

fn damaged_index(what: &str) -> Error {
    Error::data_loss(format!("the one-bit index has {what}; build the segment again"))
}

fn check_starts(starts: &[u32], rows: usize) -> Result<usize> {
    let ends = (starts.first().copied(), starts.last().map(|last| *last as usize));
    if ends != (Some(0), Some(rows)) || !starts.is_sorted() {
        return Err(damaged_index("clusters that do not cover its rows"));
    }
    Ok(starts.len() - 1)
}

fn sized(bytes: Vec<u8>, length: usize) -> Result<Vec<u8>> {
    if bytes.len() == length {
        Ok(bytes)
    } else {
        Err(damaged_index("codes of another size than its header says"))
    }
}

/// Reads `count` floats of a section, which must be finite.
fn finite(bytes: &[u8], count: usize) -> Result<Vec<f32>> {
    let values = section::floats(bytes, count)?;
    if values.iter().all(|value| value.is_finite()) {
        Ok(values)
    } else {
        Err(damaged_index("a value that is not a finite number"))
    }
}

/// Returns the memory in use without that of the codes, in bytes.
pub(super) fn other_bytes(index: &Rabitq) -> u64 {
    let floats = index.mean.len() + index.centres.len() + index.rotation.values();
    (floats * 4 + (index.starts.len() + index.block_starts.len()) * 4) as u64
        + index.directory.memory_bytes()
        + index.dot_scale.as_ref().map_or(0, DotScale::memory_bytes)
}

/// Returns the metric for the directory of centres. Inner products search for large centres, and
/// other metrics for near ones.
pub(super) fn directory_metric(metric: Metric) -> Metric {
    if metric == Metric::Dot { Metric::Dot } else { Metric::L2 }
}
