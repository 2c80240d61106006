//! Records: any bytes give an error or a score.

use matching::{Graph, MatchOptions, Probe, Scratch, Vertex, explain, score, synthetic};
use proptest::prelude::*;

fn record(graph: &Graph) -> Vec<u8> {
    let mut bytes = Vec::new();
    graph.encode(&mut bytes);
    bytes
}

fn graph() -> impl Strategy<Value = Graph> {
    let vertex = any::<(i16, i16, u8, u8)>().prop_map(|(x, y, direction, kind)| Vertex {
        x,
        y,
        direction,
        kind,
    });
    (
        any::<u16>(),
        any::<u16>(),
        prop::collection::vec((vertex, any::<[u8; 32]>()), 0..=256),
        any::<bool>(),
    )
        .prop_map(|(width, height, points, described)| {
            let (vertices, descriptors): (Vec<_>, Vec<_>) = points.into_iter().unzip();
            Graph {
                width,
                height,
                vertices,
                descriptors: if described { descriptors } else { Vec::new() },
            }
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn an_encoded_graph_is_decoded(graph in graph()) {
        let bytes = record(&graph);
        prop_assert_eq!(bytes.len(), 8 + 6 * graph.vertices.len() + 32 * graph.descriptors.len());
        prop_assert_eq!(Graph::decode(&bytes).unwrap(), graph);
    }

    #[test]
    fn any_graph_gets_a_score(probe in graph(), other in graph()) {
        let found = score(&Probe::new(&probe, MatchOptions::default()), &record(&other), &mut Scratch::new()).unwrap();
        prop_assert!(found >= 0.0 && found.is_finite(), "{}", found);
    }

    #[test]
    fn damaged_records_get_an_error_or_a_score(
        seed in 0_u64..50, flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in any::<prop::sample::Index>(), whole: bool, photo: bool,
    ) {
        let original = if photo { synthetic::photo(seed) } else { synthetic::fingerprint(seed) };
        let mut bytes = record(&original);
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if !whole {
            bytes.truncate(cut.index(bytes.len()));
        }
        let mut scratch = Scratch::new();
        let probe = Probe::new(&original, MatchOptions::default());
        if let Ok(explained) = explain(&probe, &bytes, &mut scratch) {
            prop_assert!(explained.score >= 0.0 && explained.score.is_finite());
            let decoded = Graph::decode(&bytes).unwrap();
            for pair in &explained.pairs {
                prop_assert!(usize::from(pair.probe) < original.vertices.len());
                prop_assert!(usize::from(pair.record) < decoded.vertices.len());
            }
        }
        // Remains of the damaged record in the scratch change no result.
        let sound = record(&original);
        let again = score(&probe, &sound, &mut scratch).unwrap();
        prop_assert_eq!(again, score(&probe, &sound, &mut Scratch::new()).unwrap());
    }

    #[test]
    fn noise_causes_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..400), head in any::<bool>()) {
        let mut bytes = bytes;
        if head && bytes.len() > 8 {
            bytes[..2].copy_from_slice(&[1, 0]);
            let count = (bytes.len() - 8) / 6;
            bytes[2..4].copy_from_slice(&(count as u16).to_le_bytes());
            bytes.truncate(8 + 6 * count);
            prop_assert!(Graph::decode(&bytes).is_ok());
        }
        let probe = Probe::new(&synthetic::fingerprint(1), MatchOptions::default());
        prop_assert_eq!(score(&probe, &bytes, &mut Scratch::new()).is_ok(), Graph::decode(&bytes).is_ok());
    }
}

#[test]
fn an_unknown_version_is_named() {
    let mut bytes = record(&synthetic::fingerprint(1));
    bytes[0] = 9;
    let error = Graph::decode(&bytes).unwrap_err();
    assert_eq!(error.kind(), base::ErrorKind::DataLoss);
    assert!(error.message().contains("version 9"), "{error}");
}

#[test]
fn vertices_above_the_maximum_are_left_out() {
    let mut graph = synthetic::photo(1);
    graph.vertices.push(graph.vertices[0]);
    graph.descriptors.push(graph.descriptors[0]);
    assert_eq!(Graph::decode(&record(&graph)).unwrap().vertices.len(), matching::VERTICES_MAX);
}

/// The bytes of a record do not change: a segment written once is read by every later version.
#[test]
fn the_layout_is_fixed() {
    let vertices = vec![Vertex { x: 258, y: -2, direction: 7, kind: 2 }];
    let mut graph = Graph { width: 300, height: 400, vertices, descriptors: Vec::new() };
    assert_eq!(record(&graph), [1, 0, 1, 0, 44, 1, 144, 1, 2, 1, 254, 255, 7, 2]);
    graph.descriptors.push([5; 32]);
    assert_eq!(record(&graph)[..8], [1, 1, 1, 0, 44, 1, 144, 1]);
    assert_eq!(record(&graph)[14..], [5; 32]);
}
