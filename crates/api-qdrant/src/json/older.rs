//! Requests of the routes that `points/query` replaces, as requests of `points/query`.
//!
//! Members that both have keep their text, so both read them in the same way. Errors in them name
//! members of `points/query`.

use std::collections::BTreeMap;

use base::{Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

use super::unique::UniqueTexts;

/// Members of a request, each as its text.
type Members = BTreeMap<String, Box<RawValue>>;

/// Members that all of these requests have in common with `points/query`.
const COMMON: [&str; 8] = [
    "filter",
    "limit",
    "offset",
    "params",
    "shard_key",
    "with_payload",
    "with_vector",
    "with_vectors",
];

/// Members of requests for groups.
const GROUPS: [&str; 3] = ["group_by", "group_size", "with_lookup"];

/// Members that a request for groups must have.
const GROUPS_NEEDED: [&str; 3] = ["group_by", "group_size", "limit"];

/// Form of the answer that a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AnswerForm {
    /// A list of points.
    List,
    /// Groups of points.
    Groups,
}

/// Request of a route that `points/query` replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OlderQuery {
    /// The points nearest to a vector, as in `points/search`.
    Search,
    /// Points similar to examples, as in `points/recommend`.
    Recommend,
    /// Points between pairs of examples, as in `points/discover`.
    Discover,
}

/// Returns the error if hits may be missing from a plain list, which cannot show that it is
/// partial.
pub fn incomplete_list() -> Error {
    Error::unavailable(
        "points may be missing, and the response of this route has no field for that; see the collection's \
         warnings, or use points/query, whose answer has \"partial\": true",
    )
}

/// Several requests.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct OlderBatch {
    searches: Vec<UniqueTexts>,
}

impl OlderQuery {
    /// Returns the body of `points/query` for a body of this request.
    ///
    /// # Errors
    /// `InvalidArgument` for a body that is not such a request. The reader of `points/query`
    /// checks the members that both have.
    pub fn query(self, body: &[u8]) -> Result<Vec<u8>> {
        text(&self.converted(read_members(body)?, AnswerForm::List)?)
    }

    /// Returns the body of `points/query/groups` for a body of this request for groups.
    ///
    /// # Errors
    /// As [`OlderQuery::query`].
    pub fn groups(self, body: &[u8]) -> Result<Vec<u8>> {
        text(&self.converted(read_members(body)?, AnswerForm::Groups)?)
    }

    /// Returns the body of `points/query/batch` for a body of several such requests.
    ///
    /// # Errors
    /// As [`OlderQuery::query`], with the position of the request.
    pub fn batch(self, body: &[u8]) -> Result<Vec<u8>> {
        let batch: OlderBatch = read(body)?;
        let mut searches = Vec::with_capacity(batch.searches.len());
        for (at, UniqueTexts(members)) in batch.searches.into_iter().enumerate() {
            let query = self.converted(members, AnswerForm::List);
            let query = query.map_err(|error| error.context(format_args!("searches[{at}]")))?;
            searches.push(UniqueTexts(query));
        }
        text(&OlderBatch { searches })
    }

    /// Returns the members of the request for `points/query`.
    fn converted(self, mut members: Members, form: AnswerForm) -> Result<Members> {
        members.retain(|_, value| value.get() != "null");
        let mut query = Members::new();
        match self {
            OlderQuery::Search => search(&mut members, &mut query)?,
            OlderQuery::Recommend => recommend(&mut members, &mut query)?,
            OlderQuery::Discover => discover(&mut members, &mut query)?,
        }
        if form == AnswerForm::List
            && let Some(top) = members.remove("top")
        {
            // Another name of the limit.
            if members.insert("limit".to_owned(), top).is_some() {
                return Err(Error::invalid("the request's JSON: duplicate field `limit`"));
            }
        }
        let needed: &[&str] = match form {
            AnswerForm::List => &["limit"],
            AnswerForm::Groups => &GROUPS_NEEDED,
        };
        if let Some(name) = needed.iter().find(|name| !members.contains_key(**name)) {
            return Err(Error::invalid(format!("the request's JSON: missing field `{name}`")));
        }
        for (name, value) in members {
            if !self.has(&name, form) {
                return Err(Error::invalid(format!("the request's JSON: unknown field `{name}`")));
            }
            query.insert(name, value);
        }
        Ok(query)
    }

    /// Returns true for a member of the request that `points/query` has too.
    fn has(self, name: &str, form: AnswerForm) -> bool {
        let is_own = match self {
            OlderQuery::Search => name == "score_threshold",
            OlderQuery::Recommend => matches!(name, "score_threshold" | "using" | "lookup_from"),
            OlderQuery::Discover => matches!(name, "using" | "lookup_from"),
        };
        is_own || COMMON.contains(&name) || (form == AnswerForm::Groups && GROUPS.contains(&name))
    }
}

fn read<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T> {
    serde_json::from_slice(body)
        .map_err(|error| Error::invalid("the request's JSON").caused_by(error))
}

fn read_members(body: &[u8]) -> Result<Members> {
    read(body).map(|UniqueTexts(members)| members)
}

fn text(query: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(query).map_err(unwritten)
}

fn raw(value: &impl Serialize) -> Result<Box<RawValue>> {
    to_raw_value(value).map_err(unwritten)
}

fn unwritten(error: serde_json::Error) -> Error {
    Error::internal("a query cannot be written").caused_by(error)
}

/// Converts the vector of a search, which is bare or has a name beside it.
fn search(members: &mut Members, query: &mut Members) -> Result<()> {
    let expected = || {
        Error::invalid(
            "vector: a list of numbers, or {\"name\": \"NAME\", \"vector\": [..]} is expected",
        )
    };
    let starts = |value: &RawValue, first: &[char]| value.get().starts_with(first);
    let mut vector = members.remove("vector").ok_or_else(expected)?;
    if starts(&vector, &['{']) {
        let mut named = read_members(vector.get().as_bytes())?;
        let name = named.remove("name").filter(|name| starts(name, &['"'])).ok_or_else(expected)?;
        query.insert("using".to_owned(), name);
        // An object is a sparse vector, which the reader refuses with the reason.
        let own = named.remove("vector").filter(|vector| starts(vector, &['[', '{']));
        vector = own.ok_or_else(expected)?;
        if !named.is_empty() {
            return Err(expected());
        }
    } else if !starts(&vector, &['[']) {
        return Err(expected());
    }
    query.insert("query".to_owned(), raw(&BTreeMap::from([("nearest", vector)]))?);
    Ok(())
}

/// Converts the examples of a recommendation.
fn recommend(members: &mut Members, query: &mut Members) -> Result<()> {
    let mut examples = Members::new();
    for name in ["positive", "negative", "strategy"] {
        examples.extend(members.remove_entry(name));
    }
    query.insert("query".to_owned(), raw(&BTreeMap::from([("recommend", examples)]))?);
    Ok(())
}

/// Converts the target and the pairs of examples of a discovery.
fn discover(members: &mut Members, query: &mut Members) -> Result<()> {
    let mut pairs = Members::new();
    pairs.extend(members.remove_entry("context"));
    let converted = match members.remove_entry("target") {
        Some(target) => {
            if pairs.is_empty() {
                pairs.insert("context".to_owned(), raw(&[(); 0])?);
            }
            pairs.extend([target]);
            raw(&BTreeMap::from([("discover", pairs)]))?
        }
        None if pairs.is_empty() => {
            return Err(Error::invalid("a discovery needs a target, a context or both"));
        }
        None => raw(&pairs)?,
    };
    query.insert("query".to_owned(), converted);
    Ok(())
}

#[cfg(test)]
mod tests {
    use base::ErrorKind;
    use serde_json::{Value, json};

    use super::*;
    use crate::json::{
        QueryBatchRequest, QueryGroupsRequest, QueryRequest, VectorInput, VectorQuery, parse,
    };

    fn converted(older: OlderQuery, body: &Value) -> Result<Value> {
        let converted = older.query(body.to_string().as_bytes())?;
        Ok(serde_json::from_slice(&converted).unwrap())
    }

    #[test]
    fn a_search_becomes_a_query() {
        let plain = json!({"vector": [1, 2.5], "limit": 3, "offset": 1, "score_threshold": 0.5,
                           "with_payload": ["a"], "with_vector": true, "params": {"exact": true},
                           "filter": {"must": []}, "shard_key": null});
        let query = OlderQuery::Search.query(plain.to_string().as_bytes()).unwrap();
        let query: QueryRequest = parse(&query).unwrap();
        let nearest = VectorQuery::Nearest(VectorInput::Vector(vec![1.0, 2.5]));
        assert_eq!((query.query.unwrap(), query.using.as_str()), (nearest, ""));
        assert_eq!((query.limit, query.offset), (Some(3), Some(1)));
        assert_eq!(query.params.exact, Some(true));
        let named = json!({"vector": {"name": "v", "vector": [1]}, "top": 2});
        let expected = json!({"query": {"nearest": [1]}, "using": "v", "limit": 2});
        assert_eq!(converted(OlderQuery::Search, &named).unwrap(), expected);
    }

    #[test]
    fn examples_become_queries() {
        let own = json!({"positive": [1, [0.5]], "negative": [], "strategy": "best_score",
                         "using": "v", "limit": 2});
        let expected = json!({"query": {"recommend": {"positive": [1, [0.5]], "negative": [],
                              "strategy": "best_score"}}, "using": "v", "limit": 2});
        assert_eq!(converted(OlderQuery::Recommend, &own).unwrap(), expected);
        let pairs = json!([{"positive": 1, "negative": 2}]);
        let own = json!({"target": [1], "context": pairs, "limit": 2});
        let expected =
            json!({"query": {"discover": {"target": [1], "context": pairs}}, "limit": 2});
        assert_eq!(converted(OlderQuery::Discover, &own).unwrap(), expected);
        let own = json!({"context": pairs, "target": null, "limit": 2});
        let expected = json!({"query": {"context": pairs}, "limit": 2});
        assert_eq!(converted(OlderQuery::Discover, &own).unwrap(), expected);
        let own = json!({"target": 7, "limit": 2});
        let expected = json!({"query": {"discover": {"target": 7, "context": []}}, "limit": 2});
        assert_eq!(converted(OlderQuery::Discover, &own).unwrap(), expected);
    }

    #[test]
    fn batches_and_groups_become_those_of_queries() {
        let search = json!({"vector": [1], "limit": 2});
        let batch = json!({"searches": [search, {"vector": [2], "limit": 4}]});
        let batch = OlderQuery::Search.batch(batch.to_string().as_bytes()).unwrap();
        let batch: QueryBatchRequest = parse(&batch).unwrap();
        assert_eq!(batch.searches[1].limit(), 4);
        let groups = json!({"vector": [1], "limit": 2, "group_by": "a.b", "group_size": 5});
        let groups = OlderQuery::Search.groups(groups.to_string().as_bytes()).unwrap();
        let groups: QueryGroupsRequest = parse(&groups).unwrap();
        assert_eq!((groups.group_by.as_str(), groups.group_size, groups.limit), ("a.b", 5, 2));
    }

    #[test]
    fn other_bodies_are_refused_by_the_member() {
        use OlderQuery::{Discover, Recommend, Search};
        for (older, body, words) in [
            (Search, json!({"limit": 1}), "vector"),
            (Search, json!({"vector": 5, "limit": 1}), "vector"),
            (Search, json!({"vector": {"vector": [1]}, "limit": 1}), "name"),
            (Search, json!({"vector": {"name": "v", "vector": 5}, "limit": 1}), "vector"),
            (Search, json!({"vector": {"name": "v", "vector": [1], "x": 1}, "limit": 1}), "vector"),
            (Search, json!({"vector": [1]}), "`limit`"),
            (Search, json!({"vector": [1], "limit": 1, "using": "v"}), "`using`"),
            (Search, json!({"vector": [1], "limit": 1, "query": [1]}), "`query`"),
            (Recommend, json!({"positive": [1], "limit": 1, "prefetch": []}), "`prefetch`"),
            (Discover, json!({"target": 1, "limit": 1, "score_threshold": 1}), "score_threshold"),
            (Discover, json!({"limit": 1}), "target"),
        ] {
            let error = converted(older, &body).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{body}");
            assert!(error.message().contains(words), "{body}: {error}");
        }
        let batch = json!({"searches": [{"vector": [1], "limit": 1}, {"limit": 1}]});
        let error = Search.batch(batch.to_string().as_bytes()).unwrap_err();
        assert!(error.message().starts_with("searches[1]: vector"), "{error}");
        let groups = json!({"vector": [1], "limit": 2, "group_by": "a"});
        let error = Search.groups(groups.to_string().as_bytes()).unwrap_err();
        assert!(error.message().contains("`group_size`"), "{error}");
        // As in Qdrant. The reader of a map would keep the last member.
        for body in [
            r#"{"vector": [1], "limit": 1, "filter": {"must": []}, "filter": {}}"#,
            r#"{"vector": {"name": "v", "name": "w", "vector": [1]}, "limit": 1}"#,
            r#"{"vector": [1], "limit": 1, "top": 2}"#,
        ] {
            let batch = format!("{{\"searches\": [{body}]}}");
            for error in [Search.query(body.as_bytes()), Search.batch(batch.as_bytes())] {
                let error = error.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{body}");
                assert!(error.message().contains("duplicate field"), "{body}: {error}");
            }
        }
        let sparse = json!({"vector": {"name": "v", "vector": {"indices": [1], "values": [1]}},
                            "limit": 1});
        let query = Search.query(sparse.to_string().as_bytes()).unwrap();
        let error = parse::<QueryRequest>(&query).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unimplemented);
    }
}
