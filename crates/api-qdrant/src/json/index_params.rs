//! Parameters of an index on a payload field. Segments index fields by themselves, so an index only
//! says how conditions on its field compare values.

use base::{Error, Result};
use serde_json::{Map, Value};

use super::unsupported;

/// Parameters that an index of every type has.
const COMMON: [&str; 4] = ["type", "on_disk", "memory", "enable_hnsw"];

/// Returns the parameters that only some types of an index have.
fn own_params(data_type: &str) -> &'static [&'static str] {
    match data_type {
        "keyword" => &["is_tenant", "prefix"],
        "integer" => &["lookup", "range", "is_principal"],
        "float" | "datetime" => &["is_principal"],
        "uuid" => &["is_tenant"],
        "text" => &[
            "tokenizer",
            "lowercase",
            "min_token_len",
            "max_token_len",
            "ascii_folding",
            "phrase_matching",
            "stopwords",
            "stemmer",
            "scoring",
        ],
        _ => &[],
    }
}

/// Checks the parameters of an index of the type `data_type`. A stored parameter that clients do
/// not know would make the description of the collection unreadable for them.
///
/// # Errors
/// `InvalidArgument` for a parameter that the type does not have, and for a malformed value;
/// `Unimplemented` for `nested`.
pub(super) fn check_params(data_type: &str, params: &Map<String, Value>) -> Result<()> {
    for (name, value) in params.iter().filter(|(_, value)| !value.is_null()) {
        if name == "nested" {
            return Err(Error::unimplemented(unsupported("field_schema: an index with nested")));
        }
        if !COMMON.contains(&name.as_str()) && !own_params(data_type).contains(&name.as_str()) {
            return Err(Error::invalid(format!(
                "field_schema: an index of the type {data_type} has no parameter {name}"
            )));
        }
        if let Some(expected) = expected_instead(name, value) {
            return Err(Error::invalid(format!("field_schema.{name}: {expected} is expected")));
        }
    }
    Ok(())
}

/// Returns a description of the values that the parameter `name` may have if `value` is not one.
fn expected_instead(name: &str, value: &Value) -> Option<&'static str> {
    let is_one_of = |words: &[&str]| value.as_str().is_some_and(|word| words.contains(&word));
    let (fits, expected) = match name {
        "type" => (value.is_string(), "a string"),
        "min_token_len" | "max_token_len" => (value.is_u64(), "a whole number from 0"),
        "memory" => (is_one_of(&["cold", "cached", "pinned"]), "cold, cached or pinned"),
        "tokenizer" => (
            is_one_of(&["prefix", "whitespace", "word", "multilingual", "code"]),
            "prefix, whitespace, word, multilingual or code",
        ),
        "stopwords" => (value.is_string() || value.is_object(), "a language or an object"),
        "stemmer" => (value.is_object(), "an object"),
        "scoring" => (value.is_boolean() || value.is_object(), "true, false or an object"),
        _ => (value.is_boolean(), "true or false"),
    };
    (!fits).then_some(expected)
}

/// Returns the parameters of a declared index that have no effect, as paths in `payload_schema`.
/// `params` is null for an index without parameters. Parameters that only permit a condition, such
/// as `lookup`, are left out, because every condition is permitted.
pub fn index_hints(field: &str, params: &Value) -> Vec<String> {
    let is_hint = |name: &str, value: &Value| match name {
        "is_tenant" | "is_principal" | "enable_hnsw" => *value == true,
        // The indexes of segments are on the disk.
        "on_disk" => *value == false,
        "memory" => !value.is_null() && *value != "cold",
        // Queries by text are refused.
        "scoring" => !value.is_null() && *value != false,
        _ => false,
    };
    let params = params.as_object().into_iter().flatten();
    let hints = params.filter(|(name, value)| is_hint(name, value));
    hints.map(|(name, _)| format!("payload_schema.{field}.{name}")).collect()
}

#[cfg(test)]
mod tests {
    use base::ErrorKind;
    use serde_json::json;

    use super::*;

    fn check(params: &Value) -> Result<()> {
        let data_type = params["type"].as_str().unwrap();
        check_params(data_type, params.as_object().unwrap())
    }

    #[test]
    fn parameters_of_each_type_are_known() {
        for params in [
            json!({"type": "keyword", "is_tenant": true, "prefix": true, "memory": "cached"}),
            json!({"type": "integer", "lookup": true, "range": false, "is_principal": true}),
            json!({"type": "float", "is_principal": false, "on_disk": true}),
            json!({"type": "datetime", "is_principal": null, "enable_hnsw": false}),
            json!({"type": "uuid", "is_tenant": true}),
            json!({"type": "geo", "on_disk": false}),
            json!({"type": "bool", "memory": "pinned"}),
            json!({"type": "text", "tokenizer": "code", "lowercase": true, "min_token_len": 2,
                   "max_token_len": 9, "ascii_folding": true, "phrase_matching": true,
                   "stopwords": "english", "stemmer": {"type": "none"}, "scoring": true}),
        ] {
            assert!(check(&params).is_ok(), "{params}");
        }
    }

    #[test]
    fn other_parameters_are_refused_by_name() {
        for (params, word) in [
            (json!({"type": "keyword", "is_principal": true}), "is_principal"),
            (json!({"type": "geo", "tokenizer": "word"}), "tokenizer"),
            (json!({"type": "integer", "rnage": true}), "rnage"),
            (json!({"type": "keyword", "is_tenant": "yes"}), "is_tenant: true or false"),
            (json!({"type": "float", "memory": "warm"}), "memory: cold"),
            (json!({"type": "text", "tokenizer": "letters"}), "tokenizer: prefix"),
            (json!({"type": "text", "min_token_len": -1}), "min_token_len"),
        ] {
            let error = check(&params).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{params}");
            assert!(error.message().contains(word), "{params}: {error}");
        }
        let nested = check(&json!({"type": "float", "nested": "offers"})).unwrap_err();
        assert_eq!(nested.kind(), ErrorKind::Unimplemented);
    }

    #[test]
    fn parameters_without_effect_are_hints() {
        let params = json!({"type": "text", "is_tenant": true, "on_disk": false, "lowercase": true,
                            "memory": "pinned", "scoring": {"type": "bm25"}, "enable_hnsw": false});
        let mut hints = index_hints("a.b", &params);
        hints.sort();
        let expected = ["is_tenant", "memory", "on_disk", "scoring"];
        assert_eq!(hints, expected.map(|name| format!("payload_schema.a.b.{name}")));
        let held = json!({"type": "integer", "on_disk": true, "memory": "cold", "lookup": false});
        assert!(index_hints("n", &held).is_empty() && index_hints("n", &Value::Null).is_empty());
    }
}
