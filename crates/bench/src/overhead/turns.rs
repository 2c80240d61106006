//! The same requests to several servers that take turns under load, so that the drift of a virtual
//! machine's speed affects all equally. Connections are kept.

use std::path::Path;
use std::sync::Arc;

use base::{NamedTensor, Result};
use bytes::Bytes;
use serde::Serialize;

use super::{MODEL, MODEL_SEED, OverheadArgs, REQUEST_SEED, REQUESTS, WARM_UP};
use demo::ctr::{Ctr, CtrContent};
use loadgen::BenchEnv;
use loadgen::cache;
use loadgen::connection::{Endpoint, RawResponse, call_once};
use loadgen::drive::{DrivePlan, Judge, Judgement, LoadLoop};
use loadgen::measure::measure;
use loadgen::process::ServerProcess;
use loadgen::wire::{Api, ModelEndpoint};

/// Least bytes of a request's tensors.
const REQUEST_BYTES: usize = 8 << 10;

/// Figures of one server in one round.
#[derive(Clone, Debug, Serialize)]
pub(super) struct TurnFigures {
    pub(super) rps: f64,
    pub(super) cpu_us: f64,
    pub(super) failed: u64,
    pub(super) wrong: u64,
}

/// Requests by one protocol to each server.
pub(super) struct Turns {
    plans: Vec<DrivePlan>,
    judge: Arc<dyn Judge>,
    pub(super) request_bytes: usize,
}

/// Expects the first answers of the first server.
struct SameAnswers(Vec<Bytes>);

impl Judge for SameAnswers {
    fn judge(&self, shot: usize, answer: &RawResponse) -> (Judgement, u64) {
        let right = self.0.get(shot).is_some_and(|expected| *expected == answer.body);
        (if right { Judgement::Right } else { Judgement::Wrong }, 0)
    }
}

/// Publishes the light model below `dir`, and returns requests of at least [`REQUEST_BYTES`].
pub(super) fn prepare(env: &BenchEnv, dir: &Path) -> Result<Vec<Vec<NamedTensor>>> {
    let ctr = Ctr::light();
    let write = |dir: &Path| ctr.write_layout(CtrContent::of(MODEL_SEED), dir, &|_| {});
    let key = format!("{}-s{MODEL_SEED}", ctr.key());
    let made = cache::ensure(&env.cache_dir, &key, ctr.bytes(), write)?;
    let model_dir = dir.join(MODEL);
    cache::create_empty_dir(&model_dir)?;
    cache::publish_link(&made, &model_dir, 1)?;
    let bytes = |inputs: &[NamedTensor]| -> usize {
        inputs.iter().map(|input| input.tensor.byte_len()).sum()
    };
    let row = bytes(&ctr.inputs(REQUEST_SEED, 0, 1).tensors()?).max(1);
    let rows = REQUEST_BYTES.div_ceil(row);
    (0..REQUESTS).map(|index| ctr.inputs(REQUEST_SEED, index, rows).tensors()).collect()
}

impl Turns {
    /// Encodes the requests for each endpoint. Asks the first one for the answers to expect.
    pub(super) fn new(
        args: &OverheadArgs,
        requests: &[Vec<NamedTensor>],
        endpoints: Vec<Endpoint>,
    ) -> Result<Turns> {
        let plan = |endpoint| -> Result<DrivePlan> {
            let target = ModelEndpoint { endpoint, api: Api::Oip, model: MODEL.into() };
            let encoded = target.encode(requests)?;
            let pace = LoadLoop::Closed { clients: args.clients };
            let duration = WARM_UP + args.duration;
            let template = encoded.template;
            let bodies = encoded.bodies.into();
            let mut plan = DrivePlan::new(target.endpoint, template, bodies, pace, duration);
            plan.connections = args.clients;
            Ok(plan)
        };
        let plans = endpoints.into_iter().map(plan).collect::<Result<Vec<DrivePlan>>>()?;
        let mut expected = Vec::new();
        let mut request_bytes = 0;
        if let Some(first) = plans.first() {
            for body in first.shots.iter() {
                expected.push(call_once(&first.endpoint, &first.template, body.clone())?.body);
            }
            request_bytes = first.shots.first().map_or(0, Bytes::len);
        }
        Ok(Turns { plans, judge: Arc::new(SameAnswers(expected)), request_bytes })
    }

    /// Sends load to each server in turn. `servers` are in the order of the endpoints.
    pub(super) fn round(&self, servers: &[&ServerProcess]) -> Result<Vec<TurnFigures>> {
        let turn = |(plan, server): (&DrivePlan, &&ServerProcess)| -> Result<TurnFigures> {
            let measured = measure(plan, WARM_UP, &self.judge, &[server.pid()], None)?;
            Ok(TurnFigures {
                rps: measured.counted.rate(),
                cpu_us: measured.cpu_us_per_request.unwrap_or(0.0),
                failed: measured.counted.faults.failed,
                wrong: measured.counted.faults.wrong,
            })
        };
        self.plans.iter().zip(servers).map(turn).collect()
    }
}
