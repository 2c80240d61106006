//! The three models of the scheduling benchmarks, with requests and expected answers.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::{NamedTensor, Result};
use clap::ValueEnum;
use engine_onnx::OnnxEngine;

use super::answers::ExpectedAnswers;
use super::{conv, small};
use crate::bare::Bare;
use demo::layers::TOLERANCE;
use demo::ocr;
use loadgen::BenchEnv;
use loadgen::println;

/// Number of different requests to the models with made-up inputs.
const SMALL_REQUESTS: u64 = 32;
const CONV_REQUESTS: u64 = 24;

/// Model of the scheduling benchmarks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum WorkloadModel {
    /// Embedding look-ups and layers that exceed the L2 cache, shapes fixed.
    Small,
    /// The PP-OCR text recogniser on lines 64 to 640 pixels wide.
    Ocr,
    /// A convolutional network on images of 224±50 pixels a side, masked.
    Conv,
}

/// Folders of files that this program does not make.
#[derive(Clone, Debug)]
pub(crate) struct WorkloadFolders {
    /// Parent directory of the text lines.
    pub(crate) assets: PathBuf,
    /// Directory of the fetched models.
    pub(crate) models: PathBuf,
}

impl WorkloadFolders {
    /// Returns the given folders, else `.cache/demo` and `.cache/models` in the current directory
    /// or in the checkout in which the program was built.
    pub(crate) fn find(
        env: &BenchEnv,
        assets: Option<&Path>,
        models: Option<&Path>,
    ) -> WorkloadFolders {
        let find = |given: Option<&Path>, usual: &str| {
            given.map_or_else(
                || env.in_checkout(usual).unwrap_or_else(|| usual.into()),
                Path::to_owned,
            )
        };
        WorkloadFolders {
            assets: find(assets, ".cache/demo"),
            models: find(models, ".cache/models"),
        }
    }
}

/// A model with requests and expected answers.
#[derive(Debug)]
pub(crate) struct Workload {
    pub(crate) model: WorkloadModel,
    /// Path of the published version.
    pub(crate) artifact: PathBuf,
    /// Requests of one item each.
    pub(crate) requests: Vec<Vec<NamedTensor>>,
    /// Expected answers of the requests.
    pub(crate) answers: Arc<ExpectedAnswers>,
    /// Version of the library that computed the answers.
    pub(crate) engine_version: String,
}

impl WorkloadModel {
    /// Returns the name in arguments, JSON and tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            WorkloadModel::Small => "small",
            WorkloadModel::Ocr => "ocr",
            WorkloadModel::Conv => "conv",
        }
    }

    /// Publishes the model, makes its requests and runs each alone.
    ///
    /// # Errors
    /// Returns an error if a file is missing or the disk is too small.
    pub(crate) fn prepare(self, env: &BenchEnv, places: &WorkloadFolders) -> Result<Workload> {
        match self {
            WorkloadModel::Small => small_workload(env, SMALL_REQUESTS, 1),
            WorkloadModel::Ocr => {
                let artifact = ocr::publish(env, &places.models)?;
                let lines = ocr::lines(&places.assets)?;
                let bare = Bare::open(env, &artifact)?;
                let characters = ocr::characters(
                    &OnnxEngine::open(&env.onnxruntime)?,
                    &places.models.join(ocr::FILE),
                )?;
                let answers = ExpectedAnswers::text(&bare, &lines.requests, characters)?;
                let exact = answers.read_exactly(&lines.words).unwrap_or(0);
                println!("ocr reads {exact} of {} lines exactly when alone", lines.words.len());
                Ok(Workload {
                    model: self,
                    artifact,
                    requests: lines.requests,
                    answers: Arc::new(answers),
                    engine_version: bare.engine_version(),
                })
            }
            WorkloadModel::Conv => {
                let artifact = conv::publish(env)?;
                let requests = conv::requests(CONV_REQUESTS)?;
                let masked = requests
                    .iter()
                    .map(|request| conv::with_mask(request))
                    .collect::<Result<Vec<_>>>()?;
                let bare = Bare::open(env, &artifact)?;
                let answers = ExpectedAnswers::numbers(&bare, &masked, TOLERANCE)?;
                Ok(Workload {
                    model: self,
                    artifact,
                    requests,
                    answers: Arc::new(answers),
                    engine_version: bare.engine_version(),
                })
            }
        }
    }

    /// Returns the `millpond.toml` that the model needs with every schedule: filled inputs and
    /// warm-up. `schedule` is the rest of the `[schedule]` section; `pad` adds the rules for
    /// padding.
    pub(crate) fn settings(self, schedule: &str, pad: bool) -> String {
        let merge = if pad { "merge = \"pad\"\n" } else { "" };
        let rules = match (self, pad) {
            (WorkloadModel::Small, _) | (WorkloadModel::Ocr, false) => String::new(),
            (WorkloadModel::Ocr, true) => format!(
                "[schedule.inputs.{}]\naxes = [3]\nvalue = 0.0\nsimilarity = 0.5\n\
                 [[schedule.outputs.\"{}\"]]\naxis = 1\ninput = \"{}\"\ninput-axis = 3\ndivisor = {}\n\
                 rounding = \"down\"\n",
                ocr::INPUT,
                ocr::OUTPUT,
                ocr::INPUT,
                ocr::STEP_PX
            ),
            (WorkloadModel::Conv, _) => format!(
                "[schedule.inputs.{}]\naxes = [2, 3]\nmask = \"{}\"\nsimilarity = 0.5\n",
                conv::IMAGE,
                conv::MASK
            ),
        };
        let warmup = match self {
            WorkloadModel::Small => "",
            WorkloadModel::Ocr => "[warmup]\ndims = { x = [-1, 3, 48, 320] }\n",
            WorkloadModel::Conv => "[warmup]\ndims = { x = [-1, 3, 224, 224] }\n",
        };
        format!("[schedule]\n{schedule}{merge}{rules}{warmup}")
    }
}

/// Prepares `small` with `count` requests of `rows` items each.
pub(crate) fn small_workload(env: &BenchEnv, count: u64, rows: usize) -> Result<Workload> {
    let artifact = small::publish(env)?;
    let requests = small::requests(count, rows)?;
    let bare = Bare::open(env, &artifact)?;
    let answers = ExpectedAnswers::numbers(&bare, &requests, TOLERANCE)?;
    Ok(Workload {
        model: WorkloadModel::Small,
        artifact,
        requests,
        answers: Arc::new(answers),
        engine_version: bare.engine_version(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bare::tests::env;
    use base::{DType, Dim, Signature, TensorSpec};
    use engine::{BatchPlan, InputFill, Merge, ScheduleFile, ScheduleOptions};

    /// Options that a server reads from the model's settings.
    fn options(model: WorkloadModel, pad: bool) -> ScheduleOptions {
        let text = model.settings("mode = \"async\"\nmax-batch = 8\n", pad);
        let table: toml::Table = text.parse().unwrap();
        let file: ScheduleFile = table["schedule"].clone().try_into().unwrap();
        let options = file.apply(&ScheduleOptions::default());
        assert_eq!((options.max_batch, options.merge == Merge::Pad), (8, pad), "{text}");
        options
    }

    #[test]
    fn the_convolutional_model_gets_its_mask_in_every_arm() {
        let dir = tempfile::tempdir().unwrap();
        let env = env(dir.path());
        let bare = Bare::open(&env, &conv::publish(&env).unwrap()).unwrap();
        for pad in [false, true] {
            let plan =
                BatchPlan::new(bare.signature(), &options(WorkloadModel::Conv, pad)).unwrap();
            assert!(plan.batchable);
            assert_eq!(plan.inputs[1].fill, Some(InputFill::Mask { source: 0, full_rank: true }));
            assert_eq!(plan.inputs[0].rule.as_ref().map(|rule| rule.merge), Some(pad));
        }
    }

    #[test]
    fn the_recognisers_answer_is_cut_to_whole_steps() {
        let spec = |name: &str, dims: &[i64]| TensorSpec {
            name: name.into(),
            dtype: DType::F32,
            shape: Some(
                dims.iter()
                    .map(|&dim| usize::try_from(dim).map_or(Dim::Dynamic(None), Dim::Fixed))
                    .collect(),
            ),
            optional: false,
        };
        let signature = Signature {
            inputs: vec![spec(ocr::INPUT, &[-1, 3, -1, -1])],
            outputs: vec![spec(ocr::OUTPUT, &[-1, -1, 6625])],
        };
        let plan = BatchPlan::new(&signature, &options(WorkloadModel::Ocr, true)).unwrap();
        assert_eq!(plan.cuts[0].axes[0].size(328), 41);
        assert!(!BatchPlan::new(&signature, &options(WorkloadModel::Ocr, false)).unwrap().pads());
        assert!(!options(WorkloadModel::Small, true).inputs.contains_key("dense"));
    }

    #[test]
    fn folders_are_the_given_ones_else_the_default_ones() {
        let dir = tempfile::tempdir().unwrap();
        let mut env = env(dir.path());
        env.millpond = dir.path().join("target/release/millpond");
        std::fs::create_dir_all(dir.path().join(".cache/demo")).unwrap();
        let places = WorkloadFolders::find(&env, None, Some(Path::new("/given")));
        assert_eq!(places.models, Path::new("/given"));
        assert_eq!(
            places.assets,
            dir.path().join(".cache/demo"),
            "in the checkout the program was built in"
        );
    }
}
