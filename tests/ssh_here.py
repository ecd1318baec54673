"""Stands in for ssh and rsync where a cluster's nodes are folders of this machine.

``NODES/ssh`` runs a command with the home ``NODES/<ip>``, ``NODES/rsync`` copies into that home; both
take the arguments that Ray's command runner gives to the real programs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

NODES = Path(__file__).parent


def home_of(target: str) -> Path:
    """The folder of ``user@ip``."""
    home = NODES / target.rpartition("@")[2]
    home.mkdir(exist_ok=True)
    (home / ".bash_profile").write_text(f"export PATH={os.environ['PATH']}\n")
    return home


def run(arguments: list[str]) -> int:
    """What ssh does: joins the words after the host and has the host's shell read them."""
    at = next(place for place, word in enumerate(arguments) if "@" in word and "=" not in word)
    home = home_of(arguments[at])
    command = " ".join(arguments[at + 1 :])
    print(f"ssh {home.name}: {command}", file=(NODES / "log").open("a"))
    environment = {**os.environ, "HOME": str(home)}
    return subprocess.run(["bash", "-c", command], env=environment, cwd=home, check=False).returncode


def copy(arguments: list[str]) -> int:
    """What rsync -a does to one file, or to the content of one folder, when it goes up."""
    source, target = arguments[-2:]
    host, _, path = target.partition(":")
    to = home_of(host) / path.removeprefix("~/").removeprefix("/")
    print(f"rsync {source} {to}", file=(NODES / "log").open("a"))
    if os.path.isdir(source):
        shutil.copytree(source, to, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, to)
    return 0


if __name__ == "__main__":
    sys.exit((run if Path(sys.argv[0]).name == "ssh" else copy)(sys.argv[1:]))
