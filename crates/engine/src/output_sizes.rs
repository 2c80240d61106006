//! Sizes of outputs, to detect sizes that depend on more than the sizes of the inputs.

use std::collections::HashMap;

use parking_lot::Mutex;

/// Maximum remembered questions of a version. Runs of others are not compared.
const QUESTIONS_MAX: usize = 256;

/// Hashes of the sizes of the outputs of runs, by the hash of their question.
#[derive(Debug, Default)]
pub(crate) struct OutputSizes(Mutex<HashMap<u64, u64>>);

impl OutputSizes {
    /// Returns true if an earlier run of the question had other sizes. Remembers those of the first
    /// run.
    pub(crate) fn differ(&self, question: u64, sizes: u64) -> bool {
        let mut known = self.0.lock();
        if let Some(&earlier) = known.get(&question) {
            return earlier != sizes;
        }
        if known.len() < QUESTIONS_MAX {
            known.insert(question, sizes);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_run_of_a_question_counts() {
        let sizes = OutputSizes::default();
        assert!(!sizes.differ(1, 10) && !sizes.differ(2, 20));
        assert!(!sizes.differ(1, 10) && sizes.differ(1, 20) && !sizes.differ(2, 20));
        let questions = QUESTIONS_MAX as u64;
        assert!((3..2 * questions).all(|question| !sizes.differ(question, 0)));
        assert!(!sizes.differ(2 * questions - 1, 1), "one question too many");
    }
}
