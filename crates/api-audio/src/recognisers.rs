//! Which served models are recognisers: those whose settings have a section `[recogniser]`.

use std::sync::Arc;

use audio::recogniser::Recogniser;
use base::{Error, Result};
use engine::Servable;
use lifecycle::Catalog;

/// A recogniser by its model's name, and the version that it runs.
///
/// # Errors
/// `NotFound` for a model that is not served or has no such section, `FailedPrecondition` where the
/// section is wrong or does not fit the model.
pub(crate) fn find(catalog: &Catalog, name: &str) -> Result<(Recogniser, Arc<Servable>)> {
    let own = catalog.get(name, None)?;
    let text = own.recogniser.clone().ok_or_else(|| {
        Error::not_found(format!(
            "model \"{name}\" is no recogniser: its millpond.toml has no section [recogniser]"
        ))
    })?;
    let wrong = |error: Error| Error::precondition(format!("recogniser \"{name}\": {error}"));
    let recogniser = Recogniser::parse(name, &text).map_err(wrong)?;
    let servable = match &recogniser.model {
        Some(other) if other != name => catalog.get(other, None).map_err(wrong)?,
        _ => own,
    };
    recogniser.check(servable.signature()).map_err(wrong)?;
    Ok((recogniser, servable))
}

/// The names of all models that are recognisers, sorted.
pub(super) fn names(catalog: &Catalog) -> Vec<Arc<str>> {
    let mut names = catalog.names();
    names
        .retain(|name| catalog.get(name, None).is_ok_and(|servable| servable.recogniser.is_some()));
    names
}
