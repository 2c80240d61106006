//! The written bytes, the durable bytes, and the bytes that remain after a loss of power.

use std::collections::BTreeMap;

/// Bytes that a disk writes as a whole.
const SECTOR_BYTES: u64 = 512;

/// A change that is not durable yet.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Write(u64, Vec<u8>),
    Truncate(u64),
}

#[derive(Clone, Debug, Default)]
struct FaultFile {
    durable: Vec<u8>,
    /// Current length in bytes, with the pending changes.
    live: u64,
    pending: Vec<Change>,
}

/// All files, and the names under which they would be found.
#[derive(Debug, Default)]
pub(super) struct FileSystemModel {
    pub(super) operations: u64,
    pub(super) writes: u64,
    pub(super) persists: u64,
    pub(super) crashed: bool,
    files: Vec<FaultFile>,
    live: BTreeMap<String, u64>,
    durable: BTreeMap<String, u64>,
}

impl FileSystemModel {
    /// Adds an existing, durable file.
    pub(super) fn adopt(&mut self, name: &str, bytes: Vec<u8>) {
        self.create(name);
        if let Some(file) = self.files.last_mut() {
            file.live = bytes.len() as u64;
            file.durable = bytes;
        }
        self.persist_names();
    }

    pub(super) fn create(&mut self, name: &str) {
        self.live.insert(name.to_owned(), self.files.len() as u64);
        self.files.push(FaultFile::default());
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.live.remove(name);
    }

    /// Returns the number of the file with a name, for the calls below.
    pub(super) fn file(&self, name: &str) -> Option<u64> {
        self.live.get(name).copied()
    }

    pub(super) fn live_bytes(&self) -> u64 {
        self.live
            .values()
            .filter_map(|&file| self.files.get(file as usize))
            .map(|file| file.live)
            .sum()
    }

    pub(super) fn change(&mut self, file: u64, change: Change) {
        let Some(file) = self.files.get_mut(file as usize) else { return };
        match &change {
            Change::Write(offset, bytes) => file.live = file.live.max(offset + bytes.len() as u64),
            Change::Truncate(bytes) => file.live = *bytes,
        }
        file.pending.push(change);
    }

    pub(super) fn persist(&mut self, file: u64) {
        let Some(file) = self.files.get_mut(file as usize) else { return };
        for change in std::mem::take(&mut file.pending) {
            match change {
                Change::Write(offset, bytes) => put(&mut file.durable, offset, &bytes),
                Change::Truncate(bytes) => file.durable.truncate(bytes as usize),
            }
        }
    }

    /// Records a failed persist. Some of its bytes are saved, and the rest are forgotten.
    pub(super) fn lose(&mut self, file: u64, seed: u64) {
        let Some(file) = self.files.get_mut(file as usize) else { return };
        file.durable = torn(file, &mut Draw(seed ^ 0x5eed));
        file.pending.clear();
    }

    pub(super) fn persist_names(&mut self) {
        self.durable = self.live.clone();
    }

    /// Returns the files after a loss of power. A name that changed since names were persisted is
    /// the old or the new one.
    pub(super) fn remains(&self, seed: u64) -> Vec<(String, Vec<u8>)> {
        let mut draw = Draw(seed);
        let mut names: Vec<&String> = self.live.keys().chain(self.durable.keys()).collect();
        names.sort();
        names.dedup();
        let mut found = Vec::new();
        for name in names {
            let old = self.durable.get(name);
            let new = self.live.get(name);
            let chosen = if old == new || draw.one_in(2) { new } else { old };
            if let Some(file) = chosen.and_then(|&file| self.files.get(file as usize)) {
                found.push((name.clone(), torn(file, &mut draw)));
            }
        }
        found
    }
}

/// Returns a file's durable bytes with a random selection of the sectors of later changes.
fn torn(file: &FaultFile, draw: &mut Draw) -> Vec<u8> {
    let mut bytes = file.durable.clone();
    // The whole change, nothing of it, or each sector by itself.
    let luck = draw.next() % 3;
    let passes = move |draw: &mut Draw| luck == 0 || (luck == 1 && draw.one_in(2));
    for change in &file.pending {
        match change {
            Change::Truncate(length) if passes(draw) => bytes.truncate(*length as usize),
            Change::Truncate(_) => {}
            Change::Write(offset, written) => {
                put_sectors(&mut bytes, *offset, written, || passes(draw));
            }
        }
    }
    bytes
}

/// Writes the sectors of `written`, which begins at `offset`, for which `passes` returns true.
fn put_sectors(bytes: &mut Vec<u8>, offset: u64, written: &[u8], mut passes: impl FnMut() -> bool) {
    let end = offset + written.len() as u64;
    let mut at = offset;
    while at < end {
        let next = end.min((at / SECTOR_BYTES + 1) * SECTOR_BYTES);
        if passes() {
            put(bytes, at, &written[(at - offset) as usize..(next - offset) as usize]);
        }
        at = next;
    }
}

/// Writes bytes, with zeros in a gap before them.
fn put(file: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
    let start = offset as usize;
    let end = offset as usize + bytes.len();
    if file.len() < end {
        file.resize(end, 0);
    }
    file[start..end].copy_from_slice(bytes);
}

/// Pseudo-random numbers from a seed.
#[derive(Debug)]
pub(super) struct Draw(pub(super) u64);

impl Draw {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    pub(super) fn one_in(&mut self, count: u64) -> bool {
        self.next().is_multiple_of(count)
    }
}

/// Returns `number` after the finaliser of SplitMix64 (Steele, Lea, Flood 2014).
pub(super) fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}
