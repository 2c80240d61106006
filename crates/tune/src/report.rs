//! The result: a table for the terminal, JSON for programs, one HTML file for people.

use std::fmt::Write;

use serde::Serialize;

use super::chart::{ChartLine, chart};
use super::score::{ClientStep, ScoredTunePoint};
use super::search::{GridFound, Rung, TuneResult};
use super::space::TunePoint;
use loadgen::machine::RunContext;
use loadgen::report::escape;
use loadgen::report::{TextTable, ms, per_second};
use loadgen::stats::ratio;
use loadgen::{print, println};

/// Classes of the finalists' colours. The baseline has the last.
const CLASSES: [&str; 4] = ["s0", "s1", "s2", "s3"];

/// Content of all reports.
pub(super) struct TuneSummary<'a> {
    pub(super) model: &'a str,
    pub(super) dir: String,
    pub(super) version: u64,
    pub(super) target_ms: f64,
    pub(super) requests: &'a str,
    pub(super) grid_points: usize,
    pub(super) found: &'a TuneResult,
    pub(super) grid: Option<&'a GridFound>,
    pub(super) context: &'a RunContext,
    /// Command that repeats the search.
    pub(super) command: String,
    /// New content of the model's settings file.
    pub(super) settings: &'a str,
}

/// A point in the terms of the settings file.
#[derive(Serialize)]
struct TunePointJson {
    mode: &'static str,
    threads: usize,
    intra_op_threads: usize,
    max_batch: usize,
    max_queue_delay_ms: f64,
}

impl From<&TunePoint> for TunePointJson {
    fn from(point: &TunePoint) -> TunePointJson {
        TunePointJson {
            mode: if point.merged { "async" } else { "sync" },
            threads: point.threads,
            intra_op_threads: point.intra_op,
            max_batch: point.max_batch,
            max_queue_delay_ms: point.delay_us as f64 / 1e3,
        }
    }
}

/// One point of one rung.
#[derive(Serialize)]
struct RungRow<'a> {
    rung: &'a str,
    slice_ms: u64,
    #[serde(flatten)]
    point: TunePointJson,
    qps: f64,
    p99_ms: f64,
    clients: usize,
    within: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<&'a str>,
    steps: &'a [ClientStep],
}

/// JSON of `--json`.
#[derive(Serialize)]
pub(super) struct TuneReport<'a> {
    model: &'a str,
    version: u64,
    target_p99_ms: f64,
    found: TunePointJson,
    found_qps: f64,
    found_p99_ms: f64,
    found_clients: usize,
    within_target: bool,
    sync_qps: f64,
    sync_p99_ms: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    best_of_grid: Option<TunePointJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    best_of_grid_qps: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio: Option<f64>,
    grid_points: usize,
    tried: usize,
    seconds: f64,
    requests: &'a str,
    points: Vec<RungRow<'a>>,
    #[serde(flatten)]
    context: &'a RunContext,
}

impl<'a> TuneSummary<'a> {
    fn rungs(&self) -> impl Iterator<Item = &'a Rung> {
        self.found
            .rungs
            .iter()
            .chain(self.grid.into_iter().flat_map(|grid| [&grid.sweep, &grid.duel]))
    }

    /// Returns the point that the search chose, with its last measurement. If the full grid was
    /// measured, it is the measurement beside the grid's best point.
    fn chosen(&self) -> &'a ScoredTunePoint {
        self.grid.map_or(&self.found.best, |grid| &grid.found)
    }

    /// Returns the grid's best point, and the share of its result that the search's choice reached.
    /// It is the share of throughput if both are within the target, and of latency if neither is.
    fn verdict(&self) -> Option<(&'a ScoredTunePoint, f64)> {
        let best = self.grid?.duel.points.first()?;
        let own = self.chosen();
        let share = match (best.within, own.within) {
            (true, true) => ratio(own.best.qps, best.best.qps),
            (true, false) => 0.0,
            (false, _) => ratio(best.best.p99_ms, own.best.p99_ms),
        };
        Some((best, share))
    }

    /// Returns the content of `--json`.
    pub(super) fn json(&self) -> TuneReport<'a> {
        let chosen = self.chosen();
        let verdict = self.verdict();
        let sync = self.found.baseline.as_ref();
        let row = |rung: &'a Rung| {
            rung.points.iter().map(move |scored| RungRow {
                rung: &rung.name,
                slice_ms: rung.slice_ms,
                point: (&scored.point).into(),
                qps: scored.best.qps,
                p99_ms: scored.best.p99_ms,
                clients: scored.best.clients,
                within: scored.within,
                refused: scored.refused.as_deref(),
                steps: &scored.steps,
            })
        };
        TuneReport {
            model: self.model,
            version: self.version,
            target_p99_ms: self.target_ms,
            found: (&chosen.point).into(),
            found_qps: chosen.best.qps,
            found_p99_ms: chosen.best.p99_ms,
            found_clients: chosen.best.clients,
            within_target: chosen.within,
            sync_qps: sync.map_or(0.0, |sync| sync.best.qps),
            sync_p99_ms: sync.map_or(0.0, |sync| sync.best.p99_ms),
            best_of_grid: verdict.map(|(best, _)| (&best.point).into()),
            best_of_grid_qps: verdict.map(|(best, _)| best.best.qps),
            ratio: verdict.map(|(_, ratio)| ratio),
            grid_points: self.grid_points,
            tried: self.found.tried,
            seconds: self.found.seconds,
            requests: self.requests,
            points: self.rungs().flat_map(row).collect(),
            context: self.context,
        }
    }

    /// Prints the table for the terminal.
    pub(super) fn print(&self) {
        println!(
            "{} version {}: p99 at most {} ms, {}; {} of {} configurations tried in {:.0} s",
            self.model,
            self.version,
            self.target_ms,
            self.requests,
            self.found.tried,
            self.grid_points,
            self.found.seconds
        );
        let mut table = TextTable::new(&[
            "configuration",
            "clients",
            "answers/s",
            "p50 ms",
            "p99 ms",
            "target",
        ]);
        let mut shown: Vec<&ScoredTunePoint> = self.found.finalists.iter().collect();
        if let Some(sync) = &self.found.baseline
            && shown.iter().all(|scored| scored.point != sync.point)
        {
            shown.push(sync);
        }
        for ScoredTunePoint { point, best, within, .. } in shown {
            table.row([
                point.to_string(),
                best.clients.to_string(),
                per_second(best.qps),
                ms(best.p50_ms),
                ms(best.p99_ms),
                if *within { "met".into() } else { "NOT met".into() },
            ]);
        }
        print!("{table}");
        if let Some((best, share)) = self.verdict() {
            println!(
                "full grid, {} configurations: best {}/s ({}), found {}/s; ratio {share:.3}",
                self.grid_points,
                per_second(best.best.qps),
                best.point,
                per_second(self.chosen().best.qps)
            );
        }
        println!("{}", self.context);
    }

    /// Returns a self-contained HTML page.
    pub(super) fn html(&self) -> String {
        let lines = self.lines();
        let title = format!("{}: throughput and latency", self.model);
        let mut page = format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
             <title>{0}</title><style>{STYLE}</style></head><body>\n<h1>{0}</h1>\n",
            escape(&title)
        );
        self.headline(&mut page);
        page += "<ul class=\"legend\">";
        for line in &lines {
            let _ = write!(
                page,
                "<li><span class=\"key {}\"></span>{}</li>",
                line.class,
                escape(&line.name)
            );
        }
        page += "</ul>\n";
        page += &chart(&lines_of(&lines), self.target_ms);
        self.facts(&mut page);
        self.tables(&mut page);
        page += "</body></html>\n";
        page
    }

    fn lines(&self) -> Vec<NamedLine<'a>> {
        let finalists = self.found.finalists.iter();
        let sync = self.found.baseline.as_ref();
        let rivals =
            finalists.filter(|scored| sync.is_none_or(|sync| sync.point != scored.point)).take(3);
        let mut lines: Vec<NamedLine<'a>> = rivals
            .zip(CLASSES)
            .map(|(scored, class)| NamedLine {
                class,
                name: scored.point.to_string(),
                steps: &scored.steps,
            })
            .collect();
        if let Some(sync) = sync {
            let name = format!("{} (what a server does by default)", sync.point);
            lines.push(NamedLine { class: CLASSES[3], name, steps: &sync.steps });
        }
        lines
    }

    /// Writes the chosen point, and its comparison with the full grid.
    fn headline(&self, page: &mut String) {
        let ScoredTunePoint { point, best, within, .. } = self.chosen();
        let met = if *within { "within" } else { "NOT within" };
        let _ = writeln!(
            page,
            "<p class=\"result\"><strong>{}</strong><br>{} answers per second at {} clients, p99 {} ms: {met} \
             the target of {} ms</p>",
            escape(&point.to_string()),
            per_second(best.qps),
            best.clients,
            ms(best.p99_ms),
            self.target_ms
        );
        if let Some((best, share)) = self.verdict() {
            let _ = writeln!(
                page,
                "<p>The full grid's best, measured beside it: {} with {} answers per second. Found / best: \
                 {share:.3}.</p>",
                escape(&best.point.to_string()),
                per_second(best.best.qps)
            );
        }
    }

    fn facts(&self, page: &mut String) {
        let rows = [
            ("Model", format!("{} version {}, {}", self.model, self.version, self.dir)),
            ("Requests", self.requests.to_owned()),
            (
                "Search",
                format!(
                    "successive halving, {} of {} configurations, {:.0} s",
                    self.found.tried, self.grid_points, self.found.seconds
                ),
            ),
            ("Machine", self.context.machine.line()),
            ("Meanwhile", self.context.noise.line()),
            ("Again", self.command.clone()),
        ];
        *page += "<h2>How it was measured</h2>\n<table class=\"facts\">";
        for (name, value) in rows {
            let _ =
                write!(page, "<tr><th scope=\"row\">{name}</th><td>{}</td></tr>", escape(&value));
        }
        let _ = write!(
            page,
            "</table>\n<p>Closed loop over gRPC on 127.0.0.1, client and server on one machine. A configuration \
             counts with the most answers per second among the numbers of clients whose p99 is within the target. \
             Medians of interleaved slices, throughput levelled for the machine's drift.</p>\n\
             <h2>millpond.toml</h2>\n<pre>{}</pre>\n",
            escape(self.settings)
        );
    }

    fn tables(&self, page: &mut String) {
        let rungs: Vec<&Rung> = self.rungs().collect();
        for rung in rungs.into_iter().rev() {
            let _ = write!(
                page,
                "<details{}><summary>{}: {} configurations, slices of {} ms</summary><div class=\"wide\"><table>\
                 <tr><th>configuration</th><th>clients</th><th>answers/s</th><th>p50 ms</th><th>p99 ms</th>\
                 <th>target</th></tr>",
                if rung.name == "final" { " open" } else { "" },
                escape(&rung.name),
                rung.points.len(),
                rung.slice_ms
            );
            for ScoredTunePoint { point, best, within, refused, .. } in &rung.points {
                let target = match (refused, within) {
                    (Some(why), _) => format!("refused: {why}"),
                    (None, true) => "met".into(),
                    (None, false) => "not met".into(),
                };
                let _ = write!(
                    page,
                    "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
                    escape(&point.to_string()),
                    best.clients,
                    per_second(best.qps),
                    ms(best.p50_ms),
                    ms(best.p99_ms),
                    escape(&target)
                );
            }
            *page += "</table></div></details>\n";
        }
    }
}

/// A line of the chart with an owned name.
struct NamedLine<'a> {
    class: &'static str,
    name: String,
    steps: &'a [ClientStep],
}

fn lines_of<'a>(named: &'a [NamedLine<'a>]) -> Vec<ChartLine<'a>> {
    named
        .iter()
        .map(|line| ChartLine { class: line.class, name: &line.name, steps: line.steps })
        .collect()
}

const STYLE: &str = include_str!("report.css");

#[cfg(test)]
mod tests;
