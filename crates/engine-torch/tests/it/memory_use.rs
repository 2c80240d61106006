//! Location and release of parameters.

use engine::conformance::resident_bytes;
use engine_torch::build::{ParameterData, TorchParameter};

use crate::state::with_list;
use crate::support::{Written, answer, child, floats, load, store};

/// Variable that is set in the process that measures, which has no memory of other tests.
const CHILD: &str = "MILLPOND_TEST_MEASURES_MEMORY";

/// Returns the access rights of the mapping that holds `address`.
fn rights(address: usize) -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let holds = |line: &&str| {
        let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let number = |text| usize::from_str_radix(text, 16).unwrap();
        (number(start)..number(end)).contains(&address)
    };
    maps.lines().find(holds).unwrap().split(' ').nth(1).unwrap().to_owned()
}

#[test]
fn parameters_lie_in_the_sealed_arena() {
    let (store, elements) = (store(64 << 20), 1 << 20);
    let weights =
        || vec![TorchParameter::filled("weight", &[1 << 20], |elements| elements.fill(2.0))];
    let module =
        Written::new("def forward(self, x):\n    return (self.weight * x).sum()\n", weights());
    let session = module.load_into(&store).unwrap();
    let bytes = session.parameter_bytes();
    assert!((4 << 20..5 << 20).contains(&bytes), "{bytes}");
    assert_eq!(answer(&*session, floats("x", &[1], &[0.5])), [elements as f32]);
    let region = probe(&store);
    assert_eq!(rights(region - 1), "r--p", "the slots before are the model's, sealed");
    drop(session);
    assert_eq!(rights(region - 1), "rw-p", "and anybody's when it is gone");
    assert_eq!(store.pool().stats().used, 0);
    let writing = "def forward(self, x):\n    self.weight.add_(x)\n    return self.weight.sum()\n";
    let session = Written::new(writing, weights()).load_into(&store).unwrap();
    assert_eq!(rights(probe(&store) - 1), "rw-p", "a model that writes is not sealed");
    assert_eq!(answer(&*session, floats("x", &[1], &[1.0])), [3.0 * elements as f32]);
}

/// Returns the address of the first free slot.
fn probe(store: &memory::ParameterStore) -> usize {
    store.pool().allocate(1).unwrap().as_mut_slice().as_ptr() as usize
}

#[test]
fn tied_and_viewed_parameters_stay_so() {
    let store = store(64 << 20);
    let view = |name: &str, start, count: usize| TorchParameter {
        name: name.into(),
        dims: vec![count],
        data: ParameterData::View { of: "a".into(), start },
        buffer: false,
    };
    let elements = 1 << 20;
    let parameters = vec![
        TorchParameter::filled("a", &[elements], |elements| elements[3] = 7.0),
        view("tied", 0, elements),
        view("part", 3, 2),
    ];
    let source = "def forward(self, x):\n    return self.part, self.a[3:4] + self.tied[3:4] + x\n";
    let session = Written::new(source, parameters).load_into(&store).unwrap();
    assert!(session.parameter_bytes() < 5 << 20, "{} bytes: once", session.parameter_bytes());
    let got = session.run(&[floats("x", &[1], &[1.0])], &[]).unwrap();
    assert_eq!(got[0].tensor.to_vec::<f32>().unwrap(), [7.0, 0.0]);
    assert_eq!(got[1].tensor.to_vec::<f32>().unwrap(), [15.0]);
    drop(session);
    // An output that is a parameter was copied.
    assert_eq!(got[0].tensor.to_vec::<f32>().unwrap(), [7.0, 0.0]);
}

#[test]
fn a_load_succeeds_with_a_full_arena() {
    let store = store(64 << 20);
    let weights = vec![TorchParameter::filled("weight", &[1 << 20], |elements| elements.fill(2.0))];
    let module =
        Written::new("def forward(self, x):\n    return (self.weight * x).sum()\n", weights);
    let arena = engine::Arena { store: store.clone(), bytes: 4096, stop: Default::default() };
    let session = load(&module.path(), Default::default(), Some(arena)).unwrap();
    assert!(session.parameter_bytes() <= 4096);
    assert_eq!(answer(&*session, floats("x", &[1], &[0.5])), [(1 << 20) as f32]);
}

#[test]
fn forks_share_tensors_that_no_run_writes_to() {
    if std::env::var_os(CHILD).is_none() {
        let test = "memory_use::forks_share_tensors_that_no_run_writes_to";
        return child(test, CHILD, "1".as_ref());
    }
    let store = store(64 << 20);
    let parameters = || {
        let hidden = TorchParameter {
            name: "hidden".into(),
            dims: vec![1],
            data: ParameterData::Floats(vec![10.0]),
            buffer: true,
        };
        let weight = TorchParameter::filled("weight", &[1 << 20], |elements| elements.fill(2.0));
        vec![weight, hidden]
    };
    let writes = "def forward(self, x):\n    self.hidden.add_(x)\n    \
                  return self.hidden + self.weight[:1]\n";
    let writes = Written::new(writes, parameters());
    let with_hidden_list = writes.dir.path().join("list.pt");
    with_list(&writes.path(), &with_hidden_list);
    let sets = "def forward(self, x):\n    self.hidden = self.hidden + x\n    \
                both = [self.weight, self.hidden]\n    return both[0][:1] + both[1]\n";
    let sets = Written::new(sets, parameters());
    for path in [with_hidden_list, sets.path()] {
        let arena =
            engine::Arena { store: store.clone(), bytes: 16 << 20, stop: Default::default() };
        let session = load(&path, Default::default(), Some(arena)).unwrap();
        let before = resident_bytes();
        let forks: Vec<_> = (0..20).map(|_| session.fork().unwrap()).collect();
        let grown = resident_bytes().saturating_sub(before);
        assert_eq!(answer(&*forks[0], floats("x", &[1], &[1.0])), [13.0]);
        // 20 copies of the weight take 80 MiB.
        assert!(grown < 24 << 20, "{grown} bytes, {}", path.display());
    }
}

#[test]
fn loading_again_and_again_grows_nothing() {
    if std::env::var_os(CHILD).is_none() {
        return child("memory_use::loading_again_and_again_grows_nothing", CHILD, "1".as_ref());
    }
    let store = store(64 << 20);
    let weights =
        vec![TorchParameter::filled("weight", &[256, 1024], |elements| elements.fill(0.001))];
    let source = "def forward(self, x):\n    return torch.relu(x @ self.weight).sum(1)\n";
    let module = Written::new(source, weights);
    let cycle = || {
        let session = module.load_into(&store).unwrap();
        let got = answer(&*session, floats("x", &[4, 256], &[1.0; 1024]));
        assert!((got[0] - 262.144).abs() < 0.01, "{got:?}");
        drop(session);
        assert_eq!(store.pool().stats().used, 0);
    };
    (0..50).for_each(|_| cycle());
    let before = resident_bytes();
    (0..300).for_each(|_| cycle());
    let grown = resident_bytes().saturating_sub(before);
    // 300 MB of weights passed through.
    assert!(grown < 24 << 20, "{grown} bytes");
}
