"""Laws of the panel: what it holds, what it refuses and how own pairs join the shipped ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from zoo.errors import PanelError
from zoo.panel import TASKS, load_panel, merge_pairs, pairs_csv, parse_pairs, shipped_pairs

HEADER = "pair_id,reference_llm,vlm,qk_norm,task,protocol,llm_score,vlm_score,delta_points,source\n"
ROW = "mine-1b,org/llm-1b,org/vlm-1b,none,ifeval,instruct,70.00,64.50,-5.50,lab notebook\n"


def test_every_shipped_pair_names_its_source_and_none_carries_a_sink_strength() -> None:
    pairs = shipped_pairs()
    assert len(pairs) == 19
    assert all(pair.source.startswith(("arXiv:", "github:")) for pair in pairs)
    assert not any("sink" in field for field in pairs[0].__slots__)


def test_the_shipped_ifeval_pairs_are_six_on_four_reference_llms_under_the_instruct_protocol() -> None:
    chosen = [pair for pair in shipped_pairs() if (pair.task, pair.protocol) == ("ifeval", "instruct")]
    assert len(chosen) == 6
    llms = [pair.reference_llm for pair in chosen]
    assert sorted(llms.count(llm) for llm in set(llms)) == [1, 1, 2, 2]


def test_the_four_tasks_of_the_paper_are_in_the_shipped_panel() -> None:
    assert set(TASKS) <= {pair.task for pair in shipped_pairs()}


def test_one_pair_may_lose_different_amounts_under_two_protocols() -> None:
    deltas = {
        p.protocol: p.delta_points
        for p in shipped_pairs()
        if (p.pair_id, p.task) == ("qwen2.5-vl-7b", "gsm8k_cot")
    }
    assert deltas == {"paper": -14.3, "instruct": -0.98}


def test_pairs_survive_being_written_and_read() -> None:
    pairs = parse_pairs(HEADER + ROW, name="p.csv")
    again = parse_pairs(pairs_csv(pairs), name="p.csv")
    assert again == pairs


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("pair_id,vlm\nx,y\n", "p.csv:1: the column reference_llm is missing"),
        (
            HEADER + ROW.replace("-5.50", "-4.00"),
            "p.csv:2: delta_points is -4 but vlm_score - llm_score is -5.50",
        ),
        (HEADER + ROW + ROW.replace("-5.50", ""), "p.csv:3: delta_points is empty"),
        (HEADER + ROW.replace("-5.50", "nan"), "p.csv:2: delta_points is 'nan', which is no finite number"),
        (HEADER + ROW.replace("70.00,64.50,-5.50", ",,-150"), "p.csv:2: delta_points is -150, more than"),
        (HEADER + ROW.replace("70.00", ""), "p.csv:2: only one of llm_score and vlm_score"),
        (HEADER + ROW.replace("none", "perhead"), "p.csv:2: qk_norm is 'perhead'"),
        (
            HEADER + ROW.replace("org/llm-1b", "llm-1b"),
            "p.csv:2: reference_llm is 'llm-1b'; write it as org/name",
        ),
        (HEADER + ROW.replace("ifeval", "IF Eval"), "p.csv:2: task is 'IF Eval'"),
        (HEADER + ROW.replace("lab notebook", " "), "p.csv:2: the source is empty"),
        (HEADER + ROW.replace("org/vlm-1b", "org/llm-1b"), "p.csv:2: reference_llm and vlm are both"),
        (HEADER + ROW.replace(",lab notebook", ""), "p.csv:2: the row has more or fewer fields"),
        (HEADER + ROW.strip() + ",more\n", "p.csv:2: the row has more or fewer fields"),
        (HEADER + '"open\n', "p.csv:"),
    ],
)
def test_a_malformed_row_is_refused_by_file_and_line(text: str, says: str) -> None:
    with pytest.raises(PanelError) as refusal:
        parse_pairs(text, name="p.csv")
    assert str(refusal.value).startswith(says)
    assert "\n" not in str(refusal.value)


def test_a_spreadsheets_byte_order_mark_is_no_column() -> None:
    assert parse_pairs("\ufeff" + HEADER + ROW, name="p.csv")[0].pair_id == "mine-1b"


def test_own_pairs_join_the_shipped_ones() -> None:
    panel = load_panel({"mine.csv": HEADER + ROW})
    assert len(panel) == len(shipped_pairs()) + 1
    assert panel[-1].origin == "yours"
    assert panel[-1].place == "mine.csv:2"


def test_an_own_row_stands_in_for_the_shipped_one_and_says_so() -> None:
    shipped = shipped_pairs()
    own = replace(shipped[0], delta_points=-7.0, origin="yours", place="mine.csv:2")
    panel = merge_pairs(shipped, [own])
    assert len(panel) == len(shipped)
    assert panel[0].delta_points == -7.0
    assert panel[0].replaces == shipped[0].place


def test_two_own_rows_that_disagree_are_refused_naming_both() -> None:
    other = ROW.replace("70.00,64.50,-5.50", ",,-6.00")
    with pytest.raises(PanelError, match=r"b\.csv:2: .* lost -6 here but -5\.5 at a\.csv:2"):
        load_panel({"a.csv": HEADER + ROW, "b.csv": HEADER + other})


def test_an_equal_repeat_counts_once() -> None:
    assert load_panel({"a.csv": HEADER + ROW}) == load_panel({"a.csv": HEADER + ROW, "b.csv": HEADER + ROW})


@pytest.mark.parametrize(
    "changed",
    [
        ROW.replace("org/vlm-1b", "org/other-vlm"),
        ROW.replace("mine-1b", "renamed-1b").replace("ifeval", "mmlu"),
        ROW.replace("none", "per_head").replace("ifeval", "mmlu"),
    ],
)
def test_one_name_never_stands_for_two_things(changed: str) -> None:
    with pytest.raises(PanelError, match=r"b\.csv:2: the .* make them agree"):
        load_panel({"a.csv": HEADER + ROW, "b.csv": HEADER + changed})
