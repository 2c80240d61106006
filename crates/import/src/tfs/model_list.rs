//! TensorFlow Serving's lists of models: its checks, and the settings that they become.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::{Error, Result};
use lifecycle::{Catalog, ModelConfig, VersionPolicy};
use model_store::{StoreOptions, StorePlace, watched_dir};
use protocol::tensorflow::serving as pb;

use pb::file_system_storage_path_source_config::servable_version_policy::PolicyChoice;
use pb::model_server_config::Config as ListOrCustom;

/// Values of `model_platform`. The files of a version decide which engine loads it.
const PLATFORMS: [&str; 4] = ["tensorflow", "onnx", "torch", "millpond"];

/// Rules for lists of models in the form of TensorFlow Serving.
#[derive(Clone, Debug)]
pub struct ModelListRules {
    /// Settings that a list does not state, for models that are not configured yet.
    pub template: ModelConfig,
    /// Accept labels of versions that are not ready, unless the label has another version already.
    pub labels_of_missing_versions: bool,
    /// Copies of models in object stores; `None` refuses URLs of stores.
    pub stores: Option<StoreCopies>,
    /// Directory of the server's request log; `None` if it has none.
    pub log_dir: Option<PathBuf>,
}

/// Copies of models in object stores that a list names by URL.
#[derive(Clone, Debug)]
pub struct StoreCopies {
    /// Directory of the copies.
    pub cache_dir: PathBuf,
    /// Options of all providers.
    pub options: StoreOptions,
}

/// Place of a model's versions.
struct BasePath {
    dir: PathBuf,
    /// URL of the object store that `dir` mirrors.
    store: Option<Arc<str>>,
}

impl Default for ModelListRules {
    fn default() -> Self {
        ModelListRules {
            template: ModelConfig::new("", ""),
            labels_of_missing_versions: false,
            stores: None,
            log_dir: None,
        }
    }
}

impl ModelListRules {
    /// Converts a list. Models of `known` keep the settings that a list does not state.
    ///
    /// # Errors
    /// `InvalidArgument` in TensorFlow Serving's words for a name that occurs twice, a relative
    /// path, a model without a platform, or a configuration that is not a list.
    pub fn models(
        &self,
        config: &pb::ModelServerConfig,
        known: &[ModelConfig],
    ) -> Result<Vec<ModelConfig>> {
        let Some(ListOrCustom::ModelConfigList(list)) = &config.config else {
            return Err(Error::invalid(
                "ServerModelConfig type not supported. Only ModelConfigList is currently supported",
            ));
        };
        let mut names = BTreeSet::new();
        let model = |model: &pb::ModelConfig| {
            if !names.insert(model.name.clone()) {
                return Err(Error::invalid(format!(
                    "Illegal to list model {} multiple times in config list",
                    model.name
                )));
            }
            let known = known.iter().find(|known| *known.name == *model.name);
            self.model(model, known.unwrap_or(&self.template))
        };
        list.config.iter().map(model).collect()
    }

    /// Returns a note for each `logging_config` of a list that has no effect on a running server,
    /// whose request log does not change.
    pub fn unlogged(&self, config: &pb::ModelServerConfig) -> Vec<String> {
        let Some(ListOrCustom::ModelConfigList(list)) = &config.config else { return Vec::new() };
        let note = |model: &pb::ModelConfig| {
            model.logging_config.as_ref()?;
            let name = &model.name;
            match (&self.log_dir, log_dir(model)) {
                (None, _) => Some(format!(
                    "logging_config of model {name} has no effect: the server was started without \
                     a request log; restart it with this list or with --request-log DIR"
                )),
                (Some(dir), Some(own)) if *dir != own => Some(format!(
                    "logging_config of model {name}: filename_prefix has no effect; the requests \
                     of all models are logged in {}",
                    dir.display()
                )),
                (Some(_), _) => None,
            }
        };
        list.config.iter().filter_map(note).collect()
    }

    fn model(&self, model: &pb::ModelConfig, base: &ModelConfig) -> Result<ModelConfig> {
        check_platform(model)?;
        let BasePath { dir, store } = self.base_path(model)?;
        // Otherwise the rate of an earlier list would stay.
        let own = if base.has_section { base } else { &self.template };
        Ok(ModelConfig {
            name: model.name.as_str().into(),
            base_path: dir,
            store,
            policy: policy(model)?,
            labels: labels(model)?,
            request_log_rate: log_rate(model)?.or(own.request_log_rate),
            ..base.clone()
        })
    }

    /// Returns the directory of a model, or the object store from which it is copied.
    fn base_path(&self, model: &pb::ModelConfig) -> Result<BasePath> {
        let name = &model.name;
        let path = &model.base_path;
        let local = path.strip_prefix("file://").unwrap_or(path);
        if let Some((scheme, _)) = local.split_once("://") {
            let Some(StoreCopies { cache_dir, options }) = &self.stores else {
                return Err(Error::invalid(format!(
                    "model {name}: {scheme}:// is not a directory of this machine; copy or mount the \
                     model and give that path"
                )));
            };
            StorePlace::open(path, options)
                .map_err(|error| error.context(format_args!("model {name}")))?;
            // The copy lies in a directory of this name.
            if name.is_empty() || name.starts_with('.') || name.contains(['/', '\0']) {
                return Err(Error::invalid(format!(
                    "model \"{name}\": a model in an object store needs a name without \"/\" that does not \
                     start with \".\"; change the name"
                )));
            }
            let dir = watched_dir(cache_dir, path, Some(name));
            return Ok(BasePath { dir, store: Some(path.as_str().into()) });
        }
        let dir = PathBuf::from(local);
        if dir.is_absolute() {
            Ok(BasePath { dir, store: None })
        } else {
            Err(Error::invalid(format!(
                "Expected model {name} to have an absolute path or URI; got base_path()={path}"
            )))
        }
    }

    /// Checks that the labels of `models` name ready versions, in TensorFlow Serving's words.
    ///
    /// # Errors
    /// `FailedPrecondition` for a label of a version that is not ready.
    pub fn check_labels(
        &self,
        models: &[ModelConfig],
        known: &[ModelConfig],
        catalog: &Catalog,
    ) -> Result<()> {
        for model in models {
            let ready = catalog.ready(&model.name).unwrap_or_default();
            let before = known.iter().find(|known| known.name == model.name);
            for (label, version) in &model.labels {
                let other = before
                    .and_then(|before| before.labels.get(label))
                    .is_some_and(|before| before != version);
                let allowed = self.labels_of_missing_versions && !other;
                if !allowed && !ready.contains(version) {
                    return Err(Error::precondition(format!(
                        "Request to assign label to version {version} of model {}, which is not \
                         currently available for inference",
                        model.name
                    )));
                }
            }
        }
        Ok(())
    }
}

/// Checks the platform of a model. The errors have TensorFlow Serving's words.
fn check_platform(model: &pb::ModelConfig) -> Result<()> {
    let name = &model.name;
    let typed = model.model_type != pb::ModelType::Unspecified as i32;
    match (typed, model.model_platform.as_str()) {
        (true, "") if model.model_type == pb::ModelType::Tensorflow as i32 => Ok(()),
        (true, "") => Err(Error::invalid(format!(
            "ModelServerConfig::model_type choice {} not supported.",
            model.model_type
        ))),
        (true, _) => Err(Error::invalid(format!(
            "Illegal setting both ModelServerConfig::model_type (deprecated) and \
             ModelServerConfig::model_platform, model name is {name}"
        ))),
        (false, "") => Err(Error::invalid(format!(
            "Illegal setting neither ModelServerConfig::model_type (deprecated) nor \
             ModelServerConfig::model_platform, model name is {name}"
        ))),
        (false, platform) if PLATFORMS.contains(&platform) => Ok(()),
        (false, platform) => Err(Error::invalid(format!(
            "Model {name} requests unsupported platform {platform}; the platforms are {}",
            PLATFORMS.join(", ")
        ))),
    }
}

fn policy(model: &pb::ModelConfig) -> Result<VersionPolicy> {
    let choice =
        model.model_version_policy.as_ref().and_then(|policy| policy.policy_choice.as_ref());
    Ok(match choice {
        None => VersionPolicy::Latest(1),
        Some(PolicyChoice::Latest(latest)) => VersionPolicy::Latest(latest.num_versions as usize),
        Some(PolicyChoice::All(_)) => VersionPolicy::All,
        Some(PolicyChoice::Specific(specific)) => VersionPolicy::Specific(
            specific
                .versions
                .iter()
                .map(|version| number(&model.name, *version))
                .collect::<Result<_>>()?,
        ),
    })
}

fn labels(model: &pb::ModelConfig) -> Result<BTreeMap<String, u64>> {
    let label =
        |(label, version): (&String, &i64)| Ok((label.clone(), number(&model.name, *version)?));
    model.version_labels.iter().map(label).collect()
}

/// Returns the share of the requests that is logged.
fn log_rate(model: &pb::ModelConfig) -> Result<Option<f64>> {
    let sampling = model.logging_config.as_ref().and_then(|logging| logging.sampling_config);
    match sampling.map(|sampling| sampling.sampling_rate) {
        Some(rate) if !(0.0..=1.0).contains(&rate) => Err(Error::invalid(format!(
            "model {}: sampling_rate is {rate}; it must be 0 to 1",
            model.name
        ))),
        rate => Ok(rate),
    }
}

/// Returns the directory of a model's `logging_config`, if it names one.
pub fn log_dir(model: &pb::ModelConfig) -> Option<PathBuf> {
    let collector = model.logging_config.as_ref()?.log_collector_config.as_ref()?;
    let dir = Path::new(&collector.filename_prefix).parent()?;
    (!dir.as_os_str().is_empty()).then(|| dir.to_owned())
}

fn number(model: &str, version: i64) -> Result<u64> {
    u64::try_from(version)
        .map_err(|_| Error::invalid(format!("model {model}: {version} is not a version number")))
}

#[cfg(test)]
mod tests {
    use protocol::tfs::text;

    use super::*;

    fn convert(text: &str) -> Result<Vec<ModelConfig>> {
        let known = ModelConfig {
            labels: BTreeMap::from([("old".to_owned(), 9)]),
            transition: lifecycle::Transition::ResourcePreserving,
            ..ModelConfig::new("known", "/before")
        };
        ModelListRules::default().models(&text::parse(text).unwrap(), &[known])
    }

    fn list(models: &str) -> Result<Vec<ModelConfig>> {
        convert(&format!("model_config_list {{ {models} }}"))
    }

    #[test]
    fn policies_labels_and_known_settings() {
        let models = list(
            "config { name: 'a' base_path: '/m/a' model_platform: 'tensorflow' \
               model_version_policy { specific { versions: 4 versions: 2 } } \
               version_labels { key: 'stable' value: 2 } } \
             config { name: 'known' base_path: 'file:///m/b' model_type: TENSORFLOW \
               model_version_policy { latest { num_versions: 2 } } } \
             config { name: 'c' base_path: '/m/c' model_platform: 'onnx' \
               model_version_policy { all {} } \
               logging_config { sampling_config { sampling_rate: 0.25 } } }",
        )
        .unwrap();
        assert_eq!(models[0].policy, VersionPolicy::Specific([2, 4].into()));
        assert_eq!(models[0].labels["stable"], 2);
        assert_eq!(models[1].policy, VersionPolicy::Latest(2));
        assert_eq!(models[1].base_path, PathBuf::from("/m/b"));
        assert_eq!(models[1].transition, lifecycle::Transition::ResourcePreserving);
        assert!(models[1].labels.is_empty(), "the list states all labels");
        assert_eq!(
            (&models[2].policy, models[2].request_log_rate),
            (&VersionPolicy::All, Some(0.25))
        );
        assert!(list("").unwrap().is_empty(), "an empty list unloads all");
    }

    #[test]
    fn a_list_without_logging_ends_that_of_an_earlier_list() {
        let text =
            "model_config_list { config { name: 'a' base_path: '/a' model_platform: 'onnx' } }";
        let list: pb::ModelServerConfig = text::parse(text).unwrap();
        let rate = |has_section| {
            let rate = Some(0.5);
            let known =
                ModelConfig { request_log_rate: rate, has_section, ..ModelConfig::new("a", "/a") };
            ModelListRules::default().models(&list, &[known]).unwrap()[0].request_log_rate
        };
        assert_eq!((rate(false), rate(true)), (None, Some(0.5)));
    }

    #[test]
    fn logging_without_a_request_log_is_noted() {
        let text = "model_config_list { config { name: 'a' base_path: '/a' model_platform: 'onnx' \
                    logging_config { log_collector_config { filename_prefix: '/logs/a' } } } }";
        let list: pb::ModelServerConfig = text::parse(text).unwrap();
        let notes = |dir: Option<&str>| {
            let log_dir = dir.map(PathBuf::from);
            ModelListRules { log_dir, ..ModelListRules::default() }.unlogged(&list)
        };
        assert!(notes(None)[0].contains("started without a request log"));
        assert!(notes(Some("/other"))[0].contains("filename_prefix has no effect"));
        assert_eq!(notes(Some("/logs")), [""; 0]);
    }

    #[test]
    fn urls_of_stores_are_mirrored() {
        let copies = StoreCopies { cache_dir: "/cache".into(), options: StoreOptions::default() };
        let rules = ModelListRules { stores: Some(copies), ..ModelListRules::default() };
        let list = |name: &str, url: &str| {
            let text = format!(
                "model_config_list {{ config {{ name: '{name}' base_path: '{url}' model_platform: 'onnx' }} }}"
            );
            rules.models(&text::parse(&text).unwrap(), &[])
        };
        let error = list("a", "ftp://host/a").unwrap_err();
        assert!(
            error.message().starts_with("model a: ftp://host/a: \"ftp\" is not a supported kind"),
            "{error}"
        );
        let models = list("a", "s3://bucket/models/a");
        // Without the feature `object-storage`, the error names it.
        let Ok(models) = models else { return };
        assert_eq!(models[0].store.as_deref(), Some("s3://bucket/models/a"));
        assert!(models[0].base_path.starts_with("/cache/stores"));
        assert!(models[0].base_path.ends_with("models/a"));
        for name in ["", "..", "../a", "a/b", ".a"] {
            let error = list(name, "s3://bucket/models/a").unwrap_err();
            assert!(error.message().contains("needs a name without"), "{error}");
        }
    }

    #[test]
    fn mistakes_are_named_as_in_the_reference() {
        let a = |rest: &str| format!("config {{ name: 'a' {rest} }}");
        let tensorflow =
            |rest: &str| a(&format!("base_path: '/a' model_platform: 'tensorflow' {rest}"));
        for (text, wanted) in [
            (tensorflow("") + &tensorflow(""), "Illegal to list model a multiple times"),
            (
                a("base_path: 'models/a' model_platform: 'tensorflow'"),
                "Expected model a to have an absolute path or URI; got base_path()=models/a",
            ),
            (a("base_path: '/a'"), "Illegal setting neither"),
            (tensorflow("model_type: TENSORFLOW"), "Illegal setting both"),
            (a("base_path: '/a' model_type: OTHER"), "ModelServerConfig::model_type choice 2"),
            (
                a("base_path: '/a' model_platform: 'hashmap'"),
                "Model a requests unsupported platform hashmap",
            ),
            (
                a("base_path: 'gs://bucket/a' model_platform: 'tensorflow'"),
                "model a: gs:// is not a directory",
            ),
            (tensorflow("version_labels { key: 'x' value: -1 }"), "model a: -1 is not"),
        ] {
            let error = list(&text).unwrap_err();
            assert!(error.message().starts_with(wanted), "{error}");
        }
        assert!(convert("").unwrap_err().message().contains("Only ModelConfigList"));
    }
}
