"""The checks of histories, on written examples and against a search through all orders."""

import itertools
import random

import pytest
from history import ABSENT, READ, UNKNOWN, WRITE, Operation, lost, violation, violations


def write(value: int, begun: float, ended: float = UNKNOWN) -> Operation:
    return Operation(1, WRITE, value, begun, ended)


def read(value: int | None, begun: float, ended: float) -> Operation:
    return Operation(1, READ, value, begun, ended)


LINEARIZABLE = {
    "nothing": [],
    "absent before the first write": [read(ABSENT, 0, 1), write(1, 2, 3), read(1, 4, 5)],
    "old value during a write": [write(1, 0, 1), write(2, 2, 9), read(1, 3, 4), read(2, 5, 6)],
    "write in doubt that takes effect": [write(1, 0, 1), write(2, 2), read(1, 3, 4), read(2, 5, 6)],
    "write in doubt that does not": [write(1, 0, 1), write(2, 2), read(1, 3, 4), read(1, 5, 6)],
    "write in doubt behind a later write": [write(1, 0, 1), write(2, 2), write(3, 3, 4), read(3, 5, 6), read(2, 7, 8)],
    "read that overlaps its write": [write(1, 2, 3), read(1, 0, 4)],
}
NOT_LINEARIZABLE = {
    "lost write": [write(1, 0, 1), read(ABSENT, 2, 3)],
    "stale read": [write(1, 0, 1), write(2, 2, 3), read(1, 4, 5)],
    "back to the old value": [write(1, 0, 1), write(2, 2), read(2, 3, 4), read(1, 5, 6)],
    "acknowledged write that is never seen": [write(1, 0, 1), read(1, 2, 3), write(2, 4, 5), read(1, 6, 7)],
    "value that no client wrote": [read(7, 0, 1)],
    "value before its write": [read(1, 0, 1), write(1, 2, 3)],
    "write in doubt that takes effect twice": [
        write(1, 0), write(2, 2, 3), read(1, 4, 5), read(2, 6, 7),
        write(3, 8, 9), read(1, 10, 11),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", LINEARIZABLE)
def test_linearizable_history_passes(name):
    assert violation(LINEARIZABLE[name]) is None


@pytest.mark.parametrize("name", NOT_LINEARIZABLE)
def test_violation_is_reported(name):
    assert violation(NOT_LINEARIZABLE[name]) is not None


def has_order(operations: list[Operation]) -> bool:
    """Tries every order that respects the times, and every choice of writes in doubt."""
    doubted = [one for one in operations if one.kind == WRITE and not one.acknowledged]
    for count in range(len(doubted) + 1):
        for dropped in itertools.combinations(doubted, count):
            kept = [one for one in operations if one not in dropped]
            if any(allowed(order) for order in itertools.permutations(kept)):
                return True
    return False


def allowed(order: tuple[Operation, ...]) -> bool:
    value, latest_begin = ABSENT, float("-inf")
    for one in order:
        if one.ended < latest_begin:
            return False
        latest_begin = max(latest_begin, one.begun)
        if one.kind == WRITE:
            value = one.value
        elif one.value != value:
            return False
    return True


def random_history(rng: random.Random) -> list[Operation]:
    times = rng.sample(range(1000), 12)
    operations, writer = [], sorted(times[:6])
    writes = rng.randrange(1, 4)
    for number in range(writes):
        begun, ended = writer[2 * number : 2 * number + 2]
        operations.append(write(number + 1, begun, UNKNOWN if rng.random() < 0.3 else ended))
    for number in range(rng.randrange(1, 4)):
        begun, ended = sorted(times[6 + 2 * number : 8 + 2 * number])
        operations.append(read(rng.choice([ABSENT, *range(1, writes + 1)]), begun, ended))
    return operations


def test_checker_agrees_with_a_search_of_all_orders():
    rng, verdicts = random.Random(35), [0, 0]
    for _ in range(600):
        history = random_history(rng)
        expected = has_order(history)
        assert (violation(history) is None) == expected, history
        verdicts[expected] += 1
    assert min(verdicts) > 100


def test_violations_name_their_points():
    history = [write(1, 0, 1), Operation(2, WRITE, 5, 0, 1), Operation(2, READ, ABSENT, 2, 3)]
    assert [message.split(":")[0] for message in violations(history)] == ["point 2"]


def test_lost_points_are_those_without_an_allowed_value():
    history = [write(1, 0, 1), write(2, 2, 3), write(3, 4)]
    assert lost(history, {1: 2}) == lost(history, {1: 3}) == []
    assert lost(history, {1: 1}) == lost(history, {}) == [1]
    assert lost([write(1, 0)], {}) == []
