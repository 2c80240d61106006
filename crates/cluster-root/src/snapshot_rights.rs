//! Rights that a key needs for an uploaded snapshot. A client can change the settings in an
//! archive, which name the model that embeds images. The original images need no right: those of a
//! new collection have a place of their own.

use api_images::{ImageRemoval, ImageSettings};
use api_qdrant::ImageCollections;
use base::{Error, Result};
use cluster_node::ClusterView;
use transport::access::KeyGrant;

use super::state::RootState;

/// Maximum characters of a name in an error. A name in an archive may have megabytes.
const SHOWN_CHARS_MAX: usize = 80;

/// Checks that a key permits the model that embeds the images of an uploaded collection. A key may
/// use the default model and the models of its collections, since every upload of an image does.
///
/// # Errors
/// `PermissionDenied` if it does not.
pub(super) fn check_model(
    state: &RootState,
    grant: &KeyGrant,
    images: Option<&ImageSettings>,
) -> Result<()> {
    let Some(model) = images.and_then(embedding_model) else { return Ok(()) };
    let view = state.view.current();
    if grant.sees_model(model)
        || sees_collection_of(grant, &view, model)
        || default_model(state).as_deref() == Some(model)
    {
        return Ok(());
    }
    let shown: String = model.chars().take(SHOWN_CHARS_MAX).collect();
    Err(Error::denied(format!(
        "the key \"{}\" may not use the model {shown:?}, which embeds the images of the snapshot",
        grant.name()
    )))
}

/// Returns the model that embeds the images of a collection, if any does.
fn embedding_model(images: &ImageSettings) -> Option<&str> {
    images.has_embeddings().then_some(images.model.as_str())
}

/// Returns the model of new collections of images at this node; `None` if it serves none.
fn default_model(state: &RootState) -> Option<String> {
    ImageRemoval::new(state.images()?).default_model()
}

/// Returns true if the key may use a collection whose images `model` embeds.
fn sees_collection_of(grant: &KeyGrant, view: &ClusterView, model: &str) -> bool {
    let sees = |name: &str| {
        let aliases = view.changes.aliases.iter();
        let mut own = aliases.filter(|(_, collection)| collection.as_str() == name);
        grant.sees_collection(name) || own.any(|(alias, _)| grant.sees_collection(alias))
    };
    view.collections.values().any(|record| {
        let used = record.images.as_ref().and_then(embedding_model);
        used == Some(model) && sees(&record.name)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::net::{IpAddr, Ipv4Addr};
    use std::sync::Arc;

    use api_images::ImageKind;
    use cluster_node::{CatalogChanges, CollectionRecord};
    use http::{HeaderMap, HeaderValue, header};
    use metrics::Metrics;
    use serde_json::json;
    use transport::access::{
        AccessPolicy, BrowserSessions, Caller, CollectionScope, CorsPolicy, KeyRing, KeyRole,
        KeySources, Operation,
    };

    use super::*;

    /// Returns the rights of a key for models "rank*" and collections "pub*".
    fn grant() -> KeyGrant {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("keys.toml");
        let hash = blake3::hash(b"k").to_hex();
        let entry = "role = \"write\"\nmodels = [\"rank*\"]\ncollections = [\"pub*\"]";
        let text = format!("[[keys]]\nname = \"k\"\nhash = \"blake3:{hash}\"\n{entry}\n");
        std::fs::write(&file, text).unwrap();
        let sources = KeySources { file: Some(&file), api_key: None, admin_key: None };
        let policy = AccessPolicy {
            host: IpAddr::V4(Ipv4Addr::LOCALHOST),
            allowed_hosts: Vec::new(),
            allow_remote_admin: false,
            keys: KeyRing::read(sources).unwrap().map(Arc::new),
            cors: CorsPolicy::default(),
            metrics: Arc::new(Metrics::default()),
        };
        let key = HeaderValue::from_static("Bearer k");
        let headers = HeaderMap::from_iter([(header::AUTHORIZATION, key)]);
        let caller = Caller { peer: None, headers: &headers };
        let collections = CollectionScope::Names;
        let list = Operation { collections, ..Operation::new(KeyRole::Read) };
        policy.authorize(caller, BrowserSessions::Ignored, &list).unwrap().unwrap()
    }

    fn images(kind: ImageKind, model: &str) -> ImageSettings {
        ImageSettings { kind, model: model.to_owned() }
    }

    /// Returns a collection of photographs that the model "echo" embeds.
    fn record(name: &str) -> CollectionRecord {
        CollectionRecord {
            name: name.to_owned(),
            id: name.to_owned(),
            shards: 1,
            copies: 1,
            create: json!({}),
            images: Some(images(ImageKind::Photo, "echo")),
        }
    }

    #[test]
    fn models_of_own_collections_are_permitted() {
        let grant = grant();
        let mut view = ClusterView::default();
        view.collections.insert("other".to_owned(), record("other"));
        assert!(!sees_collection_of(&grant, &view, "echo"));
        let aliases = BTreeMap::from([("public".to_owned(), "other".to_owned())]);
        let changes = CatalogChanges { aliases, ..CatalogChanges::default() };
        let aliased = ClusterView { changes: Arc::new(changes), ..view.clone() };
        assert!(sees_collection_of(&grant, &aliased, "echo"));
        view.collections.insert("pub1".to_owned(), record("pub1"));
        assert!(sees_collection_of(&grant, &view, "echo"));
        assert!(!sees_collection_of(&grant, &view, "other"));
    }

    #[test]
    fn only_fingerprints_have_no_model() {
        let none = images(ImageKind::Fingerprint, "none");
        assert_eq!(embedding_model(&none), None);
        let photos = images(ImageKind::Photo, "none");
        assert_eq!(embedding_model(&photos), Some("none"));
        let prints = images(ImageKind::Fingerprint, "echo");
        assert_eq!(embedding_model(&prints), Some("echo"));
    }
}
