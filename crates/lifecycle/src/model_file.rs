//! `millpond.toml`: the settings of one model, in the directory above its versions.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use base::units::{format_bytes, parse_bytes};
use engine::{
    ClassifySettings, Device, ExampleSettings, ExamplesSection, LABELS_MAX, RegressSettings,
    ScheduleFile, SignatureFile,
};
use os::RegularFile;
use serde::{Deserialize, Deserializer, de};

use crate::{ModelConfig, RolloutFile, Transition, VersionPolicy};

/// Name of the file in a model's base path.
pub(crate) const MODEL_FILE: &str = "millpond.toml";
pub(crate) const MODEL_FILE_BYTES_MAX: u64 = 1 << 20;
const INTRA_OP_THREADS_MAX: usize = 1024;
/// Largest batch in a generated warm-up request.
const BATCH_SIZE_MAX: usize = 1 << 20;
/// Maximum number of threads of a warm-up.
const WARMUP_THREADS_MAX: usize = 256;
/// Maximum bytes of a file of labels.
const LABELS_BYTES_MAX: u64 = 64 << 20;
/// Smallest limit of the memory of runs. Allocators reserve memory in large parts.
const RUN_MEMORY_MIN: u64 = 64 << 20;
/// Maximum number of tags of a graph.
const GRAPH_TAGS_MAX: usize = 64;

/// Content of the file. Keys that are absent keep the configured value.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct ModelFile {
    /// `versions` is the name in the server's own settings.
    #[serde(default, alias = "versions", deserialize_with = "policy")]
    policy: Option<PolicyText>,
    transition: Option<TransitionText>,
    intra_op_threads: Option<usize>,
    device: Option<String>,
    trusted: Option<bool>,
    isolate: Option<bool>,
    #[serde(default, deserialize_with = "memory_size")]
    run_memory: Option<u64>,
    saved_model_tags: Option<Vec<String>>,
    request_log_rate: Option<f64>,
    signature: Option<SignatureFile>,
    recogniser: Option<toml::Table>,
    classify: Option<ClassifySettings>,
    regress: Option<RegressSettings>,
    examples: Option<ExamplesSection>,
    schedule: Option<ScheduleFile>,
    warmup: Option<WarmupFile>,
    labels: Option<BTreeMap<String, u64>>,
    rollout: Option<RolloutFile>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum PolicyText {
    Latest(usize),
    All,
    Specific(BTreeSet<u64>),
}

impl FromStr for PolicyText {
    type Err = String;

    /// Parses the form of the server's own settings: "latest", "latest:2", "all", "3,5".
    fn from_str(text: &str) -> Result<PolicyText, String> {
        let wrong = |_| {
            format!("\"{text}\" is not a policy; use latest, latest:N, all, or numbers as in 3,5")
        };
        match text {
            "all" => Ok(PolicyText::All),
            "latest" => Ok(PolicyText::Latest(1)),
            _ => match text.strip_prefix("latest:") {
                Some(count) => count.parse().map(PolicyText::Latest).map_err(wrong),
                None => {
                    let numbers =
                        text.split(',').map(|number| number.trim().parse::<u64>().map_err(wrong));
                    numbers.collect::<Result<_, _>>().map(PolicyText::Specific)
                }
            },
        }
    }
}

/// Reads a text, or a table such as `{ latest = 2 }`.
fn policy<'de, D: Deserializer<'de>>(from: D) -> Result<Option<PolicyText>, D::Error> {
    match toml::Value::deserialize(from)? {
        toml::Value::String(text) => text.parse().map(Some).map_err(de::Error::custom),
        table => table.try_into().map(Some).map_err(|error| de::Error::custom(error.message())),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum TransitionText {
    AvailabilityPreserving,
    ResourcePreserving,
}

impl From<TransitionText> for Transition {
    fn from(text: TransitionText) -> Transition {
        match text {
            TransitionText::AvailabilityPreserving => Transition::AvailabilityPreserving,
            TransitionText::ResourcePreserving => Transition::ResourcePreserving,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct WarmupFile {
    enabled: Option<bool>,
    batch_sizes: Option<Vec<usize>>,
    iterations: Option<u32>,
    dims: Option<BTreeMap<String, Vec<i64>>>,
    fail_on_error: Option<bool>,
    fail_on_recorded_error: Option<bool>,
    threads: Option<usize>,
}

/// Checks the text of a model's `millpond.toml`.
///
/// # Errors
/// Returns one line that names the position and the mistake.
pub fn check_model_settings(text: &str) -> Result<(), String> {
    ModelFile::parse(text).map(drop)
}

/// Returns the version policy in the text of a model's `millpond.toml`, or `None` if it sets none
/// or has a mistake.
pub fn version_policy(text: &str) -> Option<VersionPolicy> {
    ModelFile::parse(text).ok()?.version_policy()
}

impl ModelFile {
    /// Parses the text of the file. The error is one line that names the position.
    pub(crate) fn parse(text: &str) -> Result<ModelFile, String> {
        let file: ModelFile = toml::from_str(text).map_err(|error| one_line(text, &error))?;
        file.check()?;
        Ok(file)
    }

    /// Checks values that the parser cannot check. The error is a line about the first wrong one.
    fn check(&self) -> Result<(), String> {
        if self.policy == Some(PolicyText::Latest(0)) {
            return Err("policy: latest takes at least 1".into());
        }
        if self
            .intra_op_threads
            .is_some_and(|threads| !(1..=INTRA_OP_THREADS_MAX).contains(&threads))
        {
            return Err(format!("intra-op-threads must be 1 to {INTRA_OP_THREADS_MAX}"));
        }
        if let Some(device) = &self.device {
            device.parse::<Device>().map_err(|error| error.message().to_owned())?;
        }
        if self.saved_model_tags.as_ref().is_some_and(|tags| !graph_tags_are_valid(tags)) {
            return Err(format!(
                "saved-model-tags must be 1 to {GRAPH_TAGS_MAX} tags without a comma"
            ));
        }
        if let Some(signature) = &self.signature {
            signature.check().map_err(|error| error.message().to_owned())?;
        }
        if self.request_log_rate.is_some_and(|rate| !(0.0..=1.0).contains(&rate)) {
            return Err("request-log-rate must be 0 to 1".into());
        }
        if let Some(classify) = &self.classify {
            classify.check().map_err(|error| error.message().to_owned())?;
        }
        let labels = self.classify.as_ref().and_then(|classify| classify.labels_file.as_deref());
        let golden = self.rollout.as_ref().and_then(|rollout| rollout.golden.as_deref());
        for (key, file) in
            [("classify.labels-file", labels.map(Path::new)), ("rollout.golden", golden)]
        {
            if file.is_some_and(|file| !is_below(file)) {
                return Err(format!("{key} must name a file in the directory of the model"));
            }
        }
        if self.examples.is_some() && self.classify.is_none() && self.regress.is_none() {
            return Err("examples: add [classify] or [regress], which read examples".into());
        }
        let Some(warmup) = &self.warmup else { return Ok(()) };
        if warmup.threads.is_some_and(|threads| !(1..=WARMUP_THREADS_MAX).contains(&threads)) {
            return Err(format!("warmup.threads must be 1 to {WARMUP_THREADS_MAX}"));
        }
        if warmup.iterations == Some(0) {
            return Err(
                "warmup.iterations must be at least 1; enabled = false runs no warm-up".into()
            );
        }
        let batches = warmup.batch_sizes.as_deref().unwrap_or_default();
        if batches.iter().any(|size| !(1..=BATCH_SIZE_MAX).contains(size)) {
            return Err(format!("warmup.batch-sizes must be 1 to {BATCH_SIZE_MAX}"));
        }
        if warmup.dims.iter().flatten().any(|(_, dims)| dims.iter().any(|&dim| dim < -1)) {
            return Err("warmup.dims must be sizes, or -1 to leave an axis as it is".into());
        }
        Ok(())
    }

    /// Returns the path of the file of labels that the section `[classify]` names, which lies in
    /// `dir`.
    pub(crate) fn labels_path(&self, dir: &Path) -> Option<PathBuf> {
        self.classify.as_ref()?.labels_file.as_ref().map(|file| dir.join(file))
    }

    /// Replaces the name of the file `path` in the section `[classify]` by its labels. The file
    /// must be below `dir`, a directory without links, or beside the opened file `settings`.
    pub(crate) fn read_labels(
        &mut self,
        path: &Path,
        dir: &Path,
        settings: &RegularFile,
    ) -> Result<(), String> {
        let Some(classify) = &mut self.classify else { return Ok(()) };
        let wrong = |what: &dyn std::fmt::Display| {
            format!("classify.labels-file: {}: {what}", path.display())
        };
        let file = RegularFile::open(path).map_err(|error| wrong(&error))?;
        if file.bytes() > LABELS_BYTES_MAX {
            return Err(wrong(&format_args!("larger than {LABELS_BYTES_MAX} bytes")));
        }
        // Clients read the labels. The opened file is checked, because a link can change meanwhile.
        if !is_beside(&file, dir, settings).map_err(|error| wrong(&error))? {
            return Err(wrong(&"a link out of the model's directory; copy the file there"));
        }
        let text = file.read(LABELS_BYTES_MAX).map_err(|error| wrong(&error))?;
        let text = String::from_utf8(text).map_err(|error| wrong(&error))?;
        let labels: Vec<Arc<str>> = text.lines().map(Arc::from).collect();
        if labels.len() > LABELS_MAX {
            return Err(wrong(&format_args!("more than {LABELS_MAX} lines")));
        }
        classify.labels_file = None;
        classify.labels = Some(labels.into());
        Ok(())
    }

    /// Returns the version policy, or `None` if the file sets none.
    fn version_policy(&self) -> Option<VersionPolicy> {
        Some(match self.policy.as_ref()? {
            PolicyText::Latest(count) => VersionPolicy::Latest(*count),
            PolicyText::All => VersionPolicy::All,
            PolicyText::Specific(versions) => VersionPolicy::Specific(versions.clone()),
        })
    }

    /// Returns `base` with its settings overridden by the file. The error names the setting that
    /// conflicts with the others.
    pub(crate) fn apply(&self, base: &ModelConfig) -> Result<ModelConfig, String> {
        let mut config = base.clone();
        config.policy = self.version_policy().unwrap_or(config.policy);
        config.transition = self.transition.map_or(config.transition, Transition::from);
        if let Some(threads) = self.intra_op_threads {
            config.session.intra_op_threads = threads;
        }
        if let Some(device) = &self.device {
            config.session.device =
                device.parse().map_err(|error: base::Error| error.message().to_owned())?;
        }
        if let Some(tags) = &self.saved_model_tags {
            config.session.graph_tags.clone_from(tags);
        }
        config.session.trusted = self.trusted.unwrap_or(config.session.trusted);
        config.request_log_rate = self.request_log_rate.or(config.request_log_rate);
        if let Some(signature) = &self.signature {
            config.session.signature.clone_from(signature);
        }
        if let Some(recogniser) = &self.recogniser {
            config.recogniser = Some(recogniser.to_string().into());
        }
        // A failed assertion of a CUDA kernel ends the process (docs/measurements/gpu.md). A
        // recogniser has a state, which a worker process does not keep.
        let on_gpu = config.session.device != Device::Cpu && config.recogniser.is_none();
        let by_default = config.session.isolate || (on_gpu && !config.in_process);
        config.session.isolate = self.isolate.unwrap_or(by_default);
        if self.run_memory.is_some() && !config.session.isolate {
            return Err("run-memory needs isolate = true: it limits a worker process".into());
        }
        config.session.run_memory = self.run_memory;
        if self.classify.is_some() || self.regress.is_some() {
            config.examples = Some(Arc::new(ExampleSettings {
                classify: self.classify.clone(),
                regress: self.regress.clone(),
                defaults: self.examples.clone().unwrap_or_default().defaults,
            }));
        }
        if let Some(schedule) = &self.schedule {
            config.schedule = schedule.apply(&base.schedule);
            config.schedule.check().map_err(|error| format!("schedule: {}", error.message()))?;
        }
        if let Some(labels) = &self.labels {
            config.labels.clone_from(labels);
        }
        if let Some(rollout) = &self.rollout {
            config.rollout = rollout.over(&base.rollout);
        }
        let checked = config.transition.check_rollout(&config.rollout);
        checked.map_err(|error| format!("rollout: {error}"))?;
        if let Some(warmup) = self.warmup.clone() {
            let to = &mut config.warmup;
            to.enabled = warmup.enabled.unwrap_or(to.enabled);
            to.iterations = warmup.iterations.or(to.iterations);
            to.fail_on_error = warmup.fail_on_error.unwrap_or(to.fail_on_error);
            to.fail_on_recorded_error =
                warmup.fail_on_recorded_error.unwrap_or(to.fail_on_recorded_error);
            to.threads = warmup.threads.unwrap_or(to.threads);
            to.batch_sizes = warmup.batch_sizes.unwrap_or_else(|| to.batch_sizes.clone());
            to.dims = warmup.dims.unwrap_or_else(|| to.dims.clone());
        }
        Ok(config)
    }
}

/// Returns true for a path of a file below a directory, as it is written.
fn is_below(file: &Path) -> bool {
    let mut parts = file.components().peekable();
    parts.peek().is_some()
        && parts.all(|part| matches!(part, Component::Normal(_) | Component::CurDir))
}

/// Returns true if the opened `file` is below `dir`, or below the directory of the opened file
/// `settings`, to which a link in `dir` may lead.
fn is_beside(file: &RegularFile, dir: &Path, settings: &RegularFile) -> std::io::Result<bool> {
    let real = file.real_path()?;
    let settings = settings.real_path()?;
    Ok(std::iter::once(dir).chain(settings.parent()).any(|parent| real.starts_with(parent)))
}

/// Reads a size such as "2GiB".
fn memory_size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let bytes = parse_bytes(&text).map_err(de::Error::custom)?;
    if bytes < RUN_MEMORY_MIN {
        let least = format_bytes(RUN_MEMORY_MIN);
        return Err(de::Error::custom(format_args!("run-memory is at least {least}")));
    }
    Ok(Some(bytes))
}

/// Returns true if these can be the tags of a graph. A comma separates tags on a command line.
fn graph_tags_are_valid(tags: &[String]) -> bool {
    (1..=GRAPH_TAGS_MAX).contains(&tags.len())
        && tags.iter().all(|tag| !tag.is_empty() && !tag.contains(','))
}

/// Reads the opened file.
pub(crate) fn read(file: &RegularFile) -> Result<String, String> {
    if file.bytes() > MODEL_FILE_BYTES_MAX {
        return Err("larger than a settings file can be".into());
    }
    let text = file.read(MODEL_FILE_BYTES_MAX).map_err(|error| error.to_string())?;
    String::from_utf8(text).map_err(|error| error.to_string())
}

fn one_line(text: &str, error: &toml::de::Error) -> String {
    let message = error.message().split_whitespace().collect::<Vec<_>>().join(" ");
    let message = unknown_key(&message).unwrap_or(message);
    match error.span() {
        Some(span) => {
            let line = text.bytes().take(span.start).filter(|&byte| byte == b'\n').count() + 1;
            format!("line {line}: {message}")
        }
        None => message,
    }
}

/// Names the nearest key, or all keys, in place of the parser's "unknown field `polcy`, expected
/// one of `policy`, ...". Returns `None` for any other message.
fn unknown_key(message: &str) -> Option<String> {
    let mut quoted = message.strip_prefix("unknown field ")?.split('`').skip(1).step_by(2);
    let unknown = quoted.next()?;
    let known: Vec<&str> = quoted.collect();
    Some(match base::nearest(unknown, known.iter().copied()) {
        Some(meant) => format!("unknown key `{unknown}`; did you mean `{meant}`?"),
        None => format!("unknown key `{unknown}`; the keys are {}", known.join(", ")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rollout_needs_room_for_both_versions() {
        let base = ModelConfig::new("m", "/models/m");
        let apply = |traffic: &str| {
            let text =
                format!("transition = \"resource-preserving\"\n[rollout]\ntraffic = {traffic}");
            ModelFile::parse(&text).unwrap().apply(&base)
        };
        assert!(apply("0.1").unwrap_err().to_string().contains("set transition"));
        assert!(apply("0.0").is_ok());
    }

    #[test]
    fn every_setting_is_applied() {
        let text = r#"
            policy = { specific = [2, 5] }
            transition = "resource-preserving"
            intra-op-threads = 4
            [labels]
            stable = 2
            [schedule]
            mode = "async"
            max-batch = 8
            [schedule.inputs.ids]
            axes = [1]
            [warmup]
            enabled = false
            batch-sizes = [16]
            iterations = 3
            fail-on-error = true
            dims = { ids = [-1, 128] }
        "#;
        let mut base = ModelConfig::new("m", "/models/m");
        base.schedule.threads = Some(2);
        let applied = |text: &str| ModelFile::parse(text).unwrap().apply(&base).unwrap();
        let config = applied(text);
        assert_eq!(config.policy, VersionPolicy::Specific([2, 5].into()));
        assert_eq!(config.transition, Transition::ResourcePreserving);
        assert_eq!(config.session.intra_op_threads, 4);
        assert_eq!(config.labels["stable"], 2);
        assert!(!config.warmup.enabled && config.warmup.fail_on_error);
        assert_eq!(
            (config.warmup.batch_sizes.as_slice(), config.warmup.iterations),
            ([16].as_slice(), Some(3))
        );
        assert_eq!(config.warmup.dims["ids"], [-1, 128]);
        assert_eq!(
            (config.schedule.mode, config.schedule.max_batch),
            (engine::ScheduleMode::Async, 8)
        );
        assert_eq!(
            config.schedule.threads,
            Some(2),
            "the server's settings hold where the file is silent"
        );
        assert_eq!(config.schedule.inputs["ids"].axes, [1]);
        assert_eq!(applied(""), base);
        assert_eq!(applied("policy = \"all\"").policy, VersionPolicy::All);
        assert_eq!(applied("policy.latest = 3").policy, VersionPolicy::Latest(3));
        assert_eq!(
            applied("versions = \"latest:3\"").policy,
            VersionPolicy::Latest(3),
            "as the server's file"
        );
        assert_eq!(applied("versions = \"2, 5\"").policy, VersionPolicy::Specific([2, 5].into()));
        assert_eq!(applied("versions = { latest = 2 }").policy, VersionPolicy::Latest(2));
    }

    #[test]
    fn the_memory_of_runs_is_limited_in_a_worker_process_only() {
        let applied = |text: &str| {
            let file = ModelFile::parse(text).unwrap();
            file.apply(&ModelConfig::new("m", "m")).map(|config| config.session.run_memory)
        };
        assert_eq!(applied("isolate = true\nrun-memory = \"2GiB\""), Ok(Some(2 << 30)));
        assert_eq!(applied("isolate = true"), Ok(None));
        let error = applied("run-memory = \"2GiB\"").unwrap_err();
        assert!(error.contains("needs isolate = true"), "{error}");
        let error = ModelFile::parse("isolate = true\nrun-memory = \"1MiB\"").unwrap_err();
        assert!(error.contains("at least 64.0 MiB"), "{error}");
        let error = ModelFile::parse("isolate = true\nrun-memory = \"two\"").unwrap_err();
        assert!(error.contains("two"), "{error}");
    }

    #[test]
    fn models_on_a_gpu_are_isolated_by_default() {
        let isolate = |text: &str| {
            let file = ModelFile::parse(text).unwrap();
            file.apply(&ModelConfig::new("m", "m")).unwrap().session.isolate
        };
        assert!(!isolate("device = \"cpu\"") && isolate("device = \"cuda:1\""));
        assert!(!isolate("device = \"cuda:1\"\nisolate = false"));
        assert!(!isolate("device = \"cuda:1\"\n[recogniser]\nsample-rate = 16000"));
        // The server's settings say `isolate = false`.
        let base = ModelConfig { in_process: true, ..ModelConfig::new("m", "m") };
        let file = ModelFile::parse("device = \"cuda:1\"").unwrap();
        assert!(!file.apply(&base).unwrap().session.isolate);
        let file = ModelFile::parse("isolate = true").unwrap();
        assert!(file.apply(&base).unwrap().session.isolate);
    }

    #[test]
    fn a_warm_up_has_at_least_one_iteration() {
        let error = ModelFile::parse("[warmup]\niterations = 0").unwrap_err();
        assert!(error.contains("warmup.iterations must be at least 1"), "{error}");
    }

    /// `docs/model.toml` with every line switched on.
    #[test]
    fn the_documented_file_has_every_key() {
        let text = include_str!("../../../docs/model.toml");
        let setting = |rest: &&str| rest.contains(" = ") || rest.starts_with('[');
        let lines =
            text.lines().map(|line| line.strip_prefix("# ").filter(setting).unwrap_or(line));
        let lines = lines.collect::<Vec<_>>().join("\n");
        // The default is false, with which run-memory has no effect and is an error.
        let file = ModelFile::parse(&lines.replace("isolate = false", "isolate = true")).unwrap();
        // Destructured, so that a new key must be documented too.
        let ModelFile {
            policy,
            transition,
            intra_op_threads,
            device,
            trusted,
            isolate,
            run_memory,
            saved_model_tags,
            request_log_rate,
            signature,
            recogniser,
            classify,
            regress,
            examples,
            schedule,
            warmup,
            labels,
            rollout,
        } = file.clone();
        assert!(
            policy.is_some()
                && transition.is_some()
                && intra_op_threads.is_some()
                && device.is_some()
        );
        assert!(
            trusted.is_some()
                && isolate.is_some()
                && run_memory.is_some()
                && saved_model_tags.is_some()
                && request_log_rate.is_some()
                && recogniser.is_some()
                && labels.is_some()
        );
        let ClassifySettings { scores, classes, labels, labels_file } = classify.unwrap();
        assert!(scores.is_some() && classes.is_none() && labels.is_some());
        assert!(labels_file.is_none() && text.contains("labels-file") && text.contains("classes"));
        assert!(regress.is_some() && examples.unwrap().defaults.len() == 2);
        let SignatureFile { inputs, outputs } = signature.unwrap();
        assert!(inputs[0].dtype.is_some() && inputs[0].shape.is_some() && !outputs.is_empty());
        let WarmupFile {
            enabled,
            batch_sizes,
            iterations,
            dims,
            fail_on_error,
            fail_on_recorded_error,
            threads,
        } = warmup.unwrap();
        assert!(fail_on_recorded_error.is_some() && threads.is_some());
        assert!(enabled.is_some() && batch_sizes.is_some() && iterations.is_some());
        assert!(dims.is_some() && fail_on_error.is_some());
        documents_every_key(schedule.unwrap());
        let RolloutFile { traffic, shadow, golden, tolerance, promote, rollback } =
            rollout.unwrap();
        assert!(traffic.is_some() && shadow.is_some() && golden.is_some());
        assert!(tolerance.is_some() && promote.is_some());
        let crate::RollbackFile { errors, latency, latency_samples, drift } = rollback;
        assert!(errors.is_some() && latency.is_some() && latency_samples.is_some());
        assert!(drift.is_some());
        // The settings are consistent, and documented defaults are the real ones.
        let (base, config) = (
            ModelConfig::new("m", "/models/m"),
            ModelFile::apply(&file, &ModelConfig::new("m", "/models/m")),
        );
        let config = config.unwrap();
        assert_eq!((config.policy, config.transition), (base.policy, base.transition));
        assert_eq!(config.session.intra_op_threads, base.session.intra_op_threads);
        assert_eq!(config.warmup.batch_sizes, base.warmup.batch_sizes);
    }

    fn documents_every_key(schedule: ScheduleFile) {
        let ScheduleFile {
            mode,
            threads,
            weight,
            max_batch,
            max_queue_delay,
            preferred_batch_sizes,
            allowed_batch_sizes,
            always_merge,
            data_dependent_shapes,
            queue,
            timeout,
            default_priority,
            priorities,
            merge,
            inputs,
            outputs,
        } = schedule;
        assert!(mode.is_some() && threads.is_some() && weight.is_some() && max_batch.is_some());
        assert!(
            max_queue_delay.is_some() && preferred_batch_sizes.is_some() && always_merge.is_some()
        );
        assert!(allowed_batch_sizes.is_some() && data_dependent_shapes.is_some());
        assert!(
            queue.is_some() && timeout.is_some() && default_priority.is_some() && merge.is_some()
        );
        assert!(priorities.unwrap()[0].queue.is_some());
        let input = inputs.unwrap().into_values().next().unwrap();
        let engine::PadText { axes, value, buckets, similarity, slack_bytes, mask, length } = input;
        assert!(!axes.is_empty() && !buckets.is_empty() && value.is_some() && similarity.is_some());
        assert!(slack_bytes.is_some() && mask.is_some() && length.is_some());
        let output = outputs.unwrap().into_values().next().unwrap().remove(0);
        let engine::CutText { axis: _, input: _, input_axis: _, divisor, rounding, offset } =
            output;
        assert!(divisor.is_some() && rounding.is_some() && offset.is_some());
    }

    /// The writer of a model may change its links at any time.
    #[test]
    fn labels_beside_a_link_made_after_the_read_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let (model, other) = (root.join("m"), root.join("other"));
        for dir in [&model, &other] {
            std::fs::create_dir(dir).unwrap();
            let text = "[classify]\nscores = \"p\"\nlabels-file = \"labels.txt\"";
            std::fs::write(dir.join(MODEL_FILE), text).unwrap();
        }
        std::fs::write(other.join("labels.txt"), "secret").unwrap();
        let opened = RegularFile::open(&model.join(MODEL_FILE)).unwrap();
        let mut file = ModelFile::parse(&read(&opened).unwrap()).unwrap();
        std::fs::remove_file(model.join(MODEL_FILE)).unwrap();
        for name in [MODEL_FILE, "labels.txt"] {
            std::os::unix::fs::symlink(other.join(name), model.join(name)).unwrap();
        }
        let error = file.read_labels(&model.join("labels.txt"), &model, &opened).unwrap_err();
        assert!(error.contains("a link out of the model's directory"), "{error}");
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        let error = |text: &str| ModelFile::parse(text).unwrap_err();
        assert!(
            error("policy = \"all\"\npolcy = 1")
                .starts_with("line 2: unknown key `polcy`; did you mean `policy`?")
        );
        assert!(error("[warmup]\nruns = 1").contains("unknown key `runs`; the keys are enabled, "));
        assert!(
            error("policy = \"newest\"")
                .starts_with("line 1: \"newest\" is not a policy; use latest")
        );
        assert!(error("policy = { newest = 1 }").contains("unknown variant `newest`"));
        assert!(error("policy = \"all\"\nversions = \"all\"").contains("duplicate field"));
        assert!(error("policy = { latest = 0 }").contains("at least 1"));
        assert!(error("intra-op-threads = 0").contains("1 to"));
        assert!(error("transition = 1").starts_with("line 1"));
        assert!(error("a = [").starts_with("line 1"));
        assert!(!error("a = [").contains('\n'));
        assert!(error("[schedule]\nmax-bach = 1").starts_with("line 2: unknown key `max-bach`"));
        let base = ModelConfig::new("m", "/models/m");
        let file = ModelFile::parse("[schedule]\npreferred-batch-sizes = [64]").unwrap();
        assert!(file.apply(&base).unwrap_err().starts_with("schedule: preferred-batch-sizes: 64"));
    }
}
