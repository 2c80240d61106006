//! Adds directories, object stores and `[models.NAME]` of the file to the served models.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use command_line::environment;
use command_line::exit::{CommandError, CommandResult, ExitStatus, user};
use command_line::values::{ModelSource, check_name};
use lifecycle::Transition;
use model_store::{StorePlace, watched_dir};

use super::{ListedModel, ServeSettings, answering};
use crate::audio::recognisers::RecogniserDirArgs;
use crate::layout;
use crate::serve::file::{ModelOptions, is_url};

impl ServeSettings {
    /// Adds a directory as a model or a root.
    pub(super) fn add(&mut self, source: ModelSource) -> CommandResult {
        if is_url(&source.dir) {
            return self.add_store(source);
        }
        let dir = existing(&source.dir)?;
        if source.name.is_none() && !layout::is_model(&dir) {
            self.roots.push(dir);
            return Ok(());
        }
        let name = match source.name {
            Some(name) => name,
            None => name_of(&dir)?,
        };
        self.add_model(name, dir)
    }

    /// Adds a model, and refuses a second directory under its name.
    fn add_model(&mut self, name: String, dir: PathBuf) -> CommandResult {
        if self.models.get(&name).is_some_and(|other| other.dir != dir) {
            return Err(CommandError::usage(format!("two directories are model \"{name}\""))
                .hint("give one of them another name with NAME=DIR"));
        }
        let model = ListedModel { dir, options: ModelOptions::default(), has_section: false };
        self.models.insert(name, model);
        Ok(())
    }

    /// Adds an installed recogniser, and the model that it uses if that is not its own.
    pub(super) fn add_recogniser(&mut self, name: &str) -> CommandResult {
        let found = RecogniserDirArgs { recognisers: None }
            .find(name)
            .map_err(|error| error.with_exit(ExitStatus::Usage))?;
        let beside = |model: String| (found.dir.with_file_name(&model), model);
        let other = found.model.clone().filter(|model| *model != found.name).map(beside);
        for (dir, name) in [(found.dir.clone(), found.name.clone())].into_iter().chain(other) {
            self.add(ModelSource { name: Some(name), dir })?;
        }
        Ok(())
    }

    /// Adds a directory of an object store: a model if it has a name, else a root.
    fn add_store(&mut self, source: ModelSource) -> CommandResult {
        let url = source.dir.to_string_lossy().into_owned();
        let dir = self.mirror(&url, source.name.as_deref())?;
        match source.name {
            None => self.roots.push(dir),
            Some(name) => self.add_model(name, dir)?,
        }
        Ok(())
    }

    /// Returns the directory that mirrors a URL, and makes it.
    fn mirror(&mut self, url: &str, model: Option<&str>) -> CommandResult<PathBuf> {
        StorePlace::open(url, &environment::object_stores())
            .map_err(|error| CommandError::usage(format!("cannot serve {}", error.message())))?;
        let cache = self.lifecycle.cache_dir.clone().unwrap_or_else(environment::cache_dir);
        let dir = watched_dir(&cache, url, model);
        make(&dir)?;
        self.stores.insert(dir.clone(), url.into());
        Ok(dir)
    }

    /// Adds `[models.NAME]`: settings of a known model, or a new model.
    pub(super) fn add_models_of_file(
        &mut self,
        models: BTreeMap<String, ModelOptions>,
    ) -> CommandResult {
        for (name, options) in models {
            options.schedule.apply(&self.schedule).check().map_err(|error| {
                CommandError::usage(format!("[models.{name}.schedule]: {}", error.message()))
            })?;
            let transition = options.transition.or(self.lifecycle.transition);
            let transition: Transition = transition.map(Into::into).unwrap_or_default();
            transition.check_rollout(&options.rollout.over(&self.rollout)).map_err(|error| {
                CommandError::usage(format!("[models.{name}.rollout]: {error}"))
            })?;
            let dir = match (self.models.get(&name), &options.path) {
                // The command line takes precedence over the file, as for flags.
                (Some(model), _) => model.dir.clone(),
                (None, Some(path)) if is_url(path) => {
                    self.mirror(&path.to_string_lossy(), Some(&name))?
                }
                (None, Some(path)) => existing(path)?,
                (None, None) => {
                    let inside =
                        self.roots.iter().map(|root| root.join(&name)).find(|dir| dir.is_dir());
                    // The model can be in a store that has not been listed yet.
                    let in_store =
                        || self.roots.iter().find(|root| self.stores.contains_key(*root));
                    let inside = inside.or_else(|| in_store().map(|root| root.join(&name)));
                    let dir = inside.ok_or_else(|| {
                        CommandError::usage(format!(
                            "[models.{name}] has no path and no root has a model of that name"
                        ))
                    })?;
                    make(&dir)?;
                    dir
                }
            };
            self.models.insert(name, ListedModel { dir, options, has_section: true });
        }
        Ok(())
    }
}

/// Creates the directory of a store's copy if it is missing.
fn make(dir: &Path) -> CommandResult {
    os::private::create_dir_all(dir).map_err(|error| {
        CommandError::usage(format!("cannot create {}: {error}", dir.display()))
            .hint("name a directory for copies of models with --cache-dir DIR")
    })
}

/// Returns the directory's path without symbolic links.
///
/// # Errors
/// Returns a usage error if the directory does not exist, cannot be read or is a file, and another
/// error if its file system does not answer.
fn existing(dir: &Path) -> CommandResult<PathBuf> {
    answering::in_time(dir, answering::WAIT_MAX, resolved)
}

/// Does the work of [`existing`] on a thread that may block.
fn resolved(dir: &Path) -> CommandResult<PathBuf> {
    let real = std::fs::canonicalize(dir).map_err(|error| {
        let failure = |why: &dyn std::fmt::Display| {
            CommandError::usage(format!("cannot serve {}: {why}", dir.display()))
        };
        match error.kind() {
            std::io::ErrorKind::NotFound => failure(&"No such file or directory").hint(
                "check the path; millpond publish model.onnx --to DIR/NAME makes a directory of models",
            ),
            std::io::ErrorKind::PermissionDenied => unreadable(dir),
            _ => failure(&error),
        }
    })?;
    if !real.is_dir() {
        return Err(no_directory(dir, &real));
    }
    match std::fs::read_dir(&real) {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Err(unreadable(dir)),
        _ => Ok(real),
    }
}

/// Returns the error for a file instead of a directory. It says how to serve the file.
fn no_directory(file: &Path, real: &Path) -> CommandError {
    let shown = file.display();
    match engine::foreign::identify(real) {
        Some(foreign) => {
            CommandError::usage(format!("cannot serve {shown}: it is {}", foreign.format))
                .hint(foreign.remedy.replace("NAME", "DIR/NAME"))
        }
        None => CommandError::usage(format!("cannot serve {shown}: it is not a directory")).hint(
            format!("publish it as a version: millpond publish {shown} --to DIR/NAME, then millpond serve DIR"),
        ),
    }
}

/// Returns the error for a directory that this user may not read.
fn unreadable(dir: &Path) -> CommandError {
    CommandError::usage(format!("cannot read {}: Permission denied", dir.display())).hint(format!(
        "this runs as {}; give that user read and execute permission on the directory and those above it",
        user()
    ))
}

/// Returns the name of the directory as that of a model.
///
/// # Errors
/// Returns a usage error if a model cannot have this name.
fn name_of(dir: &Path) -> CommandResult<String> {
    let name = dir.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    check_name(&name).map_err(|error| {
        CommandError::usage(format!("{}: {error}", dir.display()))
            .hint("give it a name: millpond serve NAME=DIR")
    })?;
    Ok(name)
}
