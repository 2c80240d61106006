//! The worker process: opens one model and answers runs until the server closes its sockets. A
//! spare process first opens the library of an engine, and waits for its model.

use std::io::{Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use base::units::format_bytes;
use base::{Error, ErrorKind, NamedTensor, Result};
use bytes::Bytes;
use engine::layout::{Artifact, MANIFEST_NAME};
use engine::{BoundTensor, Engine, LoadRequest, Session};
use memory::{ParameterStore, PoolConfig, SlotPool, StoreConfig};
use os::Rate;
use os::background::{Attempt, BackgroundRunner};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use crate::message::{
    LIBRARY_REQUEST, LibraryMessage, LoadMessage, ModelFacts, RunMessage, WorkerMemory,
    encode_library_opened, encode_loaded, encode_outputs,
};
use crate::wire::RANK_MAX;
use crate::{RUNS_MAX, frame};

/// A load at idle priority continues at ordinary priority after it has waited this long for a core.
const STARVATION_LIMIT: Duration = Duration::from_secs(5);
/// In this process, the opening of a library stays on one thread and keeps its priority. A second
/// thread would wait for the first one, which cannot be stopped inside the library. The server
/// limits the time.
const LIBRARY_STARVATION_LIMIT: Duration = Duration::MAX;
/// Value of `oom_score_adj`: if memory is short, the system ends this process before the server.
const OUT_OF_MEMORY_SCORE: &str = "500";
/// Names in errors about the memory of a GPU. CUDA and cuBLAS write the first one.
const GPU_LIBRARIES: [&str; 3] = ["CUDA", "CUDNN_STATUS_", "CUFFT_"];

/// Runs a worker process, whose standard input is the socket of the server. `open` returns the
/// engine of a name. A spare process calls it twice. Returns if the server has ended, or if the
/// model cannot be opened.
///
/// # Errors
/// `FailedPrecondition` if the process was not started by a server. The errors of the load go to
/// the server.
pub fn run_worker(open: impl Fn(&str) -> Result<Arc<dyn Engine>>) -> Result<()> {
    // If the server has ended before this, its end of the socket is closed.
    let with_parent = Some(rustix::process::Signal::KILL);
    let _ = rustix::process::set_parent_process_death_signal(with_parent);
    os::process::ignore_termination();
    os::process::end_on_faults();
    let _ = std::fs::write("/proc/self/oom_score_adj", OUT_OF_MEMORY_SCORE);
    let no_server = |_| Error::precondition("this command is run by a server only");
    let stdin = std::io::stdin().as_fd().try_clone_to_owned().map_err(no_server)?;
    let mut control = UnixStream::from(stdin);
    let mut request = receive_request(&control).map_err(no_server)?;
    let disconnected = |e: std::io::Error| Error::unavailable("the server has ended").caused_by(e);
    if request.kind == Some(LIBRARY_REQUEST) {
        let Some(message) = frame::read(&mut control).map_err(disconnected)? else { return Ok(()) };
        let opened = LibraryMessage::decode(&message)
            .and_then(|message| open_library(open(&message.engine)?, message.idle));
        frame::write(&mut control, encode_library_opened(&opened)).map_err(disconnected)?;
        request = receive_request(&control).map_err(disconnected)?;
    }
    let Some(message) = frame::read(&mut control).map_err(disconnected)? else { return Ok(()) };
    let mut run_memory = None;
    let loaded = LoadMessage::decode(&message).and_then(|message| {
        let engine = open(&message.engine)?;
        run_memory = message.options.run_memory;
        load(engine, message)
    });
    // The session stays alive until the end of the process.
    let serves =
        reply_to_load(&loaded, request.sockets, run_memory, &mut control).map_err(disconnected)?;
    if !serves {
        return Ok(());
    }
    // The server sends nothing more.
    let _ = control.read(&mut [0]);
    // Ends running threads without the engine's clean-up, which a running model may not survive.
    os::process::exit_now(0)
}

/// Starts the threads that answer runs, limits the memory of the runs, and then sends the reply to
/// the load. Returns true if the model serves.
///
/// The server sends runs once it has the reply. If the limit were set later, it would count the
/// memory of a run that is already running as memory of the model.
fn reply_to_load(
    loaded: &Result<Arc<dyn Session>>,
    sockets: Vec<OwnedFd>,
    run_memory: Option<u64>,
    control: &mut impl Write,
) -> std::io::Result<bool> {
    let facts = loaded.as_ref().map_err(Clone::clone).and_then(|session| {
        let facts = ModelFacts::of(&**session);
        start_runs(session, sockets, run_memory)?;
        Ok(facts)
    });
    frame::write(control, encode_loaded(&facts))?;
    Ok(facts.is_ok())
}

/// Starts a thread for the runs of each socket, and limits their memory.
fn start_runs(
    session: &Arc<dyn Session>,
    sockets: Vec<OwnedFd>,
    run_memory: Option<u64>,
) -> Result<()> {
    for (number, socket) in sockets.into_iter().enumerate() {
        let session = session.clone();
        os::thread::spawn(format!("run-{number}"), move || {
            answer(&*session, UnixStream::from(socket), run_memory)
        })?;
    }
    // After the stacks of these threads were reserved.
    run_memory.map_or(Ok(()), os::process::limit_growth)
}

/// A request of the server.
struct ServerRequest {
    /// First byte. `None` if the server has closed its socket.
    kind: Option<u8>,
    sockets: Vec<OwnedFd>,
}

/// Receives the kind of a request and the sockets that come with it.
fn receive_request(control: &UnixStream) -> std::io::Result<ServerRequest> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(RUNS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut into = [std::io::IoSliceMut::new(&mut byte)];
    let received = recvmsg(control, &mut into, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let sockets = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(sockets) => Some(sockets),
        _ => None,
    });
    let sockets = sockets.flatten().collect();
    let kind = byte.first().copied().filter(|_| received.bytes > 0);
    Ok(ServerRequest { kind, sockets })
}

/// Opens the library of `engine` on another thread, at idle or ordinary priority. The calling
/// thread keeps its priority, for the load.
fn open_library(engine: Arc<dyn Engine>, idle: bool) -> Result<()> {
    // A thread of idle or low priority cannot start one of ordinary priority. LibTorch starts
    // threads here that serve runs later. Because of the runner, they have ordinary priority.
    let what = "opening a library";
    let mut runner = BackgroundRunner::new("library", what, LIBRARY_STARVATION_LIMIT);
    let stop = Arc::new(AtomicBool::new(false));
    let open = move |_: &Attempt| engine.open_library();
    if idle { runner.run(what, &stop, open) } else { runner.run_ordinary(what, &stop, open) }
}

fn load(engine: Arc<dyn Engine>, message: LoadMessage) -> Result<Arc<dyn Session>> {
    let stop = Arc::new(AtomicBool::new(false));
    if !message.background {
        return open(&*engine, &message, &stop);
    }
    let mut runner = BackgroundRunner::new("load", "loading", STARVATION_LIMIT);
    let what = format!("loading {}", message.model);
    runner.run(&what, &stop, move |attempt| open(&*engine, &message, &attempt.stop))
}

/// Loads the model. A panic of the engine becomes an error.
fn open(
    engine: &dyn Engine,
    message: &LoadMessage,
    stop: &Arc<AtomicBool>,
) -> Result<Arc<dyn Session>> {
    let request = LoadRequest {
        model: message.model.as_str().into(),
        graph: message.graph.clone(),
        parameters: parameters(&message.graph, &message.memory, stop)?,
        arena: None,
        options: message.options.clone(),
        stop: stop.clone(),
    };
    let opened = catch_unwind(AssertUnwindSafe(|| engine.load(&request)));
    opened.unwrap_or_else(|_| Err(Error::internal("the load panicked"))).map(Arc::from)
}

/// Reads the parameters of a published version. A graph without a manifest beside it has none.
fn parameters(graph: &Path, memory: &WorkerMemory, stop: &AtomicBool) -> Result<Vec<BoundTensor>> {
    let Some(dir) = graph.parent().filter(|dir| dir.join(MANIFEST_NAME).is_file()) else {
        return Ok(Vec::new());
    };
    let artifact = Artifact::open(dir)?;
    let Some(weights) = artifact.weights().filter(|_| artifact.parameter_bytes() > 0) else {
        return Ok(Vec::new());
    };
    let rate = |bytes: u64| if bytes == 0 { Rate::unlimited() } else { Rate::per_second(bytes) };
    let chunks = artifact.chunks()?;
    let pool = SlotPool::new(PoolConfig {
        bytes_max: os::process::machine()?.total,
        huge_pages: memory.huge_pages,
        fault_rate: rate(memory.fault_rate),
    })?;
    let config = StoreConfig { read_rate: rate(memory.read_rate), direct: memory.direct };
    let loaded = ParameterStore::new(pool, config).load(&weights, &chunks, stop)?;
    artifact.bind(loaded)
}

/// Answers the runs of one socket until it is closed. `run_memory` is the limit of their memory.
fn answer(session: &dyn Session, mut socket: UnixStream, run_memory: Option<u64>) {
    while let Ok(Some(body)) = frame::read(&mut socket) {
        let outcome = run(session, body).map_err(|error| name_limit(error, run_memory));
        if let Err(error) = &outcome
            && session.needs_new_process()
        {
            end_process(error);
        }
        let written = frame::write(&mut socket, encode_outputs(&outcome));
        let written = match written {
            Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => {
                let refused = Err(Error::invalid(format!("the outputs: {error}")));
                frame::write(&mut socket, encode_outputs(&refused))
            }
            written => written,
        };
        if written.is_err() {
            return;
        }
    }
}

/// Ends this process without a reply, because none of its runs can succeed any more. The server
/// reports the line as the reason, starts another process, and runs joined requests again there.
fn end_process(error: &Error) -> ! {
    // A failure to write has no remedy here.
    let _ = writeln!(std::io::stderr(), "{error}");
    os::process::exit_now(1)
}

/// Names the limit of the memory of runs in the error of a run that lacks memory.
fn name_limit(error: Error, run_memory: Option<u64>) -> Error {
    // The limit does not count the memory of a GPU.
    let of_gpu = GPU_LIBRARIES.iter().any(|name| error.message().contains(name));
    let in_process = error.kind() == ErrorKind::ResourceExhausted && !of_gpu;
    match run_memory.filter(|_| in_process) {
        Some(bytes) => error.context(format_args!(
            "the run needs more memory than run-memory = \"{}\" in the model's millpond.toml allows",
            format_bytes(bytes)
        )),
        None => error,
    }
}

fn run(session: &dyn Session, body: Bytes) -> Result<Vec<NamedTensor>> {
    let RunMessage { signature, outputs, inputs } = RunMessage::decode(body)?;
    let run = || match signature {
        Some(number) => session.run_signature(number, &inputs, &outputs),
        None => session.run(&inputs, &outputs),
    };
    let outputs = catch_unwind(AssertUnwindSafe(run))
        .unwrap_or_else(|_| Err(Error::internal("the engine panicked in a worker process")))?;
    check_axes(&outputs)?;
    Ok(outputs)
}

/// Checks the number of axes of each output. More axes count as damage in the server, which ends
/// the process, and a request may choose the shape of an output.
///
/// # Errors
/// `InvalidArgument` naming the output.
fn check_axes(outputs: &[NamedTensor]) -> Result<()> {
    for NamedTensor { name, tensor } in outputs {
        let rank = tensor.shape().len();
        if rank > RANK_MAX {
            return Err(Error::invalid(format!(
                "output \"{name}\" has {rank} axes; an isolated model can return at most {RANK_MAX}"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::{Sender, bounded};
    use engine::Capabilities;
    use engine::fake::FakeEngine;
    use rustix::process::{Resource, getrlimit};

    /// The fake, whose library starts a thread when it opens.
    struct ThreadedEngine {
        fake: FakeEngine,
        opened: Sender<IdleThreads>,
    }

    /// Threads that have idle priority.
    #[derive(Debug, PartialEq)]
    struct IdleThreads {
        opens_library: bool,
        belongs_to_library: bool,
    }

    impl Engine for ThreadedEngine {
        fn name(&self) -> &'static str {
            self.fake.name()
        }

        fn version(&self) -> String {
            self.fake.version()
        }

        fn capabilities(&self) -> Capabilities {
            self.fake.capabilities()
        }

        fn open_library(&self) -> Result<()> {
            let belongs_to_library =
                os::background::at_ordinary_priority(os::thread::has_idle_priority)?;
            let opens_library = os::thread::has_idle_priority();
            self.opened.send(IdleThreads { opens_library, belongs_to_library }).unwrap();
            Ok(())
        }

        fn load(&self, request: &LoadRequest) -> Result<Box<dyn Session>> {
            self.fake.load(request)
        }
    }

    #[test]
    fn threads_of_a_library_have_ordinary_priority() {
        for idle in [true, false] {
            let (opened, threads) = bounded(1);
            let engine = Arc::new(ThreadedEngine { fake: FakeEngine::new(), opened });
            open_library(engine, idle).unwrap();
            let expected = IdleThreads { opens_library: idle, belongs_to_library: false };
            assert_eq!(threads.recv(), Ok(expected));
        }
    }

    #[test]
    fn a_full_gpu_does_not_name_the_limit_of_runs() {
        let limit = Some(1 << 30);
        for text in [
            "CUDA out of memory",
            "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
            "cuFFT error: CUFFT_ALLOC_FAILED",
        ] {
            assert_eq!(name_limit(Error::exhausted(text), limit).message(), text);
        }
        let short = name_limit(Error::exhausted("std::bad_alloc"), limit);
        assert!(short.message().contains("run-memory"), "{short}");
    }

    /// Records the limit of the memory of this process at each write.
    #[derive(Default)]
    struct LimitRecorder(Vec<Option<u64>>);

    impl Write for LimitRecorder {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.push(getrlimit(Resource::Data).current);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn memory_of_runs_is_limited_before_the_reply() {
        let dir = tempfile::tempdir().unwrap();
        let graph = dir.path().join("graph");
        let text = "millpond-fake 1\ninput x float32 n\noutput y float32 n\ny = echo x\n";
        std::fs::write(&graph, text).unwrap();
        let request = LoadRequest { graph, ..LoadRequest::default() };
        let loaded: Result<Arc<dyn Session>> = FakeEngine::new().load(&request).map(Arc::from);
        // More than all tests of this process need.
        let run_memory = Some(1 << 40);
        let mut control = LimitRecorder::default();
        assert!(reply_to_load(&loaded, Vec::new(), run_memory, &mut control).unwrap());
        assert!(matches!(control.0[..], [Some(_), ..]), "{:?}", control.0);
    }
}
