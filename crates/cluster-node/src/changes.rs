//! Aliases of collections, and changes of collections after their creation.
//!
//! The record of a collection never changes. Everything that clients may change later is in one
//! document for the whole cluster. Each version of the document is an object of its own in the
//! store.

use std::collections::{BTreeMap, BTreeSet};

use api_qdrant::json::{self, INDEXES_MAX};
use base::{Error, Result};
use search::registry::{AliasChange, changed_aliases};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Maximum bytes of the document.
pub(crate) const CHANGES_BYTES_MAX: usize = 8 << 20;

/// Aliases, and changes of collections.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CatalogChanges {
    /// Names of collections, by alias.
    #[serde(default)]
    pub aliases: BTreeMap<String, String>,
    /// Changes, by the id of the collection.
    #[serde(default)]
    pub collections: BTreeMap<String, CollectionChanges>,
    /// Members that only newer programs know. They stay if this program writes the next version.
    #[serde(flatten)]
    pub newer: Map<String, Value>,
}

/// Changes of a collection.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CollectionChanges {
    /// Declared indexes of payload fields: `data_type` and `params`, by field.
    #[serde(default)]
    pub payload_schema: Map<String, Value>,
    /// Hints without effect, in addition to the hints of the request that created the collection.
    #[serde(default)]
    pub hints: Map<String, Value>,
    /// Members to be merged into the metadata of that request. Null removes one.
    #[serde(default)]
    pub metadata: Map<String, Value>,
    /// As [`CatalogChanges::newer`].
    #[serde(flatten)]
    pub newer: Map<String, Value>,
}

impl CatalogChanges {
    /// Reads the document.
    ///
    /// # Errors
    /// `DataLoss` for other bytes.
    pub(crate) fn decode(bytes: &[u8]) -> Result<CatalogChanges> {
        serde_json::from_slice(bytes)
            .map_err(|error| Error::data_loss("the aliases of the cluster").caused_by(error))
    }

    /// Writes the document.
    ///
    /// # Errors
    /// `ResourceExhausted` for more than [`CHANGES_BYTES_MAX`] bytes.
    pub(crate) fn encode(&self) -> Result<Vec<u8>> {
        let bytes = serde_json::to_vec(self)
            .map_err(|error| Error::internal("the aliases of the cluster").caused_by(error))?;
        if bytes.len() > CHANGES_BYTES_MAX {
            return Err(Error::exhausted(format!(
                "aliases, payload indexes and changed metadata of all collections take more than \
                 {CHANGES_BYTES_MAX} bytes together; remove some"
            )));
        }
        Ok(bytes)
    }

    /// Returns the document after changes of aliases. `is_collection` returns true for the name of
    /// a collection.
    ///
    /// # Errors
    /// As [`changed_aliases`].
    pub fn with_aliases(
        &self,
        changes: &[AliasChange],
        is_collection: impl Fn(&str) -> bool,
    ) -> Result<CatalogChanges> {
        let aliases = changed_aliases(&self.aliases, changes, is_collection)?;
        Ok(CatalogChanges { aliases, ..self.clone() })
    }

    /// Returns the document without the changes of aliases from `base` to `made`. Aliases that were
    /// changed again stay.
    pub(crate) fn with_aliases_back(
        &self,
        base: &CatalogChanges,
        made: &CatalogChanges,
    ) -> CatalogChanges {
        let mut new = self.clone();
        for alias in base.aliases.keys().chain(made.aliases.keys()) {
            let before = base.aliases.get(alias);
            let after = made.aliases.get(alias);
            if before == after || self.aliases.get(alias) != after {
                continue;
            }
            match before {
                Some(collection) => new.aliases.insert(alias.clone(), collection.clone()),
                None => new.aliases.remove(alias),
            };
        }
        new
    }

    /// Returns the document after a change of the collection `id`.
    ///
    /// # Errors
    /// Errors of `change`.
    pub fn with_collection(
        &self,
        id: &str,
        change: impl FnOnce(&mut CollectionChanges) -> Result<()>,
    ) -> Result<CatalogChanges> {
        let mut new = self.clone();
        let collection = new.collections.entry(id.to_owned()).or_default();
        change(collection)?;
        if *collection == CollectionChanges::default() {
            new.collections.remove(id);
        }
        Ok(new)
    }

    /// Returns the document without the collection `name` of this id, and without each of
    /// `aliases` that still names it.
    pub(crate) fn without(
        &self,
        name: &str,
        id: &str,
        aliases: &BTreeSet<String>,
    ) -> CatalogChanges {
        let mut new = self.clone();
        new.aliases.retain(|alias, collection| collection != name || !aliases.contains(alias));
        new.collections.remove(id);
        new
    }
}

impl CollectionChanges {
    /// Declares an index.
    ///
    /// # Errors
    /// `ResourceExhausted` for more than [`INDEXES_MAX`] fields.
    pub fn declare(&mut self, field: &str, schema: Value) -> Result<()> {
        self.payload_schema.insert(field.to_owned(), schema);
        if self.payload_schema.len() > INDEXES_MAX {
            return Err(Error::exhausted(format!(
                "a collection has at most {INDEXES_MAX} indexed fields"
            )));
        }
        Ok(())
    }

    /// Returns the metadata of a collection whose request of creation had `created`.
    pub fn metadata_over(&self, created: Option<Map<String, Value>>) -> Map<String, Value> {
        let mut metadata = created.unwrap_or_default();
        json::merge_metadata(&mut metadata, self.metadata.clone());
        metadata
    }
}

#[cfg(test)]
mod tests {
    use base::ErrorKind;
    use serde_json::json;

    use super::*;

    fn alias(alias: &str, collection: &str) -> AliasChange {
        AliasChange::Create { alias: alias.to_owned(), collection: collection.to_owned() }
    }

    #[test]
    fn a_removed_collection_leaves_nothing() {
        let is_collection = |name: &str| ["a", "b"].contains(&name);
        let changes = CatalogChanges::default();
        let both = [alias("x", "a"), alias("y", "b")];
        let changes = changes.with_aliases(&both, is_collection).unwrap();
        let changes = changes
            .with_collection("id-a", |it| it.declare("city", json!({"data_type": "keyword"})))
            .unwrap();
        assert_eq!(CatalogChanges::decode(&changes.encode().unwrap()).unwrap(), changes);
        let left = changes.without("a", "id-a", &BTreeSet::from(["x".to_owned()]));
        assert_eq!(left.aliases, BTreeMap::from([("y".to_owned(), "b".to_owned())]));
        assert!(left.collections.is_empty());
        let missing = changes.with_aliases(&[alias("z", "c")], is_collection).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
    }

    /// In a rolling upgrade, roots of both versions write the document.
    #[test]
    fn members_of_newer_programs_stay() {
        let is_collection = |name: &str| name == "a";
        let newer = json!({
            "aliases": {},
            "collections": {"id": {"payload_schema": {}, "ranking": [1.5]}},
            "retention": {"days": 7},
        });
        let changes = CatalogChanges::decode(newer.to_string().as_bytes()).unwrap();
        let changes = changes.with_aliases(&[alias("x", "a")], is_collection).unwrap();
        let changes = changes.with_collection("id", |it| it.declare("f", json!({}))).unwrap();
        let written: Value = serde_json::from_slice(&changes.encode().unwrap()).unwrap();
        assert_eq!(written["retention"], newer["retention"]);
        assert_eq!(written["collections"]["id"]["ranking"], json!([1.5]));
        assert_eq!(written["aliases"], json!({"x": "a"}));
        assert_eq!(written["collections"]["id"]["payload_schema"], json!({"f": {}}));
    }

    #[test]
    fn a_change_that_is_taken_back_leaves_nothing() {
        let changes = CatalogChanges::default();
        let changed = changes.with_collection("id", |it| it.declare("f", json!({}))).unwrap();
        let back = changed.with_collection("id", |it| {
            it.payload_schema.remove("f");
            Ok(())
        });
        assert_eq!(back.unwrap(), changes);
    }

    #[test]
    fn aliases_are_taken_back_unless_they_were_changed_again() {
        let of = |aliases: &[(&str, &str)]| {
            let aliases = aliases.iter().map(|(one, other)| ((*one).into(), (*other).into()));
            CatalogChanges { aliases: aliases.collect(), ..CatalogChanges::default() }
        };
        let base = of(&[("kept", "a"), ("moved", "a"), ("removed", "a"), ("later", "a")]);
        let made = of(&[("kept", "a"), ("moved", "b"), ("new", "b"), ("later", "b")]);
        assert_eq!(made.with_aliases_back(&base, &made), base);
        let now = of(&[("moved", "b"), ("new", "b"), ("later", "c"), ("other", "c")]);
        let back = of(&[("moved", "a"), ("removed", "a"), ("later", "c"), ("other", "c")]);
        assert_eq!(now.with_aliases_back(&base, &made), back);
    }

    #[test]
    fn metadata_is_merged_into_that_of_the_creation() {
        let object = |value: Value| value.as_object().cloned().unwrap();
        let metadata = object(json!({"b": null, "c": 3}));
        let changes = CollectionChanges { metadata, ..CollectionChanges::default() };
        let merged = changes.metadata_over(Some(object(json!({"a": 1, "b": 2}))));
        assert_eq!(Value::Object(merged), json!({"a": 1, "c": 3}));
    }

    #[test]
    fn the_document_has_a_maximum() {
        let text = "x".repeat(CHANGES_BYTES_MAX);
        let changes = CatalogChanges::default();
        let large = changes.with_collection("id", |it| it.declare("f", json!(text))).unwrap();
        assert_eq!(large.encode().unwrap_err().kind(), ErrorKind::ResourceExhausted);
        assert_eq!(CatalogChanges::decode(b"[").unwrap_err().kind(), ErrorKind::DataLoss);
    }
}
