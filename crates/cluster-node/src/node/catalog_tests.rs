//! Tests of the catalog.

use std::sync::Arc;

use object_store::ObjectStoreExt;
use object_store::memory::InMemory;
use search::registry::AliasChange;
use serde_json::Value;

use super::*;

fn record(name: &str) -> CollectionRecord {
    let (name, id) = (name.to_owned(), format!("id-{name}"));
    CollectionRecord { name, id, shards: 1, copies: 1, create: Value::Null, images: None }
}

#[tokio::test]
async fn a_removed_collection_leaves_no_alias() {
    let place = StorePlace::new(Arc::new(InMemory::new()), "", "memory");
    let catalog = StoreCatalog::new(place.clone(), ViewUpdater::new());
    let alias = AliasChange::Create { alias: "x".to_owned(), collection: "a".to_owned() };
    let change = |all: &CatalogChanges| {
        let all = all.with_aliases(std::slice::from_ref(&alias), |name| name == "a")?;
        all.with_collection("id-a", |it| it.declare("city", Value::Null))
    };
    assert!(catalog.create_record(&record("a")).await.unwrap());
    catalog.make_change(&change).await.unwrap();
    // The view of another root lacks the collection.
    let other = StoreCatalog::new(place.clone(), ViewUpdater::new());
    assert!(other.remove_record("a").await.unwrap());
    assert_eq!(*other.known_changes.lock().changes, CatalogChanges::default());

    // A removal that ends early leaves the alias, and the next one removes it.
    assert!(catalog.create_record(&record("a")).await.unwrap());
    catalog.make_change(&change).await.unwrap();
    place.objects().delete(&place.key("collections/a")).await.unwrap();
    assert!(!other.remove_record("a").await.unwrap());
    assert!(other.known_changes.lock().changes.aliases.is_empty());
}

/// A client would take a conflict for a collection of the same name.
#[test]
fn refused_credentials_are_no_conflict() {
    let place = StorePlace::new(Arc::new(InMemory::new()), "", "memory");
    let catalog = StoreCatalog::new(place, ViewUpdater::new());
    let refused =
        object_store::Error::PermissionDenied { path: "a".to_owned(), source: "403".into() };
    let error = catalog.objects.place().failed(refused);
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

#[tokio::test]
async fn a_slow_removal_leaves_a_newer_collection() {
    let place = StorePlace::new(Arc::new(InMemory::new()), "", "memory");
    let [one, slow] = [(); 2].map(|()| StoreCatalog::new(place.clone(), ViewUpdater::new()));
    let old = CollectionRecord { id: "id-old".to_owned(), ..record("a") };
    one.create_record(&record("a")).await.unwrap();
    let alias = AliasChange::Create { alias: "x".to_owned(), collection: "a".to_owned() };
    let change = |changes: &CatalogChanges| {
        changes.with_aliases(std::slice::from_ref(&alias), |name| name == "a")
    };
    one.make_change(&change).await.unwrap();
    // The other root was stopped after it had removed the record of the earlier collection, and
    // before it takes that record back.
    slow.forget("a", Some(&old.id)).await;
    slow.take_record_back(&old).await;
    assert!(one.has_record("a").await.unwrap());
    one.read_changes().await.unwrap();
    assert_eq!(one.known_changes.lock().changes.aliases["x"], "a");
}

#[tokio::test]
async fn an_unreadable_record_is_not_taken_back() {
    let place = StorePlace::new(Arc::new(InMemory::new()), "", "memory");
    let catalog = StoreCatalog::new(place.clone(), ViewUpdater::new());
    let broken = place.key("collections/a");
    place.objects().put(&broken, object_store::PutPayload::from_static(b"{")).await.unwrap();
    catalog.take_record_back(&record("a")).await;
    assert!(catalog.has_record("a").await.unwrap());
    assert!(catalog.remove_record("a").await.unwrap(), "a removal by name removes it");
    assert!(!catalog.has_record("a").await.unwrap());
}

#[tokio::test]
async fn an_own_record_is_removed_and_that_of_another_stays() {
    let place = StorePlace::new(Arc::new(InMemory::new()), "", "memory");
    let catalog = StoreCatalog::new(place, ViewUpdater::new());
    let own = record("a");
    assert!(catalog.create_record(&own).await.unwrap());
    let other = CollectionRecord { id: "other".to_owned(), ..record("a") };
    assert!(!CollectionCatalog::remove_own(&catalog, &other).await.unwrap());
    assert!(catalog.has_record("a").await.unwrap());
    assert!(CollectionCatalog::remove_own(&catalog, &own).await.unwrap());
    assert!(!catalog.has_record("a").await.unwrap());
    assert!(!CollectionCatalog::remove_own(&catalog, &own).await.unwrap());
}

#[tokio::test]
async fn a_replaced_collection_is_not_current() {
    let place = StorePlace::new(Arc::new(InMemory::new()), "", "memory");
    let catalog = StoreCatalog::new(place, ViewUpdater::new());
    let old = record("a");
    let new = CollectionRecord { id: "newer".to_owned(), ..record("a") };
    assert!(catalog.create_record(&old).await.unwrap());
    assert!(catalog.has_record_of(&old).await.unwrap());
    assert!(catalog.remove_record("a").await.unwrap());
    assert!(!catalog.has_record_of(&old).await.unwrap());
    assert!(catalog.create_record(&new).await.unwrap());
    assert!(!catalog.has_record_of(&old).await.unwrap());
    assert!(catalog.has_record_of(&new).await.unwrap());
}

#[tokio::test]
async fn an_unreadable_record_is_no_removed_collection() {
    let place = StorePlace::new(Arc::new(InMemory::new()), "", "memory");
    let catalog = StoreCatalog::new(place.clone(), ViewUpdater::new());
    assert!(catalog.create_record(&record("a")).await.unwrap());
    let other = CollectionRecord { id: "other".to_owned(), ..record("a") };
    assert!(!catalog.create_record(&other).await.unwrap());
    let broken = place.key("collections/b");
    place.objects().put(&broken, object_store::PutPayload::from_static(b"{")).await.unwrap();
    let reading = catalog.read(&KnownRecords::new()).await.unwrap();
    assert_eq!((reading.records.len(), reading.whole), (1, false));
    assert_eq!(catalog.all_ids().await.unwrap_err().kind(), ErrorKind::DataLoss);
    place.objects().delete(&broken).await.unwrap();
    let reading = catalog.read(&reading.records).await.unwrap();
    assert_eq!((reading.records.len(), reading.whole), (1, true));
    assert_eq!(catalog.all_ids().await.unwrap(), BTreeSet::from(["id-a".to_owned()]));
    let alias = AliasChange::Create { alias: "x".to_owned(), collection: "a".to_owned() };
    let change = |changes: &CatalogChanges| {
        changes.with_aliases(std::slice::from_ref(&alias), |name| name == "a")
    };
    assert_eq!(catalog.make_change(&change).await.unwrap(), 1);
    let view = catalog.view.source();
    assert_eq!(view.current().collection("x").unwrap().id, "id-a");
    assert!(catalog.remove_record("a").await.unwrap());
    assert!(view.current().changes.aliases.is_empty());
    assert!(!catalog.remove_record("a").await.unwrap());
    assert!(catalog.all_ids().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_record_under_another_name_replaces_no_collection() {
    let place = StorePlace::new(Arc::new(InMemory::new()), "", "memory");
    let catalog = StoreCatalog::new(place.clone(), ViewUpdater::new());
    assert!(catalog.create_record(&record("a")).await.unwrap());
    let other = CollectionRecord { id: "other".to_owned(), ..record("a") };
    let renamed = place.key("collections/b");
    let bytes = serde_json::to_vec(&other).unwrap();
    place.objects().put(&renamed, bytes.into()).await.unwrap();
    for _ in 0..2 {
        let reading = catalog.read_all(&KnownRecords::new()).await.unwrap();
        let ids: Vec<String> = reading.records.into_values().map(|it| it.record.id).collect();
        assert_eq!((ids, reading.whole), (vec!["id-a".to_owned()], false));
    }
    let unreadable: Vec<Key> = catalog.unreadable.lock().keys().cloned().collect();
    assert_eq!(unreadable, [renamed]);
    assert!(catalog.remove_record("b").await.unwrap());
    assert!(catalog.read_all(&KnownRecords::new()).await.unwrap().whole);
    assert!(catalog.unreadable.lock().is_empty());
}

#[tokio::test]
async fn collections_of_a_store_without_its_identity_stay() {
    let place = StorePlace::new(Arc::new(InMemory::new()), "", "memory");
    let catalog = StoreCatalog::new(place.clone(), ViewUpdater::new());
    for name in ["a", "b"] {
        assert!(catalog.create_record(&record(name)).await.unwrap());
    }
    let identity = place.key("identity");
    place.objects().put(&identity, object_store::PutPayload::from_static(b"id")).await.unwrap();
    let known = catalog.read_all(&KnownRecords::new()).await.unwrap().records;
    // A collection was removed.
    place.objects().delete(&place.key("collections/a")).await.unwrap();
    let known = catalog.read_all(&known).await.unwrap().records;
    assert_eq!(known.len(), 1);
    // The directory is not mounted any more.
    place.objects().delete(&place.key("collections/b")).await.unwrap();
    place.objects().delete(&identity).await.unwrap();
    let error = catalog.read_all(&known).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().contains("its object identity is missing"), "{error}");
}

#[tokio::test]
async fn nothing_is_made_or_removed_in_a_store_without_its_identity() {
    let place = StorePlace::new(Arc::new(InMemory::new()), "", "memory");
    let catalog = StoreCatalog::new(place.clone(), ViewUpdater::new());
    let identity = place.key("identity");
    place.objects().put(&identity, object_store::PutPayload::from_static(b"id")).await.unwrap();
    assert!(catalog.create_record(&record("a")).await.unwrap());
    let declare = |changes: &CatalogChanges| {
        changes.with_collection("id-a", |it| it.declare("city", Value::Null))
    };
    // The directory is not mounted any more.
    place.objects().delete(&place.key("collections/a")).await.unwrap();
    place.objects().delete(&identity).await.unwrap();
    let other = CollectionRecord { id: "other".to_owned(), ..record("a") };
    for refused in [
        catalog.create_record(&other).await.map(drop),
        catalog.create_record(&record("b")).await.map(drop),
        catalog.make_change(&declare).await.map(drop),
        // The data of collections without a record is removed.
        catalog.all_ids().await.map(drop),
    ] {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unavailable);
    }
    let view = catalog.view.source().current();
    let ids: Vec<&str> = view.collections.values().map(|record| record.id.as_str()).collect();
    assert_eq!(ids, ["id-a"]);
    assert_eq!(catalog.known_changes.lock().number, 0);
}

#[tokio::test]
async fn an_alias_of_another_root_is_not_taken_by_a_collection() {
    let place = StorePlace::new(Arc::new(InMemory::new()), "", "memory");
    let [one, other] = [(); 2].map(|()| StoreCatalog::new(place.clone(), ViewUpdater::new()));
    one.create_record(&record("a")).await.unwrap();
    let alias = AliasChange::Create { alias: "x".to_owned(), collection: "a".to_owned() };
    let change = |changes: &CatalogChanges| {
        changes.with_aliases(std::slice::from_ref(&alias), |name| name == "a")
    };
    one.make_change(&change).await.unwrap();
    let error = other.create_record(&record("x")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[tokio::test]
async fn an_alias_and_a_collection_of_one_name_are_not_both_made() {
    let place = StorePlace::new(Arc::new(InMemory::new()), "", "memory");
    let [one, other] = [(); 2].map(|()| StoreCatalog::new(place.clone(), ViewUpdater::new()));
    one.create_record(&record("a")).await.unwrap();
    let alias = AliasChange::Create { alias: "x".to_owned(), collection: "a".to_owned() };
    let change = |changes: &CatalogChanges| {
        changes.with_aliases(std::slice::from_ref(&alias), |name| name == "a")
    };
    // The collection is made between the first check of the alias and its change.
    let create = || model_store::block_on(other.create_record(&record("x")));
    let calls = AtomicU64::new(0);
    let late = |changes: &CatalogChanges| {
        if calls.fetch_add(1, Ordering::Relaxed) == 1 {
            let made = std::thread::scope(|scope| scope.spawn(create).join().unwrap());
            assert!(made.unwrap());
        }
        change(changes)
    };
    let error = one.make_change(&late).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    assert!(one.known_changes.lock().changes.aliases.is_empty());
    assert!(one.has_record("x").await.unwrap());

    // The alias is made between the first check of the collection and its record.
    assert!(other.remove_record("x").await.unwrap());
    other.check_no_alias("x").await.unwrap();
    one.make_change(&change).await.unwrap();
    let error = other.put_record(&record("x")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(!one.has_record("x").await.unwrap());
    assert!(!other.view.source().current().collections.contains_key("x"));
    assert_eq!(other.known_changes.lock().changes.aliases["x"], "a");
}

#[tokio::test]
async fn an_alias_of_a_removed_collection_is_taken_back() {
    let place = StorePlace::new(Arc::new(InMemory::new()), "", "memory");
    let [one, other] = [(); 2].map(|()| StoreCatalog::new(place.clone(), ViewUpdater::new()));
    one.create_record(&record("a")).await.unwrap();
    let alias = AliasChange::Create { alias: "x".to_owned(), collection: "a".to_owned() };
    let remove = || model_store::block_on(other.remove_record("a"));
    let calls = AtomicU64::new(0);
    let late = |changes: &CatalogChanges| {
        if calls.fetch_add(1, Ordering::Relaxed) == 1 {
            let removed = std::thread::scope(|scope| scope.spawn(remove).join().unwrap());
            assert!(removed.unwrap());
        }
        changes.with_aliases(std::slice::from_ref(&alias), |name| name == "a")
    };
    let error = one.make_change(&late).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(one.known_changes.lock().changes.aliases.is_empty());
}

#[tokio::test]
async fn an_alias_follows_the_collections_of_another_root() {
    let place = StorePlace::new(Arc::new(InMemory::new()), "", "memory");
    let [one, other] = [(); 2].map(|()| StoreCatalog::new(place.clone(), ViewUpdater::new()));
    one.create_record(&record("a")).await.unwrap();
    one.create_record(&record("x")).await.unwrap();
    let alias = AliasChange::Create { alias: "x".to_owned(), collection: "a".to_owned() };
    // The view of the other root has the collection "a" only.
    let change = |changes: &CatalogChanges| {
        changes.with_aliases(std::slice::from_ref(&alias), |name| name == "a")
    };
    let error = other.make_change(&change).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    one.remove_record("x").await.unwrap();
    one.remove_record("a").await.unwrap();
    let error = other.make_change(&change).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    one.create_record(&record("a")).await.unwrap();
    other.make_change(&change).await.unwrap();
}

#[test]
fn records_beyond_the_limits_are_damaged() {
    let decode = |name: &str, id: &str, shards: u32, copies: u32| {
        let record = CollectionRecord {
            name: name.to_owned(),
            id: id.to_owned(),
            shards,
            copies,
            ..record("a")
        };
        decode_record(&serde_json::to_vec(&record).unwrap()).map_err(|error| error.kind())
    };
    assert_eq!(decode("a", "id-a", 1024, 8).unwrap().shards, 1024);
    for (name, id, shards, copies) in [
        ("a", "id-a", 0, 1),
        ("a", "id-a", u32::MAX, 1),
        ("a", "id-a", 1, 0),
        ("a", "id-a", 1, 9),
        ("a/b", "id-a", 1, 1),
        ("a", "", 1, 1),
        ("a", "../x", 1, 1),
    ] {
        let decoded = decode(name, id, shards, copies);
        assert_eq!(decoded, Err(ErrorKind::DataLoss), "{name} {id} {shards} {copies}");
    }
}

#[tokio::test]
async fn failed_readings_are_timed_until_one_succeeds() {
    let place = StorePlace::new(Arc::new(InMemory::new()), "", "memory");
    let catalog = Arc::new(StoreCatalog::new(place.clone(), ViewUpdater::new()));
    let identity = place.key("identity");
    let payload = || object_store::PutPayload::from_static(b"id");
    place.objects().put(&identity, payload()).await.unwrap();
    assert!(catalog.create_record(&record("a")).await.unwrap());
    let kept = catalog.clone();
    let reader = tokio::spawn(async move { kept.run().await });
    catalog.next_reading().await;
    assert_eq!(catalog.failing_for(), None);
    // In this order: a reading between the two sees no removed collection.
    place.objects().delete(&identity).await.unwrap();
    place.objects().delete(&place.key("collections/a")).await.unwrap();
    catalog.next_reading().await;
    let first = catalog.failing_for().unwrap();
    catalog.next_reading().await;
    assert!(catalog.failing_for().unwrap() > first, "the time of the first failure counts");
    place.objects().put(&identity, payload()).await.unwrap();
    catalog.next_reading().await;
    assert_eq!(catalog.failing_for(), None);
    reader.abort();
}

#[tokio::test]
async fn a_reading_on_request_finds_collections_of_other_roots() {
    let place = StorePlace::new(Arc::new(InMemory::new()), "", "memory");
    let catalog = Arc::new(StoreCatalog::new(place.clone(), ViewUpdater::new()));
    let kept = catalog.clone();
    let reader = tokio::spawn(async move { kept.run().await });
    catalog.next_reading().await;
    let other = StoreCatalog::new(place, ViewUpdater::new());
    assert!(other.create_record(&record("a")).await.unwrap());
    let before = catalog.readings.borrow().begun;
    wait_for_reading(&catalog, 50).await;
    assert!(catalog.view.source().current().collection("a").is_some());
    // All requests wait for the same reading, after one that may have begun before.
    assert!(catalog.readings.borrow().begun <= before + 2);
    reader.abort();
}

/// Waits for a reading `count` times at once.
async fn wait_for_reading(catalog: &Arc<StoreCatalog>, count: usize) {
    let mut waits = tokio::task::JoinSet::new();
    for _ in 0..count {
        let catalog = catalog.clone();
        waits.spawn(async move { catalog.next_reading().await });
    }
    while let Some(waited) = waits.join_next().await {
        waited.unwrap();
    }
}
