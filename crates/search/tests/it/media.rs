//! Media of collections: the files that each medium opens.

use search::points::PointId;
use search::registry::{CollectionSettings, MediumChoice, RegistryOptions};
use serde_json::{Value, json};
use storage::MediumKind;

use crate::registry::{got, open_with, options, put, settings};

#[test]
fn a_collection_keeps_its_medium() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let with = |medium| RegistryOptions { medium, ..options(path) };
    let registry = open_with(with(MediumChoice::Nvme));
    let own = CollectionSettings { medium: Some(MediumChoice::Mmap), ..settings() };
    registry.create("own", own).unwrap();
    let named = registry.create("plain", settings()).unwrap();
    put(&named, &[got(PointId::Number(1), 7)]).unwrap();
    drop((named, registry));
    let registry = open_with(with(MediumChoice::Dram));
    let kind = |name: &str| registry.get(name).unwrap().collection().medium_kind();
    assert_eq!((kind("own"), kind("plain")), (MediumKind::Mmap, MediumKind::Dram));
    let found = registry.get("plain").unwrap().get(&PointId::Number(1)).unwrap();
    assert_eq!(found, Some(got(PointId::Number(1), 7)), "the same files");
}

#[test]
fn files_for_persistent_memory_need_such_a_medium() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let with = |medium| RegistryOptions { medium, ..options(path) };
    let registry = open_with(with(MediumChoice::Pmem));
    let named = registry.create("dax", settings()).unwrap();
    put(&named, &[got(PointId::Number(1), 7)]).unwrap();
    named.collection().flush().unwrap();
    let change = |extra: &mut Value| {
        extra["changed"] = json!(true);
        Ok(())
    };
    named.change_extra(change).unwrap();
    drop((named, registry));
    for medium in [MediumChoice::Nvme, MediumChoice::Auto, MediumChoice::Mmap] {
        let registry = open_with(with(medium));
        let error = registry.get("dax").map(drop).unwrap_err();
        let expected = ["--search-medium auto", "no DAX here"];
        assert!(expected.iter().any(|text| error.message().contains(text)), "{error}");
    }
    let registry = open_with(with(MediumChoice::Pmem));
    let named = registry.get("dax").unwrap();
    assert_eq!(named.get(&PointId::Number(1)).unwrap(), Some(got(PointId::Number(1), 7)));
    assert_eq!(named.collection().medium_kind(), MediumKind::Dax);
}
