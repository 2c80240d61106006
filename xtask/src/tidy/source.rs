//! Reads Rust source for rules about lengths and words: blanks out comments and literals, finds
//! items by their braces.
//!
//! These rules also apply to files that do not parse. Code made by macros is not checked.

use std::ops::Range;

/// Blanks out text that is not code. Comments become spaces, and string and character literals
/// become `~`. Length and line breaks stay, so offsets and line numbers remain valid.
pub(crate) fn mask(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let (end, fill) = match bytes[at] {
            b'/' if bytes[at..].starts_with(b"//") => (line_end(bytes, at), b' '),
            b'/' if bytes[at..].starts_with(b"/*") => (block_comment_end(bytes, at), b' '),
            b'"' => (string_end(bytes, at), b'~'),
            b'r' | b'b' | b'c' if !follows_word(bytes, at) => match prefixed_literal_end(bytes, at)
            {
                Some(end) => (end, b'~'),
                None => (at + 1, 0),
            },
            b'\'' => match char_end(bytes, at) {
                Some(end) => (end, b'~'),
                None => (at + 1, 0),
            },
            _ => (at + 1, 0),
        };
        if fill != 0 {
            out[at..end].iter_mut().filter(|byte| **byte != b'\n').for_each(|byte| *byte = fill);
        }
        at = end;
    }
    // Whole characters were replaced or kept, so this never loses anything.
    String::from_utf8_lossy(&out).into_owned()
}

/// Returns the byte ranges of items under `#[cfg(test)]` or `#[test]`, attribute included, in
/// masked text.
pub(crate) fn test_items(masked: &str) -> Vec<Range<usize>> {
    let mut items: Vec<Range<usize>> = Vec::new();
    for attribute in ["#[cfg(test)]", "#[test]"] {
        for (start, _) in masked.match_indices(attribute) {
            let end = item_end(masked, start + attribute.len());
            if !items.iter().any(|item| item.contains(&start)) {
                items.push(start..end);
            }
        }
    }
    items
}

/// Returns every function with a body. An entry has its name and the byte range from `fn` to the
/// closing brace, in masked text.
pub(crate) fn functions(masked: &str) -> Vec<(&str, Range<usize>)> {
    words(masked, "fn")
        .filter_map(|start| {
            let after = masked[start + 2..].trim_start();
            let name =
                after.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
            let end = item_end(masked, start);
            // `fn(u8)` is a type, and a function ending in a semicolon has no body.
            (!name.is_empty() && masked[..end].ends_with('}')).then_some((name, start..end))
        })
        .collect()
}

/// Returns the offsets at which `word` stands as a word of its own.
pub(crate) fn words<'a>(masked: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let bytes = masked.as_bytes();
    masked.match_indices(word).map(|(start, _)| start).filter(move |&start| {
        !follows_word(bytes, start) && !bytes.get(start + word.len()).copied().is_some_and(is_word)
    })
}

/// Returns the line of a byte offset, from 1.
pub(crate) fn line_of(text: &str, offset: usize) -> usize {
    text.as_bytes()[..offset].iter().filter(|&&byte| byte == b'\n').count() + 1
}

/// Lines that a byte range touches.
pub(crate) fn line_count(text: &str, range: &Range<usize>) -> usize {
    line_of(text, range.end.saturating_sub(1)) - line_of(text, range.start) + 1
}

/// Returns the end of the item that begins at `from`: after its block, or after `;` if it has none.
fn item_end(masked: &str, from: usize) -> usize {
    let (mut parens, mut braces) = (0usize, 0usize);
    for (offset, byte) in masked.bytes().enumerate().skip(from) {
        match byte {
            b'(' | b'[' => parens += 1,
            b')' | b']' => parens = parens.saturating_sub(1),
            b'{' => braces += 1,
            b'}' if braces <= 1 && parens == 0 => return offset + 1,
            b'}' => braces = braces.saturating_sub(1),
            b';' if braces == 0 && parens == 0 => return offset + 1,
            _ => {}
        }
    }
    masked.len()
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

fn follows_word(bytes: &[u8], at: usize) -> bool {
    at > 0 && is_word(bytes[at - 1])
}

fn line_end(bytes: &[u8], at: usize) -> usize {
    bytes[at..].iter().position(|&byte| byte == b'\n').map_or(bytes.len(), |length| at + length)
}

/// Returns the end of the block comment that begins at `at`. Such comments can be nested.
fn block_comment_end(bytes: &[u8], at: usize) -> usize {
    let mut depth = 0_usize;
    let mut offset = at;
    while offset < bytes.len() {
        if bytes[offset..].starts_with(b"/*") {
            depth += 1;
            offset += 2;
        } else if bytes[offset..].starts_with(b"*/") {
            depth -= 1;
            offset += 2;
            if depth == 0 {
                return offset;
            }
        } else {
            offset += 1;
        }
    }
    bytes.len()
}

/// Returns the end of the string whose opening quote is at `at`.
fn string_end(bytes: &[u8], at: usize) -> usize {
    let mut offset = at + 1;
    while offset < bytes.len() {
        match bytes[offset] {
            b'\\' => offset += 2,
            b'"' => return offset + 1,
            _ => offset += 1,
        }
    }
    bytes.len()
}

/// Returns the end of `r"..."`, `r#"..."#`, `b"..."`, `br"..."`, `c"..."` or `b'.'` at `at`, if one
/// is there.
fn prefixed_literal_end(bytes: &[u8], at: usize) -> Option<usize> {
    let letters = bytes[at..].iter().take(2).take_while(|byte| byte.is_ascii_lowercase()).count();
    let raw = bytes[at..at + letters].contains(&b'r');
    let open = at + letters;
    if !raw {
        return match bytes.get(open)? {
            b'"' => Some(string_end(bytes, open)),
            b'\'' => char_end(bytes, open),
            _ => None,
        };
    }
    let hashes = bytes[open..].iter().take_while(|&&byte| byte == b'#').count();
    if bytes.get(open + hashes) != Some(&b'"') {
        return None;
    }
    let close = [b"\"".as_slice(), &b"#".repeat(hashes)].concat();
    let body = open + hashes + 1;
    let found = bytes[body..].windows(close.len()).position(|window| window == close);
    Some(found.map_or(bytes.len(), |length| body + length + close.len()))
}

/// Returns the end of a character literal whose quote is at `at`, or `None` for a lifetime.
fn char_end(bytes: &[u8], at: usize) -> Option<usize> {
    let escaped = bytes.get(at + 1) == Some(&b'\\');
    let from = at + if escaped { 3 } else { 2 };
    // The longest literal is '\u{10FFFF}'; a multi-byte character takes up to four bytes.
    let reach = if escaped { 10 } else { 4 };
    let text = bytes.get(from..bytes.len().min(from + reach))?;
    let length = text.iter().position(|&byte| byte == b'\'')?;
    let inside = &bytes[at + 1..from + length];
    let one =
        escaped || std::str::from_utf8(inside).is_ok_and(|inside| inside.chars().count() == 1);
    one.then_some(from + length + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_mask(input: &str, expected: &str) {
        assert_eq!(mask(input), expected, "{input}");
    }

    #[test]
    fn comments_and_literals_are_not_code() {
        check_mask("a // unsafe\nb", "a          \nb");
        check_mask("a /* x /* y */ z */ b", "a                   b");
        check_mask(r#"f("un\"safe {")"#, "f(~~~~~~~~~~~~)");
        check_mask(r##"r#"a " b"# c"##, "~~~~~~~~~~ c");
        check_mask("b\"x\" b'{' '\\'' '}'", "~~~~ ~~~~ ~~~~ ~~~");
        check_mask("fn f<'a>(x: &'a str) {}", "fn f<'a>(x: &'a str) {}");
        check_mask("'\\u{1F600}' c", "~~~~~~~~~~~ c");
        check_mask("for \"open", "for ~~~~~");
    }

    #[test]
    fn functions_are_found_with_their_length() {
        let text = "pub fn one(x: [u8; 2]) -> u8 {\n    2\n}\ntrait T { fn none(); }\ntype F = fn(u8);\nfn two() where u8: Copy { if true { } }\n";
        let masked = mask(text);
        let found: Vec<_> = functions(&masked)
            .into_iter()
            .map(|(name, range)| (name, line_count(&masked, &range)))
            .collect();
        assert_eq!(found, [("one", 3), ("two", 1)]);
    }

    #[test]
    fn test_modules_are_found_whole() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n    #[test]\n    fn b() { \"}\"; }\n}\nfn c() {}\n";
        let masked = mask(text);
        let items = test_items(&masked);
        assert_eq!(items.len(), 1);
        assert_eq!(line_count(&masked, &items[0]), 5);
    }

    #[test]
    fn words_stand_alone() {
        assert_eq!(words("unsafe_code unsafe {", "unsafe").count(), 1);
    }
}
