//! A run with the processor time of the server's processes.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::sleep;
use std::time::{Duration, Instant};

use base::{Error, Result};

use crate::drive::{DrivePlan, Judge, SampleSink, drive};
use crate::machine::usage_of;
use crate::report::StepProgress;
use crate::samples::{Tally, TallyCounts};

/// Time before the first request, in which connections are made.
const LEAD_IN: Duration = Duration::from_millis(100);
/// Time between two updates of the progress bar.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// Figures of a run.
#[derive(Debug)]
pub struct Measurement {
    /// Requests and latencies after the warm-up.
    pub counted: TallyCounts,
    /// Processor time of all given processes together, or `None` without processes or answers.
    pub cpu_us_per_request: Option<f64>,
}

/// Runs `plan`. All figures leave out its first `warm_up`.
pub fn measure(
    plan: &DrivePlan,
    warm_up: Duration,
    judge: &Arc<dyn Judge>,
    pids: &[u32],
    progress: Option<&StepProgress>,
) -> Result<Measurement> {
    let tally = Arc::new(Tally::new(warm_up));
    let sink: Arc<dyn SampleSink> = tally.clone();
    let mut plan = plan.clone();
    plan.start = Instant::now() + LEAD_IN;
    let look_at = |at: Instant, ended: &Receiver<()>| {
        // Nothing is ever sent, so the wait ends with its time, or with the driver, which may fail
        // at once.
        let _ = ended.recv_timeout(at.saturating_duration_since(Instant::now()));
        (pids.iter().map(|&pid| usage_of(pid).cpu).sum::<Duration>(), tally.count())
    };
    let starts = plan.start + warm_up;
    let ends = plan.start + plan.duration;
    let (running, ended) = channel();
    std::thread::scope(|scope| {
        let plan = &plan;
        let sink = &sink;
        let driver = scope.spawn(move || {
            let _running = running;
            drive(plan, judge, sink)
        });
        // Not the whole run. The warm-up is left out, and so is the end, when clients stop one by
        // one.
        let look_at = &look_at;
        let watcher = scope.spawn(move || (look_at(starts, &ended), look_at(ends, &ended)));
        while let Some(progress) = progress.filter(|_| !driver.is_finished()) {
            progress.at(plan.start.elapsed().min(plan.duration).as_secs(), plan.duration.as_secs());
            progress.say(format!("{} answers", tally.count()));
            sleep(PROGRESS_INTERVAL);
        }
        driver.join().unwrap_or_else(|_| Err(Error::internal("the driver panicked")))?;
        let (before, after) =
            watcher.join().map_err(|_| Error::internal("the watcher panicked"))?;
        let requests = after.1.saturating_sub(before.1);
        let cpu_us = after.0.saturating_sub(before.0).as_secs_f64() * 1e6;
        let cpu_us_per_request =
            (!pids.is_empty() && requests > 0).then(|| cpu_us / requests as f64);
        Ok(Measurement { counted: tally.counted(), cpu_us_per_request })
    })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::connection::{Endpoint, RawResponse, Template, Transport};
    use crate::drive::{Judgement, LoadLoop};

    struct AnyAnswer;

    impl Judge for AnyAnswer {
        fn judge(&self, _shot: usize, _answer: &RawResponse) -> (Judgement, u64) {
            (Judgement::Right, 0)
        }
    }

    #[test]
    fn a_run_without_a_server_fails_at_once() {
        // A socket that does not listen refuses connections, and keeps its port.
        let refusing = tokio::net::TcpSocket::new_v4().unwrap();
        refusing.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let unused = refusing.local_addr().unwrap();
        let endpoint = Endpoint::new(Transport::Http, unused.to_string());
        let template = Template::get(&endpoint, "/").unwrap();
        let shots: Arc<[Bytes]> = Arc::from([Bytes::new()]);
        let pace = LoadLoop::Closed { clients: 1 };
        let plan = DrivePlan::new(endpoint, template, shots, pace, Duration::from_secs(600));
        let begun = Instant::now();
        let judge: Arc<dyn Judge> = Arc::new(AnyAnswer);
        let error = measure(&plan, Duration::from_secs(1), &judge, &[], None).unwrap_err();
        assert_eq!(error.kind(), base::ErrorKind::Unavailable);
        assert!(begun.elapsed() < Duration::from_secs(60));
    }
}
