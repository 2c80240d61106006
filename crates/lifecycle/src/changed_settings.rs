//! Names of the settings of a model that changed, for the log.

use crate::ModelConfig;

/// Returns the names of the settings and sections that differ, with commas between. The names are
/// those of settings files. Values are left out, because a store's URL can have a password.
pub(crate) fn changed_settings(old: &ModelConfig, new: &ModelConfig) -> String {
    // Destructured, so that a new setting must be added here too.
    let ModelConfig {
        name: _,
        base_path,
        store,
        policy,
        transition,
        warmup,
        session,
        in_process,
        schedule,
        labels,
        recogniser,
        has_section,
        request_log_rate,
        examples,
        rollout,
    } = new;
    let settings = [
        ("path", old.base_path != *base_path || old.store != *store),
        ("policy", old.policy != *policy),
        ("transition", old.transition != *transition),
        ("labels", old.labels != *labels),
        ("request-log-rate", old.request_log_rate != *request_log_rate),
        (
            "device, threads, signature, trust or isolation (at the next load)",
            old.session != *session || old.in_process != *in_process,
        ),
        ("schedule", old.schedule != *schedule),
        ("warmup (at the next load)", old.warmup != *warmup),
        ("rollout", old.rollout != *rollout),
        ("classify, regress or examples", old.examples != *examples),
        ("recogniser", old.recogniser != *recogniser),
        ("section in the server's settings", old.has_section != *has_section),
    ];
    let changed = settings.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name);
    changed.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::VersionPolicy;

    #[test]
    fn changed_settings_are_named() {
        let old = ModelConfig::new("m", "/models/m");
        assert_eq!(changed_settings(&old, &old), "");
        let mut new = ModelConfig { policy: VersionPolicy::All, ..old.clone() };
        new.warmup.enabled = !old.warmup.enabled;
        assert_eq!(changed_settings(&old, &new), "policy, warmup (at the next load)");
    }
}
