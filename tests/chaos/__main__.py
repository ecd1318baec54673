"""Kills tasks, nodes and drivers of a screen until it is complete, and then asks whether anything was lost.

python -m chaos --models 200 --kills 100 --kill-driver --seed 1
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=int, default=200)
    parser.add_argument("--kills", type=int, default=100, help="at least so many; the run is paced by them")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--every", type=float, default=5.0, help="seconds between kills, on average")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kill-driver", action="store_true")
    parser.add_argument("--trivial", action="store_true", help="a made-up measurement without torch")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="chaos-", dir="/tmp"))  # Ray's sockets need a short path
    _prepare(folder)
    from chaos.run import run  # Ray reads the environment when it is imported

    broken = run(folder, arguments)
    if not broken:
        shutil.rmtree(folder)
    return 1 if broken else 0


def _prepare(folder: Path) -> None:
    """An environment of this run's own, for Ray and for all processes below."""
    for name in [each for each in os.environ if each.startswith(("RAY_", "ZOO_"))]:
        del os.environ[name]
    os.environ |= {
        "RAY_TMPDIR": str(folder / "ray"),
        "RAY_AUTH_MODE": "disabled",  # nobody else is on this loopback
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",  # else tasks starve where anything else runs
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}",
    }
    (folder / "ray").mkdir()


if __name__ == "__main__":
    sys.exit(main())
