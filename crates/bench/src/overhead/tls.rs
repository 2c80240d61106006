//! `bench overhead --tls`: the throughput of a server with TLS beside that of one without.
//! Connections are kept, so a handshake is paid once a client.

use std::path::{Path, PathBuf};

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

/// Minimum throughput with TLS, divided by that without TLS, that the benchmark accepts.
const RATIO_MIN: f64 = 0.90;

/// Figures of one protocol in one round.
#[derive(Clone, Debug, Serialize)]
struct TlsRound {
    plain_rps: f64,
    tls_rps: f64,
    plain_cpu_us: f64,
    tls_cpu_us: f64,
    failed: u64,
    wrong: u64,
}

/// Figures of one protocol.
#[derive(Debug, Serialize)]
struct TlsFigures {
    plain_rps: f64,
    tls_rps: f64,
    throughput_ratio: f64,
    added_cpu_us: f64,
    rounds: Vec<TlsRound>,
}

/// JSON of `bench overhead --tls`.
#[derive(Debug, Serialize)]
struct TlsReport {
    /// The smaller one of both protocols.
    tls_throughput_ratio: f64,
    http: TlsFigures,
    grpc: TlsFigures,
    request_bytes: usize,
    clients: usize,
    failed: u64,
    wrong: u64,
    #[serde(flatten)]
    context: RunContext,
}

/// Runs `bench overhead --tls`.
///
/// # Errors
/// Returns an error if a server cannot be started, or an answer failed or was wrong.
pub(super) fn run(args: &OverheadArgs, env: &BenchEnv) -> Result<()> {
    let watch = NoiseWatch::start();
    let dir = env.cache_dir.join("run").join("overhead-tls");
    let requests = prepare(env, &dir)?;
    let files = CertificateFiles::write(&dir)?;
    let plain = start(args, env, &dir, None)?;
    let tls = start(args, env, &dir, Some(&files))?;
    let http = Turns::new(args, &requests, vec![plain.http(), tls.http()])?;
    let grpc = Turns::new(args, &requests, vec![plain.grpc(), tls.grpc()])?;

    let progress = StepProgress::new(args.rounds as u64);
    let mut rounds = [Vec::new(), Vec::new()];
    for round in 0..args.rounds {
        progress.say(format!("round {}: plain text and TLS take turns", round + 1));
        for (turns, rounds) in [&http, &grpc].into_iter().zip(&mut rounds) {
            rounds.push(TlsRound::new(&turns.round(&[&plain, &tls])?)?);
        }
        progress.step();
    }
    drop(progress);
    plain.stop()?;
    tls.stop()?;
    let [http_rounds, grpc_rounds] = rounds;
    let all = || http_rounds.iter().chain(&grpc_rounds);
    let failed = all().map(|round| round.failed).sum();
    let wrong = all().map(|round| round.wrong).sum();
    let http_figures = TlsFigures::new(http_rounds);
    let grpc_figures = TlsFigures::new(grpc_rounds);
    let report = TlsReport {
        tls_throughput_ratio: http_figures.throughput_ratio.min(grpc_figures.throughput_ratio),
        http: http_figures,
        grpc: grpc_figures,
        request_bytes: http.request_bytes,
        clients: args.clients,
        failed,
        wrong,
        context: watch.context(None),
    };
    report.finish(args.json.as_deref())
}

/// A certificate of 127.0.0.1 that is its own issuer, and its key.
struct CertificateFiles {
    cert: PathBuf,
    key: PathBuf,
}

impl CertificateFiles {
    fn write(dir: &Path) -> Result<CertificateFiles> {
        let failed = |error: rcgen::Error| Error::internal("certificate").caused_by(error);
        let made =
            rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).map_err(failed)?;
        let files = CertificateFiles { cert: dir.join("cert.pem"), key: dir.join("key.pem") };
        for (path, text) in
            [(&files.cert, made.cert.pem()), (&files.key, made.signing_key.serialize_pem())]
        {
            loadgen::report::write_file(path, text.as_bytes())?;
        }
        Ok(files)
    }
}

/// Starts a server, with TLS if `tls` has certificates.
fn start(
    args: &OverheadArgs,
    env: &BenchEnv,
    dir: &Path,
    tls: Option<&CertificateFiles>,
) -> Result<ServerProcess> {
    let mut server_args = vec![format!("{MODEL}={}", dir.join(MODEL).display())];
    if let Some(files) = tls {
        let flags = [("--tls-cert", &files.cert), ("--tls-key", &files.key)];
        for (flag, path) in flags {
            server_args.extend([flag.to_owned(), path.display().to_string()]);
        }
    }
    server_args.extend(args.server_arg.iter().cloned());
    let name = if tls.is_some() { "overhead-tls" } else { "overhead-plain" };
    let plan = ServerPlan {
        ca: tls.map(|files| files.cert.clone()),
        ..ServerPlan::new(name, server_args)
    };
    ServerProcess::start(env, &plan)
}

impl TlsRound {
    /// Returns the round of turns of the server without TLS and the one with it.
    fn new(turns: &[TurnFigures]) -> Result<TlsRound> {
        let [plain, tls] = turns else {
            return Err(Error::internal("a round has other than two turns"));
        };
        Ok(TlsRound {
            plain_rps: plain.rps,
            tls_rps: tls.rps,
            plain_cpu_us: plain.cpu_us,
            tls_cpu_us: tls.cpu_us,
            failed: plain.failed + tls.failed,
            wrong: plain.wrong + tls.wrong,
        })
    }
}

impl TlsFigures {
    fn new(rounds: Vec<TlsRound>) -> TlsFigures {
        let middle = |of: &dyn Fn(&TlsRound) -> f64| median(rounds.iter().map(of));
        TlsFigures {
            plain_rps: middle(&|round| round.plain_rps),
            tls_rps: middle(&|round| round.tls_rps),
            throughput_ratio: middle(&|round| ratio(round.tls_rps, round.plain_rps)),
            added_cpu_us: middle(&|round| round.tls_cpu_us - round.plain_cpu_us),
            rounds,
        }
    }
}

impl BenchReport for TlsReport {
    fn print(&self) {
        println!(
            "TLS beside plain text: {} byte requests, {} clients on kept connections; median of {} rounds",
            self.request_bytes,
            self.clients,
            self.http.rounds.len()
        );
        let mut table = TextTable::new(&["", "plain/s", "TLS/s", "ratio", "added CPU us/request"]);
        for (name, figures) in [("HTTP/1.1", &self.http), ("gRPC", &self.grpc)] {
            table.row([
                name.to_owned(),
                format!("{:.0}", figures.plain_rps),
                format!("{:.0}", figures.tls_rps),
                format!("{:.3}", figures.throughput_ratio),
                format!("{:.1}", figures.added_cpu_us),
            ]);
        }
        print!("{table}");
        let met = self.tls_throughput_ratio >= RATIO_MIN;
        println!(
            "TLS / plain: {:.3} (wanted at least {RATIO_MIN}: {})",
            self.tls_throughput_ratio,
            if met { "met" } else { "NOT met" }
        );
        println!("failed {}, wrong {}", self.failed, self.wrong);
        println!("{}", self.context);
    }

    fn verdict(&self) -> Result<()> {
        check_faults(self.failed, self.wrong)
    }
}
