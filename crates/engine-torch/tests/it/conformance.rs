//! LibTorch conforms to the suite of engines.

use std::collections::BTreeMap;

use base::DType;
use engine::conformance::{Fixture, TABLE_COLUMNS, TABLE_ROWS, check};
use engine::{Engine, SignatureFile};
use engine_torch::build::{self, TorchParameter};

use crate::support::{DEVICE, child, device, text, torch};

/// Variable that is set in the process that runs the suite. The suite measures memory, so no other
/// test may run in that process. The processes of `device` are such as well.
const CHILD: &str = "MILLPOND_TEST_CONFORMS";

#[test]
fn libtorch_conforms() {
    if [CHILD, DEVICE].iter().all(|key| std::env::var_os(key).is_none()) {
        return child("conformance::libtorch_conforms", CHILD, "1".as_ref());
    }
    let (graphs, scratch) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let engine = torch();
    let dtypes = engine.capabilities().dtypes;
    assert_eq!(dtypes.len(), DType::ALL.len() - 3, "all but strings and the packed ones");
    let mut signatures = BTreeMap::new();
    let mut add =
        |name: &str, source: &str, parameters, input: (&str, &str, &[i64]), outputs: &[&str]| {
            let graph = graphs.path().join(format!("{name}.pt"));
            build::module(&engine, &graph, source, parameters).unwrap();
            let (input, dtype, shape) = input;
            let inputs = vec![text(input, dtype, Some(shape))];
            let outputs = outputs.iter().map(|name| text(name, dtype, None)).collect();
            signatures.insert(name.to_owned(), SignatureFile { inputs, outputs });
        };
    let echo = "def forward(self, x):\n    return x\n";
    for dtype in dtypes {
        add(&format!("echo-{dtype}"), echo, vec![], ("x", dtype.name(), &[-1]), &["y"]);
    }
    add("echo-scalar", echo, vec![], ("x", "float32", &[]), &["y"]);
    let half = "def forward(self, x):\n    return x * self.half + self.two\n";
    let parameters = vec![
        TorchParameter::floats("half", &[1], vec![0.5]),
        TorchParameter::floats("two", &[1], vec![2.0]),
    ];
    add("half_plus_two", half, parameters, ("x", "float32", &[-1]), &["y"]);
    let two = "def forward(self, x):\n    return x / 2.0, x + 2.0\n";
    add("two_outputs", two, vec![], ("x", "float32", &[-1]), &["half", "plus"]);
    let table = TorchParameter::filled("table", &[TABLE_ROWS, TABLE_COLUMNS], |elements| {
        for (row, elements) in elements.chunks_exact_mut(TABLE_COLUMNS).enumerate() {
            elements.fill(row as f32);
        }
    });
    let pick = "def forward(self, index):\n    return torch.index_select(self.table, 0, index)\n";
    add("pick", pick, vec![table], ("index", "int64", &[-1]), &["rows"]);

    let fixture = Fixture {
        graphs: graphs.path().to_owned(),
        extension: "pt".into(),
        scratch: scratch.path().to_owned(),
        signatures,
        device: device(),
    };
    check(&engine, &fixture);
}
