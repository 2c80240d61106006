//! All environment variables that Millpond reads. No other module or crate reads the environment.

use std::path::PathBuf;

/// An environment variable.
pub(crate) struct Variable {
    pub(crate) name: &'static str,
    /// Help text. Flags take precedence over variables.
    pub(crate) help: &'static str,
}

/// The key of admin calls.
pub(crate) const ADMIN_KEY: Variable = Variable {
    name: "MILLPOND_ADMIN_KEY",
    help: "default of `serve --admin-key`, and what `models load` and `unload` show",
};
/// The key of collections and images.
pub(crate) const API_KEY: Variable = Variable {
    name: "MILLPOND_API_KEY",
    help: "default of `serve --api-key`, and what client commands show",
};
/// Recordings that benchmarks may use.
pub(crate) const AUDIO_DATA: Variable = Variable {
    name: "MILLPOND_AUDIO_DATA",
    help: "default of `bench audio --clips`: a folder of recordings",
};
/// Where converted models and benchmark models are kept.
pub(crate) const CACHE_DIR: Variable = Variable {
    name: "MILLPOND_CACHE_DIR",
    help: "default of --cache-dir [else the user's cache directory]",
};
/// The settings file of `serve`.
pub(crate) const CONFIG: Variable =
    Variable { name: "MILLPOND_CONFIG", help: "default of `serve --config`" };
/// How long `demo` runs.
pub(crate) const DEMO_SECONDS: Variable = Variable {
    name: "MILLPOND_DEMO_SECONDS",
    help: "`demo` ends by itself after this many seconds",
};
/// The LibTorch shim.
pub(crate) const LIBTORCH: Variable =
    Variable { name: "MILLPOND_LIBTORCH", help: "default of --libtorch" };
/// The log filter.
pub(crate) const LOG: Variable = Variable { name: "MILLPOND_LOG", help: "default of --log" };
/// Settings of the allocator.
pub(crate) const MALLOC_CONF: Variable =
    Variable { name: "MALLOC_CONF", help: "jemalloc's settings, in place of Millpond's own" };
/// NVIDIA's run-time compiler (NVRTC).
pub(crate) const NVRTC: Variable = Variable {
    name: "MILLPOND_NVRTC",
    help: "NVIDIA's run-time compiler (libnvrtc) or its directory, for `serve --gpu`",
};
/// ONNX Runtime's library.
pub(crate) const ONNXRUNTIME: Variable =
    Variable { name: "MILLPOND_ONNXRUNTIME", help: "default of --onnxruntime" };
/// Program that `millpond-bench` starts as a server.
pub(crate) const PROGRAM: Variable = Variable {
    name: "MILLPOND_PROGRAM",
    help: "set for millpond-bench: the `millpond` to measure",
};
/// Search path of programs.
pub(crate) const PATH: Variable = Variable {
    name: "PATH",
    help: "where millpond-bench is looked for unless it is beside this program",
};
/// Directory of recognisers.
pub(crate) const RECOGNISERS: Variable = Variable {
    name: "MILLPOND_RECOGNISERS",
    help: "default of --recognisers [else .cache/recognisers]",
};
/// Enrolled voices.
pub(crate) const SPEAKERS: Variable = Variable {
    name: "MILLPOND_SPEAKERS",
    help: "default of --speakers [else in the user's data directory]",
};
/// The server that client commands talk to.
pub(crate) const URL: Variable = Variable { name: "MILLPOND_URL", help: "default of --url" };
/// A Python virtual environment.
pub(crate) const VIRTUAL_ENV: Variable =
    Variable { name: "VIRTUAL_ENV", help: "where the engines' libraries are looked for first" };
/// The user's cache directory.
pub(crate) const XDG_CACHE_HOME: Variable =
    Variable { name: "XDG_CACHE_HOME", help: "the user's cache directory [else ~/.cache]" };
/// The user's data directory.
pub(crate) const XDG_DATA_HOME: Variable =
    Variable { name: "XDG_DATA_HOME", help: "the user's data directory [else ~/.local/share]" };
/// The user's home directory.
pub(crate) const HOME: Variable = Variable { name: "HOME", help: "the user's home directory" };
/// Switches colours off.
pub(crate) const NO_COLOR: Variable =
    Variable { name: "NO_COLOR", help: "set to anything: no colours" };

/// Colours of the terminal.
pub(crate) const COLORTERM: Variable =
    Variable { name: "COLORTERM", help: "whether `images search` may draw pictures in colours" };
/// The kind of terminal.
pub(crate) const TERM: Variable = Variable {
    name: "TERM",
    help: "whether `images search` may send pictures as kitty takes them",
};
/// The terminal's program.
pub(crate) const TERM_PROGRAM: Variable = Variable {
    name: "TERM_PROGRAM",
    help: "whether `images search` may send pictures as iTerm2 takes them",
};

/// All variables, in the order of the help text.
pub(crate) const ALL: [&Variable; 24] = [
    &ADMIN_KEY,
    &API_KEY,
    &AUDIO_DATA,
    &CACHE_DIR,
    &CONFIG,
    &DEMO_SECONDS,
    &LIBTORCH,
    &LOG,
    &MALLOC_CONF,
    &NVRTC,
    &ONNXRUNTIME,
    &PATH,
    &PROGRAM,
    &RECOGNISERS,
    &SPEAKERS,
    &URL,
    &VIRTUAL_ENV,
    &XDG_CACHE_HOME,
    &XDG_DATA_HOME,
    &HOME,
    &NO_COLOR,
    &COLORTERM,
    &TERM,
    &TERM_PROGRAM,
];

impl Variable {
    /// Returns its value as text; `None` if it is unset, empty or not UTF-8.
    pub(crate) fn text(&self) -> Option<String> {
        std::env::var(self.name).ok().filter(|value| !value.is_empty())
    }

    /// Returns its value as a path; `None` if it is unset or empty.
    pub(crate) fn path(&self) -> Option<PathBuf> {
        std::env::var_os(self.name).filter(|value| !value.is_empty()).map(PathBuf::from)
    }
}

/// Returns the directory for files that can be recreated: the variable, else the user's cache
/// directory, else (for users without a home) one below the system's temporary directory.
pub(crate) fn cache_dir() -> PathBuf {
    CACHE_DIR
        .path()
        .or_else(|| XDG_CACHE_HOME.path().map(|dir| dir.join("millpond")))
        .or_else(|| HOME.path().map(|dir| dir.join(".cache/millpond")))
        .unwrap_or_else(|| std::env::temp_dir().join("millpond"))
}

/// Returns the file of enrolled voices: the variable, else one in the user's data directory; `None`
/// for users without a home.
pub(crate) fn speakers_file() -> Option<PathBuf> {
    let dir = || {
        let own = || HOME.path().map(|home| home.join(".local/share"));
        XDG_DATA_HOME.path().or_else(own).map(|dir| dir.join("millpond/speakers.json"))
    };
    SPEAKERS.path().or_else(dir)
}

/// Returns the variables of object storage providers, with lower-case names.
pub(crate) fn object_stores() -> Vec<(String, String)> {
    let theirs =
        |name: &str| ["AWS_", "AZURE_", "GOOGLE_"].iter().any(|prefix| name.starts_with(prefix));
    let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        let name = name.into_string().ok().filter(|name| theirs(name))?;
        Some((name.to_ascii_lowercase(), value.into_string().ok()?))
    };
    std::env::vars_os().filter_map(text).collect()
}

/// Returns the default directory of collections, in the user's data directory; `None` for users
/// without a home.
pub(crate) fn collections_dir() -> Option<PathBuf> {
    let own = || HOME.path().map(|home| home.join(".local/share"));
    XDG_DATA_HOME.path().or_else(own).map(|dir| dir.join("millpond/collections"))
}

/// Returns where to search for NVIDIA's run-time compiler.
pub(crate) fn compiler_search() -> gpu::CompilerSearch {
    gpu::CompilerSearch { explicit: NVRTC.path(), virtual_env: VIRTUAL_ENV.path() }
}

/// Formats the list of variables for `--help`.
pub(crate) fn help() -> String {
    let width = ALL.iter().map(|variable| variable.name.len()).max().unwrap_or(0);
    let lines: Vec<String> = ALL
        .iter()
        .map(|variable| format!("  {:width$}  {}", variable.name, variable.help))
        .collect();
    format!("Environment (flags and settings file win):\n{}", lines.join("\n"))
}
