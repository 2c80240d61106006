//! Tables of contents that no writer makes, and edits.

use super::*;
use crate::decode::AudioInput;

/// Builds an atom.
fn made(name: &[u8; 4], inside: &[u8]) -> Vec<u8> {
    let mut atom = (inside.len() as u32 + 8).to_be_bytes().to_vec();
    atom.extend_from_slice(name);
    atom.extend_from_slice(inside);
    atom
}

/// Builds a table of contents with one track for each contents of `stbl`, followed by `after`.
fn contents_of(tables: &[Vec<u8>], after: &[u8]) -> Vec<u8> {
    let track = |table: &Vec<u8>| {
        ["stbl", "minf", "mdia", "trak"]
            .iter()
            .fold(table.clone(), |inside, name| made(name.as_bytes().try_into().unwrap(), &inside))
    };
    let tracks: Vec<u8> = tables.iter().flat_map(track).collect();
    made(b"moov", &[&tracks, after].concat())
}

fn stream(bytes: Vec<u8>) -> InputBytes {
    InputBytes::new(AudioInput::Stream(Box::new(std::io::Cursor::new(bytes))))
}

fn file(bytes: &[u8]) -> InputBytes {
    let mut file = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut file, bytes).unwrap();
    std::io::Seek::rewind(&mut file).unwrap();
    InputBytes::new(AudioInput::File(file))
}

/// Checks a file whose tables have one atom.
fn checked(table: &[u8]) -> Result<Mp4Edits> {
    let contents = contents_of(&[table.to_vec()], b"");
    let file = [made(b"ftyp", b"M4A "), contents, made(b"mdat", &[0; 8])].concat();
    check(&mut stream(file))
}

/// Builds a fragment with a run of `count` packets that have `sizes`.
fn fragment_of(count: u32, sizes: usize) -> Vec<u8> {
    let run = [&[0, 0, 2, 1][..], &count.to_be_bytes(), &[0; 4], &vec![0; 4 * sizes]].concat();
    made(b"moof", &made(b"traf", &made(b"trun", &run)))
}

#[test]
fn tables_that_need_gigabytes_are_refused() {
    let entry = |count: u32, rest: &[u8]| [&[0; 4], &count.to_be_bytes()[..], rest].concat();
    for name in [b"stts", b"ctts", b"co64", b"stsc", b"stco"] {
        assert!(checked(&made(name, &entry(1, &[0; 12]))).is_ok());
        assert!(checked(&made(name, &entry(u32::MAX, &[0; 12]))).is_err(), "{name:?}");
        assert!(checked(&made(name, b"")).is_err(), "{name:?}");
    }
    let sizes = |shared: u32, count: u32, size: u32| {
        made(
            b"stsz",
            &[&[0; 4], &shared.to_be_bytes()[..], &count.to_be_bytes(), &size.to_be_bytes()]
                .concat(),
        )
    };
    assert!(checked(&sizes(0, 1, 1000)).is_ok());
    assert!(checked(&made(b"elst", &entry(1, &[0; 12]))).is_ok());
    assert!(checked(&made(b"elst", &entry(u32::MAX, &[0; 12]))).is_err());
    let defaults = |size: u32| {
        let track = made(b"trex", &[&[0; 16], &size.to_be_bytes()[..], &[0; 4]].concat());
        check(&mut stream(contents_of(&[], &made(b"mvex", &track))))
    };
    assert!(defaults(1000).is_ok());
    assert!(defaults(3_000_000_000).is_err());
    for table in [sizes(0, u32::MAX, 1000), sizes(0, 1, 3_000_000_000), sizes(3_000_000_000, 1, 0)]
    {
        assert!(checked(&table).is_err());
    }
}

#[test]
fn parts_that_are_too_many_or_too_long_are_refused() {
    let (start, contents) = (made(b"ftyp", b"M4A "), contents_of(&[], b""));
    let many = made(b"free", b"").repeat(FILE_ATOMS_MAX);
    for bytes in [[&start[..], &many, &contents].concat(), [&start[..], &contents, &many].concat()]
    {
        assert!(check(&mut file(&bytes)).is_err());
    }
    assert!(check(&mut stream([&start[..], &many, &contents].concat())).is_err());
    let long = made(b"free", &vec![0; BEFORE_MOOV_MAX as usize]);
    assert!(check(&mut stream([&start[..], &long, &contents].concat())).is_err());
    assert!(check(&mut file(&[&start[..], &long, &contents].concat())).is_ok());
    let start = made(b"ftyp", &vec![0; FTYP_MAX as usize]);
    assert!(check(&mut file(&[&start[..], &contents].concat())).is_err());
}

#[test]
fn tables_of_times_with_slow_lookups_are_refused() {
    let times = |entries: u32, each: u32| {
        let table = [each.to_be_bytes(), 1024u32.to_be_bytes()].concat().repeat(entries as usize);
        made(b"stts", &[&[0; 4], &entries.to_be_bytes()[..], &table].concat())
    };
    // Hours of equal packets, and most of an hour of packets that all differ.
    assert!(checked(&times(1, 10_000_000)).is_ok());
    assert!(checked(&times(200_000, 1)).is_ok());
    assert!(checked(&times(200_000, 100)).is_err());
    // Times of images, which no reader uses, do not count.
    let kind = |kind: &[u8]| made(b"hdlr", &[&[0; 8], kind, &[0; 12]].concat());
    let track = |name: &[u8], table: Vec<u8>| {
        let below = made(b"minf", &made(b"stbl", &table));
        made(b"trak", &made(b"mdia", &[kind(name), below].concat()))
    };
    let tracks = [track(b"vide", times(200_000, 100)), track(b"soun", times(1, 1000))].concat();
    assert_eq!(check(&mut stream(made(b"moov", &tracks))).unwrap().len(), 1);
    let fragmented = [tracks, made(b"mvex", b"")].concat();
    assert!(check(&mut stream(made(b"moov", &fragmented))).is_err());
}

#[test]
fn fragments_are_checked_before_a_reader_sees_them() {
    let start = [made(b"ftyp", b"M4A "), contents_of(&[], &made(b"mvex", b""))].concat();
    let good = [fragment_of(2, 2), made(b"mdat", &[7; 100])].concat();
    let large = made(b"moof", &vec![0; MOOF_MAX as usize]);
    let again = contents_of(&[], b"");
    let part = |name: &[u8; 4], numbers: &[u32]| {
        let inside: Vec<u8> = numbers.iter().flat_map(|number| number.to_be_bytes()).collect();
        made(b"moof", &made(b"traf", &made(name, &inside)))
    };
    let size = PACKET_MAX as u32;
    for good in [
        part(b"trun", &[0x304, 2, 0, 9, size, 9, size]),
        part(b"trun", &[0, RUN_MAX]),
        part(b"tfhd", &[0x1b, 1, 0, 0, 2, 3, size]),
        part(b"tfhd", &[0, 1]),
    ] {
        let mut fragments = FragmentTables::default();
        fragments.check_moof(&good, good.len() as u64).unwrap();
    }
    for (bad, in_file) in [
        (fragment_of(u32::MAX, 2), true),
        (large, true),
        (again, false),
        (part(b"trun", &[0x304, 2, 0, 9, size, 9, size + 1]), true),
        (part(b"trun", &[0, RUN_MAX + 1]), true),
        (part(b"tfhd", &[0x1b, 1, 0, 0, 2, 3, size + 1]), true),
    ] {
        let all = [&start[..], &good, &good, &bad, &good].concat();
        let before = start.len() + 2 * good.len();
        for (mut bytes, fails) in [(stream(all.clone()), true), (file(&all), in_file)] {
            check(&mut bytes).unwrap();
            let mut read = Vec::new();
            let ending = std::io::Read::read_to_end(&mut bytes.rewound().unwrap(), &mut read);
            assert_eq!(ending.is_err(), fails);
            assert!(read == all[..if fails { before } else { all.len() }]);
        }
    }
    // A file that ends inside one is read up to it, and tags are hidden at any position.
    let cut = fragment_of(2, 2);
    let tags = made(b"meta", &[0; 4]);
    let all = [&start[..], &good, &tags, &cut[..cut.len() - 4]].concat();
    let whole = all.len() - (cut.len() - 4);
    for (mut bytes, end) in [(stream(all.clone()), all.len()), (file(&all), whole)] {
        check(&mut bytes).unwrap();
        let mut read = Vec::new();
        std::io::Read::read_to_end(&mut bytes.rewound().unwrap(), &mut read).unwrap();
        let place = start.len() + good.len() + 4;
        assert_eq!(&read[place..place + 4], b"free");
        assert_eq!(read.len(), end);
    }
}

#[test]
fn fragments_are_bounded_together() {
    let mut fragments = FragmentTables::default();
    let moof = made(b"moof", &made(b"free", &vec![0; MOOF_MAX as usize - 16]));
    for _ in 0..MOOFS_MAX / MOOF_MAX {
        fragments.check_moof(&moof, MOOF_MAX).unwrap();
    }
    assert!(fragments.check_moof(&moof, MOOF_MAX).is_err());
}

#[test]
fn an_atom_longer_than_its_parent_is_refused() {
    let mut long = made(b"udta", &[0; 8]);
    long[3] += 1;
    assert!(checked(&long).is_err());
    assert!(checked(&[0, 0, 0, 4, b'f', b'r', b'e', b'e']).is_err(), "shorter than its own header");
}

#[test]
fn edits_define_silence() {
    let edit = Mp4Edit {
        ticks: 48000,
        movie: 1000,
        delay: 250,
        media: 1024,
        length: 500,
        ..Mp4Edit::default()
    };
    assert_eq!(edit.silent(48000), [0..1024, 25024..u64::MAX]);
    assert_eq!(edit.silent(24000), [0..512, 12512..u64::MAX]);
    assert_eq!(Mp4Edit { length: 0, ..edit.clone() }.silent(48000).len(), 1);
    assert_eq!(Mp4Edit { media: 0, ..edit.clone() }.silent(48000), []);
    assert_eq!(edit.delay(48000), 12000);
    let with = |media| Mp4Edit { more: vec![MediaPart { media, length: 1000 }], ..edit.clone() };
    assert_eq!(with(48000).silent(48000), [0..1024, 25024..48000, 96000..u64::MAX]);
    assert_eq!(with(2048).silent(48000), []);
    let most = Mp4Edit { delay: u64::MAX, media: u64::MAX, length: u64::MAX, ..edit };
    assert_eq!(most.silent(48000), [0..u64::MAX, u64::MAX..u64::MAX]);
}
