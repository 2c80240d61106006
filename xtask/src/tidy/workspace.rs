//! The Rust files of the crates, parsed, with the module that each file is.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};

use super::{rules, source};

/// One Rust file under `crates/NAME/src` that is neither generated nor only tests.
pub(crate) struct SourceFile {
    /// Path from the repository's root.
    pub(crate) path: String,
    /// Directory name under `crates/`.
    pub(crate) krate: String,
    /// Module path inside the crate. Empty for `lib.rs` and `main.rs`.
    pub(crate) module: Vec<String>,
    /// Lines outside `#[cfg(test)]` items.
    pub(crate) lines: usize,
    /// Code with comments and literals blanked out.
    pub(crate) masked: String,
    /// The syntax tree.
    pub(crate) syntax: syn::File,
}

/// Reads the production code of all crates among `paths`.
///
/// # Errors
/// If a file cannot be read or is not Rust.
pub(crate) fn read(root: &Path, paths: &[String]) -> Result<Vec<SourceFile>> {
    let mut files = Vec::new();
    for path in paths {
        let Some(location) = ModuleLocation::of(path) else { continue };
        let Ok(text) = std::fs::read_to_string(root.join(path)) else { continue };
        files.push(parse(path, location, &text).with_context(|| path.clone())?);
    }
    remove_test_modules(&mut files);
    Ok(files)
}

/// Removes the files of modules that are compiled for tests only.
fn remove_test_modules(files: &mut Vec<SourceFile>) {
    let tests: BTreeSet<String> = files.iter().flat_map(test_modules).collect();
    files.retain(|file| !is_below(&tests, file));
}

struct ModuleLocation {
    krate: String,
    module: Vec<String>,
}

impl ModuleLocation {
    /// Returns the crate and the module of a source file, or `None` for generated code and tests.
    fn of(path: &str) -> Option<ModuleLocation> {
        if rules::is_generated(path) || rules::is_test(path) || rules::is_conformance(path) {
            return None;
        }
        let (krate, file) = path.strip_prefix("crates/")?.split_once("/src/")?;
        let stem = file.strip_suffix(".rs")?;
        let mut module: Vec<String> = stem.split('/').map(str::to_owned).collect();
        if matches!(module.last().map(String::as_str), Some("mod" | "lib" | "main")) {
            module.pop();
        }
        Some(ModuleLocation { krate: krate.to_owned(), module })
    }
}

fn parse(path: &str, location: ModuleLocation, text: &str) -> Result<SourceFile> {
    let masked = source::mask(text);
    let tests: usize =
        source::test_items(&masked).iter().map(|item| source::line_count(&masked, item)).sum();
    let lines = masked.lines().count().saturating_sub(tests);
    let syntax = syn::parse_file(text)?;
    Ok(SourceFile {
        path: path.to_owned(),
        krate: location.krate,
        module: location.module,
        lines,
        masked,
        syntax,
    })
}

/// Returns the full names (`crate::module`) of the modules that a file declares under
/// `#[cfg(test)]`.
fn test_modules(file: &SourceFile) -> Vec<String> {
    let modules = file.syntax.items.iter().filter_map(|item| match item {
        syn::Item::Mod(module) if module.content.is_none() && is_test_only(&module.attrs) => {
            Some(module)
        }
        _ => None,
    });
    modules.filter_map(|module| declared_name(file, module)).collect()
}

/// Returns the full name under which the file of a declared module is listed. `#[path]` names that
/// file relative to the directory of the declaring file. Returns `None` for a path outside
/// `crates/NAME/src`.
fn declared_name(file: &SourceFile, declaration: &syn::ItemMod) -> Option<String> {
    let Some(target) = declaration.attrs.iter().find_map(path_attribute) else {
        return Some(full_name(&file.krate, &file.module, Some(&declaration.ident.to_string())));
    };
    let target = Path::new(&file.path).parent()?.join(target);
    let location = ModuleLocation::of(target.to_str()?)?;
    Some(full_name(&location.krate, &location.module, None))
}

/// Returns the value of `#[path = "..."]`.
fn path_attribute(attribute: &syn::Attribute) -> Option<String> {
    let syn::Meta::NameValue(pair) = &attribute.meta else { return None };
    let syn::Expr::Lit(literal) = &pair.value else { return None };
    let syn::Lit::Str(path) = &literal.lit else { return None };
    pair.path.is_ident("path").then(|| path.value())
}

fn is_below(tests: &BTreeSet<String>, file: &SourceFile) -> bool {
    (1..=file.module.len())
        .any(|depth| tests.contains(&full_name(&file.krate, &file.module[..depth], None)))
}

fn full_name(krate: &str, module: &[String], child: Option<&str>) -> String {
    let parts = std::iter::once(krate).chain(module.iter().map(String::as_str)).chain(child);
    parts.collect::<Vec<_>>().join("::")
}

/// Returns true if the attributes hold `#[cfg(test)]` or `#[test]`.
pub(crate) fn is_test_only(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("test")
            || (attribute.path().is_ident("cfg")
                && attribute.parse_args::<syn::Path>().is_ok_and(|path| path.is_ident("test")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> SourceFile {
        parse(path, ModuleLocation::of(path).unwrap(), text).unwrap()
    }

    #[test]
    fn test_modules_with_a_path_are_no_product_code() {
        let declaration =
            |name: &str| format!("fn f() {{}}\n#[cfg(test)]\n#[path = \"{name}\"]\nmod tests;\n");
        let mut files = vec![
            file("crates/x/src/a.rs", &declaration("a_tests.rs")),
            file("crates/x/src/a_tests.rs", "fn g() {}"),
            file("crates/x/src/b/mod.rs", &declaration("merge_tests.rs")),
            file("crates/x/src/b/merge_tests.rs", "fn g() {}"),
            file("crates/x/src/c.rs", "#[path = \"d.rs\"]\nmod other;\n#[cfg(test)]\nmod tests;"),
            file("crates/x/src/c/tests.rs", "fn g() {}"),
            file("crates/x/src/d.rs", "fn g() {}"),
            file("crates/y/src/a_tests.rs", "fn g() {}"),
        ];
        remove_test_modules(&mut files);
        let paths: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
        let product =
            ["x/src/a.rs", "x/src/b/mod.rs", "x/src/c.rs", "x/src/d.rs", "y/src/a_tests.rs"];
        assert_eq!(paths, product.map(|path| format!("crates/{path}")));
        assert_eq!(files[0].lines, 1);
    }
}
