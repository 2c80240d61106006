//! Check of a model's threads against the server's inference threads.

use base::{Error, Result};
use engine::{ScheduleOptions, SessionOptions};

/// Checks that one run, and all concurrent runs of the model, fit on `threads_max` inference
/// threads. A model without a setting for `threads` has as many runs as fit.
///
/// # Errors
/// `InvalidArgument` with the remedy.
pub(crate) fn check(
    session: &SessionOptions,
    schedule: &ScheduleOptions,
    threads_max: usize,
) -> Result<()> {
    let settings = [
        ("intra-op-threads", session.intra_op_threads),
        ("inter-op-threads", session.inter_op_threads),
    ];
    if let Some((name, wanted)) = settings.into_iter().find(|(_, wanted)| *wanted > threads_max) {
        return Err(Error::invalid(format!(
            "{name} = {wanted}, but the server has {}; lower it, or start the server with --threads {wanted}",
            inference_threads(threads_max)
        )));
    }
    let runs = schedule.threads.unwrap_or(1);
    let wanted = runs.saturating_mul(session.intra_op_threads);
    if wanted > threads_max {
        return Err(Error::invalid(format!(
            "schedule.threads = {runs} with intra-op-threads = {} takes {wanted} threads, but the server has {}; \
             lower one of them, or start the server with --threads {wanted}",
            session.intra_op_threads,
            inference_threads(threads_max)
        )));
    }
    Ok(())
}

fn inference_threads(count: usize) -> String {
    format!("{count} inference thread{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(intra: usize, inter: usize, runs: Option<usize>, threads_max: usize) -> String {
        let session = SessionOptions {
            intra_op_threads: intra,
            inter_op_threads: inter,
            ..Default::default()
        };
        let schedule = ScheduleOptions { threads: runs, ..ScheduleOptions::default() };
        check(&session, &schedule, threads_max)
            .err()
            .map_or(String::new(), |error| error.message().to_owned())
    }

    #[test]
    fn more_threads_than_the_server_has_are_refused() {
        assert_eq!(verdict(1, 1, None, 1), "");
        assert_eq!(verdict(4, 1, None, 4), "");
        assert_eq!(verdict(2, 1, Some(2), 4), "");
        assert_eq!(verdict(1024, 1, Some(1024), usize::MAX), "");
        assert_eq!(
            verdict(4, 1, None, 2),
            "intra-op-threads = 4, but the server has 2 inference threads; lower it, or start the server with \
             --threads 4"
        );
        assert!(
            verdict(1, 2, None, 1)
                .starts_with("inter-op-threads = 2, but the server has 1 inference thread;")
        );
        assert!(verdict(2, 1, Some(2), 2).contains("takes 4 threads, but the server has 2"));
        assert!(verdict(1, 1, Some(3), 2).contains("start the server with --threads 3"));
    }
}
