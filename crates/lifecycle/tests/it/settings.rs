//! `millpond.toml` and labels.

use crate::world::{World, eventually};

#[test]
fn mistakes_show_and_change_nothing() {
    let world = World::with_model();
    world.settings("m", "policy = \"all\"");
    world.publish("m", 2);
    eventually("both", || world.ready("m") == "1 2");
    world.settings("m", "policy = { latest = 1 }\ntransitions = \"resource-preserving\"");
    eventually("the error shows", || world.status("m").unwrap().error.is_some());
    let error = world.status("m").unwrap().error.unwrap();
    assert!(error.contains("millpond.toml: line 2: unknown field `transitions`"), "{error}");
    assert_eq!(world.ready("m"), "1 2", "the last good settings hold");
    world.settings("m", "policy = { latest = 1 }");
    eventually("the latest", || world.ready("m") == "2");
    eventually("the error goes", || world.status("m").unwrap().error.is_none());
}

#[test]
fn labels_name_versions() {
    let world = World::with_model();
    let by_label =
        |label: &str| world.lifecycle().catalog().by_label("m", label).map(|servable| servable.id.version);
    assert_eq!(by_label("stable").unwrap_err().kind(), base::ErrorKind::NotFound);
    world.settings("m", "policy = \"all\"\n[labels]\nstable = 1\ncanary = 2");
    eventually("stable", || by_label("stable") == Ok(1));
    assert_eq!(by_label("canary").unwrap_err().kind(), base::ErrorKind::NotFound);
    world.publish("m", 2);
    eventually("canary", || by_label("canary") == Ok(2));
    assert_eq!(by_label("stable"), Ok(1));
    assert_eq!(
        world.lifecycle().catalog().by_label("x", "stable").unwrap_err().kind(),
        base::ErrorKind::NotFound
    );
}
