//! One server with one model, whose settings change from arm to arm.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::Result;
use bytes::Bytes;

use super::point::{BatchTurn, BatchWindow};
use super::{BatchArgs, BatchArm};
use crate::models::answers::ExpectedAnswers;
use crate::models::workload::{Workload, WorkloadModel};
use loadgen::BenchEnv;
use loadgen::cache;
use loadgen::connection::Template;
use loadgen::drive::{DrivePlan, Judge, LoadLoop, SampleSink, drive};
use loadgen::process::{ServerPlan, ServerProcess};
use loadgen::samples::Faults;
use loadgen::scrape::Scrape;
use loadgen::settings;
use loadgen::wire::{Api, ModelEndpoint};

/// Time in which connections are made.
const LEAD_IN: Duration = Duration::from_millis(100);
/// Time at the start of each measurement that does not count.
const WARM_UP: Duration = Duration::from_millis(400);
/// Time of the requests that each arm gets before anything is measured. The server learns from them
/// what merging costs, and all models settle in memory.
const ARM_WARM_UP: Duration = Duration::from_secs(2);
/// Number of clients of the requests before anything is measured.
const ARM_WARM_UP_CLIENTS: usize = 32;

/// A running server, and the requests of its arms.
pub(super) struct Arms<'a> {
    args: &'a BatchArgs,
    model: WorkloadModel,
    dir: PathBuf,
    server: ServerProcess,
    answers: Arc<ExpectedAnswers>,
    template: Template,
    bodies: Arc<[Bytes]>,
    round: usize,
    /// Arm whose settings the server has.
    current: Cell<Option<BatchArm>>,
}

impl<'a> Arms<'a> {
    /// Publishes the model and starts the server. All arms use one loaded session, because the
    /// position of the weights in memory shows in the engine's speed.
    pub(super) fn start(
        args: &'a BatchArgs,
        env: &BenchEnv,
        workload: &Workload,
        round: usize,
    ) -> Result<Arms<'a>> {
        let model = workload.model;
        let dir = env.cache_dir.join("run").join("batch").join(model.name());
        let first = args.arms.first().copied();
        publish(&workload.artifact, &dir, &text(model, first.unwrap_or(BatchArm::Sync), args))?;
        let mut server_args = vec![
            format!("{}={}", model.name(), dir.display()),
            "--poll".into(),
            settings::POLL.into(),
        ];
        server_args.extend(args.server_arg.iter().cloned());
        let plan = ServerPlan::new(format!("batch-{}", model.name()), server_args);
        let server = ServerProcess::start(env, &plan)?;
        let endpoint = ModelEndpoint {
            endpoint: server.grpc(),
            api: Api::Oip,
            model: model.name().to_owned(),
        };
        let encoded = endpoint.encode(&workload.requests)?;
        let template = encoded.template;
        let bodies = encoded.bodies.into();
        let answers = workload.answers.clone();
        let current = Cell::new(first);
        Ok(Arms { args, model, dir, server, answers, template, bodies, round, current })
    }

    /// Makes the server apply the settings of `arm`.
    fn switch(&self, arm: BatchArm) -> Result<()> {
        if self.current.get() == Some(arm) {
            return Ok(());
        }
        settings::apply(
            &self.server,
            self.model.name(),
            &self.dir,
            &text(self.model, arm, self.args),
        )?;
        self.current.set(Some(arm));
        Ok(())
    }

    /// Sends requests to every arm for a while, without measuring. Returns failures and wrong
    /// answers.
    pub(super) fn warm_up(&self) -> Result<Vec<(BatchArm, Faults)>> {
        let clients = self.args.clients.iter().copied().max().unwrap_or(1).min(ARM_WARM_UP_CLIENTS);
        let time = if self.args.quick { self.args.time } else { ARM_WARM_UP };
        let faults = |&arm: &BatchArm| Ok((arm, self.measure(arm, clients, time)?.seen.faults));
        self.args.arms.iter().map(faults).collect()
    }

    /// Measures an arm for `time`.
    pub(super) fn measure(
        &self,
        arm: BatchArm,
        clients: usize,
        time: Duration,
    ) -> Result<BatchTurn> {
        self.switch(arm)?;
        let end = WARM_UP + time;
        let pace = LoadLoop::Closed { clients };
        let mut plan = DrivePlan::new(
            self.server.grpc(),
            self.template.clone(),
            self.bodies.clone(),
            pace,
            end,
        );
        let before = self.server.metrics()?;
        plan.start = Instant::now() + LEAD_IN;
        let window = Arc::new(BatchWindow::new(WARM_UP, end));
        let (judge, sink): (Arc<dyn Judge>, Arc<dyn SampleSink>) =
            (self.answers.clone(), window.clone());
        drive(&plan, &judge, &sink)?;
        let after = self.server.metrics()?;
        let runs = ModelCounts::between(&before, &after, self.model.name());
        Ok(BatchTurn {
            arm,
            clients,
            round: self.round,
            seen: window.take(),
            runs,
            drift: self.answers.take_drift(),
        })
    }

    pub(super) fn stop(self) -> Result<()> {
        self.server.stop()
    }
}

/// Counters of a model during a measurement, its warm-up included.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct ModelCounts {
    pub(super) batches: f64,
    pub(super) items: f64,
    pub(super) real_elements: f64,
    pub(super) padding_elements: f64,
}

impl ModelCounts {
    fn between(before: &Scrape, after: &Scrape, model: &str) -> ModelCounts {
        let delta = |name: &str, labels: &[(&str, &str)]| {
            let mut all = vec![("model", model)];
            all.extend_from_slice(labels);
            after.sum(name, &all) - before.sum(name, &all)
        };
        ModelCounts {
            batches: delta("millpond_batch_size_count", &[]),
            items: delta("millpond_batch_size_sum", &[]),
            real_elements: delta("millpond_input_elements_total", &[("kind", "real")]),
            padding_elements: delta("millpond_input_elements_total", &[("kind", "padding")]),
        }
    }

    /// Returns the sum of both.
    pub(super) fn and(self, other: ModelCounts) -> ModelCounts {
        ModelCounts {
            batches: self.batches + other.batches,
            items: self.items + other.items,
            real_elements: self.real_elements + other.real_elements,
            padding_elements: self.padding_elements + other.padding_elements,
        }
    }
}

/// Returns the arm's `millpond.toml`.
fn text(model: WorkloadModel, arm: BatchArm, args: &BatchArgs) -> String {
    let schedule = match arm {
        BatchArm::Sync => "mode = \"sync\"\n".to_owned(),
        BatchArm::Async | BatchArm::Padding => format!(
            "mode = \"async\"\nmax-batch = {}\nalways-merge = {}\n",
            args.max_batch, args.always_merge
        ),
    };
    model.settings(&schedule, arm == BatchArm::Padding)
}

/// Publishes `artifact` as version 1 of a model at `dir`, with the settings `text`.
pub(crate) fn publish(artifact: &Path, dir: &Path, text: &str) -> Result<()> {
    cache::create_empty_dir(dir)?;
    settings::put(dir, text)?;
    cache::publish_link(artifact, dir, 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::tests::parse;

    #[test]
    fn only_the_padding_arm_pads_and_every_arm_has_its_mask() {
        let args = parse("--max-batch 16 --always-merge").unwrap();
        for arm in [BatchArm::Sync, BatchArm::Async, BatchArm::Padding] {
            let text = super::text(WorkloadModel::Conv, arm, &args);
            assert!(text.contains("mask = \"mask\""), "{text}");
            assert_eq!(text.contains("merge = \"pad\""), arm == BatchArm::Padding);
            assert_eq!(
                text.contains("max-batch = 16\nalways-merge = true\n"),
                arm != BatchArm::Sync
            );
        }
        let ocr = text(WorkloadModel::Ocr, BatchArm::Padding, &args);
        assert!(
            ocr.contains("[[schedule.outputs.\"softmax_11.tmp_0\"]]")
                && ocr.contains("divisor = 8")
        );
        assert!(!text(WorkloadModel::Ocr, BatchArm::Async, &args).contains("inputs"));
    }

    #[test]
    fn model_counts_are_differences_of_scrapes() {
        let scrape = |batches, items, padding| {
            Scrape::parse(&format!(
                "millpond_batch_size_count{{model=\"a\"}} {batches}\nmillpond_batch_size_count{{model=\"b\"}} 9\n\
                 millpond_batch_size_sum{{model=\"a\"}} {items}\n\
                 millpond_input_elements_total{{model=\"a\",kind=\"real\"}} 10\n\
                 millpond_input_elements_total{{model=\"a\",kind=\"padding\"}} {padding}\n"
            ))
        };
        let runs = ModelCounts::between(&scrape(1, 4, 2), &scrape(3, 12, 5), "a");
        assert_eq!(
            runs,
            ModelCounts { batches: 2.0, items: 8.0, real_elements: 0.0, padding_elements: 3.0 }
        );
        assert_eq!(runs.and(runs).items, 16.0);
    }
}
