"""The driver of a chaos run, as a process of its own that may be killed: one call of ``screen``."""

from __future__ import annotations

import argparse
import json
import sys

from chaos.witness import measure_for_real, measure_trivially, witnessed

from catalog.store import open_catalog
from zoo.prompts import make_spec
from zoo.records import RunOptions
from zoo.reports import ScreenProgress
from zoo.screen import screen
from zoo.sources import find_candidates

PROMPTS = 10


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("models", "catalog", "address"):
        parser.add_argument(name)
    parser.add_argument("--trivial", action="store_true")
    arguments = parser.parse_args()
    summary = screen(
        find_candidates(arguments.models).candidates,
        catalog=witnessed(open_catalog(arguments.catalog, create=True)),
        spec=make_spec(prompt_count=PROMPTS),
        options=RunOptions(device="cpu"),
        address=arguments.address,
        measure=measure_trivially if arguments.trivial else measure_for_real,
        progress=tell,
    )
    print(
        json.dumps(
            {
                "already_measured": len(summary.already_measured),
                "measured": len(summary.measured),
                "failed": [(report.model_id, report.reason) for report in summary.failed],
                "not_ended": len(summary.not_ended),
            }
        )
    )


def tell(look: ScreenProgress) -> None:
    if look.notice:
        print(look.notice, file=sys.stderr)


if __name__ == "__main__":
    main()
