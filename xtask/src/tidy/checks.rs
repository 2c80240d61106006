//! The checks. Each takes text and returns its faults, so that a test can pass any text.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{self, functions, line_count, line_of, test_items, words};
use super::workspace::SourceFile;
use super::{comments, items, module_list, modules, rules};

/// One thing that breaks a rule.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Complaint {
    /// Path from the repository's root, with a line if it is known.
    pub(crate) place: String,
    /// The fault and its remedy.
    pub(crate) text: String,
}

fn complaint(place: impl Into<String>, text: impl Into<String>) -> Complaint {
    Complaint { place: place.into(), text: text.into() }
}

/// Compares the dependencies of one crate with the table. `dependencies` are directory names under
/// `crates/`.
pub(crate) fn edges(krate: &str, dependencies: &[String]) -> Vec<Complaint> {
    let place = format!("crates/{krate}/Cargo.toml");
    let Some((_, allowed)) = rules::EDGES.iter().find(|(name, _)| *name == krate) else {
        return vec![complaint(
            place,
            "not in the table of crates: write an ADR, then add it to xtask's EDGES",
        )];
    };
    // A crate may name itself, to switch a feature on for its own tests.
    let foreign = dependencies.iter().filter(|dependency| *dependency != krate);
    foreign
        .filter(|dependency| !allowed.contains(&dependency.as_str()))
        .map(|dependency| {
            complaint(&place, format!("may not depend on `{dependency}`; a new edge needs an ADR"))
        })
        .collect()
}

/// Finds edges of the table that the crate does not have. Without this check, a removed dependency
/// could come back without an ADR.
pub(crate) fn stale_edges(krate: &str, dependencies: &[String]) -> Vec<Complaint> {
    let rows = rules::EDGES.iter().filter(|(name, _)| *name == krate);
    rows.flat_map(|(_, allowed)| allowed.iter())
        .filter(|edge| !dependencies.iter().any(|dependency| dependency == **edge))
        .map(|edge| {
            let text = format!("`{krate}` does not depend on `{edge}` any more; remove the edge");
            complaint("xtask/src/tidy/rules.rs", text)
        })
        .collect()
}

/// Finds rows of the tables of crates for crates that do not exist.
pub(crate) fn stale_rows(crates: &[String]) -> Vec<Complaint> {
    let edges = rules::EDGES.iter().map(|(name, _)| *name);
    let names = edges.chain(rules::CRATE_LINES.iter().map(|(name, _)| *name));
    names
        .filter(|name| !crates.iter().any(|krate| krate == name))
        .map(|name| {
            let text = format!("there is no crate `{name}` any more; remove its row");
            complaint("xtask/src/tidy/rules.rs", text)
        })
        .collect()
}

/// Complains about a crate without the workspace's lints, which forbid unsafe code.
pub(crate) fn lints(krate: &str, manifest: &toml::Table) -> Vec<Complaint> {
    let inherited =
        manifest.get("lints").and_then(|lints| lints.get("workspace")?.as_bool()) == Some(true);
    let text = "does not have `[lints] workspace = true`";
    (!inherited)
        .then(|| complaint(format!("crates/{krate}/Cargo.toml"), text))
        .into_iter()
        .collect()
}

/// Compares `doctest` of a crate with its sources, because `cargo test --doc` reads a whole crate
/// before it finds no example.
pub(crate) fn doc_tests(krate: &str, manifest: &toml::Table, has_examples: bool) -> Vec<Complaint> {
    let setting = manifest.get("lib").and_then(|lib| lib.get("doctest")?.as_bool());
    let text = match (has_examples, setting) {
        (true, Some(false)) => "has `doctest = false`, and a doc comment has an example",
        (false, None | Some(true)) => "no doc comment has an example: add `[lib] doctest = false`",
        _ => return Vec::new(),
    };
    vec![complaint(format!("crates/{krate}/Cargo.toml"), text)]
}

/// Checks one Rust file: unsafe code, unfinished work, lengths.
pub(crate) fn rust_file(path: &str, text: &str) -> Vec<Complaint> {
    let masked = source::mask(text);
    let mut found = unsafe_fence(path, &masked);
    found.extend(unfinished(path, &masked));
    if !rules::is_generated(path) && !rules::is_test(path) {
        found.extend(file_length(path, &masked));
        found.extend(function_length(path, &masked));
    }
    found
}

/// Checks the width of comments and the words in them.
pub(crate) fn comments(path: &str, text: &str) -> Vec<Complaint> {
    let at = |line: usize| format!("{path}:{line}");
    let max = rules::COMMENT_COLUMNS_MAX;
    let wide = comments::wide_lines(text).into_iter();
    let refused = comments::refused_words(text).into_iter();
    let beginnings = comments::refused_beginnings(text).into_iter();
    wide.map(|line| {
        complaint(at(line), format!("a comment wider than {max} columns: break the line"))
    })
    .chain(refused.map(|(line, word)| {
        complaint(
            at(line),
            format!("`{word}` in a comment: name the subject, or use the field's word (STYLE.md)"),
        )
    }))
    .chain(beginnings.map(|(line, word)| {
        complaint(
            at(line),
            format!("a doc that begins with `{word}`: begin with a verb or a noun (STYLE.md)"),
        )
    }))
    .collect()
}

/// Finds crates with more lines than the rules permit.
pub(crate) fn crate_lengths(files: &[SourceFile]) -> Vec<Complaint> {
    let mut crates: BTreeMap<&str, usize> = BTreeMap::new();
    for file in files {
        *crates.entry(file.krate.as_str()).or_default() += file.lines;
    }
    let long = crates.into_iter().filter(|(krate, lines)| *lines > rules::crate_lines_max(krate));
    long.map(|(krate, lines)| {
        let max = rules::crate_lines_max(krate);
        let text = format!(
            "{lines} lines without tests, {max} allowed: move a part with one purpose into a crate"
        );
        complaint(format!("crates/{krate}"), text)
    })
    .collect()
}

/// Finds type names with more than one definition.
pub(crate) fn duplicate_types(files: &[SourceFile]) -> Vec<Complaint> {
    let types = items::type_names(files);
    let repeated = types.iter().filter(|(_, places)| places.len() > 1);
    repeated
        .map(|(name, places)| {
            let text = format!(
                "`{name}` is defined also in {}: one name, one thing",
                places[1..].join(", ")
            );
            complaint(&places[0], text)
        })
        .collect()
}

/// Finds functions with a tuple pattern as a parameter.
pub(crate) fn tuple_parameters(files: &[SourceFile]) -> Vec<Complaint> {
    let places = files.iter().flat_map(items::tuple_parameters);
    places
        .map(|place| {
            complaint(place, "a tuple pattern as a parameter: use a struct with named fields")
        })
        .collect()
}

/// Finds groups of modules that use each other and are larger than the limit.
pub(crate) fn module_rings(files: &[SourceFile]) -> Vec<Complaint> {
    let crates: BTreeSet<&str> = files.iter().map(|file| file.krate.as_str()).collect();
    let rings = crates.into_iter().flat_map(|krate| {
        let of_crate: Vec<&SourceFile> = files.iter().filter(|file| file.krate == krate).collect();
        modules::rings(&of_crate).into_iter().map(move |ring| (krate, ring))
    });
    rings
        .filter(|(_, ring)| ring.len() > rules::MODULE_RING_MAX)
        .map(|(krate, ring)| {
            let text = format!(
                "{} modules use each other: {}; move what they share down",
                ring.len(),
                ring.join(", ")
            );
            complaint(format!("crates/{krate}"), text)
        })
        .collect()
}

/// Compares the section `# Modules` in each crate's documentation with the crate's modules.
pub(crate) fn module_lists(files: &[SourceFile]) -> Vec<Complaint> {
    let roots = files.iter().filter(|file| file.module.is_empty());
    let found = roots.flat_map(|root| {
        module_list::differences(root).into_iter().map(|difference| (&root.path, difference))
    });
    found
        .map(|(path, difference)| {
            let text = format!("the section Modules {difference}: list each module by its subject");
            complaint(path, text)
        })
        .collect()
}

/// Returns a complaint for each use of `unsafe` in a crate that may not have it.
fn unsafe_fence(path: &str, masked: &str) -> Vec<Complaint> {
    let named = path.strip_prefix("crates/").and_then(|rest| rest.split('/').next());
    // The fuzz targets count allocations, which takes an allocator of their own. For this reason
    // one file may hold unsafe code.
    let krate = named.unwrap_or(if path == "fuzz/src/memory.rs" { "fuzz" } else { "xtask" });
    if rules::may_hold_unsafe(krate) {
        return Vec::new();
    }
    let blocks = words(masked, "unsafe").map(|at| (at, "holds `unsafe`"));
    let permits = words(masked, "unsafe_code").map(|at| (at, "changes the `unsafe_code` lint"));
    blocks
        .chain(permits)
        .map(|(at, what)| {
            let place = format!("{path}:{}", line_of(masked, at));
            complaint(
                place,
                format!(
                    "{what}, which `{krate}` may not; unsafe lives behind the fences in rules.rs"
                ),
            )
        })
        .collect()
}

/// Finds `todo!` and `unimplemented!`.
fn unfinished(path: &str, masked: &str) -> Vec<Complaint> {
    let macros = ["todo", "unimplemented"].into_iter();
    macros
        .flat_map(|name| words(masked, name).map(move |at| (name, at)))
        .filter(|(name, at)| masked[at + name.len()..].starts_with('!'))
        .map(|(name, at)| {
            complaint(
                format!("{path}:{}", line_of(masked, at)),
                format!("`{name}!` is unfinished work"),
            )
        })
        .collect()
}

fn file_length(path: &str, masked: &str) -> Vec<Complaint> {
    let tests: usize = test_items(masked).iter().map(|item| line_count(masked, item)).sum();
    let lines = masked.lines().count().saturating_sub(tests);
    let max = rules::FILE_LINES_MAX;
    let text = || {
        format!(
            "{lines} lines without tests, {max} allowed: find its second subject and move it out"
        )
    };
    (lines > max).then(|| complaint(path, text())).into_iter().collect()
}

/// Finds functions with more lines than the rules permit.
fn function_length(path: &str, masked: &str) -> Vec<Complaint> {
    let tests = test_items(masked);
    let max = rules::FUNCTION_LINES_MAX;
    functions(masked)
        .into_iter()
        .filter(|(_, range)| !tests.iter().any(|test| test.contains(&range.start)))
        .filter(|(name, _)| {
            !rules::LONG_FUNCTIONS
                .iter()
                .any(|(file, function, _)| *file == path && function == name)
        })
        .map(|(name, range)| (name, line_of(masked, range.start), line_count(masked, &range)))
        .filter(|(_, _, lines)| *lines > max)
        .map(|(name, line, lines)| {
            complaint(
                format!("{path}:{line}"),
                format!("`{name}` has {lines} lines, {max} allowed"),
            )
        })
        .collect()
}

/// Finds exceptions that no function needs.
pub(crate) fn stale_exceptions(read: impl Fn(&str) -> Option<String>) -> Vec<Complaint> {
    let is_long = |path: &str, name: &str| {
        let masked = source::mask(&read(path).unwrap_or_default());
        functions(&masked)
            .iter()
            .any(|(n, range)| *n == name && line_count(&masked, range) > rules::FUNCTION_LINES_MAX)
    };
    rules::LONG_FUNCTIONS
        .iter()
        .filter(|(path, name, _)| !is_long(path, name))
        .map(|(path, name, _)| {
            complaint(
                *path,
                format!("`{name}` needs no exception any more; remove it from rules.rs"),
            )
        })
        .collect()
}

/// Finds host names of registries in a text file.
pub(crate) fn registry_hosts(path: &str, text: &str) -> Vec<Complaint> {
    if rules::REGISTRY_HOSTS_EXEMPT.contains(&path) {
        return Vec::new();
    }
    let hosts = rules::REGISTRY_HOSTS.iter().map(|(name, suffix)| format!("{name}{suffix}"));
    hosts
        .filter_map(|host| text.find(&host).map(|at| (host, at)))
        .map(|(host, at)| {
            let place = format!("{path}:{}", line_of(text, at));
            complaint(
                place,
                format!("names the registry host {host}; leave that to the machine's settings"),
            )
        })
        .collect()
}

/// Checks the length of ARCHITECTURE.md and that it names every crate.
pub(crate) fn architecture(text: &str, crates: &[String]) -> Vec<Complaint> {
    let place = "ARCHITECTURE.md";
    let lines = text.lines().count();
    let max = rules::ARCHITECTURE_LINES_MAX;
    let mut found = Vec::new();
    if lines > max {
        found.push(complaint(place, format!("{lines} lines, {max} allowed: it is read whole")));
    }
    let named =
        |krate: &str| words(text, krate).any(|at| !text[at + krate.len()..].starts_with('-'));
    let unnamed = crates.iter().filter(|krate| !named(krate));
    found.extend(
        unnamed.map(|krate| complaint(place, format!("does not mention the crate `{krate}`"))),
    );
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(found: Vec<Complaint>) -> Vec<String> {
        found.into_iter().map(|complaint| complaint.place).collect()
    }

    #[test]
    fn an_edge_outside_the_table_is_refused() {
        assert_eq!(places(edges("lifecycle", &["engine".into(), "memory".into()])), [""; 0]);
        assert_eq!(
            places(edges("lifecycle", &["schedule".into()])),
            ["crates/lifecycle/Cargo.toml"]
        );
        assert_eq!(places(edges("protocol", &["metrics".into()])), ["crates/protocol/Cargo.toml"]);
        assert_eq!(places(edges("newcomer", &[])), ["crates/newcomer/Cargo.toml"]);
        assert_eq!(places(stale_edges("protocol", &["base".into()])), [""; 0]);
        assert_eq!(places(stale_edges("protocol", &[])), ["xtask/src/tidy/rules.rs"]);
        let all: Vec<String> = rules::EDGES.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(places(stale_rows(&all)), [""; 0]);
        assert_eq!(places(stale_rows(&all[1..])), ["xtask/src/tidy/rules.rs"]);
        // Two tables name `server`.
        let others: Vec<String> = all.into_iter().filter(|name| name != "server").collect();
        assert_eq!(stale_rows(&others).len(), 2);
    }

    #[test]
    fn a_crate_takes_the_lints_of_the_workspace() {
        let check = |text: &str| places(lints("base", &toml::from_str(text).unwrap()));
        assert_eq!(check("[lints]\nworkspace = true\n"), [""; 0]);
        assert_eq!(check("[lints.rust]\nunsafe_code = \"allow\"\n"), ["crates/base/Cargo.toml"]);
    }

    #[test]
    fn crates_without_examples_have_no_doc_tests() {
        let check = |text: &str, has_examples| {
            doc_tests("base", &toml::from_str(text).unwrap(), has_examples).len()
        };
        assert_eq!(check("[lib]\ndoctest = false\n", false), 0);
        assert_eq!(check("[lib]\ndoctest = false\n", true), 1);
        assert_eq!(check("", false), 1);
        assert_eq!(check("", true), 0);
    }

    #[test]
    fn unsafe_stays_behind_its_fence() {
        let text = "// unsafe { } is fine here\nfn f() {\n    unsafe { g() }\n}\n";
        assert_eq!(
            places(rust_file("crates/server/src/lib.rs", text)),
            ["crates/server/src/lib.rs:3"]
        );
        assert_eq!(places(rust_file("crates/engine-onnx/src/lib.rs", text)), [""; 0]);
        assert_eq!(
            places(rust_file("crates/engine/src/lib.rs", text)),
            ["crates/engine/src/lib.rs:3"]
        );
        assert_eq!(
            places(rust_file("crates/base/src/lib.rs", "#![allow(unsafe_code)]")),
            ["crates/base/src/lib.rs:1"]
        );
        assert_eq!(places(rust_file("fuzz/src/memory.rs", text)), [""; 0]);
        assert_eq!(places(rust_file("fuzz/src/lib.rs", text)), ["fuzz/src/lib.rs:3"]);
    }

    #[test]
    fn unfinished_work_is_seen() {
        let text = "fn f() {\n    todo!()\n}\nfn g() { unimplemented!(\"x\") }\nlet todo = 1; // todo!()\n";
        assert_eq!(
            places(rust_file("xtask/src/x.rs", text)),
            ["xtask/src/x.rs:2", "xtask/src/x.rs:4"]
        );
    }

    #[test]
    fn long_functions_and_files_are_seen_and_tests_are_not_counted() {
        let body = |lines: usize| format!("fn f() {{\n{}}}\n", "    g();\n".repeat(lines - 2));
        let path = "crates/base/src/x.rs";
        assert_eq!(places(rust_file(path, &body(rules::FUNCTION_LINES_MAX))), [""; 0]);
        assert_eq!(
            places(rust_file(path, &body(rules::FUNCTION_LINES_MAX + 1))),
            [format!("{path}:1")]
        );
        assert_eq!(places(rust_file("crates/base/tests/it/x.rs", &body(1000))), [""; 0]);
        assert_eq!(places(rust_file("crates/base/src/generated/x.rs", &body(1000))), [""; 0]);

        let lines = |count: usize| "const X: u8 = 1;\n".repeat(count);
        assert_eq!(places(rust_file(path, &lines(rules::FILE_LINES_MAX))), [""; 0]);
        assert_eq!(places(rust_file(path, &lines(rules::FILE_LINES_MAX + 1))), [path]);
        let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", lines(900));
        assert_eq!(places(rust_file(path, &(lines(700) + &tests))), [""; 0]);
    }

    #[test]
    fn long_crates_are_seen() {
        let file = |krate: &str, lines: usize| SourceFile {
            path: format!("crates/{krate}/src/lib.rs"),
            krate: krate.to_owned(),
            module: Vec::new(),
            lines,
            masked: String::new(),
            syntax: syn::parse_file("").unwrap(),
        };
        let check = |krate: &str, lines: usize| {
            places(crate_lengths(&[file(krate, lines - 1), file(krate, 1), file("base", 1)]))
        };
        assert_eq!(check("cli", rules::CRATE_LINES_MAX), [""; 0]);
        assert_eq!(check("cli", rules::CRATE_LINES_MAX + 1), ["crates/cli"]);
        for &(krate, max) in rules::CRATE_LINES {
            assert_eq!(check(krate, max), [""; 0]);
            assert_eq!(check(krate, max + 1), [format!("crates/{krate}")]);
        }
    }

    #[test]
    fn registry_hosts_are_seen() {
        let text = format!("first\nhttps://{}{}/simple\n", "pypi", ".org");
        assert_eq!(places(registry_hosts("Makefile", &text)), ["Makefile:2"]);
        assert_eq!(places(registry_hosts("Cargo.lock", &text)), [""; 0]);
    }

    #[test]
    fn the_architecture_names_every_crate_and_stays_short() {
        let crates = ["engine".to_owned(), "engine-onnx".to_owned()];
        assert_eq!(places(architecture("`engine` and `engine-onnx`", &crates)), [""; 0]);
        assert_eq!(places(architecture("`engine-onnx`", &crates)), ["ARCHITECTURE.md"]);
        let long = "engine and engine-onnx\n".repeat(rules::ARCHITECTURE_LINES_MAX + 1);
        assert_eq!(places(architecture(&long, &crates)), ["ARCHITECTURE.md"]);
    }
}
