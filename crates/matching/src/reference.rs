//! Reference implementation of the matcher, in its simplest form. The fast matcher must give the
//! same evidence, bit for bit.
//!
//! It has no filing of edges, no vector registers, no heap and no reused memory. It sorts, and
//! loops over everything. The arithmetic (an edge, an outline, a score) is shared.

use crate::described::evidence;
use crate::edge::{Edge, angle_between, clamp_position, to_angle};
use crate::evidence::{ERROR_SCALE, Evidence, PAIRS_MIN, Pair};
use crate::graph::{Graph, VERTICES_MAX, Vertex};
use crate::overlap::{Outline, measure_overlap};
use crate::pose::{PointPair, position_tolerance, verify};
use crate::tuning::{
    ANGLE_ERROR_MAX, LENGTH_ERROR_MAX, PHOTO_ROOTS_MAX, ROOTS_MAX, TURN_ERROR_MAX, VOTES_MIN,
};

const NEIGHBOURS: usize = 9;

/// An edge and the vertex it leads to.
type To = (usize, Edge);

/// Returns the evidence of the best pairing, and its pairs.
pub(crate) fn compare(probe: &Graph, record: &Graph, bits_max: u32) -> (Evidence, Vec<Pair>) {
    let points = |graph: &Graph| -> Vec<Vertex> {
        graph.vertices.iter().take(VERTICES_MAX).copied().map(clamp_position).collect()
    };
    let own = points(probe);
    let other = points(record);
    if probe.described() && record.described() {
        return described(probe, record, &own, &other, bits_max);
    }
    geometry(&own, &other)
}

/// Compares two graphs without descriptors. Returns the evidence of the best root, with its pairs.
fn geometry(probe: &[Vertex], record: &[Vertex]) -> (Evidence, Vec<Pair>) {
    let own = edges(probe);
    let other = edges(record);
    let mut roots = Vec::new();
    for (j, theirs) in other.iter().enumerate() {
        for (i, ours) in own.iter().enumerate() {
            let votes = theirs
                .iter()
                .map(|b| ours.iter().filter(|a| similar(a.1, b.1)).count())
                .sum::<usize>();
            if votes >= usize::from(VOTES_MIN) {
                roots.push((votes, i, j));
            }
        }
    }
    roots.sort_by_key(|&(votes, ..)| std::cmp::Reverse(votes));
    roots.truncate(ROOTS_MAX);
    let outlines = (Outline::around(probe), Outline::around(record));
    let mut best = Evidence::default();
    let mut pairs = Vec::new();
    for (_, i, j) in roots {
        if pairs.contains(&pair(i, j)) {
            continue;
        }
        let (mut evidence, grown) = grow((i, j), (probe, &own), (record, &other));
        if evidence.pairs >= PAIRS_MIN {
            measure_overlap(&grown, (probe, &outlines.0), (record, &outlines.1), &mut evidence);
            if evidence.raw_score() > best.raw_score() {
                (best, pairs) = (evidence, grown);
            }
        }
    }
    (best, pairs)
}

fn pair(probe: usize, record: usize) -> Pair {
    Pair { probe: probe as u8, record: record as u8 }
}

/// Returns the edges of each vertex to its nearest neighbours.
fn edges(vertices: &[Vertex]) -> Vec<Vec<To>> {
    let square = |a: &Vertex, b: &Vertex| {
        let (dx, dy) = (i64::from(a.x) - i64::from(b.x), i64::from(a.y) - i64::from(b.y));
        (dx * dx + dy * dy).min((1 << 24) - 1)
    };
    let of = |index: usize| {
        let mut others: Vec<usize> = (0..vertices.len()).filter(|&other| other != index).collect();
        others.sort_by_key(|&other| square(&vertices[index], &vertices[other]));
        others.truncate(NEIGHBOURS);
        others.into_iter().map(|to| (to, Edge::between(vertices[index], vertices[to]))).collect()
    };
    (0..vertices.len()).map(of).collect()
}

fn similar(a: Edge, b: Edge) -> bool {
    a.length.abs_diff(b.length) <= LENGTH_ERROR_MAX
        && angle_between(a.start, b.start) <= ANGLE_ERROR_MAX
        && angle_between(a.end, b.end) <= ANGLE_ERROR_MAX
}

fn errors(a: Edge, b: Edge) -> (u32, u32) {
    let length = u32::from(a.length.abs_diff(b.length)) * ERROR_SCALE / u32::from(LENGTH_ERROR_MAX);
    (length, angle_error(a, b))
}

fn angle_error(a: Edge, b: Edge) -> u32 {
    let sum = u32::from(angle_between(a.start, b.start)) + u32::from(angle_between(a.end, b.end));
    sum * ERROR_SCALE / (2 * u32::from(ANGLE_ERROR_MAX))
}

/// Grows a pairing from `root`, as [`crate::grow`] does. Each graph comes with the edges of each
/// vertex.
fn grow(
    root: (usize, usize),
    probe: (&[Vertex], &[Vec<To>]),
    record: (&[Vertex], &[Vec<To>]),
) -> (Evidence, Vec<Pair>) {
    let turned = |i: usize, j: usize| {
        to_angle(probe.0[i].direction).wrapping_sub(to_angle(record.0[j].direction))
    };
    let about = turned(root.0, root.1);
    let mut evidence = Evidence::default();
    let mut pairs = Vec::<Pair>::new();
    // Error of the edge, pair, errors of length and angles.
    let mut waiting = vec![(0, root.0, root.1, 0, 0)];
    while let Some(first) = (0..waiting.len()).min_by_key(|&at| waiting[at]) {
        let (_, i, j, length, angle) = waiting.remove(first);
        let taken = |i: usize, j: usize| {
            pairs.iter().any(|pair| usize::from(pair.probe) == i || usize::from(pair.record) == j)
        };
        if taken(i, j) || angle_between(turned(i, j), about) > TURN_ERROR_MAX {
            continue;
        }
        pairs.push(pair(i, j));
        evidence.pairs += 1;
        evidence.kinds += u32::from(probe.0[i].kind == record.0[j].kind);
        evidence.length_error += length;
        evidence.angle_error += angle;
        for &(k, ours) in &probe.1[i] {
            for &(l, theirs) in record.1[j].iter().filter(|theirs| similar(ours, theirs.1)) {
                let (length, angle) = errors(ours, theirs);
                if pairs.contains(&pair(k, l)) {
                    evidence.supports += 1;
                    evidence.support_error += length + angle;
                } else {
                    waiting.push((length + angle, k, l, length, angle));
                }
            }
        }
    }
    (evidence, pairs)
}

/// A tentative pair, its links to other pairs with scale, and the differing bits.
struct LinkedPair {
    pair: Pair,
    bits: u32,
    links: Vec<(usize, u32)>,
}

/// Matches two photographs, as [`crate::described`] does. `own` and `other` are the vertices of
/// `probe` and `record`.
fn described(
    probe: &Graph,
    record: &Graph,
    own: &[Vertex],
    other: &[Vertex],
    bits_max: u32,
) -> (Evidence, Vec<Pair>) {
    let mut tentative = tentative(probe, record, bits_max);
    let points: Vec<Vertex> = tentative.iter().map(|t| own[usize::from(t.pair.probe)]).collect();
    let others: Vec<Vertex> = tentative.iter().map(|t| other[usize::from(t.pair.record)]).collect();
    for (from, edges) in edges(&points).into_iter().enumerate() {
        for (to, ours) in edges {
            let theirs = Edge::between(others[from], others[to]);
            let scale = u32::from(theirs.length) * 1024 / u32::from(ours.length).max(1);
            let similar = angle_between(ours.start, theirs.start) <= ANGLE_ERROR_MAX
                && angle_between(ours.end, theirs.end) <= ANGLE_ERROR_MAX
                && ours.length.min(theirs.length) >= 16
                && (256..=4096).contains(&scale);
            if similar {
                tentative[from].links.push((to, scale));
            }
        }
    }
    let mut roots = Vec::new();
    for (index, t) in tentative.iter().enumerate() {
        let votes = |scale: u32| t.links.iter().filter(|link| same_scale(link.1, scale)).count();
        // `max_by_key` returns the last of the best, and the first one is wanted.
        if let Some(best) = t.links.iter().rev().max_by_key(|link| votes(link.1)) {
            roots.push((votes(best.1), index, best.0));
        }
    }
    roots.sort_by_key(|&(votes, ..)| std::cmp::Reverse(votes));
    roots.truncate(PHOTO_ROOTS_MAX);
    let point_pairs: Vec<_> =
        points.iter().zip(&others).map(|(&probe, &record)| PointPair { probe, record }).collect();
    let mut best = Evidence { described: true, ..Evidence::default() };
    let mut pairs = Vec::new();
    for (_, root, to) in roots {
        if !pairs.contains(&tentative[root].pair) {
            let mut agreed = Vec::new();
            verify(&point_pairs, (root, to), position_tolerance(other), &mut agreed);
            let found = evidence(&point_pairs, &agreed, |at| tentative[at].bits as u16, bits_max);
            if found.raw_score() > best.raw_score() {
                best = found;
                pairs = agreed.iter().map(|it| tentative[it.index].pair).collect();
            }
        }
    }
    (best, pairs)
}

fn same_scale(a: u32, b: u32) -> bool {
    a.abs_diff(b) * 6 <= b
}

fn tentative(probe: &Graph, record: &Graph, bits_max: u32) -> Vec<LinkedPair> {
    let bits = |i: usize, j: usize| -> u32 {
        probe.descriptors[i]
            .iter()
            .zip(&record.descriptors[j])
            .map(|(a, b)| (a ^ b).count_ones())
            .sum()
    };
    let probes = probe.descriptors.len().min(256);
    let records = record.descriptors.len().min(256);
    let mut out = Vec::new();
    for j in 0..records {
        let Some(i) = (0..probes).min_by_key(|&i| bits(i, j)) else { continue };
        let back = (0..records).min_by_key(|&j| bits(i, j));
        if back == Some(j) && bits(i, j) <= bits_max {
            out.push(LinkedPair { pair: pair(i, j), bits: bits(i, j), links: Vec::new() });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{MatchOptions, Probe, Scratch, explain, synthetic};

    fn agree(probe: &Graph, record: &Graph, scratch: &mut Scratch) {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        let options = MatchOptions::default();
        let fast = explain(&Probe::new(probe, options), &bytes, scratch);
        let (evidence, pairs) = compare(probe, record, options.descriptor_bits_max);
        let fast = fast.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!((fast.evidence, fast.pairs), (evidence, pairs));
        assert_eq!(fast.score.to_bits(), evidence.score().to_bits());
    }

    fn vertex() -> impl Strategy<Value = Vertex> {
        // Crowded, so that distances tie and positions coincide; and anywhere at all.
        let place = prop_oneof![4 => 0_i16..60, 1 => any::<i16>()];
        (place.clone(), place, prop_oneof![Just(0_u8), any::<u8>()], 0_u8..3)
            .prop_map(|(x, y, direction, kind)| Vertex { x, y, direction, kind })
    }

    fn graph(described: bool) -> impl Strategy<Value = Graph> {
        // Few different descriptors, so that distances tie.
        let descriptor =
            (0_u8..4).prop_map(|low| std::array::from_fn(|at| if at == 0 { low } else { 0 }));
        let points = prop::collection::vec((vertex(), descriptor), 0..40);
        points.prop_map(move |points| {
            let (vertices, descriptors) = points.into_iter().unzip();
            Graph {
                width: 60,
                height: 60,
                vertices,
                descriptors: if described { descriptors } else { Vec::new() },
            }
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn any_graphs_get_the_same_evidence(
            (probe, record) in (any::<bool>(), any::<bool>()).prop_flat_map(|(a, b)| (graph(a), graph(b)))
        ) {
            let mut scratch = Scratch::new();
            agree(&probe, &record, &mut scratch);
            // The same memory again, now with remains of the last comparison.
            agree(&record, &probe, &mut scratch);
            agree(&probe, &probe, &mut scratch);
        }
    }

    #[test]
    fn fingers_and_photographs_get_the_same_evidence() {
        let mut scratch = Scratch::new();
        for seed in 0..12 {
            let finger = synthetic::fingerprint(seed);
            agree(&finger, &synthetic::distorted(&finger, seed + 1), &mut scratch);
            agree(&finger, &synthetic::fingerprint(seed + 100), &mut scratch);
        }
        for seed in 0..2 {
            let photo = synthetic::photo(seed);
            agree(&photo, &synthetic::distorted(&photo, seed + 1), &mut scratch);
            agree(&photo, &synthetic::photo(seed + 100), &mut scratch);
            agree(&photo, &synthetic::fingerprint(seed), &mut scratch);
        }
    }
}
