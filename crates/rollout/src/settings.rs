//! The section `[rollout]` of settings files.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use base::units;
use serde::Deserialize;

/// Largest difference of two floats of the same answer, unless configured.
const DEFAULT_TOLERANCE: f64 = 1e-3;
/// Requests of the candidate after which it is promoted, unless configured.
const DEFAULT_PROMOTE_REQUESTS: u64 = 2000;
/// Excess of a candidate's share of failed requests over stable's share, unless configured.
const DEFAULT_ERROR_EXCESS: f64 = 0.001;
/// Maximum of a candidate's p99 as a multiple of stable's p99, unless configured.
const DEFAULT_LATENCY_RATIO: f64 = 1.2;
/// Requests of the candidate before its latency is judged, unless configured.
const DEFAULT_LATENCY_SAMPLES: u64 = 200;

/// A `[rollout]` section. Absent keys keep the values of the settings below it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct RolloutFile {
    /// Share of requests that a new version gets.
    pub traffic: Option<f64>,
    /// Share of requests of which a new version gets a copy.
    pub shadow: Option<f64>,
    /// File with requests and answers, in the model's directory.
    pub golden: Option<PathBuf>,
    /// Largest difference of equal floats, relative to the larger of 1 and the expected one.
    pub tolerance: Option<f64>,
    /// End of a rollout: "requests:N", "time:SPAN" or "hand".
    pub promote: Option<Promotion>,
    /// Limits of a rollout.
    pub rollback: RollbackFile,
}

/// Limits beyond which a version is withdrawn. "off" means no limit.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct RollbackFile {
    /// Failed requests above stable's share.
    pub errors: Option<LimitText>,
    /// Ratio of the p99 latencies.
    pub latency: Option<LimitText>,
    /// Requests before the latency is judged.
    pub latency_samples: Option<u64>,
    /// Share of different answers, or distance of the distributions of outputs.
    pub drift: Option<LimitText>,
}

/// End of a rollout that reached no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Promotion {
    /// After this many requests of the candidate.
    Requests(u64),
    /// After this time.
    Time(Duration),
    /// When an administrator asks.
    Hand,
}

impl TryFrom<String> for Promotion {
    type Error = String;

    fn try_from(text: String) -> Result<Promotion, String> {
        let wrong = || {
            format!(
                "\"{text}\" does not end a rollout; use \"requests:2000\", \"time:10m\" or \"hand\""
            )
        };
        let (word, value) = text.split_once(':').unwrap_or((&text, ""));
        match word {
            "hand" if value.is_empty() => Ok(Promotion::Hand),
            "requests" => value
                .parse()
                .ok()
                .filter(|&count| count > 0)
                .map(Promotion::Requests)
                .ok_or_else(wrong),
            "time" => units::parse_duration(value)
                .ok()
                .filter(|time| !time.is_zero())
                .map(Promotion::Time)
                .ok_or_else(wrong),
            _ => Err(wrong()),
        }
    }
}

/// Writes the form of settings files.
impl fmt::Display for Promotion {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Promotion::Requests(count) => write!(formatter, "requests:{count}"),
            Promotion::Time(time) => write!(formatter, "time:{}s", time.as_secs_f64()),
            Promotion::Hand => formatter.write_str("hand"),
        }
    }
}

/// A number, or "off".
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(try_from = "toml::Value")]
pub enum LimitText {
    /// The limit.
    At(f64),
    /// No limit.
    Off,
}

impl LimitText {
    fn limit(self) -> Option<f64> {
        match self {
            LimitText::At(limit) => Some(limit),
            LimitText::Off => None,
        }
    }
}

impl TryFrom<toml::Value> for LimitText {
    type Error = String;

    fn try_from(value: toml::Value) -> Result<LimitText, String> {
        match value {
            toml::Value::Float(limit) => Ok(LimitText::At(limit)),
            toml::Value::Integer(limit) => Ok(LimitText::At(limit as f64)),
            toml::Value::String(text) if text == "off" => Ok(LimitText::Off),
            other => Err(format!("{other} is not a limit; use a number or \"off\"")),
        }
    }
}

/// Requests that a candidate gets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RolloutSplit {
    /// This share of the requests.
    Traffic(f64),
    /// Copies of this share.
    Shadow(f64),
}

impl RolloutSplit {
    /// Returns the share of requests, or 0 if the candidate gets copies.
    pub fn traffic(self) -> f64 {
        match self {
            RolloutSplit::Traffic(share) => share,
            RolloutSplit::Shadow(_) => 0.0,
        }
    }

    /// Returns the share of copies, or 0 if the candidate gets requests.
    pub fn shadow(self) -> f64 {
        match self {
            RolloutSplit::Traffic(_) => 0.0,
            RolloutSplit::Shadow(share) => share,
        }
    }
}

/// Writes the key of settings files and the share, for the log.
impl fmt::Display for RolloutSplit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RolloutSplit::Traffic(share) => write!(formatter, "traffic {share}"),
            RolloutSplit::Shadow(share) => write!(formatter, "shadow {share}"),
        }
    }
}

/// Limits of a rollout. A limit of `None` is not judged.
#[derive(Clone, Debug, PartialEq)]
pub struct RollbackLimits {
    /// Maximum share of failed requests, 0 to below 1.
    pub errors: Option<f64>,
    /// Maximum ratio of the candidate's p99 to that of the stable version, from 1.
    pub latency: Option<f64>,
    /// Minimum requests of each version before latencies are compared.
    pub latency_samples: u64,
    /// Maximum distance of the distributions of outputs, 0 to below 1.
    pub drift: Option<f64>,
}

/// Settings of a rollout.
#[derive(Clone, Debug, PartialEq)]
pub struct RolloutSettings {
    /// Requests of the candidate.
    pub split: RolloutSplit,
    /// Maximum difference of equal answers, as [`crate::compare_answers`] takes it.
    pub tolerance: f64,
    /// End of the rollout if no limit is reached.
    pub promote: Promotion,
    /// Limits at which the candidate is withdrawn.
    pub limits: RollbackLimits,
}

/// Settings of a model's next rollout, with defaults. A limit of `None` is off.
#[derive(Clone, Debug, PartialEq)]
pub struct RolloutDefaults {
    /// Share of requests, or 0 if the settings give none.
    pub traffic: f64,
    /// Share of copies, or 0 if the settings give none.
    pub shadow: f64,
    /// End of a rollout that reached no limit.
    pub promote: Promotion,
    /// Maximum share of failed requests, candidate minus stable.
    pub errors: Option<f64>,
    /// Maximum ratio of the p99 latencies. The latency is judged with traffic only.
    pub latency: Option<f64>,
    /// Requests before the latency is judged.
    pub latency_samples: u64,
    /// Maximum share of different answers, or distance of the distributions of outputs.
    pub drift: Option<f64>,
}

impl Default for RolloutDefaults {
    fn default() -> RolloutDefaults {
        RolloutFile::default().defaults()
    }
}

/// Start of a rollout by hand.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RolloutStart {
    /// The candidate. `None` is the running rollout's.
    pub version: Option<u64>,
    /// Share of requests.
    pub traffic: Option<f64>,
    /// Share of copies.
    pub shadow: Option<f64>,
}

impl RolloutStart {
    /// Returns the requests that the candidate gets, or `None` if the request names none.
    ///
    /// # Errors
    /// `InvalidArgument` for a share that is out of range, or for both.
    pub fn split(&self) -> base::Result<Option<RolloutSplit>> {
        split(self.traffic, self.shadow).map_err(base::Error::invalid)
    }
}

/// Checks the two shares, of which at most one may be above 0.
fn split(traffic: Option<f64>, shadow: Option<f64>) -> Result<Option<RolloutSplit>, String> {
    for (key, share) in [("traffic", traffic), ("shadow", shadow)] {
        if share.is_some_and(|share| !(0.0..=1.0).contains(&share)) {
            return Err(format!("{key} must be 0 to 1, the share of the requests"));
        }
    }
    let above = |share: &f64| *share > 0.0;
    match (traffic.filter(above), shadow.filter(above)) {
        (Some(_), Some(_)) => Err("set traffic or shadow, not both".into()),
        (Some(share), None) => Ok(Some(RolloutSplit::Traffic(share))),
        (None, Some(share)) => Ok(Some(RolloutSplit::Shadow(share))),
        (None, None) => Ok(None),
    }
}

impl RolloutFile {
    /// Returns the settings, with absent keys taken from `base`. A section that chooses traffic or
    /// shadow drops the other one and the settings that only the other one uses.
    pub fn over(&self, base: &RolloutFile) -> RolloutFile {
        let mut base = base.clone();
        if self.traffic.is_some() {
            base.shadow = None;
            base.tolerance.take_if(|_| self.golden.is_none() && base.golden.is_none());
        }
        if self.shadow.is_some() {
            base.traffic = None;
            base.rollback.latency = None;
            base.rollback.latency_samples = None;
        }
        RolloutFile {
            traffic: self.traffic.or(base.traffic),
            shadow: self.shadow.or(base.shadow),
            golden: self.golden.clone().or(base.golden),
            tolerance: self.tolerance.or(base.tolerance),
            promote: self.promote.or(base.promote),
            rollback: RollbackFile {
                errors: self.rollback.errors.or(base.rollback.errors),
                latency: self.rollback.latency.or(base.rollback.latency),
                latency_samples: self.rollback.latency_samples.or(base.rollback.latency_samples),
                drift: self.rollback.drift.or(base.rollback.drift),
            },
        }
    }

    /// Checks values, and that each has an effect.
    ///
    /// # Errors
    /// A message that names the key and the remedy.
    pub fn check(&self) -> Result<(), String> {
        let split = split(self.traffic, self.shadow)?;
        let RollbackFile { errors, latency, latency_samples, drift } = &self.rollback;
        let number = |limit: &Option<LimitText>| limit.and_then(LimitText::limit);
        if number(errors).is_some_and(|limit| !(0.0..1.0).contains(&limit)) {
            return Err("rollback.errors must be 0 to below 1".into());
        }
        if number(latency).is_some_and(|limit| !(limit >= 1.0 && limit.is_finite())) {
            return Err(
                "rollback.latency must be at least 1, the ratio of the p99 latencies".into()
            );
        }
        if number(drift).is_some_and(|limit| !(0.0..1.0).contains(&limit)) {
            return Err("rollback.drift must be 0 to below 1".into());
        }
        if self.tolerance.is_some_and(|tolerance| !(tolerance >= 0.0 && tolerance.is_finite())) {
            return Err("tolerance must be 0 or above".into());
        }
        let shadows = matches!(split, Some(RolloutSplit::Shadow(_)));
        if shadows && (number(latency).is_some() || latency_samples.is_some()) {
            return Err("rollback.latency has no effect with shadow, whose copies run at idle \
                 priority; leave it out, or use traffic"
                .into());
        }
        if *latency == Some(LimitText::Off) && latency_samples.is_some() {
            return Err("rollback.latency-samples has no effect without latency".into());
        }
        if matches!(split, Some(RolloutSplit::Traffic(_)))
            && self.tolerance.is_some()
            && self.golden.is_none()
        {
            return Err(
                "tolerance has no effect with traffic and without golden; leave it out".into()
            );
        }
        Ok(())
    }

    /// Returns the settings of a rollout that gives the candidate `split`.
    pub fn with_split(&self, split: RolloutSplit) -> RolloutSettings {
        let RollbackFile { errors, latency, latency_samples, drift } = self.rollback;
        let shadows = matches!(split, RolloutSplit::Shadow(_));
        RolloutSettings {
            split,
            tolerance: self.tolerance(),
            promote: self.promote.unwrap_or(Promotion::Requests(DEFAULT_PROMOTE_REQUESTS)),
            limits: RollbackLimits {
                errors: errors.unwrap_or(LimitText::At(DEFAULT_ERROR_EXCESS)).limit(),
                latency: latency
                    .unwrap_or(LimitText::At(DEFAULT_LATENCY_RATIO))
                    .limit()
                    .filter(|_| !shadows),
                latency_samples: latency_samples.unwrap_or(DEFAULT_LATENCY_SAMPLES),
                drift: drift.and_then(LimitText::limit),
            },
        }
    }

    /// Returns the settings of rollouts of new versions, or `None` if they get all requests at
    /// once.
    pub fn automatic(&self) -> Option<RolloutSettings> {
        let split = split(self.traffic, self.shadow).ok()??;
        Some(self.with_split(split))
    }

    /// Returns the settings of the next rollout. A request to start it can name other shares.
    pub fn defaults(&self) -> RolloutDefaults {
        let split = split(self.traffic, self.shadow).ok().flatten();
        // A rollout with copies has no limit of the latency, so the limits are those with traffic.
        let settings = self.with_split(RolloutSplit::Traffic(0.0));
        let RolloutSettings { promote, limits, .. } = settings;
        RolloutDefaults {
            traffic: split.map_or(0.0, RolloutSplit::traffic),
            shadow: split.map_or(0.0, RolloutSplit::shadow),
            promote,
            errors: limits.errors,
            latency: limits.latency,
            latency_samples: limits.latency_samples,
            drift: limits.drift,
        }
    }

    /// Returns the largest difference of equal floats.
    pub fn tolerance(&self) -> f64 {
        self.tolerance.unwrap_or(DEFAULT_TOLERANCE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> RolloutFile {
        toml::from_str(text).unwrap()
    }

    fn refusal(text: &str) -> String {
        match toml::from_str::<RolloutFile>(text) {
            Ok(file) => file.check().unwrap_err(),
            Err(error) => error.message().to_owned(),
        }
    }

    #[test]
    fn every_key_is_used() {
        let settings = file(
            "traffic = 0.1\npromote = \"time:10m\"\n\
             rollback = { errors = 0.5, latency = 2, latency-samples = 9, drift = 0.25 }",
        )
        .automatic()
        .unwrap();
        assert_eq!(settings.split, RolloutSplit::Traffic(0.1));
        assert_eq!(settings.promote, Promotion::Time(Duration::from_secs(600)));
        let limits = RollbackLimits {
            errors: Some(0.5),
            latency: Some(2.0),
            latency_samples: 9,
            drift: Some(0.25),
        };
        assert_eq!(settings.limits, limits);
        assert_eq!(file("promote = \"hand\"").automatic(), None);
        assert_eq!(file("promote = \"hand\"").promote, Some(Promotion::Hand));
        let shadow = file("shadow = 0.2\nrollback = { errors = \"off\" }").automatic().unwrap();
        assert_eq!((shadow.limits.errors, shadow.limits.latency), (None, None));
        assert_eq!(shadow.promote, Promotion::Requests(2000));
    }

    #[test]
    fn defaults_of_the_next_rollout() {
        let defaults = file("").defaults();
        let expected = RolloutDefaults {
            traffic: 0.0,
            shadow: 0.0,
            promote: Promotion::Requests(DEFAULT_PROMOTE_REQUESTS),
            errors: Some(DEFAULT_ERROR_EXCESS),
            latency: Some(DEFAULT_LATENCY_RATIO),
            latency_samples: DEFAULT_LATENCY_SAMPLES,
            drift: None,
        };
        assert_eq!(defaults, expected);
        let shadow = file("shadow = 0.2\nrollback = { errors = \"off\", drift = 0.1 }").defaults();
        assert_eq!((shadow.traffic, shadow.shadow), (0.0, 0.2));
        assert_eq!((shadow.errors, shadow.drift), (None, Some(0.1)));
        assert_eq!(
            shadow.latency,
            Some(DEFAULT_LATENCY_RATIO),
            "an administrator can start with traffic"
        );
    }

    #[test]
    fn promotions_are_written_as_they_are_read() {
        for text in ["requests:2000", "time:600s", "time:0.5s", "hand"] {
            assert_eq!(Promotion::try_from(text.to_owned()).unwrap().to_string(), text);
        }
    }

    #[test]
    fn the_log_has_plain_text() {
        assert_eq!(RolloutSplit::Traffic(0.1).to_string(), "traffic 0.1");
        assert_eq!(RolloutSplit::Shadow(1.0).to_string(), "shadow 1");
    }

    #[test]
    fn settings_without_effect_are_refused() {
        for (text, reason) in [
            ("traffic = 0.1\nshadow = 0.1", "not both"),
            ("traffic = 1.5", "traffic must be 0 to 1"),
            ("shadow = 0.2\nrollback = { latency = 1.5 }", "no effect with shadow"),
            ("rollback = { latency = 0.5 }", "at least 1"),
            ("rollback = { latency = \"off\", latency-samples = 3 }", "without latency"),
            ("traffic = 0.1\ntolerance = 0.1", "without golden"),
            ("tolerance = -1.0", "tolerance must be"),
            ("promote = \"soon\"", "does not end a rollout"),
            ("promote = \"requests:0\"", "does not end a rollout"),
            ("promote = \"time:0s\"", "does not end a rollout"),
            ("rollback = { errors = \"none\" }", "a number or \"off\""),
            ("rollback = { drift = 1.5 }", "rollback.drift"),
            ("canary = 0.1", "unknown field"),
        ] {
            let message = refusal(text);
            assert!(message.contains(reason), "{text}: {message}");
        }
    }

    #[test]
    fn a_choice_replaces_the_other_one() {
        let base = file("shadow = 0.2\ntolerance = 0.1\npromote = \"hand\"");
        let over = file("traffic = 0.1").over(&base);
        assert_eq!(over, file("traffic = 0.1\npromote = \"hand\""));
        let base = file("traffic = 0.2\nrollback = { latency = 2.0, errors = 0.1 }");
        let over = file("shadow = 0.1").over(&base);
        assert_eq!(over, file("shadow = 0.1\nrollback = { errors = 0.1 }"));
        assert_eq!(file("").over(&base), base);
        assert_eq!(file("traffic = 0.0").over(&base).automatic(), None);
    }
}
