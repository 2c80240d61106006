//! Formulas as JSON.

use base::{Error, Result};
use protocol::qdrant::expression::Variant;
use protocol::qdrant::{DecayParamsExpression, Expression, Formula};
use serde_json::{Value, json};

use crate::filters::condition;
use crate::members::object;
use crate::values;

/// Returns the JSON of a query by a formula.
///
/// # Errors
/// `InvalidArgument` for an empty expression, and for values that have no JSON.
pub(crate) fn formula(given: Formula) -> Result<Value> {
    let defaults = values::to_members(given.defaults).map_err(|error| error.context("defaults"))?;
    let formula = expression(given.expression.ok_or_else(empty)?)?;
    Ok(json!({ "formula": formula, "defaults": defaults }))
}

fn empty() -> Error {
    Error::invalid("an expression of the formula is empty")
}

/// Returns the JSON of an expression, with the expressions inside it.
fn expression(given: Expression) -> Result<Value> {
    Ok(match given.variant.ok_or_else(empty)? {
        Variant::Constant(number) => values::finite(f64::from(number))?,
        Variant::Variable(name) => Value::String(name),
        Variant::Condition(given) => condition(given)?,
        Variant::GeoDistance(given) => {
            let origin = given.origin.unwrap_or_default();
            let lon = values::finite(origin.lon)?;
            let lat = values::finite(origin.lat)?;
            json!({ "geo_distance": { "origin": { "lon": lon, "lat": lat }, "to": given.to } })
        }
        Variant::Datetime(date) => json!({ "datetime": date }),
        Variant::DatetimeKey(key) => json!({ "datetime_key": key }),
        Variant::Mult(given) => json!({ "mult": list(given.mult)? }),
        Variant::Sum(given) => json!({ "sum": list(given.sum)? }),
        Variant::Max(given) => json!({ "max": list(given.max)? }),
        Variant::Min(given) => json!({ "min": list(given.min)? }),
        Variant::Div(given) => {
            let by_zero_default = optional_number(given.by_zero_default)?;
            let left = operand(given.left)?;
            let right = operand(given.right)?;
            let members = [("left", left), ("right", right), ("by_zero_default", by_zero_default)];
            json!({ "div": object(members) })
        }
        Variant::Pow(given) => {
            let base = operand(given.base)?;
            let exponent = operand(given.exponent)?;
            json!({ "pow": { "base": base, "exponent": exponent } })
        }
        Variant::Neg(of) => json!({ "neg": expression(*of)? }),
        Variant::Abs(of) => json!({ "abs": expression(*of)? }),
        Variant::Sqrt(of) => json!({ "sqrt": expression(*of)? }),
        Variant::Exp(of) => json!({ "exp": expression(*of)? }),
        Variant::Log10(of) => json!({ "log10": expression(*of)? }),
        Variant::Ln(of) => json!({ "ln": expression(*of)? }),
        Variant::Acosh(of) => json!({ "acosh": expression(*of)? }),
        Variant::ExpDecay(given) => json!({ "exp_decay": decay(*given)? }),
        Variant::GaussDecay(given) => json!({ "gauss_decay": decay(*given)? }),
        Variant::LinDecay(given) => json!({ "lin_decay": decay(*given)? }),
    })
}

fn list(given: Vec<Expression>) -> Result<Vec<Value>> {
    given.into_iter().map(expression).collect()
}

fn operand(given: Option<Box<Expression>>) -> Result<Value> {
    expression(*given.ok_or_else(empty)?)
}

fn optional_number(given: Option<f32>) -> Result<Value> {
    given.map_or(Ok(Value::Null), |number| values::finite(f64::from(number)))
}

fn decay(given: DecayParamsExpression) -> Result<Value> {
    let target = given.target.map_or(Ok(Value::Null), |target| expression(*target))?;
    Ok(object([
        ("x", operand(given.x)?),
        ("target", target),
        ("scale", optional_number(given.scale)?),
        ("midpoint", optional_number(given.midpoint)?),
    ]))
}

#[cfg(test)]
mod tests {
    use protocol::qdrant::{DivExpression, SumExpression};

    use super::*;

    fn of(variant: Variant) -> Expression {
        Expression { variant: Some(variant) }
    }

    #[test]
    fn formulas_keep_their_operands() {
        let score = || of(Variant::Variable("$score".to_owned()));
        let decay = DecayParamsExpression {
            x: Some(Box::new(score())),
            target: None,
            scale: Some(0.5),
            midpoint: None,
        };
        let div = DivExpression {
            left: Some(Box::new(of(Variant::Constant(1.0)))),
            right: Some(Box::new(score())),
            by_zero_default: Some(2.0),
        };
        let sum = vec![of(Variant::GaussDecay(Box::new(decay))), of(Variant::Div(Box::new(div)))];
        let expression = Some(of(Variant::Sum(SumExpression { sum })));
        let defaults = [("$score".to_owned(), values::of_json(json!(3)))].into();
        let expected = json!({
            "formula": { "sum": [
                { "gauss_decay": { "x": "$score", "scale": 0.5 } },
                { "div": { "left": 1.0, "right": "$score", "by_zero_default": 2.0 } },
            ] },
            "defaults": { "$score": 3 },
        });
        assert_eq!(formula(Formula { expression, defaults }).unwrap(), expected);
        let nothing = Formula { expression: None, defaults: std::collections::BTreeMap::new() };
        assert!(formula(nothing).unwrap_err().message().contains("empty"));
    }
}
