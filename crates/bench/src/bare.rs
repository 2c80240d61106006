//! The model without a server: ONNX Runtime in this process, parameters in the same kind of memory.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use base::{Error, NamedTensor, Result, Signature, Tensor};
use engine::layout::Artifact;
use engine::{BoundTensor, Engine, LoadRequest, Session};
use engine_onnx::OnnxEngine;
use memory::{Chunk, ParameterStore, PoolConfig, SLOT_BYTES, SlotPool, StoreConfig};
use os::Rate;

use loadgen::BenchEnv;
use loadgen::stats::Latencies;

/// Time of a run that judges a number of rows.
const CALIBRATION_TURN: Duration = Duration::from_millis(250);
/// Minimum time of the calibration. A core that was idle is slow at first.
const CALIBRATION_MIN: Duration = Duration::from_secs(1);
/// Maximum time of the calibration.
const CALIBRATION_MAX: Duration = Duration::from_secs(5);
/// Two guesses count as equal if they differ by at most one part in this many.
const CALIBRATION_STEPS: usize = 16;
/// Maximum number of rows tried.
const ROWS_MAX: usize = 4096;

/// A session of the model.
pub(crate) struct Bare {
    engine: OnnxEngine,
    session: Box<dyn Session>,
}

/// Figures of a loop.
pub(crate) struct BareRun {
    pub(crate) latencies: Latencies,
    /// Runs a second of all threads together.
    pub(crate) rate: f64,
    /// Processor time of the looping threads.
    pub(crate) cpu_us_per_run: f64,
}

impl Bare {
    /// Opens the published model in `dir` as a server would.
    pub(crate) fn open(env: &BenchEnv, dir: &Path) -> Result<Bare> {
        let engine = OnnxEngine::open(&env.onnxruntime)?;
        let request = LoadRequest {
            graph: dir.join("model.onnx"),
            parameters: parameters(dir)?,
            ..LoadRequest::default()
        };
        let session = engine.load(&request)?;
        Ok(Bare { engine, session })
    }

    pub(crate) fn engine_version(&self) -> String {
        self.engine.version()
    }

    /// Returns the inputs and outputs of the model.
    pub(crate) fn signature(&self) -> &Signature {
        self.session.signature()
    }

    /// Returns the first output's name.
    pub(crate) fn output_name(&self) -> String {
        self.signature().outputs.first().map(|output| output.name.clone()).unwrap_or_default()
    }

    /// Returns the first output's numbers for each request.
    #[cfg(test)]
    pub(crate) fn answers(&self, requests: &[Vec<NamedTensor>]) -> Result<Vec<Vec<f32>>> {
        self.first_outputs(requests)?.iter().map(Tensor::to_vec::<f32>).collect()
    }

    /// Returns the first output for each request, with its shape.
    pub(crate) fn first_outputs(&self, requests: &[Vec<NamedTensor>]) -> Result<Vec<Tensor>> {
        let first = |inputs: &Vec<NamedTensor>| {
            let outputs = self.session.run(inputs, &[])?;
            let output = outputs.into_iter().next();
            output
                .map(|output| output.tensor)
                .ok_or_else(|| Error::internal("the model has no output"))
        };
        requests.iter().map(first).collect()
    }

    /// Returns the number of rows that take about `wanted`, once the processor runs at full speed.
    pub(crate) fn rows_for(
        &self,
        wanted: Duration,
        inputs: impl Fn(usize) -> Result<Vec<NamedTensor>>,
    ) -> Result<usize> {
        let mut rows = 1;
        let start = Instant::now();
        loop {
            // Runs on another thread, as the benchmark does. The thread that has just made the
            // model's files takes a third longer.
            let run = self.run(&[inputs(rows)?], 1, Duration::ZERO, CALIBRATION_TURN)?;
            let time = run.latencies.summary().p50_ms / 1e3;
            let share = wanted.as_secs_f64() / time.max(f64::MIN_POSITIVE);
            // A further row costs little if the parameters are read once for all of them: the next
            // guess may be too high.
            let next = (rows as f64 * share.min(2.0)).round().clamp(1.0, ROWS_MAX as f64) as usize;
            let found = next.abs_diff(rows) <= rows / CALIBRATION_STEPS;
            if (found && start.elapsed() >= CALIBRATION_MIN) || start.elapsed() >= CALIBRATION_MAX {
                return Ok(next);
            }
            rows = next;
        }
    }

    /// Runs requests in turn on `threads` threads for `warm_up` and then, counted, for `time`.
    pub(crate) fn run(
        &self,
        requests: &[Vec<NamedTensor>],
        threads: usize,
        warm_up: Duration,
        time: Duration,
    ) -> Result<BareRun> {
        let counting = AtomicBool::new(false);
        let stop = AtomicBool::new(false);
        let ticket = AtomicU64::new(0);
        let (parts, elapsed) = std::thread::scope(|scope| {
            let looping: Vec<_> = (0..threads)
                .map(|_| scope.spawn(|| self.loop_until(requests, &ticket, &counting, &stop)))
                .collect();
            std::thread::sleep(warm_up);
            counting.store(true, Ordering::Relaxed);
            let start = Instant::now();
            std::thread::sleep(time);
            stop.store(true, Ordering::Relaxed);
            let elapsed = start.elapsed();
            let parts: Vec<Result<BareThread>> = looping
                .into_iter()
                .map(|thread| {
                    thread.join().unwrap_or_else(|_| Err(Error::internal("a loop panicked")))
                })
                .collect();
            (parts, elapsed)
        });
        let mut latencies = Latencies::default();
        let mut cpu = Duration::ZERO;
        for part in parts {
            let part = part?;
            part.latencies.into_iter().for_each(|latency| latencies.record(latency));
            cpu += part.cpu;
        }
        let runs = latencies.count().max(1) as f64;
        Ok(BareRun {
            rate: runs / elapsed.as_secs_f64(),
            cpu_us_per_run: cpu.as_secs_f64() * 1e6 / runs,
            latencies,
        })
    }

    /// Runs requests until `stop` is set. Latencies and processor time count from the moment when
    /// `counting` is set.
    fn loop_until(
        &self,
        requests: &[Vec<NamedTensor>],
        ticket: &AtomicU64,
        counting: &AtomicBool,
        stop: &AtomicBool,
    ) -> Result<BareThread> {
        let mut latencies = Vec::with_capacity(1 << 16);
        let mut cpu_start = None;
        while !stop.load(Ordering::Relaxed) {
            if cpu_start.is_none() && counting.load(Ordering::Relaxed) {
                cpu_start = Some(os::thread::cpu_time());
            }
            let request =
                &requests[ticket.fetch_add(1, Ordering::Relaxed) as usize % requests.len()];
            let start = Instant::now();
            std::hint::black_box(self.session.run(request, &[])?);
            if cpu_start.is_some() {
                latencies.push(start.elapsed());
            }
        }
        let cpu =
            cpu_start.map_or(Duration::ZERO, |start| os::thread::cpu_time().saturating_sub(start));
        Ok(BareThread { latencies, cpu })
    }
}

/// Counts of one thread.
struct BareThread {
    latencies: Vec<Duration>,
    cpu: Duration,
}

/// Loads a published model's parameters into a pool of their size.
fn parameters(dir: &Path) -> Result<Vec<BoundTensor>> {
    let artifact = Artifact::open(dir)?;
    let Some(weights) = artifact.weights() else { return Ok(Vec::new()) };
    let tensors = &artifact.manifest.tensors;
    let chunk = |tensor: &engine::layout::TensorEntry| {
        Ok(Chunk { hash: tensor.hash()?, offset: tensor.offset, bytes: tensor.bytes })
    };
    let chunks: Vec<Chunk> = tensors.iter().map(chunk).collect::<Result<_>>()?;
    // Every tensor may leave most of a slot unused.
    let bytes_max = artifact.parameter_bytes() + (tensors.len() as u64 + 1) * SLOT_BYTES as u64;
    let pool =
        SlotPool::new(PoolConfig { bytes_max, huge_pages: true, fault_rate: Rate::unlimited() })?;
    let store =
        ParameterStore::new(pool, StoreConfig { read_rate: Rate::unlimited(), direct: true });
    let loaded = store.load(&weights, &chunks, &AtomicBool::new(false))?;
    let bind = |(tensor, placed): (&engine::layout::TensorEntry, memory::Placement)| {
        Ok(BoundTensor {
            name: tensor.name.clone(),
            dtype: tensor.dtype()?,
            dims: tensor.dims.clone(),
            region: Arc::clone(&placed.region),
            offset: placed.offset,
            bytes: placed.bytes,
        })
    };
    tensors.iter().zip(loaded.placed).map(bind).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::models::dense::DenseModel;
    use demo::ctr::{Ctr, CtrContent};
    use demo::layers::TOLERANCE;
    use engine::LibrarySearch;

    pub(crate) fn env(dir: &Path) -> BenchEnv {
        BenchEnv {
            millpond: "unused".into(),
            onnxruntime: LibrarySearch::around_process(None, None),
            cache_dir: dir.into(),
            ..Default::default()
        }
    }

    /// ONNX Runtime computes from the files what the reference computes from the seed, in both
    /// forms.
    #[test]
    fn the_engine_agrees_with_the_reference() {
        let dir = tempfile::tempdir().unwrap();
        let ctr = Ctr::of_bytes(4_000_000);
        let layout = dir.path().join("layout");
        let embedded = dir.path().join("model.onnx");
        std::fs::create_dir(&layout).unwrap();
        ctr.write_layout(CtrContent::of(7), &layout, &|_| {}).unwrap();
        ctr.write_embedded(CtrContent::of(7), &embedded, &|_| {}).unwrap();

        let features: Vec<_> = (0..3).map(|index| ctr.inputs(1, index, 5)).collect();
        let requests: Vec<_> =
            features.iter().map(|features| features.tensors().unwrap()).collect();
        let expected = ctr.reference(CtrContent::of(7), &features);
        let bare = Bare::open(&env(dir.path()), &layout).unwrap();
        assert_eq!(bare.output_name(), "prob");
        let request = LoadRequest { graph: embedded, ..LoadRequest::default() };
        let heap = Bare { session: bare.engine.load(&request).unwrap(), engine: bare.engine };
        for answers in [bare.answers(&requests).unwrap(), heap.answers(&requests).unwrap()] {
            for (answer, wanted) in answers.iter().zip(&expected) {
                assert_eq!(answer.len(), 5);
                assert!(
                    answer.iter().zip(wanted).all(|(a, b)| (a - b).abs() < TOLERANCE / 10.0),
                    "{answer:?} {wanted:?}"
                );
            }
        }
    }

    #[test]
    fn loops_count_their_runs() {
        let dir = tempfile::tempdir().unwrap();
        let dense = DenseModel::new();
        dense.write_layout(1, dir.path()).unwrap();
        let bare = Bare::open(&env(dir.path()), dir.path()).unwrap();
        let requests = vec![dense.inputs(1, 0, 1).unwrap()];
        let ms = Duration::from_millis;
        let run = bare.run(&requests, 2, ms(10), ms(2000)).unwrap();
        assert!(run.latencies.count() > 0 && run.cpu_us_per_run > 0.0 && run.rate > 0.0);
    }
}
