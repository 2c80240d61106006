//! A real etcd for tests: Debian's package etcd-server, one process a test.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use cluster_node::HttpClient;
use cluster_node::etcd::Etcd;
use tempfile::TempDir;

/// Limit of all waits.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(60);
/// Starts that find their port used by another process.
const STARTS_MAX: usize = 5;

/// A running etcd. It ends with this value.
pub(crate) struct EtcdServer {
    directory: TempDir,
    ports: [u16; 2],
    process: Child,
}

impl EtcdServer {
    pub(crate) async fn start() -> EtcdServer {
        for _ in 0..STARTS_MAX {
            let directory = tempfile::tempdir().unwrap();
            let ports = free_ports();
            let process = spawn(&directory, ports);
            let mut server = EtcdServer { directory, ports, process };
            if server.answers().await {
                return server;
            }
        }
        panic!("etcd does not start; its output is above");
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports[0])
    }

    pub(crate) fn client(&self) -> Etcd {
        Etcd::new(&[self.endpoint()], HttpClient::new(None)).unwrap()
    }

    /// Stops the process without ending it.
    pub(crate) fn pause(&self) {
        self.signal("-STOP");
    }

    pub(crate) fn resume(&self) {
        self.signal("-CONT");
    }

    /// Kills the process.
    pub(crate) fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Starts the process again with the same data and port.
    pub(crate) async fn restart(&mut self) {
        self.kill();
        self.process = spawn(&self.directory, self.ports);
        assert!(self.answers().await, "etcd does not start again");
    }

    fn signal(&self, signal: &str) {
        let id = self.process.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
    }

    /// Waits for an answer; false if the process ended.
    async fn answers(&mut self) -> bool {
        let client = self.client();
        let ready = async {
            while self.process.try_wait().unwrap().is_none() {
                if client.revision().await.is_ok() {
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

fn spawn(directory: &TempDir, ports: [u16; 2]) -> Child {
    let [client, peer] = ports.map(|port| format!("http://127.0.0.1:{port}"));
    Command::new("etcd")
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
