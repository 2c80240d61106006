//! Formulas of queries.

use std::collections::BTreeMap;

use search::filter::Filter;
use serde_json::{Map, Value};

use super::filter::{Parsed, check_path, condition, has_slice};
use super::{limits, unsupported};
use crate::formula::{Decay, DecayCurve, Expression, Formula, Function, GeoPlace, date_seconds};

/// Maximum expressions of one formula.
const EXPRESSIONS_MAX: usize = 1024;
/// Variable of the scores of prefetches.
const SCORE: &str = "$score";
/// Value of a decay at its scale, if the request does not set it.
const DEFAULT_MIDPOINT: f64 = 0.5;
/// Scale of a decay if the request does not set it.
const DEFAULT_SCALE: f64 = 1.0;

/// Reads a formula. Its nesting is bounded by the JSON reader.
pub(super) fn formula(expression: &Value, defaults: Map<String, Value>) -> Parsed<Formula> {
    let mut reader = ExpressionReader { count: 0 };
    let expression = in_member("formula", reader.expression(expression))?;
    let mut score_defaults = BTreeMap::new();
    let mut others = Map::new();
    for (key, value) in defaults {
        match in_member("defaults", variable(&key))? {
            Expression::Score(number) => {
                let expected = || format!("defaults: {key}: a number is expected");
                score_defaults.insert(number, value.as_f64().ok_or_else(expected)?);
            }
            _ => {
                others.insert(key, value);
            }
        }
    }
    Ok(Formula { expression, score_defaults, defaults: others })
}

/// Adds the name of the member before the message of its error.
fn in_member<T>(name: &str, parsed: Parsed<T>) -> Parsed<T> {
    parsed.map_err(|message| format!("{name}: {message}"))
}

/// Reads the name of a variable: the score of a prefetch, or the path of a payload field.
fn variable(name: &str) -> Parsed<Expression> {
    let Some(rest) = name.strip_prefix(SCORE) else {
        check_path(name)?;
        return Ok(Expression::Payload(name.to_owned()));
    };
    if rest.is_empty() {
        return Ok(Expression::Score(0));
    }
    let number = rest.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let number = number.filter(|number| number.bytes().all(|byte| byte.is_ascii_digit()));
    let number = number.and_then(|number| number.parse().ok());
    let wrong = || "a score is written as $score or $score[0]".to_owned();
    number.map(Expression::Score).ok_or_else(wrong)
}

/// Reader of the members of an object. Each member must be known.
struct FormulaMembers<'a> {
    members: &'a Map<String, Value>,
}

impl<'a> FormulaMembers<'a> {
    fn new(value: &'a Value, known: &[&str]) -> Parsed<FormulaMembers<'a>> {
        let members = value.as_object().ok_or_else(|| "an object is expected".to_owned())?;
        match members.keys().find(|name| !known.contains(&name.as_str())) {
            Some(other) => Err(format!("{other}: {} are expected", known.join(", "))),
            None => Ok(FormulaMembers { members }),
        }
    }

    /// Returns a member; `None` if it is absent or null.
    fn optional(&self, name: &str) -> Option<&'a Value> {
        self.members.get(name).filter(|value| !value.is_null())
    }

    fn needed(&self, name: &str) -> Parsed<&'a Value> {
        self.optional(name).ok_or_else(|| format!("{name} is missing"))
    }

    fn number(&self, name: &str) -> Parsed<Option<f64>> {
        self.optional(name).map(|value| in_member(name, number(value))).transpose()
    }
}

fn number(value: &Value) -> Parsed<f64> {
    value.as_f64().ok_or_else(|| "a number is expected".to_owned())
}

fn text(value: &Value) -> Parsed<&str> {
    value.as_str().ok_or_else(|| "a string is expected".to_owned())
}

/// Reads the path of a payload field.
fn path(value: &Value) -> Parsed<String> {
    let path = text(value)?;
    check_path(path)?;
    Ok(path.to_owned())
}

/// Reader of expressions, which counts them.
struct ExpressionReader {
    count: usize,
}

impl ExpressionReader {
    fn expression(&mut self, value: &Value) -> Parsed<Expression> {
        self.count += 1;
        if self.count > EXPRESSIONS_MAX {
            return Err(format!(
                "more than {EXPRESSIONS_MAX} expressions; write a shorter formula"
            ));
        }
        match value {
            Value::Number(_) => number(value).map(Expression::Constant),
            Value::String(name) => variable(name),
            Value::Object(members) => self.operation(value, members),
            _ => Err("a number, a variable, a condition or an operation is expected".to_owned()),
        }
    }

    /// Reads an operation with its operands, or a condition.
    fn operation(&mut self, value: &Value, members: &Map<String, Value>) -> Parsed<Expression> {
        let mut present = members.iter().filter(|(_, operand)| !operand.is_null());
        let one = present.next().filter(|_| present.next().is_none());
        let Some((name, operand)) = one else { return a_condition(value) };
        let parsed = match name.as_str() {
            "mult" => self.list(operand).map(Expression::Product),
            "sum" => self.list(operand).map(Expression::Sum),
            "max" => self.filled_list(operand).map(Expression::Max),
            "min" => self.filled_list(operand).map(Expression::Min),
            "neg" => self.function(Function::Negative, operand),
            "abs" => self.function(Function::Absolute, operand),
            "sqrt" => self.function(Function::SquareRoot, operand),
            "exp" => self.function(Function::Exponential, operand),
            "log10" => self.function(Function::Log10, operand),
            "ln" => self.function(Function::Ln, operand),
            "acosh" => self.function(Function::Acosh, operand),
            "div" => self.quotient(operand),
            "pow" => self.power(operand),
            "geo_distance" => geo_distance(operand),
            "datetime" => date(operand),
            "datetime_key" => path(operand).map(Expression::Date),
            "lin_decay" => self.decay(DecayCurve::Linear, operand),
            "exp_decay" => self.decay(DecayCurve::Exponential, operand),
            "gauss_decay" => self.decay(DecayCurve::Gauss, operand),
            _ => return a_condition(value),
        };
        in_member(name, parsed)
    }

    fn list(&mut self, value: &Value) -> Parsed<Vec<Expression>> {
        let list = value.as_array().ok_or_else(|| "a list is expected".to_owned())?;
        list.iter().map(|one| self.expression(one)).collect()
    }

    fn filled_list(&mut self, value: &Value) -> Parsed<Vec<Expression>> {
        let list = self.list(value)?;
        if list.is_empty() {
            return Err(limits("at least one operand is needed"));
        }
        Ok(list)
    }

    fn function(&mut self, function: Function, value: &Value) -> Parsed<Expression> {
        Ok(Expression::Function(function, Box::new(self.expression(value)?)))
    }

    fn quotient(&mut self, value: &Value) -> Parsed<Expression> {
        let members = FormulaMembers::new(value, &["left", "right", "by_zero_default"])?;
        Ok(Expression::Quotient {
            left: Box::new(in_member("left", self.expression(members.needed("left")?))?),
            right: Box::new(in_member("right", self.expression(members.needed("right")?))?),
            by_zero_default: members.number("by_zero_default")?,
        })
    }

    fn power(&mut self, value: &Value) -> Parsed<Expression> {
        let members = FormulaMembers::new(value, &["base", "exponent"])?;
        Ok(Expression::Power {
            base: Box::new(in_member("base", self.expression(members.needed("base")?))?),
            exponent: Box::new(in_member(
                "exponent",
                self.expression(members.needed("exponent")?),
            )?),
        })
    }

    /// Reads the members of a decay function.
    fn decay(&mut self, curve: DecayCurve, value: &Value) -> Parsed<Expression> {
        let members = FormulaMembers::new(value, &["x", "target", "scale", "midpoint"])?;
        let x = in_member("x", self.expression(members.needed("x")?))?;
        let target = members.optional("target").map(|target| self.expression(target));
        let target = in_member("target", target.transpose())?;
        let scale = members.number("scale")?.unwrap_or(DEFAULT_SCALE);
        if scale <= 0.0 {
            return Err(limits(format_args!("scale: {scale} is not greater than 0")));
        }
        let midpoint = members.number("midpoint")?.unwrap_or(DEFAULT_MIDPOINT);
        let is_within = match curve {
            DecayCurve::Linear => (0.0..=1.0).contains(&midpoint),
            DecayCurve::Exponential | DecayCurve::Gauss => midpoint > 0.0 && midpoint < 1.0,
        };
        if !is_within {
            return Err(limits(format_args!("midpoint: {midpoint} is not between 0 and 1")));
        }
        Ok(Expression::Decay(Box::new(Decay { curve, x, target, scale, midpoint })))
    }
}

/// Reads a condition, as in a filter.
fn a_condition(value: &Value) -> Parsed<Expression> {
    let condition = condition(value)?;
    // The payload of a formula's point lacks the id.
    if has_slice(&condition) {
        return Err(unsupported("slice in a formula"));
    }
    Ok(Expression::Condition(Filter { must: vec![condition], ..Filter::default() }))
}

fn geo_distance(value: &Value) -> Parsed<Expression> {
    let members = FormulaMembers::new(value, &["origin", "to"])?;
    let origin = in_member("origin", geo_place(members.needed("origin")?))?;
    Ok(Expression::GeoDistance { origin, to: in_member("to", path(members.needed("to")?))? })
}

fn geo_place(value: &Value) -> Parsed<GeoPlace> {
    let members = FormulaMembers::new(value, &["lon", "lat"])?;
    let lon = in_member("lon", number(members.needed("lon")?))?;
    let lat = in_member("lat", number(members.needed("lat")?))?;
    if !(-180.0..=180.0).contains(&lon) || !(-90.0..=90.0).contains(&lat) {
        return Err(limits("a longitude is within -180 and 180, a latitude within -90 and 90"));
    }
    Ok(GeoPlace { lon, lat })
}

fn date(value: &Value) -> Parsed<Expression> {
    let seconds = date_seconds(text(value)?).ok_or_else(|| "a date is expected".to_owned())?;
    Ok(Expression::Constant(seconds))
}
