//! `millpond import triton`: a model repository of Triton becomes settings.

mod convert;
mod schedule;

use std::path::{Path, PathBuf};

use clap::Args;
use protocol::inference as pb;
use toml::{Table, Value};

use crate::exit::{CommandError, CommandResult, print};
use crate::import::{MODEL_FILE, write_new};
use crate::serve::file::SettingsFile;
use crate::tfs::text;
use crate::values::check_name;
use convert::ConvertedModel;

/// Name of a model's configuration.
const CONFIG_FILE: &str = "config.pbtxt";

/// `millpond import triton REPO`.
#[derive(Args, Debug)]
#[command(after_help = "\
The result is a file for `millpond serve --config FILE`, which names REPO as a directory of models; with --write it is a \
millpond.toml beside each model's versions, which also holds device, warm-up and the types of a TorchScript's tensors. \
Triton ignores these files, so both servers can use the repository. Everything without an equivalent is listed on \
standard error, a line for each.

  millpond import triton models                        show the settings
  millpond import triton models --to millpond.toml     write one file
  millpond import triton models --write                write models/NAME/millpond.toml

Exit status: 0 if all models were converted, 1 if a config.pbtxt could not be read.")]
pub(crate) struct ImportTritonArgs {
    /// Model repository: a directory of models, each with config.pbtxt and numbered versions
    #[arg(value_name = "REPO")]
    repository: PathBuf,
    /// File to write; it must not exist [default: standard output]
    #[arg(long, value_name = "FILE")]
    to: Option<PathBuf>,
    /// Write a millpond.toml beside each model's versions instead; none may exist
    #[arg(long, conflicts_with = "to")]
    write: bool,
}

/// A model of the repository.
struct RepositoryModel {
    name: String,
    dir: PathBuf,
    converted: ConvertedModel,
}

/// Converts the repository and writes the settings.
///
/// # Errors
/// Returns a usage error for a directory without models, and an error after the work if a file
/// could not be read.
pub(crate) fn run(args: &ImportTritonArgs) -> CommandResult {
    let (models, unread) = read(&args.repository)?;
    if args.write {
        write_beside(&models)?;
    } else {
        let text = settings(&args.repository, &models)?;
        match &args.to {
            None => print(&text)?,
            Some(path) => write_new(path, &text)?,
        }
    }
    for model in &models {
        let section_only = if args.write {
            model.converted.lost_in_file()
        } else {
            model.converted.lost_in_section()
        };
        for note in model.converted.notes.iter().chain(&section_only) {
            eprintln!("no equivalent: {}: {note}", model.name);
        }
    }
    unread.iter().for_each(|error| eprintln!("not converted: {error}"));
    match unread.len() {
        0 => Ok(()),
        count => Err(CommandError::failed(format!(
            "{count} of {} configurations could not be read",
            count + models.len()
        ))
        .hint("correct the lines that are named, or write the models' millpond.toml by hand")),
    }
}

/// Reads all configurations. The second list has the errors of unreadable files.
fn read(repository: &Path) -> CommandResult<(Vec<RepositoryModel>, Vec<String>)> {
    let failed =
        |error: std::io::Error| CommandError::usage(format!("{}: {error}", repository.display()));
    let mut dirs: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(repository).map_err(failed)? {
        let dir = entry.map_err(failed)?.path();
        if dir.join(CONFIG_FILE).is_file() {
            dirs.push(dir);
        }
    }
    dirs.sort();
    if dirs.is_empty() {
        let shown = repository.display();
        let error = CommandError::usage(format!("no directory in {shown} has a {CONFIG_FILE}"));
        return Err(match repository.join(CONFIG_FILE).is_file() {
            true => error.hint(format!("{shown} is a model: give the directory above it")),
            false => error.hint("give the directory that Triton gets as --model-repository"),
        });
    }
    let (mut models, mut unread) = (Vec::new(), Vec::new());
    for dir in dirs {
        let name = dir.file_name().map(|it| it.to_string_lossy().into_owned()).unwrap_or_default();
        let path = dir.join(CONFIG_FILE);
        match text::read::<pb::ModelConfig>(&path).and_then(|config| {
            check_name(&name)?;
            Ok(config)
        }) {
            Ok(config) => {
                let converted = convert::convert(&config, &dir);
                models.push(RepositoryModel { name, dir, converted });
            }
            Err(error) => unread.push(error.message().to_owned()),
        }
    }
    Ok((models, unread))
}

/// Returns the settings file of all models.
fn settings(repository: &Path, models: &[RepositoryModel]) -> CommandResult<String> {
    let repository = std::fs::canonicalize(repository)
        .map_err(|error| CommandError::usage(format!("{}: {error}", repository.display())))?;
    let root = Value::String(repository.to_string_lossy().into_owned());
    let section =
        |model: &RepositoryModel| (model.name.clone(), Value::Table(model.converted.section()));
    let file = Table::from_iter([
        ("roots".to_owned(), Value::Array(vec![root])),
        ("models".to_owned(), Value::Table(models.iter().map(section).collect())),
    ]);
    let text = to_text(&file)?;
    // The settings must be what `serve` reads.
    SettingsFile::parse(&text, Path::new("the converted settings"))?;
    let head = "# For `millpond serve --config FILE`; docs/millpond.toml has all settings.\n\n";
    Ok(head.to_owned() + &text)
}

/// Writes a settings file beside each model's versions, and prints their paths.
fn write_beside(models: &[RepositoryModel]) -> CommandResult {
    let files: Vec<PathBuf> = models.iter().map(|model| model.dir.join(MODEL_FILE)).collect();
    if let Some(file) = files.iter().find(|file| file.exists()) {
        return Err(CommandError::failed(format!(
            "{} exists; nothing was written",
            file.display()
        ))
        .hint("move it away, or use --to FILE"));
    }
    for (model, file) in models.iter().zip(&files) {
        let text = to_text(&model.converted.file())?;
        lifecycle::check_model_settings(&text)
            .map_err(|error| CommandError::failed(format!("{}: {error}", file.display())))?;
        let head = format!("# Converted from {CONFIG_FILE}; docs/model.toml has all settings.\n\n");
        write_new(file, &(head + &text))?;
        print(&format!("{}\n", file.display()))?;
    }
    Ok(())
}

fn to_text(table: &Table) -> CommandResult<String> {
    toml::to_string(table).map_err(|error| CommandError::failed(format!("settings: {error}")))
}

#[cfg(test)]
mod tests;
