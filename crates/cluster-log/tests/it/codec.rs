//! Bytes of entries.

use base::ErrorKind;
use bytes::Bytes;
use cluster::{EntryBody, Epoch, LogEntry, WriterId};
use cluster_log::Batch;
use cluster_log::codec::{
    ENTRY_BYTES_MAX, ENTRY_OPERATIONS_MAX, decode, decode_entry, encode_entry,
};
use proptest::prelude::*;

use crate::support::{fence, writes};

fn entry() -> impl Strategy<Value = LogEntry<Batch>> {
    let operations = prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..12);
    let body = prop_oneof![
        1 => Just(EntryBody::Fence),
        4 => operations.prop_map(|all| {
            EntryBody::Writes(Batch::from(all.into_iter().map(Bytes::from).collect::<Vec<_>>()))
        }),
    ];
    let numbers = (any::<u64>(), any::<u128>());
    (numbers, body).prop_map(|(numbers, body)| LogEntry {
        epoch: Epoch(numbers.0),
        writer: WriterId(numbers.1),
        body,
    })
}

/// Replaces the checksum by that of the bytes.
fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let end = bytes.len() - 4;
    let checksum = crc32c::crc32c(&bytes[..end]).to_le_bytes();
    bytes[end..].copy_from_slice(&checksum);
    bytes
}

proptest! {
    #[test]
    fn entries_survive_their_bytes(entry in entry()) {
        let bytes = encode_entry(&entry).unwrap();
        prop_assert_eq!(&decode_entry(&bytes).unwrap(), &entry);
        prop_assert_eq!(decode(&bytes).unwrap(), entry);
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(decode(&bytes).is_err());
    }

    /// Damage that the checksum does not show: each length is checked.
    #[test]
    fn damaged_fields_do_not_panic(
        entry in entry(), at: prop::sample::Index, byte: u8, cut in 0_usize..20,
    ) {
        let mut bytes = encode_entry(&entry).unwrap().to_vec();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        bytes.truncate(bytes.len() - cut);
        let bytes = sealed(bytes);
        if let Ok(read) = decode(&bytes) {
            prop_assert_eq!(encode_entry(&read).unwrap().to_vec(), bytes);
        }
    }
}

#[test]
fn a_changed_byte_is_noticed() {
    for entry in [fence(7), writes(7, &["{}", "", "{\"a\":1}"])] {
        let bytes = encode_entry(&entry).unwrap();
        for at in 0..bytes.len() {
            let mut changed = bytes.to_vec();
            changed[at] ^= 0x10;
            assert_eq!(decode(&changed).unwrap_err().kind(), ErrorKind::DataLoss, "byte {at}");
            assert_eq!(decode(&bytes[..at]).unwrap_err().kind(), ErrorKind::DataLoss);
        }
    }
}

#[test]
fn a_newer_format_requires_an_update() {
    let mut bytes = encode_entry(&fence(7)).unwrap().to_vec();
    bytes[8] = 2;
    let error = decode(&sealed(bytes)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unimplemented);
    assert!(error.message().contains("update this program"), "{error}");
}

#[test]
fn an_entry_has_limits_of_operations_and_bytes() {
    let large = |operations: Vec<Bytes>| {
        let mut entry = writes(1, &[]);
        entry.body = EntryBody::Writes(Batch::from(operations));
        encode_entry(&entry).map(|bytes| bytes.len()).map_err(|error| error.kind())
    };
    assert!(large(vec![Bytes::new(); ENTRY_OPERATIONS_MAX]).is_ok());
    assert_eq!(large(vec![Bytes::new(); ENTRY_OPERATIONS_MAX + 1]), Err(ErrorKind::TooLarge));
    let text = Bytes::from(vec![b' '; ENTRY_BYTES_MAX]);
    assert_eq!(large(vec![text.slice(48..)]), Ok(ENTRY_BYTES_MAX));
    assert_eq!(large(vec![text.slice(47..)]), Err(ErrorKind::TooLarge));
}
