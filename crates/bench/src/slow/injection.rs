//! The injected causes.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use base::{Error, Result};
use clap::ValueEnum;
use loadgen::connection::call_once;
use loadgen::cpu_group::CpuGroup;
use loadgen::machine::cores;
use loadgen::process::{end_with_us, let_go};
use loadgen::wire::{Api, EncodedRequests};
use serde::Deserialize;

use super::{HEAVY, MODEL, SlowSetup};
use crate::swap::server::SwapServer;

/// Length of a pulse of the hog and of the quota.
const PULSE: Duration = Duration::from_millis(400);
/// Time between the ends of two pulses.
const GAP: Duration = Duration::from_millis(1600);
/// Number of processes of the hog for each core.
const HOGS_PER_CORE: usize = 2;
/// Quota during a pulse, as a share of a core.
const THROTTLED_CORES: f64 = 0.05;
/// Pause of the slow client within its body.
const SEND_PAUSE: Duration = Duration::from_millis(150);
/// Longest wait of the slow client for its answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Label of the protocol of the slow client. Steady requests use another.
const SLOW_CLIENT_PROTOCOL: &str = "tfs-http";
/// Longest swap.
const SWAP_TIMEOUT: Duration = Duration::from_secs(60);
/// Time between two checks for the end of a swap.
const SWAP_POLL: Duration = Duration::from_millis(100);

/// A cause of slow requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Injection {
    /// Other processes take the cores.
    CpuHog,
    /// A version is read, hashed and published.
    Swap,
    /// Large requests to another model are ahead in the queue.
    BehindBatch,
    /// A client sends its body slowly.
    SlowClient,
    /// A control group's quota stops the server.
    Throttled,
}

impl Injection {
    /// All causes.
    #[cfg(test)]
    pub(super) const ALL: [Injection; 5] = [
        Injection::CpuHog,
        Injection::Swap,
        Injection::BehindBatch,
        Injection::SlowClient,
        Injection::Throttled,
    ];

    /// Returns the name in JSON.
    pub(super) fn name(self) -> &'static str {
        match self {
            Injection::CpuHog => "cpu_hog",
            Injection::Swap => "swap",
            Injection::BehindBatch => "behind_batch",
            Injection::SlowClient => "slow_client",
            Injection::Throttled => "throttled",
        }
    }

    /// Returns the cause that the server should name.
    pub(super) fn expected(self) -> &'static str {
        match self {
            Injection::CpuHog => "cpu_contention",
            Injection::Swap => "load",
            Injection::BehindBatch => "behind_batch",
            Injection::SlowClient => "client_slow_send",
            Injection::Throttled => "throttled",
        }
    }

    /// Returns true if the cause can delay a request of `protocol`. A slow client delays no other
    /// client.
    pub(super) fn affects(self, protocol: &str) -> bool {
        self != Injection::SlowClient || protocol == SLOW_CLIENT_PROTOCOL
    }
}

/// A pulse in seconds since the epoch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Pulse {
    pub(super) from: f64,
    pub(super) until: f64,
}

/// Versions of a model, as TensorFlow Serving's API lists them.
#[derive(Deserialize)]
struct StatusPage {
    model_version_status: Vec<ListedVersion>,
}

#[derive(Deserialize)]
struct ListedVersion {
    version: String,
    state: String,
}

/// Injects pulses of a cause into a server.
pub(super) struct Pulses<'a> {
    pub(super) setup: &'a SlowSetup<'a>,
    pub(super) server: &'a SwapServer,
    pub(super) group: Option<&'a CpuGroup>,
}

impl Pulses<'_> {
    /// Injects `injection` until its time is over. Returns the pulses.
    pub(super) fn run(&self, injection: Injection) -> Result<Vec<Pulse>> {
        // Before the first pulse, because encoding takes a core from the server.
        let heavy = match injection {
            Injection::BehindBatch => Some(self.encode_heavy()?),
            _ => None,
        };
        let end = Instant::now() + self.setup.args.seconds;
        let mut pulses = Vec::new();
        while Instant::now() < end {
            let from = epoch_seconds();
            match injection {
                Injection::CpuHog => hog()?,
                Injection::Swap => self.swap(pulses.len() as u64)?,
                Injection::BehindBatch => heavy.iter().try_for_each(|it| self.heavy(it))?,
                Injection::SlowClient => self.send_slowly()?,
                Injection::Throttled => self.throttle()?,
            }
            pulses.push(Pulse { from, until: epoch_seconds() });
            sleep(GAP);
        }
        Ok(pulses)
    }

    /// Publishes the next version and waits until the last one is released.
    fn swap(&self, done: u64) -> Result<()> {
        // Version 1 serves from the start.
        let version = done + 2;
        self.server.publish(version)?;
        let deadline = Instant::now() + SWAP_TIMEOUT;
        while !self.swapped(version)? {
            if Instant::now() > deadline {
                return Err(Error::deadline("the swap did not end in time"));
            }
            sleep(SWAP_POLL);
        }
        Ok(())
    }

    /// Returns true if `version` is the only one in memory. Reads the model's status instead of the
    /// metrics. A scrape of all metrics takes a core from requests, and the server would name that
    /// as the cause of slow requests.
    fn swapped(&self, version: u64) -> Result<bool> {
        let path = format!("/v1/models/{MODEL}");
        let page: StatusPage = serde_json::from_str(&self.server.process.page(&path)?)
            .map_err(|error| Error::data_loss(&path).caused_by(error))?;
        let wanted = version.to_string();
        let is_new = |listed: &ListedVersion| listed.version == wanted;
        let settled = |listed: &ListedVersion| {
            listed.state == if is_new(listed) { "AVAILABLE" } else { "END" }
        };
        let listed = &page.model_version_status;
        Ok(listed.iter().any(is_new) && listed.iter().all(settled))
    }

    fn encode_heavy(&self) -> Result<EncodedRequests> {
        let endpoint = self.server.process.grpc();
        let rows = self.setup.args.heavy_batch;
        self.setup.encode(endpoint, Api::Oip, HEAVY, rows)
    }

    /// Keeps every worker busy with a large request.
    fn heavy(&self, encoded: &EncodedRequests) -> Result<()> {
        let endpoint = self.server.process.grpc();
        let body = encoded.bodies.first().ok_or_else(|| Error::internal("no request"))?;
        std::thread::scope(|scope| {
            let endpoint = &endpoint;
            let template = &encoded.template;
            let call = |_: usize| {
                scope.spawn(move || call_once(endpoint, template, body.clone()).map(drop))
            };
            let calls: Vec<_> = (0..2 * cores()).map(call).collect();
            calls.into_iter().try_for_each(|call| {
                call.join().unwrap_or_else(|_| Err(Error::internal("a client panicked")))
            })
        })
    }

    /// Sends one request over HTTP with a pause in the middle of its body.
    fn send_slowly(&self) -> Result<()> {
        let endpoint = self.server.process.http();
        let authority = endpoint.authority.clone();
        let encoded = self.setup.encode(endpoint, Api::Tfs, MODEL, self.setup.args.batch)?;
        let body = encoded.bodies.first().ok_or_else(|| Error::internal("no request"))?;
        let lost = |error: std::io::Error| Error::unavailable(&authority).caused_by(error);
        let mut stream = TcpStream::connect(&authority).map_err(lost)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT)).map_err(lost)?;
        let head = format!(
            "POST /v1/models/{MODEL}:predict HTTP/1.1\r\nHost: {authority}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n",
            body.len()
        );
        let (first, rest) = body.split_at(body.len() / 2);
        stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(first)).map_err(lost)?;
        sleep(SEND_PAUSE);
        stream.write_all(rest).map_err(lost)?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).map_err(lost)?;
        if answer.starts_with(b"HTTP/1.1 200") {
            Ok(())
        } else {
            Err(Error::internal("the slow client got no answer"))
        }
    }

    /// Lowers the quota of the server's group for a moment.
    fn throttle(&self) -> Result<()> {
        let group = self.group.ok_or_else(|| Error::internal("there is no control group"))?;
        group.limit(THROTTLED_CORES)?;
        sleep(PULSE);
        group.limit(cores() as f64)
    }
}

/// Takes the cores with processes of their own for a moment.
fn hog() -> Result<()> {
    let hogs: Vec<Hog> =
        (0..HOGS_PER_CORE * cores()).map(|_| Hog::start()).collect::<Result<_>>()?;
    sleep(PULSE);
    drop(hogs);
    Ok(())
}

/// A process that computes until it is dropped.
struct Hog(Child);

impl Hog {
    fn start() -> Result<Hog> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "while :; do :; done"]).stdin(Stdio::null());
        let child =
            command.spawn().map_err(|e| Error::exhausted("cannot start /bin/sh").caused_by(e))?;
        end_with_us(child.id());
        Ok(Hog(child))
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        let_go(self.0.id());
    }
}

fn epoch_seconds() -> f64 {
    base::unix_time(SystemTime::now()).as_secs_f64()
}
