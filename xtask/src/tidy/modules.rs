//! Rings of modules: groups of modules of one crate that reach each other.
//!
//! A module is a file. An edge goes from the file that names a path to the deepest module on that
//! path. Edges from a module to one of its ancestors do not count, because a child may use the
//! items of its parent. Groups are strongly connected components (Tarjan 1972).

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::Visit;

use super::workspace::{SourceFile, is_test_only};

type ModulePath = Vec<String>;

/// Returns the rings of one crate, the largest first. Each ring is a sorted list of module names.
pub(crate) fn rings(files: &[&SourceFile]) -> Vec<Vec<String>> {
    let mut edges: BTreeMap<ModulePath, BTreeSet<ModulePath>> =
        files.iter().map(|file| (file.module.clone(), BTreeSet::new())).collect();
    let modules: BTreeSet<ModulePath> = edges.keys().cloned().collect();
    for file in files {
        let mut paths = Paths { modules: &modules, module: &file.module, uses: BTreeSet::new() };
        paths.visit_file(&file.syntax);
        let uses = paths.uses.into_iter().filter(|used| !file.module.starts_with(used));
        edges.entry(file.module.clone()).or_default().extend(uses);
    }
    let mut rings: Vec<Vec<String>> = Components::of(&edges)
        .into_iter()
        .filter(|ring| ring.len() > 1)
        .map(|ring| ring.iter().map(|module| module.join("::")).collect())
        .collect();
    rings.sort_by_key(|ring| std::cmp::Reverse(ring.len()));
    rings
}

/// Visitor that collects the modules that one file names.
struct Paths<'a> {
    modules: &'a BTreeSet<ModulePath>,
    module: &'a [String],
    uses: BTreeSet<ModulePath>,
}

impl Paths<'_> {
    /// Resolves `segments` as written in this file and records the module it leads to.
    fn record(&mut self, segments: &[String]) {
        let mut at: ModulePath = match segments.first().map(String::as_str) {
            Some("crate") => Vec::new(),
            Some("self") => self.module.to_vec(),
            Some("super") => self.module[..self.module.len().saturating_sub(1)].to_vec(),
            Some(name) if self.is_child(name) => {
                let mut child = self.module.to_vec();
                child.push(name.to_owned());
                child
            }
            _ => return,
        };
        for segment in &segments[1..] {
            if segment == "super" {
                at.pop();
                continue;
            }
            at.push(segment.clone());
            if !self.modules.contains(&at) {
                at.pop();
                break;
            }
        }
        if at != self.module {
            self.uses.insert(at);
        }
    }

    fn is_child(&self, name: &str) -> bool {
        let mut child = self.module.to_vec();
        child.push(name.to_owned());
        self.modules.contains(&child)
    }

    /// Records the modules that a `use` names below `prefix`.
    fn record_tree(&mut self, prefix: &mut Vec<String>, tree: &syn::UseTree) {
        match tree {
            syn::UseTree::Path(path) => {
                prefix.push(path.ident.to_string());
                self.record_tree(prefix, &path.tree);
                prefix.pop();
            }
            syn::UseTree::Name(name) => self.record_leaf(prefix, &name.ident),
            syn::UseTree::Rename(rename) => self.record_leaf(prefix, &rename.ident),
            syn::UseTree::Glob(_) => self.record(prefix),
            syn::UseTree::Group(group) => {
                group.items.iter().for_each(|item| self.record_tree(prefix, item));
            }
        }
    }

    fn record_leaf(&mut self, prefix: &mut Vec<String>, name: &syn::Ident) {
        prefix.push(name.to_string());
        self.record(prefix);
        prefix.pop();
    }
}

impl<'ast> Visit<'ast> for Paths<'_> {
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if !is_test_only(&item.attrs) {
            self.record_tree(&mut Vec::new(), &item.tree);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<String> =
            path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if segments.len() > 1 {
            self.record(&segments);
        }
        syn::visit::visit_path(self, path);
    }

    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if !is_test_only(&module.attrs) {
            syn::visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        if !is_test_only(&function.attrs) {
            syn::visit::visit_item_fn(self, function);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if !is_test_only(&item.attrs) {
            syn::visit::visit_item_impl(self, item);
        }
    }
}

/// Tarjan's algorithm. The recursion is as deep as the longest chain of modules.
struct Components<'a> {
    edges: &'a BTreeMap<ModulePath, BTreeSet<ModulePath>>,
    visits: BTreeMap<&'a ModulePath, Visited>,
    stack: Vec<&'a ModulePath>,
    found: Vec<BTreeSet<&'a ModulePath>>,
}

struct Visited {
    index: usize,
    low: usize,
    on_stack: bool,
}

impl<'a> Components<'a> {
    /// Returns the strongly connected components (Tarjan, 1972).
    fn of(edges: &'a BTreeMap<ModulePath, BTreeSet<ModulePath>>) -> Vec<BTreeSet<&'a ModulePath>> {
        let mut all =
            Components { edges, visits: BTreeMap::new(), stack: Vec::new(), found: Vec::new() };
        for module in edges.keys() {
            if !all.visits.contains_key(module) {
                all.visit(module);
            }
        }
        all.found
    }

    /// Visits `module` and returns the lowest index that it reaches on the stack.
    fn visit(&mut self, module: &'a ModulePath) -> usize {
        let index = self.visits.len();
        self.visits.insert(module, Visited { index, low: index, on_stack: true });
        self.stack.push(module);
        let edges = self.edges;
        let mut low = index;
        for next in &edges[module] {
            let Some(next) = edges.get_key_value(next).map(|entry| entry.0) else { continue };
            low = match self.visits.get(next) {
                None => low.min(self.visit(next)),
                Some(visited) if visited.on_stack => low.min(visited.index),
                Some(_) => low,
            };
        }
        if let Some(visited) = self.visits.get_mut(module) {
            visited.low = low;
        }
        if low == index {
            self.close(module);
        }
        low
    }

    /// Takes the component of `root` off the stack.
    fn close(&mut self, root: &'a ModulePath) {
        let mut ring = BTreeSet::new();
        while let Some(module) = self.stack.pop() {
            if let Some(visited) = self.visits.get_mut(module) {
                visited.on_stack = false;
            }
            ring.insert(module);
            if module == root {
                break;
            }
        }
        self.found.push(ring);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(module: &str, text: &str) -> SourceFile {
        SourceFile {
            path: format!("crates/x/src/{module}.rs"),
            krate: "x".into(),
            module: module.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect(),
            lines: 0,
            masked: String::new(),
            syntax: syn::parse_str(text).unwrap(),
        }
    }

    fn found(files: &[SourceFile]) -> Vec<Vec<String>> {
        rings(&files.iter().collect::<Vec<_>>())
    }

    #[test]
    fn modules_that_use_each_other_are_a_ring() {
        let files = [
            file("", "mod a; mod b; mod c;"),
            file("a", "use crate::b::B;"),
            file("b", "fn f() { crate::c::g() }"),
            file("c", "use super::{a::A};"),
        ];
        assert_eq!(found(&files), [["a", "b", "c"]]);
    }

    #[test]
    fn a_child_may_use_its_parent_and_tests_do_not_count() {
        let files = [
            file("", "mod a;"),
            file("a", "mod child; use child::C; pub struct A;"),
            file("a::child", "use super::A; pub struct C;"),
            file("b", "#[cfg(test)] mod tests { use crate::a::A; }"),
            file("a::other", "use crate::b::B;"),
        ];
        assert_eq!(found(&files), [[""; 0]; 0]);
    }
}
