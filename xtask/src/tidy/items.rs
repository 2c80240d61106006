//! Rules about items: names of types and parameters of functions.

use std::collections::BTreeMap;

use syn::spanned::Spanned;
use syn::visit::Visit;

use super::workspace::{SourceFile, is_test_only};

/// A place in the code, as `path:line`.
pub(crate) type CodePlace = String;

/// Returns the types (struct, enum, union, trait, alias) by name, with the places that define them.
/// Types inside functions and types for tests are left out.
pub(crate) fn type_names(files: &[SourceFile]) -> BTreeMap<String, Vec<CodePlace>> {
    let mut types = BTreeMap::new();
    for file in files {
        Types { file, types: &mut types }.visit_file(&file.syntax);
    }
    types
}

/// Returns the places of functions with a parameter that is a tuple pattern.
pub(crate) fn tuple_parameters(file: &SourceFile) -> Vec<CodePlace> {
    let mut parameters = TupleParameters { file, found: Vec::new() };
    parameters.visit_file(&file.syntax);
    parameters.found
}

fn place(file: &SourceFile, spanned: &impl Spanned) -> CodePlace {
    format!("{}:{}", file.path, spanned.span().start().line)
}

struct Types<'a> {
    file: &'a SourceFile,
    types: &'a mut BTreeMap<String, Vec<CodePlace>>,
}

impl Types<'_> {
    fn record(&mut self, attributes: &[syn::Attribute], name: &syn::Ident) {
        if !is_test_only(attributes) {
            self.types.entry(name.to_string()).or_default().push(place(self.file, name));
        }
    }
}

impl<'ast> Visit<'ast> for Types<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        match item {
            syn::Item::Struct(item) => self.record(&item.attrs, &item.ident),
            syn::Item::Enum(item) => self.record(&item.attrs, &item.ident),
            syn::Item::Union(item) => self.record(&item.attrs, &item.ident),
            syn::Item::Trait(item) => self.record(&item.attrs, &item.ident),
            syn::Item::Type(item) => self.record(&item.attrs, &item.ident),
            syn::Item::Mod(module) if !is_test_only(&module.attrs) => {
                syn::visit::visit_item_mod(self, module);
            }
            _ => {}
        }
    }
}

struct TupleParameters<'a> {
    file: &'a SourceFile,
    found: Vec<CodePlace>,
}

impl<'ast> Visit<'ast> for TupleParameters<'_> {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if !is_test_only(&module.attrs) {
            syn::visit::visit_item_mod(self, module);
        }
    }

    fn visit_signature(&mut self, signature: &'ast syn::Signature) {
        let is_tuple = |input: &syn::FnArg| matches!(input, syn::FnArg::Typed(typed) if matches!(*typed.pat, syn::Pat::Tuple(_)));
        if signature.inputs.iter().any(is_tuple) {
            self.found.push(place(self.file, &signature.ident));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> SourceFile {
        SourceFile {
            path: "crates/x/src/a.rs".into(),
            krate: "x".into(),
            module: vec!["a".into()],
            lines: 0,
            masked: String::new(),
            syntax: syn::parse_str(text).unwrap(),
        }
    }

    #[test]
    fn types_are_found_by_name() {
        let found = type_names(&[file(
            "pub struct Plan;\npub(crate) enum Plan2 {}\nstruct Own;\ntype Plan = u8;\n\
             #[cfg(test)]\nstruct Fake;\nfn f() { struct Local; }",
        )]);
        assert_eq!(found.keys().collect::<Vec<_>>(), ["Own", "Plan", "Plan2"]);
        assert_eq!(found["Plan"], ["crates/x/src/a.rs:1", "crates/x/src/a.rs:4"]);
    }

    #[test]
    fn tuple_parameters_are_found_in_functions_and_methods() {
        let text = "fn f((a, b): (u8, u8)) {}\nstruct S;\nimpl S {\n fn g(&self, (a, b): (u8, u8)) {}\n fn h(c: (u8, u8)) {}\n}";
        assert_eq!(tuple_parameters(&file(text)), ["crates/x/src/a.rs:1", "crates/x/src/a.rs:4"]);
        assert_eq!(
            tuple_parameters(&file("#[cfg(test)] mod t { fn f((a, b): (u8, u8)) {} }")),
            [""; 0]
        );
    }
}
