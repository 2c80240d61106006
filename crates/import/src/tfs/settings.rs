//! TensorFlow Serving's files as a settings file.

use std::path::{Path, PathBuf};

use base::Error;
use engine::ScheduleFile;
use lifecycle::{ModelConfig, VersionPolicy};
use model_store::StoreOptions;
use protocol::tensorflow::serving as pb;
use toml::{Table, Value};

use super::batching::{self, ConvertedBatching};
use super::model_list::{ModelListRules, StoreCopies, log_dir};
use crate::{HEAD, ImportError, ImportedSettings, text, to_text};

/// Converts a list of models, and the batching parameters of all models if there are some. A model
/// is left out, with a note, if `check_name` refuses its name or if its policy names no version.
///
/// # Errors
/// Returns an error that names file and line.
pub fn settings(
    models: &Path,
    batching: Option<&Path>,
    check_name: impl Fn(&str) -> base::Result<()>,
) -> Result<ImportedSettings, ImportError> {
    let list: pb::ModelServerConfig = text::read(models)?;
    let in_list = |error: Error| error.context(models.display());
    // Only the URLs of stores are needed here, not the directories of their copies.
    let stores = StoreCopies { cache_dir: PathBuf::new(), options: StoreOptions::default() };
    let rules = ModelListRules { stores: Some(stores), ..ModelListRules::default() };
    let mut configs = rules.models(&list, &[]).map_err(in_list)?;
    let mut notes = Vec::new();
    configs.retain(|model| {
        let reason = match check_name(&model.name) {
            Err(error) => error.to_string(),
            Ok(()) if names_no_version(model) => "its version policy names no version".to_owned(),
            Ok(()) => return true,
        };
        let file = models.display();
        notes.push(format!("{file}: model \"{}\" is left out: {reason}", model.name));
        false
    });
    let inference = inference(&list, models, &mut notes);
    let mut settings = Table::new();
    if let Some(path) = batching {
        let parameters: pb::BatchingParameters = text::read(path)?;
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let ConvertedBatching { schedule, notes: lost } =
            batching::convert(&parameters, threads)
                .map_err(|error| error.context(path.display()))?;
        let left_out = left_out_runs(&parameters, threads);
        let lost = lost.iter().chain(&left_out);
        notes.extend(lost.map(|note| format!("{}: {note}", path.display())));
        let table = Table::try_from(ScheduleFile::from_options(&schedule))
            .map_err(|error| ImportError::internal(format!("schedule: {error}")))?;
        settings.insert("schedule".to_owned(), Value::Table(table));
    }
    let logged = inference.is_some();
    settings.extend(inference.map(|table| ("inference".to_owned(), Value::Table(table))));
    let table_of = |model: &ModelConfig| {
        let mut table = table_of(model);
        let rate = model.request_log_rate.filter(|_| logged);
        table.extend(rate.map(|rate| ("request-log-rate".to_owned(), Value::Float(rate))));
        table
    };
    let tables =
        configs.iter().map(|model| (model.name.to_string(), Value::Table(table_of(model))));
    settings.insert("models".to_owned(), Value::Table(tables.collect()));
    Ok(ImportedSettings { text: HEAD.to_owned() + &to_text(&settings)?, notes })
}

/// Returns a note if `num_batch_threads` is not below the `threads` of this machine. The settings
/// leave it out then, because a server with fewer threads would refuse it.
fn left_out_runs(parameters: &pb::BatchingParameters, threads: usize) -> Option<String> {
    let runs = parameters.num_batch_threads?;
    let most = i64::try_from(threads).unwrap_or(i64::MAX);
    (runs >= most).then(|| {
        format!(
            "num_batch_threads is {runs}, and this machine has {threads} cores; for a machine with more cores, \
             set threads = {runs} in [schedule]"
        )
    })
}

/// Returns true if no version of the model is served. A settings file has no such policy.
fn names_no_version(model: &ModelConfig) -> bool {
    matches!(&model.policy, VersionPolicy::Specific(numbers) if numbers.is_empty())
}

/// Returns the section `[inference]`, with the first directory of a `logging_config`. Notes the
/// parts that have no setting.
fn inference(list: &pb::ModelServerConfig, path: &Path, notes: &mut Vec<String>) -> Option<Table> {
    let Some(pb::model_server_config::Config::ModelConfigList(list)) = &list.config else {
        return None;
    };
    let mut place: Option<PathBuf> = None;
    for model in list.config.iter().filter(|model| model.logging_config.is_some()) {
        match (log_dir(model), &place) {
            (Some(dir), None) => place = Some(dir),
            (Some(dir), Some(first)) if dir == *first => {}
            _ => notes.push(format!(
                "{}: filename_prefix of model \"{}\": its requests are logged only if --request-log names a \
                 directory, which is that of all models",
                path.display(),
                model.name
            )),
        }
    }
    let dir = Value::String(place?.to_string_lossy().into_owned());
    // Models without the configuration are not logged.
    Some(Table::from_iter([
        ("request-log".to_owned(), dir),
        ("request-log-rate".to_owned(), Value::Float(0.0)),
    ]))
}

/// Returns the table of a model in our settings.
fn table_of(model: &ModelConfig) -> Table {
    let versions = match &model.policy {
        VersionPolicy::Latest(count) => format!("latest:{}", (*count).max(1)),
        VersionPolicy::All => "all".to_owned(),
        VersionPolicy::Specific(numbers) => {
            numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(",")
        }
    };
    let path = match &model.store {
        Some(url) => url.to_string(),
        None => model.base_path.to_string_lossy().into_owned(),
    };
    let mut table = Table::from_iter([
        ("path".to_owned(), Value::String(path)),
        ("versions".to_owned(), Value::String(versions)),
    ]);
    if !model.labels.is_empty() {
        let label = |(label, version): (&String, &u64)| {
            (label.clone(), Value::Integer(i64::try_from(*version).unwrap_or(i64::MAX)))
        };
        table.insert("labels".to_owned(), Value::Table(model.labels.iter().map(label).collect()));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_without_a_version_to_serve_is_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("models.config");
        let model = |name: &str, policy: &str| {
            format!(
                "config {{ name: '{name}' base_path: '/m/{name}' model_platform: 'onnx' \
                 model_version_policy {{ specific {{ {policy} }} }} }}"
            )
        };
        let list = model("a", "versions: 3") + &model("b", "");
        std::fs::write(&file, format!("model_config_list {{ {list} }}")).unwrap();
        let imported = settings(&file, None, |_| Ok(())).unwrap();
        let table: Table = imported.text.parse().unwrap();
        let names: Vec<&String> = table["models"].as_table().unwrap().keys().collect();
        assert_eq!(names, ["a"]);
        let wanted = "model \"b\" is left out: its version policy names no version";
        assert!(imported.notes[0].ends_with(wanted), "{:?}", imported.notes);
    }

    #[test]
    fn runs_beyond_the_cores_are_noted() {
        let dir = tempfile::tempdir().unwrap();
        let (models, batching) = (dir.path().join("models"), dir.path().join("batching"));
        std::fs::write(&models, "model_config_list { }").unwrap();
        std::fs::write(&batching, "num_batch_threads { value: 1000000 }").unwrap();
        let imported = settings(&models, Some(&batching), |_| Ok(())).unwrap();
        let table: Table = imported.text.parse().unwrap();
        assert_eq!(table["schedule"].get("threads"), None);
        let wanted = "set threads = 1000000 in [schedule]";
        assert!(imported.notes[0].ends_with(wanted), "{:?}", imported.notes);
    }
}
