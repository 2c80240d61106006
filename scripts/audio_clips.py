"""Collects real speech from public packages in one folder, 16 kHz mono.

voice-NAME.wav  eight short announcements by one woman (Debian's alsa-utils)
meeting.wav     30 s of two people talking over each other (AMI corpus, CC BY 4.0, from pyannote-audio's wheel)
meeting.rttm    its speakers and times, labelled by hand
"""

import argparse
import io
import pathlib
import tempfile
import wave
import zipfile

import numpy as np

from demo_assets import RATE_HZ, find_voice, read_wave, resample, write_wave

MEETING = "pyannote/audio/sample/sample"
# Not a voice.
UNWANTED = {"Noise"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wheels", type=pathlib.Path, required=True, help="directory of downloaded wheels")
    parser.add_argument("--to", type=pathlib.Path, required=True, help="directory for the recordings")
    arguments = parser.parse_args()
    arguments.to.mkdir(parents=True, exist_ok=True)
    seconds = announcements(arguments.to) + meeting(arguments.wheels, arguments.to)
    print(f"{arguments.to}: {seconds:.0f} s of speech in {len(list(arguments.to.glob('*.wav')))} recordings")


def announcements(to: pathlib.Path) -> float:
    """Writes Debian's announcements; returns their seconds."""
    seconds = 0.0
    with tempfile.TemporaryDirectory() as scratch:
        for path in sorted(find_voice(pathlib.Path(scratch)).parent.glob("*.wav")):
            if path.stem in UNWANTED:
                continue
            samples = resample(*read_wave(path), RATE_HZ)
            write_wave(to / f"voice-{path.stem.lower().replace('_', '-')}.wav", samples)
            seconds += samples.size / RATE_HZ
    return seconds


def meeting(wheels: pathlib.Path, to: pathlib.Path) -> float:
    """Writes the meeting and its labels. Returns its seconds."""
    (wheel,) = wheels.glob("pyannote_audio-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (to / "meeting.rttm").write_bytes(archive.read(f"{MEETING}.rttm"))
        recording = archive.read(f"{MEETING}.wav")
    with wave.open(io.BytesIO(recording)) as file:
        assert (file.getsampwidth(), file.getnchannels(), file.getframerate()) == (2, 1, RATE_HZ), file.getparams()
        samples = np.frombuffer(file.readframes(file.getnframes()), dtype="<i2") / 32768.0
    write_wave(to / "meeting.wav", samples)
    return samples.size / RATE_HZ


if __name__ == "__main__":
    main()
