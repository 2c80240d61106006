//! Reader of payloads that parses only the members that a filter compares, and no payload that
//! cannot match.
//!
//! New points have no payload index, so each query with a filter compares all of them. Parsing a
//! payload as a whole takes most of that time.

use std::fmt;

use memchr::memchr;
use memchr::memmem::Finder;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value};

use super::value_of;
use crate::filter::{Condition, Filter, Match, first_step};
use crate::points::RESERVED_KEY;

/// Maximum members that are read apart. More are read with all others.
const NAMES_MAX: usize = 16;
/// Maximum conditions whose texts are searched in the bytes of a payload.
const NEEDED_MAX: usize = 8;
/// Maximum texts of such a condition.
const TEXTS_MAX: usize = 8;

/// Reader of payloads for one filter or field.
pub(in crate::collection) struct PayloadReader<'a> {
    /// Members of a payload that are read.
    names: Vec<&'a str>,
    /// True if there are too many of them.
    reads_all: bool,
    /// Texts in quotation marks, by condition. A payload without escapes that meets the filter has
    /// one text of each condition.
    needed: Vec<Vec<Finder<'static>>>,
}

impl<'a> PayloadReader<'a> {
    /// Creates a reader of the fields of `filter` and of the field `key`.
    pub(in crate::collection) fn new(
        filter: Option<&'a Filter>,
        key: Option<&'a str>,
    ) -> PayloadReader<'a> {
        let mut reader = PayloadReader { names: Vec::new(), reads_all: false, needed: Vec::new() };
        if let Some(key) = key {
            reader.add_name(first_step(key).name);
        }
        if let Some(filter) = filter {
            reader.add_names(filter);
            reader.add_texts(filter);
        }
        reader
    }

    /// Adds the first names of the paths in `filter`.
    fn add_names(&mut self, filter: &'a Filter) {
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
                | Condition::Element { key, .. } => self.add_name(first_step(key).name),
                // The payload has the ids of UUIDs.
                Condition::Slice(_) => self.add_name(RESERVED_KEY),
                Condition::Nested(filter) => self.add_names(filter),
                Condition::HasId(_) | Condition::HasVector { .. } => {}
            }
        }
    }

    fn add_name(&mut self, name: &'a str) {
        if self.names.contains(&name) {
            return;
        }
        if self.names.len() < NAMES_MAX {
            self.names.push(name);
        } else {
            self.reads_all = true;
        }
    }

    /// Adds the texts without which no payload meets `filter`.
    fn add_texts(&mut self, filter: &Filter) {
        for condition in &filter.must {
            if self.needed.len() >= NEEDED_MAX {
                return;
            }
            match condition {
                Condition::Match { matching, .. } => self.needed.extend(texts_of(matching)),
                Condition::Element { filter, .. } | Condition::Nested(filter) => {
                    self.add_texts(filter);
                }
                _ => {}
            }
        }
    }

    /// Returns false if a payload cannot meet the filter. Does not parse it.
    pub(in crate::collection) fn may_match(&self, payload: &[u8]) -> bool {
        let is_found = |text: &Finder<'_>| text.find(payload).is_some();
        self.needed.iter().all(|texts| texts.iter().any(is_found))
            // Escapes can stand for any text.
            || memchr(b'\\', payload).is_some()
    }

    /// Parses the members of a payload that the filter and the field need. Returns `None` if it is
    /// not JSON.
    pub(in crate::collection) fn read(&self, payload: &[u8]) -> Option<Value> {
        if self.reads_all || payload.first() != Some(&b'{') {
            return value_of(payload);
        }
        let mut json = serde_json::Deserializer::from_slice(payload);
        let members = PayloadMembers(&self.names).deserialize(&mut json).ok()?;
        json.end().ok()?;
        Some(Value::Object(members))
    }
}

/// Returns texts in quotation marks of which each matching payload has at least one. Returns `None`
/// if a matching payload may have none of them.
fn texts_of(matching: &Match) -> Option<Vec<Finder<'static>>> {
    let values = match matching {
        Match::Value(value) => std::slice::from_ref(value),
        Match::Any(values) if values.len() <= TEXTS_MAX => &values[..],
        _ => return None,
    };
    let finder = |value: &Value| {
        let text = format!("\"{}\"", value.as_str()?);
        Some(Finder::new(&text).into_owned())
    };
    values.iter().map(finder).collect()
}

/// Members of an object by their names. Other members are skipped.
struct PayloadMembers<'n>(&'n [&'n str]);

impl<'de> DeserializeSeed<'de> for PayloadMembers<'_> {
    type Value = Map<String, Value>;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Self::Value, D::Error> {
        json.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for PayloadMembers<'_> {
    type Value = Map<String, Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Self::Value, A::Error> {
        let mut members = Map::new();
        while let Some(name) = object.next_key_seed(MemberName(self.0))? {
            if let Some(name) = name {
                let value: Value = object.next_value()?;
                members.insert(name.to_owned(), value);
            } else {
                object.next_value::<IgnoredAny>()?;
            }
        }
        Ok(members)
    }
}

/// Name of a member if it is one of these.
struct MemberName<'n>(&'n [&'n str]);

impl<'de, 'n> DeserializeSeed<'de> for MemberName<'n> {
    type Value = Option<&'n str>;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Self::Value, D::Error> {
        json.deserialize_str(self)
    }
}

impl<'n> Visitor<'_> for MemberName<'n> {
    type Value = Option<&'n str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Self::Value, E> {
        Ok(self.0.iter().copied().find(|known| *known == name))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn equals(key: &str, value: Value) -> Condition {
        Condition::Match { key: key.to_owned(), matching: Match::Value(value) }
    }

    fn all(must: Vec<Condition>) -> Filter {
        Filter { must, ..Filter::default() }
    }

    #[test]
    fn payloads_without_the_text_are_not_parsed() {
        let payloads: Vec<Vec<u8>> = (0..1000)
            .map(|n| serde_json::to_vec(&json!({ "tenant": format!("t{n}"), "n": n })).unwrap())
            .collect();
        let parsed = |filter: &Filter| {
            let reader = PayloadReader::new(Some(filter), None);
            payloads.iter().filter(|payload| reader.may_match(payload)).count()
        };
        assert_eq!(parsed(&all(vec![equals("tenant", json!("t5"))])), 1);
        let any = Match::Any(vec![json!("t5"), json!("t77"), json!("none")].into());
        let any = Condition::Match { key: "tenant".to_owned(), matching: any };
        assert_eq!(parsed(&all(vec![Condition::Nested(all(vec![any]))])), 2);
        // A number can be written in several ways.
        assert_eq!(parsed(&all(vec![equals("n", json!(5))])), 1000);
    }

    #[test]
    fn only_members_of_the_filter_and_the_field_are_parsed() {
        let payload = json!({ "a": { "b": 1 }, "c": [1, { "d": "\n" }], "e": "x", "f": null });
        let payload = serde_json::to_vec(&payload).unwrap();
        let filter = all(vec![equals("a.b", json!(1))]);
        let reader = PayloadReader::new(Some(&filter), Some("f"));
        assert_eq!(reader.read(&payload), Some(json!({ "a": { "b": 1 }, "f": null })));
        assert_eq!(PayloadReader::new(None, None).read(&payload), Some(json!({})));
        assert_eq!(reader.read(b""), Some(Value::Null));
        for broken in ["{", "{\"e\":}", "{\"e\":1}}", "{\"e\" 1}"] {
            assert_eq!(reader.read(broken.as_bytes()), None, "{broken}");
        }
    }

    fn any_filter() -> impl Strategy<Value = Filter> {
        let key = prop::sample::select(vec!["a", "a.b", "a[].b", "b", "\"a.b\"", "c\u{e9}"]);
        let value = prop_oneof![
            Just(json!("x")),
            Just(json!("\"")),
            Just(json!("\u{e9}\n")),
            Just(json!("")),
            (0..3).prop_map(Value::from),
        ];
        let condition =
            (key, prop::collection::vec(value, 0..4), 0..6).prop_map(|(key, values, kind)| {
                match kind {
                    0 => Condition::IsEmpty { key: key.to_owned() },
                    1 => Condition::IsNull { key: key.to_owned() },
                    2 => Condition::Element {
                        key: "a".to_owned(),
                        filter: all(values.into_iter().map(|value| equals(key, value)).collect()),
                    },
                    3 => Condition::Match {
                        key: key.to_owned(),
                        matching: Match::Any(values.into()),
                    },
                    4 => Condition::Match {
                        key: key.to_owned(),
                        matching: Match::Except(values.into()),
                    },
                    _ => equals(key, values.into_iter().next().unwrap_or(json!(1))),
                }
            });
        let condition = condition.boxed();
        let list = || prop::collection::vec(condition.clone(), 0..3);
        (list(), list(), list()).prop_map(|(must, should, must_not)| Filter {
            must: vec![Condition::Nested(all(must))],
            should,
            must_not,
            min_should: None,
        })
    }

    fn any_payload() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(json!("x")),
            Just(json!("\"")),
            Just(json!("\u{e9}\n")),
            Just(json!("")),
            Just(Value::Null),
            (0..3).prop_map(Value::from),
        ];
        let names = ["a", "b", "a.b", "c\u{e9}", "other"];
        let value = leaf.prop_recursive(3, 12, 3, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                prop::collection::btree_map(prop::sample::select(names.to_vec()), inner, 0..3)
                    .prop_map(|members| json!(members)),
            ]
        });
        prop::collection::btree_map(prop::sample::select(names.to_vec()), value, 0..4)
            .prop_map(|members| json!(members))
    }

    proptest! {
        #[test]
        fn a_reader_finds_what_whole_payloads_match(
            filter in any_filter(),
            payload in any_payload(),
        ) {
            let bytes = serde_json::to_vec(&payload).unwrap();
            let reader = PayloadReader::new(Some(&filter), None);
            let is_found = reader.may_match(&bytes)
                && reader.read(&bytes).is_some_and(|value| filter.matches(1, &value));
            prop_assert_eq!(is_found, filter.matches(1, &payload));
        }
    }
}
