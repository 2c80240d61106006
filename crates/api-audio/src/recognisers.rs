//! Served models that are recognisers: their settings have a section `[recogniser]`.

use std::sync::Arc;

use audio::recogniser::Recogniser;
use base::{Error, Result};
use engine::Servable;
use lifecycle::Catalog;

/// Returns the recogniser of a model's name, and the version that it runs.
///
/// # Errors
/// `NotFound` if the model is not served or has no such section; `FailedPrecondition` if the
/// section is wrong or does not fit the model.
pub fn find_recogniser(catalog: &Catalog, name: &str) -> Result<(Recogniser, Arc<Servable>)> {
    let own = catalog.get(name, None)?;
    let text = own.recogniser.clone().ok_or_else(|| {
        Error::not_found(format!(
            "model \"{name}\" is not a recogniser: its millpond.toml has no section \
             [recogniser]; GET /v1/audio lists the recognisers"
        ))
    })?;
    let wrong =
        |error: Error| Error::precondition(format!("recogniser \"{name}\"")).caused_by(error);
    let recogniser = Recogniser::parse(name, &text).map_err(wrong)?;
    let servable = match &recogniser.model {
        Some(other) if other != name => catalog.get(other, None).map_err(wrong)?,
        _ => own,
    };
    recogniser.check(servable.signature()).map_err(wrong)?;
    Ok((recogniser, servable))
}

/// Returns the names of all recognisers, sorted.
pub(crate) fn names(catalog: &Catalog) -> Vec<Arc<str>> {
    let mut names = catalog.names();
    names
        .retain(|name| catalog.get(name, None).is_ok_and(|servable| servable.recogniser.is_some()));
    names
}
