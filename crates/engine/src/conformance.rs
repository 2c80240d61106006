//! Conformance suite of engines. The integration tests of each engine and of the fake run
//! [`check`].
//!
//! An engine brings the standard graphs below in its own format, in one directory, named with its
//! own extension. The suite binds their parameters. If the engine allocates parameters itself, the
//! files contain them. `half` is 0.5, `two` is 2, and each element of `table` is its own row
//! number. All floats are singles.
//!
//! | graph | inputs | parameters | outputs |
//! |---|---|---|---|
//! | `echo-TYPE` for each element type of the capabilities | `x` TYPE \[n\] | | `y` = x |
//! | `echo-scalar` | `x` float32 \[\] | | `y` = x |
//! | `half_plus_two` | `x` float32 \[n\] | `half`, `two` \[1\] | `y` = x * half + two |
//! | `two_outputs` | `x` float32 \[n\] | | `half` = x / 2, `plus` = x + 2, in this order |
//! | `pick` | `index` int64 \[n\] | `table` \[1048576, 16\] | `rows` \[n, 16\], the table's rows |
//!
//! A failed expectation panics, as an assertion does.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use base::{DType, Dim, Error, ErrorKind, NamedTensor, Tensor};
use bytes::Bytes;
use memory::{ParameterStore, PoolConfig, Region, SlotPool, StoreConfig};
use os::Rate;

use crate::{
    Arena, BoundTensor, Device, Engine, LoadRequest, ParameterUse, Session, SessionOptions,
    SignatureFile,
};

/// Number of rows of `pick`'s table.
pub const TABLE_ROWS: usize = 1 << 20;
/// Number of columns of `pick`'s table.
pub const TABLE_COLUMNS: usize = 16;
/// A device that no machine has.
const DEVICE_NONE: Device = Device::Cuda(4095);
/// Number of threads that run one session at once.
const THREADS: usize = 4;
/// Number of runs per thread.
const RUNS: usize = 200;

/// Standard graphs of an engine.
#[derive(Clone, Debug)]
pub struct Fixture {
    /// Directory of the graphs.
    pub graphs: PathBuf,
    /// Extension of the files, such as "onnx".
    pub extension: String,
    /// Empty directory for damaged graphs.
    pub scratch: PathBuf,
    /// Facts about inputs and outputs that the format does not state, by graph.
    pub signatures: BTreeMap<String, SignatureFile>,
    /// Device that the graphs run on. Parameters lie in regions on the processor only.
    pub device: Device,
}

/// Runs the whole suite.
///
/// # Panics
/// If `engine` does not conform.
pub fn check(engine: &dyn Engine, fixture: &Fixture) {
    let store = store();
    let suite = ConformanceSuite { engine, fixture, pool: store.pool().clone(), store };
    type Case = fn(&ConformanceSuite<'_>);
    let cases: [(&str, Case); 13] = [
        ("echo", echo),
        ("scalars and empty tensors", shapes),
        ("signature", signature),
        ("devices", devices),
        ("bound parameters", bound_parameters),
        ("allocated parameters", allocated_parameters),
        ("no copy of parameters", no_copy),
        ("missing and wrong parameters", missing_parameter),
        ("damaged graphs", damaged_graphs),
        ("requested outputs", requested_outputs),
        ("refused values", refused_values),
        ("runs at once", runs_at_once),
        ("answers outlive the session", answers_outlive),
    ];
    for (name, case) in cases {
        eprintln!("conformance of {}: {name}", engine.name());
        case(&suite);
    }
}

struct ConformanceSuite<'a> {
    engine: &'a dyn Engine,
    fixture: &'a Fixture,
    pool: Arc<SlotPool>,
    store: Arc<ParameterStore>,
}

fn store() -> Arc<ParameterStore> {
    let config =
        PoolConfig { bytes_max: 256 << 20, huge_pages: false, fault_rate: Rate::unlimited() };
    let pool = SlotPool::new(config).expect("a pool for the suite");
    ParameterStore::new(pool, StoreConfig { read_rate: Rate::unlimited(), direct: true })
}

impl ConformanceSuite<'_> {
    fn try_load(
        &self,
        name: &str,
        parameters: Vec<BoundTensor>,
    ) -> Result<Box<dyn Session>, Error> {
        let graph = self.fixture.graphs.join(format!("{name}.{}", self.fixture.extension));
        let signature = self.fixture.signatures.get(name).cloned().unwrap_or_default();
        let mut request = LoadRequest { graph, ..LoadRequest::default() };
        request.options =
            SessionOptions { signature, device: self.fixture.device, ..SessionOptions::default() };
        if self.allocates() {
            let bytes = self.engine.arena_bytes(&request.graph)?;
            request.arena = Some(Arena { store: self.store.clone(), bytes, stop: Arc::default() });
        } else {
            request.parameters = parameters;
        }
        self.engine.load(&request)
    }

    fn allocates(&self) -> bool {
        self.engine.capabilities().parameters == ParameterUse::Allocated
    }

    fn load(&self, name: &str, parameters: Vec<BoundTensor>) -> Box<dyn Session> {
        self.try_load(name, parameters).unwrap_or_else(|e| panic!("{name} does not load: {e:?}"))
    }

    fn load_half_plus_two(&self) -> Box<dyn Session> {
        self.load(
            "half_plus_two",
            vec![self.floats("half", &[1], &[0.5]), self.floats("two", &[1], &[2.0])],
        )
    }

    fn floats(&self, name: &str, dims: &[usize], elements: &[f32]) -> BoundTensor {
        let mut region = self.pool.allocate(size_of_val(elements)).expect("memory for a parameter");
        for (bytes, element) in region.as_mut_slice().chunks_exact_mut(4).zip(elements) {
            bytes.copy_from_slice(&element.to_le_bytes());
        }
        let region: Arc<Region> = Arc::new(region.freeze());
        let bytes = size_of_val(elements);
        BoundTensor {
            name: name.to_owned(),
            dtype: DType::F32,
            dims: dims.to_vec(),
            region,
            offset: 0,
            bytes,
        }
    }

    /// Returns a table in which each element is its own row number.
    fn table(&self) -> BoundTensor {
        let elements: Vec<f32> =
            (0..TABLE_ROWS * TABLE_COLUMNS).map(|at| (at / TABLE_COLUMNS) as f32).collect();
        self.floats("table", &[TABLE_ROWS, TABLE_COLUMNS], &elements)
    }
}

fn floats(name: &str, elements: &[f32]) -> NamedTensor {
    NamedTensor::new(
        name,
        Tensor::from_vec([elements.len()].as_slice(), elements.to_vec()).expect("one axis"),
    )
}

fn indices(name: &str, elements: &[i64]) -> NamedTensor {
    NamedTensor::new(
        name,
        Tensor::from_vec([elements.len()].as_slice(), elements.to_vec()).expect("one axis"),
    )
}

fn answer(session: &dyn Session, input: NamedTensor) -> Vec<NamedTensor> {
    session
        .signature()
        .check_inputs(std::slice::from_ref(&input))
        .expect("the input fits the signature");
    session.run(&[input], &[]).expect("the run succeeds")
}

#[track_caller]
fn assert_one_line(error: &Error) {
    let message = error.message();
    assert!(!message.is_empty() && !message.contains(['\n', '\r']), "not one line: {message:?}");
}

#[track_caller]
fn assert_fault_of_model(error: &Error) {
    assert_one_line(error);
    let kinds = [ErrorKind::InvalidArgument, ErrorKind::DataLoss, ErrorKind::NotFound];
    assert!(kinds.contains(&error.kind()), "the model is at fault, not {error:?}");
}

/// Returns seven elements of any type. Seven is not a power of two, so packed types end inside a
/// byte.
fn sample(dtype: DType) -> Tensor {
    const ELEMENTS: usize = 7;
    if dtype == DType::String {
        let texts: [&[u8]; ELEMENTS] =
            [b"", b"a", "grün".as_bytes(), b"nul\0inside", &[0xff, 0xfe], b" ", &[b'x'; 300]];
        let strings: Vec<Bytes> = texts.into_iter().map(Bytes::from_static).collect();
        return Tensor::from_strings([ELEMENTS].as_slice(), strings).expect("seven strings");
    }
    let bytes = dtype.bytes_for(ELEMENTS).expect("a fixed size");
    // Small values: valid for bool, a number in every float type; the last nibble of a packed type
    // is padding.
    let mut data: Vec<u8> = (0..bytes).map(|at| (at % 2) as u8).collect();
    if dtype.bits() == Some(4) {
        data = vec![0x21, 0x43, 0x65, 0x07];
    }
    Tensor::from_bytes(dtype, [ELEMENTS].as_slice(), Bytes::from(data)).expect("seven elements")
}

fn echo(suite: &ConformanceSuite<'_>) {
    for dtype in suite.engine.capabilities().dtypes {
        let session = suite.load(&format!("echo-{dtype}"), vec![]);
        let sent = sample(dtype);
        let empty = empty(dtype);
        for tensor in [sent, empty] {
            let got = answer(&*session, NamedTensor::new("x", tensor.clone()));
            assert_eq!(got, [NamedTensor::new("y", tensor)], "{dtype} does not come back as sent");
        }
    }
}

fn empty(dtype: DType) -> Tensor {
    match dtype {
        DType::String => Tensor::from_strings([0].as_slice(), Vec::new()),
        _ => Tensor::from_bytes(dtype, [0].as_slice(), Bytes::new()),
    }
    .expect("no elements")
}

fn shapes(suite: &ConformanceSuite<'_>) {
    let session = suite.load("echo-scalar", vec![]);
    let scalar = Tensor::from_vec([].as_slice(), vec![7f32]).expect("a scalar");
    let got = answer(&*session, NamedTensor::new("x", scalar.clone()));
    assert_eq!(got[0].tensor, scalar);
    // Bytes that start anywhere inside a request's body.
    let body = Bytes::from(vec![0u8; 64]);
    let session = suite.load("echo-float32", vec![]);
    for start in 0..4 {
        let bytes = body.slice(start..start + 8);
        let tensor = Tensor::from_bytes(DType::F32, [2].as_slice(), bytes).expect("two elements");
        assert_eq!(answer(&*session, NamedTensor::new("x", tensor.clone()))[0].tensor, tensor);
    }
}

fn signature(suite: &ConformanceSuite<'_>) {
    let session = suite.load_half_plus_two();
    let signature = session.signature();
    let [input] = &signature.inputs[..] else { panic!("parameters are not inputs: {signature:?}") };
    assert_eq!((input.name.as_str(), input.dtype, input.optional), ("x", DType::F32, false));
    assert!(matches!(input.shape.as_deref(), Some([Dim::Dynamic(_)])), "{input:?}");
    assert_eq!(signature.outputs.iter().map(|spec| spec.name.as_str()).collect::<Vec<_>>(), ["y"]);
}

/// Checks that a missing device is an error, and that no other device is used instead.
fn devices(suite: &ConformanceSuite<'_>) {
    let capabilities = suite.engine.capabilities();
    let checked = capabilities.check_device(suite.engine.name(), DEVICE_NONE);
    assert_eq!(checked.is_ok(), capabilities.cuda, "the check says what the capabilities say");
    let graph = suite.fixture.graphs.join(format!("half_plus_two.{}", suite.fixture.extension));
    let options = SessionOptions {
        device: DEVICE_NONE,
        signature: suite.fixture.signatures.get("half_plus_two").cloned().unwrap_or_default(),
        ..SessionOptions::default()
    };
    let mut request = LoadRequest { graph, options, ..LoadRequest::default() };
    if !suite.allocates() {
        let half = suite.floats("half", &[1], &[0.5]);
        request.parameters = vec![half, suite.floats("two", &[1], &[2.0])];
    }
    let error = suite
        .engine
        .load(&request)
        .err()
        .expect("a model on a device that is not there is refused");
    assert_one_line(&error);
    assert!(
        capabilities.cuda || error.message().contains("cpu"),
        "it says what the engine has: {error}"
    );
}

fn allocated_parameters(suite: &ConformanceSuite<'_>) {
    if !suite.allocates() {
        return;
    }
    let table_bytes = TABLE_ROWS * TABLE_COLUMNS * size_of::<f32>();
    suite.pool.prefault(128 << 20).expect("memory for the table");
    let before = resident_bytes();
    let session = suite.load("pick", vec![]);
    let grown = resident_bytes().saturating_sub(before);
    assert!(
        grown < table_bytes / 2,
        "the process grew by {grown} bytes over a table of {table_bytes}"
    );
    let wanted = if suite.fixture.device == Device::Cpu { table_bytes as u64 } else { 0 };
    let held = session.parameter_bytes();
    let used = suite.pool.stats().used;
    assert!(held >= wanted && used >= wanted, "{held} bytes, {used} of the pool, of {wanted}");
    assert!(wanted > 0 || used == 0, "{used} bytes of the pool for parameters that lie elsewhere");
    let got = answer(&*session, indices("index", &[0, 1_000_000, 3]));
    let rows = got[0].tensor.to_vec::<f32>().expect("singles");
    assert_eq!([rows[0], rows[16], rows[47]], [0.0, 1_000_000.0, 3.0]);
    drop(session);
    assert_eq!(suite.pool.stats().used, 0, "a dropped session frees its memory");
}

fn bound_parameters(suite: &ConformanceSuite<'_>) {
    if suite.allocates() {
        return;
    }
    let half = suite.floats("half", &[1], &[0.5]);
    let two = suite.floats("two", &[1], &[2.0]);
    let session = suite.load("half_plus_two", vec![half.clone(), two.clone()]);
    let got = answer(&*session, floats("x", &[1.0, 2.0, 5.0]));
    assert_eq!(got, [floats("y", &[2.5, 3.0, 4.5])]);
    // Other values in the same graph: the response depends on the bound parameters.
    let others = vec![suite.floats("half", &[1], &[-1.0]), suite.floats("two", &[1], &[0.25])];
    assert_eq!(
        answer(&*suite.load("half_plus_two", others), floats("x", &[1.0])),
        [floats("y", &[-0.75])]
    );
    assert!(Arc::strong_count(&half.region) > 1, "a session holds what it uses");
    drop(session);
    assert_eq!(Arc::strong_count(&half.region), 1, "a dropped session frees its regions");
    assert_eq!(Arc::strong_count(&two.region), 1, "a dropped session frees its regions");
    let outside = BoundTensor { offset: 8, ..half };
    assert_fault_of_model(
        &suite.try_load("half_plus_two", vec![outside, two]).err().expect("outside its region"),
    );
}

fn no_copy(suite: &ConformanceSuite<'_>) {
    if suite.allocates() {
        return;
    }
    let table = suite.table();
    let before = resident_bytes();
    let session = suite.load("pick", vec![table.clone()]);
    let got = answer(&*session, indices("index", &[0, 1_000_000, 3]));
    let grown = resident_bytes().saturating_sub(before);
    assert!(
        grown < table.bytes / 2,
        "the process grew by {grown} bytes over a table of {}",
        table.bytes
    );
    assert_eq!(got[0].tensor.shape(), [3, TABLE_COLUMNS]);
    let rows = got[0].tensor.to_vec::<f32>().expect("singles");
    assert_eq!([rows[0], rows[16], rows[47]], [0.0, 1_000_000.0, 3.0]);
    drop(session);
    assert_eq!(Arc::strong_count(&table.region), 1);
}

/// Returns the resident anonymous memory of this process, in bytes.
///
/// # Panics
/// If `/proc` does not state the value.
pub fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("RssAnon");
    line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") << 10
}

fn missing_parameter(suite: &ConformanceSuite<'_>) {
    if suite.allocates() {
        return;
    }
    let half = suite.floats("half", &[1], &[0.5]);
    let two = suite.floats("two", &[1], &[2.0]);
    let refused = |parameters: &[&BoundTensor]| {
        let parameters = parameters.iter().copied().cloned().collect();
        assert_fault_of_model(
            &suite.try_load("half_plus_two", parameters).err().expect("not what the graph wants"),
        );
    };
    refused(&[&half]);
    refused(&[&half, &BoundTensor { dtype: DType::I32, ..two.clone() }]);
    refused(&[&half, &BoundTensor { dtype: DType::U8, bytes: 1, ..two.clone() }]);
    refused(&[&half, &BoundTensor { dims: vec![1, 1], ..two.clone() }]);
    refused(&[&half, &BoundTensor { offset: 8, ..two.clone() }]);
    assert_eq!(Arc::strong_count(&half.region), 1, "a failed load frees its regions");
}

fn damaged_graphs(suite: &ConformanceSuite<'_>) {
    let whole = suite.fixture.graphs.join(format!("two_outputs.{}", suite.fixture.extension));
    let whole = std::fs::read(whole).expect("the graph");
    let damaged: [(&str, &[u8]); 3] =
        [("empty", b""), ("garbage", &[0xa5; 4096]), ("truncated", &whole[..whole.len() / 2])];
    let load = |graph: PathBuf| suite.engine.load(&LoadRequest { graph, ..LoadRequest::default() });
    for (name, bytes) in damaged {
        let path = suite.fixture.scratch.join(name);
        std::fs::write(&path, bytes).expect("writing to the scratch directory");
        assert_fault_of_model(
            &load(path).err().unwrap_or_else(|| panic!("a graph that is {name} loads")),
        );
    }
    assert_fault_of_model(
        &load(suite.fixture.scratch.join("absent")).err().expect("there is no such graph"),
    );
    assert_fault_of_model(
        &load(suite.fixture.scratch.clone()).err().expect("a directory is not a graph"),
    );
}

fn requested_outputs(suite: &ConformanceSuite<'_>) {
    let session = suite.load("two_outputs", vec![]);
    let run = |wanted: &[&str]| {
        let wanted: Vec<Arc<str>> = wanted.iter().map(|name| Arc::from(*name)).collect();
        session.run(&[floats("x", &[4.0])], &wanted)
    };
    let half = floats("half", &[2.0]);
    let plus = floats("plus", &[6.0]);
    assert_eq!(run(&[]).expect("all"), [half.clone(), plus.clone()]);
    assert_eq!(run(&["plus", "half"]).expect("in another order"), [plus.clone(), half]);
    assert_eq!(run(&["plus", "plus"]).expect("one twice"), [plus.clone(), plus.clone()]);
    assert_eq!(run(&["plus"]).expect("one"), [plus]);
    let error = run(&["plus", "absent"]).expect_err("there is no such output");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert_one_line(&error);
}

fn refused_values(suite: &ConformanceSuite<'_>) {
    let session = suite.load("pick", vec![suite.table()]);
    let unknown = session.run(&[indices("absent", &[0])], &[]).expect_err("an unknown input");
    let missing = session.run(&[], &[]).expect_err("a missing input");
    let mut errors = vec![unknown, missing];
    // GPU kernels do not report an index out of range: those of LibTorch either return row 0 or end
    // the process.
    if suite.fixture.device == Device::Cpu {
        let out_of_range = session.run(&[indices("index", &[0, 1 << 40])], &[]);
        errors.push(out_of_range.expect_err("an index out of range"));
    }
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert_one_line(&error);
    }
    assert_eq!(
        answer(&*session, indices("index", &[5]))[0].tensor.shape(),
        [1, TABLE_COLUMNS],
        "it still runs"
    );
}

fn runs_at_once(suite: &ConformanceSuite<'_>) {
    let session = suite.load_half_plus_two();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let session = &session;
            scope.spawn(move || {
                for run in 0..RUNS {
                    let x: Vec<f32> =
                        (0..1 + run % 17).map(|at| (thread * 1000 + run + at) as f32).collect();
                    let y: Vec<f32> = x.iter().map(|x| x * 0.5 + 2.0).collect();
                    assert_eq!(answer(&**session, floats("x", &x)), [floats("y", &y)]);
                }
            });
        }
    });
}

fn answers_outlive(suite: &ConformanceSuite<'_>) {
    let table = suite.table();
    let session = suite.load("pick", vec![table.clone()]);
    let picked = answer(&*session, indices("index", &[9, 8]));
    drop((session, table));
    let session = suite.load_half_plus_two();
    let computed = answer(&*session, floats("x", &vec![3.0; 4096]));
    drop(session);
    let elsewhere = std::thread::spawn(move || {
        assert_eq!(picked[0].tensor.to_vec::<f32>().expect("singles")[..16], [9.0; 16]);
        assert_eq!(computed[0].tensor.to_vec::<f32>().expect("singles"), vec![3.5; 4096]);
    });
    elsewhere.join().expect("answers stay what they were, on another thread too");
}
