//! Mp4 files with changed tables.

use super::{M4A_LAST, decode, file};

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
            b"moov" | b"trak" | b"mdia" | b"minf" | b"stbl" => {
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
