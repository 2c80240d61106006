//! Field numbers and element types of ONNX's schema that the publisher reads or writes.

use base::DType;

/// Maximum nesting of messages; protobuf's own limit.
pub(super) const DEPTH_MAX: usize = 100;
/// The messages that can hold a tensor.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum MessageKind {
    Model,
    MainGraph,
    MainNode,
    MainTensor,
    Graph,
    Node,
    Attribute,
    Tensor,
    Sparse,
    Function,
    Training,
}

impl MessageKind {
    /// Returns the kind of field `number` if it can hold a tensor.
    pub(super) fn child(self, number: u32) -> Option<MessageKind> {
        Some(match (self, number) {
            (MessageKind::Model, model::GRAPH) => MessageKind::MainGraph,
            (MessageKind::Model, model::TRAINING_INFO) => MessageKind::Training,
            (MessageKind::Model, model::FUNCTIONS) => MessageKind::Function,
            (MessageKind::MainGraph, graph::NODE) => MessageKind::MainNode,
            (MessageKind::MainGraph, graph::INITIALIZER) => MessageKind::MainTensor,
            (MessageKind::MainGraph | MessageKind::Graph, graph::SPARSE_INITIALIZER) => {
                MessageKind::Sparse
            }
            (MessageKind::Graph, graph::NODE) => MessageKind::Node,
            (MessageKind::Graph, graph::INITIALIZER) => MessageKind::Tensor,
            (MessageKind::MainNode | MessageKind::Node, node::ATTRIBUTE) => MessageKind::Attribute,
            (MessageKind::Attribute, attribute::T | attribute::TENSORS) => MessageKind::Tensor,
            (MessageKind::Attribute, attribute::G | attribute::GRAPHS) => MessageKind::Graph,
            (MessageKind::Attribute, attribute::SPARSE_TENSOR | attribute::SPARSE_TENSORS) => {
                MessageKind::Sparse
            }
            (MessageKind::Sparse, sparse::VALUES | sparse::INDICES) => MessageKind::Tensor,
            (MessageKind::Function, function::NODE) => MessageKind::Node,
            (MessageKind::Function, function::ATTRIBUTE_PROTO) => MessageKind::Attribute,
            (MessageKind::Training, training::INITIALIZATION | training::ALGORITHM) => {
                MessageKind::Graph
            }
            _ => return None,
        })
    }
}

/// `ModelProto`.
pub(super) mod model {
    pub(crate) const IR_VERSION: u32 = 1;
    pub(crate) const PRODUCER_NAME: u32 = 2;
    pub(crate) const PRODUCER_VERSION: u32 = 3;
    pub(crate) const GRAPH: u32 = 7;
    pub(crate) const OPSET_IMPORT: u32 = 8;
    pub(crate) const METADATA: u32 = 14;
    pub(crate) const TRAINING_INFO: u32 = 20;
    pub(crate) const FUNCTIONS: u32 = 25;
}

/// `GraphProto`.
pub(super) mod graph {
    pub(crate) const NODE: u32 = 1;
    pub(crate) const NAME: u32 = 2;
    pub(crate) const INITIALIZER: u32 = 5;
    pub(crate) const INPUT: u32 = 11;
    pub(crate) const OUTPUT: u32 = 12;
    pub(crate) const SPARSE_INITIALIZER: u32 = 15;
}

/// `NodeProto`.
pub(super) mod node {
    pub(crate) const INPUT: u32 = 1;
    pub(crate) const OUTPUT: u32 = 2;
    pub(crate) const NAME: u32 = 3;
    pub(crate) const OP_TYPE: u32 = 4;
    pub(crate) const ATTRIBUTE: u32 = 5;
    pub(crate) const DOMAIN: u32 = 7;
}

/// `AttributeProto`.
pub(super) mod attribute {
    pub(crate) const NAME: u32 = 1;
    pub(crate) const I: u32 = 3;
    pub(crate) const T: u32 = 5;
    pub(crate) const G: u32 = 6;
    pub(crate) const FLOATS: u32 = 7;
    pub(crate) const INTS: u32 = 8;
    pub(crate) const STRINGS: u32 = 9;
    pub(crate) const TENSORS: u32 = 10;
    pub(crate) const GRAPHS: u32 = 11;
    pub(crate) const TYPE: u32 = 20;
    pub(crate) const REF_ATTR_NAME: u32 = 21;
    pub(crate) const SPARSE_TENSOR: u32 = 22;
    pub(crate) const SPARSE_TENSORS: u32 = 23;
}

/// `AttributeProto.AttributeType`.
pub(super) mod attribute_type {
    pub(crate) const INT: i64 = 2;
    pub(crate) const FLOATS: i64 = 6;
    pub(crate) const INTS: i64 = 7;
    pub(crate) const STRINGS: i64 = 8;
}

/// `TensorProto`.
pub(super) mod tensor {
    pub(crate) const DIMS: u32 = 1;
    pub(crate) const DATA_TYPE: u32 = 2;
    pub(crate) const SEGMENT: u32 = 3;
    pub(crate) const FLOAT_DATA: u32 = 4;
    pub(crate) const INT32_DATA: u32 = 5;
    pub(crate) const STRING_DATA: u32 = 6;
    pub(crate) const INT64_DATA: u32 = 7;
    pub(crate) const NAME: u32 = 8;
    pub(crate) const RAW_DATA: u32 = 9;
    pub(crate) const DOUBLE_DATA: u32 = 10;
    pub(crate) const UINT64_DATA: u32 = 11;
    pub(crate) const EXTERNAL_DATA: u32 = 13;
    pub(crate) const DATA_LOCATION: u32 = 14;
}

/// `SparseTensorProto`.
pub(super) mod sparse {
    pub(crate) const VALUES: u32 = 1;
    pub(crate) const INDICES: u32 = 2;
}

/// `FunctionProto`.
pub(super) mod function {
    pub(crate) const NODE: u32 = 7;
    pub(crate) const ATTRIBUTE_PROTO: u32 = 11;
}

/// `TrainingInfoProto`.
pub(super) mod training {
    pub(crate) const INITIALIZATION: u32 = 1;
    pub(crate) const ALGORITHM: u32 = 2;
}

/// `TensorProto.DataLocation.EXTERNAL`.
pub(super) const LOCATION_EXTERNAL: i64 = 1;

/// Millpond's types with their `TensorProto.DataType`.
const CODES: [(DType, i64); 22] = [
    (DType::F32, 1),
    (DType::U8, 2),
    (DType::I8, 3),
    (DType::U16, 4),
    (DType::I16, 5),
    (DType::I32, 6),
    (DType::I64, 7),
    (DType::String, 8),
    (DType::Bool, 9),
    (DType::F16, 10),
    (DType::F64, 11),
    (DType::U32, 12),
    (DType::U64, 13),
    (DType::Complex64, 14),
    (DType::Complex128, 15),
    (DType::BF16, 16),
    (DType::F8E4M3FN, 17),
    (DType::F8E4M3FNUZ, 18),
    (DType::F8E5M2, 19),
    (DType::F8E5M2FNUZ, 20),
    (DType::U4, 21),
    (DType::I4, 22),
];

/// Returns ONNX's number for `dtype`; 0 (undefined) for a type that ONNX does not have.
pub(super) fn code(dtype: DType) -> i64 {
    CODES.iter().find(|(known, _)| *known == dtype).map_or(0, |(_, code)| *code)
}

/// Returns Millpond's type for ONNX's number `code`.
pub(super) fn dtype(code: i64) -> Option<DType> {
    CODES.iter().find(|(_, known)| *known == code).map(|(dtype, _)| *dtype)
}

/// Returns the bits of an element of ONNX type `code`. Includes types that Millpond does not have
/// and therefore leaves in the graph: FLOAT4E2M1, FLOAT8E8M0, UINT2, INT2, FLOAT6E2M3, FLOAT6E3M2.
pub(super) fn bits(code: i64) -> Option<u64> {
    match code {
        23 => Some(4),
        24 => Some(8),
        25 | 26 => Some(2),
        27 | 28 => Some(6),
        _ => Some(dtype(code)?.bits()? as u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_has_its_number() {
        for known in DType::ALL {
            assert_eq!(dtype(code(known)), Some(known));
            assert_eq!(bits(code(known)), known.bits().map(|bits| bits as u64));
        }
        assert_eq!(dtype(0), None);
        assert_eq!(bits(8), None);
    }
}
