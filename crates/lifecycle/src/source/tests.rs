use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

const POLL: Duration = Duration::from_secs(1);

struct Bench {
    root: tempfile::TempDir,
    scanner: Scanner,
    now: Instant,
}

fn configured(models: Vec<ModelConfig>, roots: Vec<crate::ModelRoot>) -> Arc<ArcSwap<ConfigSet>> {
    Arc::new(ArcSwap::from_pointee(ConfigSet { models, roots }))
}

fn kinds() -> Vec<ForeignKind> {
    vec![ForeignKind { file: "model.onnx", engine: "fake", converted: true }]
}

impl Bench {
    fn new() -> Bench {
        let root = tempfile::tempdir().unwrap();
        let roots = vec![crate::ModelRoot::new(root.path())];
        let scanner = Scanner::new(configured(Vec::new(), roots), POLL, kinds());
        Bench { root, scanner, now: Instant::now() }
    }

    fn write(&self, path: &str, content: &str) {
        let path = self.root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// Scans once, a poll after the last scan, and returns words of the form
    /// "model/version:contents".
    fn scan(&mut self) -> String {
        self.now += POLL;
        self.look_again()
    }

    fn look_again(&mut self) -> String {
        let snapshot = self.scanner.scan(0, self.now);
        let mut words = Vec::new();
        for model in snapshot.models {
            match model.contents.map(|contents| contents.versions) {
                Err(_) => words.push(format!("{}:unreadable", model.base.name)),
                Ok(versions) if versions.is_empty() => {
                    words.push(format!("{}:empty", model.base.name))
                }
                Ok(versions) => words.extend(versions.into_iter().map(|version| {
                    let what = match version.found {
                        VersionContents::Published(_) => "published",
                        VersionContents::Foreign { .. } => "foreign",
                        VersionContents::Changing(_) => "changing",
                        VersionContents::Unusable(_) => "unusable",
                        VersionContents::Unreadable(_) => "cannot-be-read",
                    };
                    format!("{}/{}:{what}", model.base.name, version.version)
                })),
            }
        }
        words.join(" ")
    }
}

const MANIFEST: &str = r#"{"format":1,"engine":"fake","created_by":"test","graph":{"name":"graph","bytes":2},
    "weights":null,"tensors":[]}"#;

#[test]
fn a_model_whose_name_is_not_utf8_is_noted() {
    use std::os::unix::ffi::OsStrExt;

    let mut bench = Bench::new();
    bench.write("a/1/millpond.json", MANIFEST);
    bench.write("a/1/graph", "ab");
    for (name, has_version) in [(&b"bad\xff"[..], true), (&b"other\xff"[..], false)] {
        let directory = bench.root.path().join(OsStr::from_bytes(name));
        fs::create_dir(&directory).unwrap();
        if has_version {
            fs::create_dir(directory.join("1")).unwrap();
        }
    }
    bench.scan();
    let noted = &bench.scanner.known[bench.root.path()].unnamed;
    assert_eq!(noted.iter().collect::<Vec<_>>(), [OsStr::from_bytes(b"bad\xff")]);
}

#[test]
fn a_second_model_of_a_name_is_hidden() {
    let mut bench = Bench::new();
    let path = |name: &str| bench.root.path().join(name);
    let roots = ["a", "b"].map(|name| crate::ModelRoot::new(path(name)));
    // The settings of these models name the directories that their roots have too.
    let own = ModelConfig::new("own", path("a/own"));
    let models = vec![own, ModelConfig::new("n", path("b/../b/n"))];
    for model in ["a/m", "a/own", "b/m", "b/n", "b/own"] {
        bench.write(&format!("{model}/1/model.onnx"), "graph");
    }
    let hidden = [("b/m", "a/m"), ("b/own", "a/own")].map(|(dir, by)| (path(dir), path(by)));
    bench.scanner.configured = configured(models, roots.into());
    assert_eq!(bench.scan(), "m/1:changing n/1:changing own/1:changing");
    assert_eq!(bench.scanner.hidden, BTreeMap::from(hidden));
    fs::remove_dir_all(bench.root.path().join("a/m")).unwrap();
    bench.scan();
    assert!(!bench.scanner.hidden.contains_key(&bench.root.path().join("b/m")));
}

#[test]
fn a_copy_hides_a_model_once_it_has_a_version() {
    let mut bench = Bench::new();
    let path = |name: &str| bench.root.path().join(name);
    let copy = crate::ModelRoot {
        store: Some("s3://b/models".into()),
        ..crate::ModelRoot::new(path("copy"))
    };
    let roots = vec![copy, crate::ModelRoot::new(path("local"))];
    for model in ["copy/m", "copy/n"] {
        fs::create_dir_all(path(model)).unwrap();
    }
    let local = path("local/m");
    bench.write("local/m/1/model.onnx", "graph");
    bench.scanner.configured = configured(Vec::new(), roots);
    assert_eq!(bench.scan(), "m/1:changing n:empty");
    assert!(bench.scanner.hidden.is_empty());
    bench.write("copy/m/2/model.onnx", "graph");
    assert_eq!(bench.scan(), "m/2:changing n:empty");
    assert!(bench.scanner.hidden.contains_key(&local));
    // It keeps its place while its versions are replaced.
    fs::remove_dir_all(bench.root.path().join("copy/m/2")).unwrap();
    assert_eq!(bench.scan(), "m:empty n:empty");
}

#[test]
fn a_foreign_version_must_be_the_same_in_two_scans() {
    let mut bench = Bench::new();
    bench.write("m/1/model.onnx", "half");
    assert_eq!(bench.scan(), "m/1:changing");
    assert_eq!(bench.look_again(), "m/1:changing", "two looks at the same time are one");
    bench.write("m/1/model.onnx", "half and more");
    assert_eq!(bench.scan(), "m/1:changing");
    bench.write("m/1/weights.data", "external");
    assert_eq!(bench.scan(), "m/1:changing");
    assert_eq!(bench.scan(), "m/1:foreign");
    bench.write("m/1/model.onnx", "changed later on");
    assert_eq!(bench.scan(), "m/1:changing");
}

#[test]
fn a_version_may_have_a_file_for_each_tensor() {
    let mut bench = Bench::new();
    bench.write("m/1/model.onnx", "graph");
    let dir = bench.root.path().join("m/1");
    (0..5000).for_each(|tensor| fs::write(dir.join(format!("onnx__MatMul_{tensor}")), "").unwrap());
    assert_eq!(bench.scan(), "m/1:changing");
    assert_eq!(bench.scan(), "m/1:foreign");
}

#[test]
fn a_manifest_completes_a_version_at_once() {
    let mut bench = Bench::new();
    bench.write("m/1/millpond.json", MANIFEST);
    assert_eq!(bench.scan(), "m/1:changing");
    bench.write("m/1/graph", "g");
    assert_eq!(bench.scan(), "m/1:changing");
    assert_eq!(bench.scan(), "m/1:unusable");
    bench.write("m/1/graph", "gg");
    assert_eq!(bench.scan(), "m/1:published");
}

#[test]
fn entries_that_are_no_version() {
    let mut bench = Bench::new();
    fs::create_dir_all(bench.root.path().join("m/1")).unwrap();
    bench.write("m/2/readme.txt", "x");
    bench.write("m/.3/model.onnx", "x");
    bench.write("m/4x/model.onnx", "x");
    bench.write("m/5", "a file");
    bench.write("m/9223372036854775808/model.onnx", "too large a number");
    bench.write("n/notes/readme.txt", "no model");
    std::os::unix::fs::symlink("6", bench.root.path().join("m/6")).unwrap();
    assert_eq!(bench.scan(), "m/1:changing m/2:changing m/6:cannot-be-read");
    assert_eq!(bench.scan(), "m/1:unusable m/2:unusable m/6:cannot-be-read");
}

#[test]
fn models_come_and_go_with_their_directories() {
    let mut bench = Bench::new();
    assert_eq!(bench.scan(), "");
    bench.write("m/1/millpond.json", MANIFEST);
    bench.write("m/1/graph", "gg");
    assert_eq!(bench.scan(), "m/1:published");
    fs::remove_dir_all(bench.root.path().join("m/1")).unwrap();
    assert_eq!(bench.scan(), "m:empty");
    fs::remove_dir_all(bench.root.path().join("m")).unwrap();
    assert_eq!(bench.scan(), "");
    assert!(bench.scanner.readers.is_empty());
}

#[test]
fn an_unreadable_root_keeps_its_models() {
    let mut bench = Bench::new();
    bench.write("m/1/millpond.json", MANIFEST);
    assert_eq!(bench.scan(), "m/1:changing");
    let (path, aside) = (bench.root.path().to_owned(), bench.root.path().with_extension("aside"));
    fs::rename(&path, &aside).unwrap();
    assert_eq!(bench.scan(), "m:unreadable");
    fs::rename(&aside, &path).unwrap();
    assert_eq!(bench.scan(), "m/1:unusable");
}

#[test]
fn models_above_the_limit_of_a_root_are_counted() {
    let mut bench = Bench::new();
    bench.write(".real/1/readme.txt", "x");
    let link = |number: usize| bench.root.path().join(format!("m{number:04}"));
    for number in 0..ROOT_MODELS_MAX + 2 {
        std::os::unix::fs::symlink(".real", link(number)).unwrap();
    }
    let last = link(ROOT_MODELS_MAX + 1);
    let scan = bench.scanner.scan(0, bench.now);
    assert_eq!(scan.models.len(), ROOT_MODELS_MAX);
    assert_eq!(&*scan.models[ROOT_MODELS_MAX - 1].base.name, "m4095", "the first by name");
    assert_eq!(scan.ignored_models, BTreeMap::from([(bench.root.path().to_owned(), 2)]));
    fs::remove_file(last).unwrap();
    let scan = bench.scanner.scan(0, bench.now);
    assert_eq!(scan.ignored_models, BTreeMap::from([(bench.root.path().to_owned(), 1)]));
    fs::remove_file(bench.root.path().join("m0000")).unwrap();
    let scan = bench.scanner.scan(0, bench.now);
    assert_eq!((scan.models.len(), scan.ignored_models), (ROOT_MODELS_MAX, BTreeMap::new()));
}

#[test]
fn versions_above_the_limit_of_a_model_are_counted() {
    let mut bench = Bench::new();
    bench.write("m/1/readme.txt", "x");
    let ignored = |bench: &mut Bench| {
        let contents = bench.scanner.scan(0, bench.now).models.remove(0).contents.unwrap();
        (contents.versions.len(), contents.versions[0].version, contents.ignored_versions)
    };
    assert_eq!(ignored(&mut bench), (1, 1, 0));
    for version in 2..=VERSIONS_MAX + 3 {
        let link = bench.root.path().join(format!("m/{version}"));
        std::os::unix::fs::symlink("1", link).unwrap();
    }
    assert_eq!(ignored(&mut bench), (VERSIONS_MAX, 4, 3), "the lowest are ignored");
    bench.write("m/millpond.toml", "policy = { specific = [2] }");
    assert_eq!(ignored(&mut bench), (VERSIONS_MAX + 1, 2, 2), "but not one that the policy names");
    // Wrong settings change nothing. The second ones conflict with each other.
    for wrong in ["policy = ", "policy = { specific = [1] }\nrun-memory = \"1GiB\""] {
        bench.write("m/millpond.toml", wrong);
        assert_eq!(ignored(&mut bench), (VERSIONS_MAX + 1, 2, 2), "{wrong}");
    }
}

#[test]
fn a_silent_root_delays_no_other_one() {
    let mut bench = Bench::new();
    let publish = |bench: &Bench, version: &str| {
        bench.write(&format!("{version}/millpond.json"), MANIFEST);
        bench.write(&format!("{version}/graph"), "gg");
    };
    let silent = bench.root.path().join("silent");
    let roots = vec![
        crate::ModelRoot::new(silent.clone()),
        crate::ModelRoot::new(bench.root.path().join("other")),
    ];
    bench.scanner = Scanner::new(configured(Vec::new(), roots), POLL, kinds());
    publish(&bench, "silent/a/1");
    publish(&bench, "other/b/1");
    assert_eq!(bench.scan(), "a/1:published b/1:published");
    assert_eq!(bench.scanner.next_check(), None);
    let time = bench.scanner.scan_times[&silent];

    let open = bench.scanner.calls.close(&silent);
    publish(&bench, "silent/a/2");
    publish(&bench, "other/b/2");
    assert_eq!(bench.scan(), "a:unreadable b/1:published b/2:published");
    publish(&bench, "other/b/3");
    assert_eq!(bench.scan(), "a:unreadable b/1:published b/2:published b/3:published");
    assert_eq!(bench.scanner.scan_times[&silent], time, "it was not read completely");
    assert_eq!(bench.scanner.next_check(), Some(POLL), "even if polls have ended");

    drop(open);
    let read = "a/1:published a/2:published b/1:published b/2:published b/3:published";
    while bench.scan() != read {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(bench.scanner.scan_times[&silent] > time);
}

/// A directory whose reads always take longer than a scan waits must still be served.
#[test]
fn contents_of_a_late_read_count_at_the_next_scan() {
    let mut bench = Bench::new();
    bench.write("m/1/model.onnx", "graph");
    let base = bench.root.path().to_owned();
    let model = ModelConfig::new("m", base.join("m"));
    bench.scanner = Scanner::new(configured(vec![model], Vec::new()), POLL, kinds());
    assert_eq!(bench.scan(), "m/1:changing");
    let open = bench.scanner.calls.close(&base);
    assert_eq!(bench.scan(), "m:unreadable");
    // The next read of this scan is late too, and the result of the last one counts.
    drop(open);
    let mut seen = String::from("m:unreadable");
    while seen == "m:unreadable" {
        std::thread::sleep(Duration::from_millis(5));
        drop(bench.scanner.calls.close(&base));
        seen = bench.scan();
    }
    assert_eq!(seen, "m/1:foreign", "the memory of earlier reads is kept");
}

/// A dangling link, or one that cannot be followed, is not a removed directory.
#[test]
fn a_model_that_cannot_be_scanned_stays_a_model() {
    let mut bench = Bench::new();
    bench.write(".real/1/millpond.json", MANIFEST);
    bench.write(".real/1/graph", "gg");
    let link = bench.root.path().join("m");
    let lead_to = |to: &str| {
        let _ = fs::remove_file(&link);
        std::os::unix::fs::symlink(to, &link).unwrap();
    };
    lead_to("m");
    assert_eq!(bench.scan(), "", "what never was a model does not become one");
    lead_to(".real");
    assert_eq!(bench.scan(), "m/1:published");
    lead_to("m");
    assert_eq!(bench.scan(), "m:unreadable", "it leads to itself");
    lead_to(".elsewhere");
    assert_eq!(bench.scan(), "m:unreadable", "it leads nowhere");
    lead_to(".real");
    assert_eq!(bench.scan(), "m/1:published");
    fs::remove_file(&link).unwrap();
    assert_eq!(bench.scan(), "");
}

/// If a listing does not say the kind of an entry, reading the kind can fail.
#[test]
fn an_entry_of_unknown_kind_may_be_a_version() {
    let failing = |kind: ErrorKind| perhaps_directory(Err(kind.into()));
    assert_eq!(failing(ErrorKind::NotFound), None);
    assert_eq!(failing(ErrorKind::PermissionDenied), Some(true));
    let kind =
        |path: &str| perhaps_directory(fs::symlink_metadata(path).map(|meta| meta.file_type()));
    assert_eq!((kind("/"), kind("/proc/version")), (Some(true), Some(false)));
}

fn settings(bench: &mut Bench) -> Settings {
    let snapshot = bench.scanner.scan(0, bench.now);
    snapshot.models.into_iter().next().unwrap().contents.unwrap().settings
}

#[test]
fn unreadable_settings_are_read_again() {
    let mut bench = Bench::new();
    bench.write("m/1/model.onnx", "x");
    let file = bench.root.path().join("m/millpond.toml");
    // Length, time and inode are the same before and after.
    fs::create_dir(&file).unwrap();
    assert!(settings(&mut bench).as_ref().as_ref().unwrap_err().contains("millpond.toml: "));
    let is_kept = bench.scanner.readers.values().any(ModelReader::has_settings);
    assert!(!is_kept, "an error of reading is not kept");
    fs::remove_dir(&file).unwrap();
    std::os::unix::fs::symlink("nowhere", &file).unwrap();
    assert!(settings(&mut bench).is_err(), "it is listed");
    bench.write("m/nowhere", "policy = \"all\"");
    assert!(matches!(&*settings(&mut bench), Ok(Some(_))));
    fs::remove_file(&file).unwrap();
    assert!(matches!(&*settings(&mut bench), Ok(Some(_))), "it may be replaced at this moment");
    bench.now += POLL;
    assert_eq!(*settings(&mut bench), Ok(None));
}

/// Editors and shells replace a file in two steps.
#[test]
fn missing_settings_count_after_a_poll() {
    let mut bench = Bench::new();
    bench.write("m/1/model.onnx", "x");
    bench.write("m/millpond.toml", "policy = \"all\"");
    let all = settings(&mut bench);
    bench.write("m/millpond.toml", "");
    assert_eq!(settings(&mut bench), all, "it is being written");
    bench.write("m/millpond.toml", "policy = \"latest:2\"");
    let two = settings(&mut bench);
    assert!(two != all && matches!(&*two, Ok(Some(_))));
    bench.now += POLL;
    fs::remove_file(bench.root.path().join("m/millpond.toml")).unwrap();
    assert_eq!(settings(&mut bench), two);
    bench.write("m/millpond.toml", "");
    bench.now += POLL;
    assert_eq!(*settings(&mut bench), Ok(Some(ModelFile::default())), "it stays empty");
}

/// A load would otherwise use removed settings until the next poll, which may be a day later.
#[test]
fn missing_settings_count_soon_if_polls_are_rare() {
    let mut bench = Bench::new();
    bench.scanner.poll = Duration::from_secs(86_400);
    bench.write("m/1/millpond.json", MANIFEST);
    bench.write("m/1/graph", "gg");
    bench.write("m/millpond.toml", "policy = \"all\"");
    let all = settings(&mut bench);
    assert_eq!(bench.scanner.next_check(), None);
    fs::remove_file(bench.root.path().join("m/millpond.toml")).unwrap();
    assert_eq!(settings(&mut bench), all);
    assert_eq!(bench.scanner.next_check(), Some(REPLACEMENT_TIME_MAX));
    bench.now += REPLACEMENT_TIME_MAX;
    assert_eq!(*settings(&mut bench), Ok(None));
    assert_eq!(bench.scanner.next_check(), None);
}

/// A start, and a new model of a list, would otherwise wait for a whole poll.
#[test]
fn a_version_is_complete_soon_if_polls_are_rare() {
    let mut bench = Bench::new();
    let model = ModelConfig::new("m", bench.root.path().join("m"));
    let day = Duration::from_secs(86_400);
    bench.scanner = Scanner::new(configured(vec![model], Vec::new()), day, kinds());
    bench.write("m/1/model.onnx", "graph");
    assert_eq!(bench.look_again(), "m/1:changing");
    assert_eq!(bench.scanner.next_check(), Some(version::UNCHANGED_TIME_MAX));
    bench.write("m/1/model.onnx", "a longer graph");
    bench.now += version::UNCHANGED_TIME_MAX;
    assert_eq!(bench.look_again(), "m/1:changing");
    bench.now += version::UNCHANGED_TIME_MAX;
    assert_eq!(bench.look_again(), "m/1:foreign");
    assert_eq!(bench.scanner.next_check(), None);
    bench.write("m/2/other", "no version");
    assert_eq!(bench.look_again(), "m/1:foreign m/2:changing");
    bench.now += version::UNCHANGED_TIME_MAX;
    assert_eq!(bench.look_again(), "m/1:foreign m/2:unusable");
    assert_eq!(bench.scanner.next_check(), None, "it is complete, and not a version");
}

/// A program may write into a directory for days, and each scan reads all models.
#[test]
fn early_scans_of_a_changing_version_end() {
    let mut bench = Bench::new();
    let model = ModelConfig::new("m", bench.root.path().join("m"));
    let day = Duration::from_secs(86_400);
    bench.scanner = Scanner::new(configured(vec![model], Vec::new()), day, kinds());
    let mut content = String::new();
    for _ in 0..version::EARLY_CHANGES_MAX {
        content.push('x');
        bench.write("m/1/model.onnx", &content);
        assert_eq!(bench.look_again(), "m/1:changing");
        assert_eq!(bench.scanner.next_check(), Some(version::UNCHANGED_TIME_MAX));
    }
    content.push('x');
    bench.write("m/1/model.onnx", &content);
    assert_eq!(bench.look_again(), "m/1:changing");
    assert_eq!(bench.scanner.next_check(), None);
    bench.now += day;
    assert_eq!(bench.look_again(), "m/1:foreign");
    bench.write("m/1/model.onnx", "graph");
    assert_eq!(bench.look_again(), "m/1:changing");
    assert_eq!(bench.scanner.next_check(), Some(version::UNCHANGED_TIME_MAX), "after a pause");
}

/// A read of a named pipe or a device would stop the scan of all models.
#[test]
fn settings_in_a_device_are_refused() {
    let mut bench = Bench::new();
    bench.write("m/1/model.onnx", "x");
    let file = bench.root.path().join("m/millpond.toml");
    std::os::unix::fs::symlink("/dev/null", &file).unwrap();
    let found = settings(&mut bench);
    assert!(found.as_ref().as_ref().unwrap_err().contains("not a regular file"), "{found:?}");
    fs::remove_file(&file).unwrap();
    bench.write("m/millpond.toml", "[classify]\nscores = \"p\"\nlabels-file = \"labels.txt\"");
    std::os::unix::fs::symlink("/dev/null", bench.root.path().join("m/labels.txt")).unwrap();
    let found = settings(&mut bench);
    assert!(found.as_ref().as_ref().unwrap_err().contains("not a regular file"), "{found:?}");
}

/// Clients read the labels, and the writer of a model may not read all files of the server.
#[test]
fn labels_outside_of_the_model_are_not_read() {
    let mut bench = Bench::new();
    bench.write("m/1/model.onnx", "x");
    let outside = tempfile::tempdir().unwrap();
    let secret = outside.path().join("secret.txt");
    fs::write(&secret, "secret").unwrap();
    let model = bench.root.path().join("m");
    std::os::unix::fs::symlink(&secret, model.join("link.txt")).unwrap();
    let mut refused = |name: &str, wanted: &str| {
        let text = format!("[classify]\nscores = \"p\"\nlabels-file = \"{name}\"");
        bench.write("m/millpond.toml", &text);
        let found = settings(&mut bench);
        assert!(found.as_ref().as_ref().unwrap_err().contains(wanted), "{name}: {found:?}");
    };
    refused("../secret.txt", "a file in the directory of the model");
    refused(secret.to_str().unwrap(), "a file in the directory of the model");
    refused("link.txt", "a link out of the model's directory");
    bench.write("m/data/labels.txt", "cat");
    std::os::unix::fs::symlink("data/labels.txt", model.join("labels.txt")).unwrap();
    bench.write("m/millpond.toml", "[classify]\nscores = \"p\"\nlabels-file = \"labels.txt\"");
    let found = settings(&mut bench);
    assert!(matches!(&*found, Ok(Some(_))), "{found:?}");
}

/// A manifest that cannot be read, unlike a wrong one, may be readable later without a change.
#[test]
fn an_unreadable_version_is_scanned_again() {
    let mut bench = Bench::new();
    bench.write("m/1/graph", "gg");
    bench.write("m/1/millpond.json", "{}");
    bench.scan();
    assert_eq!(bench.scan(), "m/1:unusable");
    let kept = |bench: &Bench| {
        let readers = bench.scanner.readers.values();
        readers.flat_map(|reader| reader.versions.values()).any(|memory| memory.knows())
    };
    assert!(kept(&bench));
    // Reading it fails; its length is as before.
    fs::remove_file(bench.root.path().join("m/1/millpond.json")).unwrap();
    std::os::unix::fs::symlink("/proc/self/mem", bench.root.path().join("m/1/millpond.json"))
        .unwrap();
    bench.scan();
    assert_eq!(bench.scan(), "m/1:cannot-be-read");
    assert!(!kept(&bench));
}

#[test]
fn settings_are_read_again_when_they_change() {
    let mut bench = Bench::new();
    bench.write("m/1/model.onnx", "x");
    assert_eq!(*settings(&mut bench), Ok(None));
    bench.write("m/millpond.toml", "polcy = 1");
    assert!(settings(&mut bench).as_ref().as_ref().unwrap_err().contains("millpond.toml: line 1"));
    bench.write("m/millpond.toml", "policy = \"all\"");
    let first = settings(&mut bench);
    assert!(matches!(&*first, Ok(Some(_))));
    assert!(Arc::ptr_eq(&first, &settings(&mut bench)), "not parsed again");
}

#[test]
fn a_file_of_labels_is_read_again_when_it_changes() {
    let mut bench = Bench::new();
    bench.write("m/1/model.onnx", "x");
    bench.write("m/millpond.toml", "[classify]\nscores = \"p\"\nlabels-file = \"labels.txt\"");
    let missing = settings(&mut bench);
    assert!(missing.as_ref().as_ref().unwrap_err().contains("labels-file: "), "{missing:?}");
    let inline = |labels: &str| {
        let text = format!("[classify]\nscores = \"p\"\nlabels = {labels}");
        Ok(Some(ModelFile::parse(&text).unwrap()))
    };
    bench.write("m/labels.txt", "cat");
    let first = settings(&mut bench);
    assert_eq!(*first, inline("[\"cat\"]"), "the settings themselves did not change");
    assert!(Arc::ptr_eq(&first, &settings(&mut bench)), "not read again");
    bench.write("m/labels.txt", "cat\ndog");
    assert_eq!(*settings(&mut bench), inline("[\"cat\", \"dog\"]"));
    fs::remove_file(bench.root.path().join("m/labels.txt")).unwrap();
    assert!(settings(&mut bench).is_err());
}

/// Copies that share unchanged files by hard links, as `rsync --link-dest` makes them.
#[test]
fn labels_are_those_of_the_directory_that_a_link_names() {
    let mut bench = Bench::new();
    let copies = tempfile::tempdir().unwrap();
    let path = |name: &str| copies.path().join(name);
    let text = "[classify]\nscores = \"p\"\nlabels-file = \"labels.txt\"";
    fs::write(path("millpond.toml"), text).unwrap();
    for (copy, label) in [("first", "cat"), ("second", "horse")] {
        fs::create_dir_all(path(copy).join("1")).unwrap();
        fs::write(path(copy).join("1/model.onnx"), "x").unwrap();
        fs::write(path(copy).join("labels.txt"), label).unwrap();
        fs::hard_link(path("millpond.toml"), path(copy).join("millpond.toml")).unwrap();
        let link = bench.root.path().join("m");
        let _ = fs::remove_file(&link);
        std::os::unix::fs::symlink(path(copy), &link).unwrap();
        let text = format!("[classify]\nscores = \"p\"\nlabels = [\"{label}\"]");
        assert_eq!(*settings(&mut bench), Ok(Some(ModelFile::parse(&text).unwrap())));
    }
}

/// The directory of a model is moved away and back all the time. A scan must see it whole or as
/// unreadable. Without its versions the model would be unloaded, and without its settings it would
/// get other ones.
#[test]
fn a_moving_directory_is_never_seen_empty() {
    let mut bench = Bench::new();
    bench.write("m/millpond.toml", "policy = \"all\"");
    bench.write("m/1/millpond.json", MANIFEST);
    bench.write("m/1/graph", "ab");
    let (here, away) = (bench.root.path().join("m"), bench.root.path().join(".away"));
    let model = ModelConfig::new("m", here.clone());
    let set = configured(vec![model], Vec::new());
    bench.scanner = Scanner::new(set, POLL, kinds());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                fs::rename(&here, &away).unwrap();
                fs::rename(&away, &here).unwrap();
            }
        });
        let seen: BTreeSet<String> = (0..250).map(|_| bench.look_again()).collect();
        let models = (0..250).flat_map(|_| bench.scanner.scan(0, bench.now).models);
        let without =
            models.filter_map(|model| model.contents.ok()).filter(|it| *it.settings == Ok(None));
        let without = without.count();
        stop.store(true, Ordering::Relaxed);
        assert_eq!(without, 0, "seen without settings");
        assert!(seen.contains("m/1:published") && !seen.contains("m:empty"), "{seen:?}");
    });
}
