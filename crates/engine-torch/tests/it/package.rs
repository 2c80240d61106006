//! A compiled package. Only a machine with the whole of PyTorch and a compiler makes one, and it holds native code for
//! that machine, so it is not among the tests' files: `MILLPOND_TEST_PACKAGE` names one of
//! `relu(linear(x)), x.sum(1)` for x of [n, 4], all weights 0.5 and biases 1, and without it nothing is tested here.

use base::ErrorKind;
use engine::{Engine, LoadRequest, SessionOptions, SignatureFile};

use crate::support::{floats, text, torch};

#[test]
fn a_package_runs_where_it_is_trusted() {
    let Some(graph) = std::env::var_os("MILLPOND_TEST_PACKAGE") else {
        eprintln!("SKIPPED: MILLPOND_TEST_PACKAGE names no compiled package");
        return;
    };
    let load = |trusted, signature| {
        let options = SessionOptions { trusted, signature, ..SessionOptions::default() };
        torch().load(&LoadRequest { graph: graph.clone().into(), options, ..LoadRequest::default() })
    };
    let file = || SignatureFile {
        inputs: vec![text("x", "float32", Some(&[-1, 4]))],
        outputs: vec![text("y", "float32", Some(&[-1, 3])), text("sum", "float32", Some(&[-1]))],
    };
    assert_eq!(load(false, file()).err().unwrap().kind(), ErrorKind::PermissionDenied);
    let silent = load(true, SignatureFile::default()).err().unwrap();
    assert!(silent.message().contains("[signature]"), "{silent}");
    let session = load(true, file()).unwrap();
    for rows in [1, 3] {
        let x = floats("x", &[rows, 4], &vec![1.0; rows * 4]);
        let got = session.run(&[x], &[]).unwrap();
        assert_eq!(
            got,
            [floats("y", &[rows, 3], &vec![3.0; rows * 3]), floats("sum", &[rows], &vec![4.0; rows])]
        );
    }
    let vague = SignatureFile { inputs: vec![text("x", "float32", None)], ..file() };
    let error = load(true, vague).err().unwrap();
    assert!(error.message().contains("dtype and shape"), "{error}");
}
#[test]
fn tmp_real() {
    let store = crate::support::store(64 << 20);
    for name in ["scripted", "traced"] {
        let path = std::path::PathBuf::from(format!("/tmp/w/h1/{name}.pt"));
        let bytes = torch().arena_bytes(&path).unwrap();
        let arena = engine::Arena { store: store.clone(), bytes, stop: Default::default() };
        let session = crate::support::load(&path, Default::default(), Some(arena)).unwrap();
        let mut times = vec![];
        let mut got = vec![];
        for at in 0..8 {
            let s = std::time::Instant::now();
            got = session.run(&[floats(&session.signature().inputs[0].name, &[1 + at % 3, 3, 8, 8], &vec![1.0; (1 + at % 3) * 192])], &[]).unwrap();
            times.push(s.elapsed());
        }
        let _ = got;
        let got = crate::support::answer(&*session, floats(&session.signature().inputs[0].name, &[1, 3, 8, 8], &[1.0; 192]));
        eprintln!("{name}: stateful {} {:?} {times:?}", session.stateful(), got);
    }
}
