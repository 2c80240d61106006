"""bench/peers/filters.py and vectors.py without an engine: ranks, passes, sweeps and the limit of a build."""

import argparse
import pathlib
import signal
import subprocess
import sys
import types

PEERS = str(pathlib.Path(__file__).parents[2] / "bench" / "peers")
sys.path.insert(0, PEERS)

import filters  # noqa: E402
import vectors  # noqa: E402


def test_quantiles_have_the_ranks_of_millponds_histograms():
    values = [float(value) for value in range(200, 0, -1)]
    assert [filters.quantile(values, share) for share in (0.5, 0.99, 1.0)] == [100.0, 198.0, 200.0]
    assert filters.quantile([5.0], 0.5) == 5.0


def test_the_second_pass_without_a_filter_counts(monkeypatch):
    asked = []

    class Shard:
        def query(self, request):
            asked.append(request)
            # The first pass finds nothing.
            return [types.SimpleNamespace(id=7)] if len(asked) > 2 else []

    library = types.SimpleNamespace(
        SearchParams=lambda **_: None,
        QueryRequest=lambda filter, **_: filter,
        Query=types.SimpleNamespace(Nearest=lambda vector: vector),
        Filter=lambda must: must,
    )
    monkeypatch.setattr(filters, "condition", lambda library, wanted: wanted)
    queries = [{"vector": [0.0], "condition": number, "nearest": [7, 8]} for number in (1, 2)]
    figures = filters.measure_all(library, Shard(), [{"name": "tenant", "queries": queries}], [[7], [7]])
    assert asked == [None, None, None, None, [1], [2]]
    assert (figures["unfiltered"]["recall"], figures["tenant"]["recall"]) == (1.0, 0.5)


def test_a_build_that_takes_too_long_ends_the_process():
    text = f"import sys, time; sys.path.insert(0, {PEERS!r}); import vectors\nwith vectors.building(0.1): time.sleep(600)"
    assert subprocess.run([sys.executable, "-c", text], check=False).returncode == -signal.SIGALRM
    with vectors.building(600):
        pass
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def sweep(monkeypatch, seconds_max: float) -> dict:
    """Sweeps an engine whose two settings find nothing."""

    def engine(base, threads):
        yield "links 4", 1.0, [1, 2], lambda setting: lambda query: [9] * 10

    monkeypatch.setattr(vectors, "SWEEP_SECONDS_MAX", seconds_max)
    monkeypatch.setitem(vectors.ENGINES, "line", (engine, "pytest", "json"))
    arguments = argparse.Namespace(engine="line", threads=1, core=None, seconds=0.01, build_limit=600)
    return vectors.sweep(arguments, [], [[0.0]], [{1, 2}])


def test_a_sweep_that_reaches_its_time_limit_is_named(monkeypatch):
    result = sweep(monkeypatch, 0)
    assert (result["cut_short"], len(result["points"])) == (["links 4"], 1)
    result = sweep(monkeypatch, 600)
    assert (result["cut_short"], len(result["points"])) == ([], 2)
