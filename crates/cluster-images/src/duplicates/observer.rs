//! Decision if a job runs, from its newest step.

use std::time::Duration;

use search::duplicates::DuplicateState;

use super::steps::JobStep;

/// Age of the newest step after which a running job counts as interrupted. A running job creates
/// steps much more often. Clocks of nodes differ less.
const STEP_AGE_MAX: Duration = Duration::from_secs(120);

/// Facts by which a root decides if a job runs.
pub(super) struct RunObserver<'a> {
    /// Name of this node.
    pub(super) node: &'a str,
    /// Token of the run on this node, if the job runs here.
    pub(super) run: Option<&'a str>,
    /// True if the node of the step is in the cluster.
    pub(super) is_alive: bool,
    pub(super) now_ms: u64,
}

impl RunObserver<'_> {
    /// Returns true if a root works on the job of this step. A mistake costs no pair. Of two roots
    /// that both work on a job, one cannot create its next step and ends.
    pub(super) fn runs(&self, step: &JobStep) -> bool {
        if step.removed || step.progress.state != DuplicateState::Running {
            return false;
        }
        if step.node == self.node {
            // Another token belongs to an earlier process.
            return self.run == Some(step.run.as_str());
        }
        let age = Duration::from_millis(self.now_ms.saturating_sub(step.written_ms));
        self.is_alive && age < STEP_AGE_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::super::steps::tests::step;
    use super::*;

    #[test]
    fn a_job_runs_while_its_node_creates_steps() {
        let mut step = step("a", "run-1");
        step.written_ms = 1_000_000;
        let age = STEP_AGE_MAX.as_millis() as u64;
        let other = |is_alive, now_ms| RunObserver { node: "b", run: None, is_alive, now_ms };
        assert!(other(true, 1_000_000).runs(&step));
        // A clock that is late.
        assert!(other(true, 0).runs(&step));
        assert!(other(true, 999_999 + age).runs(&step));
        assert!(!other(true, 1_000_000 + age).runs(&step));
        assert!(!other(false, 1_000_000).runs(&step));
        let own = |run| RunObserver { node: "a", run, is_alive: true, now_ms: 1_000_000 };
        assert!(own(Some("run-1")).runs(&step));
        assert!(!own(Some("run-2")).runs(&step));
        assert!(!own(None).runs(&step));
        step.removed = true;
        assert!(!other(true, 1_000_000).runs(&step));
        step.removed = false;
        step.progress.state = DuplicateState::Cancelled;
        assert!(!other(true, 1_000_000).runs(&step));
    }
}
