//! Collections: made, described, renamed.

use base::{Error, Result};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{Absent, unsupported};

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

/// A collection to be made. What only tunes Qdrant's own machinery is kept in [`CreateCollection::hints`].
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct CreateCollection {
    vectors: Option<Value>,
    sparse_vectors: Option<Map<String, Value>>,
    sharding_method: Option<String>,
    /// Anything the client wants to keep with the collection.
    pub metadata: Option<Map<String, Value>>,
    /// Everything else.
    #[serde(flatten)]
    pub hints: Map<String, Value>,
}

#[derive(Deserialize)]
struct Params {
    size: u64,
    distance: String,
    multivector_config: Option<Value>,
    datatype: Option<String>,
}

impl CreateCollection {
    /// The vector that the points will have.
    ///
    /// # Errors
    /// `InvalidArgument` for what makes no sense, `Unimplemented` for more than one vector, sparse ones,
    /// multivectors, other types than float32 and distances that are not there.
    pub fn shape(&self) -> Result<VectorShape> {
        if self.sparse_vectors.as_ref().is_some_and(|sparse| !sparse.is_empty()) {
            return Err(Error::unimplemented(unsupported("sparse_vectors")));
        }
        if self.sharding_method.as_deref().is_some_and(|method| method != "auto") {
            return Err(Error::unimplemented(unsupported("sharding_method other than auto")));
        }
        let missing =
            || Error::invalid("vectors: a collection needs a vector; give {\"size\", \"distance\"}");
        let vectors = self.vectors.as_ref().and_then(Value::as_object).ok_or_else(missing)?;
        if vectors.get("size").is_some_and(|size| !size.is_object()) {
            return shape(String::new(), vectors);
        }
        let mut named = vectors.iter();
        match (named.next(), named.next()) {
            (Some((name, params)), None) => {
                let params = params.as_object().ok_or_else(missing)?;
                shape(name.clone(), params).map_err(|error| error.context(format_args!("vectors.{name}")))
            }
            (None, _) => Err(missing()),
            _ => Err(Error::unimplemented(unsupported("more than one vector in a collection"))),
        }
    }
}

fn shape(name: String, params: &Map<String, Value>) -> Result<VectorShape> {
    let params = Params::deserialize(params).map_err(|error| Error::invalid(format!("vectors: {error}")))?;
    if params.multivector_config.is_some_and(|config| !config.is_null()) {
        return Err(Error::unimplemented(unsupported("multivector_config")));
    }
    if params.datatype.as_deref().is_some_and(|datatype| datatype != "float32") {
        return Err(Error::unimplemented(unsupported("a datatype other than float32")));
    }
    if !(1..=SIZE_MAX).contains(&params.size) {
        return Err(Error::invalid(format!("vectors.size: {} is not within 1 and {SIZE_MAX}", params.size)));
    }
    Ok(VectorShape { name, size: params.size as usize, distance: Distance::parse(&params.distance)? })
}

/// A collection's settings to be changed. Only its metadata means anything here.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
pub struct UpdateCollection {
    /// Merged into what is kept.
    pub metadata: Option<Map<String, Value>>,
    #[serde(default, rename = "sparse_vectors")]
    _sparse_vectors: Absent,
    #[serde(default, rename = "strict_mode_config")]
    _strict_mode: Absent,
}

/// Changes of aliases, all or none.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct ChangeAliases {
    /// In their order.
    pub actions: Vec<AliasAction>,
}

/// One change of an alias.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
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
    /// `InvalidArgument` for a type that Qdrant does not have, and where there is none.
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
        Ok((name, params))
    }
}
