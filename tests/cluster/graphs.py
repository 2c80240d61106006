"""Made-up features of photographs: groups of graphs that show one scene, with embeddings near each other."""

import base64
import struct

import numpy as np

MODEL = "made-up"
DIMS = 64
VERTICES = 256
WIDTH, HEIGHT = 640, 480
DESCRIPTOR_BYTES = 32
# Points of one scene.
GROUP = 20
# Share of a descriptor's bits that differ between two points of a scene.
FLIPPED = 0.08
VERSION, DESCRIBED = 1, 1
VERTEX = np.dtype([("x", "<i2"), ("y", "<i2"), ("direction", "u1"), ("kind", "u1")])


def scene(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Returns the vertices of a scene, in clusters as corners are, and their descriptors."""
    centres = rng.uniform([0, 0], [WIDTH, HEIGHT], (12, 2))
    places = centres[rng.integers(0, len(centres), VERTICES)] + rng.normal(0, 60, (VERTICES, 2))
    vertices = np.zeros(VERTICES, VERTEX)
    vertices["x"], vertices["y"] = places.clip(0, [WIDTH - 1, HEIGHT - 1]).T
    vertices["direction"] = rng.integers(0, 256, VERTICES)
    return vertices, rng.integers(0, 256, (VERTICES, DESCRIPTOR_BYTES), np.uint8)


def seen_again(rng: np.random.Generator, vertices: np.ndarray, descriptors: np.ndarray) -> bytes:
    """Returns the record of another image of a scene: points a pixel away, and some bits of descriptors flipped."""
    moved = vertices.copy()
    for axis, side in (("x", WIDTH), ("y", HEIGHT)):
        moved[axis] = (vertices[axis] + rng.integers(-1, 2, VERTICES)).clip(0, side - 1)
    flipped = np.packbits(rng.random((VERTICES, DESCRIPTOR_BYTES * 8)) < FLIPPED, axis=1)
    header = struct.pack("<BBHHH", VERSION, DESCRIBED, VERTICES, WIDTH, HEIGHT)
    return header + moved.tobytes() + (descriptors ^ flipped).tobytes()


def points(count: int, seed: int = 35) -> list[dict]:
    """Returns points for `PUT /v1/images/NAME/features`, with the ids from 0."""
    rng = np.random.default_rng(seed)
    made: list[dict] = []
    while len(made) < count:
        vertices, descriptors = scene(rng)
        direction = rng.standard_normal(DIMS)
        for _ in range(min(GROUP, count - len(made))):
            embedding = (direction + 0.3 * rng.standard_normal(DIMS)).astype(np.float32)
            record = base64.b64encode(seen_again(rng, vertices, descriptors)).decode()
            made.append({"id": len(made), "embedding": embedding.tolist(), "record": record})
    return made
