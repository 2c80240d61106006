//! Ids of a segment's rows and the rows of ids: 13 bytes per row.

use base::{Error, Result};
use storage::Sealed;

use super::file::SegmentContents;
use super::id_filter::IdFilter;
use super::layout::kind;

/// Ids to prefetch ahead while their order is checked.
const IDS_AHEAD: usize = 24;

/// Two-way map between rows and ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentIds {
    /// Ids by row.
    ids: Vec<u64>,
    /// Rows by id.
    order: Vec<u32>,
    filter: IdFilter,
}

impl SegmentIds {
    /// Creates the map of these ids.
    ///
    /// # Errors
    /// `Internal` if an id occurs twice.
    pub fn new(ids: Vec<u64>) -> Result<SegmentIds> {
        let mut order: Vec<u32> = (0..ids.len() as u32).collect();
        order.sort_unstable_by_key(|&row| ids[row as usize]);
        let filter = IdFilter::new(&ids);
        let ids = SegmentIds { ids, order, filter };
        match ids.first_out_of_order() {
            Some(row) => Err(Error::internal(format!("row {row} has the id of another row"))),
            None => Ok(ids),
        }
    }

    /// Decodes the two sections of a segment of `rows` rows.
    ///
    /// # Errors
    /// `DataLoss` if they do not match.
    pub fn decode(ids: &[u8], order: &[u8], rows: u32) -> Result<SegmentIds> {
        check_lengths(ids.len() as u64, order.len() as u64, rows)?;
        let mut decoded = SegmentIds::with_room(rows);
        decoded.add_ids(ids);
        decoded.add_order(order);
        decoded.checked()
    }

    /// Reads and verifies the two sections of a segment of `rows` rows, in steps, so that only the
    /// map is in memory.
    ///
    /// # Errors
    /// As [`SegmentIds::decode`]. Also the errors of the medium.
    pub(super) fn read(
        contents: &SegmentContents,
        file: &dyn Sealed,
        rows: u32,
    ) -> Result<SegmentIds> {
        let bytes = |kind: u32| contents.section(kind).map(|section| section.bytes);
        check_lengths(bytes(kind::IDS)?, bytes(kind::ID_ORDER)?, rows)?;
        let mut read = SegmentIds::with_room(rows);
        contents.read_steps(file, kind::IDS, &mut |bytes| read.add_ids(bytes))?;
        contents.read_steps(file, kind::ID_ORDER, &mut |bytes| read.add_order(bytes))?;
        read.checked()
    }

    fn with_room(rows: u32) -> SegmentIds {
        SegmentIds {
            ids: Vec::with_capacity(rows as usize),
            order: Vec::with_capacity(rows as usize),
            filter: IdFilter::new(&[]),
        }
    }

    fn add_ids(&mut self, bytes: &[u8]) {
        self.ids.extend(bytes.as_chunks().0.iter().map(|id| u64::from_le_bytes(*id)));
    }

    fn add_order(&mut self, bytes: &[u8]) {
        self.order.extend(bytes.as_chunks().0.iter().map(|row| u32::from_le_bytes(*row)));
    }

    /// Checks that the order names each row once, by ascending ids.
    fn checked(mut self) -> Result<SegmentIds> {
        let rows = self.ids.len();
        if self.order.iter().any(|&row| row as usize >= rows) {
            return Err(damaged_ids("a row beyond the last"));
        }
        // Strictly ascending ids belong to different rows, so the order names every row.
        match self.first_out_of_order() {
            Some(row) => Err(damaged_ids(&format!("row {row} is out of order"))),
            None => {
                self.filter = IdFilter::new(&self.ids);
                Ok(self)
            }
        }
    }

    /// Returns the first row whose id is not above that of the row before. All rows of the order
    /// exist.
    fn first_out_of_order(&self) -> Option<u32> {
        let mut before = None;
        for (at, &row) in self.order.iter().enumerate() {
            // Neighbours in the order are anywhere in memory.
            if let Some(&later) = self.order.get(at + IDS_AHEAD) {
                kernels::prefetch(&self.ids[later as usize..][..1]);
            }
            let id = self.ids[row as usize];
            if before.is_some_and(|before| before >= id) {
                return Some(row);
            }
            before = Some(id);
        }
        None
    }

    /// Encodes the two sections: ids by row, rows by id.
    pub fn encode(&self) -> (Vec<u8>, Vec<u8>) {
        let ids = self.ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        (ids, self.order.iter().flat_map(|row| row.to_le_bytes()).collect())
    }

    /// Returns the id of a row, or `None` beyond the last.
    pub fn id(&self, row: u32) -> Option<u64> {
        self.ids.get(row as usize).copied()
    }

    /// Returns the row of an id.
    pub fn find(&self, id: u64) -> Option<u32> {
        if !self.filter.may_have(id) {
            return None;
        }
        let at = self.order.partition_point(|&row| self.ids[row as usize] < id);
        self.order.get(at).copied().filter(|&row| self.ids[row as usize] == id)
    }

    /// Returns the rows whose ids are at least `from`, by id.
    pub fn from(&self, from: u64) -> &[u32] {
        &self.order[self.order.partition_point(|&row| self.ids[row as usize] < from)..]
    }

    /// Returns the bytes of memory.
    pub fn memory_bytes(&self) -> u64 {
        SegmentIds::bytes_of(self.ids.len() as u32)
    }

    /// Returns [`SegmentIds::memory_bytes`] for `rows` rows.
    pub(crate) fn bytes_of(rows: u32) -> u64 {
        u64::from(rows) * 12 + IdFilter::bytes_of(rows)
    }
}

fn damaged_ids(what: &str) -> Error {
    Error::data_loss(format!("the segment's ids are wrong: {what}"))
}

/// Checks the lengths of the two sections.
fn check_lengths(ids: u64, order: u64, rows: u32) -> Result<()> {
    let rows = u64::from(rows);
    if ids == rows * 8 && order == rows * 4 { Ok(()) } else { Err(damaged_ids("their length")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn ids_are_found(ids in prop::collection::hash_set(0_u64..300, 0..100)) {
            let ids: Vec<u64> = ids.into_iter().collect();
            let map = SegmentIds::new(ids.clone()).unwrap();
            let (by_row, by_id) = map.encode();
            prop_assert_eq!(&SegmentIds::decode(&by_row, &by_id, ids.len() as u32).unwrap(), &map);
            let naive: BTreeMap<u64, u32> = ids.iter().copied().zip(0..).collect();
            for id in 0..310 {
                prop_assert_eq!(map.find(id), naive.get(&id).copied());
                let from: Vec<u32> = naive.range(id..).map(|(_, &row)| row).collect();
                prop_assert_eq!(map.from(id), &from[..]);
            }
            for (row, &id) in ids.iter().enumerate() {
                prop_assert_eq!(map.id(row as u32), Some(id));
            }
        }

        #[test]
        fn changed_orders_cause_no_panic(
            ids in prop::collection::vec(0_u64..20, 1..6),
            changes in prop::collection::vec((any::<prop::sample::Index>(), 0_u32..7), 0..3),
        ) {
            let rows = ids.len() as u32;
            let mut order: Vec<u32> = (0..rows).collect();
            order.sort_unstable_by_key(|&row| ids[row as usize]);
            for (at, row) in changes {
                let at = at.index(order.len());
                order[at] = row;
            }
            let ids: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
            let order: Vec<u8> = order.iter().flat_map(|row| row.to_le_bytes()).collect();
            if let Ok(map) = SegmentIds::decode(&ids, &order, rows) {
                prop_assert!((0..rows).all(|row| map.id(row).and_then(|id| map.find(id)) == Some(row)));
            }
            for other in [rows - 1, rows + 1] {
                prop_assert!(SegmentIds::decode(&ids, &order, other).is_err());
            }
        }
    }

    #[test]
    fn an_id_twice_is_refused() {
        assert!(SegmentIds::new(vec![4, 5, 4]).is_err());
    }
}
