//! Keypoint graphs and the similarity of two graphs.
//!
//! A graph has up to 256 points of an image. A point has a position, a direction, a type and, in
//! photographs, a 32-byte binary descriptor. Edges join each point to its neighbours. An edge has a
//! length and the angles of its two ends against it, which do not change when the image is moved
//! or turned.
//!
//! Matching finds edges that both graphs have and lets them vote for pairs of points, the roots. It
//! grows a pairing from each root along further edges. Photographs are rigid, so for them it takes
//! all pairs that agree with the pose of the root's edge. The score says how unlikely the best
//! pairing is as a coincidence. The idea comes from the published description of `SourceAFIS`. The
//! voting, the growth, the score and the extension to descriptors and scale are our own.
//!
//! This crate owns the graph, its record in a page of a segment, and ISO/IEC 19794-2 templates. It
//! also owns the matcher, the index of fingerprints, and synthetic graphs for tests and benches. It
//! does no I/O and starts no thread. Scores depend on the two graphs alone. Lengths and scores are
//! single-precision floats in a fixed order of operations, so all machines that round as IEEE 754
//! requires give the same values.
//!
//! # Modules
//! * Data: `graph` is a record, `edge` and `star` its edges, `probe` the query.
//! * One score: `matcher` is the entry; graphs without descriptors take `roots`, `grow` and
//!   `overlap`, photographs `described` and `pose`; `evidence` is the score, `tuning` has the
//!   constants.
//! * Order of results: `rank`.
//! * Fingerprints: `index` finds candidates, `iso` and `template` read and write templates.
//! * Tests and benches: `synthetic`.

mod described;
mod edge;
mod evidence;
mod graph;
mod grow;
pub mod index;
pub mod iso;
mod matcher;
mod overlap;
mod pose;
mod probe;
pub mod rank;
#[cfg(test)]
mod reference;
mod roots;
mod star;
pub mod synthetic;
pub mod template;
mod tuning;

pub use evidence::{Evidence, Pair};
pub use graph::{DESCRIPTOR_BYTES, Graph, VERTICES_MAX, Vertex};
pub use matcher::{Explanation, Scratch, explain, score};
pub use probe::{MatchOptions, Probe};
