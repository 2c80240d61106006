"""Draws lines of text for `millpond bench batch`.

NN.png      black on white, 48 pixels high, 64 to 640 wide in steps of 8, neighbours differ
lines.txt   their words, one line each, in the order of the images

The same words on every machine: the seed is fixed.
"""

import argparse
import pathlib
import random

from PIL import Image, ImageDraw, ImageFont

HEIGHT_PX = 48
WIDTH_MIN_PX = 64
WIDTH_MAX_PX = 640
# The recogniser reads eight columns for one step of its answer.
STEP_PX = 8
LINES = 40
SEED = 2026
MARGIN_PX = 6
FONTS = pathlib.Path("/usr/share/fonts/truetype/dejavu")
FACES = ("DejaVuSans.ttf", "DejaVuSans-Bold.ttf", "DejaVuSerif.ttf", "DejaVuSansMono.ttf")
SIZES_PX = (26, 28, 30, 32)
# Without "ff", "fi" and "fl": drawn as one glyph, the recogniser misreads them.
WORDS = """
a act air all and any arch area arm art ask at back ball bank barn base bath bay beam bed bell best bird blue boat
body bold bone book born both bowl box brave bread bright broad brown build burn calm camp card care carry chair chalk
child clay clean clear climb clock cloud coal coast cold cook corn cost count cup dark dawn day deep deer desk door
down dream dress drift drop dry dust each early earth east edge egg empty engine even every face fair farm fast fog
fold food foot forest form four fresh frost fruit garden gate gentle glass gold good grain grand grass gravel great
green grey ground grow half hall hand harbour hard harvest hat heart heavy herb high hill home honey horse house ice
idea ink iron island join journey keep key kind king kitchen lake lamp land large last leaf letter light lime line
little long loud low lunch map maple market meadow metal milk mill mind mist moon morning moss mountain mouth music
narrow near needle nest night noon north oak oar ocean old open orange orchard order owl page paint paper path peach
pen pepper piano pine place plain plum pond poem port quarter quiet rain reed rest rice ridge river road rock roof
room root rope round salt sand school sea seed shade shape sharp shell ship shore silver simple sky slow small smooth
snow soft soil south spoon spring stable stair star steam stone storm story stream street strong sugar summer sun
sweet table tail tall tea ten tent thin third three tide timber tool tower town trade train tree true valley vine
voice wall warm water wave west wheat wheel white wide wild wind winter wood wool word work yard year yellow young
""".split()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--to", type=pathlib.Path, required=True, help="directory for the pictures")
    draw(parser.parse_args().to)


def draw(to: pathlib.Path) -> None:
    """Draws all lines into `to`."""
    to.mkdir(parents=True, exist_ok=True)
    rng = random.Random(SEED)
    steps = (WIDTH_MAX_PX - WIDTH_MIN_PX) // STEP_PX
    widths = [WIDTH_MIN_PX + STEP_PX * round(line * steps / (LINES - 1)) for line in range(LINES)]
    rng.shuffle(widths)
    words = []
    for number, width in enumerate(widths):
        font = ImageFont.truetype(str(FONTS / rng.choice(FACES)), size=rng.choice(SIZES_PX))
        text = line_of(rng, font, width)
        render(text, font, width).save(to / f"{number:02}.png")
        words.append(text)
    (to / "lines.txt").write_text("\n".join(words) + "\n")
    print(f"{to}: {LINES} lines of text, {min(widths)} to {max(widths)} pixels wide")


def line_of(rng: random.Random, font: ImageFont.FreeTypeFont, width: int) -> str:
    """Returns words that fill `width` as far as possible."""
    room = width - 2 * MARGIN_PX
    text = ""
    while True:
        longer = [f"{text} {word}".strip() for word in rng.sample(WORDS, 24)]
        fitting = [candidate for candidate in longer if font.getlength(candidate) <= room]
        if not fitting:
            return text or "a"
        text = fitting[0]


def render(text: str, font: ImageFont.FreeTypeFont, width: int) -> Image.Image:
    """Draws `text` in black on white."""
    image = Image.new("RGB", (width, HEIGHT_PX), "white")
    ImageDraw.Draw(image).text((MARGIN_PX, HEIGHT_PX / 2), text, fill="black", font=font, anchor="lm")
    return image


if __name__ == "__main__":
    main()
