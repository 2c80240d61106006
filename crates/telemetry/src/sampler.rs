//! The decision to trace a request. It depends on the trace id, so that all servers with the same
//! rate choose the same traces.

use std::collections::BTreeMap;

use base::{Error, Result};

use crate::context::{TraceContext, TraceId};

/// Maximum number of models with a rate of their own.
const MODEL_RATES_MAX: usize = 10_000;

/// Shares of the requests that are traced.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SamplingRates {
    /// Share of the requests, 0 to 1.
    pub rate: f64,
    /// Rates of models that have one of their own.
    pub models: BTreeMap<String, f64>,
    /// True to follow the flag of a client that sends a trace context, in place of the rates.
    pub parent_based: bool,
}

/// State of the decision before the model of a request is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TraceCandidate {
    /// Not traced, for any model.
    No,
    /// Traced if the rate of its model selects it.
    ByRate,
    /// Traced, because its client traces it.
    Yes,
}

impl SamplingRates {
    /// Checks the rates.
    ///
    /// # Errors
    /// `InvalidArgument` for a rate outside 0 to 1, or for too many models.
    pub fn check(&self) -> Result<()> {
        if self.models.len() > MODEL_RATES_MAX {
            return Err(Error::invalid(format!(
                "more than {MODEL_RATES_MAX} models have a sampling rate of their own"
            )));
        }
        let mut rates = self.models.values().chain([&self.rate]);
        match rates.find(|rate| !(0.0..=1.0).contains(*rate)) {
            Some(rate) => Err(Error::invalid(format!(
                "sampling rate {rate}: it must be 0 to 1, the share of the requests"
            ))),
            None => Ok(()),
        }
    }

    /// Returns the rate of a model.
    pub fn of_model(&self, model: &str) -> f64 {
        self.models.get(model).copied().unwrap_or(self.rate)
    }

    fn max(&self) -> f64 {
        self.models.values().copied().fold(self.rate, f64::max)
    }

    pub(crate) fn with_max(self) -> RatesWithMax {
        RatesWithMax { max: self.max(), rates: self }
    }
}

/// Rates, and the largest of them.
#[derive(Debug, Default)]
pub(crate) struct RatesWithMax {
    pub(crate) rates: SamplingRates,
    max: f64,
}

impl RatesWithMax {
    /// Decides as far as possible without the model.
    pub(crate) fn candidate(
        &self,
        trace: TraceId,
        parent: Option<&TraceContext>,
    ) -> TraceCandidate {
        match parent {
            Some(parent) if self.rates.parent_based => {
                if parent.sampled {
                    TraceCandidate::Yes
                } else {
                    TraceCandidate::No
                }
            }
            _ if trace.fraction() < self.max => TraceCandidate::ByRate,
            _ => TraceCandidate::No,
        }
    }

    /// Returns true if no request can be sampled, so that a trace id need not be made.
    pub(crate) fn never(&self) -> bool {
        self.max <= 0.0 && !self.rates.parent_based
    }

    /// Returns true if a request without a client's trace context is never sampled.
    pub(crate) fn never_without_parent(&self) -> bool {
        self.max <= 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(fraction: f64) -> TraceId {
        TraceId((u128::from((fraction * (1u64 << 56) as f64) as u64) | 1 << 64).to_be_bytes())
    }

    fn rates(rate: f64, parent_based: bool) -> RatesWithMax {
        let models = BTreeMap::from([("hot".to_owned(), 0.5)]);
        SamplingRates { rate, models, parent_based }.with_max()
    }

    #[test]
    fn the_parents_flag_wins() {
        let parent = |sampled| {
            let text = format!("00-{:032x}-{:016x}-0{}", 1, 1, u8::from(sampled));
            TraceContext::parse(&text).unwrap()
        };
        let by_parent = rates(0.0, true);
        assert_eq!(by_parent.candidate(id(0.9), Some(&parent(true))), TraceCandidate::Yes);
        assert_eq!(by_parent.candidate(id(0.1), Some(&parent(false))), TraceCandidate::No);
        let by_rate = rates(0.25, false);
        assert_eq!(by_rate.candidate(id(0.9), Some(&parent(true))), TraceCandidate::No);
        assert_eq!(by_rate.candidate(id(0.1), Some(&parent(false))), TraceCandidate::ByRate);
    }

    #[test]
    fn a_model_has_its_own_rate() {
        let rates = rates(0.25, true);
        assert_eq!(rates.candidate(id(0.4), None), TraceCandidate::ByRate);
        assert_eq!(rates.candidate(id(0.6), None), TraceCandidate::No);
        assert_eq!((rates.rates.of_model("hot"), rates.rates.of_model("other")), (0.5, 0.25));
    }

    #[test]
    fn rates_are_checked() {
        for wrong in [-0.1, 1.1, f64::NAN] {
            let rates = SamplingRates { rate: wrong, ..SamplingRates::default() };
            assert!(rates.check().is_err(), "{wrong}");
            let models = BTreeMap::from([("m".to_owned(), wrong)]);
            assert!(SamplingRates { models, ..SamplingRates::default() }.check().is_err());
        }
        assert!(rates(1.0, true).rates.check().is_ok());
    }
}
