"""Image search: index a folder, then find the source of a cropped, rotated and recompressed copy.

The embedding model and the sample images come from `make images-model`.

    pip install pillow requests
    python examples/image_search.py [FOLDER]
"""

import io
import pathlib
import sys

import requests
from PIL import Image
from server import made, serving

MODELS = made(".cache/images/models", "images-model")
FOLDER = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else made(".cache/images/pictures", "images-model")


def changed_copy(file: pathlib.Path) -> bytes:
    """Returns the middle of an image, rotated by 8 degrees, as a JPEG of low quality."""
    image = Image.open(file).convert("RGB")
    width, height = image.size
    part = image.rotate(8).crop((width // 5, height // 5, width * 4 // 5, height * 4 // 5))
    body = io.BytesIO()
    part.save(body, "JPEG", quality=50)
    return body.getvalue()


with serving(MODELS) as url:
    photos = f"{url}/v1/images/photos"
    files = sorted(FOLDER.glob("*.*"))
    for file in files:
        # The first image creates the collection.
        answer = requests.put(photos, data=file.read_bytes(), params={"name": file.name}, timeout=60)
        answer.raise_for_status()
    print(f"{requests.get(photos, timeout=10).json()['count']} images indexed")

    query = files[len(files) // 3]
    answer = requests.post(f"{photos}/search", data=changed_copy(query), params={"k": 3}, timeout=60)
    answer.raise_for_status()
    print(f"a changed copy of {query.name}:")
    for result in answer.json()["results"]:
        verdict = "same object" if result["accepted"] else "only similar"
        print(f"  {result['name']}: {verdict}")
