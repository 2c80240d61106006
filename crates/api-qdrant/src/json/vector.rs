//! Vectors in requests: bare, or under their name.

use std::fmt;

use base::{Error, Result};
use serde::de::{
    Deserialize, Deserializer, Error as DeError, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use serde::ser::{Serialize, Serializer};

use super::unsupported;

/// Maximum names in one vector field.
const NAMES_MAX: usize = 64;

/// A point's vector.
#[derive(Clone, Debug, PartialEq)]
pub enum Vector {
    /// The values alone.
    Plain(Vec<f32>),
    /// Values under their names.
    Named(Vec<(String, Vec<f32>)>),
}

/// The vectors of several points.
#[derive(Clone, Debug, PartialEq)]
pub enum BatchVectors {
    /// One vector for each point.
    Plain(Vec<Vec<f32>>),
    /// Names, each with one vector for each point.
    Named(Vec<(String, Vec<Vec<f32>>)>),
}

impl Serialize for Vector {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Vector::Plain(values) => values.serialize(serializer),
            Vector::Named(vectors) => {
                serializer.collect_map(vectors.iter().map(|(name, values)| (name, values)))
            }
        }
    }
}

impl Vector {
    /// Returns the vector called `name` for a response: bare if the name is "".
    pub fn labelled(name: &str, values: Vec<f32>) -> Vector {
        if name.is_empty() {
            Vector::Plain(values)
        } else {
            Vector::Named(vec![(name.to_owned(), values)])
        }
    }

    /// Returns the values of the vector called `name`, "" for a vector without a name.
    ///
    /// # Errors
    /// `InvalidArgument` for a vector of another name; `Unimplemented` if there is no vector.
    pub fn named(self, name: &str) -> Result<Vec<f32>> {
        match self {
            Vector::Plain(values) if name.is_empty() => Ok(values),
            Vector::Plain(_) => Err(unnamed(name)),
            Vector::Named(vectors) => only(vectors, name),
        }
    }
}

impl BatchVectors {
    /// Returns the vectors called `name`, "" for vectors without a name.
    ///
    /// # Errors
    /// As [`Vector::named`].
    pub fn named(self, name: &str) -> Result<Vec<Vec<f32>>> {
        match self {
            BatchVectors::Plain(vectors) if name.is_empty() => Ok(vectors),
            BatchVectors::Plain(_) => Err(unnamed(name)),
            BatchVectors::Named(vectors) => only(vectors, name),
        }
    }
}

fn unnamed(name: &str) -> Error {
    Error::invalid(format!(
        "Not existing vector name error: the vector is called \"{name}\"; write {{\"{name}\": [..]}}"
    ))
}

/// Returns the vector `name`, if it is the only one.
fn only<T>(vectors: Vec<(String, T)>, name: &str) -> Result<T> {
    let mut found = None;
    for (other, values) in vectors {
        if other != name {
            let message = format!(
                "Not existing vector name error: {other}; the collection's vector is called \
                 \"{name}\""
            );
            return Err(Error::invalid(message));
        }
        found = Some(values);
    }
    found.ok_or_else(|| Error::unimplemented(unsupported("a point without a vector")))
}

/// One value of a vector.
struct Component(f32);

impl<'de> Deserialize<'de> for Component {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Component, D::Error> {
        struct ComponentVisitor;
        impl<'de> Visitor<'de> for ComponentVisitor {
            type Value = Component;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number")
            }

            fn visit_f64<E: DeError>(self, value: f64) -> Result<Component, E> {
                Ok(Component(value as f32))
            }

            fn visit_u64<E: DeError>(self, value: u64) -> Result<Component, E> {
                Ok(Component(value as f32))
            }

            fn visit_i64<E: DeError>(self, value: i64) -> Result<Component, E> {
                Ok(Component(value as f32))
            }

            fn visit_unit<E: DeError>(self) -> Result<Component, E> {
                // JSON has no NaN.
                Err(E::custom(
                    "null is not a number; clients send NaN and infinite values as null, and \
                     vectors have finite values",
                ))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, _: A) -> Result<Component, A::Error> {
                Err(A::Error::custom(unsupported("a multivector")))
            }
        }
        deserializer.deserialize_any(ComponentVisitor)
    }
}

/// Advice for a value that is not a list. JavaScript writes a typed array as an object of numbers.
const LIST_ADVICE: &str =
    "write a list of numbers; in JavaScript, Array.from makes one of a typed array";

pub(super) struct DenseVector(pub(super) Vec<f32>);

impl<'de> Deserialize<'de> for DenseVector {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<DenseVector, D::Error> {
        struct DenseVectorVisitor;
        impl<'de> Visitor<'de> for DenseVectorVisitor {
            type Value = DenseVector;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of numbers")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<DenseVector, A::Error> {
                components(&mut seq).map(DenseVector)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<DenseVector, A::Error> {
                Err(object(&mut map)?)
            }

            fn visit_f64<E: DeError>(self, _: f64) -> Result<DenseVector, E> {
                Err(E::custom(format_args!("a number is not a vector; {LIST_ADVICE}")))
            }

            fn visit_u64<E: DeError>(self, _: u64) -> Result<DenseVector, E> {
                self.visit_f64(0.0)
            }

            fn visit_i64<E: DeError>(self, _: i64) -> Result<DenseVector, E> {
                self.visit_f64(0.0)
            }
        }
        deserializer.deserialize_any(DenseVectorVisitor)
    }
}

fn components<'de, A: SeqAccess<'de>>(seq: &mut A) -> Result<Vec<f32>, A::Error> {
    let mut values = Vec::new();
    while let Some(Component(value)) = seq.next_element()? {
        values.push(value);
    }
    Ok(values)
}

/// Reads an object to its end, and returns the error that says why it is not a vector.
pub(super) fn object<'de, A: MapAccess<'de>>(map: &mut A) -> Result<A::Error, A::Error> {
    let mut input = None;
    while let Some(key) = map.next_key::<String>()? {
        map.next_value::<IgnoredAny>()?;
        // The key of the input may come after the model's name.
        if is_inference(&key) {
            input = Some(key);
        }
    }
    Ok(no_vector(input.as_deref()))
}

/// Returns the error for an object with `key` instead of a vector.
pub(super) fn no_vector<E: DeError>(key: Option<&str>) -> E {
    E::custom(match key {
        Some("indices" | "values") => unsupported("a sparse vector"),
        Some("text") => unsupported("a text to be embedded"),
        Some("image") => {
            unsupported("an image in a vector's place (send images to /v1/images/COLLECTION)")
        }
        Some("object") => unsupported("an object to be embedded"),
        _ => format!("an object is not a vector; {LIST_ADVICE}"),
    })
}

/// Returns true if `key` belongs to a sparse vector or to an input that a model would embed.
pub(super) fn is_inference(key: &str) -> bool {
    matches!(key, "indices" | "values" | "text" | "image" | "object")
}

/// Reads an object of names and vectors.
fn named_vectors<'de, T: Deserialize<'de>, A: MapAccess<'de>>(
    mut map: A,
) -> Result<Vec<(String, T)>, A::Error> {
    let mut vectors = Vec::new();
    while let Some(name) = map.next_key::<String>()? {
        // A vector may be called "text": then its value is a list, and not a string or an object.
        if is_inference(&name) || name == "model" {
            match map.next_value::<VectorOrInput<T>>()? {
                VectorOrInput::Vector(vector) => vectors.push((name, vector)),
                // The key of the input may come after the model's name.
                VectorOrInput::Other(_) if name == "model" => return Err(object(&mut map)?),
                VectorOrInput::Other(_) => return Err(no_vector(Some(&name))),
            }
        } else {
            vectors.push((name, map.next_value()?));
        }
        if vectors.len() > NAMES_MAX {
            return Err(A::Error::custom(format_args!(
                "more than {NAMES_MAX} vectors in one point"
            )));
        }
    }
    let has = |key: &str| vectors.iter().any(|(name, _)| name == key);
    if has("indices") && has("values") {
        return Err(no_vector(Some("indices")));
    }
    Ok(vectors)
}

#[derive(serde::Deserialize)]
#[serde(untagged)]
enum VectorOrInput<T> {
    Vector(T),
    Other(IgnoredAny),
}

impl<'de> Deserialize<'de> for Vector {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Vector, D::Error> {
        struct VectorVisitor;
        impl<'de> Visitor<'de> for VectorVisitor {
            type Value = Vector;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a vector: a list of numbers, or an object of one name and such a list")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vector, A::Error> {
                components(&mut seq).map(Vector::Plain)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Vector, A::Error> {
                let vectors = named_vectors::<DenseVector, A>(map)?;
                Ok(Vector::Named(
                    vectors.into_iter().map(|(name, dense)| (name, dense.0)).collect(),
                ))
            }
        }
        deserializer.deserialize_any(VectorVisitor)
    }
}

impl<'de> Deserialize<'de> for BatchVectors {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<BatchVectors, D::Error> {
        struct BatchVectorsVisitor;
        impl<'de> Visitor<'de> for BatchVectorsVisitor {
            type Value = BatchVectors;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "vectors: a list of lists of numbers, or an object of one name and such a list",
                )
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<BatchVectors, A::Error> {
                let mut vectors = Vec::new();
                while let Some(DenseVector(values)) = seq.next_element()? {
                    vectors.push(values);
                }
                Ok(BatchVectors::Plain(vectors))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<BatchVectors, A::Error> {
                let columns = named_vectors::<Vec<DenseVector>, A>(map)?;
                let plain =
                    |column: Vec<DenseVector>| column.into_iter().map(|dense| dense.0).collect();
                Ok(BatchVectors::Named(
                    columns.into_iter().map(|(name, column)| (name, plain(column))).collect(),
                ))
            }
        }
        deserializer.deserialize_any(BatchVectorsVisitor)
    }
}
