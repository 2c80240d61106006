//! Models with several signatures, as SavedModels have.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::{Error, NamedTensor, Result, Signature};

use crate::Session;

/// Name of the signature that runs if a request names none. Also the name of the only signature of
/// a model without named signatures. TensorFlow Serving's default.
pub const DEFAULT_SIGNATURE: &str = "serving_default";

/// Key of [`Session::metadata`] for signatures that a model's file has and its engine cannot run,
/// with the reasons.
pub const SKIPPED_SIGNATURES_KEY: &str = "signatures that cannot be run";

/// Maximum names of signatures in a message.
const NAMES_SHOWN_MAX: usize = 16;
/// Maximum characters of the reasons in a message.
const REASONS_SHOWN_MAX: usize = 512;

/// One signature of a model with several.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedSignature {
    /// Name in requests.
    pub name: Arc<str>,
    /// TensorFlow's method, such as "tensorflow/serving/predict"; may be empty.
    pub method: String,
    /// Inputs and outputs.
    pub signature: Signature,
    /// Names in the graph of the inputs, such as "x:0", in the order of the signature.
    pub input_tensors: Vec<String>,
    /// Names in the graph of the outputs, in the order of the signature.
    pub output_tensors: Vec<String>,
}

/// A session that runs one signature of another session.
pub(crate) struct SignatureSession {
    session: Arc<dyn Session>,
    number: usize,
}

impl SignatureSession {
    /// Wraps `session`, which has a signature `number`.
    pub(crate) fn new(session: Arc<dyn Session>, number: usize) -> SignatureSession {
        SignatureSession { session, number }
    }
}

impl Session for SignatureSession {
    fn signature(&self) -> &Signature {
        &self.session.signatures()[self.number].signature
    }

    fn metadata(&self) -> &BTreeMap<String, String> {
        self.session.metadata()
    }

    fn signatures(&self) -> &[NamedSignature] {
        self.session.signatures()
    }

    fn runs_elsewhere(&self) -> bool {
        self.session.runs_elsewhere()
    }

    fn is_available(&self) -> bool {
        self.session.is_available()
    }

    fn stateful(&self) -> bool {
        self.session.stateful()
    }

    fn changes_state(&self) -> bool {
        self.session.changes_state()
    }

    fn run(&self, inputs: &[NamedTensor], outputs: &[Arc<str>]) -> Result<Vec<NamedTensor>> {
        self.session.run_signature(self.number, inputs, outputs)
    }
}

/// Builds the error for a signature that the model does not have, in TensorFlow Serving's words.
/// `skipped` has the signatures that the engine cannot run, with the reasons.
pub(crate) fn unknown_signature(
    name: &str,
    known: &[NamedSignature],
    skipped: Option<&str>,
) -> Error {
    let shown: String = name.chars().take(64).collect();
    let names: Vec<&str> = match known {
        [] => vec![DEFAULT_SIGNATURE],
        known => known.iter().take(NAMES_SHOWN_MAX).map(|named| &*named.name).collect(),
    };
    let skipped = skipped.map(|reasons| {
        let reasons: String = reasons.chars().take(REASONS_SHOWN_MAX).collect();
        format!("; {SKIPPED_SIGNATURES_KEY}: {reasons}")
    });
    Error::precondition(format!(
        "Serving signature name: \"{shown}\" not found in signature def; the model has {}{}",
        names.join(", "),
        skipped.unwrap_or_default()
    ))
}
