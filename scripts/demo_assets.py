"""Makes the demo's inputs: an image of a line of text, and a human voice at 16 kHz.

text.png    the words in text.txt, black on white, 48 pixels high, the size of the text recogniser
text.txt    those words, the expected answer
voice.wav   a person saying "front center" (Debian's alsa-utils), 16 kHz mono
silence.wav faint noise of the same length; the expected answer is "no voice"
lines/      lines of text of many widths, for `millpond bench batch` (ocr_lines.py)
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile
import wave

import numpy as np
from PIL import Image, ImageDraw, ImageFont

import ocr_lines

TEXT = "Calm as a millpond 2026"
TEXT_HEIGHT_PX = 48
FONT = pathlib.Path("/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf")
VOICE = pathlib.Path("usr/share/sounds/alsa/Front_Center.wav")
VOICE_PACKAGE = "alsa-utils"
RATE_HZ = 16_000
# 1/1000 of full scale: no detector labels it as a voice.
SILENCE_AMPLITUDE = 0.001


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--to", type=pathlib.Path, required=True, help="directory for the inputs")
    to = parser.parse_args().to
    to.mkdir(parents=True, exist_ok=True)

    render_line(TEXT).save(to / "text.png")
    (to / "text.txt").write_text(TEXT + "\n")
    with tempfile.TemporaryDirectory() as scratch:
        samples, rate = read_wave(find_voice(pathlib.Path(scratch)))
    voice = resample(samples, rate, RATE_HZ)
    write_wave(to / "voice.wav", voice)
    write_wave(to / "silence.wav", np.random.default_rng(1).normal(0, SILENCE_AMPLITUDE, voice.size))
    ocr_lines.draw(to / "lines")
    print(f'{to}: text.png ("{TEXT}"), voice.wav and silence.wav ({voice.size / RATE_HZ:.1f} s)')


def render_line(text: str) -> Image.Image:
    """Draws `text` in black on white, one line, TEXT_HEIGHT_PX high."""
    font = ImageFont.truetype(str(FONT), size=32)
    margin_px = 12
    width = int(font.getlength(text)) + 2 * margin_px
    image = Image.new("RGB", (width, TEXT_HEIGHT_PX), "white")
    ImageDraw.Draw(image).text((margin_px, TEXT_HEIGHT_PX / 2), text, fill="black", font=font, anchor="lm")
    return image


def find_voice(scratch: pathlib.Path) -> pathlib.Path:
    """Returns the recording's path. If its package is not installed, extracts it without installing the package."""
    installed = pathlib.Path("/") / VOICE
    if installed.exists():
        return installed
    if not fetch_package(scratch):
        # A new machine has no list of packages. Root may fetch it.
        subprocess.run(["apt-get", "update", "-qq"], check=False)
        if not fetch_package(scratch):
            sys.exit(f"no {installed}\nhint: sudo apt-get install {VOICE_PACKAGE}")
    (package,) = scratch.glob("*.deb")
    subprocess.run(["dpkg-deb", "--extract", str(package), str(scratch)], check=True)
    return scratch / VOICE


def fetch_package(to: pathlib.Path) -> bool:
    """Downloads the package of the recording. Returns false if the lists do not have it."""
    command = ["apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", VOICE_PACKAGE]
    return subprocess.run(command, cwd=to, check=False, stderr=subprocess.DEVNULL).returncode == 0


def read_wave(path: pathlib.Path) -> tuple[np.ndarray, int]:
    """Returns the first channel of a 16-bit recording as floats in [-1, 1], and its rate in Hz."""
    with wave.open(str(path)) as file:
        if file.getsampwidth() != 2:
            sys.exit(f"{path}: {8 * file.getsampwidth()} bits a sample, 16 wanted")
        samples = np.frombuffer(file.readframes(file.getnframes()), dtype="<i2")
        return samples[:: file.getnchannels()] / 32768.0, file.getframerate()


def resample(samples: np.ndarray, rate: int, wanted: int) -> np.ndarray:
    """Converts the rate. Cuts frequencies above half the new rate from the spectrum."""
    count = round(samples.size * wanted / rate)
    spectrum = np.fft.rfft(samples)[: count // 2 + 1]
    return np.fft.irfft(spectrum, count) * (count / samples.size)


def write_wave(path: pathlib.Path, samples: np.ndarray) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE_HZ)
        file.writeframes((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())


if __name__ == "__main__":
    main()
