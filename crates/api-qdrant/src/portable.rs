//! Settings of a collection in the form in which another server or a cluster creates it.

use search::registry::CollectionSettings;
use serde_json::{Map, Value, json};

use crate::describe::{EXTRA, stored};
use crate::json::distance_name;

/// Hints about the shards of the server that the settings come from. They are not moved.
const OWN_HINTS: [&str; 3] = ["shard_number", "replication_factor", "write_consistency_factor"];

/// Settings that this interface keeps with a collection.
#[derive(Clone, Debug, PartialEq)]
pub struct PortableSettings {
    /// Body of the request that creates the collection, with its metadata.
    pub create: Value,
    /// `data_type` and `params` of each declared index, by field.
    pub payload_schema: Map<String, Value>,
    /// Hints without effect, by their names in requests.
    pub hints: Map<String, Value>,
}

impl PortableSettings {
    /// Returns the settings of a collection. The access to its files is left out.
    pub fn of(settings: &CollectionSettings) -> PortableSettings {
        let own = |name: &str| stored(&settings.extra, name).cloned().unwrap_or_default();
        let params = json!({ "size": settings.dims, "distance": distance_name(settings.metric) });
        let vectors = match settings.vector_name.as_str() {
            "" => params,
            name => json!({ name: params }),
        };
        let mut create = json!({ "vectors": vectors });
        let metadata = own("metadata");
        if !metadata.is_empty() {
            create["metadata"] = Value::Object(metadata);
        }
        let mut hints = own("hints");
        hints.retain(|name, _| !OWN_HINTS.contains(&name.as_str()));
        PortableSettings { create, payload_schema: own("payload_schema"), hints }
    }
}

/// Sets the data that this interface keeps with a collection.
pub fn set_portable(
    settings: &mut CollectionSettings,
    metadata: Map<String, Value>,
    payload_schema: Map<String, Value>,
    hints: Map<String, Value>,
) {
    if !settings.extra.is_object() {
        settings.extra = json!({});
    }
    settings.extra[EXTRA] =
        json!({ "hints": hints, "metadata": metadata, "payload_schema": payload_schema });
}

#[cfg(test)]
mod tests {
    use search::Metric;
    use serde::Deserialize;

    use super::*;
    use crate::json::CreateCollection;

    fn object(value: Value) -> Map<String, Value> {
        value.as_object().cloned().unwrap()
    }

    #[test]
    fn a_collection_is_created_with_its_portable_settings() {
        for vector_name in ["", "text"] {
            let mut settings = CollectionSettings {
                vector_name: vector_name.to_owned(),
                ..CollectionSettings::new(3, Metric::L2)
            };
            let metadata = object(json!({"owner": "search"}));
            let schema = object(json!({"city": {"data_type": "keyword", "params": null}}));
            let hints = object(json!({"hnsw_config": {"m": 4}, "shard_number": 4}));
            set_portable(&mut settings, metadata, schema.clone(), hints);
            let portable = PortableSettings::of(&settings);
            let create = CreateCollection::deserialize(&portable.create).unwrap();
            let created = create.settings().unwrap();
            assert_eq!((created.dims, created.metric), (3, Metric::L2));
            assert_eq!(created.vector_name, vector_name);
            assert_eq!(create.metadata, Some(object(json!({"owner": "search"}))));
            assert_eq!(portable.payload_schema, schema);
            assert_eq!(portable.hints, object(json!({"hnsw_config": {"m": 4}})));
        }
    }

    #[test]
    fn settings_of_other_interfaces_are_portable() {
        let portable = PortableSettings::of(&CollectionSettings::new(2, Metric::Cosine));
        let vectors = json!({"size": 2, "distance": "Cosine"});
        assert_eq!(portable.create, json!({ "vectors": vectors }));
        assert!(portable.payload_schema.is_empty() && portable.hints.is_empty());
    }
}
