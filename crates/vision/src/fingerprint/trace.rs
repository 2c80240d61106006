//! Ends of thin lines, and the directions of their lines.

use std::f32::consts::TAU;

use super::thin::BinaryImage;

/// Pixels along a line that give its direction.
const DIRECTION_PIXELS: usize = 14;
/// Longest spur in pixels. If a line forks within this distance of its end, that end is not a
/// minutia.
const SPUR_MAX: usize = 10;
/// Shortest line in pixels. A shorter one is dirt or a pore.
const LINE_MIN: usize = 14;

/// An end of a line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct End {
    pub(super) x: f32,
    pub(super) y: f32,
    /// Direction from the end along its line, counter-clockwise as seen, in turns: 0 to 1.
    pub(super) angle: f32,
}

/// Finds the ends of all black lines that are long enough, from the top down.
pub(super) fn ends(bits: &BinaryImage) -> Vec<End> {
    let neighbours = bits.neighbours();
    let place = |at: usize| ((at % bits.width) as f32 - 1.0, (at / bits.width) as f32 - 1.0);
    let mut path = Vec::with_capacity(DIRECTION_PIXELS + 1);
    let mut found = Vec::new();
    for start in (0..bits.pixels.len()).filter(|&at| bits.pixels[at] == 1) {
        if bits.around(start, &neighbours).count_ones() != 1 {
            continue;
        }
        let least = match follow(bits, start, &neighbours, &mut path) {
            LineStop::Fork => SPUR_MAX,
            LineStop::End => LINE_MIN,
            LineStop::Far => 0,
        };
        let Some(&along) = path.last().filter(|_| path.len() > least) else {
            continue;
        };
        let ((x, y), (to_x, to_y)) = (place(start), place(along));
        let angle = ((y - to_y).atan2(to_x - x) / TAU).rem_euclid(1.0);
        found.push(End { x, y, angle });
    }
    found
}

/// Reason for which following a line stopped.
#[derive(Clone, Copy, Debug, PartialEq)]
enum LineStop {
    Fork,
    End,
    Far,
}

/// Fills `path` with the pixels of the line that ends at `start`, beginning there.
fn follow(
    bits: &BinaryImage,
    start: usize,
    neighbours: &[isize; 8],
    path: &mut Vec<usize>,
) -> LineStop {
    path.clear();
    path.push(start);
    let mut before = start;
    let mut at = start;
    while path.len() <= DIRECTION_PIXELS {
        let mut next = neighbours
            .iter()
            .map(|&way| at.wrapping_add_signed(way))
            .filter(|&to| bits.pixels[to] == 1 && to != before);
        let (Some(to), others) = (next.next(), next.count()) else {
            return LineStop::End;
        };
        if others > 0 {
            return LineStop::Fork;
        }
        (before, at) = (at, to);
        path.push(at);
    }
    LineStop::Far
}
