"""Histories of reads and writes of single points, and checks of them without clock or network.

Each point is a register. One client at a time writes it, and no value is written twice.
"""

import dataclasses
import json
import math
import pathlib
import threading

WRITE = "write"
READ = "read"
# Value of a point that does not exist.
ABSENT = None
# End of a write whose outcome the client does not know: it may have an effect at any later time.
UNKNOWN = math.inf


@dataclasses.dataclass(frozen=True)
class Operation:
    """A read or a write of one point. Times are of one monotonic clock, in any unit."""

    point: int
    kind: str
    value: int | None
    begun: float
    ended: float

    @property
    def acknowledged(self) -> bool:
        """True for a write that the server has confirmed."""
        return self.kind == WRITE and self.ended != UNKNOWN


class History:
    """Operations of all clients. Threads may add at the same time."""

    def __init__(self):
        self.operations: list[Operation] = []
        self.lock = threading.Lock()

    def add(self, point: int, kind: str, value: int | None, begun: float, ended: float) -> None:
        with self.lock:
            self.operations.append(Operation(point, kind, value, begun, ended))

    def taken(self) -> list[Operation]:
        """Returns a copy of the operations so far."""
        with self.lock:
            return list(self.operations)


def by_point(operations: list[Operation]) -> dict[int, list[Operation]]:
    """Groups operations by their point."""
    grouped: dict[int, list[Operation]] = {}
    for operation in operations:
        grouped.setdefault(operation.point, []).append(operation)
    return grouped


@dataclasses.dataclass(frozen=True)
class Zone:
    """Time between the first end and the last begin of the operations with one value."""

    value: int | None
    first_end: float
    last_begin: float

    @property
    def forward(self) -> bool:
        """True if the value was certainly the register's during the whole zone."""
        return self.first_end < self.last_begin


def violation(operations: list[Operation]) -> str | None:
    """Returns why the history of one register is not linearizable, or `None` if it is.

    Gibbons and Korach, "Testing shared memories", SIAM Journal on Computing 26(4), 1997: with values that
    are written once, a history is linearizable exactly if no read ends before its write begins, no two
    forward zones overlap, and no other zone lies within a forward zone.
    """
    writes = {operation.value: operation for operation in operations if operation.kind == WRITE}
    reads: dict[int | None, list[Operation]] = {}
    for operation in operations:
        if operation.kind == READ:
            reads.setdefault(operation.value, []).append(operation)
    zones = [Zone(ABSENT, -math.inf, max(read.begun for read in reads[ABSENT]))] if ABSENT in reads else []
    for value, of_value in reads.items():
        if value is ABSENT:
            continue
        if value not in writes:
            return f"a read returned {value}, which no client wrote"
        early = min(read.ended for read in of_value)
        if early < writes[value].begun:
            return f"a read that ended at {early} returned {value}, written from {writes[value].begun}"
    for value, write in writes.items():
        # A write of unknown outcome that no read has seen may have had no effect.
        if value in reads or write.acknowledged:
            group = [write, *reads.get(value, [])]
            zones.append(Zone(value, min(one.ended for one in group), max(one.begun for one in group)))
    return conflict(zones)


def conflict(zones: list[Zone]) -> str | None:
    """Returns a pair of zones that no order of the values permits, or `None`."""
    forward = sorted((zone for zone in zones if zone.forward), key=lambda zone: zone.first_end)
    for one, other in zip(forward, forward[1:], strict=False):
        if other.first_end < one.last_begin:
            return f"{one.value} was read after {other.value}, and {other.value} after {one.value}"
    for zone in zones:
        for around in forward:
            inside = around.first_end < zone.last_begin and zone.first_end < around.last_begin
            if not zone.forward and inside:
                return f"{zone.value} was written and confirmed while the register kept {around.value}"
    return None


def violations(operations: list[Operation]) -> list[str]:
    """Returns one message for each point whose history is not linearizable."""
    found = ((point, violation(own)) for point, own in sorted(by_point(operations).items()))
    return [f"point {point}: {why}" for point, why in found if why is not None]


def lost(operations: list[Operation], last: dict[int, int | None]) -> list[int]:
    """Returns the points whose last value is neither that of the last acknowledged write nor one in doubt.

    `last` has the values after all writes. A write of unknown outcome, or a later one, may have replaced the acknowledged one.
    """
    missing = []
    for point, own in by_point(operations).items():
        writes = [operation for operation in own if operation.kind == WRITE]
        acknowledged = [write for write in writes if write.acknowledged]
        if not acknowledged:
            continue
        newest = max(acknowledged, key=lambda write: write.begun)
        allowed = {newest.value} | {write.value for write in writes if not write.acknowledged}
        if last.get(point, ABSENT) not in allowed:
            missing.append(point)
    return sorted(missing)


def save(operations: list[Operation], path: pathlib.Path) -> None:
    """Writes the history for `tests/cluster/porcupine`: one JSON object a line, -1 for an absent value.

    Leaves out writes of unknown outcome that no read has seen: they may have had no effect, and each doubles the work
    of a checker that tries orders.
    """
    seen = {(operation.point, operation.value) for operation in operations if operation.kind == READ}
    end = 1 + max((operation.ended for operation in operations if operation.ended != UNKNOWN), default=0)
    with path.open("w") as lines:
        for operation in operations:
            in_doubt = operation.kind == WRITE and not operation.acknowledged
            if in_doubt and (operation.point, operation.value) not in seen:
                continue
            line = {
                "point": operation.point,
                "write": operation.kind == WRITE,
                "value": -1 if operation.value is ABSENT else operation.value,
                "begun": int(operation.begun),
                "ended": int(end if in_doubt else operation.ended),
            }
            print(json.dumps(line), file=lines)
