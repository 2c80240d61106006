//! A real etcd for tests: Debian's package etcd-server, one process a test.
//!
//! A failed step panics, as an assertion does.
#![expect(clippy::unwrap_used, reason = "a test's helper may panic as the test does")]

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use http_client::testing::Authority;
use http_client::{HttpClient, TlsPeer};
use tempfile::TempDir;

use crate::Etcd;

/// Limit of all waits.
pub const WAIT_MAX: Duration = Duration::from_secs(60);
/// Maximum number of starts that find their port used by another process.
const STARTS_MAX: usize = 5;
/// Longest time until all threads of a paused process have stopped.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// A running etcd. The process ends when this is dropped.
pub struct EtcdServer {
    directory: TempDir,
    ports: [u16; 2],
    process: Child,
    tls: Option<EtcdTls>,
}

/// TLS of an etcd: the issuer of its certificate, and the issuer of its clients' certificates.
pub struct EtcdTls {
    /// Issuer of the certificates.
    pub authority: Authority,
    /// True if clients must show a certificate.
    pub requires_clients: bool,
}

impl EtcdTls {
    /// Creates an issuer and the certificate of etcd.
    pub fn new(requires_clients: bool) -> EtcdTls {
        let authority = Authority::new("etcd");
        authority.issue("etcd", &["127.0.0.1"]);
        EtcdTls { authority, requires_clients }
    }

    /// Returns a client with all that this etcd requires.
    fn client(&self) -> HttpClient {
        let identity = self.requires_clients.then(|| self.authority.issue("client", &["client"]));
        HttpClient::with_tls(None, self.authority.client(TlsPeer::Etcd, identity))
    }
}

impl EtcdServer {
    /// Starts an etcd without TLS and waits for its first answer.
    pub async fn start() -> EtcdServer {
        EtcdServer::start_with(None).await
    }

    /// Starts an etcd, with TLS if `tls` is given, and waits for its first answer.
    pub async fn start_with(mut tls: Option<EtcdTls>) -> EtcdServer {
        for _ in 0..STARTS_MAX {
            let directory = tempfile::tempdir().unwrap();
            let ports = free_ports();
            let process = spawn(&directory, ports, tls.as_ref());
            let mut server = EtcdServer { directory, ports, process, tls: tls.take() };
            if server.answers().await {
                return server;
            }
            tls = server.tls.take();
        }
        panic!("etcd does not start; its output is above");
    }

    /// Returns the address as a flag has it.
    pub fn endpoint(&self) -> String {
        format!("{}://{}", scheme(self.tls.as_ref()), self.address())
    }

    /// Returns the address for clients as `HOST:PORT`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.ports[0])
    }

    /// Returns a client of this etcd, with its certificates if it uses TLS.
    pub fn client(&self) -> Etcd {
        Etcd::new(&[self.endpoint()], self.http_client()).unwrap()
    }

    /// Returns an HTTP client with all that this etcd requires.
    pub fn http_client(&self) -> HttpClient {
        self.tls.as_ref().map_or_else(|| HttpClient::new(None), EtcdTls::client)
    }

    /// Returns the issuer of an etcd with TLS.
    pub fn authority(&self) -> &Authority {
        &self.tls.as_ref().expect("etcd was started without TLS").authority
    }

    /// Pauses the process and waits until all of its threads have stopped. A thread that runs at
    /// the moment of the signal could still answer a request.
    pub fn pause(&self) {
        self.signal("-STOP");
        let deadline = Instant::now() + PAUSE_MAX;
        while !self.stands_still() {
            assert!(Instant::now() < deadline, "etcd does not stop");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn stands_still(&self) -> bool {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.process.id())).unwrap();
        tasks.flatten().all(|task| {
            // The state follows the name, which may have any characters. A thread that has ended
            // has no file.
            let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('T'))
        })
    }

    /// Continues the process after [`EtcdServer::pause`].
    pub fn resume(&self) {
        self.signal("-CONT");
    }

    /// Kills the process.
    pub fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Starts the process again with the same data and port.
    pub async fn restart(&mut self) {
        self.kill();
        self.process = spawn(&self.directory, self.ports, self.tls.as_ref());
        assert!(self.answers().await, "etcd does not start again");
    }

    fn signal(&self, signal: &str) {
        let id = self.process.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
    }

    /// Waits until the server answers. Returns false if the process has ended.
    async fn answers(&mut self) -> bool {
        let client = self.client();
        let ready = async {
            while self.process.try_wait().unwrap().is_none() {
                if client.revision("a").await.is_ok() {
                    return true;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            false
        };
        tokio::time::timeout(WAIT_MAX, ready).await.expect("etcd does not answer")
    }
}

impl Drop for EtcdServer {
    fn drop(&mut self) {
        self.kill();
    }
}

fn free_ports() -> [u16; 2] {
    let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().port())
}

fn scheme(tls: Option<&EtcdTls>) -> &'static str {
    if tls.is_some() { "https" } else { "http" }
}

fn spawn(directory: &TempDir, ports: [u16; 2], tls: Option<&EtcdTls>) -> Child {
    let client = format!("{}://127.0.0.1:{}", scheme(tls), ports[0]);
    let peer = format!("http://127.0.0.1:{}", ports[1]);
    let mut command = Command::new("etcd");
    if let Some(EtcdTls { authority, requires_clients }) = tls {
        command.arg("--cert-file").arg(authority.path("etcd.pem"));
        command.arg("--key-file").arg(authority.path("etcd-key.pem"));
        if *requires_clients {
            command
                .arg("--client-cert-auth")
                .arg("--trusted-ca-file")
                .arg(authority.path("ca.pem"));
        }
    }
    command
        .args(["--name", "test", "--log-level", "error", "--logger", "zap"])
        .arg("--data-dir")
        .arg(directory.path().join("data"))
        .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
        .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
        .args(["--initial-cluster", &format!("test={peer}")])
        // Shortens the shortest lease to one second.
        .args(["--heartbeat-interval", "50", "--election-timeout", "500"])
        .stdin(Stdio::null())
        .spawn()
        .expect("etcd cannot be started; `make system` installs it (package etcd-server)")
}
