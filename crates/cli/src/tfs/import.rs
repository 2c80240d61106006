//! `millpond import tfs`: TensorFlow Serving's files as a settings file.

use std::path::{Path, PathBuf};

use base::Error;
use clap::Args;
use engine::ScheduleFile;
use lifecycle::{ModelConfig, VersionPolicy};
use protocol::tensorflow::serving as pb;
use server::{ModelListRules, StoreCopies};
use toml::{Table, Value};

use super::batching::{self, ConvertedBatching};
use super::list::log_dir;
use super::text;
use crate::exit::{CommandError, CommandResult, print};
use crate::import::write_new;
use crate::serve::file::SettingsFile;

/// `millpond import tfs MODELS [BATCHING]`.
#[derive(Args, Debug)]
#[command(after_help = "\
The result is a file for `millpond serve --config FILE`. What it cannot express is listed on standard error, a line for \
each. `millpond tfs` reads the same files without a conversion.

  millpond import tfs models.config batching.txt --to millpond.toml")]
pub(crate) struct ImportTfsArgs {
    /// File of --model_config_file: ModelServerConfig as text
    models: PathBuf,
    /// File of --batching_parameters_file: BatchingParameters as text
    batching: Option<PathBuf>,
    /// File to write; it must not exist [default: standard output]
    #[arg(long, value_name = "FILE")]
    to: Option<PathBuf>,
}

/// Converts the files and writes the settings.
///
/// # Errors
/// Returns a usage error that names file and line.
pub(crate) fn run(args: &ImportTfsArgs) -> CommandResult {
    let ImportedSettings { text, notes } = convert(args)?;
    match &args.to {
        None => print(&text)?,
        Some(path) => write_new(path, &text)?,
    }
    notes.iter().for_each(|note| eprintln!("no equivalent: {note}"));
    Ok(())
}

/// A settings file, and what it does not express.
struct ImportedSettings {
    text: String,
    notes: Vec<String>,
}

fn convert(args: &ImportTfsArgs) -> CommandResult<ImportedSettings> {
    let wrong = |error: Error| CommandError::usage(error.message());
    let list: pb::ModelServerConfig = text::read(&args.models).map_err(wrong)?;
    let in_list = |error: Error| wrong(error.context(args.models.display()));
    // Only the URLs of stores are of use here, not the directories of their copies.
    let stores = StoreCopies { cache_dir: PathBuf::new(), options: Vec::new() };
    let rules = ModelListRules { stores: Some(stores), ..ModelListRules::default() };
    let models = rules.models(&list, &[]).map_err(in_list)?;
    let mut notes = Vec::new();
    let inference = inference(&list, &args.models, &mut notes);
    let mut settings = Table::new();
    if let Some(path) = &args.batching {
        let parameters: pb::BatchingParameters = text::read(path).map_err(wrong)?;
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let ConvertedBatching { schedule, notes: lost } =
            batching::convert(&parameters, threads)
                .map_err(|error| wrong(error.context(path.display())))?;
        notes.extend(lost.iter().map(|note| format!("{}: {note}", path.display())));
        let table = Table::try_from(ScheduleFile::from_options(&schedule))
            .map_err(|error| CommandError::failed(format!("schedule: {error}")))?;
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
    let models = models.iter().map(|model| (model.name.to_string(), Value::Table(table_of(model))));
    settings.insert("models".to_owned(), Value::Table(models.collect()));
    let text = toml::to_string(&settings)
        .map_err(|error| CommandError::failed(format!("settings: {error}")))?;
    // The settings must be what `serve` reads.
    SettingsFile::parse(&text, Path::new("the converted settings"))?;
    let head = "# For `millpond serve --config FILE`; docs/millpond.toml has all settings.\n\n";
    Ok(ImportedSettings { text: head.to_owned() + &text, notes })
}

/// Returns the section `[inference]`, with the first directory of a `logging_config`. Notes what
/// has no setting.
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
    fn both_files_become_settings() {
        let dir = tempfile::tempdir().unwrap();
        let (models, batching) =
            (dir.path().join("models.config"), dir.path().join("batching.txt"));
        std::fs::write(
            &models,
            "model_config_list { config { name: 'a.b' base_path: '/m/a' model_platform: 'tensorflow' \
             model_version_policy { specific { versions: 3 versions: 1 } } \
             version_labels { key: 'stable' value: 1 } logging_config { \
               log_collector_config { filename_prefix: '/logs/a' } sampling_config { sampling_rate: 0.5 } } } \
             config { name: 'c' base_path: '/m/c' model_platform: 'tensorflow' logging_config {} } \
             config { name: 'd' base_path: 's3://b/d' model_platform: 'tensorflow' } }",
        )
        .unwrap();
        std::fs::write(
            &batching,
            "max_batch_size { value: 8 } batch_timeout_micros { value: 1500 }",
        )
        .unwrap();
        let args = ImportTfsArgs { models, batching: Some(batching), to: None };
        let ImportedSettings { text, notes } = convert(&args).unwrap();
        let file = SettingsFile::parse(&text, Path::new("m.toml")).unwrap();
        assert_eq!(file.models["a.b"].labels["stable"], 1);
        assert_eq!(file.models["c"].path.as_deref(), Some(Path::new("/m/c")));
        assert_eq!(file.models["d"].path.as_deref(), Some(Path::new("s3://b/d")));
        assert_eq!(file.models["a.b"].request_log_rate, Some(0.5));
        assert_eq!(file.inference.request_log.as_deref(), Some(Path::new("/logs")));
        assert_eq!(file.schedule.max_batch, Some(8));
        assert_eq!(file.schedule.max_queue_delay, Some(std::time::Duration::from_micros(1500)));
        assert!(
            notes.len() == 1 && notes[0].contains("filename_prefix of model \"c\""),
            "{notes:?}"
        );
        std::fs::write(&args.models, "model_config_list {\n\n oops }").unwrap();
        let error = convert(&args).err().unwrap();
        assert!(error.message().contains("ModelServerConfig: line 3: "), "{}", error.message());
    }
}
