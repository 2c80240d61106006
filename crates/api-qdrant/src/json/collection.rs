//! Requests that create and change collections, their aliases and their indexes.

use base::{Error, Result};
use search::registry::{AliasChange, CollectionSettings, MediumChoice};
use search::{DIMS_MAX, Metric};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::index_params::check_params;
use super::{AbsentField, check_default_tokenizer, out_of_limits, unsupported};

/// Returns Qdrant's name of a metric.
pub(crate) fn distance_name(metric: Metric) -> &'static str {
    match metric {
        Metric::Cosine => "Cosine",
        Metric::Dot => "Dot",
        Metric::L2 => "Euclid",
    }
}

fn parse_distance(name: &str) -> Result<Metric> {
    match name {
        "Cosine" => Ok(Metric::Cosine),
        "Dot" => Ok(Metric::Dot),
        "Euclid" => Ok(Metric::L2),
        "Manhattan" => Err(Error::unimplemented(unsupported("distance Manhattan"))),
        other => Err(Error::invalid(format!(
            "distance: \"{other}\" is not one of Cosine, Dot and Euclid"
        ))),
    }
}

/// Types of stored numbers that only save memory in Qdrant. Collections store float32.
const COARSER_DATATYPES: [&str; 4] = ["float16", "turbo4", "turbo8", "turbo16"];

/// Checks the type of the stored numbers of a vector.
///
/// # Errors
/// `Unimplemented` for `uint8`, which cuts off fractions; `InvalidArgument` for unknown types.
fn check_datatype(datatype: Option<&str>) -> Result<()> {
    match datatype {
        None | Some("float32") => Ok(()),
        Some(name) if COARSER_DATATYPES.contains(&name) => Ok(()),
        Some("uint8") => Err(Error::unimplemented(unsupported("datatype uint8"))),
        Some(other) => Err(Error::invalid(format!(
            "datatype: \"{other}\" is not one of float32, uint8, {}",
            COARSER_DATATYPES.join(", ")
        ))),
    }
}

/// Request for a new collection.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct CreateCollection {
    vectors: Option<Value>,
    sparse_vectors: Option<Map<String, Value>>,
    sharding_method: Option<String>,
    /// Access to the files; Qdrant has no such field.
    medium: Option<String>,
    /// Members that the client keeps with the collection.
    pub metadata: Option<Map<String, Value>>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct VectorParams {
    size: u64,
    distance: String,
    multivector_config: Option<Value>,
    datatype: Option<String>,
    hnsw_config: Option<Value>,
    quantization_config: Option<Value>,
    on_disk: Option<bool>,
    memory: Option<Value>,
}

impl CreateCollection {
    /// Returns the collection's settings, without extra members.
    ///
    /// # Errors
    /// `InvalidArgument` for a malformed vector; `Unimplemented` for no vector or several, sparse
    /// vectors, multivectors, numbers of the type uint8 and the distance Manhattan.
    pub fn settings(&self) -> Result<CollectionSettings> {
        if self.sparse_vectors.as_ref().is_some_and(|sparse| !sparse.is_empty()) {
            return Err(Error::unimplemented(unsupported(
                "sparse_vectors (create the collection without them; searches use its dense vector)",
            )));
        }
        if self.sharding_method.as_deref().is_some_and(|method| method != "auto") {
            return Err(Error::unimplemented(unsupported("sharding_method other than auto")));
        }
        let (name, params) = self.vector()?;
        let medium = self.medium.as_deref().map(str::parse::<MediumChoice>).transpose();
        let medium = medium.map_err(|error| error.context("medium"))?;
        Ok(CollectionSettings { medium, ..settings(name, &params)? })
    }

    /// Returns the name and the parameters of the one vector.
    fn vector(&self) -> Result<(String, VectorParams)> {
        let wrong = || Error::invalid("vectors: an object with size and distance is expected");
        let none = || Error::unimplemented(unsupported("a collection without vectors"));
        let vectors = match self.vectors.as_ref() {
            None | Some(Value::Null) => return Err(none()),
            Some(vectors) => vectors.as_object().ok_or_else(wrong)?,
        };
        let read = |params: &Map<String, Value>, field: &str| {
            VectorParams::deserialize(params)
                .map_err(|error| Error::invalid(field).caused_by(error))
        };
        if vectors.get("size").is_some_and(|size| !size.is_object()) {
            return Ok((String::new(), read(vectors, "vectors")?));
        }
        let mut named = vectors.iter();
        match (named.next(), named.next()) {
            (Some((name, params)), None) => {
                let params = params.as_object().ok_or_else(wrong)?;
                Ok((name.clone(), read(params, &format!("vectors.{name}"))?))
            }
            (None, _) => Err(none()),
            _ => Err(Error::unimplemented(unsupported("more than one vector in a collection"))),
        }
    }

    /// Returns the hints that have no effect, by their names in the request. Hints that the server
    /// always follows, such as `on_disk: true` or `shard_number: 1`, are left out.
    ///
    /// # Errors
    /// `InvalidArgument` for values that Qdrant refuses and for fields that it does not have;
    /// `Unimplemented` for `strict_mode_config` and `init_from`.
    pub fn hints(&self) -> Result<Map<String, Value>> {
        let mut hints = Map::new();
        let (_, params) = self.vector()?;
        let vector = [
            ("vectors.hnsw_config", params.hnsw_config),
            ("vectors.quantization_config", params.quantization_config),
            ("vectors.datatype", params.datatype.filter(|name| name != "float32").map(Value::from)),
            ("vectors.on_disk", params.on_disk.filter(|on_disk| !on_disk).map(Value::from)),
            ("vectors.memory", memory_kind("vectors.memory", params.memory)?),
        ];
        hints
            .extend(vector.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
        for (name, value) in self.rest.iter().filter(|(_, value)| !value.is_null()) {
            if let Some(value) = hint(name, value)? {
                hints.insert(name.clone(), value);
            }
        }
        hints.retain(|_, value| !value.is_null());
        Ok(hints)
    }
}

/// Returns the value of a hint that has no effect, or `None` for one that the server always
/// follows.
fn hint(name: &str, value: &Value) -> Result<Option<Value>> {
    match name {
        "shard_number" | "replication_factor" | "write_consistency_factor" => {
            match value.as_u64() {
                Some(0) => Err(out_of_limits(name, "value 0 invalid, must be 1 or larger")),
                Some(1) => Ok(None),
                Some(_) => Ok(Some(value.clone())),
                None => Err(Error::invalid(format!(
                    "{name}: a whole number from 1 is expected, not {value}"
                ))),
            }
        }
        "on_disk_payload" => match value.as_bool() {
            Some(true) => Ok(None),
            Some(false) => Ok(Some(value.clone())),
            None => Err(Error::invalid("on_disk_payload: true or false is expected")),
        },
        "payload" => {
            Ok(memory_kind("payload.memory", value.get("memory").cloned())?.map(|_| value.clone()))
        }
        "id_tracker"
        | "hnsw_config"
        | "wal_config"
        | "optimizers_config"
        | "quantization_config" => Ok(Some(value.clone())),
        "strict_mode_config" if sets_no_limit(value) => Ok(None),
        "strict_mode_config" | "init_from" => Err(Error::unimplemented(unsupported(name))),
        other => Err(Error::invalid(format!("{other}: a collection has no such setting"))),
    }
}

/// Returns true for a strict mode that is off, and for one without any member.
fn sets_no_limit(strict: &Value) -> bool {
    match strict.get("enabled") {
        None | Some(Value::Null) => {
            strict.as_object().is_some_and(|members| members.values().all(Value::is_null))
        }
        Some(enabled) => enabled.as_bool() == Some(false),
    }
}

/// Returns the kind of memory in `memory`, or `None` if the value is missing or "cold": the disk
/// always holds everything. `field` is the name in errors.
///
/// # Errors
/// `InvalidArgument` for "pinned", because Qdrant does not pin vectors or payloads, and for unknown
/// kinds.
fn memory_kind(field: &str, memory: Option<Value>) -> Result<Option<Value>> {
    let Some(memory) = memory.filter(|memory| !memory.is_null()) else { return Ok(None) };
    match memory.as_str() {
        Some("cold") => Ok(None),
        Some("cached") => Ok(Some(memory)),
        Some("pinned") => Err(out_of_limits(field, "pinned is not possible here")),
        _ => {
            Err(Error::invalid(format!("{field}: {memory} is not one of cold, cached and pinned")))
        }
    }
}

/// Returns the settings of a collection with the vector `vector_name`.
fn settings(vector_name: String, params: &VectorParams) -> Result<CollectionSettings> {
    if params.multivector_config.as_ref().is_some_and(|config| !config.is_null()) {
        return Err(Error::unimplemented(unsupported("multivector_config")));
    }
    check_datatype(params.datatype.as_deref())?;
    let dims = usize::try_from(params.size).ok().filter(|dims| (1..=DIMS_MAX).contains(dims));
    let dims = dims.ok_or_else(|| {
        let problem = format!("{} is not within 1 and {DIMS_MAX}", params.size);
        out_of_limits("vectors.size", problem)
    })?;
    let metric = parse_distance(&params.distance)?;
    Ok(CollectionSettings { vector_name, ..CollectionSettings::new(dims, metric) })
}

/// Request to change a collection. Only the metadata has an effect.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct UpdateCollection {
    /// Members to be merged into the metadata; null removes one.
    pub metadata: Option<Map<String, Value>>,
    vectors: Option<Value>,
    optimizers_config: Option<Value>,
    params: Option<Map<String, Value>>,
    hnsw_config: Option<Value>,
    quantization_config: Option<Value>,
    #[serde(default, rename = "sparse_vectors")]
    _sparse_vectors: AbsentField,
    strict_mode_config: Option<Value>,
}

impl UpdateCollection {
    /// Returns the hints that have no effect, as [`CreateCollection::hints`] does.
    ///
    /// # Errors
    /// As [`CreateCollection::hints`], for the members of `params` and `strict_mode_config`.
    pub fn hints(&self) -> Result<Map<String, Value>> {
        let mut hints = Map::new();
        if let Some(strict) = &self.strict_mode_config {
            // A mode without limits is not a hint; any other is refused.
            hint("strict_mode_config", strict)?;
        }
        for (name, value) in self.params.iter().flatten().filter(|(_, value)| !value.is_null()) {
            let kept = match name.as_str() {
                "read_fan_out_factor" | "read_fan_out_delay_ms" => Some(value.clone()),
                name => hint(name, value)?,
            };
            if let Some(value) = kept {
                hints.insert(name.clone(), value);
            }
        }
        let others = [
            ("vectors", &self.vectors),
            ("optimizers_config", &self.optimizers_config),
            ("hnsw_config", &self.hnsw_config),
            ("quantization_config", &self.quantization_config),
        ];
        hints.extend(
            others.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value.clone()?))),
        );
        Ok(hints)
    }

    /// Returns the copies of each shard that `params` name.
    pub fn replication_factor(&self) -> Option<u64> {
        self.params.as_ref()?.get("replication_factor")?.as_u64()
    }

    /// Returns true if the request sets `replication_factor` and nothing else.
    pub fn sets_only_replication_factor(&self) -> bool {
        let others = [
            &self.vectors,
            &self.optimizers_config,
            &self.hnsw_config,
            &self.quantization_config,
            &self.strict_mode_config,
        ];
        let params = self.params.iter().flatten().filter(|(_, value)| !value.is_null());
        params.map(|(name, _)| name.as_str()).eq(["replication_factor"])
            && self.metadata.as_ref().is_none_or(Map::is_empty)
            && others.into_iter().all(Option::is_none)
    }
}

/// Request to change aliases. Either all changes are made or none.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct ChangeAliases {
    /// The changes, in order.
    pub actions: Vec<AliasAction>,
}

impl ChangeAliases {
    /// Returns the changes in the words of the registry.
    pub fn changes(self) -> Vec<AliasChange> {
        let change = |action| match action {
            AliasAction::CreateAlias { alias_name, collection_name } => {
                AliasChange::Create { alias: alias_name, collection: collection_name }
            }
            AliasAction::DeleteAlias { alias_name } => AliasChange::Delete { alias: alias_name },
            AliasAction::RenameAlias { old_alias_name, new_alias_name } => {
                AliasChange::Rename { from: old_alias_name, to: new_alias_name }
            }
        };
        self.actions.into_iter().map(change).collect()
    }
}

/// Returns the response that lists aliases with their collections.
pub fn listed_aliases(aliases: impl IntoIterator<Item = (String, String)>) -> Value {
    let described =
        |(alias, collection)| json!({ "alias_name": alias, "collection_name": collection });
    json!({ "aliases": aliases.into_iter().map(described).collect::<Vec<Value>>() })
}

/// One change of an alias.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum AliasAction {
    /// Adds an alias, or redirects one.
    CreateAlias {
        /// Alias to add or redirect.
        alias_name: String,
        /// Collection that the alias names from then on.
        collection_name: String,
    },
    /// Removes an alias.
    DeleteAlias {
        /// Alias to remove.
        alias_name: String,
    },
    /// Renames an alias. The alias keeps its collection.
    RenameAlias {
        /// Present name of the alias.
        old_alias_name: String,
        /// Name that the alias gets.
        new_alias_name: String,
    },
}

/// Merges `changes` into the metadata of a collection. Null removes a member.
pub fn merge_metadata(metadata: &mut Map<String, Value>, changes: Map<String, Value>) {
    for (name, value) in changes {
        if value.is_null() {
            metadata.remove(&name);
        } else {
            metadata.insert(name, value);
        }
    }
}

/// Maximum fields with an index in one collection.
pub const INDEXES_MAX: usize = 1000;

/// Request for an index on a field of the payload.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct CreateIndex {
    /// The field's path, as in a filter.
    #[serde(deserialize_with = "super::filter::path")]
    pub field_name: String,
    field_schema: Option<Value>,
}

/// Types of Qdrant's indexes.
const INDEX_TYPES: [&str; 8] =
    ["keyword", "integer", "float", "geo", "text", "bool", "datetime", "uuid"];

impl CreateIndex {
    /// Returns the field's type and the parameters in the request.
    ///
    /// # Errors
    /// `InvalidArgument` for no field, for no type, for a type that Qdrant does not have, for
    /// parameters that the type does not have, and for an integer index for neither lookup nor
    /// range; `Unimplemented` for `nested`.
    pub fn schema(&self) -> Result<(&str, Option<&Map<String, Value>>)> {
        if self.field_name.is_empty() {
            return Err(Error::invalid("field_name: the path of a payload field is expected"));
        }
        let (name, params) = match &self.field_schema {
            Some(Value::String(name)) => (name.as_str(), None),
            Some(Value::Object(params)) => {
                (params.get("type").and_then(Value::as_str).unwrap_or(""), Some(params))
            }
            _ => ("", None),
        };
        if !INDEX_TYPES.contains(&name) {
            return Err(Error::invalid(format!(
                "field_schema: the type is one of {}",
                INDEX_TYPES.join(", ")
            )));
        }
        if let Some(params) = params {
            check_params(name, params)?;
        }
        let off =
            |name: &str| params.and_then(|params| params.get(name)) == Some(&Value::Bool(false));
        if name == "integer" && off("lookup") && off("range") {
            return Err(out_of_limits("field_schema", "lookup and range cannot both be false"));
        }
        Ok((name, params))
    }

    /// Checks that the index splits texts in the same way as conditions on a field without an
    /// index.
    ///
    /// # Errors
    /// Errors of [`CreateIndex::schema`] and of [`check_default_tokenizer`].
    pub fn check_default_tokenizer(&self) -> Result<()> {
        let (name, _) = self.schema()?;
        let params = self.field_schema.as_ref().unwrap_or(&Value::Null);
        check_default_tokenizer(name, params).map_err(|error| error.context("field_schema"))
    }
}
