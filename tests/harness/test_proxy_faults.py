"""What goes wrong behind, before and inside the proxy, as a client sees it."""

import asyncio
import io
import json
from pathlib import Path

import aiohttp
import openai
import pytest
from proxying import Scripted, client, leave, post, said, serving, user, when, written

import harness.episode
from harness.model import Completion, ContextOverflow, ModelFault, ModelRefused, Request, Usage
from harness.proxy.refusal import Exhausted
from harness.proxy.rooms import Rooms
from harness.proxy.server import MOST, Proxy

KEY = "sk-provider-0123456789abcdef"


@pytest.mark.parametrize(
    ("error", "status", "code", "again"),
    [
        (ContextOverflow("too long"), 400, "context_length_exceeded", "false"),
        (ModelFault("a filter", transient=False), 400, "provider_refused", "false"),
        (ModelRefused("no such field", status=422), 422, "provider_refused", "false"),
        (ModelRefused("cannot hold this"), 400, "provider_refused", "false"),
        (ModelRefused("wrong key", status=401), 502, "provider_key", "false"),
        (ModelRefused("no money left", status=429), 429, "insufficient_quota", "false"),
        (RuntimeError("a bug"), 500, None, "false"),
    ],
)
async def test_a_failure_has_the_status_that_makes_a_client_do_the_right_thing(
    tmp_path: Path, error: Exception, status: int, code: str | None, again: str
) -> None:
    def fail(request: Request) -> str:
        raise error

    model = Scripted(fail)
    async with serving(tmp_path, model) as (url, _), client(url, retries=2) as openai_:
        with pytest.raises(openai.APIStatusError) as failed:
            await openai_.chat.completions.create(model="m", messages=user("Hi"))
        assert (failed.value.status_code, failed.value.code) == (status, code)
        assert failed.value.response.headers["x-should-retry"] == again
    assert len(model.asked) == 1
    [trajectory] = written(tmp_path)
    assert trajectory.turns == ()


async def test_a_fault_of_the_provider_is_tried_again_here_and_then_left_to_the_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness.episode, "RETRIES", 2)

    def fail(request: Request) -> Completion:
        if len(model.asked) <= 5:
            raise ModelFault("overloaded", retry_after=0.01)
        return said("at last")

    model = Scripted(fail)
    async with serving(tmp_path, model) as (url, _), client(url) as openai_:
        with pytest.raises(openai.InternalServerError) as failed:
            await openai_.chat.completions.create(model="m", messages=user("Hi"))
        assert failed.value.status_code == 503
        assert failed.value.response.headers["retry-after"] == "1"
        assert failed.value.response.headers["x-should-retry"] == "true"
        answer = await openai_.chat.completions.create(model="m", messages=user("Hi"))
    assert answer.choices[0].message.content == "at last"
    assert len(model.asked) == 6
    [trajectory] = written(tmp_path)
    assert len(trajectory.turns) == 1


async def test_no_message_repeats_a_secret_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_PROVIDER_KEY", KEY)

    def fail(request: Request) -> str:
        raise ModelRefused(f"the key {KEY} is wrong", status=401)

    async with serving(tmp_path, fail) as (url, _):
        status, body = await post(f"{url}/s/sk-instar-x/v1/chat/completions", {"messages": user("Hi")})
    assert status == 502
    assert KEY not in json.dumps(body)


class Two:
    """An allowance of two calls."""

    def __init__(self) -> None:
        self.left, self.settled = 2, []

    async def take(self) -> None:
        if not self.left:
            raise Exhausted("the budget is used up: 2 of 2 calls")
        self.left -= 1

    def settle(self, usage: Usage | None) -> None:
        self.settled.append(usage and usage.output_tokens)


async def test_an_exhausted_budget_stops_clients_and_a_failed_call_is_settled_as_one(tmp_path: Path) -> None:
    def answer(request: Request) -> Completion:
        if len(model.asked) == 1:
            raise ContextOverflow("too long")
        return said("Hi")

    model, allowance = Scripted(answer), Two()
    async with serving(tmp_path, model, allowance=allowance) as (url, _), client(url, retries=2) as openai_:
        with pytest.raises(openai.BadRequestError):
            await openai_.chat.completions.create(model="m", messages=user("Hi"))
        await openai_.chat.completions.create(model="m", messages=user("Hi"))
        with pytest.raises(openai.RateLimitError, match="used up") as stopped:
            await openai_.chat.completions.create(model="m", messages=user("Hi"))
    assert stopped.value.code == "insufficient_quota"
    assert allowance.settled == [None, 3]
    assert len(model.asked) == 2


async def test_a_stream_says_that_the_model_is_at_work_and_then_answers(tmp_path: Path) -> None:
    go = asyncio.Event()

    async def answer(request: Request) -> Completion:
        await go.wait()
        return said("Hello.")

    async with serving(tmp_path, answer, patience=0.02) as (url, _), aiohttp.ClientSession() as http:
        body = {"messages": user("Hi"), "stream": True}
        async with http.post(f"{url}/s/sk-instar-x/v1/chat/completions", json=body) as stream:
            assert stream.content_type == "text/event-stream"
            assert await stream.content.readline() == b": the model is at work\n"
            go.set()
            rest = (await stream.content.read()).decode()
    assert '"content": "Hello."' in rest
    assert rest.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("patience", [0.0, 10.0])
@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_a_failure_in_a_stream_is_an_error_for_the_client(tmp_path: Path, patience: float, api: str) -> None:
    async def fail(request: Request) -> str:
        await asyncio.sleep(0.01)
        raise ContextOverflow("too long")

    async def read(made: openai.AsyncOpenAI) -> None:
        if api == "chat":
            [chunk async for chunk in await made.chat.completions.create(model="m", messages=user("Hi"), stream=True)]
        else:
            [event async for event in await made.responses.create(model="m", input="Hi", stream=True)]

    async with serving(tmp_path, fail, patience=patience) as (url, _), client(url) as openai_:
        with pytest.raises(openai.APIError, match="too long") as failed:
            await read(openai_)
    assert failed.value.code == "context_length_exceeded"
    assert isinstance(failed.value, openai.BadRequestError) == (patience > 0)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_whose_client_left_is_finished_and_serves_the_same_request_again(
    tmp_path: Path, stream: bool
) -> None:
    go = asyncio.Event()

    async def answer(request: Request) -> Completion:
        await go.wait()
        return said(f"answer {len(model.asked)}")

    model = Scripted(answer)
    body = {"messages": user("Hi"), "stream": stream}
    async with serving(tmp_path, model, patience=0.01) as (url, conversations):
        where = f"{url}/s/sk-instar-x/v1/chat/completions"
        await leave(conversations, where, body)
        again = asyncio.ensure_future(post(where, {"messages": user("Hi")}))  # while the first call is in flight
        await asyncio.sleep(0.05)
        go.set()
        status, told = await again
        assert (status, told["choices"][0]["message"]["content"]) == (200, "answer 1")
        status, told = await post(where, {"messages": user("Hi")})
        assert told["choices"][0]["message"]["content"] == "answer 2"
    assert len(model.asked) == 2
    [trajectory] = written(tmp_path)
    assert [turn.action for turn in trajectory.turns] == ["answer 1", "answer 2"]


async def test_an_answer_that_came_after_its_client_had_left_waits_for_the_same_request(tmp_path: Path) -> None:
    go, done = asyncio.Event(), asyncio.Event()

    async def answer(request: Request) -> Completion:
        await go.wait()
        done.set()
        return said(f"answer {len(model.asked)}")

    model = Scripted(answer)
    async with serving(tmp_path, model) as (url, conversations):
        where = f"{url}/s/sk-instar-x/v1/chat/completions"
        await leave(conversations, where, {"messages": user("Hi")})
        go.set()
        await done.wait()
        await when(lambda: not conversations.find("sk-instar-x").busy)
        _, told = await post(where, {"messages": user("Hi")})
        _, other = await post(where, {"messages": user("Bye")})
    assert told["choices"][0]["message"]["content"] == "answer 1"
    assert other["choices"][0]["message"]["content"] == "answer 2"


async def test_equal_requests_of_living_clients_are_each_asked(tmp_path: Path) -> None:
    both = asyncio.Event()

    async def answer(request: Request) -> Completion:
        if len(model.asked) == 2:
            both.set()
        await both.wait()
        return said("Hi")

    model = Scripted(answer)
    async with serving(tmp_path, model) as (url, _), client(url) as openai_:
        asks = (openai_.chat.completions.create(model="m", messages=user("Hi")) for _ in range(2))
        await asyncio.wait_for(asyncio.gather(*asks), 20)
    assert len(model.asked) == 2
    assert len({request.seed for request in model.asked}) == 2


@pytest.mark.parametrize("header", ["Host", "Origin"])
async def test_a_page_of_another_site_may_not_ask(tmp_path: Path, header: str) -> None:
    model = Scripted(lambda request: said("Hi"))
    async with serving(tmp_path, model) as (url, _):
        where = f"{url}/s/sk-instar-x/v1/chat/completions"
        for foreign in ("http://evil.example", "http://localhost.evil.example:80", "null"):
            value = foreign.removeprefix("http://") if header == "Host" else foreign
            status, body = await post(where, {"messages": user("Hi")}, **{header: value})
            assert (status, body["error"]["code"]) == (403, "foreign_host")
        assert model.asked == []
        for ours in ("localhost:99", "[::1]:99", "127.0.0.1"):
            value = ours if header == "Host" else f"http://{ours}"
            assert (await post(where, {"messages": user("Hi")}, **{header: value}))[0] == 200


async def test_other_machines_are_let_in_only_with_a_token_at_the_end_of_the_key(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--token-env"):
        Proxy(Rooms(), host="0.0.0.0")
    token = "0123456789abcdef"
    async with serving(tmp_path, lambda request: said("Hi"), token=token) as (url, _):
        for key in ("sk-instar-task", "sk-instar-task.", f"sk-instar-task.{token[:-1]}", token):
            status, body = await post(f"{url}/v1/chat/completions", {}, Authorization=f"Bearer {key}")
            assert (status, body["error"]["code"]) == (401, "invalid_api_key")
        told = {"messages": user("Hi")}
        key = {"Authorization": f"Bearer sk-instar-v1.5-task.{token}", "Host": "gpu7.example"}
        assert (await post(f"{url}/v1/chat/completions", told, **key))[0] == 200
    assert [trajectory.task for trajectory in written(tmp_path)] == ["v1.5-task"]


async def test_a_request_that_is_too_large_or_no_json_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path, lambda request: said("Hi")) as (url, _), aiohttp.ClientSession() as http:
        where = f"{url}/s/sk-instar-x/v1/chat/completions"
        async with http.post(where, data=io.BytesIO(b" " * (MOST + 1))) as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (413, "too_large")
        async with http.post(where, data=b"{") as answer:
            assert answer.status == 400
        async with http.post(where, data=b"\xff") as answer:
            assert answer.status == 400


async def test_half_a_character_is_kept_as_it_came(tmp_path: Path) -> None:
    async with serving(tmp_path, lambda request: said(request.messages[0].content)) as (url, _):
        where = f"{url}/s/sk-instar-x"
        _, body = await post(f"{where}/v1/chat/completions", {"messages": user("half \ud83d" + "x" * 300)})
        assert (await post(f"{where}/instar/finish", {"score": 1, "reason": "half \ud83d"}))[0] == 200
    assert body["choices"][0]["message"]["content"].startswith("half \ud83dx")
    [trajectory] = written(tmp_path)
    assert trajectory.turns[0].observation.startswith("half \ud83dx")
    assert trajectory.reason == "half \ud83d"


async def test_a_body_that_is_nested_without_end_is_refused(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, lambda request: said("Hi")) as (url, _),
        aiohttp.ClientSession() as http,
        http.post(f"{url}/s/sk-instar-x/v1/chat/completions", data=b"[" * 200_000) as answer,
    ):
        assert answer.status == 400


async def test_a_mistake_of_ours_in_a_stream_is_told_in_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def fail(request: Request) -> str:
        await asyncio.sleep(0.01)
        raise KeyError("a bug")

    async with serving(tmp_path, fail, patience=0.0) as (url, _), aiohttp.ClientSession() as http:
        body = {"messages": user("Hi"), "stream": True}
        async with http.post(f"{url}/s/sk-instar-x/v1/chat/completions", json=body) as stream:
            text = (await stream.content.read()).decode()
    assert text.count("HTTP/1.1") == 0
    assert '"message": "the proxy failed: KeyError"' in text
    assert "a bug" in caplog.text


async def test_the_list_of_models_needs_the_token_where_there_is_one(tmp_path: Path) -> None:
    async with serving(tmp_path, lambda request: said("Hi"), token="0123456789abcdef") as (url, _):
        for path in ("/v1/models", "/v1/models/scripted", "/s/sk-instar-x/v1/models", "/s/sk-instar-x.wrong/models"):
            status, body = await post(f"{url}{path}", method="GET")
            assert (status, body["error"]["code"]) == (401, "invalid_api_key")
        status, body = await post(f"{url}/s/sk-instar-x.0123456789abcdef/v1/models", method="GET")
        assert (status, body["data"][0]["id"]) == (200, "scripted")
    async with serving(tmp_path / "open", lambda request: said("Hi")) as (url, _):
        assert (await post(f"{url}/v1/models", method="GET"))[0] == 200


async def test_the_log_of_a_mistake_of_ours_has_no_key_and_nothing_that_acts_on_a_terminal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(request: Request) -> str:
        raise RuntimeError(f"odd: {request.messages[-1].content}")

    async with serving(tmp_path, fail) as (url, _):
        body = {"messages": user("\x1b[2J")}
        status, _ = await post(f"{url}/s/sk-proj-my-own-secret%1b/v1/chat/completions", body)
    assert status == 500
    assert "could not answer POST /s/{key}/v1/chat/completions" in caplog.text
    assert "RuntimeError: odd: \\x1b[2J" in caplog.text
    assert "my-own-secret" not in caplog.text
    assert "\x1b" not in caplog.text
