//! Formulas that compute new scores for the hits of prefetches, from their scores and payloads.

use std::collections::BTreeMap;
use std::fmt::Display;

use base::{Error, Result};
use search::filter::{Filter, each_value, parse_date};
use serde_json::{Map, Value};

/// Mean radius of the earth in metres.
const EARTH_RADIUS: f64 = 6_371_008.8;

/// A formula with the values of variables that a point lacks.
#[derive(Clone, Debug, PartialEq)]
pub struct Formula {
    /// The score of a point.
    pub(crate) expression: Expression,
    /// Scores of points that a prefetch did not find, by its number; 0 by default.
    pub(crate) score_defaults: BTreeMap<usize, f64>,
    /// Values of payload fields that a point lacks, by path.
    pub(crate) defaults: Map<String, Value>,
}

/// An expression, whose value is a number.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Expression {
    /// A constant, the same for each point.
    Constant(f64),
    /// The score of the prefetch with this number.
    Score(usize),
    /// The number under this path of the payload.
    Payload(String),
    /// 1 if the point meets the conditions, otherwise 0.
    Condition(Filter),
    /// Metres from a place to the place under a path of the payload.
    GeoDistance {
        /// Place that the payload's place is compared with.
        origin: GeoPlace,
        /// Path of the payload's place.
        to: String,
    },
    /// Seconds since 1970 of the date under this path of the payload.
    Date(String),
    /// Product; 1 for an empty list. Factors after a factor of 0 are not computed.
    Product(Vec<Expression>),
    /// Sum; 0 for an empty list.
    Sum(Vec<Expression>),
    /// Largest value.
    Max(Vec<Expression>),
    /// Smallest value.
    Min(Vec<Expression>),
    /// A function of one value. The query fails if the result is undefined or not finite.
    Function(Function, Box<Expression>),
    /// `left / right`.
    Quotient {
        /// Dividend.
        left: Box<Expression>,
        /// Divisor.
        right: Box<Expression>,
        /// Value if the divisor is 0.
        by_zero_default: Option<f64>,
    },
    /// `base` to the power of `exponent`.
    Power {
        /// Base.
        base: Box<Expression>,
        /// Exponent.
        exponent: Box<Expression>,
    },
    /// Decay with the distance from a target.
    Decay(Box<Decay>),
}

/// A place on the earth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct GeoPlace {
    /// Longitude in degrees, east positive.
    pub(crate) lon: f64,
    /// Latitude in degrees, north positive.
    pub(crate) lat: f64,
}

/// Functions of Qdrant's formulas with one argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Function {
    /// Opposite value.
    Negative,
    /// Distance from 0.
    Absolute,
    /// Square root; undefined below 0.
    SquareRoot,
    /// Power of e.
    Exponential,
    /// Logarithm to base 10.
    Log10,
    /// Natural logarithm.
    Ln,
    /// Inverse hyperbolic cosine.
    Acosh,
}

/// Value that is 1 at a target and `midpoint` at the distance `scale` from it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Decay {
    /// Shape between the target and the distance `scale`, and beyond it.
    pub(crate) curve: DecayCurve,
    /// Value that is compared with the target.
    pub(crate) x: Expression,
    /// Target; 0 by default.
    pub(crate) target: Option<Expression>,
    /// Distance at which the value is `midpoint`.
    pub(crate) scale: f64,
    /// Value at the distance `scale`.
    pub(crate) midpoint: f64,
}

/// Shapes of a [`Decay`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DecayCurve {
    /// A straight line down to 0.
    Linear,
    /// `midpoint` to the power of `distance / scale`.
    Exponential,
    /// `midpoint` to the power of the square of `distance / scale`.
    Gauss,
}

/// A point that a formula scores.
pub struct FormulaPoint<'a> {
    /// The internal id.
    pub id: u64,
    /// The payload, an object. It needs only the members that [`Formula::payload_members`] names.
    pub payload: &'a Value,
    /// The score of each prefetch; `None` if it did not find the point.
    pub scores: &'a [Option<f32>],
}

impl Formula {
    /// Replaces each condition by the result of `prepare`, which checks it and prepares it for a
    /// collection.
    ///
    /// # Errors
    /// The first error of `prepare`.
    pub fn prepare(&mut self, prepare: impl Fn(Filter) -> Result<Filter>) -> Result<()> {
        self.expression.prepare(&prepare).map_err(|error| error.context("query.formula"))
    }

    /// Returns the score of a point.
    ///
    /// # Errors
    /// `InvalidArgument` if the point lacks a value that has no default, or if the value of an
    /// expression is not finite.
    pub fn score(&self, point: &FormulaPoint<'_>) -> Result<f32> {
        let value = self.value(&self.expression, point)?;
        // Scores have 32 bits.
        let score = value as f32;
        finite(f64::from(score), format_args!("{value} as a score"))?;
        Ok(score)
    }

    /// Returns the value of an expression for a point.
    fn value(&self, expression: &Expression, point: &FormulaPoint<'_>) -> Result<f64> {
        match expression {
            Expression::Constant(value) => Ok(*value),
            Expression::Score(number) => Ok(self.prefetch_score(*number, point)),
            Expression::Payload(key) => {
                let value = self.payload_value(key, point)?;
                value.as_f64().ok_or_else(|| expected("a number", key))
            }
            Expression::Condition(filter) => {
                Ok(if filter.matches(point.id, point.payload) { 1.0 } else { 0.0 })
            }
            Expression::GeoDistance { origin, to } => {
                let value = self.payload_value(to, point)?;
                let degrees = |name: &str| value.get(name).and_then(Value::as_f64);
                let place = degrees("lon").zip(degrees("lat"));
                let (lon, lat) = place.ok_or_else(|| expected("a place with lon and lat", to))?;
                Ok(distance(*origin, GeoPlace { lon, lat }))
            }
            Expression::Date(key) => {
                let value = self.payload_value(key, point)?;
                let date = value.as_str().and_then(date_seconds);
                date.ok_or_else(|| expected("a date", key))
            }
            Expression::Product(factors) => self.product(factors, point),
            Expression::Sum(terms) => {
                terms.iter().try_fold(0.0, |sum, term| Ok(sum + self.value(term, point)?))
            }
            Expression::Max(list) => list
                .iter()
                .try_fold(f64::NEG_INFINITY, |most, one| Ok(most.max(self.value(one, point)?))),
            Expression::Min(list) => list
                .iter()
                .try_fold(f64::INFINITY, |least, one| Ok(least.min(self.value(one, point)?))),
            Expression::Function(function, of) => function.of(self.value(of, point)?),
            Expression::Quotient { left, right, by_zero_default } => {
                self.quotient(left, right, *by_zero_default, point)
            }
            Expression::Power { base, exponent } => {
                let base = self.value(base, point)?;
                let exponent = self.value(exponent, point)?;
                finite(base.powf(exponent), format_args!("{base}^{exponent}"))
            }
            Expression::Decay(decay) => {
                let x = self.value(&decay.x, point)?;
                let target = decay.target.as_ref().map_or(Ok(0.0), |it| self.value(it, point))?;
                Ok(decay.at(x - target))
            }
        }
    }

    fn prefetch_score(&self, number: usize, point: &FormulaPoint<'_>) -> f64 {
        let score = point.scores.get(number).copied().flatten().map(f64::from);
        score.or_else(|| self.score_defaults.get(&number).copied()).unwrap_or(0.0)
    }

    /// Returns the value under a path, or its default. Several values are a list.
    fn payload_value(&self, key: &str, point: &FormulaPoint<'_>) -> Result<Value> {
        let mut values = Vec::new();
        each_value(point.payload, key, &mut |value| values.push(value.clone()));
        if values.is_empty() {
            match self.defaults.get(key) {
                Some(Value::Array(list)) => values.clone_from(list),
                Some(value) => values.push(value.clone()),
                None => {}
            }
        }
        match values.pop() {
            None => Err(Error::invalid(format!(
                "query.formula: there is no value for {key}, neither in the payload of a point nor in \
                 the defaults"
            ))),
            Some(one) if values.is_empty() => Ok(one),
            Some(last) => {
                values.push(last);
                Ok(Value::Array(values))
            }
        }
    }

    /// Multiplies the factors, up to the first that is 0.
    fn product(&self, factors: &[Expression], point: &FormulaPoint<'_>) -> Result<f64> {
        let mut product = 1.0;
        for factor in factors {
            let value = self.value(factor, point)?;
            // The other factors may have no value then.
            if value == 0.0 {
                return Ok(value);
            }
            product *= value;
        }
        Ok(product)
    }

    /// Returns a quotient. A dividend of 0 gives 0, as in Qdrant. Otherwise a divisor of 0 gives
    /// `by_zero_default`, or is an error without it.
    fn quotient(
        &self,
        left: &Expression,
        right: &Expression,
        by_zero_default: Option<f64>,
        point: &FormulaPoint<'_>,
    ) -> Result<f64> {
        let left = self.value(left, point)?;
        if left == 0.0 {
            return Ok(left);
        }
        let right = self.value(right, point)?;
        match by_zero_default {
            Some(default) if right == 0.0 => Ok(default),
            _ => finite(left / right, format_args!("{left}/{right}")),
        }
    }
}

impl Expression {
    /// Returns the expressions that this one is made of.
    fn parts_mut(&mut self) -> Vec<&mut Expression> {
        match self {
            Expression::Constant(_)
            | Expression::Score(_)
            | Expression::Payload(_)
            | Expression::Condition(_)
            | Expression::GeoDistance { .. }
            | Expression::Date(_) => Vec::new(),
            Expression::Product(list)
            | Expression::Sum(list)
            | Expression::Max(list)
            | Expression::Min(list) => list.iter_mut().collect(),
            Expression::Function(_, of) => vec![&mut **of],
            Expression::Quotient { left, right, .. } => vec![&mut **left, &mut **right],
            Expression::Power { base, exponent } => vec![&mut **base, &mut **exponent],
            Expression::Decay(decay) => {
                let Decay { x, target, .. } = &mut **decay;
                std::iter::once(x).chain(target.as_mut()).collect()
            }
        }
    }

    fn prepare(&mut self, prepare: &dyn Fn(Filter) -> Result<Filter>) -> Result<()> {
        if let Expression::Condition(filter) = self {
            *filter = prepare(std::mem::take(filter))?;
        }
        self.parts_mut().into_iter().try_for_each(|part| part.prepare(prepare))
    }
}

impl Function {
    /// Returns the function of a value.
    ///
    /// # Errors
    /// `InvalidArgument` if it is not defined or not finite there.
    fn of(self, value: f64) -> Result<f64> {
        match self {
            Function::Negative => Ok(-value),
            Function::Absolute => Ok(value.abs()),
            Function::SquareRoot => finite(value.sqrt(), format_args!("sqrt({value})")),
            Function::Exponential => finite(value.exp(), format_args!("exp({value})")),
            Function::Log10 => finite(value.log10(), format_args!("log10({value})")),
            Function::Ln => finite(value.ln(), format_args!("ln({value})")),
            Function::Acosh => finite(value.acosh(), format_args!("acosh({value})")),
        }
    }
}

impl Decay {
    /// Returns the value at a difference from the target.
    fn at(&self, difference: f64) -> f64 {
        match self.curve {
            DecayCurve::Linear => {
                (1.0 - (1.0 - self.midpoint) / self.scale * difference.abs()).max(0.0)
            }
            DecayCurve::Exponential => (self.midpoint.ln() / self.scale * difference.abs()).exp(),
            DecayCurve::Gauss => {
                (self.midpoint.ln() / (self.scale * self.scale) * difference * difference).exp()
            }
        }
    }
}

/// Returns the seconds since 1970 of a date; `None` if the text is not a date.
pub(crate) fn date_seconds(text: &str) -> Option<f64> {
    parse_date(text).map(|micros| micros as f64 / 1e6)
}

/// Returns the metres between two places, by the haversine formula.
fn distance(one: GeoPlace, other: GeoPlace) -> f64 {
    let first = one.lat.to_radians();
    let second = other.lat.to_radians();
    let half_square = |difference: f64| (difference.to_radians() / 2.0).sin().powi(2);
    let chord = half_square(other.lat - one.lat)
        + first.cos() * second.cos() * half_square(other.lon - one.lon);
    // For opposite places, rounding can raise the value above 1, where the arcsine is not a number.
    // Payloads may have latitudes beyond the poles, for which the value can be below 0.
    2.0 * EARTH_RADIUS * chord.clamp(0.0, 1.0).sqrt().asin()
}

fn expected(what: &str, key: &str) -> Error {
    Error::invalid(format!(
        "query.formula: {what} is expected for {key} in the payloads and in the defaults"
    ))
}

/// Returns a value if it is finite.
fn finite(value: f64, shown: impl Display) -> Result<f64> {
    if value.is_finite() {
        return Ok(value);
    }
    Err(Error::invalid(format!(
        "query.formula: the expression {shown} produced a non-finite number"
    )))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::json::{self, QueryRequest, VectorQuery};

    fn formula(formula: &Value, defaults: &Value) -> Formula {
        let body = json!({ "query": { "formula": formula, "defaults": defaults } });
        let request: QueryRequest = json::parse(body.to_string().as_bytes()).unwrap();
        match request.query {
            Some(VectorQuery::Formula(formula)) => *formula,
            other => panic!("{other:?}"),
        }
    }

    fn score_of(expression: Value, defaults: Value) -> Result<f32> {
        let payload = json!({
            "n": 4, "list": [1, 2], "one": [0.5], "day": "1970-01-01T00:01:00Z", "null": null,
            "place": {"lon": -0.1278, "lat": 51.5074}, "text": "x",
        });
        let scores = [Some(0.5), None];
        let point = FormulaPoint { id: 7, payload: &payload, scores: &scores };
        formula(&expression, &defaults).score(&point)
    }

    #[test]
    fn expressions_have_their_values() {
        let moscow = json!({"lon": 37.6173, "lat": 55.7558});
        for (expression, expected) in [
            (json!(2.5), 2.5),
            (json!("$score"), 0.5),
            (json!("$score[1]"), 9.0),
            (json!("$score[5]"), 0.0),
            (json!("n"), 4.0),
            (json!("one"), 0.5),
            (json!("absent"), 3.0),
            (json!({"key": "n", "match": {"value": 4}}), 1.0),
            (json!({"must_not": [{"has_id": [7]}]}), 0.0),
            (json!({"mult": ["n", 2, "$score"]}), 4.0),
            (json!({"mult": [0, "missing"]}), 0.0),
            (json!({"sum": ["n", {"neg": 1}, {"abs": -2}]}), 5.0),
            (json!({"max": [1, "n"]}), 4.0),
            (json!({"min": [1, "n"]}), 1.0),
            (json!({"div": {"left": "n", "right": 8}}), 0.5),
            (json!({"div": {"left": "n", "right": 0, "by_zero_default": 7}}), 7.0),
            (json!({"sqrt": "n"}), 2.0),
            (json!({"pow": {"base": "n", "exponent": 0.5}}), 2.0),
            (json!({"exp": 0}), 1.0),
            (json!({"log10": 1000}), 3.0),
            (json!({"ln": 1}), 0.0),
            (json!({"acosh": 1}), 0.0),
            (json!({"datetime": "1970-01-01T00:00:10Z"}), 10.0),
            (json!({"datetime_key": "day"}), 60.0),
            (json!({"lin_decay": {"x": "n", "scale": 8}}), 0.75),
            (json!({"exp_decay": {"x": "n", "target": 2, "scale": 2}}), 0.5),
            (json!({"gauss_decay": {"x": 1, "midpoint": 0.25}}), 0.25),
        ] {
            let defaults = json!({"$score[1]": 9, "absent": [3]});
            let score = score_of(expression.clone(), defaults).unwrap();
            assert!((score - expected).abs() < 1e-6, "{expression}: {score}");
        }
        let far = score_of(json!({"geo_distance": {"origin": moscow, "to": "place"}}), json!({}));
        assert!((2_400_000.0..2_600_000.0).contains(&far.unwrap()));
    }

    #[test]
    fn every_two_places_have_a_distance() {
        let half = std::f64::consts::PI * EARTH_RADIUS;
        for lat in -90..=90 {
            let lat = f64::from(lat);
            let opposite = GeoPlace { lon: 0.0, lat: -lat };
            let metres = distance(GeoPlace { lon: -180.0, lat }, opposite);
            assert!((metres - half).abs() < 1.0, "{lat}: {metres}");
        }
        let beyond_the_pole = GeoPlace { lon: 90.0, lat: 100.0 };
        assert!(distance(GeoPlace { lon: -90.0, lat: 80.0 }, beyond_the_pole).is_finite());
    }

    #[test]
    fn values_that_are_missing_or_not_finite_are_refused() {
        for (expression, words) in [
            (json!("absent"), "no value for absent"),
            (json!("null"), "no value for null"),
            (json!("list"), "a number is expected for list"),
            (json!("text"), "a number is expected for text"),
            (json!({"datetime_key": "n"}), "a date is expected"),
            (json!({"geo_distance": {"origin": {"lon": 0, "lat": 0}, "to": "n"}}), "a place"),
            (json!({"div": {"left": 1, "right": 0}}), "1/0"),
            (json!({"sqrt": -1}), "sqrt(-1)"),
            (json!({"ln": 0}), "ln(0)"),
            (json!({"log10": -1}), "log10(-1)"),
            (json!({"exp": 1000}), "exp(1000)"),
            (json!({"pow": {"base": -1, "exponent": 0.5}}), "-1^0.5"),
            (json!({"mult": [1e30, 1e30]}), "as a score"),
        ] {
            let error = score_of(expression.clone(), Value::Null).unwrap_err();
            assert!(error.message().contains(words), "{expression}: {error}");
        }
    }
}
