//! A store that accepts requests and does not answer.

use super::*;

/// Stores of the tests. The first one does not answer.
const NAMES: [&str; 2] = ["silent", "models"];

fn models(setup: &Setup, name: &str) -> PathBuf {
    setup.dir.path().join(name).join("models")
}

fn sources(setup: &Setup) -> [StoreSource; 2] {
    NAMES.map(|name| StoreSource::new(&format!("s3://b/{name}").into(), &models(setup, name), None))
}

fn open(setup: &Setup) -> StoreMirror {
    let places = NAMES.map(|name| setup.place(name));
    let places = sources(setup).into_iter().zip(places).collect();
    StoreMirror::with_places(config(Duration::from_millis(1)), places).unwrap()
}

fn follow(setup: &Setup, mirror: StoreMirror) -> (FollowedStore, metrics::StoreMetrics) {
    let sources = sources(setup).to_vec();
    let hooks = MirrorHooks {
        sources: Box::new(move || sources.clone()),
        in_use: Box::new(|_, _, _| false),
        has_failed: Box::new(|_, _| false),
        report: Box::new(|_| {}),
    };
    let counts = metrics::StoreMetrics::default();
    (FollowedStore::start(mirror, hooks, &counts), counts)
}

/// Returns the number of listings of the silent store.
fn listings(setup: &Setup) -> usize {
    let listed = setup.store.listed.lock().unwrap();
    listed.iter().filter(|prefix| *prefix == "silent").count()
}

/// Waits for a copy of the other store. The listing of the silent one has not even failed by its
/// timeout then.
fn wait_for_copy(setup: &Setup, copy: &str, counts: &metrics::StoreMetrics) {
    while !models(setup, "models").join(copy).exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    let failed = metrics::StoreWorkLabels { store: "s3://b/silent".into(), kind: "list" };
    assert_eq!(counts.failures.get_or_create(&failed).get(), 0);
}

#[test]
fn a_silent_store_delays_no_other_one() {
    let setup = Setup::new();
    setup.publish("m", 1, &[1]);
    let mut mirror = open(&setup);
    mirror.copy_first_now().unwrap();
    *setup.store.silent.lock().unwrap() = Some("silent".to_owned());
    let before = listings(&setup);
    let (followed, counts) = follow(&setup, mirror);
    while listings(&setup) == before {
        std::thread::sleep(Duration::from_millis(5));
    }
    setup.publish("m", 2, &[2]);
    wait_for_copy(&setup, "m/2", &counts);
    assert_eq!(listings(&setup), before + 1);
    followed.thread.stop();
}

#[test]
fn a_silent_store_delays_no_first_copy() {
    let setup = Setup::new();
    setup.publish("m", 1, &[1]);
    *setup.store.silent.lock().unwrap() = Some("silent".to_owned());
    let mirror = open(&setup);
    let state = mirror.first_copy();
    let (followed, counts) = follow(&setup, mirror);
    wait_for_copy(&setup, "m/1", &counts);
    assert_eq!(listings(&setup), 1);
    assert!(matches!(&*state.borrow(), FirstCopy::Running(_)));
    followed.thread.stop();
}
