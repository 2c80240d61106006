use std::time::Duration;

use engine::ModeText;

use super::*;

fn repository(models: &[(&str, &str)]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for (name, text) in models {
        let dir = root.path().join(name);
        std::fs::create_dir_all(dir.join("1")).unwrap();
        std::fs::write(dir.join(CONFIG_FILE), text).unwrap();
    }
    root
}

fn read(dir: &Path) -> std::result::Result<Repository, ImportError> {
    Repository::read(dir, |_| Ok(()))
}

fn converted(text: &str) -> ConvertedModel {
    let root = repository(&[("m", text)]);
    let mut repository = read(root.path()).unwrap();
    assert!(repository.unread.is_empty(), "{:?}", repository.unread);
    repository.models.remove(0).converted
}

/// Parses the model's own file and returns its text.
fn file(model: &ConvertedModel) -> String {
    let text = model.file_text().unwrap();
    lifecycle::check_model_settings(&text).unwrap();
    text
}

#[test]
fn batching_becomes_a_schedule() {
    let model = converted(
        "name: 'm' platform: 'onnxruntime_onnx' max_batch_size: 16\n\
         dynamic_batching { preferred_batch_size: [ 8, 4 ] max_queue_delay_microseconds: 500 \
         priority_levels: 2 default_priority_level: 2 \
         default_queue_policy { max_queue_size: 64 default_timeout_microseconds: 2000 allow_timeout_override: true } \
         priority_queue_policy { key: 1 value { max_queue_size: 8 } } }\n\
         instance_group [ { count: 2 kind: KIND_CPU }, { count: 1 } ]\n\
         version_policy: { latest { num_versions: 2 } }\n\
         parameters { key: 'intra_op_thread_count' value: { string_value: '4' } }",
    );
    assert!(model.notes.is_empty(), "{:?}", model.notes);
    let schedule = &model.schedule;
    assert_eq!((schedule.mode, schedule.max_batch), (Some(ModeText::Async), Some(16)));
    assert_eq!(schedule.preferred_batch_sizes.as_deref(), Some(&[4, 8][..]));
    assert_eq!(schedule.max_queue_delay, Some(Duration::from_micros(500)));
    assert_eq!((schedule.queue, schedule.timeout), (Some(64), Some(Duration::from_millis(2))));
    assert_eq!((schedule.threads, schedule.default_priority), (Some(3), Some(2)));
    let levels: Vec<_> = schedule.priorities.iter().flatten().map(|level| level.queue).collect();
    assert_eq!(levels, [Some(8), None]);
    let text = file(&model);
    assert!(
        text.contains("policy = \"latest:2\"") && text.contains("intra-op-threads = 4"),
        "{text}"
    );
}

#[test]
fn a_torchscript_gets_its_signature_and_device() {
    let model = converted(
        "platform: 'pytorch_libtorch' max_batch_size: 8\n\
         input [ { name: 'INPUT__0' data_type: TYPE_FP32 dims: [ 3, -1 ] } ]\n\
         output [ { name: 'OUTPUT__0' data_type: TYPE_INT64 dims: [ 10 ] } ]\n\
         instance_group { kind: KIND_GPU gpus: [ 1 ] }\n\
         model_warmup { name: 'w' batch_size: 4 count: 3 \
         inputs { key: 'INPUT__0' value: { data_type: TYPE_FP32 dims: [ 3, 32 ] zero_data: true } } }",
    );
    let text = file(&model);
    for part in [
        "device = \"cuda:1\"",
        "shape = [-1, 3, -1]",
        "dtype = \"int64\"",
        "batch-sizes = [4]",
        "iterations = 3",
        "INPUT__0 = [-1, 3, 32]",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(model.lost_in_section().len(), 3);
    assert!(model.notes.iter().all(|note| note.starts_with("max_batch_size")), "{:?}", model.notes);
}

#[test]
fn a_torchscript_has_the_shapes_after_a_reshape() {
    let tensors = "input { name: 'a' data_type: TYPE_INT64 dims: [ 1 ] reshape { shape: [ ] } }\n\
                   output { name: 'b' data_type: TYPE_FP32 dims: [ 6 ] reshape { shape: [ 2, 3 ] } }";
    for (batch, shapes) in
        [(0, ["shape = []", "shape = [2, 3]"]), (8, ["shape = [-1]", "shape = [-1, 2, 3]"])]
    {
        let text = format!("platform: 'pytorch_libtorch' max_batch_size: {batch}\n{tensors}");
        let text = file(&converted(&text));
        assert!(shapes.iter().all(|shape| text.contains(shape)), "{text}");
    }
}

#[test]
fn each_key_without_an_equivalent_has_a_line() {
    for (text, says) in [
        ("name: 'other'", "other=DIR"),
        ("backend: 'python'", "Python code is not run"),
        ("platform: 'tensorrt_plan'", "serve the ONNX file"),
        ("backend: 'onnxruntime' default_model_filename: 'a.onnx'", "name the file model.onnx"),
        ("version_policy { specific { versions: [ -2, 3 ] } }", "-2 is not a version number"),
        ("version_policy { specific { } }", "names no version"),
        ("max_batch_size: 8", "a request's batch has no limit here"),
        ("dynamic_batching { }", "max_batch_size = 0"),
        ("max_batch_size: 8 dynamic_batching { preserve_ordering: true }", "as they are ready"),
        (
            "max_batch_size: 8 dynamic_batching { default_queue_policy { timeout_action: DELAY \
             default_timeout_microseconds: 9 } }",
            "timeout_action DELAY",
        ),
        ("sequence_batching { direct { } }", "sequence_batching: "),
        (
            "ensemble_scheduling { step [ { model_name: 'a' }, { model_name: 'b' } ] }",
            "call a, b in turn",
        ),
        ("backend: 'onnxruntime' instance_group { kind: KIND_GPU }", "run on the processor"),
        ("instance_group { count: 1 rate_limiter { priority: 1 } }", "rate_limiter"),
        (
            "optimization { execution_accelerators { gpu_execution_accelerator { name: 'tensorrt' } } }",
            "\"tensorrt\"",
        ),
        ("optimization { priority: PRIORITY_MAX }", "weight in [schedule]"),
        ("parameters { key: 'k' value { string_value: 'v' } }", "\"k\" = \"v\""),
        ("response_cache { enable: true }", "response_cache: "),
        ("model_transaction_policy { decoupled: true }", "one response"),
        ("input { name: 'x' reshape { shape: [ 1 ] } }", "\"x\" reshape"),
        (
            "model_warmup { batch_size: 1 inputs { key: 'x' value { input_data_file: 'f' } } }",
            "input_data_file",
        ),
        (
            "model_warmup { batch_size: 1 inputs { key: 'x' value { dims: [ 8 ] zero_data: true } } }\n\
             model_warmup { batch_size: 1 inputs { key: 'x' value { dims: [ 9 ] zero_data: true } } }",
            "dims of \"x\"",
        ),
    ] {
        let notes = converted(text).notes;
        assert!(notes.iter().any(|note| note.contains(says)), "{text}: {notes:?}");
    }
    assert!(converted("response_cache { enable: false }").notes.is_empty());
    let text = file(&converted("version_policy { specific { versions: -1 } }"));
    assert!(!text.contains("policy"), "{text}");
}

#[test]
fn model_files_in_a_directory_of_their_own_are_noted() {
    for (text, name) in [
        ("platform: 'onnxruntime_onnx'", "model.onnx"),
        ("backend: 'tensorflow'", "model.savedmodel"),
        ("backend: 'tensorflow' default_model_filename: 'net.savedmodel'", "net.savedmodel"),
    ] {
        let root = repository(&[("m", text)]);
        std::fs::create_dir_all(root.path().join("m/1").join(name)).unwrap();
        let repository = read(root.path()).unwrap();
        let notes = &repository.models[0].converted.notes;
        let says = format!("move the content of 1/{name}/ to 1/");
        assert!(notes.iter().any(|note| note.ends_with(&says)), "{notes:?}");
        assert!(converted(text).notes.is_empty());
    }
}

#[test]
fn a_backend_without_a_name_is_that_of_the_model_file() {
    let tensors = "input { name: 'INPUT__0' data_type: TYPE_FP32 dims: [ 3 ] }\n\
                   output { name: 'OUTPUT__0' data_type: TYPE_FP32 dims: [ 2 ] }";
    let root =
        repository(&[("pt", tensors), ("tf", "max_batch_size: 0"), ("trt", "max_batch_size: 0")]);
    std::fs::write(root.path().join("pt/1/model.pt"), "").unwrap();
    std::fs::create_dir(root.path().join("tf/1/model.savedmodel")).unwrap();
    std::fs::write(root.path().join("trt/1/model.plan"), "").unwrap();
    let models = read(root.path()).unwrap().models;
    assert!(file(&models[0].converted).contains("INPUT__0"));
    let notes = |index: usize| models[index].converted.notes.join("\n");
    assert!(notes(1).ends_with("move the content of 1/model.savedmodel/ to 1/"), "{}", notes(1));
    assert!(notes(2).starts_with("backend \"tensorrt\": not offered; "), "{}", notes(2));
    let named = converted("default_model_filename: 'model.py'").notes.join("\n");
    assert!(named.contains("Python code is not run"), "{named}");
}

#[test]
fn numbers_in_names_of_a_torchscripts_tensors_are_positions() {
    let tensors = |what: &str, names: [&str; 2]| {
        names.map(|name| format!("{what} {{ name: '{name}' data_type: TYPE_FP32 dims: [ 3 ] }}\n"))
    };
    let of = |inputs, outputs| {
        let tensors = [tensors("input", inputs), tensors("output", outputs)].concat().concat();
        converted(&format!("platform: 'pytorch_libtorch'\n{tensors}"))
    };
    let model = of(["INPUT__1", "INPUT__0"], ["scores", "classes__0"]);
    assert!(model.notes.is_empty(), "{:?}", model.notes);
    let text = file(&model);
    let at = |name: &str| text.find(&format!("\"{name}\"")).unwrap();
    assert!(at("INPUT__0") < at("INPUT__1") && at("scores") < at("classes__0"), "{text}");
    let model = of(["x__0", "y__1"], ["OUTPUT__2", "OUTPUT__1"]);
    assert!(model.notes[0].starts_with("output OUTPUT__1, OUTPUT__2: "), "{:?}", model.notes);
    let text = file(&model);
    assert!(text.contains("y__1") && !text.contains("OUTPUT"), "{text}");
}

#[test]
fn a_damaged_file_does_not_hide_the_others() {
    let root = repository(&[("a", "max_batch_size: 1"), ("b", "name: 'b'\n\nmax_bach_size: 1")]);
    let repository = read(root.path()).unwrap();
    let unread = &repository.unread;
    assert_eq!(repository.models.len(), 1);
    assert!(unread[0].contains("b/config.pbtxt: ") && unread[0].contains("line 3: "), "{unread:?}");
    let settings: Table = repository.settings().unwrap().parse().unwrap();
    let names: Vec<&String> = settings["models"].as_table().unwrap().keys().collect();
    assert_eq!(names, ["a"]);
    assert_eq!(settings["roots"].as_array().unwrap().len(), 1);
    let error = read(&root.path().join("a")).err().unwrap();
    assert!(error.message.contains("no directory in "), "{}", error.message);
}

#[test]
fn counts_of_instances_do_not_overflow() {
    let model = converted("instance_group { count: 2147483647 } instance_group { count: 2 }");
    assert_eq!(model.schedule.threads, Some(2_147_483_649));
}
