"""The how-to's code runs as it stands."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "memory.md"


def test_the_blocks_of_the_how_to_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.S | re.M)
    assert len(blocks) >= 5
    for number, block in enumerate(blocks, 1):
        exec(compile(block, f"{PAGE.name}, block {number}", "exec"), {"__name__": "how_to"})
    out = capsys.readouterr().out
    assert "3 items" in out
    assert "cool egg with fridge" in out
    assert "[] 0" in out
