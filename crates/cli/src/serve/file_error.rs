//! Explains errors in a settings file: the key, its value, and the expected value.

use std::path::Path;

use base::nearest;
use command_line::exit::CommandError;

/// The parser's type names, and their descriptions.
const TYPES: [(&str, &str); 8] = [
    ("u16", "a number from 0 to 65535"),
    ("u32", "a whole number"),
    ("u64", "a whole number"),
    ("usize", "a whole number"),
    ("a boolean", "true or false"),
    ("a string", "text in quotes"),
    ("a sequence", "a list"),
    ("a map", "a table"),
];

/// Converts a parser's error to a usage error with file, line and key.
pub(super) fn describe(error: &toml::de::Error, text: &str, path: &Path) -> CommandError {
    let start = error.span().map_or(0, |span| span.start.min(text.len()));
    let before = text.get(..start).unwrap_or_default();
    let line = 1 + before.matches('\n').count();
    let place = format!("{}:{line}", path.display());
    let message = error.message().replace('\n', " ");
    if let Some(rest) = message.strip_prefix("unknown field ") {
        return unknown_key(&place, rest);
    }
    let key = key(text.lines().nth(line - 1).unwrap_or_default());
    let message = match (key, wrong_type(&message)) {
        (Some(key), Some((is, must))) => format!("{key} is {is}; it must be {must}"),
        (None, Some((is, must))) => format!("this is {is}; it must be {must}"),
        (Some(key), None) => format!("{key}: {message}"),
        (None, None) => message,
    };
    CommandError::usage(format!("{place}: {message}"))
}

/// Explains an unknown key. `rest` is "`htp-port`, expected one of `host`, `http-port`".
fn unknown_key(place: &str, rest: &str) -> CommandError {
    let mut quoted = rest.split('`').skip(1).step_by(2);
    let unknown = quoted.next().unwrap_or_default();
    let known: Vec<&str> = quoted.collect();
    let meant = nearest(unknown, known.iter().copied());
    let meant = meant.map(|meant| format!("; did you mean `{meant}`?")).unwrap_or_default();
    let failure = CommandError::usage(format!("{place}: unknown key `{unknown}`{meant}"));
    if known.is_empty() {
        failure
    } else {
        failure.hint(format!("the keys are {}", known.join(", ")))
    }
}

/// Returns the key of a line "key = value".
fn key(line: &str) -> Option<&str> {
    let key = line.split_once('=')?.0.trim();
    let bare = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (!key.is_empty() && key.chars().all(bare)).then_some(key)
}

/// Returns the found and the expected value of "invalid type: string "nine", expected u16".
fn wrong_type(message: &str) -> Option<(String, &str)> {
    let rest = message
        .strip_prefix("invalid type: ")
        .or_else(|| message.strip_prefix("invalid value: "))?;
    let (is, expected) = rest.rsplit_once(", expected ")?;
    let in_words = TYPES.iter().find(|(name, _)| *name == expected).map(|(_, words)| *words);
    let is = match is {
        "sequence" => "a list".to_owned(),
        "map" => "a table".to_owned(),
        _ => match is.strip_prefix("string ") {
            Some(text) => format!("the text {text}"),
            None => is.split('`').nth(1).unwrap_or(is).to_owned(),
        },
    };
    Some((is, in_words.unwrap_or(expected)))
}

#[cfg(test)]
mod tests {
    use crate::serve::file::SettingsFile;

    #[track_caller]
    fn check(text: &str, wanted: &str) {
        let failure = SettingsFile::parse(text, "m.toml".as_ref()).unwrap_err();
        assert_eq!(failure.message(), format!("m.toml:{wanted}"), "{text}");
    }

    #[test]
    fn wrong_types_are_explained_in_words() {
        check(
            "[server]\nhttp-port = \"nine\"\n",
            "2: http-port is the text \"nine\"; it must be a number from 0 to 65535",
        );
        check(
            "[server]\ngrpc-port = 70000\n",
            "2: grpc-port is 70000; it must be a number from 0 to 65535",
        );
        check("[inference]\n\npin = 1\n", "3: pin is 1; it must be true or false");
        check("[inference]\nqueue = 1.5\n", "2: queue is 1.5; it must be a whole number");
        check("roots = \"models\"\n", "1: roots is the text \"models\"; it must be a list");
        check("[server]\nonnxruntime = 3\n", "2: onnxruntime is 3; it must be path string");
        check("[memory]\npool = true\n", "2: pool is true; it must be a size such as \"8GiB\"");
    }

    #[test]
    fn unknown_keys_name_the_nearest() {
        check("[server]\nhttp_prot = 1\n", "2: unknown key `http_prot`; did you mean `http-port`?");
        check("[serve]\n", "1: unknown key `serve`; did you mean `server`?");
        let failure = SettingsFile::parse("[memory]\ncolour = 1\n", "m.toml".as_ref()).unwrap_err();
        assert_eq!(failure.message(), "m.toml:2: unknown key `colour`");
    }
}
