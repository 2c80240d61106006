//! A query against a record.

use base::Result;

use crate::described::{Described, Desk};
use crate::edge::tame;
use crate::evidence::{Evidence, PAIRS_MIN, Pair};
use crate::graph::{Vertex, View};
use crate::grow::{Pairing, Side};
use crate::overlap::{Outline, cover};
use crate::probe::Probe;
use crate::roots::{Root, pick, vote};
use crate::star::{Coordinates, Star, stars};

/// Why a record has its score.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Explanation {
    /// The score, as [`score`] gives it.
    pub score: f32,
    /// The vertices taken for the same points, in the order they were found.
    pub pairs: Vec<Pair>,
    /// What speaks for them.
    pub evidence: Evidence,
}

/// Working memory of one thread, reused from record to record: nothing is allocated once it has
/// grown.
#[derive(Debug, Default)]
pub struct Scratch {
    vertices: Vec<Vertex>,
    coordinates: Coordinates,
    stars: Vec<Star>,
    votes: Vec<u8>,
    roots: Vec<Root>,
    pairing: Pairing,
    best: Vec<Pair>,
    desk: Desk,
}

impl Scratch {
    /// Fresh working memory.
    #[must_use]
    pub fn new() -> Scratch {
        Scratch::default()
    }
}

/// How alike the probe and the record are: 0 and up, never NaN, the same on every machine and in
/// every thread.
///
/// # Errors
/// `DataLoss` where the bytes are not a record of a graph.
pub fn score(probe: &Probe, record: &[u8], scratch: &mut Scratch) -> Result<f32> {
    Ok(evidence(probe, record, scratch)?.score())
}

/// The score with what it rests on.
///
/// # Errors
/// As [`score`].
pub fn explain(probe: &Probe, record: &[u8], scratch: &mut Scratch) -> Result<Explanation> {
    let evidence = evidence(probe, record, scratch)?;
    Ok(Explanation { score: evidence.score(), pairs: scratch.best.clone(), evidence })
}

/// What speaks for the best pairing, which is left in `scratch.best`.
fn evidence(probe: &Probe, record: &[u8], scratch: &mut Scratch) -> Result<Evidence> {
    let view = View::open(record)?;
    scratch.vertices.clear();
    scratch.vertices.extend(view.vertices().map(tame));
    scratch.best.clear();
    // Where one of the two has no descriptors, what both have is compared.
    if probe.descriptors.is_empty() || view.descriptors.is_empty() {
        return Ok(scratch.geometry(probe));
    }
    let own = Described { vertices: &probe.vertices, descriptors: &probe.descriptors };
    let other = Described { vertices: &scratch.vertices, descriptors: view.descriptors };
    Ok(scratch.desk.compare(own, other, probe.options.descriptor_bits_max, &mut scratch.best))
}

impl Scratch {
    /// Compares by geometry alone.
    fn geometry(&mut self, probe: &Probe) -> Evidence {
        stars(&self.vertices, &mut self.coordinates, &mut self.stars);
        vote(&probe.cells, probe.vertices.len(), &self.stars, &mut self.votes);
        pick(&self.votes, probe.vertices.len(), &mut self.roots);
        let outline = Outline::around(&self.vertices);
        let own = Side { vertices: &probe.vertices, stars: &probe.stars };
        let other = Side { vertices: &self.vertices, stars: &self.stars };
        let mut best = Evidence::default();
        for &root in &self.roots {
            // What a pairing already holds would mostly grow into the same one again.
            if self.best.contains(&Pair { probe: root.probe, record: root.record }) {
                continue;
            }
            self.pairing.grow(root, own, other);
            let pairing = &mut self.pairing;
            if pairing.evidence.pairs < PAIRS_MIN {
                continue;
            }
            cover(
                &pairing.pairs,
                (own.vertices, &probe.outline),
                (other.vertices, &outline),
                &mut pairing.evidence,
            );
            if pairing.evidence.weight() > best.weight() {
                best = pairing.evidence;
                self.best.clear();
                self.best.extend_from_slice(&pairing.pairs);
            }
        }
        best
    }
}
