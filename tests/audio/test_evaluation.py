"""Evaluations on recordings outside the project.

MILLPOND_AUDIO_DATA names a folder with speech/*.flac (one speaker each) and speakers/NAME/*.flac (five or more each).
"""

import os
import pathlib

import numpy as np
import pytest
from listening import command, listen
from recordings import read, wave
from reference import segments
from test_truth import assert_same

DATA = os.environ.get("MILLPOND_AUDIO_DATA")
CLIPS_HEARD = 20
CLIPS_ENROLLED = 3

pytestmark = pytest.mark.skipif(not DATA, reason="MILLPOND_AUDIO_DATA names no folder of recordings")


@pytest.mark.parametrize("clip", range(CLIPS_HEARD))
def test_voice_activity_on_many_speakers(clip):
    paths = sorted(pathlib.Path(DATA, "speech").glob("*.flac"))
    path = paths[clip * len(paths) // CLIPS_HEARD]
    assert_same(listen("vad", path).spans(), segments(path, "vad"))


def test_voice_activity_of_all_clips_joined(tmp_path):
    """Many borders of pieces in varied speech: the clips of all speakers, one after the other."""
    joined = np.concatenate([read(path) for path in sorted(pathlib.Path(DATA, "speech").glob("*.flac"))])
    path = wave(tmp_path / "joined.wav", joined)
    assert_same(listen("vad", path).spans(), segments(path, "vad"))


def test_every_speaker_is_identified(tmp_path):
    store = tmp_path / "speakers.json"
    folders = sorted(pathlib.Path(DATA, "speakers").iterdir())
    speakers = {folder.name: sorted(folder.glob("*.flac")) for folder in folders}
    for name, paths in speakers.items():
        done = command("speakers", "--speakers", store, "enrol", name, *paths[:CLIPS_ENROLLED])
        assert done.returncode == 0, done.stderr
    unseen = {str(path): name for name, paths in speakers.items() for path in paths[CLIPS_ENROLLED:]}
    done = command("speakers", "--speakers", store, "identify", *unseen)
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    rows = {row.split()[0]: row.split(maxsplit=1)[1] for row in done.stdout.splitlines()}
    right = sum(name in rows[path] for path, name in unseen.items())
    assert right == len(unseen) == 2 * len(speakers), f"{right} of {len(unseen)} right\n{done.stdout}"
