"""Makes the compressed clips that tests/it/decode.rs decodes: one second, left a chirp, right a tone.

    pip install imageio-ffmpeg && python make_clips.py
"""

import math
import pathlib
import struct
import subprocess

import imageio_ffmpeg

RATE = 16000
HERE = pathlib.Path(__file__).parent


def signal():
    for index in range(RATE):
        time = index / RATE
        left = 0.5 * math.sin(2.0 * math.pi * (200.0 * time + 900.0 * time * time))
        right = 0.25 * math.sin(2.0 * math.pi * 440.0 * time)
        yield round(left * 32767.0), round(right * 32767.0)


def chirps(channels):
    """A chirp in each channel. The fourth of six is for low sounds only, and silent."""
    for index in range(6000):
        time = index / 44100
        phases = [2.0 * math.pi * ((150 + 170 * channel) * time + 900.0 * time * time) for channel in range(channels)]
        levels = [0.0 if (channels, channel) == (6, 3) else 0.15 for channel in range(channels)]
        yield [round(level * math.sin(phase) * 32767.0) for level, phase in zip(levels, phases)]


def run(name, raw, rate, channels, *options):
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-y", "-f", "s16le", "-ar", str(rate),
               "-ac", str(channels), "-i", "-", "-map_metadata", "-1", "-fflags", "+bitexact", "-flags", "+bitexact",
               *options, str(HERE / name)]
    subprocess.run(command, input=raw, check=True)


def encode(name, *options):
    run(name, b"".join(struct.pack("<hh", *frame) for frame in signal()), RATE, 2, *options)


def surround(name, channels):
    raw = b"".join(struct.pack(f"<{channels}h", *frame) for frame in chirps(channels))
    run(name, raw, 44100, channels, "-c:a", "libvorbis", "-q:a", "3")


def main():
    encode("clip.flac", "-c:a", "flac", "-frame_size", "1024")
    encode("clip.mp3", "-c:a", "libmp3lame", "-b:a", "64k", "-reservoir", "0", "-write_xing", "1", "-flags", "-bitexact")
    encode("clip.ogg", "-c:a", "libvorbis", "-q:a", "3")
    encode("clip.m4a", "-c:a", "aac", "-b:a", "64k", "-movflags", "+faststart")
    encode("clip-last.m4a", "-c:a", "aac", "-b:a", "64k")
    encode("clip-alac.m4a", "-c:a", "alac", "-t", "0.5")
    encode("clip.opus", "-c:a", "libopus", "-t", "0.1")
    surround("clip-4.ogg", 4)
    surround("clip-6.ogg", 6)
    encode("clip.aiff", "-c:a", "pcm_s16be", "-t", "0.1")


if __name__ == "__main__":
    main()
