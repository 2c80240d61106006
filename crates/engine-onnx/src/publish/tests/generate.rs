//! Random models, written field by field.

use std::path::Path;

use proptest::prelude::*;

use super::super::encode;

/// Element types with the bits of one element and the typed field that may hold it.
pub(super) const TYPES: [(i64, usize, u32); 22] = [
    (1, 32, 4),
    (2, 8, 5),
    (3, 8, 5),
    (4, 16, 5),
    (5, 16, 5),
    (6, 32, 5),
    (7, 64, 7),
    (9, 8, 5),
    (10, 16, 5),
    (11, 64, 10),
    (12, 32, 11),
    (13, 64, 11),
    (14, 64, 4),
    (15, 128, 10),
    (16, 16, 5),
    (17, 8, 5),
    (18, 8, 5),
    (19, 8, 5),
    (20, 8, 5),
    (21, 4, 5),
    (22, 4, 5),
    (23, 4, 5),
];

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Storage {
    Raw,
    Packed,
    Unpacked,
    External,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Place {
    Initializer,
    Constant,
    SubgraphInitializer,
    SubgraphConstant,
    Sparse,
    Function,
    TensorList,
}

#[derive(Clone, Debug)]
pub(super) struct Made {
    pub(super) kind: usize,
    pub(super) bytes: usize,
    pub(super) storage: Storage,
    pub(super) place: Place,
    /// Number of the name; tensors of one number share a name.
    pub(super) name: u8,
    pub(super) seed: u8,
    pub(super) doc: bool,
}

impl Made {
    pub(super) fn code(&self) -> i64 {
        TYPES[self.kind].0
    }

    fn elements(&self) -> usize {
        self.bytes * 8 / TYPES[self.kind].1
    }

    /// The bytes that its shape takes: `bytes` rounded down to whole elements.
    pub(super) fn size(&self) -> usize {
        (self.elements() * TYPES[self.kind].1).div_ceil(8)
    }

    pub(super) fn name(&self) -> String {
        format!("t{}", self.name)
    }

    /// Its content.
    fn memory(&self) -> Vec<u8> {
        let wide =
            |at: usize| (at as u64 * 37 + u64::from(self.seed)).wrapping_mul(0x9e37_79b9) >> 7;
        (0..self.size())
            .map(|at| if self.code() == 9 { (wide(at) & 1) as u8 } else { wide(at) as u8 })
            .collect()
    }

    /// The `TensorProto`.
    fn encode(&self, dir: &Path, index: usize) -> Vec<u8> {
        let mut out = Vec::new();
        let elements = self.elements() as i64;
        if self.doc {
            encode::bytes(&mut out, 12, b"what it is for");
        }
        encode::int(&mut out, 2, self.code());
        if self.doc {
            // Packed dims.
            let mut dims = vec![1];
            encode::varint(&mut dims, elements as u64);
            encode::bytes(&mut out, 1, &dims);
        } else {
            encode::int(&mut out, 1, elements);
        }
        match self.storage {
            Storage::Raw => encode::bytes(&mut out, 9, &self.memory()),
            Storage::Packed => self.typed(&mut out, true),
            Storage::Unpacked => self.typed(&mut out, false),
            Storage::External => self.external(&mut out, dir, index),
        }
        encode::bytes(&mut out, 8, self.name().as_bytes());
        if self.doc {
            encode::entry(&mut out, 16, "key", "value");
        }
        out
    }

    fn external(&self, out: &mut Vec<u8>, dir: &Path, index: usize) {
        let (location, offset) = (format!("sub/data{index}"), usize::from(self.seed));
        std::fs::create_dir_all(dir.join("sub")).unwrap();
        let mut file = vec![0xee; offset];
        file.extend(self.memory());
        if self.doc {
            file.extend([0xdd; 9]);
        }
        std::fs::write(dir.join(&location), file).unwrap();
        encode::entry(out, 13, "location", &location);
        encode::entry(out, 13, "offset", &offset.to_string());
        if self.doc {
            encode::entry(out, 13, "length", &self.size().to_string());
        }
        encode::int(out, 14, 1);
    }

    fn typed(&self, out: &mut Vec<u8>, packed: bool) {
        let (code, bits, field) = TYPES[self.kind];
        let memory = self.memory();
        let fixed = match field {
            4 => Some((5, 4)),
            10 => Some((1, 8)),
            _ => None,
        };
        let width = fixed.map_or((bits / 8).max(1), |(_, width)| width);
        // In two runs, as protobuf allows.
        let half = memory.len() / width / 2 * width;
        for part in [&memory[..half], &memory[half..]] {
            let mut run = Vec::new();
            for element in part.chunks(width) {
                let mut wide = [0u8; 8];
                wide[..element.len()].copy_from_slice(element);
                // Signed types are sign-extended, which takes ten bytes when negative.
                let negative = matches!(code, 3 | 5 | 6) && element[element.len() - 1] >= 0x80;
                if negative {
                    wide[element.len()..].fill(0xff);
                }
                let start = run.len();
                match (packed, fixed) {
                    (true, Some(_)) => run.extend_from_slice(element),
                    (true, None) => encode::varint(&mut run, u64::from_le_bytes(wide)),
                    (false, Some((wire, _))) => {
                        encode::key(&mut run, field, wire);
                        run.extend_from_slice(element);
                    }
                    (false, None) => {
                        encode::key(&mut run, field, 0);
                        encode::varint(&mut run, u64::from_le_bytes(wide));
                    }
                }
                assert!(run.len() > start);
            }
            if packed { encode::bytes(out, field, &run) } else { out.extend_from_slice(&run) }
        }
    }
}

/// Writes `DIR/model.onnx` with these tensors, in this order, among other fields.
pub(super) fn write(dir: &Path, made: &[Made]) {
    let (mut graph, mut functions) = (Vec::new(), Vec::new());
    encode::bytes(&mut graph, 2, b"generated");
    for (index, one) in made.iter().enumerate() {
        let tensor = one.encode(dir, index);
        match one.place {
            Place::Initializer => encode::bytes(&mut graph, 5, &tensor),
            Place::Constant => encode::bytes(&mut graph, 1, &constant(&tensor, &one.name())),
            Place::SubgraphInitializer => {
                branch(&mut graph, |sub| encode::bytes(sub, 5, &tensor));
            }
            Place::SubgraphConstant => {
                branch(&mut graph, |sub| encode::bytes(sub, 1, &constant(&tensor, &one.name())));
            }
            Place::Sparse => encode::message(&mut graph, 15, |out| {
                encode::bytes(out, 1, &tensor);
                encode::int(out, 3, 7);
            }),
            Place::Function => {
                encode::message(&mut functions, 25, |out| {
                    encode::bytes(out, 1, b"F");
                    encode::bytes(out, 7, &constant(&tensor, "inside"));
                });
            }
            Place::TensorList => encode::message(&mut graph, 1, |node| {
                encode::bytes(node, 4, b"Custom");
                encode::message(node, 5, |attribute| {
                    encode::bytes(attribute, 10, &tensor);
                    encode::bytes(attribute, 1, b"tensors");
                });
            }),
        }
        encode::message(&mut graph, 13, |out| encode::bytes(out, 1, one.name().as_bytes()));
    }
    encode::message(&mut graph, 12, |out| encode::bytes(out, 1, b"t0"));
    let mut model = Vec::new();
    encode::int(&mut model, 1, 9);
    encode::bytes(&mut model, 7, &graph);
    model.extend(functions);
    // A field that is unknown to all readers.
    encode::bytes(&mut model, 4000, b"unknown");
    std::fs::write(dir.join("model.onnx"), model).unwrap();
}

fn constant(tensor: &[u8], output: &str) -> Vec<u8> {
    let mut out = Vec::new();
    encode::bytes(&mut out, 2, output.as_bytes());
    encode::bytes(&mut out, 4, b"Constant");
    encode::message(&mut out, 5, |attribute| {
        encode::bytes(attribute, 1, b"value");
        encode::bytes(attribute, 5, tensor);
        encode::int(attribute, 20, 4);
    });
    out
}

fn branch(graph: &mut Vec<u8>, fill: impl FnOnce(&mut Vec<u8>)) {
    encode::message(graph, 1, |node| {
        encode::bytes(node, 1, b"condition");
        encode::bytes(node, 4, b"If");
        encode::message(node, 5, |attribute| {
            encode::bytes(attribute, 1, b"then_branch");
            encode::message(attribute, 6, |sub| {
                encode::bytes(sub, 2, b"sub");
                fill(sub);
                encode::message(sub, 12, |out| encode::bytes(out, 1, b"y"));
            });
        });
    });
}

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![
        Just(0usize),
        Just(1),
        4080usize..4112,
        Just(4096usize),
        Just(8192usize),
        8000usize..8300,
        0usize..200,
        60_000usize..70_000,
    ]
}

pub(super) fn made() -> impl Strategy<Value = Made> {
    let storage = prop_oneof![
        Just(Storage::Raw),
        Just(Storage::Packed),
        Just(Storage::Unpacked),
        Just(Storage::External),
    ];
    let place = prop_oneof![
        4 => Just(Place::Initializer),
        3 => Just(Place::Constant),
        1 => Just(Place::SubgraphInitializer),
        1 => Just(Place::SubgraphConstant),
        1 => Just(Place::Sparse),
        1 => Just(Place::Function),
        1 => Just(Place::TensorList),
    ];
    (0..TYPES.len(), size(), storage, place, 0u8..20, any::<u8>(), any::<bool>()).prop_map(
        |(kind, bytes, storage, place, name, seed, doc)| Made {
            kind,
            bytes,
            storage,
            place,
            name,
            seed,
            doc,
        },
    )
}
