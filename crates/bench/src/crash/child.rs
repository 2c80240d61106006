//! The writer, until it is killed.

use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base::{Error, ErrorKind, Result};
use search::collection::Collection;
use search::ingest::Op;
use search::rerank::SharedCaches;

use super::content::{Script, point, stored};
use super::{CrashArgs, content};

/// Bytes of a report: the thread, then the number of its change.
pub(super) const REPORT_BYTES: usize = 9;
/// What comes before the first report: the collection is open.
pub(super) const READY: u8 = 0xff;
/// How long a thread waits for room before it tries again.
const NO_ROOM: Duration = Duration::from_millis(20);

/// Opens the collection and writes to it for ever.
pub(super) fn run(args: &CrashArgs, directory: PathBuf) -> Result<()> {
    let shared = Arc::new(SharedCaches::new(0, 512));
    let collection = Collection::open(args.medium(directory)?, args.options(true), shared)?;
    let reports = Mutex::new(std::io::stdout());
    tell(&reports, READY, 0)?;
    let script = Script { seed: args.seed, writers: args.writers, ids: args.ids };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..args.writers)
            .map(|writer| {
                let from = args.from.get(writer as usize).copied().unwrap_or(0);
                let (collection, reports) = (&collection, &reports);
                scope.spawn(move || write(collection, script, writer, from, reports))
            })
            .collect();
        let ended = threads.into_iter().map(|thread| {
            thread.join().unwrap_or_else(|_| Err(Error::internal("a writing thread ended in a panic")))
        });
        ended.collect::<Result<Vec<()>>>().map(drop)
    })
}

fn write(
    collection: &Collection,
    script: Script,
    writer: u64,
    from: u64,
    reports: &Mutex<std::io::Stdout>,
) -> Result<()> {
    for number in from.. {
        let content::ScriptedChange { id, version } = script.change(writer, number);
        let new = version.map(|version| stored(script.seed, id, version));
        let op = new.as_ref().map_or(Op::Delete(id), |new| Op::Upsert(point(new)));
        loop {
            match collection.write(&[op]) {
                Ok(()) => break,
                Err(error) if error.kind() == ErrorKind::ResourceExhausted => std::thread::sleep(NO_ROOM),
                Err(error) => return Err(error.context(format!("change {number} of thread {writer}"))),
            }
        }
        tell(reports, writer as u8, number)?;
    }
    Ok(())
}

fn tell(reports: &Mutex<std::io::Stdout>, writer: u8, number: u64) -> Result<()> {
    let mut report = [writer; REPORT_BYTES];
    report[1..].copy_from_slice(&number.to_le_bytes());
    let mut out = reports.lock().unwrap_or_else(PoisonError::into_inner);
    // One flush a report: what is only in this process's memory dies with it.
    let told = out.write_all(&report).and_then(|()| out.flush());
    told.map_err(|error| Error::cancelled(format!("nobody listens any more: {error}")))
}
