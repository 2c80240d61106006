//! Keypoints of photographs: of any image, in its own pixels, reproducible, enough to find a copy.

use std::collections::BTreeSet;

use matching::rank::StageScores;
use matching::{Graph, Probe, Scratch};
use proptest::prelude::*;
use vision::Gray;
use vision::photo::{ACCEPT, KeypointOptions, keypoints};

/// Small, so that unoptimised code is quick enough.
const OPTIONS: KeypointOptions = KeypointOptions { working: 192, vertices_max: 256 };

fn random(state: &mut u64) -> u32 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 32) as u32
}

/// Boxes over each other.
fn scene(seed: u64, width: u32, height: u32) -> Gray {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut pixels = vec![128_u8; (width * height) as usize];
    for _ in 0..120 {
        let (left, top) = (random(&mut state) % width, random(&mut state) % height);
        let (wide, high) =
            (3 + random(&mut state) % (width / 6), 3 + random(&mut state) % (height / 6));
        let tone = random(&mut state) as u8;
        for y in top..(top + high).min(height) {
            for x in left..(left + wide).min(width) {
                pixels[(y * width + x) as usize] = tone;
            }
        }
    }
    Gray { width, height, pixels }
}

fn made(width: u32, height: u32, of: impl Fn(u32, u32) -> u8) -> Gray {
    let pixels =
        (0..height).flat_map(|y| (0..width).map(move |x| (x, y))).map(|(x, y)| of(x, y)).collect();
    Gray { width, height, pixels }
}

fn at(image: &Gray, x: u32, y: u32) -> u8 {
    image.pixels[(y * image.width + x) as usize]
}

fn score(probe: &Graph, record: &Graph) -> f32 {
    let mut bytes = Vec::new();
    record.encode(&mut bytes);
    matching::score(
        &Probe::new(probe, matching::MatchOptions::default()),
        &bytes,
        &mut Scratch::new(),
    )
    .unwrap()
}

fn check(image: &Gray, graph: &Graph) {
    assert!(graph.vertices.len() <= 256 && graph.vertices.len() == graph.descriptors.len());
    assert!(graph.width > 0 && graph.height > 0);
    for vertex in &graph.vertices {
        assert!(
            (0..graph.width as i16).contains(&vertex.x),
            "{vertex:?} in {} x {}",
            image.width,
            image.height
        );
        assert!(
            (0..graph.height as i16).contains(&vertex.y),
            "{vertex:?} in {} x {}",
            image.width,
            image.height
        );
        assert!(vertex.kind > 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_pixels_have_a_graph(
        (width, height, seed, contrast) in (1_u32..90, 1_u32..90, any::<u64>(), prop_oneof![Just(1_u32), Just(256)])
    ) {
        let mut state = seed | 1;
        let pixels = (0..width * height).map(|_| (random(&mut state) % contrast) as u8).collect();
        let image = Gray { width, height, pixels };
        let graph = keypoints(&image, &OPTIONS);
        check(&image, &graph);
        prop_assert!(contrast > 1 || graph.vertices.is_empty(), "a flat image has nothing to tell");
        prop_assert_eq!(keypoints(&image, &OPTIONS), graph);
    }
}

#[test]
fn narrow_and_long_images_have_their_frame() {
    for (width, height) in [(1, 1), (15, 400), (1, 40_000), (40_000, 1), (20, 20_000)] {
        let image = made(width, height, |x, y| (x * 7 + y * 13) as u8);
        let graph = keypoints(&image, &OPTIONS);
        check(&image, &graph);
        assert!(graph.width.max(graph.height) <= 16_000);
    }
    // If there are fewer pixels than the size states, the missing ones count as black.
    let short = Gray { width: 60, height: 60, pixels: vec![200; 1000] };
    check(&short, &keypoints(&short, &OPTIONS));
}

#[test]
fn copies_are_accepted_and_others_are_not() {
    let image = scene(1, 192, 144);
    let graph = keypoints(&image, &OPTIONS);
    assert!(graph.vertices.len() > 60, "{}", graph.vertices.len());
    let copies = [
        ("itself", image.clone()),
        ("turned", made(144, 192, |x, y| at(&image, y, 143 - x))),
        ("cropped", made(140, 110, |x, y| at(&image, x + 30, y + 20))),
        ("darker", made(192, 144, |x, y| at(&image, x, y) / 2 + 20)),
        ("enlarged", made(384, 288, |x, y| at(&image, x / 2, y / 2))),
    ];
    for (what, copy) in copies {
        let found = score(&keypoints(&copy, &OPTIONS), &graph);
        assert!(StageScores { score: found, coarse: 0.0 }.accepted(ACCEPT), "{what}: {found}");
    }
    for seed in 2..6 {
        let stranger = score(&keypoints(&scene(seed, 192, 144), &OPTIONS), &graph);
        assert!(stranger < ACCEPT / 2.0, "scene {seed}: {stranger}");
    }
}

/// Returns a scene whose right half has an eighth of the contrast of the left half.
fn half_plain(seed: u64, width: u32, height: u32) -> Gray {
    let image = scene(seed, width, height);
    made(width, height, |x, y| {
        let value = at(&image, x, y);
        if x < width / 2 { value } else { 110 + value / 8 }
    })
}

/// Counts the distinct keypoints of a graph: several directions of one keypoint count once.
fn distinct(graph: &Graph) -> usize {
    let place = |vertex: &matching::Vertex| (vertex.x, vertex.y, vertex.kind);
    graph.vertices.iter().map(place).collect::<BTreeSet<_>>().len()
}

#[test]
fn second_directions_displace_no_keypoint() {
    let image = half_plain(5, 192, 144);
    let all = keypoints(&image, &OPTIONS);
    let (vertices, points) = (all.vertices.len(), distinct(&all));
    assert!(points < vertices && vertices < 256, "{points} keypoints, {vertices} vertices");
    // There is room for each keypoint once, and for no second direction.
    for vertices_max in [40, points] {
        let graph = keypoints(&image, &KeypointOptions { vertices_max, ..OPTIONS });
        assert_eq!(graph.vertices.len(), vertices_max);
        assert_eq!(distinct(&graph), vertices_max);
    }
}

#[test]
fn crop_of_a_plain_part_is_accepted() {
    let options = KeypointOptions { vertices_max: 64, ..OPTIONS };
    let image = half_plain(6, 192, 144);
    let crop = made(96, 144, |x, y| at(&image, x + 96, y));
    let found = score(&keypoints(&crop, &OPTIONS), &keypoints(&image, &options));
    assert!(found >= ACCEPT, "{found}");
}

#[test]
fn places_are_pixels_of_the_image() {
    let image = scene(3, 160, 120);
    let larger = made(640, 480, |x, y| at(&image, x / 4, y / 4));
    let (small, large) = (keypoints(&image, &OPTIONS), keypoints(&larger, &OPTIONS));
    assert_eq!((small.width, small.height, large.width, large.height), (160, 120, 640, 480));
    let alike = small.vertices.iter().filter(|vertex| {
        large.vertices.iter().any(|other| {
            let near = |a: i16, b: i16| (4 * a + 2 - b).abs() <= 8;
            // Two doublings of scale are sixteen steps.
            near(vertex.x, other.x)
                && near(vertex.y, other.y)
                && (i16::from(other.kind) - i16::from(vertex.kind) - 16).abs() <= 4
        })
    });
    let share = alike.count() as f64 / small.vertices.len() as f64;
    assert!(share > 0.6, "{share} of {} points lie where they should", small.vertices.len());
}

#[test]
fn the_graph_is_the_same_on_every_machine() {
    let mut bytes = Vec::new();
    keypoints(&scene(7, 120, 90), &KeypointOptions { working: 128, ..OPTIONS }).encode(&mut bytes);
    // FNV-1a.
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    assert_eq!((bytes.len(), hash), (2668, 0x544B_05CB_0CEB_0AA6));
}
