//! A run uses the configured number of threads, on every thread.

use engine::{Engine, LoadRequest, SessionOptions};
use engine_torch::build::TorchParameter;

use crate::support::{Written, child, floats, torch};

/// Variable that is set in the process that counts, which has no threads of other tests.
const CHILD: &str = "MILLPOND_TEST_COUNTS_THREADS";

/// Returns the threads of the process: the minimum of several counts, because a joined thread is
/// still listed for a moment. Threads of jemalloc, which is linked if the whole workspace is built,
/// come and go by themselves.
fn threads() -> usize {
    let look = |_| {
        std::thread::sleep(std::time::Duration::from_millis(2));
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let names = tasks
            .filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok());
        names.filter(|name| !name.starts_with("jemalloc")).count()
    };
    (0..20).map(look).min().unwrap()
}

/// Runs products of 1024 x 1024 on four fresh threads, one after another, and returns the number of
/// additional threads.
fn extra(intra_op_threads: usize) -> usize {
    let weights =
        vec![TorchParameter::filled("weight", &[1024, 1024], |elements| elements.fill(0.01))];
    let module = Written::new("def forward(self, x):\n    return x @ self.weight\n", weights);
    let options = SessionOptions { intra_op_threads, ..SessionOptions::default() };
    let request = LoadRequest { graph: module.path(), options, ..LoadRequest::default() };
    let session = torch().load(&request).unwrap();
    let before = threads();
    let mut most = 0;
    for _ in 0..4 {
        std::thread::scope(|scope| {
            let run = scope.spawn(|| {
                session.run(&[floats("x", &[1024, 1024], &vec![1.0; 1 << 20])], &[]).unwrap();
                threads() - before - 1
            });
            most = most.max(run.join().unwrap());
        });
    }
    most
}

#[test]
fn fresh_threads_bring_no_others() {
    if std::env::var_os(CHILD).is_some() {
        assert_eq!(extra(1), 0);
        assert_eq!(extra(2), 1, "a model that asks for two threads gets them");
        assert_eq!(extra(1), 0, "and leaves the others alone");
        return;
    }
    child("threads::fresh_threads_bring_no_others", CHILD, "1".as_ref());
}
