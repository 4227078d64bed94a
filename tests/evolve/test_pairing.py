"""What two runs differ in, said by name."""

from pathlib import Path

from evolve import run
from evolve.pairing import differences
from harness.folder import Harness
from harness.starter import starter

MODEL = """
def first(request):
    return request.choices[0]
"""


def test_a_comparison_names_the_files_settings_and_seeds_that_differ(tmp_path: Path) -> None:
    (tmp_path / "models.py").write_text(MODEL)
    files = dict(starter("small").files)
    other = files | {
        "harness.toml": files["harness.toml"].replace("k2 = 1", "k2 = 2").replace('name = "small"', 'name = "mine"'),
        "prompts/step.md": "Think.\n" + files["prompts/step.md"],
    }
    assert "k2 = 2" in other["harness.toml"]
    folders = []
    for number, some in enumerate((files, files, other)):
        found = run(
            Harness.from_files(some), "household", n=2, seed=number // 2, model=f"scripted:{tmp_path}/models.py:first",
            out=str(tmp_path / str(number)),
        )  # fmt: skip
        folders.append(found.folder)
    assert differences(folders[0], folders[1]) == []
    assert differences(folders[0], folders[2]) == ["harness prompts/step.md", "[memory] k2", "seed"]
