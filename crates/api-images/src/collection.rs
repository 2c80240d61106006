//! Collections of images: what the service keeps with one, and how it is made.
//!
//! A collection that the service makes for a name is called "NAME.v1", and NAME is an alias of it.
//! A rebuild makes "NAME.v2" and changes the alias, and back again: that is what an alias is for,
//! and one cannot have a collection's own name.

use std::sync::Arc;

use base::{Error, ErrorKind, Result};
use search::coarse::Metric;
use search::registry::{
    AliasChange, CollectionSettings, ListedCollection, ListedState, NamedCollection, Registry,
    WritingCollection,
};
use serde_json::{Value, json};

/// Where the service's settings lie among those that doors keep with a collection.
const SECTION: &str = "images";

/// What images show, which decides on their keypoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ImageKind {
    Photo,
    Fingerprint,
}

impl ImageKind {
    pub(crate) fn parse(text: &str) -> Result<ImageKind> {
        match text {
            "photo" => Ok(ImageKind::Photo),
            "fingerprint" => Ok(ImageKind::Fingerprint),
            other => Err(Error::invalid(format!(
                "there is no kind \"{other}\"; there are photo and fingerprint"
            ))),
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            ImageKind::Photo => "photo",
            ImageKind::Fingerprint => "fingerprint",
        }
    }
}

/// A collection of images.
#[derive(Clone)]
pub(crate) struct ImageCollection {
    pub(crate) named: Arc<NamedCollection>,
    pub(crate) kind: ImageKind,
    /// The model that embeds its images.
    pub(crate) model: String,
    /// Where its originals lie; versions of a collection share them.
    pub(crate) space: String,
}

/// Whether a collection is one of images.
pub(crate) fn has_images(named: &NamedCollection) -> bool {
    named.settings().extra.get(SECTION).is_some()
}

/// What a collection of images is to be.
#[derive(Clone, Debug)]
pub(crate) struct CollectionSpec {
    /// Its name, which may be an alias.
    pub(crate) name: String,
    pub(crate) kind: Option<ImageKind>,
    pub(crate) model: Option<String>,
}

impl ImageCollection {
    /// The collection of a name or an alias.
    ///
    /// # Errors
    /// Those of [`Registry::get`]; `FailedPrecondition` for a collection without images.
    pub(crate) fn open(registry: &Registry, name: &str) -> Result<ImageCollection> {
        let named = registry.get(name)?;
        ImageCollection::of(&named).ok_or_else(|| {
            Error::precondition(format!(
                "collection \"{name}\" has no images: it was made by other means; use another name for images"
            ))
        })
    }

    /// HeldBytes while images are written to it, which was found as `name`.
    ///
    /// # Errors
    /// `Unavailable` where the name stands for another collection since.
    pub(crate) fn writing<'a>(
        &self,
        registry: &'a Registry,
        name: &str,
    ) -> Result<WritingCollection<'a>> {
        let writing = registry.writing(name)?;
        if writing.name() == self.named.name() {
            return Ok(writing);
        }
        Err(Error::unavailable(format!(
            "\"{name}\" has just become another collection; send the image again"
        )))
    }

    /// A collection as one of images, if it is.
    pub(crate) fn of(named: &Arc<NamedCollection>) -> Option<ImageCollection> {
        let settings = named.settings();
        let section = settings.extra.get(SECTION)?;
        let text = |key: &str| section.get(key).and_then(Value::as_str);
        Some(ImageCollection {
            named: named.clone(),
            kind: ImageKind::parse(text("kind")?).ok()?,
            model: text("model")?.to_owned(),
            space: text("originals")?.to_owned(),
        })
    }

    /// The collection, if there is one, checked against what the caller wants it to be.
    ///
    /// # Errors
    /// As [`ImageCollection::open`], and `FailedPrecondition` for another kind or model.
    pub(crate) fn existing(
        registry: &Registry,
        wanted: &CollectionSpec,
    ) -> Result<Option<ImageCollection>> {
        let target = match ImageCollection::open(registry, &wanted.name) {
            Ok(target) => target,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        if wanted.kind.is_some_and(|kind| kind != target.kind) {
            return Err(Error::precondition(format!(
                "collection \"{}\" is of kind {}; use another collection",
                wanted.name,
                target.kind.name()
            )));
        }
        if wanted.model.as_ref().is_some_and(|model| *model != target.model) {
            return Err(Error::precondition(format!(
                "collection \"{}\" was made with model \"{}\"; rebuild it to change that",
                wanted.name, target.model
            )));
        }
        Ok(Some(target))
    }

    /// Makes the collection for embeddings of `dims` values of `model`, or finds the one that
    /// somebody else has made meanwhile.
    ///
    /// # Errors
    /// Those of [`Registry::create`] and [`ImageCollection::existing`].
    pub(crate) fn make(
        registry: &Registry,
        wanted: &CollectionSpec,
        dims: usize,
        model: &str,
    ) -> Result<ImageCollection> {
        let real = format!("{}.v1", wanted.name);
        let kind = wanted.kind.unwrap_or(ImageKind::Photo);
        match registry.create(&real, settings(dims, kind, model, &wanted.name)) {
            Ok(_) => {}
            // By another caller, or before a crash that came before the alias.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        let alias = AliasChange::Create { alias: wanted.name.clone(), collection: real };
        if !registry.aliases().iter().any(|(alias, _)| *alias == wanted.name) {
            registry.change_aliases(&[alias])?;
        }
        ImageCollection::existing(registry, wanted)?.ok_or_else(|| {
            Error::unavailable("the collection was removed meanwhile; send it again")
        })
    }

    /// Makes the next version of a collection, empty, for embeddings of another model.
    ///
    /// # Errors
    /// Those of [`Registry::create`].
    pub(crate) fn next_version(
        &self,
        registry: &Registry,
        dims: usize,
        model: &str,
    ) -> Result<ImageCollection> {
        let taken: Vec<String> = registry.list().into_iter().map(|listed| listed.name).collect();
        let name = (1..)
            .map(|number| format!("{}.v{number}", self.space))
            .find(|name| !taken.contains(name));
        let name = name.unwrap_or_default();
        let named = registry.create(&name, settings(dims, self.kind, model, &self.space))?;
        ImageCollection::of(&named)
            .ok_or_else(|| Error::internal("a new collection has lost its settings"))
    }

    /// Refuses an embedding that does not fit.
    ///
    /// # Errors
    /// `FailedPrecondition` with the remedy.
    pub(crate) fn check_dims(&self, dims: usize) -> Result<()> {
        let own = self.named.settings().dims;
        if dims == own {
            return Ok(());
        }
        Err(Error::precondition(format!(
            "model \"{}\" now gives {dims} values and the collection has {own}: serve the earlier version, or rebuild the \
             collection",
            self.model
        )))
    }

    /// All collections that share its originals, itself included.
    pub(crate) fn siblings(&self, registry: &Registry) -> Vec<ImageCollection> {
        let ready = registry.list().into_iter().filter_map(|listed| match listed.state {
            ListedState::Ready(named) => ImageCollection::of(&named),
            _ => None,
        });
        ready.filter(|target| target.space == self.space).collect()
    }

    /// Whether all that share its originals can be asked. One that is being opened, or is broken,
    /// may need them too: then they stay, which costs only their place.
    pub(crate) fn siblings_are_known(&self, registry: &Registry) -> bool {
        let unknown = |listed: &ListedCollection| !matches!(listed.state, ListedState::Ready(_));
        let found = registry.list().into_iter().find(unknown);
        if let Some(other) = &found {
            let (of, other) = (self.named.name(), &other.name);
            tracing::warn!(
                collection = of,
                other,
                "originals stay, as another collection may need them"
            );
        }
        found.is_none()
    }
}

fn settings(dims: usize, kind: ImageKind, model: &str, space: &str) -> CollectionSettings {
    let section = json!({ "kind": kind.name(), "model": model, "originals": space });
    CollectionSettings {
        extra: json!({ SECTION: section }),
        ..CollectionSettings::new(dims, Metric::Cosine)
    }
}
