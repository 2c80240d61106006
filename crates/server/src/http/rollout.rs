//! Rollouts over HTTP: their state, and requests of administrators about them.

use std::time::SystemTime;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, State};
use base::{Error, Result};
use http::HeaderMap;
use lifecycle::{
    ArmFigures, RolloutAction, RolloutDefaults, RolloutHistory, RolloutReport, RolloutStart,
};
use serde_json::{Value, json};
use transport::access::{AdminRequest, Caller};
use transport::{Peer, Reply, Shared};

use super::oip::ModelPath;
use crate::admin;
use crate::models::ModelsState;

/// Body of a request of an administrator.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct RolloutRequest {
    action: RolloutVerb,
    version: Option<u64>,
    traffic: Option<f64>,
    shadow: Option<f64>,
}

#[derive(Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
enum RolloutVerb {
    Start,
    Promote,
    Rollback,
}

impl RolloutRequest {
    /// Returns the action that the request asks of the lifecycle.
    ///
    /// # Errors
    /// `InvalidArgument` for a share without effect.
    fn action(&self) -> Result<RolloutAction> {
        let RolloutRequest { action, version, traffic, shadow } = *self;
        if action != RolloutVerb::Start && (traffic.is_some() || shadow.is_some()) {
            return Err(Error::invalid("\"traffic\" and \"shadow\" are for the action \"start\""));
        }
        Ok(match action {
            RolloutVerb::Start => RolloutAction::Start(RolloutStart { version, traffic, shadow }),
            RolloutVerb::Promote => RolloutAction::Promote(version),
            RolloutVerb::Rollback => RolloutAction::RollBack(version),
        })
    }
}

pub(super) async fn show(
    State(state): Shared<ModelsState>,
    Path(target): Path<ModelPath>,
) -> Reply {
    Reply::of(status(&state, &target.model))
}

pub(super) async fn change(
    State(state): Shared<ModelsState>,
    Path(target): Path<ModelPath>,
    Extension(peer): Extension<Peer>,
    headers: HeaderMap,
    body: Body,
) -> Reply {
    let caller = Caller { peer: Some(peer), headers: &headers };
    let call = AdminRequest {
        calls: admin::ROLLOUT_CALL,
        action: "change rollout",
        subject: &target.model,
        caller,
    };
    let changed = async {
        let request: RolloutRequest = state.requests.read_json(&headers, body).await?;
        admin::rollout(&state.lifecycle, &target.model, request.action()?).await?;
        status(&state, &target.model)
    };
    Reply::of(state.access.admin(call, changed).await)
}

fn status(state: &ModelsState, model: &str) -> Result<Reply> {
    let catalog = state.lifecycle.catalog();
    let report = catalog.rollout(model).ok_or_else(|| catalog.unknown(model))?;
    Ok(Reply::json(body(model, &report).to_string()))
}

/// Returns the JSON of a rollout's report.
fn body(model: &str, report: &RolloutReport) -> Value {
    let RolloutReport { of_stable, of_candidate, .. } = report;
    let p99_ms = |arm: &ArmFigures| arm.p99().map(|p99| p99.as_secs_f64() * 1e3);
    json!({
        "model": model,
        "state": report.state.name(),
        "stable": report.stable,
        "candidate": report.candidate,
        "traffic": report.traffic,
        "shadow": report.shadow,
        "requests": { "stable": of_stable.requests, "candidate": of_candidate.requests },
        "errors": { "stable": of_stable.errors, "candidate": of_candidate.errors },
        "p99_ms": { "stable": p99_ms(of_stable), "candidate": p99_ms(of_candidate) },
        "overflow": report.overflowed,
        "drift": report.drift,
        "reason": report.reason,
        "history": report.history.iter().map(ended).collect::<Vec<_>>(),
        "defaults": defaults_json(&report.defaults),
    })
}

fn defaults_json(defaults: &RolloutDefaults) -> Value {
    json!({
        "traffic": defaults.traffic,
        "shadow": defaults.shadow,
        "promote": defaults.promote.to_string(),
        "rollback": {
            "errors": defaults.errors,
            "latency": defaults.latency,
            "latency_samples": defaults.latency_samples,
            "drift": defaults.drift,
        },
    })
}

/// Returns the JSON of a rollout that has ended.
fn ended(rollout: &RolloutHistory) -> Value {
    let seconds = |at: SystemTime| base::unix_time(at).as_secs();
    json!({
        "stable": rollout.stable,
        "candidate": rollout.candidate,
        "state": rollout.state.name(),
        "reason": rollout.reason,
        "requests": rollout.requests,
        "errors": rollout.errors,
        "at": seconds(rollout.at),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_settings_of_the_next_rollout_are_listed() {
        let body = body("m", &RolloutReport::default());
        assert_eq!(body["state"], "none");
        let defaults = json!({
            "traffic": 0.0, "shadow": 0.0, "promote": "requests:2000",
            "rollback": { "errors": 0.001, "latency": 1.2, "latency_samples": 200, "drift": null },
        });
        assert_eq!(body["defaults"], defaults);
    }
}
