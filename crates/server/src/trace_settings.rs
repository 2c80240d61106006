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

/// Maximum models that the log names for one change.
const LOGGED_MODELS_MAX: usize = 100;

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
    /// Share of the requests that are traced, 0 to 1.
    sample: Option<f64>,
    /// Shares of single models, by name. `None` lets a model follow `sample` again.
    #[serde(default)]
    models: BTreeMap<String, Option<f64>>,
}

impl TraceRateChange {
    /// Returns the settings that the change names, as `name: old -> new` with commas between.
    /// `before` has the old rates. "default" follows `sample`.
    fn text(&self, before: &SamplingRates) -> String {
        let sample = self.sample.map(|rate| format!("sample: {} -> {rate}", before.rate));
        let text =
            |rate: Option<&f64>| rate.map_or_else(|| "default".to_owned(), ToString::to_string);
        let models = self.models.iter().take(LOGGED_MODELS_MAX).map(|(model, rate)| {
            let old = text(before.models.get(model));
            format!("models.{model:?}: {old} -> {}", text(rate.as_ref()))
        });
        let rest = self.models.len().saturating_sub(LOGGED_MODELS_MAX);
        let rest = (rest > 0).then(|| format!("{rest} more models"));
        sample.into_iter().chain(models).chain(rest).collect::<Vec<_>>().join(", ")
    }
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
    /// `FailedPrecondition` without a collector. `InvalidArgument` for a rate outside 0 to 1.
    pub(crate) fn change(&self, change: &TraceRateChange) -> Result<()> {
        let before = self.rates()?;
        self.tracer()?.change_rates(|mut rates| {
            rates.rate = change.sample.unwrap_or(rates.rate);
            for (model, rate) in &change.models {
                set(&mut rates, model, *rate);
            }
            rates
        })?;
        let changes = change.text(&before);
        tracing::info!("an administrator changed the sampling of traces: {changes}");
        Ok(())
    }

    /// Returns the settings of a model, or of the server if `model` is empty, as Triton has them.
    /// Without a collector, traces are off.
    pub(crate) fn triton(&self, model: &str) -> TraceSettingValues {
        trace_settings(self.rate(model))
    }

    /// Returns the part of a model's requests that is traced, 0 to 1.
    fn rate(&self, model: &str) -> f64 {
        self.tracer.as_ref().map_or(0.0, |tracer| tracer.rates().of_model(model))
    }

    /// Changes the settings of a model, or of the server if `model` is empty, as Triton has them.
    ///
    /// # Errors
    /// `FailedPrecondition` if traces are turned on without a collector, and the errors of
    /// [`changed_trace`].
    pub(crate) fn change_triton(&self, model: &str, settings: &TraceSettingValues) -> Result<()> {
        let rate = match changed_trace(self.rate(model), settings)? {
            TraceChange::Keep => return Ok(()),
            TraceChange::Clear => None,
            TraceChange::Set(rate) => Some(rate),
        };
        if self.tracer.is_none() && rate.is_none_or(|rate| rate <= 0.0) {
            return Ok(());
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_logged_as_old_and_new_rates() {
        let before = SamplingRates {
            rate: 0.1,
            models: BTreeMap::from([("a".to_owned(), 0.5)]),
            ..SamplingRates::default()
        };
        let change = TraceRateChange {
            sample: Some(0.2),
            models: BTreeMap::from([("a".to_owned(), None), ("b".to_owned(), Some(1.0))]),
        };
        assert_eq!(
            change.text(&before),
            "sample: 0.1 -> 0.2, models.\"a\": 0.5 -> default, models.\"b\": default -> 1"
        );
        assert_eq!(TraceRateChange::default().text(&before), "");
    }

    #[test]
    fn traces_are_off_without_a_collector() {
        let settings = TraceSettings::new(None);
        let level =
            |level: &str| BTreeMap::from([("trace_level".to_owned(), vec![level.to_owned()])]);
        assert_eq!(settings.triton("m")["trace_level"], ["OFF"]);
        for kept in [level("OFF"), settings.triton("")] {
            assert_eq!(settings.change_triton("m", &kept), Ok(()));
        }
        let error = settings.change_triton("", &level("TIMESTAMPS")).unwrap_err();
        assert!(error.message().contains("--otlp"), "{error}");
    }

    #[test]
    fn a_change_of_many_models_is_cut() {
        let models = (0..=LOGGED_MODELS_MAX).map(|at| (at.to_string(), Some(1.0))).collect();
        let text = TraceRateChange { sample: None, models }.text(&SamplingRates::default());
        assert_eq!(text.matches("models.").count(), LOGGED_MODELS_MAX);
        assert!(text.ends_with(", 1 more models"), "{text}");
    }
}
