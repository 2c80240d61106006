//! Keypoint graphs and how alike two of them are.
//!
//! A graph is up to 256 points of an image, each with a position, a direction, a type and, for
//! photographs, a 32-byte binary descriptor. Its edges join each point to near ones; an edge has a
//! length and the angles of its two ends against it, which stay the same when the image is moved or
//! turned. Matching looks for edges that both graphs have, lets them vote for pairs of points to
//! start from, grows a pairing from each such root along further edges (photographs, which are
//! rigid: takes all that agree with the pose that the root's edge gives), and scores how unlikely
//! the best pairing is as a coincidence. The idea is that of the published description of
//! `SourceAFIS`; the voting, the growth, the score and the extension to descriptors and scale are
//! our own.
//!
//! This crate owns the graph, its record (what lies in a page of a segment), ISO/IEC 19794-2
//! templates, the matcher and graphs made up for tests and benches. It does no I/O, starts no
//! thread, and its scores depend on nothing but the two graphs. Lengths and scores are
//! single-precision floats in a fixed order of operations, so they are the same on every machine
//! that rounds as IEEE 754 says.

mod described;
mod edge;
mod evidence;
mod graph;
mod grow;
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
mod tuning;

pub use evidence::{Evidence, Pair};
pub use graph::{DESCRIPTOR_BYTES, Graph, VERTICES_MAX, Vertex};
pub use matcher::{Explanation, Scratch, explain, score};
pub use probe::{MatchOptions, Probe};
