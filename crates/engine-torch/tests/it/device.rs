//! Models on a GPU. The machines that run these tests have none, so the tests use two simulated
//! ones (`engines/torch/pretend`, built by `make test-rust`): LibTorch's device code is real down
//! to its kernels, and work without a wait for it is never done. Each test starts processes whose
//! LibTorch finds the simulation instead of CUDA's library.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use base::ErrorKind;
use engine::{Device, Engine, LoadRequest, SessionOptions};
use engine_torch::build::TorchParameter;

use crate::support::{DEVICE, Written, answer, children, floats, torch};

/// Variable with the file that the simulation writes transfers to.
const LOG: &str = "PRETEND_GPU_LOG";
/// Variable that is set in a process that does a test's work.
const CHILD: &str = "MILLPOND_TEST_HAS_A_GPU";
/// Threads that run one session at once, and runs of each.
const THREADS: usize = 4;
const RUNS: usize = 50;

fn pretended() -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/pretend-gpu");
    assert!(
        path.join("libtorch_cuda.so").exists(),
        "{} is not built: run `make test-rust`",
        path.display()
    );
    path.canonicalize().unwrap()
}

/// Runs tests whose sessions are loaded to `device`. Returns the number that passed and the log of
/// transfers.
fn on(device: &str, which: &[&str]) -> (usize, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let library = pretended();
    let environment = [
        ("LD_LIBRARY_PATH", library.as_os_str()),
        (LOG, log.as_os_str()),
        (DEVICE, device.as_ref()),
        (CHILD, "1".as_ref()),
    ];
    let out = children(which, &environment);
    let passed =
        out.rsplit_once(" passed").and_then(|(before, _)| before.rsplit(' ').next()?.parse().ok());
    let lines =
        std::fs::read_to_string(&log).unwrap_or_default().lines().map(str::to_owned).collect();
    (passed.unwrap_or_else(|| panic!("{out}")), lines)
}

fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

#[test]
fn libtorch_conforms_on_a_gpu() {
    let (passed, log) = on("cuda:1", &["--exact", "conformance::libtorch_conforms"]);
    assert_eq!(passed, 1);
    assert!(
        log.iter().any(|line| line.starts_with("copy pinned to device")),
        "it did not run there"
    );
    assert_eq!(log.last().unwrap(), "empty", "a dropped session lets go of the device's memory");
}

#[test]
fn a_gpu_agrees_with_the_processor() {
    let (passed, log) = on("cuda:0", &["running::", "state::"]);
    assert!(passed >= 15, "{passed}");
    assert!(
        log.iter().any(|line| line.starts_with("copy pinned to device")),
        "they did not run there"
    );
}

#[test]
fn threads_have_streams_of_their_own_and_pinned_memory() {
    const WIDTH: usize = 1000;
    if is_child() {
        let weight = TorchParameter::filled("weight", &[WIDTH], |elements| elements.fill(3.0));
        let source = "def forward(self, x):\n    y = x.clone()\n    y += self.weight\n    return y.clone()\n";
        let session = &Written::new(source, vec![weight]).load();
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                scope.spawn(move || {
                    for run in 0..RUNS {
                        let x = (thread * RUNS + run) as f32;
                        let got = answer(&**session, floats("x", &[WIDTH], &[x; WIDTH]));
                        assert_eq!(got, [x + 3.0; WIDTH]);
                    }
                });
            }
        });
        return;
    }
    let (_, log) =
        on("cuda:0", &["--exact", "device::threads_have_streams_of_their_own_and_pinned_memory"]);
    let streams = |copy: &str| {
        let lines = log.iter().filter_map(|line| line.strip_prefix(copy)?.strip_prefix(" on "));
        let all: Vec<&str> = lines.collect();
        (all.len(), all.into_iter().map(str::to_owned).collect::<BTreeSet<_>>())
    };
    let (inputs, streams_in) = streams("copy pinned to device");
    assert_eq!((inputs, streams_in.len()), (THREADS * RUNS, THREADS), "{log:?}");
    assert!(!streams_in.contains("0"), "the default stream is nobody's");
    let (outputs, streams_out) = streams("copy device to pinned");
    assert_eq!((outputs, streams_out), (THREADS * RUNS, streams_in), "{log:?}");
    let (parameters, loading) = streams("copy pageable to device");
    assert_eq!(
        (parameters, loading),
        (1, BTreeSet::from(["0".to_owned()])),
        "only the load may wait: {log:?}"
    );
    assert_eq!(log.last().unwrap(), "empty");
}

/// A stream's state is made by one thread and used by others.
#[test]
fn a_state_goes_from_thread_to_thread() {
    if is_child() {
        let sum =
            TorchParameter { buffer: true, ..TorchParameter::floats("sum", &[1], vec![10.0]) };
        let source =
            "def forward(self, x):\n    self.sum = self.sum + x\n    return self.sum.clone()\n";
        let session = Written::new(source, vec![sum]).load();
        let fork = session.fork().unwrap();
        drop(session);
        for run in 1..=RUNS {
            let fork = &fork;
            let step = move || answer(&**fork, floats("x", &[1], &[1.0]));
            let got = std::thread::scope(|scope| scope.spawn(step).join().unwrap());
            assert_eq!(got, [10.0 + run as f32]);
        }
        return;
    }
    let (_, log) = on("cuda:1", &["--exact", "device::a_state_goes_from_thread_to_thread"]);
    assert_eq!(log.last().unwrap(), "empty", "{log:?}");
}

/// After the failure of a kernel, CUDA refuses every further call of the process.
#[test]
fn a_failed_kernel_needs_a_new_process() {
    if is_child() {
        let source = "def forward(self, x):\n    return torch.digamma(x)\n";
        let module = Written::new(source, vec![]);
        let load = |device| {
            let options = SessionOptions { device, ..SessionOptions::default() };
            let request = LoadRequest { graph: module.path(), options, ..LoadRequest::default() };
            torch().load(&request).unwrap()
        };
        let on_gpu = load(Device::Cuda(0));
        let on_processor = load(Device::Cpu);
        assert!(!on_gpu.needs_new_process());
        let x = [floats("x", &[1], &[1.0])];
        let error = on_gpu.run(&x, &[]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Internal, "{error}");
        assert!(on_gpu.needs_new_process(), "{error}");
        assert!(on_processor.run(&x, &[]).is_ok() && !on_processor.needs_new_process());
        return;
    }
    on("cuda:0", &["--exact", "device::a_failed_kernel_needs_a_new_process"]);
}

#[test]
fn a_driver_without_devices_is_explained() {
    const TEST: &str = "device::a_driver_without_devices_is_explained";
    if is_child() {
        let module = Written::new("def forward(self, x):\n    return x\n", vec![]);
        let options = SessionOptions { device: Device::Cuda(0), ..SessionOptions::default() };
        let request = LoadRequest { graph: module.path(), options, ..LoadRequest::default() };
        let error = torch().load(&request).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::FailedPrecondition, "{error}");
        assert!(error.message().contains("the driver may be too old"), "{error}");
        return;
    }
    let library = pretended();
    let environment = [
        ("LD_LIBRARY_PATH", library.as_os_str()),
        ("PRETEND_GPU_NONE", "1".as_ref()),
        (CHILD, "1".as_ref()),
    ];
    let out = children(&["--exact", TEST], &environment);
    assert!(out.contains("1 passed"), "{out}");
}

#[test]
fn a_device_beyond_the_last_is_refused() {
    if is_child() {
        let module = Written::new("def forward(self, x):\n    return x\n", vec![]);
        let options = SessionOptions { device: Device::Cuda(2), ..SessionOptions::default() };
        let request = LoadRequest { graph: module.path(), options, ..LoadRequest::default() };
        let error = torch().load(&request).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::FailedPrecondition, "{error}");
        assert!(error.message().contains("there are 2 CUDA devices"), "{error}");
        return;
    }
    on("cpu", &["--exact", "device::a_device_beyond_the_last_is_refused"]);
}
