//! Scores of a query against a record.

use base::Result;

use crate::described::{DescribedPoints, PhotoScratch};
use crate::edge::clamp_position;
use crate::evidence::{Evidence, PAIRS_MIN, Pair};
use crate::graph::{GraphView, Vertex};
use crate::grow::{GraphSide, Pairing};
use crate::overlap::{Outline, measure_overlap};
use crate::probe::Probe;
use crate::roots::{Root, pick, vote};
use crate::star::{Coordinates, Star, stars};

/// A score and its reasons.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Explanation {
    /// The score, as [`score`] gives it.
    pub score: f32,
    /// Vertices that count as the same point, in the order in which they were found.
    pub pairs: Vec<Pair>,
    /// Evidence for these pairs.
    pub evidence: Evidence,
}

/// Working memory of one thread. Reused from record to record, it soon allocates nothing.
#[derive(Debug, Default)]
pub struct Scratch {
    vertices: Vec<Vertex>,
    coordinates: Coordinates,
    stars: Vec<Star>,
    votes: Vec<u8>,
    roots: Vec<Root>,
    pairing: Pairing,
    best: Vec<Pair>,
    photo: PhotoScratch,
}

impl Scratch {
    /// Returns empty working memory.
    #[must_use]
    pub fn new() -> Scratch {
        Scratch::default()
    }
}

/// Scores the similarity of the probe and the record. The score is at least 0, never NaN, and the
/// same on every machine and in every thread.
///
/// # Errors
/// `DataLoss` if the bytes are not a record of a graph.
///
/// # Example: another photograph of a scene, and one of another scene
/// ```
/// use millpond_matching::{Graph, MatchOptions, Probe, Scratch, score, synthetic};
///
/// let record = |graph: &Graph| {
///     let mut bytes = Vec::new();
///     graph.encode(&mut bytes);
///     bytes
/// };
/// let photo = synthetic::photo(1);
/// let same = record(&synthetic::distorted(&photo, 0));
/// let other = record(&synthetic::photo(2));
///
/// let probe = Probe::new(&photo, MatchOptions::default());
/// let mut scratch = Scratch::new();
/// let similar = score(&probe, &same, &mut scratch)?;
/// assert!(similar > 5.0 * score(&probe, &other, &mut scratch)?);
/// # Ok::<(), base::Error>(())
/// ```
pub fn score(probe: &Probe, record: &[u8], scratch: &mut Scratch) -> Result<f32> {
    Ok(evidence(probe, record, scratch)?.score())
}

/// Returns the score with its evidence.
///
/// # Errors
/// As [`score`].
pub fn explain(probe: &Probe, record: &[u8], scratch: &mut Scratch) -> Result<Explanation> {
    let evidence = evidence(probe, record, scratch)?;
    Ok(Explanation { score: evidence.score(), pairs: scratch.best.clone(), evidence })
}

/// Returns the evidence for the best pairing, which it leaves in `scratch.best`.
fn evidence(probe: &Probe, record: &[u8], scratch: &mut Scratch) -> Result<Evidence> {
    let view = GraphView::open(record)?;
    scratch.vertices.clear();
    scratch.vertices.extend(view.vertices().map(clamp_position));
    scratch.best.clear();
    // Without descriptors on one side only the geometry can be compared.
    if probe.descriptors.is_empty() || view.descriptors.is_empty() {
        return Ok(scratch.geometry(probe));
    }
    let own = DescribedPoints { vertices: &probe.vertices, descriptors: &probe.descriptors };
    let other = DescribedPoints { vertices: &scratch.vertices, descriptors: view.descriptors };
    Ok(scratch.photo.compare(own, other, probe.options.descriptor_bits_max, &mut scratch.best))
}

impl Scratch {
    /// Compares by geometry alone.
    fn geometry(&mut self, probe: &Probe) -> Evidence {
        stars(&self.vertices, &mut self.coordinates, &mut self.stars);
        vote(&probe.cells, probe.vertices.len(), &self.stars, &mut self.votes);
        pick(&self.votes, probe.vertices.len(), &mut self.roots);
        let outline = Outline::around(&self.vertices);
        let own = GraphSide { vertices: &probe.vertices, stars: &probe.stars };
        let other = GraphSide { vertices: &self.vertices, stars: &self.stars };
        let mut best = Evidence::default();
        for &root in &self.roots {
            // A root within the best pairing would mostly grow into the same one again.
            if self.best.contains(&Pair { probe: root.probe, record: root.record }) {
                continue;
            }
            self.pairing.grow(root, own, other);
            let pairing = &mut self.pairing;
            if pairing.evidence.pairs < PAIRS_MIN {
                continue;
            }
            measure_overlap(
                &pairing.pairs,
                (own.vertices, &probe.outline),
                (other.vertices, &outline),
                &mut pairing.evidence,
            );
            if pairing.evidence.raw_score() > best.raw_score() {
                best = pairing.evidence;
                self.best.clear();
                self.best.extend_from_slice(&pairing.pairs);
            }
        }
        best
    }
}
