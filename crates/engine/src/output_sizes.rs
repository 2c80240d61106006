//! Sizes of outputs, to detect sizes that depend on more than the sizes of the inputs.

use std::collections::{HashMap, HashSet};

use parking_lot::Mutex;

/// Maximum remembered questions of a version. Runs of others are not compared.
const QUESTIONS_MAX: usize = 256;

/// Evidence about the sizes of outputs.
#[derive(Debug, Default)]
pub(crate) struct OutputSizes {
    /// Hashes of the sizes of the outputs of runs, by the hash of their question.
    known: Mutex<HashMap<u64, u64>>,
    /// Hashes of the names of outputs that a run of one item was compared with.
    compared: Mutex<HashSet<u64>>,
}

impl OutputSizes {
    /// Returns true if an earlier run of the question had other sizes. Remembers those of the first
    /// run.
    pub(crate) fn differ(&self, question: u64, sizes: u64) -> bool {
        let mut known = self.known.lock();
        if let Some(&earlier) = known.get(&question) {
            return earlier != sizes;
        }
        if known.len() < QUESTIONS_MAX {
            known.insert(question, sizes);
        }
        false
    }

    /// Returns true if the outputs with this hash of their names were compared. Also true for
    /// further ones after [`QUESTIONS_MAX`].
    pub(crate) fn are_compared(&self, outputs: u64) -> bool {
        let compared = self.compared.lock();
        compared.len() >= QUESTIONS_MAX || compared.contains(&outputs)
    }

    /// Records that the outputs with this hash of their names were compared.
    pub(crate) fn set_compared(&self, outputs: u64) {
        let mut compared = self.compared.lock();
        if compared.len() < QUESTIONS_MAX {
            compared.insert(outputs);
        }
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

    #[test]
    fn outputs_are_compared_once() {
        let sizes = OutputSizes::default();
        sizes.set_compared(1);
        assert!(sizes.are_compared(1) && !sizes.are_compared(2));
        let questions = QUESTIONS_MAX as u64;
        (0..2 * questions).for_each(|outputs| sizes.set_compared(outputs));
        assert!(sizes.are_compared(2 * questions - 1), "one question too many");
    }
}
