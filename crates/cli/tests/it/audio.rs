//! `millpond audio` and `millpond speakers` without a model: arguments, paths, errors.

use std::path::Path;

use crate::program::{Run, check_error, command, run};

/// A directory of recognisers of which none has a version.
fn recognisers(dir: &Path) -> String {
    for (name, settings) in [
        ("vad", VAD),
        ("plain", "[warmup]\nenabled = false\n"),
        ("odd", "[recogniser]\nkind = \"smells\"\n"),
    ] {
        std::fs::create_dir_all(dir.join(name)).unwrap();
        std::fs::write(dir.join(name).join("millpond.toml"), settings).unwrap();
    }
    dir.to_str().unwrap().to_owned()
}

const VAD: &str = r#"
[recogniser]
title = "Voice activity"
kind = "events"
rate = 16000
window = 512
hop = 512
[recogniser.features]
kind = "raw"
[recogniser.output]
classes = ["speech"]
[recogniser.events]
on = 0.5
off = 0.35
"#;

#[test]
fn wrong_arguments_are_usage_errors() {
    check_error(&["audio"], 2, "required arguments");
    check_error(&["audio", "a.wav"], 2, "--recogniser <NAME>");
    check_error(&["audio", "--list", "a.wav"], 2, "cannot be used with");
    check_error(&["audio", "--list", "--format", "json"], 2, "cannot be used with");
    check_error(
        &["audio", "a.wav", "--recogniser", "vad", "--format", "xml"],
        2,
        "invalid value 'xml'",
    );
    check_error(
        &["audio", "a.wav", "--recogniser", "vad", "--url", "https://h"],
        2,
        "does not speak https",
    );
    check_error(
        &["audio", "a.wav", "--recogniser", "vad", "--threads", "0"],
        2,
        "--threads must be 1 to 256",
    );
    check_error(
        &["audio", "a.wav", "--recogniser", "vad", "--cores", "9999"],
        2,
        "this process may use",
    );
    for local in [["--threads", "2"], ["--cache-dir", "c"], ["--onnxruntime", "o"]] {
        let remote = ["audio", "a.wav", "--recogniser", "vad", "--url", "h:1"];
        check_error(&[&remote[..], &local].concat(), 2, "cannot be used");
    }
    check_error(&["speakers", "enrol", "alice"], 2, "<FILES>...");
    check_error(&["speakers", "list"], 2, "give --speakers FILE");
}

#[test]
fn a_recording_is_no_file_of_times() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.wav");
    std::fs::write(&file, "RIFF").unwrap();
    let audio = ["audio", "--recogniser", "vad", "--timing", file.to_str().unwrap(), "b.wav"];
    check_error(&audio, 2, "a.wav: this file exists and has no times");
    // An earlier file of times is replaced.
    std::fs::write(&file, "{}").unwrap();
    assert!(!run(&audio).stderr.contains("--timing"));
}

#[test]
fn missing_recognisers_have_a_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let away = |arguments: &[&str]| -> Run {
        // Neither below the current directory nor, in a test, beside the program.
        command(arguments).current_dir(dir.path()).output().unwrap().into()
    };
    let audio = ["audio", "a.wav", "--recogniser", "vad"];
    for arguments in [
        [&audio[..], &["--recognisers", "none"]].concat(),
        vec!["audio", "--list", "--recognisers", "none"],
    ] {
        let run = away(&arguments);
        assert_eq!(run.code, 1, "{run:?}");
        assert!(
            run.stderr.starts_with("error: --recognisers none: there is no such directory"),
            "{run:?}"
        );
        assert!(run.stderr.contains("hint: run `make recognisers`"), "{run:?}");
    }
    let empty: Run =
        command(&audio).env("MILLPOND_RECOGNISERS", dir.path()).output().unwrap().into();
    assert_eq!(empty.code, 1, "{empty:?}");
    assert!(empty.stderr.contains("no model here has a section [recogniser]"), "{empty:?}");
    let place = recognisers(dir.path());
    check_error(
        &[&audio[..2], &["--recogniser", "notes", "--recognisers", &place]].concat(),
        1,
        "there are odd, vad",
    );
}

#[test]
fn serve_names_the_recognisers_that_it_finds() {
    let dir = tempfile::tempdir().unwrap();
    let run: Run = command(&["serve", "--recogniser", "vad,notes"])
        .env("MILLPOND_RECOGNISERS", recognisers(dir.path()))
        .output()
        .unwrap()
        .into();
    assert_eq!(run.code, 2, "{run:?}");
    assert!(run.stderr.contains("there is no recogniser \"notes\"; there are odd, vad"), "{run:?}");
}

#[test]
fn recognisers_are_listed_despite_an_invalid_one() {
    let dir = tempfile::tempdir().unwrap();
    let listed = run(&["audio", "--list", "--recognisers", &recognisers(dir.path())]);
    assert_eq!((listed.code, listed.stderr.as_str()), (0, ""), "{listed:?}");
    let lines: Vec<&str> = listed.stdout.lines().collect();
    assert_eq!(lines.len(), 3, "{listed:?}");
    assert!(lines[0].starts_with("NAME") && lines[1].starts_with("odd"), "{listed:?}");
    let words: Vec<&str> = lines[2].split_whitespace().collect();
    assert_eq!(words, ["vad", "Voice", "activity", "events", "16000", "Hz"], "{listed:?}");
}

#[test]
fn a_missing_server_is_an_error() {
    // Port 1: the servers of other tests take any free port above 1023.
    let nobody = "127.0.0.1:1";
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.wav");
    std::fs::write(&file, b"RIFF").unwrap();
    let url = format!("http://{nobody}");
    let arguments = ["audio", file.to_str().unwrap(), "--recogniser", "vad", "--url", &url];
    check_error(&arguments, 1, &format!("no answer from {url}"));
    let missing = ["audio", "/no/such.wav", "--recogniser", "vad", "--url", &url];
    check_error(&missing, 1, "error: /no/such.wav: ");
}

#[test]
fn no_voice_is_enrolled_at_first() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("voices.json");
    let file = file.to_str().unwrap();
    let listed = run(&["speakers", "list", "--speakers", file]);
    assert_eq!((listed.code, listed.stdout.as_str()), (0, ""), "{listed:?}");
    check_error(&["speakers", "identify", "a.wav", "--speakers", file], 1, "no voice is enrolled");
    check_error(&["speakers", "remove", "bob", "--speakers", file], 1, "\"bob\" is not enrolled");
    check_error(
        &["speakers", "verify", "bob", "a.wav", "--speakers", file],
        1,
        "\"bob\" is not enrolled",
    );
    let elsewhere: Run =
        command(&["speakers", "list"]).env("HOME", dir.path()).output().unwrap().into();
    assert_eq!(elsewhere.code, 0, "{elsewhere:?}");
}

#[test]
fn a_mistyped_argument_overwrites_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let text = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(text("a.wav"), b"RIFF and so on").unwrap();
    std::fs::write(text("labels.csv"), b"of before").unwrap();
    let (wav, labels) = (text("a.wav"), text("labels.csv"));
    check_error(&["speakers", "list", "--speakers", &wav], 1, "no file of enrolled voices");
    let vad = ["audio", &wav, "--recogniser", "vad", "--url", "http://127.0.0.1:9"];
    check_error(&[&vad[..], &["--output", &wav]].concat(), 2, "is the recording");
    check_error(&[&vad[..], &["--output", &labels]].concat(), 1, "no answer");
    let new = text("new.csv");
    check_error(&[&vad[..], &["--output", &new, "--timing", &new]].concat(), 2, "name another");
    let same = text(&format!("../{}/new.csv", dir.path().file_name().unwrap().display()));
    check_error(&[&vad[..], &["--output", &new, "--timing", &same]].concat(), 2, "name another");
    check_error(&[&vad[..], &["--output", &labels, "--timing", &labels]].concat(), 2, "another");
    check_error(&[&vad[..], &[&labels, "--format", "srt"]].concat(), 2, "is for one recording");
    assert_eq!(std::fs::read(&wav).unwrap(), b"RIFF and so on");
    assert_eq!(std::fs::read(&labels).unwrap(), b"of before");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
}
