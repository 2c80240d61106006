//! Parameters of text indexes. They say how conditions on the field split its texts into words.

use base::{Error, Result};
use search::filter::{Tokenizer, WordSplit};
use serde_json::Value;

use super::unsupported;

/// Returns the tokenizer of the parameters of a text index; null has the defaults.
///
/// # Errors
/// `Unimplemented` for parameters that change words in a way that this server does not have.
pub(crate) fn tokenizer(params: &Value) -> Result<Tokenizer> {
    let refused = |name: &str| {
        let parameter = format!("a text index with this value of {name}");
        Error::unimplemented(unsupported(parameter))
    };
    let split = match &params["tokenizer"] {
        Value::Null => WordSplit::Word,
        name if name == "word" => WordSplit::Word,
        name if name == "whitespace" => WordSplit::Whitespace,
        name if name == "prefix" => WordSplit::Prefix,
        _ => return Err(refused("tokenizer")),
    };
    let stemmer = &params["stemmer"];
    if !stemmer.is_null() && stemmer["type"] != "none" {
        return Err(refused("stemmer"));
    }
    if !has_no_words(&params["stopwords"]) {
        return Err(refused("stopwords"));
    }
    if params["ascii_folding"] == true {
        return Err(refused("ascii_folding"));
    }
    let chars = |name: &str| {
        params[name].as_u64().map(|chars| usize::try_from(chars).unwrap_or(usize::MAX))
    };
    let default = Tokenizer::default();
    Ok(Tokenizer {
        split,
        lowercase: params["lowercase"].as_bool().unwrap_or(default.lowercase),
        min_chars: chars("min_token_len").unwrap_or(1).max(default.min_chars),
        max_chars: chars("max_token_len").unwrap_or(default.max_chars),
    })
}

/// Returns true for stop words without any word.
fn has_no_words(stopwords: &Value) -> bool {
    let is_empty = |words: &Value| words.is_null() || words.as_array().is_some_and(Vec::is_empty);
    stopwords.is_null() || stopwords.as_object().is_some_and(|set| set.values().all(is_empty))
}

/// Checks that an index of the type `data_type` makes conditions on its field split texts as on a
/// field without one. The shards of a cluster do not know declared indexes.
///
/// # Errors
/// `Unimplemented` for other parameters of a text index.
pub fn check_default_tokenizer(data_type: &str, params: &Value) -> Result<()> {
    if data_type != "text" || tokenizer(params)? == Tokenizer::default() {
        return Ok(());
    }
    Err(Error::unimplemented(unsupported(
        "a text index with another tokenizer, another case or limits of lengths in a cluster",
    )))
}
