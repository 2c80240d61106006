//! The report of `bench crash`.

use base::{Error, Result};
use serde::Serialize;

use super::CrashArgs;
use super::parent::CrashFigures;
use crate::report::BenchReport;
use loadgen::machine::RunContext;
use loadgen::println;
use loadgen::report::TextTable;

/// JSON of `bench crash`.
#[derive(Debug, Serialize)]
pub(super) struct CrashReport {
    kills: u32,
    acknowledged: u64,
    lost: u64,
    corrupt: u64,
    /// Number of kills before the collection was open.
    killed_early: u32,
    /// Number of kills while a segment was being written.
    killed_while_sealing_or_merging: u32,
    /// Number of changes that were not acknowledged when the writer was killed.
    unacknowledged: u64,
    /// Number of unacknowledged changes that were found.
    unacknowledged_found: u64,
    checked: u64,
    files_written: u64,
    open_ms_max: f64,
    medium: String,
    writers: u64,
    ids: u64,
    seed: u64,
    #[serde(flatten)]
    context: RunContext,
}

impl CrashReport {
    pub(super) fn new(args: &CrashArgs, figures: CrashFigures, context: RunContext) -> CrashReport {
        CrashReport {
            kills: figures.kills,
            acknowledged: figures.acknowledged,
            lost: figures.lost,
            corrupt: figures.corrupt,
            killed_early: figures.early,
            killed_while_sealing_or_merging: figures.interrupted,
            unacknowledged: figures.in_flight,
            unacknowledged_found: figures.in_flight_found,
            checked: figures.checked,
            files_written: figures.files,
            open_ms_max: figures.open_ms_max,
            medium: format!("{:?}", args.medium).to_lowercase(),
            writers: args.writers,
            ids: args.ids,
            seed: args.seed,
            context,
        }
    }
}

impl BenchReport for CrashReport {
    fn print(&self) {
        let mut table = TextTable::new(&["crash", ""]);
        let rows = [
            ("kills", self.kills.to_string()),
            ("  before the collection was open", self.killed_early.to_string()),
            ("  while a segment was written", self.killed_while_sealing_or_merging.to_string()),
            ("changes acknowledged", self.acknowledged.to_string()),
            (
                "changes under way, of them found",
                format!("{}, {}", self.unacknowledged, self.unacknowledged_found),
            ),
            ("points compared", self.checked.to_string()),
            ("lost", self.lost.to_string()),
            ("corrupt", self.corrupt.to_string()),
            ("longest start, ms", format!("{:.1}", self.open_ms_max)),
        ];
        rows.into_iter().for_each(|(name, value)| table.row([name.into(), value]));
        println!("{table}\n{}", self.context);
    }

    fn verdict(&self) -> Result<()> {
        if self.lost + self.corrupt == 0 {
            return Ok(());
        }
        Err(Error::data_loss(format!(
            "{} acknowledged changes lost, {} corrupt",
            self.lost, self.corrupt
        )))
    }
}
