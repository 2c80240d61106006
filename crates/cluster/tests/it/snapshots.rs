//! Snapshots of shards: the ones with the newest positions stay.

use cluster::{EntryNumber, SnapshotRead, replaced_snapshots};

#[test]
fn the_newest_positions_stay() {
    let listed = [1, 2, 3, 4, 5];
    // Stopped holders took the third and the fourth. The fifth cannot be read.
    let read: Vec<SnapshotRead<'_, u32>> = listed
        .iter()
        .zip([900, 1000, 500, 550])
        .map(|(id, next)| SnapshotRead { id, next: EntryNumber(next) })
        .collect();
    assert_eq!(replaced_snapshots(&listed, &read), [3, 4, 5]);
    // The first was not listed yet, and stays too.
    assert_eq!(replaced_snapshots(&listed[1..4], &read), [3, 4]);
    assert!(replaced_snapshots(&listed[..1], &read[..1]).is_empty());
}
