//! `cargo xtask tidy --report OUT`: the figures behind the rules, as JSON.

use std::collections::BTreeMap;

use serde::Serialize;

use super::items;
use super::modules;
use super::rules;
use super::source::{functions, line_count, test_items};
use super::workspace::SourceFile;

/// Figures of the workspace's production code. Lines leave out tests and generated code.
#[derive(Serialize)]
pub(crate) struct Report {
    /// By directory name under `crates/`.
    crates: BTreeMap<String, CrateFigures>,
    /// Lines of all crates.
    lines: usize,
    /// Functions with a tuple pattern as a parameter.
    tuple_parameters: usize,
    /// Comment lines wider than 100 columns, tests included.
    wide_comments: usize,
    /// Type names with more than one definition.
    duplicate_type_names: usize,
    /// Functions longer than 70 lines.
    functions_over_70: usize,
    /// Comment lines with a word or a beginning that STYLE.md refuses, tests included.
    refused_words: usize,
}

#[derive(Default, Serialize)]
struct CrateFigures {
    lines: usize,
    /// Modules in the largest group that use each other, or 1 if there is no such group.
    largest_module_ring: usize,
    /// The groups of more than one module.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    rings: Vec<Vec<String>>,
}

/// Totals over comments, which are counted in tests too.
pub(crate) struct CommentTotals {
    /// Lines wider than the limit.
    pub(crate) wide: usize,
    /// Refused words and beginnings.
    pub(crate) refused: usize,
}

/// Computes the report.
pub(crate) fn of(files: &[SourceFile], comments: &CommentTotals) -> Report {
    let mut crates: BTreeMap<String, CrateFigures> = BTreeMap::new();
    for file in files {
        crates.entry(file.krate.clone()).or_default().lines += file.lines;
    }
    for (krate, figures) in &mut crates {
        let of_crate: Vec<&SourceFile> = files.iter().filter(|file| file.krate == *krate).collect();
        figures.rings = modules::rings(&of_crate);
        figures.largest_module_ring = figures.rings.first().map_or(1, Vec::len);
    }
    let duplicates = items::type_names(files);
    let duplicates = duplicates.iter().filter(|(_, places)| places.len() > 1);
    Report {
        lines: crates.values().map(|figures| figures.lines).sum(),
        crates,
        tuple_parameters: files.iter().map(|file| items::tuple_parameters(file).len()).sum(),
        wide_comments: comments.wide,
        duplicate_type_names: duplicates.count(),
        functions_over_70: files.iter().map(long_functions).sum(),
        refused_words: comments.refused,
    }
}

fn long_functions(file: &SourceFile) -> usize {
    let tests = test_items(&file.masked);
    let outside_tests = |start: usize| !tests.iter().any(|test| test.contains(&start));
    let lengths = functions(&file.masked)
        .into_iter()
        .filter(|(_, range)| outside_tests(range.start))
        .map(|(_, range)| line_count(&file.masked, &range));
    lengths.filter(|lines| *lines > rules::FUNCTION_LINES_MAX).count()
}
