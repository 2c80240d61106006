//! The section `# Modules` in the documentation of a crate, which tells a newcomer what is where.

use std::collections::BTreeSet;

use super::workspace::{SourceFile, is_test_only};

const HEADING: &str = "# Modules";
/// Smallest number of modules of a crate that needs the section.
const MODULES_LISTED_MIN: usize = 5;

/// Returns the differences between the section `# Modules` of a crate's root file and the modules
/// that the file declares, as texts. Modules for tests and modules without a file do not count. A
/// file without the section has one difference if it has [`MODULES_LISTED_MIN`] modules or more.
pub(crate) fn differences(root: &SourceFile) -> Vec<String> {
    let declared: Vec<String> = root.syntax.items.iter().filter_map(declared_module).collect();
    let documentation = documentation(&root.syntax.attrs);
    let mut lines = documentation.lines().map(str::trim).skip_while(|line| *line != HEADING);
    if lines.next().is_none() {
        let missing = declared.len() >= MODULES_LISTED_MIN;
        return missing.then(|| "is missing".to_owned()).into_iter().collect();
    }
    let section: Vec<&str> = lines.take_while(|line| !line.is_empty()).collect();
    let section = section.join(" ");
    // Every second part is between two backticks. Crates have a hyphen in their names.
    let is_name =
        |part: &&str| part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let named: BTreeSet<&str> = section.split('`').skip(1).step_by(2).filter(is_name).collect();
    let declared: BTreeSet<&str> = declared.iter().map(String::as_str).collect();
    let unnamed = declared.difference(&named).map(|name| format!("does not name `{name}`"));
    let unknown = named.difference(&declared).map(|name| format!("names `{name}`, not a module"));
    unnamed.chain(unknown).collect()
}

/// Returns the text of the doc comments among `attributes`, a line each.
fn documentation(attributes: &[syn::Attribute]) -> String {
    let text = |attribute: &syn::Attribute| {
        let syn::Meta::NameValue(pair) = &attribute.meta else { return None };
        let syn::Expr::Lit(literal) = &pair.value else { return None };
        let syn::Lit::Str(text) = &literal.lit else { return None };
        pair.path.is_ident("doc").then(|| text.value())
    };
    attributes.iter().filter_map(text).collect::<Vec<_>>().join("\n")
}

fn declared_module(item: &syn::Item) -> Option<String> {
    let syn::Item::Mod(module) = item else { return None };
    let counts = module.content.is_none() && !is_test_only(&module.attrs);
    counts.then(|| module.ident.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<String> {
        differences(&SourceFile {
            path: "crates/x/src/lib.rs".into(),
            krate: "x".into(),
            module: Vec::new(),
            lines: 0,
            masked: String::new(),
            syntax: syn::parse_str(text).unwrap(),
        })
    }

    #[test]
    fn the_list_of_modules_is_complete_and_true() {
        let modules =
            "mod a;\npub mod b;\n#[cfg(test)]\nmod tests;\nmod inline { pub fn f() {} }\n";
        let list = |section: &str| format!("//! A crate.\n//!\n//! # Modules\n{section}{modules}");
        assert_eq!(found(&list("//! * One: `a`, of `a-crate`;\n//!   `b` is two.\n")), [""; 0]);
        assert_eq!(
            found(&list("//! * One: `a`, `c`.\n//!\n//! After it: `b`.\n")),
            ["does not name `b`", "names `c`, not a module"]
        );
        assert_eq!(found(&format!("//! A crate without the section: `c`.\n{modules}")), [""; 0]);
    }

    #[test]
    fn a_crate_of_five_modules_needs_the_list() {
        let four = "//! A crate.\nmod a;\nmod b;\nmod c;\nmod d;\n";
        assert_eq!(found(four), [""; 0]);
        assert_eq!(found(&format!("{four}#[cfg(test)]\nmod tests;\nmod inline {{}}\n")), [""; 0]);
        assert_eq!(found(&format!("{four}mod e;\n")), ["is missing"]);
    }
}
