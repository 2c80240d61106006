//! Mp4 files with changed tables.

use super::{ALAC, M4A, M4A_LAST, decode, file};

/// An atom of an mp4 file.
fn atom(name: &[u8; 4], inside: &[u8]) -> Vec<u8> {
    [&(inside.len() as u32 + 8).to_be_bytes()[..], name, inside].concat()
}

/// Returns `atoms` with `change` applied to the contents of each one named `name`, on any level of
/// the tables.
fn changed(atoms: &[u8], name: &[u8; 4], change: &dyn Fn(&[u8]) -> Vec<u8>) -> Vec<u8> {
    let (mut rest, mut result) = (atoms, Vec::new());
    while let Some(length) =
        rest.first_chunk::<4>().map(|length| u32::from_be_bytes(*length) as usize)
    {
        let (this, after) = rest.split_at(length);
        let (own, inside): (&[u8; 4], _) = (this[4..8].try_into().unwrap(), &this[8..]);
        result.extend(match own {
            _ if own == name => change(inside),
            b"moov" | b"trak" | b"edts" | b"mdia" | b"minf" | b"stbl" => {
                atom(own, &changed(inside, name, change))
            }
            _ => this.to_vec(),
        });
        rest = after;
    }
    result
}

#[test]
fn a_track_of_images_does_not_move_the_sound() {
    let numbers = |numbers: &[u32]| {
        numbers.iter().flat_map(|number| number.to_be_bytes()).collect::<Vec<u8>>()
    };
    let nothing = |name| atom(name, &[0; 8]);
    let tables = [
        atom(b"stsd", &[numbers(&[0, 1]), atom(b"avc1", &[0; 78])].concat()),
        nothing(b"stts"),
        nothing(b"stsc"),
        atom(b"stsz", &[0; 12]),
        nothing(b"stco"),
    ]
    .concat();
    let media = [
        atom(b"mdhd", &numbers(&[0, 0, 0, 90_000, 90_000, 0])),
        atom(b"hdlr", &[&numbers(&[0, 0])[..], b"vide", &[0; 13]].concat()),
        atom(
            b"minf",
            &[atom(b"hdlr", &[&[0; 8][..], b"soun", &[0; 13]].concat()), atom(b"stbl", &tables)]
                .concat(),
        ),
    ]
    .concat();
    let pictures = [
        atom(
            b"tkhd",
            &numbers(&[0, 0, 0, 9, 0, 90_000, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        ),
        atom(b"edts", &atom(b"elst", &numbers(&[0, 1, 300, 30_000, 0x10000]))),
        atom(b"mdia", &media),
    ]
    .concat();
    let film = changed(M4A_LAST, b"moov", &|inside| {
        atom(b"moov", &[atom(b"trak", &pictures), inside.to_vec()].concat())
    });
    let (alone, beside) = (decode(file(M4A_LAST)).unwrap(), decode(file(&film)).unwrap());
    assert_eq!((beside.samples.len(), beside.faults.len()), (32000, 0));
    assert!(alone.samples == beside.samples && alone.format == beside.format);
}

/// Some encoders announce the padding at both ends as a part of the track.
#[test]
fn padding_in_the_announced_length_is_not_missing() {
    let frames = 17 * 1024_u32;
    let padded = changed(M4A_LAST, b"mdhd", &|inside| {
        let mut inside = inside.to_vec();
        inside[16..20].copy_from_slice(&frames.to_be_bytes());
        atom(b"mdhd", &inside)
    });
    let padded = changed(&padded, b"stts", &|_| {
        let all = [0, 1, 17, 1024].map(u32::to_be_bytes).concat();
        atom(b"stts", &all)
    });
    let decoded = decode(file(&padded)).unwrap();
    assert_eq!(decoded.faults, []);
    assert_eq!((decoded.samples.len(), decoded.format.seconds), (32000, Some(1.0)));
}

/// The sound of a film may begin later than its images: an empty edit comes before the sound's.
#[test]
fn silence_before_the_sound_of_a_film_counts() {
    // Half a second, and then the clip without its padding, with short and with long numbers.
    let short = [0, 2, 8000, u32::MAX, 1 << 16, 16_000, 1024, 1 << 16];
    let long = [1 << 24, 2, 0, 8000, u32::MAX, u32::MAX, 1 << 16, 0, 16_000, 0, 1024, 1 << 16];
    let clip = decode(file(M4A_LAST)).unwrap().samples;
    for list in [&short[..], &long[..]] {
        let list: Vec<u8> = list.iter().flat_map(|number: &u32| number.to_be_bytes()).collect();
        let film = changed(M4A_LAST, b"elst", &|_| atom(b"elst", &list));
        let decoded = decode(file(&film)).unwrap();
        assert_eq!((decoded.faults, decoded.format.seconds), (vec![], Some(1.5)));
        let (before, after) = decoded.samples.split_at(16_000);
        assert!(before.iter().all(|sample| *sample == 0.0));
        assert!(after == clip, "{} samples after the silence", after.len());
    }
}

/// A program that cuts a film may keep all of its sound, and list the parts that are played.
#[test]
fn parts_that_a_list_of_edits_leaves_out_are_no_sound() {
    let part = |start: u32| [4000, start, 1 << 16];
    let clip = decode(file(M4A_LAST)).unwrap().samples;
    // Without and with silence after the second part.
    let none: &[u32] = &[];
    for end in [none, &[8000, u32::MAX, 1 << 16]] {
        let count = 2 + end.len() as u32 / 3;
        let list: Vec<u32> = [&[0, count][..], &part(1024), &part(9024), end].concat();
        let list: Vec<u8> = list.iter().flat_map(|number| number.to_be_bytes()).collect();
        let film = changed(M4A_LAST, b"elst", &|_| atom(b"elst", &list));
        let decoded = decode(file(&film)).unwrap();
        assert_eq!((decoded.faults, decoded.format.seconds), (vec![], Some(0.5)));
        assert!(decoded.samples == [&clip[..8000], &clip[16_000..24_000]].concat());
    }
}

/// In MOV films, the description of ALAC lies in an atom `wave`. A film may repeat it beside that.
#[test]
fn alac_in_a_mov_film_is_decoded() {
    let alone = decode(file(ALAC)).unwrap();
    for (version, more, repeats) in [(0, 0, 0), (1, 16, 0), (1, 16, 1)] {
        let film = changed(ALAC, b"stsd", &|inside| {
            let (before, entry) = inside.split_at(8);
            let (fields, description) = entry[8..].split_at(28);
            let mut fields = [fields, &vec![0; more]].concat();
            fields[9] = version;
            let parts = [&atom(b"frma", b"alac")[..], description, &atom(&[0; 4], b"")].concat();
            let wave = atom(b"wave", &parts);
            let entry = atom(b"alac", &[fields, wave, description.repeat(repeats)].concat());
            atom(b"stsd", &[before, &entry].concat())
        });
        let decoded = decode(file(&film)).unwrap();
        assert_eq!((decoded.faults, decoded.format), (vec![], alone.format.clone()));
        assert!(decoded.samples == alone.samples, "version {version}, {repeats} repeated");
    }
}

/// iTunes states the padding before the sound in a comment only.
#[test]
fn padding_by_a_comment_of_itunes_is_no_sound() {
    let text = b" 00000000 00000400 00000180 0000000000003E80 00000000 00000000";
    let comment = [
        atom(b"mean", b"\0\0\0\0com.apple.iTunes"),
        atom(b"name", b"\0\0\0\0iTunSMPB"),
        atom(b"data", &[&[0, 0, 0, 1, 0, 0, 0, 0], &text[..]].concat()),
    ]
    .concat();
    let tags = atom(b"meta", &[&[0; 4][..], &atom(b"ilst", &atom(b"----", &comment))].concat());
    let bare = changed(M4A_LAST, b"edts", &|inside| atom(b"free", inside));
    let tagged = changed(&bare, b"udta", &|_| atom(b"udta", &tags));
    let (clip, decoded) = (decode(file(M4A_LAST)).unwrap(), decode(file(&tagged)).unwrap());
    assert_eq!((decoded.faults, decoded.format), (vec![], clip.format));
    // The end of the last packet stays: 17 packets without the padding before the sound.
    assert_eq!(decoded.samples.len(), 16 * 1024 * 2);
    assert!(decoded.samples.starts_with(&clip.samples));
}

#[test]
fn a_file_with_fragments_announces_no_length() {
    let numbers = |numbers: &[u32]| -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_be_bytes()).collect()
    };
    // The table of contents counts the packets before the fragments only.
    let extended = atom(b"mvex", &atom(b"trex", &numbers(&[0, 1, 1, 1024, 0, 0])));
    let whole = changed(M4A, b"stco", &|inside| {
        let offset = u32::from_be_bytes(inside[8..12].try_into().unwrap());
        atom(b"stco", &numbers(&[0, 1, offset + extended.len() as u32]))
    });
    let whole = changed(&whole, b"moov", &|inside| atom(b"moov", &[inside, &extended].concat()));
    let decoded = decode(file(&whole)).unwrap();
    assert_eq!((decoded.samples.len(), decoded.format.seconds), (32_000, None));
    assert_eq!(decoded.faults, []);
    // A fragment of which a part is missing: its table, or its packets.
    let run = atom(b"trun", &numbers(&[0x201, 1, 80, 100]));
    let track = atom(b"traf", &[atom(b"tfhd", &numbers(&[0x20000, 1])), run].concat());
    let table = atom(b"moof", &[atom(b"mfhd", &numbers(&[0, 1])), track].concat());
    let packets = atom(b"mdat", &[0; 100]);
    for end in [&table[..50], &[&table[..], &packets[..60]].concat()] {
        let decoded = decode(file(&[&whole, end].concat())).unwrap();
        assert_eq!(decoded.samples.len(), 32_000);
        let faults: Vec<&str> = decoded.faults.iter().map(|fault| fault.what.as_str()).collect();
        assert_eq!(faults, ["the file ends inside its last part"]);
    }
}

#[test]
fn a_start_that_is_far_too_late_is_a_fault() {
    let list = [0, 2, 16_000_000, u32::MAX, 1 << 16, 16_000, 1024, 1 << 16];
    let list = list.map(u32::to_be_bytes).concat();
    let film = changed(M4A_LAST, b"elst", &|_| atom(b"elst", &list));
    let decoded = decode(file(&film)).unwrap();
    assert_eq!((decoded.samples.len(), decoded.faults.len()), (32_000, 1));
    assert!(decoded.faults[0].what.contains("the first 1000 s"), "{:?}", decoded.faults);
}

/// The value of all ones stands for an unknown length.
#[test]
fn an_unknown_length_of_a_track_is_not_announced() {
    let unknown = changed(M4A_LAST, b"mdhd", &|inside| {
        let mut inside = inside.to_vec();
        inside[16..20].fill(0xff);
        atom(b"mdhd", &inside)
    });
    let decoded = decode(file(&unknown)).unwrap();
    assert_eq!((decoded.faults, decoded.format.seconds), (vec![], None));
    assert_eq!(decoded.samples.len(), 32_000);
}

#[test]
fn too_many_empty_packets_end_a_recording() {
    // An excessive number of packets follows the clip's sound, all empty and at the same time.
    let extra = 1u32 << 20;
    let number =
        |bytes: &[u8], at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    let longer = changed(M4A_LAST, b"stsz", &|inside| {
        let count = number(inside, 8) + extra;
        atom(
            b"stsz",
            &[&inside[..8], &count.to_be_bytes(), &inside[12..], &vec![0; 4 * extra as usize]]
                .concat(),
        )
    });
    let longer = changed(&longer, b"stts", &|inside| {
        let entries = number(inside, 4) + 1;
        let added = [extra.to_be_bytes(), [0; 4]].concat();
        atom(b"stts", &[&inside[..4], &entries.to_be_bytes(), &inside[8..], &added].concat())
    });
    let longer = changed(&longer, b"stsc", &|_| {
        let all = [0, 1, 1, 1 << 30, 1].map(u32::to_be_bytes).concat();
        atom(b"stsc", &all)
    });
    let decoded = decode(file(&longer)).unwrap();
    let last =
        decoded.faults.iter().find(|fault| fault.what.contains("in a row cannot be decoded"));
    assert!(last.is_some(), "{:?}", decoded.faults);
    assert_eq!(decoded.samples.len(), 32000);
}
