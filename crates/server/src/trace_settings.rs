//! Changes of sampling while the server runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::{Error, Result};
use protocol::oip::settings::{TraceChange, TraceSettingValues, changed_trace, trace_settings};
use telemetry::{SamplingRates, Tracer};

/// Describes these calls in the errors of the access check.
pub(crate) const TRACE_ADMIN_CALL: &str = "the sampling of traces is changed";
/// The call in the log of admin calls.
pub(crate) const TRACE_ADMIN_ACTION: &str = "change the sampling of traces";

/// The tracer and its rates at the start, to which cleared settings return.
#[derive(Clone, Debug, Default)]
pub(crate) struct TraceSettings {
    tracer: Option<Arc<Tracer>>,
    initial: SamplingRates,
}

/// A change of rates.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TraceRateChange {
    /// Part of the requests.
    sample: Option<f64>,
    /// Parts of models; `None` follows `sample` again.
    #[serde(default)]
    models: BTreeMap<String, Option<f64>>,
}

impl TraceSettings {
    pub(crate) fn new(tracer: Option<Arc<Tracer>>) -> TraceSettings {
        let initial = tracer.as_ref().map(|tracer| tracer.rates()).unwrap_or_default();
        TraceSettings { tracer, initial }
    }

    fn tracer(&self) -> Result<&Tracer> {
        self.tracer.as_deref().ok_or_else(|| {
            Error::precondition(
                "no request is traced; start the server with --otlp URL, the address of a collector",
            )
        })
    }

    /// Returns the current rates.
    ///
    /// # Errors
    /// `FailedPrecondition` without a collector.
    pub(crate) fn rates(&self) -> Result<SamplingRates> {
        self.tracer().map(Tracer::rates)
    }

    /// Changes rates.
    ///
    /// # Errors
    /// `FailedPrecondition` without a collector; `InvalidArgument` for a rate outside 0 to 1.
    pub(crate) fn change(&self, change: &TraceRateChange) -> Result<()> {
        self.tracer()?.change_rates(|mut rates| {
            rates.rate = change.sample.unwrap_or(rates.rate);
            for (model, rate) in &change.models {
                set(&mut rates, model, *rate);
            }
            rates
        })?;
        tracing::info!(?change, "an administrator changed the sampling of traces");
        Ok(())
    }

    /// Returns the settings of a model, or of the server if `model` is empty, as Triton has them.
    ///
    /// # Errors
    /// `FailedPrecondition` without a collector.
    pub(crate) fn triton(&self, model: &str) -> Result<TraceSettingValues> {
        Ok(trace_settings(self.rates()?.of_model(model)))
    }

    /// Changes the settings of a model, or of the server if `model` is empty, as Triton has them.
    ///
    /// # Errors
    /// `FailedPrecondition` without a collector, and the errors of [`changed_trace`].
    pub(crate) fn change_triton(&self, model: &str, settings: &TraceSettingValues) -> Result<()> {
        let rate = match changed_trace(self.rates()?.of_model(model), settings)? {
            TraceChange::Keep => return Ok(()),
            TraceChange::Clear => None,
            TraceChange::Set(rate) => Some(rate),
        };
        let change = match model {
            "" => TraceRateChange {
                sample: Some(rate.unwrap_or(self.initial.rate)),
                ..TraceRateChange::default()
            },
            model => TraceRateChange {
                models: BTreeMap::from([(model.to_owned(), rate)]),
                ..TraceRateChange::default()
            },
        };
        self.change(&change)
    }
}

fn set(rates: &mut SamplingRates, model: &str, rate: Option<f64>) {
    match rate {
        Some(rate) => rates.models.insert(model.to_owned(), rate),
        None => rates.models.remove(model),
    };
}
