"""Laws of reading lm-evaluation-harness results; the layouts are those the harness writes."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest

from zoo.errors import PanelError
from zoo.lm_eval import degradation, read_results, tasks_in_both


def single(strict: float = 0.7209, error: float | str = 0.0193, **top: Any) -> dict[str, Any]:
    """IFEval as harness 0.4.9 writes it (a task's entry is flat; what is not read is left out)."""
    return {
        "results": {
            "ifeval": {
                "alias": "ifeval",
                "prompt_level_strict_acc,none": strict,
                "prompt_level_strict_acc_stderr,none": error,
                "inst_level_strict_acc,none": 0.8,
                "inst_level_strict_acc_stderr,none": "N/A",
            }
        },
        "group_subtasks": {"ifeval": []},
        "configs": {
            "ifeval": {
                "task": "ifeval",
                "num_fewshot": 0,
                "generation_kwargs": {"until": [], "do_sample": False},
            }
        },
        "versions": {"ifeval": 4.0},
        "n-shot": {"ifeval": 0},
        "higher_is_better": {"ifeval": {"prompt_level_strict_acc": True, "inst_level_strict_acc": True}},
        "n-samples": {"ifeval": {"original": 541, "effective": 541}},
        "config": {
            "model": "vllm",
            "model_args": {"pretrained": "org/m"},
            "limit": None,
            "fewshot_seed": 1234,
        },
        "lm_eval_version": "0.4.9.2",
        "system_instruction": None,
        "fewshot_as_multiturn": False,
        "chat_template": "{{ messages }}",
        "model_name": "org/m",
    } | top


def grouped(acc: float, shots: int = 0) -> dict[str, Any]:
    """MMLU in two levels of groups, as harness 0.4.13 writes it (nested groups, names, sample counts)."""
    leaves = ("mmlu_anatomy", "mmlu_astronomy", "mmlu_philosophy")
    entry = {"acc,none": acc, "acc_stderr,none": 0.0038}
    return {
        "results": {
            "mmlu": {
                "alias": "mmlu",
                "name": "mmlu",
                "sample_len": 3,
                "sample_count": {"acc,none": 3},
                **entry,
            },
            "mmlu_stem": {"alias": " - stem", **entry},
            "mmlu_humanities": {"alias": " - humanities", **entry},
            **{leaf: {"alias": f"  - {leaf}", "name": leaf, "sample_len": 1, **entry} for leaf in leaves},
        },
        "groups": {"mmlu": {"alias": "mmlu", **entry}},
        "group_subtasks": {
            "mmlu": ["mmlu_stem", "mmlu_humanities"],
            "mmlu_stem": ["mmlu_anatomy", "mmlu_astronomy"],
            "mmlu_humanities": ["mmlu_philosophy"],
        },
        "configs": {leaf: {"num_fewshot": shots} for leaf in leaves},
        "versions": {"mmlu": 2, **dict.fromkeys(leaves, 1.0)},
        "n-shot": dict.fromkeys(leaves, shots),
        "n-samples": {leaf: {"original": 100, "effective": 100} for leaf in leaves},
        "config": {"model": "hf", "model_args": "pretrained=org/m,dtype=bfloat16", "limit": None},
        "chat_template": "{{ messages }}",
        "lm_eval_version": "0.4.13",
    }


def flexible(strict: float, flexible: float) -> dict[str, Any]:
    """GSM8K-CoT, one metric under two filters."""
    found = single()
    found["results"] = {
        "gsm8k_cot": {
            "alias": "gsm8k_cot",
            "exact_match,strict-match": strict,
            "exact_match_stderr,strict-match": 0.011,
            "exact_match,flexible-extract": flexible,
            "exact_match_stderr,flexible-extract": 0.012,
        }
    }
    found["n-shot"] = {"gsm8k_cot": 0}
    return found


def read(folder: Path, name: str, content: dict[str, Any]) -> dict[str, Any]:
    path = folder / f"results_{name}.json"
    path.write_text(json.dumps(content))
    return read_results(path)


def test_a_single_task_gives_points_and_a_standard_error(tmp_path: Path) -> None:
    llm, vlm = read(tmp_path, "llm", single(0.7209, 0.0193)), read(tmp_path, "vlm", single(0.6266, 0.0208))
    found = degradation(llm, vlm, task="ifeval")
    assert (found.llm_points, found.vlm_points, found.delta_points) == (72.09, 62.66, -9.43)
    assert found.stderr_points == pytest.approx(100 * math.hypot(0.0193, 0.0208), abs=1e-5)
    assert found.protocol == "instruct"
    assert "ifeval prompt_level_strict_acc,none" in found.source
    assert f"results_llm.json sha256:{llm['_sha']}" in found.source


def test_a_group_of_groups_counts_as_one_task(tmp_path: Path) -> None:
    llm, vlm = read(tmp_path, "llm", grouped(0.6972)), read(tmp_path, "vlm", grouped(0.6763))
    assert tasks_in_both(llm, vlm) == ("mmlu",)
    assert degradation(llm, vlm, task="mmlu").delta_points == pytest.approx(-2.09)


def test_a_metric_under_two_filters_is_read_by_the_panels_choice_or_the_users(tmp_path: Path) -> None:
    llm, vlm = read(tmp_path, "llm", flexible(0.70, 0.80)), read(tmp_path, "vlm", flexible(0.30, 0.75))
    assert degradation(llm, vlm, task="gsm8k_cot").delta_points == pytest.approx(-5)
    strict = degradation(llm, vlm, task="gsm8k_cot", metric="exact_match,strict-match")
    assert strict.delta_points == pytest.approx(-40)
    assert strict.protocol == "instruct-exact_match.strict-match", "another metric is another protocol"
    with pytest.raises(
        PanelError, match="no single metric exact_match; its metrics are exact_match,strict-match"
    ):
        degradation(llm, vlm, task="gsm8k_cot", metric="exact_match")


def test_eq_bench_is_in_points_already(tmp_path: Path) -> None:
    def eq_bench(points: float) -> dict[str, Any]:
        found = single()
        found["results"] = {
            "eq_bench": {"eqbench,none": points, "eqbench_stderr,none": 1.5, "percent_parseable,none": 99.0}
        }
        found["n-shot"] = {"eq_bench": 0}
        return found

    llm, vlm = read(tmp_path, "llm", eq_bench(72.34)), read(tmp_path, "vlm", eq_bench(68.51))
    found = degradation(llm, vlm, task="eq_bench")
    assert found.delta_points == pytest.approx(-3.83)
    assert found.stderr_points == pytest.approx(1.5 * 2**0.5, abs=1e-5)
    with pytest.raises(PanelError, match="does not know the scale of percent_parseable,none"):
        degradation(llm, vlm, task="eq_bench", metric="percent_parseable,none")


def test_a_missing_standard_error_stays_missing(tmp_path: Path) -> None:
    llm, vlm = read(tmp_path, "llm", single(0.7, "N/A")), read(tmp_path, "vlm", single(0.6))
    assert degradation(llm, vlm, task="ifeval").stderr_points is None


def test_a_file_from_before_chat_templates_and_versions_were_recorded_is_read(tmp_path: Path) -> None:
    old = single(0.7)
    for later in (
        "chat_template",
        "lm_eval_version",
        "n-samples",
        "system_instruction",
        "fewshot_as_multiturn",
    ):
        del old[later]
    old["config"]["model_args"] = "pretrained=org/m,dtype=float16"
    newer = copy.deepcopy(old)
    newer["results"]["ifeval"]["prompt_level_strict_acc,none"] = 0.5
    found = degradation(read(tmp_path, "llm", old), read(tmp_path, "vlm", newer), task="ifeval")
    assert found.delta_points == pytest.approx(-20)
    assert found.protocol == "0-shot-plain"
    assert "harness unknown" in found.source


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"n-shot": {"ifeval": 5}}, "few-shot examples (0 against 5)"),
        ({"chat_template": None}, "chat template (applied against not applied)"),
        ({"lm_eval_version": "0.4.8"}, "harness version (0.4.9.2 against 0.4.8)"),
        ({"versions": {"ifeval": 2.0}}, "task version (4.0 against 2.0)"),
        ({"system_instruction": "Be brief."}, "system instruction (none against Be brief.)"),
        ({"config": {"limit": 100}}, "limit (none against 100)"),
        ({"n-samples": {"ifeval": {"effective": 100}}}, "questions ([541] against [100])"),
        (
            {"config": {"model_args": {"enable_thinking": True}}},
            "thinking (default against enable_thinking=True)",
        ),
        (
            {"config": {"model_args": "a=b,think_end_token=</think>"}},
            "thinking (default against think_end_token",
        ),
        ({"configs": {"ifeval": {"generation_kwargs": {"do_sample": True}}}}, "generation settings ("),
    ],
)
def test_different_protocols_are_refused_by_name(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    llm, vlm = read(tmp_path, "llm", single()), read(tmp_path, "vlm", single(0.6, **changes))
    with pytest.raises(PanelError) as refusal:
        degradation(llm, vlm, task="ifeval")
    assert "results_llm.json and results_vlm.json cannot be compared on ifeval" in str(refusal.value)
    assert says in str(refusal.value)


def test_protocols_differ_in_either_order(tmp_path: Path) -> None:
    shots = {"n-shot": {"ifeval": 5}}
    llm, vlm = read(tmp_path, "llm", single(**shots)), read(tmp_path, "vlm", single(0.6))
    with pytest.raises(PanelError, match=r"few-shot examples \(5 against 0\)"):
        degradation(llm, vlm, task="ifeval")


def test_each_models_own_chat_template_is_no_difference(tmp_path: Path) -> None:
    llm, vlm = read(tmp_path, "llm", single()), read(tmp_path, "vlm", single(0.6, chat_template="{{ vlm }}"))
    assert degradation(llm, vlm, task="ifeval").delta_points == pytest.approx(-12.09)


@pytest.mark.parametrize(
    ("changes", "label"),
    [
        ({"config": {"limit": 50}}, "0-shot-chat-limit-50"),
        ({"n-shot": {"ifeval": 5}}, "5-shot-chat"),
        ({"chat_template": None}, "0-shot-plain"),
    ],
)
def test_only_the_published_protocol_is_called_by_its_name(
    tmp_path: Path, changes: dict[str, Any], label: str
) -> None:
    llm, vlm = read(tmp_path, "llm", single(**changes)), read(tmp_path, "vlm", single(0.6, **changes))
    assert degradation(llm, vlm, task="ifeval").protocol == label


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"results": {}}, "must occur once, but the file has only nothing"),
        (
            single() | {"results": {"ifeval": {}, "leaderboard_ifeval": {}}},
            "ifeval, leaderboard_ifeval: keep one",
        ),
        (single() | {"results": {"ifeval": {"acc": 0.5}}}, "it reads lm-evaluation-harness 0.4"),
        (single() | {"results": {"ifeval": ["x"]}}, "no single metric"),
        (single(float("nan")), "is nan, which makes no points"),
        (single(72.09), "is 72.09, which makes no points"),
        (
            single() | {"higher_is_better": {"ifeval": {"prompt_level_strict_acc": False}}},
            "less prompt_level",
        ),
        (single() | {"n-shot": {}, "configs": {}}, "does not say one number of few-shot examples"),
    ],
)
def test_what_cannot_be_read_as_points_is_refused_naming_the_file(
    tmp_path: Path, content: dict[str, Any], says: str
) -> None:
    with pytest.raises(PanelError) as refusal:
        degradation(read(tmp_path, "llm", content), read(tmp_path, "vlm", single(0.6)), task="ifeval")
    assert str(refusal.value).startswith("results_llm.json: ")
    assert says in str(refusal.value)


def test_the_same_file_twice_is_refused(tmp_path: Path) -> None:
    both = read(tmp_path, "llm", single())
    with pytest.raises(PanelError, match="are the same file"):
        degradation(both, both, task="ifeval")


def test_a_folder_stands_for_the_only_result_file_in_it(tmp_path: Path) -> None:
    (tmp_path / "org__m").mkdir()
    read(tmp_path / "org__m", "2026-01-01T00-00-00.000000", single())
    assert read_results(tmp_path)["_file"] == "results_2026-01-01T00-00-00.000000.json"
    read(tmp_path / "org__m", "2026-01-02T00-00-00.000000", single())
    with pytest.raises(PanelError, match="holds 2 result files"):
        read_results(tmp_path)


@pytest.mark.parametrize("text", ["", "[" * 100_000, "[1]", "{}", '{"results": 3}', "\x00"])
def test_a_file_of_another_kind_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(PanelError, match=r"name a results_\*\.json file"):
        read_results(tmp_path / "x.json")


def test_a_missing_file_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(PanelError, match="No such file"):
        read_results(tmp_path / "none.json")
