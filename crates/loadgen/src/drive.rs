//! Load on a server: an open loop that sends when requests are due, or a closed loop of waiting
//! clients.
//!
//! Each client thread runs its own single-threaded runtime for pacing, sending and receiving. The
//! open loop never waits for an answer before it sends the next request. If more than
//! [`DrivePlan::in_flight_max`] answers are outstanding, further requests count as failed. So a
//! stalled server shows as failures and not as a quieter client.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::task::LocalSet;

use base::{Error, Result};

use crate::connection::{Connection, Endpoint, RawResponse, Template, Transport};
use crate::schedule::{ArrivalSchedule, Arrivals};
use crate::timer::Timer;

/// Default time for which a finished schedule waits for the last answers.
const DRAIN: Duration = Duration::from_secs(20);
/// Priority of client threads. A real client would not compete for the server's cores, so it is
/// woken at once if the system allows it. Without the permission, the run continues at normal
/// priority.
const CLIENT_NICE: i32 = -15;
/// Maximum number of client threads.
pub const THREADS_MAX: usize = 64;
/// Maximum number of connections.
pub const CONNECTIONS_MAX: usize = 4096;

/// Reason of a request that was not sent because [`DrivePlan::in_flight_max`] answers were
/// outstanding.
pub const NO_ROOM: &str = "more answers are missing than may be in flight";

/// Verdict on an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// As expected.
    Right,
    /// An answer, but not the right one.
    Wrong,
    /// No answer: an error status, a broken connection, or too many outstanding answers.
    Failed,
}

/// Judge of answers. It runs on the client thread, so it must be quick.
pub trait Judge: Send + Sync {
    /// Judges the answer to body `shot`. Returns the verdict, and the version that answered (0 if
    /// unknown).
    fn judge(&self, shot: usize, answer: &RawResponse) -> (Judgement, u64);
}

/// One finished request.
#[derive(Clone, Copy, Debug)]
pub struct RequestSample {
    /// Time at which the request was due, since [`DrivePlan::start`].
    pub due: Duration,
    /// Time from `due` to the answer.
    pub latency: Duration,
    /// Verdict on the answer.
    pub verdict: Judgement,
    /// Version that answered, or 0 if unknown.
    pub version: u64,
}

/// Receiver of samples from all client threads.
pub trait SampleSink: Send + Sync {
    /// Records one finished request, with the reason of a failure.
    fn record(&self, sample: RequestSample, reason: Option<&str>);

    /// Runs in an open loop just before a request is sent that was due `late` ago.
    fn sending(&self, _late: Duration) {}
}

/// Times at which requests are sent.
#[derive(Clone, Copy, Debug)]
pub enum LoadLoop {
    /// At times that do not depend on answers.
    Open {
        /// Distribution of the gaps.
        arrivals: Arrivals,
        /// Requests a second.
        rate: f64,
        /// Seed of the gaps.
        seed: u64,
    },
    /// Each client sends its next request when it has its answer.
    Closed {
        /// Number of clients.
        clients: usize,
    },
}

/// Parameters of a run.
#[derive(Clone)]
pub struct DrivePlan {
    /// Server.
    pub endpoint: Endpoint,
    /// Parts that all requests share.
    pub template: Template,
    /// Bodies, used in turn.
    pub shots: Arc<[Bytes]>,
    /// Times at which requests are sent.
    pub pace: LoadLoop,
    /// Moment at which the first request is due.
    pub start: Instant,
    /// Time for which requests are sent.
    pub duration: Duration,
    /// Connections of all threads together.
    pub connections: usize,
    /// Client threads.
    pub threads: usize,
    /// Open loop: maximum number of outstanding answers of all threads together.
    pub in_flight_max: usize,
    /// Time for which a finished schedule waits for the last answers. Requests without an answer
    /// then count as failed.
    pub drain: Duration,
    /// True if clients never sleep while they wait. This excludes the client's own wake-up, which
    /// is slow on a virtual machine, from the latency. It takes a whole core.
    pub spin: bool,
    /// Set to end the run early.
    pub stop: Arc<AtomicBool>,
}

impl DrivePlan {
    /// Creates a plan with one thread that starts now.
    pub fn new(
        endpoint: Endpoint,
        template: Template,
        shots: Arc<[Bytes]>,
        pace: LoadLoop,
        duration: Duration,
    ) -> DrivePlan {
        let connections = match pace {
            LoadLoop::Open { .. } => 8,
            LoadLoop::Closed { clients } => clients,
        };
        DrivePlan {
            endpoint,
            template,
            shots,
            pace,
            start: Instant::now(),
            duration,
            connections,
            threads: 1,
            in_flight_max: 1024,
            drain: DRAIN,
            spin: false,
            stop: Arc::default(),
        }
    }

    /// Checks that the numbers of threads, connections and clients are allowed, and that there is a
    /// request.
    fn check(&self) -> Result<()> {
        let bounded = |what: &str, value: usize, max: usize| {
            let message = format!("{what} must be 1 to {max}, not {value}");
            if (1..=max).contains(&value) { Ok(()) } else { Err(Error::invalid(message)) }
        };
        bounded("client threads", self.threads, THREADS_MAX)?;
        bounded("connections", self.connections, CONNECTIONS_MAX)?;
        if let LoadLoop::Closed { clients } = self.pace {
            bounded("clients", clients, CONNECTIONS_MAX)?;
        }
        if self.shots.is_empty() {
            return Err(Error::invalid("there is no request to send"));
        }
        Ok(())
    }

    fn finished(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// Runs `plan` to its end on threads of its own.
///
/// # Errors
/// `Unavailable` if the server cannot be reached at the start. Later failures are samples.
pub fn drive(plan: &DrivePlan, judge: &Arc<dyn Judge>, sink: &Arc<dyn SampleSink>) -> Result<()> {
    plan.check()?;
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..plan.threads)
            .map(|index| {
                let plan = plan.clone();
                let judge = judge.clone();
                let sink = sink.clone();
                std::thread::Builder::new()
                    .name(format!("client-{index}"))
                    .spawn_scoped(scope, move || client_thread(plan, index, judge, sink))
                    .map_err(|e| Error::exhausted("cannot start a client thread").caused_by(e))
            })
            .collect::<Result<_>>()?;
        clients.into_iter().try_for_each(|thread| {
            thread.join().unwrap_or_else(|_| Err(Error::internal("a client thread panicked")))
        })
    })
}

/// Runs `work` beside a client that never sleeps, as with [`DrivePlan::spin`], and sends nothing.
///
/// # Errors
/// `ResourceExhausted` if there is no thread for the client.
pub fn beside_a_client_that_spins<T>(work: impl FnOnce() -> T) -> Result<T> {
    struct StopOnDrop<'a>(&'a AtomicBool);
    impl Drop for StopOnDrop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let stopped = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stop = StopOnDrop(&stopped);
        let spin = || {
            LocalSet::new().block_on(&client_runtime()?, async {
                while !stopped.load(Ordering::Relaxed) {
                    tokio::task::yield_now().await;
                }
            });
            Ok(())
        };
        let client = std::thread::Builder::new()
            .name("client".into())
            .spawn_scoped(scope, spin)
            .map_err(|e| Error::exhausted("cannot start a client thread").caused_by(e))?;
        let done = work();
        drop(stop);
        client.join().unwrap_or_else(|_| Err(Error::internal("a client thread panicked")))?;
        Ok(done)
    })
}

/// Builds the runtime of a client thread, and sets the thread's priority.
fn client_runtime() -> Result<tokio::runtime::Runtime> {
    let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), CLIENT_NICE);
    os::thread::set_serving_timers();
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Error::exhausted("cannot start a client runtime").caused_by(e))
}

/// Runs the part `index` of the load on the calling thread until the plan ends.
fn client_thread(
    plan: DrivePlan,
    index: usize,
    judge: Arc<dyn Judge>,
    sink: Arc<dyn SampleSink>,
) -> Result<()> {
    let runtime = client_runtime()?;
    let local = LocalSet::new();
    local.block_on(&runtime, async move {
        let client = Rc::new(ClientThread::connect(plan, index, judge, sink).await?);
        if client.plan.spin {
            // A task that is always ready keeps the runtime from parking; it checks its sockets in
            // between.
            tokio::task::spawn_local(async {
                loop {
                    tokio::task::yield_now().await;
                }
            });
        }
        match client.plan.pace {
            LoadLoop::Open { arrivals, rate, seed } => {
                client.open_loop(ArrivalSchedule::new(arrivals, rate, seed)).await
            }
            LoadLoop::Closed { clients } => client.closed_loop(clients).await,
        }
    })
}

/// Returns the share of part `index` if `total` items are split into `parts`.
fn share(total: usize, parts: usize, index: usize) -> usize {
    total / parts + usize::from(index < total % parts)
}

/// One thread of a run.
struct ClientThread {
    plan: DrivePlan,
    index: usize,
    judge: Arc<dyn Judge>,
    sink: Arc<dyn SampleSink>,
    /// Maximum number of connections of this thread that requests share.
    connections: usize,
    idle: RefCell<Vec<Connection>>,
    next: Cell<usize>,
    in_flight: Cell<usize>,
    freed: Notify,
}

impl ClientThread {
    /// Opens the connections of the client thread `index`.
    async fn connect(
        plan: DrivePlan,
        index: usize,
        judge: Arc<dyn Judge>,
        sink: Arc<dyn SampleSink>,
    ) -> Result<ClientThread> {
        let connections = share(plan.connections, plan.threads, index).max(1);
        let mut idle = Vec::with_capacity(connections);
        for _ in 0..connections {
            idle.push(Connection::open(&plan.endpoint).await?);
        }
        Ok(ClientThread {
            plan,
            index,
            judge,
            sink,
            connections,
            idle: RefCell::new(idle),
            next: Cell::new(index),
            in_flight: Cell::new(0),
            freed: Notify::new(),
        })
    }

    /// Sends a request at each moment of this thread's part of `schedule`. A request that finds too
    /// many outstanding answers counts as failed.
    async fn open_loop(self: &Rc<Self>, schedule: ArrivalSchedule) -> Result<()> {
        let timer = Timer::new()?;
        let in_flight_max = share(self.plan.in_flight_max, self.plan.threads, self.index).max(1);
        for due in schedule.skip(self.index).step_by(self.plan.threads) {
            if due >= self.plan.duration || self.plan.finished() {
                break;
            }
            timer.until(self.plan.start + due).await?;
            if self.in_flight.get() >= in_flight_max {
                self.record_failure(due, NO_ROOM);
                continue;
            }
            self.sink.sending(self.plan.start.elapsed().saturating_sub(due));
            self.in_flight.set(self.in_flight.get() + 1);
            let client = self.clone();
            let shot = self.next_shot();
            tokio::task::spawn_local(async move {
                client.fire(due, shot).await;
                client.in_flight.set(client.in_flight.get() - 1);
                client.freed.notify_one();
            });
        }
        self.drain().await;
        Ok(())
    }

    /// Waits for outstanding answers. Answers that are still missing at its end are recorded as
    /// failed.
    async fn drain(&self) {
        let all = async {
            while self.in_flight.get() > 0 {
                self.freed.notified().await;
            }
        };
        if tokio::time::timeout(self.plan.drain, all).await.is_err() {
            self.record_unanswered(self.plan.start.elapsed());
        }
    }

    /// Runs this thread's part of `clients` clients. Each sends its next request after the answer.
    async fn closed_loop(self: &Rc<Self>, clients: usize) -> Result<()> {
        let mine = share(clients, self.plan.threads, self.index);
        let tasks: Vec<_> = (0..mine)
            .map(|_| {
                let client = self.clone();
                tokio::task::spawn_local(async move {
                    // `elapsed` is zero until the start. Requests of that time would all be due at
                    // the start, and take no time.
                    tokio::time::sleep_until(client.plan.start.into()).await;
                    loop {
                        let due = client.plan.start.elapsed();
                        if due >= client.plan.duration || client.plan.finished() {
                            break;
                        }
                        let shot = client.next_shot();
                        client.in_flight.set(client.in_flight.get() + 1);
                        client.fire(due, shot).await;
                        client.in_flight.set(client.in_flight.get() - 1);
                    }
                })
            })
            .collect();
        let all = async {
            for task in tasks {
                // If the sink panicked, the request has no sample. The other tasks continue.
                let _ = task.await;
            }
        };
        let wait = self.plan.start.saturating_duration_since(Instant::now());
        let limit = wait.saturating_add(self.plan.duration).saturating_add(self.plan.drain);
        if tokio::time::timeout(limit, all).await.is_err() {
            self.record_unanswered(self.plan.duration);
        }
        Ok(())
    }

    /// Returns the index of the next request. The threads take turns through the list.
    fn next_shot(&self) -> usize {
        let shot = self.next.get();
        self.next.set(shot.wrapping_add(self.plan.threads));
        shot % self.plan.shots.len()
    }

    /// Sends request `shot`, judges the answer, and records the latency since `due`.
    async fn fire(&self, due: Duration, shot: usize) {
        let answer = self.call(shot).await;
        let latency = self.plan.start.elapsed().saturating_sub(due);
        match answer {
            Ok(answer) => {
                let judged = catch_unwind(AssertUnwindSafe(|| self.judge.judge(shot, &answer)));
                match judged {
                    Ok((verdict, version)) => {
                        self.sink.record(RequestSample { due, latency, verdict, version }, None);
                    }
                    // The task would end, and the request would be in no count.
                    Err(_) => self.record_failure(due, "the check of the answer panicked"),
                }
            }
            Err(error) => {
                let sample = RequestSample { due, latency, verdict: Judgement::Failed, version: 0 };
                self.sink.record(sample, Some(error.message()));
            }
        }
    }

    async fn call(&self, shot: usize) -> Result<RawResponse> {
        let mut connection = self.take().await?;
        let answer = connection.call(&self.plan.template, self.plan.shots[shot].clone()).await;
        if self.plan.endpoint.transport == Transport::Http && connection.is_open() {
            self.idle.borrow_mut().push(connection);
        }
        answer
    }

    /// Returns the next connection in turn if they are shared, and otherwise an idle or a new one.
    async fn take(&self) -> Result<Connection> {
        match self.take_idle() {
            Some(connection) if connection.is_open() => Ok(self.keep(connection)),
            closed => {
                let opened = Connection::open(&self.plan.endpoint).await;
                // A later request replaces it, once the server is back.
                if let (Some(closed), Err(_)) = (closed, &opened) {
                    self.keep(closed);
                }
                opened.map(|connection| self.keep(connection))
            }
        }
    }

    /// Keeps a connection that requests share for the next ones. Returns a handle on it.
    fn keep(&self, connection: Connection) -> Connection {
        let mut idle = self.idle.borrow_mut();
        match connection.share() {
            Some(shared) if idle.len() < self.connections => {
                idle.insert(0, connection);
                shared
            }
            _ => connection,
        }
    }

    /// Takes the connection for the next request. Skips connections that the server closed after a
    /// long idle time, which is not a failure.
    fn take_idle(&self) -> Option<Connection> {
        let mut idle = self.idle.borrow_mut();
        while let Some(connection) = idle.pop() {
            if self.plan.endpoint.transport != Transport::Http || connection.is_open() {
                return Some(connection);
            }
        }
        None
    }

    /// Records each request in flight as failed.
    fn record_unanswered(&self, due: Duration) {
        (0..self.in_flight.get()).for_each(|_| self.record_failure(due, "no answer came"));
    }

    fn record_failure(&self, due: Duration, reason: &str) {
        let latency = self.plan.start.elapsed().saturating_sub(due);
        self.sink.record(
            RequestSample { due, latency, verdict: Judgement::Failed, version: 0 },
            Some(reason),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct AnyAnswer;

    impl Judge for AnyAnswer {
        fn judge(&self, _shot: usize, _answer: &RawResponse) -> (Judgement, u64) {
            (Judgement::Right, 0)
        }
    }

    #[test]
    fn every_request_without_an_answer_counts_as_failed() {
        // Connections are accepted by the system, and never answered.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = Endpoint::new(Transport::Http, silent.local_addr().unwrap().to_string());
        let template = Template::get(&endpoint, "/").unwrap();
        let shots: Arc<[Bytes]> = Arc::from([Bytes::new()]);
        let pace = LoadLoop::Closed { clients: 3 };
        let duration = Duration::from_millis(500);
        let mut plan = DrivePlan::new(endpoint, template, shots, pace, duration);
        plan.drain = Duration::from_millis(20);
        let faults = || {
            let plan = DrivePlan { start: Instant::now(), ..plan.clone() };
            let log = Arc::new(crate::samples::SampleLog::default());
            let sink: Arc<dyn SampleSink> = log.clone();
            drive(&plan, &(Arc::new(AnyAnswer) as Arc<dyn Judge>), &sink).unwrap();
            log.take().faults.lines()
        };
        // A client that is paused for the whole time sends nothing.
        assert!((0..5).any(|_| faults() == ["3 x no answer came"]));
    }

    /// Keeps the moment at which the first request was recorded.
    #[derive(Default)]
    struct FirstRecord(std::sync::OnceLock<Instant>);

    impl SampleSink for FirstRecord {
        fn record(&self, _sample: RequestSample, _reason: Option<&str>) {
            self.0.get_or_init(Instant::now);
        }
    }

    #[test]
    fn waiting_clients_send_nothing_before_the_start() {
        // Each connection is closed at once, so that requests fail without a wait.
        let closing = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = Endpoint::new(Transport::Http, closing.local_addr().unwrap().to_string());
        std::thread::spawn(move || closing.incoming().for_each(drop));
        let template = Template::get(&endpoint, "/").unwrap();
        let shots: Arc<[Bytes]> = Arc::from([Bytes::new()]);
        let pace = LoadLoop::Closed { clients: 2 };
        let plan = DrivePlan::new(endpoint, template, shots, pace, Duration::from_millis(50));
        // Returns true if the first request came after the start; `None` without a request.
        let comes_later = || {
            let start = Instant::now() + Duration::from_millis(200);
            let plan = DrivePlan { start, ..plan.clone() };
            let first = Arc::new(FirstRecord::default());
            let sink: Arc<dyn SampleSink> = first.clone();
            drive(&plan, &(Arc::new(AnyAnswer) as Arc<dyn Judge>), &sink).unwrap();
            first.0.get().map(|first| *first >= start)
        };
        // Clients that are paused for 50 ms after the start send nothing.
        assert_eq!((0..20).find_map(|_| comes_later()), Some(true));
    }

    #[test]
    fn shared_connections_outlive_an_absence_of_the_server() {
        let listener = || std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (server, later) = (listener(), listener());
        let at = |listener: &std::net::TcpListener| {
            Endpoint::new(Transport::Grpc, listener.local_addr().unwrap().to_string())
        };
        let template = Template::get(&at(&server), "/").unwrap();
        let shots: Arc<[Bytes]> = Arc::from([Bytes::new()]);
        let pace = LoadLoop::Closed { clients: 2 };
        let plan = DrivePlan::new(at(&server), template, shots, pace, Duration::from_secs(1));
        let sink: Arc<dyn SampleSink> = Arc::new(FirstRecord::default());
        LocalSet::new().block_on(&client_runtime().unwrap(), async {
            let judge = Arc::new(AnyAnswer);
            let mut client = ClientThread::connect(plan, 0, judge, sink).await.unwrap();
            drop(server);
            let mut refused = 0;
            while refused < 4 {
                refused += usize::from(client.take().await.is_err());
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            client.plan.endpoint = at(&later);
            for _ in 0..4 {
                client.take().await.unwrap();
            }
            let open = client.idle.borrow().iter().filter(|known| known.is_open()).count();
            assert_eq!((open, client.idle.borrow().len()), (2, 2));
        });
    }

    #[test]
    fn a_connection_that_the_server_closed_is_replaced() {
        use std::io::{Read, Write};

        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = Endpoint::new(Transport::Http, listener.local_addr().unwrap().to_string());
        let server = std::thread::spawn(move || {
            drop(listener.accept().unwrap());
            let (mut stream, _) = listener.accept().unwrap();
            assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
        });
        let template = Template::get(&endpoint, "/").unwrap();
        let shots: Arc<[Bytes]> = Arc::from([Bytes::new()]);
        let pace = LoadLoop::Open { arrivals: Arrivals::Fixed, rate: 1.0, seed: 0 };
        let mut plan = DrivePlan::new(endpoint, template, shots, pace, Duration::from_millis(50));
        plan.connections = 1;
        plan.start = Instant::now() + Duration::from_millis(300);
        let log = Arc::new(crate::samples::SampleLog::default());
        let sink: Arc<dyn SampleSink> = log.clone();
        drive(&plan, &(Arc::new(AnyAnswer) as Arc<dyn Judge>), &sink).unwrap();
        server.join().unwrap();
        let kept = log.take();
        assert!(kept.faults.lines().is_empty());
        assert_eq!(kept.samples.len(), 1);
    }

    #[test]
    fn a_check_that_panics_counts_as_a_failure() {
        use std::io::{Read, Write};

        struct PanickingJudge;
        impl Judge for PanickingJudge {
            fn judge(&self, _shot: usize, _answer: &RawResponse) -> (Judgement, u64) {
                panic!("told to")
            }
        }
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = Endpoint::new(Transport::Http, listener.local_addr().unwrap().to_string());
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            while stream.read(&mut [0; 4096]).unwrap() > 0 {
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
            }
        });
        let template = Template::get(&endpoint, "/").unwrap();
        let shots: Arc<[Bytes]> = Arc::from([Bytes::new()]);
        let pace = LoadLoop::Open { arrivals: Arrivals::Fixed, rate: 1.0, seed: 0 };
        let mut plan = DrivePlan::new(endpoint, template, shots, pace, Duration::from_millis(50));
        plan.connections = 1;
        let log = Arc::new(crate::samples::SampleLog::default());
        let sink: Arc<dyn SampleSink> = log.clone();
        drive(&plan, &(Arc::new(PanickingJudge) as Arc<dyn Judge>), &sink).unwrap();
        server.join().unwrap();
        assert_eq!(log.take().faults.lines(), ["1 x the check of the answer panicked"]);
    }

    #[test]
    fn shares_add_up() {
        for (total, parts) in [(7, 3), (1, 4), (64, 64), (10, 1)] {
            assert_eq!((0..parts).map(|index| share(total, parts, index)).sum::<usize>(), total);
        }
    }
}
