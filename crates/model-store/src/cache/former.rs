//! Caches that earlier versions of this program named after the whole URL, with its password and
//! its query.

use std::ffi::OsStr;
use std::path::Path;

use base::Result;

use super::{StoreCache, cache_name, exchange, named_after};

/// Moves the copies that an earlier version made of `url` to the cache whose directory of models is
/// `models`, if that cache has none. A failure is logged: the models are fetched again.
pub(crate) fn adopt_former_copies(models: &Path, url: &str, model: Option<&str>) {
    let Some(root) = models.parent() else { return };
    let url = url.trim_end_matches('/');
    let name = cache_name(url, model);
    let former = root.with_file_name(named_after(url, url, model));
    // Other directories were not chosen by this program.
    if root.file_name() != Some(OsStr::new(&name)) || former == root || !former.is_dir() {
        return;
    }
    // No message names the former directory, which may have a part of a password.
    let cache = root.display();
    match adopt(&StoreCache { root: root.to_owned() }, &StoreCache { root: former }) {
        Ok(true) => tracing::info!(%cache, "the copies of an earlier version are used"),
        Ok(false) => {}
        Err(error) => {
            tracing::warn!(%cache, %error, "the copies of an earlier version are not used");
        }
    }
}

/// Gives the directory of `former` the name of `cache`. Returns false if `cache` has copies, or if
/// another process may use `former`.
fn adopt(cache: &StoreCache, former: &StoreCache) -> Result<bool> {
    if cache.is_synced() || !cache.versions().is_empty() {
        return Ok(false);
    }
    let Some(_lock) = former.lock_unused() else { return Ok(false) };
    cache.make_directories()?;
    exchange(&former.root, &cache.root, &cache.root.with_extension("spare"))?;
    // Empty directories, or a part of a version. If they stay, they do no harm.
    let _ = std::fs::remove_dir_all(&former.root);
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::super::watched_dir;
    use super::*;

    const URL: &str = "https://host/m?token=s3cret";

    /// Makes a cache with a copy of version 1 of the model "a".
    fn filled(models: &Path) -> StoreCache {
        let cache = StoreCache::open(models).unwrap();
        let staged = cache.staging("a", 1);
        std::fs::create_dir_all(&staged).unwrap();
        std::fs::write(staged.join("model.onnx"), "graph").unwrap();
        cache.commit("a", 1, "fingerprint").unwrap();
        cache.set_synced().unwrap();
        drop(cache.lock().unwrap());
        cache
    }

    #[test]
    fn copies_of_an_earlier_version_are_adopted() {
        let dir = tempfile::tempdir().unwrap();
        let models = watched_dir(dir.path(), URL, None);
        let root = models.parent().unwrap();
        let former = root.with_file_name(named_after(URL, URL, None));
        let former_name = former.file_name().unwrap().to_str().unwrap();
        assert!(former_name.starts_with("m-token-s3cret-"), "{former_name}");
        let old = filled(&former.join("models"));
        // The settings make the directory before the store is opened.
        std::fs::create_dir_all(&models).unwrap();
        let lock = old.lock().unwrap();
        adopt_former_copies(&models, URL, None);
        assert!(former.exists(), "another server uses it");
        drop(lock);
        adopt_former_copies(&models, URL, None);
        let cache = StoreCache::open(&models).unwrap();
        assert!(cache.is_synced() && cache.has("a", 1, "fingerprint").unwrap());
        assert!(!former.exists());

        // Copies under the new name are newer.
        filled(&former.join("models"));
        adopt_former_copies(&models, URL, None);
        assert!(former.exists());
    }

    #[test]
    fn other_directories_stay() {
        let dir = tempfile::tempdir().unwrap();
        let former = dir.path().join(named_after(URL, URL, None)).join("models");
        filled(&former);
        // The directory of the copies was chosen by the operator.
        adopt_former_copies(&dir.path().join("own/models"), URL, None);
        assert!(former.exists() && !dir.path().join("own").exists());
    }
}
