"""A command plays an episode like any other agent: scored, limited, recorded, resumed, and gone when it is over."""

import asyncio
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from proxying import Scripted, said
from worlds import agent, corridor, harness

from envs.process import started
from harness.journal import Journal
from harness.model import ContextOverflow, ModelFault, ModelRefused, Request
from harness.models.scripted import ScriptedModel
from harness.rollout import Job
from harness.runner import Runner, RunStopped
from harness.settings import HarnessError
from harness.trajectory import Trajectory

#: An agent of the standard library only: it asks the model for each action and does it with instar-act.
AGENT = """
import json, os, subprocess, sys, urllib.request

def ask(text):
    body = json.dumps({"model": "m", "temperature": 0, "messages": [{"role": "user", "content": text}]}).encode()
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]

seen = subprocess.run(["instar-task"], capture_output=True, text=True, check=True).stdout
while "The episode is over." not in seen:
    seen = subprocess.run(["instar-act", *ask(seen).split()], capture_output=True, text=True, check=True).stdout
"""


def right(request: Request) -> Any:
    return said("right")


def play(
    folder: Path, code: str, model: Any = None, *, argv: list[str] | None = None, toml: dict[str, str] | None = None,
    bench: Any = None, tasks: int = 1, concurrency: int = 4, **files: str,
) -> list[Trajectory]:  # fmt: skip
    """Trajectories of a command whose agent.py is `code`."""
    model = model or ScriptedModel(right)
    words = argv or [sys.executable, "{harness}/agent.py"]
    tables = {"command": f"argv = {words!r}", "model": "temperature = 0.0"} | (toml or {})
    made = agent(model, "command", toml=tables, **{"agent.py": code}, **files)
    bench = bench or corridor()
    with Journal(folder) as journal:
        runner = Runner(bench, journal, concurrency=concurrency, patience=tasks + 1, retries=0)
        try:
            return asyncio.run(runner.run([Job(made, task) for task in bench.tasks("valid", tasks)]))
        except RunStopped:  # where no episode went well; what became of each is in the journal all the same
            return list(journal.trajectories())


def test_a_command_plays_and_is_scored_by_the_world_and_its_calls_are_in_its_turns(tmp_path: Path) -> None:
    results = play(tmp_path, AGENT, tasks=6)
    for trajectory in results:
        assert (trajectory.status, trajectory.score, trajectory.reason) == ("done", 1.0, "")
        assert [turn.action for turn in trajectory.turns] == ["right"] * 3
        assert [len(turn.calls) for turn in trajectory.turns] == [1] * 3
        assert trajectory.turns[0].calls[0].messages[0].content.startswith(f"Goal: {trajectory.goal}\nYou are at 0.\n")
        assert trajectory.turns[0].situation.startswith("Goal: reach the end")


def test_what_the_journal_holds_is_not_played_again(tmp_path: Path) -> None:
    first = play(tmp_path, AGENT)
    model = Scripted(right)
    assert play(tmp_path, AGENT, model) == first
    assert model.asked == []


def test_a_run_that_was_cut_off_asks_nothing_twice(tmp_path: Path) -> None:
    def answer(request: Request) -> Any:
        if "at 2" in request.messages[0].content and len(model.asked) == 3:
            raise ModelFault("gone for now", transient=False)
        return said("right")

    model = Scripted(answer)
    [cut] = play(tmp_path, AGENT, model)
    assert (cut.status, cut.score) == ("gap", None)
    with Journal(tmp_path) as journal:
        bench = corridor()
        made = agent(
            model, "command",
            toml={"command": f"argv = {[sys.executable, '{harness}/agent.py']!r}", "model": "temperature = 0.0"},
            **{"agent.py": AGENT},
        )  # fmt: skip
        job = Job(made, bench.tasks("valid", 1)[0])
        [whole] = asyncio.run(Runner(bench, journal, retries=0).run([job], settle=False))
    assert (whole.status, whole.score) == ("done", 1.0)
    assert len(model.asked) == 4


def test_a_crash_after_its_first_call_is_the_agents_own_and_scores_what_it_has(tmp_path: Path) -> None:
    code = AGENT.replace("while", "ask('x')\nraise RuntimeError('lost my way')\nwhile")
    [trajectory] = play(tmp_path, code)
    assert (trajectory.status, trajectory.score, trajectory.fault) == ("truncated", 0.0, "bug")
    assert "status 1 before the episode was over" in trajectory.reason
    assert "RuntimeError: lost my way" in trajectory.reason
    assert len(trajectory.unfinished) == 1


def test_the_last_words_of_a_command_cannot_act_on_a_terminal(tmp_path: Path) -> None:
    words = r"raise SystemExit('\x1b]0;mine\x07 \x1b[2J \u202e lost\x85 my way')"
    code = AGENT.replace("while", f"ask('x')\n{words}\nwhile")
    [trajectory] = play(tmp_path, code, PYTHONIOENCODING="utf-8")
    assert trajectory.reason.isprintable()
    assert r"\x1b[2J" in trajectory.reason
    with pytest.raises(HarnessError) as stopped:
        play(tmp_path / "never", words)
    assert str(stopped.value).isprintable()


def test_an_end_before_the_worlds_end_is_scored_too(tmp_path: Path) -> None:
    [trajectory] = play(tmp_path, AGENT.replace("while", "ask('x')\nraise SystemExit\nwhile"))
    assert (trajectory.status, trajectory.score) == ("truncated", 0.0)
    assert trajectory.reason == "the command ended with status 0 before the episode was over"


def test_a_command_that_never_asks_stops_the_run_with_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match=r"No module named 'no_such_library'.*Cure: give the command by hand"):
        play(tmp_path, "import no_such_library")


def test_where_others_got_further_it_costs_only_its_own_episode(tmp_path: Path) -> None:
    code = "import os\nif os.environ['INSTAR_TASK'] == 'c1': raise SystemExit('odd goal')\n" + AGENT
    results = play(tmp_path, code, tasks=3, concurrency=1)
    assert [(t.status, t.score) for t in results] == [("done", 1.0), ("truncated", 0.0), ("done", 1.0)]
    assert "odd goal" in results[1].reason


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("argv = ['no-such-program-here']", "there is no program 'no-such-program-here' to start. Cure: install it"),
        ("argv = ['./README.md']", "there is no program"),
        ("argv = ['{harness}/x']", "the first word is the program itself"),
        ("argv = ['sh', '{prompt}']", r"unknown placeholder \{prompt\}"),
        ("argv = ['sh']\nenv = ['OPENAI_API_KEY']", "OPENAI_API_KEY is set by instar"),
        ("argv = ['sh']\nenv = ['sk-12345678']", "no name of a variable"),
        ("argv = ['sh']\ncwd = '/no/such/folder'", "cannot be started"),
    ],
)
def test_a_command_that_cannot_start_is_an_error_before_anything_is_asked(
    tmp_path: Path, table: str, words: str
) -> None:
    model = Scripted(right)
    with pytest.raises(HarnessError, match=words) as error:
        play(tmp_path, AGENT, model, toml={"command": table})
    assert "sk-12345678" not in str(error.value)
    assert model.asked == []


@pytest.mark.parametrize("loop", ["choice", "command"])
def test_argv_and_the_loop_go_together(loop: str) -> None:
    toml = {"command": "argv = ['x']"} if loop == "choice" else {}
    with pytest.raises(HarnessError, match="go together"):
        harness(loop, toml=toml)


def test_an_agent_that_stops_at_nothing_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    code = f"""
import os, subprocess, sys, time
child = [sys.executable, "-c", "import time, signal; signal.signal(15, signal.SIG_IGN); time.sleep(1000)"]
pids = [os.getpid(), subprocess.Popen(child).pid, subprocess.Popen(child, start_new_session=True).pid]
open({str(tmp_path / "pids")!r}, "w").write(f"{{pids}} {{os.getcwd()}}")
for word in ["right"] * 3:
    subprocess.run(["instar-act", word])
time.sleep(1000)
"""
    [trajectory] = play(tmp_path / "run", code, toml={"command": f"argv = {[sys.executable, '{harness}/agent.py']!r}"})
    assert (trajectory.status, trajectory.score) == ("done", 1.0)
    pids, _, folder = (tmp_path / "pids").read_text().partition("] ")
    for pid in map(int, re.findall(r"\d+", pids)):
        assert started(pid) is None
    assert not Path(folder).exists()


def test_an_agent_that_hangs_is_ended_by_the_episodes_time_and_scored(tmp_path: Path) -> None:
    code = "import os, subprocess, time\nsubprocess.run(['instar-act', 'right'])\ntime.sleep(1000)"
    [trajectory] = play(tmp_path, code, toml={"limits": "seconds = 2.0"})
    assert (trajectory.status, trajectory.score) == ("truncated", 0.0)
    assert trajectory.reason == "the episode took more than its 2 s"


def test_a_model_that_hangs_is_missing_data_and_not_the_agents_fault(tmp_path: Path) -> None:
    async def hang(request: Request) -> str:
        await asyncio.sleep(1000)
        return "never"

    [trajectory] = play(tmp_path, AGENT, Scripted(hang), toml={"limits": "seconds = 2.0"})
    assert (trajectory.status, trajectory.score) == ("gap", None)
    assert "the model alone kept the episode waiting" in trajectory.reason


def test_limits_on_calls_end_a_command(tmp_path: Path) -> None:
    code = AGENT.replace("while", "for n in range(9): ask(str(n))\nwhile")
    [trajectory] = play(tmp_path, code, toml={"limits": "calls = 4"})
    assert (trajectory.status, trajectory.reason) == ("truncated", "4 answers of the model were not enough")
    assert len(trajectory.unfinished) == 4


def test_a_prompt_that_the_agent_could_not_shorten_is_an_overflow(tmp_path: Path) -> None:
    def fail(request: Request) -> str:
        raise ContextOverflow("9000 tokens are too many")

    [trajectory] = play(tmp_path, AGENT, Scripted(fail))
    assert (trajectory.status, trajectory.score, trajectory.fault) == ("truncated", 0.0, "overflow")


@pytest.mark.parametrize("status", [400, 401])
def test_a_model_that_takes_nothing_of_the_agent_stops_the_run(tmp_path: Path, status: int) -> None:
    def fail(request: Request) -> str:
        raise ModelRefused("not so", status=status)

    with pytest.raises(ModelRefused, match="not so"):
        play(tmp_path, AGENT, Scripted(fail))


def test_a_dead_provider_stops_the_run_as_for_any_agent(tmp_path: Path) -> None:
    def fail(request: Request) -> str:
        raise ModelFault("down", transient=False)

    bench = corridor()
    made = agent(
        Scripted(fail), "command", toml={"command": f"argv = {[sys.executable, '{harness}/agent.py']!r}"},
        **{"agent.py": AGENT},
    )  # fmt: skip
    with Journal(tmp_path) as journal, pytest.raises(RunStopped, match="down"):
        asyncio.run(Runner(bench, journal, retries=0).run([Job(made, task) for task in bench.tasks("valid", 3)]))


def test_the_command_sees_a_small_environment_and_the_harness_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_PROVIDER_KEY", "sk-real-0123456789")
    monkeypatch.setenv("MY_CACHE", "/some/where")
    code = (
        f"""
import json, os, sys
told = dict(os.environ), sys.argv[1:], open(os.environ["INSTAR_HARNESS"] + "/prompts/system.md").read(), os.getcwd()
json.dump(told, open({str(tmp_path / "told.json")!r}, "w"))
"""
        + AGENT
    )
    words = [sys.executable, "{harness}/agent.py", "--goal={goal}", "{task}", "{model}", '{{"a": 1}}', "{url}"]
    play(tmp_path / "run", code, toml={"command": f"argv = {words!r}\nenv = ['MY_CACHE', 'NOT_SET']"})
    import json

    env, argv, prompt, cwd = json.loads((tmp_path / "told.json").read_text())
    assert "sk-real-0123456789" not in env.values()
    assert env["MY_CACHE"] == "/some/where"
    assert "NOT_SET" not in env
    assert env["OPENAI_API_BASE"] == env["OPENAI_BASE_URL"] == f"{argv[4]}/v1"
    assert env["OPENAI_API_KEY"].startswith("sk-instar-")
    assert env["HOME"] != os.environ["HOME"]
    assert (env["INSTAR_GOAL"], env["INSTAR_TASK"]) == ("reach the end of 0", "c0")
    assert argv[:4] == ["--goal=reach the end of 0", "c0", "scripted", '{{"a": 1}}']
    assert prompt == "Task: {goal}"
    assert os.path.basename(cwd) == "work"


def test_what_the_memory_recalls_is_told_and_credited(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Lesson:
        id: str = "m1"
        key: str = "at 0"
        body: str = "right is right"

    model, bench = ScriptedModel(right), corridor()
    toml = {"command": f"argv = {[sys.executable, '{harness}/agent.py']!r}", "memory": 'policy = "memrl"'}
    made = agent(model, "command", lambda text, rng: [Lesson()], toml=toml, **{"agent.py": AGENT})
    with Journal(tmp_path) as journal:
        [played] = asyncio.run(Runner(bench, journal).run([Job(made, bench.tasks("valid", 1)[0])]))
    assert "Memories: at 0\nright is right" in played.turns[0].calls[0].messages[0].content
    assert [turn.retrieved for turn in played.turns] == [("m1",)] * 3


def test_a_goal_that_is_too_long_for_a_variable_is_still_told(tmp_path: Path) -> None:
    from envs import Task, fixed

    bench = corridor()
    goal = "x" * 300_000
    long = Task(id="c0", split="valid", goal=goal, data={"length": 1})
    object.__setattr__(bench, "splits", {"valid": fixed([long])["valid"]})
    code = "import os\nassert 'INSTAR_GOAL' not in os.environ\n" + AGENT
    [trajectory] = play(tmp_path, code, bench=bench)
    assert (trajectory.status, trajectory.score) == ("done", 1.0)
    assert goal in trajectory.turns[0].calls[0].messages[0].content


def test_much_output_is_read_and_only_its_end_is_kept(tmp_path: Path) -> None:
    code = AGENT.replace("while", "ask('x')\nprint('y' * 9_000_000)\nraise SystemExit('the last words')\nwhile")
    [trajectory] = play(tmp_path, code)
    assert trajectory.reason.endswith("the last words")
    assert len(trajectory.reason) < 1000
