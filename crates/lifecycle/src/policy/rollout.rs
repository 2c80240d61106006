//! Roles of versions in a rollout, and its end. Pure: the results depend on the arguments only.

use std::time::Duration;

use super::VersionView;
use ::rollout::{
    Promotion, RollbackLimits, RolloutFigures, RolloutSettings, RolloutSplit, RunCost,
    SLOWER_RATIO, TrialCounts, lower_bound, slowdown, upper_bound,
};

/// Probability that a rollout withdraws a version that is no worse than its limits allow.
const FALSE_ROLLBACK_MAX: f64 = 0.01;
/// Number of limits of a rollout: errors, latency, drift.
const LIMITS: f64 = 3.0;
/// Probability that the bound of one version for one limit is wrong. The versions and the limits
/// share [`FALSE_ROLLBACK_MAX`] equally.
const LEVEL: f64 = FALSE_ROLLBACK_MAX / LIMITS / 2.0;

/// Requests of the candidate before its overflow is judged.
const OVERFLOW_SAMPLES: u64 = 64;
/// Share of the candidate's requests that may overflow to stable.
const OVERFLOW_SHARE_MAX: f64 = 0.5;

/// Versions that answer requests without a version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct VersionRoles {
    /// Version of all requests that do not go to the candidate.
    pub(crate) stable: Option<u64>,
    /// New version that a rollout compares with `stable`.
    pub(crate) candidate: Option<u64>,
}

/// Rollouts that the settings or an administrator request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RolloutIntent {
    /// True if each new version is rolled out.
    pub(crate) automatic: bool,
    /// Version that an administrator rolls out.
    pub(crate) requested: Option<u64>,
}

/// Returns the roles that follow `before`. The stable version stays so while it is ready and a
/// rollout of a higher version is wanted. Otherwise the highest version is stable. A version that
/// was withdrawn has a role only if no other version is ready.
pub(crate) fn assign(
    before: VersionRoles,
    intent: RolloutIntent,
    views: &[VersionView],
) -> VersionRoles {
    let serves = |view: &&VersionView| view.ready && !view.withdrawn;
    let highest = views.iter().filter(serves).map(|view| view.version).max();
    let Some(highest) = highest else {
        let ready = |version: &u64| views.iter().any(|v| v.version == *version && v.ready);
        let any = views.iter().filter(|view| view.ready).map(|view| view.version).max();
        return VersionRoles { stable: before.stable.filter(ready).or(any), candidate: None };
    };
    let known = |version: &u64| views.iter().filter(serves).any(|view| view.version == *version);
    let above = |version: u64| before.stable.is_none_or(|stable| version > stable);
    let holds = intent.automatic || intent.requested.is_some_and(above);
    let stable = before.stable.filter(|_| holds).filter(known).unwrap_or(highest);
    let higher = |version: &u64| *version > stable;
    // A requested version that is stable already must not keep a newer one from its rollout.
    let requested = intent.requested.filter(known).filter(higher);
    let newest = Some(highest).filter(|_| intent.automatic);
    let candidate = requested.or(newest).filter(higher);
    VersionRoles { stable: Some(stable), candidate }
}

/// Marks the version that must stay ready for a rollout.
pub(crate) fn keep(roles: VersionRoles, views: &mut [VersionView]) {
    if roles.candidate.is_none() {
        return;
    }
    for view in views.iter_mut().filter(|view| Some(view.version) == roles.stable) {
        view.kept = true;
    }
}

/// Decision about a running rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RolloutVerdict {
    Continue,
    /// The candidate becomes stable, for this reason.
    Promote(String),
    RollBack(RollbackReason),
}

/// Reason for which a version is withdrawn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RollbackReason {
    /// Name of the limit, for metrics.
    pub(crate) kind: &'static str,
    pub(crate) message: String,
}

/// Decides about a rollout that has run for `elapsed`.
pub(crate) fn judge(
    settings: &RolloutSettings,
    figures: &RolloutFigures,
    elapsed: Duration,
) -> RolloutVerdict {
    let RolloutSettings { split, promote, limits, .. } = settings;
    let broken = errors(limits, figures)
        .or_else(|| latency(limits, figures))
        .or_else(|| drift(*split, limits, figures))
        .or_else(|| overflow(limits, figures));
    if let Some(reason) = broken {
        return RolloutVerdict::RollBack(reason);
    }
    let requests = figures.candidate.requests;
    match promote {
        Promotion::Requests(wanted) if requests >= *wanted => {
            RolloutVerdict::Promote(format!("no limit was reached in {requests} requests"))
        }
        Promotion::Time(time) if elapsed >= *time => RolloutVerdict::Promote(format!(
            "no limit was reached in {} s and {requests} requests",
            elapsed.as_secs()
        )),
        _ => RolloutVerdict::Continue,
    }
}

/// Returns a reason if the candidate provably fails more requests than the limit allows.
fn errors(limits: &RollbackLimits, figures: &RolloutFigures) -> Option<RollbackReason> {
    let limit = limits.errors?;
    let [stable, candidate] = [&figures.stable, &figures.candidate];
    // The bounds are on the far sides of the rates.
    let rate = |errors: u64, requests: u64| errors as f64 / requests.max(1) as f64;
    if rate(candidate.errors, candidate.requests) <= rate(stable.errors, stable.requests) + limit {
        return None;
    }
    let above = lower_bound(TrialCounts::rare(candidate.errors, candidate.requests), LEVEL);
    let below = upper_bound(TrialCounts::rare(stable.errors, stable.requests), LEVEL);
    (above > below + limit).then(|| RollbackReason {
        kind: "errors",
        message: format!(
            "{} of its {} requests failed, and {} of {} on the stable version; the limit is {} % more",
            candidate.errors,
            candidate.requests,
            stable.errors,
            stable.requests,
            limit * 100.0
        ),
    })
}

/// Returns a reason if the candidate's 99th percentile is provably above the limit, a multiple of
/// that of the stable version.
fn latency(limits: &RollbackLimits, figures: &RolloutFigures) -> Option<RollbackReason> {
    let limit = limits.latency?;
    let [stable, candidate] = [&figures.stable.latency, &figures.candidate.latency];
    if candidate.total() < limits.latency_samples {
        return None;
    }
    let above = candidate.p99_above(LEVEL) as f64;
    let below = stable.p99_below(LEVEL)? as f64;
    let p99 =
        |counts: &::rollout::LatencyCounts| counts.p99().unwrap_or_default().as_secs_f64() * 1e3;
    (above > below * limit).then(|| RollbackReason {
        kind: "latency",
        message: format!(
            "its p99 is {:.2} ms in {} requests, and {:.2} ms on the stable version; the limit is \
             {limit} times that",
            p99(candidate),
            candidate.total(),
            p99(stable)
        ),
    })
}

/// Returns a reason if the candidate's answers provably differ by more than the limit. Copies of
/// requests are compared one by one, and a share of requests by the distributions of outputs.
fn drift(
    split: RolloutSplit,
    limits: &RollbackLimits,
    figures: &RolloutFigures,
) -> Option<RollbackReason> {
    let limit = limits.drift?;
    let message = match split {
        RolloutSplit::Shadow(_) => {
            let differing = figures.differing;
            let answered = figures.candidate.answered();
            let proven = lower_bound(TrialCounts::rare(differing, answered), LEVEL);
            (proven > limit).then(|| {
                format!(
                    "{differing} of its {answered} answers differ from those of the stable version; \
                     the limit is {} %",
                    limit * 100.0
                )
            })
        }
        RolloutSplit::Traffic(_) => {
            let drift = figures.outputs.as_ref()?.drift(limit, LEVEL)?;
            (drift.proven > limit).then(|| {
                format!(
                    "the distribution of the {} moved by {:.3} in {} requests; the limit is {limit}",
                    drift.of, drift.distance, figures.candidate.requests
                )
            })
        }
    };
    message.map(|message| RollbackReason { kind: "drift", message })
}

/// Judges a candidate that is so slow that most of its requests overflow. It may never answer
/// enough requests for the other limits. Overflow is not noise, because only a slower version has a
/// maximum.
fn overflow(limits: &RollbackLimits, figures: &RolloutFigures) -> Option<RollbackReason> {
    limits.latency?;
    let [stable, candidate] = [&figures.stable, &figures.candidate];
    let slower = slowdown(stable.cost, candidate.cost)? > SLOWER_RATIO;
    let assigned = candidate.requests + figures.overflowed;
    let overflows = figures.overflowed as f64 > OVERFLOW_SHARE_MAX * assigned as f64;
    if !slower || !overflows || candidate.requests < OVERFLOW_SAMPLES {
        return None;
    }
    let mean_ms = |cost: RunCost| cost.mean_time().unwrap_or_default() * 1e3;
    Some(RollbackReason {
        kind: "overflow",
        message: format!(
            "its run takes {:.2} ms on average, and {:.2} ms on the stable version, which had to \
             answer {} of its {assigned} requests",
            mean_ms(candidate.cost),
            mean_ms(stable.cost),
            figures.overflowed
        ),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use ::rollout::ArmFigures;
    use ::rollout::LatencyCounts;

    fn view(version: u64, ready: bool, withdrawn: bool) -> VersionView {
        VersionView { version, ready, withdrawn, on_disk: true, ..VersionView::default() }
    }

    fn roles(stable: u64, candidate: Option<u64>) -> VersionRoles {
        VersionRoles { stable: Some(stable), candidate }
    }

    const AUTOMATIC: RolloutIntent = RolloutIntent { automatic: true, requested: None };

    #[test]
    fn a_new_version_is_the_candidate() {
        let one = [view(1, true, false)];
        assert_eq!(assign(VersionRoles::default(), AUTOMATIC, &one), roles(1, None));
        let two = [view(1, true, false), view(2, true, false)];
        assert_eq!(assign(roles(1, None), AUTOMATIC, &two), roles(1, Some(2)));
        assert_eq!(assign(roles(1, None), RolloutIntent::default(), &two), roles(2, None));
        let requested = RolloutIntent { automatic: false, requested: Some(2) };
        assert_eq!(assign(roles(1, None), requested, &two), roles(1, Some(2)));
        let loading = [view(1, true, false), view(2, false, false)];
        assert_eq!(assign(roles(1, None), requested, &loading), roles(1, None));
        let newer = [view(2, true, false), view(3, true, false)];
        assert_eq!(
            assign(roles(2, None), requested, &newer),
            roles(3, None),
            "2 is stable already"
        );
        let both = RolloutIntent { automatic: true, ..requested };
        assert_eq!(assign(roles(2, None), both, &newer), roles(2, Some(3)));
    }

    #[test]
    fn a_withdrawn_version_has_no_role() {
        let views = [view(1, true, false), view(2, true, true)];
        assert_eq!(assign(roles(1, Some(2)), AUTOMATIC, &views), roles(1, None));
        let alone = [view(1, false, false), view(2, true, true)];
        assert_eq!(assign(roles(2, None), AUTOMATIC, &alone), roles(2, None), "until 1 is ready");
        assert_eq!(assign(roles(2, None), AUTOMATIC, &views), roles(1, None));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn roles_belong_to_ready_versions(
            states in proptest::collection::vec((any::<bool>(), any::<bool>()), 1..6),
            stable in proptest::option::of(0u64..6),
            requested in proptest::option::of(0u64..6),
            automatic in any::<bool>(),
        ) {
            let mut views: Vec<VersionView> = (0..).zip(&states).map(|(version, (ready, withdrawn))| view(version, *ready, *withdrawn)).collect();
            let before = VersionRoles { stable, candidate: None };
            let after = assign(before, RolloutIntent { automatic, requested }, &views);
            let of = |version: Option<u64>| views.iter().find(|view| Some(view.version) == version);
            let serves = |view: &VersionView| view.ready && !view.withdrawn;
            prop_assert_eq!(after.stable.is_some(), views.iter().any(|view| view.ready), "a ready model answers");
            prop_assert!(after.stable.is_none() || of(after.stable).is_some_and(|view| view.ready));
            if views.iter().any(serves) {
                prop_assert!(of(after.stable).is_some_and(serves));
            }
            if let Some(candidate) = after.candidate {
                prop_assert!(of(Some(candidate)).is_some_and(serves) && Some(candidate) > after.stable);
                prop_assert!(automatic || requested == Some(candidate));
            }
            if (automatic || requested > stable) && of(stable).is_some_and(serves) {
                prop_assert_eq!(after.stable, stable, "a rollout keeps the stable version");
            }
            // The result is a fixed point.
            prop_assert_eq!(assign(after, RolloutIntent { automatic, requested }, &views), after);
            keep(after, &mut views);
            let kept = views.iter().filter(|view| view.kept).map(|view| view.version);
            let expected: Vec<u64> = after.candidate.and(after.stable).into_iter().collect();
            prop_assert_eq!(kept.collect::<Vec<_>>(), expected);
        }
    }

    fn settings(split: RolloutSplit) -> RolloutSettings {
        RolloutSettings {
            split,
            tolerance: 1e-3,
            promote: Promotion::Requests(2000),
            limits: RollbackLimits {
                errors: Some(0.001),
                latency: Some(1.2),
                latency_samples: 200,
                drift: Some(0.01),
            },
        }
    }

    fn arm(requests: u64, errors: u64, micros: impl Fn(u64) -> u64) -> ArmFigures {
        let time: Duration =
            (0..requests - errors).map(|at| Duration::from_micros(micros(at))).sum();
        ArmFigures {
            requests,
            errors,
            latency: LatencyCounts::of((0..requests - errors).map(&micros)),
            cost: RunCost { runs: requests - errors, time, occupied: time },
        }
    }

    fn kind(figures: &RolloutFigures) -> &'static str {
        match judge(&settings(RolloutSplit::Traffic(0.05)), figures, Duration::ZERO) {
            RolloutVerdict::Continue => "continue",
            RolloutVerdict::Promote(_) => "promote",
            RolloutVerdict::RollBack(reason) => reason.kind,
        }
    }

    /// Returns a latency between 2 and 3 ms.
    fn usual(at: u64) -> u64 {
        2_000 + at * 7_919 % 1_000
    }

    #[test]
    fn an_equal_version_is_promoted() {
        let figures = |requests| RolloutFigures {
            stable: arm(19 * requests, 19, usual),
            candidate: arm(requests, 1, usual),
            ..RolloutFigures::default()
        };
        assert_eq!(kind(&figures(1_999)), "continue");
        assert_eq!(kind(&figures(2_000)), "promote");
    }

    #[test]
    fn a_worse_version_is_withdrawn_within_2000_requests() {
        let stable = arm(38_000, 0, usual);
        let with = |candidate| RolloutFigures {
            stable: stable.clone(),
            candidate,
            ..RolloutFigures::default()
        };
        assert_eq!(kind(&with(arm(1_900, 19, usual))), "errors");
        assert_eq!(kind(&with(arm(200, 0, |at| usual(at) + 10_000))), "latency");
        assert_eq!(
            kind(&with(arm(199, 0, |at| usual(at) + 10_000))),
            "continue",
            "too few samples"
        );
        assert_eq!(
            kind(&with(arm(1_000, 0, |at| usual(at) + 100))),
            "continue",
            "within 1.2 times"
        );
    }

    #[test]
    fn a_version_whose_requests_overflow_is_withdrawn() {
        let with = |requests, overflowed, extra| RolloutFigures {
            stable: arm(1_000, 0, usual),
            candidate: arm(requests, 0, |at| usual(at) + extra),
            overflowed,
            ..RolloutFigures::default()
        };
        assert_eq!(kind(&with(64, 65, 10_000)), "overflow");
        assert_eq!(kind(&with(64, 63, 10_000)), "continue", "most requests had room");
        assert_eq!(kind(&with(63, 200, 10_000)), "continue", "too few samples");
        assert_eq!(kind(&with(100, 200, 100)), "continue", "not slower: a burst at the start");
    }

    #[test]
    fn differing_copies_withdraw_a_version() {
        let figures = |differing| RolloutFigures {
            stable: arm(5_000, 0, usual),
            candidate: arm(1_000, 0, usual),
            differing,
            ..RolloutFigures::default()
        };
        let settings = settings(RolloutSplit::Shadow(0.2));
        let verdict = |differing| judge(&settings, &figures(differing), Duration::ZERO);
        assert_eq!(verdict(10), RolloutVerdict::Continue, "1 % is the limit");
        let RolloutVerdict::RollBack(reason) = verdict(60) else { panic!("60 of 1000 differ") };
        assert!(reason.message.starts_with("60 of its 1000 answers differ"), "{}", reason.message);
    }

    #[test]
    fn time_promotes() {
        let settings = RolloutSettings {
            promote: Promotion::Time(Duration::from_secs(60)),
            ..settings(RolloutSplit::Traffic(0.5))
        };
        let at =
            |seconds| judge(&settings, &RolloutFigures::default(), Duration::from_secs(seconds));
        assert_eq!(at(59), RolloutVerdict::Continue);
        assert!(matches!(at(60), RolloutVerdict::Promote(_)));
        let hand = RolloutSettings { promote: Promotion::Hand, ..settings };
        assert_eq!(
            judge(&hand, &RolloutFigures::default(), Duration::MAX),
            RolloutVerdict::Continue
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

        /// Judges after each request, at equal rates. A test of fixed size would withdraw most of
        /// these.
        #[test]
        fn noise_withdraws_no_equal_version(seed in any::<u64>()) {
            let mut state = seed;
            let mut random = move || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) as f64 / (1u64 << 31) as f64
            };
            let limits = RollbackLimits { errors: Some(0.0), latency: None, latency_samples: 0, drift: None };
            let mut figures = RolloutFigures::default();
            for _ in 0..1_000 {
                for (arm, count) in [(&mut figures.stable, 9), (&mut figures.candidate, 1)] {
                    arm.requests += count;
                    arm.errors += (0..count).filter(|_| random() < 0.02).count() as u64;
                }
                prop_assert!(errors(&limits, &figures).is_none(), "{figures:?}");
            }
        }
    }
}
