"""Pictures and comparisons: what is drawn, what is refused, what the commands say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from matplotlib.collections import PathCollection
from matplotlib.colors import to_rgb

from catalog.store import open_catalog
from tests.factories import SPEC, make_measurement, shifted
from zoo.cli import cli
from zoo.errors import CatalogError, ZooError
from zoo.pictures import save
from zoo.plots import KINDS, ModelPicture, comparison_figure, model_figure, ranking_figure

SIGNATURES = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


def picture(*, layers: int = 12, heads: int = 5) -> ModelPicture:
    log_odds_LH = np.random.default_rng(0).normal(0.3, 1, (layers, heads))
    log_odds_LH[0, 1] = np.nan
    cells = [{"size": n, "seed": seed, "sink_strength": 0.3 + 1 / n} for n in (10, 30) for seed in (0, 1)]
    return ModelPicture(
        model_id="org/model",
        sink_strength=0.3,
        interval=(0.2, 0.4),
        window_layers=10,
        log_odds_LH=log_odds_LH,
        cells=cells,
    )


def ranking_rows(count: int) -> list[dict[str, object]]:
    kinds = list(KINDS)
    return [
        {
            "model_id": f"org/m{n}",
            "sink_strength": -n,
            "low": -n - 0.5,
            "high": -n + 0.2,
            "qk_norm": kinds[n % 3],
        }
        for n in range(count)
    ]


@pytest.fixture
def uri(tmp_path: Path) -> str:
    catalog = open_catalog(str(tmp_path / "catalog"), create=True)
    for name, nats in (("a", 0.0), ("b", 0.5)):
        catalog.commit(shifted(make_measurement(f"org/{name}", layers=12), nats))
    return catalog.uri


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments), catch_exceptions=False)


@pytest.mark.parametrize("ending", SIGNATURES)
def test_the_ending_decides_how_a_picture_is_written(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"picture{ending}"
    save(ranking_figure(ranking_rows(3)), path)
    assert path.read_bytes().startswith(SIGNATURES[ending])


@pytest.mark.parametrize("ending", [".png", ".svg"])
def test_the_same_numbers_give_the_same_file(tmp_path: Path, ending: str) -> None:
    paths = [tmp_path / f"{name}{ending}" for name in "ab"]
    for path in paths:
        save(model_figure(picture()), path)
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_another_ending_and_a_missing_folder_are_refused_in_one_line(tmp_path: Path) -> None:
    figure = ranking_figure(ranking_rows(2))
    with pytest.raises(ZooError, match=r"ends in \.png, \.svg, \.pdf$"):
        save(figure, tmp_path / "picture.docx")
    with pytest.raises(ZooError, match=r"cannot be written \(No such file or directory\)"):
        save(figure, tmp_path / "missing" / "picture.png")


def test_a_dot_marks_every_head_below_0_and_a_line_the_window() -> None:
    drawn = picture()
    axes = model_figure(drawn).axes[0]
    (dots,) = [each for each in axes.collections if isinstance(each, PathCollection)]
    below = {(head, layer) for layer, head in zip(*np.nonzero(drawn.log_odds_LH < 0), strict=True)}
    assert {tuple(map(int, place)) for place in dots.get_offsets()} == below
    assert axes.lines[0].get_ydata()[0] == 1.5


def test_kinds_differ_by_marker_and_by_lightness_from_the_paper() -> None:
    assert len({marker for marker, _ in KINDS.values()}) == len(KINDS)
    lightness = [np.dot(to_rgb(colour), (0.2126, 0.7152, 0.0722)) for _, colour in KINDS.values()]
    assert max(lightness) < 0.75


def test_a_large_ranking_is_drawn_without_names_and_counts_from_1() -> None:
    small, large = (ranking_figure(ranking_rows(count)).axes[0] for count in (4, 200))
    assert [label.get_text() for label in small.get_yticklabels()] == [f"org/m{n}" for n in range(4)]
    assert large.get_ylabel() == "rank"
    assert large.get_ylim() == (200.6, 0.4)
    assert large.get_figure().get_size_inches()[1] < 20


def test_a_comparison_draws_every_head() -> None:
    heads = np.array([0.1, np.nan, -2.0])
    axes = comparison_figure([("a", 0.1, heads), ("b", -0.1, heads - 1)], ["verdict"]).axes[0]
    assert [len(each.get_offsets()) for each in axes.collections] == [2, 2]


def test_plot_draws_a_model_and_the_ranking(uri: str, tmp_path: Path) -> None:
    for arguments in (["org/a"], ["--ranking"]):
        path = tmp_path / "picture.svg"
        result = invoke("plot", *arguments, "--output", str(path), "--catalog", uri)
        assert (result.exit_code, path.exists()) == (0, True)
        path.unlink()
    assert invoke("plot", "--catalog", uri).exit_code == 2
    assert invoke("plot", "org/a", "--ranking", "--catalog", uri).exit_code == 2


def test_compare_puts_the_stronger_first_and_says_how_sure_that_is(uri: str, tmp_path: Path) -> None:
    picture = tmp_path / "pair.png"
    output = invoke("compare", "org/a", "org/b", "--catalog", uri, "--output", str(picture)).stdout
    assert picture.exists()
    last = output.splitlines()[-1].split()
    assert (last[:2], last[-1]) == (["org/b", "org/a"], "yes")
    record = json.loads(invoke("compare", "org/a", "org/b", "--catalog", uri, "--format", "json").stdout)
    assert [model["model_id"] for model in record["models"]] == ["org/b", "org/a"]
    (pair,) = record["pairs"]
    assert pair["low"] < pair["difference"] < pair["high"]
    assert invoke("compare", "org/a", "org/a", "--catalog", uri).exit_code == 2


def test_models_of_different_specs_are_not_compared(uri: str) -> None:
    other = make_measurement("org/c", layers=12, spec=replace(SPEC, window_layers=5))
    open_catalog(uri).commit(other)
    with pytest.raises(CatalogError, match=r"which do not compare: choose one with --spec$"):
        invoke("compare", "org/a", "org/c", "--catalog", uri)
