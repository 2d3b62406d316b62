"""The page for reviewers and this room say the same."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")


def test_every_file_of_this_room_is_on_the_page() -> None:
    for path in Path(__file__).parent.glob("test_*.py"):
        assert path.name in PAGE or path == Path(__file__), path.name


def test_every_test_that_the_page_names_is_there() -> None:
    files = set(re.findall(r"[\w/]*test_\w+\.py", PAGE))
    found = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    assert {file.rpartition("/")[2] for file in files} <= found
    text = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("*.py"))
    for name in re.findall(r"`(test_\w+)`", PAGE):
        assert f"def {name}" in text, name
