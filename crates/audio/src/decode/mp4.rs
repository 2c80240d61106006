//! Checks the atoms of mp4 files before a reader trusts them.

use std::ops::Range;

use base::{Error, Result};

use super::bytes::{ByteWatch, InputBytes};
use super::read::PACKET_MAX;

/// Maximum bytes of a table of contents, enough for days of sound.
const MOOV_MAX: u64 = 64 << 20;
/// Maximum bytes of the list of compatible brands.
const FTYP_MAX: u64 = 4096;
/// Maximum bytes of a fragment's table of contents. A reader walks it from its beginning for every
/// packet.
const MOOF_MAX: u64 = 256 << 10;
/// Maximum bytes of all fragments' tables, which a reader keeps.
const MOOFS_MAX: u64 = MOOV_MAX;
/// Maximum bytes before the table of contents of a streamed file. They are kept until the table
/// arrives.
const BEFORE_MOOV_MAX: u64 = 16 << 20;
/// Maximum packets of a run without a field for each. A reader counts them one by one.
const RUN_MAX: u32 = 1 << 20;
/// Maximum atoms of a file. A fragment has two or three.
const FILE_ATOMS_MAX: usize = 1 << 18;
/// Maximum atoms of one level of a table of contents, and maximum hidden atoms.
const ATOMS_MAX: usize = 4096;
/// Maximum levels below the table of contents.
const DEPTH_MAX: usize = 8;
/// Maximum lookups in the tables of times. For every packet a reader begins at the first entry. The
/// limit permits an hour and a half of packets if each packet has another length than the one
/// before it.
const LOOKUPS_MAX: u64 = 1 << 36;

/// Maximum frames before the sound that a comment of iTunes can state.
const PRIMING_MAX: u64 = 16384;
/// Maximum parts of a track in its list of edits.
const PARTS_MAX: usize = 1024;
/// First field of a list of edits whose times and lengths are long.
const LONG_EDITS: u32 = 1 << 24;

/// Edits of the tracks that a reader sees, in their order.
pub(super) type Mp4Edits = Vec<Mp4Edit>;

/// Checks an mp4 file's table of contents. Returns the audible part of each track, without the
/// padding of the encoder.
///
/// # Errors
/// `FailedPrecondition` for a stream whose table of contents comes last, `DataLoss` for impossible
/// lengths.
pub(super) fn check(bytes: &mut InputBytes) -> Result<Mp4Edits> {
    let mut at = 0;
    let mut edits = None;
    let mut fragments = FragmentTables::default();
    for _ in 0..FILE_ATOMS_MAX {
        if !bytes.is_file() && at > BEFORE_MOOV_MAX {
            return Err(Error::data_loss(
                "the table of contents of this mp4 file does not come at its beginning",
            ));
        }
        let atom = AtomHeader::parse(&bytes.read_at(at, 16));
        if edits.is_some() && bytes.is_file() && is_trailer(atom, at, bytes.file_length()) {
            bytes.end_at(at);
            return Ok(edits.unwrap_or_default());
        }
        let Some(atom) = atom else { return Ok(edits.unwrap_or_default()) };
        let AtomHeader { name, length, .. } = atom;
        match &name {
            b"moov" => {
                edits = Some(check_contents(bytes, at, atom)?);
                if !bytes.is_file() {
                    let next = at.saturating_add(length);
                    bytes.watch(ByteWatch::Mp4(Mp4Watch { next, fragments }));
                    return Ok(edits.unwrap_or_default());
                }
            }
            // An atom that extends past the end cannot be skipped. It need not be skipped if the
            // table came before it.
            b"mdat" if edits.is_some() && at.checked_add(length) > bytes.file_length() => {
                bytes.forward_only();
                return Ok(cut(edits));
            }
            // Only whole tables can be read.
            b"moof" if edits.is_some() && at.checked_add(length) > bytes.file_length() => {
                bytes.end_at(at);
                return Ok(cut(edits));
            }
            b"mdat" | b"moof" if !bytes.is_file() => {
                return Err(Error::precondition(
                    "this mp4 file has its table of contents at its end, so it cannot be decoded while it arrives; \
                     send a whole file, or write it with its table first (\"faststart\")",
                ));
            }
            b"moof" => {
                let whole =
                    fragments.check_moof(&bytes.read_at(at, MOOF_MAX.min(length) as usize), length);
                if whole.is_err() && edits.is_some() {
                    // The atoms before this one are read as a streamed file that ends here.
                    bytes.forward_only();
                    bytes.watch(ByteWatch::Mp4(Mp4Watch { next: at, fragments }));
                    return Ok(edits.unwrap_or_default());
                }
                whole?;
            }
            _ => check_other_atom(bytes, at, name, length)?,
        }
        let Some(next) = at.checked_add(length) else { return Ok(edits.unwrap_or_default()) };
        at = next;
    }
    Err(Error::data_loss(format!(
        "this mp4 file has more than {FILE_ATOMS_MAX} parts, which is impossible"
    )))
}

/// Marks the tracks of a file that ends inside one of its parts.
fn cut(edits: Option<Mp4Edits>) -> Mp4Edits {
    let cut = |edit: Mp4Edit| Mp4Edit { is_cut: true, ..edit };
    edits.into_iter().flatten().map(cut).collect()
}

/// Returns true if the bytes at the offset `at` of a file are not an atom. Tags and the trailers of
/// cameras follow the last atom. `atom` is the header that these bytes would have, and `whole` is
/// the file's length, if it is known.
fn is_trailer(atom: Option<AtomHeader>, at: u64, whole: Option<u64>) -> bool {
    let Some(whole) = whole else { return false };
    match atom {
        None => at < whole,
        Some(AtomHeader { length: u64::MAX, .. }) => false,
        Some(AtomHeader { name, length, .. }) => {
            !matches!(&name, b"moov" | b"mdat" | b"moof") && at.saturating_add(length) > whole
        }
    }
}

/// Checks the table of contents at `at`.
fn check_contents(bytes: &mut InputBytes, at: u64, atom: AtomHeader) -> Result<Mp4Edits> {
    let AtomHeader { header_length, length, .. } = atom;
    if length > MOOV_MAX {
        return Err(Error::data_loss(format!(
            "the table of contents of this mp4 file has {length} bytes by its header, which is impossible"
        )));
    }
    let body = bytes.read_at(at + header_length, (length - header_length) as usize);
    if (body.len() as u64) < length - header_length {
        return Err(Error::data_loss("this mp4 file ends inside its table of contents"));
    }
    let mut walk = TableWalk::default();
    walk.check_level(&body, 0, 0)?;
    let edits = walk.hide_soundless_tracks()?;
    for offset in walk.hidden {
        bytes.rename(at + header_length + offset as u64, *b"free");
    }
    for ShortenedAtom { offset, length } in walk.shortened {
        bytes.rename(at + header_length + offset as u64, length.to_be_bytes());
    }
    Ok(edits)
}

/// Checks an atom at the offset `at` that has neither tables of contents nor samples. Renames a
/// `meta` atom, so that the demuxer skips it.
fn check_other_atom(bytes: &mut InputBytes, at: u64, name: [u8; 4], length: u64) -> Result<()> {
    match &name {
        b"ftyp" if length > FTYP_MAX => Err(impossible_lengths()),
        b"meta" if bytes.renamed() >= 2 * ATOMS_MAX => Err(impossible_lengths()),
        b"meta" => {
            bytes.rename(at + 4, *b"free");
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Total bytes of fragments' tables of contents so far.
#[derive(Default)]
struct FragmentTables(u64);

impl FragmentTables {
    /// Checks a table of `length` bytes that begins with `moof`, or its part if the file ends
    /// inside it.
    fn check_moof(&mut self, moof: &[u8], length: u64) -> Result<()> {
        self.0 = self.0.saturating_add(length);
        if length > MOOF_MAX || self.0 > MOOFS_MAX {
            return Err(Error::data_loss("the fragments of this mp4 file have impossible tables"));
        }
        moof.get(..length as usize).map_or(Ok(()), |moof| check_fragment(moof, 0))
    }
}

/// Check of the rest of a file while a reader reads it from beginning to end.
pub(super) struct Mp4Watch {
    /// Offset of the next atom.
    next: u64,
    fragments: FragmentTables,
}

impl Mp4Watch {
    /// Checks the atom at `place`, the next byte of `bytes`, if one begins there. Returns the bytes
    /// up to the next atom. They must be read before the next call.
    ///
    /// # Errors
    /// `DataLoss` for impossible lengths.
    pub(super) fn check_next(&mut self, bytes: &mut InputBytes, place: u64) -> Result<u64> {
        if place != self.next {
            return Ok(self.next.saturating_sub(place));
        }
        match AtomHeader::parse(bytes.peek(16)) {
            // A reader uses the last table of contents, and only the first was checked.
            Some(atom) if &atom.name == b"moov" => return Err(impossible_lengths()),
            Some(AtomHeader { name, length, .. }) => {
                if &name == b"moof" {
                    let moof = bytes.peek(MOOF_MAX.min(length) as usize);
                    self.fragments.check_moof(moof, length)?;
                } else {
                    check_other_atom(bytes, place, name, length)?;
                }
                self.next = place.saturating_add(length);
            }
            // The reader treats this as the end, or finds the error itself.
            None => self.next = u64::MAX,
        }
        Ok(self.next.saturating_sub(place))
    }
}

fn impossible_lengths() -> Error {
    Error::data_loss("the table of contents of this mp4 file has impossible lengths")
}

/// Checks the table of contents of a fragment: the runs of its tracks.
fn check_fragment(body: &[u8], level: usize) -> Result<()> {
    each_atom(body, &mut |name, _, inside| match (level, &name) {
        (0, b"moof") | (1, b"traf") => check_fragment(inside, level + 1),
        (2, b"trun") => run(inside),
        // Field by flag: offset, description, duration, and the size of each packet.
        (2, b"tfhd") => {
            let flags = big(inside, 0).unwrap_or(0);
            let before = 8 * (flags & 1) + 4 * (flags >> 1 & 1) + 4 * (flags >> 3 & 1);
            let has_size = flags & 0x10 != 0;
            if has_size { check_packet_size(inside, 8 + before as usize) } else { Ok(()) }
        }
        _ => Ok(()),
    })
}

/// Checks that a run of packets has its stated length, and packets of possible sizes.
fn run(atom: &[u8]) -> Result<()> {
    let (flags, count) = big(atom, 0).zip(big(atom, 4)).ok_or_else(impossible_lengths)?;
    // One field for all packets, then up to four for every packet.
    let shared = (flags & 0x1).count_ones() + (flags & 0x4).count_ones();
    let first = 8 + 4 * shared as usize;
    let each = 4 * (flags & 0xf00).count_ones() as usize;
    if each == 0 {
        return if count <= RUN_MAX { Ok(()) } else { Err(impossible_lengths()) };
    }
    let length = first as u64 + each as u64 * u64::from(count);
    if length > atom.len() as u64 {
        return Err(impossible_lengths());
    }
    if flags & 0x200 == 0 {
        return Ok(());
    }
    // The size comes after the duration.
    let size = first + 4 * (flags >> 8 & 1) as usize;
    (0..count as usize).try_for_each(|packet| check_packet_size(atom, size + packet * each))
}

/// Checks the size of a packet in the field at `at`: a reader reserves as many bytes.
fn check_packet_size(atom: &[u8], at: usize) -> Result<()> {
    match big(atom, at) {
        Some(size) if size as usize <= PACKET_MAX => Ok(()),
        Some(_) => Err(impossible_sizes()),
        None => Err(impossible_lengths()),
    }
}

fn impossible_sizes() -> Error {
    Error::data_loss("the table of packets of this mp4 file has impossible sizes")
}

/// Calls `act` with name, range and contents of each atom in `body`.
fn each_atom<'a>(
    body: &'a [u8],
    act: &mut dyn FnMut([u8; 4], Range<usize>, &'a [u8]) -> Result<()>,
) -> Result<()> {
    let mut at = 0;
    while body.len() - at >= 8 {
        let atom = AtomHeader::parse(&body[at..]).ok_or_else(impossible_lengths)?;
        let end = usize::try_from(atom.length)
            .ok()
            .and_then(|length| at.checked_add(length))
            .ok_or_else(impossible_lengths)?;
        let inside =
            body.get(at + atom.header_length as usize..end).ok_or_else(impossible_lengths)?;
        act(atom.name, at..end, inside)?;
        at = end;
    }
    Ok(())
}

/// Header of an atom, which is a part of an mp4 file.
#[derive(Clone, Copy)]
struct AtomHeader {
    name: [u8; 4],
    /// Bytes of the header.
    header_length: u64,
    /// Bytes of the whole atom. If it reaches to the end of the file, the greatest number.
    length: u64,
}

impl AtomHeader {
    /// Parses the header at the start of `bytes`. Returns `None` if the bytes end before, or if the
    /// atom is shorter than its header.
    fn parse(bytes: &[u8]) -> Option<AtomHeader> {
        let name = bytes.get(4..8)?.try_into().ok()?;
        let (header_length, length) = match big(bytes, 0)? {
            0 => (8, u64::MAX),
            1 => (16, big_long(bytes, 8)?),
            length => (8, u64::from(length)),
        };
        (length >= header_length).then_some(AtomHeader { name, header_length, length })
    }
}

fn big(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn big_long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from(big(bytes, at)?) << 32 | u64::from(big(bytes, at.checked_add(4)?)?))
}

/// An audible part of a track.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MediaPart {
    /// Start in the track's ticks.
    media: u64,
    /// Length in the file's ticks.
    length: u64,
}

/// The audible parts of a track.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Mp4Edit {
    /// Ticks per second of the track.
    ticks: u32,
    /// Ticks per second of the whole file.
    movie: u32,
    /// Silence before the parts, in the file's ticks.
    delay: u64,
    /// Start of the first part in the track's ticks.
    media: u64,
    /// Length of the first part in the file's ticks; zero if unknown.
    length: u64,
    /// Later parts.
    more: Vec<MediaPart>,
    /// Number of frames that an encoder added before the sound, for a track without a list of
    /// edits.
    priming: u64,
    /// True in a file with fragments, of which the table of contents states no length.
    pub(super) is_fragmented: bool,
    /// True in a file that ends inside one of its parts.
    pub(super) is_cut: bool,
}

impl Mp4Edit {
    /// Returns the frames of silence at `rate` before the audible part.
    pub(super) fn delay(&self, rate: u32) -> u64 {
        if self.movie == 0 { 0 } else { scaled(self.delay, self.movie, rate) }
    }

    /// Returns the inaudible frames of the track at `rate`: before, between and after its parts.
    /// Returns none if a part begins before the end of an earlier one.
    pub(super) fn silent(&self, rate: u32) -> Vec<Range<u64>> {
        if self.ticks == 0 || (self.media == 0 && self.more.is_empty()) {
            let priming = (self.priming > 0).then_some(0..self.priming);
            return priming.into_iter().collect();
        }
        let first = MediaPart { media: self.media, length: self.length };
        if self.length == 0 || self.movie == 0 {
            return std::iter::once(0..scaled(first.media, self.ticks, rate)).collect();
        }
        // Starts and lengths are rounded to ticks of two lengths.
        let rounding = scaled(1, self.movie, rate) + 1;
        let mut silent = Vec::with_capacity(self.more.len() + 2);
        let mut end = 0;
        for part in std::iter::once(&first).chain(&self.more) {
            let start = scaled(part.media, self.ticks, rate);
            if start.saturating_add(rounding) < end {
                return Vec::new();
            }
            let start = start.max(end);
            silent.push(end..start);
            end = start.saturating_add(scaled(part.length, self.movie, rate));
        }
        silent.push(end..u64::MAX);
        silent
    }
}

/// Converts `ticks` to frames at `rate`. A second has `second` ticks, at least one.
fn scaled(ticks: u64, second: u32, rate: u32) -> u64 {
    (ticks as f64 / f64::from(second.max(1)) * f64::from(rate)).round() as u64
}

/// A walk through the table of contents.
#[derive(Default)]
struct TableWalk {
    /// Offsets of the names of atoms that no reader needs: tags and images.
    hidden: Vec<usize>,
    /// Atoms that end earlier for a reader.
    shortened: Vec<ShortenedAtom>,
    /// Ticks per second of the whole file.
    movie: u32,
    /// True for a file with fragments, whose tables count all tracks.
    fragmented: bool,
    /// Number of frames before the sound by a comment of iTunes.
    priming: u64,
    tracks: Vec<Mp4Track>,
}

/// An atom that ends earlier for a reader than in the file.
struct ShortenedAtom {
    /// Offset of the atom, which begins with its length.
    offset: usize,
    /// Length for the reader in bytes.
    length: u32,
}

/// An atom in the table of contents.
struct TableAtom<'a> {
    name: [u8; 4],
    /// Offset in the table of contents.
    offset: usize,
    contents: &'a [u8],
    /// Offset of `contents` in the table of contents.
    contents_offset: usize,
    /// Number of atoms around this one.
    depth: usize,
}

impl TableAtom<'_> {
    /// Returns the offset of the name in the table of contents.
    fn name_offset(&self) -> usize {
        self.offset + 4
    }
}

/// Facts about one track.
#[derive(Default)]
struct Mp4Track {
    /// Offset of its name.
    name: usize,
    /// True for sound.
    sound: bool,
    edit: Mp4Edit,
    /// True if it has a list of edits, of any form.
    has_edits: bool,
    /// Number of entries of its table of times.
    entries: u64,
    /// Number of packets with times.
    packets: u64,
}

impl TableWalk {
    /// Checks the atoms in `body`, which lies at the offset `base` of the table of contents.
    fn check_level(&mut self, body: &[u8], base: usize, depth: usize) -> Result<()> {
        if depth > DEPTH_MAX {
            return Err(impossible_lengths());
        }
        let mut count = 0;
        each_atom(body, &mut |name, range, contents| {
            count += 1;
            if count > ATOMS_MAX {
                return Err(impossible_lengths());
            }
            let contents_offset = base + range.end - contents.len();
            let offset = base + range.start;
            self.check_atom(&TableAtom { name, offset, contents, contents_offset, depth })
        })
    }

    /// Checks an atom and the atoms in it.
    fn check_atom(&mut self, atom: &TableAtom<'_>) -> Result<()> {
        let contents = atom.contents;
        match &atom.name {
            b"udta" | b"meta" => {
                if atom.depth == 0 {
                    self.priming = itunes_priming(contents).unwrap_or(self.priming);
                }
                return self.hide(atom.name_offset());
            }
            b"trak" if atom.depth == 0 => {
                self.tracks.push(Mp4Track { name: atom.name_offset(), ..Mp4Track::default() });
                return self.check_level(contents, atom.contents_offset, atom.depth + 1);
            }
            b"mdia" | b"minf" | b"stbl" | b"edts" | b"dinf" => {
                return self.check_level(contents, atom.contents_offset, atom.depth + 1);
            }
            b"mvhd" => self.movie = second(contents),
            b"mvex" => {
                self.fragmented = true;
                // The size of each packet of a track, if its fragments do not state it.
                return each_atom(contents, &mut |name, _, contents| {
                    if &name == b"trex" { check_packet_size(contents, 16) } else { Ok(()) }
                });
            }
            b"stsd" => {
                if let Some(ShortenedAtom { offset, length }) = wrapped_alac(contents) {
                    let offset = atom.contents_offset + offset;
                    self.shortened.push(ShortenedAtom { offset, length });
                }
                if self.shortened.len() > ATOMS_MAX {
                    return Err(impossible_lengths());
                }
            }
            b"ctts" | b"co64" => return check_table(contents, 4, 8),
            b"stsc" => return check_table(contents, 4, 12),
            b"stco" => return check_table(contents, 4, 4),
            b"stsz" => return check_packet_sizes(contents),
            // Times and lengths are longer in the second form.
            b"elst" => {
                check_table(contents, 4, if contents.first() == Some(&1) { 20 } else { 12 })?
            }
            b"stts" => check_table(contents, 4, 8)?,
            _ => {}
        }
        if let Some(track) = self.tracks.last_mut() {
            track.take(atom.name, atom.depth, contents);
        }
        Ok(())
    }

    /// Hides the atom whose name is at `offset`.
    fn hide(&mut self, offset: usize) -> Result<()> {
        self.hidden.push(offset);
        if self.hidden.len() > ATOMS_MAX { Err(impossible_lengths()) } else { Ok(()) }
    }

    /// Hides the tracks without sound if another track has sound, because a reader would read them
    /// too. Returns the edits of the tracks that are not hidden.
    fn hide_soundless_tracks(&mut self) -> Result<Mp4Edits> {
        let only = !self.fragmented && self.tracks.iter().any(|track| track.sound);
        let (seen, hidden): (Vec<Mp4Track>, Vec<Mp4Track>) =
            std::mem::take(&mut self.tracks).into_iter().partition(|track| track.sound || !only);
        for track in hidden {
            self.hide(track.name)?;
        }
        let sum = |count: fn(&Mp4Track) -> u64| seen.iter().map(count).fold(0, u64::saturating_add);
        if sum(|track| track.entries).saturating_mul(sum(|track| track.packets)) > LOOKUPS_MAX {
            return Err(Error::data_loss(
                "the table of times of this mp4 file is longer than can be read",
            ));
        }
        // The comment is about the only sound of the file.
        let priming = if seen.len() == 1 { self.priming } else { 0 };
        let edit = |track: Mp4Track| {
            let priming = if track.has_edits { 0 } else { priming };
            let movie = self.movie;
            let is_fragmented = self.fragmented;
            Mp4Edit { movie, priming, is_fragmented, ..track.edit }
        };
        Ok(seen.into_iter().map(edit).collect())
    }
}

/// Finds the ALAC description in an atom `wave`, as in MOV films. A reader expects it beside that
/// atom. Returns the offset of `wave` in `list`, and the length that ends `wave` before the
/// description. `list` is the contents of `stsd`. Returns `None` if a description also lies beside
/// `wave`, because the reader refuses a second one.
fn wrapped_alac(list: &[u8]) -> Option<ShortenedAtom> {
    /// Offset of the first entry: after the version and the number of entries.
    const ENTRY: usize = 8;
    const HEADER: usize = 8;
    let entry = AtomHeader::parse(list.get(ENTRY..)?)?;
    if &entry.name != b"alac" || entry.header_length != HEADER as u64 {
        return None;
    }
    let end = ENTRY.checked_add(usize::try_from(entry.length).ok()?)?;
    // The version of an entry decides how many fields come before its atoms.
    let fields = match list.get(ENTRY + HEADER + 8..)?.first_chunk::<2>()? {
        [0, 0] => 28,
        [0, 1] => 44,
        [0, 2] => 64,
        _ => return None,
    };
    let start = ENTRY + HEADER + fields;
    let parts = list.get(start..end)?;
    if find_atom(parts, b"alac").is_some() {
        return None;
    }
    let (wave, inside) = find_atom(parts, b"wave")?;
    let (description, _) = find_atom(inside, b"alac")?;
    let is_short = wave.len() == HEADER + inside.len();
    let length = (HEADER + description.start) as u32;
    is_short.then_some(ShortenedAtom { offset: start + wave.start, length })
}

/// Returns the range and the contents of the first atom with this name in `body`.
fn find_atom<'a>(body: &'a [u8], name: &[u8; 4]) -> Option<(Range<usize>, &'a [u8])> {
    let mut at = 0;
    loop {
        let atom = AtomHeader::parse(body.get(at..)?)?;
        let end = at.checked_add(usize::try_from(atom.length).ok()?)?;
        let inside = body.get(at + atom.header_length as usize..end)?;
        if &atom.name == name {
            return Some((at..end, inside));
        }
        at = end;
    }
}

/// Returns the number of frames that iTunes has added before the sound. It is the second of the
/// hexadecimal numbers in the comment `iTunSMPB` in `tags`. iTunes writes no list of edits.
fn itunes_priming(tags: &[u8]) -> Option<u64> {
    let find = |bytes: &[u8], name: &[u8]| bytes.windows(name.len()).position(|at| at == name);
    let rest = tags.get(find(tags, b"iTunSMPB")?..)?;
    // The type of the value and its language come before the text.
    let text = rest.get(find(rest, b"data")? + 12..)?;
    let text = std::str::from_utf8(text.get(..20)?).ok()?;
    let priming = text.split_ascii_whitespace().nth(1)?;
    u64::from_str_radix(priming, 16).ok().filter(|frames| *frames <= PRIMING_MAX)
}

impl Mp4Track {
    /// Handles an atom of the track, `depth` levels below the table of contents.
    fn take(&mut self, name: [u8; 4], depth: usize, inside: &[u8]) {
        match &name {
            b"mdhd" if self.edit.ticks == 0 => self.edit.ticks = second(inside),
            b"elst" if self.edit.media == 0 => {
                self.has_edits = true;
                self.edits(inside);
            }
            // Another one may lie deeper, for the data.
            b"hdlr" if depth == 2 => self.sound = inside.get(8..12) == Some(b"soun"),
            b"stts" => {
                let entries = inside.get(8..).unwrap_or_default().chunks_exact(8);
                let entries = entries.take(big(inside, 4).unwrap_or(0) as usize);
                self.entries += entries.len() as u64;
                self.packets +=
                    entries.map(|entry| u64::from(big(entry, 0).unwrap_or(0))).sum::<u64>();
            }
            _ => {}
        }
    }

    /// Reads a list of edits in its usual form: silence before the sound, if any, then parts of the
    /// track, then silence, if any. Other lists have no effect.
    fn edits(&mut self, list: &[u8]) {
        let is_long = match big(list, 0) {
            Some(0) => false,
            Some(LONG_EDITS) => true,
            _ => return,
        };
        let count = big(list, 4).unwrap_or(0) as usize;
        let entries = list.get(8..).unwrap_or_default().chunks_exact(if is_long { 20 } else { 12 });
        let mut delay = 0_u64;
        let mut parts = Vec::new();
        let mut has_ended = false;
        for entry in entries.take(count) {
            let Some(EditEntry { length, start }) = EditEntry::read(entry, is_long) else {
                return;
            };
            match u64::try_from(start) {
                Ok(media) if !has_ended && parts.len() < PARTS_MAX => {
                    parts.push(MediaPart { media, length });
                }
                Err(_) if start == -1 && parts.is_empty() => delay = delay.saturating_add(length),
                Err(_) if start == -1 => has_ended = true,
                _ => return,
            }
        }
        let mut parts = parts.into_iter();
        if let Some(MediaPart { media, length }) = parts.next() {
            self.edit.delay = delay;
            self.edit.media = media;
            self.edit.length = length;
            self.edit.more = parts.collect();
        }
    }
}

/// Entry of a list of edits.
struct EditEntry {
    /// Length in ticks of the movie.
    length: u64,
    /// Start in ticks of the track, or -1 for silence.
    start: i64,
}

impl EditEntry {
    /// Reads an entry, whose numbers have 64 bits if `is_long` and 32 bits otherwise.
    fn read(entry: &[u8], is_long: bool) -> Option<EditEntry> {
        if is_long {
            Some(EditEntry { length: big_long(entry, 0)?, start: big_long(entry, 8)? as i64 })
        } else {
            let start = i64::from(big(entry, 4)? as i32);
            Some(EditEntry { length: u64::from(big(entry, 0)?), start })
        }
    }
}

/// Checks that a table has its stated length.
fn check_table(atom: &[u8], at: usize, entry: u64) -> Result<()> {
    let count = big(atom, at).map(u64::from);
    if count.is_some_and(|count| count * entry <= atom.len() as u64) {
        return Ok(());
    }
    Err(Error::data_loss("a table of this mp4 file is shorter than it says"))
}

/// Checks the sizes of packets: a reader reserves memory for them before it reads.
fn check_packet_sizes(atom: &[u8]) -> Result<()> {
    let shared = big(atom, 4).unwrap_or(0);
    let mut each = atom.get(12..).unwrap_or_default().chunks_exact(4);
    if shared == 0 {
        check_table(atom, 8, 4)?;
    }
    let fits = |size: u32| size as usize <= PACKET_MAX;
    if fits(shared) && (shared > 0 || each.all(|size| big(size, 0).is_some_and(fits))) {
        return Ok(());
    }
    Err(impossible_sizes())
}

/// Returns the ticks per second of a header, whose times are long or short.
fn second(header: &[u8]) -> u32 {
    let at = if header.first() == Some(&1) { 20 } else { 12 };
    big(header, at).unwrap_or(0)
}

#[cfg(test)]
mod tests;
