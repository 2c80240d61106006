//! Filters: conditions on payloads and ids, as a plain tree.

use serde::de::{Deserialize, Deserializer, Error as _};
use serde_json::{Map, Value};

use super::{PointId, limits, unsupported};

/// Conditions that are met together; [`Filter::default`] allows everything.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Filter {
    /// All of these are met.
    pub must: Vec<Condition>,
    /// Where there are any, one of these is met.
    pub should: Vec<Condition>,
    /// None of these is met.
    pub must_not: Vec<Condition>,
}

/// One condition.
#[derive(Clone, Debug, PartialEq)]
pub enum Condition {
    /// The field under this path has a value that matches.
    Match {
        /// Names joined by dots.
        key: String,
        /// What the value is compared with.
        matching: Match,
    },
    /// The field has a number within limits.
    Range {
        /// Names joined by dots.
        key: String,
        /// The limits.
        range: Range,
    },
    /// The point is one of these.
    HasId(Vec<PointId>),
    /// The field is absent, null or an empty list.
    IsEmpty {
        /// Names joined by dots.
        key: String,
    },
    /// The filter is met.
    Filter(Filter),
}

/// What a value is compared with.
#[derive(Clone, Debug, PartialEq)]
pub enum Match {
    /// This value.
    Value(Value),
    /// One of these.
    Any(Vec<Value>),
    /// Something else than these.
    Except(Vec<Value>),
}

/// Limits of a number; `None` does not limit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Range {
    /// Greater than this.
    pub gt: Option<f64>,
    /// This or greater.
    pub gte: Option<f64>,
    /// Less than this.
    pub lt: Option<f64>,
    /// This or less.
    pub lte: Option<f64>,
}

impl<'de> Deserialize<'de> for Filter {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Filter, D::Error> {
        // How deep values may be nested is bounded by the JSON reader; how deep a filter may be, by who
        // evaluates it.
        let value = Value::deserialize(deserializer)?;
        filter(&value).map_err(D::Error::custom)
    }
}

type Parsed<T> = Result<T, String>;

/// Puts the field's name before what went wrong in it.
fn within<T>(name: impl std::fmt::Display, parsed: Parsed<T>) -> Parsed<T> {
    parsed.map_err(|message| format!("{name}: {message}"))
}

fn object(value: &Value) -> Parsed<&Map<String, Value>> {
    value.as_object().ok_or_else(|| "an object is expected".to_owned())
}

/// The entries that are not null.
fn given(object: &Map<String, Value>) -> impl Iterator<Item = (&str, &Value)> {
    object.iter().filter(|(_, value)| !value.is_null()).map(|(name, value)| (name.as_str(), value))
}

fn filter(value: &Value) -> Parsed<Filter> {
    let mut filter = Filter::default();
    for (name, value) in given(object(value)?) {
        let list = match name {
            "must" => &mut filter.must,
            "should" => &mut filter.should,
            "must_not" => &mut filter.must_not,
            "min_should" => return Err(unsupported("min_should in a filter")),
            other => return Err(format!("{other}: a filter has must, should and must_not")),
        };
        *list = within(name, conditions(value))?;
    }
    Ok(filter)
}

fn conditions(value: &Value) -> Parsed<Vec<Condition>> {
    match value {
        Value::Array(list) => list
            .iter()
            .enumerate()
            .map(|(at, value)| within(format_args!("[{at}]"), condition(value)))
            .collect(),
        one => Ok(vec![condition(one)?]),
    }
}

fn condition(value: &Value) -> Parsed<Condition> {
    let fields = object(value)?;
    if fields.contains_key("key") {
        return field(fields);
    }
    let mut entries = given(fields);
    let Some((name, value)) = entries.next() else { return Ok(Condition::Filter(Filter::default())) };
    let alone = entries.next().is_none();
    match name {
        "has_id" if alone => {
            let ids = within(name, Vec::<PointId>::deserialize(value).map_err(|error| error.to_string()))?;
            Ok(Condition::HasId(ids))
        }
        "is_empty" if alone => Ok(Condition::IsEmpty { key: within(name, key_of(value))? }),
        "is_null" | "has_vector" | "nested" | "custom" | "slice" => {
            Err(unsupported(format_args!("the condition {name}")))
        }
        "must" | "should" | "must_not" | "min_should" => {
            Ok(Condition::Filter(filter(&Value::Object(fields.clone()))?))
        }
        other => Err(format!(
            "{other}: no such condition; there are key with match or range, has_id, is_empty, filters"
        )),
    }
}

fn key_of(value: &Value) -> Parsed<String> {
    text(object(value)?.get("key"), "key")
}

fn text(value: Option<&Value>, name: &str) -> Parsed<String> {
    value.and_then(Value::as_str).map(str::to_owned).ok_or_else(|| format!("{name}: a string is expected"))
}

/// A condition on a field: one of match, range and is_empty.
fn field(fields: &Map<String, Value>) -> Parsed<Condition> {
    let path = text(fields.get("key"), "key")?;
    let mut found = None;
    for (name, value) in given(fields).filter(|(name, _)| *name != "key") {
        let key = path.clone();
        let condition = match name {
            "match" => Condition::Match { key, matching: within(name, matching(value))? },
            "range" => Condition::Range { key, range: within(name, range(value))? },
            "is_empty" => empty(key, value)?,
            "geo_bounding_box" | "geo_radius" | "geo_polygon" | "values_count" | "is_null" => {
                return Err(unsupported(format_args!("the condition {name}")));
            }
            other => return Err(format!("{other}: a condition on a field is match, range or is_empty")),
        };
        if found.replace(condition).is_some() {
            return Err(format!(
                "the condition on \"{path}\" says more than one thing; write a condition for each"
            ));
        }
    }
    found.ok_or_else(|| {
        limits(format_args!("the condition on \"{path}\" says nothing; give match, range or is_empty"))
    })
}

fn empty(key: String, value: &Value) -> Parsed<Condition> {
    match value.as_bool() {
        Some(true) => Ok(Condition::IsEmpty { key }),
        Some(false) => {
            Ok(Condition::Filter(Filter { must_not: vec![Condition::IsEmpty { key }], ..Filter::default() }))
        }
        None => Err("is_empty: true or false is expected".to_owned()),
    }
}

fn matching(value: &Value) -> Parsed<Match> {
    let mut entries = given(object(value)?);
    let (Some((name, value)), None) = (entries.next(), entries.next()) else {
        return Err("one of value, any and except is expected".to_owned());
    };
    match name {
        "value" => Ok(Match::Value(within(name, scalar(value))?)),
        "any" => Ok(Match::Any(within(name, scalars(value))?)),
        "except" => Ok(Match::Except(within(name, scalars(value))?)),
        "text" | "text_any" | "phrase" | "prefix" | "substring" => {
            Err(unsupported(format_args!("matching by {name}")))
        }
        other => Err(format!("{other}: one of value, any and except is expected")),
    }
}

fn scalar(value: &Value) -> Parsed<Value> {
    match value {
        Value::String(_) | Value::Number(_) | Value::Bool(_) => Ok(value.clone()),
        _ => Err("a string, a number or a truth value is expected".to_owned()),
    }
}

fn scalars(value: &Value) -> Parsed<Vec<Value>> {
    let list = value.as_array().ok_or_else(|| "a list is expected".to_owned())?;
    list.iter().enumerate().map(|(at, value)| within(format_args!("[{at}]"), scalar(value))).collect()
}

fn range(value: &Value) -> Parsed<Range> {
    let mut range = Range::default();
    for (name, value) in given(object(value)?) {
        let limit = match name {
            "gt" => &mut range.gt,
            "gte" => &mut range.gte,
            "lt" => &mut range.lt,
            "lte" => &mut range.lte,
            other => return Err(format!("{other}: a range has gt, gte, lt and lte")),
        };
        if value.is_string() {
            return Err(unsupported(format_args!("{name}: a range of dates")));
        }
        *limit = Some(value.as_f64().ok_or_else(|| format!("{name}: a number is expected"))?);
    }
    Ok(range)
}
