//! The parent's end of an arm's process.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use base::{Error, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::TiersArgs;
use super::turn::{TurnOrder, TurnResult};
use super::worker::{TierArm, WorkerJob, WorkerReady};
use loadgen::BenchEnv;

/// A running arm. Dropping it ends its process.
pub(super) struct ArmProcess {
    pub(super) arm: TierArm,
    /// Size of its cache as a share of the records' bytes.
    pub(super) cache: f64,
    pub(super) job: WorkerJob,
    pub(super) ready: WorkerReady,
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl ArmProcess {
    /// Starts the process and waits until its segments are open and its cache is warm.
    pub(super) fn start(
        args: &TiersArgs,
        env: &BenchEnv,
        cache: f64,
        job: WorkerJob,
    ) -> Result<ArmProcess> {
        let text =
            serde_json::to_string(&job).map_err(|e| Error::internal("a job").caused_by(e))?;
        let mut command = Command::new(&env.millpond);
        command.args(["bench", "tiers", "--worker", &text]).arg("--cache-dir").arg(&env.cache_dir);
        command.arg("--tmpfs").arg(&args.tmpfs);
        if let Some(dax) = &args.dax {
            command.arg("--dax").arg(dax);
        }
        let kind = match args.kind {
            super::TierRecords::Fingerprint => "fingerprint",
            super::TierRecords::Photo => "photo",
        };
        command.args(["--kind", kind]);
        let numbers = [
            ("--queries", args.queries as f64),
            ("--candidates", f64::from(args.candidates)),
            ("--threads", args.threads as f64),
            ("--clients", args.clients as f64),
            ("--cluster", f64::from(args.cluster)),
            ("--probes", f64::from(args.probes)),
            ("--near", args.near),
            ("--depth", args.depth as f64),
            ("--join", args.join as f64),
            ("--gap", args.gap as f64),
        ];
        for (name, value) in numbers {
            command.args([name, &value.to_string()]);
        }
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(|e| {
                Error::unavailable(format!("{}: cannot be started", env.millpond.display()))
                    .caused_by(e)
            })?;
        let to = child.stdin.take();
        let from = child.stdout.take().ok_or_else(|| Error::internal("an arm without output"))?;
        let from = BufReader::new(from);
        let ready = WorkerReady { warmed: 0, note: None };
        let mut process = ArmProcess { arm: job.arm, cache, job, ready, child, to, from };
        process.ready = process.receive()?;
        Ok(process)
    }

    /// Returns the name in the report.
    pub(super) fn name(&self) -> String {
        match self.arm {
            TierArm::Nvme => format!("nvme {}", self.cache),
            arm => arm.name().into(),
        }
    }

    pub(super) fn turn(&mut self, order: &TurnOrder) -> Result<TurnResult> {
        self.send(order)?;
        self.receive()
    }

    /// Sends a message to the process of the arm, as a line of JSON.
    fn send(&mut self, order: &impl Serialize) -> Result<()> {
        let text =
            serde_json::to_string(order).map_err(|e| Error::internal("an order").caused_by(e))?;
        let to = self.to.as_mut().ok_or_else(|| Error::internal("an arm without input"))?;
        writeln!(to, "{text}").and_then(|()| to.flush()).map_err(|e| self.ended(&e.to_string()))
    }

    /// Receives a message of the process of the arm.
    fn receive<T: DeserializeOwned>(&mut self) -> Result<T> {
        let mut line = String::new();
        match self.from.read_line(&mut line) {
            Ok(0) => Err(self.ended("it said nothing")),
            Ok(_) => {
                serde_json::from_str(&line).map_err(|e| self.ended(&format!("{e} in {line:?}")))
            }
            Err(error) => Err(self.ended(&error.to_string())),
        }
    }

    fn ended(&self, why: &str) -> Error {
        Error::internal(format!(
            "the process of arm {} ended: {why}; its message is above",
            self.name()
        ))
    }
}

impl Drop for ArmProcess {
    fn drop(&mut self) {
        // The process ends at the end of its input. If it does not, it can be killed without loss.
        drop(self.to.take());
        let _ = self.child.wait();
    }
}
