//! The writer process, which runs until it is killed.

use std::io::Write;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use base::{Error, ErrorKind, Result};
use search::points::PointId;
use search::registry::NamedCollection;

use super::CrashArgs;
use super::content::{Script, new_point, point};

/// Size of a report: the thread, then the number of its change.
pub(super) const REPORT_BYTES: usize = 9;
/// Thread number in the report that the collection is open.
pub(super) const READY: u8 = 0xff;
/// Wait before a change that found no memory is tried again.
const NO_ROOM: Duration = Duration::from_millis(20);

/// Opens the collection and writes to it until the process is killed.
pub(super) fn run(args: &CrashArgs, directory: &Path) -> Result<()> {
    let collection = args.open(directory)?;
    let reports = Mutex::new(std::io::stdout());
    send_report(&reports, READY, 0)?;
    let script = Script { seed: args.seed, writers: args.writers, ids: args.ids };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..args.writers)
            .map(|writer| {
                let from = args.from.get(writer as usize).copied().unwrap_or(0);
                let named = &collection.named;
                let reports = &reports;
                scope.spawn(move || write(named, script, writer, from, reports))
            })
            .collect();
        let ended = threads.into_iter().map(|thread| {
            thread
                .join()
                .unwrap_or_else(|_| Err(Error::internal("a writing thread ended in a panic")))
        });
        ended.collect::<Result<Vec<()>>>().map(drop)
    })
}

/// Makes the changes of one writing thread, and reports each of them once it is acknowledged.
fn write(
    named: &NamedCollection,
    script: Script,
    writer: u64,
    from: u64,
    reports: &Mutex<std::io::Stdout>,
) -> Result<()> {
    for number in from.. {
        let change = script.change(writer, number);
        let point = change.version.map(|version| point(script.seed, change.id, version));
        let make = || match &point {
            Some(point) => named.upsert(&[new_point(point)]),
            None => named.delete(&[PointId::Number(change.id)]).map(drop),
        };
        loop {
            match make() {
                Ok(()) => break,
                Err(error) if error.kind() == ErrorKind::ResourceExhausted => {
                    std::thread::sleep(NO_ROOM)
                }
                Err(error) => {
                    return Err(error.context(format!("change {number} of thread {writer}")));
                }
            }
        }
        send_report(reports, writer as u8, number)?;
    }
    Ok(())
}

/// Reports to the parent that the change `number` of the thread `writer` was acknowledged.
fn send_report(reports: &Mutex<std::io::Stdout>, writer: u8, number: u64) -> Result<()> {
    let mut report = [writer; REPORT_BYTES];
    report[1..].copy_from_slice(&number.to_le_bytes());
    let mut out = reports.lock().unwrap_or_else(PoisonError::into_inner);
    // One flush a report: buffered bytes are lost if this process is killed.
    let written = out.write_all(&report).and_then(|()| out.flush());
    written.map_err(|error| {
        Error::cancelled("the parent does not read reports any more").caused_by(error)
    })
}
