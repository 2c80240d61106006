//! The click-through model as a SavedModel, made by TensorFlow's Python package.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};

use base::{Error, Result};

use super::engines::ContentFiles;
use crate::python::PythonScript;
use demo::contents::{ContentForm, ContentPair, SwapContents};
use demo::ctr::CtrContent;
use loadgen::cache;

/// Script that writes a SavedModel.
const SCRIPT: &str = "scripts/ctr_saved_model.py";
/// Python of the environment that has TensorFlow.
const PYTHON: &str = ".venv-test/bin/python";
/// Advice if that Python is missing.
const REMEDY: &str = "a SavedModel is made by TensorFlow's Python package; run `make .venv-test/ready`, or give \
    --python PATH";
/// Directories of files that are needed only while a content is made.
const LAYOUT: &str = "layout";
const PLAIN: &str = "plain";
const PUBLISHED: &str = "published";

/// Returns both contents as TensorFlow writes them.
pub(super) fn plain(files: &ContentFiles<'_>, pair: ContentPair) -> Result<SwapContents> {
    let form = ContentForm { suffix: "-tensorflow-plain", disk_copies: 2 };
    SwapContents::make(files.env, &files.ctr, pair, form, &|content, dir, progress| {
        write(files, content, dir, progress)
    })
}

/// Returns both contents as Millpond publishes them.
pub(super) fn published(files: &ContentFiles<'_>, pair: ContentPair) -> Result<SwapContents> {
    let form = ContentForm { suffix: "-tensorflow", disk_copies: 3 };
    SwapContents::make(files.env, &files.ctr, pair, form, &|content, dir, progress| {
        let source = dir.join(PLAIN);
        cache::create_empty_dir(&source)?;
        write(files, content, &source, progress)?;
        publish(files, &source, dir)?;
        cache::remove(&source)
    })
}

/// Writes the SavedModel of `content` into `dir`.
fn write(
    files: &ContentFiles<'_>,
    content: CtrContent,
    dir: &Path,
    progress: &dyn Fn(u64),
) -> Result<()> {
    let script = PythonScript::find(files.env, SCRIPT, files.python, PYTHON, REMEDY)?;
    let layout = dir.join(LAYOUT);
    cache::create_empty_dir(&layout)?;
    files.ctr.write_layout(content, &layout, progress)?;
    let mut command = script.command();
    command.arg("--layout").arg(&layout).arg("--to").arg(dir);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().map_err(|e| Error::io(&script.python, &e))?;
    script.output(child).map_err(|e| e.context(REMEDY))?;
    cache::remove(&layout)
}

/// Publishes the SavedModel of `source` into `dir`.
fn publish(files: &ContentFiles<'_>, source: &Path, dir: &Path) -> Result<()> {
    let to = dir.join(PUBLISHED);
    let mut command = Command::new(&files.env.millpond);
    command.arg("publish").arg(source).arg("--to").arg(&to).args(["--version", "1"]);
    let library = files.env.tensorflow.explicit.as_deref();
    let flag = library.map(|path| [OsStr::new("--tensorflow"), path.as_os_str()]);
    command.args(flag.into_iter().flatten());
    let output = command.output().map_err(|e| Error::io(&files.env.millpond, &e))?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr);
        return Err(Error::internal(format!("cannot publish the SavedModel: {}", words.trim())));
    }
    let version = to.join("1");
    for entry in std::fs::read_dir(&version).map_err(|e| Error::io(&version, &e))? {
        let entry = entry.map_err(|e| Error::io(&version, &e))?;
        let place = dir.join(entry.file_name());
        std::fs::rename(entry.path(), &place).map_err(|e| Error::io(&place, &e))?;
    }
    cache::remove(&to)
}
