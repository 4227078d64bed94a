"""The page on foreign agents is true: its commands run, its harness plays, and its tables name what there is."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from shell import INSTAR, ROOT, furnish, ok

from harness.journal import Journal
from harness.model import ContextOverflow, ModelFault, ModelRefused
from harness.proxy import refusal, wire_in

PAGE = (ROOT / "docs" / "foreign.md").read_text(encoding="utf-8")
MODELS = '''
import re


def answer(request):
    """The first possible action, where there are any."""
    found = re.search(r"Possible actions: ([^,\\n]+)", request.messages[-1].content)
    return found[1] if found else "Hello, you."
'''
AGENT = """
import json, os, subprocess, sys, urllib.request

json.dump(dict(os.environ), open(os.environ["INSTAR_HARNESS"] + "/../../../told.json", "w"))
seen = subprocess.run(["instar-task"], capture_output=True, text=True, check=True).stdout
while "The episode is over." not in seen:
    body = json.dumps({"messages": [{"role": "user", "content": seen}]}).encode()
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    with urllib.request.urlopen(request) as answer:
        words = json.load(answer)["choices"][0]["message"]["content"].split()
    seen = subprocess.run(["instar-act", *words], capture_output=True, text=True, check=True).stdout
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.S | re.M)


@pytest.mark.skipif(shutil.which("curl") is None, reason="the page uses curl")
def test_the_commands_record_an_agent_and_the_python_goes_on(tmp_path: Path) -> None:
    (tmp_path / "models.py").write_text(MODELS)
    serve, ask = blocks("sh")[:2]
    assert "--model openai/my-model --api-base http://127.0.0.1:8000/v1" in serve
    words = serve.replace("openai/my-model --api-base http://127.0.0.1:8000/v1", "scripted:models.py:answer").split()
    words[words.index("--port") + 1] = "0"
    proxy = subprocess.Popen(
        [str(INSTAR), *words[1:], "--json"], cwd=tmp_path, stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL
    )
    try:
        assert proxy.stdout is not None
        url = json.loads(proxy.stdout.readline())["url"]
        script = ask.replace("http://127.0.0.1:8100/v1", url).replace("http://127.0.0.1:8100", url.removesuffix("/v1"))
        said = subprocess.run(["sh", "-ec", script], capture_output=True, text=True, check=True).stdout
        assert "Hello, you." in said
        assert '{"episode": "run/agent/task7/0", "turns": 1}' in said
        [code] = blocks("python")
        env = {**os.environ, "OPENAI_BASE_URL": url}
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
        assert done.stdout == "Hello, you.Hello, you.\n"
        proxy.send_signal(signal.SIGINT)
        proxy.communicate(timeout=30)
    finally:
        proxy.kill()
        proxy.communicate()
    with Journal(tmp_path / "runs" / "recorded", readonly=True) as journal:
        found = {t.task: (t.status, t.score, t.reason, len(t.turns)) for t in journal.trajectories()}
    assert found == {
        "task7": ("done", 1.0, "all tests passed", 1), "task8": ("truncated", None, "the proxy was stopped", 2),
    }  # fmt: skip


def test_the_harness_of_the_page_plays_and_sees_the_variables_of_the_table(tmp_path: Path) -> None:
    place = furnish(tmp_path / "place")
    (place / "models.py").write_text(MODELS)
    [toml] = blocks("toml")
    folder = place / "my-foreign-agent"
    folder.mkdir()
    model = re.compile(r'name = "openai/my-model"\noptions = .*')
    assert model.search(toml)
    (folder / "harness.toml").write_text(model.sub('name = "scripted:models.py:answer"', toml))
    (folder / "agent.py").write_text(AGENT)
    command = next(line for line in blocks("sh")[2].splitlines() if line.startswith("instar run"))
    words = command.replace("--n 20", "--n 2").split()[1:]
    work = tmp_path / "temporary"
    work.mkdir()
    ok(place, *words, "--out", "played", TMPDIR=str(work), HF_HOME="/models", SECRET_TOKEN="sk-0123456789")
    with Journal(place / "played", readonly=True) as journal:
        assert all(t.turns and t.fault != "bug" for t in journal.trajectories())
    told = json.loads((work / "told.json").read_text())
    named = {name for row in re.findall(r"^\| (`[A-Z_`, ]+`) \|", PAGE, re.M) for name in re.findall(r"`(\w+)`", row)}
    assert named <= told.keys()
    assert told["HF_HOME"] == "/models"
    assert "SECRET_TOKEN" not in told
    assert {name for name in told if name.startswith(("INSTAR_", "OPENAI_"))} <= named | {
        "INSTAR_MODEL",
        "INSTAR_LEASE",
    }
    assert os.listdir(work) == ["told.json"]


def test_the_codes_of_the_table_are_those_that_are_sent() -> None:
    table = re.findall(r"^\| (\d{3}) ((?:`\w+`(?:, )?)+)", PAGE, re.M)
    told = {(int(status), code) for status, codes in table for code in re.findall(r"`(\w+)`", codes)}
    errors = ContextOverflow(""), ModelFault(""), ModelFault("", transient=False), ModelRefused("", status=401)
    sent = [refusal.bad(""), refusal.closed(""), refusal.over(""), *map(refusal.refusal_for, errors)]
    assert told == {(one.status, one.code) for one in sent if one is not None}


def test_the_fields_that_are_left_out_for_a_model_in_this_process_are_named() -> None:
    named = set(re.findall(r"`(\w+)`", next(line for line in PAGE.splitlines() if line.startswith("| `logprobs`"))))
    assert named <= wire_in._SERVICE
