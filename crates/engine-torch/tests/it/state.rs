//! Models with a state inside.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use engine::{Session, SignatureFile};
use engine_torch::build::{ParameterData, TorchParameter};
use zip::CompressionMethod;
use zip::write::SimpleFileOptions;

use crate::support::{Written, answer, floats, load, store};

fn buffer(name: &str, elements: &[f32]) -> TorchParameter {
    let data = ParameterData::Floats(elements.to_vec());
    TorchParameter { name: name.into(), dims: vec![elements.len()], data, buffer: true }
}

fn one(session: &dyn Session, value: f32) -> f32 {
    answer(session, floats("x", &[1], &[value]))[0]
}

/// Sums its inputs, by setting an attribute or by writing to one.
fn adders() -> [(&'static str, Written); 13] {
    let sum = || vec![buffer("sum", &[10.0])];
    let viewed = vec![
        buffer("sum", &[10.0, 7.0]),
        TorchParameter {
            name: "part".into(),
            dims: vec![1],
            data: ParameterData::View { of: "sum".into(), start: 0 },
            buffer: true,
        },
    ];
    [
        (
            "sets",
            Written::new(
                "def forward(self, x):\n    self.sum = self.sum + x\n    return self.sum\n",
                sum(),
            ),
        ),
        (
            "writes",
            Written::new(
                "def forward(self, x):\n    self.sum.add_(x)\n    return self.sum\n",
                sum(),
            ),
        ),
        (
            "writes to the result of a dropout, which is the attribute",
            Written::new(
                "def forward(self, x):\n    y = torch.dropout(self.sum, 0.5, self.training)\n    y.add_(x)\n    \
                 return y\n",
                sum(),
            ),
        ),
        (
            "writes to the result of a broadcast, which is the attribute",
            Written::new(
                "def forward(self, x):\n    y, z = torch.broadcast_tensors([self.sum, x])\n    y.add_(z)\n    \
                 return self.sum\n",
                sum(),
            ),
        ),
        (
            "writes to a part of an unsafe split",
            Written::new(
                "def forward(self, x):\n    y = torch.unsafe_split(self.sum, 1)[0]\n    y.add_(x)\n    \
                 return self.sum\n",
                sum(),
            ),
        ),
        (
            "writes in the third round of a loop",
            Written::new(
                "def forward(self, x):\n    a = x * 1.0\n    b = x * 1.0\n    c = self.sum\n    \
                 for i in range(3):\n        a.add_(x)\n        a, b, c = b, c, a\n    return self.sum\n",
                sum(),
            ),
        ),
        (
            "writes to another attribute, which it sets to the first",
            Written::new(
                "def forward(self, x):\n    self.kept = self.sum\n    self.kept.add_(x)\n    return self.sum\n",
                vec![buffer("sum", &[10.0]), buffer("kept", &[0.0])],
            ),
        ),
        (
            "writes in training, which it sets",
            Written::new(
                "def forward(self, x):\n    self.training = True\n    if self.training:\n        \
                 self.sum.add_(x)\n    return self.sum\n",
                sum(),
            ),
        ),
        (
            "writes a view",
            Written::new(
                "def forward(self, x):\n    self.sum[0:1] += x\n    return self.sum\n",
                sum(),
            ),
        ),
        (
            "reads through another attribute",
            Written::new(
                "def forward(self, x):\n    self.part.add_(x)\n    return self.sum\n",
                viewed,
            ),
        ),
        (
            "writes beside",
            Written::new(&beside("    return torch.wait(fork(self.step, x))\n"), sum()),
        ),
        (
            "writes beside what is beside",
            Written::new(
                &format!(
                    "{}{}",
                    beside("    return torch.wait(fork(self.outer, x))\n"),
                    "def outer(self, x):\n    return torch.wait(fork(self.step, x))\n"
                ),
                sum(),
            ),
        ),
        (
            "writes to what was kept for later",
            Written::new(
                &beside(
                    "    later = [fork(self.look, x)]\n    for one in later:\n        torch.wait(one).add_(x)\n    \
                     return self.sum\n",
                ),
                sum(),
            ),
        ),
    ]
}

/// A module with parts that `forward` may run in parallel.
fn beside(forward: &str) -> String {
    let parts = "def step(self, x):\n    self.sum.add_(x)\n    return self.sum\ndef look(self, x):\n    return self.sum\n";
    format!("{parts}def forward(self, x):\n{forward}")
}

#[test]
fn parallel_parts_that_write_nothing_are_no_state() {
    let source = "def part(self, x):\n    y = x * self.scale\n    y.add_(1.0)\n    return y\n";
    for forward in [
        "    return torch.wait(fork(self.part, x))\n",
        "    later = [fork(self.part, x), fork(self.part, x)]\n    y = x * 0.0\n    for one in later:\n        \
         y += torch.wait(one)\n    return y * 0.5\n",
    ] {
        let source = format!("{source}def forward(self, x):\n{forward}");
        let scale = || vec![TorchParameter::floats("scale", &[1], vec![3.0])];
        let session = Written::new(&source, scale()).load_into(&store(64 << 20)).unwrap();
        assert!(!session.stateful(), "{source}");
        assert_eq!([one(&*session, 1.0), one(&*session, 2.0)], [4.0, 7.0], "{source}");
    }
}

#[test]
fn every_run_starts_as_loaded_and_a_fork_continues() {
    let store = store(64 << 20);
    for (name, module) in adders() {
        for session in [module.load(), module.load_into(&store).unwrap()] {
            assert!(session.stateful(), "{name}");
            assert_eq!([one(&*session, 1.0), one(&*session, 2.0)], [11.0, 12.0], "{name}");
            let (first, second) = (session.fork().unwrap(), session.fork().unwrap());
            assert_eq!([one(&*first, 1.0), one(&*first, 2.0)], [11.0, 13.0], "{name}");
            assert_eq!(one(&*second, 5.0), 15.0, "{name}: forks do not know each other");
            assert_eq!(one(&*session, 1.0), 11.0, "{name}: nor does the session");
            assert_eq!(
                one(&*first.fork().unwrap(), 1.0),
                11.0,
                "{name}: a fork of a fork is as loaded"
            );
            drop(session);
            assert_eq!(one(&*first, 0.0), 13.0, "{name}: a fork outlives the session");
        }
    }
    assert_eq!(store.pool().stats().used, 0);
}

#[test]
fn an_output_stays_when_the_state_changes() {
    for (name, module) in adders() {
        let fork = module.load().fork().unwrap();
        let first = fork.run(&[floats("x", &[1], &[1.0])], &[]).unwrap();
        one(&*fork, 100.0);
        assert_eq!(first[0].tensor.to_vec::<f32>().unwrap()[0], 11.0, "{name}");
    }
}

#[test]
fn an_input_that_is_kept_outlives_its_request() {
    let source = "def forward(self, x):\n    y = self.last\n    self.last = x\n    return y\n";
    let fork = Written::new(source, vec![buffer("last", &[0.0])]).load().fork().unwrap();
    let mut last = vec![0.0];
    for round in 1..50 {
        let now = vec![round as f32; 1000];
        assert_eq!(answer(&*fork, floats("x", &[1000], &now)), last);
        last = now;
    }
}

/// These operations return their input itself, although their declarations do not say so.
#[test]
fn an_input_that_an_operation_returns_keeps_its_bytes() {
    for same in [
        "torch.dropout(x, 0.5, self.training)",
        "x.type_as(x)",
        "torch.atleast_1d(x)",
        "x.dequantize()",
        "torch.einsum('i->i', [x])",
    ] {
        let source =
            format!("def forward(self, x):\n    y = {same}\n    y.add_(1.0)\n    return y\n");
        let session = Written::new(&source, Vec::new()).load();
        let x = floats("x", &[2], &[1.0, 2.0]);
        assert_eq!(answer(&*session, x.clone()), [2.0, 3.0], "{same}");
        assert_eq!(x.tensor.to_vec::<f32>().unwrap(), [1.0, 2.0], "{same}");
        assert!(!session.stateful(), "{same}");
    }
}

/// Copies the archive at `from` to `to`. `change` gets the name and bytes of each record, and
/// returns the records that replace it.
fn rewrite(from: &Path, to: &Path, change: impl Fn(&str, Vec<u8>) -> Vec<(String, Vec<u8>)>) {
    let mut archive = zip::ZipArchive::new(File::open(from).unwrap()).unwrap();
    let mut writer = zip::ZipWriter::new(File::create(to).unwrap());
    let stored = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
    for index in 0..archive.len() {
        let mut record = archive.by_index(index).unwrap();
        let name = record.name().unwrap().into_owned();
        let mut bytes = Vec::new();
        record.read_to_end(&mut bytes).unwrap();
        for (name, bytes) in change(&name, bytes) {
            writer.start_file(name, stored).unwrap();
            writer.write_all(&bytes).unwrap();
        }
    }
    writer.finish().unwrap();
}

/// Moves the attribute `hidden` of the module in the archive at `from` to a constant of its graph.
/// A traced module has such constants, and TorchScript's syntax has none.
fn with_constant(from: &Path, to: &Path) {
    const CONSTANTS: &[u8] =
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storage\
        ctorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x01tQK\x00(K\x01t(K\x01t\x89\
        ccollections\nOrderedDict\n)RtR\x85.";
    rewrite(from, to, |name, bytes| {
        if name.ends_with(".py") {
            let code = String::from_utf8(bytes).unwrap();
            vec![(name.to_owned(), code.replace("self.hidden", "CONSTANTS.c0").into_bytes())]
        } else if let Some(start) = name.strip_suffix("constants.pkl") {
            let constant = (format!("{start}constants/0"), 5f32.to_le_bytes().to_vec());
            vec![constant, (name.to_owned(), CONSTANTS.to_vec())]
        } else {
            vec![(name.to_owned(), bytes)]
        }
    });
}

/// Makes the buffer `hidden`, the last attribute of the module in the archive at `from`, a list
/// that holds the tensor. The builder writes no lists.
pub(crate) fn with_list(from: &Path, to: &Path) {
    const KEY: &[u8] = b"X\x06\x00\x00\x00hidden";
    /// Bytes of an instruction that remembers a value.
    const PUT: usize = 2;
    /// Bytes after the last attribute: two instructions, one that remembers the object, the end.
    const END: usize = 2 + PUT + 1;
    rewrite(from, to, |name, mut bytes| {
        if name.ends_with(".py") {
            let mut code = String::from_utf8(bytes).unwrap();
            for (tensor, list) in [
                ("\"hidden\", ", ""),
                ("hidden : Tensor", "hidden : List[Tensor]"),
                ("self.hidden", "self.hidden[0]"),
            ] {
                assert!(code.contains(tensor), "{code}");
                code = code.replace(tensor, list);
            }
            bytes = code.into_bytes();
        } else if name.ends_with("/data.pkl") {
            let key = bytes.windows(KEY.len()).position(|part| part == KEY).unwrap();
            let end = bytes.len() - END;
            bytes.splice(end..end, *b"etR");
            let start = key + KEY.len() + PUT;
            bytes.splice(start..start, *b"ctorch.jit._pickle\nbuild_tensorlist\n(](");
        }
        vec![(name.to_owned(), bytes)]
    });
}

#[test]
fn writes_to_an_element_of_a_list_are_a_state() {
    let shared = TorchParameter {
        name: "hidden".into(),
        dims: vec![1],
        data: ParameterData::View { of: "sum".into(), start: 0 },
        buffer: true,
    };
    let write =
        |result: &str| format!("def forward(self, x):\n    self.hidden.add_(x)\n    {result}\n");
    for (name, written) in [
        ("alone", Written::new(&write("return self.hidden"), vec![buffer("hidden", &[10.0])])),
        (
            "shared with an attribute",
            Written::new(&write("return self.sum"), vec![buffer("sum", &[10.0]), shared]),
        ),
    ] {
        let path = written.dir.path().join("list.pt");
        with_list(&written.path(), &path);
        let session = load(&path, SignatureFile::default(), None).unwrap();
        assert!(session.stateful(), "{name}");
        assert_eq!([one(&*session, 1.0), one(&*session, 2.0)], [11.0, 12.0], "{name}");
        let fork = session.fork().unwrap();
        assert_eq!([one(&*fork, 1.0), one(&*fork, 2.0)], [11.0, 13.0], "{name}");
        assert_eq!(one(&*session, 1.0), 11.0, "{name}");
    }
}

#[test]
fn writes_to_a_constant_are_refused_beside_a_state() {
    let write = |target: &str| {
        let source = format!(
            "def forward(self, x):\n    self.sum.add_(x)\n    y = {target}\n    y.add_(self.hidden)\n    return y\n"
        );
        let written = Written::new(&source, vec![buffer("sum", &[10.0]), buffer("hidden", &[1.0])]);
        let path = written.dir.path().join("constant.pt");
        with_constant(&written.path(), &path);
        load(&path, SignatureFile::default(), None)
    };
    let session = write("x * 2.0").unwrap();
    assert!(session.stateful());
    assert_eq!([one(&*session, 1.0), one(&*session, 1.0)], [7.0, 7.0]);
    let error = write("self.hidden").err().unwrap();
    assert!(error.message().contains("constant of its graph"), "{error}");
}

#[test]
fn training_only_state_is_none() {
    let source = "def forward(self, x):\n    if self.training:\n        self.sum.add_(x)\n    return x + self.sum\n";
    let session = Written::new(source, vec![buffer("sum", &[10.0])]).load();
    assert!(!session.stateful());
    assert_eq!([one(&*session, 1.0), one(&*session, 1.0)], [11.0, 11.0]);
    assert_eq!(session.fork().err().unwrap().kind(), base::ErrorKind::Unimplemented);
}

#[test]
fn statistics_that_normalisation_updates_are_state() {
    let source = |training: &str| {
        format!(
            "def forward(self, x):\n    return torch.batch_norm(x, None, None, self.mean, self.var, {training}, 0.5, \
             1e-5, False)\n"
        )
    };
    let buffers = || vec![buffer("mean", &[0.0]), buffer("var", &[1.0])];
    assert!(!Written::new(&source("self.training"), buffers()).load().stateful());
    assert!(!Written::new(&source("False"), buffers()).load().stateful());
    let store = store(64 << 20);
    let session = Written::new(&source("True"), buffers()).load_into(&store).unwrap();
    assert!(session.stateful());
    let x = floats("x", &[2, 1], &[1.0, 3.0]);
    assert_eq!(answer(&*session, x.clone()), answer(&*session, x));
}

#[test]
fn writing_to_computed_values_is_no_state() {
    let source = "def forward(self, x):\n    y = x * self.scale\n    y.add_(1.0)\n    z = self.scale.clone()\n    \
                  z.mul_(2.0)\n    return y + z\n";
    let session =
        Written::new(source, vec![TorchParameter::floats("scale", &[1], vec![3.0])]).load();
    assert!(!session.stateful());
    assert_eq!([one(&*session, 1.0), one(&*session, 1.0)], [10.0, 10.0]);
}
