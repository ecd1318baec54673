"""The exit codes that several commands share; the README has them all."""

SOME_FAILED = 3
"""Done, but some models failed or could not be looked at."""

INTERRUPTED = 130
"""Ended by Ctrl-C or SIGTERM."""
