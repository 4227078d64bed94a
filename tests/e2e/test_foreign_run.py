"""A run of a foreign agent is killed with SIGKILL: nothing of the agent is left, and the run goes on where it was."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

from shell import INSTAR, found

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


def test_a_killed_run_leaves_no_agent_behind_and_asks_nothing_twice(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
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


def _when(check: object) -> None:
    end = time.monotonic() + 60
    while not check():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.02)
