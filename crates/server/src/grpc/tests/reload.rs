//! HandleReloadConfigRequest: the list of models is replaced by a client.

use protocol::tensorflow::serving as tfs;
use protocol::tensorflow::serving::model_service_client::ModelServiceClient;
use protocol::tfs::text;

use super::*;

/// Creates two models in directories beside the root of `served`, which holds "echo".
fn two_models(dir: &Path) {
    publish(&dir.join("a/1"), ECHO, &[]).unwrap();
    publish(&dir.join("b/1"), ECHO, &[]).unwrap();
}

/// Calls with a list of models as text.
async fn reload(served: &Loopback, list: &str) -> Result<tfs::ReloadConfigResponse, Status> {
    let config = text::parse(list).unwrap();
    let metric_names = vec![":tensorflow:x".to_owned()];
    let request = tfs::ReloadConfigRequest { config: Some(config), metric_names };
    let answer = client!(ModelServiceClient, served).handle_reload_config_request(request).await;
    answer.map(tonic::Response::into_inner)
}

fn list(dir: &Path, models: &[(&str, &str)]) -> String {
    let model = |(name, rest): &(&str, &str)| {
        let path = dir.join(name);
        format!(
            "config {{ name: '{name}' base_path: '{}' model_platform: 'tensorflow' {rest} }}",
            path.display()
        )
    };
    format!("model_config_list {{ {} }}", models.iter().map(model).collect::<String>())
}

#[test]
fn the_list_of_models_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    two_models(dir.path());
    let (served, _engine) = served(dir.path(), |_| {});
    let catalog = served.server.core.lifecycle.catalog();
    run(async {
        let answer = reload(&served, &list(dir.path(), &[("a", ""), ("b", "")])).await.unwrap();
        assert_eq!(answer.status.unwrap().error_code, 0);
        assert_eq!(answer.metric[0].int64_value_increase, 0);
        assert_eq!(catalog.ready("a"), Some(vec![1]), "it waits for the models");
        let label = "version_labels { key: 'stable' value: 1 }";
        reload(&served, &list(dir.path(), &[("b", label)])).await.unwrap();
        assert_eq!(catalog.by_label("b", "stable").unwrap().id.version, 1);
        assert!(catalog.get("a", None).is_err(), "it is not in the list");
        assert!(catalog.get("echo", None).is_ok(), "a model of a root stays");
    });
}

#[test]
fn a_wrong_list_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    two_models(dir.path());
    let (served, _engine) = served(dir.path(), |_| {});
    let catalog = served.server.core.lifecycle.catalog();
    run(async {
        reload(&served, &list(dir.path(), &[("a", "")])).await.unwrap();
        let label = "version_labels { key: 'x' value: 7 }";
        for (text, code, wanted) in [
            (list(dir.path(), &[("a", ""), ("a", "")]), Code::InvalidArgument, "multiple times"),
            (String::new(), Code::InvalidArgument, "Only ModelConfigList is currently supported"),
            (
                list(dir.path(), &[("b", ""), ("a", label)]),
                Code::FailedPrecondition,
                "Request to assign label to version 7 of model a, which is not currently available",
            ),
        ] {
            let error = reload(&served, &text).await.unwrap_err();
            assert_eq!(error.code(), code, "{error}");
            assert!(error.message().contains(wanted), "{error}");
        }
        assert!(catalog.get("a", None).is_ok() && catalog.get("b", None).is_err());
        let error = reload(&served, &list(dir.path(), &[("gone", "")])).await.unwrap_err();
        assert!(error.message().contains("1 model(s) did not become available"), "{error}");
    });
}

#[test]
fn labels_of_missing_versions_need_the_setting() {
    let dir = tempfile::tempdir().unwrap();
    two_models(dir.path());
    let (served, _engine) =
        served(dir.path(), |config| config.models.lists.labels_of_missing_versions = true);
    run(async {
        let seven = "version_labels { key: 'x' value: 7 }";
        reload(&served, &list(dir.path(), &[("a", seven)])).await.unwrap();
        let eight = "version_labels { key: 'x' value: 8 }";
        let error = reload(&served, &list(dir.path(), &[("a", eight)])).await.unwrap_err();
        assert_eq!(error.code(), Code::FailedPrecondition, "the label has a version");
        let one = "version_labels { key: 'x' value: 1 }";
        reload(&served, &list(dir.path(), &[("a", one)])).await.unwrap();
    });
}

#[test]
fn only_an_administrator_replaces_the_list() {
    let dir = tempfile::tempdir().unwrap();
    let (served, _engine) = served(dir.path(), |config| {
        config.listeners.admin_key = Some(transport::access::Secret("key".to_owned()));
    });
    run(async {
        let error = reload(&served, &list(dir.path(), &[("a", "")])).await.unwrap_err();
        assert_eq!(error.code(), Code::Unauthenticated, "{error}");
    });
}
