//! Rewrites a graph so that its parameters can be bound. Variables of version 1 and large constants
//! become resource variables. Lookups in a variable become lookups in its value.
//!
//! Only rewritten nodes are encoded again. All others keep their bytes, with every field.

use std::collections::{BTreeMap, HashMap, HashSet};

use base::{DType, Result};
use bytes::Bytes;
use prost::Message;

use crate::element;
use crate::generated::attr_value::Value;
use crate::generated::{
    AttrValue, GraphDef, NodeDef, RawFunction, RawLibrary, Tensor, TensorShape,
};
use crate::graph::{DecodedGraph, Gather, REFERENCE_VARIABLES, VARIABLE, dims, shape_of, type_of};
use crate::model_file::operation_of;

/// Fewest bytes of a constant that becomes a variable. Others stay in the graph.
pub(crate) const CONSTANT_MIN: usize = 1 << 20;
/// Ending of the names of added handles.
const HANDLE: &str = "/millpond_handle";
/// Ending of the names of added reads.
const READ: &str = "/millpond_read";
/// Ending of the names of added axes.
const AXIS: &str = "/millpond_axis";
/// Operations that pass a tensor into the frame of a loop, in control flow of version 1.
const FRAME_ENTRIES: [&str; 2] = ["Enter", "RefEnter"];
/// Operations whose output may be the memory of an input. If that is a variable of version 1, an
/// assignment changes the output, too.
const VIEWS: [&str; 38] = [
    "BatchToSpaceND",
    "Bitcast",
    "BroadcastTo",
    "Case",
    "Cast",
    "CheckNumerics",
    "ConcatV2",
    "EnsureShape",
    "Enter",
    "Exit",
    "ExpandDims",
    "Identity",
    "IdentityN",
    "If",
    "Merge",
    "NextIteration",
    "Pack",
    "PartitionedCall",
    "PlaceholderWithDefault",
    "PreventGradient",
    "Print",
    "Reshape",
    "Slice",
    "Snapshot",
    "Split",
    "SplitV",
    "Squeeze",
    "StatefulPartitionedCall",
    "StatelessCase",
    "StatelessIf",
    "StatelessWhile",
    "StopGradient",
    "StridedSlice",
    "Switch",
    "Tile",
    "Transpose",
    "Unpack",
    "While",
];
/// TensorFlow's number of 32-bit integers.
const INT32: i32 = 3;

/// A parameter whose value is in the graph.
pub(crate) struct GraphConstant {
    /// Name of the variable that it becomes.
    pub(crate) name: String,
    pub(crate) dtype: DType,
    pub(crate) dims: Vec<usize>,
    pub(crate) bytes: Bytes,
}

/// Changes to a graph, by node.
#[derive(Default)]
pub(crate) struct GraphChanges {
    /// New nodes that replace a node of the graph.
    replaced: HashMap<usize, Vec<NodeDef>>,
    pub(crate) constants: Vec<GraphConstant>,
    /// New variables by the tensor that has their value in the old graph.
    pub(crate) references: Vec<(String, String)>,
}

fn attr(value: Value) -> AttrValue {
    AttrValue { value: Some(value) }
}

fn node(
    name: String,
    op: &str,
    input: Vec<String>,
    device: &str,
    attrs: &[(&str, Value)],
) -> NodeDef {
    let attr =
        attrs.iter().map(|(name, value)| ((*name).to_owned(), attr(value.clone()))).collect();
    NodeDef { name, op: op.to_owned(), input, device: device.to_owned(), attr }
}

/// Returns a variable and a read of it that has the name of `old`.
fn variable_and_read(old: &NodeDef, dtype: i32, shape: TensorShape) -> Vec<NodeDef> {
    let handle = format!("{}{HANDLE}", old.name);
    let controls = old.input.iter().filter(|input| input.starts_with('^')).cloned();
    let read = std::iter::once(handle.clone()).chain(controls).collect();
    let shared = Value::S(Bytes::copy_from_slice(handle.as_bytes()));
    let variable =
        [("dtype", Value::Type(dtype)), ("shape", Value::Shape(shape)), ("shared_name", shared)];
    vec![
        node(handle, VARIABLE, Vec::new(), &old.device, &variable),
        node(
            old.name.clone(),
            "ReadVariableOp",
            read,
            &old.device,
            &[("dtype", Value::Type(dtype))],
        ),
    ]
}

impl GraphChanges {
    /// Turns large constants among the nodes that `reached` marks into variables. Leaves out those
    /// in `kept`, which a run may feed, and those in loops. The variable would be outside of the
    /// loop, and TensorFlow refuses a node whose inputs are in different frames.
    pub(crate) fn constants(
        &mut self,
        graph: &DecodedGraph,
        reached: &[bool],
        kept: &HashSet<&str>,
    ) {
        let has_loops = graph.nodes.iter().any(|it| FRAME_ENTRIES.contains(&it.op.as_str()));
        let chosen = |at: &usize| {
            let node = &graph.nodes[*at];
            // A constant in a loop has a control input from there.
            let in_loop = has_loops && !node.input.is_empty();
            reached[*at] && node.op == "Const" && !in_loop && !kept.contains(node.name.as_str())
        };
        for at in (0..graph.nodes.len()).filter(chosen) {
            let old = &graph.nodes[at];
            let Some(Value::Tensor(tensor)) =
                old.attr.get("value").and_then(|it| it.value.as_ref())
            else {
                continue;
            };
            let Some(constant) = large(tensor) else { continue };
            let shape = tensor.tensor_shape.clone().unwrap_or_default();
            let nodes = variable_and_read(old, tensor.dtype, shape);
            self.constants.push(GraphConstant { name: nodes[0].name.clone(), ..constant });
            self.replaced.insert(at, nodes);
        }
    }

    /// Turns variables of version 1 into resource variables. A variable is turned if only
    /// assignments and operations that take its value use it, and if none of these runs after an
    /// assignment. `takes_reference` is true for an operation that takes a reference. `fetched` has
    /// the names of the operations that runs fetch. Returns the names of the variables that stay.
    pub(crate) fn convert_references(
        &mut self,
        graph: &DecodedGraph,
        reached: &[bool],
        fetched: &HashSet<&str>,
        takes_reference: impl Fn(&str) -> bool,
    ) -> Vec<String> {
        let mut users: HashMap<&str, Vec<usize>> = HashMap::new();
        for (at, node) in graph.nodes.iter().enumerate().filter(|(at, _)| reached[*at]) {
            for input in &node.input {
                users.entry(input.strip_suffix(":0").unwrap_or(input)).or_default().push(at);
            }
        }
        let used = |name: &str| users.get(name).into_iter().flatten().copied();
        let followers = followers(graph, reached);
        let mut stay = Vec::new();
        for at in (0..graph.nodes.len()).filter(|at| reached[*at]) {
            let old = &graph.nodes[at];
            if !REFERENCE_VARIABLES.contains(&old.op.as_str()) {
                continue;
            }
            // The result of an assignment is a reference, too: no other operation may use it.
            let only_assigns = |node: &NodeDef| {
                assigns_to(node, &old.name)
                    && used(&node.name).next().is_none()
                    && !fetched.contains(node.name.as_str())
            };
            let simple = used(&old.name)
                .map(|user| &graph.nodes[user])
                .all(|user| only_assigns(user) || !takes_reference(&user.op));
            // Such a reader takes the new value. The read that replaces the variable has no order
            // to the assignment, and would give it the old value.
            let assigns: Vec<usize> =
                used(&old.name).filter(|user| graph.nodes[*user].op == "Assign").collect();
            let simple = simple && !read_after(graph, &followers, at, assigns);
            let fixed = element::from_tensorflow(type_of(old, "dtype"))
                .is_some_and(|it| it != DType::String);
            let shape = shape_of(old).filter(|shape| dims(Some(shape)).is_some());
            let Some(shape) = shape.filter(|_| simple && fixed) else {
                stay.push(old.name.clone());
                continue;
            };
            let nodes = variable_and_read(old, type_of(old, "dtype"), shape);
            let handle = nodes[0].name.clone();
            self.references.push((handle.clone(), format!("{}:0", old.name)));
            self.replaced.insert(at, nodes);
            let assignments: HashSet<usize> =
                used(&old.name).filter(|user| graph.nodes[*user].op == "Assign").collect();
            for user in assignments {
                let node = assignment(&graph.nodes[user], &handle);
                self.replaced.insert(user, vec![node]);
            }
        }
        stay
    }

    /// Encodes the nodes that `reached` marks, with the changes. Encodes the functions with
    /// replaced lookups.
    ///
    /// # Errors
    /// `DataLoss` if the functions are damaged.
    pub(crate) fn encode(
        mut self,
        graph: &DecodedGraph,
        reached: &[bool],
        gathers: &HashSet<Gather>,
    ) -> Result<GraphDef> {
        let mut nodes = Vec::with_capacity(graph.nodes.len());
        for at in (0..graph.nodes.len()).filter(|at| reached[*at]) {
            if gathers.contains(&Gather { function: None, node: at }) {
                self.replaced.insert(at, lookup(&graph.nodes[at], LookupSite::Graph));
            }
            match self.replaced.remove(&at) {
                Some(new) => nodes.extend(new.iter().map(|node| Bytes::from(node.encode_to_vec()))),
                None => nodes.push(graph.bytes[at].clone()),
            }
        }
        let library = functions(graph, gathers)?;
        Ok(GraphDef { node: nodes, library, ..graph.rest.clone() })
    }
}

/// Returns the value of a constant if it is large and its bytes are all there.
fn large(tensor: &Tensor) -> Option<GraphConstant> {
    let dtype = element::from_tensorflow(tensor.dtype)?;
    let dims = dims(tensor.tensor_shape.as_ref())?;
    let elements = dims.iter().try_fold(1usize, |product, &dim| product.checked_mul(dim))?;
    let bytes = tensor.tensor_content.clone();
    let whole = dtype.bytes_for(elements) == Some(bytes.len()) && bytes.len() >= CONSTANT_MIN;
    whole.then(|| GraphConstant { name: String::new(), dtype, dims, bytes })
}

/// Returns the positions of the nodes that have each operation as an input. They take its value or
/// wait for it. Only nodes that `reached` marks count.
fn followers<'a>(graph: &'a DecodedGraph, reached: &[bool]) -> HashMap<&'a str, Vec<usize>> {
    let mut followers: HashMap<&str, Vec<usize>> = HashMap::new();
    for (at, node) in graph.nodes.iter().enumerate().filter(|(at, _)| reached[*at]) {
        for input in &node.input {
            followers.entry(operation_of(input)).or_default().push(at);
        }
    }
    followers
}

/// Returns true if an operation must take the value of `variable` after a node of `writers`, which
/// assign to it.
fn read_after(
    graph: &DecodedGraph,
    followers: &HashMap<&str, Vec<usize>>,
    variable: usize,
    writers: Vec<usize>,
) -> bool {
    if writers.is_empty() {
        return false;
    }
    let mut readers: HashSet<usize> = HashSet::new();
    let mut open = vec![variable];
    while let Some(at) = open.pop() {
        let name = graph.nodes[at].name.as_str();
        for &next in followers.get(name).into_iter().flatten() {
            let node = &graph.nodes[next];
            let takes = |input: &String| !input.starts_with('^') && operation_of(input) == name;
            if writers.contains(&next) || !node.input.iter().any(takes) || !readers.insert(next) {
                continue;
            }
            if VIEWS.contains(&node.op.as_str()) {
                open.push(next);
            }
        }
    }
    any_after(graph, followers, writers, &readers)
}

/// Returns true if a node of `readers` must run after a node of `writers`. It needs its value or
/// waits for it, directly or through other nodes.
fn any_after(
    graph: &DecodedGraph,
    followers: &HashMap<&str, Vec<usize>>,
    writers: Vec<usize>,
    readers: &HashSet<usize>,
) -> bool {
    let mut seen: HashSet<usize> = writers.iter().copied().collect();
    let mut open = writers;
    while let Some(at) = open.pop() {
        for &next in followers.get(graph.nodes[at].name.as_str()).into_iter().flatten() {
            if readers.contains(&next) {
                return true;
            }
            if seen.insert(next) {
                open.push(next);
            }
        }
    }
    false
}

/// Returns true if `node` assigns to the variable `name`, and does not also take it as a value.
fn assigns_to(node: &NodeDef, name: &str) -> bool {
    let is_variable = |input: &String| input.split(':').next() == Some(name);
    node.op == "Assign"
        && node.input.first().is_some_and(is_variable)
        && !node.input.iter().skip(1).any(is_variable)
}

/// Returns an assignment to a resource variable that replaces an assignment to a reference.
fn assignment(old: &NodeDef, handle: &str) -> NodeDef {
    let rest = old.input.iter().skip(1).cloned();
    let input = std::iter::once(handle.to_owned()).chain(rest).collect();
    let dtype = [("dtype", Value::Type(type_of(old, "T")))];
    node(old.name.clone(), "AssignVariableOp", input, &old.device, &dtype)
}

/// Place of a node, on which the names of its inputs depend.
#[derive(Clone, Copy)]
enum LookupSite {
    /// The graph of the model.
    Graph,
    /// A function of its library.
    Function,
}

/// Returns a lookup in a variable's value that replaces a lookup in the variable. TensorFlow copies
/// a variable over memory that is not its own at the first lookup.
fn lookup(old: &NodeDef, site: LookupSite) -> Vec<NodeDef> {
    let output = |node: &str, output: &str| match site {
        LookupSite::Graph => node.to_owned(),
        LookupSite::Function => format!("{node}:{output}:0"),
    };
    let controls = old.input.iter().filter(|input| input.starts_with('^'));
    let read = format!("{}{READ}", old.name);
    let axis = format!("{}{AXIS}", old.name);
    let dtype = type_of(old, "dtype");
    let indices = type_of(old, "Tindices");
    let handle = old.input.first().cloned().into_iter().chain(controls.clone().cloned()).collect();
    let attrs = [("dtype", Value::Type(dtype))];
    let mut nodes = vec![node(read.clone(), "ReadVariableOp", handle, &old.device, &attrs)];
    let mut inputs = vec![output(&read, "value")];
    inputs.extend(old.input.get(1).cloned());
    let mut attrs = vec![("Tparams", Value::Type(dtype)), ("Tindices", Value::Type(indices))];
    let op = match old.op.as_str() {
        "ResourceGatherNd" => "GatherNd",
        _ => {
            let batch_dims = match old.attr.get("batch_dims").and_then(|it| it.value.as_ref()) {
                Some(Value::I(number)) => *number,
                _ => 0,
            };
            let value = Tensor {
                dtype: INT32,
                tensor_shape: Some(TensorShape::default()),
                tensor_content: Bytes::copy_from_slice(&(batch_dims as i32).to_le_bytes()),
            };
            let constant = [("dtype", Value::Type(INT32)), ("value", Value::Tensor(value))];
            // In a loop, the axis must be in the same frame as the value.
            let after_read = vec![format!("^{read}")];
            nodes.push(node(axis.clone(), "Const", after_read, &old.device, &constant));
            inputs.push(output(&axis, "output"));
            attrs.push(("Taxis", Value::Type(INT32)));
            attrs.push(("batch_dims", Value::I(batch_dims)));
            "GatherV2"
        }
    };
    inputs.extend(controls.cloned());
    nodes.push(node(old.name.clone(), op, inputs, &old.device, &attrs));
    nodes
}

/// Returns the functions with lookups replaced.
fn functions(graph: &DecodedGraph, gathers: &HashSet<Gather>) -> Result<Bytes> {
    let mut changed: BTreeMap<&str, HashSet<usize>> = BTreeMap::new();
    for gather in gathers {
        if let Some(function) = &gather.function {
            changed.entry(function).or_default().insert(gather.node);
        }
    }
    if changed.is_empty() {
        return Ok(graph.rest.library.clone());
    }
    let damaged =
        |e: prost::DecodeError| base::Error::data_loss("a function is damaged").caused_by(e);
    let mut library = RawLibrary::decode(graph.rest.library.clone()).map_err(damaged)?;
    for bytes in &mut library.function {
        let mut function = RawFunction::decode(bytes.clone()).map_err(damaged)?;
        let name = function.name().map_err(damaged)?;
        let Some(chosen) = changed.get(name.as_str()) else { continue };
        let nodes = std::mem::take(&mut function.node_def);
        for (at, node) in nodes.into_iter().enumerate() {
            if chosen.contains(&at) {
                let old = NodeDef::decode(node).map_err(damaged)?;
                let new = lookup(&old, LookupSite::Function);
                function.node_def.extend(new.iter().map(|it| Bytes::from(it.encode_to_vec())));
            } else {
                function.node_def.push(node);
            }
        }
        *bytes = Bytes::from(function.encode_to_vec());
    }
    Ok(Bytes::from(library.encode_to_vec()))
}

impl RawFunction {
    fn name(&self) -> Result<String, prost::DecodeError> {
        crate::generated::OpDef::decode(self.signature.clone()).map(|signature| signature.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generated::tensor_shape::Dim;

    const FLOAT: i32 = 1;

    fn named(name: &str, op: &str, input: &[&str], attrs: &[(&str, Value)]) -> NodeDef {
        let input = input.iter().map(|&name| name.to_owned()).collect();
        node(name.to_owned(), op, input, "", attrs)
    }

    /// TensorFlow refuses a node whose inputs are in different frames.
    #[test]
    fn nodes_in_a_loop_stay_in_its_frame() {
        let dim = Dim { size: (CONSTANT_MIN / 4) as i64, ..Dim::default() };
        let value = Value::Tensor(Tensor {
            dtype: FLOAT,
            tensor_shape: Some(TensorShape { dim: vec![dim], unknown_rank: false }),
            tensor_content: Bytes::from(vec![0; CONSTANT_MIN]),
        });
        let dtype = ("dtype", Value::Type(FLOAT));
        let large = [dtype.clone(), ("value", value)];
        let nodes = [
            named("table", VARIABLE, &[], std::slice::from_ref(&dtype)),
            named("enter", "Enter", &["table"], &[]),
            named("outside", "Const", &[], &large),
            named("inside", "Const", &["^enter"], &large),
            named("ids", "Placeholder", &[], &[]),
            named(
                "gather",
                "ResourceGather",
                &["enter", "ids"],
                &[dtype, ("Tindices", Value::Type(INT32))],
            ),
        ];
        let node = nodes.iter().map(|node| Bytes::from(node.encode_to_vec())).collect();
        let graph = GraphDef { node, ..GraphDef::default() };
        let graph = DecodedGraph::parse(graph.encode_to_vec().into()).unwrap();
        let all = vec![true; graph.nodes.len()];
        let mut changes = GraphChanges::default();
        changes.constants(&graph, &all, &HashSet::new());
        let names: Vec<&str> = changes.constants.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["outside/millpond_handle"]);
        let gathers = graph.variables(&all).gathers;
        let encoded = changes.encode(&graph, &all, &gathers).unwrap();
        let axis = encoded
            .node
            .iter()
            .map(|node| NodeDef::decode(node.clone()).unwrap())
            .find(|node| node.name == "gather/millpond_axis");
        assert_eq!(axis.unwrap().input, ["^gather/millpond_read"]);
    }

    /// The old variable has the new value for an operation that waits for the assignment. A read
    /// that takes the place of the variable would run before it.
    #[test]
    fn a_variable_that_is_read_after_an_assignment_stays() {
        let staying = |value: &str, after: &[&str]| {
            let dtype = ("dtype", Value::Type(FLOAT));
            let shape = ("shape", Value::Shape(TensorShape::default()));
            let waits: Vec<&str> = std::iter::once(value).chain(after.iter().copied()).collect();
            let nodes = [
                named("total", "VariableV2", &[], &[dtype, shape]),
                named("total/read", "Identity", &["total"], &[]),
                named("x", "Placeholder", &[], &[]),
                named("sum", "AddV2", &["total", "x"], &[]),
                named("assign", "Assign", &["total", "sum"], &[("T", Value::Type(FLOAT))]),
                named("done", "NoOp", &["^assign"], &[]),
                named("y", "Identity", &waits, &[]),
            ];
            let node = nodes.iter().map(|node| Bytes::from(node.encode_to_vec())).collect();
            let graph = GraphDef { node, ..GraphDef::default() };
            let graph = DecodedGraph::parse(graph.encode_to_vec().into()).unwrap();
            let all = vec![true; graph.nodes.len()];
            let mut changes = GraphChanges::default();
            changes.convert_references(&graph, &all, &HashSet::new(), |op| op == "Assign")
        };
        assert_eq!(staying("total", &["^assign"]), ["total"]);
        assert_eq!(staying("total", &["^done"]), ["total"]);
        // TensorFlow's read of a variable is its memory.
        assert_eq!(staying("total/read", &["^assign"]), ["total"]);
        assert!(staying("total", &[]).is_empty());
        assert!(staying("total/read", &[]).is_empty());
        assert!(staying("sum", &["^assign"]).is_empty(), "the assigned value is no read");
    }
}
