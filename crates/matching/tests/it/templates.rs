//! ISO/IEC 19794-2.

use matching::{Graph, Vertex, iso, synthetic};
use proptest::prelude::*;

/// One view with one minutia: a ridge ending at (10, 20), a quarter turn, at 250 dots per inch (98
/// per centimetre).
const TEMPLATE: &[u8] = &[
    b'F', b'M', b'R', 0, b' ', b'2', b'0', 0, 0, 0, 0, 36, 0, 0, 0, 100, 0, 200, 0, 98, 0, 98, 1,
    0, 0, 0, 60, 1, 0x40, 10, 0, 20, 64, 90, 0, 0,
];

#[test]
fn coordinates_are_brought_to_500_dots_per_inch() {
    let views = iso::read(TEMPLATE).unwrap();
    let vertices = vec![Vertex { x: 20, y: 40, direction: 64, kind: 1 }];
    assert_eq!(views, [Graph { width: 201, height: 402, vertices, descriptors: Vec::new() }]);
}

#[test]
fn each_field_is_checked() {
    let said = |at: usize, value: u8| {
        let mut bytes = TEMPLATE.to_vec();
        bytes[at] = value;
        iso::read(&bytes).unwrap_err().to_string()
    };
    assert!(said(1, b'X').contains("FMR"));
    assert!(said(11, 35).contains("36 bytes"));
    assert!(said(19, 0).contains("resolution"));
    assert!(said(22, 2).contains("ends after"));
    assert!(said(22, 0).contains("behind its last view"));
    assert!(said(27, 2).contains("ends after"));
}

#[test]
fn what_the_format_cannot_hold_is_refused() {
    assert!(iso::write(&synthetic::photo(1)).is_err());
    for vertex in [Vertex { x: -1, ..Vertex::default() }, Vertex { kind: 3, ..Vertex::default() }] {
        assert!(iso::write(&Graph { vertices: vec![vertex], ..Graph::default() }).is_err());
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        points in prop::collection::vec((0_i16..0x3FFF, 0_i16..0x3FFF, any::<u8>(), 0_u8..3), 0..=255), size: (u16, u16),
    ) {
        let vertices =
            points.into_iter().map(|(x, y, direction, kind)| Vertex { x, y, direction, kind }).collect();
        let graph = Graph { width: size.0, height: size.1, vertices, descriptors: Vec::new() };
        prop_assert_eq!(iso::read(&iso::write(&graph).unwrap()).unwrap(), vec![graph]);
    }

    #[test]
    fn damage_is_never_a_panic(
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..5), cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = iso::write(&synthetic::fingerprint(3)).unwrap();
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        let _ = iso::read(&bytes);
        prop_assert!(iso::read(&bytes[..cut.index(bytes.len())]).is_err());
    }
}
