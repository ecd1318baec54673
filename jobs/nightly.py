"""``zoo rescan`` as a Ray job: ``ray job submit --working-dir . -- python -m jobs.nightly --profile small``.

It keeps its report in the catalog, beside what ``zoo rescan`` does.
"""

from __future__ import annotations

import sys

from jobs.job import run

if __name__ == "__main__":
    run("rescan", ["--keep-report", *sys.argv[1:]])
