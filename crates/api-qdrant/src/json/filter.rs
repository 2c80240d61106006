//! Reads Qdrant's JSON of filters into [`Filter`].

use search::filter::{
    Condition, Filter, IdSlice, Match, MinShould, RangeLimit, TEXT_QUERY_BYTES_MAX,
    TEXT_QUERY_WORDS_MAX, TextMatch, TextMatchKind, Tokenizer, ValueLimits, parse_date,
};
use search::points::PointId;
use serde::de::{Deserialize, Deserializer, Error as _};
use serde_json::{Map, Value};

use super::unique::UniqueMembers;
use super::{geo, limits, unsupported};

/// A message without the position in the text. Callers add the position.
pub(super) type Parsed<T> = Result<T, String>;

/// Reads a filter. Its nesting is bounded by the JSON reader here and by [`Filter::check`] later.
pub(super) fn required<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Filter, D::Error> {
    let UniqueMembers(value) = UniqueMembers::deserialize(deserializer)?;
    object(&value).and_then(filter).map_err(D::Error::custom)
}

/// Reads a filter or null.
pub(super) fn optional<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Filter>, D::Error> {
    let value = Option::<UniqueMembers>::deserialize(deserializer)?;
    let read = value.map(|UniqueMembers(value)| object(&value).and_then(filter));
    read.transpose().map_err(D::Error::custom)
}

/// Adds the name of the field before the message of its error.
pub(super) fn in_field<T>(name: impl std::fmt::Display, parsed: Parsed<T>) -> Parsed<T> {
    parsed.map_err(|message| format!("{name}: {message}"))
}

pub(super) fn object(value: &Value) -> Parsed<&Map<String, Value>> {
    value.as_object().ok_or_else(|| "an object is expected".to_owned())
}

/// Returns the members that are not null.
pub(super) fn members(object: &Map<String, Value>) -> impl Iterator<Item = (&str, &Value)> {
    object.iter().filter(|(_, value)| !value.is_null()).map(|(name, value)| (name.as_str(), value))
}

/// Returns the values of an object that has these members and no others.
pub(super) fn required_members<'a, const N: usize>(
    value: &'a Value,
    names: [&str; N],
) -> Parsed<[&'a Value; N]> {
    let fields = object(value)?;
    if let Some((other, _)) = members(fields).find(|(name, _)| !names.contains(name)) {
        return Err(format!("{other}: no such member; there are {}", names.join(" and ")));
    }
    let mut found = [&Value::Null; N];
    for (place, name) in found.iter_mut().zip(names) {
        let member = fields.get(name).filter(|member| !member.is_null());
        *place = member.ok_or_else(|| format!("{name} is missing"))?;
    }
    Ok(found)
}

/// Reads the members of a filter. A member that no filter has is refused even if it is null. If it
/// were ignored, the filter would match more points, and a deletion would delete more.
fn filter(fields: &Map<String, Value>) -> Parsed<Filter> {
    let mut filter = Filter::default();
    for (name, value) in fields {
        let list = match name.as_str() {
            "must" => &mut filter.must,
            "should" => &mut filter.should,
            "must_not" => &mut filter.must_not,
            "min_should" if value.is_null() => continue,
            "min_should" => {
                filter.min_should = Some(in_field(name, min_should(value))?);
                continue;
            }
            other => {
                return Err(format!("{other}: a filter has must, should, must_not and min_should"));
            }
        };
        if !value.is_null() {
            *list = in_field(name, conditions(value))?;
        }
    }
    Ok(filter)
}

fn min_should(value: &Value) -> Parsed<MinShould> {
    let fields = object(value)?;
    let mut parsed = MinShould { conditions: Vec::new(), min_count: 0 };
    for (name, value) in members(fields) {
        match name {
            "conditions" => parsed.conditions = in_field(name, conditions(value))?,
            "min_count" => parsed.min_count = in_field(name, count(value))? as usize,
            other => return Err(format!("{other}: conditions and min_count are expected")),
        }
    }
    for name in ["conditions", "min_count"] {
        if !fields.contains_key(name) {
            return Err(format!("{name} is missing"));
        }
    }
    // It would match every point, and a deletion with it would delete all.
    if parsed.min_count == 0 {
        return Err(limits("min_count: value 0 invalid, must be 1 or larger"));
    }
    Ok(parsed)
}

fn count(value: &Value) -> Parsed<u64> {
    value.as_u64().ok_or_else(|| "a number of 0 or more is expected".to_owned())
}

/// Parses one condition or a list of them.
fn conditions(value: &Value) -> Parsed<Vec<Condition>> {
    match value {
        Value::Array(list) => list
            .iter()
            .enumerate()
            .map(|(at, value)| in_field(format_args!("[{at}]"), condition(value)))
            .collect(),
        one => Ok(vec![condition(one)?]),
    }
}

/// Reads a condition.
pub(super) fn condition(value: &Value) -> Parsed<Condition> {
    let fields = object(value)?;
    if fields.get("key").is_some_and(|key| !key.is_null()) {
        return field(fields);
    }
    let mut entries = members(fields);
    let Some((name, value)) = entries.next() else {
        // A filter without conditions, or one whose members are null.
        return filter(fields).map(Condition::Nested);
    };
    let alone = entries.next().is_none();
    match name {
        "has_id" if alone => {
            let ids = Vec::<PointId>::deserialize(value).map_err(|error| error.to_string());
            let internal = in_field(name, ids)?.iter().map(PointId::internal).collect();
            Ok(Condition::has_id(internal))
        }
        "is_empty" if alone => {
            let key = object(value).and_then(|object| field_path(object.get("key")));
            Ok(Condition::IsEmpty { key: in_field(name, key)? })
        }
        "is_null" if alone => {
            let key = object(value).and_then(|object| field_path(object.get("key")));
            Ok(Condition::IsNull { key: in_field(name, key)? })
        }
        "has_vector" if alone => {
            let name = value.as_str().ok_or_else(|| format!("{name}: a string is expected"))?;
            Ok(Condition::HasVector { name: name.to_owned(), is_present: false })
        }
        "nested" if alone => in_field(name, element(value)),
        "slice" if alone => in_field(name, slice(value)).map(Condition::Slice),
        "custom" => Err(unsupported(format_args!("the condition {name}"))),
        "must" | "should" | "must_not" | "min_should" => filter(fields).map(Condition::Nested),
        other => Err(format!(
            "{other}: no such condition; there are key with match, range, values_count or an area, has_id, \
             has_vector, is_empty, is_null, nested, slice, filters"
        )),
    }
}

/// Reads a slice of all points.
fn slice(value: &Value) -> Parsed<IdSlice> {
    let [total, index] = required_members(value, ["total", "index"])?;
    let number = |value: &Value| value.as_u64().and_then(|number| u32::try_from(number).ok());
    let numbers = number(total).zip(number(index));
    let (total, index) = numbers.ok_or_else(|| "numbers of 32 bits are expected".to_owned())?;
    IdSlice::new(total, index)
        .ok_or_else(|| limits(format_args!("index: {index} is not less than total, {total}")))
}

/// Returns true if a condition, or one inside of it, is a slice of all points.
pub(super) fn has_slice(condition: &Condition) -> bool {
    match condition {
        Condition::Slice(_) => true,
        Condition::Nested(filter) | Condition::Element { filter, .. } => {
            filter.conditions().any(has_slice)
        }
        _ => false,
    }
}

/// Reads a filter for one object of a list.
fn element(value: &Value) -> Parsed<Condition> {
    let [key, inner] = required_members(value, ["key", "filter"])?;
    let key = field_path(Some(key))?;
    let filter = in_field("filter", object(inner).and_then(filter))?;
    Ok(Condition::Element { key, filter })
}

/// Reads the path of a field, which is the member `key` of a condition.
fn field_path(value: Option<&Value>) -> Parsed<String> {
    let expected = || "key: a string is expected".to_owned();
    let path = value.and_then(Value::as_str).ok_or_else(expected)?;
    in_field("key", check_path(path))?;
    Ok(path.to_owned())
}

/// Reads the path of a field.
pub(super) fn path<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let path = String::deserialize(deserializer)?;
    check_path(&path).map_err(D::Error::custom)?;
    Ok(path)
}

/// Refuses a path that cannot be read. If it were read as a name, it would lead to no value, and
/// its condition would hold for no point.
pub(super) fn check_path(path: &str) -> Result<(), String> {
    search::filter::check_path(path).map_err(|error| error.to_string())
}

/// Reads a condition on a field: one of match, range, values_count, an area, is_empty and is_null.
fn field(fields: &Map<String, Value>) -> Parsed<Condition> {
    let path = field_path(fields.get("key"))?;
    let mut found = None;
    for (name, value) in members(fields).filter(|(name, _)| *name != "key") {
        let key = path.clone();
        let condition = match name {
            "match" => Condition::Match { key, matching: in_field(name, matching(value))? },
            "range" => in_field(name, range(key, value))?,
            "values_count" => {
                let range = in_field(name, limits_of(value, count))?;
                Condition::ValuesCount { key, range }
            }
            "is_empty" => truth(name, Condition::IsEmpty { key }, value)?,
            "is_null" => truth(name, Condition::IsNull { key }, value)?,
            "geo_bounding_box" => {
                Condition::Geo { key, area: in_field(name, geo::bounding_box(value))? }
            }
            "geo_radius" => Condition::Geo { key, area: in_field(name, geo::radius(value))? },
            "geo_polygon" => Condition::Geo { key, area: in_field(name, geo::polygon(value))? },
            other => {
                return Err(format!(
                    "{other}: a condition on a field is match, range, values_count, geo_bounding_box, \
                     geo_radius, geo_polygon, is_empty or is_null"
                ));
            }
        };
        if found.replace(condition).is_some() {
            return Err(format!(
                "the condition on \"{path}\" has more than one test; write a condition for each"
            ));
        }
    }
    found.ok_or_else(|| {
        limits(format_args!("the condition on \"{path}\" is empty; give match, range or is_empty"))
    })
}

/// Returns the condition if `value` is true, or its opposite if it is false.
fn truth(name: &str, condition: Condition, value: &Value) -> Parsed<Condition> {
    match value.as_bool() {
        Some(true) => Ok(condition),
        Some(false) => {
            Ok(Condition::Nested(Filter { must_not: vec![condition], ..Filter::default() }))
        }
        None => Err(format!("{name}: true or false is expected")),
    }
}

/// Parses the object `match` of a condition. It has exactly one member.
fn matching(value: &Value) -> Parsed<Match> {
    let mut entries = members(object(value)?);
    let (Some((name, value)), None) = (entries.next(), entries.next()) else {
        return Err("one of value, any, except and a kind of text is expected".to_owned());
    };
    match name {
        "value" => Ok(Match::Value(in_field(name, scalar(value))?)),
        "any" => Ok(Match::Any(in_field(name, scalars(value))?.into())),
        "except" => Ok(Match::Except(in_field(name, scalars(value))?.into())),
        "text" => in_field(name, text_match(TextMatchKind::All, value)),
        "text_any" => in_field(name, text_match(TextMatchKind::Any, value)),
        "phrase" => in_field(name, text_match(TextMatchKind::Phrase, value)),
        "prefix" => Ok(Match::Prefix(in_field(name, query_text(value))?.to_owned())),
        "substring" => Ok(Match::Substring(in_field(name, query_text(value))?.to_owned())),
        other => Err(format!(
            "{other}: one of value, any, except, text, text_any, phrase, prefix and substring is expected"
        )),
    }
}

fn query_text(value: &Value) -> Parsed<&str> {
    let text = value.as_str().ok_or_else(|| "a string is expected".to_owned())?;
    if text.len() > TEXT_QUERY_BYTES_MAX {
        let bytes = text.len();
        return Err(limits(format_args!("{bytes} bytes; at most {TEXT_QUERY_BYTES_MAX}")));
    }
    Ok(text)
}

/// Reads a text whose words are searched for. The words are those of a field without an index.
fn text_match(kind: TextMatchKind, value: &Value) -> Parsed<Match> {
    let text = query_text(value)?;
    let matching = TextMatch::new(kind, text, Tokenizer::default());
    let words = matching.words().max(text.split_whitespace().count());
    if words > TEXT_QUERY_WORDS_MAX {
        return Err(limits(format_args!("{words} words; at most {TEXT_QUERY_WORDS_MAX}")));
    }
    Ok(Match::Text(matching))
}

fn scalar(value: &Value) -> Parsed<Value> {
    match value {
        Value::String(_) | Value::Number(_) | Value::Bool(_) => Ok(value.clone()),
        _ => Err("a string, a number or a truth value is expected".to_owned()),
    }
}

fn scalars(value: &Value) -> Parsed<Vec<Value>> {
    let list = value.as_array().ok_or_else(|| "a list is expected".to_owned())?;
    list.iter()
        .enumerate()
        .map(|(at, value)| in_field(format_args!("[{at}]"), scalar(value)))
        .collect()
}

/// Reads a range of numbers, or of dates if a limit is a text.
fn range(key: String, value: &Value) -> Parsed<Condition> {
    let dates = members(object(value)?).any(|(_, limit)| limit.is_string());
    if dates {
        let range = limits_of(value, |limit| {
            let date = limit.as_str().and_then(parse_date);
            date.ok_or_else(|| "a date as in RFC 3339 is expected".to_owned())
        })?;
        return Ok(Condition::DateRange { key, range });
    }
    let range = limits_of(value, |limit| {
        let number = limit.as_number().and_then(RangeLimit::of);
        number.ok_or_else(|| "a number or a date is expected".to_owned())
    })?;
    // Floats suffice for nearly all ranges, and an index decides them alone.
    Ok(match range.as_floats() {
        Some(range) => Condition::Range { key, range },
        None => Condition::WholeRange { key, range },
    })
}

/// Parses the limits of a range. `read` parses a limit, which is a number or a date.
fn limits_of<T>(value: &Value, read: impl Fn(&Value) -> Parsed<T>) -> Parsed<ValueLimits<T>> {
    let mut range = ValueLimits { gt: None, gte: None, lt: None, lte: None };
    for (name, value) in members(object(value)?) {
        let limit = match name {
            "gt" => &mut range.gt,
            "gte" => &mut range.gte,
            "lt" => &mut range.lt,
            "lte" => &mut range.lte,
            other => return Err(format!("{other}: a range has gt, gte, lt and lte")),
        };
        *limit = Some(in_field(name, read(value))?);
    }
    Ok(range)
}
