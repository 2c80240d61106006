//! Keys of Triton's `config.pbtxt`, which the server does not read, for warnings.
//!
//! `millpond import triton` parses the file. This module only splits it into its outermost keys, so
//! that a mistake in the file does not hide the rest.

/// Maximum characters of a value that is shown.
const SHOWN_MAX: usize = 100;

/// Keys that change how a model is served, with their equivalents.
const KEYS: [(&str, &str); 15] = [
    ("max_batch_size", "max-batch in [schedule]"),
    ("dynamic_batching", "mode = \"async\" and other keys in [schedule]"),
    ("instance_group", "threads in [schedule], and device"),
    ("version_policy", "policy"),
    ("model_warmup", "[warmup]"),
    ("parameters", "intra-op-threads, for some"),
    ("default_model_filename", "none: the file is named model.onnx or model.pt"),
    ("optimization", "none"),
    ("response_cache", "none"),
    ("model_transaction_policy", "none: a request has one response"),
    ("sequence_batching", "none: requests are independent"),
    ("ensemble_scheduling", "none: clients call the models in turn"),
    ("batch_input", "none"),
    ("batch_output", "none"),
    ("model_repository_agents", "none"),
];

/// A key of the file that is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TritonSetting {
    /// Name of the key.
    pub key: &'static str,
    /// Value on one line, shortened.
    pub value: String,
    /// The equivalent setting of the server, or "none".
    pub equivalent: &'static str,
}

/// Returns the keys in `text` that change how a model is served.
pub fn settings(text: &str) -> Vec<TritonSetting> {
    let tokens = tokens(text);
    let mut found: Vec<TritonSetting> = Vec::new();
    let mut depth = 0usize;
    let mut key: Option<usize> = None;
    for (at, token) in tokens.iter().enumerate() {
        match *token {
            "{" | "[" | "<" => depth += 1,
            "}" | "]" | ">" => depth = depth.saturating_sub(1),
            _ => {}
        }
        let next = tokens.get(at + 1).copied().unwrap_or_default();
        if depth == 0 && key.is_none() && matches!(next, ":" | "{" | "[" | "<") {
            key = Some(at);
            continue;
        }
        // A key ends with its value: one token after the colon, or the closing bracket.
        let Some(start) = key.filter(|_| depth == 0 && *token != ":") else { continue };
        key = None;
        let Some((name, equivalent)) = KEYS.iter().find(|(name, _)| *name == tokens[start]) else {
            continue;
        };
        let value = tokens[start + 1..=at].join(" ");
        let value = value.trim_start_matches([':', ' ']);
        // Models with batch size 0 are served as they are.
        if !(*name == "max_batch_size" && value == "0") {
            found.push(TritonSetting { key: name, value: shortened(value), equivalent });
        }
    }
    found
}

fn shortened(value: &str) -> String {
    match value.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{}...", &value[..end]),
        None => value.to_owned(),
    }
}

/// Splits protobuf text into words, quoted strings and punctuation, without comments and
/// separators.
fn tokens(text: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '#' => rest.find('\n').unwrap_or(rest.len()),
            '"' | '\'' => quoted(rest, first),
            '{' | '}' | '[' | ']' | '<' | '>' | ':' | ',' | ';' => 1,
            _ => rest
                .find(|c: char| c.is_whitespace() || "#\"'{}[]<>:,;".contains(c))
                .unwrap_or(rest.len()),
        };
        let (token, after) = rest.split_at(length);
        if !matches!(first, '#' | ',' | ';') {
            tokens.push(token);
        }
        rest = after.trim_start();
    }
    tokens
}

/// Returns the length of the quoted string at the start of `text`.
fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> Vec<String> {
        settings(text).iter().map(|it| format!("{} = {}", it.key, it.value)).collect()
    }

    #[test]
    fn keys_have_their_values() {
        let text = "name: \"m\"\nmax_batch_size: 8\ninput [ { name: \"x\" dims: [ 4 ] } ]\n\
                    dynamic_batching {\n  preferred_batch_size: [ 4, 8 ]\n  max_queue_delay_microseconds: 100\n}\n\
                    # version_policy: { all {} }\n\
                    instance_group [ { count: 2, kind: KIND_CPU } ]\n\
                    parameters: { key: \"a } b\" value: { string_value: '1' } }\n\
                    parameters { key: \"c\" }";
        assert_eq!(
            said(text),
            [
                "max_batch_size = 8",
                "dynamic_batching = { preferred_batch_size : [ 4 8 ] max_queue_delay_microseconds : 100 }",
                "instance_group = [ { count : 2 kind : KIND_CPU } ]",
                "parameters = { key : \"a } b\" value : { string_value : '1' } }",
                "parameters = { key : \"c\" }",
            ]
        );
        assert!(said("platform: \"onnxruntime_onnx\"\nmax_batch_size: 0\n").is_empty());
    }

    #[test]
    fn damaged_text_ends_somewhere() {
        for text in ["dynamic_batching {", "max_batch_size:", "}}}", "\"", "a: '\\", "é: é [", ""]
        {
            assert!(said(text).is_empty(), "{text}");
        }
        let long = format!("optimization {{ {} }}", "x: 1 ".repeat(99));
        assert_eq!(said(&long)[0].len(), "optimization = ".len() + SHOWN_MAX + 3);
    }
}
