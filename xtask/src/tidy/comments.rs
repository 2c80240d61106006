//! Rules about comments: their width and the words in them (STYLE.md).

use super::rules;
use super::source::words;

struct CommentLine<'a> {
    number: usize,
    whole: &'a str,
    text: &'a str,
}

/// Returns the numbers of the comment lines wider than [`rules::COMMENT_COLUMNS_MAX`]. A line with
/// an address may be wider.
pub(crate) fn wide_lines(text: &str) -> Vec<usize> {
    let wide = |line: &CommentLine<'_>| line.whole.chars().count() > rules::COMMENT_COLUMNS_MAX;
    comment_lines(text)
        .filter(|line| wide(line) && !line.text.contains("://"))
        .map(|line| line.number)
        .collect()
}

/// Returns the comment lines with a word that STYLE.md refuses: line number and word.
pub(crate) fn refused_words(text: &str) -> Vec<(usize, &'static str)> {
    let of_line = |line: CommentLine<'_>| {
        let lower = line.text.to_lowercase();
        let found = rules::REFUSED_WORDS.iter().find(|word| words(&lower, word).next().is_some());
        found.map(|word| (line.number, *word))
    };
    comment_lines(text).filter_map(of_line).collect()
}

/// Returns the numbers of the lines at which a doc comment begins with a refused word.
pub(crate) fn refused_beginnings(text: &str) -> Vec<(usize, &'static str)> {
    let mut in_doc = false;
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let doc = line.trim_start().strip_prefix("///");
        if let (Some(doc), false) = (doc, in_doc) {
            let first = doc.split_whitespace().next().unwrap_or_default();
            let refused = rules::REFUSED_BEGINNINGS.iter().find(|word| **word == first);
            found.extend(refused.map(|word| (index + 1, *word)));
        }
        in_doc = doc.is_some();
    }
    found
}

/// Returns true if a doc comment has a block of code, which `cargo test --doc` compiles.
pub(crate) fn has_example(text: &str) -> bool {
    let is_block = |line: CommentLine<'_>| {
        let doc = line.text.strip_prefix(['/', '!']);
        doc.is_some_and(|doc| doc.trim_start().starts_with("```"))
    };
    comment_lines(text).any(is_block)
}

fn comment_lines(text: &str) -> impl Iterator<Item = CommentLine<'_>> {
    text.lines().enumerate().filter_map(|(index, whole)| {
        let text = whole.trim_start().strip_prefix("//")?;
        Some(CommentLine { number: index + 1, whole, text })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_are_found() {
        assert!(has_example("/// Adds.\n///\n/// ```no_run\n/// ```\nfn f() {}\n"));
        assert!(has_example("//! ```\n//! ```\n"));
        assert!(!has_example("// ```\nlet text = \"/// ```\";\n"));
    }

    #[test]
    fn wide_comments_are_found() {
        let wide = format!("    // {}\n", "x".repeat(rules::COMMENT_COLUMNS_MAX - 6));
        assert_eq!(wide_lines(&format!("// short\n{wide}")), [2]);
        assert_eq!(wide_lines(&wide.replace("xx", "x")), [0; 0]);
        let code = format!("let x = \"{}\";\n", "x".repeat(200));
        assert_eq!(wide_lines(&code), [0; 0]);
    }

    #[test]
    fn refused_words_are_found_in_comments_only() {
        assert_eq!(
            refused_words("// Nobody waits.\nlet nobody = 1;\n/// A body.\n"),
            [(1, "nobody")]
        );
    }

    #[test]
    fn only_the_beginning_of_a_doc_counts() {
        let text =
            "/// What it is.\n/// What else.\nfn f() {}\n/// Returns\n/// Whether\nfn g() {}\n";
        assert_eq!(refused_beginnings(text), [(1, "What")]);
    }

    #[test]
    fn the_style_guide_lists_all_refused_words() {
        let style = include_str!("../../../STYLE.md");
        let (_, words) = style.split_once("| refused | write |\n|---|---|\n").unwrap();
        let (table, rest) = words.split_once("\n\n").unwrap();
        let cells = table.lines().map(|row| row.split('|').nth(1).unwrap());
        let listed: Vec<&str> = cells.flat_map(|cell| cell.split(", ").map(str::trim)).collect();
        assert_eq!(listed, rules::REFUSED_WORDS);
        let (_, line) = rest.split_once("does not begin with:\n").unwrap();
        let (line, _) = line.split_once('.').unwrap();
        assert_eq!(line.split(", ").collect::<Vec<_>>(), rules::REFUSED_BEGINNINGS);
    }
}
