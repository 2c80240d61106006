//! The most likely correction of a mistyped word.

/// Maximum characters of a word that is compared; longer words have no nearest candidate.
const WORD_CHARS_MAX: usize = 64;
/// Number of characters of a word for each allowed edit.
const CHARS_PER_EDIT: usize = 3;

/// Returns the candidate with the smallest number of edits (insert, delete, replace, swap of
/// neighbours) from `word`, or `None` if no candidate is near. One edit is allowed for every three
/// characters, and always at least one. Ignores case and treats `_` as `-`.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = plain(word)?;
    let edits_max = (word.len() / CHARS_PER_EDIT).max(1);
    let near = |candidate: &'a str| {
        let other =
            plain(candidate).filter(|other| other.len().abs_diff(word.len()) <= edits_max)?;
        Some((edit_distance(&word, &other), candidate)).filter(|(edits, _)| *edits <= edits_max)
    };
    candidates.into_iter().filter_map(near).min().map(|(_, candidate)| candidate)
}

/// Returns the characters to compare; `None` for an empty or too long word.
fn plain(word: &str) -> Option<Vec<char>> {
    let chars: Vec<char> = word.chars().take(WORD_CHARS_MAX + 1).collect();
    let plain = |c: &char| if *c == '_' { '-' } else { c.to_ascii_lowercase() };
    (1..=WORD_CHARS_MAX).contains(&chars.len()).then(|| chars.iter().map(plain).collect())
}

/// Returns the edit distance of two words. A swap of two neighbouring characters counts once.
fn edit_distance(a: &[char], b: &[char]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let replaced = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = replaced.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_have_a_nearest_candidate() {
        let keys = ["host", "http-port", "grpc-port", "iris", "ranker"];
        for (word, wanted) in [
            ("rankr", "ranker"),
            ("rnaker", "ranker"),
            ("http_prot", "http-port"),
            ("HTTP-port", "http-port"),
            ("irs", "iris"),
            ("hots", "host"),
        ] {
            assert_eq!(nearest(word, keys), Some(wanted), "{word}");
        }
    }

    #[test]
    fn other_words_have_none() {
        for word in ["", "x", "classifier", &"ranker".repeat(100)] {
            assert_eq!(nearest(word, ["ranker", "iris"]), None, "{word}");
        }
    }
}
