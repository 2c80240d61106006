"""Makes the WSQ and ANSI/NIST-ITL files of crates/vision/tests/data, and the pixels that are expected of them.

Needs the packages numpy, pillow and wsq (NIST's decoder and encoder for Pillow; the encoder has one bit rate):

    python3 -m venv /tmp/wsq && /tmp/wsq/bin/pip install numpy==2.4.6 pillow==13.0.0 wsq==0.9
    /tmp/wsq/bin/python scripts/wsq_files.py --to crates/vision/tests/data/wsq

NAME.wsq         fingerprint-like images: of NIST's encoder, and of the encoder below at other bit rates and with
                 other filters
NAME.png         the same, decoded by NIST's decoder
card.an2         an ANSI/NIST-ITL file with records of the types 1, 2, 4 and 14 (made-up text, three images)
"""

import argparse
import heapq
import io
import math
import pathlib
import struct

import numpy
from PIL import Image

# Right halves of analysis filters, low-pass and high-pass. The 9/7 filters are those of the FBI's encoder number one;
# the others are the splines 3.3 of Cohen, Daubechies and Feauveau.
FILTERS_9_7 = (
    [0.852698679009, 0.377402855613, -0.110624404418, -0.023849465020, 0.037828455507],
    [0.788485616406, -0.418092273222, -0.040689417609, 0.064538882629],
)
FILTERS_8_4 = (
    [0.994368911, -0.154679608, -0.198873782, 0.066291261],
    [-0.530330086, 0.176776695],
)
CENTER = 0.44
CODED = 60


def ridges(width: int, height: int, noise: float) -> numpy.ndarray:
    """Returns a whorl of ridges 9 pixels apart on a light ground, with noise."""
    random = numpy.random.default_rng(width)
    y, x = numpy.mgrid[0:height, 0:width].astype(float)
    right, down = x - width * 0.48, y - height * 0.55
    phase = 2 * math.pi * numpy.hypot(right, down * 0.8) / 9 + 1.5 * numpy.arctan2(down, right)
    levels = 128 + 95 * numpy.cos(phase + 2 * numpy.sin(x / 37)) + random.normal(0, noise, x.shape)
    inside = (right / (width * 0.46)) ** 2 + (down / (height * 0.48)) ** 2 < 1
    levels = numpy.where(inside, levels, 235 + random.normal(0, noise / 4, x.shape))
    return numpy.clip(numpy.rint(levels), 0, 255).astype(numpy.uint8)


def halves(start: int, length: int, reverse: bool) -> list[tuple[int, int]]:
    first = length // 2 if reverse else (length + 1) // 2
    return [(start, first), (start + first, length - first)]


class Band:
    """A rectangle of coefficients: (start, length) of columns and rows, and whether frequencies are reversed."""

    def __init__(self, columns, rows, reverse=(False, False)):
        self.columns, self.rows, self.reverse = columns, rows, reverse

    def quarters(self) -> list["Band"]:
        columns, rows = halves(*self.columns, self.reverse[0]), halves(*self.rows, self.reverse[1])
        return [
            Band(columns[right], rows[lower], (bool(right), bool(lower)))
            for right, lower in [(0, 0), (1, 0), (0, 1), (1, 1)]
        ]

    def of(self, plane: numpy.ndarray) -> numpy.ndarray:
        (x, width), (y, height) = self.columns, self.rows
        return plane[y : y + height, x : x + width]


def tree(width: int, height: int) -> tuple[list[Band], list[Band]]:
    """Returns the rectangles that are split, the whole image first, and the 64 subbands in the order of the file."""
    image = Band((0, width), (0, height))
    low, right, lower, diagonal = image.quarters()
    low_low, low_right, low_lower, low_diagonal = low.quarters()
    splits, bands = [image, low, right, lower, low_low, low_right, low_lower], []
    for band in (low_low, low_right, low_lower):
        splits += band.quarters()
        bands += [inner for quarter in band.quarters() for inner in quarter.quarters()]
    splits.append(bands[0])
    bands[:1] = bands[0].quarters()
    bands.append(low_diagonal)
    return splits, bands + [inner for band in (right, lower, diagonal) for inner in band.quarters()]


def split_rows(lines: numpy.ndarray, filters, reverse: bool) -> numpy.ndarray:
    """Filters each row, takes every second position, and joins both halves."""
    low, high = filters
    length = lines.shape[1]
    if len(low) < 1 or length < 2:
        return lines if length == 0 else lines * (low[0] + 2 * sum(low[1:]))
    odd = FILTER_IS_ODD[id(filters)]
    positions = numpy.arange(-16, length + 16)
    if odd:
        inside = numpy.abs(positions) % (2 * length - 2)
        inside = numpy.where(inside >= length, 2 * length - 2 - inside, inside)
    else:
        inside = positions % (2 * length)
        inside = numpy.where(inside >= length, 2 * length - 1 - inside, inside)
    extended = lines[:, inside]

    def filtered(half, first, count, sign):
        result = numpy.zeros((len(lines), count))
        for at, tap in enumerate(half):
            offsets = [(at, tap), (-at, tap)][: 1 + (at > 0)] if odd else [(at, tap), (-1 - at, sign * tap)]
            for offset, weight in offsets:
                start = 16 + first - offset
                result += weight * extended[:, start : start + 2 * count : 2][:, :count]
        return result

    parts = [filtered(low, 0, (length + 1) // 2, 1), filtered(high, 1 if odd else 0, length // 2, -1)]
    return numpy.concatenate(parts[::-1] if reverse else parts, axis=1)


FILTER_IS_ODD = {id(FILTERS_9_7): True, id(FILTERS_8_4): False}


def transform(pixels: numpy.ndarray, filters, splits: list[Band]) -> numpy.ndarray:
    plane = pixels.astype(float)
    for band in splits:
        part = band.of(plane)
        part[:] = split_rows(part, filters, band.reverse[0])
        part[:] = split_rows(part.T, filters, band.reverse[1]).T
    return plane


def decimal(value: float, digits_max: int) -> tuple[int, int]:
    """Returns a number as its digits and the count of those after the point."""
    for places in range(12, -1, -1):
        digits = round(abs(value) * 10**places)
        if digits <= digits_max:
            return places, digits
    raise ValueError(value)


def segment(marker: int, body: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body


def scaled(value: float) -> bytes:
    return struct.pack(">BH", *decimal(value, 0xFFFF))


def symbols_of(indices: numpy.ndarray) -> list[tuple[int, int, int]]:
    """Returns symbols with their extra bits: (symbol, value, number of bits)."""
    symbols, zeros = [], 0

    def run(zeros):
        while zeros > 0xFFFF:
            symbols.append((106, 0xFFFF, 16))
            zeros -= 0xFFFF
        if zeros > 255:
            symbols.append((106, zeros, 16))
        elif zeros > 100:
            symbols.append((105, zeros, 8))
        elif zeros:
            symbols.append((zeros, 0, 0))

    for index in indices.tolist():
        if index == 0:
            zeros += 1
            continue
        run(zeros)
        zeros = 0
        if -73 <= index <= 74:
            symbols.append((index + 180, 0, 0))
        elif abs(index) < 256:
            symbols.append((101 if index > 0 else 102, abs(index), 8))
        else:
            symbols.append((103 if index > 0 else 104, abs(index), 16))
    run(zeros)
    return symbols


def code_lengths(counts: dict[int, int]) -> dict[int, int]:
    """Returns Huffman code lengths of at most 16 bits. The code of all ones stays unused."""
    while True:
        # The entry -1 gets the code of all ones.
        heap = [(count, symbol, [symbol]) for symbol, count in {**counts, -1: 0}.items()]
        heapq.heapify(heap)
        lengths = dict.fromkeys([*counts, -1], 0)
        while len(heap) > 1:
            first, second = heapq.heappop(heap), heapq.heappop(heap)
            for symbol in first[2] + second[2]:
                lengths[symbol] += 1
            heapq.heappush(heap, (first[0] + second[0], min(first[1], second[1]), first[2] + second[2]))
        if max(lengths.values()) <= 16:
            longest = max(lengths.values())
            # The unused code must be a longest one.
            assert lengths.pop(-1) == longest
            return lengths
        counts = {symbol: count // 2 + 1 for symbol, count in counts.items()}


def block(number: int, symbols: list[tuple[int, int, int]], restart: int) -> bytes:
    counts: dict[int, int] = {}
    for symbol, _, _ in symbols:
        counts[symbol] = counts.get(symbol, 0) + 1
    lengths = code_lengths(counts)
    ordered = sorted(lengths, key=lambda symbol: (lengths[symbol], symbol))
    codes, code, previous = {}, 0, 0
    for symbol in ordered:
        code <<= lengths[symbol] - previous
        previous = lengths[symbol]
        codes[symbol] = code
        code += 1
    per_length = [sum(1 for length in lengths.values() if length == bits) for bits in range(1, 17)]
    table = segment(0xA6, bytes([number, *per_length, *ordered]))
    data, bits, restarts = b"", "", 0

    def flushed(bits):
        bits += "1" * (-len(bits) % 8)
        packed = bytes(int(bits[at : at + 8], 2) for at in range(0, len(bits), 8))
        return packed.replace(b"\xff", b"\xff\x00")

    for at, (symbol, value, width) in enumerate(symbols):
        if restart and at and at % restart == 0:
            data += flushed(bits) + bytes([0xFF, 0xB0 + restarts % 8])
            bits, restarts = "", restarts + 1
        bits += format(codes[symbol], f"0{lengths[symbol]}b")
        bits += format(value, f"0{width}b") if width else ""
    return table + segment(0xA3, bytes([number])) + data + flushed(bits)


def encode(pixels: numpy.ndarray, step: float, filters=FILTERS_9_7, restart=0, dots_per_inch=500) -> bytes:
    """Encodes an image. `step` is the width of the quantiser's bins, `restart` the symbols between restarts."""
    height, width = pixels.shape
    splits, bands = tree(width, height)
    shift = round(float(pixels.mean()), 2)
    scale = max(round(float(numpy.abs(pixels - shift).max()) / 128, 4), 0.0001)
    plane = transform((pixels - shift) / scale, filters, splits)
    quantizer, blocks = scaled(CENTER), [[], [], []]
    for number, band in enumerate(bands):
        values = band.of(plane)
        if number >= CODED or values.size == 0:
            quantizer += scaled(0) + scaled(0)
            continue
        # Wider bins for higher frequencies, and a subband that is left out.
        width_of_bin = 0 if number == 57 else round(step * (1 + number / 30), 3)
        quantizer += scaled(width_of_bin) + scaled(1.2 * width_of_bin)
        if width_of_bin:
            beyond = (numpy.abs(values) - 0.6 * width_of_bin) / width_of_bin
            indices = numpy.where(beyond > 0, numpy.floor(beyond) + 1, 0) * numpy.sign(values)
            blocks[0 if number < 19 else 1 if number < 52 else 2].append(indices.astype(int).ravel())
    low, high = filters
    odd = FILTER_IS_ODD[id(filters)]
    taps = b"".join(
        struct.pack(">BBI", tap < 0, *decimal(tap, 0xFFFFFFFF)) for half in filters for tap in half
    )
    comment = f"NIST_COM 3\nPIX_WIDTH {width}\nPIX_HEIGHT {height}\nPPI {dots_per_inch}\n".encode()
    file = b"\xff\xa0" + segment(0xA8, comment)
    file += segment(0xA4, bytes([2 * len(low) - odd, 2 * len(high) - odd]) + taps) + segment(0xA5, quantizer)
    file += segment(0xA2, struct.pack(">BBHH", 0, 255, height, width) + scaled(shift) + scaled(scale) + bytes(3))
    if restart:
        file += segment(0xA7, struct.pack(">H", restart))
    for number, parts in enumerate(blocks):
        parts = [part for part in parts if part.size]
        if parts:
            file += block(number, symbols_of(numpy.concatenate(parts)), restart)
    return file + b"\xff\xa1"


def reference(file: bytes) -> numpy.ndarray:
    """Returns the pixels of NIST's decoder."""
    import _wsq

    pixels, width, height, _ = _wsq.decompress(file)
    return numpy.frombuffer(bytes(pixels), numpy.uint8).reshape(height, width)


def nist_encoded(pixels: numpy.ndarray) -> bytes:
    import _wsq

    return _wsq.compress(pixels.tobytes(), *pixels.shape, 0.75)


def tagged(record_type: int, fields: list[tuple[int, bytes]]) -> bytes:
    """Returns a record with tags. Its first field is its length, which counts its own digits."""
    body = b"".join(b"\x1d%d.%03d:%b" % (record_type, number, value) for number, value in fields) + b"\x1c"
    for digits in range(1, 9):
        head = b"%d.001:" % record_type
        length = len(head) + digits + len(body)
        if len(str(length)) == digits:
            return head + str(length).encode() + body
    raise ValueError(len(body))


def card(wsq: bytes, size: tuple[int, int]) -> bytes:
    """Returns a file with a record of made-up text and three images: WSQ (type 14), bare (type 4), PNG (type 14)."""
    bare = ridges(24, 20, 4)
    png = io.BytesIO()
    Image.fromarray(ridges(33, 21, 0)).save(png, "png")

    def image(index, fingers, name, width, height, data):
        fields = [(2, b"%02d" % index), (3, b"0"), (4, b"Test"), (5, b"20260101")]
        fields += [(6, b"%d" % width), (7, b"%d" % height), (8, b"1"), (9, b"500"), (10, b"500")]
        return tagged(14, [*fields, (11, name), (12, b"8"), (13, fingers), (999, data)])

    head = struct.pack(">BB6sBHHB", 2, 0, bytes([7, *[255] * 5]), 1, 24, 20, 0)
    binary = struct.pack(">I", 4 + len(head) + bare.size) + head + bare.tobytes()
    records = [
        (2, tagged(2, [(2, b"00"), (3, b"made-up text")])),
        (14, image(1, b"2", b"WSQ20", *size, wsq)),
        (4, binary),
        (14, image(3, b"3", b"PNG", 33, 21, png.getvalue())),
    ]
    contents = b"1\x1f%d" % len(records)
    contents += b"".join(b"\x1e%d\x1f%02d" % (record, index) for index, (record, _) in enumerate(records))
    fields = [(2, b"0400"), (3, contents), (4, b"TEST"), (5, b"20260101"), (7, b"A"), (8, b"B"), (9, b"1")]
    first = tagged(1, [*fields, (11, b"39.37"), (12, b"19.69")])
    return first + b"".join(record for _, record in records)


def files() -> dict[str, bytes]:
    return {
        "nist-107x131": nist_encoded(ridges(107, 131, 12)),
        "fine-121x98": encode(ridges(121, 98, 12), 3.0, dots_per_inch=1000),
        "even-taps-110x97": encode(ridges(110, 97, 6), 8.0, FILTERS_8_4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--to", type=pathlib.Path, required=True, help="directory for the files")
    to = parser.parse_args().to
    to.mkdir(parents=True, exist_ok=True)
    for name, file in files().items():
        (to / f"{name}.wsq").write_bytes(file)
        Image.fromarray(reference(file)).save(to / f"{name}.png", optimize=True)
    # NIST's decoder knows no restarts, so the expected pixels are those without.
    pixels = ridges(100, 97, 6)
    (to / "restarts-100x97.wsq").write_bytes(encode(pixels, 8.0, restart=50))
    Image.fromarray(reference(encode(pixels, 8.0))).save(to / "restarts-100x97.png", optimize=True)
    small = nist_encoded(ridges(48, 40, 8))
    (to / "card.an2").write_bytes(card(small, (48, 40)))


if __name__ == "__main__":
    main()
