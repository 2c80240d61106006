//! Functions whose last bits differ between systems' mathematics libraries.

/// Returns e^-x for x of 0 to about 50. It is the limit of (1 - x/n)^n, with n of 2^20, in double
/// precision.
pub(super) fn exp_minus(x: f32) -> f32 {
    let mut power = (1.0 - f64::from(x) / f64::from(1 << 20)).max(0.0);
    for _ in 0..20 {
        power *= power;
    }
    power as f32
}

/// Returns cosine and sine of an angle in turns: Taylor series within an eighth of a turn, folded
/// to all others.
pub(super) fn cos_sin(turns: f32) -> (f32, f32) {
    let turns = turns - turns.floor();
    let quarter = (turns * 4.0 + 0.5) as i32;
    let x = (turns - quarter as f32 * 0.25) * std::f32::consts::TAU;
    let square = x * x;
    let sin = x * (1.0 - square / 6.0 * (1.0 - square / 20.0 * (1.0 - square / 42.0)));
    let cos =
        1.0 - square / 2.0 * (1.0 - square / 12.0 * (1.0 - square / 30.0 * (1.0 - square / 56.0)));
    match quarter & 3 {
        0 => (cos, sin),
        1 => (-sin, cos),
        2 => (-cos, -sin),
        _ => (sin, -cos),
    }
}

/// Returns the direction of (x, y) in turns, 0 to 1, or 0 for (0, 0). The arc tangent follows
/// Rajan, Wang, Inkol and Joyal ("Efficient approximations for the arctangent function", 2006),
/// within 0.1 degrees.
pub(super) fn direction(x: f32, y: f32) -> f32 {
    let (ax, ay) = (x.abs(), y.abs());
    let (low, high) = if ax < ay { (ax, ay) } else { (ay, ax) };
    let q = if high > 0.0 { low / high } else { 0.0 };
    let octant = q * (0.125 + (1.0 - q) * (0.038_94 + 0.010_56 * q));
    let quadrant = if ax < ay { 0.25 - octant } else { octant };
    let half = if x < 0.0 { 0.5 - quadrant } else { quadrant };
    let turns = if y < 0.0 { 1.0 - half } else { half };
    if turns >= 1.0 { 0.0 } else { turns }
}

/// Returns the scale as a vertex's kind. It is 1 for half a pixel or less, and rises by eight for
/// each doubling.
pub(super) fn eighths_of_doubling(sigma: f32) -> u8 {
    /// 2^(1/8).
    const STEP: f32 = 1.090_507_7;
    let mut steps = 1_u8;
    let mut reached = 0.5_f32;
    while reached * STEP <= sigma && steps < u8::MAX {
        reached *= STEP;
        steps += 1;
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_agree_with_the_library() {
        for step in 0..1000 {
            let x = step as f32 / 50.0;
            assert!((exp_minus(x) - (-x).exp()).abs() < 1e-5);
            let turns = x / 5.0 - 1.0;
            let (cos, sin) = cos_sin(turns);
            let angle = turns * std::f32::consts::TAU;
            assert!(
                (cos - angle.cos()).abs() < 1e-5 && (sin - angle.sin()).abs() < 1e-5,
                "{turns}"
            );
            let off = direction(cos, sin) - (turns - turns.floor());
            assert!(off.abs() < 4e-4 || off.abs() > 1.0 - 4e-4, "{turns}: {off}");
        }
        assert_eq!(direction(0.0, 0.0), 0.0);
        assert_eq!(
            (eighths_of_doubling(0.0), eighths_of_doubling(1.001), eighths_of_doubling(2.002)),
            (1, 9, 17)
        );
        assert_eq!(eighths_of_doubling(f32::MAX), u8::MAX);
    }
}
