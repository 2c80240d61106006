//! Similar graphs score high in any position, others score low.

use std::collections::HashSet;

use matching::{Graph, MatchOptions, Pair, Probe, Scratch, Vertex, explain, score, synthetic};

fn similarity(probe: &Graph, other: &Graph) -> f32 {
    let mut bytes = Vec::new();
    other.encode(&mut bytes);
    score(&Probe::new(probe, MatchOptions::default()), &bytes, &mut Scratch::new()).unwrap()
}

/// Returns the graph turned by quarter turns and shifted: exact in whole pixels.
fn moved(graph: &Graph, quarters: u8, by: (i16, i16)) -> Graph {
    let turned = |vertex: &Vertex| {
        let (x, y) = (0..quarters).fold((vertex.x, vertex.y), |(x, y), _| (y, -x));
        Vertex {
            x: x + by.0,
            y: y + by.1,
            direction: vertex.direction.wrapping_add(quarters * 64),
            ..*vertex
        }
    };
    Graph { vertices: graph.vertices.iter().map(turned).collect(), ..graph.clone() }
}

/// Returns the graph turned by any angle about (150, 200) and enlarged.
fn placed(graph: &Graph, degrees: f32, scale: f32) -> Graph {
    let (sin, cos) = degrees.to_radians().sin_cos();
    let place = |vertex: &Vertex| {
        let (x, y) = (f32::from(vertex.x) - 150.0, f32::from(vertex.y) - 200.0);
        Vertex {
            x: (scale * (cos * x + sin * y) + 150.0).round() as i16,
            y: (scale * (cos * y - sin * x) + 200.0).round() as i16,
            direction: vertex
                .direction
                .wrapping_add((degrees / 360.0 * 256.0).round() as i32 as u8),
            ..*vertex
        }
    };
    Graph { vertices: graph.vertices.iter().map(place).collect(), ..graph.clone() }
}

#[test]
fn quarter_turns_and_shifts_change_nothing() {
    for seed in 0..20 {
        let finger = synthetic::fingerprint(seed);
        let other = synthetic::distorted(&finger, seed + 7);
        let straight = similarity(&finger, &other);
        for quarters in 0..4 {
            let moved = moved(&other, quarters, (37, -90));
            assert!(
                (similarity(&finger, &moved) - straight).abs() < 1e-3,
                "seed {seed}, {quarters} quarter turns"
            );
        }
    }
}

#[test]
fn any_turn_keeps_most_of_the_score() {
    let finger = synthetic::fingerprint(5);
    let itself = similarity(&finger, &finger);
    for degrees in (0..360).step_by(7) {
        let turned = similarity(&finger, &placed(&finger, degrees as f32, 1.0));
        assert!(turned > 0.8 * itself, "{degrees} degrees: {turned} of {itself}");
    }
}

#[test]
fn fingers_differ() {
    let mut wrong = 0;
    for seed in 0..40 {
        let finger = synthetic::fingerprint(seed);
        let genuine = similarity(&finger, &synthetic::distorted(&finger, seed));
        let impostor =
            similarity(&finger, &synthetic::distorted(&synthetic::fingerprint(seed + 1000), seed));
        wrong += u32::from(genuine <= impostor);
    }
    assert!(wrong <= 1, "{wrong} of 40");
}

#[test]
fn photographs_are_found_at_any_scale_and_turn() {
    let photo = synthetic::photo(1);
    let stranger = similarity(&photo, &synthetic::photo(2));
    for (degrees, scale) in [(0.0, 1.0), (33.0, 0.5), (180.0, 2.0), (271.0, 0.8)] {
        let placed = similarity(&photo, &placed(&photo, degrees, scale));
        assert!(
            placed > 20.0 * (stranger + 10.0),
            "{degrees} degrees, {scale}: {placed} against {stranger}"
        );
    }
    for seed in 0..5 {
        let distorted = similarity(&photo, &synthetic::distorted(&photo, seed));
        assert!(distorted > 5.0 * (stranger + 10.0), "seed {seed}: {distorted} against {stranger}");
    }
}

#[test]
fn descriptors_that_differ_keep_points_apart() {
    let photo = synthetic::photo(3);
    let mut other = photo.clone();
    // Half of the bits, as in two unrelated points.
    other
        .descriptors
        .iter_mut()
        .for_each(|descriptor| descriptor.iter_mut().for_each(|byte| *byte ^= 0x55));
    assert_eq!(similarity(&photo, &other), 0.0);
}

#[test]
fn scales_of_points_that_contradict_the_images_count_for_nothing() {
    let kinds = |graph: &Graph, kind: fn(usize) -> u8| {
        let vertices = graph.vertices.iter().enumerate();
        let vertices = vertices.map(|(at, vertex)| Vertex { kind: kind(at), ..*vertex });
        Graph { vertices: vertices.collect(), ..graph.clone() }
    };
    let photo = synthetic::photo(4);
    let enlarged = placed(&photo, 20.0, 2.0);
    let (small, large) = (kinds(&photo, |_| 20), kinds(&enlarged, |_| 28));
    let agreeing = similarity(&small, &large);
    assert!(
        (agreeing - similarity(&photo, &enlarged)).abs() < 1e-3,
        "scales that agree add nothing"
    );
    assert_eq!(
        similarity(&small, &kinds(&enlarged, |_| 20)),
        0.0,
        "twice as large, but of the same scale"
    );
    let mixed = similarity(&small, &kinds(&enlarged, |at| if at % 2 == 0 { 28 } else { 40 }));
    assert!((0.3..0.7).contains(&(mixed / agreeing)), "{mixed} of {agreeing}");
}

#[test]
fn the_explanation_is_of_the_score() {
    let finger = synthetic::fingerprint(9);
    let mut bytes = Vec::new();
    finger.encode(&mut bytes);
    let probe = Probe::new(&finger, MatchOptions::default());
    let explained = explain(&probe, &bytes, &mut Scratch::new()).unwrap();
    assert_eq!(explained.score, score(&probe, &bytes, &mut Scratch::new()).unwrap());
    assert_eq!(explained.evidence.pairs as usize, explained.pairs.len());
    // A finger laid over itself: each point is its own partner, and each is used once.
    assert!(explained.pairs.iter().all(|pair| pair.probe == pair.record));
    assert_eq!(explained.pairs.iter().collect::<HashSet<&Pair>>().len(), finger.vertices.len());
}

#[test]
fn threads_and_order_change_nothing() {
    let finger = synthetic::fingerprint(2);
    let probe = Probe::new(&finger, MatchOptions::default());
    let records: Vec<Vec<u8>> = (0..20)
        .map(|seed| {
            let mut bytes = Vec::new();
            synthetic::distorted(&synthetic::fingerprint(seed), seed).encode(&mut bytes);
            bytes
        })
        .collect();
    let all = |order: Vec<usize>| {
        let mut scratch = Scratch::new();
        let mut scores: Vec<(usize, f32)> = order
            .into_iter()
            .map(|at| (at, score(&probe, &records[at], &mut scratch).unwrap()))
            .collect();
        scores.sort_by_key(|&(at, _)| at);
        scores
    };
    let forward = all((0..20).collect());
    let backward =
        std::thread::scope(|scope| scope.spawn(|| all((0..20).rev().collect())).join().unwrap());
    assert_eq!(forward, backward);
}

#[test]
fn empty_and_tiny_graphs_match_nothing() {
    let finger = synthetic::fingerprint(1);
    for count in 0..2 {
        let tiny = Graph { vertices: finger.vertices[..count].to_vec(), ..Graph::default() };
        assert_eq!(
            (similarity(&tiny, &finger), similarity(&finger, &tiny), similarity(&tiny, &tiny)),
            (0.0, 0.0, 0.0)
        );
    }
}
