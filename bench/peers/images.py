"""OpenCV's SIFT with RANSAC on the attacked copies that `millpond bench images` makes.

    millpond bench images --dir PHOTOS --json ours.json --write-queries QUERIES
    images.py --photos PHOTOS --queries QUERIES --json OUT [--candidates N] [--per-attack N] [--core N]

QUERIES holds manifest.json, {"base": [images in PHOTOS], "queries": [{"attack", "file", "source"}]}, and Millpond's query
files; `source` is null for an image outside the set. A query is matched with its source and seeded others, N candidates
in all, as after a perfect coarse filter, so this measures the exact stage only. The score is the number of matches that
one similarity transform (RANSAC) explains. recall@1 counts queries whose source has the best score, `final` those whose
source also reaches the threshold. A match below the threshold is a miss, one of a wrong image above it a false accept.
`threshold_0` is the lowest threshold without a false accept on this data.

Times are processor times on one core with one thread: an extraction without decoding, and a match of two images.
"""

import argparse
import importlib.metadata
import json
import math
import os
import random
import statistics
import sys
import time

# Minimum matches that agree on one transform; 10 to 15 is common.
THRESHOLD = 12
# Lowe's ratio (0.8 in IJCV 2004, 0.75 in OpenCV's tutorials).
RATIO = 0.75
# Largest error of a match in pixels.
TOLERANCE = 4.0
LEAST_MATCHES = 3
# A transform with a larger change of scale means that many points resemble one point, not that the images match.
SCALE_MAX = 5.0


class Matcher:
    """Keypoints of images, cached by file, and the score of two images."""

    def __init__(self, features):
        import cv2

        cv2.setNumThreads(1)
        self.cv2, self.kept = cv2, {}
        self.sift = cv2.SIFT_create(nfeatures=features)
        self.pairs = cv2.BFMatcher(cv2.NORM_L2)
        self.extraction_ms, self.match_ms, self.failed = [], [], []

    def keypoints(self, path):
        import numpy as np

        if path not in self.kept:
            gray = self.cv2.imread(path, self.cv2.IMREAD_GRAYSCALE)
            if gray is None:
                self.failed.append(path)
                self.kept[path] = None
                return None
            started = time.process_time()
            points, descriptors = self.sift.detectAndCompute(gray, None)
            self.extraction_ms.append(1e3 * (time.process_time() - started))
            places = np.float32([point.pt for point in points]).reshape(-1, 2)
            self.kept[path] = (places, descriptors) if len(points) >= LEAST_MATCHES else None
        return self.kept[path]

    def score(self, query, reference):
        query, reference = self.keypoints(query), self.keypoints(reference)
        if query is None or reference is None:
            return 0
        started = time.process_time()
        score = self.agreeing(query, reference)
        self.match_ms.append(1e3 * (time.process_time() - started))
        return score

    def agreeing(self, query, reference):
        pairs = self.pairs.knnMatch(query[1], reference[1], k=2)
        good = [pair[0] for pair in pairs if len(pair) == 2 and pair[0].distance < RATIO * pair[1].distance]
        # A point of the reference counts once, for the nearest point of the query.
        nearest = {match.trainIdx: match for match in sorted(good, key=lambda match: -match.distance)}
        good = list(nearest.values())
        if len(good) < LEAST_MATCHES:
            return 0
        here = query[0][[match.queryIdx for match in good]]
        there = reference[0][[match.trainIdx for match in good]]
        transform, inliers = self.cv2.estimateAffinePartial2D(
            here, there, method=self.cv2.RANSAC, ransacReprojThreshold=TOLERANCE, maxIters=2000, confidence=0.995
        )
        if transform is None:
            return 0
        scale = math.hypot(transform[0][0], transform[1][0])
        return int(inliers.sum()) if 1 / SCALE_MAX < scale < SCALE_MAX else 0


def chosen(manifest, per_attack, chance):
    """Selects queries of each attack, also of images outside the set. The seed determines them."""
    by_attack = {}
    for query in manifest["queries"]:
        by_attack.setdefault((query["attack"], query["source"] is None), []).append(query)
    for group in by_attack.values():
        chance.shuffle(group)
    return [query for group in by_attack.values() for query in (group[:per_attack] if per_attack else group)]


def run(arguments):
    with open(os.path.join(arguments.queries, "manifest.json")) as file:
        manifest = json.load(file)
    chance, matcher = random.Random(arguments.seed), Matcher(arguments.features)
    queries = chosen(manifest, arguments.per_attack, chance)

    def photo(name):
        return os.path.join(arguments.photos, name)

    attacks, wrong, false_accepts, foreign = {}, [], 0, 0
    for done, query in enumerate(queries):
        source = query["source"]
        others = [path for path in manifest["base"] if path != source]
        candidates = chance.sample(others, min(len(others), arguments.candidates - (source is not None)))
        path = os.path.join(arguments.queries, query["file"])
        impostor = max((matcher.score(path, photo(candidate)) for candidate in candidates), default=0)
        wrong.append(impostor)
        false_accepts += impostor >= arguments.threshold
        if source is not None:
            own = matcher.score(path, photo(source))
            first, final = attacks.setdefault(query["attack"], ([], []))
            first.append(own > impostor)
            final.append(own > impostor and own >= arguments.threshold)
        else:
            foreign += 1
        if done % 50 == 49:
            print(f"{done + 1} of {len(queries)} queries", file=sys.stderr, flush=True)
    return report(arguments, matcher, attacks, wrong, false_accepts, foreign, len(queries))


def report(arguments, matcher, attacks, wrong, false_accepts, foreign, asked):
    rates = {
        name: {"recall1": statistics.mean(first), "final_recall1": statistics.mean(final), "queries": len(first)}
        for name, (first, final) in sorted(attacks.items())
    }
    means = [rate["final_recall1"] for rate in rates.values()]
    return {
        "engine": "opencv-sift-ransac",
        "version": importlib.metadata.version("opencv-python-headless"),
        "features": arguments.features,
        "candidates": arguments.candidates,
        "threshold": arguments.threshold,
        "threshold_0": max(wrong, default=0) + 1,
        "attacks": rates,
        "recall1_mean": statistics.mean(rate["recall1"] for rate in rates.values()) if rates else None,
        "final_recall1_mean": statistics.mean(means) if means else None,
        "final_recall1_min": min(means, default=None),
        "false_accepts": false_accepts,
        "queries": asked,
        "queries_not_in_the_set": foreign,
        "unreadable": len(matcher.failed),
        "ms_per_extraction": statistics.mean(matcher.extraction_ms or [0]),
        "ms_per_match": statistics.mean(matcher.match_ms or [0]),
        "ms_per_match_p50": statistics.median(matcher.match_ms or [0]),
    }


def table(result):
    print(f"{'attack':16} {'queries':>8} {'recall@1':>9} {'accepted':>9}")
    for name, rate in result["attacks"].items():
        print(f"{name:16} {rate['queries']:8} {rate['recall1']:9.3f} {rate['final_recall1']:9.3f}")
    print(
        f"false accepts {result['false_accepts']} of {result['queries']} queries at {result['threshold']} "
        f"(none from {result['threshold_0']} on); extraction {result['ms_per_extraction']:.1f} ms, "
        f"match {result['ms_per_match']:.2f} ms"
    )


def arguments_given():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--photos", required=True, help="folder of the photographs")
    parser.add_argument("--queries", required=True, help="folder that `millpond bench images --write-queries` filled")
    parser.add_argument("--json", help="file for the result")
    parser.add_argument("--candidates", type=int, default=100, help="pictures that a query is matched with")
    parser.add_argument("--per-attack", type=int, default=0, help="queries of each attack; 0: all")
    parser.add_argument("--features", type=int, default=1000, help="keypoints of a picture at most")
    parser.add_argument("--threshold", type=int, default=THRESHOLD)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--core", type=int, help="the core to run on")
    return parser.parse_args()


def main():
    arguments = arguments_given()
    if arguments.core is not None:
        os.sched_setaffinity(0, {arguments.core})
    result = run(arguments)
    table(result)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
