//! ISO/IEC 19794-2 and the other formats of templates.

use matching::template::{self, StatedPrint, TemplateFormat};
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
    assert!(said(22, 0).contains("after its last view"));
    assert!(said(27, 2).contains("ends after"));
}

#[test]
fn graphs_beyond_the_format_are_refused() {
    assert!(iso::write(&synthetic::photo(1)).is_err());
    for vertex in [Vertex { x: -1, ..Vertex::default() }, Vertex { kind: 3, ..Vertex::default() }] {
        assert!(iso::write(&Graph { vertices: vec![vertex], ..Graph::default() }).is_err());
    }
}

#[test]
fn a_reserved_kind_is_read_as_other() {
    let mut bytes = TEMPLATE.to_vec();
    for (bits, kind) in [(0x00, 0), (0x40, 1), (0x80, 2), (0xC0, 0)] {
        bytes[28] = bits;
        let graph = iso::read(&bytes).unwrap().remove(0);
        assert_eq!((graph.vertices[0].kind, graph.vertices[0].x), (kind, 20));
        assert!(iso::write(&graph).is_ok());
    }
}

/// A template as `SourceAFIS` 3.18 for Java writes it: a map and a text of known length, arrays of
/// indefinite ones, directions as 32-bit floats.
#[test]
fn sourceafis_templates_are_read_byte_for_byte() {
    let mut bytes = vec![0xBF];
    let text = |bytes: &mut Vec<u8>, text: &str| {
        bytes.push(0x60 | text.len() as u8);
        bytes.extend(text.as_bytes());
    };
    text(&mut bytes, "version");
    text(&mut bytes, "3.18.1-java");
    text(&mut bytes, "width");
    bytes.extend([0x19, 0x01, 0x84]);
    text(&mut bytes, "height");
    bytes.extend([0x19, 0x01, 0x76]);
    text(&mut bytes, "positionsX");
    bytes.extend([0x82, 0x18, 100, 0x05]);
    text(&mut bytes, "positionsY");
    bytes.extend([0x9F, 0x19, 0x01, 0x00, 0x17, 0xFF]);
    text(&mut bytes, "directions");
    // A quarter and three quarters of a turn, clockwise.
    bytes.extend([0x82, 0xFA]);
    bytes.extend(std::f32::consts::FRAC_PI_2.to_be_bytes());
    bytes.push(0xFA);
    bytes.extend((3.0 * std::f32::consts::FRAC_PI_2).to_be_bytes());
    text(&mut bytes, "types");
    text(&mut bytes, "EB");
    bytes.push(0xFF);
    let vertices = vec![
        Vertex { x: 100, y: 256, direction: 192, kind: 1 },
        Vertex { x: 5, y: 23, direction: 64, kind: 2 },
    ];
    let graph = Graph { width: 388, height: 374, vertices, descriptors: Vec::new() };
    assert_eq!(template::read(&bytes).unwrap(), [graph]);
}

#[test]
fn sourceafis_holds_256_minutiae_and_negative_positions() {
    let vertex = |x: i16| Vertex { x, y: -x, direction: 64, kind: 1 };
    let vertices: Vec<Vertex> = (-128..128).map(|at| vertex(at * 78)).collect();
    let graph = Graph { width: 300, height: 400, vertices, descriptors: Vec::new() };
    let bytes = template::write(&graph, TemplateFormat::SourceAfis).unwrap();
    assert_eq!(template::read(&bytes).unwrap(), std::slice::from_ref(&graph));
    assert!(template::write(&graph, TemplateFormat::Iso2005).is_err());
    // SourceAFIS refuses such a position.
    let far = Graph { vertices: vec![vertex(10_001)], ..Graph::default() };
    assert!(template::write(&far, TemplateFormat::SourceAfis).is_err());
}

/// Returns the quality of the only view of a template.
fn quality(template: &[u8]) -> Option<u8> {
    let views = template::views(template).unwrap();
    assert_eq!(views.len(), 1);
    assert_eq!(views[0].graph, template::read(template).unwrap()[0]);
    views[0].quality
}

#[test]
fn stated_qualities_are_read() {
    let graph = synthetic::fingerprint(3);
    // The place of the quality of the first view.
    for (format, at) in [
        (TemplateFormat::Iso2005, 26),
        (TemplateFormat::Ansi2004, 28),
        (TemplateFormat::Ansi2009, 24),
    ] {
        let mut bytes = template::write(&graph, format).unwrap();
        assert_eq!(quality(&bytes), None, "{format}");
        for (stated, read) in [(1, Some(1)), (100, Some(100)), (101, None), (254, None)] {
            bytes[at] = stated;
            assert_eq!(quality(&bytes), read, "{format} {stated}");
        }
    }
    let bytes = template::write(&graph, TemplateFormat::SourceAfis).unwrap();
    assert_eq!(quality(&bytes), None);
}

#[test]
fn finger_and_quality_are_written() {
    let graph = synthetic::fingerprint(3);
    for format in TemplateFormat::ALL {
        let stated = |finger, quality| {
            let print = StatedPrint { finger: Some(finger), quality: Some(quality) };
            let bytes = template::write_stating(&graph, print, format).unwrap();
            assert_eq!(TemplateFormat::of(&bytes), Some(format));
            let view = template::views(&bytes).unwrap().remove(0);
            assert_eq!(view.graph.vertices.len(), graph.vertices.len(), "{format}");
            (view.finger, view.quality)
        };
        // SourceAFIS has no place for them.
        let is_held = format != TemplateFormat::SourceAfis;
        assert_eq!(stated(7, 63), (is_held.then_some(7), is_held.then_some(63)), "{format}");
        for (finger, quality) in [(0, 0), (11, 101)] {
            assert_eq!(stated(finger, quality), (None, None), "{format}");
        }
    }
}

#[test]
fn the_first_stated_quality_of_a_view_counts() {
    let mut bytes = template::write(&synthetic::fingerprint(3), TemplateFormat::Iso2011).unwrap();
    assert_eq!(quality(&bytes), None);
    // Two quality records: one failed, the other states 70.
    bytes[33] = 2;
    bytes.splice(34..34, [255, 0, 0, 0, 0, 70, 0, 0, 0, 0]);
    for at in [8, 15] {
        let length = u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap()) + 10;
        bytes[at..at + 4].copy_from_slice(&length.to_be_bytes());
    }
    assert_eq!(TemplateFormat::of(&bytes), Some(TemplateFormat::Iso2011));
    assert_eq!(quality(&bytes), Some(70));
}

#[test]
fn the_first_bytes_show_a_template() {
    for format in TemplateFormat::ALL {
        let bytes = template::write(&synthetic::fingerprint(3), format).unwrap();
        assert!(TemplateFormat::has_magic(&bytes[..16]), "{format}");
    }
    for other in [&b""[..], b"FM", b"\xff\xd8\xff\xe0", b"\xa1\x61x\x01", b"\xbf", b"text"] {
        assert!(!TemplateFormat::has_magic(other), "{other:?}");
    }
}

/// Layout of the header of a written template with one view.
struct TemplateHeader {
    bytes: usize,
    length: std::ops::Range<usize>,
    views: usize,
    /// Offset of the finger position of the first view.
    finger: usize,
}

fn header(format: TemplateFormat) -> TemplateHeader {
    let (bytes, length, views, finger) = match format {
        TemplateFormat::Iso2005 => (24, 8..12, 22, 24),
        TemplateFormat::Iso2011 => (15, 8..12, 13, 34),
        TemplateFormat::Ansi2004 => (26, 8..10, 24, 26),
        TemplateFormat::Ansi2009 => (21, 8..12, 19, 21),
        TemplateFormat::SourceAfis => unreachable!("it has one view"),
    };
    TemplateHeader { bytes, length, views, finger }
}

/// Returns a template with a view of each graph, of the fingers 1, 2 and so on.
fn joined(graphs: &[Graph], format: TemplateFormat) -> Vec<u8> {
    let TemplateHeader { bytes, length, views, finger } = header(format);
    let mut all = Vec::new();
    for (number, graph) in graphs.iter().enumerate() {
        let mut one = template::write(graph, format).unwrap();
        one[finger] = number as u8 + 1;
        all.extend(&one[if number == 0 { 0 } else { bytes }..]);
    }
    let total = (all.len() as u32).to_be_bytes();
    all[length.clone()].copy_from_slice(&total[4 - length.len()..]);
    all[views] = graphs.len() as u8;
    all
}

#[test]
fn a_view_becomes_a_template_of_its_own() {
    let graphs: Vec<Graph> = (1..4).map(synthetic::fingerprint).collect();
    for format in TemplateFormat::ALL {
        if format == TemplateFormat::SourceAfis {
            continue;
        }
        let all = joined(&graphs, format);
        assert_eq!(TemplateFormat::of(&all), Some(format));
        let views = template::views(&all).unwrap();
        let fingers: Vec<Option<u8>> = views.iter().map(|view| view.finger).collect();
        assert_eq!(fingers, [Some(1), Some(2), Some(3)], "{format}");
        for (number, view) in views.iter().enumerate() {
            let one = template::one_view(&all, view).unwrap();
            let mut written = template::write(&graphs[number], format).unwrap();
            written[header(format).finger] = number as u8 + 1;
            assert_eq!(one, written, "{format}");
            let read = template::views(&one).unwrap().remove(0);
            assert_eq!((&read.graph, read.finger), (&view.graph, view.finger));
        }
        let last = &views[2];
        assert!(template::one_view(&all[..all.len() - 9], last).is_err(), "{format}");
    }
}

#[test]
fn the_long_length_of_ansi_2004_remains() {
    let mut all = joined(&[1, 2].map(synthetic::fingerprint), TemplateFormat::Ansi2004);
    all.splice(8..10, [0; 6]);
    let length = (all.len() as u32).to_be_bytes();
    all[10..14].copy_from_slice(&length);
    let views = template::views(&all).unwrap();
    let one = template::one_view(&all, &views[1]).unwrap();
    assert_eq!(template::read(&one).unwrap(), [views[1].graph.clone()]);
}

#[test]
fn positions_of_several_fingers_state_no_finger() {
    let mut bytes = template::write(&synthetic::fingerprint(3), TemplateFormat::Iso2005).unwrap();
    for (position, finger) in [(0, None), (1, Some(1)), (10, Some(10)), (11, None), (13, None)] {
        bytes[24] = position;
        assert_eq!(template::views(&bytes).unwrap()[0].finger, finger);
    }
}

proptest! {
    #[test]
    fn a_written_template_is_read(
        points in prop::collection::vec((0_i16..0x3FFF, 0_i16..0x3FFF, any::<u8>(), 0_u8..3), 0..=255), size: (u16, u16),
    ) {
        let vertices =
            points.into_iter().map(|(x, y, direction, kind)| Vertex { x, y, direction, kind }).collect();
        let graph = Graph { width: size.0, height: size.1, vertices, descriptors: Vec::new() };
        prop_assert_eq!(iso::read(&iso::write(&graph).unwrap()).unwrap(), vec![graph]);
    }

    #[test]
    fn every_format_is_recognised_and_read(
        points in prop::collection::vec((0_i16..10_000, 0_i16..10_000, any::<u8>(), 1_u8..3), 0..=255), size: (u16, u16),
    ) {
        let vertices =
            points.into_iter().map(|(x, y, direction, kind)| Vertex { x, y, direction, kind }).collect();
        let graph = Graph { width: size.0, height: size.1, vertices, descriptors: Vec::new() };
        for format in TemplateFormat::ALL {
            let bytes = template::write(&graph, format).unwrap();
            prop_assert_eq!(TemplateFormat::of(&bytes), Some(format));
            prop_assert_eq!(format.name().parse::<TemplateFormat>().unwrap(), format);
            let read = template::read(&bytes).unwrap().remove(0);
            prop_assert_eq!((read.width, read.height), (graph.width, graph.height));
            prop_assert_eq!(read.vertices.len(), graph.vertices.len());
            for (read, vertex) in read.vertices.iter().zip(&graph.vertices) {
                prop_assert_eq!((read.x, read.y, read.kind), (vertex.x, vertex.y, vertex.kind));
                // ANSI rounds to two degrees.
                let error = read.direction.wrapping_sub(vertex.direction) as i8;
                prop_assert!(error.abs() <= 1, "{format}: {error}");
            }
        }
    }

    #[test]
    fn damage_in_any_format_causes_no_panic(
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..5), cut in any::<prop::sample::Index>(),
    ) {
        for format in TemplateFormat::ALL {
            let mut bytes = template::write(&synthetic::fingerprint(3), format).unwrap();
            for (at, value) in &flips {
                let at = at.index(bytes.len());
                bytes[at] = *value;
            }
            let _ = template::read(&bytes);
            prop_assert!(template::read(&bytes[..cut.index(bytes.len())]).is_err());
        }
    }

    #[test]
    fn any_bytes_cause_no_panic(bytes: Vec<u8>) {
        let _ = template::read(&bytes);
        let _ = template::read(&[b"FMR\x00030\0", &bytes[..]].concat());
        let _ = template::read(&[b"FMR\0 20\0", &bytes[..]].concat());
        let _ = template::read(&[&[0xBF], &bytes[..]].concat());
    }

    #[test]
    fn damage_causes_no_panic(
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
