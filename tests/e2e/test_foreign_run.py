"""A run of a foreign agent is killed with SIGKILL: nothing of the agent is left, and the run goes on where it was."""

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

from shell import INSTAR, found, ok

from envs.process import started
from harness.journal import Journal

FILES = {
    "models.py": '''
def answer(request):
    """Opens each door with the key that the example's doors have."""
    with open("asked.log", "a") as log:
        log.write(".")
    key = {"iron": "red", "brass": "blue", "copper": "red", "tin": "green", "silver": "blue"}
    return key[request.messages[-1].content.rsplit("door of ", 1)[1].split(".")[0]]


def with_ids(request):
    """The same, with the ids of its tokens: one for each word."""
    from harness.model import Completion

    ids = tuple(len(word) for word in request.messages[-1].content.split())
    return Completion(text=answer(request), prompt_ids=ids, output_ids=(7,), output_logprobs=(-0.5,))
''',
    "agent/harness.toml": """
name = "doors"
[model]
name = "scripted:models.py:answer"
temperature = 0.0
[control]
loop = "command"
[command]
argv = ["python3", "{harness}/agent.py"]
env = ["PLACE"]
""",
    "agent/agent.py": """
import json, os, pathlib, subprocess, time, urllib.request

place = pathlib.Path(os.environ["PLACE"])
with open(place / "pids", "a") as file:
    file.write(f"{os.getpid()}\\n")
seen = subprocess.run(["instar-task"], capture_output=True, text=True, check=True).stdout
while "The episode is over." not in seen:
    body = json.dumps({"messages": [{"role": "user", "content": seen}]}).encode()
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions", body,
        {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
    )
    with urllib.request.urlopen(request) as answer:
        key = json.load(answer)["choices"][0]["message"]["content"]
    seen = subprocess.run(["instar-act", key], capture_output=True, text=True, check=True).stdout
    while (place / "wait").exists():
        (place / "waiting").touch()
        time.sleep(0.02)
""",
}
DOORS = Path(__file__).parents[2] / "examples" / "my_env.py"


def test_the_token_ids_of_a_foreign_agents_calls_become_rows_to_train_on(tmp_path: Path) -> None:
    furnish(tmp_path)
    ok(
        tmp_path, "run", "agent", "--env", str(DOORS), "--n", "2", "--out", "played", "--model",
        "scripted:models.py:with_ids", PLACE=str(tmp_path),
    )  # fmt: skip
    ok(tmp_path, "export", "played", "--to", "rows", "--out", "rows.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [row["kind"] for row in rows] == ["tokens"] * 6
    for row in rows:
        assert row["token_ids"][-1:] == [7]
        assert row["loss_mask"] == [0] * (len(row["token_ids"]) - 1) + [1]
        assert row["old_logprobs"][-1] == -0.5
        assert row["outcome_reward"] == 1.0


def test_a_killed_run_leaves_no_agent_behind_and_asks_nothing_twice(tmp_path: Path) -> None:
    furnish(tmp_path)
    (tmp_path / "wait").touch()
    (tmp_path / "temporary").mkdir()
    env = {"PLACE": str(tmp_path), "TMPDIR": str(tmp_path / "temporary"), "INSTAR_STATE": str(tmp_path / "state")}
    words = ("run", "agent", "--env", str(DOORS), "--n", "4", "--out", "played")
    run = subprocess.Popen(
        [str(INSTAR), *words], cwd=tmp_path, env={**os.environ, **env}, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    _when(lambda: (tmp_path / "waiting").exists())
    run.send_signal(signal.SIGKILL)
    run.wait()
    pids = [int(pid) for pid in re.findall(r"\d+", (tmp_path / "pids").read_text())]
    assert pids
    _when(lambda: all(started(pid) is None for pid in pids) and not os.listdir(tmp_path / "temporary"))
    (tmp_path / "wait").unlink()
    told = found(tmp_path, *words, **env)
    assert told["mean"]["mean"] == 1.0
    with Journal(tmp_path / "played", readonly=True) as journal:
        played = list(journal.trajectories())
    assert [(t.status, len(t.turns), t.lost.calls) for t in played] == [("done", 3, 0)] * 4
    different = {call.digest for t in played for call in t.all_calls}
    assert len((tmp_path / "asked.log").read_text()) <= len(different) + 2  # two may have been asked at the same time


def furnish(place: Path) -> None:
    """Put the model and the agent into `place`."""
    for name, text in FILES.items():
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text(text)


def _when(check: object) -> None:
    end = time.monotonic() + 60
    while not check():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.02)
