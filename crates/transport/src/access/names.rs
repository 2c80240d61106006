//! Names of models and collections that a key may use.

/// A name, or a pattern of names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NameRule {
    /// A text in which `*` stands for any text.
    Pattern(String),
    /// Exactly this name. Its points may be written if `writes` is true. It may not be created,
    /// removed or changed as a whole.
    Exact { name: String, writes: bool },
}

impl NameRule {
    /// Returns the rules of a list of patterns.
    pub(super) fn patterns(patterns: Vec<String>) -> Vec<NameRule> {
        patterns.into_iter().map(NameRule::Pattern).collect()
    }

    pub(super) fn matches(&self, name: &str) -> bool {
        match self {
            NameRule::Pattern(pattern) => matches(pattern, name),
            NameRule::Exact { name: own, .. } => own == name,
        }
    }

    /// Returns true if the rule matches every name.
    fn matches_all(&self) -> bool {
        match self {
            NameRule::Pattern(pattern) => {
                !pattern.is_empty() && pattern.bytes().all(|byte| byte == b'*')
            }
            NameRule::Exact { .. } => false,
        }
    }

    /// Returns true if this rule permits `usage` of its collections.
    pub(super) fn allows(&self, usage: CollectionUsage) -> bool {
        match self {
            NameRule::Pattern(_) => true,
            NameRule::Exact { writes, .. } => match usage {
                CollectionUsage::Read => true,
                CollectionUsage::Write => *writes,
                CollectionUsage::Manage => false,
            },
        }
    }
}

/// Use of a collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CollectionUsage {
    /// Points and settings are read.
    Read,
    /// Points are written.
    Write,
    /// The collection is created, removed or changed as a whole.
    Manage,
}

/// Returns true if `rules` permit `name`. `None` permits all.
pub(super) fn permits(rules: Option<&[NameRule]>, name: &str) -> bool {
    rules.is_none_or(|rules| rules.iter().any(|rule| rule.matches(name)))
}

/// Returns true if `rules` permit every name. `None` permits all.
pub(super) fn permits_all(rules: Option<&[NameRule]>) -> bool {
    rules.is_none_or(|rules| rules.iter().any(NameRule::matches_all))
}

/// Returns true if `name` matches `pattern`, in which `*` stands for any text.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut name) = name.strip_prefix(start) else { return false };
    let mut pieces = rest.split('*').peekable();
    while let Some(piece) = pieces.next() {
        if pieces.peek().is_none() {
            return name.ends_with(piece);
        }
        let Some(at) = name.find(piece) else { return false };
        name = &name[at + piece.len()..];
    }
    true
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn patterns() {
        for (pattern, name) in [
            ("a", "a"),
            ("*", ""),
            ("*", "x"),
            ("a*", "a"),
            ("a*c", "abc"),
            ("*b*", "abc"),
            ("a*b*b", "abb"),
        ] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("a", "ab"),
            ("a*", "ba"),
            ("a*a", "a"),
            ("a*c", "abcd"),
            ("*b*", "ac"),
            ("a*b*b", "ab"),
            ("", "a"),
        ] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn only_a_star_permits_all() {
        let permits_all = |text: &str| permits_all(Some(&NameRule::patterns(vec![text.into()])));
        assert!(permits_all("*") && permits_all("**") && super::permits_all(None));
        assert!(!permits_all("") && !permits_all("a*") && !super::permits_all(Some(&[])));
    }

    /// Tries every split of the name.
    fn naive(pattern: &[u8], name: &[u8]) -> bool {
        match pattern.split_first() {
            None => name.is_empty(),
            Some((b'*', rest)) => (0..=name.len()).any(|at| naive(rest, &name[at..])),
            Some((byte, rest)) => name.first() == Some(byte) && naive(rest, &name[1..]),
        }
    }

    proptest! {
        #[test]
        fn matches_agrees_with_the_reference(pattern in "[ab*]{0,6}", name in "[ab]{0,6}") {
            prop_assert_eq!(matches(&pattern, &name), naive(pattern.as_bytes(), name.as_bytes()));
        }
    }
}
