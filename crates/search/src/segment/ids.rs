//! Ids of a segment's rows and the rows of ids: 12 bytes per row.

use base::{Error, Result};

/// Two-way map between rows and ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentIds {
    /// Ids by row.
    ids: Vec<u64>,
    /// Rows by id.
    order: Vec<u32>,
}

impl SegmentIds {
    /// Creates the map of these ids.
    ///
    /// # Errors
    /// `Internal` if an id occurs twice.
    pub fn new(ids: Vec<u64>) -> Result<SegmentIds> {
        let mut order: Vec<u32> = (0..ids.len() as u32).collect();
        order.sort_unstable_by_key(|&row| ids[row as usize]);
        let ids = SegmentIds { ids, order };
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
        let odd = |what: &str| Error::data_loss(format!("the segment's ids are wrong: {what}"));
        if ids.len() as u64 != u64::from(rows) * 8 || order.len() as u64 != u64::from(rows) * 4 {
            return Err(odd("their length"));
        }
        let ids = ids.as_chunks().0.iter().map(|id| u64::from_le_bytes(*id)).collect();
        let order: Vec<u32> =
            order.as_chunks().0.iter().map(|row| u32::from_le_bytes(*row)).collect();
        if order.iter().any(|&row| row >= rows) {
            return Err(odd("a row beyond the last"));
        }
        let ids = SegmentIds { ids, order };
        // Strictly ascending ids belong to different rows, so the order names every row.
        match ids.first_out_of_order() {
            Some(row) => Err(odd(&format!("row {row} is out of order"))),
            None => Ok(ids),
        }
    }

    fn first_out_of_order(&self) -> Option<u32> {
        let id = |row: u32| self.ids[row as usize];
        self.order.windows(2).find(|pair| id(pair[0]) >= id(pair[1])).map(|pair| pair[1])
    }

    /// Encodes the two sections: ids by row, rows by id.
    pub fn encode(&self) -> (Vec<u8>, Vec<u8>) {
        let ids = self.ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        (ids, self.order.iter().flat_map(|row| row.to_le_bytes()).collect())
    }

    /// Returns the id of a row; `None` beyond the last.
    pub fn id(&self, row: u32) -> Option<u64> {
        self.ids.get(row as usize).copied()
    }

    /// Returns the row of an id.
    pub fn find(&self, id: u64) -> Option<u32> {
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
        u64::from(rows) * 12
    }
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
        fn any_bytes_are_survived(
            ids in prop::collection::vec(0_u64..9, 0..6), order in prop::collection::vec(0_u32..7, 0..6), rows in 0_u32..7,
        ) {
            let ids: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
            let order: Vec<u8> = order.iter().flat_map(|row| row.to_le_bytes()).collect();
            if let Ok(map) = SegmentIds::decode(&ids, &order, rows) {
                prop_assert!((0..rows).all(|row| map.id(row).and_then(|id| map.find(id)) == Some(row)));
            }
        }
    }

    #[test]
    fn an_id_twice_is_refused() {
        assert!(SegmentIds::new(vec![4, 5, 4]).is_err());
    }
}
