"""The types of options that need reading: durations and the limits of stages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from zoo.timelimits import parse_duration, parse_stage_limit


class _Parsed(click.ParamType):
    """An option whose text a function reads; what it refuses is a wrong command line."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name, self._parse = name, parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


DURATION = _Parsed("duration", parse_duration)
STAGE_LIMIT = _Parsed("stage=duration", parse_stage_limit)
