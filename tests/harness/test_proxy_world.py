"""An episode's world over HTTP: seen, acted in, and over when it is over."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from proxying import Scripted, client, post, said, user
from worlds import corridor, no_trouble

from envs import EnvFault
from harness.episode import Episode, EpisodeLimit
from harness.model import ContextOverflow, ModelFault, ModelRefused, Request
from harness.proxy import rooms
from harness.proxy.session import EpisodeSession
from harness.proxy.wire_in import Defaults
from harness.settings import LimitSettings
from harness.trajectory import Turn


@asynccontextmanager
async def playing(
    model: Callable[[Request], Any] = lambda request: said("go right"), *, trouble: Any = no_trouble, **limits: Any
) -> AsyncIterator[tuple[str, str, EpisodeSession]]:
    """(address of the session, its key, itself) of an episode in a corridor of three steps."""
    bench = corridor(trouble, **{"max_steps": limits.pop("max_steps", 6)})

    def record(turn: Turn) -> Turn:
        return turn

    episode = Episode(
        bench, bench.tasks("valid", 1)[0], number=0, run_seed=0, max_steps=bench.max_steps,
        max_calls=limits.pop("calls", 9), limits=LimitSettings(**limits), record=record, lookup=lambda *_: None,
    )  # fmt: skip
    await episode.start()
    session = EpisodeSession(
        episode, Scripted(model), Defaults(0.0, 64), situation=lambda: "now", retrieved=["m1"], told={"memories": "- x"}
    )
    async with rooms.room(session) as (url, key):
        yield f"{url}/s/{key}", key, session
    await episode.close()


async def test_the_task_tells_what_an_agent_must_know_and_no_reward() -> None:
    async with playing() as (url, _, _):
        status, told = await post(f"{url}/instar/task", method="GET")
        _, seen = await post(f"{url}/instar/act", {"action": "right"})
    assert status == 200
    assert told.pop("tools")[0]["name"] == "jump"
    assert told == {
        "task": "c0", "goal": "reach the end of 0", "memories": "- x", "steps": 0, "max_steps": 6,
        "observation": "You are at 0.", "choices": ["left", "right"], "done": False, "stopped": "",
    }  # fmt: skip
    assert seen == {"observation": "You are at 1.", "choices": ["left", "right"], "done": False, "stopped": ""}


async def test_calls_belong_to_the_action_that_they_led_to() -> None:
    async with playing() as (url, _, session), client(url) as openai_:
        await openai_.chat.completions.create(model="m", messages=user("a"))
        await openai_.chat.completions.create(model="m", messages=user("b"))
        await post(f"{url}/instar/act", {"action": "right"})
        await openai_.chat.completions.create(model="m", messages=user("c"))
        await post(f"{url}/instar/act", {"action": '{"name": "jump", "arguments": {"n": 2}}'})
        first, second = session.episode.turns
    assert [len(turn.calls) for turn in (first, second)] == [2, 1]
    assert (first.action, first.observation, first.situation, first.retrieved) == (
        "right", "You are at 0.", "now", ("m1",),
    )  # fmt: skip
    assert (second.reward, session.episode.over) == (1.0, True)
    request = session.model.asked[0]  # type: ignore[attr-defined]
    assert (request.temperature, request.max_tokens) == (0.0, 64)


async def test_after_the_end_nothing_can_be_done_or_asked() -> None:
    async with playing() as (url, _, session), client(url) as openai_:
        for _ in range(3):
            _, seen = await post(f"{url}/instar/act", {"action": "right"})
        assert (seen["done"], session.ended.is_set(), session.error) == (True, True, None)
        status, body = await post(f"{url}/instar/act", {"action": "right"})
        assert (status, body["error"]["code"]) == (409, "episode_over")
        with pytest.raises(openai.PermissionDeniedError, match="the episode is over"):
            await openai_.chat.completions.create(model="m", messages=user("x"))
        status, body = await post(f"{url}/instar/finish", {"score": 1})
        assert (status, body["error"]["code"]) == (409, "scored_by_world")
        assert len(session.episode.turns) == 3


async def test_the_last_step_is_done_and_then_the_limit_ends_the_episode() -> None:
    async with playing(max_steps=1) as (url, _, session):
        status, seen = await post(f"{url}/instar/act", {"action": "right"})
    assert (status, seen["observation"], seen["stopped"]) == (200, "You are at 1.", "1 steps were not enough")
    assert isinstance(session.error, EpisodeLimit)
    assert len(session.episode.turns) == 1


async def test_the_limit_on_calls_ends_the_episode() -> None:
    async with playing(calls=1) as (url, _, session), client(url, retries=2) as openai_:
        await openai_.chat.completions.create(model="m", messages=user("x"))
        with pytest.raises(openai.PermissionDeniedError, match="1 answers"):
            await openai_.chat.completions.create(model="m", messages=user("x"))
    assert isinstance(session.error, EpisodeLimit)


async def test_a_broken_world_ends_the_episode_with_its_fault() -> None:
    def trouble(where: str, task: str) -> None:
        if where == "step":
            raise EnvFault("the container is gone")

    async with playing(trouble=trouble) as (url, _, session):
        status, body = await post(f"{url}/instar/act", {"action": "right"})
    assert (status, body["error"]["code"]) == (500, "world_broke")
    assert isinstance(session.error, EnvFault)


@pytest.mark.parametrize("error", [ModelFault("a filter", transient=False), ModelRefused("no key", status=401)])
async def test_a_provider_that_will_not_answer_ends_the_episode(error: Exception) -> None:
    def fail(request: Request) -> str:
        raise error

    async with playing(fail) as (url, _, session), client(url) as openai_:
        with pytest.raises(openai.APIStatusError):
            await openai_.chat.completions.create(model="m", messages=user("x"))
    assert session.error is error


@pytest.mark.parametrize("error", [ContextOverflow("too long"), ModelRefused("no top_k")])
async def test_what_the_agent_can_mend_ends_nothing(error: Exception) -> None:
    def fail(request: Request) -> Any:
        if request.messages[0].content == "long":
            raise error
        return said("fine")

    async with playing(fail) as (url, _, session), client(url) as openai_:
        with pytest.raises(openai.BadRequestError):
            await openai_.chat.completions.create(model="m", messages=user("long"))
        assert (session.error, session.stumble) == (None, error)
        await openai_.chat.completions.create(model="m", messages=user("short"))
    assert (session.error, session.stumble, session.answered) == (None, None, 1)


async def test_an_action_must_be_a_text() -> None:
    async with playing() as (url, _, session):
        status, body = await post(f"{url}/instar/act", {"action": 5})
        assert (status, body["error"]["param"]) == (400, "action")
        assert session.episode.turns == []


async def test_episodes_share_one_server_that_lives_as_long_as_any_of_them() -> None:
    async with playing() as (first, _, _):
        async with playing() as (second, _, _):
            assert first.rpartition("/s/")[0] == second.rpartition("/s/")[0]
            await post(f"{second}/instar/act", {"action": "right"})
        status, body = await post(f"{second}/instar/task", method="GET")
        assert (status, body["error"]["code"]) == (401, "invalid_api_key")
        _, told = await post(f"{first}/instar/task", method="GET")
        assert told["observation"] == "You are at 0."
    with pytest.raises(OSError, match="onnect"):
        await post(f"{first}/instar/task", method="GET")
    assert len(rooms._shared) == 0


async def test_what_is_in_flight_when_an_episode_is_cut_off_is_cancelled() -> None:
    asked = asyncio.Event()

    async def answer(request: Request) -> str:
        asked.set()
        await asyncio.sleep(1000)
        return "never"

    async with playing(answer) as (url, _, session), client(url) as openai_:
        call = asyncio.ensure_future(openai_.chat.completions.create(model="m", messages=user("x")))
        await asyncio.wait_for(asked.wait(), 20)
    with pytest.raises(openai.APIConnectionError):
        await call
    assert session.episode.unfinished == ()


async def test_a_world_that_cannot_tell_its_tools_is_broken() -> None:
    def trouble(where: str, task: str) -> None:
        if where == "tools":
            raise EnvFault("the container is gone")

    async with playing(trouble=trouble) as (url, _, session):
        status, body = await post(f"{url}/instar/task", method="GET")
    assert (status, body["error"]["code"]) == (500, "world_broke")
    assert isinstance(session.error, EnvFault)
