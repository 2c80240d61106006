//! Parts of a point that a response has.

use std::collections::BTreeMap;

use search::filter::{Bracket, first_step};
use serde::de::{Deserialize, Deserializer, Error as _};
use serde_json::{Map, Value};

use super::OneOrMany;
use super::filter::check_path;

/// Maximum steps of one path: names and brackets.
const STEPS_MAX: usize = 64;

/// The requested part of the payload.
#[derive(Clone, Debug, PartialEq)]
pub enum WithPayload {
    /// All of it, or none.
    All(bool),
    /// The values at these paths.
    Include(PayloadPaths),
    /// All values except the values at these paths.
    Exclude(PayloadPaths),
}

/// The requested vectors.
#[derive(Clone, Debug, PartialEq)]
pub enum WithVector {
    /// All of them, or none.
    All(bool),
    /// The vectors of these names.
    Names(Vec<String>),
}

impl WithVector {
    /// Returns true if the vector called `name`, the only one of its collection, is requested.
    ///
    /// # Errors
    /// `InvalidArgument` for any other name.
    pub(crate) fn includes(&self, name: &str) -> base::Result<bool> {
        match self {
            WithVector::All(all) => Ok(*all),
            WithVector::Names(names) => match names.iter().find(|requested| *requested != name) {
                None => Ok(!names.is_empty()),
                Some(other) => Err(base::Error::invalid(format!(
                    "with_vector: Not existing vector name error: \"{other}\"; the collection's \
                     vector is called \"{name}\""
                ))),
            },
        }
    }
}

impl<'de> Deserialize<'de> for WithVector {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<WithVector, D::Error> {
        #[derive(serde::Deserialize)]
        #[serde(untagged)]
        enum VectorForm {
            All(bool),
            Names(OneOrMany<String>),
        }
        match VectorForm::deserialize(deserializer) {
            Ok(VectorForm::All(all)) => Ok(WithVector::All(all)),
            Ok(VectorForm::Names(names)) => Ok(WithVector::Names(names.many())),
            Err(_) => Err(D::Error::custom("true, false or a list of vector names is expected")),
        }
    }
}

/// Paths of names joined by dots, as a tree of their common steps. `[]` after a name goes into the
/// elements of its list. The number of one element leads to no value, as in Qdrant.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PayloadPaths {
    /// True if a path ends here and covers everything below.
    ends: bool,
    names: BTreeMap<String, PayloadPaths>,
    elements: Option<Box<PayloadPaths>>,
}

impl PayloadPaths {
    fn new(paths: &[String]) -> Result<PayloadPaths, String> {
        let mut root = PayloadPaths::default();
        for path in paths {
            check_path(path)?;
            if path.bytes().filter(|byte| matches!(byte, b'.' | b'[')).count() >= STEPS_MAX {
                return Err(format!("a field's path has more than {STEPS_MAX} steps"));
            }
            root.add(path);
        }
        Ok(root)
    }

    /// Adds a path to the tree. A path with the position of one element of a list covers no value.
    fn add(&mut self, path: &str) {
        let mut at = self;
        let mut next = Some(path);
        while let Some(rest) = next {
            let step = first_step(rest);
            at = at.names.entry(step.name.to_owned()).or_default();
            let mut brackets = step.brackets;
            while let Some((bracket, more)) = brackets.split_first() {
                if bracket != Bracket::Each {
                    return;
                }
                at = at.elements.get_or_insert_default();
                brackets = more;
            }
            next = step.rest;
        }
        at.ends = true;
    }

    /// Returns the parts of a value that the paths name.
    fn include(&self, value: Value) -> Value {
        match value {
            value if self.ends => value,
            Value::Object(fields) => Value::Object(self.include_fields(fields)),
            Value::Array(list) => match &self.elements {
                Some(elements) => list.into_iter().map(|value| elements.include(value)).collect(),
                None => Value::Array(Vec::new()),
            },
            value => value,
        }
    }

    fn include_fields(&self, fields: Map<String, Value>) -> Map<String, Value> {
        let included = |(name, value): (String, Value)| {
            let below = self.names.get(&name)?;
            Some((name, below.include(value)))
        };
        fields.into_iter().filter_map(included).collect()
    }

    /// Returns a value without the parts that the paths name, or `None` if they name all of it.
    fn exclude(&self, value: Value) -> Option<Value> {
        match value {
            _ if self.ends => None,
            Value::Object(fields) => Some(Value::Object(self.exclude_fields(fields))),
            Value::Array(list) => Some(match &self.elements {
                Some(elements) => {
                    list.into_iter().filter_map(|value| elements.exclude(value)).collect()
                }
                None => Value::Array(list),
            }),
            value => Some(value),
        }
    }

    fn exclude_fields(&self, fields: Map<String, Value>) -> Map<String, Value> {
        let kept = |(name, value): (String, Value)| match self.names.get(&name) {
            Some(below) => below.exclude(value).map(|value| (name, value)),
            None => Some((name, value)),
        };
        fields.into_iter().filter_map(kept).collect()
    }
}

impl WithPayload {
    /// Returns false if no part of the payload is requested.
    pub fn any(&self) -> bool {
        *self != WithPayload::All(false)
    }

    /// Returns the requested part of a payload, or `None` if no part is requested.
    pub(crate) fn project(&self, payload: Map<String, Value>) -> Option<Map<String, Value>> {
        match self {
            WithPayload::All(all) => all.then_some(payload),
            WithPayload::Include(paths) => Some(paths.include_fields(payload)),
            WithPayload::Exclude(paths) => Some(paths.exclude_fields(payload)),
        }
    }
}

impl<'de> Deserialize<'de> for WithPayload {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<WithPayload, D::Error> {
        #[derive(serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Include {
            include: Vec<String>,
        }
        #[derive(serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Exclude {
            exclude: Vec<String>,
        }
        #[derive(serde::Deserialize)]
        #[serde(untagged)]
        enum PayloadForm {
            All(bool),
            Paths(Vec<String>),
            Include(Include),
            Exclude(Exclude),
        }
        let form = PayloadForm::deserialize(deserializer).map_err(|_| {
            D::Error::custom(
                "true, false, a list of fields, {\"include\": [..]} or {\"exclude\": [..]} is expected",
            )
        })?;
        let paths = |paths: &[String]| PayloadPaths::new(paths).map_err(D::Error::custom);
        Ok(match form {
            PayloadForm::All(all) => WithPayload::All(all),
            PayloadForm::Paths(names) => WithPayload::Include(paths(&names)?),
            PayloadForm::Include(form) => WithPayload::Include(paths(&form.include)?),
            PayloadForm::Exclude(form) => WithPayload::Exclude(paths(&form.exclude)?),
        })
    }
}
