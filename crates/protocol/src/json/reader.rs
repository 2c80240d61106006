//! A pull parser over a body: strict JSON plus `NaN`, `Infinity` and `-Infinity`, with bounded
//! recursion.

use std::borrow::Cow;
use std::ops::Range;

use base::{Error, Result};
use bytes::Bytes;

/// Maximum characters of a malformed number in a message.
const NUMBER_SHOWN_MAX: usize = 32;
/// Byte order mark in UTF-8, which some programs for Windows write before a text.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// A number in the messages of [`JsonReader::expected`].
const NUMBER: &str = "a number";
/// Likely cause of a null in the place of a number.
const NULL_CAUSE: &str = "; many clients write NaN and infinite numbers as null, and NaN, Infinity and -Infinity are \
                          read as they are";

/// A position in a body.
#[derive(Clone)]
pub(crate) struct JsonReader<'a> {
    body: &'a Bytes,
    at: usize,
    /// True to read values as TensorFlow Serving does.
    tensorflow: bool,
}

/// A number as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NumberToken<'a> {
    pub(crate) text: &'a str,
    /// True for a number without fraction and exponent, false for a bare token.
    pub(crate) whole: bool,
}

impl<'a> NumberToken<'a> {
    /// Returns the text for a message, cut if it is longer than numbers are.
    pub(crate) fn shown(&self) -> &'a str {
        // ASCII, so every position is a boundary.
        &self.text[..self.text.len().min(NUMBER_SHOWN_MAX)]
    }
}

/// A value other than a list or an object, such as a parameter's.
#[derive(Debug, PartialEq)]
pub(crate) enum Scalar<'a> {
    Bool(bool),
    Whole(i64),
    Text(Cow<'a, str>),
    /// Anything else.
    Other,
}

impl<'a> JsonReader<'a> {
    /// Creates a reader at the start of `body`, after a byte order mark if there is one.
    pub(crate) fn new(body: &'a Bytes) -> JsonReader<'a> {
        let at = if body.starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK.len() } else { 0 };
        JsonReader { body, at, tensorflow: false }
    }

    /// Creates a reader at the start of `body` that reads values as TensorFlow Serving does. A
    /// float out of range is infinite, a bool is `true` or `false` only, and an integer has no
    /// fraction.
    pub(crate) fn tensorflow(body: &'a Bytes) -> JsonReader<'a> {
        JsonReader { tensorflow: true, ..JsonReader::new(body) }
    }

    /// Returns true if values are read as TensorFlow Serving reads them.
    pub(crate) fn is_tensorflow(&self) -> bool {
        self.tensorflow
    }

    /// Creates a reader at the start of a value that [`JsonReader::pass`] skipped.
    pub(crate) fn again(body: &'a Bytes, span: &Range<usize>) -> JsonReader<'a> {
        JsonReader { body, at: span.start, tensorflow: false }
    }

    pub(crate) fn error(&self, message: impl std::fmt::Display) -> Error {
        Error::invalid(format!("JSON at byte {}: {message}", self.at))
    }

    /// Returns the error for input other than `what` at the position.
    pub(crate) fn expected(&self, what: &str) -> Error {
        let rest = self.body.get(self.at..).unwrap_or_default();
        match rest.first() {
            None => self.error(format_args!("expected {what}, the text ends")),
            Some(b'"') => self.error(format_args!("expected {what}, found text in quotes")),
            Some(b'n') if rest.starts_with(b"null") => {
                let cause = if what == NUMBER { NULL_CAUSE } else { "" };
                self.error(format_args!("expected {what}, found null{cause}"))
            }
            Some(&byte) => self.error(format_args!(
                "expected {what}, found '{}'",
                char::from(byte).escape_default()
            )),
        }
    }

    /// Returns the next byte after white space, without consuming it.
    pub(crate) fn peek(&mut self) -> Option<u8> {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.body.get(self.at) {
            self.at += 1;
        }
        self.body.get(self.at).copied()
    }

    fn take(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, byte: u8, what: &str) -> Result<()> {
        if self.take(byte) { Ok(()) } else { Err(self.expected(what)) }
    }

    /// Checks that only white space follows.
    pub(crate) fn end(&mut self) -> Result<()> {
        match self.peek() {
            None => Ok(()),
            Some(_) => Err(self.expected("the end")),
        }
    }

    /// Reads an array, and calls `element` at the start of each element. Returns the number of
    /// elements.
    pub(crate) fn array(
        &mut self,
        mut element: impl FnMut(&mut Self) -> Result<()>,
    ) -> Result<usize> {
        self.expect(b'[', "a list")?;
        if self.take(b']') {
            return Ok(0);
        }
        let mut count = 0;
        loop {
            element(self)?;
            count += 1;
            if self.take(b']') {
                return Ok(count);
            }
            self.expect(b',', "',' or ']'")?;
        }
    }

    /// Reads an object, and calls `member` with each key at the start of its value.
    pub(crate) fn object(
        &mut self,
        mut member: impl FnMut(&mut Self, &str) -> Result<()>,
    ) -> Result<()> {
        self.expect(b'{', "an object")?;
        if self.take(b'}') {
            return Ok(());
        }
        loop {
            let key = self.string()?;
            self.expect(b':', "':'")?;
            member(self, &key)?;
            if self.take(b'}') {
                return Ok(());
            }
            self.expect(b',', "',' or '}'")?;
        }
    }

    /// Reads a string, borrowed from the body if it has no escapes.
    pub(crate) fn string(&mut self) -> Result<Cow<'a, str>> {
        self.expect(b'"', "a string")?;
        let start = self.at;
        let body: &'a [u8] = self.body;
        let special =
            body[start..].iter().position(|&byte| matches!(byte, b'"' | b'\\' | 0..=0x1f));
        self.at = special.map_or(body.len(), |offset| start + offset);
        match body.get(self.at) {
            Some(b'"') => {
                let text = self.utf8(&body[start..self.at])?;
                self.at += 1;
                Ok(Cow::Borrowed(text))
            }
            Some(b'\\') => self.escaped(start).map(Cow::Owned),
            _ => Err(self.expected("the rest of a string")),
        }
    }

    fn utf8(&self, bytes: &'a [u8]) -> Result<&'a str> {
        std::str::from_utf8(bytes)
            .map_err(|error| self.error("a string is not UTF-8").with_source(error))
    }

    /// Reads the rest of a string from its first escape, at the current position.
    fn escaped(&mut self, start: usize) -> Result<String> {
        let body: &'a [u8] = self.body;
        let mut text = self.utf8(&body[start..self.at])?.to_owned();
        loop {
            let run = self.at;
            while let Some(byte) = body.get(self.at)
                && !matches!(byte, b'"' | b'\\' | 0..=0x1f)
            {
                self.at += 1;
            }
            text.push_str(self.utf8(&body[run..self.at])?);
            match body.get(self.at) {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(text);
                }
                Some(b'\\') => text.push(self.escape()?),
                _ => return Err(self.expected("the rest of a string")),
            }
        }
    }

    /// Reads an escape sequence, whose backslash is at the position.
    fn escape(&mut self) -> Result<char> {
        let kind = self.body.get(self.at + 1).copied();
        self.at += 2;
        Ok(match kind {
            Some(plain @ (b'"' | b'\\' | b'/')) => char::from(plain),
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => return self.unicode(),
            _ => {
                self.at = self.at.min(self.body.len());
                return Err(self.error("unknown escape in a string"));
            }
        })
    }

    /// Reads the digits of a `\u` escape, and a second escape if the first is half of a surrogate
    /// pair.
    fn unicode(&mut self) -> Result<char> {
        let first = self.hex()?;
        let code = match first {
            0xd800..=0xdbff if self.body[self.at..].starts_with(b"\\u") => {
                self.at += 2;
                let second = self.hex()?;
                if !(0xdc00..=0xdfff).contains(&second) {
                    return Err(self.error("half of a surrogate pair"));
                }
                0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00)
            }
            _ => first,
        };
        char::from_u32(code).ok_or_else(|| self.error("half of a surrogate pair"))
    }

    /// Reads four hexadecimal digits.
    fn hex(&mut self) -> Result<u32> {
        let digits = self.body.get(self.at..self.at + 4);
        let code = digits
            .filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))
            .and_then(|digits| u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok());
        match code {
            Some(code) => {
                self.at += 4;
                Ok(code)
            }
            None => Err(self.error("expected four hexadecimal digits after \\u")),
        }
    }

    /// Reads a string's bytes, which share the body if the string has no escapes.
    pub(crate) fn string_bytes(&mut self) -> Result<Bytes> {
        Ok(match self.string()? {
            Cow::Borrowed(text) => self.body.slice_ref(text.as_bytes()),
            Cow::Owned(text) => Bytes::from(text),
        })
    }

    fn digits(&mut self) -> Result<()> {
        let rest = &self.body[self.at..];
        let count = rest.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len());
        self.at += count;
        if count == 0 { Err(self.expected("a digit")) } else { Ok(()) }
    }

    /// Consumes one of `words` if it is next.
    fn word(&mut self, words: &[&str]) -> bool {
        let rest = &self.body[self.at..];
        let found = words.iter().find(|word| rest.starts_with(word.as_bytes()));
        self.at += found.map_or(0, |word| word.len());
        found.is_some()
    }

    /// Reads a number or a bare token: `NaN`, `Infinity`, `-Infinity`.
    pub(crate) fn number(&mut self) -> Result<NumberToken<'a>> {
        self.peek();
        let start = self.at;
        let mut whole = true;
        if self.word(&["NaN", "Infinity", "-Infinity"]) {
            whole = false;
        } else {
            self.word(&["-"]);
            let leading_zero = self.body.get(self.at) == Some(&b'0');
            let digits = self.at;
            self.digits().map_err(|_| self.expected(NUMBER))?;
            if leading_zero && self.at > digits + 1 {
                return Err(self.error("a number starts with 0"));
            }
            if self.word(&["."]) {
                whole = false;
                self.digits()?;
            }
            if self.word(&["e", "E"]) {
                whole = false;
                self.word(&["+", "-"]);
                self.digits()?;
            }
        }
        let body: &'a [u8] = self.body;
        Ok(NumberToken { text: self.utf8(&body[start..self.at])?, whole })
    }

    /// Reads `true` or `false`.
    pub(crate) fn boolean(&mut self) -> Result<bool> {
        self.peek();
        if self.word(&["true"]) {
            Ok(true)
        } else if self.word(&["false"]) {
            Ok(false)
        } else {
            Err(self.expected("true or false"))
        }
    }

    /// Consumes `null` if it is next.
    pub(crate) fn null(&mut self) -> bool {
        self.peek();
        self.word(&["null"])
    }

    /// Reads a number without fraction that fits an `i64`.
    pub(crate) fn whole(&mut self) -> Result<i64> {
        let token = self.number()?;
        token.text.parse::<i64>().map_err(|error| {
            self.error(format_args!("{} is not a whole number in range", token.shown()))
                .with_source(error)
        })
    }

    /// Reads any value. See [`Scalar`].
    pub(crate) fn scalar(&mut self) -> Result<Scalar<'a>> {
        Ok(match self.peek() {
            Some(b'"') => Scalar::Text(self.string()?),
            Some(b't' | b'f') => Scalar::Bool(self.boolean()?),
            Some(b'-' | b'0'..=b'9' | b'N' | b'I') => {
                self.number()?.text.parse().map_or(Scalar::Other, Scalar::Whole)
            }
            _ => {
                self.skip()?;
                Scalar::Other
            }
        })
    }

    /// Skips one value of any depth. Each open list or object takes a byte of memory and no stack.
    pub(crate) fn skip(&mut self) -> Result<()> {
        // The closing bracket of each open list and object.
        let mut open: Vec<u8> = Vec::new();
        loop {
            match self.peek() {
                Some(b'[') => {
                    self.at += 1;
                    if !self.take(b']') {
                        open.push(b']');
                        continue;
                    }
                }
                Some(b'{') => {
                    self.at += 1;
                    if !self.take(b'}') {
                        open.push(b'}');
                        self.skip_key()?;
                        continue;
                    }
                }
                _ => self.skip_leaf()?,
            }
            loop {
                let Some(&close) = open.last() else { return Ok(()) };
                if self.take(close) {
                    open.pop();
                    continue;
                }
                self.expect(b',', if close == b']' { "',' or ']'" } else { "',' or '}'" })?;
                if close == b'}' {
                    self.skip_key()?;
                }
                break;
            }
        }
    }

    fn skip_key(&mut self) -> Result<()> {
        self.string()?;
        self.expect(b':', "':'")
    }

    fn skip_leaf(&mut self) -> Result<()> {
        match self.peek() {
            Some(b'"') => self.string().map(drop),
            Some(b't' | b'f') => self.boolean().map(drop),
            Some(b'n') if self.null() => Ok(()),
            Some(b'-' | b'0'..=b'9' | b'N' | b'I') => self.number().map(drop),
            _ => Err(self.expected("a value")),
        }
    }

    /// Skips one value and returns its range, for [`JsonReader::again`].
    pub(crate) fn pass(&mut self) -> Result<Range<usize>> {
        self.peek();
        let start = self.at;
        self.skip()?;
        Ok(start..self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read<T>(text: &str, parse: impl FnOnce(&mut JsonReader) -> Result<T>) -> Option<T> {
        let body = Bytes::copy_from_slice(text.as_bytes());
        let mut reader = JsonReader::new(&body);
        let value = parse(&mut reader).ok()?;
        reader.end().ok()?;
        Some(value)
    }

    #[test]
    fn strings() {
        let string = |text: &str| read(text, |r| r.string().map(Cow::into_owned));
        assert_eq!(string("\"plain\"").as_deref(), Some("plain"));
        assert_eq!(string(r#" "a\"\\\/\b\f\n\r\tz" "#).as_deref(), Some("a\"\\/\u{8}\u{c}\n\r\tz"));
        assert_eq!(string(r#""\u00e9\ud83d\ude00é""#).as_deref(), Some("é😀é"));
        for wrong in [
            r#""\ud83d""#,
            r#""\ud83d\u0041""#,
            r#""\u00g0""#,
            r#""\u00"#,
            "\"\\",
            "\"open",
            "\"\n\"",
            r#""\x""#,
        ] {
            assert_eq!(string(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn numbers() {
        let number = |text: &str| read(text, |r| r.number().map(|token| token.whole));
        for whole in ["0", "-0", "12", "-9007199254740993"] {
            assert_eq!(number(whole), Some(true), "{whole}");
        }
        for other in ["1.5", "1e3", "-0.5E-7", "NaN", "Infinity", "-Infinity"] {
            assert_eq!(number(other), Some(false), "{other}");
        }
        for wrong in ["", "-", "01", "1.", ".5", "+1", "1e", "0x1", "nan", "--1", "1 2", "-NaN"] {
            assert_eq!(number(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_byte_order_mark_may_come_first() {
        let skip = |text: &str| read(text, |r| r.skip()).is_some();
        assert!(skip("\u{feff}[1]"));
        for wrong in [" \u{feff}[1]", "\u{feff}\u{feff}[1]", "[\u{feff}1]"] {
            assert!(!skip(wrong), "{wrong:?}");
        }
        let body = Bytes::from_static(b"\xef\xbb\xbf[1]");
        assert!(JsonReader::tensorflow(&body).skip().is_ok());
    }

    #[test]
    fn null_in_place_of_a_number_is_explained() {
        let body = Bytes::from_static(b"[1, null]");
        let mut reader = JsonReader::again(&body, &(4..8));
        let error = reader.number().unwrap_err();
        let wanted = "JSON at byte 4: expected a number, found null; many clients write NaN and ";
        assert!(error.message().starts_with(wanted), "{error}");
    }

    #[test]
    fn text_in_place_of_a_number_is_named() {
        let body = Bytes::from_static(b"\"1\"");
        let error = JsonReader::new(&body).number().unwrap_err();
        assert_eq!(error.message(), "JSON at byte 0: expected a number, found text in quotes");
    }

    #[test]
    fn skipping_is_strict_and_takes_no_stack() {
        let skip = |text: &str| read(text, |r| r.skip()).is_some();
        assert!(skip(r#"{"a":[1,{"b":null},"x",true],"c":{}}"#));
        for wrong in ["[1,]", "{\"a\"}", "{,}", "[", "nul", "{\"a\":}", "[1 2]", "{1:2}"] {
            assert!(!skip(wrong), "{wrong}");
        }
        for depth in [100, 1_000_000] {
            assert!(skip(&format!("{}{}", "[".repeat(depth), "]".repeat(depth))));
            assert!(skip(&format!("{}1{}", "{\"a\":[".repeat(depth), "]}".repeat(depth))));
            assert!(!skip(&format!("{}{}", "[".repeat(depth), "}".repeat(depth))));
        }
        assert!(!skip(&"[".repeat(1_000_000)));
    }
}
