//! Searches of several threads over the same rows: while one runs, the others wait and then run
//! together.
//!
//! A pass over the codes costs about the same for one query as for eight, and the device runs one
//! search after another. A thread that finds no running search starts its own at once. Searches
//! that arrive meanwhile wait. As soon as the running search ends, the first waiting thread runs
//! the searches that fit together. No search waits for later ones to arrive.

use std::collections::VecDeque;
use std::sync::Arc;

use base::{Error, Result};
use parking_lot::{Condvar, Mutex};

use crate::plan::QUERIES_MAX;

/// Queries as the kernels read them, row by row.
#[derive(Clone, Debug, Default)]
pub(crate) struct QueryBatch {
    /// Number of queries, at most [`QUERIES_MAX`].
    pub(crate) count: usize,
    /// Values of the queries, widened to whole pieces.
    pub(crate) widened: Vec<u8>,
    /// A scale for each query of bytes; none for queries of floats.
    pub(crate) scales: Vec<f32>,
    /// A key for each query. Only hits with larger keys are found. Empty for searches of the best
    /// rows.
    pub(crate) after: Vec<u64>,
    /// Number of hits of each query.
    pub(crate) k: usize,
}

/// Searches over one set of rows. The number of searching threads bounds the waiting searches.
#[derive(Debug, Default)]
pub(crate) struct SearchQueue {
    state: Mutex<GpuQueueState>,
}

#[derive(Debug, Default)]
struct GpuQueueState {
    running: bool,
    waiting: VecDeque<Arc<WaitingSearch>>,
}

/// A search whose thread waits.
#[derive(Debug)]
struct WaitingSearch {
    batch: QueryBatch,
    turn: Mutex<Option<QueueTurn>>,
    changed: Condvar,
}

/// The end of a wait.
#[derive(Debug)]
enum QueueTurn {
    /// The thread runs its search and the waiting ones with the same `k`.
    Lead,
    /// Another thread ran the search: `count * k` keys.
    Done(Result<Vec<u64>>),
}

/// The searches that run together with the search of this thread. On drop, every search has an
/// answer and the next thread leads, also after a panic.
struct Leader<'a> {
    queue: &'a SearchQueue,
    followers: Vec<Arc<WaitingSearch>>,
}

impl SearchQueue {
    /// Returns the `batch.count * batch.k` keys that `run` finds for `batch`. `run` is called with
    /// the queries of several threads if these request the same number of hits, and all or none of
    /// them have [`QueryBatch::after`]. It is not called if another thread ran it for this batch.
    /// `joined` is called with the number of queries of other threads in that call.
    ///
    /// # Errors
    /// The errors of `run`; `Internal` if the thread that ran it panicked, or the number of keys is
    /// wrong.
    pub(crate) fn search(
        &self,
        batch: QueryBatch,
        run: impl FnOnce(&QueryBatch) -> Result<Vec<u64>>,
        joined: impl FnOnce(usize),
    ) -> Result<Vec<u64>> {
        let mut state = self.state.lock();
        if !state.running {
            state.running = true;
            drop(state);
            let _leader = Leader { queue: self, followers: Vec::new() };
            return run(&batch);
        }
        let waiting =
            Arc::new(WaitingSearch { batch, turn: Mutex::default(), changed: Condvar::new() });
        state.waiting.push_back(waiting.clone());
        drop(state);
        match waiting.wait() {
            QueueTurn::Done(found) => found,
            QueueTurn::Lead => self.run_batch(&waiting.batch, run, joined),
        }
    }

    /// Runs `own` and the waiting searches that fit.
    fn run_batch(
        &self,
        own: &QueryBatch,
        run: impl FnOnce(&QueryBatch) -> Result<Vec<u64>>,
        joined: impl FnOnce(usize),
    ) -> Result<Vec<u64>> {
        let mut leader = Leader { queue: self, followers: self.take(own) };
        if leader.followers.is_empty() {
            return run(own);
        }
        let mut all = own.clone();
        for follower in &leader.followers {
            all.count += follower.batch.count;
            all.widened.extend_from_slice(&follower.batch.widened);
            all.scales.extend_from_slice(&follower.batch.scales);
            all.after.extend_from_slice(&follower.batch.after);
        }
        joined(all.count - own.count);
        let found = run(&all).and_then(|keys| {
            if keys.len() == all.count * all.k {
                Ok(keys)
            } else {
                Err(Error::internal("a search returned another number of keys"))
            }
        });
        let mut rest = match &found {
            Ok(keys) => &keys[own.count * own.k..],
            Err(_) => &[],
        };
        for follower in leader.followers.drain(..) {
            let part = match &found {
                Ok(_) => {
                    let (part, behind) = rest.split_at(follower.batch.count * all.k);
                    rest = behind;
                    Ok(part.to_vec())
                }
                Err(error) => Err(error.clone()),
            };
            follower.end(QueueTurn::Done(part));
        }
        found.map(|mut keys| {
            keys.truncate(own.count * own.k);
            keys
        })
    }

    /// Removes the waiting searches that run together with `own`, in the order of their arrival.
    fn take(&self, own: &QueryBatch) -> Vec<Arc<WaitingSearch>> {
        let mut left = QUERIES_MAX.saturating_sub(own.count);
        let mut taken = Vec::new();
        self.state.lock().waiting.retain(|search| {
            let similar =
                search.batch.k == own.k && search.batch.after.is_empty() == own.after.is_empty();
            let fits = similar && search.batch.count <= left;
            if fits {
                left -= search.batch.count;
                taken.push(search.clone());
            }
            !fits
        });
        taken
    }
}

impl WaitingSearch {
    fn wait(&self) -> QueueTurn {
        let mut turn = self.turn.lock();
        loop {
            match turn.take() {
                Some(turn) => return turn,
                None => self.changed.wait(&mut turn),
            }
        }
    }

    fn end(&self, turn: QueueTurn) {
        *self.turn.lock() = Some(turn);
        self.changed.notify_one();
    }
}

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        for follower in self.followers.drain(..) {
            let error = Error::internal("the thread that ran this search on the GPU panicked");
            follower.end(QueueTurn::Done(Err(error)));
        }
        let mut state = self.queue.state.lock();
        match state.waiting.pop_front() {
            Some(next) => next.end(QueueTurn::Lead),
            None => state.running = false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    fn batch(count: usize, k: usize, start: u8) -> QueryBatch {
        let widened: Vec<u8> = (0..count as u8).map(|at| start + at).collect();
        QueryBatch { count, widened, scales: vec![f32::from(start); count], after: Vec::new(), k }
    }

    /// Keys that tell the query and the place.
    fn keys(batch: &QueryBatch) -> Vec<u64> {
        let places = |query: &u8| {
            let query = u64::from(*query);
            (0..batch.k as u64).map(move |place| query * 1000 + place)
        };
        batch.widened.iter().flat_map(places).collect()
    }

    /// Runs `first`, starts `others` while it runs, and returns the answers of the others and the
    /// numbers of queries of each run.
    fn behind(
        queue: &SearchQueue,
        others: &[QueryBatch],
        run: impl Fn(&QueryBatch) -> Result<Vec<u64>> + Sync,
    ) -> (Vec<Result<Vec<u64>>>, Vec<usize>) {
        let (started, runs) = (Barrier::new(2), Mutex::new(Vec::new()));
        let waits = || queue.state.lock().waiting.len();
        let found = std::thread::scope(|scope| {
            scope.spawn(|| {
                let slow = |batch: &QueryBatch| {
                    started.wait();
                    while waits() < others.len() {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    Ok(keys(batch))
                };
                queue.search(batch(1, 1, 200), slow, |_| ()).unwrap();
            });
            started.wait();
            let mut threads = Vec::new();
            for (at, other) in others.iter().enumerate() {
                let (runs, run) = (&runs, &run);
                let counted = move |batch: &QueryBatch| {
                    runs.lock().push(batch.count);
                    run(batch)
                };
                threads.push(scope.spawn(move || queue.search(other.clone(), counted, |_| ())));
                // In a known order. After the last one the first search ends.
                while at + 1 < others.len() && waits() <= at {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            threads
                .into_iter()
                .map(|thread| {
                    thread.join().unwrap_or_else(|_| Err(Error::internal("this thread panicked")))
                })
                .collect()
        });
        (found, runs.into_inner())
    }

    #[test]
    fn waiting_searches_run_as_one() {
        let queue = SearchQueue::default();
        let others = [batch(1, 3, 0), batch(2, 3, 10), batch(1, 3, 20)];
        let (found, runs) = behind(&queue, &others, |batch| {
            assert_eq!(batch.scales, [0.0, 10.0, 10.0, 20.0]);
            Ok(keys(batch))
        });
        assert_eq!(runs, [4]);
        for (found, other) in found.iter().zip(&others) {
            assert_eq!(found.as_ref().unwrap(), &keys(other));
        }
    }

    #[test]
    fn searches_for_other_numbers_of_hits_run_apart() {
        let queue = SearchQueue::default();
        let others = [batch(1, 3, 0), batch(2, 5, 10), batch(1, 3, 20)];
        let (found, runs) = behind(&queue, &others, |batch| Ok(keys(batch)));
        assert_eq!(runs, [2, 2]);
        for (found, other) in found.iter().zip(&others) {
            assert_eq!(found.as_ref().unwrap(), &keys(other));
        }
        assert!(!queue.state.lock().running, "the next search starts at once");
    }

    #[test]
    fn searches_that_continue_run_together() {
        let queue = SearchQueue::default();
        let continued = |start| QueryBatch { after: vec![u64::from(start)], ..batch(1, 3, start) };
        let others = [batch(1, 3, 0), continued(1), batch(1, 3, 2), continued(3)];
        let (found, runs) = behind(&queue, &others, |batch| {
            assert!([vec![], vec![1, 3]].contains(&batch.after));
            Ok(keys(batch))
        });
        assert_eq!(runs, [2, 2]);
        for (found, other) in found.iter().zip(&others) {
            assert_eq!(found.as_ref().unwrap(), &keys(other));
        }
    }

    #[test]
    fn no_run_has_more_than_the_maximum() {
        let queue = SearchQueue::default();
        let many = |start| QueryBatch { count: QUERIES_MAX - 1, ..batch(1, 1, start) };
        let others = [many(0), batch(1, 1, 7), many(1)];
        let (found, runs) = behind(&queue, &others, |batch| Ok(vec![0; batch.count]));
        assert_eq!(runs, [QUERIES_MAX, QUERIES_MAX - 1]);
        assert!(found.iter().all(Result::is_ok));
    }

    #[test]
    fn all_of_a_run_get_its_error() {
        let queue = SearchQueue::default();
        let others = [batch(1, 3, 0), batch(1, 3, 1)];
        let (found, runs) = behind(&queue, &others, |_| Err(Error::exhausted("full")));
        assert_eq!(runs, [2]);
        assert!(found.iter().all(|found| found.as_ref().unwrap_err().message() == "full"));
        let (found, runs) = behind(&queue, &others, |_| Ok(vec![1]));
        assert_eq!(runs, [2]);
        assert!(found.iter().all(Result::is_err), "a wrong number of keys is not an answer");
    }

    #[test]
    fn a_panic_ends_one_run() {
        let queue = SearchQueue::default();
        let others = [batch(1, 3, 0), batch(1, 3, 1), batch(1, 5, 2)];
        let (found, _) = behind(&queue, &others, |batch| match batch.k {
            3 => panic!("a planted fault"),
            _ => Ok(keys(batch)),
        });
        assert!(found[0].is_err() && found[1].is_err());
        assert_eq!(found[2].as_ref().unwrap(), &keys(&others[2]));
        assert_eq!(queue.search(batch(1, 1, 4), |_| Ok(vec![5]), |_| ()).unwrap(), [5]);
    }

    #[test]
    fn many_threads_get_their_own_answers() {
        let (queue, joined) = (SearchQueue::default(), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for thread in 0..8_u8 {
                let (queue, joined) = (&queue, &joined);
                scope.spawn(move || {
                    for at in 0..500_u16 {
                        let own = batch(1 + usize::from(at % 3), 2, thread * 30 + at as u8 % 20);
                        let run = |batch: &QueryBatch| Ok(keys(batch));
                        let count = |others| {
                            joined.fetch_add(others, Ordering::Relaxed);
                        };
                        let expected = keys(&own);
                        assert_eq!(queue.search(own, run, count).unwrap(), expected);
                    }
                });
            }
        });
        assert!(!queue.state.lock().running && queue.state.lock().waiting.is_empty());
        println!("{} queries ran in a search of another thread", joined.into_inner());
    }
}
