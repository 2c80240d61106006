//! Members of payloads that a formula reads.

use std::collections::BTreeSet;

use search::filter::{Condition, Filter, first_step};

use crate::formula::{Expression, Formula};

impl Formula {
    /// Returns the names of the members of payloads that the formula reads.
    pub fn payload_members(&self) -> BTreeSet<String> {
        let mut members = BTreeSet::new();
        add_expression(&self.expression, &mut members);
        members
    }
}

/// Adds the members of payloads that an expression reads.
fn add_expression(expression: &Expression, members: &mut BTreeSet<String>) {
    match expression {
        Expression::Constant(_) | Expression::Score(_) => {}
        Expression::Payload(key)
        | Expression::Date(key)
        | Expression::GeoDistance { to: key, .. } => add_path(key, members),
        Expression::Condition(filter) => add_filter(filter, members),
        Expression::Product(list)
        | Expression::Sum(list)
        | Expression::Max(list)
        | Expression::Min(list) => list.iter().for_each(|one| add_expression(one, members)),
        Expression::Function(_, of) => add_expression(of, members),
        Expression::Quotient { left, right, .. } => {
            add_expression(left, members);
            add_expression(right, members);
        }
        Expression::Power { base, exponent } => {
            add_expression(base, members);
            add_expression(exponent, members);
        }
        Expression::Decay(decay) => {
            add_expression(&decay.x, members);
            decay.target.iter().for_each(|target| add_expression(target, members));
        }
    }
}

/// Adds the members of payloads that a filter reads.
fn add_filter(filter: &Filter, members: &mut BTreeSet<String>) {
    for condition in filter.conditions() {
        match condition {
            Condition::Match { key, .. }
            | Condition::Range { key, .. }
            | Condition::WholeRange { key, .. }
            | Condition::DateRange { key, .. }
            | Condition::ValuesCount { key, .. }
            | Condition::IsEmpty { key }
            | Condition::IsNull { key }
            | Condition::Geo { key, .. }
            | Condition::Element { key, .. } => add_path(key, members),
            Condition::Nested(filter) => add_filter(filter, members),
            // The reader of formulas refuses slices.
            Condition::HasId(_) | Condition::HasVector { .. } | Condition::Slice(_) => {}
        }
    }
}

fn add_path(path: &str, members: &mut BTreeSet<String>) {
    members.insert(first_step(path).name.to_owned());
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::json::{self, QueryRequest, VectorQuery};

    fn members(formula: &Value) -> Vec<String> {
        let body = json!({ "query": { "formula": formula } });
        let request: QueryRequest = json::parse(body.to_string().as_bytes()).unwrap();
        match request.query {
            Some(VectorQuery::Formula(formula)) => formula.payload_members().into_iter().collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_path_of_a_formula_names_a_member() {
        let origin = json!({"lon": 1, "lat": 2});
        let formula = json!({"sum": [
            "a.b", {"mult": ["\"c.d\".e", 2, "$score"]}, {"neg": {"datetime_key": "f[0].g"}},
            {"div": {"left": "h", "right": {"pow": {"base": "i", "exponent": "j"}}}},
            {"gauss_decay": {"x": {"max": ["k"]}, "target": {"min": ["l"]}}},
            {"geo_distance": {"origin": origin, "to": "m"}},
            {"must": [{"key": "n[].o", "match": {"value": 1}}, {"should": [{"is_empty": {"key": "p"}}]}]},
            {"nested": {"key": "q", "filter": {"must": [{"is_null": {"key": "r"}}]}}},
        ]});
        let expected = ["a", "c.d", "f", "h", "i", "j", "k", "l", "m", "n", "p", "q"];
        assert_eq!(members(&formula), expected);
        let none = json!({"sum": ["$score", 1, {"must_not": [{"has_id": [1]}]}]});
        assert!(members(&none).is_empty());
    }
}
