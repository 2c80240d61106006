//! Search of lists whose codes are on a medium. It compares the same codes in the same order as a
//! search in memory, so it finds the same rows with the same scores.

use base::Result;
use kernels::TopK;
use kernels::pq::{BLOCK, CostTable, scan};

use super::super::medium::{
    CodeRange, HeldGroups, ListPart, RowGroups, batch, check_bytes, parts, reader,
};
use super::super::section::{BYTE_CODES, CODES, TERMS};
use super::super::{CoarseHeader, CoarseRequest, LoadSection, SectionBytes};
use super::{ByteQuery, IvfPq};

/// Number of rows compared by their bytes at once. Each may need a group of its own.
const ROWS_AT_ONCE: usize = 1024;
/// Bytes of the terms of a block.
const TERMS_BYTES: usize = BLOCK * 4;

impl IvfPq {
    /// Opens an index whose codes stay on the medium.
    ///
    /// # Errors
    /// As [`IvfPq::open`].
    pub(crate) fn open_on_medium(
        header: &CoarseHeader,
        find: LoadSection<'_>,
        bytes_of: SectionBytes<'_>,
    ) -> Result<IvfPq> {
        let index = IvfPq::open_without_codes(header, find)?;
        let blocks = index.blocks();
        check_bytes(bytes_of, CODES, blocks * index.books.shape().block_bytes())?;
        check_bytes(bytes_of, TERMS, blocks * TERMS_BYTES)?;
        check_bytes(bytes_of, BYTE_CODES, header.rows * header.dims)?;
        Ok(index)
    }

    /// Returns the codes and the terms of a part.
    fn part_ranges(&self, cluster: usize, part: &ListPart) -> [CodeRange; 2] {
        let block = self.block_starts[cluster] as usize + part.first;
        let range = |kind: u32, bytes: usize| CodeRange {
            kind,
            start: (block * bytes) as u64,
            bytes: part.blocks * bytes,
            floats: kind == TERMS,
            rows: part.blocks * BLOCK,
        };
        [range(CODES, self.books.shape().block_bytes()), range(TERMS, TERMS_BYTES)]
    }

    /// Offers the allowed rows of lists to `top`, by looked-up costs.
    ///
    /// # Errors
    /// The error of [`CoarseRequest::codes`].
    pub(super) fn scan_on_medium(
        &self,
        lists: &[(f32, u32)],
        table: &CostTable,
        request: &CoarseRequest<'_>,
        top: &mut TopK,
    ) -> Result<()> {
        let codes = reader(request.codes)?;
        let blocks = |(_, cluster): &(f32, u32)| {
            let cluster = *cluster as usize;
            (self.block_starts[cluster + 1] - self.block_starts[cluster]) as usize
        };
        let parts = parts(lists.iter().map(blocks));
        let block_bytes = self.books.shape().block_bytes() + TERMS_BYTES;
        let mut wanted = Vec::new();
        let mut found = Vec::new();
        let mut start = 0;
        while start < parts.len() {
            let now = batch(&parts, start, usize::MAX, block_bytes);
            start = now.end;
            wanted.clear();
            for part in &parts[now.clone()] {
                wanted.extend(self.part_ranges(lists[part.list].1 as usize, part));
            }
            codes.read(&wanted, &mut found)?;
            for (part, pair) in parts[now].iter().zip(found.as_chunks::<2>().0) {
                let [Some(codes), Some(terms)] = pair else { continue };
                let (base, cluster) = lists[part.list];
                let first = self.starts[cluster as usize] + (part.first * BLOCK) as u32;
                let accept = |row| request.allow.is_none_or(|allow| allow.contains(row));
                scan(table, codes.bytes(), terms.floats(), base, first, top, accept);
            }
        }
        Ok(())
    }

    /// Calls `offer` with each of `rows` and its cost by its bytes.
    ///
    /// # Errors
    /// The error of [`CoarseRequest::codes`].
    pub(super) fn rank_on_medium(
        &self,
        query: &ByteQuery,
        rows: &[u32],
        request: &CoarseRequest<'_>,
        mut offer: impl FnMut(u32, f32),
    ) -> Result<()> {
        let codes = reader(request.codes)?;
        let count = self.starts.last().copied().unwrap_or(0) as usize;
        let groups =
            RowGroups { kind: BYTE_CODES, row_bytes: self.dims, rows: count, floats: false };
        let mut held = HeldGroups::default();
        for rows in rows.chunks(ROWS_AT_ONCE) {
            held.read(&groups, rows.iter().copied(), codes)?;
            for row in rows {
                let place = groups.place(*row) * self.dims;
                let block = held.block(&groups, *row);
                let codes = block.and_then(|block| block.bytes().get(place..place + self.dims));
                if let Some(codes) = codes {
                    offer(*row, self.bytes.cost_of(query, codes));
                }
            }
        }
        Ok(())
    }
}
