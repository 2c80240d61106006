//! A reader of ONNX that parses all of a model in memory and knows nothing of the publisher.

use std::collections::BTreeMap;
use std::path::Path;

/// A tensor as a reader of the model would see it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Seen {
    pub(super) place: String,
    pub(super) name: String,
    pub(super) code: i64,
    pub(super) dims: Vec<i64>,
    pub(super) bytes: Vec<u8>,
    pub(super) other: Vec<u8>,
}

impl std::fmt::Display for Seen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let hash = blake3::hash(&self.bytes).to_hex();
        let (bytes, other) = (self.bytes.len(), &self.other);
        write!(
            f,
            "{} {} {} {:?} {bytes} {hash} {other:?}",
            self.place, self.name, self.code, self.dims
        )
    }
}

/// All of a model.
#[derive(Default)]
pub(super) struct Reading {
    pub(super) tensors: Vec<Seen>,
    /// Everything else, with the place of each field.
    pub(super) rest: Vec<(String, Vec<u8>)>,
    /// Name, offset and length of each tensor in a weights file, in the order of the file.
    pub(super) external: Vec<(String, u64, u64)>,
}

pub(super) struct Field<'a> {
    pub(super) number: u32,
    pub(super) wire: u8,
    pub(super) payload: &'a [u8],
    pub(super) value: u64,
}

pub(super) fn varint(bytes: &[u8], at: &mut usize) -> u64 {
    let mut value = 0u64;
    for shift in (0..70).step_by(7) {
        let byte = bytes[*at];
        *at += 1;
        value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
        if byte < 0x80 {
            return value;
        }
    }
    panic!("varint too long");
}

pub(super) fn fields(bytes: &[u8]) -> Vec<Field<'_>> {
    let (mut at, mut found) = (0, Vec::new());
    while at < bytes.len() {
        let key = varint(bytes, &mut at);
        let (number, wire) = ((key >> 3) as u32, (key & 7) as u8);
        let start = at;
        let mut value = 0;
        let (from, to) = match wire {
            0 => {
                value = varint(bytes, &mut at);
                (start, at)
            }
            1 => (start, start + 8),
            5 => (start, start + 4),
            2 => {
                let length = varint(bytes, &mut at) as usize;
                (at, at + length)
            }
            _ => panic!("wire type {wire}"),
        };
        at = to;
        found.push(Field { number, wire, payload: &bytes[from..to], value });
    }
    found
}

/// Reads the model at `path` with the external files beside it.
pub(super) fn read(path: &Path) -> Reading {
    let file = if path.is_dir() { path.join("model.onnx") } else { path.to_owned() };
    let bytes = std::fs::read(&file).unwrap();
    let mut reading = Reading::default();
    message(&mut reading, "model", &bytes, file.parent().unwrap());
    reading.external.sort_by_key(|(_, offset, _)| *offset);
    reading
}

/// Returns the kind of a field of a message by the schema.
fn child(place: &str, number: u32) -> Option<&'static str> {
    let kind = place.rsplit('/').next().unwrap_or(place);
    match (kind, number) {
        ("model", 7) => Some("graph"),
        ("model", 20) => Some("training"),
        ("model", 25) => Some("function"),
        ("training", 1 | 2) => Some("graph"),
        ("graph", 1) | ("function", 7) => Some("node"),
        ("graph", 5) | ("attribute", 5 | 10) | ("sparse", 1 | 2) => Some("tensor"),
        ("graph", 15) | ("attribute", 22 | 23) => Some("sparse"),
        ("node", 5) | ("function", 11) => Some("attribute"),
        ("attribute", 6 | 11) => Some("graph"),
        _ => None,
    }
}

fn message(reading: &mut Reading, place: &str, bytes: &[u8], dir: &Path) {
    for field in fields(bytes) {
        match child(place, field.number) {
            Some("tensor") => {
                let seen =
                    tensor(reading, &format!("{place}/{}", field.number), field.payload, dir, None);
                reading.tensors.push(seen);
            }
            Some("node") if place == "model/graph" => match constant(field.payload) {
                // A constant that is an output is compared as a node, too: both sides take this
                // branch.
                Some((name, value)) => {
                    let seen = tensor(reading, "model/graph/5", value, dir, Some(name));
                    reading.tensors.push(seen);
                }
                None => {
                    reading.rest.push(("model/graph node".to_owned(), Vec::new()));
                    message(reading, "model/graph/node", field.payload, dir);
                }
            },
            Some(kind) => {
                reading.rest.push((format!("{place} {kind}"), Vec::new()));
                message(reading, &format!("{place}/{kind}"), field.payload, dir);
            }
            None => reading
                .rest
                .push((format!("{place} {}:{}", field.number, field.wire), field.payload.to_vec())),
        }
    }
}

/// Name and value of a plain `Constant`.
fn constant(node: &[u8]) -> Option<(String, &[u8])> {
    let of = |number| {
        fields(node).into_iter().filter(move |field| field.number == number).collect::<Vec<_>>()
    };
    let (outputs, attributes) = (of(2), of(5));
    let plain = of(1).is_empty() && outputs.len() == 1 && attributes.len() == 1;
    if !plain || of(4).last()?.payload != b"Constant" || of(7).iter().any(|f| !f.payload.is_empty())
    {
        return None;
    }
    let parts = fields(attributes[0].payload);
    let named = parts.iter().any(|part| part.number == 1 && part.payload == b"value");
    let value = parts.iter().find(|part| part.number == 5)?.payload;
    named.then(|| (String::from_utf8(outputs[0].payload.to_vec()).unwrap(), value))
}

fn tensor(
    reading: &mut Reading,
    place: &str,
    bytes: &[u8],
    dir: &Path,
    name: Option<String>,
) -> Seen {
    let mut seen = Seen {
        place: place.to_owned(),
        name: String::new(),
        code: 0,
        dims: vec![],
        bytes: vec![],
        other: vec![],
    };
    let (mut external, mut is_external, mut raw) = (BTreeMap::new(), false, None);
    for field in fields(bytes) {
        match (field.number, field.wire) {
            (1, 0) => seen.dims.push(field.value as i64),
            (1, 2) => {
                let mut at = 0;
                while at < field.payload.len() {
                    seen.dims.push(varint(field.payload, &mut at) as i64);
                }
            }
            (2, 0) => seen.code = field.value as i64,
            (8, 2) => seen.name = String::from_utf8_lossy(field.payload).into_owned(),
            (9, 2) => raw = Some(field.payload.to_vec()),
            (13, 2) => {
                let text = |number| {
                    let found = fields(field.payload)
                        .into_iter()
                        .find(|part| part.number == number)
                        .unwrap();
                    String::from_utf8(found.payload.to_vec()).unwrap()
                };
                external.insert(text(1), text(2));
            }
            (14, 0) => is_external = field.value == 1,
            (4 | 5 | 6 | 7 | 10 | 11, _) => {}
            _ => {
                seen.other.push(field.number as u8);
                seen.other.extend_from_slice(field.payload);
            }
        }
    }
    if let Some(name) = name {
        seen.name = name;
    }
    seen.bytes = if is_external {
        let file = std::fs::read(dir.join(&external["location"])).unwrap();
        let offset = external.get("offset").map_or(0, |text| text.parse::<usize>().unwrap());
        let length =
            external.get("length").map_or(file.len() - offset, |text| text.parse().unwrap());
        reading.external.push((seen.name.clone(), offset as u64, length as u64));
        file[offset..offset + length].to_vec()
    } else {
        raw.unwrap_or_else(|| typed(bytes, seen.code))
    };
    seen
}

/// The typed fields as memory.
fn typed(bytes: &[u8], code: i64) -> Vec<u8> {
    let (number, packed_width, width) = match code {
        1 | 14 => (4, Some(4), 4),
        11 | 15 => (10, Some(8), 8),
        7 => (7, None, 8),
        13 => (11, None, 8),
        12 => (11, None, 4),
        6 => (5, None, 4),
        4 | 5 | 10 | 16 => (5, None, 2),
        8 => (6, Some(1), 1),
        _ => (5, None, 1),
    };
    let mut out = Vec::new();
    for field in fields(bytes).into_iter().filter(|field| field.number == number) {
        match (field.wire, packed_width) {
            (0, None) => out.extend_from_slice(&field.value.to_le_bytes()[..width]),
            (2, None) => {
                let mut at = 0;
                while at < field.payload.len() {
                    out.extend_from_slice(&varint(field.payload, &mut at).to_le_bytes()[..width]);
                }
            }
            _ => out.extend_from_slice(field.payload),
        }
    }
    out
}
