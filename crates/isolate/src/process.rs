//! A worker process as the server sees it: its start, its standard error, its end.

use std::io::{ErrorKind, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStderr, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use base::{Error, Result};
use bytes::Bytes;
use crossbeam_channel::{Receiver, bounded};
use parking_lot::Mutex;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::channel::WorkerChannels;
use crate::message::{
    LIBRARY_REQUEST, LOAD_REQUEST, LibraryMessage, LoadMessage, ModelFacts, decode_library_opened,
    decode_loaded,
};
use crate::temporary_directory::TemporaryDirectory;
use crate::{Isolation, RUNS_MAX, frame};

/// Longest time of a load in a worker process, which is then ended.
const LOAD_TIME_MAX: Duration = Duration::from_secs(3600);
/// Time between two checks of a load's stop flag.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum bytes kept of one line of the process's standard error.
const LINE_BYTES_MAX: usize = 2048;
/// Longest wait for the rest of that output. A process left behind may hold it open.
const OUTPUT_WAIT_MAX: Duration = Duration::from_secs(2);

/// Owner of a child process: the supervisor waits for it, and closing the session kills it.
pub(crate) type ChildSlot = Mutex<ChildState>;

/// The child process of a session.
#[derive(Default)]
pub(crate) struct ChildState {
    pub(crate) child: Option<Child>,
    /// True once the session is closed. No further child is started.
    pub(crate) closed: bool,
    /// Reason for which the server killed it.
    pub(crate) killed: Option<String>,
}

impl ChildState {
    /// Kills the process, if it runs. The supervisor notices its end.
    pub(crate) fn kill(&mut self, why: Option<String>) {
        self.killed = why;
        if let Some(child) = &mut self.child {
            // Fails only for a process that has ended.
            let _ = child.kill();
        }
    }
}

/// A started process.
pub(crate) struct WorkerProcess {
    /// The server's end of the socket that the process has as its standard input. Nothing arrives
    /// there after the load, so the end of the stream is the end of the process.
    control: UnixStream,
    output: Output,
    pid: u32,
    /// Removed after the end of the process.
    _temporary: Option<TemporaryDirectory>,
}

/// A process that has opened its model.
pub(crate) struct Opened {
    pub(crate) process: WorkerProcess,
    pub(crate) channels: Arc<WorkerChannels>,
    pub(crate) facts: ModelFacts,
}

/// End of a process that had opened its model.
pub(crate) struct ProcessEnd {
    pub(crate) reason: Arc<str>,
    /// Time at which its socket was closed.
    pub(crate) at: Instant,
}

/// Lets `spare`, or else a new process, open a model. Ends the process if `stop` is set during the
/// load.
///
/// # Errors
/// The engine's error; `Internal` or `ResourceExhausted` if the process cannot be started or ends;
/// `DeadlineExceeded` if the load takes too long; `Cancelled` if `stop` was set, or if the session
/// was closed before the load.
pub(crate) fn open(
    isolation: &Isolation,
    slot: &ChildSlot,
    spare: Option<StartedProcess>,
    message: &LoadMessage,
    stop: &AtomicBool,
) -> Result<Opened> {
    let started = match spare {
        Some(spare) => spare,
        None => StartedProcess::start(isolation, &message.model)?,
    };
    let mut process = started.adopt(isolation, slot, &message.model)?;
    match process.load(isolation, message, stop) {
        Ok((channels, facts)) => Ok(Opened { process, channels: Arc::new(channels), facts }),
        Err(LoadFailure::Refused(error)) => {
            process.end(isolation, slot);
            Err(error)
        }
        Err(LoadFailure::Ended) => {
            let reason = process.end(isolation, slot);
            Err(Error::internal(format!("{reason}, while it loaded the model")))
        }
    }
}

/// A process that belongs to no session yet.
pub(crate) struct StartedProcess {
    process: WorkerProcess,
    child: Child,
}

impl StartedProcess {
    /// Starts a process. The system ends it when the calling thread ends. `owner` names it in the
    /// log.
    ///
    /// # Errors
    /// `Internal` or `ResourceExhausted` if it cannot be started.
    pub(crate) fn start(isolation: &Isolation, owner: &str) -> Result<StartedProcess> {
        let config = &isolation.config;
        let no_socket = |e: std::io::Error| Error::exhausted("a socket for a worker").caused_by(e);
        let (control, theirs) = UnixStream::pair().map_err(no_socket)?;
        let mut command = config.program.command();
        command.args(&config.args);
        command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(Stdio::piped());
        // A signal from the terminal goes to the server only, which first finishes its requests.
        command.process_group(0);
        let temporary = TemporaryDirectory::create();
        if let Some(directory) = &temporary {
            command.env("TMPDIR", directory.path());
        }
        let mut child = command.spawn().map_err(|e| {
            let program = config.program.path().display();
            Error::internal(format!("cannot start the worker process {program}")).caused_by(e)
        })?;
        let pid = child.id();
        isolation.processes.lock().push(pid);
        match Output::listen(child.stderr.take(), owner) {
            Ok(output) => {
                let process = WorkerProcess { control, output, pid, _temporary: temporary };
                Ok(StartedProcess { process, child })
            }
            Err(error) => {
                // It ends in any case, as its end of the socket is closed.
                let _ = child.kill();
                let _ = child.wait();
                isolation.processes.lock().retain(|process| *process != pid);
                Err(error)
            }
        }
    }

    /// Lets the process open the library of an engine, for at most `time_max`. Ends the process if
    /// that fails or if `stop` is set.
    ///
    /// # Errors
    /// The engine's error; `Internal` if the process ends; `DeadlineExceeded` if the time is over;
    /// `Cancelled` if `stop` was set.
    pub(crate) fn open_library(
        mut self,
        isolation: &Isolation,
        message: &LibraryMessage,
        time_max: Duration,
        stop: &AtomicBool,
    ) -> Result<StartedProcess> {
        match self.process.open_library(message, time_max, stop) {
            Ok(()) => Ok(self),
            Err(LoadFailure::Refused(error)) => {
                self.end(isolation);
                Err(error)
            }
            Err(LoadFailure::Ended) => {
                let reason = self.end(isolation);
                Err(Error::internal(format!("{reason}, while it opened a library")))
            }
        }
    }

    /// Returns true once the process has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Ends the process, if it still runs, and returns the reason of its end.
    pub(crate) fn end(self, isolation: &Isolation) -> String {
        let StartedProcess { process, child } = self;
        let status = process.reap(isolation, Some(child));
        process.reason(status)
    }

    /// Makes this the process of a session. Ends the process if the session is closed.
    fn adopt(self, isolation: &Isolation, slot: &ChildSlot, model: &str) -> Result<WorkerProcess> {
        self.process.output.rename(model);
        let mut state = slot.lock();
        if state.closed {
            drop(state);
            self.end(isolation);
            return Err(Error::cancelled("the version was unloaded"));
        }
        let StartedProcess { process, child } = self;
        state.child = Some(child);
        state.killed = None;
        Ok(process)
    }
}

/// Limits of the wait for a reply.
struct ReplyWait<'a> {
    /// The work of the process, for errors.
    doing: &'static str,
    time_max: Duration,
    stop: &'a AtomicBool,
}

enum LoadFailure {
    /// The process has answered with an error, its time is over, or its load was stopped.
    Refused(Error),
    /// The process has ended, or has not sent a valid answer.
    Ended,
}

fn refused(error: std::io::Error) -> LoadFailure {
    LoadFailure::Refused(Error::exhausted("the sockets of a worker process").caused_by(error))
}

impl WorkerProcess {
    /// Sends the process the sockets of its runs and the model to load, and waits until the model
    /// is open.
    fn load(
        &mut self,
        isolation: &Isolation,
        message: &LoadMessage,
        stop: &AtomicBool,
    ) -> Result<(WorkerChannels, ModelFacts), LoadFailure> {
        let mut ours = Vec::new();
        let mut theirs = Vec::new();
        for _ in 0..isolation.config.runs {
            let (one, other) = UnixStream::pair().map_err(refused)?;
            one.set_read_timeout(Some(isolation.config.run_time_max)).map_err(refused)?;
            one.set_write_timeout(Some(isolation.config.run_time_max)).map_err(refused)?;
            ours.push(one);
            theirs.push(other);
        }
        let body = message.encode().map_err(LoadFailure::Refused)?;
        let ended = |_| LoadFailure::Ended;
        send_sockets(&self.control, &theirs).map_err(ended)?;
        frame::write(&mut self.control, body).map_err(ended)?;
        drop(theirs);
        let wait = ReplyWait { doing: "the load", time_max: LOAD_TIME_MAX, stop };
        let reply = self.wait_for_reply(&wait)?;
        let facts = decode_loaded(reply).and_then(|facts| facts).map_err(LoadFailure::Refused)?;
        Ok((WorkerChannels::new(ours), facts))
    }

    fn open_library(
        &mut self,
        message: &LibraryMessage,
        time_max: Duration,
        stop: &AtomicBool,
    ) -> Result<(), LoadFailure> {
        let body = message.encode().map_err(LoadFailure::Refused)?;
        let ended = |_| LoadFailure::Ended;
        self.control.write_all(&[LIBRARY_REQUEST]).map_err(ended)?;
        frame::write(&mut self.control, body).map_err(ended)?;
        let wait = ReplyWait { doing: "opening a library", time_max, stop };
        let reply = self.wait_for_reply(&wait)?;
        decode_library_opened(reply).and_then(|opened| opened).map_err(LoadFailure::Refused)
    }

    /// Returns the reply of the process, which it sends at the end of its work.
    fn wait_for_reply(&mut self, wait: &ReplyWait<'_>) -> Result<Bytes, LoadFailure> {
        self.control.set_read_timeout(Some(STOP_CHECK_INTERVAL)).map_err(refused)?;
        let first = self.first_byte(wait)?;
        self.control.set_read_timeout(Some(LOAD_TIME_MAX)).map_err(refused)?;
        let reply = self.reply(first)?;
        self.control.set_read_timeout(None).map_err(refused)?;
        Ok(reply)
    }

    /// Returns the first byte of a reply.
    fn first_byte(&mut self, wait: &ReplyWait<'_>) -> Result<[u8; 1], LoadFailure> {
        let until = Instant::now() + wait.time_max;
        let mut byte = [0];
        loop {
            match self.control.read(&mut byte).map_err(|error| error.kind()) {
                Ok(1..) => return Ok(byte),
                Err(ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted) => {}
                Ok(0) | Err(_) => return Err(LoadFailure::Ended),
            }
            let doing = wait.doing;
            if wait.stop.load(Ordering::Relaxed) {
                let why = format!("{doing} was stopped");
                return Err(LoadFailure::Refused(Error::cancelled(why)));
            }
            if Instant::now() >= until {
                let limit = wait.time_max.as_secs();
                let why = format!("{doing} took longer than {limit} s in its worker process");
                return Err(LoadFailure::Refused(Error::deadline(why)));
            }
        }
    }

    /// Reads the reply that begins with `first`.
    fn reply(&mut self, first: [u8; 1]) -> Result<Bytes, LoadFailure> {
        let mut reply = first.as_slice().chain(&mut self.control);
        frame::read(&mut reply).ok().flatten().ok_or(LoadFailure::Ended)
    }

    /// Waits until the process ends. Ends the process if `stop` is set before the load has ended. A
    /// run of the warm-up may hang.
    pub(crate) fn wait(
        mut self,
        isolation: &Isolation,
        slot: &ChildSlot,
        stop: Option<&Arc<AtomicBool>>,
    ) -> ProcessEnd {
        if stop.is_some_and(|stop| self.stops(stop)) {
            slot.lock().kill(Some("the load was stopped".to_owned()));
        }
        // The process sends nothing more. An error of the socket is its end too.
        let _ = self.control.read(&mut [0]);
        let at = Instant::now();
        ProcessEnd { reason: self.end(isolation, slot).into(), at }
    }

    /// Waits until the load has ended, which drops its references to `stop`, or until the process
    /// ends. Returns true if the flag is set before.
    fn stops(&mut self, stop: &Arc<AtomicBool>) -> bool {
        if self.control.set_read_timeout(Some(STOP_CHECK_INTERVAL)).is_err() {
            return false;
        }
        while Arc::strong_count(stop) > 1 {
            if stop.load(Ordering::Relaxed) {
                return true;
            }
            match self.control.read(&mut [0]).map_err(|error| error.kind()) {
                Err(ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted) => {}
                Ok(_) | Err(_) => break,
            }
        }
        // Fails only for a socket that has failed, which is the end of the process too.
        let _ = self.control.set_read_timeout(None);
        false
    }

    /// Ends the process, if it still runs, and returns the reason of its end.
    pub(crate) fn end(&self, isolation: &Isolation, slot: &ChildSlot) -> String {
        let (child, killed) = {
            let mut state = slot.lock();
            (state.child.take(), state.killed.take())
        };
        let status = self.reap(isolation, child);
        killed.unwrap_or_else(|| self.reason(status))
    }

    /// Ends `child`, which is this process, and returns its status.
    fn reap(&self, isolation: &Isolation, child: Option<Child>) -> Option<ExitStatus> {
        let status = child.and_then(|mut child| {
            // Has no effect on a process that is ending, whose status stays.
            let _ = child.kill();
            child.wait().ok()
        });
        isolation.processes.lock().retain(|&pid| pid != self.pid);
        status
    }

    /// Describes the end of this process.
    fn reason(&self, status: Option<ExitStatus>) -> String {
        let mut reason = "its worker process ended".to_owned();
        if let Some(status) = status {
            reason = format!("{reason} ({status})");
            if status.signal() == Some(9) {
                reason += "; the system may be short of memory";
            }
        }
        match self.output.last_line() {
            line if line.is_empty() => reason,
            line => format!("{reason}: {line}"),
        }
    }
}

/// Sends one byte with the sockets of the runs.
fn send_sockets(control: &UnixStream, sockets: &[UnixStream]) -> std::io::Result<()> {
    let sockets: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(RUNS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&sockets));
    let byte = [std::io::IoSlice::new(&[LOAD_REQUEST])];
    sendmsg(control, &byte, &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// The standard error of a process. Its lines go into the log.
struct Output {
    log: Arc<Mutex<OutputLog>>,
    closed: Receiver<()>,
}

/// Label of the lines, and the last line.
struct OutputLog {
    /// The model, or the engine of a spare process.
    owner: String,
    /// Last line that can be the reason for the end of the process.
    last: String,
}

impl Output {
    /// Starts the thread that logs the standard error of a process. `owner` is the name of the
    /// model.
    fn listen(stderr: Option<ChildStderr>, owner: &str) -> Result<Output> {
        let log = Arc::new(Mutex::new(OutputLog { owner: owner.to_owned(), last: String::new() }));
        let (open, closed) = bounded::<()>(0);
        let theirs = log.clone();
        os::thread::spawn("isolate-log", move || {
            let _open = open;
            let mut pieces = OutputLines { log: theirs, line: Vec::new() };
            let mut bytes = [0; LINE_BYTES_MAX];
            let Some(mut stderr) = stderr else { return };
            while let Ok(count @ 1..) = stderr.read(&mut bytes) {
                pieces.add(&bytes[..count]);
            }
            pieces.end_line();
        })?;
        Ok(Output { log, closed })
    }

    /// Labels further lines with `model`.
    fn rename(&self, model: &str) {
        model.clone_into(&mut self.log.lock().owner);
    }

    /// Returns the last line that is neither empty nor a remark, once the process has ended.
    fn last_line(&self) -> String {
        // Nothing is sent: the wait ends when the thread drops its sender.
        let _ = self.closed.recv_timeout(OUTPUT_WAIT_MAX);
        self.log.lock().last.clone()
    }
}

struct OutputLines {
    log: Arc<Mutex<OutputLog>>,
    line: Vec<u8>,
}

impl OutputLines {
    fn add(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if byte == b'\n' || self.line.len() == LINE_BYTES_MAX {
                self.end_line();
            }
            if byte != b'\n' {
                self.line.push(byte);
            }
        }
    }

    /// Logs the collected line.
    fn end_line(&mut self) {
        let line = String::from_utf8_lossy(&self.line).trim().to_owned();
        self.line.clear();
        if line.is_empty() {
            return;
        }
        let owner = {
            let mut log = self.log.lock();
            if !is_remark(&line) {
                log.last.clone_from(&line);
            }
            log.owner.clone()
        };
        // Not under the lock: the log may wait for its reader, and supervisors need the lock.
        tracing::info!(model = owner, "worker process: {line}");
    }
}

/// Returns true for information or a warning in the form of TensorFlow's log, such as
/// "I0000 00:00:1764106000.25 6941 port.cc:153] oneDNN custom operations are on.", and for a line
/// of a stack trace, which follows the reason. Such a line is no reason for the end of a process.
fn is_remark(line: &str) -> bool {
    if line.ends_with("stack trace: ***") || line.starts_with("@ ") || line.starts_with("PC: @ ") {
        return true;
    }
    let is_date = |digits: &[u8]| digits.iter().all(u8::is_ascii_digit);
    let has_date = line.as_bytes().get(1..5).is_some_and(is_date);
    (has_date && line.starts_with(['I', 'W'])) || line.starts_with("WARNING: ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remarks_are_no_reason_for_an_end() {
        let last = |text: &str| {
            let log = OutputLog { owner: "m".to_owned(), last: String::new() };
            let log = Arc::new(Mutex::new(log));
            OutputLines { log: log.clone(), line: Vec::new() }.add(text.as_bytes());
            log.lock().last.clone()
        };
        let remarks = "WARNING: All log messages before absl::InitializeLog() is called\n\
                       I0000 00:00:1764106000.25 6941 port.cc:153] oneDNN custom operations are on\n";
        assert_eq!(last(remarks), "");
        let failure = "F0000 00:00:1764106000.25 6941 tensor.cc:9] Check failed\n";
        assert_eq!(last(&format!("{failure}{remarks}")), failure.trim());
        let trace = "*** Check failure stack trace: ***\n    @     0x7fb83a0ac2fc  TF_SessionRun\n\
                     PC: @     0x7fb834c28 (unknown)\n";
        assert_eq!(last(&format!("{failure}{trace}")), failure.trim());
        let smashed = "*** stack smashing detected ***: terminated\n";
        assert_eq!(last(smashed), smashed.trim());
        assert_eq!(last("It ran out of memory\n"), "It ran out of memory");
    }
}
