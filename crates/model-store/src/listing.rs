//! The objects of a store, grouped by model and version.

use std::collections::BTreeMap;

use engine::layout::{MANIFEST_NAME, WEIGHTS_NAME};
use object_store::ObjectMeta;
use object_store::path::Path;

/// Files that make a directory without a manifest a version.
const FOREIGN_FILES: [&str; 4] = ["model.onnx", "saved_model.pb", "model.pt", "model.pt2"];

/// Directory of a model with recorded requests, which warm up all of its versions.
pub(crate) const WARMUP_DIR: &str = "warmup";
/// Maximum number of files beside the versions of a model if files of [`WARMUP_DIR`] are among
/// them.
const FILES_MAX: usize = 1024;

/// An object of a model or version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RemoteFile {
    /// Path relative to the model's or version's directory.
    pub(crate) path: String,
    pub(crate) bytes: u64,
    /// Entity tag if the store has strong ones. It changes with the content.
    pub(crate) e_tag: Option<String>,
    /// Entity tag or time of change.
    pub(crate) stamp: String,
    pub(crate) key: Path,
}

/// The kind of a version in a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RemoteKind {
    /// The version has a manifest, which is written last.
    Published,
    /// Another layout, which has no last file.
    Foreign,
    /// Neither: an upload in progress, or no version.
    Unfinished,
}

/// A version in a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RemoteVersion {
    /// Files in order of path.
    pub(crate) files: Vec<RemoteFile>,
}

/// A model in a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RemoteModel {
    /// Files beside the versions, such as its settings and recorded requests.
    pub(crate) files: Vec<RemoteFile>,
    pub(crate) versions: BTreeMap<u64, RemoteVersion>,
}

/// Everything below one directory of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StoreListing {
    pub(crate) models: BTreeMap<String, RemoteModel>,
    /// True if a root has numbered directories itself, as a model has.
    pub(crate) is_model: bool,
}

impl RemoteVersion {
    pub(crate) fn file(&self, path: &str) -> Option<&RemoteFile> {
        self.files.iter().find(|file| file.path == path)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// Returns a hash of the names, lengths and stamps of its files.
    pub(crate) fn fingerprint(&self) -> String {
        fingerprint(&self.files)
    }

    /// Returns the kind of the version, as its files show it.
    pub(crate) fn kind(&self) -> RemoteKind {
        let has = |name: &str| self.file(name).is_some();
        if has(MANIFEST_NAME) {
            return RemoteKind::Published;
        }
        // Weights without a manifest are a published version that is still being uploaded.
        if !has(WEIGHTS_NAME) && FOREIGN_FILES.into_iter().any(has) {
            RemoteKind::Foreign
        } else {
            RemoteKind::Unfinished
        }
    }
}

/// Returns a hash of the names, lengths and stamps of `files`.
pub(crate) fn fingerprint(files: &[RemoteFile]) -> String {
    let mut hasher = blake3::Hasher::new();
    for file in files {
        hasher.update(format!("{}\0{}\0{}\0", file.path, file.bytes, file.stamp).as_bytes());
    }
    hasher.finalize().to_hex().to_string()
}

/// Groups `objects` below `prefix`. If `model` is set, `prefix` is that model's directory.
/// Otherwise each subdirectory is a model.
pub(crate) fn group(objects: &[ObjectMeta], prefix: &Path, model: Option<&str>) -> StoreListing {
    let mut listing = StoreListing::default();
    if let Some(model) = model {
        listing.models.insert(model.to_owned(), RemoteModel::default());
    }
    for object in objects {
        let Some(parts) = object.location.prefix_match(prefix) else { continue };
        let parts: Vec<String> = parts.map(|part| part.as_ref().to_owned()).collect();
        let (name, rest) = match model {
            Some(model) => (model, parts.as_slice()),
            None => match parts.split_first() {
                Some((name, rest)) => (name.as_str(), rest),
                None => continue,
            },
        };
        if model.is_none() && number(name).is_some() && !rest.is_empty() {
            listing.is_model = true;
            continue;
        }
        let hidden = name.starts_with('.') || rest.first().is_some_and(|it| it.starts_with('.'));
        if hidden || rest.is_empty() {
            continue;
        }
        add(listing.models.entry(name.to_owned()).or_default(), rest, object);
    }
    for model in listing.models.values_mut() {
        finish(&mut model.files);
        model.versions.values_mut().for_each(|version| finish(&mut version.files));
    }
    listing.models.retain(|_, it| model.is_some() || !it.versions.is_empty());
    listing
}

/// Adds an object to a version of `model`, or to the files beside its versions. `parts` are the
/// names of its path below the directory of the model.
fn add(model: &mut RemoteModel, parts: &[String], object: &ObjectMeta) {
    let file = |parts: &[String]| RemoteFile {
        path: parts.join("/"),
        bytes: object.size,
        e_tag: object.e_tag.clone().filter(|tag| !tag.starts_with("W/")),
        stamp: object.e_tag.clone().unwrap_or_else(|| object.last_modified.to_rfc3339()),
        key: object.location.clone(),
    };
    match parts {
        [] => {}
        // A number without content below it is the mark of an empty directory.
        [name] if number(name).is_none() => model.files.push(file(parts)),
        [dir, name]
            if dir == WARMUP_DIR && !name.starts_with('.') && model.files.len() < FILES_MAX =>
        {
            model.files.push(file(parts));
        }
        [version, rest @ ..] if !rest.is_empty() => {
            // "7" and "007" are one version. The shorter name wins, as on a disk.
            if let Some(number) = number(version).filter(|number| number.to_string() == *version) {
                model.versions.entry(number).or_default().files.push(file(rest));
            }
        }
        _ => {}
    }
}

/// Sorts `files`, and drops the marks that some tools write for directories.
fn finish(files: &mut Vec<RemoteFile>) {
    files.sort_by(|one, other| one.path.cmp(&other.path));
    let paths: Vec<String> = files.iter().map(|file| file.path.clone()).collect();
    let is_directory = |path: &str| {
        let below = format!("{path}/");
        paths.iter().any(|other| other.starts_with(&below))
    };
    files.retain(|file| file.bytes > 0 || !is_directory(&file.path));
}

/// Parses decimal digits that fit an `int64`.
pub(crate) fn number(name: &str) -> Option<u64> {
    let digits = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
    name.parse().ok().filter(|&number| digits && i64::try_from(number).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(key: &str, size: u64) -> ObjectMeta {
        ObjectMeta {
            location: key.into(),
            last_modified: std::time::SystemTime::UNIX_EPOCH.into(),
            size,
            e_tag: Some(format!("\"{key}\"")),
            version: None,
        }
    }

    #[test]
    fn keys_are_models_and_versions() {
        let objects = [
            object("root/a/millpond.toml", 9),
            object("root/a/1/model.onnx", 5),
            object("root/a/2/millpond.json", 5),
            object("root/a/2/sub", 0),
            object("root/a/2/sub/file", 5),
            object("root/a/007/model.onnx", 5),
            object("root/a/warmup/one.json", 5),
            object("root/a/warmup/.hidden", 5),
            object("root/a/notes/one.json", 5),
            object("root/a/3", 0),
            object("root/b/weights.bin", 5),
            object("root/.hidden/1/model.onnx", 5),
            object("rooted/c/1/model.onnx", 5),
        ];
        let listing = group(&objects, &"root".into(), None);
        assert_eq!(listing.models.keys().collect::<Vec<_>>(), ["a"]);
        let model = &listing.models["a"];
        let beside: Vec<&str> = model.files.iter().map(|it| it.path.as_str()).collect();
        assert_eq!(beside, ["millpond.toml", "warmup/one.json"]);
        assert_eq!(model.versions.keys().collect::<Vec<_>>(), [&1, &2]);
        let paths: Vec<&str> = model.versions[&2].files.iter().map(|it| it.path.as_str()).collect();
        assert_eq!(paths, ["millpond.json", "sub/file"]);
        assert!(!listing.is_model);
        assert!(group(&objects, &"root/a".into(), None).is_model);
        let one = group(&objects, &"root/a".into(), Some("x"));
        assert_eq!(one.models["x"].versions.len(), 2);
    }

    #[test]
    fn weights_without_a_manifest_are_an_upload_in_progress() {
        let kind = |names: &[&str]| {
            let objects: Vec<_> = names.iter().map(|it| object(&format!("a/1/{it}"), 1)).collect();
            group(&objects, &"".into(), None).models["a"].versions[&1].kind()
        };
        assert_eq!(kind(&["model.onnx", "weights.bin"]), RemoteKind::Unfinished);
        assert_eq!(kind(&["millpond.json"]), RemoteKind::Published);
        assert_eq!(kind(&["saved_model.pb"]), RemoteKind::Foreign);
        assert_eq!(kind(&["notes.txt"]), RemoteKind::Unfinished);
    }
}
