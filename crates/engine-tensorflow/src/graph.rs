//! A GraphDef as this crate needs it: reachable operations, and variables that runs may assign to.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};

use base::{Error, Result};
use bytes::Bytes;
use prost::Message;

use crate::generated::attr_value::Value;
use crate::generated::{FunctionDef, FunctionLibrary, GraphDef, NodeDef, TensorShape};
use crate::model_file::operation_of;

/// Operation that represents a variable.
pub(crate) const VARIABLE: &str = "VarHandleOp";
/// Operations of version 1 that own a variable and give references to it.
pub(crate) const REFERENCE_VARIABLES: [&str; 2] = ["VariableV2", "Variable"];
/// Maximum depth of nested functions that are followed. A variable that is passed deeper counts as
/// assigned to.
const FUNCTION_DEPTH_MAX: usize = 64;

/// Operations that only read the variable of a handle.
const READERS: [&str; 5] =
    ["ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape", "VarIsInitializedOp"];

/// Beginnings of the names of operations that write to a variable or pass the reference on. Their
/// first input is the reference to the variable.
const REFERENCE_WRITERS: [&str; 7] =
    ["Assign", "Scatter", "Apply", "SparseApply", "StridedSliceAssign", "CountUpTo", "Ref"];

/// Beginnings of the names of operations that change the content of a table.
const TABLE_WRITERS: [&str; 3] = ["LookupTableInsert", "LookupTableRemove", "LookupTableImport"];

/// Readers that TensorFlow serves from a copy if the variable's memory is not its own.
const GATHERS: [&str; 2] = ["ResourceGather", "ResourceGatherNd"];

pub(crate) struct DecodedGraph {
    pub(crate) nodes: Vec<NodeDef>,
    /// Each node's own bytes.
    pub(crate) bytes: Vec<Bytes>,
    /// The messages around the nodes.
    pub(crate) rest: GraphDef,
    positions: HashMap<String, usize>,
    functions: HashMap<String, FunctionDef>,
}

#[derive(Clone, Debug)]
pub(crate) struct GraphVariable {
    /// Name of its node, and of its parameter.
    pub(crate) name: String,
    /// TensorFlow's number of its element type.
    pub(crate) dtype: i32,
    pub(crate) shape: Option<TensorShape>,
    /// True if a run may assign to it.
    pub(crate) assigned: bool,
}

/// A lookup in a variable that can be replaced by a lookup in the variable's value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Gather {
    /// Function that contains the lookup; `None` for the graph itself.
    pub(crate) function: Option<String>,
    /// Position among the nodes.
    pub(crate) node: usize,
}

/// Variables of a graph, and lookups in variables that no run assigns to.
pub(crate) struct VariableUses {
    pub(crate) variables: Vec<GraphVariable>,
    pub(crate) gathers: HashSet<Gather>,
}

#[derive(Clone, Debug, Default)]
struct HandleUse {
    assigned: bool,
    /// Positions of the outputs of the function that are the same handle.
    returned: Vec<usize>,
    gathers: HashSet<Gather>,
}

/// A handle inside one graph or function.
struct FollowedHandle<'a> {
    assigned: bool,
    gathers: HashSet<Gather>,
    /// Tensors that are the handle: node and output.
    tensors: HashSet<(&'a str, usize)>,
}

/// Operations of one graph or function by the tensor that they take: node and output.
type Consumers<'a> = HashMap<(&'a str, usize), Vec<Consumer>>;

/// An operation that takes a tensor.
#[derive(Clone, Copy)]
struct Consumer {
    node: usize,
    input: usize,
}

impl DecodedGraph {
    /// Decodes the nodes and functions of a GraphDef.
    ///
    /// # Errors
    /// `DataLoss` if it is damaged or two operations have one name.
    pub(crate) fn parse(bytes: Bytes) -> Result<DecodedGraph> {
        let damaged = |e: prost::DecodeError| Error::data_loss("the graph is damaged").caused_by(e);
        let mut rest = GraphDef::decode(bytes).map_err(damaged)?;
        let bytes = std::mem::take(&mut rest.node);
        let nodes: Vec<NodeDef> = bytes
            .iter()
            .map(|node| NodeDef::decode(node.clone()))
            .collect::<Result<_, _>>()
            .map_err(damaged)?;
        let mut positions = HashMap::with_capacity(nodes.len());
        for (at, node) in nodes.iter().enumerate() {
            if positions.insert(node.name.clone(), at).is_some() {
                let name = &node.name;
                return Err(Error::data_loss(format!("the graph has two operations \"{name}\"")));
            }
        }
        let library = FunctionLibrary::decode(rest.library.clone()).map_err(damaged)?;
        let name = |function: &FunctionDef| {
            function.signature.as_ref().map(|it| it.name.clone()).unwrap_or_default()
        };
        let functions =
            library.function.into_iter().map(|function| (name(&function), function)).collect();
        Ok(DecodedGraph { nodes, bytes, rest, positions, functions })
    }

    /// Returns the node called `name`.
    pub(crate) fn position(&self, name: &str) -> Option<usize> {
        self.positions.get(name).copied()
    }

    /// Marks every node that the operations or tensors `roots` need or must be colocated with.
    pub(crate) fn reachable<'a>(&self, roots: impl IntoIterator<Item = &'a str>) -> Vec<bool> {
        let mut reached = vec![false; self.nodes.len()];
        let find = |name: &str| self.position(operation_of(name));
        let mut open: Vec<usize> = roots.into_iter().filter_map(find).collect();
        while let Some(at) = open.pop() {
            if std::mem::replace(&mut reached[at], true) {
                continue;
            }
            let node = &self.nodes[at];
            let inputs = node.input.iter().filter_map(|name| find(name));
            open.extend(inputs.chain(colocated(node).filter_map(find)));
        }
        reached
    }

    /// Returns the variables among the nodes that `reached` marks, in the graph's order. If two
    /// nodes represent one variable, both count as assigned to, because each has its own memory.
    pub(crate) fn variables(&self, reached: &[bool]) -> VariableUses {
        let chosen = |at: &usize| reached[*at] && self.nodes[*at].op == VARIABLE;
        let consumers = consumers(&self.nodes, |at| reached[at]);
        let analysis = UseAnalysis { graph: self, known: RefCell::default() };
        let mut counts: HashMap<(String, String), usize> = HashMap::new();
        for at in (0..self.nodes.len()).filter(chosen) {
            *counts.entry(resource_name(&self.nodes[at])).or_default() += 1;
        }
        let mut gathers = HashSet::new();
        let mut kept = HashSet::new();
        let mut variables = Vec::new();
        for at in (0..self.nodes.len()).filter(chosen) {
            let node = &self.nodes[at];
            let alone = counts.get(&resource_name(node)) == Some(&1);
            let used = analysis.follow(&self.nodes, &consumers, (&node.name, 0), None, 0);
            let assigned = !alone || used.assigned;
            if assigned { &mut kept } else { &mut gathers }.extend(used.gathers);
            variables.push(GraphVariable {
                name: node.name.clone(),
                dtype: type_of(node, "dtype"),
                shape: shape_of(node),
                assigned,
            });
        }
        // A function may be called with several variables.
        gathers.retain(|gather| !kept.contains(gather));
        VariableUses { variables, gathers }
    }

    /// Returns the names of the variables that the nodes that `reached` marks may assign to.
    pub(crate) fn assigned(&self, reached: &[bool]) -> Vec<String> {
        let consumers = consumers(&self.nodes, |at| reached[at]);
        let writes = |consumer: &Consumer| {
            let op = self.nodes[consumer.node].op.as_str();
            consumer.input == 0 && REFERENCE_WRITERS.iter().any(|start| op.starts_with(start))
        };
        let written = |node: &&NodeDef| {
            let users = consumers.get(&(node.name.as_str(), 0));
            REFERENCE_VARIABLES.contains(&node.op.as_str())
                && users.into_iter().flatten().any(&writes)
        };
        let references = self.nodes.iter().filter(written).map(|node| node.name.clone());
        let variables = self.variables(reached).variables.into_iter().filter(|it| it.assigned);
        variables.map(|it| it.name).chain(references).collect()
    }

    /// Returns the names of the operations that change a table, among the nodes that `reached`
    /// marks and in the functions that these call.
    pub(crate) fn table_writers(&self, reached: &[bool]) -> Vec<String> {
        let marked = self.nodes.iter().zip(reached).filter(|(_, reached)| **reached);
        let mut open: Vec<&NodeDef> = marked.map(|(node, _)| node).collect();
        let mut seen: HashSet<&str> = HashSet::new();
        let mut writers = Vec::new();
        while let Some(node) = open.pop() {
            if TABLE_WRITERS.iter().any(|start| node.op.starts_with(start)) {
                writers.push(node.name.clone());
            }
            for name in functions_of(node) {
                if let Some(function) = self.functions.get(name).filter(|_| seen.insert(name)) {
                    open.extend(&function.node_def);
                }
            }
        }
        writers.sort();
        writers
    }

    /// Returns true if a node that `reached` marks owns a variable of version 1.
    pub(crate) fn has_reference_variables(&self, reached: &[bool]) -> bool {
        let owns = |node: &NodeDef| REFERENCE_VARIABLES.contains(&node.op.as_str());
        self.nodes.iter().zip(reached).any(|(node, reached)| *reached && owns(node))
    }
}

/// Returns the names of functions that a node may call: its operation, which may be a function, and
/// the functions in its attributes.
fn functions_of(node: &NodeDef) -> Vec<&str> {
    let mut names = vec![node.op.as_str()];
    for attr in node.attr.values() {
        match &attr.value {
            Some(Value::Func(function)) => names.push(&function.name),
            Some(Value::List(list)) => names.extend(list.func.iter().map(|it| it.name.as_str())),
            _ => {}
        }
    }
    names
}

/// Returns the type in the attribute `name`; 0, which is not a type, without it.
pub(crate) fn type_of(node: &NodeDef, name: &str) -> i32 {
    match node.attr.get(name).and_then(|attr| attr.value.as_ref()) {
        Some(Value::Type(number)) => *number,
        _ => 0,
    }
}

/// Returns the shape in the attribute `shape`.
pub(crate) fn shape_of(node: &NodeDef) -> Option<TensorShape> {
    match node.attr.get("shape").and_then(|attr| attr.value.as_ref()) {
        Some(Value::Shape(shape)) => Some(shape.clone()),
        _ => None,
    }
}

/// Returns the sizes of all axes, or `None` if one is not known.
pub(crate) fn dims(shape: Option<&TensorShape>) -> Option<Vec<usize>> {
    let shape = shape.filter(|shape| !shape.unknown_rank)?;
    shape.dim.iter().map(|dim| usize::try_from(dim.size).ok()).collect()
}

/// Returns the container and the name under which TensorFlow keeps the variable.
fn resource_name(node: &NodeDef) -> (String, String) {
    let text = |name: &str| match node.attr.get(name).and_then(|attr| attr.value.as_ref()) {
        Some(Value::S(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
        _ => String::new(),
    };
    let shared = text("shared_name");
    (text("container"), if shared.is_empty() { node.name.clone() } else { shared })
}

/// Lists the operations that must be placed where `node` is. They must exist.
fn colocated(node: &NodeDef) -> impl Iterator<Item = &str> {
    let list = match node.attr.get("_class").and_then(|attr| attr.value.as_ref()) {
        Some(Value::List(list)) => &list.s[..],
        _ => &[],
    };
    list.iter().filter_map(|class| std::str::from_utf8(class).ok()?.strip_prefix("loc:@"))
}

/// Returns node and output number of an input such as "x", "x:1" or, inside a function,
/// "x:output:1". Returns `None` for a control input.
fn tensor_of(input: &str) -> Option<(&str, usize)> {
    if input.starts_with('^') {
        return None;
    }
    let (node, rest) = input.split_once(':').unwrap_or((input, "0"));
    let index = rest.rsplit(':').next().and_then(|index| index.parse().ok());
    Some((node, index.unwrap_or(0)))
}

fn consumers(nodes: &[NodeDef], chosen: impl Fn(usize) -> bool) -> Consumers<'_> {
    let mut consumers = Consumers::new();
    for (at, node) in nodes.iter().enumerate().filter(|(at, _)| chosen(*at)) {
        for (input, name) in node.input.iter().enumerate() {
            if let Some(tensor) = tensor_of(name) {
                consumers.entry(tensor).or_default().push(Consumer { node: at, input });
            }
        }
    }
    consumers
}

/// Search that follows the handles of variables through operations and functions.
struct UseAnalysis<'a> {
    graph: &'a DecodedGraph,
    /// Uses by function and argument; `None` while an argument is being followed.
    known: RefCell<HashMap<(&'a str, usize), Option<HandleUse>>>,
}

/// Functions that an operation calls with one of its inputs.
struct Calls<'a> {
    functions: Vec<&'a str>,
    argument: usize,
}

impl<'a> UseAnalysis<'a> {
    /// Follows the tensor `start` through `nodes`. An operation that is not known to be a pure read
    /// counts as an assignment.
    fn follow(
        &self,
        nodes: &'a [NodeDef],
        consumers: &Consumers<'a>,
        start: (&'a str, usize),
        function: Option<&str>,
        depth: usize,
    ) -> FollowedHandle<'a> {
        let mut assigned = false;
        let mut gathers = HashSet::new();
        let mut open = vec![start];
        let mut seen = HashSet::from([start]);
        while let Some(tensor) = open.pop() {
            for consumer in consumers.get(&tensor).into_iter().flatten() {
                let node = &nodes[consumer.node];
                if GATHERS.contains(&node.op.as_str()) && consumer.input == 0 {
                    let function = function.map(str::to_owned);
                    gathers.insert(Gather { function, node: consumer.node });
                }
                let Some(aliases) = self.aliases(node, consumer.input, depth, &mut gathers) else {
                    assigned = true;
                    continue;
                };
                let aliases = aliases.into_iter().map(|output| (node.name.as_str(), output));
                open.extend(aliases.filter(|alias| seen.insert(*alias)));
            }
        }
        FollowedHandle { assigned, gathers, tensors: seen }
    }

    /// Returns the outputs of `node` that are the handle that it takes as `input`; `None` if it may
    /// assign to the variable.
    fn aliases(
        &self,
        node: &'a NodeDef,
        input: usize,
        depth: usize,
        gathers: &mut HashSet<Gather>,
    ) -> Option<Vec<usize>> {
        if READERS.contains(&node.op.as_str()) {
            return Some(Vec::new());
        }
        match node.op.as_str() {
            "Identity" | "Enter" | "RefEnter" | "Exit" | "NextIteration" | "Merge" => Some(vec![0]),
            "IdentityN" => Some(vec![input]),
            "Switch" if input == 0 => Some(vec![0, 1]),
            _ => {
                let calls = self.calls(node, input)?;
                let mut outputs = Vec::new();
                for function in calls.functions {
                    let used = self.function(function, calls.argument, depth + 1);
                    gathers.extend(used.gathers);
                    if used.assigned {
                        return None;
                    }
                    outputs.extend(used.returned);
                }
                // Without an iteration, the outputs of a loop are its inputs.
                if node.op.ends_with("While") {
                    outputs.push(input);
                }
                Some(outputs)
            }
        }
    }

    /// Returns the functions that `node` calls with its input, or `None` for any other operation.
    fn calls(&self, node: &'a NodeDef, input: usize) -> Option<Calls<'a>> {
        let one = |name: &str| match node.attr.get(name).and_then(|attr| attr.value.as_ref()) {
            Some(Value::Func(function)) => Some(function.name.as_str()),
            _ => None,
        };
        let calls = |names: &[&str], argument| {
            let functions = names.iter().map(|name| one(name)).collect::<Option<Vec<&str>>>()?;
            Some(Calls { functions, argument })
        };
        match node.op.as_str() {
            "PartitionedCall" | "StatefulPartitionedCall" => calls(&["f"], input),
            "If" | "StatelessIf" => calls(&["then_branch", "else_branch"], input.checked_sub(1)?),
            "While" | "StatelessWhile" => calls(&["cond", "body"], input),
            "Case" | "StatelessCase" => {
                let attr = node.attr.get("branches").and_then(|attr| attr.value.as_ref());
                let Some(Value::List(list)) = attr else { return None };
                let functions = list.func.iter().map(|function| function.name.as_str()).collect();
                Some(Calls { functions, argument: input.checked_sub(1)? })
            }
            name => {
                let (name, _) = self.graph.functions.get_key_value(name)?;
                Some(Calls { functions: vec![name], argument: input })
            }
        }
    }

    /// Returns the use of an argument inside a function.
    fn function(&self, name: &'a str, argument: usize, depth: usize) -> HandleUse {
        let unknown = HandleUse { assigned: true, ..HandleUse::default() };
        if let Some(known) = self.known.borrow().get(&(name, argument)) {
            // A function that calls itself.
            return known.clone().unwrap_or(unknown);
        }
        let Some(function) = self.graph.functions.get(name).filter(|_| depth <= FUNCTION_DEPTH_MAX)
        else {
            return unknown;
        };
        let signature = function.signature.as_ref();
        let Some(start) = signature.and_then(|it| it.input_arg.get(argument)) else {
            return unknown;
        };
        self.known.borrow_mut().insert((name, argument), None);
        let consumers = consumers(&function.node_def, |_| true);
        let followed =
            self.follow(&function.node_def, &consumers, (&start.name, 0), Some(name), depth);
        let outputs = signature.iter().flat_map(|it| &it.output_arg).enumerate();
        let is_handle = |name: &str| {
            let tensor = function.ret.get(name).and_then(|tensor| tensor_of(tensor));
            tensor.is_some_and(|tensor| followed.tensors.contains(&tensor))
        };
        let returned = outputs.filter(|(_, output)| is_handle(&output.name)).map(|(at, _)| at);
        let returned = returned.collect();
        let used = HandleUse { assigned: followed.assigned, returned, gathers: followed.gathers };
        self.known.borrow_mut().insert((name, argument), Some(used.clone()));
        used
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generated::{AttrValue, NameAttrList, OpDef};

    fn node(name: &str, op: &str, calls: Option<&str>) -> NodeDef {
        let value = calls.map(|name| Value::Func(NameAttrList { name: name.to_owned() }));
        let attr = value.map(|value| ("f".to_owned(), AttrValue { value: Some(value) }));
        NodeDef {
            name: name.to_owned(),
            op: op.to_owned(),
            attr: attr.into_iter().collect(),
            ..NodeDef::default()
        }
    }

    fn function(name: &str, nodes: &[NodeDef]) -> FunctionDef {
        let signature = OpDef { name: name.to_owned(), ..OpDef::default() };
        FunctionDef {
            signature: Some(signature),
            node_def: nodes.to_vec(),
            ..FunctionDef::default()
        }
    }

    #[test]
    fn operations_that_change_a_table_are_found_in_functions() {
        let library = FunctionLibrary {
            function: vec![
                function("put", &[node("insert", "LookupTableInsertV2", None)]),
                function("outer", &[node("inner", "put", None), node("again", "outer", None)]),
                function("get", &[node("find", "LookupTableFindV2", None)]),
            ],
        };
        let nodes = [
            node("write", "StatefulPartitionedCall", Some("outer")),
            node("read", "StatefulPartitionedCall", Some("get")),
            node("fill", "LookupTableImportV2", None),
        ];
        let graph = GraphDef {
            node: nodes.iter().map(|node| Bytes::from(node.encode_to_vec())).collect(),
            library: library.encode_to_vec().into(),
            ..GraphDef::default()
        };
        let graph = DecodedGraph::parse(graph.encode_to_vec().into()).unwrap();
        assert_eq!(graph.table_writers(&[true, true, false]), ["insert"]);
        assert!(graph.table_writers(&[false, true, false]).is_empty());
    }
}
