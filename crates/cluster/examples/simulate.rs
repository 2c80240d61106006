//! Runs many worlds of the simulations and prints their figures as JSON.
//!
//! `cargo run --release -p millpond-cluster --example simulate -- [--seeds 10000] [--first 0]
//! [--world NAME]`
//!
//! Exits with 1 if a world has a violation or too little happens in the worlds of a kind, or if a
//! planted mistake is not found. The first violation of each kind is printed with its seed, which
//! repeats it.

extern crate millpond_cluster as cluster;

#[path = "../tests/worlds/mod.rs"]
mod worlds;

use std::ops::Range;
use std::process::ExitCode;

use worlds::{KINDS, WorldKind, WorldTotals, found_within};

/// Seeds between two lines about the progress.
const SEEDS_BETWEEN: u64 = 5_000;

/// Arguments of the program.
struct Arguments {
    seeds: u64,
    first: u64,
    world: Option<String>,
}

impl Arguments {
    fn read(mut words: impl Iterator<Item = String>) -> Result<Arguments, String> {
        let mut arguments = Arguments { seeds: 10_000, first: 0, world: None };
        while let Some(name) = words.next() {
            let value = words.next().ok_or_else(|| format!("{name} has no value"))?;
            let number = || value.parse::<u64>().map_err(|_| format!("{name} {value}: no number"));
            match name.as_str() {
                "--seeds" => arguments.seeds = number()?,
                "--first" => arguments.first = number()?,
                "--world" if KINDS.iter().any(|kind| kind.name == value) => {
                    arguments.world = Some(value);
                }
                "--world" => return Err(format!("--world {value}: there is no such kind")),
                _ => return Err(format!("{name}: use --seeds, --first and --world")),
            }
        }
        Ok(arguments)
    }
}

/// Runs the worlds of a kind. Prints the progress and the first violation.
fn run(kind: &WorldKind, arguments: &Arguments) -> WorldTotals {
    let mut totals = WorldTotals::default();
    let end = arguments.first.saturating_add(arguments.seeds);
    for first in (arguments.first..end).step_by(SEEDS_BETWEEN as usize) {
        let is_well = totals.first.is_none();
        totals.add(run_parallel(kind, &(first..end.min(first + SEEDS_BETWEEN))));
        if is_well && let Some(why) = &totals.first {
            eprintln!("VIOLATION: {why}");
        }
        eprintln!("{}: {} seeds, {} violations", kind.name, totals.seeds, totals.violations);
    }
    totals
}

/// Runs worlds on all processors.
fn run_parallel(kind: &WorldKind, seeds: &Range<u64>) -> WorldTotals {
    let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get() as u64);
    let bound = |at: u64| seeds.start + (seeds.end - seeds.start) * at / threads;
    let ranges = (0..threads).map(|at| bound(at)..bound(at + 1));
    std::thread::scope(|scope| {
        let parts: Vec<_> =
            ranges.map(|range| scope.spawn(|| WorldTotals::of(kind, range))).collect();
        let mut totals = WorldTotals::default();
        for part in parts {
            if let Ok(part) = part.join() {
                totals.add(part);
            }
        }
        totals
    })
}

fn main() -> ExitCode {
    let arguments = match Arguments::read(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    let kinds = KINDS
        .iter()
        .filter(|kind| arguments.world.as_deref().is_none_or(|world| world == kind.name));
    let mut report = Report::default();
    for kind in kinds {
        report.add(kind, &run(kind, &arguments));
    }
    println!("{}", report.json(arguments.seeds));
    if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Figures of all kinds.
#[derive(Default)]
struct Report {
    worlds: Vec<String>,
    violations: u64,
    /// Largest number of seeds that a planted mistake takes until it is found.
    found_within: u64,
    /// Planted mistakes that were not found.
    missed: u64,
    /// Kinds of worlds in which too little happens.
    idle: u64,
}

impl Report {
    fn add(&mut self, kind: &WorldKind, totals: &WorldTotals) {
        self.violations += totals.violations;
        let idle = totals.idle(kind);
        if !idle.is_empty() {
            eprintln!("{}: too little happens: {idle:?}", kind.name);
            self.idle += 1;
        }
        let mut fields = vec![
            format!("\"seeds\": {}", totals.seeds),
            format!("\"violations\": {}", totals.violations),
        ];
        fields.extend(totals.figures.iter().map(|(name, count)| format!("\"{name}\": {count}")));
        fields.push(format!("\"planted\": {{{}}}", self.planted(kind).join(", ")));
        self.worlds.push(format!("\"{}\": {{{}}}", kind.name, fields.join(", ")));
    }

    /// Looks for the planted mistakes. Returns the number of seeds that each took.
    fn planted(&mut self, kind: &WorldKind) -> Vec<String> {
        let mut found = Vec::new();
        for planted in kind.planted {
            match found_within(kind, *planted) {
                Some(seeds) => {
                    self.found_within = self.found_within.max(seeds);
                    found.push(format!("\"{planted:?}\": {seeds}"));
                }
                None => {
                    eprintln!("{}: the planted mistake {planted:?} is not found", kind.name);
                    self.missed += 1;
                }
            }
        }
        found
    }

    fn is_good(&self) -> bool {
        self.violations + self.missed + self.idle == 0 && !self.worlds.is_empty()
    }

    fn json(&self, seeds: u64) -> String {
        let fields = [
            format!("\"seeds\": {seeds}"),
            format!("\"violations\": {}", self.violations),
            format!("\"planted_found_within\": {}", self.found_within),
            format!("\"planted_missed\": {}", self.missed),
            format!("\"idle_worlds\": {}", self.idle),
            format!("\"worlds\": {{{}}}", self.worlds.join(", ")),
        ];
        format!("{{{}}}", fields.join(", "))
    }
}
