//! Descriptions of payload indexes as messages.
#![allow(deprecated)] // Messages have fields that are deprecated.

use protocol::qdrant as pb;
use protocol::qdrant::payload_index_params::IndexParams;
use protocol::qdrant::stemming_algorithm::StemmingParams;
use serde::Deserialize;
use serde_json::{Map, Value};

/// Index on a field in a response.
#[derive(Deserialize)]
pub(crate) struct SchemaJson {
    data_type: String,
    points: Option<u64>,
    params: Option<IndexMembers>,
}

impl From<SchemaJson> for pb::PayloadSchemaInfo {
    fn from(schema: SchemaJson) -> pb::PayloadSchemaInfo {
        let data_type = match schema.data_type.as_str() {
            "keyword" => pb::PayloadSchemaType::Keyword,
            "integer" => pb::PayloadSchemaType::Integer,
            "float" => pb::PayloadSchemaType::Float,
            "geo" => pb::PayloadSchemaType::Geo,
            "text" => pb::PayloadSchemaType::Text,
            "bool" => pb::PayloadSchemaType::Bool,
            "datetime" => pb::PayloadSchemaType::Datetime,
            "uuid" => pb::PayloadSchemaType::Uuid,
            _ => pb::PayloadSchemaType::UnknownType,
        };
        let index_params = schema.params.and_then(|params| params.index_params(data_type));
        let params =
            index_params.map(|params| pb::PayloadIndexParams { index_params: Some(params) });
        pb::PayloadSchemaInfo { data_type: data_type as i32, params, points: schema.points }
    }
}

/// Parameters of an index in JSON.
#[derive(Deserialize)]
#[serde(transparent)]
struct IndexMembers(Map<String, Value>);

/// Makes the parameters of one type: its own ones, and `on_disk`, which every type has.
macro_rules! index_params {
    ($kind:ident, $members:expr, { $($field:ident: $value:expr),* }) => {
        IndexParams::$kind(pb::$kind {
            $($field: $value,)*
            on_disk: $members.flag("on_disk"),
            enable_hnsw: $members.flag("enable_hnsw"),
            memory: $members.memory(),
            ..pb::$kind::default()
        })
    };
}

impl IndexMembers {
    /// Returns the parameters of an index of the type `data_type`, or `None` for an unknown type.
    fn index_params(&self, data_type: pb::PayloadSchemaType) -> Option<IndexParams> {
        Some(match data_type {
            pb::PayloadSchemaType::Keyword => index_params!(KeywordIndexParams, self, {
                is_tenant: self.flag("is_tenant"),
                prefix: (self.flag("prefix") == Some(true)).then(Default::default)
            }),
            pb::PayloadSchemaType::Integer => index_params!(IntegerIndexParams, self, {
                lookup: self.flag("lookup"),
                range: self.flag("range"),
                is_principal: self.flag("is_principal")
            }),
            pb::PayloadSchemaType::Float => {
                index_params!(FloatIndexParams, self, { is_principal: self.flag("is_principal") })
            }
            pb::PayloadSchemaType::Geo => index_params!(GeoIndexParams, self, {}),
            pb::PayloadSchemaType::Text => self.text_index(),
            pb::PayloadSchemaType::Bool => index_params!(BoolIndexParams, self, {}),
            pb::PayloadSchemaType::Datetime => index_params!(DatetimeIndexParams, self, {
                is_principal: self.flag("is_principal")
            }),
            pb::PayloadSchemaType::Uuid => {
                index_params!(UuidIndexParams, self, { is_tenant: self.flag("is_tenant") })
            }
            pb::PayloadSchemaType::UnknownType => return None,
        })
    }

    /// Returns the parameters of a text index.
    fn text_index(&self) -> IndexParams {
        index_params!(TextIndexParams, self, {
            tokenizer: self.tokenizer(),
            lowercase: self.flag("lowercase"),
            min_token_len: self.count("min_token_len"),
            max_token_len: self.count("max_token_len"),
            ascii_folding: self.flag("ascii_folding"),
            phrase_matching: self.flag("phrase_matching"),
            stopwords: self.0.get("stopwords").and_then(stopwords),
            stemmer: self.0.get("stemmer").and_then(stemmer),
            scoring: self.0.get("scoring").and_then(scoring)
        })
    }

    fn flag(&self, name: &str) -> Option<bool> {
        self.0.get(name).and_then(Value::as_bool)
    }

    fn count(&self, name: &str) -> Option<u64> {
        self.0.get(name).and_then(Value::as_u64)
    }

    fn memory(&self) -> Option<i32> {
        let memory = match self.0.get("memory").and_then(Value::as_str)? {
            "cold" => pb::Memory::Cold,
            "cached" => pb::Memory::Cached,
            "pinned" => pb::Memory::Pinned,
            _ => return None,
        };
        Some(memory as i32)
    }

    fn tokenizer(&self) -> i32 {
        let tokenizer = match self.0.get("tokenizer").and_then(Value::as_str) {
            Some("prefix") => pb::TokenizerType::Prefix,
            Some("whitespace") => pb::TokenizerType::Whitespace,
            Some("word") => pb::TokenizerType::Word,
            Some("multilingual") => pb::TokenizerType::Multilingual,
            Some("code") => pb::TokenizerType::Code,
            _ => pb::TokenizerType::Unknown,
        };
        tokenizer as i32
    }
}

/// Returns the stop words of a language, or of several languages and of a list.
fn stopwords(value: &Value) -> Option<pb::StopwordsSet> {
    if let Value::String(language) = value {
        return Some(pb::StopwordsSet { languages: vec![language.clone()], custom: Vec::new() });
    }
    let set = value.as_object()?;
    let words = |name: &str| -> Vec<String> {
        let list = set.get(name).and_then(Value::as_array).into_iter().flatten();
        list.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    Some(pb::StopwordsSet { languages: words("languages"), custom: words("custom") })
}

fn stemmer(value: &Value) -> Option<pb::StemmingAlgorithm> {
    let params = match value.get("type").and_then(Value::as_str)? {
        "snowball" => {
            let language = value.get("language").and_then(Value::as_str).unwrap_or_default();
            StemmingParams::Snowball(pb::SnowballParams { language: language.to_owned() })
        }
        "none" => StemmingParams::Disabled(pb::DisabledStemmer {}),
        _ => return None,
    };
    Some(pb::StemmingAlgorithm { stemming_params: Some(params) })
}

/// Returns the scoring of texts, or `None` if it is off. There is one kind of it.
fn scoring(value: &Value) -> Option<pb::TextScoringParams> {
    let is_on = value.is_object() || *value == Value::Bool(true);
    is_on.then(pb::TextScoringParams::default)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::collections;

    fn described(params: &Value) -> Option<IndexParams> {
        let schema = json!({ "data_type": params["type"], "points": 3, "params": params });
        let schema: SchemaJson = serde_json::from_value(schema).unwrap();
        pb::PayloadSchemaInfo::from(schema).params?.index_params
    }

    #[test]
    fn parameters_return_as_they_were_sent() {
        let snowball = pb::SnowballParams { language: "english".to_owned() };
        let stemming_params = Some(StemmingParams::Snowball(snowball));
        let memory = Some(pb::Memory::Cold as i32);
        for params in [
            IndexParams::TextIndexParams(pb::TextIndexParams {
                tokenizer: pb::TokenizerType::Word as i32,
                stopwords: Some(pb::StopwordsSet {
                    languages: vec!["english".to_owned(), "german".to_owned()],
                    custom: vec!["pond".to_owned()],
                }),
                stemmer: Some(pb::StemmingAlgorithm { stemming_params }),
                scoring: Some(pb::TextScoringParams::default()),
                lowercase: Some(false),
                on_disk: Some(true),
                memory,
                ..pb::TextIndexParams::default()
            }),
            IndexParams::KeywordIndexParams(pb::KeywordIndexParams {
                is_tenant: Some(true),
                prefix: Some(pb::KeywordPrefixParams {}),
                enable_hnsw: Some(false),
                ..pb::KeywordIndexParams::default()
            }),
            IndexParams::DatetimeIndexParams(pb::DatetimeIndexParams {
                is_principal: Some(true),
                memory,
                ..pb::DatetimeIndexParams::default()
            }),
            IndexParams::GeoIndexParams(pb::GeoIndexParams {
                on_disk: Some(false),
                ..pb::GeoIndexParams::default()
            }),
        ] {
            let json = collections::index_params(params.clone()).unwrap();
            assert_eq!(described(&json), Some(params), "{json}");
        }
    }

    #[test]
    fn every_form_of_stop_words_and_stemmers_is_described() {
        let text = |params: Value| match described(&params) {
            Some(IndexParams::TextIndexParams(text)) => text,
            other => panic!("{other:?}"),
        };
        let none = text(json!({"type": "text", "stopwords": {}, "stemmer": {"type": "none"}}));
        assert_eq!(none.stopwords, Some(pb::StopwordsSet::default()));
        let disabled = Some(StemmingParams::Disabled(pb::DisabledStemmer {}));
        assert_eq!(none.stemmer, Some(pb::StemmingAlgorithm { stemming_params: disabled }));
        let one = text(json!({"type": "text", "stopwords": "french", "scoring": false}));
        let french = pb::StopwordsSet { languages: vec!["french".to_owned()], custom: vec![] };
        assert_eq!((one.stopwords, one.stemmer, one.scoring), (Some(french), None, None));
    }
}
