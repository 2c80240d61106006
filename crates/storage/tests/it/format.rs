//! Pages and superblocks: round trips, and damage of every kind.

use base::ErrorKind;
use proptest::prelude::*;
use storage::page::{Packer, PageRunCheck, Placed, RECORD_BYTES_MAX, RecordPage};
use storage::superblock::{SECTIONS_MAX, Section, Superblock, VERSION};

use crate::{PAGE, pattern};

fn pack(records: &[Vec<u8>]) -> (Vec<Placed>, Vec<u8>) {
    let (mut packer, mut out) = (Packer::new(), Vec::new());
    let placed = records.iter().map(|record| packer.push(record).unwrap()).collect();
    packer.finish(&mut out).unwrap();
    (placed, out)
}

/// Reads a record by its position alone.
fn find<'a>(pages: &'a [u8], placed: &Placed) -> Option<&'a [u8]> {
    let start = placed.page as usize * PAGE;
    let page = RecordPage::open(&pages[start..start + usize::from(placed.pages) * PAGE]).unwrap();
    assert_eq!(page.number(), placed.page);
    assert_eq!(page.pages(), placed.pages);
    page.record(placed.slot)
}

/// Checks all pages of a section. Returns the first page of the damaged run.
fn check_all(pages: &[u8]) -> Result<(), u32> {
    let mut check = PageRunCheck::new();
    for page in pages.chunks(PAGE) {
        check.add(page).map_err(|_| check.first())?;
    }
    check.finish().map_err(|_| check.first())
}

fn lengths() -> impl Strategy<Value = usize> {
    prop_oneof![8 => 0_usize..600, 2 => 3900_usize..4300, 1 => 4000_usize..20_000]
}

proptest! {
    #[test]
    fn records_are_found_where_they_were_placed(
        lengths in prop::collection::vec(lengths(), 0..60),
        drain_every in 1_usize..20,
    ) {
        let records: Vec<Vec<u8>> =
            lengths.iter().enumerate().map(|(index, &bytes)| pattern(bytes, index as u64)).collect();
        let (placed, pages) = pack(&records);
        prop_assert_eq!(pages.len() % PAGE, 0);
        for (record, placed) in records.iter().zip(&placed) {
            prop_assert_eq!(find(&pages, placed), Some(&record[..]));
        }
        // Draining in between gives the same bytes.
        let (mut packer, mut drained) = (Packer::new(), Vec::new());
        for (index, record) in records.iter().enumerate() {
            packer.push(record).unwrap();
            if index % drain_every == 0 {
                packer.drain(&mut drained);
            }
        }
        prop_assert_eq!(packer.pages() as usize * PAGE, pages.len());
        packer.finish(&mut drained).unwrap();
        prop_assert_eq!(drained, pages);
    }

    #[test]
    fn a_check_in_order_finds_every_damaged_run(
        lengths in prop::collection::vec(lengths(), 1..60), at in any::<prop::sample::Index>(), bit in 0_u32..8,
    ) {
        let records: Vec<Vec<u8>> =
            lengths.iter().enumerate().map(|(index, &bytes)| pattern(bytes, index as u64)).collect();
        let (placed, mut pages) = pack(&records);
        prop_assert_eq!(check_all(&pages), Ok(()));
        let byte = at.index(pages.len());
        let page = (byte / PAGE) as u32;
        let run = placed.iter().rfind(|placed| placed.page <= page).unwrap().page;
        pages[byte] ^= 1 << bit;
        prop_assert_eq!(check_all(&pages), Err(run));
        pages[byte] ^= 1 << bit;
        let end = pages.len() - PAGE;
        let last = placed.last().unwrap();
        let is_whole = last.pages == 1;
        prop_assert_eq!(check_all(&pages[..end]), if is_whole { Ok(()) } else { Err(last.page) });
    }

    #[test]
    fn any_bytes_are_a_page_or_an_error(
        bytes in prop::collection::vec(any::<u8>(), 0..200), sum in any::<bool>(), length in 0_usize..3 * PAGE,
        count in 0_u16..40,
    ) {
        let mut page = bytes;
        page.resize(length, 0);
        // With a valid checksum only the parser protects the reader.
        if sum && page.len() >= PAGE {
            let pages = (page.len() / PAGE).min(2) as u16;
            // A long record is the only one of its pages.
            let count = if pages > 1 { 1 } else { count };
            page[8..10].copy_from_slice(&count.to_le_bytes());
            page[10..12].copy_from_slice(&pages.to_le_bytes());
            let crc = crc32c::crc32c(&page[4..usize::from(pages) * PAGE]);
            page[..4].copy_from_slice(&crc.to_le_bytes());
        }
        if let Ok(page) = RecordPage::open(&page) {
            for slot in (0..page.count().min(3000)).chain([u16::MAX]) {
                page.record(slot);
            }
        }
    }

    #[test]
    fn a_superblock_round_trips(uuid in any::<[u8; 16]>(), rows in any::<u64>(),
                               numbers in prop::collection::vec(any::<[u32; 5]>(), 0..=SECTIONS_MAX)) {
        let sections = numbers.iter().map(|&[kind, offset, bytes, crc32c, aux]| Section {
            kind, offset: u64::from(offset) << 20, bytes: u64::from(bytes), crc32c, aux: u64::from(aux) << 7,
        });
        let block = Superblock { uuid, version: VERSION, rows, sections: sections.collect() };
        let page = block.encode().unwrap();
        prop_assert_eq!(Superblock::decode(&page), Ok(block.clone()));
        let _ = block.check(rows);
    }

    #[test]
    fn any_bytes_are_a_superblock_or_an_error(
        mut bytes in prop::collection::vec(any::<u8>(), 0..5000), sum in any::<bool>(),
    ) {
        if sum && bytes.len() >= PAGE {
            bytes[..8].copy_from_slice(b"MPSEGMNT");
            bytes[8..16].copy_from_slice(&[1, 0, 0, 0, 4, 3, 2, 1]);
            let crc = crc32c::crc32c(&bytes[..PAGE - 4]);
            bytes[PAGE - 4..PAGE].copy_from_slice(&crc.to_le_bytes());
        }
        let _ = Superblock::decode(&bytes).map(|block| block.check(1 << 30));
    }
}

#[test]
fn small_records_share_a_page_and_long_ones_have_their_own() {
    let records = [
        pattern(400, 1),
        pattern(400, 2),
        pattern(4080, 3),
        pattern(4081, 4),
        pattern(12_000, 5),
        vec![],
    ];
    let (placed, pages) = pack(&records);
    let places: Vec<(u32, u16, u16)> = placed.iter().map(|p| (p.page, p.pages, p.slot)).collect();
    assert_eq!(places, [(0, 1, 0), (0, 1, 1), (1, 1, 0), (2, 2, 0), (4, 3, 0), (7, 1, 0)]);
    assert_eq!(pages.len(), 8 * PAGE);
    // Nine of 400 bytes and their table fit in a page, a tenth does not.
    let (placed, _) = pack(&vec![pattern(400, 6); 11]);
    assert_eq!(placed.iter().filter(|place| place.page == 0).count(), 10);
    assert!(Packer::new().push(&vec![0; RECORD_BYTES_MAX + 1]).is_err());
    let (placed, pages) = pack(&[pattern(RECORD_BYTES_MAX, 7)]);
    assert_eq!(find(&pages, &placed[0]), Some(&pattern(RECORD_BYTES_MAX, 7)[..]));
}

#[test]
fn every_flipped_bit_of_a_page_is_seen() {
    let (_, mut pages) = pack(&[pattern(300, 1), pattern(200, 2)]);
    let (_, mut run) = pack(&[pattern(5000, 3)]);
    for page in [&mut pages, &mut run] {
        for bit in 0..page.len() * 8 {
            page[bit / 8] ^= 1 << (bit % 8);
            let kind = RecordPage::open(page).err().map(|error| error.kind());
            assert_eq!(kind, Some(ErrorKind::DataLoss), "bit {bit}");
            page[bit / 8] ^= 1 << (bit % 8);
        }
        assert!(RecordPage::open(page).is_ok());
    }
}

#[test]
fn lost_bytes_are_no_page() {
    let (_, pages) = pack(&[pattern(300, 1)]);
    let half: Vec<u8> = pages[..PAGE / 2].iter().copied().chain(vec![0; PAGE / 2]).collect();
    let (_, run) = pack(&[pattern(5000, 3)]);
    for bytes in
        [&vec![0; PAGE][..], &vec![0xff; PAGE], &pages[..PAGE - 1], &half[..300], &[], &run[..PAGE]]
    {
        assert_eq!(
            RecordPage::open(bytes).err().map(|error| error.kind()),
            Some(ErrorKind::DataLoss)
        );
    }
}

#[test]
fn every_flipped_bit_of_a_superblock_is_seen() {
    let section = Section { kind: 3, offset: 4096, bytes: 100, crc32c: 5, aux: 6 };
    let block = Superblock { uuid: [9; 16], version: VERSION, rows: 7, sections: vec![section] };
    let mut page = block.encode().unwrap();
    for bit in 0..PAGE * 8 {
        page[bit / 8] ^= 1 << (bit % 8);
        assert!(Superblock::decode(&page).is_err(), "bit {bit}");
        page[bit / 8] ^= 1 << (bit % 8);
    }
    assert_eq!(block.section(3), Ok(&section));
    assert!(block.section(4).is_err());
    let newer = Superblock { version: VERSION + 1, ..block.clone() }.encode().unwrap();
    assert_eq!(
        Superblock::decode(&newer).err().map(|error| error.kind()),
        Some(ErrorKind::FailedPrecondition)
    );
    let many = Superblock { sections: vec![section; SECTIONS_MAX + 1], ..block };
    assert!(many.encode().is_err());
}

#[test]
fn sections_lie_apart_and_within_the_file() {
    let at = |offset, bytes| Section { kind: 1, offset, bytes, crc32c: 0, aux: 0 };
    let check = |sections: &[Section]| {
        Superblock { uuid: [0; 16], version: VERSION, rows: 0, sections: sections.to_vec() }
            .check(20_480)
            .is_ok()
    };
    assert!(
        check(&[])
            && check(&[at(8192, 12_288), at(4096, 4096)])
            && check(&[at(4096, 0), at(4096, 1)])
    );
    for wrong in
        [&[at(0, 1)][..], &[at(4097, 1)], &[at(16_384, 4097)], &[at(u64::MAX - 4095, 5000)]]
    {
        assert!(!check(wrong), "{wrong:?}");
    }
    assert!(!check(&[at(4096, 5000), at(8192, 1)]));
}

/// Bytes of format version 1, which never change.
#[test]
fn the_layout_is_what_the_document_says() {
    let (_, page) = pack(&[b"abc".to_vec(), b"de".to_vec()]);
    assert_eq!(page[4..12], [0, 0, 0, 0, 2, 0, 1, 0]);
    assert_eq!(page[12..18], [18, 0, 21, 0, 23, 0]);
    assert_eq!(&page[18..24], b"abcde\0");
    assert_eq!(page[..4], crc32c::crc32c(&page[4..]).to_le_bytes());
    let (_, run) = pack(&[vec![7; 5000]]);
    assert_eq!(run[4..16], [0, 0, 0, 0, 1, 0, 2, 0, 0x88, 0x13, 0, 0]);
    let section = Section { kind: 1, offset: 0x1000, bytes: 2, crc32c: 3, aux: 4 };
    let block = Superblock { uuid: [5; 16], version: 1, rows: 6, sections: vec![section] }
        .encode()
        .unwrap();
    assert_eq!(&block[..16], b"MPSEGMNT\x01\0\0\0\x04\x03\x02\x01");
    assert_eq!(block[32..48], [6, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(block[64..76], [1, 0, 0, 0, 3, 0, 0, 0, 0, 0x10, 0, 0]);
}
