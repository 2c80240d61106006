//! Settings files that come with a model.

use crate::bounded;

/// Fuzzes the `millpond.toml` of a model's directory. Asserts that errors are one line.
pub fn model_toml(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Err(error) = bounded(data, 0, || lifecycle::fuzzing::model_file(text)) {
        assert!(!error.is_empty() && !error.contains('\n'), "an error of one line: {error:?}");
    }
}

/// Fuzzes the body of a `[recogniser]` section. Asserts that errors name the recogniser.
pub fn recogniser_toml(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match bounded(data, 0, || audio::recogniser::Recogniser::parse("r", text)) {
        Ok(recogniser) => drop(bounded(data, 0, || recogniser.classes())),
        Err(error) => assert!(error.to_string().contains("recogniser \"r\""), "{error}"),
    }
}
