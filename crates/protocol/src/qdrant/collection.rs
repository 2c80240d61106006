//! Collections: made, described, renamed.

use base::{Error, Result};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{AbsentField, out_of_limits, unsupported};

/// Values that a vector may have; Qdrant's own bound.
const SIZE_MAX: u64 = 65_536;

/// What alike means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distance {
    /// The cosine; vectors are kept with length one.
    Cosine,
    /// The inner product.
    Dot,
    /// The Euclidean distance; smaller is better.
    Euclid,
}

impl Distance {
    /// As the interface writes it.
    pub fn name(self) -> &'static str {
        match self {
            Distance::Cosine => "Cosine",
            Distance::Dot => "Dot",
            Distance::Euclid => "Euclid",
        }
    }

    fn parse(name: &str) -> Result<Distance> {
        match name {
            "Cosine" => Ok(Distance::Cosine),
            "Dot" => Ok(Distance::Dot),
            "Euclid" => Ok(Distance::Euclid),
            "Manhattan" => Err(Error::unimplemented(unsupported("distance Manhattan"))),
            other => Err(Error::invalid(format!("distance: \"{other}\" is none of Cosine, Dot and Euclid"))),
        }
    }
}

/// The one vector of a collection's points.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VectorShape {
    /// Its name; "" where it has none.
    pub name: String,
    /// How many values.
    pub size: usize,
    /// What alike means.
    pub distance: Distance,
}

/// A collection to be made. What only tunes Qdrant's own machinery is listed by [`CreateCollection::hints`].
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct CreateCollection {
    vectors: Option<Value>,
    sparse_vectors: Option<Map<String, Value>>,
    sharding_method: Option<String>,
    /// Anything the client wants to keep with the collection.
    pub metadata: Option<Map<String, Value>>,
    /// Everything else.
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
    /// The vector that the points will have.
    ///
    /// # Errors
    /// `InvalidArgument` for what makes no sense, `Unimplemented` for more than one vector or none, sparse ones,
    /// multivectors, other types than float32 and distances that are not there.
    pub fn shape(&self) -> Result<VectorShape> {
        if self.sparse_vectors.as_ref().is_some_and(|sparse| !sparse.is_empty()) {
            return Err(Error::unimplemented(unsupported("sparse_vectors")));
        }
        if self.sharding_method.as_deref().is_some_and(|method| method != "auto") {
            return Err(Error::unimplemented(unsupported("sharding_method other than auto")));
        }
        let (name, params) = self.vector()?;
        shape(name, &params)
    }

    /// The name and the parameters of the one vector.
    fn vector(&self) -> Result<(String, VectorParams)> {
        let wrong = || Error::invalid("vectors: an object with size and distance is expected");
        let none = || Error::unimplemented(unsupported("a collection without vectors"));
        let vectors = match self.vectors.as_ref() {
            None | Some(Value::Null) => return Err(none()),
            Some(vectors) => vectors.as_object().ok_or_else(wrong)?,
        };
        let read = |params: &Map<String, Value>, place: &str| {
            VectorParams::deserialize(params).map_err(|error| Error::invalid(format!("{place}: {error}")))
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

    /// Lists the hints that this server does not follow, by their names in the request. A hint that holds in any case,
    /// such as `on_disk: true` or `shard_number: 1`, is not among them.
    ///
    /// # Errors
    /// `InvalidArgument` for values that Qdrant refuses and for fields that it does not know, `Unimplemented` for
    /// `strict_mode_config` and `init_from`.
    pub fn hints(&self) -> Result<Map<String, Value>> {
        let mut hints = Map::new();
        let (_, params) = self.vector()?;
        let vector = [
            ("vectors.hnsw_config", params.hnsw_config),
            ("vectors.quantization_config", params.quantization_config),
            ("vectors.on_disk", params.on_disk.filter(|on_disk| !on_disk).map(Value::from)),
            ("vectors.memory", not_cold("vectors.memory", params.memory)?),
        ];
        hints.extend(vector.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
        for (name, value) in self.rest.iter().filter(|(_, value)| !value.is_null()) {
            if let Some(value) = hint(name, value)? {
                hints.insert(name.clone(), value);
            }
        }
        hints.retain(|_, value| !value.is_null());
        Ok(hints)
    }
}

/// Returns the value of a hint that this server does not follow, `None` for one that holds in any case.
fn hint(name: &str, value: &Value) -> Result<Option<Value>> {
    match name {
        "shard_number" | "replication_factor" | "write_consistency_factor" => match value.as_u64() {
            Some(0) => Err(out_of_limits(name, "value 0 invalid, must be 1 or larger")),
            Some(1) => Ok(None),
            Some(_) => Ok(Some(value.clone())),
            None => Err(Error::invalid(format!("{name}: a whole number from 1 is expected, not {value}"))),
        },
        "on_disk_payload" => match value.as_bool() {
            Some(true) => Ok(None),
            Some(false) => Ok(Some(value.clone())),
            None => Err(Error::invalid("on_disk_payload: true or false is expected")),
        },
        "payload" => Ok(not_cold("payload.memory", value.get("memory").cloned())?.map(|_| value.clone())),
        "id_tracker" | "hnsw_config" | "wal_config" | "optimizers_config" | "quantization_config" => {
            Ok(Some(value.clone()))
        }
        "strict_mode_config" if value.get("enabled") == Some(&Value::Bool(false)) => Ok(None),
        "strict_mode_config" | "init_from" => Err(Error::unimplemented(unsupported(name))),
        other => Err(Error::invalid(format!("{other}: a collection has no such setting"))),
    }
}

/// Returns where to keep something, `None` for the disk, where everything is. Qdrant does not pin vectors or payloads.
fn not_cold(place: &str, memory: Option<Value>) -> Result<Option<Value>> {
    let Some(memory) = memory.filter(|memory| !memory.is_null()) else { return Ok(None) };
    match memory.as_str() {
        Some("cold") => Ok(None),
        Some("cached") => Ok(Some(memory)),
        Some("pinned") => Err(out_of_limits(place, "pinned is not possible here")),
        _ => Err(Error::invalid(format!("{place}: {memory} is none of cold, cached and pinned"))),
    }
}

fn shape(name: String, params: &VectorParams) -> Result<VectorShape> {
    if params.multivector_config.as_ref().is_some_and(|config| !config.is_null()) {
        return Err(Error::unimplemented(unsupported("multivector_config")));
    }
    if params.datatype.as_deref().is_some_and(|datatype| datatype != "float32") {
        return Err(Error::unimplemented(unsupported("a datatype other than float32")));
    }
    if !(1..=SIZE_MAX).contains(&params.size) {
        return Err(out_of_limits(
            "vectors.size",
            format_args!("{} is not within 1 and {SIZE_MAX}", params.size),
        ));
    }
    Ok(VectorShape { name, size: params.size as usize, distance: Distance::parse(&params.distance)? })
}

/// A collection's settings to be changed. Only its metadata has an effect here.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct UpdateCollection {
    /// Merged into what is kept.
    pub metadata: Option<Map<String, Value>>,
    vectors: Option<Value>,
    optimizers_config: Option<Value>,
    params: Option<Map<String, Value>>,
    hnsw_config: Option<Value>,
    quantization_config: Option<Value>,
    #[serde(default, rename = "sparse_vectors")]
    _sparse_vectors: AbsentField,
    #[serde(default, rename = "strict_mode_config")]
    _strict_mode: AbsentField,
}

impl UpdateCollection {
    /// Lists the hints that this server does not follow, as [`CreateCollection::hints`].
    ///
    /// # Errors
    /// As [`CreateCollection::hints`], for what is in `params`.
    pub fn hints(&self) -> Result<Map<String, Value>> {
        let mut hints = Map::new();
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
        hints.extend(others.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value.clone()?))));
        Ok(hints)
    }
}

/// Changes of aliases, all or none.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct ChangeAliases {
    /// In their order.
    pub actions: Vec<AliasAction>,
}

/// One change of an alias.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum AliasAction {
    /// Gives a collection another name, or lets the name mean another collection.
    CreateAlias {
        /// The name.
        alias_name: String,
        /// What it means.
        collection_name: String,
    },
    /// Takes a name away.
    DeleteAlias {
        /// The name.
        alias_name: String,
    },
    /// Renames.
    RenameAlias {
        /// As it is.
        old_alias_name: String,
        /// As it will be.
        new_alias_name: String,
    },
}

/// A field of the payload that clients want to filter by quickly.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct CreateIndex {
    /// The field's path.
    pub field_name: String,
    field_schema: Option<Value>,
}

/// Types that Qdrant has indexes for.
const TYPES: [&str; 8] = ["keyword", "integer", "float", "geo", "text", "bool", "datetime", "uuid"];

impl CreateIndex {
    /// The field's type, and the parameters that came with it.
    ///
    /// # Errors
    /// `InvalidArgument` for a type that Qdrant does not have, if there is none, and for an index of whole numbers that
    /// is for neither lookup nor range.
    pub fn schema(&self) -> Result<(&str, Option<&Map<String, Value>>)> {
        let (name, params) = match &self.field_schema {
            Some(Value::String(name)) => (name.as_str(), None),
            Some(Value::Object(params)) => {
                (params.get("type").and_then(Value::as_str).unwrap_or(""), Some(params))
            }
            _ => ("", None),
        };
        if !TYPES.contains(&name) {
            return Err(Error::invalid(format!("field_schema: the type is one of {}", TYPES.join(", "))));
        }
        let off = |what: &str| params.and_then(|params| params.get(what)) == Some(&Value::Bool(false));
        if name == "integer" && off("lookup") && off("range") {
            return Err(out_of_limits("field_schema", "lookup and range cannot both be false"));
        }
        Ok((name, params))
    }
}
