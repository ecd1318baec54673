"""The exceptions zoo raises. Every text is one clear sentence for a user and names the remedy."""


class ZooError(Exception):
    """Anything zoo refuses; the command line prints its text and exits with 1."""


class SourceError(ZooError):
    """A source names nothing that can be screened, or could not be listed."""


class CatalogError(ZooError):
    """The catalog cannot be read or written."""


class NoCatalogError(CatalogError):
    """There is no catalog where one was to be read."""


class QueryError(ZooError):
    """A SQL query was refused, failed or ran out of time."""


class ClusterError(ZooError):
    """Ray cannot be reached or cannot serve what was asked."""


class NoClusterHereError(ClusterError):
    """No Ray runs on this machine, where one was looked for."""


class ProfileError(ZooError):
    """A file of profiles is missing, malformed, or has no such profile."""


class PanelError(ZooError):
    """The panel of known degradations is malformed or too small for what was asked."""


class ModelError(ZooError):
    """One model cannot be measured; it becomes a row with this stage and reason, and never a number."""

    def __init__(self, message: str, *, stage: str, reason: str) -> None:
        super().__init__(message)
        self.stage = stage
        self.reason = reason


class TransientModelError(ModelError):
    """One model could not be measured this time; the next run tries it again."""


class GpuMemoryError(TransientModelError):
    """One model that must be loaded whole needs more GPU memory than it was given."""

    def __init__(self, message: str, *, gpus_needed: int = 0) -> None:
        super().__init__(message, stage="load", reason="gpu_memory")
        self.gpus_needed = gpus_needed


def first_line(error: BaseException, *, limit: int = 200) -> str:
    """The exception's type and the first line of its text, for use inside a one-line message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:limit]}" if lines else type(error).__name__
