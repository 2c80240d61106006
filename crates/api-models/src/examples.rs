//! Classify, Regress and MultiInference: the choice of the signature and outputs of a version that
//! answer a request with examples.
//!
//! A SavedModel has signatures for examples: one input of serialised examples, and outputs of known
//! names. For any other model, the sections `[classify]` and `[regress]` of its settings name the
//! outputs, and the features of the examples become its inputs. Checks and words are TensorFlow
//! Serving's.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::{DType, Error, NamedTensor, Result, Signature, Tensor};
use engine::{DefaultValue, ExampleSettings, NamedSignature, Servable};
use protocol::tfs::{self, ClassOutputs, ExampleResult, Examples, FeatureValue, Reserve};

use crate::signatures::default_name;

/// Input of a signature for examples.
const INPUTS: &str = "inputs";
/// Output of a signature for Classify: names of classes.
const CLASSES: &str = "classes";
/// Output of a signature for Classify: scores of classes.
const SCORES: &str = "scores";
/// Output of a signature for Regress.
const OUTPUTS: &str = "outputs";

/// The API of a request with examples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExampleMethod {
    /// Classes with scores.
    Classify,
    /// A value.
    Regress,
}

impl ExampleMethod {
    /// Returns the method that a task of MultiInference names.
    ///
    /// # Errors
    /// `Unimplemented` for another name.
    fn from_name(name: &str) -> Result<ExampleMethod> {
        match name {
            tfs::CLASSIFY_METHOD => Ok(ExampleMethod::Classify),
            tfs::REGRESS_METHOD => Ok(ExampleMethod::Regress),
            _ => {
                let shown: String = name.chars().take(64).collect();
                Err(Error::unimplemented(format!("Unsupported signature method_name: {shown}")))
            }
        }
    }

    fn name(self) -> &'static str {
        match self {
            ExampleMethod::Classify => tfs::CLASSIFY_METHOD,
            ExampleMethod::Regress => tfs::REGRESS_METHOD,
        }
    }

    /// Returns the method as messages name it.
    fn noun(self) -> &'static str {
        match self {
            ExampleMethod::Classify => "classification",
            ExampleMethod::Regress => "regression",
        }
    }

    /// Returns the method's section in the settings of a model.
    fn section(self) -> &'static str {
        match self {
            ExampleMethod::Classify => "[classify]",
            ExampleMethod::Regress => "[regress]",
        }
    }
}

/// A version, one of its signatures, and the outputs that answer a request with examples.
#[derive(Clone, Debug)]
pub struct ExamplePlan {
    method: ExampleMethod,
    /// Name of the signature.
    pub signature: String,
    /// Name in the graph of the input for serialised examples; `None` if features become inputs.
    input_tensor: Option<String>,
    classes: Option<Arc<str>>,
    scores: Option<Arc<str>>,
    value: Option<Arc<str>>,
    settings: Option<Arc<ExampleSettings>>,
}

impl ExamplePlan {
    /// Plans a request to the version that `servable` runs by default, with the signature of this
    /// name, or the default one if it is empty. If `check_method` is set, the method of the
    /// signature must be the method of the request.
    ///
    /// # Errors
    /// `InvalidArgument` and `FailedPrecondition` for a signature or settings that do not answer
    /// such requests.
    pub fn new(
        servable: &Servable,
        signature: &str,
        method: ExampleMethod,
        check_method: bool,
    ) -> Result<ExamplePlan> {
        let name = if signature.is_empty() { default_name(servable) } else { signature };
        let run = servable.signature_servable(name).map_err(|error| {
            let shown: String = name.chars().take(64).collect();
            Error::invalid(format!("No signature was found with the name: {shown}"))
                .with_source(error)
        })?;
        let mut plan = ExamplePlan {
            method,
            signature: name.to_owned(),
            input_tensor: None,
            classes: None,
            scores: None,
            value: None,
            settings: servable.examples.clone(),
        };
        let named = servable.signatures().iter().find(|named| *named.name == *name);
        match (named, plan.settings.clone()) {
            (_, Some(settings)) => plan.by_settings(&settings, run.signature())?,
            (Some(named), None) => plan.by_signature(named, check_method)?,
            (None, None) => {
                return Err(Error::precondition(format!(
                    "the model has no signature for {}; name its outputs in a section {} of its millpond.toml",
                    method.noun(),
                    method.section()
                )));
            }
        }
        Ok(plan)
    }

    /// Chooses the outputs that the model's settings name.
    fn by_settings(&mut self, settings: &ExampleSettings, signature: &Signature) -> Result<()> {
        let output = |name: &String| match signature.output(name) {
            Some(_) => Ok(Some(Arc::from(name.as_str()))),
            None => Err(Error::precondition(format!(
                "the model has no output \"{name}\", which {} of its millpond.toml names",
                self.method.section()
            ))),
        };
        let missing = || {
            Error::precondition(format!(
                "the model's millpond.toml has no {}",
                self.method.section()
            ))
        };
        match self.method {
            ExampleMethod::Classify => {
                let classify = settings.classify.as_ref().ok_or_else(missing)?;
                let scores = classify.scores.as_ref().map_or(Ok(None), output)?;
                let classes = classify.classes.as_ref().map_or(Ok(None), output)?;
                self.scores = scores;
                self.classes = classes;
            }
            ExampleMethod::Regress => {
                let regress = settings.regress.as_ref().ok_or_else(missing)?;
                self.value = output(&regress.output)?;
            }
        }
        Ok(())
    }

    /// Checks a signature for examples and chooses its outputs, as TensorFlow Serving does.
    fn by_signature(&mut self, named: &NamedSignature, check_method: bool) -> Result<()> {
        let NamedSignature { method, signature, input_tensors, .. } = named;
        let noun = self.method.noun();
        if check_method && method != self.method.name() {
            return Err(Error::invalid(format!(
                "Expected {noun} signature method_name to be {}. Was: {method}",
                self.method.name()
            )));
        }
        let [input] = signature.inputs.as_slice() else {
            return Err(Error::invalid("Expected one input Tensor."));
        };
        let has = |name: &str| signature.output(name).is_some().then(|| Arc::from(name));
        let names = || {
            let names = signature.outputs.iter().map(|output| output.name.as_str());
            names.take(16).collect::<Vec<_>>().join(", ")
        };
        let outputs = signature.outputs.len();
        match self.method {
            ExampleMethod::Classify if outputs != 1 && outputs != 2 => {
                return Err(Error::invalid(format!(
                    "Expected one or two output Tensors, found {outputs}"
                )));
            }
            ExampleMethod::Regress if outputs != 1 => {
                return Err(Error::invalid("Expected one output Tensor."));
            }
            _ => {}
        }
        if input.name != INPUTS {
            return Err(Error::precondition(format!(
                "No {noun} inputs found in SignatureDef: its input is \"{}\"",
                input.name
            )));
        }
        self.input_tensor = Some(input_tensors.first().unwrap_or(&input.name).clone());
        match self.method {
            ExampleMethod::Classify => {
                self.classes = has(CLASSES);
                self.scores = has(SCORES);
                if self.classes.is_none() && self.scores.is_none() {
                    return Err(Error::precondition(format!(
                        "Expected classification signature outputs to contain at least one of \"{CLASSES}\" or \
                         \"{SCORES}\". Signature was: {}",
                        names()
                    )));
                }
            }
            ExampleMethod::Regress => {
                self.value = has(OUTPUTS);
                if self.value.is_none() {
                    return Err(Error::precondition(format!(
                        "No regression outputs found in SignatureDef: its output is {}",
                        names()
                    )));
                }
            }
        }
        Ok(())
    }

    /// Returns the outputs that the request needs.
    pub(crate) fn outputs(&self) -> Vec<Arc<str>> {
        [&self.classes, &self.scores, &self.value].into_iter().flatten().cloned().collect()
    }

    /// Turns examples into the inputs of `signature`, which is the signature of this plan.
    ///
    /// # Errors
    /// `InvalidArgument` for a signature that takes no strings; the errors of
    /// [`Examples::features`] and of `reserve`.
    pub(crate) fn inputs(
        &self,
        examples: &Examples,
        signature: &Signature,
        reserve: Reserve<'_>,
    ) -> Result<Vec<NamedTensor>> {
        if self.input_tensor.is_some() {
            // TensorFlow Serving leaves this to the run, after the checks of all tasks.
            if let Some(input) =
                signature.inputs.first().filter(|input| input.dtype != DType::String)
            {
                return Err(Error::invalid(format!(
                    "Expected a string Tensor of serialized examples as input \"{INPUTS}\", but signature \"{}\" \
                     takes {}",
                    self.signature, input.dtype
                )));
            }
            return Ok(vec![NamedTensor::new(INPUTS, examples.serialized(reserve)?)]);
        }
        let defaults = self.settings.as_ref().map(|settings| values(&settings.defaults));
        examples.features(&signature.inputs, &defaults.unwrap_or_default(), reserve)
    }

    /// Makes the result of `count` examples from the outputs of their run.
    ///
    /// # Errors
    /// Returns the errors of [`tfs::classification`] and [`tfs::regression`].
    pub(crate) fn result(&self, count: usize, outputs: &[NamedTensor]) -> Result<ExampleResult> {
        let output = |name: &Option<Arc<str>>| -> Result<Option<&Tensor>> {
            let Some(name) = name else { return Ok(None) };
            let found = outputs.iter().find(|output| output.name == *name);
            let missing = || Error::invalid(format!("Could not find output tensor '{name}'"));
            found.map(|output| Some(&output.tensor)).ok_or_else(missing)
        };
        if let Some(value) = output(&self.value)? {
            return tfs::regression(count, value).map(ExampleResult::Values);
        }
        let classify = self.settings.as_ref().and_then(|settings| settings.classify.as_ref());
        let outputs = ClassOutputs {
            classes: output(&self.classes)?,
            scores: output(&self.scores)?,
            labels: classify.and_then(|classify| classify.labels.as_deref()),
            flat: self.settings.is_some(),
        };
        tfs::classification(count, outputs).map(ExampleResult::Classes)
    }
}

/// Converts default values of features.
fn values(defaults: &BTreeMap<String, DefaultValue>) -> BTreeMap<String, FeatureValue> {
    let value = |value: &DefaultValue| match value {
        DefaultValue::Whole(whole) => FeatureValue::Whole(*whole),
        DefaultValue::Real(real) => FeatureValue::Real(*real),
        DefaultValue::Text(text) => FeatureValue::Bytes(text.clone().into()),
    };
    defaults.iter().map(|(name, default)| (name.clone(), value(default))).collect()
}

/// Plans the tasks of MultiInference. They run in order. If `check_method` is true, each signature
/// must have the method of its task.
///
/// # Errors
/// `InvalidArgument` for a signature that two tasks name and for tasks with different inputs; the
/// errors of [`ExamplePlan::new`].
pub fn plan_tasks(
    servable: &Servable,
    tasks: &[tfs::warmup::ExampleTask],
    check_method: bool,
) -> Result<Vec<ExamplePlan>> {
    let mut plans: Vec<ExamplePlan> = Vec::with_capacity(tasks.len());
    for task in tasks {
        let method = ExampleMethod::from_name(&task.method)?;
        let plan = ExamplePlan::new(servable, &task.signature, method, check_method)?;
        // Models with settings have one signature for both methods.
        let same = |other: &ExamplePlan| {
            other.signature == plan.signature
                && (plan.settings.is_none() || other.method == plan.method)
        };
        if plans.iter().any(same) {
            return Err(Error::invalid(format!(
                "Duplicate evaluation of signature: {}",
                plan.signature
            )));
        }
        if plans.first().is_some_and(|first| first.input_tensor != plan.input_tensor) {
            return Err(Error::invalid("Input tensor must be the same for all Signatures."));
        }
        plans.push(plan);
    }
    Ok(plans)
}
