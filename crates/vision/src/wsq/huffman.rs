//! Huffman codes and the symbols of a block.

use base::Result;

use super::coefficients::Coefficients;
use super::damaged;
use super::stream::Stream;

/// Number of tables that a file may define at a time.
pub(super) const TABLES_MAX: usize = 8;
/// Longest code in bits.
const CODE_BITS_MAX: usize = 16;
/// Symbol of the quantiser index 0. Other indices -73 to 74 lie around it.
const INDEX_ZERO: i32 = 180;

/// Table of codes. Codes of one length follow each other.
pub(super) struct HuffmanTable {
    lengths: [CodeLength; CODE_BITS_MAX],
    symbols: Vec<u8>,
}

/// Codes of one length.
#[derive(Clone, Copy, Default)]
struct CodeLength {
    /// Lowest code of this length.
    first_code: u32,
    count: u32,
    /// Place of the first code's symbol in the table.
    first_symbol: u32,
}

impl HuffmanTable {
    /// Reads the tables of a segment into their places.
    pub(super) fn parse(
        mut body: &[u8],
        tables: &mut [Option<HuffmanTable>; TABLES_MAX],
    ) -> Result<()> {
        let too_short = || damaged("a Huffman table is too short");
        while let [id, rest @ ..] = body {
            let place = tables.get_mut(usize::from(*id));
            let place = place.ok_or_else(|| damaged("a Huffman table has a number above 7"))?;
            let (counts, rest) = rest.split_first_chunk().ok_or_else(too_short)?;
            let total = counts.iter().map(|&count| usize::from(count)).sum();
            let (symbols, rest) = rest.split_at_checked(total).ok_or_else(too_short)?;
            *place = Some(HuffmanTable::new(counts, symbols)?);
            body = rest;
        }
        Ok(())
    }

    /// Assigns the codes: ascending, the shorter ones first.
    fn new(counts: &[u8; CODE_BITS_MAX], symbols: &[u8]) -> Result<HuffmanTable> {
        let mut lengths = [CodeLength::default(); CODE_BITS_MAX];
        let (mut next_code, mut next_symbol) = (0, 0);
        for (bits, (length, &count)) in (1..).zip(lengths.iter_mut().zip(counts)) {
            let count = u32::from(count);
            next_code <<= 1;
            *length = CodeLength { first_code: next_code, count, first_symbol: next_symbol };
            next_code += count;
            next_symbol += count;
            if next_code > 1 << bits {
                return Err(damaged("a Huffman table has too many codes"));
            }
        }
        Ok(HuffmanTable { lengths, symbols: symbols.to_vec() })
    }

    /// Reads a code. Returns `None` at the end of the block.
    fn symbol(&self, stream: &mut Stream) -> Result<Option<u8>> {
        let mut code = 0;
        let mut read = 0;
        let mut lengths = self.lengths.iter();
        while let Some(length) = lengths.next() {
            let Some(bit) = stream.bit()? else {
                if !stream.restarts(read)? {
                    return Ok(None);
                }
                (code, read) = (0, 0);
                lengths = self.lengths.iter();
                continue;
            };
            code = code << 1 | bit;
            read += 1;
            let offset = code.wrapping_sub(length.first_code);
            if offset < length.count {
                let symbol = self.symbols.get((length.first_symbol + offset) as usize);
                return Ok(symbol.copied());
            }
        }
        Err(damaged("a code of a block is unknown"))
    }
}

/// Decodes the data of a block.
///
/// # Errors
/// `InvalidArgument` for an unknown code, for more coefficients than the image has, and at the end
/// of the file.
pub(super) fn block(
    stream: &mut Stream,
    table: &HuffmanTable,
    coefficients: &mut Coefficients,
) -> Result<()> {
    while let Some(symbol) = table.symbol(stream)? {
        match symbol {
            1..=100 => coefficients.skip(symbol.into())?,
            101 => coefficients.push(stream.number(8)? as i32)?,
            102 => coefficients.push(-(stream.number(8)? as i32))?,
            103 => coefficients.push(stream.number(16)? as i32)?,
            104 => coefficients.push(-(stream.number(16)? as i32))?,
            105 => coefficients.skip(stream.number(8)? as usize)?,
            106 => coefficients.skip(stream.number(16)? as usize)?,
            107..=254 => coefficients.push(i32::from(symbol) - INDEX_ZERO)?,
            0 | 255 => return Err(damaged("a symbol of a block is unknown")),
        }
        // The padding of the last byte could hold a code.
        if coefficients.complete() {
            return stream.skip_block();
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Codes 0, 10, 110 for the symbols 5, 6, 7.
    const TABLE: [u8; 20] = [3, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 6, 7];

    fn parsed(body: &[u8]) -> Result<[Option<HuffmanTable>; TABLES_MAX]> {
        let mut tables = Default::default();
        HuffmanTable::parse(body, &mut tables).map(|()| tables)
    }

    #[test]
    fn codes_are_read_up_to_the_padding() {
        let tables = parsed(&TABLE).unwrap();
        let table = tables[3].as_ref().unwrap();
        // 110 0 10 11 | restart | 0 1111111
        let file = [0xff, 0xa0, 0b1100_1011, 0xff, 0xb3, 0b0111_1111, 0xff, 0xa1];
        let mut stream = Stream::open(&file).unwrap();
        let symbols: Vec<u8> = std::iter::from_fn(|| table.symbol(&mut stream).unwrap()).collect();
        assert_eq!(symbols, [7, 5, 6, 5]);
    }

    #[test]
    fn bad_tables_are_refused() {
        for end in 1..TABLE.len() {
            assert!(parsed(&TABLE[..end]).is_err(), "{end}");
        }
        let mut table = TABLE;
        table[0] = 8;
        assert!(parsed(&table).is_err(), "number");
        table[..3].copy_from_slice(&[3, 2, 1]);
        assert!(parsed(&table).is_err(), "too many codes");
    }
}
