//! One `config.pbtxt` as settings of a model.

use std::collections::BTreeSet;
use std::path::Path;

use engine::{ScheduleFile, SignatureFile, TensorText};
use protocol::inference as pb;
use protocol::inference::model_config::SchedulingChoice;
use protocol::inference::model_version_policy::PolicyChoice;
use toml::{Table, Value};

use super::schedule;
use crate::{ImportError, to_text};

/// Files and directories of a version, and the backend that Triton infers from each, in Triton's
/// order.
const MODEL_FILES: [(&str, &str); 7] = [
    ("model.graphdef", "tensorflow_graphdef"),
    ("model.savedmodel", "tensorflow"),
    ("model.plan", "tensorrt"),
    ("model.onnx", "onnxruntime"),
    ("model.xml", "openvino"),
    ("model.pt", "pytorch"),
    ("model.py", "python"),
];

/// Settings of a model, and the parts that they cannot express.
#[derive(Debug, Default)]
pub struct ConvertedModel {
    policy: Option<String>,
    device: Option<String>,
    intra_op_threads: Option<i64>,
    inter_op_threads: Option<i64>,
    pub(crate) schedule: ScheduleFile,
    signature: SignatureFile,
    warmup: Table,
    /// Parts without an equivalent, a line for each.
    pub notes: Vec<String>,
}

impl ConvertedModel {
    /// Returns the section `[models.NAME]` of the server's settings file.
    pub(crate) fn section(&self) -> Table {
        let mut table = self.shared("versions");
        let threads = self.inter_op_threads.map(Value::Integer);
        table.extend(threads.map(|threads| ("inter-op-threads".to_owned(), threads)));
        table
    }

    /// Returns the text of the `millpond.toml` beside the versions.
    ///
    /// # Errors
    /// Returns an error that the configuration did not cause.
    pub fn file_text(&self) -> Result<String, ImportError> {
        to_text(&self.file())
    }

    fn file(&self) -> Table {
        let mut table = self.shared("policy");
        let device = self.device.clone().map(Value::String);
        table.extend(device.map(|device| ("device".to_owned(), device)));
        insert(&mut table, "signature", &self.signature);
        insert(&mut table, "warmup", &self.warmup);
        table
    }

    /// Returns notes about settings that only the file beside the versions has.
    pub fn lost_in_section(&self) -> Vec<String> {
        let has_signature = self.signature != SignatureFile::default();
        let lost = [
            ("instance_group: device", self.device.is_some()),
            ("input and output: types and shapes of a TorchScript", has_signature),
            ("model_warmup", !self.warmup.is_empty()),
        ];
        let lost = lost.into_iter().filter(|(_, is_lost)| *is_lost);
        lost.map(|(what, _)| format!("{what}: only a model's millpond.toml has it; use --write"))
            .collect()
    }

    /// Returns notes about settings that only the server's settings file has.
    pub fn lost_in_file(&self) -> Vec<String> {
        let note = |threads| {
            format!(
                "inter_op_thread_count: set inter-op-threads = {threads} in [models.NAME] of the --config file"
            )
        };
        self.inter_op_threads.map(note).into_iter().collect()
    }

    fn shared(&self, versions: &str) -> Table {
        let mut table = Table::new();
        let policy = self.policy.clone().map(Value::String);
        table.extend(policy.map(|policy| (versions.to_owned(), policy)));
        let threads = self.intra_op_threads.map(Value::Integer);
        table.extend(threads.map(|threads| ("intra-op-threads".to_owned(), threads)));
        insert(&mut table, "schedule", &self.schedule);
        table
    }

    pub(crate) fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }
}

/// Inserts a section unless it is empty.
fn insert(table: &mut Table, name: &str, section: &impl serde::Serialize) {
    // Plain values always convert.
    let section = Table::try_from(section).unwrap_or_default();
    if !section.is_empty() {
        table.insert(name.to_owned(), Value::Table(section));
    }
}

/// Converts the configuration of the model in `dir`.
pub(crate) fn convert(config: &pb::ModelConfig, dir: &Path) -> ConvertedModel {
    let mut model = ConvertedModel::default();
    let dir_name = dir.file_name().unwrap_or_default().to_string_lossy();
    if !config.name.is_empty() && config.name != dir_name {
        model.note(format!(
            "name = \"{}\": models of a directory are named after their own; start with {}=DIR, or rename the directory",
            config.name, config.name
        ));
    }
    let backend = convert_backend(config, dir, &mut model);
    model.policy = config.version_policy.as_ref().and_then(|choice| policy(choice, &mut model));
    match &config.scheduling_choice {
        None => schedule::note_unbatched(config.max_batch_size, &mut model),
        Some(SchedulingChoice::DynamicBatching(batching)) => {
            schedule::batching(batching, config.max_batch_size, &mut model);
        }
        Some(SchedulingChoice::SequenceBatching(_)) => model.note(
            "sequence_batching: requests are independent; keep the state in the client and pass it as an input",
        ),
        Some(SchedulingChoice::EnsembleScheduling(ensemble)) => {
            let steps: Vec<&str> =
                ensemble.step.iter().map(|step| step.model_name.as_str()).collect();
            model.note(format!(
                "ensemble_scheduling: models are not chained; call {} in turn, or join their graphs with \
                 onnx.compose.merge_models",
                steps.join(", ")
            ));
        }
    }
    instances(config, backend, &mut model);
    if backend == TargetEngine::Torch {
        take_signature(config, &mut model);
    }
    note_tensors(config, &mut model);
    warmup(config, &mut model);
    parameters(config, &mut model);
    note_other_keys(config, &mut model);
    note_optimization(config.optimization.as_ref(), &mut model);
    model
}

/// An engine of the server, as far as settings depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TargetEngine {
    Torch,
    Other,
}

/// Returns the backend or platform of a model. If its configuration names none, returns that of the
/// model file, as Triton does. Returns an empty text if no file is known.
fn backend_name<'a>(config: &'a pb::ModelConfig, dir: &Path) -> &'a str {
    if !config.backend.is_empty() {
        return &config.backend;
    }
    if !config.platform.is_empty() {
        return &config.platform;
    }
    let given = config.default_model_filename.as_str();
    let is_model = |file: &str| match given {
        "" => any_version(dir, |version| version.join(file).exists()),
        given => given == file,
    };
    MODEL_FILES.into_iter().find(|(file, _)| is_model(file)).map_or("", |(_, backend)| backend)
}

/// Notes the required changes of a model's files, and returns its engine.
fn convert_backend(
    config: &pb::ModelConfig,
    dir: &Path,
    model: &mut ConvertedModel,
) -> TargetEngine {
    let given = config.default_model_filename.as_str();
    let (backend, file) = match backend_name(config, dir) {
        "onnxruntime" | "onnxruntime_onnx" => {
            if has_directory(dir, "model.onnx") {
                model.note(
                    "model.onnx is a directory: an ONNX file lies in the version itself: move the content of \
                     1/model.onnx/ to 1/",
                );
            }
            (TargetEngine::Other, "model.onnx")
        }
        "pytorch" | "pytorch_libtorch" => (TargetEngine::Torch, "model.pt"),
        "tensorflow" | "tensorflow_savedmodel" => {
            if config.platform == "tensorflow_graphdef" {
                model.note("platform tensorflow_graphdef: convert the frozen graph with tf2onnx --graphdef");
                return TargetEngine::Other;
            }
            let name = if given.is_empty() { "model.savedmodel" } else { given };
            if has_directory(dir, name) {
                model.note(format!(
                    "platform tensorflow_savedmodel: a SavedModel lies in the version itself: move the content of \
                     1/{name}/ to 1/"
                ));
            }
            return TargetEngine::Other;
        }
        "" | "ensemble" => return TargetEngine::Other,
        name => {
            let way = match name {
                "tensorrt" | "tensorrt_plan" => {
                    "serve the ONNX file that the engine was built from"
                }
                "openvino" => "serve the ONNX file that the model was converted from",
                "tensorflow_graphdef" => "convert the frozen graph with tf2onnx --graphdef",
                "python" => "Python code is not run; export what it computes to ONNX",
                "fil" => "convert the trees with onnxmltools or skl2onnx",
                "dali" => "decode images in the client, or send them to /v1/images",
                _ => "ONNX, TorchScript and SavedModel are served",
            };
            model.note(format!("backend \"{name}\": not offered; {way}"));
            return TargetEngine::Other;
        }
    };
    if !given.is_empty() && given != file {
        model.note(format!("default_model_filename = \"{given}\": name the file {file}"));
    }
    backend
}

/// Returns true if a version of the model holds a directory `name`.
fn has_directory(dir: &Path, name: &str) -> bool {
    any_version(dir, |version| version.join(name).is_dir())
}

/// Returns true if `matches` is true for an entry of the model's directory.
fn any_version(dir: &Path, matches: impl Fn(&Path) -> bool) -> bool {
    let Ok(entries) = std::fs::read_dir(dir) else { return false };
    entries.filter_map(Result::ok).any(|entry| matches(&entry.path()))
}

/// Converts a version policy. The server refuses a settings file with a policy that names no
/// version, so such a policy is left out.
fn policy(policy: &pb::ModelVersionPolicy, model: &mut ConvertedModel) -> Option<String> {
    Some(match policy.policy_choice.as_ref()? {
        PolicyChoice::All(_) => "all".to_owned(),
        PolicyChoice::Latest(latest) => format!("latest:{}", latest.num_versions.max(1)),
        PolicyChoice::Specific(specific) => {
            let (numbers, others): (Vec<i64>, Vec<i64>) =
                specific.versions.iter().partition(|version| **version >= 0);
            for other in others {
                model.note(format!("version_policy specific: {other} is not a version number"));
            }
            if numbers.is_empty() {
                model.note("version_policy specific names no version: the newest one is served");
                return None;
            }
            numbers.iter().map(i64::to_string).collect::<Vec<_>>().join(",")
        }
    })
}

/// Converts instance groups to a number of threads, and to a device for an engine that runs on a
/// GPU.
fn instances(config: &pb::ModelConfig, backend: TargetEngine, model: &mut ConvertedModel) {
    use pb::model_instance_group::Kind;
    let groups = &config.instance_group;
    let count: i64 = groups.iter().map(|group| i64::from(group.count.max(1))).sum();
    if !groups.is_empty() {
        model.schedule.threads = usize::try_from(count).ok();
    }
    let on_gpu: Vec<_> = groups.iter().filter(|group| group.kind() == Kind::Gpu).collect();
    let gpus: BTreeSet<i32> = on_gpu.iter().flat_map(|group| group.gpus.iter().copied()).collect();
    match (on_gpu.is_empty(), backend) {
        (true, _) => {}
        (false, TargetEngine::Torch) => {
            model.device = Some(match gpus.first() {
                Some(gpu) => format!("cuda:{gpu}"),
                None => "cuda".to_owned(),
            });
        }
        (false, TargetEngine::Other) => model.note(
            "instance_group kind KIND_GPU: ONNX Runtime and TensorFlow run on the processor; TorchScript runs on a GPU",
        ),
    }
    if gpus.len() > 1 {
        model.note(
            "instance_group gpus: a model runs on one GPU; start a server for each other one",
        );
    }
    let used = |what: &str, is_used: bool| {
        is_used.then(|| {
            format!("instance_group {what}: the server schedules the runs of all models itself")
        })
    };
    for group in groups {
        let notes = [
            used("rate_limiter", group.rate_limiter.is_some()),
            used("profile", !group.profile.is_empty()),
            used("passive", group.passive),
            used("host_policy", !group.host_policy.is_empty()),
            used("secondary_devices", !group.secondary_devices.is_empty()),
        ];
        model.notes.extend(notes.into_iter().flatten());
    }
}

/// Sets the signature of a TorchScript model to the inputs and outputs of `config`, because the
/// module itself has no types and shapes.
fn take_signature(config: &pb::ModelConfig, model: &mut ConvertedModel) {
    let batched = config.max_batch_size > 0;
    let text = |name: &str, data_type: i32, dims: &[i64]| TensorText {
        name: name.to_owned(),
        dtype: pb::DataType::try_from(data_type).ok().and_then(dtype).map(str::to_owned),
        shape: Some(batched.then_some(-1).into_iter().chain(dims.iter().copied()).collect()),
    };
    let input = |it: &pb::ModelInput| {
        text(&it.name, it.data_type, model_shape(&it.dims, it.reshape.as_ref()))
    };
    let output = |it: &pb::ModelOutput| {
        text(&it.name, it.data_type, model_shape(&it.dims, it.reshape.as_ref()))
    };
    let inputs = config.input.iter().map(input).collect();
    let outputs = config.output.iter().map(output).collect();
    model.signature = SignatureFile {
        inputs: in_module_order("input", inputs, model),
        outputs: in_module_order("output", outputs, model),
    };
}

/// Returns inputs or outputs in the order of the module. If all names end in a number, such as
/// `INPUT__1`, the number is the position, as in Triton. Otherwise the configuration has the order
/// of the module. Returns none, and notes it, if the positions are not 0, 1, 2 and so on.
fn in_module_order(
    what: &str,
    tensors: Vec<TensorText>,
    model: &mut ConvertedModel,
) -> Vec<TensorText> {
    let positions: Option<Vec<u64>> =
        tensors.iter().map(|tensor| numbered_position(&tensor.name)).collect();
    let Some(positions) = positions else { return tensors };
    let mut numbered: Vec<(u64, TensorText)> = positions.into_iter().zip(tensors).collect();
    numbered.sort_by_key(|(position, _)| *position);
    let is_whole = numbered.iter().zip(0u64..).all(|((position, _), wanted)| *position == wanted);
    let tensors: Vec<TensorText> = numbered.into_iter().map(|(_, tensor)| tensor).collect();
    if is_whole {
        return tensors;
    }
    let names: Vec<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    model.note(format!(
        "{what} {}: the numbers are positions, and are not 0, 1, 2 and so on; list all {what}s of the module in \
         [signature]",
        names.join(", ")
    ));
    Vec::new()
}

/// Returns the position in a name such as `INPUT__1`.
fn numbered_position(name: &str) -> Option<u64> {
    let (_, number) = name.split_once("__")?;
    let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { number.parse().ok() } else { None }
}

/// Returns the shape that the module itself has. `dims` is that of Triton's clients.
fn model_shape<'a>(dims: &'a [i64], reshape: Option<&'a pb::ModelTensorReshape>) -> &'a [i64] {
    reshape.map_or(dims, |it| it.shape.as_slice())
}

fn dtype(data_type: pb::DataType) -> Option<&'static str> {
    use pb::DataType as Type;
    Some(match data_type {
        Type::TypeInvalid => return None,
        Type::TypeBool => "bool",
        Type::TypeUint8 => "uint8",
        Type::TypeUint16 => "uint16",
        Type::TypeUint32 => "uint32",
        Type::TypeUint64 => "uint64",
        Type::TypeInt8 => "int8",
        Type::TypeInt16 => "int16",
        Type::TypeInt32 => "int32",
        Type::TypeInt64 => "int64",
        Type::TypeFp16 => "float16",
        Type::TypeFp32 => "float32",
        Type::TypeFp64 => "float64",
        Type::TypeString => "string",
        Type::TypeBf16 => "bfloat16",
    })
}

/// Notes about single inputs and outputs.
fn note_tensors(config: &pb::ModelConfig, model: &mut ConvertedModel) {
    for input in &config.input {
        let name = &input.name;
        if input.reshape.is_some() {
            model.note(format!("input \"{name}\" reshape: send the shape that the model takes"));
        }
        if input.allow_ragged_batch {
            model.note(format!(
                "input \"{name}\" allow_ragged_batch: merge = \"pad\" in [schedule] merges requests of other shapes"
            ));
        }
        if input.is_shape_tensor {
            model.note(format!("input \"{name}\" is_shape_tensor: only TensorRT has it"));
        }
    }
    for output in &config.output {
        let name = &output.name;
        if output.reshape.is_some() {
            model.note(format!("output \"{name}\" reshape: it has the shape that the model gives"));
        }
        if !output.label_filename.is_empty() {
            model.note(format!(
                "output \"{name}\" label_filename: the classification extension is not offered; [classify] in \
                 millpond.toml answers TensorFlow Serving's Classify"
            ));
        }
    }
}

/// Converts warm-up requests to batch sizes, a number of iterations and shapes of inputs.
fn warmup(config: &pb::ModelConfig, model: &mut ConvertedModel) {
    let requests = &config.model_warmup;
    if requests.is_empty() {
        return;
    }
    let integers =
        |numbers: BTreeSet<i64>| Value::Array(numbers.into_iter().map(Value::Integer).collect());
    let sizes = requests.iter().map(|request| i64::from(request.batch_size.max(1))).collect();
    model.warmup.insert("batch-sizes".to_owned(), integers(sizes));
    if let Some(count @ 1..) = requests.iter().map(|request| request.count).max() {
        model.warmup.insert("iterations".to_owned(), Value::Integer(count.into()));
    }
    let mut dims = Table::new();
    for (name, input) in requests.iter().flat_map(|request| &request.inputs) {
        let free = (config.max_batch_size > 0).then_some(-1);
        let sizes = free.into_iter().chain(input.dims.iter().copied());
        let sizes = Value::Array(sizes.map(Value::Integer).collect());
        let other = dims.insert(name.clone(), sizes.clone());
        if other.is_some_and(|other| other != sizes) {
            model.note(format!(
                "model_warmup dims of \"{name}\": the warm-up runs one size of an input; the last one was kept"
            ));
        }
    }
    if !dims.is_empty() {
        model.warmup.insert("dims".to_owned(), Value::Table(dims));
    }
    let mut inputs = requests.iter().flat_map(|request| request.inputs.values());
    use pb::model_warmup::input::InputDataType;
    if inputs.any(|input| matches!(input.input_data_type, Some(InputDataType::InputDataFile(_)))) {
        model.note(
            "model_warmup input_data_file: put requests as .json bodies into the folder warmup of a version",
        );
    }
}

fn parameters(config: &pb::ModelConfig, model: &mut ConvertedModel) {
    for (key, value) in &config.parameters {
        let value = value.string_value.as_str();
        let threads = value.trim().parse::<i64>().ok().filter(|count| *count >= 0);
        match (key.as_str(), threads) {
            // 0 leaves the choice to the engine there, and is the default here.
            ("intra_op_thread_count" | "INTRA_OP_THREAD_COUNT", Some(count)) => {
                model.intra_op_threads = (count > 0).then_some(count);
            }
            ("inter_op_thread_count" | "INTER_OP_THREAD_COUNT", Some(count)) => {
                model.inter_op_threads = (count > 0).then_some(count);
            }
            _ => model.note(format!(
                "parameters \"{key}\" = \"{value}\": engines have no options of their own"
            )),
        }
    }
}

/// Notes about keys that have no equivalent at all.
fn note_other_keys(config: &pb::ModelConfig, model: &mut ConvertedModel) {
    let decoupled = config.model_transaction_policy.is_some_and(|policy| policy.decoupled);
    let cached = config.response_cache.is_some_and(|cache| cache.enable);
    let operations = config.model_operations.as_ref();
    for (is_set, note) in [
        (decoupled, "model_transaction_policy decoupled: a request has one response"),
        (cached, "response_cache: answers are not cached; put a cache before the server"),
        (
            !config.batch_input.is_empty(),
            "batch_input: the server adds only masks and lengths of padded inputs",
        ),
        (!config.batch_output.is_empty(), "batch_output: outputs are split along axis 0"),
        (
            !config.cc_model_filenames.is_empty(),
            "cc_model_filenames: a version has one file for all GPUs",
        ),
        (!config.metric_tags.is_empty(), "metric_tags: metrics have the labels model and version"),
        (config.model_metrics.is_some(), "model_metrics: histograms have fixed buckets"),
        (
            config.model_repository_agents.is_some(),
            "model_repository_agents: model files are read as they are",
        ),
        (operations.is_some(), "model_operations: custom operators are not loaded"),
        (
            !config.runtime.is_empty(),
            "runtime: --onnxruntime, --libtorch and --tensorflow name the libraries",
        ),
    ] {
        if is_set {
            model.note(note);
        }
    }
}

/// Notes the options of `optimization` that have no equivalent.
fn note_optimization(
    optimization: Option<&pb::ModelOptimizationPolicy>,
    model: &mut ConvertedModel,
) {
    let Some(optimization) = optimization else { return };
    use pb::model_optimization_policy::ModelPriority;
    let accelerators = optimization.execution_accelerators.as_ref();
    let accelerators = accelerators
        .into_iter()
        .flat_map(|all| all.gpu_execution_accelerator.iter().chain(&all.cpu_execution_accelerator));
    for accelerator in accelerators {
        model.note(format!(
            "optimization execution_accelerators \"{}\": the engines run without accelerators",
            accelerator.name
        ));
    }
    for (is_set, note) in [
        (
            optimization.graph.is_some(),
            "optimization graph: graphs are always optimised when they are loaded",
        ),
        (
            optimization.priority() != ModelPriority::PriorityDefault,
            "optimization priority: weight in [schedule] sets the share of the workers' time",
        ),
        (optimization.cuda.is_some(), "optimization cuda: CUDA graphs are not used"),
        (
            optimization.input_pinned_memory.is_some()
                || optimization.output_pinned_memory.is_some(),
            "optimization pinned memory: the engines choose",
        ),
        (
            optimization.gather_kernel_buffer_threshold > 0,
            "optimization gather_kernel_buffer_threshold: not used",
        ),
        (
            optimization.eager_batching,
            "optimization eager_batching: batches are formed when a worker is free",
        ),
    ] {
        if is_set {
            model.note(note);
        }
    }
}
