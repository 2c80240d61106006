//! `bench overhead --tracing`. Compares the processor time of a server that traces requests with
//! that of servers that do not.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::{Error, Result};
use serde::Serialize;

use super::turns::{TurnFigures, Turns, prepare};
use super::{MODEL, OverheadArgs};
use crate::report::{BenchReport, check_faults};
use loadgen::BenchEnv;
use loadgen::machine::{NoiseWatch, RunContext};
use loadgen::process::{ServerPlan, ServerProcess};
use loadgen::report::{StepProgress, TextTable};
use loadgen::stats::{median, ratio};
use loadgen::{print, println};

/// Part of the requests that is traced.
const SAMPLED: &str = "0.01";
/// Part of the requests that is traced with `--quick`, which sends too few to trace one of a
/// hundred.
const SAMPLED_QUICK: &str = "1";
/// Maximum `sampled_cpu_ratio` that the benchmark accepts.
const CPU_RATIO_MAX: f64 = 1.01;
/// Maximum bytes of an export that the collector reads.
const EXPORT_BYTES_MAX: u64 = 64 << 20;

/// JSON of `bench overhead --tracing`.
#[derive(Debug, Serialize)]
struct TracingReport {
    /// Processor time a request without a collector, in microseconds.
    cpu_us: f64,
    /// Processor time with a collector and no request traced, divided by that without a collector;
    /// median of the rounds.
    off_cpu_ratio: f64,
    /// Processor time with a collector and 1 % of the requests traced, divided by that without a
    /// collector; median of the rounds.
    sampled_cpu_ratio: f64,
    /// Requests a second with 1 % traced, divided by those without a collector.
    sampled_rps_ratio: f64,
    /// Bytes that the collector received from the server that traces requests.
    exported_bytes: u64,
    /// Bytes from the server that traces no request: the traces of its loads.
    loads_bytes: u64,
    request_bytes: usize,
    clients: usize,
    failed: u64,
    wrong: u64,
    rounds: Vec<TracingRound>,
    #[serde(flatten)]
    context: RunContext,
}

/// Figures of one round.
#[derive(Clone, Debug, Serialize)]
struct TracingRound {
    without: TurnFigures,
    off: TurnFigures,
    sampled: TurnFigures,
}

/// Runs `bench overhead --tracing`.
///
/// # Errors
/// Returns an error if a server cannot be started, an answer failed or was wrong, or no trace of a
/// request arrived.
pub(super) fn run(args: &OverheadArgs, env: &BenchEnv) -> Result<()> {
    let watch = NoiseWatch::start();
    let dir = env.cache_dir.join("run").join("overhead-tracing");
    let requests = prepare(env, &dir)?;
    let off_collector = Collector::start()?;
    let collector = Collector::start()?;
    let start = |name: &str, sample: Option<(&str, &Collector)>| {
        let mut server_args = vec![format!("{MODEL}={}", dir.join(MODEL).display())];
        if let Some((part, collector)) = sample {
            let url = format!("http://{}", collector.address);
            let flags = ["--otlp", &url, "--trace-sample", part];
            server_args.extend(flags.map(str::to_owned));
        }
        server_args.extend(args.server_arg.iter().cloned());
        ServerProcess::start(env, &ServerPlan::new(name, server_args))
    };
    let sampled = if args.quick { SAMPLED_QUICK } else { SAMPLED };
    let servers = [
        start("overhead-untraced", None)?,
        start("overhead-trace-off", Some(("0", &off_collector)))?,
        start("overhead-trace-sampled", Some((sampled, &collector)))?,
    ];
    let turns = Turns::new(args, &requests, servers.iter().map(ServerProcess::grpc).collect())?;
    let progress = StepProgress::new(args.rounds as u64);
    let mut rounds = Vec::with_capacity(args.rounds);
    for round in 0..args.rounds {
        progress.say(format!("round {}: three servers take turns", round + 1));
        rounds.push(TracingRound::new(turns.round(&servers.each_ref())?)?);
        progress.step();
    }
    drop(progress);
    for server in servers {
        server.stop()?;
    }
    let received = [&collector, &off_collector].map(|one| one.bytes.load(Ordering::Relaxed));
    let context = watch.context(None);
    let report = TracingReport::new(args, turns.request_bytes, rounds, received, context);
    report.finish(args.json.as_deref())
}

/// Collector of traces: reads what servers export, and counts it.
struct Collector {
    address: SocketAddr,
    bytes: Arc<AtomicU64>,
}

impl Collector {
    /// Starts it on a free port of this machine. Its threads end with the process.
    fn start() -> Result<Collector> {
        let failed = |error: std::io::Error| Error::internal("collector").caused_by(error);
        let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let bytes = Arc::new(AtomicU64::new(0));
        let received = bytes.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let received = received.clone();
                std::thread::spawn(move || {
                    // An exporter that disconnects ends its thread.
                    let _ = take_exports(&stream, &received);
                });
            }
        });
        Ok(Collector { address, bytes })
    }
}

/// Answers each request of a connection with an empty 200, and counts the bytes of their bodies.
fn take_exports(stream: &TcpStream, received: &AtomicU64) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let mut length = 0_u64;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            let line = line.trim_end().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().map_err(std::io::Error::other)?;
            }
        }
        let body = (&mut reader).take(length.min(EXPORT_BYTES_MAX));
        let read = std::io::copy(&mut { body }, &mut std::io::sink())?;
        received.fetch_add(read, Ordering::Relaxed);
        (&*stream).write_all(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n",
        )?;
    }
}

impl TracingRound {
    fn new(turns: Vec<TurnFigures>) -> Result<TracingRound> {
        let [without, off, sampled] = <[TurnFigures; 3]>::try_from(turns)
            .map_err(|_| Error::internal("a round has other than three turns"))?;
        Ok(TracingRound { without, off, sampled })
    }
}

impl TracingReport {
    fn new(
        args: &OverheadArgs,
        request_bytes: usize,
        rounds: Vec<TracingRound>,
        [exported_bytes, loads_bytes]: [u64; 2],
        context: RunContext,
    ) -> TracingReport {
        let middle = |of: &dyn Fn(&TracingRound) -> f64| median(rounds.iter().map(of));
        let sum = |of: &dyn Fn(&TurnFigures) -> u64| {
            rounds
                .iter()
                .flat_map(|round| [&round.without, &round.off, &round.sampled])
                .map(of)
                .sum()
        };
        TracingReport {
            cpu_us: middle(&|round| round.without.cpu_us),
            off_cpu_ratio: middle(&|round| ratio(round.off.cpu_us, round.without.cpu_us)),
            sampled_cpu_ratio: middle(&|round| ratio(round.sampled.cpu_us, round.without.cpu_us)),
            sampled_rps_ratio: middle(&|round| ratio(round.sampled.rps, round.without.rps)),
            exported_bytes,
            loads_bytes,
            request_bytes,
            clients: args.clients,
            failed: sum(&|turn| turn.failed),
            wrong: sum(&|turn| turn.wrong),
            rounds,
            context,
        }
    }
}

impl BenchReport for TracingReport {
    fn print(&self) {
        println!(
            "tracing: {} byte requests over gRPC, {} clients; median of {} rounds",
            self.request_bytes,
            self.clients,
            self.rounds.len()
        );
        let mut table = TextTable::new(&["", "CPU us/request", "requests/s", "CPU ratio"]);
        let middle = |of: &dyn Fn(&TracingRound) -> &TurnFigures| {
            let figures = || self.rounds.iter().map(of);
            [median(figures().map(|turn| turn.cpu_us)), median(figures().map(|turn| turn.rps))]
        };
        for (name, figures, ratio) in [
            ("no collector", middle(&|round| &round.without), 1.0),
            ("collector, none traced", middle(&|round| &round.off), self.off_cpu_ratio),
            ("collector, 1 % traced", middle(&|round| &round.sampled), self.sampled_cpu_ratio),
        ] {
            let [cpu_us, rps] = figures;
            table.row([
                name.to_owned(),
                format!("{cpu_us:.1}"),
                format!("{rps:.0}"),
                format!("{ratio:.3}"),
            ]);
        }
        print!("{table}");
        let met = self.sampled_cpu_ratio < CPU_RATIO_MAX;
        println!(
            "1 % traced / no collector: {:.3} (wanted below {CPU_RATIO_MAX}: {}); {} bytes exported",
            self.sampled_cpu_ratio,
            if met { "met" } else { "NOT met" },
            self.exported_bytes
        );
        println!("failed {}, wrong {}", self.failed, self.wrong);
        println!("{}", self.context);
    }

    fn verdict(&self) -> Result<()> {
        check_faults(self.failed, self.wrong)?;
        // Both servers have the same loads, whose traces differ by some bytes.
        if self.exported_bytes <= 2 * self.loads_bytes {
            return Err(Error::internal("the collector received no traces of requests"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traces_of_loads_are_not_those_of_requests() {
        let args = crate::arguments::parse(["--tracing"]).unwrap();
        let verdict = |received| {
            let context = NoiseWatch::start().context(None);
            TracingReport::new(&args, 1, Vec::new(), received, context).verdict()
        };
        assert!(verdict([0, 0]).is_err() && verdict([1010, 1000]).is_err());
        assert!(verdict([90_000, 1000]).is_ok());
    }
}
