//! Settings that a version takes over while it serves: scheduling, and its settings as a
//! recogniser.
//!
//! No load is needed. The version gets a second servable around the same session. Requests that
//! hold the first one keep its settings, and then an unload thread drops it, as it does with whole
//! versions. So no request thread ever releases a session.

use std::sync::Arc;
use std::time::Instant;

use base::Result;
use engine::{Servable, ServableSettings, SessionOptions};

use super::ManagerContext;
use super::model::Model;
use crate::loader::log_unjoined;
use crate::message::Retired;
use crate::{LifecycleEvent, ModelConfig, threads};

impl Model {
    /// Gives every ready version the current settings. A version that cannot take them over keeps
    /// its own, and its note says why.
    pub(super) fn apply_settings(&mut self, context: &mut ManagerContext) {
        let mut replaced = Vec::new();
        for (&number, version) in &mut self.versions {
            let Some(serving) = &mut version.serving else { continue };
            serving.refused_settings = None;
            match with_settings_of(&serving.servable, &self.config, context.threads_max) {
                Ok(None) => {}
                Ok(Some(servable)) => {
                    log_unjoined(&servable);
                    replaced.push((
                        number,
                        std::mem::replace(&mut serving.servable, Arc::new(servable)),
                    ));
                }
                Err(error) => {
                    tracing::warn!(
                        model = %self.name, version = number, %error,
                        "cannot apply the settings"
                    );
                    serving.refused_settings =
                        Some(format!("serves with the settings that it was loaded with: {error}"));
                }
            }
        }
        if replaced.is_empty() {
            return;
        }
        self.publish(context);
        for (version, servable) in replaced {
            tracing::info!(model = %self.name, version, "applied new settings");
            context.retire(Retired {
                id: self.id(version),
                servable,
                release: None,
                since: Instant::now(),
            });
            context
                .observer
                .event(&LifecycleEvent::SettingsApplied { model: self.name.clone(), version });
        }
    }
}

/// Returns `servable` with the settings of `config`, or `None` if it has them already.
fn with_settings_of(
    servable: &Servable,
    config: &ModelConfig,
    threads_max: usize,
) -> Result<Option<Servable>> {
    if *servable.schedule() == config.schedule
        && servable.recogniser == config.recogniser
        && servable.request_log_rate() == config.request_log_rate
        && servable.examples == config.examples
    {
        return Ok(None);
    }
    let loaded = SessionOptions {
        intra_op_threads: servable.threads_per_run(),
        ..SessionOptions::default()
    };
    threads::check(&loaded, &config.schedule, threads_max)?;
    let settings = ServableSettings {
        schedule: config.schedule.clone(),
        recogniser: config.recogniser.clone(),
        request_log_rate: config.request_log_rate,
        examples: config.examples.clone(),
    };
    servable.with_settings(settings).map(Some)
}
