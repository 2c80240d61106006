//! Paths of fields: names joined by dots. After a name, `[]` goes into each element of its list and
//! `[3]` into one element. A name in quotation marks may have dots and brackets.

use base::{Error, Result};

/// First step of a path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PathStep<'a> {
    /// The name, without quotation marks.
    pub name: &'a str,
    /// Brackets after the name.
    pub brackets: Brackets<'a>,
    /// The path after this step, or `None` if this step is the last one.
    pub rest: Option<&'a str>,
    is_quoted: bool,
}

/// Brackets after a name, in the order of the path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Brackets<'a>(&'a str);

/// A step of a path into a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bracket {
    /// `[]`: each element.
    Each,
    /// `[3]`: the element with this number, from 0.
    At(usize),
}

impl<'a> Brackets<'a> {
    /// Returns the first brackets and the rest, or `None` if there are none.
    pub fn split_first(self) -> Option<(Bracket, Brackets<'a>)> {
        let (number, rest) = self.0.strip_prefix('[')?.split_once(']')?;
        let bracket = match number {
            "" => Bracket::Each,
            // No list has an element of this number.
            digits => Bracket::At(digits.parse().unwrap_or(usize::MAX)),
        };
        Some((bracket, Brackets(rest)))
    }

    /// Returns true if there are none.
    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    fn has_number_out_of_range(self) -> bool {
        let mut next = self.split_first();
        while let Some((bracket, rest)) = next {
            if bracket == Bracket::At(usize::MAX) {
                return true;
            }
            next = rest.split_first();
        }
        false
    }
}

impl PathStep<'_> {
    /// Returns true if the step, which is not quoted, has a name and each of its brackets has its
    /// pair. A mistake such as `a[` or `a..b` would otherwise lead to no value, and then `must_not`
    /// matches every point.
    fn is_plain(&self) -> bool {
        let has_pairs = self.name.matches('[').count() == self.name.matches(']').count();
        has_pairs && !self.name.is_empty() && !self.name.starts_with('"')
    }
}

/// Splits the first step off a path. A malformed step counts as a name as a whole.
pub fn first_step(path: &str) -> PathStep<'_> {
    quoted_step(path).unwrap_or_else(|| plain_step(path))
}

fn quoted_step(path: &str) -> Option<PathStep<'_>> {
    let (name, after) = path.strip_prefix('"')?.split_once('"')?;
    let (brackets, rest) = match after.split_once('.') {
        Some((brackets, rest)) => (brackets, Some(rest)),
        None => (after, None),
    };
    let is_read = without_brackets(brackets).is_empty();
    is_read.then_some(PathStep { name, brackets: Brackets(brackets), rest, is_quoted: true })
}

fn plain_step(path: &str) -> PathStep<'_> {
    let (step, rest) = path.split_once('.').map_or((path, None), |(step, rest)| (step, Some(rest)));
    let name = without_brackets(step);
    let brackets = Brackets(step.get(name.len()..).unwrap_or_default());
    PathStep { name, brackets, rest, is_quoted: false }
}

/// Returns a step without the brackets at its end.
fn without_brackets(mut step: &str) -> &str {
    loop {
        let last = step.strip_suffix(']').and_then(|step| step.rsplit_once('['));
        match last {
            Some((before, number)) if number.bytes().all(|byte| byte.is_ascii_digit()) => {
                step = before;
            }
            _ => return step,
        }
    }
}

/// Checks that every step of a path can be read. Callers refuse an empty path themselves.
///
/// # Errors
/// `InvalidArgument` for a quotation mark that is not closed or that something else follows, and
/// for an empty name without quotation marks, also before brackets. Also for a bracket without its
/// pair, and for a number above 64 bits.
pub fn check_path(path: &str) -> Result<()> {
    let mut next = Some(path).filter(|path| !path.is_empty());
    while let Some(at) = next {
        let step = first_step(at);
        if !(step.is_quoted || step.is_plain()) || step.brackets.has_number_out_of_range() {
            let shown: String = path.chars().take(64).collect();
            return Err(Error::invalid(format!(
                "the path {shown} cannot be read; write names joined by dots, a name with dots in \
                 quotation marks, and brackets after a name"
            )));
        }
        next = step.rest;
    }
    Ok(())
}

/// Returns true if payload indexes have the path. Then no name is quoted, no step has a number, and
/// no step goes into lists of lists.
pub fn is_indexable(path: &str) -> bool {
    let mut next = Some(path);
    while let Some(at) = next {
        let step = first_step(at);
        let is_simple = match step.brackets.split_first() {
            None => true,
            Some((Bracket::Each, rest)) => rest.is_empty(),
            Some((Bracket::At(_), _)) => false,
        };
        if step.is_quoted || !is_simple {
            return false;
        }
        next = step.rest;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_have_names_and_brackets() {
        let read = |path: &str| {
            let mut steps = Vec::new();
            let mut next = Some(path.to_owned());
            while let Some(at) = next {
                let step = first_step(&at);
                let mut brackets = Vec::new();
                let mut more = step.brackets;
                while let Some((bracket, rest)) = more.split_first() {
                    brackets.push(bracket);
                    more = rest;
                }
                steps.push((step.name.to_owned(), brackets));
                next = step.rest.map(str::to_owned);
            }
            steps
        };
        let step = |name: &str, brackets: &[Bracket]| (name.to_owned(), brackets.to_vec());
        assert_eq!(read("a.b"), [step("a", &[]), step("b", &[])]);
        assert_eq!(
            read("a[0][].\"b.c\"[12].d"),
            [
                step("a", &[Bracket::At(0), Bracket::Each]),
                step("b.c", &[Bracket::At(12)]),
                step("d", &[])
            ]
        );
        assert_eq!(read("size [cm]"), [step("size [cm]", &[])]);
        assert_eq!(read("a\"b"), [step("a\"b", &[])]);
        assert_eq!(read("\"\""), [step("", &[])]);
    }

    #[test]
    fn malformed_paths_are_refused() {
        for path in ["a", "a.b", "a[]", "a[0]", "a[0][1].b", "\"a.b\"", "a.\"b[0]\"[0]", "x [cm]"] {
            assert!(check_path(path).is_ok(), "{path}");
        }
        for path in ["\"a[\"", "a.\"\"", "\"\"[]", "x [cm][0]", "x y.z-1[]", "größe.名"] {
            assert!(check_path(path).is_ok(), "{path}");
        }
        for path in ["\"a", "\"a\"b", "a.\"b", "[0]", "a.[0]", "a[99999999999999999999999]"] {
            assert!(check_path(path).is_err(), "{path}");
        }
        for path in ["a[", "a]", "a[0", "a[.b", "a..b", ".a", "a.", ".", "[]", "a.[]"] {
            assert!(check_path(path).is_err(), "{path}");
        }
    }

    #[test]
    fn indexes_have_plain_paths_only() {
        for (path, expected) in [
            ("a.b", true),
            ("a[].b", true),
            ("a[]", true),
            ("a[][]", false),
            ("a[0]", false),
            ("\"a\"", false),
            ("b.\"a.c\"", false),
        ] {
            assert_eq!(is_indexable(path), expected, "{path}");
        }
    }
}
