//! Header section of every coarse index: kind, size and measured recall.

use base::{Error, Result};

use super::{CoarseKind, DIMS_MAX, Metric, ROWS_MAX, Recall, RecallPoint};

/// Kinds of sections that coarse indexes store.
pub mod section {
    use base::{Error, Result};

    /// [`super::CoarseHeader`] of every kind of index.
    pub const HEADER: u32 = 0x100;
    /// Inverted lists: first row of each cluster (u32, clusters + 1 values).
    pub(crate) const LIST_STARTS: u32 = 0x110;
    /// Inverted lists: centres of the clusters (f32, cluster by cluster).
    pub(crate) const CENTRES: u32 = 0x111;
    /// Product quantisation: codebooks (f32).
    pub(crate) const CODEBOOKS: u32 = 0x112;
    /// Product quantisation: blocks of 32 codes.
    pub(crate) const CODES: u32 = 0x113;
    /// Product quantisation: term added to the looked-up sum of each row (f32, 32 per block).
    pub(crate) const TERMS: u32 = 0x114;
    /// One byte per dimension: scale of each dimension (f32 pairs).
    pub(crate) const BYTE_SCALE: u32 = 0x115;
    /// One byte per dimension: codes, row by row.
    pub(crate) const BYTE_CODES: u32 = 0x116;
    /// Inverted lists: mean of the centres (f32).
    pub(crate) const DIRECTORY_MIDDLE: u32 = 0x118;
    /// Product quantisation of the centres: codebooks (f32).
    pub(crate) const DIRECTORY_BOOKS: u32 = 0x119;
    /// Product quantisation of the centres: blocks of 32 codes.
    pub(crate) const DIRECTORY_CODES: u32 = 0x11A;
    /// Product quantisation of the centres: term added to each looked-up sum (f32, 32 per block).
    pub(crate) const DIRECTORY_TERMS: u32 = 0x11B;
    /// Inverted lists: mean of the rows, subtracted from rows and queries (f32). Only if
    /// [`super::CoarseHeader::is_relative`].
    pub const LIST_MEAN: u32 = 0x11C;
    /// First section of one-bit codes.
    pub(crate) const RABITQ_FIRST: u32 = 0x120;
    /// First section of flat indexes.
    pub(crate) const FLAT_FIRST: u32 = 0x140;

    /// Returns the bytes of the section of `kind`.
    ///
    /// # Errors
    /// `DataLoss` if it is missing.
    pub fn find<'a>(sections: &[(u32, &'a [u8])], kind: u32) -> Result<&'a [u8]> {
        let found = sections.iter().find(|(other, _)| *other == kind);
        found.map(|(_, bytes)| *bytes).ok_or_else(|| {
            Error::data_loss(format!(
                "the coarse index lacks its section {kind:#x}; build the segment again"
            ))
        })
    }

    /// Decodes exactly `count` little-endian floats.
    ///
    /// # Errors
    /// `DataLoss` if the section has another length.
    pub(crate) fn floats(bytes: &[u8], count: usize) -> Result<Vec<f32>> {
        let values = words(bytes, count)?.map(f32::from_bits).collect::<Vec<f32>>();
        if values.iter().any(|value| value.is_nan()) {
            Err(Error::data_loss("a section of a coarse index holds a value that is not a number"))
        } else {
            Ok(values)
        }
    }

    /// Decodes exactly `count` little-endian 32-bit words.
    ///
    /// # Errors
    /// `DataLoss` if the section has another length.
    pub(crate) fn words(bytes: &[u8], count: usize) -> Result<impl Iterator<Item = u32> + '_> {
        let (whole, rest) = bytes.as_chunks::<4>();
        if whole.len() != count || !rest.is_empty() {
            return Err(Error::data_loss(format!(
                "a section of a coarse index has {} bytes, {count} numbers were expected",
                bytes.len()
            )));
        }
        Ok(whole.iter().map(|word| u32::from_le_bytes(*word)))
    }

    /// Encodes floats as little-endian bytes.
    pub(crate) fn from_floats(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }
}

/// Version of the header and of all sections of a coarse index.
const VERSION: u32 = 1;
/// Version of an index with centres and codes that are relative to [`section::LIST_MEAN`].
const VERSION_RELATIVE: u32 = 2;
/// Bytes of the fixed part.
const FIXED_BYTES: usize = 24;
/// Bytes of one measured point.
const POINT_BYTES: usize = 16;
/// Maximum number of measured points.
const POINTS_MAX: usize = 64;

/// Description of an index.
#[derive(Clone, Debug, PartialEq)]
pub struct CoarseHeader {
    /// Kind; never [`CoarseKind::Auto`].
    pub kind: CoarseKind,
    /// Measure of similarity.
    pub metric: Metric,
    /// Number of values per vector.
    pub dims: usize,
    /// Number of rows when the index was built.
    pub rows: usize,
    /// Recall measured when it was built.
    pub recall: Option<Recall>,
    /// True if centres and codes are relative to [`section::LIST_MEAN`], which
    /// [`CoarseKind::IvfPq`] alone has, and not with [`Metric::Dot`].
    pub is_relative: bool,
}

impl CoarseHeader {
    /// Encodes version, kind, metric, dims, rows and number of points, then the points.
    pub fn encode(&self) -> Vec<u8> {
        let kind = match self.kind {
            CoarseKind::Flat => 0_u32,
            CoarseKind::IvfPq | CoarseKind::Auto => 1,
            CoarseKind::Rabitq => 2,
        };
        let metric = u32::from(self.metric.code());
        let points = self.recall.as_ref().map_or(&[][..], |recall| &recall.points);
        let points = &points[..points.len().min(POINTS_MAX)];
        let version = if self.is_relative { VERSION_RELATIVE } else { VERSION };
        let fixed =
            [version, kind, metric, self.dims as u32, self.rows as u32, points.len() as u32];
        let mut bytes: Vec<u8> = fixed.iter().flat_map(|word| word.to_le_bytes()).collect();
        for point in points {
            bytes.extend(point.k.to_le_bytes());
            bytes.extend(point.recall.to_le_bytes());
            bytes.extend(point.probes.to_le_bytes());
            bytes.extend(point.refine.to_le_bytes());
        }
        bytes
    }

    /// Decodes the section.
    ///
    /// # Errors
    /// `DataLoss` if the bytes are not a header; `Unimplemented` for a later version.
    pub fn decode(bytes: &[u8]) -> Result<CoarseHeader> {
        let wrong = |what: &str| Error::data_loss(format!("the coarse index's header: {what}"));
        let (fixed, points) =
            bytes.split_at_checked(FIXED_BYTES).ok_or_else(|| wrong("too short"))?;
        let fixed: Vec<u32> = section::words(fixed, FIXED_BYTES / 4)?.collect();
        let [version, kind, metric, dims, rows, count] = fixed[..] else {
            return Err(wrong("too short"));
        };
        let is_relative = version == VERSION_RELATIVE;
        if version != VERSION && !is_relative {
            return Err(Error::unimplemented(format!(
                "the coarse index has version {version}, this program knows up to \
                 {VERSION_RELATIVE}: use a newer one"
            )));
        }
        let kind = match kind {
            0 => CoarseKind::Flat,
            1 => CoarseKind::IvfPq,
            2 => CoarseKind::Rabitq,
            _ => return Err(wrong("unknown kind")),
        };
        let metric = Metric::from_code(metric).ok_or_else(|| wrong("unknown metric"))?;
        if is_relative && (kind != CoarseKind::IvfPq || metric == Metric::Dot) {
            return Err(wrong("no mean belongs to this kind and metric"));
        }
        let dims = dims as usize;
        let rows = rows as usize;
        let count = count as usize;
        if dims == 0 || dims > DIMS_MAX || rows > ROWS_MAX || count > POINTS_MAX {
            return Err(wrong("sizes out of range"));
        }
        let points: Vec<u32> = section::words(points, count * POINT_BYTES / 4)?.collect();
        let points: Vec<RecallPoint> =
            points.as_chunks::<4>().0.iter().map(RecallPoint::from_words).collect();
        if points.iter().any(|point| !(0.0..=1.0).contains(&point.recall)) {
            return Err(wrong("a recall outside 0 to 1"));
        }
        let recall = (!points.is_empty()).then_some(Recall { points });
        Ok(CoarseHeader { kind, metric, dims, rows, recall, is_relative })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_header_survives_encoding() {
        let recall =
            Recall { points: vec![RecallPoint { k: 10, recall: 0.5, probes: 3, refine: 40 }] };
        for (recall, metric, is_relative) in
            [(None, Metric::Dot, false), (Some(recall), Metric::L2, true)]
        {
            let mut header = CoarseHeader {
                kind: CoarseKind::IvfPq,
                metric,
                dims: 128,
                rows: 9,
                recall,
                is_relative,
            };
            assert_eq!(CoarseHeader::decode(&header.encode()).unwrap(), header);
            header.metric = Metric::Dot;
            assert_eq!(CoarseHeader::decode(&header.encode()).is_err(), is_relative);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(mut bytes in prop::collection::vec(any::<u8>(), 0..80), version in any::<bool>()) {
            if version && bytes.len() > 3 {
                bytes[..4].copy_from_slice(&VERSION.to_le_bytes());
            }
            let _ = CoarseHeader::decode(&bytes);
        }
    }
}
