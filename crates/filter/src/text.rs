//! Words of texts, and conditions on them.

use std::borrow::Cow;

/// Maximum bytes of a text that a condition searches for.
pub const TEXT_QUERY_BYTES_MAX: usize = 4096;
/// Maximum words of a text that a condition searches for.
pub const TEXT_QUERY_WORDS_MAX: usize = 256;

/// Splits texts into words and changes the words to their compared form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tokenizer {
    /// Borders between words.
    pub split: WordSplit,
    /// True if words are compared in lower case.
    pub lowercase: bool,
    /// Minimum characters of a word. Shorter words are ignored.
    pub min_chars: usize,
    /// Maximum characters of a word. Longer words are ignored, or cut by [`WordSplit::Prefix`].
    pub max_chars: usize,
}

/// Split of a text into words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WordSplit {
    /// Letters and digits in sequence are a word.
    Word,
    /// Characters without a space between them are a word.
    Whitespace,
    /// As `Word`. A word is found by each of its prefixes.
    Prefix,
}

impl Default for Tokenizer {
    fn default() -> Tokenizer {
        Tokenizer { split: WordSplit::Word, lowercase: true, min_chars: 1, max_chars: usize::MAX }
    }
}

impl Tokenizer {
    /// Calls `visit` for each word, in lower case if `lowercase` is set, until it returns true.
    /// Returns true if it did.
    fn any_word(&self, text: &str, visit: &mut dyn FnMut(&str) -> bool) -> bool {
        match self.split {
            WordSplit::Whitespace => {
                text.split_whitespace().any(|word| visit(&self.compared_form(word)))
            }
            WordSplit::Word | WordSplit::Prefix => {
                let words = text.split(|letter: char| !letter.is_alphanumeric());
                words.filter(|word| !word.is_empty()).any(|word| visit(&self.compared_form(word)))
            }
        }
    }

    fn compared_form<'a>(&self, word: &'a str) -> Cow<'a, str> {
        let is_lower = |byte: u8| byte.is_ascii() && !byte.is_ascii_uppercase();
        if !self.lowercase || word.bytes().all(is_lower) {
            return Cow::Borrowed(word);
        }
        Cow::Owned(word.to_lowercase())
    }

    fn has_length(&self, word: &str) -> bool {
        let chars = word.chars().count();
        (self.min_chars..=self.max_chars).contains(&chars)
    }

    /// Returns a word of a query in its compared form, or `None` if it is ignored.
    fn query_word<'a>(&self, word: &'a str) -> Option<&'a str> {
        let word = match self.split {
            WordSplit::Prefix => prefix(word, self.max_chars).unwrap_or(word),
            WordSplit::Word | WordSplit::Whitespace => word,
        };
        self.has_length(word).then_some(word)
    }
}

/// Returns the first `chars` characters of a word, or `None` if it is shorter.
fn prefix(word: &str, chars: usize) -> Option<&str> {
    let last = chars.checked_sub(1)?;
    let (at, letter) = word.char_indices().nth(last)?;
    word.get(..at + letter.len_utf8())
}

/// Words of a query that a text must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextMatchKind {
    /// All words, in any order.
    All,
    /// At least one word.
    Any,
    /// All words, one directly after the other.
    Phrase,
}

/// Comparison of the words of a text with those of a query. A query without words matches no text.
#[derive(Clone, Debug, PartialEq)]
pub struct TextMatch {
    kind: TextMatchKind,
    query: String,
    tokenizer: Tokenizer,
    /// Words of the query. Those of a phrase are in its order. Others are sorted, and each occurs
    /// once.
    words: Vec<String>,
    /// Characters of the words, sorted, each number once. Only for [`WordSplit::Prefix`].
    lengths: Vec<usize>,
    /// For each word of a phrase, the length of the longest proper prefix of the phrase that ends
    /// there.
    borders: Vec<usize>,
}

impl TextMatch {
    /// Creates a comparison with the words of `query`.
    pub fn new(kind: TextMatchKind, query: &str, tokenizer: Tokenizer) -> TextMatch {
        let mut words: Vec<String> = Vec::new();
        tokenizer.any_word(query, &mut |word| {
            words.extend(tokenizer.query_word(word).map(str::to_owned));
            false
        });
        let is_phrase = kind == TextMatchKind::Phrase;
        if !is_phrase {
            words.sort_unstable();
            words.dedup();
        }
        let mut lengths = Vec::new();
        if tokenizer.split == WordSplit::Prefix {
            lengths.extend(words.iter().map(|word| word.chars().count()));
            lengths.sort_unstable();
            lengths.dedup();
        }
        let borders = if is_phrase { borders(&words) } else { Vec::new() };
        TextMatch { kind, query: query.to_owned(), tokenizer, words, lengths, borders }
    }

    /// Returns the same comparison with another tokenizer.
    #[must_use]
    pub fn with_tokenizer(&self, tokenizer: Tokenizer) -> TextMatch {
        TextMatch::new(self.kind, &self.query, tokenizer)
    }

    /// Returns the kind of the comparison.
    pub fn kind(&self) -> TextMatchKind {
        self.kind
    }

    /// Returns the number of words of the query.
    pub fn words(&self) -> usize {
        self.words.len()
    }

    pub(super) fn query_bytes(&self) -> usize {
        self.query.len()
    }

    /// Returns about how many bytes of memory it takes.
    pub(super) fn memory_bytes(&self) -> u64 {
        let words: usize = self.words.iter().map(String::len).sum();
        let lists = self.words.len() * std::mem::size_of::<String>()
            + (self.lengths.len() + self.borders.len()) * std::mem::size_of::<usize>();
        (std::mem::size_of::<TextMatch>() + self.query.len() + words + lists) as u64
    }

    /// Returns true if the words of `text` match.
    pub(super) fn accepts(&self, text: &str) -> bool {
        if self.words.is_empty() {
            return false;
        }
        match self.kind {
            TextMatchKind::Any => self.any_token(text, &mut |token| self.place(token).is_some()),
            TextMatchKind::All => self.has_all(text),
            TextMatchKind::Phrase => {
                let mut matched = 0;
                self.any_token(text, &mut |token| {
                    matched = self.matched_with(matched, token);
                    matched == self.words.len()
                })
            }
        }
    }

    fn has_all(&self, text: &str) -> bool {
        let mut found = vec![false; self.words.len()];
        let mut missing = found.len();
        self.any_token(text, &mut |token| {
            let place = self.place(token).and_then(|place| found.get_mut(place));
            if place.is_some_and(|is_found| !std::mem::replace(is_found, true)) {
                missing -= 1;
            }
            missing == 0
        })
    }

    /// Returns the position of a word in the sorted words.
    fn place(&self, token: &str) -> Option<usize> {
        self.words.binary_search_by(|word| word.as_str().cmp(token)).ok()
    }

    /// Returns the number of words of the phrase that match up to and with `token`. Before it,
    /// `matched` words did. This is the algorithm of Knuth, Morris and Pratt.
    fn matched_with(&self, mut matched: usize, token: &str) -> usize {
        loop {
            if self.words.get(matched).is_some_and(|word| word == token) {
                return matched + 1;
            }
            let Some(last) = matched.checked_sub(1) else { return 0 };
            matched = self.borders.get(last).copied().unwrap_or(0);
        }
    }

    /// Calls `visit` for the words of a text, or for their prefixes of the lengths of words of the
    /// query, until it returns true. Returns true if it did.
    fn any_token(&self, text: &str, visit: &mut dyn FnMut(&str) -> bool) -> bool {
        self.tokenizer.any_word(text, &mut |word| match self.tokenizer.split {
            WordSplit::Prefix => {
                let mut prefixes = self.lengths.iter().filter_map(|chars| prefix(word, *chars));
                prefixes.any(&mut *visit)
            }
            WordSplit::Word | WordSplit::Whitespace => {
                self.tokenizer.has_length(word) && visit(word)
            }
        })
    }
}

fn borders(words: &[String]) -> Vec<usize> {
    let mut borders = vec![0];
    let mut length = 0_usize;
    for word in words.iter().skip(1) {
        while length > 0 && words.get(length) != Some(word) {
            length = borders.get(length - 1).copied().unwrap_or(0);
        }
        if words.get(length) == Some(word) {
            length += 1;
        }
        borders.push(length);
    }
    borders
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matches(kind: TextMatchKind, query: &str, text: &str) -> bool {
        TextMatch::new(kind, query, Tokenizer::default()).accepts(text)
    }

    #[test]
    fn words_match_in_lower_case_as_a_whole() {
        use TextMatchKind::{All, Any, Phrase};
        for (kind, query, text, expected) in [
            (All, "Quick fox", "the fox is quick_today", true),
            (All, "quick cat", "the fox is quick", false),
            (All, "qui", "the fox is quick", false),
            (All, "", "the fox", false),
            (All, "-!", "the fox -!", false),
            (Any, "cat FOX", "The Fox", true),
            (Any, "cat", "The Fox", false),
            (Any, "", "The Fox", false),
            (Phrase, "is quick", "the fox is, quick", true),
            (Phrase, "quick is", "the fox is quick", false),
            (Phrase, "a a b", "a a a b", true),
            (Phrase, "", "the fox", false),
            (All, "ÜBER straße", "über die Straße", true),
        ] {
            assert_eq!(matches(kind, query, text), expected, "{kind:?} {query} in {text}");
        }
    }

    #[test]
    fn tokenizers_follow_their_parameters() {
        let all = |query: &str, text: &str, tokenizer: Tokenizer| {
            TextMatch::new(TextMatchKind::All, query, tokenizer).accepts(text)
        };
        let spaces = Tokenizer { split: WordSplit::Whitespace, ..Tokenizer::default() };
        assert!(all("C++", "c++ is old", spaces.clone()));
        assert!(!all("c", "c++ is old", spaces));
        let cased = Tokenizer { lowercase: false, ..Tokenizer::default() };
        assert!(all("Fox", "the Fox", cased.clone()) && !all("fox", "the Fox", cased));
        let prefixes = Tokenizer {
            split: WordSplit::Prefix,
            min_chars: 2,
            max_chars: 4,
            ..Tokenizer::default()
        };
        assert!(all("QUI", "quick", prefixes.clone()) && all("quicker", "quick", prefixes.clone()));
        assert!(!all("q", "quick", prefixes.clone()) && !all("uick", "quick", prefixes));
        let lengths = Tokenizer { min_chars: 3, max_chars: 4, ..Tokenizer::default() };
        assert!(all("is fox", "fox", lengths.clone()) && !all("quick", "quick", lengths));
    }

    proptest! {
        #[test]
        fn phrases_agree_with_a_search_for_each_start(
            query in "[ab]( [ab]){0,4}",
            text in "[abc]( [abc]){0,12}",
        ) {
            let words: Vec<&str> = query.split(' ').collect();
            let tokens: Vec<&str> = text.split(' ').collect();
            let expected = tokens.windows(words.len()).any(|tokens| tokens == words);
            prop_assert_eq!(matches(TextMatchKind::Phrase, &query, &text), expected);
            let all = words.iter().all(|word| tokens.contains(word));
            prop_assert_eq!(matches(TextMatchKind::All, &query, &text), all);
            let any = words.iter().any(|word| tokens.contains(word));
            prop_assert_eq!(matches(TextMatchKind::Any, &query, &text), any);
        }
    }
}
