//! The atoms of mp4 files, looked over before a reader trusts them.

use std::ops::Range;

use base::{Error, Result};

use super::bytes::Bytes;
use super::packets::PACKET_MAX;

/// The longest table of contents, enough for days of sound.
const MOOV_MAX: u64 = 64 << 20;
/// Atoms of one level.
const ATOMS_MAX: usize = 4096;
/// Levels below the table of contents.
const DEPTH_MAX: usize = 8;

/// Checks an mp4 file's table of contents, and says which of its frames are no sound: those that an encoder needs to
/// begin and to end, as ticks of the second's fraction given with them.
///
/// # Errors
/// `FailedPrecondition` for a stream whose table of contents comes last, `DataLoss` for lengths that cannot be.
pub(super) fn check(bytes: &mut Bytes) -> Result<Option<Edit>> {
    let mut at = 0;
    let mut edit = None;
    for _ in 0..ATOMS_MAX {
        let head = bytes.look(at, 16);
        let Some((name, header, length)) = atom(&head) else { break };
        match &name {
            b"moov" => {
                if length > MOOV_MAX {
                    return Err(Error::data_loss(format!(
                        "the table of contents of this mp4 file is said to have {length} bytes, which cannot be"
                    )));
                }
                let body = bytes.look(at + header, (length - header) as usize);
                if (body.len() as u64) < length - header {
                    return Err(Error::data_loss("this mp4 file ends inside its table of contents"));
                }
                let mut walk = Walk { renamed: Vec::new(), edit: Edit::default() };
                walk.level(&body, 0, 0)?;
                for place in walk.renamed {
                    bytes.rename(at + header + place as u64, *b"free");
                }
                edit = Some(walk.edit);
                if !bytes.is_file() {
                    break;
                }
            }
            b"meta" => bytes.rename(at + 4, *b"free"),
            // What reaches past the end cannot be passed over. It need not be when the table came before.
            b"mdat" if edit.is_some() && at.checked_add(length) > bytes.file_length() => {
                bytes.forward_only();
                break;
            }
            b"mdat" | b"moof" if !bytes.is_file() => {
                if edit.is_none() {
                    return Err(Error::precondition(
                        "this mp4 file has its table of contents at its end, so it cannot be decoded while it \
                         arrives; send a whole file, or write it with its table first (\"faststart\")",
                    ));
                }
                break;
            }
            _ => {}
        }
        let Some(next) = at.checked_add(length) else { break };
        at = next;
    }
    Ok(edit.filter(|edit| edit.ticks > 0 && edit.media > 0))
}

/// Name, length of header and length of an atom. One that reaches to the end of the file has the greatest length.
fn atom(head: &[u8]) -> Option<([u8; 4], u64, u64)> {
    let name = head.get(4..8)?.try_into().ok()?;
    let (header, length) = match big(head, 0)? {
        0 => (8, u64::MAX),
        1 => (16, u64::from(big(head, 8)?) << 32 | u64::from(big(head, 12)?)),
        length => (8, u64::from(length)),
    };
    (length >= header).then_some((name, header, length))
}

fn big(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

/// Which part of a track is meant to be heard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Edit {
    /// Ticks a second of the track.
    ticks: u32,
    /// Ticks a second of the whole file.
    movie: u32,
    /// Where it begins, in the track's ticks.
    media: u32,
    /// How long it is, in the file's ticks; zero if not known.
    length: u32,
}

impl Edit {
    /// The frames at `rate` that are not meant to be heard: the first ones and the last ones.
    pub(super) fn silent(&self, rate: u32) -> Vec<Range<u64>> {
        let scale = |ticks: u32, second: u32| {
            (f64::from(ticks) / f64::from(second.max(1)) * f64::from(rate)).round() as u64
        };
        let start = scale(self.media, self.ticks);
        let known = self.length > 0 && self.movie > 0;
        let end = known.then(|| start + scale(self.length, self.movie)..u64::MAX);
        std::iter::once(0..start).chain(end).collect()
    }
}

/// A walk through the table of contents.
struct Walk {
    /// Places of names of atoms that nobody has to read: tags and pictures.
    renamed: Vec<usize>,
    edit: Edit,
}

impl Walk {
    /// Looks over the atoms of `body`, which lies at `base`.
    fn level(&mut self, body: &[u8], base: usize, depth: usize) -> Result<()> {
        let mut at = 0;
        let mut count = 0;
        while body.len() - at >= 8 {
            let wrong =
                || Error::data_loss("the table of contents of this mp4 file has lengths that cannot be");
            let (name, header, length) = atom(&body[at..]).ok_or_else(wrong)?;
            let end =
                usize::try_from(length).ok().and_then(|length| at.checked_add(length)).ok_or_else(wrong)?;
            let inside = body.get(at + header as usize..end).ok_or_else(wrong)?;
            count += 1;
            if count > ATOMS_MAX || depth > DEPTH_MAX {
                return Err(wrong());
            }
            match &name {
                b"udta" | b"meta" => self.renamed.push(base + at + 4),
                b"trak" | b"mdia" | b"minf" | b"stbl" | b"edts" | b"mvex" | b"dinf" => {
                    self.level(inside, base + at + header as usize, depth + 1)?;
                }
                b"stts" | b"ctts" | b"co64" => table(inside, 4, 8)?,
                b"stsc" => table(inside, 4, 12)?,
                b"stco" => table(inside, 4, 4)?,
                b"stsz" => sizes(inside)?,
                b"mvhd" => self.edit.movie = second(inside),
                b"mdhd" if self.edit.ticks == 0 => self.edit.ticks = second(inside),
                b"elst" if self.edit.media == 0 => self.edits(inside),
                _ => {}
            }
            at = end;
        }
        Ok(())
    }

    /// Reads a list of edits, if it has one: the usual way to say what an encoder added.
    fn edits(&mut self, list: &[u8]) {
        if big(list, 0) == Some(0)
            && big(list, 4) == Some(1)
            && let Some((length, media)) = big(list, 8).zip(big(list, 12))
            && media < u32::MAX / 2
        {
            (self.edit.length, self.edit.media) = (length, media);
        }
    }
}

/// Whether a table is as long as it says.
fn table(atom: &[u8], at: usize, entry: u64) -> Result<()> {
    let count = big(atom, at).map(u64::from);
    if count.is_some_and(|count| count * entry <= atom.len() as u64) {
        return Ok(());
    }
    Err(Error::data_loss("a table of this mp4 file is shorter than it says"))
}

/// Whether the sizes of packets can be: a reader makes room for them before it reads.
fn sizes(atom: &[u8]) -> Result<()> {
    let alike = big(atom, 4).unwrap_or(0);
    let mut each = atom.get(12..).unwrap_or_default().chunks_exact(4);
    if alike == 0 {
        table(atom, 8, 4)?;
    }
    let fits = |size: u32| size as usize <= PACKET_MAX;
    if fits(alike) && (alike > 0 || each.all(|size| big(size, 0).is_some_and(fits))) {
        return Ok(());
    }
    Err(Error::data_loss("the table of packets of this mp4 file has sizes that cannot be"))
}

/// The ticks a second in a header, whose times are long or short.
fn second(header: &[u8]) -> u32 {
    let at = if header.first() == Some(&1) { 20 } else { 12 };
    big(header, at).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::Input;

    /// An atom.
    fn made(name: &[u8; 4], inside: &[u8]) -> Vec<u8> {
        let mut atom = (inside.len() as u32 + 8).to_be_bytes().to_vec();
        atom.extend_from_slice(name);
        atom.extend_from_slice(inside);
        atom
    }

    /// Checks a file whose tables have one atom.
    fn checked(table: &[u8]) -> Result<Option<Edit>> {
        let inside = ["stbl", "minf", "mdia", "trak", "moov"]
            .iter()
            .fold(table.to_vec(), |inside, name| made(name.as_bytes().try_into().unwrap(), &inside));
        let mut file = made(b"ftyp", b"M4A ");
        file.extend(inside);
        file.extend(made(b"mdat", &[0; 8]));
        check(&mut Bytes::new(Input::Stream(Box::new(std::io::Cursor::new(file)))))
    }

    #[test]
    fn tables_that_ask_for_gigabytes_are_refused() {
        let entry = |count: u32, rest: &[u8]| [&[0; 4], &count.to_be_bytes()[..], rest].concat();
        for name in [b"stts", b"ctts", b"co64", b"stsc", b"stco"] {
            assert!(checked(&made(name, &entry(1, &[0; 12]))).is_ok());
            assert!(checked(&made(name, &entry(u32::MAX, &[0; 12]))).is_err(), "{name:?}");
            assert!(checked(&made(name, b"")).is_err(), "{name:?}");
        }
        let sizes = |alike: u32, count: u32, size: u32| {
            made(
                b"stsz",
                &[&[0; 4], &alike.to_be_bytes()[..], &count.to_be_bytes(), &size.to_be_bytes()].concat(),
            )
        };
        assert!(checked(&sizes(0, 1, 1000)).is_ok());
        for table in [sizes(0, u32::MAX, 1000), sizes(0, 1, 3_000_000_000), sizes(3_000_000_000, 1, 0)] {
            assert!(checked(&table).is_err());
        }
    }

    #[test]
    fn an_atom_longer_than_what_it_lies_in_is_refused() {
        let mut long = made(b"udta", &[0; 8]);
        long[3] += 1;
        assert!(checked(&long).is_err());
        assert!(checked(&[0, 0, 0, 4, b'f', b'r', b'e', b'e']).is_err(), "shorter than its own header");
    }

    #[test]
    fn edits_say_what_is_silence() {
        let edit = Edit { ticks: 48000, movie: 1000, media: 1024, length: 500 };
        assert_eq!(edit.silent(48000), [0..1024, 25024..u64::MAX]);
        assert_eq!(edit.silent(24000), [0..512, 12512..u64::MAX]);
        assert_eq!(Edit { length: 0, ..edit }.silent(48000).len(), 1);
    }
}
