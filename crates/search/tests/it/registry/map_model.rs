//! A named collection against a map: random steps, then the same content, counts and scores.

use std::collections::BTreeMap;
use std::sync::{Arc, mpsc};

use proptest::prelude::*;
use search::collection::CollectionQuery;
use search::points::{FetchedPoint, PayloadChange, PointId, PointSelection};
use search::registry::{NamedCollection, Registry};
use serde_json::{Map, Value, json};

use super::{all, colour, got, id, object, open, put, settings, uuid};

#[derive(Clone, Debug)]
enum Step {
    Upsert(u64, u64),
    Delete(u64),
    DeleteColour(u64),
    Set(u64),
    SetColour(u64),
    Keys(u64),
    Clear(u64),
    Overwrite(u64),
    Flush,
    Merge,
    Reopen,
    Extra(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0_u64..30, 1_u64..8).prop_map(|(first, count)| Step::Upsert(first, count)),
        2 => (0_u64..30).prop_map(Step::Delete),
        1 => (1_u64..4).prop_map(Step::DeleteColour),
        2 => (0_u64..30).prop_map(Step::Set),
        1 => (1_u64..4).prop_map(Step::SetColour),
        1 => (0_u64..30).prop_map(Step::Keys),
        1 => (0_u64..30).prop_map(Step::Clear),
        1 => (0_u64..30).prop_map(Step::Overwrite),
        2 => Just(Step::Flush),
        1 => Just(Step::Merge),
        1 => Just(Step::Reopen),
        1 => (0_u64..9).prop_map(Step::Extra),
    ]
}

struct Subject {
    directory: tempfile::TempDir,
    registry: Option<Arc<Registry>>,
    model: BTreeMap<u64, FetchedPoint>,
    extra: Value,
    version: u64,
}

impl Subject {
    fn new() -> Subject {
        let directory = tempfile::tempdir().unwrap();
        let registry = open(directory.path());
        registry.create("c", settings()).unwrap();
        let extra = settings().extra;
        Subject { directory, registry: Some(registry), model: BTreeMap::new(), extra, version: 0 }
    }

    fn named(&self) -> Arc<NamedCollection> {
        self.registry.as_ref().unwrap().get("c").unwrap()
    }

    fn change(
        &mut self,
        which: Result<u64, u64>,
        change: &PayloadChange,
        apply: impl Fn(&mut Map<String, Value>),
    ) {
        let named = self.named();
        let about = match which {
            Ok(number) => PointSelection::Ids(vec![id(number), PointId::Number(999)]),
            Err(of_colour) => PointSelection::Filter(colour(of_colour)),
        };
        let mut count = 0;
        for (number, point) in &mut self.model {
            if which == Ok(*number)
                || which.is_err_and(|colour| point.payload.get("colour") == Some(&colour.into()))
            {
                apply(&mut point.payload);
                count += 1;
            }
        }
        assert_eq!(named.change_payload(&about, change).unwrap(), count);
    }

    fn step(&mut self, step: &Step) {
        let named = self.named();
        let new = |version: u64| object(json!({"colour": version % 4, "new": [version]}));
        self.version += 1;
        let version = self.version;
        match *step {
            Step::Upsert(first, count) => {
                let points: Vec<(u64, FetchedPoint)> = (first..first + count)
                    .map(|number| (number, got(id(number), version * 100 + number)))
                    .collect();
                put(&named, &points.iter().map(|(_, point)| point.clone()).collect::<Vec<_>>())
                    .unwrap();
                self.model.extend(points);
            }
            Step::Delete(number) => {
                let there = u64::from(self.model.remove(&number).is_some());
                assert_eq!(named.delete(&[id(number), uuid(77)]).unwrap(), there);
            }
            Step::DeleteColour(wanted) => {
                let before = self.model.len();
                self.model.retain(|_, point| point.payload.get("colour") != Some(&wanted.into()));
                let gone = named.delete_where(&colour(wanted)).unwrap();
                assert_eq!(gone, (before - self.model.len()) as u64);
            }
            Step::Set(number) => {
                let change = PayloadChange::Set { payload: new(version), key: None };
                self.change(Ok(number), &change, |payload| payload.extend(new(version)));
            }
            Step::SetColour(wanted) => {
                let change = PayloadChange::Set {
                    payload: object(json!({"x": version})),
                    key: Some("deep".into()),
                };
                self.change(Err(wanted), &change, |payload| {
                    let deep = payload.entry("deep").or_insert(json!({}));
                    deep.as_object_mut().unwrap().insert("x".into(), json!(version));
                });
            }
            Step::Keys(number) => {
                let change = PayloadChange::DeleteKeys(vec!["colour".into(), "deep.list[]".into()]);
                self.change(Ok(number), &change, |payload| {
                    payload.remove("colour");
                    let list = payload.get_mut("deep").and_then(|deep| deep.get_mut("list"));
                    if let Some(list) = list.and_then(Value::as_array_mut) {
                        list.clear();
                    }
                });
            }
            Step::Clear(number) => self.change(Ok(number), &PayloadChange::Clear, Map::clear),
            Step::Overwrite(number) => {
                self.change(Ok(number), &PayloadChange::Overwrite(new(version)), |payload| {
                    *payload = new(version)
                });
            }
            Step::Flush => named.collection().flush().unwrap(),
            Step::Merge => {
                named.collection().merge().unwrap();
            }
            Step::Extra(value) => {
                self.extra = json!({"v": value});
                let extra = self.extra.clone();
                let change = |old: &mut _| {
                    *old = extra;
                    Ok(())
                };
                named.change_extra(change).unwrap();
            }
            Step::Reopen => {
                drop(named);
                self.registry = None;
                self.registry = Some(open(self.directory.path()));
            }
        }
    }

    fn check(&self) {
        let named = self.named();
        let mut wanted: Vec<FetchedPoint> = self.model.values().cloned().collect();
        wanted.sort_by_key(|point| named.internal(&point.id));
        assert_eq!(all(&named, None, 7), wanted);
        assert_eq!(named.count(None).unwrap().count, wanted.len() as u64);
        assert_eq!(named.settings().extra, self.extra);
        for number in 0..40 {
            assert_eq!(named.get(&id(number)).unwrap(), self.model.get(&number).cloned());
        }
        for shade in 0..4 {
            let of: Vec<FetchedPoint> = wanted
                .iter()
                .filter(|point| point.payload.get("colour") == Some(&shade.into()))
                .cloned()
                .collect();
            assert_eq!(all(&named, Some(&colour(shade)), 3), of);
            assert_eq!(named.count(Some(&colour(shade))).unwrap().count, of.len() as u64);
        }
        self.check_scores(&named);
    }

    /// Checks that exact scores of ids equal those of a search.
    fn check_scores(&self, named: &Arc<NamedCollection>) {
        let (sender, answer) = mpsc::channel();
        let wanted: Vec<u64> = (0..40).map(|number| named.internal(&id(number))).collect();
        let registry = self.registry.as_ref().unwrap();
        let work = move |named: &NamedCollection, thread: &mut _| {
            let query = [1.0, 200.0, 3.0, 90.0];
            let found =
                named.collection().nearest(thread, &CollectionQuery::nearest(&query, 50)).unwrap();
            let scores = named.collection().scores(thread, &query, &wanted).unwrap();
            let by_id: BTreeMap<u64, f32> =
                found.hits.iter().map(|hit| (hit.id, hit.score)).collect();
            let same =
                wanted.iter().zip(&scores).all(|(id, score)| by_id.get(id) == score.as_ref());
            sender.send((found.hits.len(), same)).unwrap();
        };
        registry.submit(named, Box::new(work)).unwrap();
        assert_eq!(answer.recv().unwrap(), (self.model.len(), true));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10, max_shrink_iters: 40, ..ProptestConfig::default() })]
    #[test]
    fn a_named_collection_is_a_map(steps in prop::collection::vec(step(), 1..40)) {
        let mut subject = Subject::new();
        steps.iter().for_each(|step| subject.step(step));
        subject.check();
        subject.step(&Step::Reopen);
        subject.check();
    }
}
