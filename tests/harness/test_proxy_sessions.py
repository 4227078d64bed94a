"""A key names an episode: kept apart from all others, ended by its client, by silence or with the proxy; resumed."""

import asyncio
import json
import re
import shutil
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from proxying import Scripted, client, held, post, said, serving, user, when, written

from evolve.report import read_report
from evolve.setup import facts
from harness.journal import Journal
from harness.model import Completion, Request
from harness.proxy.conversation import NO_WORLD, Conversations, name_of
from harness.proxy.refusal import Refusal

#: What a report must know of a recording.
PLAN: dict[str, Any] = {
    "command": "proxy", "harness": "x", "name": "proxy", "env": "proxy", "model": "m", "split": "proxy", "seed": 0,
    "benchmark": facts(NO_WORLD), "options": {}, "memory": None, "instar": "0",
}  # fmt: skip


async def send(url: str, text: str) -> tuple[int, Any]:
    """Status and JSON of a body that need not be JSON."""
    async with aiohttp.ClientSession() as http, http.post(url, data=text) as answer:
        return answer.status, await answer.json()


def echo(request: Request) -> Completion:
    return said(f"you said {request.messages[-1].content}")


async def test_sixty_four_clients_at_once_each_have_their_own_episode(tmp_path: Path) -> None:
    async def answer(request: Request) -> Completion:
        await asyncio.sleep(0.001)
        return echo(request)

    async def play(url: str, number: int) -> None:
        messages: list[Any] = []
        async with client(url, f"sk-instar-task{number}") as openai_:
            for turn in range(5):
                messages += user(f"{number}.{turn}")
                answer = await openai_.chat.completions.create(model="m", messages=messages)
                assert answer.choices[0].message.content == f"you said {number}.{turn}"
                messages.append(answer.choices[0].message)
        done = await post(f"{url}/s/sk-instar-task{number}/instar/finish", {"score": number / 64})
        assert done == (200, {"episode": f"run/agent/task{number}/0", "turns": 5})

    async with serving(tmp_path, answer) as (url, _):
        await asyncio.gather(*(play(url, number) for number in range(64)))
    found = {trajectory.task: trajectory for trajectory in written(tmp_path)}
    assert len(found) == 64
    for number in range(64):
        trajectory = found[f"task{number}"]
        assert (trajectory.status, trajectory.score, trajectory.reason) == ("done", number / 64, "")
        assert [turn.observation for turn in trajectory.turns] == [f"{number}.{turn}" for turn in range(5)]
        assert [len(call.messages) for call in trajectory.all_calls] == [1, 3, 5, 7, 9]


async def test_calls_of_one_key_at_once_are_each_a_turn_of_their_own(tmp_path: Path) -> None:
    async def answer(request: Request) -> Completion:
        await asyncio.sleep(0.02 if request.messages[-1].content == "slow" else 0)
        return echo(request)

    async with serving(tmp_path, answer) as (url, _), client(url) as openai_:
        words = ("slow", "a", "b", "c")
        await asyncio.gather(*(openai_.chat.completions.create(model="m", messages=user(w)) for w in words))
    [trajectory] = written(tmp_path)
    pairs = {(turn.observation, turn.action, len(turn.calls)) for turn in trajectory.turns}
    assert pairs == {(word, f"you said {word}", 1) for word in words}


async def test_a_key_that_was_finished_begins_its_next_episode(tmp_path: Path) -> None:
    async with serving(tmp_path, echo) as (url, _), client(url) as openai_:
        for score in (None, 1):
            await openai_.chat.completions.create(model="m", messages=user("Hi"))
            finish = {"score": score, "reason": "the tests passed" if score else ""}
            status, _ = await post(f"{url}/instar/finish", finish, Authorization="Bearer sk-instar-task")
            assert status == 200
        status, body = await post(f"{url}/s/sk-instar-task/instar/finish", {"score": 1})
        assert (status, body["error"]["code"]) == (404, "no_episode")
    first, second = written(tmp_path)
    assert (first.id, first.status, first.score, first.reason) == (
        "run/agent/task/0", "done", None, "no score was given",
    )  # fmt: skip
    assert (second.id, second.score, second.reason) == ("run/agent/task/1", 1.0, "the tests passed")


@pytest.mark.parametrize("score", [True, "1", float("inf"), [1]])
async def test_a_score_is_a_number_or_nothing(tmp_path: Path, score: Any) -> None:
    async with serving(tmp_path, echo) as (url, _), client(url) as openai_:
        await openai_.chat.completions.create(model="m", messages=user("Hi"))
        status, body = await post(f"{url}/s/sk-instar-task/instar/finish", {"score": score})
    assert (status, body["error"]["param"]) == (400, "score")


@pytest.mark.parametrize("score", ["7.5", "-0.1", "1e300", "9" * 4000, "-" + "9" * 4000, "NaN", "-Infinity"])
async def test_a_score_outside_of_the_recordings_range_is_refused_and_the_report_can_be_made(
    tmp_path: Path, score: str
) -> None:
    async with serving(tmp_path, echo) as (url, conversations), client(url) as openai_:
        conversations.journal.append("plan", PLAN)
        await openai_.chat.completions.create(model="m", messages=user("Hi"))
        finish = f"{url}/s/sk-instar-task/instar/finish"
        status, body = await send(finish, f'{{"score": {score}}}')
        assert (status, body["error"]["param"]) == (400, "score")
        assert "from 0 to 1" in body["error"]["message"]
        assert (await send(finish, '{"score": 1}'))[0] == 200
    assert read_report(tmp_path).evaluation.mean == 1.0


@pytest.mark.parametrize("field", ["temperature", "max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("number", ["9" * 4000, "-" + "9" * 4000])
async def test_a_number_that_nothing_can_hold_is_the_clients_fault(tmp_path: Path, field: str, number: str) -> None:
    text = json.dumps({"messages": user("Hi"), field: "?"}).replace('"?"', number)
    async with serving(tmp_path, echo) as (url, _):
        status, body = await send(f"{url}/s/sk-instar-task/v1/chat/completions", text)
    assert (status, body["error"]["code"]) == (400, "invalid_value")
    assert len(body["error"]["message"]) < 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("v1/chat/completions", "no json"),
        ("v1/chat/completions", "[]"),
        ("v1/chat/completions", '{"messages": 5}'),
        ("v1/responses", "{"),
        ("v1/responses", '{"input": 5}'),
        ("v1/responses", '{"input": "x", "previous_response_id": "resp_1"}'),
        ("instar/act", '{"action": "go"}'),
        ("instar/act", "no json"),
        ("instar/finish", '{"score": 1}'),
        ("instar/finish", "no json"),
    ],
)
async def test_nothing_is_kept_of_a_key_that_asked_nothing(tmp_path: Path, path: str, body: str) -> None:
    async with serving(tmp_path, echo) as (url, conversations):
        for number in range(3):
            status, _ = await send(f"{url}/s/sk-instar-{number}/{path}", body)
            assert status in (400, 404)
            assert len(conversations._open) == len(conversations._next) == 0
        assert (await post(f"{url}/s/sk-instar-0/v1/models", method="GET"))[0] == 200
        assert (await post(f"{url}/s/sk-instar-0/instar/task", method="GET"))[0] == 404
        assert len(conversations._open) == 0
    with Journal(tmp_path, readonly=True) as journal:
        assert list(journal.events()) == []


async def test_what_a_client_said_is_told_on_one_line_without_what_acts_on_a_terminal(tmp_path: Path) -> None:
    told: list[str] = []
    async with serving(tmp_path, echo, say=told.append) as (url, _), client(url) as openai_:
        await openai_.chat.completions.create(model="m", messages=user("Hi"))
        reason = "\x1b[2J\nrun/agent/other/0: done, score 1\ud800\u202e" + "x" * 10_000
        status, _ = await post(f"{url}/s/sk-instar-task/instar/finish", {"reason": reason})
        assert status == 200
    [line] = told
    assert line.isprintable()
    assert line.startswith("run/agent/task/0: done, no score (\\x1b[2J run/agent/other/0: done, score 1\\ud800")
    assert len(line) < 400
    assert written(tmp_path)[0].reason == reason


async def test_an_episode_ends_when_nothing_is_asked_any_more(tmp_path: Path) -> None:
    async with serving(tmp_path, echo, idle=0.1) as (url, conversations), client(url) as openai_:
        watching = asyncio.ensure_future(conversations.watch())
        await openai_.chat.completions.create(model="m", messages=user("Hi"))
        await when(lambda: written(tmp_path))
        [trajectory] = written(tmp_path)
        watching.cancel()
    assert (trajectory.status, trajectory.score) == ("truncated", None)
    assert trajectory.reason == "nothing was asked for 0.1 s"


async def test_a_call_in_flight_is_no_silence_and_is_waited_for_when_the_episode_ends(tmp_path: Path) -> None:
    go = asyncio.Event()

    async def answer(request: Request) -> Completion:
        await go.wait()
        return echo(request)

    async with serving(tmp_path, answer, idle=0.05) as (url, conversations), client(url) as openai_:
        watching = asyncio.ensure_future(conversations.watch())
        call = asyncio.ensure_future(openai_.chat.completions.create(model="m", messages=user("Hi")))
        await when(lambda: conversations.find("sk-instar-task").busy)
        await asyncio.sleep(0.2)  # four times the silence that ends an episode
        assert written(tmp_path) == []
        finish = asyncio.ensure_future(post(f"{url}/s/sk-instar-task/instar/finish", {"score": 0.5}))
        await when(lambda: conversations._open["task"].closing)
        go.set()
        assert (await finish)[1] == {"episode": "run/agent/task/0", "turns": 1}
        assert (await call).choices[0].message.content == "you said Hi"
        watching.cancel()
    [trajectory] = written(tmp_path)
    assert (trajectory.score, len(trajectory.turns)) == (0.5, 1)


async def test_a_proxy_that_was_killed_goes_on_with_the_episode_and_with_its_luck(tmp_path: Path) -> None:
    """What a kill leaves is the journal as it was: it is copied while the first proxy lives."""

    async def ask(url: str, word: str) -> None:
        async with client(url) as openai_:
            await openai_.chat.completions.create(model="m", messages=user(word))

    models = Scripted(echo), Scripted(echo), Scripted(echo)
    async with serving(tmp_path / "a", models[0]) as (url, _):
        await ask(url, "same")
        await ask(url, "same")
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        await ask(url, "same")
    async with serving(tmp_path / "b", models[1]) as (url, _):
        await ask(url, "same")
    [whole], [resumed] = written(tmp_path / "a"), written(tmp_path / "b")
    assert resumed.id == whole.id == "run/agent/task/0"
    assert [call.digest for call in resumed.all_calls] == [call.digest for call in whole.all_calls]
    assert [request.seed for request in models[0].asked][2] == models[1].asked[0].seed
    assert len(resumed.turns) == 3
    async with serving(tmp_path / "b", models[2]) as (url, _):
        await ask(url, "next")
    assert [trajectory.id for trajectory in written(tmp_path / "b")] == ["run/agent/task/0", "run/agent/task/1"]


async def test_an_episode_that_a_kill_cut_off_and_nobody_goes_on_with_ends_with_the_next_proxy(tmp_path: Path) -> None:
    async with serving(tmp_path / "a", echo) as (url, _), client(url) as openai_:
        await openai_.chat.completions.create(model="m", messages=user("Hi"))
        shutil.copytree(tmp_path / "a", tmp_path / "b")
    with Journal(tmp_path / "b") as journal:
        await Conversations(journal, Scripted(echo)).close()
    [trajectory] = written(tmp_path / "b")
    assert (trajectory.goal, len(trajectory.turns), trajectory.status) == ("Hi", 1, "truncated")


def test_names_are_what_the_user_chose_and_never_a_key_that_may_be_a_secret() -> None:
    assert name_of("sk-instar-task7") == "task7"
    names = {name_of(f"sk-instar-{odd}") for odd in ("a/b", "a_b", "a b", "x" * 100, "x" * 101)}
    assert len(names) == 5
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]{1,73}", name) for name in names)
    assert re.fullmatch(r"key-[0-9a-f]{12}", name_of("sk-proj-verysecret"))
    with pytest.raises(Refusal, match="has no name"):
        name_of("sk-instar-")


async def test_a_secret_key_is_nowhere_in_the_journal(tmp_path: Path) -> None:
    secret = "sk-proj-51a8c9e2f7"
    async with serving(tmp_path, echo) as (url, _), client(url, secret) as openai_:
        await openai_.chat.completions.create(model="m", messages=user("Hi"))
    [trajectory] = written(tmp_path)
    assert trajectory.task.startswith("key-")
    assert secret.encode() not in held(tmp_path)


async def test_a_key_in_the_path_serves_agents_that_cannot_set_one(tmp_path: Path) -> None:
    async with serving(tmp_path, echo) as (url, _):
        status, body = await post(f"{url}/s/sk-instar-by-path/v1/chat/completions", {"messages": user("Hi")})
        assert (status, body["choices"][0]["message"]["content"]) == (200, "you said Hi")
        status, body = await post(f"{url}/v1/chat/completions", {"messages": user("Hi")})
        assert (status, body["error"]["code"]) == (401, "invalid_api_key")
        status, body = await post(f"{url}/s/sk-instar-x/instar/act", {"action": "go"})
        assert (status, body["error"]["code"]) == (404, "no_world")
    assert [trajectory.task for trajectory in written(tmp_path)] == ["by-path"]


async def test_looking_at_a_key_begins_no_episode_and_takes_no_number(tmp_path: Path) -> None:
    async with serving(tmp_path, echo) as (url, conversations), client(url) as openai_:
        for _ in range(2):
            await post(f"{url}/s/sk-instar-task/instar/task", method="GET")
            await post(f"{url}/s/sk-instar-task/instar/finish", {})
        ending = asyncio.ensure_future(conversations.find("sk-instar-task").end("truncated", "idle"))
        await asyncio.sleep(0)
        assert conversations.find("sk-instar-task").number == 1  # the other one is just being forgotten
        await ending
        await openai_.chat.completions.create(model="m", messages=user("Hi"))
        await post(f"{url}/s/sk-instar-task/instar/finish", {})
        await openai_.chat.completions.create(model="m", messages=user("Hi"))
    assert [trajectory.episode for trajectory in written(tmp_path)] == [1, 2]
