"""Audio: find speech in a recording while it is still being sent.

Needs the recognisers (`make recognisers`), which run Silero's voice detector.

    pip install requests
    python examples/audio_speech.py meeting.wav
"""

import json
import pathlib
import sys

import requests
from server import made, serving

RECOGNISERS = made(".cache/recognisers", "recognisers")
RECORDING = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else made(".cache/audio/clips/meeting.wav", "recognisers")
CHUNK_BYTES = 1 << 16


def chunks():
    """Yields the file in pieces, as a microphone or another download would give them."""
    with RECORDING.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


with serving(RECOGNISERS) as url:
    # One line of JSON for each stretch of speech. A line is sent as soon as later audio cannot change it.
    answer = requests.post(f"{url}/v1/audio/vad-onnx", data=chunks(), stream=True, timeout=60)
    answer.raise_for_status()
    for line in answer.iter_lines():
        label = json.loads(line)
        if "text" in label:
            print(f"{label['start']:6.2f} to {label['end']:6.2f} s: {label['text']}")
    # The same as subtitles.
    with RECORDING.open("rb") as file:
        answer = requests.post(f"{url}/v1/audio/vad-onnx", params={"format": "srt"}, data=file, timeout=60)
    print("\n".join(answer.text.splitlines()[:3]))
