"""Bulk extraction with threads: read images, send them to extraction servers, write the features in batches.

    pip install requests pillow
    python examples/bulk/extract_plain.py --extract http://extract-1:8501 --extract http://extract-2:8501 \\
        --write http://root:8501 --collection photos --model embedder FOLDER

Without arguments it indexes the sample images (`make images-model`) with a server of its own, and checks the result.
"""

import concurrent.futures
import contextlib
import sys
import time
from collections.abc import Iterator

from features import (
    CONTINUES,
    Batch,
    BulkJob,
    Extraction,
    FeatureStore,
    ImageError,
    ImageReader,
    JobError,
    Progress,
    Summary,
    job_of_arguments,
    sources,
)

# Batches that are being written while the next one is gathered. Each needs up to 64 MiB of memory.
WRITES_MAX = 2
# Images that have been handed to the threads, for each thread. More of them keep the threads busy during a write.
QUEUED_MAX = 4
REPORT_INTERVAL_S = 10
# A batch is written after this time even if it is not full, so that a job which is killed has little to do again.
FLUSH_INTERVAL_S = 30


class Run:
    """A run of a job in this process."""

    def __init__(self, job: BulkJob):
        self.job = job
        self.reader, self.extraction, self.store = ImageReader(), Extraction(job), FeatureStore(job)
        self.progress = Progress(job.progress)
        self.summary = Summary()
        self.batch = Batch()
        self.writes: list[concurrent.futures.Future] = []
        self.extracted_images = 0
        self.started = self.reported = self.flushed = time.monotonic()

    def run(self, images: Iterator[str]) -> Summary:
        """Handles the images that are not in the file of progress."""
        threads = concurrent.futures.ThreadPoolExecutor
        with (
            contextlib.closing(self.progress),
            threads(self.job.images_at_once) as self.extractors,
            threads(WRITES_MAX) as self.writers,
        ):
            try:
                for source, point in self.extracted(image for image in images if image not in self.progress.finished):
                    if not self.batch.add(source, point):
                        self.flush()
                        self.batch.add(source, point)
                    elif time.monotonic() - self.flushed >= FLUSH_INTERVAL_S:
                        self.flush()
                self.flush()
                self.collect(0)
            except BaseException:
                # Threads that wait for a busy server would hold the process.
                self.extraction.servers.ended.set()
                self.store.servers.ended.set()
                self.extractors.shutdown(cancel_futures=True)
                raise
        return self.summary

    def extracted(self, images: Iterator[str]) -> Iterator[tuple[str, dict]]:
        """Yields the points of images as they are extracted, and records images that fail."""
        pending: dict[concurrent.futures.Future, str] = {}
        for source in images:
            pending[self.extractors.submit(self.extract, source)] = source
            # A call may return because a batch was written.
            while len(pending) >= QUEUED_MAX * self.job.images_at_once:
                yield from self.done(pending)
        while pending:
            yield from self.done(pending)

    def extract(self, source: str) -> dict:
        return self.extraction.point(source, self.reader.read(source))

    def done(self, pending: dict[concurrent.futures.Future, str]) -> Iterator[tuple[str, dict]]:
        first = concurrent.futures.FIRST_COMPLETED
        # Batches are recorded in their order, so a later one that is written must not end the wait.
        finished = concurrent.futures.wait([*pending, *self.writes[:1]], return_when=first).done
        self.collect(WRITES_MAX)
        for future in finished & pending.keys():
            source = pending.pop(future)
            try:
                point = future.result()
            except ImageError as error:
                self.progress.add([], {source: str(error)})
                self.summary.failed(source, str(error))
            else:
                self.summary.failures_in_a_row = 0
                self.extracted_images += 1
                yield source, point
        self.report()

    def flush(self) -> None:
        """Hands the batch to a thread that writes it, once a thread is free."""
        self.collect(WRITES_MAX - 1)
        self.writes.append(self.writers.submit(self.store.write, self.batch))
        self.batch = Batch()
        self.flushed = time.monotonic()

    def collect(self, running_max: int) -> None:
        """Records the batches that are written, and waits until at most `running_max` are on their way."""
        while self.writes and (len(self.writes) > running_max or self.writes[0].done()):
            written = self.writes.pop(0).result()
            self.progress.add(written.sources, written.errors)
            self.summary.wrote(written)

    def report(self) -> None:
        now = time.monotonic()
        if now - self.reported >= REPORT_INTERVAL_S:
            self.reported = now
            rate = self.extracted_images / (now - self.started)
            text = f"{self.extracted_images} images extracted, {rate:.0f} a second, {len(self.summary.errors)} failed"
            print(text, file=sys.stderr, flush=True)


def run(job: BulkJob, place: str) -> Summary:
    return Run(job).run(sources(place))


def main() -> None:
    if len(sys.argv) == 1:
        from check import check

        check(run, urls=True)
        return
    try:
        print(run(*job_of_arguments(__doc__)).text())
    except JobError as error:
        raise SystemExit(f"{error}\n{CONTINUES}") from None
    except KeyboardInterrupt:
        raise SystemExit(f"interrupted\n{CONTINUES}") from None


if __name__ == "__main__":
    main()
