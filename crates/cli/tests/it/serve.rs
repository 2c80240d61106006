//! A real server with a real model, and the commands that talk to it.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use base::{DType, Dim};
use engine_onnx::publish::build::{ModelBuilder, Node};

use crate::program::{Run, check_error, command, command_of, run, write_model};

/// Timeout of a server's start, and of its end.
const PATIENCE: Duration = Duration::from_secs(60);

/// Flags of `serve` for all tests: free ports and little memory.
const FLAGS: [&str; 6] = ["--http-port", "0", "--grpc-port", "0", "--pool", "64MiB"];

/// A server on ports of its own. It is killed when this is dropped.
pub(crate) struct Server {
    child: Child,
    pub(crate) url: String,
    pub(crate) grpc: String,
}

impl Server {
    fn start(arguments: &[&str]) -> Server {
        Server::start_logged(arguments, Stdio::null())
    }

    /// Starts one whose log goes to `log`.
    pub(crate) fn start_logged(arguments: &[&str], log: Stdio) -> Server {
        Server::start_command(&[&["serve", "--poll", "100ms"][..], &FLAGS, arguments].concat(), log)
    }

    /// Starts one that polls as its settings file says.
    pub(crate) fn start_polling(arguments: &[&str], log: &Path) -> Server {
        let log = std::fs::File::create(log).unwrap();
        Server::start_command(&[&["serve"][..], &FLAGS, arguments].concat(), log.into())
    }

    /// Starts the program with `arguments` and waits for its ports.
    pub(crate) fn start_command(arguments: &[&str], log: Stdio) -> Server {
        Server::start_process(command(arguments), log)
    }

    /// Starts the program at `program`, which serves `models`.
    pub(crate) fn start_at(program: &Path, models: &str) -> Server {
        let arguments = [&["serve", "--poll", "100ms"][..], &FLAGS, &[models]].concat();
        Server::start_process(command_of(program, &arguments), Stdio::null())
    }

    fn start_process(mut command: Command, log: Stdio) -> Server {
        let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        let ["serving", http, grpc, ..] = words[..] else {
            panic!("\"{line}\" does not name the ports")
        };
        assert!(grpc.starts_with("grpc"), "{line}");
        Server { url: http.to_owned(), grpc: grpc.to_owned(), child }
    }

    /// Runs a client command against it.
    pub(crate) fn client(&self, arguments: &[&str]) -> Run {
        run(&[arguments, &["--url", &self.url]].concat())
    }

    pub(crate) fn wait_until(
        &self,
        what: &str,
        arguments: &[&str],
        holds: impl Fn(&Run) -> bool,
    ) -> Run {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let run = self.client(arguments);
            if holds(&run) {
                return run;
            }
            assert!(Instant::now() < deadline, "{what}: {run:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Returns the answer to GET `path` of its HTTP port, with its headers.
    pub(crate) fn metrics(&self, path: &str) -> String {
        self.ask("GET", path, "")
    }

    /// Returns the answer to POST `path` with the JSON `body`, with its headers.
    pub(crate) fn post(&self, path: &str, body: &str) -> String {
        self.ask("POST", path, body)
    }

    /// Returns the answer to PUT `path` with the JSON `body`, with its headers.
    pub(crate) fn put(&self, path: &str, body: &str) -> String {
        self.ask("PUT", path, body)
    }

    fn ask(&self, method: &str, path: &str, body: &str) -> String {
        use std::io::{Read, Write};
        let address = self.url.trim_start_matches("http://");
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Type: \
             application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    /// Returns its process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal, as in "HUP".
    pub(crate) fn signal(&self, name: &str) {
        let arguments = [format!("-{name}"), self.child.id().to_string()];
        assert!(std::process::Command::new("kill").args(arguments).status().unwrap().success());
    }

    /// Sends SIGTERM, as a service manager does, and returns the exit code.
    pub(crate) fn terminate(mut self) -> Option<i32> {
        self.signal("TERM");
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < deadline, "it does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn publish(dir: &Path, factor: f32) {
    let model = dir.join(format!("{factor}.onnx"));
    write_model(&model, factor);
    let to = dir.join("models/half_plus_two");
    let run = run(&["publish", model.to_str().unwrap(), "--to", to.to_str().unwrap()]);
    assert_eq!(run.code, 0, "{run:?}");
}

#[test]
fn a_model_is_served_queried_swapped_and_unloaded() {
    let dir = tempfile::tempdir().unwrap();
    publish(dir.path(), 0.5);
    let server = Server::start(&[dir.path().join("models").to_str().unwrap()]);
    server.wait_until("ready", &["models", "status", "half_plus_two"], |run| run.code == 0);

    let listed = server.client(&["models", "ls"]);
    let row = listed
        .stdout
        .lines()
        .nth(1)
        .unwrap_or_default()
        .split_whitespace()
        .take(3)
        .collect::<Vec<_>>();
    assert_eq!(row, ["half_plus_two", "1", "ready"], "{listed:?}");

    let answer = server.client(&["infer", "half_plus_two", "x=[1,2,5]"]);
    assert_eq!(answer.code, 0, "{answer:?}");
    assert!(answer.stdout.starts_with("half_plus_two version 1, "), "{answer:?}");
    assert!(
        answer.stdout.ends_with("y       float32  [3]    2.50000  3.00000  4.50000\n"),
        "{answer:?}"
    );

    publish(dir.path(), 1.0);
    let second = |run: &Run| run.stdout.contains("\"model_version\": \"2\"");
    let answer =
        server.wait_until("version 2", &["infer", "half_plus_two", "x=[1,2,5]", "--json"], second);
    let json: serde_json::Value = serde_json::from_str(&answer.stdout).unwrap();
    assert_eq!(json["outputs"][0]["data"], serde_json::json!([3.0, 4.0, 7.0]));

    let unloaded = server.client(&["models", "unload", "half_plus_two"]);
    assert_eq!(
        (unloaded.code, unloaded.stdout.as_str()),
        (0, "unloaded half_plus_two\n"),
        "{unloaded:?}"
    );
    assert_eq!(server.client(&["models", "status", "half_plus_two"]).code, 1);
    let status = server.client(&["models", "status", "half_plus_two", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&status.stdout).unwrap();
    assert!(status.code == 1 && json["half_plus_two"].is_object(), "{status:?}");
    let loaded = server.client(&["models", "load", "half_plus_two"]);
    assert_eq!(
        (loaded.code, loaded.stdout.as_str()),
        (0, "loaded half_plus_two (version 2)\n"),
        "{loaded:?}"
    );
    let loaded = server.client(&["models", "load", "half_plus_two", "--version", "1"]);
    assert_eq!(loaded.stdout, "loaded half_plus_two (versions 2, 1)\n", "{loaded:?}");

    assert_eq!(server.terminate(), Some(0));
}

#[test]
fn a_server_listens_on_a_host_name_and_loads_with_a_key() {
    let dir = tempfile::tempdir().unwrap();
    publish(dir.path(), 0.5);
    let models = dir.path().join("models");
    let server =
        Server::start(&[models.to_str().unwrap(), "--host", "localhost", "--admin-key", "adm1n"]);
    let status = ["models", "status", "half_plus_two", "--url", &server.url];
    let deadline = Instant::now() + PATIENCE;
    while !command(&status).env("MILLPOND_ADMIN_KEY", "adm1n").output().unwrap().status.success() {
        assert!(Instant::now() < deadline, "not ready");
        std::thread::sleep(Duration::from_millis(50));
    }
    for action in ["load", "unload"] {
        let refused = server.client(&["models", action, "half_plus_two"]);
        assert!(refused.code == 1 && refused.stderr.contains("MILLPOND_ADMIN_KEY"), "{refused:?}");
        let done = server.client(&["models", action, "half_plus_two", "--admin-key", "adm1n"]);
        assert_eq!(done.code, 0, "{done:?}");
    }
    assert_eq!(server.terminate(), Some(0));
    let error = run(&["serve", models.to_str().unwrap(), "--allow-remote-admin"]);
    assert!(error.code == 2 && error.stderr.contains("--admin-key"), "{error:?}");
}

#[test]
fn messages_of_the_server_are_printed() {
    let dir = tempfile::tempdir().unwrap();
    publish(dir.path(), 0.5);
    let model = format!("half={}", dir.path().join("models/half_plus_two").display());
    let server = Server::start(&[&model]);
    server.wait_until("ready", &["models", "status", "half"], |run| run.code == 0);
    let fails = |arguments: &[&str], wanted: &str| {
        let run = server.client(arguments);
        assert_eq!(run.code, 1, "{run:?}");
        assert!(run.stderr.starts_with("error: ") && run.stderr.contains(wanted), "{run:?}");
    };
    fails(&["infer", "quarter", "x=[1]"], "the server answered 404: ");
    fails(&["infer", "half", "z=[1]"], "the model has no input \"z\"; it has x");
    fails(&["infer", "half", "x=[[1],[2]]"], "the server answered 400: ");
    fails(&["infer", "half", "x=[true]"], "input \"x\": true is not float32");
    fails(&["infer", "half", "x=[1]", "--version", "9"], "the server answered 404: ");
    fails(&["models", "load", "quarter"], "the server answered 404: ");

    let request = dir.path().join("request.json");
    std::fs::write(
        &request,
        r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[2],"data":[4,6]}]}"#,
    )
    .unwrap();
    let answer = server.client(&["infer", "half", "--input", request.to_str().unwrap()]);
    assert!(answer.stdout.ends_with("4.00000  5.00000\n"), "{answer:?}");
    assert_eq!(server.terminate(), Some(0));
}

#[test]
fn a_used_port_and_a_missing_library_end_the_start() {
    let dir = tempfile::tempdir().unwrap();
    publish(dir.path(), 0.5);
    let models = dir.path().join("models");
    let models = models.to_str().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let wanted = format!("error: cannot listen on 127.0.0.1:{port}");
    check_error(
        &["serve", models, "--log", "off", "--http-port", &port, "--grpc-port", "0"],
        3,
        &wanted,
    );
    check_error(
        &["serve", models, "--log", "off", "--grpc-port", &port, "--http-port", "0"],
        3,
        &wanted,
    );
    let nowhere =
        ["serve", models, "--http-port", "0", "--grpc-port", "0", "--onnxruntime", "/no/such.so"];
    check_error(&nowhere, 3, "error: --onnxruntime /no/such.so");
}

#[test]
fn a_model_without_inputs_gets_a_request() {
    let dir = tempfile::tempdir().unwrap();
    let version = dir.path().join("constant/1");
    std::fs::create_dir_all(&version).unwrap();
    let model = ModelBuilder::new("constant", 18)
        .output("y", DType::F32, &[Dim::Fixed(1)])
        .floats("two", &[1], &[2.0])
        .node(Node::new("Identity", &["two"], &["y"]));
    std::fs::write(version.join("model.onnx"), model.encode()).unwrap();
    let server = Server::start(&[dir.path().to_str().unwrap()]);
    server.wait_until("ready", &["models", "status", "constant"], |run| run.code == 0);
    let answer = server.client(&["infer", "constant"]);
    assert_eq!(answer.code, 0, "{answer:?}");
    assert!(answer.stdout.ends_with("y       float32  [1]    2.00000\n"), "{answer:?}");
    assert_eq!(server.terminate(), Some(0));
}

#[test]
fn misplaced_models_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("ranker")).unwrap();
    write_model(&dir.path().join("ranker/model.onnx"), 0.5);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let root = dir.path().to_str().unwrap();
    let serve = ["serve", root, "--http-port", &port, "--grpc-port", "0"];
    check_error(&serve, 3, "ranker holds model.onnx itself: put it into");
    check_error(&[&serve[..], &["--log", "verbose"]].concat(), 2, "\"verbose\" is not a level");
    check_error(&[&serve[..], &["--log", ","]].concat(), 2, "it names no level");
    // An empty filter counts as unset, so that a script with an empty variable starts the server.
    check_error(&[&serve[..], &["--log", ""]].concat(), 3, "ranker holds model.onnx itself");
}
