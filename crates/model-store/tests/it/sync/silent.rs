//! A store that accepts requests and does not answer.

use super::*;

#[test]
fn a_silent_store_delays_no_other_one() {
    let setup = Setup::new();
    setup.publish("m", 1, &[1]);
    let models = |name: &str| setup.dir.path().join(name).join("models");
    let source =
        |name: &str| StoreSource::new(&format!("s3://b/{name}").into(), &models(name), None);
    let names = ["silent", "models"];
    let places = names.map(|name| (source(name), setup.place(name)));
    let config = config(Duration::from_millis(1));
    let mut mirror = StoreMirror::with_places(config, Vec::from(places)).unwrap();
    mirror.copy_first_now().unwrap();
    *setup.store.silent.lock().unwrap() = Some("silent".to_owned());
    let listings = || {
        let listed = setup.store.listed.lock().unwrap();
        listed.iter().filter(|prefix| *prefix == "silent").count()
    };
    let before = listings();
    let sources = names.map(source);
    let hooks = MirrorHooks {
        sources: Box::new(move || sources.to_vec()),
        in_use: Box::new(|_, _, _| false),
        has_failed: Box::new(|_, _| false),
        report: Box::new(|_| {}),
    };
    let counts = metrics::StoreMetrics::default();
    let followed = FollowedStore::start(mirror, hooks, &counts);
    while listings() == before {
        std::thread::sleep(Duration::from_millis(5));
    }
    setup.publish("m", 2, &[2]);
    while !models("models").join("m/2").exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    // Its listing has not even failed by its timeout.
    let failed = metrics::StoreWorkLabels { store: "s3://b/silent".into(), kind: "list" };
    assert_eq!(counts.failures.get_or_create(&failed).get(), 0);
    assert_eq!(listings(), before + 1);
    followed.thread.stop();
}
