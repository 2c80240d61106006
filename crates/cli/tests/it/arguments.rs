//! Help, and mistakes on the command line or in the settings file.

use crate::program::{Run, check_error, command, run};

/// The visible commands, in the order of the help text.
const COMMANDS: [&str; 19] = [
    "serve",
    "tfs",
    "import",
    "publish",
    "models",
    "infer",
    "audio",
    "speakers",
    "images",
    "collections",
    "cluster",
    "keys",
    "bench",
    "tune",
    "verify",
    "demo",
    "doctor",
    "completion",
    "man",
];

#[test]
fn help_lists_every_command_variable_and_exit_code() {
    let help = run(&["--help"]);
    assert_eq!((help.code, help.stderr.as_str()), (0, ""));
    let listed: Vec<&str> = help
        .stdout
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.strip_prefix("  ")?.split_whitespace().next())
        .collect();
    assert_eq!(listed, [&COMMANDS[..], &["help"]].concat());
    for variable in [
        "MILLPOND_CACHE_DIR",
        "MILLPOND_ONNXRUNTIME",
        "MILLPOND_LIBTORCH",
        "MILLPOND_RECOGNISERS",
        "MILLPOND_DEMO_SECONDS",
        "VIRTUAL_ENV",
    ] {
        assert!(help.stdout.contains(variable), "{variable}");
    }
    for code in ["  0  done", "  1  failed", "  2  usage", "  3  cannot start", "  4  wrong"] {
        assert!(help.stdout.contains(code), "{code}");
    }
}

#[test]
fn each_command_has_help_that_fits_a_terminal() {
    for name in COMMANDS.into_iter().filter(|name| *name != "bench") {
        let help = run(&[name, "--help"]);
        assert_eq!((help.code, help.stderr.as_str()), (0, ""), "{name}");
        assert!(help.stdout.contains("Usage: millpond"), "{name}");
        let longest = help.stdout.lines().max_by_key(|line| line.chars().count()).unwrap();
        assert!(longest.chars().count() <= 120, "{name}: {longest}");
    }
}

/// Only clap wraps a paragraph, so each line is as full as possible.
#[test]
fn explanations_are_wrapped_once() {
    for (command, begins) in [
        (&["serve"][..], "A directory with numbered version directories is a model"),
        (&["serve"], "The settings file uses the names of the flags"),
        (&["audio"], "Exit status 1"),
        (&["images"], "The server does the work"),
        (&["images", "index"], "Each image is named by its path"),
        (&["images", "search"], "A search has two stages. "),
        (&["tune"], "A file of --requests"),
    ] {
        let help = run(&[command, &["--help"]].concat()).stdout;
        let lines: Vec<&str> = help.lines().skip_while(|line| !line.starts_with(begins)).collect();
        let lines: Vec<&str> = lines.into_iter().take_while(|line| !line.is_empty()).collect();
        assert!(lines.len() > 1, "{command:?}: {help}");
        for pair in lines.windows(2) {
            let word = pair[1].split_whitespace().next().unwrap();
            assert!(
                pair[0].chars().count() + 1 + word.chars().count() > 100,
                "{command:?}: {pair:?}"
            );
        }
    }
}

#[test]
fn flags_of_other_servers_are_known() {
    for (flag, server, hint) in [
        ("--rest_api_port=8501", "TensorFlow Serving", "hint: --http-port PORT sets the HTTP port"),
        ("--port=8500", "TensorFlow Serving", "hint: --grpc-port PORT"),
        ("--model_base_path=/models/a", "TensorFlow Serving", "millpond serve NAME=DIR"),
        ("--enable_batching", "TensorFlow Serving", "--runtime-threads N"),
        ("--model-repository=/models", "Triton", "millpond serve DIR"),
        ("--strict-readiness=true", "Triton", "--readiness all|any|server"),
        ("--model-control-mode=poll", "Triton", "load and unload requests"),
        ("--backend-config=a=b", "Triton", "millpond import triton DIR"),
        ("--http-restricted-api=x", "Triton", "--keys FILE"),
        ("--runtime_thread_num=4", "Paddle Serving", "--runtime-threads N"),
        ("--batch_infer_size=8", "Paddle Serving", "max-batch = N in [schedule]"),
        ("--ir_optim", "Paddle Serving", "nothing to set"),
        ("--rest_port=8000", "OpenVINO Model Server", "--http-port PORT"),
        ("--model_path=/m", "OpenVINO Model Server", "millpond serve NAME=DIR"),
        ("--target_device=CPU", "OpenVINO Model Server", "run on the processor"),
    ] {
        let name = flag.split('=').next().unwrap();
        for arguments in [&["serve", flag][..], &[flag], &["serve", ".", flag]] {
            check_error(arguments, 2, &format!("error: {name} is a flag of {server}"));
            check_error(arguments, 2, hint);
        }
    }
    check_error(
        &["serve", "--model-repository", "/models"],
        2,
        "error: --model-repository is a flag of Triton",
    );
    // The flags of a server are no remedy for a client.
    check_error(&["models", "ls", "--port", "8501"], 2, "unexpected argument '--port'");
}

#[test]
fn a_missing_benchmark_program_has_a_remedy() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let program = dir.path().join("millpond");
    std::fs::hard_link(env!("CARGO_BIN_EXE_millpond"), &program).unwrap();
    let start = || std::process::Command::new(&program);
    let run: Run =
        start().args(["bench", "swap", "--json", "x"]).env_clear().output().unwrap().into();
    assert_eq!((run.code, run.stdout.as_str()), (1, ""), "{run:?}");
    assert!(run.stderr.starts_with("error: millpond-bench is neither in "), "{run:?}");
    assert!(run.stderr.contains("cargo build --release -p millpond-bench"), "{run:?}");
    let load: Run = start().args(["bench", "load", "--help"]).env_clear().output().unwrap().into();
    assert_eq!(load.code, 0, "{load:?}");
}

#[test]
fn a_benchmark_program_gets_the_arguments_as_they_are() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let program = dir.path().join("millpond-bench");
    std::fs::write(&program, "#!/bin/sh\necho \"$@\"; exit 4\n").unwrap();
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .unwrap();
    // A hard link beside it, as the built program may have the real one beside it.
    let millpond = dir.path().join("millpond");
    std::fs::hard_link(env!("CARGO_BIN_EXE_millpond"), &millpond).unwrap();
    for (arguments, passed) in [
        (["bench", "swap", "--json"].as_slice(), "swap --json\n"),
        (&["bench", "--help"], "--help\n"),
        (&["bench"], "\n"),
        (&["help", "bench", "swap"], "help swap\n"),
    ] {
        let mut command = std::process::Command::new(&millpond);
        let run: Run = command.args(arguments).env_clear().output().unwrap().into();
        assert_eq!((run.code, run.stdout.as_str()), (4, passed), "{run:?}");
    }
}

#[test]
fn a_benchmark_needs_a_rate_or_clients() {
    let arguments = ["bench", "load", "--url", "grpc://localhost:1", "--model", "m"];
    check_error(&arguments, 2, "<--rate <RATE>|--clients <CLIENTS>>");
    for other in [["--rate", "1"], ["--arrivals", "poisson"], ["--in-flight", "9"]] {
        let closed = [&arguments[..], &["--clients", "1"], &other].concat();
        check_error(&closed, 2, "cannot be used with");
    }
}

#[test]
fn the_highest_values_are_not_part_of_json() {
    check_error(&["infer", "m", "x=1", "--top", "5", "--json"], 2, "cannot be used with");
}

#[test]
fn help_of_serve_has_the_defaults_of_the_code() {
    let help = run(&["serve", "--help"]).stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    let listeners = server::ListenerConfig::default();
    let wanted = [
        format!("HTTP port; 0 picks a free one [default: {}]", listeners.http_port.unwrap()),
        format!("gRPC port; 0 picks a free one [default: {}]", listeners.grpc_port.unwrap()),
        format!("every interface [default: {}]", listeners.host),
        format!("closed at once [default: {}]", listeners.connections_max),
        format!("in flight; further ones are refused [default: {}]", listeners.requests_max),
        format!(
            "maximum deadline of a request [default: {}s]",
            listeners.request_timeout.as_secs()
        ),
        format!("parts of a body [default: {}s]", listeners.client_timeout.as_secs()),
        format!("requests in flight [default: {}s]", listeners.shutdown_grace.as_secs()),
        format!("Maximum size of a request body [default: {}MiB]", listeners.body_bytes_max >> 20),
        format!(
            "recordings in progress; further ones are refused [default: {}]",
            server::AudioConfig::default().recordings_max
        ),
        format!(
            "Maximum size of a recording [default: {}GiB]",
            server::AudioConfig::default().bytes_max >> 30
        ),
        format!(
            "some formats need [default: {}GiB]",
            server::AudioConfig::default().spool_bytes_max >> 30
        ),
        format!(
            "queueing delay; further ones are refused [default: {}]",
            server::DataConfig::default().queue_max
        ),
        format!(
            "reading weights, in bytes per second, or \"unlimited\" [default: {}MB]",
            server::MemoryConfig::default().load_rate / 1_000_000
        ),
        format!(
            "faulting memory in, in bytes per second, or \"unlimited\" [default: {}GiB]",
            server::MemoryConfig::default().fault_rate >> 30
        ),
    ];
    for text in wanted {
        assert!(help.contains(&text), "{text}\nnot in\n{help}");
    }
}

#[test]
fn version_lists_the_engines() {
    let version = run(&["--version"]);
    assert!(
        version.stdout.starts_with(concat!("millpond ", env!("CARGO_PKG_VERSION"), "\n")),
        "{version:?}"
    );
    assert!(version.stdout.contains("layout:"), "{version:?}");
}

#[test]
fn wrong_arguments_are_usage_errors() {
    check_error(&["serve", "--htp-port", "1"], 2, "unexpected argument '--htp-port'");
    check_error(&["swerve"], 2, "unrecognized subcommand 'swerve'");
    check_error(&["serve", ".", "--pool", "lots"], 2, "\"lots\" does not start with a number");
    check_error(&["serve", ".", "--http-port", "70000"], 2, "a port is a number from 0 to 65535");
    check_error(&["serve", ".", "--versions", "newest"], 2, "is not a version policy");
    let home = ["serve", ".", "--collections-dir=~/c"];
    check_error(&home, 2, "error: --collections-dir ~/c: ~ does not mean the home directory");
    check_error(&["serve", ".", "--backup-dir=~/b"], 2, "error: --backup-dir ~/b: ~ does not");
    check_error(&["serve", ".", "--queue", "0"], 2, "error: --queue is 0; it must be 1 to");
    check_error(&["serve"], 2, "error: nothing to serve");
    check_error(
        &["serve", "/no/such/dir"],
        2,
        "error: cannot serve /no/such/dir: No such file or directory",
    );
    check_error(&["serve", file!()], 2, "No such file");
    check_error(&["serve", env!("CARGO_BIN_EXE_millpond")], 2, "is not a directory");
    check_error(&["serve", ".", "--log", "a=b=c"], 2, "--log a=b=c");
    check_error(&["models", "ls", "--url", "ftp://localhost"], 2, "does not speak ftp");
    check_error(&["infer", "m"], 2, "no input");
    // No request is sent for the first id, as that one would have no answer.
    let delete = ["images", "delete", "photos", "a-1", "a/b", "--url", "http://127.0.0.1:1"];
    check_error(&delete, 2, "a/b: no id");
    let demo: Run =
        command(&["demo"]).env("MILLPOND_DEMO_SECONDS", "soon").output().unwrap().into();
    assert_eq!(demo.code, 2, "{demo:?}");
    assert!(demo.stderr.starts_with("error: MILLPOND_DEMO_SECONDS=soon: "), "{demo:?}");
}

#[test]
fn settings_files_are_checked_with_file_line_and_key() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("settings.toml");
    let path = file.to_str().unwrap();
    for (text, wanted) in [
        (
            "[server]\nhtp-port = 1\n",
            format!("error: {path}:2: unknown key `htp-port`; did you mean `http-port`?"),
        ),
        (
            "[server]\nhttp-port = 70000\n",
            format!("error: {path}:2: http-port is 70000; it must be a number"),
        ),
        ("[server]\ngprc-port = 1\n", "hint: the keys are host, http-port, grpc-port".to_owned()),
        ("[memory]\npool = \"a lot\"\n", format!("error: {path}:2: ")),
        ("[server\n", format!("error: {path}:1: ")),
        (
            "roots = [\"missing\"]\n",
            format!("error: cannot serve {}/missing", dir.path().display()),
        ),
        ("[models.ctr]\n", "error: [models.ctr] has no path".to_owned()),
        ("[server]\nhttp-port = 7\ngrpc-port = 7\n", "are both 7".to_owned()),
    ] {
        std::fs::write(&file, text).unwrap();
        check_error(&["serve", "--config", path], 2, &wanted);
    }
    check_error(
        &["serve", "--config", "/no/such.toml"],
        2,
        "error: settings file /no/such.toml: No such file",
    );
    let run = command(&["serve"]).env("MILLPOND_CONFIG", "/no/other.toml").output().unwrap();
    assert!(String::from_utf8_lossy(&run.stderr).contains("/no/other.toml"));
}

#[test]
fn a_missing_server_has_a_hint() {
    // Port 1: the servers of other tests take any free port above 1023.
    let nobody = "127.0.0.1:1";
    let url = format!("http://{nobody}");
    for arguments in [
        &["models", "ls"][..],
        &["models", "status", "m"],
        &["models", "load", "m"],
        &["infer", "m", "x=1"],
    ] {
        let arguments = [arguments, &["--url", &url]].concat();
        check_error(&arguments, 1, &format!("error: no answer from {url}"));
        check_error(&arguments, 1, "hint: start one with `millpond serve DIR`");
    }
}

#[test]
fn manual_pages_cover_every_command() {
    let page = run(&["man"]);
    assert_eq!(page.code, 0, "{page:?}");
    assert!(page.stdout.contains(".TH millpond 1"), "{}", page.stdout);
    let dir = tempfile::tempdir().unwrap();
    let written = run(&["man", "--to", dir.path().to_str().unwrap()]);
    assert_eq!((written.code, written.stdout.as_str()), (0, ""), "{written:?}");
    for name in COMMANDS.iter().filter(|name| **name != "bench") {
        let page = std::fs::read_to_string(dir.path().join(format!("millpond-{name}.1"))).unwrap();
        assert!(page.contains(".SH OPTIONS"), "{name}");
    }
    let nested = std::fs::read_to_string(dir.path().join("millpond-models-ls.1")).unwrap();
    // The date is blank. The version follows it.
    let title =
        concat!(".TH millpond-models-ls 1 \" \" \"millpond ", env!("CARGO_PKG_VERSION"), "\"");
    assert!(nested.lines().any(|line| line.trim_end() == title), "{nested}");
}

#[test]
fn completion_knows_commands_and_flags() {
    for (shell, offer) in [("bash", " _ "), ("zsh", "'_:"), ("fish", "-a \"_\"")] {
        let script = run(&["completion", shell]);
        assert_eq!(script.code, 0);
        for word in ["serve", "publish", "swap-reserve"] {
            assert!(script.stdout.contains(word), "{shell}: {word}");
        }
        // Only the server runs the command `worker`.
        assert!(script.stdout.contains(&offer.replace('_', "serve")), "{shell}");
        assert!(!script.stdout.contains(&offer.replace('_', "worker")), "{shell}");
    }
    check_error(&["completion", "tcsh"], 2, "invalid value 'tcsh'");
}
