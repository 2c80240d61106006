//! Vectors of queries.

use search::points::PointId;

/// A vector, or a point of the collection that has it.
#[derive(Clone, Debug, PartialEq)]
pub enum VectorInput {
    /// The values.
    Vector(Vec<f32>),
    /// The point's id. The point itself is not a hit.
    Id(PointId),
}
