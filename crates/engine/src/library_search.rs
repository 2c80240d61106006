//! Search for an engine's library: a path from the caller, a Python environment, or an
//! installation.
//!
//! Reads no environment variable; the command line passes in their values.

use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Name of a project's virtual environment.
const VENV_DIR: &str = ".venv";
/// Maximum parent directories of a starting directory that are searched for a virtual environment.
const ANCESTORS_MAX: usize = 16;
/// Permission of a directory in which every user of the machine may create files.
const WRITABLE_BY_ALL: u32 = 0o002;
/// Number of the user root.
const ROOT_USER: u32 = 0;
/// Directory, below the program's prefix, with the libraries of a system package.
const IN_PREFIX: &str = "lib/millpond";
/// Directory that a checkout has and an installation does not have.
const IN_CHECKOUT: &str = "crates";
/// File in an environment that pipx made.
const PIPX_FILE: &str = "pipx_metadata.json";
/// File in an environment that `uv tool` made.
const UV_TOOL_FILE: &str = "uv-receipt.toml";
/// Prefixes of system-wide installations.
const SYSTEM_PREFIXES: [&str; 2] = ["/usr/local", "/usr"];
/// Names of the directory of Python packages; the second is Debian's.
const PACKAGE_DIRS: [&str; 2] = ["site-packages", "dist-packages"];

/// Places to search, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LibrarySearch {
    /// The library, or a directory that contains it or is a virtual environment. If given, nothing
    /// else is tried.
    pub explicit: Option<PathBuf>,
    /// Flag or variable that `explicit` comes from, for errors; `None` for the flag of the engine.
    pub explicit_source: Option<&'static str>,
    /// The active virtual environment.
    pub virtual_env: Option<PathBuf>,
    /// Directory of the program.
    pub program_dir: Option<PathBuf>,
    /// Prefix that the program is installed under, if it is not the system's: the parent of its
    /// directory. It may be a virtual environment that is not active.
    pub program_prefix: Option<PathBuf>,
    /// Directories to search, with their parents, for a `.venv`.
    pub start_dirs: Vec<PathBuf>,
    /// Prefix of the user's own packages, usually `~/.local`.
    pub user_prefix: Option<PathBuf>,
    /// Prefixes of the system's own installations.
    pub system_prefixes: Vec<PathBuf>,
}

impl LibrarySearch {
    /// Returns the usual search. It begins with `explicit` and `virtual_env`. The program's own
    /// directory and prefix follow, and each `.venv` in or above the current directory and the
    /// program's directory. The packages of the user and of the system come last.
    /// [`LibrarySearch::with_user_prefix`] adds the user's packages.
    pub fn around_process(
        explicit: Option<PathBuf>,
        virtual_env: Option<PathBuf>,
    ) -> LibrarySearch {
        let search = LibrarySearch {
            explicit,
            virtual_env,
            system_prefixes: SYSTEM_PREFIXES.map(PathBuf::from).to_vec(),
            ..LibrarySearch::default()
        };
        search.beside(std::env::current_exe().ok().as_deref())
    }

    /// Sets the path of the program, whose directory and prefix are searched. A child process needs
    /// it if an upgrade has moved or deleted the file that the process runs.
    #[must_use]
    pub fn beside(self, program: Option<&Path>) -> LibrarySearch {
        let dir = program.and_then(Path::parent);
        let here = std::env::current_dir().ok();
        // A project's environment comes before the system's packages, even for a program in
        // /usr/local/bin.
        let prefix = dir.and_then(Path::parent).map(Path::to_owned);
        let program_prefix = prefix.filter(|prefix| !self.system_prefixes.contains(prefix));
        LibrarySearch {
            program_dir: dir.map(Path::to_owned),
            program_prefix,
            start_dirs: here.into_iter().chain(dir.map(Path::to_owned)).collect(),
            ..self
        }
    }

    /// Sets the prefix of the user's packages.
    #[must_use]
    pub fn with_user_prefix(self, user_prefix: Option<PathBuf>) -> LibrarySearch {
        LibrarySearch { user_prefix, ..self }
    }

    /// Lists the directories of libraries that are installed with the program: its own, and
    /// `../lib/millpond`. They are searched after the active environment.
    fn library_dirs(&self) -> impl Iterator<Item = PathBuf> + '_ {
        let prefix = self.program_dir.iter().filter_map(|dir| dir.parent());
        self.program_dir.iter().cloned().chain(prefix.map(|prefix| prefix.join(IN_PREFIX)))
    }

    /// Calls `find` with one directory after another, and returns its first result. The order is
    /// [`package_dirs`] of the active environment, the libraries that are installed with the
    /// program, and the packages of all other environments.
    pub fn find<T>(&self, find: impl Fn(&Path) -> Option<T>) -> Option<T> {
        let active = self.virtual_env.iter().flat_map(|active| package_dirs(active));
        let mut dirs = active.chain(self.library_dirs()).chain(self.package_dirs());
        dirs.find_map(|dir| find(&dir))
    }

    /// Returns the instruction that installs an engine for this program. It names the Python
    /// package `package`, or the make target `target` if the program is in a checkout. The
    /// alternative is the path of the engine's library, which the user passes with `flag`.
    pub fn remedy(&self, package: &str, target: &str, flag: &str) -> String {
        format!("run {}, or give {flag} PATH", self.install_command(package, target))
    }

    /// Returns the command in [`LibrarySearch::remedy`], in backticks.
    pub fn install_command(&self, package: &str, target: &str) -> String {
        let in_checkout =
            |prefix: &Path| prefix.ancestors().any(|dir| dir.join(IN_CHECKOUT).is_dir());
        let pip = |prefix: Option<&PathBuf>| {
            let python =
                prefix.map(|prefix| prefix.join("bin/python3")).filter(|path| path.exists());
            python.map(|python| format!("`{} -m pip install {package}`", python.display()))
        };
        let prefix = self.program_prefix.as_deref();
        let checkout = prefix.filter(|prefix| in_checkout(prefix));
        prefix
            .and_then(|prefix| tool_command(prefix, package))
            .or_else(|| pip(self.program_prefix.as_ref()))
            .or_else(|| checkout.map(|_| format!("`make {target}`")))
            .or_else(|| pip(self.virtual_env.as_ref()))
            .unwrap_or_else(|| {
                format!("`pip install {package}` in a virtual environment and activate it")
            })
    }

    /// Lists the environments to search if no path was given, existing or not. Leaves out a `.venv`
    /// that another user of the machine may have created.
    pub fn environments(&self) -> impl Iterator<Item = PathBuf> + '_ {
        let named = self.virtual_env.iter().chain(&self.program_prefix).cloned();
        let installed = self.user_prefix.iter().chain(&self.system_prefixes).cloned();
        named.chain(self.above(VENV_DIR)).chain(installed)
    }

    /// Lists the paths of `entry` in the start directories and in the directories above them,
    /// existing or not. Leaves out a path that another user of the machine may have created.
    pub fn above<'a>(&'a self, entry: &'a str) -> impl Iterator<Item = PathBuf> + 'a {
        let user = os::process::effective_user();
        let dirs = self.start_dirs.iter().flat_map(|dir| dir.ancestors().take(ANCESTORS_MAX));
        let trusted = dirs.filter(move |dir| is_trusted(dir, Path::new(entry), user));
        trusted.map(move |dir| dir.join(entry))
    }

    /// Lists the directories of Python packages in [`LibrarySearch::environments`] that exist.
    fn package_dirs(&self) -> impl Iterator<Item = PathBuf> + '_ {
        self.environments().flat_map(|environment| package_dirs(&environment))
    }

    /// Names all places that are searched, for an error message.
    pub fn places(&self) -> Vec<String> {
        let mut places = Vec::new();
        match &self.virtual_env {
            Some(active) => places.push(format!("{} (VIRTUAL_ENV)", active.display())),
            None => places.push("VIRTUAL_ENV (not set)".to_owned()),
        }
        places.extend(self.library_dirs().map(|dir| dir.display().to_string()));
        places.extend(
            self.program_prefix
                .iter()
                .map(|prefix| format!("{}/lib/python3* (the program's prefix)", prefix.display())),
        );
        places.extend(
            self.start_dirs.iter().map(|dir| format!("{VENV_DIR} in or above {}", dir.display())),
        );
        let system = |prefix: &PathBuf| {
            format!("{}/lib/python3*/{{{}}}", prefix.display(), PACKAGE_DIRS.join(","))
        };
        places.extend(self.user_prefix.iter().chain(&self.system_prefixes).map(system));
        places
    }
}

/// Returns true if `user` may load code from the path `entry` in `directory`.
fn is_trusted(directory: &Path, entry: &Path, user: u32) -> bool {
    let mut directory = directory.to_owned();
    entry.iter().all(|name| {
        let trusted = is_trusted_name(&directory, name, user);
        directory.push(name);
        trusted
    })
}

/// Returns true if `user` may load code from the file or directory `name` in `directory`. In a
/// directory that every user may write to, such as /tmp, it must belong to `user`, to root or to
/// the owner of the directory. Otherwise the code of another user would run with the rights of
/// `user`.
fn is_trusted_name(directory: &Path, name: &OsStr, user: u32) -> bool {
    let Ok(parent) = std::fs::metadata(directory) else { return true };
    if parent.mode() & WRITABLE_BY_ALL == 0 {
        return true;
    }
    // A link belongs to the user who made it, and not to the owner of its target.
    let owner = std::fs::symlink_metadata(directory.join(name)).map(|found| found.uid());
    owner.is_ok_and(|owner| is_trusted_owner(owner, parent.uid(), user))
}

/// Returns true if `user` may load code of the user `owner` from a shared directory.
fn is_trusted_owner(owner: u32, directory_owner: u32, user: u32) -> bool {
    [user, ROOT_USER, directory_owner].contains(&owner)
}

/// Returns the command, in backticks, that adds `package` to an environment of pipx or `uv tool`,
/// with a note about other arguments. Returns `None` for another environment.
fn tool_command(prefix: &Path, package: &str) -> Option<String> {
    // The directory has the name of the installed tool.
    let tool = prefix.file_name()?.to_str()?;
    if prefix.join(PIPX_FILE).is_file() {
        return Some(format!("`pipx inject {tool} {package}`"));
    }
    // Such an environment has no pip, and the command replaces all that was installed before.
    let is_uv = prefix.join(UV_TOOL_FILE).is_file();
    is_uv.then(|| {
        format!(
            "`uv tool install {tool} --with {package}`, with the extras that are installed already"
        )
    })
}

/// Lists the directories of Python packages under `prefix`, those of the newest Python first.
pub fn package_dirs(prefix: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(prefix.join("lib")).into_iter().flatten();
    let mut pythons: Vec<(Vec<u32>, PathBuf)> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter_map(|path| Some((python_version(path.file_name()?.to_str()?)?, path)))
        .collect();
    pythons.sort();
    let packages = |(_, python): &(Vec<u32>, PathBuf)| PACKAGE_DIRS.map(|name| python.join(name));
    pythons.iter().rev().flat_map(packages).filter(|dir| dir.is_dir()).collect()
}

/// Parses the numbers of a directory such as `python3.12`; `None` for another name.
fn python_version(name: &str) -> Option<Vec<u32>> {
    let version = name.strip_prefix("python").filter(|version| version.starts_with('3'))?;
    version.split('.').map(|number| number.trim_end_matches('t').parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn search() -> LibrarySearch {
        LibrarySearch {
            virtual_env: Some("/active".into()),
            program_dir: Some("/opt/tool/bin".into()),
            program_prefix: Some("/opt/tool".into()),
            user_prefix: Some("/home/me/.local".into()),
            start_dirs: vec!["/one/two".into(), "/three".into()],
            system_prefixes: vec!["/usr".into()],
            ..LibrarySearch::default()
        }
    }

    #[test]
    fn the_active_environment_comes_before_those_above() {
        let expected = [
            "/active",
            "/opt/tool",
            "/one/two/.venv",
            "/one/.venv",
            "/.venv",
            "/three/.venv",
            "/.venv",
            "/home/me/.local",
            "/usr",
        ];
        assert!(search().environments().eq(expected.map(PathBuf::from)));
    }

    #[test]
    fn an_environment_of_another_user_is_not_searched() {
        let root = tempfile::tempdir().unwrap();
        let shared = root.path().join("shared");
        std::fs::create_dir_all(shared.join(VENV_DIR)).unwrap();
        let own = os::process::effective_user();
        let other = own + 1;
        let is_trusted = |dir: &Path, user: u32| is_trusted(dir, Path::new(VENV_DIR), user);
        assert!(is_trusted(&shared, other), "only the owner can have created it");
        let mode = |mode| std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&shared, mode(0o1777)).unwrap();
        assert!(is_trusted(&shared, own), "it belongs to the user");
        assert!(is_trusted(&shared, other), "it belongs to the owner of the directory");
        assert!(!is_trusted_owner(1001, ROOT_USER, 1000), "it belongs to another user");
        assert!(is_trusted_owner(ROOT_USER, 1001, 1000), "it belongs to root");
        std::fs::remove_dir(shared.join(VENV_DIR)).unwrap();
        assert!(!is_trusted(&shared, own), "another user could create it now");
        assert!(is_trusted(&root.path().join("absent"), own));
    }

    #[test]
    fn each_directory_of_a_path_belongs_to_a_trusted_user() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a/b");
        let search =
            LibrarySearch { start_dirs: vec![root.path().to_owned()], ..LibrarySearch::default() };
        let is_searched = || search.above("a/b").any(|found| found == path);
        let shared = std::fs::Permissions::from_mode(0o1777);
        assert!(is_searched(), "only the owner can create it");
        std::fs::set_permissions(root.path(), shared.clone()).unwrap();
        assert!(!is_searched(), "another user could create a");
        std::fs::create_dir(root.path().join("a")).unwrap();
        std::fs::set_permissions(root.path().join("a"), shared).unwrap();
        assert!(!is_searched(), "another user could create b");
        std::fs::create_dir(&path).unwrap();
        assert!(is_searched());
    }

    #[test]
    fn an_error_names_the_searched_paths() {
        let places = search().places().join(", ");
        for place in [
            "/active (VIRTUAL_ENV)",
            "/opt/tool/bin",
            "/opt/tool/lib/millpond",
            "/opt/tool/lib/python3*",
            "/home/me/.local/lib/python3*",
            ".venv in or above /one/two",
            "/usr/lib/python3*/",
        ] {
            assert!(places.contains(place), "{place} is not in {places}");
        }
    }

    #[test]
    fn libraries_of_the_program_come_after_the_active_environment() {
        let root = tempfile::tempdir().unwrap();
        let dirs = ["active/lib/python3.11/site-packages", "tool/lib/millpond", "tool/bin"]
            .map(|name| root.path().join(name));
        dirs.iter().for_each(|dir| std::fs::create_dir_all(dir).unwrap());
        let search = LibrarySearch {
            virtual_env: Some(root.path().join("active")),
            program_dir: Some(root.path().join("tool/bin")),
            ..LibrarySearch::default()
        };
        let found = |name: &'static str| {
            search.find(move |dir| Some(dir.join(name)).filter(|path| path.is_file()))
        };
        assert_eq!(found("library"), None);
        std::fs::write(dirs[1].join("library"), b"").unwrap();
        assert_eq!(found("library"), Some(dirs[1].join("library")));
        std::fs::write(dirs[0].join("library"), b"").unwrap();
        assert_eq!(found("library"), Some(dirs[0].join("library")));
    }

    #[test]
    fn the_remedy_fits_the_installation() {
        let root = tempfile::tempdir().unwrap();
        let at = |prefix: Option<PathBuf>| {
            let search = LibrarySearch { program_prefix: prefix, ..LibrarySearch::default() };
            search.remedy("onnxruntime", "build", "--onnxruntime")
        };
        assert!(at(None).starts_with("run `pip install onnxruntime` in a virtual environment"));
        let tool = root.path().join("tool");
        std::fs::create_dir_all(tool.join("bin")).unwrap();
        std::fs::write(tool.join("bin/python3"), b"").unwrap();
        let python = tool.join("bin/python3");
        let wanted = format!(
            "run `{} -m pip install onnxruntime`, or give --onnxruntime PATH",
            python.display()
        );
        assert_eq!(at(Some(tool)), wanted);
        std::fs::create_dir_all(root.path().join("checkout/crates")).unwrap();
        let built = root.path().join("checkout/target");
        assert_eq!(at(Some(built)), "run `make build`, or give --onnxruntime PATH");
    }

    #[test]
    fn the_remedy_names_the_tool_that_made_the_environment() {
        for (file, wanted) in [
            (PIPX_FILE, "`pipx inject millpond millpond-torch`"),
            (
                UV_TOOL_FILE,
                "`uv tool install millpond --with millpond-torch`, with the extras that are installed already",
            ),
        ] {
            let root = tempfile::tempdir().unwrap();
            let prefix = root.path().join("millpond");
            std::fs::create_dir_all(prefix.join("bin")).unwrap();
            std::fs::write(prefix.join("bin/python3"), b"").unwrap();
            std::fs::write(prefix.join(file), b"").unwrap();
            let search = LibrarySearch { program_prefix: Some(prefix), ..LibrarySearch::default() };
            assert_eq!(search.install_command("millpond-torch", "torch"), wanted);
        }
    }

    #[test]
    fn a_given_program_takes_the_place_of_this_one() {
        let search = LibrarySearch::around_process(None, None);
        let other = search.clone().beside(Some(Path::new("/opt/tool/bin/millpond")));
        assert_eq!(other.program_dir.as_deref(), Some(Path::new("/opt/tool/bin")));
        assert_eq!(other.program_prefix.as_deref(), Some(Path::new("/opt/tool")));
        let here = std::env::current_dir().unwrap();
        assert_eq!(other.start_dirs, [here, "/opt/tool/bin".into()]);
        assert_eq!(other.system_prefixes, search.system_prefixes);
    }

    #[test]
    fn packages_of_the_newest_python_come_first() {
        let prefix = tempfile::tempdir().unwrap();
        let names = [
            "python3.9/site-packages",
            "python3.12/dist-packages",
            "python3/dist-packages",
            "python2/site-packages",
        ];
        for name in names {
            std::fs::create_dir_all(prefix.path().join("lib").join(name)).unwrap();
        }
        let found = package_dirs(prefix.path());
        let expected =
            ["python3.12/dist-packages", "python3.9/site-packages", "python3/dist-packages"];
        assert_eq!(found, expected.map(|name| prefix.path().join("lib").join(name)));
    }
}
