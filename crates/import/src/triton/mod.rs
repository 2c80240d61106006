//! Triton's model repository: a directory of models, each with `config.pbtxt` and versions.

mod convert;
mod schedule;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use base::Result;
use protocol::inference as pb;
use toml::{Table, Value};

pub use convert::ConvertedModel;

use crate::{HEAD, ImportError, text, to_text};

/// Name of a model's configuration.
pub const CONFIG_FILE: &str = "config.pbtxt";

/// A model repository.
pub struct Repository {
    dir: PathBuf,
    /// The models, in order of name.
    pub models: Vec<RepositoryModel>,
    /// Errors of unreadable configurations.
    pub unread: Vec<String>,
}

/// A model of the repository.
pub struct RepositoryModel {
    /// Name of the model, which is that of its directory.
    pub name: String,
    /// Directory of the model.
    pub dir: PathBuf,
    /// Converted settings of the model.
    pub converted: ConvertedModel,
}

impl Repository {
    /// Reads all configurations. `check_name` refuses names that no model can have.
    ///
    /// # Errors
    /// Returns an error for a directory that cannot be read or has no model.
    pub fn read(
        repository: &Path,
        check_name: impl Fn(&str) -> Result<()>,
    ) -> std::result::Result<Repository, ImportError> {
        let failed = |error: std::io::Error| {
            ImportError::usage(format!("{}: {error}", repository.display()))
        };
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
            let error = ImportError::usage(format!("no directory in {shown} has a {CONFIG_FILE}"));
            return Err(if repository.join(CONFIG_FILE).is_file() {
                error.hint(format!("{shown} is a model: give the directory above it"))
            } else {
                error.hint("give the directory that Triton gets as --model-repository")
            });
        }
        let mut models = Vec::new();
        let mut unread = Vec::new();
        for dir in dirs {
            let name =
                dir.file_name().map(|it| it.to_string_lossy().into_owned()).unwrap_or_default();
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
        Ok(Repository { dir: repository.to_owned(), models, unread })
    }

    /// Returns the settings file of all models. It names the repository as a directory of models.
    ///
    /// # Errors
    /// Returns an error for a repository that no longer exists.
    pub fn settings(&self) -> std::result::Result<String, ImportError> {
        let repository = std::fs::canonicalize(&self.dir)
            .map_err(|error| ImportError::usage(format!("{}: {error}", self.dir.display())))?;
        let root = Value::String(repository.to_string_lossy().into_owned());
        let section =
            |model: &RepositoryModel| (model.name.clone(), Value::Table(model.converted.section()));
        let file = Table::from_iter([
            ("roots".to_owned(), Value::Array(vec![root])),
            ("models".to_owned(), Value::Table(self.models.iter().map(section).collect())),
        ]);
        Ok(HEAD.to_owned() + &to_text(&file)?)
    }
}
