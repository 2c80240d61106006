//! Writes protobuf: the few forms that ONNX messages use.

/// Varint: also enums and booleans.
pub(super) const WIRE_VARINT: u8 = 0;
/// Eight bytes, little-endian.
pub(super) const WIRE_FIXED64: u8 = 1;
/// A length and that many bytes.
pub(super) const WIRE_BYTES: u8 = 2;
/// Four bytes, little-endian.
pub(super) const WIRE_FIXED32: u8 = 5;

/// Appends `value` in base 128.
pub(super) fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a field's key.
pub(super) fn key(out: &mut Vec<u8>, field: u32, wire: u8) {
    varint(out, u64::from(field) << 3 | u64::from(wire));
}

/// Appends an integer field. Negative values take ten bytes, as protobuf's `int64` does.
pub(super) fn int(out: &mut Vec<u8>, field: u32, value: i64) {
    key(out, field, WIRE_VARINT);
    varint(out, value as u64);
}

/// Appends a `float` field.
pub(super) fn float(out: &mut Vec<u8>, field: u32, value: f32) {
    key(out, field, WIRE_FIXED32);
    out.extend_from_slice(&value.to_le_bytes());
}

/// Appends the key and the length of a field whose `length` bytes follow.
pub(super) fn header(out: &mut Vec<u8>, field: u32, length: u64) {
    key(out, field, WIRE_BYTES);
    varint(out, length);
}

/// Appends a `bytes` or `string` field.
pub(super) fn bytes(out: &mut Vec<u8>, field: u32, value: &[u8]) {
    header(out, field, value.len() as u64);
    out.extend_from_slice(value);
}

/// Appends a message field that `fill` writes.
pub(super) fn message(out: &mut Vec<u8>, field: u32, fill: impl FnOnce(&mut Vec<u8>)) {
    let mut inner = Vec::new();
    fill(&mut inner);
    bytes(out, field, &inner);
}

/// Appends ONNX's `StringStringEntryProto` as `field`.
pub(super) fn entry(out: &mut Vec<u8>, field: u32, name: &str, value: &str) {
    message(out, field, |out| {
        bytes(out, 1, name.as_bytes());
        bytes(out, 2, value.as_bytes());
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_have_protobufs_form() {
        let mut out = Vec::new();
        varint(&mut out, 300);
        assert_eq!(out, [0xac, 0x02]);
        out.clear();
        int(&mut out, 1, -1);
        assert_eq!(out, [8, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1]);
        out.clear();
        entry(&mut out, 13, "k", "v");
        assert_eq!(out, [0x6a, 6, 0x0a, 1, b'k', 0x12, 1, b'v']);
    }
}
