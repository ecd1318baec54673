"""docs/architectures.md is what the command writes for the installed transformers."""

from pathlib import Path

from zoo import architectures_table

PAGE = Path(__file__).parent.parent / "docs" / "architectures.md"


def test_the_page_of_architectures_is_current() -> None:
    written = PAGE.read_text(encoding="utf-8")
    assert architectures_table.page() == written, (
        "run python -m zoo.architectures_table docs/architectures.md"
    )
