//! Parts of the exact stage that idle search threads do.

use std::collections::HashSet;
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use search::Scorer;
use search::collection::{CollectionQuery, QueryHits, SearchThread};
use search::points::PointId;
use search::registry::{NamedCollection, RegistryOptions};

use crate::points::TIMEOUT;
use crate::registry::{got, open_with, options, put, settings};

/// Points of the segment: enough for several parts.
const POINTS: u64 = 400;

/// Threads that have scored a record.
#[derive(Default)]
struct ScoringThreads {
    ids: Mutex<HashSet<ThreadId>>,
    changed: Condvar,
}

/// Scorer that waits until two threads have begun to score.
#[derive(Clone)]
struct MeetingScorer(Arc<ScoringThreads>);

impl Scorer for MeetingScorer {
    type Scratch = ();

    fn scratch(&self) {}

    fn score(&self, record: &[u8], _: &mut ()) -> base::Result<f32> {
        let mut ids = self.0.ids.lock().unwrap();
        ids.insert(std::thread::current().id());
        self.0.changed.notify_all();
        let waited = self.0.changed.wait_timeout_while(ids, TIMEOUT, |ids| ids.len() < 2).unwrap();
        assert!(!waited.1.timed_out(), "no thread helps");
        Ok(record.len() as f32)
    }
}

#[test]
fn an_idle_thread_scores_parts_of_a_query() {
    let directory = tempfile::tempdir().unwrap();
    let registry = open_with(RegistryOptions {
        threads: 2,
        shared_values_min: 0,
        ..options(directory.path())
    });
    let named = registry.create("a", settings()).unwrap();
    let points: Vec<_> = (0..POINTS).map(|id| got(PointId::Number(id), id)).collect();
    put(&named, &points).unwrap();
    named.collection().flush().unwrap();
    let before = registry.stats().helped;
    let (sender, answer) = mpsc::channel();
    let work = move |named: &NamedCollection, thread: &mut SearchThread| {
        let collection = named.collection();
        let embedding = got(PointId::Number(0), 7).embedding;
        let nearest = CollectionQuery::nearest(&embedding, POINTS as usize);
        let near = collection.nearest(thread, &nearest).unwrap();
        let ids: Vec<u64> = near.hits.iter().map(|hit| hit.id).collect();
        let scorer = MeetingScorer(Arc::default());
        sender.send(collection.score_points(thread, &ids, 5, &scorer, None).unwrap()).unwrap();
    };
    registry.submit(&named, Box::new(work)).unwrap();
    let found: QueryHits = answer.recv().unwrap();
    assert_eq!((found.hits.len(), found.partial), (5, false));
    assert!(found.compared == found.candidates && found.compared > POINTS / 2, "{found:?}");
    // The helper is counted after it has left.
    let deadline = Instant::now() + TIMEOUT;
    while registry.stats().helped == before {
        assert!(Instant::now() < deadline, "the parts of the helper are not counted");
        std::thread::sleep(Duration::from_millis(5));
    }
}
