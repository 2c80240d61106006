//! A server for tests: real sockets and workers around an engine of the test.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use api_audio::AudioConfig;
use engine::Engine;
use lifecycle::{ModelRoot, ParameterPlacement};
use model_store::ListingRequests;
use serde_json::Value;
use tokio::sync::watch;
use transport::{HttpVersion, ListenSocket, Listener};

use crate::compose::Server;
use crate::config::{Config, DataConfig, ListenerConfig, MemoryConfig, ModelsConfig, SearchConfig};
use crate::core::Core;
use crate::first_copies::FirstCopies;
use crate::stores::StoreLinks;
use crate::surface::Surface;
use crate::{grpc, http};

/// Longest wait of a test.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(60);

/// Runs `future` on this thread.
pub(crate) fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        tokio::time::timeout(WAIT_MAX, future).await.expect("it takes for ever")
    })
}

/// A server in this process, stopped when dropped.
pub(crate) struct Loopback {
    pub(crate) server: Server,
    pub(crate) address: SocketAddr,
    pub(crate) grpc: SocketAddr,
    stop: watch::Sender<bool>,
    runtime: Option<tokio::runtime::Runtime>,
}

/// Returns a configuration for the models below `root`, with its own files in `dir`.
pub(crate) fn configuration(dir: &Path, root: &Path) -> Config {
    let models = ModelsConfig {
        models: Vec::new(),
        roots: vec![ModelRoot::new(root)],
        poll: Duration::from_millis(50),
        poll_once: false,
        load_threads: 1,
        unload_threads: 1,
        load_retries: 0,
        load_retry_interval: Duration::from_secs(1),
        load_timeout: lifecycle::LOAD_TIMEOUT_DEFAULT,
        background: false,
        cache_dir: dir.join("cache"),
        converter: (dir.join("none").into(), Vec::new()),
        worker: (dir.join("none").into(), Vec::new()),
        lists: crate::ModelListRules::default(),
        stores: crate::StoresConfig::default(),
        updates: crate::UpdateSettings::default(),
    };
    let memory = MemoryConfig {
        placement: ParameterPlacement::Pool,
        pool_bytes_max: Some(64 << 20),
        huge_pages: false,
        direct: false,
        ..MemoryConfig::default()
    };
    Config {
        listeners: ListenerConfig {
            client_timeout: Duration::from_secs(5),
            ..ListenerConfig::default()
        },
        data: DataConfig { workers: 2, ..DataConfig::default() },
        memory,
        models,
        onnxruntime: engine::LibrarySearch::default(),
        libtorch: engine::LibrarySearch::default(),
        tensorflow: engine::LibrarySearch::default(),
        audio: AudioConfig::default(),
        search: SearchConfig::default(),
        cluster: None,
        traces: None,
        log: None,
    }
}

impl Loopback {
    /// Starts a server and waits until every model is loaded or has failed.
    pub(crate) fn start(config: &Config, engine: Arc<dyn Engine>) -> Loopback {
        Loopback::start_with(config, engine, Surface::Whole)
    }

    /// Starts a server whose ports offer `surface`.
    pub(crate) fn start_with(
        config: &Config,
        engine: Arc<dyn Engine>,
        surface: Surface,
    ) -> Loopback {
        let core = Core::start(config, vec![engine], "fake 1".to_owned(), Some(2)).unwrap();
        assert!(core.lifecycle.wait_settled(WAIT_MAX));
        let access = config.access_policy().unwrap();
        let links = StoreLinks { copies: FirstCopies::none(), listings: ListingRequests::none() };
        let server = Server::new(config, core, access, links);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let listen = || runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let http = listen();
        let grpc = listen();
        let address = http.local_addr().unwrap();
        let grpc_address = grpc.local_addr().unwrap();
        let (stop, stopped) = watch::channel(false);
        let limits = config.listeners.connection_limits();
        let listener = Listener {
            name: "http",
            version: HttpVersion::Http1,
            socket: ListenSocket::Tcp(http),
            service: http::service(&server, surface),
            metrics: server.core.metrics.clone(),
            limits,
            threads: None,
            tls: None,
        };
        runtime.spawn(listener.serve(stopped.clone()));
        let listener = Listener {
            name: "grpc",
            version: HttpVersion::Http2,
            socket: ListenSocket::Tcp(grpc),
            service: grpc::service(
                server.models.clone(),
                http::collections(&server),
                stopped.clone(),
                surface,
            ),
            metrics: server.core.metrics.clone(),
            limits,
            threads: None,
            tls: None,
        };
        runtime.spawn(listener.serve(stopped));
        Loopback { server, address, grpc: grpc_address, stop, runtime: Some(runtime) }
    }

    /// Stops the server as a signal does.
    pub(crate) fn stop(&self) {
        self.stop.send_replace(true);
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
        stream
    }

    /// Sends a whole request and reads its whole answer. `headers` are lines that end in CR LF.
    pub(crate) fn ask(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> Answer {
        let mut stream = self.connect();
        let address = self.address;
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{headers}Content-Length: {length}\r\n\r\n"
        );
        // One write, because a server that refuses the head waits only a moment for the body, and
        // would then reset the connection.
        stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        Answer::parse(&all)
    }
}

impl Drop for Loopback {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        self.runtime.take().unwrap().shutdown_timeout(Duration::from_secs(1));
        self.server.shutdown();
    }
}

/// Status, head and body of a complete answer. A chunked body is joined.
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Status line and headers in lower case.
    pub(crate) head: String,
    /// The `Set-Cookie` header as it was sent.
    pub(crate) cookie: Option<String>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|_| panic!("{} {}", self.status, self.text()))
    }

    #[track_caller]
    pub(crate) fn parse(bytes: &[u8]) -> Answer {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
        let end = end.unwrap_or_else(|| panic!("no head: {}", String::from_utf8_lossy(bytes))) + 4;
        let sent = String::from_utf8_lossy(&bytes[..end]);
        let head = sent.to_ascii_lowercase();
        let cookie = sent.lines().zip(head.lines()).find_map(|(sent, lower)| {
            lower.starts_with("set-cookie: ").then(|| sent["set-cookie: ".len()..].to_owned())
        });
        let status = head[9..12].parse().unwrap();
        let mut rest = &bytes[end..];
        if !head.contains("transfer-encoding: chunked") {
            return Answer { status, head, cookie, body: rest.to_vec() };
        }
        let mut body = Vec::new();
        loop {
            let line = rest
                .windows(2)
                .position(|pair| pair == b"\r\n")
                .expect("the answer was broken off");
            let length =
                usize::from_str_radix(std::str::from_utf8(&rest[..line]).unwrap(), 16).unwrap();
            if length == 0 {
                return Answer { status, head, cookie, body };
            }
            body.extend_from_slice(&rest[line + 2..line + 2 + length]);
            rest = &rest[line + 4 + length..];
        }
    }
}
