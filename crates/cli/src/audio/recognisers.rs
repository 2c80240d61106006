//! Finds recognisers: directories of models whose `millpond.toml` has a section `[recogniser]`.

use std::path::{Path, PathBuf};

use clap::Args;
use command_line::environment;
use command_line::exit::{CommandError, CommandResult};
use command_line::values::check_name;
use engine::LibrarySearch;
use serde::Deserialize;

/// Directory of recognisers inside a project.
const USUAL_DIR: &str = ".cache/recognisers";
/// Python package of the provided recognisers.
const PACKAGE: &str = "millpond-recognisers";
/// Directory of the package among Python's packages.
const IN_PACKAGES: &str = "millpond_recognisers";
/// Settings file of a model.
const MODEL_FILE: &str = "millpond.toml";
/// Maximum size of a settings file, as in the server.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Maximum number of models read from one directory.
const MODELS_MAX: usize = 4096;

/// The directory of recognisers.
#[derive(Args, Clone, Debug)]
pub(crate) struct RecogniserDirArgs {
    /// Directory of recognisers [default: .cache/recognisers in or above the current directory or
    /// this program's, else the Python package millpond-recognisers]
    #[arg(long, value_name = "DIR")]
    pub(crate) recognisers: Option<PathBuf>,
}

/// A recogniser on disk.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RecogniserDir {
    /// Name of its directory, which is the model's name.
    pub(crate) name: String,
    /// The model's directory.
    pub(crate) dir: PathBuf,
    /// The body of `[recogniser]`, as TOML.
    pub(crate) text: String,
    /// The model that it uses, if not its own.
    pub(crate) model: Option<String>,
}

/// The part of a settings file that is read here.
#[derive(Deserialize)]
struct RecogniserSection {
    recogniser: Option<toml::Table>,
}

impl RecogniserDirArgs {
    /// Returns the directory: the flag's, the environment's or the default one.
    ///
    /// # Errors
    /// Returns an error that says how to get recognisers.
    pub(crate) fn dir(&self) -> CommandResult<PathBuf> {
        let source = environment::RECOGNISERS.source("--recognisers", self.recognisers.is_some());
        let given = self.recognisers.clone().or_else(|| environment::RECOGNISERS.path());
        find_dir(source, given, &environment::recogniser_search())
    }

    /// Returns all recognisers, sorted by name.
    ///
    /// # Errors
    /// Returns an error if there is no directory or no recogniser in it.
    pub(crate) fn all(&self) -> CommandResult<Vec<RecogniserDir>> {
        let dir = self.dir()?;
        let found = in_dir(&dir)?;
        if found.is_empty() {
            let message = format!("{}: no model here has a section [recogniser]", dir.display());
            let hint = remedy(&environment::recogniser_search());
            return Err(CommandError::failed(message).hint(hint));
        }
        Ok(found)
    }

    /// Returns the recogniser `name`.
    ///
    /// # Errors
    /// Returns an error that lists the available recognisers.
    pub(crate) fn find(&self, name: &str) -> CommandResult<RecogniserDir> {
        check_name(name)
            .map_err(|error| CommandError::usage(format!("--recogniser: {}", error.message())))?;
        let mut all = self.all()?;
        let names: Vec<String> = all.iter().map(|found| found.name.clone()).collect();
        let place = names.iter().position(|other| other == name).ok_or_else(|| {
            let parent = all.first().and_then(|found| found.dir.parent());
            CommandError::failed(format!(
                "there is no recogniser \"{name}\"; there are {}",
                names.join(", ")
            ))
            .hint(format!(
                "these are in {}; name another directory with --recognisers or MILLPOND_RECOGNISERS",
                parent.unwrap_or(Path::new("")).display()
            ))
        })?;
        Ok(all.swap_remove(place))
    }
}

/// Returns `given`, else the first [`USUAL_DIR`] in or above the start directories of `search`,
/// else the Python package. The package is searched in the directories of engine libraries.
/// `source` is the flag or variable of `given`.
fn find_dir(
    source: &str,
    given: Option<PathBuf>,
    search: &LibrarySearch,
) -> CommandResult<PathBuf> {
    if let Some(dir) = given {
        return if dir.is_dir() {
            Ok(dir)
        } else {
            Err(CommandError::failed(format!(
                "{source} {}: there is no such directory",
                dir.display()
            ))
            .hint(remedy(search)))
        };
    }
    let mut usual = search.above(USUAL_DIR);
    let package = || search.find(|dir| Some(dir.join(IN_PACKAGES)).filter(|dir| dir.is_dir()));
    usual.find(|dir| dir.is_dir()).or_else(package).ok_or_else(|| {
        let above = search
            .start_dirs
            .iter()
            .map(|dir| format!("{USUAL_DIR} in or above {}", dir.display()));
        let places: Vec<String> = above.collect();
        CommandError::failed(format!(
            "no recognisers were found; looked for {}, and for {IN_PACKAGES} in {}",
            places.join(", "),
            search.places().join(", ")
        ))
        .hint(remedy(search))
    })
}

/// Returns the remedy if there are no recognisers.
fn remedy(search: &LibrarySearch) -> String {
    format!(
        "run {}, or name a directory with --recognisers or MILLPOND_RECOGNISERS",
        search.install_command(PACKAGE, "recognisers")
    )
}

/// Returns the recognisers in `dir`, sorted by name. Other models are left out.
fn in_dir(dir: &Path) -> CommandResult<Vec<RecogniserDir>> {
    let unreadable =
        |error: std::io::Error| CommandError::failed(format!("{}: {error}", dir.display()));
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(unreadable)?.take(MODELS_MAX) {
        let dir = entry.map_err(unreadable)?.path();
        let Some(name) = dir.file_name().and_then(|name| name.to_str()) else { continue };
        let name = name.to_owned();
        let Some(table) = section(&dir.join(MODEL_FILE))? else { continue };
        let model = table.get("model").and_then(toml::Value::as_str).map(str::to_owned);
        let text = toml::to_string(&table)
            .map_err(|error| CommandError::failed(format!("{name}: {error}")))?;
        found.push(RecogniserDir { name, dir, text, model });
    }
    found.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(found)
}

/// Reads the section `[recogniser]` of a settings file; `None` if there is no file or no such
/// section.
fn section(file: &Path) -> CommandResult<Option<toml::Table>> {
    let unreadable =
        |why: &dyn std::fmt::Display| CommandError::failed(format!("{}: {why}", file.display()));
    let Ok(meta) = std::fs::metadata(file) else { return Ok(None) };
    if meta.len() > FILE_BYTES_MAX {
        return Err(unreadable(&"larger than 1 MiB"));
    }
    let text = std::fs::read_to_string(file).map_err(|error| unreadable(&error))?;
    let parsed: RecogniserSection =
        toml::from_str(&text).map_err(|error| unreadable(&error.message().replace('\n', " ")))?;
    Ok(parsed.recogniser)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(dir: &Path, name: &str, settings: &str) {
        std::fs::create_dir_all(dir.join(name)).unwrap();
        std::fs::write(dir.join(name).join(MODEL_FILE), settings).unwrap();
    }

    #[test]
    fn models_with_a_section_are_recognisers() {
        let dir = tempfile::tempdir().unwrap();
        model(dir.path(), "vad", "intra-op-threads = 1\n[recogniser]\ntitle = \"Voice\"\n");
        model(dir.path(), "plain", "[warmup]\nenabled = false\n");
        model(dir.path(), "heads", "[recogniser]\nmodel = \"vad\"\n");
        std::fs::create_dir(dir.path().join("empty")).unwrap();
        let place = RecogniserDirArgs { recognisers: Some(dir.path().into()) };
        let names: Vec<String> = place.all().unwrap().into_iter().map(|found| found.name).collect();
        assert_eq!(names, ["heads", "vad"]);
        let vad = place.find("vad").unwrap();
        assert_eq!((vad.text.as_str(), vad.model), ("title = \"Voice\"\n", None));
        assert_eq!(place.find("heads").unwrap().model.as_deref(), Some("vad"));
        let error = place.find("notes").unwrap_err();
        assert_eq!(error.message(), "there is no recogniser \"notes\"; there are heads, vad");
        assert!(place.find("../vad").is_err());
        model(dir.path(), "broken", "[recogniser\n");
        assert!(place.all().unwrap_err().message().contains("broken/millpond.toml"));
    }

    #[test]
    fn a_project_comes_before_the_installed_package() {
        let dir = tempfile::tempdir().unwrap();
        let project = dir.path().join(USUAL_DIR);
        let below = dir.path().join("a/b");
        let environment = dir.path().join("environment");
        let installed = environment.join("lib/python3.11/site-packages").join(IN_PACKAGES);
        std::fs::create_dir_all(&below).unwrap();
        let search = LibrarySearch {
            virtual_env: Some(environment.clone()),
            start_dirs: vec![below.clone()],
            ..LibrarySearch::default()
        };
        let find_dir = |given| find_dir("MILLPOND_RECOGNISERS", given, &search);
        let missing = find_dir(None).unwrap_err();
        let places = missing.message();
        for place in [
            &format!("{USUAL_DIR} in or above {}", below.display()),
            &format!("{} (VIRTUAL_ENV)", environment.display()),
        ] {
            assert!(places.contains(place.as_str()), "{place} is not in {places}");
        }
        std::fs::create_dir_all(&installed).unwrap();
        assert_eq!(find_dir(None).unwrap(), installed);
        std::fs::create_dir_all(&project).unwrap();
        assert_eq!(find_dir(None).unwrap(), project);
        let none = dir.path().join("none");
        let wrong = find_dir(Some(none.clone())).unwrap_err();
        let named = format!("MILLPOND_RECOGNISERS {}: ", none.display());
        assert!(wrong.message().starts_with(&named), "{}", wrong.message());
    }
}
