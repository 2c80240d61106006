//! Rule for padding requests of different shape to one batch: a pure function of shapes.
//!
//! The rule is that of Paddle Serving's documentation for dynamic padding. Two shapes of equal rank
//! are padded to the largest size of each axis if that wastes little: an absolute number of bytes,
//! or a share. Here the share is a/M in floating point, the part of the padded shape M that the
//! request's own a elements fill. Every request of the batch must meet it, so that a batch that
//! grows step by step does not break it for its first members.

use engine::PadRule;

/// Returns the smallest shape that holds both, or `None` if the ranks differ.
pub(crate) fn cover(a: &[usize], b: &[usize]) -> Option<Vec<usize>> {
    (a.len() == b.len()).then(|| a.iter().zip(b).map(|(&a, &b)| a.max(b)).collect())
}

/// Returns true if a request of shape `own` may be padded to `padded`, which holds it. Elements
/// have `element_bytes` bytes. Defined for any sizes: no division by zero and no overflow.
pub(crate) fn may_pad(
    own: &[usize],
    padded: &[usize],
    element_bytes: usize,
    rule: &PadRule,
) -> bool {
    if own == padded {
        return true;
    }
    let a = elements(own);
    let m = elements(padded);
    let similarity = if m > 0.0 { a / m } else { 1.0 };
    let waste_bytes = (m - a) * element_bytes as f64;
    similarity > rule.similarity || waste_bytes < rule.slack_bytes as f64
}

/// Rounds `own` up to a bucket. A size above every bucket stays.
pub(crate) fn round_up(own: usize, buckets: &[usize]) -> usize {
    buckets.get(buckets.partition_point(|&bucket| bucket < own)).copied().unwrap_or(own)
}

/// Returns the number of elements. It is a float, because a product of sizes from a client may be
/// any number.
fn elements(shape: &[usize]) -> f64 {
    shape.iter().map(|&size| size as f64).product()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule() -> PadRule {
        PadRule { merge: true, buckets: vec![], similarity: 0.5, slack_bytes: 1024 }
    }

    /// Returns true if two single-precision requests share a batch.
    fn merge(a: &[usize], b: &[usize]) -> bool {
        cover(a, b).is_some_and(|padded| [a, b].iter().all(|own| may_pad(own, &padded, 4, &rule())))
    }

    /// The three scenarios of Paddle Serving's page, and cases in which its code differs from the
    /// page.
    #[test]
    fn the_table_of_the_reference() {
        let cases: [(&[usize], &[usize], bool, &str); 15] = [
            (&[500, 500], &[400, 400], true, "scenario 1: 0.64 of the larger"),
            (&[1, 1], &[2, 2], true, "scenario 2: 0.25, but 12 bytes of padding"),
            (&[3, 320, 320], &[3, 960, 960], false, "scenario 3: 0.11"),
            (&[1], &[1_000_000], false, "the code merges: its ratio is upside down"),
            (
                &[8000, 20000],
                &[20000, 8000],
                false,
                "the code merges: 0.4 each, 2.5 times the work",
            ),
            (&[400, 500], &[500, 400], true, "0.8 each"),
            (&[3, 224], &[3, 224], true, "equal"),
            (&[3, 224], &[3, 224, 1], false, "ranks differ"),
            (&[0, 7], &[5, 7], true, "an empty tensor, 140 bytes of padding"),
            (&[0], &[1000], false, "an empty tensor and 4000 bytes: the code divides by zero"),
            (&[0, 3], &[0, 3], true, "both empty"),
            (
                &[usize::MAX, 2],
                &[usize::MAX, 1],
                false,
                "no overflow: exactly half is not more than half",
            ),
            (&[usize::MAX, 3], &[usize::MAX, 2], true, "no overflow: two thirds"),
            (&[1, 1, 1, 1, 1, 1, 600], &[1, 1, 1, 1, 1, 1, 400], true, "rank 7 like any other"),
            (&[10, 100], &[100, 10], false, "0.1 each"),
        ];
        for (a, b, expected, why) in cases {
            assert_eq!(merge(a, b), expected, "{a:?} with {b:?}: {why}");
            assert_eq!(merge(b, a), expected, "{b:?} with {a:?}: {why}");
        }
    }

    #[test]
    fn the_bounds_are_exclusive() {
        assert!(
            !may_pad(&[256], &[512], 4, &rule()),
            "half is not more than half, 1024 bytes not less than 1024"
        );
        assert!(may_pad(&[257], &[512], 4, &rule()), "1020 bytes");
        assert!(!may_pad(&[1000], &[2000], 1, &PadRule { slack_bytes: 1000, ..rule() }));
        assert!(may_pad(&[1001], &[2000], 1, &PadRule { slack_bytes: 0, ..rule() }));
        assert!(!may_pad(
            &[1000],
            &[1001],
            1,
            &PadRule { similarity: 1.0, slack_bytes: 1, ..rule() }
        ));
    }

    #[test]
    fn buckets_round_up_and_larger_sizes_stay() {
        let buckets = [64, 128, 320];
        let rounded: Vec<usize> =
            [0, 1, 64, 65, 320, 321].iter().map(|&s| round_up(s, &buckets)).collect();
        assert_eq!(rounded, [64, 64, 64, 128, 320, 321]);
        assert_eq!(round_up(7, &[]), 7);
    }
}
