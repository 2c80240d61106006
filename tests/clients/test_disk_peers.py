"""bench/peers/disk_vectors.py without an engine: choice of the setting, limits, reasons of failures."""

import argparse
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest

PEERS = str(pathlib.Path(__file__).parents[2] / "bench" / "peers")
sys.path.insert(0, PEERS)

import disk_vectors  # noqa: E402

MEMORY = 1 << 30


def write_rows(path: pathlib.Path, rows: np.ndarray) -> None:
    path.write_bytes(np.array(rows.shape, "<u4").tobytes() + rows.tobytes())


@pytest.fixture
def arguments(tmp_path) -> argparse.Namespace:
    """Arguments for 50 rows on a line, whose queries are the first 20 rows."""
    rows = np.arange(50, dtype="<f4").reshape(50, 1)
    nearest = np.argsort(np.abs(rows[:20] - rows.T), axis=1, kind="stable")[:, :10]
    write_rows(tmp_path / "base.fbin", rows)
    write_rows(tmp_path / "query.fbin", rows[:20])
    write_rows(tmp_path / "truth.ibin", nearest.astype("<u4"))
    return argparse.Namespace(
        data=str(tmp_path), engine="line", memory=MEMORY, threads=1, warm_up=5, index="", group=None, choice=None, limit_data=False
    )


def fake(monkeypatch, hits_of_setting: dict[int, int]) -> list[int]:
    """Installs an engine `line` that finds as many of ten neighbours as a setting gives. Returns the settings used."""
    used = []

    def load(directory, rows, arguments):
        def search(setting):
            used.append(setting)

            def one(query):
                nearest = np.argsort(np.abs(np.arange(rows.count) - query[0]), kind="stable")[:10]
                return [*nearest[: hits_of_setting[setting]], *[rows.count] * 10][:10]

            return one

        return [("effort", list(hits_of_setting), search)]

    monkeypatch.setitem(disk_vectors.ENGINES, "line", disk_vectors.Engine(None, load, "pytest", "json"))
    return used


def test_the_sweep_ends_at_the_first_setting_with_the_recall(arguments, monkeypatch):
    used = fake(monkeypatch, {1: 5, 2: 9, 4: 10, 8: 10})
    report = disk_vectors.run_search(arguments)
    assert (report["setting"], report["choice"], report["recall"]) == ("effort 4", [0, 4], 1.0)
    assert [point["recall"] for point in report["points"]] == [0.5, 0.9, 1.0]
    # The first answer, the sweep, the chosen setting.
    assert used == [1, 1, 2, 4, 4]
    assert report["ready_s"] > 0 and report["rss_mb"] > 0
    assert min(report[name] for name in ("p50_ms", "p95_ms", "repeated_p50_ms")) > 0


def test_without_the_recall_the_best_setting_is_reported(arguments, monkeypatch):
    used = fake(monkeypatch, {1: 5, 2: 9, 4: 9, 8: 9, 16: 10})
    report = disk_vectors.run_search(arguments)
    # Two settings without a gain end the sweep.
    assert used == [1, 1, 2, 4, 8, 2]
    assert (report["setting"], report["recall"]) == ("effort 2", 0.9)


def test_a_given_choice_is_not_swept(arguments, monkeypatch):
    used = fake(monkeypatch, {1: 5, 2: 10})
    arguments.choice = "[0, 2]"
    report = disk_vectors.run_search(arguments)
    assert used == [1, 2] and "points" not in report and report["recall"] == 1.0


def test_the_fastest_setting_with_the_recall_is_chosen():
    points = [{"recall": recall, "p50_ms": p50} for recall, p50 in [(0.9, 1.0), (0.99, 5.0), (0.96, 4.0)]]
    assert disk_vectors.chosen(points)["p50_ms"] == 4.0


def test_rows_are_read_in_batches(arguments):
    rows = disk_vectors.Rows(f"{arguments.data}/base.fbin")
    assert [(start, len(batch)) for start, batch in rows.batches(20)] == [(0, 20), (20, 20), (40, 10)]
    assert rows.read(48, 20).tolist() == [[48.0], [49.0]]


def test_a_file_of_the_wrong_size_is_refused(tmp_path):
    path = tmp_path / "base.fbin"
    path.write_bytes(bytes([2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]))
    with pytest.raises(SystemExit, match="not a file of 2 rows of 1 dimensions"):
        disk_vectors.Rows(str(path))


def test_a_failed_process_gives_its_last_line(arguments, tmp_path):
    arguments.data, arguments.engine = str(tmp_path / "absent"), "faiss-ivf"
    with pytest.raises(disk_vectors.Failure, match="^build: FileNotFoundError: .*absent/base.fbin"):
        disk_vectors.run_process("build", 1, 60, arguments, str(tmp_path))


def test_a_process_is_killed_after_its_time(arguments, tmp_path):
    arguments.engine = "faiss-ivf"
    with pytest.raises(disk_vectors.Failure, match="^build: not finished after 0 s"):
        disk_vectors.run_process("build", 1, 0, arguments, str(tmp_path))


def test_a_group_gets_the_limit(tmp_path):
    limit = disk_vectors.MemoryLimit(MEMORY, str(tmp_path))
    group = pathlib.Path(limit.group)
    assert (limit.kind, group.parent) == ("cgroup2", tmp_path)
    assert (group / "memory.max").read_text() == str(MEMORY)
    assert (group / "memory.swap.max").read_text() == "0"
    (group / "memory.events").write_text("oom 3\noom_kill 2\noom_group_kill 0\n")
    assert limit.kills() == 2


# The script with an engine that has written a file and continues for half a minute. It then ends without a clean-up.
BUSY = f"""
import os, sys, time
sys.path.insert(0, {PEERS!r})
import disk_vectors

def run_engine(arguments, work):
    open(os.path.join(work, "index"), "w").close()
    print("building", flush=True)
    time.sleep(30)
    os._exit(9)

disk_vectors.version = lambda engine: "1"
disk_vectors.run_engine = run_engine
disk_vectors.main()
"""


def busy(work: pathlib.Path, *more: str) -> list[str]:
    out = ["--json", str(work / "out.json"), "--work", str(work), "--data", str(work)]
    return [sys.executable, "-c", BUSY, "--engine", "faiss-ivf", "--memory", str(MEMORY), *out, *more]


def default_signals() -> None:
    """Resets signals that are ignored where the tests run, for example below `nohup`."""
    for number in disk_vectors.END_SIGNALS:
        signal.signal(number, signal.SIG_DFL)


@pytest.mark.parametrize("number", disk_vectors.END_SIGNALS)
def test_a_signal_ends_it_and_removes_the_index(tmp_path, number):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(busy(tmp_path), **pipes, text=True, preexec_fn=default_signals) as process:
        assert process.stdout.readline() == "building\n"
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (1, f"ended by {signal.Signals(number).name}\n")
    assert list(tmp_path.iterdir()) == []


def test_the_end_of_its_parent_ends_it(tmp_path):
    parent = [sys.executable, "-c", "import subprocess, sys; subprocess.run(sys.argv[1:])"]
    command = [*parent, *busy(tmp_path, "--end-with-parent")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout.readline() == "building\n"
        process.kill()
        # The output ends with the script, which has inherited it.
        assert process.stdout.read() == ""
    assert list(tmp_path.iterdir()) == []
