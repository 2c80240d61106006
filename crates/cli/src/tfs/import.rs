//! `millpond import tfs`: TensorFlow Serving's files as a settings file.

use std::path::{Path, PathBuf};

use clap::Args;
use command_line::exit::{CommandResult, print, print_note};
use command_line::values::check_name;
use import::ImportedSettings;

use crate::import::write_new;
use crate::serve::file::SettingsFile;

/// `millpond import tfs MODELS [BATCHING]`.
#[derive(Args, Debug)]
#[command(after_help = "\
The result is a file for `millpond serve --config FILE`. Standard error lists each setting that has no equivalent, \
one per line. `millpond tfs` reads the same files without a conversion.

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
    notes.iter().for_each(|note| print_note(&format!("no equivalent: {note}")));
    Ok(())
}

fn convert(args: &ImportTfsArgs) -> CommandResult<ImportedSettings> {
    let imported = import::tfs::settings(&args.models, args.batching.as_deref(), check_name)?;
    // The settings must be what `serve` reads.
    SettingsFile::parse(&imported.text, Path::new("the converted settings"))?;
    Ok(imported)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_the_settings_cannot_have_is_noted() {
        let dir = tempfile::tempdir().unwrap();
        let models = dir.path().join("models.config");
        std::fs::write(
            &models,
            "model_config_list { config { name: 'a b' base_path: '/m/a' model_platform: 'tensorflow' } \
             config { name: 'c' base_path: '/m/c' model_platform: 'tensorflow' } }",
        )
        .unwrap();
        let args = ImportTfsArgs { models, batching: None, to: None };
        let ImportedSettings { text, notes } = convert(&args).unwrap();
        let file = SettingsFile::parse(&text, Path::new("m.toml")).unwrap();
        assert!(file.models.len() == 1 && file.models.contains_key("c"), "{text}");
        assert!(notes.len() == 1 && notes[0].contains("model \"a b\" is left out: "), "{notes:?}");
    }

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
