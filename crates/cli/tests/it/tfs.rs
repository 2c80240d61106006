//! The program as TensorFlow Serving: its flags, its files and its name.

use std::path::Path;

use crate::access::certificates;
use crate::program::{check_error, command, run};
use crate::serve::{Server, publish};

/// Writes a list that serves the model of [`publish`] under each of `names`, and logs all requests
/// in the folder `logged`.
fn list(dir: &Path, names: &[&str]) -> std::path::PathBuf {
    let path = dir.join("models/half_plus_two");
    let model = |name: &&str| {
        format!(
            "  config: {{ name: \"{name}\", base_path: \"{}\", model_platform: \"tensorflow\", \
             logging_config {{ log_collector_config {{ filename_prefix: '{}/x' }} \
             sampling_config {{ sampling_rate: 1 }} }} }}\n",
            path.display(),
            dir.join("logged").display()
        )
    };
    let models: String = names.iter().map(model).collect();
    let file = dir.join("models.config");
    std::fs::write(&file, format!("model_config_list: {{\n{models}}}\n")).unwrap();
    file
}

/// Starts the program with free ports, which only flags of `millpond serve` can request.
fn start(dir: &Path, flags: &[&str]) -> Server {
    let log = std::fs::File::create(dir.join("log")).unwrap();
    let own =
        ["--", "--http-port", "0", "--grpc-port", "0", "--pool", "64MiB", "--host", "127.0.0.1"];
    Server::start_command(&[&["tfs"][..], flags, &own].concat(), log.into())
}

#[test]
fn flags_and_files_of_the_reference_serve() {
    let dir = tempfile::tempdir().unwrap();
    publish(dir.path(), 0.5);
    let monitoring = dir.path().join("monitoring.txt");
    std::fs::write(&monitoring, "prometheus_config: { enable: true, path: \"/tfs/metrics\" }")
        .unwrap();
    let batching = dir.path().join("batching.txt");
    std::fs::write(&batching, "max_batch_size { value: 128 }\nbatch_timeout_micros { value: 0 }\n")
        .unwrap();
    let file = list(dir.path(), &["a", "b"]);
    let server = start(
        dir.path(),
        &[
            &format!("--model_config_file={}", file.display()),
            "--model_config_file_poll_wait_seconds=1",
            &format!("--monitoring_config_file={}", monitoring.display()),
            "--enable_batching",
            &format!("--batching_parameters_file={}", batching.display()),
            "--noenable_profiler",
            "--grpc_channel_arguments=grpc.max_connection_age_ms=2000,grpc.so_reuseport=1",
            "--tensorflow_session_parallelism=1",
        ],
    );
    for name in ["a", "b"] {
        server.wait_until(name, &["models", "status", name], |run| run.code == 0);
    }
    let body = "{\"instances\": [1.0, 2.0, 5.0]}";
    let answer = server.post("/v1/models/a:predict", body);
    assert!(answer.contains("2.5") && answer.contains("4.5"), "{answer}");
    // A run is counted a moment after it was answered.
    let counted = |_: &crate::program::Run| {
        server.metrics("/tfs/metrics").contains("batching_session:wrapped_run_count{} 1\n")
    };
    server.wait_until("the run is counted", &["models", "ls"], counted);
    let metrics = server.metrics("/tfs/metrics");
    for line in [
        ":tensorflow:serving:request_count{model_name=\"a\",status=\"OK\"} 1",
        ":tensorflow:serving:request_latency_count{model_name=\"a\",API=\"Predict\",entrypoint=\"REST\"} 1",
        "millpond_requests_total{",
    ] {
        assert!(metrics.contains(line), "{line} not in\n{metrics}");
    }
    list(dir.path(), &["b", "c"]);
    server.wait_until("c", &["models", "status", "c"], |run| run.code == 0);
    server.wait_until("a goes", &["models", "status", "a"], |run| run.code != 0);
    assert_eq!(server.terminate(), Some(0));
    let logged: Vec<_> = std::fs::read_dir(dir.path().join("logged")).unwrap().collect();
    let [Ok(file)] = &logged[..] else { panic!("one model had a request: {logged:?}") };
    assert!(file.file_name().to_string_lossy().starts_with("requests-a-"), "{file:?}");
    let log = std::fs::read_to_string(dir.path().join("log")).unwrap();
    for line in [
        "--enable_profiler has no effect: there is no profiler service",
        "--grpc_channel_arguments: grpc.so_reuseport has no effect",
    ] {
        assert_eq!(log.matches(line).count(), 1, "{line} not once in\n{log}");
    }
}

#[test]
fn one_model_is_served_to_pages_of_other_sites() {
    let dir = tempfile::tempdir().unwrap();
    publish(dir.path(), 0.5);
    let base_path = dir.path().join("models/half_plus_two");
    let server = start(
        dir.path(),
        &["--model_base_path", base_path.to_str().unwrap(), "--rest_api_enable_cors_support=true"],
    );
    server.wait_until("default", &["models", "status", "default"], |run| run.code == 0);
    let headers = server.metrics("/v1/models/default").to_ascii_lowercase();
    assert!(headers.contains("access-control-allow-origin: *\r\n"), "{headers}");
    let metrics = server.metrics("/monitoring/prometheus/metrics");
    assert!(metrics.starts_with("HTTP/1.1 404"), "not enabled: {metrics}");
    assert_eq!(server.terminate(), Some(0));
}

#[test]
fn errors_of_the_start_have_a_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let bad = dir.path().join("bad.txt");
    std::fs::write(&bad, "improperly formatted file").unwrap();
    let bad = bad.display();
    let ssl = dir.path().join("ssl.txt");
    std::fs::write(&ssl, "server_key: 'k' server_cert: 'c'").unwrap();
    let ssl = format!("--ssl_config_file={}", ssl.display());
    let config = format!("--model_config_file={bad}");
    let batching = format!("--batching_parameters_file={bad}");
    let wrong = |flags: &[&str], wanted: &str| check_error(&[&["tfs"], flags].concat(), 2, wanted);
    wrong(&[], "--model_base_path and --model_config_file are both empty");
    wrong(
        &[&config],
        "bad.txt: Error parsing text-format tensorflow.serving.ModelServerConfig: line 1: ",
    );
    wrong(&["--model_config_file=/no/such/file"], "/no/such/file: No such file");
    wrong(&["--model_base_path=/m", &batching], "without setting --enable_batching to true");
    wrong(
        &["--model_base_path=/m", "--enable_batching", &batching],
        "BatchingParameters: line 1: ",
    );
    wrong(&["--model_base_path=/m", &ssl], "server_cert: no certificate in PEM form");
    wrong(&["--model_base_path=/m", "--use_alts_credentials"], "ALTS is not supported");
    wrong(&["--model_base_path=/m", "--port=0"], "at least one of --port and --grpc_socket_path");
    wrong(
        &["--model_base_path=ftp://host/m"],
        "\"ftp\" is not a supported kind of store; use s3://",
    );
    wrong(&["--model_base_path=/m", "--prot=1"], "unknown argument: --prot");
    wrong(&["--model_base_path=/m", "--", "--config", "x"], "not from after --");
}

#[test]
fn the_program_accepts_the_name_of_the_reference() {
    let dir = tempfile::tempdir().unwrap();
    let link = dir.path().join("tensorflow_model_server");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_millpond"), &link).unwrap();
    let output = std::process::Command::new(&link).arg("--version").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("TensorFlow ModelServer: 2.20"), "{text}");
    for flag in ["--help", "-h"] {
        let help = run(&["tfs", "--port=1", flag]);
        assert!(help.code == 0 && help.stdout.contains("--model_config_file\n"), "{help:?}");
    }
    let hint = command(&["serve", "--rest_api_port=1"]).output().unwrap();
    let hint = String::from_utf8(hint.stderr).unwrap();
    assert!(hint.contains("`millpond tfs` takes the flag as it is"), "{hint}");
}

#[test]
fn settings_are_imported() {
    let dir = tempfile::tempdir().unwrap();
    publish(dir.path(), 0.5);
    let file = list(dir.path(), &["half"]);
    let to = dir.path().join("millpond.toml");
    let (file, to) = (file.to_str().unwrap(), to.to_str().unwrap());
    let imported = run(&["import", "tfs", file, "--to", to]);
    assert_eq!((imported.code, imported.stderr.as_str()), (0, ""), "{imported:?}");
    let server = Server::start_logged(&["--config", to], std::process::Stdio::null());
    server.wait_until("half", &["models", "status", "half"], |run| run.code == 0);
    assert_eq!(server.terminate(), Some(0));
    check_error(&["import", "tfs", file, "--to", to], 1, "millpond.toml: File exists");
}

#[test]
fn the_ssl_file_encrypts_grpc_only() {
    let dir = tempfile::tempdir().unwrap();
    publish(dir.path(), 0.5);
    certificates(dir.path());
    // Text format has no raw line breaks in its strings.
    let pem =
        |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap().replace('\n', "\\n");
    let (key, cert, ca) = (pem("key.pem"), pem("cert.pem"), pem("ca.pem"));
    let ssl = dir.path().join("ssl.txt");
    let text = format!(
        "server_key: '{key}'\nserver_cert: '{cert}'\ncustom_ca: '{ca}'\nclient_verify: true\n"
    );
    std::fs::write(&ssl, text).unwrap();
    let flags = [
        &format!("--model_base_path={}", dir.path().join("models/half_plus_two").display()),
        &format!("--ssl_config_file={}", ssl.display()),
    ];
    let server = start(dir.path(), &flags.map(String::as_str));
    assert!(server.grpc.starts_with("grpcs://") && server.url.starts_with("http://"));
    assert_eq!(server.client(&["models", "status", "default"]).code, 0);
    let log = std::fs::read_to_string(dir.path().join("log")).unwrap();
    assert!(log.contains("--ssl_config_file encrypts gRPC only"), "{log}");
    assert_eq!(server.terminate(), Some(0));
}
