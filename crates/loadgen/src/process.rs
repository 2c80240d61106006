//! A Millpond server as a child process: started on free ports, watched, and ended with its parent.

use std::ffi::OsStr;
use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

use base::{Error, Result};
use bytes::Bytes;
use engine_onnx::OnnxEngine;
use engine_tensorflow::TensorFlowEngine;
use engine_torch::TorchEngine;

use crate::BenchEnv;
use crate::connection::{Endpoint, Template, call_once};
use crate::cpu_group::CpuGroup;
use crate::machine::{Usage, usage_of};
use crate::run_folder;
use crate::scrape::Scrape;
use crate::tls::TlsArgs;

/// Timeout of a start. The server converts, reads and warms models first.
const READY_TIMEOUT: Duration = Duration::from_secs(300);
/// Time between two checks of readiness.
const READY_POLL: Duration = Duration::from_millis(20);
/// Timeout of a graceful shutdown.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum size of a page of the server.
const PAGE_BYTES_MAX: u64 = 16 << 20;
/// Lines of the server's log that an error shows.
const LOG_LINES_SHOWN: usize = 12;

/// Flag for the directory of a server's collections.
const COLLECTIONS_FLAG: &str = "--collections-dir";

/// Parameters of a server's start.
#[derive(Clone, Debug)]
pub struct ServerPlan {
    /// Name of the log file in the cache directory.
    pub name: String,
    /// Arguments after `serve`, without ports and library.
    pub args: Vec<String>,
    /// True for a process group of its own, so that a Ctrl-C in the terminal reaches only this
    /// process.
    pub detached: bool,
    /// Program to start instead of [`BenchEnv::millpond`].
    pub program: Option<PathBuf>,
    /// Settings of the allocator in place of Millpond's own (jemalloc's MALLOC_CONF).
    pub malloc_conf: Option<&'static str>,
    /// Environment variables in addition to those of this process.
    pub variables: Vec<(&'static str, String)>,
    /// Preferred ports. Other free ports replace ports that are in use.
    pub ports: Option<ServerPorts>,
    /// Certificate of the server's issuer, if `args` enable TLS.
    pub ca: Option<PathBuf>,
}

impl ServerPlan {
    /// Returns a plan with any free ports, the group of this process and Millpond's allocator.
    pub fn new(name: impl Into<String>, args: Vec<String>) -> ServerPlan {
        ServerPlan {
            name: name.into(),
            args,
            detached: false,
            program: None,
            malloc_conf: None,
            variables: Vec::new(),
            ports: None,
            ca: None,
        }
    }
}

/// Ports of a server on 127.0.0.1. 0 is any.
#[derive(Clone, Copy, Debug, Default)]
pub struct ServerPorts {
    /// Port of the HTTP endpoints.
    pub http: u16,
    /// Port of the gRPC endpoints.
    pub grpc: u16,
}

/// A running server. Dropping it ends it.
#[derive(Debug)]
pub struct ServerProcess {
    child: Child,
    http: Endpoint,
    grpc: Endpoint,
    log: PathBuf,
    pages: ureq::Agent,
}

impl ServerProcess {
    /// Starts a server and waits until it is ready.
    ///
    /// # Errors
    /// If it cannot be started, ends, or is not ready in time. The message has the end of its log.
    pub fn start(env: &BenchEnv, plan: &ServerPlan) -> Result<ServerProcess> {
        ServerProcess::start_in(env, plan, None)
    }

    /// Starts a server like [`ServerProcess::start`], in a control group.
    pub fn start_in(
        env: &BenchEnv,
        plan: &ServerPlan,
        group: Option<&CpuGroup>,
    ) -> Result<ServerProcess> {
        let log = env.cache_dir.join("logs").join(format!("{}.log", plan.name));
        let ports = free_ports(plan.ports.unwrap_or_default())?;
        let [http, grpc] = endpoints(plan, ports)?;
        let path = plan.program.as_ref().unwrap_or(&env.millpond);
        let command = match (group, &plan.program, &env.program) {
            (Some(group), ..) => group.command(path),
            (None, None, Some(program)) => program.command(),
            (None, ..) => Command::new(path),
        };
        let child = spawn(command, env, plan, &log, ports)?;
        end_with_us(child.id());
        let mut server = ServerProcess { child, http, grpc, log, pages: agent() };
        server.wait_ready()?;
        Ok(server)
    }

    /// Returns the address of its gRPC endpoints.
    pub fn grpc(&self) -> Endpoint {
        self.grpc.clone()
    }

    /// Returns the address of its HTTP endpoints.
    pub fn http(&self) -> Endpoint {
        self.http.clone()
    }

    /// Returns the path of its log file.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Returns its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns its usage so far.
    pub fn usage(&self) -> Usage {
        usage_of(self.child.id())
    }

    /// Returns its metrics now.
    ///
    /// # Errors
    /// If it does not answer. The message has the end of its log.
    pub fn metrics(&self) -> Result<Scrape> {
        let page = self.page("/metrics").map_err(|error| {
            let what =
                format!("the server does not answer: {}; {}", error.message(), self.log_tail());
            Error::new(error.kind(), what)
        })?;
        Ok(Scrape::parse(&page))
    }

    /// Returns the text of an HTTP page of the server.
    ///
    /// # Errors
    /// If it does not answer or answers with an error status.
    pub fn page(&self, path: &str) -> Result<String> {
        if !self.http.is_tls() {
            return page(&self.pages, &format!("http://{}{path}", self.http.authority));
        }
        // The client of pages has no TLS.
        let answer = call_once(&self.http, &Template::get(&self.http, path)?, Bytes::new())?;
        Ok(String::from_utf8_lossy(&answer.body).into_owned())
    }

    /// Shuts the server down and waits for its end.
    ///
    /// # Errors
    /// `Internal` if it does not end in time or ends with an error, because graceful shutdown is
    /// part of the test.
    pub fn stop(mut self) -> Result<()> {
        signal(self.child.id(), rustix::process::Signal::TERM);
        let deadline = Instant::now() + STOP_TIMEOUT;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => {
                    return Err(Error::internal(format!(
                        "the server ended with {status}; {}",
                        self.log_tail()
                    )));
                }
                Ok(None) if Instant::now() < deadline => std::thread::sleep(READY_POLL),
                _ => {
                    return Err(Error::internal(format!(
                        "the server does not end; {}",
                        self.log_tail()
                    )));
                }
            }
        }
    }

    /// Waits until the server is ready.
    ///
    /// # Errors
    /// `Unavailable` if the server has ended. `DeadlineExceeded` after [`READY_TIMEOUT`].
    fn wait_ready(&mut self) -> Result<()> {
        let deadline = Instant::now() + READY_TIMEOUT;
        loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(Error::unavailable(format!(
                    "the server ended with {status}; {}",
                    self.log_tail()
                )));
            }
            if self.page("/v2/health/ready").is_ok() {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(Error::deadline(format!(
                    "the server is not ready after {} s; {}",
                    READY_TIMEOUT.as_secs(),
                    self.log_tail()
                )));
            }
            std::thread::sleep(READY_POLL);
        }
    }

    fn log_tail(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let tail = lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..].join("\n  ");
        format!("end of {}:\n  {tail}", self.log.display())
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let_go(self.child.id());
    }
}

/// Starts the server with its output in the file `log`. It listens at `ports` of 127.0.0.1 only.
fn spawn(
    mut command: Command,
    env: &BenchEnv,
    plan: &ServerPlan,
    log: &Path,
    ports: ServerPorts,
) -> Result<Child> {
    use std::os::unix::process::CommandExt as _;
    if let Some(parent) = log.parent() {
        std::fs::create_dir_all(parent).map_err(|e| Error::io(parent, &e))?;
    }
    let file = File::create(log).map_err(|e| Error::io(log, &e))?;
    let second = file.try_clone().map_err(|e| Error::io(log, &e))?;
    command
        .arg("serve")
        .args(&plan.args)
        .args(["--host", "127.0.0.1"])
        .args(["--http-port", &ports.http.to_string(), "--grpc-port", &ports.grpc.to_string()])
        .arg("--onnxruntime")
        .arg(OnnxEngine::find_library(&env.onnxruntime)?)
        .stdin(Stdio::null())
        .stdout(file)
        .stderr(second);
    // A library that is missing here is not needed, or the server names the model that needs it.
    let libraries = [
        ("--libtorch", TorchEngine::find_library(&env.libtorch)),
        ("--tensorflow", TensorFlowEngine::find_library(&env.tensorflow)),
    ];
    for (flag, library) in libraries {
        command.args(library.iter().flat_map(|path| [OsStr::new(flag), path.as_os_str()]));
    }
    // Another process may serve the user's own collections, which would keep this server from
    // starting.
    if !plan.args.iter().any(|argument| argument == COLLECTIONS_FLAG) {
        command.args([COLLECTIONS_FLAG, "none"]);
    }
    if let Some(settings) = plan.malloc_conf {
        command.env("MALLOC_CONF", settings);
    }
    command.envs(plan.variables.iter().map(|(name, value)| (name, value)));
    if plan.detached {
        command.process_group(0);
    }
    command.spawn().map_err(|e| Error::io(&env.millpond, &e).context("cannot start the server"))
}

/// Returns two free ports. They are the wanted ports if those were free a moment ago.
fn free_ports(wanted: ServerPorts) -> Result<ServerPorts> {
    let bind = |port| {
        TcpListener::bind(("127.0.0.1", port))
            .and_then(|held| Ok((held.local_addr()?.port(), held)))
    };
    let listen = |port| bind(port).or_else(|_| bind(0));
    // Both are held until both are known, so that they differ.
    let pair = listen(wanted.http).and_then(|http| Ok((http, listen(wanted.grpc)?)));
    let (http, grpc) =
        pair.map_err(|e| Error::exhausted("no free port on 127.0.0.1").caused_by(e))?;
    Ok(ServerPorts { http: http.0, grpc: grpc.0 })
}

/// Returns the addresses of HTTP and gRPC.
fn endpoints(plan: &ServerPlan, ports: ServerPorts) -> Result<[Endpoint; 2]> {
    let tls = TlsArgs { ca: plan.ca.clone(), ..TlsArgs::default() };
    let endpoint = |scheme: &str, port: u16| {
        let suffix = if plan.ca.is_some() { "s" } else { "" };
        Endpoint::parse(&format!("{scheme}{suffix}://127.0.0.1:{port}"), &tls)
    };
    Ok([endpoint("http", ports.http)?, endpoint("grpc", ports.grpc)?])
}

/// Returns a client for pages, with limits. It uses no proxy of the environment, because the server
/// is on this machine and a proxy cannot reach it.
fn agent() -> ureq::Agent {
    ureq::Agent::config_builder()
        .proxy(None)
        .timeout_global(Some(Duration::from_secs(10)))
        .max_idle_connections(1)
        .build()
        .into()
}

/// Gets a page's text.
fn page(agent: &ureq::Agent, url: &str) -> Result<String> {
    let unavailable = |e: ureq::Error| Error::unavailable(url).caused_by(e);
    let mut answer = agent.get(url).call().map_err(unavailable)?;
    answer.body_mut().with_config().limit(PAGE_BYTES_MAX).read_to_string().map_err(unavailable)
}

fn signal(pid: u32, signal: rustix::process::Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// Servers that must end with this process.
static CHILDREN: Mutex<Vec<u32>> = Mutex::new(Vec::new());
static WATCHING: Once = Once::new();

/// Undoes [`end_with_us`] for a process that has ended.
pub fn let_go(pid: u32) {
    CHILDREN.lock().unwrap_or_else(PoisonError::into_inner).retain(|&child| child != pid);
}

/// Ends process `pid` if a signal ends this process, which runs no destructors then.
pub fn end_with_us(pid: u32) {
    CHILDREN.lock().unwrap_or_else(PoisonError::into_inner).push(pid);
    start_watch();
}

/// Starts the thread that ends children and removes directories if a signal ends this process.
/// Returns once it waits for signals.
pub(crate) fn start_watch() {
    WATCHING.call_once(|| {
        let (sender, waits) = std::sync::mpsc::channel();
        let watch = move || watch_signals(&sender);
        if std::thread::Builder::new().name("signals".into()).spawn(watch).is_ok() {
            // An error means that the thread cannot listen to signals and has ended.
            let _ = waits.recv();
        }
    });
}

/// `HANDLED` is true if the caller of [`interrupted`] handles interrupts, `INTERRUPTED` once one
/// has come.
static HANDLED: AtomicBool = AtomicBool::new(false);
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Makes the first interrupt from now on only set [`interrupted`] to true. The second ends the
/// process. A hangup and SIGTERM count as interrupts.
pub fn handle_interrupts() {
    HANDLED.store(true, Ordering::SeqCst);
}

/// Returns true after an interrupt.
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::SeqCst)
}

/// Returns true if this process ignores hangups, as a program that `nohup` starts does.
fn ignores_hangups() -> bool {
    signal_mask("SigIgn:") & HANGUP_BIT != 0
}

/// Exit code after SIGQUIT, which ends this process at once.
const QUIT_CODE: i32 = 131;

/// Bit of SIGHUP, the first signal, in a mask of signals.
const HANGUP_BIT: u64 = 1;

/// Returns a mask of signals of this process, or 0 if it cannot be read.
fn signal_mask(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix(name));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Waits for `signal`. Without a signal, waits for ever.
async fn received(signal: Option<&mut tokio::signal::unix::Signal>) {
    match signal {
        Some(signal) => {
            let _ = signal.recv().await;
        }
        None => std::future::pending().await,
    }
}

/// Waits for signals, after it has sent to `waits`.
fn watch_signals(waits: &std::sync::mpsc::Sender<()>) {
    use tokio::signal::unix::{SignalKind, signal as listen};
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return;
    };
    runtime.block_on(async {
        let (Ok(mut interrupt), Ok(mut terminate)) =
            (listen(SignalKind::interrupt()), listen(SignalKind::terminate()))
        else {
            return;
        };
        // Ctrl-\ reaches no server in a process group of its own.
        let mut quit = listen(SignalKind::quit()).ok();
        // A server reads its files again at a hangup. It would stay when the terminal is closed.
        let mut hangup = if ignores_hangups() { None } else { listen(SignalKind::hangup()).ok() };
        let _ = waits.send(());
        loop {
            let code = tokio::select! {
                _ = interrupt.recv() => 130,
                _ = terminate.recv() => 143,
                () = received(hangup.as_mut()) => 129,
                () = received(quit.as_mut()) => QUIT_CODE,
            };
            let is_handled = code != QUIT_CODE && HANDLED.load(Ordering::SeqCst);
            if is_handled && !INTERRUPTED.swap(true, Ordering::SeqCst) {
                continue;
            }
            // The lock is kept until the exit. An owner that sees its child end waits in `let_go`,
            // so that this process ends with `code` and without the owner's error.
            let children = CHILDREN.lock().unwrap_or_else(PoisonError::into_inner);
            children.iter().for_each(|&pid| signal(pid, rustix::process::Signal::KILL));
            run_folder::remove_all();
            std::process::exit(code);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Variable that makes [`hangup_helper`] run.
    const HELPER: &str = "LOADGEN_TEST_HANGUP_HELPER";

    /// Process of the next test: starts a child, prints its id and waits for a signal.
    #[test]
    fn hangup_helper() {
        if std::env::var_os(HELPER).is_none() {
            return;
        }
        let mut child = Command::new("/bin/sleep").arg("600").spawn().unwrap();
        end_with_us(child.id());
        let _ = (0..1000).find(|_| {
            std::thread::sleep(READY_POLL);
            signal_mask("SigCgt:") & HANGUP_BIT != 0
        });
        crate::println!("child {}", child.id());
        child.wait().unwrap();
        // As each owner of a child. Without it, this process can end before the signal's exit code.
        let_go(child.id());
    }

    #[test]
    fn a_hangup_ends_children() {
        assert_children_end(rustix::process::Signal::HUP, 129);
    }

    #[test]
    fn a_quit_ends_children() {
        assert_children_end(rustix::process::Signal::QUIT, 131);
    }

    fn assert_children_end(by: rustix::process::Signal, code: i32) {
        use std::io::{BufRead as _, BufReader};

        // Tests that `nohup` starts ignore hangups, and so would the helper.
        let mut helper = Command::new("env")
            .arg("--default-signal=HUP")
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "process::tests::hangup_helper", "--nocapture"])
            .env(HELPER, "1")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(helper.stdout.take().unwrap()).lines();
        let child: u32 = lines
            .find_map(|line| line.unwrap().split_once("child ")?.1.trim().parse().ok())
            .unwrap();
        signal(helper.id(), by);
        assert_eq!(helper.wait().unwrap().code(), Some(code));
        let runs = || {
            let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
            !stat.is_empty() && !stat.contains(") Z ")
        };
        let ended = (0..1000).any(|_| {
            std::thread::sleep(READY_POLL);
            !runs()
        });
        assert!(ended, "the child {child} still runs");
    }

    #[test]
    fn pages_are_read_without_a_proxy() {
        const CHILD: &str = "LOADGEN_TEST_PROXY_CHILD";
        if std::env::var_os(CHILD).is_some() {
            assert!(agent().config().proxy().is_none());
            return;
        }
        // The client reads the variables of its process.
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "process::tests::pages_are_read_without_a_proxy"])
            .env(CHILD, "1")
            .env("ALL_PROXY", "http://127.0.0.1:1")
            .output()
            .unwrap();
        let output = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success() && output.contains("1 passed"), "{output}");
    }

    #[test]
    fn ports_differ() {
        let held = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let taken = held.local_addr().unwrap().port();
        let keeps_a_free_port = |_: u32| {
            let free = free_ports(ServerPorts::default()).unwrap();
            assert_ne!(free.http, free.grpc);
            let other = free_ports(ServerPorts { http: taken, ..free }).unwrap();
            assert_ne!(other.http, taken);
            other.grpc == free.grpc
        };
        // Other programs can take a port in between.
        assert!((0..100).any(keeps_a_free_port));
    }

    #[test]
    fn a_server_that_does_not_answer_is_reported_with_its_log() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("server.log");
        std::fs::write(&log, "ERROR out of memory\n").unwrap();
        // A socket that does not listen refuses connections, and keeps its port.
        let refusing = tokio::net::TcpSocket::new_v4().unwrap();
        refusing.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = refusing.local_addr().unwrap().to_string();
        let server = ServerProcess {
            child: Command::new("/bin/true").spawn().unwrap(),
            http: Endpoint::new(crate::connection::Transport::Http, address.clone()),
            grpc: Endpoint::new(crate::connection::Transport::Grpc, address),
            log,
            pages: agent(),
        };
        let error = server.metrics().unwrap_err();
        assert!(error.message().starts_with("the server does not answer: "), "{error}");
        assert!(error.message().ends_with("server.log:\n  ERROR out of memory"), "{error}");
    }

    #[test]
    fn a_program_that_ends_is_reported_with_its_output() {
        let dir = tempfile::tempdir().unwrap();
        let env = BenchEnv {
            millpond: "/bin/echo".into(),
            onnxruntime: engine::LibrarySearch {
                explicit: Some("/bin/echo".into()),
                ..Default::default()
            },
            cache_dir: dir.path().into(),
            ..Default::default()
        };
        let plan = ServerPlan::new("echo", vec!["models".into()]);
        let error = ServerProcess::start(&env, &plan).unwrap_err();
        assert!(error.message().contains("serve models --host 127.0.0.1"), "{error}");
        assert!(error.message().contains("--collections-dir none"), "{error}");
    }

    #[test]
    fn servers_run_the_file_of_this_process() {
        let dir = tempfile::tempdir().unwrap();
        let env = BenchEnv {
            millpond: "/replaced/by/an/upgrade".into(),
            program: Some(os::ChildProgram::running().unwrap()),
            onnxruntime: engine::LibrarySearch {
                explicit: Some("/bin/echo".into()),
                ..Default::default()
            },
            cache_dir: dir.path().into(),
            ..Default::default()
        };
        let error = ServerProcess::start(&env, &ServerPlan::new("own", Vec::new())).unwrap_err();
        // The program of the tests has no such option.
        assert!(error.message().contains("Unrecognized option"), "{error}");
    }
}
