//! Changes setup headers so that the decoder decodes several channels right.
//!
//! The decoder has two faults. The numbers are sections of the Vorbis I specification.
//!
//! * It undoes the couplings of channels from the first to the last, and the specification (4.3.5)
//!   begins with the last. The order matters if two couplings have a channel in common, as those of
//!   surround sound have.
//! * The classes of a channel's partitions come in groups (8.6.2). If the last group has more
//!   classes than partitions are left, the decoder writes the others over classes of the next
//!   channel.
//!
//! So the couplings are reversed, and a residue gets as many partitions as fill its last group.
//! Encoders state class 0 for the added ones, and no bits follow for them if class 0 has no book.

use base::{Error, Result};

use super::{BitReader, IDENTIFICATION, SETUP, book_size, skip_book};

/// Offset of the number of channels in the identification header.
const CHANNELS_AT: usize = 11;
/// Offset of the sizes of both kinds of blocks, as powers of two.
const BLOCKS_AT: usize = 28;
/// Bits of the end of a residue.
const END_BITS: usize = 24;
/// Type of a residue that joins its channels, so that they have no classes of their own.
const JOINED: u64 = 2;

/// Returns headers that the decoder reads right, or `None` if it reads `headers` right. They begin
/// with the identification header, and the setup header follows.
///
/// # Errors
/// `Unimplemented` if no change makes the decoder read them right.
pub(in crate::decode) fn readable(headers: &[u8]) -> Result<Option<Box<[u8]>>> {
    // If the headers are damaged, the decoder reports it.
    let Some(setup) = VorbisSetup::parse(headers) else { return Ok(None) };
    let changes = setup.changes().ok_or_else(|| {
        let channels = setup.channels;
        Error::unimplemented(format!(
            "this vorbis recording codes its {channels} channels in an unsupported way; convert it \
             to flac"
        ))
    })?;
    if changes.is_empty() {
        return Ok(None);
    }
    let mut changed = headers.to_vec();
    if let Some(bytes) = changed.get_mut(IDENTIFICATION + SETUP.len()..) {
        for change in &changes {
            change.apply(bytes);
        }
    }
    Ok(Some(changed.into_boxed_slice()))
}

/// New value of a field of the setup header.
#[derive(Debug, PartialEq, Eq)]
struct BitChange {
    /// Offset of the field in bits.
    at: usize,
    /// Bits of the field. The lowest comes first.
    count: usize,
    value: u64,
}

impl BitChange {
    /// Writes the bits of the change to `bytes`.
    fn apply(&self, bytes: &mut [u8]) {
        for place in 0..self.count {
            let at = self.at + place;
            if let Some(byte) = bytes.get_mut(at / 8) {
                let bit = 1_u8 << (at % 8);
                let is_set = (self.value >> place) & 1 == 1;
                *byte = if is_set { *byte | bit } else { *byte & !bit };
            }
        }
    }
}

/// Parts of the headers that describe several channels.
struct VorbisSetup {
    channels: u64,
    /// Samples of both kinds of blocks.
    blocks: [u64; 2],
    residues: Vec<VorbisResidue>,
    mappings: Vec<VorbisMapping>,
}

impl VorbisSetup {
    /// Parses the headers of a recording with two channels or more. Returns `None` for others.
    fn parse(headers: &[u8]) -> Option<VorbisSetup> {
        let channels = u64::from(*headers.get(CHANNELS_AT)?);
        let exponents = *headers.get(BLOCKS_AT)?;
        let blocks = [1_u64 << (exponents & 15), 1_u64 << (exponents >> 4)];
        let bytes = headers.get(IDENTIFICATION..)?.strip_prefix(SETUP)?;
        if channels < 2 {
            return None;
        }
        let bits = &mut BitReader { bytes, at: 0 };
        let mut dimensions = Vec::new();
        for _ in 0..bits.next(8)? + 1 {
            let (book_dimensions, entries) = book_size(bits)?;
            skip_book(bits, book_dimensions, entries)?;
            dimensions.push(book_dimensions);
        }
        for _ in 0..bits.next(6)? + 1 {
            let _time = bits.next(16)?;
        }
        for _ in 0..bits.next(6)? + 1 {
            skip_floor(bits)?;
        }
        let mut residues = Vec::new();
        for _ in 0..bits.next(6)? + 1 {
            residues.push(VorbisResidue::parse(bits, &dimensions)?);
        }
        let mut mappings = Vec::new();
        for _ in 0..bits.next(6)? + 1 {
            mappings.push(VorbisMapping::parse(bits, channels)?);
        }
        Some(VorbisSetup { channels, blocks, residues, mappings })
    }

    /// Returns the changes that let the decoder read the channels right, or `None` if there are no
    /// such changes.
    fn changes(&self) -> Option<Vec<BitChange>> {
        let mut changes = Vec::new();
        for mapping in &self.mappings {
            changes.extend(mapping.reversed_couplings(&self.residues)?);
            for (submap, residue) in mapping.residues.iter().enumerate() {
                let Some(residue) = self.residues.get(*residue as usize) else { continue };
                let of_submap = mapping.submaps.iter().filter(|of| **of == submap as u64);
                if of_submap.count() < 2 || residue.kind == JOINED {
                    continue;
                }
                let value = residue.filled_end(self.blocks)?;
                if value != residue.end {
                    changes.push(BitChange { at: residue.end_at, count: END_BITS, value });
                }
            }
        }
        Some(changes)
    }
}

/// Skips a floor of either type.
fn skip_floor(bits: &mut BitReader<'_>) -> Option<()> {
    match bits.next(16)? {
        0 => {
            // Order, rate, and sizes of the map and the amplitude.
            bits.next(54)?;
            for _ in 0..bits.next(4)? + 1 {
                bits.next(8)?;
            }
        }
        1 => {
            let mut classes = Vec::new();
            for _ in 0..bits.next(5)? {
                classes.push(bits.next(4)? as usize);
            }
            let mut dimensions = Vec::new();
            for _ in 0..classes.iter().max().map_or(0, |most| most + 1) {
                dimensions.push(bits.next(3)? + 1);
                let subclasses = bits.next(2)?;
                let books = (1_usize << subclasses) + usize::from(subclasses > 0);
                for _ in 0..books {
                    bits.next(8)?;
                }
            }
            bits.next(2)?;
            let width = bits.next(4)? as usize;
            for class in classes {
                for _ in 0..*dimensions.get(class)? {
                    bits.next(width)?;
                }
            }
        }
        _ => return None,
    }
    Some(())
}

/// Coding of the details of some channels.
struct VorbisResidue {
    kind: u64,
    /// First and last number of a channel, or of all channels if they are joined.
    begin: u64,
    end: u64,
    /// Offset of the field `end` in bits.
    end_at: usize,
    /// Numbers of a partition.
    partition: u64,
    /// Classes of a group.
    group: u64,
    /// True if partitions of class 0 have no bits.
    has_empty_class: bool,
}

impl VorbisResidue {
    fn parse(bits: &mut BitReader<'_>, dimensions: &[u64]) -> Option<VorbisResidue> {
        let kind = bits.next(16)?;
        let begin = bits.next(24)?;
        let end_at = bits.at;
        let end = bits.next(END_BITS)?;
        let partition = bits.next(24)? + 1;
        let classes = bits.next(6)? + 1;
        let group = *dimensions.get(bits.next(8)? as usize)?;
        let mut books = Vec::new();
        for _ in 0..classes {
            let low = bits.next(3)?;
            let high = if bits.next(1)? == 1 { bits.next(5)? } else { 0 };
            books.push((high << 3) | low);
        }
        for _ in 0..books.iter().map(|of_class| of_class.count_ones()).sum::<u32>() {
            bits.next(8)?;
        }
        let has_empty_class = books.first() == Some(&0);
        let group = group.max(1);
        Some(VorbisResidue { kind, begin, end, end_at, partition, group, has_empty_class })
    }

    /// Returns the partitions of a channel in a block of `block` samples if the residue has this
    /// end.
    fn partitions(&self, end: u64, block: u64) -> u64 {
        let limit = block / 2;
        end.min(limit).saturating_sub(self.begin.min(limit)) / self.partition
    }

    /// Returns an end that fills the last group of each kind of block, if possible the stated end.
    /// Returns `None` if no end does so without more groups.
    fn filled_end(&self, blocks: [u64; 2]) -> Option<u64> {
        let fills = |end: u64| {
            blocks.iter().all(|block| self.partitions(end, *block).is_multiple_of(self.group))
        };
        if fills(self.end) {
            return Some(self.end);
        }
        let partitions = self.end.saturating_sub(self.begin) / self.partition;
        let filled = partitions.div_ceil(self.group) * self.group;
        let end = self.begin + filled * self.partition;
        let same_groups = blocks.iter().all(|block| {
            let groups = self.partitions(self.end, *block).div_ceil(self.group);
            groups * self.group == self.partitions(end, *block)
        });
        (self.has_empty_class && same_groups && end < 1 << END_BITS).then_some(end)
    }
}

/// Assignment of channels to residues.
struct VorbisMapping {
    /// Pairs of channels, each a magnitude and an angle.
    couplings: Vec<[u64; 2]>,
    /// Offset of the couplings in bits.
    couplings_at: usize,
    /// Bits of the number of a channel.
    channel_bits: usize,
    /// Submap of each channel.
    submaps: Vec<u64>,
    /// Residue of each submap.
    residues: Vec<u64>,
}

impl VorbisMapping {
    fn parse(bits: &mut BitReader<'_>, channels: u64) -> Option<VorbisMapping> {
        let _kind = bits.next(16)?;
        let submap_count = if bits.next(1)? == 1 { bits.next(4)? + 1 } else { 1 };
        let coupling_count = if bits.next(1)? == 1 { bits.next(8)? + 1 } else { 0 };
        let channel_bits = (u64::BITS - channels.saturating_sub(1).leading_zeros()) as usize;
        let couplings_at = bits.at;
        let mut couplings = Vec::new();
        for _ in 0..coupling_count {
            couplings.push([bits.next(channel_bits)?, bits.next(channel_bits)?]);
        }
        bits.next(2)?;
        let mut submaps = Vec::new();
        for _ in 0..channels {
            submaps.push(if submap_count > 1 { bits.next(4)? } else { 0 });
        }
        let mut residues = Vec::new();
        for _ in 0..submap_count {
            let _time_and_floor = bits.next(16)?;
            residues.push(bits.next(8)?);
        }
        Some(VorbisMapping { couplings, couplings_at, channel_bits, submaps, residues })
    }

    /// Returns the changes that reverse the couplings, none if no two have a channel in common.
    /// Returns `None` if the order decides which channels of a residue have bits, because then the
    /// decoder needs two orders.
    fn reversed_couplings(&self, residues: &[VorbisResidue]) -> Option<Vec<BitChange>> {
        let mut coupled: Vec<u64> = self.couplings.iter().flatten().copied().collect();
        let count = coupled.len();
        coupled.sort_unstable();
        coupled.dedup();
        if coupled.len() == count {
            return Some(Vec::new());
        }
        let is_joined = |channel: &u64| {
            let submap = self.submaps.get(*channel as usize);
            let residue = submap.and_then(|submap| self.residues.get(*submap as usize));
            let residue = residue.and_then(|residue| residues.get(*residue as usize));
            residue.is_none_or(|residue| residue.kind == JOINED)
        };
        let reversed = self.couplings.iter().rev().flatten().enumerate();
        let changes = reversed.map(|(place, value)| BitChange {
            at: self.couplings_at + place * self.channel_bits,
            count: self.channel_bits,
            value: *value,
        });
        coupled.iter().all(is_joined).then(|| changes.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a residue from number 0 on, with two classes in a group.
    fn residue(kind: u64, end: u64, has_empty_class: bool) -> VorbisResidue {
        VorbisResidue { kind, begin: 0, end, end_at: 100, partition: 16, group: 2, has_empty_class }
    }

    /// Returns a setup of three channels with one residue.
    fn setup(residue: VorbisResidue, couplings: &[[u64; 2]]) -> VorbisSetup {
        let mapping = VorbisMapping {
            couplings: couplings.to_vec(),
            couplings_at: 200,
            channel_bits: 2,
            submaps: vec![0; 3],
            residues: vec![0],
        };
        VorbisSetup {
            channels: 3,
            blocks: [256, 2048],
            residues: vec![residue],
            mappings: vec![mapping],
        }
    }

    #[test]
    fn residues_get_whole_groups_of_partitions() {
        let changes = |end, has_empty_class| setup(residue(1, end, has_empty_class), &[]).changes();
        assert_eq!(changes(128, false), Some(vec![]));
        let filled = BitChange { at: 100, count: END_BITS, value: 128 };
        assert_eq!(changes(112, true), Some(vec![filled]));
        assert_eq!(changes(112, false), None, "class 0 has bits");
        assert_eq!(setup(residue(JOINED, 112, false), &[]).changes(), Some(vec![]));
    }

    #[test]
    fn couplings_with_a_common_channel_are_reversed() {
        let changes = |kind, couplings: &[[u64; 2]]| {
            let changes = setup(residue(kind, 128, true), couplings).changes()?;
            Some(changes.into_iter().map(|change| (change.at, change.value)).collect::<Vec<_>>())
        };
        assert_eq!(changes(JOINED, &[[0, 2]]), Some(vec![]));
        let reversed = vec![(200, 0), (202, 1), (204, 0), (206, 2)];
        assert_eq!(changes(JOINED, &[[0, 2], [0, 1]]), Some(reversed));
        assert_eq!(changes(1, &[[0, 2], [0, 1]]), None);
    }

    #[test]
    fn fields_are_changed_bit_by_bit() {
        let mut bytes = [0xff, 0, 0xff];
        BitChange { at: 6, count: 12, value: 0b1010_0000_0110 }.apply(&mut bytes);
        assert_eq!(bytes, [0b1011_1111, 0b1000_0001, 0b1111_1110]);
    }

    #[test]
    fn damaged_headers_are_left_to_the_decoder() {
        let mut headers = [&[3; IDENTIFICATION][..], SETUP].concat();
        assert!(readable(&headers).is_ok_and(|changed| changed.is_none()));
        headers.extend([0; 100]);
        assert!(readable(&headers).is_ok_and(|changed| changed.is_none()));
        assert!(readable(&[]).is_ok_and(|changed| changed.is_none()));
    }
}
