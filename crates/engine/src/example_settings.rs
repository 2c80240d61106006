//! Settings that let a model without a signature for examples answer TensorFlow Serving's Classify
//! and Regress: the sections `[classify]`, `[regress]` and `[examples]` of its settings.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::{Error, Result};
use serde::Deserialize;

/// Maximum labels of a model.
pub const LABELS_MAX: usize = 1 << 20;

/// The three sections. The features of examples are read into the inputs of the same names.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExampleSettings {
    /// Outputs of Classify; `None` if the model does not classify.
    pub classify: Option<ClassifySettings>,
    /// Output of Regress; `None` if the model does not regress.
    pub regress: Option<RegressSettings>,
    /// Values of features that an example lacks, by name.
    pub defaults: BTreeMap<String, DefaultValue>,
}

/// The section `[classify]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct ClassifySettings {
    /// Output with the scores: float32 of shape [examples, classes].
    pub scores: Option<String>,
    /// Output with the labels: strings of the same shape.
    pub classes: Option<String>,
    /// Labels that are the same for all examples, in the order of the scores.
    pub labels: Option<Arc<[Arc<str>]>>,
    /// File beside the settings with one label a line, instead of `labels`.
    pub labels_file: Option<String>,
}

/// The section `[regress]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct RegressSettings {
    /// Output with the values: float32 of shape `[examples]` or `[examples, 1]`.
    pub output: String,
}

/// The section `[examples]`: features that examples may lack.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ExamplesSection {
    /// See [`ExampleSettings::defaults`].
    pub defaults: BTreeMap<String, DefaultValue>,
}

/// Value of a feature that an example lacks.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum DefaultValue {
    /// Whole number, for numbers of all types; 0 or 1 for bools.
    Whole(i64),
    /// Number with a fraction, for floats.
    Real(f64),
    /// Text in UTF-8, for strings.
    Text(String),
}

impl ClassifySettings {
    /// Checks that the section names an output, and at most one source of labels.
    ///
    /// # Errors
    /// `InvalidArgument` that names the keys.
    pub fn check(&self) -> Result<()> {
        if self.scores.is_none() && self.classes.is_none() {
            return Err(Error::invalid("classify: name an output in scores or classes"));
        }
        let labels = [self.classes.is_some(), self.labels.is_some(), self.labels_file.is_some()];
        if labels.into_iter().filter(|given| *given).count() > 1 {
            return Err(Error::invalid("classify: give one of classes, labels and labels-file"));
        }
        if self.labels.as_ref().is_some_and(|labels| labels.len() > LABELS_MAX) {
            return Err(Error::invalid(format!("classify.labels: more than {LABELS_MAX}")));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_have_one_source() {
        let named = |text: &str| Some(text.to_owned());
        let section = ClassifySettings { scores: named("p"), ..ClassifySettings::default() };
        assert!(section.check().is_ok());
        let labels: Arc<[Arc<str>]> = Arc::from(["a".into(), "b".into()]);
        let listed = ClassifySettings { labels: Some(labels), ..section };
        assert!(listed.check().is_ok());
        let twice = ClassifySettings { classes: named("c"), ..listed.clone() };
        assert!(twice.check().unwrap_err().message().contains("one of classes, labels"));
        let none = ClassifySettings { scores: None, ..listed };
        assert!(none.check().unwrap_err().message().contains("scores or classes"));
    }
}
