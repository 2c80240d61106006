//! Bytes that a cluster's nodes read: entries, records and backups in the object store, keys in
//! etcd, and answers of other nodes.

use base::ErrorKind;
use bytes::Bytes;
use cluster::SHARDS_MAX;
use cluster_log::codec::{decode, encode_entry};
use cluster_node::ShardKey;
use cluster_node::fuzzing;
use etcd::fuzzing::{etcd_range, etcd_refusal};
use etcd::{EtcdEntry, LeaseId};
use serde_json::value::RawValue;

use crate::bounded;

/// Shards whose placement is computed.
const PLACED_MAX: usize = 4;
/// Bytes of the checksum at the end of an entry.
const CHECKSUM_BYTES: usize = 4;
/// Statuses of answers.
const STATUSES: [u16; 11] = [200, 400, 401, 403, 404, 409, 412, 413, 429, 500, 503];

/// Fuzzes entries of a shard's log, also with a corrected checksum, and names of floors.
///
/// Asserts that an entry which decodes encodes to the same bytes, and that a name which is read is
/// written with the same value.
pub fn cluster_log_entry(data: &[u8]) {
    let mut mended = data.to_vec();
    let body = data.len().saturating_sub(CHECKSUM_BYTES);
    mended.truncate(body);
    mended.extend(crc32c::crc32c(&mended).to_le_bytes());
    for bytes in [data, &mended] {
        // The operations share a copy of the bytes.
        let Ok(entry) = bounded(data, 0, || decode(bytes)) else { continue };
        assert_eq!(encode_entry(&entry).expect("own entry"), bytes);
    }
    if let Some(floor) = std::str::from_utf8(data).ok().and_then(cluster_log::fuzzing::floor_name) {
        assert_eq!(cluster_log::fuzzing::floor_name(&floor.to_string()), Some(floor));
    }
}

/// Fuzzes answers of etcd. If the first byte is odd, the rest are lines of keys and values, as the
/// decoded answer to a request for keys has them.
///
/// Asserts that each shard has one key, that nodes have their own names, that placement takes any
/// weights, and that errors name the address.
pub fn cluster_etcd(data: &[u8]) {
    let Some((&choice, rest)) = data.split_first() else { return };
    let status = STATUSES[usize::from(choice / 2) % STATUSES.len()];
    if choice % 2 == 1 {
        return view(data, &entries(rest));
    }
    let error = bounded(data, 0, || etcd_refusal(status, rest));
    assert!(error.message().contains("a:1"), "{error}");
    if let Ok(entries) = bounded(data, 0, || etcd_range(rest)) {
        view(data, &entries);
    }
}

/// Reads lines of a key, a tab and a value.
fn entries(lines: &[u8]) -> Vec<EtcdEntry> {
    let entry = |line: &[u8]| {
        let mut parts = line.splitn(2, |byte| *byte == b'\t');
        let key = String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned();
        let value = Bytes::copy_from_slice(parts.next().unwrap_or_default());
        EtcdEntry { key, value, create_revision: -1, lease: LeaseId(1) }
    };
    lines.split(|byte| *byte == b'\n').map(entry).collect()
}

fn view(data: &[u8], entries: &[EtcdEntry]) {
    let view = bounded(data, 0, || fuzzing::cluster_view(entries));
    let keys: Vec<&str> = entries.iter().map(|entry| &*entry.key).collect();
    for key in view.owners.keys() {
        assert!(key.shard.0 < SHARDS_MAX);
        assert!(keys.contains(&&*format!("millpond/c/owners/{key}")), "{key}");
    }
    for (name, node) in &view.nodes {
        assert_eq!(*name, node.name);
        assert!(keys.contains(&&*format!("millpond/c/nodes/{name}")), "{name}");
    }
    let shards = view.owners.keys().cloned().chain([ShardKey::new("id", 0)]);
    for key in shards.take(PLACED_MAX) {
        let wanted = view.wanted_holders(&key, 2);
        assert!(wanted.len() <= 2 && wanted.iter().all(|name| view.nodes.contains_key(name)));
        let _ = (view.wanted_owner(&key), view.serving_holders(&key, 2));
    }
}

/// Fuzzes answers of nodes to reads and writes. The first byte selects the status.
///
/// Asserts that results of shards are JSON, and that no answer but one says that a write was made.
pub fn cluster_answer(data: &[u8]) {
    let Some((&choice, rest)) = data.split_first() else { return };
    let status = STATUSES[usize::from(choice) % STATUSES.len()];
    let written = bounded(data, 0, || cluster_root::fuzzing::write_answer(status, rest));
    assert!(status == 200 || !matches!(written, Ok(Some(_))), "{status} {written:?}");
    let Ok(shards) = bounded(data, 0, || cluster_root::fuzzing::read_answer(rest)) else { return };
    for result in shards.into_values() {
        match result {
            Ok(text) => {
                serde_json::from_str::<&RawValue>(&text).expect("a result is JSON");
            }
            Err(error) => assert_ne!(error.kind(), ErrorKind::DataLoss),
        }
    }
}

/// Fuzzes records of collections. Asserts that the limits of a record hold, and that a record that
/// is written is read with the same values.
pub fn cluster_record(data: &[u8]) {
    let Ok(record) = bounded(data, 0, || fuzzing::collection_record(data)) else { return };
    let keys: Vec<ShardKey> = record.shard_keys().collect();
    assert!((1..=SHARDS_MAX as usize).contains(&keys.len()));
    assert!(keys.iter().all(|key| !key.local_name().contains('/')));
    let _ = (record.image_dims(), record.originals_space());
    let written = serde_json::to_vec(&record).expect("own record");
    let again = fuzzing::collection_record(&written).expect("own record");
    assert_eq!(
        (again.name, again.id, again.shards, again.copies),
        (record.name, record.id, record.shards, record.copies)
    );
}

/// Fuzzes the records that a cluster keeps of its backups. The first byte selects the description
/// of a backup, a part of a log, or aliases with other changes.
///
/// Asserts that a description names as many shards as it has, and that changes that are written
/// can be read.
pub fn cluster_backup(data: &[u8]) {
    let Some((&choice, rest)) = data.split_first() else { return };
    match choice % 3 {
        0 => {
            let Ok(set) = bounded(data, 0, || fuzzing::backup_set(rest)) else { return };
            assert_eq!(set.shards.len(), set.record.shard_keys().count());
            let _ = set.bytes();
        }
        1 => {
            let bytes = Bytes::copy_from_slice(rest);
            let _ = bounded(data, 0, || fuzzing::log_part(&bytes, u64::from(choice / 3)));
        }
        _ => {
            let Ok(written) = bounded(data, 0, || fuzzing::catalog_changes(rest)) else { return };
            // The last digit of a float may differ: serde_json rounds what it reads.
            fuzzing::catalog_changes(&written).expect("own changes");
        }
    }
}
