//! Accepts the `:authority` that gRPC clients send on a Unix socket.
//!
//! Clients on gRPC's C-core (Python, C++, Ruby) send the percent-encoded path of the socket, such
//! as `tmp%2Fgrpc.sock`. RFC 3986 permits that in a host name. The `http` crate does not, so that
//! h2 resets the stream. [`AuthorityPatcher`] replaces the characters that `http` refuses by `-`
//! before h2 reads them.
//!
//! It writes in place. Names, lengths and Huffman-coded strings stay as they are, so the entries of
//! HPACK's dynamic table (RFC 7541 §4.1) keep their sizes. The patcher needs only the position
//! within a header block, and no table, no buffer and no limit. It hides no malformed byte from h2.
//!
//! Two cases pass unchanged. One is a Huffman-coded `:authority`, which C-core does not send. The
//! other is `:` in the first directory of the path.

use crate::control_frames::{FrameHeader, HEADER_BYTES, PREFACE_BYTES};

const AUTHORITY: &[u8] = b":authority";
/// Index of `:authority` in HPACK's static table (RFC 7541, appendix A).
const AUTHORITY_INDEX: usize = 1;
/// Largest shift of a byte of an HPACK integer. h2 refuses longer ones.
const INTEGER_SHIFT_MAX: u32 = 21;

const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
/// Flag of HEADERS. Its payload starts with the length of its padding.
const PADDED: u8 = 8;
/// Flag of HEADERS. Its header block follows the priority of the stream.
const PRIORITY: u8 = 0x20;
const PRIORITY_BYTES: usize = 5;

/// Patcher of the values of `:authority` in a client's HTTP/2 bytes.
pub(crate) struct AuthorityPatcher {
    header: [u8; HEADER_BYTES],
    /// Bytes of `header` that have arrived.
    known: usize,
    /// True if the next byte is the length of the padding.
    padded: bool,
    /// Bytes of the frame before its part of a header block.
    before: usize,
    /// Bytes of the header block that this frame still holds.
    fragment: usize,
    /// Bytes of the frame after that, which are padding or the payload of another frame.
    after: usize,
    block: HeaderBlock,
}

impl AuthorityPatcher {
    /// Starts at the client's connection preface.
    pub(crate) fn new() -> AuthorityPatcher {
        AuthorityPatcher {
            header: [0; HEADER_BYTES],
            known: 0,
            padded: false,
            before: 0,
            fragment: 0,
            after: PREFACE_BYTES,
            block: HeaderBlock::default(),
        }
    }

    /// Patches the next `bytes` from the client, which may begin and end anywhere.
    pub(crate) fn patch(&mut self, mut bytes: &mut [u8]) {
        while let Some(&first) = bytes.first() {
            let count = if self.padded {
                self.padded = false;
                self.after = self.fragment.min(usize::from(first));
                self.fragment -= self.after;
                1
            } else if self.before > 0 {
                take(&mut self.before, bytes.len())
            } else if self.fragment > 0 {
                let count = take(&mut self.fragment, bytes.len());
                bytes[..count].iter_mut().for_each(|byte| self.block.patch(byte));
                count
            } else if self.after > 0 {
                take(&mut self.after, bytes.len())
            } else {
                let count = bytes.len().min(HEADER_BYTES - self.known);
                self.header[self.known..self.known + count].copy_from_slice(&bytes[..count]);
                self.known += count;
                if self.known == HEADER_BYTES {
                    self.known = 0;
                    self.start(FrameHeader::parse(self.header));
                }
                count
            };
            bytes = &mut bytes[count..];
        }
    }

    /// Notes which bytes of the frame belong to a header block.
    fn start(&mut self, header: FrameHeader) {
        let length = header.length as usize;
        match header.kind {
            HEADERS => {
                self.block = HeaderBlock::default();
                self.padded = header.flags & PADDED != 0 && length > 0;
                let rest = length - usize::from(self.padded);
                let priority = if header.flags & PRIORITY != 0 { PRIORITY_BYTES } else { 0 };
                self.before = priority.min(rest);
                self.fragment = rest - self.before;
            }
            CONTINUATION => self.fragment = length,
            _ => self.after = length,
        }
    }
}

/// Takes up to `count` from `left` and returns how many.
fn take(left: &mut usize, count: usize) -> usize {
    let taken = count.min(*left);
    *left -= taken;
    taken
}

/// Element of a header block to which the next byte belongs.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum BlockElement {
    /// First byte of a field, and its table index.
    #[default]
    Field,
    NameLength,
    Name,
    ValueLength,
    Value,
    /// An integer was too long. H2 ends the connection.
    Malformed,
}

/// Position within a header block (RFC 7541 §6).
#[derive(Default)]
struct HeaderBlock {
    element: BlockElement,
    /// Shift of the next byte if an integer continues in it.
    shift: Option<u32>,
    /// An integer so far, and then the bytes that are left of a name or a value.
    number: usize,
    /// True if the field has a value here, and not only in a table.
    literal: bool,
    huffman: bool,
    /// True if the field's name is `:authority`, as far as it has arrived.
    authority: bool,
    /// True once the value contains a percent sign that `http` refuses.
    encoded: bool,
}

impl HeaderBlock {
    /// Reads one byte of the block. Replaces a byte of `:authority` that `http` would refuse.
    fn patch(&mut self, byte: &mut u8) {
        match self.element {
            BlockElement::Field => {
                let bits = match *byte {
                    0x80.. => 7,
                    0x40..0x80 => 6,
                    0x20..0x40 => 5,
                    0..0x20 => 4,
                };
                if self.shift.is_none() {
                    self.literal = matches!(bits, 4 | 6);
                }
                self.integer(*byte, bits);
            }
            BlockElement::NameLength | BlockElement::ValueLength => {
                if self.shift.is_none() {
                    self.huffman = *byte & 0x80 != 0;
                }
                self.integer(*byte, 7);
            }
            BlockElement::Name => {
                self.authority &= AUTHORITY[AUTHORITY.len().saturating_sub(self.number)] == *byte;
                self.string_byte(BlockElement::ValueLength);
            }
            BlockElement::Value => {
                if self.authority {
                    self.patch_authority(byte);
                }
                self.string_byte(BlockElement::Field);
            }
            BlockElement::Malformed => {}
        }
    }

    /// Reads a byte of an integer with a prefix of `bits` bits (RFC 7541 §5.1).
    fn integer(&mut self, byte: u8, bits: u32) {
        let mask = (1 << bits) - 1;
        match self.shift {
            None => {
                self.number = usize::from(byte) & mask;
                self.shift = (self.number == mask).then_some(0);
            }
            Some(shift) => {
                self.number += usize::from(byte & 0x7f) << shift;
                self.shift = (byte & 0x80 != 0).then_some(shift + 7);
            }
        }
        match self.shift {
            None => self.integer_ended(),
            Some(shift) if shift > INTEGER_SHIFT_MAX => self.element = BlockElement::Malformed,
            Some(_) => {}
        }
    }

    /// Chooses the next element of the block, after an integer is complete.
    fn integer_ended(&mut self) {
        self.element = match self.element {
            BlockElement::Field if !self.literal => BlockElement::Field,
            BlockElement::Field if self.number == 0 => BlockElement::NameLength,
            BlockElement::Field => {
                self.authority = self.number == AUTHORITY_INDEX;
                BlockElement::ValueLength
            }
            BlockElement::NameLength => {
                self.authority = !self.huffman && self.number == AUTHORITY.len();
                if self.number == 0 { BlockElement::ValueLength } else { BlockElement::Name }
            }
            _ => {
                self.authority &= !self.huffman;
                self.encoded = false;
                if self.number == 0 { BlockElement::Field } else { BlockElement::Value }
            }
        };
    }

    fn string_byte(&mut self, next: BlockElement) {
        self.number -= 1;
        if self.number == 0 {
            self.element = next;
        }
    }

    /// Replaces a percent sign, and after it the delimiters that C-core leaves in a path and `http`
    /// permits only in some places. `[` begins an IPv6 address, whose zone may have a percent sign.
    fn patch_authority(&mut self, byte: &mut u8) {
        match *byte {
            b'[' if !self.encoded => self.authority = false,
            b'%' => self.encoded = true,
            _ => {}
        }
        if self.encoded && matches!(*byte, b'%' | b':' | b'@' | b'[' | b']') {
            *byte = b'-';
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use http::uri::Authority;
    use proptest::prelude::*;

    use super::*;

    const END_HEADERS: u8 = 4;
    /// Every character that C-core leaves in a path.
    const ENCODED_PATH: &str = r"[a-z.]{1,9}%2F[a-zA-Z0-9%2!$&'()*+,;=:@_.~\[\]-]{0,60}";

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = (payload.len() as u32).to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, 1], payload].concat()
    }

    /// Patches `frames`, which follow the preface, in pieces of `size` bytes.
    fn patched(frames: &[u8], size: usize) -> Vec<u8> {
        let mut patcher = AuthorityPatcher::new();
        let mut bytes = [&[b'%'; PREFACE_BYTES], frames].concat();
        bytes.chunks_mut(size).for_each(|piece| patcher.patch(piece));
        let rest = bytes.split_off(PREFACE_BYTES);
        assert_eq!(bytes, [b'%'; PREFACE_BYTES]);
        rest
    }

    /// Returns a literal with incremental indexing, as C-core encodes it.
    fn literal(name: &[u8], value: &[u8]) -> Vec<u8> {
        let length = |text: &[u8]| {
            if text.len() < 0x7f {
                return vec![text.len() as u8];
            }
            let rest = text.len() - 0x7f;
            vec![0x7f, rest as u8 | 0x80, (rest >> 7) as u8]
        };
        [&[0x40], &length(name)[..], name, &length(value), value].concat()
    }

    /// Returns the header block of a Python client of gRPC 1.85, with `authority`.
    fn c_core_block(authority: &[u8]) -> Vec<u8> {
        [
            literal(b":path", b"/a.B/C%2F"),
            literal(AUTHORITY, authority),
            vec![0x83, 0x86],
            literal(b"content-type", b"application/grpc"),
            literal(b"te", b"trailers"),
            literal(b":authoritx", b"%"),
            literal(b"user-agent", &[b'%'; 300]),
        ]
        .concat()
    }

    #[test]
    fn the_path_of_a_socket_becomes_a_host_name() {
        let long = format!("tmp%2F{}.sock", "d".repeat(300));
        for (sent, expected) in [
            ("tmp%2Fgrpc.sock", "tmp-2Fgrpc.sock"),
            ("tmp%2Fa:b@c%20[x]~d.sock", "tmp-2Fa-b-c-20-x-~d.sock"),
            (&long, &long.replace('%', "-")),
            ("localhost:8500", "localhost:8500"),
            ("[fe80::1%25eth0]:8500", "[fe80::1%25eth0]:8500"),
            ("", ""),
        ] {
            let frames = frame(HEADERS, END_HEADERS, &c_core_block(sent.as_bytes()));
            let wanted = frame(HEADERS, END_HEADERS, &c_core_block(expected.as_bytes()));
            assert!(expected.is_empty() || Authority::try_from(expected).is_ok(), "{expected}");
            for size in 1..frames.len() {
                assert_eq!(patched(&frames, size), wanted, "{sent} in pieces of {size}");
            }
        }
    }

    #[test]
    fn padding_priority_and_continuations_are_passed_over() {
        let frames = |authority: &[u8], at: usize, empty: bool| {
            let block = c_core_block(authority);
            let (first, rest) = block.split_at(at);
            let padded = [&[7], &[b'%'; 5][..], first, &[b'%'; 7]].concat();
            let mut frames = frame(HEADERS, PADDED | PRIORITY, &padded);
            if empty {
                frames.extend(frame(CONTINUATION, 0, &[]));
            }
            frames.extend(frame(CONTINUATION, END_HEADERS, rest));
            frames.extend(frame(0, 1, &block));
            // The body of a request is not a header block.
            let body = frames.len() - block.len();
            frames.splice(body.., c_core_block(b"tmp%2Fgrpc.sock"));
            frames.extend(frame(HEADERS, END_HEADERS, &[&[0x01, 15], authority].concat()));
            frames
        };
        for at in 0..c_core_block(b"tmp%2Fgrpc.sock").len() {
            for size in [1, 7, 5000] {
                assert_eq!(
                    patched(&frames(b"tmp%2Fgrpc.sock", at, at % 2 == 0), size),
                    frames(b"tmp-2Fgrpc.sock", at, at % 2 == 0),
                    "split at {at}, in pieces of {size}"
                );
            }
        }
    }

    #[test]
    fn huffman_strings_and_table_entries_stay_as_they_are() {
        // RFC 7541 C.4.1 to C.4.3, then a size update and a literal with an indexed name.
        let huffman: [&[u8]; 4] = [
            b"\x82\x86\x84\x41\x8c\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff",
            b"\x82\x86\x84\xbe\x58\x86\xa8\xeb\x10\x64\x9c\xbf",
            b"\x82\x87\x85\xbf\x40\x88\x25\xa8\x49\xe9\x5b\xa9\x7d\x7f\x89\x25\xa8\x49\xe9\x5b\xb8\
              \xe8\xb4\xbf",
            b"\x3f\xe1\x1f\x82\x84\xc0\x7f\x00\x03%:%\x0f\x2f\x01%\x41\x03%25",
        ];
        let frames: Vec<u8> =
            huffman.iter().flat_map(|block| frame(HEADERS, END_HEADERS, block)).collect();
        let mut wanted = frames.clone();
        let percent = wanted.len() - 3;
        wanted[percent] = b'-';
        for size in 1..frames.len() {
            assert_eq!(patched(&frames, size), wanted, "in pieces of {size}");
        }
    }

    #[test]
    fn the_block_after_a_malformed_integer_is_left_to_h2() {
        let block = [&[0x7f, 0xff, 0xff, 0xff, 0xff, 0x00], &c_core_block(b"a%2Fb")[..]].concat();
        let malformed = frame(HEADERS, END_HEADERS, &block);
        let next = frame(HEADERS, END_HEADERS, &c_core_block(b"a%2Fb"));
        let wanted = frame(HEADERS, END_HEADERS, &c_core_block(b"a-2Fb"));
        let bytes = patched(&[&malformed[..], &next].concat(), 5);
        assert_eq!(bytes, [malformed, wanted].concat());
    }

    fn pieces() -> impl Strategy<Value = Vec<(u8, u8, Vec<u8>)>> {
        let payload = prop_oneof![
            prop::collection::vec(any::<u8>(), 0..60),
            "[a-z%:@\\[\\]]{0,40}".prop_map(|text| c_core_block(text.as_bytes())),
        ];
        prop::collection::vec(
            (prop_oneof![Just(1u8), Just(9), 0u8..12], any::<u8>(), payload),
            0..6,
        )
    }

    proptest! {
        #[test]
        fn pieces_do_not_change_the_result(
            pieces in pieces(),
            tail in prop::collection::vec(any::<u8>(), 0..40),
            size in 1usize..50,
        ) {
            let mut bytes: Vec<u8> = pieces
                .iter()
                .flat_map(|(kind, flags, payload)| frame(*kind, *flags, payload))
                .collect();
            bytes.extend(tail);
            let whole = patched(&bytes, usize::MAX);
            prop_assert_eq!(&whole, &patched(&bytes, size));
            for (before, after) in bytes.iter().zip(&whole) {
                prop_assert!(before == after || (b"%:@[]".contains(before) && *after == b'-'));
            }
        }

        #[test]
        fn sockets_below_a_directory_are_valid_hosts(path in ENCODED_PATH) {
            let sent = frame(HEADERS, END_HEADERS, &literal(AUTHORITY, path.as_bytes()));
            let bytes = patched(&sent, 4096);
            let start = bytes.len() - path.len();
            prop_assert!(Authority::try_from(&bytes[start..]).is_ok());
        }
    }
}
