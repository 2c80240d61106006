"""Bulk extraction with Ray Data: the machines of a Ray cluster read images, send them to extraction servers and write.

    pip install "ray[data]" requests pillow
    python examples/bulk/extract_ray.py --extract http://extract-1:8501 --extract http://extract-2:8501 \\
        --write http://root:8501 --collection photos --model embedder FOLDER

FOLDER, or the paths of a list, are the same on all machines: a shared file system, or s3://BUCKET/KEY. Without
arguments it indexes the sample images (`make images-model`) with a server of its own, and checks the result.
"""

import concurrent.futures
import contextlib
import itertools
import json
import os
import sys
from collections.abc import Iterator

import ray
from features import (
    CONTINUES,
    NAME_ERROR,
    POINTS_MAX,
    Batch,
    BulkJob,
    Extraction,
    FeatureStore,
    ImageError,
    JobError,
    Progress,
    Summary,
    is_utf8,
    job_of_arguments,
    message_of,
    sources,
)

# There are as many extractors as extraction servers, and each uses all of these.
WRITERS = 2
# Actors mostly wait. Ray would wait for ever if they left no processor for the tasks that read.
ACTOR_CPUS = 0.05
READ_CPUS = 0.5
# Images of one call of an extractor, for each of its threads. The threads of a call wait for its last image.
EXTRACTED_AT_ONCE = 8
# Images of one pipeline. A job of millions runs one after the other, so that this process needs little memory.
PORTION = 200_000
SCHEME = "://"


class Extractor:
    """Actor that extracts the features of images."""

    def __init__(self, job: BulkJob, scheme: str):
        self.extraction, self.scheme = Extraction(job), scheme
        self.threads = concurrent.futures.ThreadPoolExecutor(job.concurrency)

    def __call__(self, batch: dict) -> dict:
        images = [self.scheme + path for path in batch["path"]]
        found = list(self.threads.map(self.point, images, batch["bytes"]))
        # JSON, since the schema of points differs by payload and kind.
        return {"source": images, "point": [point for point, _ in found], "error": [error for _, error in found]}

    def point(self, source: str, image: bytes) -> tuple[str, str]:
        try:
            return json.dumps(self.extraction.point(source, image)), ""
        except ImageError as error:
            return "", str(error)


class Writer:
    """Actor that writes points in batches within the limits of a request."""

    def __init__(self, job: BulkJob):
        self.store = FeatureStore(job)

    def __call__(self, rows: dict) -> dict:
        errors = {source: error for source, error in zip(rows["source"], rows["error"], strict=True) if error}
        summary, written = Summary(), []
        batch = Batch()
        for source, text in zip(rows["source"], rows["point"], strict=True):
            if source in errors:
                continue
            point = json.loads(text)
            if not batch.add(source, point):
                written.append(self.store.write(batch))
                batch = Batch()
                batch.add(source, point)
        written.append(self.store.write(batch))
        for outcome in written:
            summary.wrote(outcome)
        # One row for each call: the outcome for the file of progress.
        outcome = {
            "sources": [source for part in written for source in part.sources],
            "errors": errors | summary.errors,
            "added": summary.added,
            "replaced": summary.replaced,
            "equal": summary.equal,
        }
        return {"outcome": [json.dumps(outcome)]}


def common_scheme(paths: list[str]) -> str:
    """Returns the scheme of all paths, such as "s3://", or "" of files. Ray reads from one file system at a time."""
    schemes = {path.partition(SCHEME)[0] + SCHEME if SCHEME in path else "" for path in paths}
    if len(schemes) > 1:
        raise JobError(f"the images are in {len(schemes)} kinds of stores; make a list for each")
    if schemes & {"http://", "https://"}:
        raise JobError("this recipe reads no URLs of web servers; use extract_plain.py")
    return schemes.pop()


def run_portion(job: BulkJob, paths: list[str], progress: Progress, summary: Summary) -> None:
    """Runs one pipeline, and records its outcomes as they arrive."""
    # Ray returns the paths without it.
    scheme = common_scheme(paths)
    images = ray.data.read_binary_files(paths, include_paths=True, ignore_missing_paths=True, num_cpus=READ_CPUS)
    points = images.map_batches(
        Extractor,
        fn_constructor_args=(job, scheme),
        compute=ray.data.ActorPoolStrategy(size=len(job.extract)),
        num_cpus=ACTOR_CPUS,
        batch_size=EXTRACTED_AT_ONCE * job.concurrency,
    )
    outcomes = points.map_batches(
        Writer,
        fn_constructor_args=(job,),
        compute=ray.data.ActorPoolStrategy(size=WRITERS),
        num_cpus=ACTOR_CPUS,
        batch_size=POINTS_MAX,
    )
    seen = set()
    for row in outcomes.iter_rows():
        outcome = json.loads(row["outcome"])
        progress.add(outcome["sources"], outcome["errors"])
        seen.update(outcome["sources"], outcome["errors"])
        summary.added += outcome["added"]
        summary.replaced += outcome["replaced"]
        summary.equal += outcome["equal"]
        summary.errors.update(outcome["errors"])
    missing = {path: "there is no such file" for path in paths if path not in seen}
    progress.add([], missing)
    summary.errors.update(missing)


def run(job: BulkJob, place: str) -> Summary:
    summary = Summary()
    with contextlib.closing(Progress(job.progress)) as progress:
        left = (image for image in sources(place) if image not in progress.finished)
        for portion in portions(named(left, progress, summary)):
            run_portion(job, portion, progress, summary)
    return summary


def named(images: Iterator[str], progress: Progress, summary: Summary) -> Iterator[str]:
    """Yields the images that Ray can name, which are those in UTF-8, and records the others as failed."""
    for image in images:
        if is_utf8(image):
            yield image
        else:
            progress.add([], {image: NAME_ERROR})
            summary.errors[image] = NAME_ERROR


def portions(images: Iterator[str]) -> Iterator[list[str]]:
    while portion := list(itertools.islice(images, PORTION)):
        yield portion


def main() -> None:
    arguments = job_of_arguments(__doc__) if len(sys.argv) > 1 else None
    # The actors import features.py, so the other machines get a copy of this folder.
    ray.init(runtime_env={"working_dir": os.path.dirname(os.path.abspath(__file__))}, log_to_driver=False)
    if arguments is None:
        from check import check

        check(run, urls=False)
        return
    try:
        print(run(*arguments).text())
    except (JobError, ray.exceptions.RayError) as error:
        raise SystemExit(f"{message_of(error)}\n{CONTINUES}") from None
    except KeyboardInterrupt:
        raise SystemExit(f"interrupted\n{CONTINUES}") from None


if __name__ == "__main__":
    main()
