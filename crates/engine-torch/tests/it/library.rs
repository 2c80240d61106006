//! Finding the shim, opening it late, and models that need a device or more trust.

use base::ErrorKind;
use engine::{Device, Engine, LibrarySearch, LoadRequest, SessionOptions};
use engine_torch::TorchEngine;

use crate::support::{Written, child, search, torch};

#[test]
fn nothing_is_opened_before_the_first_load() {
    let dir = tempfile::tempdir().unwrap();
    let engine = TorchEngine::new(LibrarySearch {
        explicit: Some(dir.path().join("nowhere.so")),
        ..LibrarySearch::default()
    });
    assert_eq!(
        (engine.name(), engine.capabilities().files),
        ("libtorch", vec!["model.pt", "model.pt2"])
    );
    let error = engine.load(&LoadRequest::default()).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let nothing =
        LibrarySearch { start_dirs: vec![dir.path().to_owned()], ..LibrarySearch::default() };
    let message = TorchEngine::find_library(&nothing).unwrap_err().message().to_owned();
    let place = format!(".venv in or above {}", dir.path().display());
    assert!(
        message.contains("pip install millpond-torch") && message.contains(&place),
        "{message}"
    );
}

#[test]
fn the_order_is_explicit_active_above() {
    let dir = tempfile::tempdir().unwrap();
    let file = |environment: &str| {
        let path = dir.path().join(environment).join("millpond/libmillpond_torch.so");
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, b"").unwrap();
        path.canonicalize().unwrap()
    };
    let (active, above) = (file("active"), file("project/.venv"));
    let below = dir.path().join("project/target/release");
    std::fs::create_dir_all(&below).unwrap();
    let mut search = LibrarySearch { start_dirs: vec![below], ..LibrarySearch::default() };
    assert_eq!(TorchEngine::find_library(&search).unwrap(), above);
    let tool = file("tool");
    search.program_prefix = Some(dir.path().join("tool"));
    assert_eq!(
        TorchEngine::find_library(&search).unwrap(),
        tool,
        "the environment that has the program"
    );
    search.virtual_env = Some(dir.path().join("active"));
    assert_eq!(TorchEngine::find_library(&search).unwrap(), active);
    for explicit in
        ["project/.venv", "project/.venv/millpond", "project/.venv/millpond/libmillpond_torch.so"]
    {
        search.explicit = Some(dir.path().join(explicit));
        assert_eq!(TorchEngine::find_library(&search).unwrap(), above);
    }
    search.explicit = Some(dir.path().join("project"));
    assert!(TorchEngine::find_library(&search).unwrap_err().message().contains("--libtorch"));
}

/// Variable with the file that the test below opens, in a process that has none open.
const OTHER: &str = "MILLPOND_TEST_OTHER_LIBRARY";

#[test]
fn another_file_is_not_the_shim() {
    if let Some(path) = std::env::var_os(OTHER) {
        let explicit = Some(path.into());
        let engine = TorchEngine::new(LibrarySearch { explicit, ..LibrarySearch::default() });
        let error = engine.load(&LoadRequest::default()).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::FailedPrecondition);
        assert!(error.message().contains("make torch"), "{error}");
        assert_eq!(engine.open_library().unwrap_err().kind(), ErrorKind::FailedPrecondition);
        assert_eq!((engine.version().as_str(), engine.library()), ("not loaded", None));
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let nonsense = dir.path().join("libmillpond_torch.so");
    std::fs::write(&nonsense, b"nonsense").unwrap();
    // Another library lies beside the shim.
    let empty = TorchEngine::find_library(&search()).unwrap().with_file_name("libtorch.so");
    for path in [nonsense, empty] {
        child("library::another_file_is_not_the_shim", OTHER, path.as_os_str());
    }
}

#[test]
fn the_version_is_known_once_it_is_open() {
    Written::new("def forward(self, x):\n    return x\n", vec![]).load();
    assert!(torch().version().starts_with("2."), "{}", torch().version());
    assert!(torch().library().unwrap().ends_with("libmillpond_torch.so"));
}

#[test]
fn a_device_that_is_not_there_is_refused() {
    let module = Written::new("def forward(self, x):\n    return x\n", vec![]);
    let options = SessionOptions { device: Device::Cuda(99), ..SessionOptions::default() };
    let request = LoadRequest { graph: module.path(), options, ..LoadRequest::default() };
    let error = torch().load(&request).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::FailedPrecondition, "{error}");
    assert!(error.message().contains("cuda:99"), "{error}");
}

#[test]
fn native_code_needs_trust() {
    let dir = tempfile::tempdir().unwrap();
    let graph = dir.path().join("model.pt2");
    std::fs::write(&graph, b"nonsense").unwrap();
    let load = |trusted| {
        let options = SessionOptions { trusted, ..SessionOptions::default() };
        torch()
            .load(&LoadRequest { graph: graph.clone(), options, ..LoadRequest::default() })
            .err()
            .unwrap()
    };
    let error = load(false);
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    assert!(error.message().contains("trusted = true"), "{error}");
    assert_ne!(load(true).kind(), ErrorKind::PermissionDenied);
}
