//! Synthetic graphs for tests and benches, with the statistics of real ones.
//!
//! Fingerprints have 25 to 50 minutiae in an ellipse of 200 by 280 pixels. No two are nearer than a
//! ridge period (9 pixels), and directions follow a field that turns slowly across the finger.
//! Photographs have 256 points in clusters, as corners are, with random descriptors. A distorted
//! copy is like another impression of the same thing. It is turned, shifted, bent and jittered.
//! Points are lost, false points are added, and some descriptor bits are flipped.

use crate::graph::{DESCRIPTOR_BYTES, Graph, VERTICES_MAX, Vertex};

/// Minimum distance of two minutiae, in pixels.
const RIDGE_PERIOD: f32 = 9.0;
/// Minimum distance of two minutiae of an [`impression`] of which one may be false.
const FALSE_DISTANCE_MIN: f32 = 5.0;
/// Share of minutiae of an impression that point against their neighbours.
const TURNED_SHARE: f32 = 0.1;
/// Share of directions of an impression that are false.
const FALSE_DIRECTION_SHARE: f32 = 0.08;
/// Attempts to place a point before a graph is left with fewer.
const ATTEMPTS_MAX: usize = 64;
const PHOTO_SIZE: (u16, u16) = (640, 480);

/// Returns the graph of a finger. The same seed gives the same one.
#[must_use]
pub fn fingerprint(seed: u64) -> Graph {
    let mut random = Random::new(seed, 1);
    let count = 25 + random.below(26);
    let field = OrientationField::new(&mut random);
    let mut graph = Graph { width: 300, height: 400, ..Graph::default() };
    for _ in 0..count {
        if let Some((x, y)) = free_place(&mut random, &graph.vertices, RIDGE_PERIOD, |random| {
            let angle = random.unit() * std::f32::consts::TAU;
            let radius = random.unit().sqrt();
            (150.0 + 100.0 * radius * angle.cos(), 200.0 + 140.0 * radius * angle.sin())
        }) {
            // A minutia points along its ridge, one way or the other.
            let direction = field.ridge(x, y) + if random.below(2) == 0 { 0.0 } else { 0.5 };
            let direction = steps(direction + 0.02 * random.normal());
            graph.vertices.push(vertex(x, y, direction, 1 + (random.below(10) >= 6) as u8));
        }
    }
    graph
}

/// Returns an impression of a finger for large galleries. It is the same one for the same seed.
///
/// It has the statistics of the 640 templates of FVC2002 and FVC2004 (B sets). They are the number
/// of minutiae, their distances, the directions of neighbours, and the scores of impostors.
/// [`fingerprint`] does not reach these scores. Neighbouring minutiae mostly point the same way
/// along their ridges, some minutiae are close together, and some directions are false
/// (`docs/adr/0020-fingerprint-index.md`).
#[must_use]
pub fn impression(seed: u64) -> Graph {
    let mut random = Random::new(seed, 4);
    let count = 16 + random.below(22) + random.below(22);
    let field = OrientationField::new(&mut random);
    let half = (70.0 + 45.0 * random.unit(), 115.0 + 50.0 * random.unit());
    let sides = DirectionStripes::new(&mut random);
    let mut graph = Graph { width: 300, height: 400, ..Graph::default() };
    for _ in 0..count {
        let apart = if random.below(4) == 0 { FALSE_DISTANCE_MIN } else { RIDGE_PERIOD + 1.0 };
        let place = free_place(&mut random, &graph.vertices, apart, |random| {
            let angle = random.unit() * std::f32::consts::TAU;
            let radius = random.unit().sqrt();
            (150.0 + half.0 * radius * angle.cos(), 200.0 + half.1 * radius * angle.sin())
        });
        let Some((x, y)) = place else { continue };
        let backwards = sides.is_backwards(x, y) != (random.unit() < TURNED_SHARE);
        let along = field.ridge(x, y) + if backwards { 0.5 } else { 0.0 };
        let direction = if random.unit() < FALSE_DIRECTION_SHARE {
            random.unit()
        } else {
            along + 0.02 * random.normal()
        };
        graph.vertices.push(vertex(x, y, steps(direction), 1 + (random.below(10) >= 6) as u8));
    }
    graph
}

/// Returns the graph of a photograph of 640 by 480 pixels.
#[must_use]
pub fn photo(seed: u64) -> Graph {
    let mut random = Random::new(seed, 2);
    let mut graph = Graph { width: PHOTO_SIZE.0, height: PHOTO_SIZE.1, ..Graph::default() };
    let (width, height) = (f32::from(PHOTO_SIZE.0), f32::from(PHOTO_SIZE.1));
    let centres: Vec<(f32, f32)> =
        (0..12).map(|_| (random.unit() * width, random.unit() * height)).collect();
    while graph.vertices.len() < VERTICES_MAX {
        let centre = centres[random.below(centres.len())];
        let (x, y) = (centre.0 + 60.0 * random.normal(), centre.1 + 60.0 * random.normal());
        let (x, y) = (x.clamp(0.0, width - 1.0), y.clamp(0.0, height - 1.0));
        graph.vertices.push(vertex(x, y, random.below(256) as u8, 0));
        graph.descriptors.push(random.descriptor());
    }
    graph
}

/// Returns another impression of the same finger or scene. It is the same one for the same seed.
#[must_use]
pub fn distorted(graph: &Graph, seed: u64) -> Graph {
    let mut random = Random::new(seed, 3);
    let described = graph.described();
    let angle = if described { 0.25 } else { 0.12 } * random.normal();
    let scale = if described { (0.2 * random.normal()).clamp(-0.6, 0.6).exp() } else { 1.0 };
    let (sin, cos) = angle.sin_cos();
    // Some impressions are good and some are poor.
    let poor = random.unit();
    let (width, height) = (f32::from(graph.width), f32::from(graph.height));
    let shift = (0.12 * width * random.normal(), 0.12 * height * random.normal());
    let jitter = 0.4 + 1.6 * poor;
    let turning = 0.006 + 0.014 * poor;
    let losses = 0.05 + 0.35 * poor;
    let bend = (0.00008 * random.normal(), 0.00008 * random.normal());
    let mut out = Graph { width: graph.width, height: graph.height, ..Graph::default() };
    for (index, from) in graph.vertices.iter().enumerate() {
        let (lost, dx, dy, turned) =
            (random.unit(), random.normal(), random.normal(), random.normal());
        let (x, y) = (f32::from(from.x) - width / 2.0, f32::from(from.y) - height / 2.0);
        let (bx, by) = (x + bend.0 * x * y, y + bend.1 * x * x);
        // Rows count downwards and angles turn counter-clockwise as seen.
        let (tx, ty) = (cos * bx + sin * by, cos * by - sin * bx);
        let x = scale * tx + width / 2.0 + shift.0 + jitter * dx;
        let y = scale * ty + height / 2.0 + shift.1 + jitter * dy;
        if lost < losses || x < 0.0 || y < 0.0 || x >= width || y >= height {
            continue;
        }
        let direction =
            from.direction.wrapping_add(steps(angle / std::f32::consts::TAU + turning * turned));
        let kind =
            if random.below(8) == 0 && !described { 3 - from.kind.clamp(1, 2) } else { from.kind };
        out.vertices.push(vertex(x, y, direction, kind));
        if let Some(descriptor) = graph.descriptors.get(index) {
            out.descriptors.push(random.flipped(descriptor));
        }
    }
    add_false(&mut out, graph.vertices.len(), described, &mut random);
    out
}

/// Adds points that are not in the original, a fifth of its number.
fn add_false(out: &mut Graph, original: usize, described: bool, random: &mut Random) {
    let (width, height) = (f32::from(out.width), f32::from(out.height));
    for _ in 0..original / 5 {
        let place = free_place(random, &out.vertices, RIDGE_PERIOD, |r| {
            (r.unit() * width, r.unit() * height)
        });
        if let Some((x, y)) = place.filter(|_| out.vertices.len() < VERTICES_MAX) {
            let kind = if described { 0 } else { 1 + random.below(2) as u8 };
            out.vertices.push(vertex(x, y, random.below(256) as u8, kind));
            if described {
                out.descriptors.push(random.descriptor());
            }
        }
    }
}

fn vertex(x: f32, y: f32, direction: u8, kind: u8) -> Vertex {
    Vertex { x: x as i16, y: y as i16, direction, kind }
}

/// Returns a position at least `apart` pixels from `taken`, or `None` if the graph is full.
fn free_place(
    random: &mut Random,
    taken: &[Vertex],
    apart: f32,
    mut place: impl FnMut(&mut Random) -> (f32, f32),
) -> Option<(f32, f32)> {
    (0..ATTEMPTS_MAX).find_map(|_| {
        let (x, y) = place(random);
        let near = |other: &Vertex| {
            let (dx, dy) = (x - f32::from(other.x), y - f32::from(other.y));
            dx * dx + dy * dy < apart * apart
        };
        (!taken.iter().any(near)).then_some((x, y))
    })
}

/// Converts a fraction of a turn to 256 steps.
fn steps(turns: f32) -> u8 {
    ((turns * 256.0).round() as i32).rem_euclid(256) as u8
}

/// The direction of ridges across a finger, which has a loop or a whorl about a core. In the model
/// of Sherlock and Monro (1993), it is half the angle to the core less half the angle to the delta.
struct OrientationField {
    core: (f32, f32),
    delta: (f32, f32),
    offset: f32,
}

impl OrientationField {
    fn new(random: &mut Random) -> OrientationField {
        OrientationField {
            core: (150.0 + 20.0 * random.normal(), 170.0 + 20.0 * random.normal()),
            delta: (150.0 + 90.0 * random.normal(), 330.0 + 20.0 * random.normal()),
            offset: random.unit() * 0.1,
        }
    }

    /// Returns the direction at a position, in turns.
    fn ridge(&self, x: f32, y: f32) -> f32 {
        let angle = |(cx, cy): (f32, f32)| (cy - y).atan2(x - cx) / std::f32::consts::TAU;
        0.5 * (angle(self.core) - angle(self.delta)) + self.offset
    }
}

/// Stripes of a finger. In every second one, minutiae point the other way along their ridges.
struct DirectionStripes {
    across: f32,
    down: f32,
    phase: f32,
}

impl DirectionStripes {
    fn new(random: &mut Random) -> DirectionStripes {
        let frequency = std::f32::consts::TAU / (90.0 + 150.0 * random.unit());
        let (sin, cos) = (random.unit() * std::f32::consts::TAU).sin_cos();
        let phase = random.unit() * std::f32::consts::TAU;
        DirectionStripes { across: cos * frequency, down: sin * frequency, phase }
    }

    /// Returns true in the narrower stripes, about a third of the area.
    fn is_backwards(&self, x: f32, y: f32) -> bool {
        (x * self.across + y * self.down + self.phase).sin() <= -0.45
    }
}

/// A sequence of random numbers (SplitMix64).
struct Random {
    state: u64,
}

impl Random {
    fn new(seed: u64, stream: u64) -> Random {
        Random { state: seed.wrapping_mul(0xD134_2543_DE82_EF95).wrapping_add(stream << 56) }
    }

    fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns a uniform number from 0 to 1, 1 excluded.
    fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 24) as f32
    }

    fn below(&mut self, count: usize) -> usize {
        ((self.bits() >> 32) as usize * count) >> 32
    }

    /// Returns a nearly normal number: the sum of twelve uniform numbers less six.
    fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.unit()).sum::<f32>() - 6.0
    }

    fn descriptor(&mut self) -> [u8; DESCRIPTOR_BYTES] {
        std::array::from_fn(|_| self.bits() as u8)
    }

    /// Returns the descriptor with a tenth of its bits flipped.
    fn flipped(&mut self, descriptor: &[u8; DESCRIPTOR_BYTES]) -> [u8; DESCRIPTOR_BYTES] {
        let mut out = *descriptor;
        for _ in 0..DESCRIPTOR_BYTES * 8 / 10 {
            let bit = self.below(DESCRIPTOR_BYTES * 8);
            out[bit / 8] ^= 1 << (bit % 8);
        }
        out
    }
}
