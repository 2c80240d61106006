//! Vectors: of messages as JSON, and of JSON responses as messages.
#![allow(deprecated)] // Older clients write and read the fields without a kind.

use std::collections::BTreeMap;
use std::fmt;

use base::{Error, Result};
use protocol::qdrant::vector::Vector as Kind;
use protocol::qdrant::vector_input::Variant;
use protocol::qdrant::vectors::VectorsOptions;
use protocol::qdrant::{
    DenseVector, MultiDenseVector, NamedVectorsOutput, SparseVector, Vector, VectorInput,
    VectorOutput, Vectors, VectorsOutput, vector_output, vectors_output,
};
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};
use serde_json::{Value, json};

use crate::values;

/// A vector that is written as JSON without a copy of its numbers.
#[derive(Debug)]
pub(crate) enum VectorJson<'a> {
    Dense(&'a [f32]),
    Multi(Vec<&'a [f32]>),
    /// A sparse vector, which routes refuse by the names of its members.
    Sparse {
        indices: &'a [u32],
        values: &'a [f32],
    },
    /// Anything else, which routes refuse by its names.
    Other(Value),
}

impl Serialize for VectorJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        match self {
            VectorJson::Dense(values) => values.serialize(serializer),
            VectorJson::Multi(rows) => {
                let mut list = serializer.serialize_seq(Some(rows.len()))?;
                rows.iter().try_for_each(|row| list.serialize_element(row))?;
                list.end()
            }
            VectorJson::Sparse { indices, values } => {
                let mut members = serializer.serialize_map(Some(2))?;
                members.serialize_entry("indices", indices)?;
                members.serialize_entry("values", values)?;
                members.end()
            }
            VectorJson::Other(value) => value.serialize(serializer),
        }
    }
}

/// The vector or the named vectors of a point.
#[derive(Debug)]
pub(crate) enum PointVectors<'a> {
    Plain(VectorJson<'a>),
    Named(BTreeMap<&'a str, VectorJson<'a>>),
}

impl Serialize for PointVectors<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        match self {
            PointVectors::Plain(vector) => vector.serialize(serializer),
            PointVectors::Named(named) => named.serialize(serializer),
        }
    }
}

fn sparse(vector: &SparseVector) -> VectorJson<'_> {
    VectorJson::Sparse { indices: &vector.indices, values: &vector.values }
}

fn multi(vector: &MultiDenseVector) -> VectorJson<'_> {
    VectorJson::Multi(vector.vectors.iter().map(|row| row.data.as_slice()).collect())
}

/// Returns the JSON of a vector.
///
/// # Errors
/// `InvalidArgument` for several vectors whose lengths differ.
pub(crate) fn vector(vector: &Vector) -> Result<VectorJson<'_>> {
    Ok(match &vector.vector {
        Some(Kind::Dense(dense)) => VectorJson::Dense(&dense.data),
        Some(Kind::Sparse(given)) => sparse(given),
        Some(Kind::MultiDense(rows)) => multi(rows),
        Some(Kind::Document(document)) => VectorJson::Other(json!({ "text": document.text })),
        Some(Kind::Image(_)) => VectorJson::Other(json!({ "image": null })),
        Some(Kind::Object(_)) => VectorJson::Other(json!({ "object": null })),
        None => without_kind(vector)?,
    })
}

/// Returns the vector of a client that writes no kind.
fn without_kind(vector: &Vector) -> Result<VectorJson<'_>> {
    if let Some(indices) = &vector.indices {
        return Ok(VectorJson::Sparse { indices: &indices.data, values: &vector.data });
    }
    let Some(count) = vector.vectors_count else { return Ok(VectorJson::Dense(&vector.data)) };
    let length = vector.data.len().checked_div(count as usize).unwrap_or(0);
    if length == 0 || length * count as usize != vector.data.len() {
        return Err(Error::invalid(format!(
            "{} numbers cannot be {count} vectors of one length",
            vector.data.len()
        )));
    }
    Ok(VectorJson::Multi(vector.data.chunks_exact(length).collect()))
}

/// Returns the JSON of a point's vectors, or `None` for a point without any.
///
/// # Errors
/// As [`vector`].
pub(crate) fn vectors(vectors: &Vectors) -> Result<Option<PointVectors<'_>>> {
    Ok(match &vectors.vectors_options {
        None => None,
        Some(VectorsOptions::Vector(one)) => Some(PointVectors::Plain(vector(one)?)),
        Some(VectorsOptions::Vectors(named)) => {
            let mut all = BTreeMap::new();
            for (name, one) in &named.vectors {
                let made = vector(one).map_err(|error| error.context(name))?;
                all.insert(name.as_str(), made);
            }
            Some(PointVectors::Named(all))
        }
    })
}

/// Returns the JSON of a vector in a query.
///
/// # Errors
/// As [`vector`].
pub(crate) fn of_query(given: &Vector) -> Result<Value> {
    json_of(&vector(given)?)
}

fn json_of(vector: &VectorJson<'_>) -> Result<Value> {
    serde_json::to_value(vector)
        .map_err(|error| Error::internal("a vector has no JSON").caused_by(error))
}

/// Returns the JSON of a query's vector: values, or a point that has them.
///
/// # Errors
/// `InvalidArgument` if it is neither.
pub(crate) fn input(input: VectorInput) -> Result<Value> {
    match input.variant {
        Some(Variant::Id(id)) => values::id(id),
        Some(Variant::Dense(dense)) => json_of(&VectorJson::Dense(&dense.data)),
        Some(Variant::Sparse(given)) => json_of(&sparse(&given)),
        Some(Variant::MultiDense(rows)) => json_of(&multi(&rows)),
        Some(Variant::Document(document)) => Ok(json!({ "text": document.text })),
        Some(Variant::Image(_)) => Ok(json!({ "image": null })),
        Some(Variant::Object(_)) => Ok(json!({ "object": null })),
        None => Err(Error::invalid("a vector of the query is empty")),
    }
}

/// Returns the JSON of an optional [`input`], or null if it is absent.
///
/// # Errors
/// As [`input`].
pub(crate) fn optional_input(given: Option<VectorInput>) -> Result<Value> {
    given.map_or(Ok(Value::Null), input)
}

/// Vector of a point in a response, alone or under its name.
#[derive(Debug, PartialEq)]
pub(crate) enum JsonVectors {
    Plain(Vec<f32>),
    Named(BTreeMap<String, Vec<f32>>),
}

impl<'de> Deserialize<'de> for JsonVectors {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = JsonVectors;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a vector or named vectors")
            }

            fn visit_seq<A: SeqAccess<'de>>(
                self,
                mut list: A,
            ) -> std::result::Result<JsonVectors, A::Error> {
                let mut values = Vec::new();
                while let Some(value) = list.next_element()? {
                    values.push(value);
                }
                Ok(JsonVectors::Plain(values))
            }

            fn visit_map<A: MapAccess<'de>>(
                self,
                mut members: A,
            ) -> std::result::Result<JsonVectors, A::Error> {
                let mut named = BTreeMap::new();
                while let Some((name, values)) = members.next_entry()? {
                    named.insert(name, values);
                }
                Ok(JsonVectors::Named(named))
            }
        }
        deserializer.deserialize_any(Either)
    }
}

/// Returns the message of a vector. Clients before version 1.16 read the numbers without a kind,
/// so both are set.
fn output(data: Vec<f32>) -> VectorOutput {
    let dense = vector_output::Vector::Dense(DenseVector { data: data.clone() });
    VectorOutput { data, vector: Some(dense), ..VectorOutput::default() }
}

impl From<JsonVectors> for VectorsOutput {
    fn from(vectors: JsonVectors) -> VectorsOutput {
        let options = match vectors {
            JsonVectors::Plain(values) => vectors_output::VectorsOptions::Vector(output(values)),
            JsonVectors::Named(named) => {
                let vectors = named.into_iter().map(|(name, values)| (name, output(values)));
                vectors_output::VectorsOptions::Vectors(NamedVectorsOutput {
                    vectors: vectors.collect(),
                })
            }
        };
        VectorsOutput { vectors_options: Some(options) }
    }
}

#[cfg(test)]
mod tests {
    use protocol::qdrant::SparseIndices;

    use super::*;

    fn text(given: &Vector) -> String {
        serde_json::to_string(&vector(given).unwrap()).unwrap()
    }

    #[test]
    fn every_spelling_of_a_vector_is_read() {
        let data = vec![0.1, -2.0, 3e-30, 4.0];
        let dense = Kind::Dense(DenseVector { data: data.clone() });
        let new = Vector { vector: Some(dense), ..Vector::default() };
        let old = Vector { data: data.clone(), ..Vector::default() };
        assert_eq!(text(&new), "[0.1,-2.0,3e-30,4.0]");
        assert_eq!(text(&new), text(&old));
        let rows = Vector { vectors_count: Some(2), ..old.clone() };
        assert_eq!(text(&rows), "[[0.1,-2.0],[3e-30,4.0]]");
        for count in [0, 3, 5] {
            let wrong = Vector { vectors_count: Some(count), ..old.clone() };
            assert!(vector(&wrong).is_err(), "{count}");
        }
        let indices = SparseIndices { data: vec![7] };
        let old = Vector { data: vec![0.1], indices: Some(indices), ..Vector::default() };
        let sparse = Kind::Sparse(SparseVector { indices: vec![7], values: vec![0.1] });
        let new = Vector { vector: Some(sparse), ..Vector::default() };
        // 32-bit numbers, not a copy of them as JSON values of 64 bits.
        assert_eq!(text(&old), r#"{"indices":[7],"values":[0.1]}"#);
        assert_eq!(text(&new), text(&old));
    }

    #[test]
    fn numbers_of_vectors_keep_their_bits() {
        let data: Vec<f32> =
            (0..1000u32).map(|step| f32::from_bits(0x3d80_0001 + step * 7919)).collect();
        let json = serde_json::to_vec(&VectorJson::Dense(&data)).unwrap();
        let read: JsonVectors = serde_json::from_slice(&json).unwrap();
        assert_eq!(read, JsonVectors::Plain(data));
    }
}
