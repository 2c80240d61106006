//! The report of `bench backup`.

use backup::BackupReport;
use base::units::format_bytes;
use base::{Error, Result};
use serde::Serialize;

use super::BackupBenchArgs;
use super::kills::KillFigures;
use super::latency::LatencyFigures;
use crate::report::{BenchReport, Goal};
use loadgen::machine::RunContext;
use loadgen::println;
use loadgen::report::TextTable;

/// Number of searches whose answers are compared after the restore.
pub(super) const QUERIES: u64 = 50;
/// Exclusive limit of the bytes that the second backup stores, as a share of those of the first.
const SHARE_MAX: f64 = 0.03;
/// Maximum p99 of searches during a backup, over the p99 without one.
const RATIO_MAX: f64 = 1.25;

/// Figures of the large collection.
pub(super) struct BackupFigures {
    pub(super) segments: usize,
    pub(super) first: BackupReport,
    pub(super) second: BackupReport,
    pub(super) latency: LatencyFigures,
    pub(super) restored: RestoreFigures,
}

/// Figures of the restored collection.
#[derive(Clone, Debug, Serialize)]
pub(super) struct RestoreFigures {
    pub(super) points: u64,
    pub(super) seconds: f64,
    /// Number of searches of [`QUERIES`] with the same answer as in the original.
    pub(super) same_answers: u64,
}

/// JSON of `bench backup`.
#[derive(Debug, Serialize)]
pub(super) struct BackupBenchReport {
    rows: u64,
    dims: usize,
    segments: usize,
    first_bytes: u64,
    second_bytes: u64,
    second_share: f64,
    backup_s: f64,
    second_s: f64,
    restore_s: f64,
    restored_points: u64,
    same_answers: u64,
    p99_ratio: f64,
    latency: LatencyFigures,
    kills: u32,
    usable: u32,
    kill_problems: Vec<String>,
    goals: Vec<Goal>,
    #[serde(flatten)]
    context: RunContext,
}

impl BackupBenchReport {
    pub(super) fn new(
        args: &BackupBenchArgs,
        figures: BackupFigures,
        kills: KillFigures,
        context: RunContext,
    ) -> BackupBenchReport {
        let BackupFigures { segments, first, second, latency, restored } = figures;
        let share = second.uploaded_bytes as f64 / first.uploaded_bytes.max(1) as f64;
        let ratio = latency.p99_ratio;
        let goals = vec![
            Goal::new("share of the second backup below 0.03", share, share < SHARE_MAX),
            Goal::new("p99 of searches at most 1.25 times", ratio, ratio <= RATIO_MAX),
            Goal::new(
                "kills with usable backups",
                kills.usable.into(),
                kills.usable == kills.kills,
            ),
        ];
        BackupBenchReport {
            rows: args.rows,
            dims: args.dims,
            segments,
            first_bytes: first.uploaded_bytes,
            second_bytes: second.uploaded_bytes,
            second_share: share,
            backup_s: first.seconds,
            second_s: second.seconds,
            restore_s: restored.seconds,
            restored_points: restored.points,
            same_answers: restored.same_answers,
            p99_ratio: ratio,
            latency,
            kills: kills.kills,
            usable: kills.usable,
            kill_problems: kills.problems,
            goals,
            context,
        }
    }
}

impl BenchReport for BackupBenchReport {
    fn print(&self) {
        let mut table = TextTable::new(&["backup", ""]);
        let LatencyFigures { control_p99_ms, backup_p99_ms, .. } = self.latency;
        let rows = [
            ("points", self.rows.to_string()),
            (
                "first backup",
                format!("{} in {:.1} s", format_bytes(self.first_bytes), self.backup_s),
            ),
            (
                "second backup",
                format!("{} in {:.1} s", format_bytes(self.second_bytes), self.second_s),
            ),
            ("restore", format!("{} points in {:.1} s", self.restored_points, self.restore_s)),
            ("same answers", format!("{} of {QUERIES}", self.same_answers)),
            ("p99 without a backup", format!("{control_p99_ms:.2} ms")),
            ("p99 beside a backup", format!("{backup_p99_ms:.2} ms")),
            ("kills, of them usable", format!("{}, {}", self.kills, self.usable)),
        ];
        for (name, value) in rows {
            table.row([name.to_owned(), value]);
        }
        println!("{table}");
        self.goals.iter().for_each(|goal| println!("{goal}"));
        self.kill_problems.iter().for_each(|problem| println!("{problem}"));
        println!("{}", self.context.machine.line());
        println!("{}", self.context.noise.line());
    }

    fn verdict(&self) -> Result<()> {
        if self.usable < self.kills {
            return Err(Error::data_loss(
                "a kill left a damaged backup or collection, or a program ended on its own",
            ));
        }
        if self.restored_points >= self.rows && self.same_answers == QUERIES {
            Ok(())
        } else {
            Err(Error::data_loss("the restored collection differs from the original"))
        }
    }
}
