//! The models that the arms of `bench swap` serve.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::{Error, Result};

use super::engines::ContentFiles;
use super::server::SwapModel;
use super::{SwapArgs, SwapArm};
use demo::contents::{ContentPair, DISTINCT};
use demo::ctr::{Ctr, CtrContent};
use demo::traffic::Traffic;
use loadgen::BenchEnv;
use loadgen::report::StepProgress;

/// Contents of the second model of the arm two. It shares none with the first.
const SECOND: ContentPair = [CtrContent::of(3), CtrContent::of(4)];
/// Contents of which a tenth of the bytes differ.
const DELTA: ContentPair = [CtrContent::of(1), CtrContent::of(1).with_tenth(2)];

/// A model of an arm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ModelForm {
    /// Published, with contents that share nothing.
    Published,
    /// The same contents as the framework writes them.
    Plain,
    /// A further published model.
    Second,
    /// Published, with contents of which a tenth differs.
    Delta,
}

impl ModelForm {
    fn of(arm: SwapArm) -> &'static [ModelForm] {
        match arm {
            SwapArm::Heap | SwapArm::Glibc => &[ModelForm::Plain],
            SwapArm::Pool | SwapArm::Control | SwapArm::Minute | SwapArm::Cold | SwapArm::Store => {
                &[ModelForm::Published]
            }
            SwapArm::Two => &[ModelForm::Published, ModelForm::Second],
            SwapArm::Delta10 => &[ModelForm::Delta],
        }
    }

    fn name(self) -> &'static str {
        if self == ModelForm::Second { "ctr-second" } else { "ctr" }
    }

    fn pair(self) -> ContentPair {
        match self {
            ModelForm::Published | ModelForm::Plain => DISTINCT,
            ModelForm::Second => SECOND,
            ModelForm::Delta => DELTA,
        }
    }
}

/// The models of all arms that run.
pub(super) struct SwapModels(BTreeMap<ModelForm, Arc<SwapModel>>);

impl SwapModels {
    /// Makes or finds the files, the requests and the expected answers.
    pub(super) fn make(args: &SwapArgs, env: &BenchEnv) -> Result<SwapModels> {
        let python = args.python.as_deref();
        let files = ContentFiles { env, ctr: Ctr::of_bytes(args.bytes), python };
        let mut models: BTreeMap<ModelForm, Arc<SwapModel>> = BTreeMap::new();
        for &form in args.arms.iter().flat_map(|&arm| ModelForm::of(arm)) {
            if models.contains_key(&form) {
                continue;
            }
            let pair = form.pair();
            let contents = match form {
                ModelForm::Plain => args.engine.plain(&files, pair)?,
                _ => args.engine.published(&files, pair)?,
            };
            let same = models.iter().find(|(other, _)| other.pair() == pair);
            let traffic = match same {
                Some((_, model)) => model.traffic.clone(),
                None => {
                    let progress = StepProgress::new(1);
                    progress.say("computing the right answers");
                    Arc::new(Traffic::new(&files.ctr, pair, args.batch)?)
                }
            };
            let name = form.name().to_owned();
            let engine = args.engine;
            models.insert(form, Arc::new(SwapModel { name, engine, contents, traffic }));
        }
        Ok(SwapModels(models))
    }

    /// Returns the models that `arm` serves.
    pub(super) fn of(&self, arm: SwapArm) -> Result<Vec<Arc<SwapModel>>> {
        let find = |form| self.0.get(form).cloned();
        let models: Option<Vec<_>> = ModelForm::of(arm).iter().map(find).collect();
        models.ok_or_else(|| Error::internal("the arm's models were not made"))
    }
}
