//! A settings file that changes while the server runs, and its Unix socket.

use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};

use crate::program::command;
use crate::serve::{Server, publish};

/// Timeout of a start that fails.
const START_MAX: Duration = Duration::from_secs(60);

/// Waits until the server's log holds `text`.
fn logged(server: &Server, log: &Path, text: &str) {
    let done = |_: &crate::program::Run| std::fs::read_to_string(log).unwrap().contains(text);
    server.wait_until(text, &["models", "ls"], done);
}

/// Replaces the file at once: the server may read it at any moment.
fn replace(file: &Path, text: &str) {
    let new = file.with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(&new, file).unwrap();
}

/// Starts a server with the settings file `file`, whose log goes to `log`.
fn start(file: &Path, log: &Path) -> Server {
    let arguments = ["--config", file.to_str().unwrap()];
    Server::start_logged(&arguments, std::fs::File::create(log).unwrap().into())
}

/// Starts a server that waits in its start, and sends it `signal`. Returns the status of its end.
fn signalled_in_its_start(signal: &str) -> ExitStatus {
    let dir = tempfile::tempdir().unwrap();
    publish(dir.path(), 0.5);
    // The server waits in its start until a writer of this pipe ends.
    let library = dir.path().join("libonnxruntime.so");
    assert!(Command::new("mkfifo").arg(&library).status().unwrap().success());
    let models = dir.path().join("models");
    let ports = ["--http-port", "0", "--grpc-port", "0"];
    let own = [models.to_str().unwrap(), "--onnxruntime", library.to_str().unwrap()];
    let mut server = command(&[&["serve"][..], &ports, &own].concat())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + START_MAX;
    // Closed in the processes that other tests start: they would keep the pipe open.
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let writer = loop {
        // Fails until the server opens the pipe.
        match rustix::fs::open(library.as_path(), flags, Mode::empty()) {
            Ok(writer) => break writer,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        assert!(server.try_wait().unwrap().is_none(), "the server ended before it was ready");
        std::thread::sleep(Duration::from_millis(20));
    };
    send(signal, &server);
    // The library stays incomplete for a signal that ends the server.
    let _writer = (signal != "HUP").then_some(writer);
    end_of(&mut server, deadline)
}

fn send(signal: &str, server: &Child) {
    let arguments = [format!("-{signal}"), server.id().to_string()];
    assert!(Command::new("kill").args(arguments).status().unwrap().success());
}

/// Waits until a server whose start does not succeed ends.
fn end_of(server: &mut Child, deadline: Instant) -> ExitStatus {
    loop {
        if let Some(status) = server.try_wait().unwrap() {
            return status;
        }
        assert!(Instant::now() < deadline, "the start of the server does not end");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_hangup_during_the_start_does_not_end_the_server() {
    // An empty library cannot be used. A signal without a handler leaves no code.
    assert_eq!(signalled_in_its_start("HUP").code(), Some(3));
}

#[test]
fn a_termination_during_the_start_ends_the_server() {
    // Although its library never comes.
    for signal in ["TERM", "INT"] {
        assert_eq!(signalled_in_its_start(signal).code(), Some(0), "{signal}");
    }
}

#[test]
fn a_termination_ends_the_join_of_a_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let made = |name: &str| {
        let path = dir.path().join(name);
        std::fs::create_dir(&path).unwrap();
        path.display().to_string()
    };
    let (models, store, collections) = (made("models"), made("store"), made("collections"));
    // An etcd that accepts connections and does not answer.
    let etcd = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    etcd.set_nonblocking(true).unwrap();
    let address = format!("http://{}", etcd.local_addr().unwrap());
    let cluster = ["--cluster-etcd", &address, "--cluster-store", &store];
    let ports = ["--http-port", "0", "--grpc-port", "0"];
    let own = [models.as_str(), "--pool", "64MiB", "--collections-dir", &collections];
    let log = dir.path().join("log");
    let mut server = command(&[&["serve"][..], &ports, &own, &cluster].concat())
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + START_MAX;
    let _connection = loop {
        match etcd.accept() {
            Ok(connection) => break connection,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        assert!(server.try_wait().unwrap().is_none(), "the server ended before it joined");
        std::thread::sleep(Duration::from_millis(20));
    };
    send("TERM", &server);
    assert_eq!(end_of(&mut server, deadline).code(), Some(0));
    let log = std::fs::read_to_string(&log).unwrap();
    assert!(!log.contains("has not joined the cluster"), "it waited for a request: {log}");
}

#[test]
fn models_follow_the_file() {
    let dir = tempfile::tempdir().unwrap();
    publish(dir.path(), 0.5);
    let (file, log) = (dir.path().join("millpond.toml"), dir.path().join("log"));
    let model = |name: &str| format!("[models.{name}]\npath = \"models/half_plus_two\"\n");
    replace(&file, &model("a"));
    let server = start(&file, &log);
    let ready =
        |name| drop(server.wait_until(name, &["models", "status", name], |run| run.code == 0));
    ready("a");

    replace(&file, &(model("a") + &model("b") + "[server]\nmax-requests = 9\n"));
    ready("b");
    logged(&server, &log, "need a restart and have no effect until then: [server] max-requests");

    replace(&file, &(model("a") + "\n[modles.b]\n"));
    logged(&server, &log, "millpond.toml:4: unknown key `modles`");
    logged(&server, &log, "the models stay as they are");
    ready("b");
    let events = server.metrics("/v2/events");
    assert!(events.contains("config_failed") && events.contains("unknown key"), "{events}");

    replace(&file, &model("b"));
    server.wait_until("a goes", &["models", "status", "a"], |run| run.code != 0);
    ready("b");
    let metrics = server.metrics("/metrics");
    assert!(metrics.contains("millpond_config_reloads_total{kind=\"failed\"} 1"), "{metrics}");
    assert!(metrics.contains("millpond_config_reload_time_seconds{kind=\"ok\"} "), "{metrics}");
    assert_eq!(server.terminate(), Some(0));
}

#[test]
fn sighup_reads_the_file_at_once() {
    let dir = tempfile::tempdir().unwrap();
    publish(dir.path(), 0.5);
    let (file, log) = (dir.path().join("millpond.toml"), dir.path().join("log"));
    let settings = "[lifecycle]\npoll = \"1h\"\n";
    replace(&file, &(settings.to_owned() + "[models.a]\npath = \"models/half_plus_two\"\n"));
    // A flag would take precedence over the file, so the file sets the poll interval.
    let server = Server::start_polling(&["--config", file.to_str().unwrap()], &log);
    server.wait_until("a", &["models", "status", "a"], |run| run.code == 0);
    replace(&file, &(settings.to_owned() + "[models.b]\npath = \"models/half_plus_two\"\n"));
    server.signal("HUP");
    server.wait_until("b", &["models", "status", "b"], |run| run.code == 0);
    assert_eq!(server.terminate(), Some(0));
}

#[test]
fn a_unix_socket_is_opened_and_removed() {
    use std::os::unix::fs::MetadataExt;
    let dir = tempfile::tempdir().unwrap();
    publish(dir.path(), 0.5);
    let (path, log) = (dir.path().join("grpc.sock"), dir.path().join("log"));
    let models = dir.path().join("models");
    let arguments = [models.to_str().unwrap(), "--grpc-socket", path.to_str().unwrap()];
    let server = Server::start_logged(&arguments, std::fs::File::create(&log).unwrap().into());
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    let mut stream = std::os::unix::net::UnixStream::connect(&path).unwrap();
    // The preface of HTTP/2 and empty settings; the server answers with its settings.
    use std::io::{Read, Write};
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    let mut head = [0; 9];
    stream.read_exact(&mut head).unwrap();
    assert_eq!(head[3], 4, "a SETTINGS frame");
    drop(stream);
    assert_eq!(server.terminate(), Some(0));
    assert!(!path.exists(), "its file is removed at the end");
}
