//! Filters as JSON.

use base::{Error, Result};
use prost_types::Timestamp;
use protocol::qdrant::condition::ConditionOneOf;
use protocol::qdrant::r#match::MatchValue;
use protocol::qdrant::points_selector::PointsSelectorOneOf;
use protocol::qdrant::{
    Condition, DatetimeRange, FieldCondition, Filter, GeoLineString, GeoPoint, GeoPolygon, Match,
    MinShould, PointsSelector, Range, ValuesCount,
};
use serde_json::{Value, json};

use crate::members::{filled, object, optional};
use crate::values;

/// First date that a text can have. It limits a range of dates without limits.
const FIRST_DATE: &str = "0000-01-01T00:00:00Z";

/// Returns the JSON of an optional filter, or null if it is absent.
///
/// # Errors
/// As [`filter`].
pub(crate) fn optional_filter(given: Option<Filter>) -> Result<Value> {
    given.map_or(Ok(Value::Null), filter)
}

/// Returns the JSON of a filter.
///
/// # Errors
/// `InvalidArgument` for an empty condition, and for numbers and dates that have no JSON.
pub(crate) fn filter(filter: Filter) -> Result<Value> {
    let min_should = match filter.min_should {
        Some(MinShould { conditions: all, min_count }) => {
            json!({ "conditions": conditions(all)?, "min_count": min_count })
        }
        None => Value::Null,
    };
    Ok(object([
        ("must", filled(conditions(filter.must)?)),
        ("should", filled(conditions(filter.should)?)),
        ("must_not", filled(conditions(filter.must_not)?)),
        ("min_should", min_should),
    ]))
}

fn conditions(list: Vec<Condition>) -> Result<Vec<Value>> {
    list.into_iter().map(condition).collect()
}

/// Returns the JSON of a condition.
///
/// # Errors
/// As [`filter`].
pub(crate) fn condition(condition: Condition) -> Result<Value> {
    let empty = || Error::invalid("a condition of the filter is empty");
    Ok(match condition.condition_one_of.ok_or_else(empty)? {
        ConditionOneOf::Field(given) => field(given)?,
        ConditionOneOf::IsEmpty(given) => json!({ "is_empty": { "key": given.key } }),
        ConditionOneOf::IsNull(given) => json!({ "is_null": { "key": given.key } }),
        ConditionOneOf::HasId(given) => json!({ "has_id": values::ids(given.has_id)? }),
        ConditionOneOf::Filter(nested) => filter(nested)?,
        ConditionOneOf::Nested(given) => {
            let inner = optional_filter(given.filter)?;
            json!({ "nested": { "key": given.key, "filter": inner } })
        }
        ConditionOneOf::HasVector(given) => json!({ "has_vector": given.has_vector }),
        ConditionOneOf::Slice(given) => {
            json!({ "slice": { "total": given.total, "index": given.index } })
        }
    })
}

/// Returns the JSON of a condition on one payload field.
fn field(given: FieldCondition) -> Result<Value> {
    let FieldCondition { key, .. } = given;
    let member = |part: &str, value: Result<Value>| {
        value.map_err(|error| error.context(format_args!("{key}: {part}")))
    };
    let geo_box = given.geo_bounding_box.map(|area| {
        json!({ "top_left": point(area.top_left), "bottom_right": point(area.bottom_right) })
    });
    let radius =
        given.geo_radius.map(|area| json!({ "center": point(area.center), "radius": area.radius }));
    let members = [
        ("match", member("match", given.r#match.map_or(Ok(Value::Null), matching))?),
        ("range", range(given.range, given.datetime_range, &member)?),
        ("values_count", given.values_count.map_or(Value::Null, count)),
        ("geo_bounding_box", optional(geo_box)),
        ("geo_radius", optional(radius)),
        ("geo_polygon", given.geo_polygon.map_or(Value::Null, polygon)),
        ("is_empty", optional(given.is_empty)),
        ("is_null", optional(given.is_null)),
    ];
    let mut condition = object(members);
    condition["key"] = Value::String(key);
    Ok(condition)
}

/// Returns the JSON of the condition `match`.
fn matching(given: Match) -> Result<Value> {
    let empty = || Error::invalid("no value is given");
    Ok(match given.match_value.ok_or_else(empty)? {
        MatchValue::Keyword(text) => json!({ "value": text }),
        MatchValue::Integer(number) => json!({ "value": number }),
        MatchValue::Boolean(value) => json!({ "value": value }),
        MatchValue::Keywords(list) => json!({ "any": list.strings }),
        MatchValue::Integers(list) => json!({ "any": list.integers }),
        MatchValue::ExceptKeywords(list) => json!({ "except": list.strings }),
        MatchValue::ExceptIntegers(list) => json!({ "except": list.integers }),
        MatchValue::Text(text) => json!({ "text": text }),
        MatchValue::Phrase(text) => json!({ "phrase": text }),
        MatchValue::TextAny(text) => json!({ "text_any": text }),
        MatchValue::Prefix(text) => json!({ "prefix": text }),
        MatchValue::Substring(text) => json!({ "substring": text }),
    })
}

/// Returns the range of a field: of numbers or of dates.
fn range(
    numbers: Option<Range>,
    dates: Option<DatetimeRange>,
    member: &impl Fn(&str, Result<Value>) -> Result<Value>,
) -> Result<Value> {
    match (numbers, dates) {
        (Some(_), Some(_)) => member(
            "range",
            Err(Error::invalid("a field has either a range of numbers or one of dates")),
        ),
        (Some(Range { lt, gt, gte, lte }), None) => limits([lt, gt, gte, lte], |limit| {
            member("range", limit.map_or(Ok(Value::Null), values::finite))
        }),
        // Without a limit, the JSON would be a range of numbers.
        (None, Some(DatetimeRange { lt: None, gt: None, gte: None, lte: None })) => {
            Ok(json!({ "gte": FIRST_DATE }))
        }
        (None, Some(DatetimeRange { lt, gt, gte, lte })) => {
            limits([lt, gt, gte, lte], |limit: Option<Timestamp>| {
                member("datetime_range", limit.map_or(Ok(Value::Null), values::date))
            })
        }
        (None, None) => Ok(Value::Null),
    }
}

/// Returns the limits `lt`, `gt`, `gte` and `lte`.
fn limits<T>(limits: [T; 4], json: impl Fn(T) -> Result<Value>) -> Result<Value> {
    let [lt, gt, gte, lte] = limits;
    Ok(object([("lt", json(lt)?), ("gt", json(gt)?), ("gte", json(gte)?), ("lte", json(lte)?)]))
}

fn count(ValuesCount { lt, gt, gte, lte }: ValuesCount) -> Value {
    object([
        ("lt", optional(lt)),
        ("gt", optional(gt)),
        ("gte", optional(gte)),
        ("lte", optional(lte)),
    ])
}

fn point(point: Option<GeoPoint>) -> Value {
    point.map_or(Value::Null, |point| json!({ "lon": point.lon, "lat": point.lat }))
}

fn polygon(area: GeoPolygon) -> Value {
    let line = |line: GeoLineString| {
        let points: Vec<Value> = line.points.into_iter().map(|each| point(Some(each))).collect();
        json!({ "points": points })
    };
    object([
        ("exterior", area.exterior.map_or(Value::Null, line)),
        ("interiors", filled(area.interiors.into_iter().map(line).collect())),
    ])
}

/// Returns the JSON of a choice of points, with `points` or `filter`. It has neither if nothing is
/// chosen, which the routes refuse.
///
/// # Errors
/// As [`filter`].
pub(crate) fn selection(selector: Option<PointsSelector>) -> Result<Value> {
    match selector.and_then(|selector| selector.points_selector_one_of) {
        Some(PointsSelectorOneOf::Points(list)) => Ok(json!({ "points": values::ids(list.ids)? })),
        Some(PointsSelectorOneOf::Filter(given)) => Ok(json!({ "filter": filter(given)? })),
        None => Ok(json!({})),
    }
}

#[cfg(test)]
mod tests {
    use protocol::qdrant::{PointId, point_id::PointIdOptions};

    use super::*;

    fn of_field(field: FieldCondition) -> Condition {
        Condition { condition_one_of: Some(ConditionOneOf::Field(field)) }
    }

    fn matches(key: &str, value: MatchValue) -> Condition {
        let matching = Match { match_value: Some(value) };
        of_field(FieldCondition {
            key: key.to_owned(),
            r#match: Some(matching),
            ..FieldCondition::default()
        })
    }

    #[test]
    fn filters_have_the_same_meaning() {
        let id = PointId { point_id_options: Some(PointIdOptions::Num(7)) };
        let one = PointsSelector {
            points_selector_one_of: Some(PointsSelectorOneOf::Filter(Filter {
                must: vec![
                    matches("city", MatchValue::Keyword("Ulm".to_owned())),
                    of_field(FieldCondition {
                        key: "price".to_owned(),
                        range: Some(Range { gte: Some(1.5), ..Range::default() }),
                        ..FieldCondition::default()
                    }),
                ],
                must_not: vec![Condition {
                    condition_one_of: Some(ConditionOneOf::HasId(
                        protocol::qdrant::HasIdCondition { has_id: vec![id] },
                    )),
                }],
                min_should: Some(MinShould {
                    conditions: vec![matches("n", MatchValue::Integer(3))],
                    min_count: 1,
                }),
                ..Filter::default()
            })),
        };
        let expected = json!({ "filter": {
            "must": [
                { "key": "city", "match": { "value": "Ulm" } },
                { "key": "price", "range": { "gte": 1.5 } },
            ],
            "must_not": [{ "has_id": [7] }],
            "min_should": { "conditions": [{ "key": "n", "match": { "value": 3 } }], "min_count": 1 },
        } });
        assert_eq!(selection(Some(one)).unwrap(), expected);
        assert_eq!(selection(None).unwrap(), json!({}));
    }

    #[test]
    fn a_range_of_dates_without_limits_has_all_dates() {
        let any = of_field(FieldCondition {
            key: "day".to_owned(),
            datetime_range: Some(DatetimeRange::default()),
            ..FieldCondition::default()
        });
        let expected = json!({ "key": "day", "range": { "gte": FIRST_DATE } });
        assert_eq!(condition(any).unwrap(), expected);
    }

    #[test]
    fn conditions_without_a_meaning_are_refused() {
        let nan = of_field(FieldCondition {
            key: "price".to_owned(),
            range: Some(Range { lt: Some(f64::NAN), ..Range::default() }),
            ..FieldCondition::default()
        });
        assert!(condition(nan).unwrap_err().message().starts_with("price: range"));
        assert!(condition(Condition { condition_one_of: None }).is_err());
        let both = of_field(FieldCondition {
            key: "day".to_owned(),
            range: Some(Range::default()),
            datetime_range: Some(DatetimeRange::default()),
            ..FieldCondition::default()
        });
        assert!(condition(both).is_err());
    }
}
