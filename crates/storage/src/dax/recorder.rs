//! Possible contents of memory after a loss of power, by the stores, flushes and fences before it.
//!
//! The model is that of persistent memory on x86 (Intel SDM, volume 1, chapter on persistent
//! memory; also "Yat", USENIX ATC 2014). The unit that reaches memory is a line of 64 bytes, and
//! stores of an aligned word of 8 bytes are whole in it. A line may reach memory at any time,
//! flushed or not, with its contents at that moment. A flushed line is in memory after the next
//! fence, at least with the contents it had when flushed. So each line, independently of the
//! others, has any of the states since it was last certain.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::lines::{LINE_BYTES, WORD_BYTES, Watch};

/// One step of the processor, or a note of the test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreEvent {
    /// Bytes were stored at an offset of a file.
    Stored(u64, u64, Vec<u8>),
    /// The flush of bytes has begun: file, offset, number of bytes.
    Flushed(u64, u64, usize),
    /// All earlier flushes are done.
    Fenced(u64),
    /// The test noted a promise of durability.
    Noted(u64),
}

/// Records every step.
#[derive(Debug, Default)]
pub struct Recorder {
    events: Mutex<Vec<StoreEvent>>,
}

impl Recorder {
    /// Notes the moment at which a caller got a promise.
    pub fn note(&self, what: u64) {
        self.events().push(StoreEvent::Noted(what));
    }

    /// Takes the steps so far.
    pub fn take(&self) -> Vec<StoreEvent> {
        std::mem::take(&mut self.events())
    }

    fn events(&self) -> MutexGuard<'_, Vec<StoreEvent>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watch for Recorder {
    fn stored(&self, file: u64, offset: u64, bytes: &[u8]) {
        self.events().push(StoreEvent::Stored(file, offset, bytes.to_vec()));
    }

    fn flushed(&self, file: u64, offset: u64, bytes: usize) {
        self.events().push(StoreEvent::Flushed(file, offset, bytes));
    }

    fn fenced(&self, file: u64) {
        self.events().push(StoreEvent::Fenced(file));
    }
}

/// States of a line since it was last certain. The first is the certain one.
#[derive(Clone)]
struct LineStates {
    states: Vec<[u8; LINE_BYTES]>,
    /// Index of the state at the last flush, which the next fence makes certain.
    flushed: Option<usize>,
}

impl LineStates {
    fn now(&self) -> [u8; LINE_BYTES] {
        self.states.last().copied().unwrap_or([0; LINE_BYTES])
    }
}

/// Returns possible contents of a file of zeros after these events and a loss of power. They are
/// every combination of states of its lines if there are at most `images_max`. Otherwise it returns
/// that many. They are the oldest and the newest state of all lines, and others drawn by `seed`.
/// Words of one store land in order or in reverse, which is less than all orders. The events are of
/// one file, `bytes` long.
pub fn crash_images(
    events: &[StoreEvent],
    bytes: usize,
    images_max: usize,
    seed: u64,
) -> Vec<Vec<u8>> {
    let lines = states_of(events);
    let choices: Vec<(usize, &LineStates)> =
        lines.iter().map(|(&line, states)| (line, states)).collect();
    let total = choices
        .iter()
        .try_fold(1_usize, |product, (_, line)| product.checked_mul(line.states.len()));
    let mut random = seed | 1;
    let count = total.unwrap_or(usize::MAX).min(images_max);
    let exhaustive = total == Some(count);
    (0..count)
        .map(|image| {
            let mut memory = vec![0; bytes];
            let mut rest = image;
            for (line, states) in &choices {
                let states = &states.states;
                let pick = match (exhaustive, image) {
                    (true, _) => {
                        let pick = rest % states.len();
                        rest /= states.len();
                        pick
                    }
                    (false, 0) => 0,
                    (false, 1) => states.len() - 1,
                    (false, _) => (next(&mut random) % states.len() as u64) as usize,
                };
                let start = line * LINE_BYTES;
                let end = (start + LINE_BYTES).min(bytes);
                if start < end {
                    memory[start..end].copy_from_slice(&states[pick][..end - start]);
                }
            }
            memory
        })
        .collect()
}

/// Returns the next number of xorshift (Marsaglia 2003).
fn next(random: &mut u64) -> u64 {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    *random
}

/// Returns the possible states of each line after these events, by the number of the line.
fn states_of(events: &[StoreEvent]) -> BTreeMap<usize, LineStates> {
    let mut lines: BTreeMap<usize, LineStates> = BTreeMap::new();
    for event in events {
        match event {
            StoreEvent::Stored(_, offset, bytes) => store(&mut lines, *offset as usize, bytes),
            StoreEvent::Flushed(_, offset, bytes) => {
                let offset = *offset as usize;
                for line in offset / LINE_BYTES..(offset + bytes).div_ceil(LINE_BYTES) {
                    if let Some(line) = lines.get_mut(&line) {
                        line.flushed = Some(line.states.len() - 1);
                    }
                }
            }
            StoreEvent::Fenced(_) => {
                for line in lines.values_mut() {
                    if let Some(sure) = line.flushed.take() {
                        line.states.drain(..sure);
                    }
                }
            }
            StoreEvent::Noted(_) => {}
        }
    }
    lines
}

/// Adds the states that the lines of one store pass through. The words become visible one after the
/// other from the front, or from the back.
fn store(lines: &mut BTreeMap<usize, LineStates>, offset: usize, bytes: &[u8]) {
    let end = offset + bytes.len();
    for number in offset / LINE_BYTES..end.div_ceil(LINE_BYTES) {
        let line = lines
            .entry(number)
            .or_insert_with(|| LineStates { states: vec![[0; LINE_BYTES]], flushed: None });
        let before = line.now();
        let first = number * LINE_BYTES;
        let mut after = before;
        let from = offset.max(first);
        let to = end.min(first + LINE_BYTES);
        after[from - first..to - first].copy_from_slice(&bytes[from - offset..to - offset]);
        let words: Vec<usize> = (0..LINE_BYTES)
            .step_by(WORD_BYTES)
            .filter(|&word| before[word..word + WORD_BYTES] != after[word..word + WORD_BYTES])
            .collect();
        let mixed = |landed: &[usize]| {
            let mut state = before;
            for &word in landed {
                state[word..word + WORD_BYTES].copy_from_slice(&after[word..word + WORD_BYTES]);
            }
            state
        };
        for count in 1..words.len() {
            line.states.push(mixed(&words[..count]));
            line.states.push(mixed(&words[count..]));
        }
        line.states.push(after);
    }
}
