//! Control characters in text of clients, models and files.

use std::borrow::Cow;

/// Returns `text` with escapes such as `\n` and `\u001b` in place of its control characters, except
/// those in `kept`. Such text cannot begin a line of a log or change a terminal. The escapes are
/// valid in JSON.
pub fn escape_controls<'a>(text: &'a str, kept: &[char]) -> Cow<'a, str> {
    let is_escaped = |letter: char| letter.is_control() && !kept.contains(&letter);
    if !text.contains(is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            letter if !is_escaped(letter) => escaped.push(letter),
            '\n' => escaped.push_str("\\n"),
            '\r' => escaped.push_str("\\r"),
            '\t' => escaped.push_str("\\t"),
            // The highest control character is U+009F.
            letter => escaped.push_str(&format!("\\u{:04x}", u32::from(letter))),
        }
    }
    Cow::Owned(escaped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        let text = "a\nb\tc\r\u{1b}[31m\u{7f}\u{9b}\u{e9}\u{4e16}";
        assert_eq!(
            escape_controls(text, &[]),
            "a\\nb\\tc\\r\\u001b[31m\\u007f\\u009b\u{e9}\u{4e16}"
        );
        assert_eq!(escape_controls("a\n\tb\0", &['\n', '\t']), "a\n\tb\\u0000");
    }

    #[test]
    fn other_text_is_not_copied() {
        assert!(matches!(escape_controls("caf\u{e9}\n", &['\n']), Cow::Borrowed(_)));
    }
}
