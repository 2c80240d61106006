//! Minutiae of synthetic images with known positions.

use std::f32::consts::TAU;

use matching::Vertex;
use proptest::prelude::*;
use vision::Gray;
use vision::fingerprint::{Extraction, MinutiaeOptions, accept_among, minutiae};

/// Pixels from one ridge to the next at 500 dots per inch.
const RIDGE: f32 = 9.0;

/// Returns level ridges with a dislocation at each place: there the phase winds once around, so
/// that a ridge ends or forks (Larkin and Fletcher, "A coherent framework for fingerprint
/// analysis", 2007). `scale` is that of 500 dots per inch.
fn ridges(side: u32, scale: f32, places: &[(f32, f32, f32)]) -> Gray {
    let brightness = |x: f32, y: f32| {
        let wound: f32 = places.iter().map(|&(px, py, sign)| sign * (y - py).atan2(x - px)).sum();
        128.0 + 100.0 * (TAU * y / RIDGE + wound).cos()
    };
    let pixels = (0..side * side)
        .map(|at| {
            let place = |at: u32| (at as f32 + 0.5) / scale - 0.5;
            brightness(place(at % side), place(at / side)) as u8
        })
        .collect();
    Gray { width: side, height: side, pixels }
}

fn extract(image: &Gray, dots_per_inch: f32) -> Extraction {
    minutiae(image, &MinutiaeOptions { dots_per_inch }).unwrap()
}

fn nearest(found: &[Vertex], x: f32, y: f32) -> (f32, Vertex) {
    let distance = |vertex: &Vertex| (f32::from(vertex.x) - x).hypot(f32::from(vertex.y) - y);
    let vertex = *found.iter().min_by(|a, b| distance(a).total_cmp(&distance(b))).unwrap();
    (distance(&vertex), vertex)
}

#[test]
fn exactly_the_dislocations_are_found() {
    let places = [(45.0, 50.0, 1.0), (95.0, 60.0, -1.0), (60.0, 100.0, -1.0)];
    let found = extract(&ridges(140, 1.0, &places), 500.0).graph;
    assert_eq!((found.width, found.height), (140, 140));
    assert_eq!(found.vertices.len(), places.len(), "{found:?}");
    for (x, y, sign) in places {
        let (distance, vertex) = nearest(&found.vertices, x, y);
        assert!(distance < 7.0, "({x}, {y}): {vertex:?}");
        // Where the phase winds with the rows, one more ridge lies to the right, else to the left.
        let expected = if sign > 0.0 { 0_u8 } else { 128 };
        let off = (vertex.direction.wrapping_sub(expected) as i8).unsigned_abs();
        assert!(off < 16 && (1..=2).contains(&vertex.kind), "({x}, {y}): {vertex:?}");
    }
}

#[test]
fn a_finer_image_gives_the_same_minutiae() {
    let places = [(40.0, 45.0, 1.0), (75.0, 65.0, -1.0)];
    let coarse = extract(&ridges(112, 1.0, &places), 500.0).graph;
    let fine = extract(&ridges(224, 2.0, &places), 1000.0).graph;
    assert_eq!((fine.width, fine.height), (coarse.width, coarse.height));
    assert_eq!((fine.vertices.len(), coarse.vertices.len()), (2, 2));
    for vertex in &coarse.vertices {
        let (distance, other) = nearest(&fine.vertices, vertex.x.into(), vertex.y.into());
        assert!(distance < 3.0, "{vertex:?} {other:?}");
        assert!((other.direction.wrapping_sub(vertex.direction) as i8).unsigned_abs() < 8);
    }
}

#[test]
fn other_images_have_no_minutiae() {
    let blank = Gray { width: 96, height: 64, pixels: vec![255; 96 * 64] };
    let nothing = extract(&blank, 500.0);
    assert!(nothing.graph.vertices.is_empty());
    assert_eq!(nothing.quality.len(), 24 * 16);
    assert!(nothing.quality.iter().all(|&quality| quality == 0));
    let whole = extract(&ridges(96, 1.0, &[]), 500.0);
    assert!(whole.graph.vertices.is_empty(), "{:?}", whole.graph);
    assert!(whole.quality[12 * 24 + 12] > 150, "{:?}", whole.quality[12 * 24 + 12]);
}

#[test]
fn the_frame_of_a_sensor_is_not_a_fingerprint() {
    // White padding on two sides of an empty sensor with a little noise.
    let pixel = |at: u32| {
        let (x, y) = (at % 160, at / 160);
        if x < 24 || y >= 120 { 255 } else { 180 + (x * 7 + y * 3) as u8 % 5 }
    };
    let frame = Gray { width: 160, height: 160, pixels: (0..160 * 160).map(pixel).collect() };
    let found = extract(&frame, 500.0);
    assert!(found.graph.vertices.is_empty(), "{:?}", found.graph);
    assert!(found.quality.iter().all(|&quality| quality == 0));
}

#[test]
fn a_search_among_more_prints_needs_a_higher_score() {
    let scores = [0, 1, 1_500, 15_000, 150_000, 1_000_000, u64::MAX].map(accept_among);
    assert_eq!(scores[..5], [200.0, 200.0, 200.0, 220.0, 240.0]);
    assert!(scores.is_sorted() && scores[6] < 600.0, "{scores:?}");
}

#[test]
fn impossible_images_are_refused() {
    let refused = |width: u32, height: u32, pixels: usize, dots_per_inch: f32| {
        let image = Gray { width, height, pixels: vec![128; pixels] };
        minutiae(&image, &MinutiaeOptions { dots_per_inch }).unwrap_err().to_string()
    };
    assert!(refused(1, 1, 1, 500.0).contains("at least"));
    assert!(refused(0, 0, 0, 500.0).contains("at least"));
    assert!(refused(40, 40, 1600, 1000.0).contains("at least"));
    assert!(refused(4000, 3000, 12_000_000, 500.0).contains("at most"));
    assert!(refused(64, 64, 4095, 500.0).contains("4095"));
    for wrong in [0.0, 72.0, -500.0, f32::NAN, f32::INFINITY] {
        assert!(refused(64, 64, 4096, wrong).contains("dots per inch"), "{wrong}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4))]
    #[test]
    fn any_pixels_cause_no_panic(
        (width, height, pixels) in (32_u32..56, 32_u32..56).prop_flat_map(|(width, height)| {
            (Just(width), Just(height), prop::collection::vec(any::<u8>(), (width * height) as usize))
        })
    ) {
        let found = extract(&Gray { width, height, pixels }, 500.0);
        for vertex in &found.graph.vertices {
            prop_assert!((0..width as i16).contains(&vertex.x) && (0..height as i16).contains(&vertex.y));
        }
        prop_assert_eq!(found.quality.len(), (width.div_ceil(4) * height.div_ceil(4)) as usize);
    }
}
