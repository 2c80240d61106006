//! A run uses the configured number of threads, on every thread.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{DType, ErrorKind, NamedTensor, Tensor};
use bytes::Bytes;
use engine::threads::idle_threads;
use engine::{Engine, LoadRequest, SessionOptions};
use engine_torch::build::TorchParameter;
use memory::{PoolConfig, Region, SlotPool};
use os::Rate;
use os::background::{Attempt, BackgroundRunner};

use crate::support::{Written, answer, child, floats, torch};

/// Variable that is set in the process that counts, which has no threads of other tests.
const CHILD: &str = "MILLPOND_TEST_COUNTS_THREADS";

/// Longest wait for threads that start or end by themselves.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// Flag of a thread that is ending (PF_EXITING in the kernel's sched.h).
const ENDING: u64 = 4;

/// Returns true if the thread counts. A joined thread is still listed for a moment. Threads of
/// jemalloc, which is linked if the whole workspace is built, come and go by themselves.
fn counts(task: &Path) -> bool {
    let Ok(stat) = std::fs::read_to_string(task.join("stat")) else { return false };
    // The second field, the name, ends with the last parenthesis. The ninth field holds the flags.
    let Some((name, fields)) = stat.rsplit_once(')') else { return false };
    let flags = fields.split_whitespace().nth(6).and_then(|flags| flags.parse::<u64>().ok());
    !name.contains("(jemalloc") && flags.is_some_and(|flags| flags & ENDING == 0)
}

/// Returns the number of threads of the process.
fn threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    tasks.filter(|task| counts(&task.as_ref().unwrap().path())).count()
}

/// Returns the least of several counts, as threads of earlier runs may be about to end.
fn least_threads() -> usize {
    let look = |_| {
        std::thread::sleep(Duration::from_millis(10));
        threads()
    };
    (0..50).map(look).min().unwrap()
}

/// Returns the number of threads as soon as it is `wanted`, or the last count after a long wait.
/// LibTorch's own threads end some time after the thread that started them.
fn threads_once(wanted: usize) -> usize {
    let until = Instant::now() + WAIT_MAX;
    loop {
        let count = threads();
        if count == wanted || Instant::now() >= until {
            return count;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Runs products of 1024 x 1024 on four fresh threads, one after another, and returns the largest
/// number of additional threads.
fn extra(intra_op_threads: usize) -> usize {
    let weights =
        vec![TorchParameter::filled("weight", &[1024, 1024], |elements| elements.fill(0.01))];
    let module = Written::new("def forward(self, x):\n    return x @ self.weight\n", weights);
    let options = SessionOptions { intra_op_threads, ..SessionOptions::default() };
    let request = LoadRequest { graph: module.path(), options, ..LoadRequest::default() };
    let session = torch().load(&request).unwrap();
    let before = least_threads();
    let mut most = 0;
    for _ in 0..4 {
        std::thread::scope(|scope| {
            let run = scope.spawn(|| {
                session.run(&[floats("x", &[1024, 1024], &vec![1.0; 1 << 20])], &[]).unwrap();
                // This thread, and threads that it requested.
                threads_once(before + intra_op_threads) - before - 1
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

/// A warm-up at idle priority may be the first run of a model with parallel parts.
#[test]
fn parallel_parts_have_an_ordinary_thread() {
    if std::env::var_os(CHILD).is_none() {
        return child("threads::parallel_parts_have_an_ordinary_thread", CHILD, "1".as_ref());
    }
    let source = "def part(self, x):\n    return x * self.scale\n\
                  def forward(self, x):\n    return torch.wait(fork(self.part, x))\n";
    let module = Written::new(source, vec![TorchParameter::floats("scale", &[1], vec![3.0])]);
    let graph = module.path();
    let mut runner = BackgroundRunner::new("test", "loading", Duration::from_secs(3600));
    let run = move |_: &Attempt| {
        let request = LoadRequest { graph: graph.clone(), ..LoadRequest::default() };
        torch().load(&request)?.run(&[floats("x", &[1], &[2.0])], &[])
    };
    let outputs = runner.run("test", &Arc::default(), run).unwrap();
    assert_eq!(outputs[0].tensor.to_vec::<f32>().unwrap(), [6.0]);
    assert_eq!(idle_threads(), ["test-idle"]);
}

/// Elements in memory of their own, which is unmapped with the last reference.
struct MappedElements(Region);

impl AsRef<[u8]> for MappedElements {
    fn as_ref(&self) -> &[u8] {
        self.0.as_slice()
    }
}

/// Forward fails before it waits for the part, which still reads the input.
#[test]
fn a_part_that_outlives_its_run_reads_a_copy() {
    if std::env::var_os(CHILD).is_none() {
        return child("threads::a_part_that_outlives_its_run_reads_a_copy", CHILD, "1".as_ref());
    }
    let source = "def part(self, x):\n    y = x.sum()\n    for i in range(20000):\n        y = y + x[0]\n    return y\n\
                  def forward(self, x):\n    later = fork(self.part, x)\n    y = x.view([1])\n    \
                  return torch.wait(later) + y\n";
    let module = Written::new(source, vec![]);
    let session = module.load();
    let config =
        PoolConfig { bytes_max: 2 << 20, huge_pages: false, fault_rate: Rate::unlimited() };
    let mut region = SlotPool::new(config).unwrap().allocate(400_000).unwrap();
    region.as_mut_slice().fill(0);
    let elements = Bytes::from_owner(MappedElements(region.freeze()));
    let tensor = Tensor::from_bytes(DType::F32, [100_000].as_slice(), elements).unwrap();
    let refused = session.run(&[NamedTensor::new("x", tensor)], &[]).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
    // One thread runs all parts, so the first part has ended before this run ends.
    assert_eq!(answer(&*session, floats("x", &[1], &[0.0])), [0.0]);
}
