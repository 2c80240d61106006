//! Mistakes of users with a server, and the messages about them.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Stdio;

use crate::program::{Run, check_error, command, run, write_model};
use crate::serve::{Server, publish};

/// Number of a user without rights.
const NOBODY: u32 = 65534;

fn models(dir: &Path) -> String {
    dir.join("models").to_str().unwrap().to_owned()
}

#[test]
fn a_load_is_one_line_of_the_log_and_stopped_is_the_last() {
    let dir = tempfile::tempdir().unwrap();
    publish(dir.path(), 0.5);
    let sequence = dir.path().join("models/sequence/1");
    std::fs::create_dir_all(&sequence).unwrap();
    let made =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine-onnx/tests/models/sequence_out.onnx");
    std::fs::copy(made, sequence.join("model.onnx")).unwrap();
    let log = dir.path().join("log");
    let file = std::fs::File::create(&log).unwrap();
    let server = Server::start_logged(&[&models(dir.path()), "--log", "info"], Stdio::from(file));
    for model in ["half_plus_two", "sequence"] {
        server.wait_until("ready", &["models", "status", model], |run| run.code == 0);
    }
    assert_eq!(server.terminate(), Some(0));
    let log = std::fs::read_to_string(log).unwrap();
    let about: Vec<&str> = log.lines().filter(|line| line.contains("half_plus_two")).collect();
    assert_eq!(about.len(), 1, "{log}");
    assert!(
        about[0].contains("INFO half_plus_two 1 ready in ") && about[0].contains(" ms ("),
        "{log}"
    );
    assert!(log.lines().last().unwrap().ends_with("stopped"), "{log}");
    let left_out = log.lines().find(|line| line.contains("left out: it is a sequence")).unwrap();
    assert!(left_out.contains("load{model=sequence version=1}"), "{left_out}");
}

#[test]
fn a_full_disk_for_the_log_stops_no_load() {
    let dir = tempfile::tempdir().unwrap();
    publish(dir.path(), 0.5);
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let server = Server::start_logged(&[&models(dir.path())], Stdio::from(full));
    server.wait_until("ready", &["models", "ls"], |run| run.stdout.contains("ready"));
    for action in ["unload", "load"] {
        let run = server.client(&["models", action, "half_plus_two"]);
        assert_eq!(run.code, 0, "{run:?}");
    }
    let answer = server.client(&["infer", "half_plus_two", "x=[1]"]);
    assert_eq!(answer.code, 0, "{answer:?}");
    assert_eq!(server.terminate(), Some(0));
}

#[test]
fn results_do_not_depend_on_standard_error() {
    let dir = tempfile::tempdir().unwrap();
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let model = dir.path().join("m.onnx");
    write_model(&model, 0.5);
    let to = dir.path().join("models/m");
    let publish = ["publish", model.to_str().unwrap(), "--to", to.to_str().unwrap()];
    let published = command(&publish).stderr(full()).output().unwrap();
    assert_eq!(published.status.code(), Some(0));
    assert!(to.join("1").is_dir());
    // The key itself would be lost.
    let made = command(&["keys", "new", "--role", "infer"]).stderr(full()).output().unwrap();
    assert_eq!(made.status.code(), Some(1));
}

#[test]
fn help_that_cannot_be_printed_is_an_error() {
    for arguments in [&["--help"][..], &["--version"], &["help", "models"]] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let run = Run::from(command(arguments).stdout(full).output().unwrap());
        assert_eq!(run.code, 1, "{arguments:?}: {run:?}");
        assert!(run.stderr.contains("cannot write to standard output"), "{run:?}");
    }
}

#[test]
fn the_filter_of_the_log_changes_while_serving() {
    let dir = tempfile::tempdir().unwrap();
    publish(dir.path(), 0.5);
    let log = dir.path().join("log");
    let file = std::fs::File::create(&log).unwrap();
    let server = Server::start_logged(&[&models(dir.path()), "--log", "off"], Stdio::from(file));
    server.wait_until("ready", &["models", "ls"], |run| run.stdout.contains("ready"));
    assert!(server.metrics("/v1/log").ends_with(r#"{"filter":"off"}"#));
    let refused = server.put("/v1/log", r#"{"filter":"verbose"}"#);
    assert!(refused.contains(" 400 ") && refused.contains("is not a level"), "{refused}");
    let refused = server.put("/v1/log", r#"{"filter":""}"#);
    assert!(refused.contains(" 400 ") && refused.contains("it names no level"), "{refused}");
    assert_eq!(std::fs::read_to_string(&log).unwrap(), "");
    let filter = r#"{"filter":"info,millpond_lifecycle=debug"}"#;
    assert!(server.put("/v1/log", filter).ends_with(filter));
    assert_eq!(server.client(&["models", "unload", "half_plus_two"]).code, 0);
    assert!(server.put("/v1/log", r#"{"filter":"off"}"#).contains(" 200 "));
    assert_eq!(server.client(&["models", "load", "half_plus_two"]).code, 0);
    assert_eq!(server.terminate(), Some(0));
    let log = std::fs::read_to_string(log).unwrap();
    assert!(log.contains("changed the log's filter") && log.contains("unloaded by"), "{log}");
    assert!(log.contains("DEBUG version changed state"), "{log}");
    assert!(!log.contains("ready in") && !log.contains("stopped"), "{log}");
}

#[test]
fn a_failed_version_is_listed_as_failed() {
    let dir = tempfile::tempdir().unwrap();
    publish(dir.path(), 0.5);
    let broken = dir.path().join("models/half_plus_two/2");
    std::fs::create_dir_all(&broken).unwrap();
    std::fs::write(broken.join("model.onnx"), "no model").unwrap();
    let server = Server::start_logged(&[&models(dir.path())], Stdio::null());
    let state = |run: &Run, version: &str| {
        let cells = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let row = run
            .stdout
            .lines()
            .map(cells)
            .find(|row| row.get(1).is_some_and(|cell| cell == version));
        row.map(|row| row[2].clone()).unwrap_or_default()
    };
    let failed = |run: &Run| state(run, "2") == "failed" && state(run, "1") == "ready";
    let listed = server.wait_until("failed", &["models", "ls"], failed);
    assert!(listed.stdout.lines().all(|line| line.chars().count() < 120), "{listed:?}");
    let status = server.client(&["models", "status", "half_plus_two"]);
    assert!(failed(&status) && status.stdout.contains("\nhalf_plus_two 2: "), "{status:?}");
    // The error of the settings is shown beside the state of the served version.
    let settings = dir.path().join("models/half_plus_two/millpond.toml");
    std::fs::write(settings, "[schedule]\nmax-bach = 2\n").unwrap();
    let told = |run: &Run| run.stdout.contains("max-bach") && state(run, "1") == "ready";
    server.wait_until("the error", &["models", "status", "half_plus_two"], told);
    let listed = server.client(&["models", "ls"]);
    assert!(listed.stdout.lines().all(|line| line.chars().count() < 120), "{listed:?}");
    assert!(listed.stderr.contains("hint: millpond models status NAME"), "{listed:?}");
}

#[test]
fn wrong_names_values_and_ports_are_explained() {
    let dir = tempfile::tempdir().unwrap();
    publish(dir.path(), 0.5);
    let server = Server::start_logged(&[&models(dir.path())], Stdio::null());
    server.wait_until("ready", &["models", "status", "half_plus_two"], |run| run.code == 0);
    let fails = |arguments: &[&str], wanted: &[&str]| {
        let run = server.client(arguments);
        assert_eq!(run.code, 1, "{run:?}");
        wanted.iter().for_each(|wanted| assert!(run.stderr.contains(wanted), "{wanted}: {run:?}"));
    };
    fails(&["infer", "half_plus_too", "x=[1]"], &["did you mean \"half_plus_two\"?"]);
    fails(
        &["infer", "half_plus_two", "x=abc"],
        &["input \"x\": abc is not JSON", "strings need quotes"],
    );
    let answer = server.client(&["infer", "half_plus_two", "x=[1]"]);
    assert!(answer.stdout.contains(" ms round trip\n"), "{answer:?}");

    let (http, grpc) = (server.url.replace("http://", ""), server.grpc.replace("grpc://", ""));
    let asked = run(&["models", "ls", "--url", &format!("http://{grpc}")]);
    assert!(asked.stderr.contains(&format!("error: {grpc} is a gRPC port")), "{asked:?}");
    assert!(asked.stderr.contains("8501 by default"), "{asked:?}");
    let load = ["bench", "load", "--model", "half_plus_two", "--clients", "1", "--url"];
    check_error(
        &[&load[..], &[&format!("grpc://{http}")]].concat(),
        2,
        &format!("{http} is an HTTP port"),
    );
    check_error(
        &[&load[..], &[&format!("http://{grpc}")]].concat(),
        2,
        &format!("{grpc} is a gRPC port"),
    );
    assert_eq!(server.terminate(), Some(0));
}

#[test]
fn a_second_server_on_the_same_collections_does_not_start() {
    let dir = tempfile::tempdir().unwrap();
    publish(dir.path(), 0.5);
    let data = dir.path().join("data");
    let collections = data.join("millpond/collections");
    std::fs::create_dir_all(&collections).unwrap();
    let models = models(dir.path());
    let place = ["--collections-dir", collections.to_str().unwrap()];
    let server = Server::start_logged(&[&[models.as_str()], &place[..]].concat(), Stdio::null());
    let serve = [
        "serve",
        &models,
        "--http-port",
        "0",
        "--grpc-port",
        "0",
        "--pool",
        "64MiB",
        "--log",
        "off",
    ];
    // The user's default directory, which no flag names.
    let second: Run = command(&serve).env("XDG_DATA_HOME", &data).output().unwrap().into();
    assert_eq!(second.code, 3, "{second:?}");
    for part in
        ["another process serves the collections in", "--collections-dir none serves without"]
    {
        assert!(second.stderr.contains(part), "{part}: {second:?}");
    }
    check_error(&[&serve[..], &place].concat(), 3, "another process serves the collections in");
    let without = Server::start_logged(&[&models, "--collections-dir", "none"], Stdio::null());
    assert_eq!(without.terminate(), Some(0));
    assert_eq!(server.terminate(), Some(0));
}

/// Returns true if this user is root, to whom file permissions do not apply.
fn is_root() -> bool {
    std::fs::metadata("/proc/self").unwrap().uid() == 0
}

/// Returns a command that runs the binary as a user to whom file permissions apply.
fn as_nobody(arguments: &[&str]) -> std::process::Command {
    let mut command = command(arguments);
    if is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command.current_dir("/");
    command
}

#[test]
fn unreadable_directories_are_reported_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let permit = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    permit(dir.path(), 0o755);
    publish(dir.path(), 0.5);
    let root = dir.path().join("models");
    permit(&root, if is_root() { 0o700 } else { 0o000 });
    let serve = ["serve", root.to_str().unwrap(), "--http-port", "0", "--grpc-port", "0"];
    let run: Run = as_nobody(&serve).output().unwrap().into();
    assert_eq!(run.code, 2, "{run:?}");
    assert!(
        run.stderr.contains(&format!("error: cannot read {}: Permission denied", root.display())),
        "{run:?}"
    );
    assert!(run.stderr.contains("hint: this runs as user "), "{run:?}");
    permit(&root, 0o555);

    let model = dir.path().join("m.onnx");
    write_model(&model, 0.5);
    let to = root.join("half_plus_two");
    permit(&to, 0o555);
    let publish = ["publish", model.to_str().unwrap(), "--to", to.to_str().unwrap()];
    let run: Run = as_nobody(&publish).output().unwrap().into();
    assert_eq!(run.code, 1, "{run:?}");
    assert!(run.stderr.contains("hint: this runs as user "), "{run:?}");

    let cache = root.join("cache");
    let serve = [&serve[..], &["--pool", "64MiB", "--cache-dir", cache.to_str().unwrap()]].concat();
    let mut server =
        as_nobody(&serve).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    server.kill().unwrap();
    let mut log = String::new();
    server.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    server.wait().unwrap();
    assert!(
        line.starts_with("serving ") && log.contains("give a writable directory with --cache-dir"),
        "{line}{log}"
    );
    permit(&root, 0o755);
    permit(&to, 0o755);
}

#[test]
fn several_images_may_be_searched_with() {
    // Port 1: the servers of other tests take any free port above 1023.
    let nobody = "127.0.0.1:1";
    let url = format!("http://{nobody}");
    let dir = tempfile::tempdir().unwrap();
    let files = ["a.jpg", "b.jpg"].map(|name| dir.path().join(name).to_str().unwrap().to_owned());
    files.iter().for_each(|file| std::fs::write(file, b"x").unwrap());
    let arguments = ["images", "search", &files[0], &files[1], "--collection", "c", "--url", &url];
    check_error(&arguments, 1, "no answer from");
}

#[test]
fn settings_of_a_cluster_without_effect_are_named() {
    let etcd = ["--cluster-etcd", "http://127.0.0.1:1"];
    let store = ["--cluster-store", "/nonexistent"];
    let both = [&store[..], &etcd[..]].concat();
    for (flags, wanted) in [
        (etcd.to_vec(), "--cluster-etcd has no effect without --cluster-store"),
        (vec!["--cluster-weight", "2"], "--cluster-weight has no effect"),
        (store.to_vec(), "--cluster-store needs --cluster-etcd"),
        ([&both[..], &["--cluster-roles", "boss"]].concat(), "\"boss\" is not a role"),
        ([&both[..], &["--cluster-weight", "65"]].concat(), "--cluster-weight"),
        ([&both[..], &["--collections-dir", "none"]].concat(), "which is none"),
        ([&both[..], &["--admin-key", "k"]].concat(), "--admin-key needs --api-key KEY"),
        (
            [&both[..], &["--cluster-roles", "root,ingest", "--cluster-snapshot-entries", "9"]]
                .concat(),
            "--cluster-snapshot-entries has no effect on a node without the role search",
        ),
        (
            [&both[..], &["--cluster-roles", "root", "--cluster-weight", "2"]].concat(),
            "--cluster-weight has no effect on a node without the roles search and ingest",
        ),
        (
            [&both[..], &["--cluster-roles", "search", "--backup-every", "6h"]].concat(),
            "--backup-every has no effect on a node without the role ingest",
        ),
        (vec!["--gpu-pinned", "1GiB"], "--gpu-pinned has no effect without --gpu auto"),
        ([&both[..], &["--cluster-etcd-ca", "ca"]].concat(), "--cluster-etcd-ca has no effect"),
        ([&both[..], &["--cluster-tls-ca", "ca"]].concat(), "--cluster-tls-ca has no effect"),
        (
            [&both[..], &["--tls-cert", "cert", "--tls-key", "key"]].concat(),
            "--tls-cert needs --cluster-tls-ca FILE",
        ),
        (
            [&store[..], &["--cluster-etcd", "https://127.0.0.1:1"]].concat(),
            "needs --cluster-etcd-ca FILE",
        ),
    ] {
        let run = run(&[&["serve", "--http-port", "0", "--grpc-port", "0"], &flags[..]].concat());
        assert_eq!(run.code, 2, "{flags:?}: {run:?}");
        assert!(run.stderr.contains(wanted), "{flags:?}: {run:?}");
    }
}

#[test]
fn a_required_key_that_is_empty_starts_no_open_server() {
    let mut serve = command(&["serve", ".", "--http-port", "0", "--grpc-port", "0"]);
    serve.env("MILLPOND_REQUIRE_KEY", "1");
    let output = serve.env("MILLPOND_API_KEY", "").output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(
        stderr.contains("MILLPOND_API_KEY and MILLPOND_ADMIN_KEY are unset or empty"),
        "{stderr}"
    );
    // The next mistake is reported, so the key was accepted.
    let wrong = ["serve", ".", "--http-port", "5", "--grpc-port", "5"];
    let output = command(&wrong)
        .env("MILLPOND_REQUIRE_KEY", "1")
        .env("MILLPOND_ADMIN_KEY", "adm1n")
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("both 5"), "{stderr}");
}

#[test]
fn a_key_that_is_not_text_starts_no_open_server() {
    use std::os::unix::ffi::OsStrExt;
    for variable in ["MILLPOND_API_KEY", "MILLPOND_ADMIN_KEY"] {
        let mut serve = command(&["serve", ".", "--http-port", "0", "--grpc-port", "0"]);
        let key = std::ffi::OsStr::from_bytes(b"\xff\xfe");
        let output = serve.env(variable, key).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(&format!("{variable} is not UTF-8")), "{stderr}");
    }
}

#[test]
fn errors_name_the_variable_of_a_wrong_value() {
    for (variable, value, wanted) in [
        ("MILLPOND_LOG", "verbose", "error: MILLPOND_LOG verbose: \"verbose\" is not a level"),
        ("MILLPOND_API_KEY", "a ", "error: MILLPOND_API_KEY must be printable ASCII"),
        ("MILLPOND_ADMIN_KEY", "a\tb", "error: MILLPOND_ADMIN_KEY must be printable ASCII"),
    ] {
        let mut serve = command(&["serve", ".", "--http-port", "0", "--grpc-port", "0"]);
        let output = serve.env(variable, value).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.starts_with(wanted), "{stderr}");
    }
}
