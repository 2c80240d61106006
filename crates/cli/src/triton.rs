//! `millpond import triton`: a model repository of Triton becomes settings.

use std::path::{Path, PathBuf};

use clap::Args;
use command_line::exit::{CommandError, CommandResult, print, print_note};
use command_line::values::check_name;
use import::triton::{CONFIG_FILE, Repository, RepositoryModel};

use crate::import::{MODEL_FILE, write_new};
use crate::serve::file::SettingsFile;

/// `millpond import triton REPO`.
#[derive(Args, Debug)]
#[command(after_help = "\
The result is a file for `millpond serve --config FILE` that names REPO as a directory of models. With --write, the \
result is a millpond.toml beside each model's versions; it also has device, warm-up and the types of a TorchScript \
module's tensors. Triton ignores these files, so both servers can use the repository. Standard error lists each \
setting that has no equivalent, one per line.

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

/// Converts the repository and writes the settings.
///
/// # Errors
/// Returns a usage error for a directory without models, and an error after the work if a file
/// could not be read.
pub(crate) fn run(args: &ImportTritonArgs) -> CommandResult {
    let repository = Repository::read(&args.repository, check_name)?;
    let Repository { models, unread, .. } = &repository;
    if args.write {
        write_beside(models)?;
    } else {
        let text = settings(&repository)?;
        match &args.to {
            None => print(&text)?,
            Some(path) => write_new(path, &text)?,
        }
    }
    for model in models {
        let section_only = if args.write {
            model.converted.lost_in_file()
        } else {
            model.converted.lost_in_section()
        };
        for note in model.converted.notes.iter().chain(&section_only) {
            print_note(&format!("no equivalent: {}: {note}", model.name));
        }
    }
    unread.iter().for_each(|error| print_note(&format!("not converted: {error}")));
    match unread.len() {
        0 => Ok(()),
        count => Err(CommandError::failed(format!(
            "{count} of {} configurations could not be read",
            count + models.len()
        ))
        .hint("correct the lines that are named, or write the models' millpond.toml by hand")),
    }
}

/// Returns the settings file of all models.
fn settings(repository: &Repository) -> CommandResult<String> {
    let text = repository.settings()?;
    // The settings must be what `serve` reads.
    SettingsFile::parse(&text, Path::new("the converted settings"))?;
    Ok(text)
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
    // All are checked before the first is written: the next attempt would refuse existing files.
    let texts = models.iter().zip(&files).map(|(model, file)| checked_text(model, file));
    let texts = texts.collect::<CommandResult<Vec<String>>>()?;
    for (file, text) in files.iter().zip(&texts) {
        write_new(file, text)?;
        print(&format!("{}\n", file.display()))?;
    }
    Ok(())
}

/// Returns the text of a model's settings file, which the server can read.
fn checked_text(model: &RepositoryModel, file: &Path) -> CommandResult<String> {
    let text = model.converted.file_text()?;
    lifecycle::check_model_settings(&text)
        .map_err(|error| CommandError::failed(format!("{}: {error}", file.display())))?;
    let head = format!("# Converted from {CONFIG_FILE}; docs/model.toml has all settings.\n\n");
    Ok(head + &text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_settings_are_read_by_serve() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("a/1")).unwrap();
        std::fs::write(root.path().join("a").join(CONFIG_FILE), "max_batch_size: 1").unwrap();
        let repository = Repository::read(root.path(), check_name).unwrap();
        let text = settings(&repository).unwrap();
        let parsed = SettingsFile::parse(&text, Path::new("m.toml")).unwrap();
        assert!(parsed.models.contains_key("a") && parsed.roots.len() == 1, "{text}");
    }

    #[test]
    fn no_file_is_written_if_one_would_be_invalid() {
        let root = tempfile::tempdir().unwrap();
        let threads = |count: u32| {
            format!(
                "max_batch_size: 1 parameters {{ key: 'intra_op_thread_count' \
                 value {{ string_value: '{count}' }} }}"
            )
        };
        for (name, text) in [("a", threads(2)), ("b", threads(100_000))] {
            std::fs::create_dir_all(root.path().join(name).join("1")).unwrap();
            std::fs::write(root.path().join(name).join(CONFIG_FILE), text).unwrap();
        }
        let repository = Repository::read(root.path(), check_name).unwrap();
        assert_eq!(repository.models.len(), 2);
        let error = write_beside(&repository.models).unwrap_err();
        assert!(error.message().contains("intra-op-threads"), "{}", error.message());
        assert!(!root.path().join("a").join(MODEL_FILE).exists());
    }
}
