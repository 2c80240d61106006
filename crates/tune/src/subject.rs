//! The tuned model: its directory, newest version and settings.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use base::{Error, Result, VersionNumber};
use engine::layout::MANIFEST_NAME;
use engine_onnx::publish::{PublishOptions, publish};
use os::Rate;
use serde_json::json;
use toml::Table;

use super::write;
use loadgen::BenchEnv;
use loadgen::cache::{self, TemporaryDir, disk_bytes};
use loadgen::disk_space::check_space;

/// Keys of the model's own settings that choose the served versions. "versions" is another name of
/// "policy". A point serves the newest version in any case, without golden requests, whose file
/// lies beside the model's own settings. It does so without the server's own warm-up, whose runs
/// are spaced out. Points get requests before they are measured.
const NOT_FOR_POINTS: [&str; 5] = ["policy", "versions", "transition", "labels", "rollout"];

/// The tuned model and its files.
#[derive(Debug)]
pub(super) struct TuneSubject {
    /// Name for people.
    pub(super) name: String,
    /// The model's directory, without links.
    pub(super) dir: PathBuf,
    pub(super) version: VersionNumber,
    /// The version's own directory.
    source: PathBuf,
    /// The version's directory in the mappable layout: its own, or a converted copy.
    pub(super) artifact: PathBuf,
    /// Directory of the converted copy, removed on drop.
    _converted: Option<TemporaryDir>,
    /// Text of the settings file of the model.
    pub(super) text: String,
    /// Text from which the points' settings are made.
    pub(super) settings: String,
    /// The settings as values.
    pub(super) table: Table,
}

impl TuneSubject {
    /// Opens `DIR` or `NAME=DIR`, and converts the newest version if it is not in the mappable
    /// layout.
    ///
    /// # Errors
    /// `InvalidArgument` if it is not a model's directory or has unreadable settings. Also the
    /// errors of the conversion.
    pub(super) fn open(given: &str, env: &BenchEnv) -> Result<TuneSubject> {
        let (name, dir) = match given.split_once('=') {
            // A path may hold "=" too, so only a valid name counts as one.
            Some((name, dir)) if !name.contains('/') => (Some(name.to_owned()), Path::new(dir)),
            _ => (None, Path::new(given)),
        };
        let real = std::fs::canonicalize(dir)
            .map_err(|e| Error::invalid(format!("cannot tune {}", dir.display())).caused_by(e))?;
        let newest = newest(&real)?.ok_or_else(|| {
            Error::invalid(format!(
                "cannot tune {}: it is not a model, which is a directory with numbered version directories",
                dir.display()
            ))
        })?;
        let name = name
            .or_else(|| Some(real.file_name()?.to_string_lossy().into_owned()))
            .unwrap_or_else(|| "model".into());
        let text = write::read(&real)?;
        let table: Table = text.parse().map_err(|e: toml::de::Error| {
            let words = e.to_string().lines().collect::<Vec<_>>().join(" ");
            Error::invalid(format!("{}: {words}", real.join(write::MODEL_FILE).display()))
        })?;
        let (version, source) = newest;
        let settings = for_points(&table)?;
        let (artifact, converted) = mappable(&source, version, env)?;
        Ok(TuneSubject {
            name,
            dir: real,
            version,
            source,
            artifact,
            _converted: converted,
            text,
            settings,
            table,
        })
    }

    /// Makes a model directory at `dir` with these settings and a link to the version.
    pub(super) fn link(&self, dir: &Path, settings: &str) -> Result<()> {
        std::fs::create_dir_all(dir).map_err(|e| Error::io(dir, &e))?;
        let file = dir.join(write::MODEL_FILE);
        std::fs::write(&file, settings).map_err(|e| Error::io(&file, &e))?;
        let link = dir.join(self.version.to_string());
        std::os::unix::fs::symlink(&self.artifact, &link).map_err(|e| Error::io(&link, &e))
    }

    /// Returns the facts on which measurements of this model depend.
    pub(super) fn identity(&self) -> serde_json::Value {
        let seconds =
            written(&self.source).and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
        json!({
            "dir": self.dir,
            "version": self.version,
            "written": seconds.map(|at| at.as_secs()),
            "settings": self.settings,
        })
    }
}

/// Returns the time at which a version was written. It is that of its manifest, or of the newest
/// file if it has none. A converted copy is new in each run, so its time is not a property of the
/// version.
fn written(version: &Path) -> Option<SystemTime> {
    let modified = |path: &Path| std::fs::metadata(path).and_then(|meta| meta.modified()).ok();
    modified(&version.join(MANIFEST_NAME)).or_else(|| {
        let entries = std::fs::read_dir(version).ok()?;
        entries.flatten().filter_map(|entry| modified(&entry.path())).max()
    })
}

/// Returns the version directory with the highest number.
fn newest(dir: &Path) -> Result<Option<(VersionNumber, PathBuf)>> {
    let mut newest = None;
    for entry in std::fs::read_dir(dir).map_err(|e| Error::io(dir, &e))? {
        let entry = entry.map_err(|e| Error::io(dir, &e))?;
        let number = entry.file_name().to_str().and_then(|name| name.parse::<VersionNumber>().ok());
        if let Some(number) = number.filter(|_| entry.path().is_dir()) {
            let path = entry.path();
            newest = newest.filter(|(best, _)| *best > number).or(Some((number, path)));
        }
    }
    Ok(newest)
}

/// End of the names of directories with a converted copy, after "tune-" and the process's id.
const CONVERTED: &str = "-converted";

/// Returns `version` itself, or a converted copy in the cache. A server would convert it once for
/// every point.
fn mappable(
    dir: &Path,
    version: VersionNumber,
    env: &BenchEnv,
) -> Result<(PathBuf, Option<TemporaryDir>)> {
    let dir = std::fs::canonicalize(dir).map_err(|e| Error::io(dir, &e))?;
    if dir.join(MANIFEST_NAME).is_file() {
        return Ok((dir, None));
    }
    let run = env.cache_dir.join("run");
    // A search that was killed leaves its copy, which is as large as the model.
    TemporaryDir::remove_abandoned(&run, |name| {
        name.starts_with("tune-") && name.ends_with(CONVERTED)
    });
    let root = run.join(format!("tune-{}{CONVERTED}", std::process::id()));
    let copy = TemporaryDir::create(root.clone())?;
    check_space(&root, disk_bytes(&dir), cache::REMEDY)?;
    let options = PublishOptions {
        source: dir,
        dest_root: root,
        version: Some(version),
        rate: Rate::unlimited(),
        direct: true,
    };
    Ok((publish(&options, &mut |_| {})?.dir, Some(copy)))
}

/// Returns the settings file for measurements. It lacks [`NOT_FOR_POINTS`] and the file of labels,
/// and switches the warm-up off.
fn for_points(table: &Table) -> Result<String> {
    let mut table = table.clone();
    table.retain(|key, _| !NOT_FOR_POINTS.contains(&key));
    let mut warmup = table.get("warmup").and_then(|w| w.as_table()).cloned().unwrap_or_default();
    warmup.insert("enabled".into(), false.into());
    table.insert("warmup".into(), warmup.into());
    if let Some(classify) = table.get_mut("classify").and_then(|c| c.as_table_mut()) {
        // It lies beside the model's own settings, and no point gets requests for classes.
        classify.remove("labels-file");
    }
    toml::to_string(&table).map_err(|e| Error::internal("settings").caused_by(e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_is_found() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(newest(dir.path()).unwrap(), None);
        for name in ["2", "10", "9", "notes", "11x"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        std::fs::write(dir.path().join("12"), "").unwrap();
        assert_eq!(newest(dir.path()).unwrap().unwrap().0, 10);
    }

    #[test]
    fn a_version_without_a_manifest_is_as_old_as_its_newest_file() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(written(dir.path()), None);
        let at = |seconds| SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
        for (name, seconds) in [("model.onnx", 2000), ("weights.bin", 3000)] {
            let file = std::fs::File::create(dir.path().join(name)).unwrap();
            file.set_modified(at(seconds)).unwrap();
        }
        assert_eq!(written(dir.path()), Some(at(3000)));
        let manifest = std::fs::File::create(dir.path().join(MANIFEST_NAME)).unwrap();
        manifest.set_modified(at(1000)).unwrap();
        assert_eq!(written(dir.path()), Some(at(1000)));
    }

    #[test]
    fn a_conversion_needs_room_and_removes_abandoned_copies() {
        let dir = tempfile::tempdir().unwrap();
        let version = dir.path().join("1");
        std::fs::create_dir(&version).unwrap();
        // More than any disk of a machine for tests. It has no content, so it takes no space.
        let model = std::fs::File::create(version.join("model.onnx")).unwrap();
        model.set_len(8 << 40).unwrap();
        let abandoned = dir.path().join("run/tune-1-converted");
        std::fs::create_dir_all(abandoned.join("1")).unwrap();
        let env = BenchEnv { cache_dir: dir.path().into(), ..Default::default() };
        let error = mappable(&version, 1, &env).unwrap_err();
        assert!(error.message().contains("are needed; free some"), "{error}");
        assert!(!abandoned.exists());
        assert_eq!(std::fs::read_dir(dir.path().join("run")).unwrap().count(), 0);
    }

    #[test]
    fn points_keep_padding_and_lose_policies() {
        let table = "policy = \"all\"\nintra-op-threads = 2\n[labels]\na = 1\n[rollout]\n\
                     golden = \"golden.tfrecord\"\n[warmup]\nenabled = true\n\
                     dims = { x = [1] }\n[schedule.inputs.x]\naxes = [3]\n";
        let made: Table = for_points(&table.parse().unwrap()).unwrap().parse().unwrap();
        assert_eq!(made["warmup"]["enabled"].as_bool(), Some(false));
        assert_eq!(made["schedule"]["inputs"]["x"]["axes"][0].as_integer(), Some(3));
        assert!(made.contains_key("intra-op-threads") && !made.contains_key("policy"));
        assert!(!made.contains_key("labels") && !made.contains_key("rollout"));
        let table = "versions = \"2\"\n[classify]\nscores = \"p\"\nlabels-file = \"labels.txt\"\n";
        let made: Table = for_points(&table.parse().unwrap()).unwrap().parse().unwrap();
        assert!(!made.contains_key("versions"));
        assert_eq!(made["classify"]["scores"].as_str(), Some("p"));
        assert!(!made["classify"].as_table().unwrap().contains_key("labels-file"));
        // And it accepts a point's settings.
        let text = toml::to_string(&made).unwrap();
        assert!(write::with_point(&text, &crate::space::TunePoint::batches(2)).is_ok());
    }
}
