"""``zoo screen`` as a Ray job: ``ray job submit --working-dir . -- python -m jobs.screen --filter "7B"``."""

from __future__ import annotations

from jobs.job import run

if __name__ == "__main__":
    run("screen")
