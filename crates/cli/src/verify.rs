//! `millpond verify`: sends recorded requests to two servers and compares answers and latency.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use command_line::environment;
use command_line::exit::{CommandError, CommandResult, ExitStatus, print};
use command_line::values::TimeSpan;
use loadgen::connection::Endpoint;
use loadgen::report::write_json;
use loadgen::tls::TlsArgs;
use verify::{ComparedServer, VerifyPlan};

/// Maximum clients of the closed loop.
const CLIENTS_MAX: usize = 1024;
/// Maximum rounds.
const ROUNDS_MAX: usize = 1000;

/// `millpond verify --against HOST:PORT --requests FILE`.
#[derive(Args, Debug)]
#[command(after_help = "\
FILE is a file of `millpond serve --request-log`, in either format, or another TFRecord file of TensorFlow Serving's \
PredictionLog, such as a model's assets.extra/tf_serving_warmup_requests. Requests of a log in JSON (.jsonl) are sent as \
Predict. Of TFRecord, records of Predict, Classify, Regress and MultiInference are sent. Records of session runs, streams \
and failed requests are counted.

First each request goes to both servers once, and the answers are compared. Then the servers are measured in turns, so \
that one load does not disturb the other: each round sends the requests to one server for --duration, then to the other.

Exit status: 0 if all answers agree; 4 if answers differ; 1 if no answers were compared, or if a server cannot be reached.

Example:
  millpond verify --against old-host:8500 --server localhost:8500 --requests requests.tfrecord")]
pub(crate) struct VerifyArgs {
    /// gRPC address of the server with the right answers, such as TensorFlow Serving: HOST:PORT,
    /// grpcs://HOST:PORT with TLS, or unix:PATH
    #[arg(long, value_name = "ADDRESS")]
    against: String,
    /// gRPC address of the server to verify
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8500")]
    server: String,
    #[command(flatten)]
    tls: TlsArgs,
    /// API key of --server, if it has one [default: MILLPOND_API_KEY]
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,
    /// API key of --against, if it has one
    #[arg(long, value_name = "KEY")]
    against_api_key: Option<String>,
    /// Recorded requests (TFRecord or .jsonl); may be given several times
    #[arg(long, value_name = "FILE", required = true)]
    requests: Vec<PathBuf>,
    /// Send all requests to this model, instead of the recorded one
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Largest difference of two floats, relative to the larger of 1 and the absolute value from
    /// --against
    #[arg(long, value_name = "NUMBER", default_value_t = 1e-5)]
    tolerance: f64,
    /// Requests per second (open loop) [default: each client waits for its answer]
    #[arg(long, value_name = "N")]
    rate: Option<f64>,
    /// Clients that wait for their answers (closed loop)
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "rate")]
    clients: usize,
    /// Measuring time of a round on one server; 0s only compares the answers
    #[arg(long, value_name = "TIME", default_value = "5s")]
    duration: TimeSpan,
    /// Rounds; each measures both servers
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: usize,
    /// Write the report to FILE as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Compares and measures, and prints the report.
///
/// # Errors
/// Returns a usage error for wrong numbers; [`ExitStatus::Wrong`] if answers differ;
/// [`ExitStatus::Failed`] if no answers were compared, a file cannot be read or a server cannot be
/// reached.
pub(crate) fn run(args: &VerifyArgs) -> CommandResult {
    let tls = environment::with_ca(&args.tls, &[&args.server, &args.against]);
    let server = endpoint("--server", &args.server, &tls)?
        .with_key(environment::client_key(args.api_key.as_ref()));
    let against =
        endpoint("--against", &args.against, &tls)?.with_key(args.against_api_key.clone());
    let by_tls = server.is_tls() || against.is_tls();
    args.tls.check_used(by_tls).map_err(|error| CommandError::usage(error.message()))?;
    args.check()?;
    let TimeSpan(duration) = args.duration;
    let report = verify::verify(&VerifyPlan {
        servers: [
            ComparedServer { address: args.server.clone(), endpoint: server },
            ComparedServer { address: args.against.clone(), endpoint: against },
        ],
        requests: args.requests.clone(),
        model: args.model.clone(),
        tolerance: args.tolerance,
        rate: args.rate,
        clients: args.clients,
        duration,
        rounds: args.rounds,
    })?;
    print(&report.text())?;
    if let Some(path) = &args.json {
        write_json(path, &report.json())?;
    }
    match (report.differs(), report.agrees()) {
        (true, _) => Err(CommandError::silent(ExitStatus::Wrong)),
        (false, true) => Ok(()),
        (false, false) => Err(CommandError::silent(ExitStatus::Failed)),
    }
}

fn endpoint(flag: &str, text: &str, tls: &TlsArgs) -> CommandResult<Endpoint> {
    let whole = text.contains("://") || text.starts_with("unix:");
    let url = if whole { text.to_owned() } else { format!("grpc://{text}") };
    let is_grpc = ["grpc://", "grpcs://", "unix:"].iter().any(|scheme| url.starts_with(scheme));
    match Endpoint::parse(&url, tls) {
        Ok(endpoint) if is_grpc => Ok(endpoint),
        Err(error) if url.starts_with("grpcs://") => {
            Err(CommandError::usage(format!("{flag} {text}: {}", error.message())))
        }
        _ => Err(CommandError::usage(format!(
            "{flag} {text}: give the gRPC address, HOST:PORT, grpcs://HOST:PORT or unix:PATH"
        ))),
    }
}

impl VerifyArgs {
    fn check(&self) -> CommandResult {
        let wrong = |what: &str| Err(CommandError::usage(what.to_owned()));
        if !(self.tolerance >= 0.0 && self.tolerance.is_finite()) {
            return wrong("--tolerance must be 0 or more");
        }
        if self.rate.is_some_and(|rate| !(rate > 0.0 && rate.is_finite())) {
            return wrong("--rate must be more than 0");
        }
        if !(1..=CLIENTS_MAX).contains(&self.clients) {
            return wrong(&format!("--clients must be 1 to {CLIENTS_MAX}"));
        }
        if !(1..=ROUNDS_MAX).contains(&self.rounds) {
            return wrong(&format!("--rounds must be 1 to {ROUNDS_MAX}"));
        }
        let TimeSpan(duration) = self.duration;
        if duration > Duration::from_secs(3600) {
            return wrong("--duration must be at most an hour");
        }
        Ok(())
    }
}
