"""The accuracy that scripts/train_head.py prints."""

import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "scripts"))

import train_head  # noqa: E402


def test_only_unseen_recordings_count(capsys):
    def recording(at: int) -> np.ndarray:
        return np.eye(96, dtype=np.float32)[[at] * 3]

    train_head.report(["many", "one"], {"many": [recording(0)] * 5, "one": [recording(1)]})
    many, one = capsys.readouterr().out.splitlines()
    assert many == "  many: 100% of 6 windows of unseen recordings (9 seen)"
    assert "only recording" in one and "%" not in one
