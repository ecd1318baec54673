"""Each module imports what the table allows, and the README shows the same table."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

EVERYWHERE = {"zoo.errors", "zoo.records"}
"""What every module may import beyond the standard library."""

IMPORTS: dict[str, set[str]] = {
    "catalog/__init__.py": set(),
    "catalog/calibration_schema.py": {"pyarrow"},
    "catalog/calibrations.py": {"catalog.files", "catalog.schemas", "catalog.store", "pyarrow"},
    "catalog/files.py": {"catalog.object_store", "catalog.remote", "catalog.schemas", "pyarrow"},
    "catalog/lookup.py": {"catalog.query", "catalog.store"},
    "catalog/object_errors.py": {"botocore"},
    "catalog/object_store.py": {"botocore", "catalog.object_errors", "catalog.remote", "pyarrow"},
    "catalog/panel_files.py": {"catalog.calibrations", "catalog.store", "pyarrow", "zoo.panel"},
    "catalog/query.py": {"catalog.files", "catalog.panel_files", "catalog.remote", "catalog.store", "catalog.view_files", "duckdb"},
    "catalog/remote.py": {"pyarrow"},
    "catalog/robustness.py": {"catalog.query", "catalog.store", "numpy"},
    "catalog/rows.py": {"catalog.schemas", "numpy", "pyarrow"},
    "catalog/scans.py": {"catalog.files", "catalog.schemas", "catalog.store", "pyarrow"},
    "catalog/schemas.py": {"catalog.calibration_schema", "pyarrow"},
    "catalog/store.py": {"catalog.files", "catalog.rows", "catalog.schemas", "catalog.verification", "pyarrow"},
    "catalog/verification.py": {"catalog.files", "catalog.remote", "catalog.schemas", "pyarrow"},
    "catalog/view_files.py": set(),
    "catalog/watermarks.py": {"catalog.query", "catalog.store"},
    "jobs/__init__.py": set(),
    "jobs/job.py": {"zoo.cli", "zoo.cli_output"},
    "jobs/nightly.py": {"jobs.job"},
    "jobs/screen.py": {"jobs.job"},
    "zoo/__init__.py": {"zoo.measure"},
    "zoo/agreement.py": {"numpy"},
    "zoo/architecture.py": {"torch", "transformers", "zoo.attention", "zoo.probe", "zoo.qknorm", "zoo.quantization", "zoo.support"},
    "zoo/architectures_table.py": {"transformers", "zoo.architecture", "zoo.support"},
    "zoo/attention.py": {"torch", "transformers"},
    "zoo/autoscaler.py": {"zoo.shares", "zoo.tasks"},
    "zoo/backbone.py": {"torch", "transformers", "zoo.architecture", "zoo.checkpoints", "zoo.fetch", "zoo.hub", "zoo.loadplan", "zoo.placement", "zoo.quiet", "zoo.streaming", "zoo.weights", "zoo.whole"},
    "zoo/batches.py": {"numpy", "torch"},
    "zoo/board.py": set(),
    "zoo/budget.py": set(),
    "zoo/buffers.py": {"torch", "zoo.spans"},
    "zoo/calibration.py": {"catalog.calibrations", "catalog.panel_files", "catalog.query", "catalog.store", "numpy", "scipy", "zoo.degradation", "zoo.pairs", "zoo.panel", "zoo.prediction"},
    "zoo/changes.py": {"zoo.hub", "zoo.listing"},
    "zoo/checkpoints.py": set(),
    "zoo/cli.py": {"click", "zoo.cli_catalog", "zoo.cli_degradation", "zoo.cli_diagnosis", "zoo.cli_panel", "zoo.cli_published", "zoo.cli_rescan", "zoo.cli_screen", "zoo.cli_status", "zoo.cli_verify", "zoo.exits", "zoo.tables"},
    "zoo/cli_catalog.py": {"catalog.lookup", "catalog.query", "catalog.robustness", "catalog.store", "catalog.view_files", "click", "zoo.degradation_pages", "zoo.losses", "zoo.pages", "zoo.sensitivity_pages", "zoo.tables"},
    "zoo/cli_degradation.py": {"catalog.store", "click", "zoo.calibration", "zoo.cli_catalog", "zoo.cli_named", "zoo.degradation_pages", "zoo.exits", "zoo.fit_pages", "zoo.losses", "zoo.measuring", "zoo.pair", "zoo.panel", "zoo.pictures", "zoo.prediction", "zoo.prompts", "zoo.tables", "zoo.track", "zoo.track_plot"},
    "zoo/cli_diagnosis.py": {"catalog.lookup", "catalog.robustness", "catalog.store", "click", "numpy", "zoo.cli_catalog", "zoo.pictures", "zoo.plots", "zoo.sensitivity", "zoo.strength", "zoo.tables"},
    "zoo/cli_hub.py": {"click", "rich", "zoo.architecture", "zoo.filters", "zoo.hub", "zoo.listing", "zoo.plan", "zoo.searches", "zoo.tables"},
    "zoo/cli_named.py": {"catalog.query", "catalog.store", "click", "zoo.calibration", "zoo.cli_hub", "zoo.hub", "zoo.hub_run", "zoo.measuring", "zoo.plan_text", "zoo.sources", "zoo.track"},
    "zoo/cli_output.py": {"catalog.lookup", "catalog.query", "catalog.store", "click", "zoo.cli_hub", "zoo.pages", "zoo.plan_text", "zoo.reports", "zoo.screen", "zoo.sensitivity_pages", "zoo.sources", "zoo.tables"},
    "zoo/cli_panel.py": {"catalog.panel_files", "catalog.query", "catalog.store", "click", "zoo.cli_catalog", "zoo.degradation", "zoo.degradation_pages", "zoo.lm_eval", "zoo.panel", "zoo.tables"},
    "zoo/cli_published.py": {"click", "rich", "zoo.cli_catalog", "zoo.cli_hub", "zoo.exits", "zoo.hub", "zoo.sink_rate", "zoo.sources", "zoo.tables"},
    "zoo/cli_rescan.py": {"catalog.scans", "catalog.store", "catalog.watermarks", "click", "rich", "zoo.budget", "zoo.cli_catalog", "zoo.cli_hub", "zoo.cli_output", "zoo.hub", "zoo.night_run", "zoo.nights", "zoo.profiles", "zoo.progress", "zoo.prompts", "zoo.rescan", "zoo.rescan_pages", "zoo.tables"},
    "zoo/cli_screen.py": {"catalog.scans", "catalog.store", "click", "rich", "zoo.changes", "zoo.cli_catalog", "zoo.cli_hub", "zoo.cli_output", "zoo.cli_types", "zoo.exits", "zoo.hub", "zoo.plan", "zoo.progress", "zoo.prompts", "zoo.reports", "zoo.screen", "zoo.sources", "zoo.tables", "zoo.timelimits"},
    "zoo/cli_status.py": {"catalog.store", "click", "zoo.cli_catalog", "zoo.status", "zoo.status_pages"},
    "zoo/cli_types.py": {"click", "zoo.timelimits"},
    "zoo/cli_verify.py": {"catalog.store", "click", "zoo.cli_catalog", "zoo.tables"},
    "zoo/degradation.py": {"numpy", "scipy", "zoo.agreement", "zoo.pairs", "zoo.prediction", "zoo.predictors"},
    "zoo/degradation_pages.py": {"catalog.query", "zoo.pair", "zoo.panel", "zoo.prediction", "zoo.tables", "zoo.track"},
    "zoo/driver.py": {"catalog.store", "zoo.board", "zoo.logs", "zoo.pace", "zoo.reports", "zoo.retries", "zoo.shares", "zoo.tasks", "zoo.timelimits"},
    "zoo/errors.py": set(),
    "zoo/exits.py": set(),
    "zoo/fetch.py": {"huggingface_hub", "zoo.hub", "zoo.hub_errors", "zoo.hub_limits"},
    "zoo/filters.py": set(),
    "zoo/fit_pages.py": {"zoo.calibration", "zoo.degradation", "zoo.degradation_pages", "zoo.panel", "zoo.prediction", "zoo.predictors", "zoo.tables"},
    "zoo/hub.py": {"httpx2", "huggingface_hub", "zoo.hub_errors", "zoo.hub_limits"},
    "zoo/hub_errors.py": {"httpx2", "huggingface_hub", "zoo.hub_limits"},
    "zoo/hub_files.py": {"huggingface_hub", "zoo.hub_errors", "zoo.hub_limits"},
    "zoo/hub_limits.py": {"httpx2", "huggingface_hub"},
    "zoo/hub_run.py": {"httpx2", "zoo.filters", "zoo.hub", "zoo.hub_errors", "zoo.plan", "zoo.preflight", "zoo.sources", "zoo.track"},
    "zoo/listing.py": {"zoo.filters", "zoo.hub"},
    "zoo/lm_eval.py": {"zoo.protocol"},
    "zoo/loadplan.py": {"torch", "transformers", "zoo.architecture", "zoo.probe", "zoo.spans"},
    "zoo/local_files.py": set(),
    "zoo/lockstep.py": {"greenlet"},
    "zoo/logs.py": {"zoo.reports"},
    "zoo/losses.py": {"catalog.query", "catalog.store", "zoo.panel", "zoo.prediction"},
    "zoo/measure.py": {"torch", "transformers", "zoo.backbone", "zoo.fetch", "zoo.hub", "zoo.memory", "zoo.probe", "zoo.prompts", "zoo.sources", "zoo.strength", "zoo.tokenizer"},
    "zoo/measuring.py": {"catalog.store", "rich", "zoo.progress", "zoo.reports", "zoo.screen"},
    "zoo/memory.py": {"torch"},
    "zoo/metrics.py": {"ray", "zoo.board", "zoo.reports"},
    "zoo/night_run.py": {"catalog.lookup", "catalog.store", "zoo.nights", "zoo.profiles", "zoo.reports", "zoo.rescan", "zoo.screen"},
    "zoo/nights.py": {"catalog.query", "zoo.exits", "zoo.reports", "zoo.rescan"},
    "zoo/pace.py": {"zoo.board"},
    "zoo/pages.py": {"catalog.lookup", "catalog.query", "zoo.degradation_pages", "zoo.tables"},
    "zoo/pair.py": {"catalog.query", "catalog.store"},
    "zoo/pairs.py": {"zoo.panel", "zoo.predictors"},
    "zoo/panel.py": set(),
    "zoo/pictures.py": {"matplotlib"},
    "zoo/placement.py": {"torch"},
    "zoo/plan.py": {"zoo.budget", "zoo.filters", "zoo.hub", "zoo.listing", "zoo.preflight"},
    "zoo/plan_text.py": {"zoo.plan", "zoo.tables"},
    "zoo/plots.py": {"matplotlib", "numpy", "zoo.pictures"},
    "zoo/prediction.py": {"zoo.degradation", "zoo.pairs", "zoo.panel", "zoo.predictors"},
    "zoo/predictors.py": {"numpy", "scipy"},
    "zoo/prefetch.py": {"torch", "zoo.spans", "zoo.weights"},
    "zoo/preflight.py": {"zoo.checkpoints", "zoo.filters", "zoo.hub", "zoo.hub_errors", "zoo.listing", "zoo.quantization", "zoo.shards"},
    "zoo/probe.py": {"numpy", "torch", "transformers", "zoo.attention", "zoo.batches", "zoo.sinks", "zoo.softmax_route"},
    "zoo/profiles.py": {"zoo.searches"},
    "zoo/progress.py": {"rich", "zoo.reports", "zoo.tables"},
    "zoo/prompts.py": {"numpy", "zoo.templates", "zoo.tokenizer"},
    "zoo/protocol.py": {"zoo.panel"},
    "zoo/qknorm.py": {"torch", "zoo.attention"},
    "zoo/quantization.py": set(),
    "zoo/quiet.py": {"transformers"},
    "zoo/records.py": {"numpy"},
    "zoo/reports.py": {"catalog.store", "zoo.board"},
    "zoo/rescan.py": {"catalog.scans", "catalog.store", "catalog.watermarks", "zoo.budget", "zoo.changes", "zoo.filters", "zoo.hub", "zoo.plan", "zoo.preflight", "zoo.searches"},
    "zoo/rescan_pages.py": {"zoo.nights", "zoo.plan", "zoo.plan_text", "zoo.rescan", "zoo.rescan_records", "zoo.tables"},
    "zoo/rescan_records.py": {"zoo.nights"},
    "zoo/retries.py": set(),
    "zoo/screen.py": {"catalog.store", "zoo.autoscaler", "zoo.board", "zoo.driver", "zoo.logs", "zoo.reports", "zoo.retries", "zoo.shares", "zoo.tasks", "zoo.timelimits", "zoo.watching"},
    "zoo/searches.py": {"zoo.filters", "zoo.listing"},
    "zoo/sensitivity.py": {"numpy", "zoo.strength"},
    "zoo/sensitivity_pages.py": {"catalog.query", "catalog.robustness", "numpy", "zoo.sensitivity", "zoo.tables"},
    "zoo/shards.py": {"zoo.checkpoints", "zoo.hub"},
    "zoo/shares.py": set(),
    "zoo/sink_rate.py": {"numpy", "scipy", "zoo.backbone", "zoo.fetch", "zoo.hub", "zoo.probe", "zoo.prompts", "zoo.tokenizer"},
    "zoo/sinks.py": {"torch"},
    "zoo/softmax_route.py": {"torch"},
    "zoo/sources.py": set(),
    "zoo/spans.py": {"torch"},
    "zoo/stages.py": {"torch", "zoo.loadplan", "zoo.spans"},
    "zoo/status.py": {"catalog.query", "catalog.store", "ray", "zoo.board", "zoo.tasks"},
    "zoo/status_pages.py": {"zoo.board", "zoo.status", "zoo.tables"},
    "zoo/streaming.py": {"torch", "zoo.loadplan", "zoo.lockstep", "zoo.prefetch", "zoo.probe", "zoo.quiet", "zoo.spans", "zoo.stages", "zoo.weights"},
    "zoo/strength.py": {"numpy", "scipy", "zoo.prompts"},
    "zoo/support.py": {"transformers"},
    "zoo/tables.py": {"rich"},
    "zoo/tasks.py": {"catalog.store", "ray", "zoo.board", "zoo.hub_limits", "zoo.logs", "zoo.measure", "zoo.reports", "zoo.retries"},
    "zoo/template_renderer.py": {"transformers"},
    "zoo/templates.py": set(),
    "zoo/timelimits.py": {"zoo.board"},
    "zoo/tokenizer.py": {"transformers"},
    "zoo/track.py": {"catalog.query", "catalog.store", "zoo.sources"},
    "zoo/track_plot.py": {"matplotlib", "numpy", "zoo.pictures", "zoo.track"},
    "zoo/watching.py": {"zoo.board", "zoo.logs", "zoo.metrics", "zoo.reports"},
    "zoo/weights.py": {"torch", "zoo.buffers", "zoo.checkpoints", "zoo.hub_files", "zoo.local_files", "zoo.spans"},
    "zoo/whole.py": {"torch", "transformers", "zoo.architecture", "zoo.memory", "zoo.quiet"},
}
"""What each module imports beyond the standard library and ``EVERYWHERE``."""

OWNERS = {
    "click": {
        "zoo/cli.py",
        "zoo/cli_catalog.py",
        "zoo/cli_degradation.py",
        "zoo/cli_diagnosis.py",
        "zoo/cli_hub.py",
        "zoo/cli_named.py",
        "zoo/cli_output.py",
        "zoo/cli_panel.py",
        "zoo/cli_published.py",
        "zoo/cli_rescan.py",
        "zoo/cli_screen.py",
        "zoo/cli_status.py",
        "zoo/cli_types.py",
        "zoo/cli_verify.py",
    },
    "duckdb": {"catalog/query.py"},
    "huggingface_hub": {
        "zoo/fetch.py",
        "zoo/hub.py",
        "zoo/hub_errors.py",
        "zoo/hub_files.py",
        "zoo/hub_limits.py",
    },
    "matplotlib": {"zoo/pictures.py", "zoo/plots.py", "zoo/track_plot.py"},
    "ray": {"zoo/metrics.py", "zoo/status.py", "zoo/tasks.py"},
}
"""The only modules outside of jobs/ that may name a library."""

PACKAGES = ("catalog", "jobs", "zoo")
MODULES = sorted(str(path.relative_to(ROOT)) for name in PACKAGES for path in (ROOT / name).glob("*.py"))


def imported(path: str) -> set[str]:
    """Every module a file imports, anywhere in it: ours by their full name, others by their first."""
    names: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None, f"{path} imports relatively"
            names |= {_module(node.module, alias.name) for alias in node.names}
    ours = {name for name in names if name.startswith(tuple(f"{package}." for package in PACKAGES))}
    others = {name.split(".")[0] for name in names - ours} - set(PACKAGES)
    return (ours | others) - set(sys.stdlib_module_names)


def _module(package: str, name: str) -> str:
    is_module = (ROOT / package.replace(".", "/") / f"{name}.py").exists()
    return f"{package}.{name}" if is_module else package


def test_the_table_names_every_module_and_no_other() -> None:
    assert sorted(IMPORTS) == MODULES


@pytest.mark.parametrize("path", MODULES)
def test_a_module_imports_what_the_table_says(path: str) -> None:
    assert imported(path) - EVERYWHERE == IMPORTS[path]


def test_a_library_is_named_only_by_its_owners() -> None:
    for library, owners in OWNERS.items():
        assert {path for path in MODULES if library in imported(path)} == owners


def test_the_readme_shows_the_same_table() -> None:
    rows = re.findall(
        r"^\| `((?:catalog|jobs|zoo)/\w+\.py)` \|.*\| ([^|]*) \|$",
        (ROOT / "README.md").read_text(),
        re.MULTILINE,
    )
    shown = {
        path: {name for name in re.split(r"[, ]+", cell.replace("`", "")) if name != "nothing"}
        for path, cell in rows
    }
    assert shown == {path: names for path, names in IMPORTS.items() if not path.endswith("__init__.py")}
