//! Collections of images and their settings.
//!
//! The first put to NAME creates the collection "NAME.v1" and the alias NAME. A rebuild creates
//! "NAME.v2" and changes the alias. An alias can be changed back; it cannot have the name of a
//! collection.

use std::sync::Arc;

use base::{Error, ErrorKind, Result};
use search::registry::{
    AliasChange, CollectionSettings, ListedState, NamedCollection, Registry, WritingCollection,
};
use serde_json::Value;

use super::settings::{ImageKind, ImageSettings, SECTION, WantedImages};

/// A collection of images, or one version of it.
#[derive(Clone)]
pub struct ImageCollection {
    /// The collection in the registry.
    pub named: Arc<NamedCollection>,
    /// Subject of the images.
    pub kind: ImageKind,
    /// The model that embeds its images.
    pub model: String,
    /// Prefix of the keys of its originals, which the versions of a collection share.
    pub space: String,
}

/// Returns true if the collection holds images.
pub fn has_images(named: &NamedCollection) -> bool {
    named.settings().extra.get(SECTION).is_some()
}

/// Name and wanted properties of a collection of images.
#[derive(Clone, Debug)]
pub struct CollectionSpec {
    /// Name of the collection, which may be an alias.
    pub name: String,
    /// Subject of the images; any if `None`.
    pub kind: Option<ImageKind>,
    /// Name of the model; any if `None`.
    pub model: Option<String>,
    /// Minimum quality of a fingerprint, 0 to 100. Worse fingerprints are refused.
    pub quality_min: u8,
}

impl CollectionSpec {
    /// Returns the properties of a rebuilt collection, whose name is not known yet. Its images were
    /// accepted before.
    pub fn rebuilt(kind: ImageKind, model: &str) -> CollectionSpec {
        let model = Some(model.to_owned());
        CollectionSpec { name: String::new(), kind: Some(kind), model, quality_min: 0 }
    }

    /// Returns the wanted kind and model.
    pub fn images(&self) -> WantedImages {
        WantedImages { kind: self.kind, model: self.model.clone() }
    }
}

impl ImageCollection {
    /// Returns the kind and the model.
    pub fn settings(&self) -> ImageSettings {
        ImageSettings { kind: self.kind, model: self.model.clone() }
    }

    /// Opens the collection of a name or an alias.
    ///
    /// # Errors
    /// Returns the errors of [`Registry::get`]; `FailedPrecondition` for a collection without
    /// images.
    pub fn open(registry: &Registry, name: &str) -> Result<ImageCollection> {
        let named = registry.get(name)?;
        ImageCollection::of(&named).ok_or_else(|| {
            Error::precondition(format!(
                "collection \"{name}\" has no images: it was made by other means; use another name for images"
            ))
        })
    }

    /// Locks the collection, which was found as `name`, while images are written to it.
    ///
    /// # Errors
    /// `Unavailable` if the name means another collection by now, or a new one of the same name.
    pub fn writing<'a>(&self, registry: &'a Registry, name: &str) -> Result<WritingCollection<'a>> {
        let writing = registry.writing(name)?;
        if writing.name() == self.named.name() && !self.named.removed() {
            return Ok(writing);
        }
        Err(Error::unavailable(format!(
            "\"{name}\" has just become another collection; send the image again"
        )))
    }

    /// Returns `named` as a collection of images, or `None` if it holds none.
    pub fn of(named: &Arc<NamedCollection>) -> Option<ImageCollection> {
        let ImageSettings { kind, model } = image_settings(named)?;
        let space = originals_space(&named.settings())?;
        Some(ImageCollection { named: named.clone(), kind, model, space })
    }

    /// Returns the collection, or `None` if it does not exist.
    ///
    /// # Errors
    /// As [`ImageCollection::open`], and `FailedPrecondition` for another kind or model.
    pub fn existing(
        registry: &Registry,
        wanted: &CollectionSpec,
    ) -> Result<Option<ImageCollection>> {
        let target = match ImageCollection::open(registry, &wanted.name) {
            Ok(target) => target,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        wanted.images().check(&wanted.name, &target.settings())?;
        Ok(Some(target))
    }

    /// Creates the collection for embeddings of `dims` values of `model`, or returns the one that
    /// another request has created meanwhile.
    ///
    /// # Errors
    /// Returns the errors of [`Registry::create`] and [`ImageCollection::existing`]; `Unavailable`
    /// if the other request has created it for another kind or model.
    pub fn make(
        registry: &Registry,
        wanted: &CollectionSpec,
        dims: usize,
        model: &str,
    ) -> Result<ImageCollection> {
        let real = format!("{}.v1", wanted.name);
        let kind = wanted.kind.unwrap_or(ImageKind::Photo);
        let settings = ImageSettings { kind, model: model.to_owned() };
        match registry.create(&real, settings.stored(dims, &wanted.name)) {
            Ok(_) => {}
            // Another caller created it, or a crash came between the collection and its alias. The
            // alias is for images only.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                let existing = ImageCollection::open(registry, &real)?;
                // An alias of this name leads to other images.
                if existing.named.name() != real {
                    return Err(error);
                }
            }
            Err(error) => return Err(error),
        }
        let alias = AliasChange::Create { alias: wanted.name.clone(), collection: real };
        let is_alias = || registry.aliases().iter().any(|(alias, _)| *alias == wanted.name);
        if !is_alias() {
            // Another request may have created the alias while this one waited for writes, and a
            // rebuild may have switched it since.
            registry.change_aliases_if(&[alias], || !is_alias())?;
        }
        let made = ImageCollection::existing(registry, wanted)?.ok_or_else(|| {
            Error::unavailable("the collection was removed meanwhile; send it again")
        })?;
        if made.settings() == settings {
            return Ok(made);
        }
        // The features of this request were extracted for other settings. If the client sends the
        // image again, the features fit.
        Err(Error::unavailable(format!(
            "another request has just created \"{}\" with another kind or model; send it again",
            wanted.name
        )))
    }

    /// Creates the next version of a collection, empty, for embeddings of another model.
    ///
    /// # Errors
    /// Returns the errors of [`Registry::create`].
    pub fn next_version(
        &self,
        registry: &Registry,
        dims: usize,
        model: &str,
    ) -> Result<ImageCollection> {
        let mut taken: Vec<String> =
            registry.list().into_iter().map(|listed| listed.name).collect();
        // A client can have a collection of images with the name of a version.
        taken.extend(registry.aliases().into_iter().map(|(alias, _)| alias));
        let name = (1..)
            .map(|number| format!("{}.v{number}", self.space))
            .find(|name| !taken.contains(name));
        let name = name.unwrap_or_default();
        let settings = ImageSettings { kind: self.kind, model: model.to_owned() };
        let named = registry.create(&name, settings.stored(dims, &self.space))?;
        ImageCollection::of(&named)
            .ok_or_else(|| Error::internal("a new collection has lost its settings"))
    }

    /// Checks that an embedding has the collection's number of values.
    ///
    /// # Errors
    /// `FailedPrecondition` with the remedy.
    pub fn check_dims(&self, dims: usize) -> Result<()> {
        self.settings().check_dims(self.named.settings().dims, dims)
    }

    /// Returns all collections that share its originals, itself included.
    pub fn siblings(&self, registry: &Registry) -> Vec<ImageCollection> {
        let ready = registry.list().into_iter().filter_map(|listed| match listed.state {
            ListedState::Ready(named) => ImageCollection::of(&named),
            _ => None,
        });
        ready.filter(|target| target.space == self.space).collect()
    }

    /// Returns all collections whose originals are in the directory `space`.
    ///
    /// # Errors
    /// `Unavailable` if a collection with this directory is being restored, because its images will
    /// need their originals. Otherwise as [`ImageCollection::known`].
    pub fn known_of(registry: &Registry, space: &str) -> Result<Vec<ImageCollection>> {
        // Read before the list, which has a collection once its restore is complete.
        let is_of_space =
            |settings: &CollectionSettings| originals_space(settings).is_some_and(|it| it == space);
        if registry.restoring().iter().any(is_of_space) {
            return Err(Error::unavailable(format!(
                "a collection that may need the originals of \"{space}\" is being restored"
            )));
        }
        let mut versions = ImageCollection::known(registry)
            .map_err(|error| error.context(format!("the originals of \"{space}\"")))?;
        versions.retain(|target| target.space == space);
        Ok(versions)
    }

    /// Returns all collections of images.
    ///
    /// # Errors
    /// `Unavailable` if a collection of the server is not open, because it may name any original.
    pub fn known(registry: &Registry) -> Result<Vec<ImageCollection>> {
        let mut known = Vec::new();
        for listed in registry.list() {
            let ListedState::Ready(named) = listed.state else {
                return Err(Error::unavailable(format!(
                    "collection \"{}\" is not open and may need originals",
                    listed.name
                )));
            };
            known.extend(ImageCollection::of(&named));
        }
        Ok(known)
    }
}

/// Returns the kind and the model of a collection, or `None` if it holds no images.
pub(crate) fn image_settings(named: &NamedCollection) -> Option<ImageSettings> {
    ImageSettings::of(&named.settings())
}

/// Sets the name of the directory of a collection's originals, if it holds images.
pub fn set_originals_space(settings: &mut CollectionSettings, space: &str) {
    if let Some(section) = settings.extra.get_mut(SECTION).and_then(Value::as_object_mut) {
        section.insert("originals".to_owned(), space.into());
    }
}

/// Returns the name of the directory of a collection's originals, or `None` if it holds no images.
pub fn originals_space(settings: &CollectionSettings) -> Option<String> {
    settings.extra.get(SECTION)?.get("originals")?.as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use search::Metric;
    use search::registry::RegistryOptions;

    use super::*;

    fn registry(directory: &std::path::Path) -> Arc<Registry> {
        Registry::open(RegistryOptions::for_tests(directory)).unwrap()
    }

    fn wanted() -> CollectionSpec {
        CollectionSpec { name: "c".to_owned(), kind: None, model: None, quality_min: 0 }
    }

    #[test]
    fn a_collection_without_images_gets_no_alias() {
        let dir = tempfile::tempdir().unwrap();
        let registry = registry(dir.path());
        registry.create("c.v1", CollectionSettings::new(4, Metric::Cosine)).unwrap();
        let error = ImageCollection::make(&registry, &wanted(), 4, "m").err().unwrap();
        assert_eq!(error.kind(), ErrorKind::FailedPrecondition, "{error}");
        assert!(registry.aliases().is_empty());
    }

    #[test]
    fn features_of_another_kind_or_model_are_sent_again() {
        let dir = tempfile::tempdir().unwrap();
        let registry = registry(dir.path());
        let kind = Some(ImageKind::Fingerprint);
        let prints = CollectionSpec { kind, ..wanted() };
        let made = ImageCollection::make(&registry, &prints, 4, "m").unwrap();
        let again = ImageCollection::make(&registry, &prints, 4, "m").unwrap();
        assert_eq!(again.named.name(), made.named.name());
        // Requests that were extracted before the collection was there.
        for (wanted, model) in [(&prints, "none"), (&wanted(), "m")] {
            let error = ImageCollection::make(&registry, wanted, 4, model).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        }
        assert_eq!(made.settings().model, "m");
    }

    #[test]
    fn a_version_does_not_get_the_name_of_an_alias() {
        let dir = tempfile::tempdir().unwrap();
        let registry = registry(dir.path());
        let make = |name: &str| {
            let wanted = CollectionSpec { name: name.to_owned(), ..wanted() };
            ImageCollection::make(&registry, &wanted, 4, "m")
        };
        let first = make("c").unwrap();
        make("c.v2").unwrap();
        let next = first.next_version(&registry, 4, "m").unwrap();
        assert_eq!(next.named.name(), "c.v3");
        make("d.v1").unwrap();
        let error = make("d").err().unwrap();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
        assert!(error.message().contains("\"d.v1\""), "{error}");
    }

    /// Removals of originals need all collections of a space.
    #[test]
    fn a_collection_that_is_being_restored_is_unknown() {
        let dir = tempfile::tempdir().unwrap();
        let registry = registry(dir.path());
        let made = ImageCollection::make(&registry, &wanted(), 4, "m").unwrap();
        let settings = CollectionSettings::clone(&made.named.settings());
        registry.remove(made.named.name()).unwrap();
        let known = |space: &str| ImageCollection::known_of(&registry, space);
        assert!(known(&made.space).unwrap().is_empty());
        let restoring = registry.restore("restored", settings, 0, false).unwrap();
        assert_eq!(known(&made.space).err().unwrap().kind(), ErrorKind::Unavailable);
        assert!(known("another").unwrap().is_empty());
        drop(restoring);
        assert!(known(&made.space).unwrap().is_empty());
    }

    #[test]
    fn a_new_collection_of_the_same_name_is_another_one() {
        let dir = tempfile::tempdir().unwrap();
        let registry = registry(dir.path());
        let wanted = wanted();
        let make = || ImageCollection::make(&registry, &wanted, 4, "m").unwrap();
        let old = make();
        assert!(old.writing(&registry, "c").is_ok());
        registry.remove(old.named.name()).unwrap();
        let new = make();
        assert_eq!(new.named.name(), old.named.name());
        let error = old.writing(&registry, "c").err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(new.writing(&registry, "c").is_ok());
    }
}
