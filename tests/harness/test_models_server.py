"""What goes over the wire to an OpenAI-compatible server, and what odd things come back: real sockets throughout."""

import asyncio
import gzip
import json
import os
import shutil
import ssl
import subprocess
import sys
import textwrap
import threading
import warnings
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from openai_stub import Stub
from pydantic import ValidationError
from raw_server import ANSWER, Line, Raw, always, answering, serving

from harness.model import Completion, ContextOverflow, Message, ModelFault, ModelRefused, Request, Usage
from harness.models import server
from harness.models.failure import retry_after
from harness.models.openai_api import OpenAIModel

CHAT = Request(messages=(Message(role="user", content="hello there"),))
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*PROXIES, "OPENAI_API_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.delenv(name, raising=False)


async def ask(url: str, *requests: Request, **options: Any) -> list[Completion]:
    model = OpenAIModel("tiny", api_base=url, **options)
    try:
        return [await model.complete(request) for request in requests or (CHAT,)]
    finally:
        await model.close()


async def failure(url: str, *requests: Request, **options: Any) -> Any:
    with pytest.raises((ModelRefused, ModelFault, ContextOverflow)) as caught:
        await ask(url, *requests, **options)
    return caught.value


# connections


async def test_calls_one_after_another_share_a_connection() -> None:
    async with serving(always) as raw:
        await ask(raw.url, CHAT, CHAT, CHAT)
    assert (len(raw.heads), raw.lines) == (3, 1)


async def test_there_is_no_cap_on_the_calls_at_once() -> None:
    together = 300
    there = asyncio.Barrier(together)

    async def serve(raw: Raw, line: Line) -> None:
        while await raw.read(line):
            await there.wait()  # nobody is answered before all have come
            await line.send()

    async with serving(serve) as raw:
        model = OpenAIModel("tiny", api_base=raw.url)
        answers = await asyncio.gather(*(model.complete(CHAT) for _ in range(together)))
        await model.close()
    assert len(answers) == raw.lines == together


@pytest.mark.parametrize(
    "before", [b"", b"HTTP/1.1 200 OK\r\nContent-Le", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"]
)
async def test_a_request_whose_kept_connection_breaks_is_never_sent_again(before: bytes) -> None:
    async def serve(raw: Raw, line: Line) -> None:
        if await raw.read(line):
            await line.send()
        if await raw.read(line) and before:
            await line.raw(before)

    async with serving(serve) as raw:
        fault = await failure(raw.url, CHAT, CHAT)
        assert isinstance(fault, ModelFault)
        assert fault.kind == "unreachable"
        assert (len(raw.heads), raw.lines) == (2, 1)


async def test_a_connection_that_was_closed_while_idle_is_not_used_again() -> None:
    closed = asyncio.Event()

    async def serve(raw: Raw, line: Line) -> None:
        if await raw.read(line):
            await line.send()
        line.writer.close()
        await line.writer.wait_closed()
        closed.set()

    async with serving(serve) as raw:
        model = OpenAIModel("tiny", api_base=raw.url)
        for _ in range(3):
            closed.clear()
            await model.complete(CHAT)
            await closed.wait()
            for _ in range(10):  # the loop looks at its sockets once a turn
                await asyncio.sleep(0)
        await model.close()
    assert (len(raw.heads), raw.lines) == (3, 3)


async def test_a_connection_is_dropped_before_its_server_would_drop_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "IDLE", 0.0)
    async with serving(always) as raw:
        await ask(raw.url, CHAT, CHAT)
    assert raw.lines == 2


async def test_a_call_that_is_cancelled_leaves_no_answer_for_the_next_one() -> None:
    asked, go = asyncio.Event(), asyncio.Event()

    async def serve(raw: Raw, line: Line) -> None:
        while await raw.read(line):
            number = len(raw.heads)
            if number == 2:
                asked.set()
                await go.wait()
            await line.send({"choices": [{"message": {"content": f"answer {number}"}}]})

    async with serving(serve) as raw:
        model = OpenAIModel("tiny", api_base=raw.url)
        await model.complete(CHAT)
        task = asyncio.create_task(model.complete(CHAT))
        await asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go.set()
        assert (await model.complete(CHAT)).text == "answer 3"
        await model.close()


async def test_a_model_that_is_closed_during_a_call_faults_and_works_again_later() -> None:
    asked, go = asyncio.Event(), asyncio.Event()

    async def serve(raw: Raw, line: Line) -> None:
        while await raw.read(line):
            asked.set()
            await go.wait()
            await line.send()

    async with serving(serve) as raw:
        model = OpenAIModel("tiny", api_base=raw.url)
        task = asyncio.create_task(model.complete(CHAT))
        await asked.wait()
        await model.close()
        with pytest.raises(ModelFault):
            await task
        go.set()
        assert (await model.complete(CHAT)).text == "hi"
        await model.close()
        await model.close()


def test_one_model_serves_loops_in_several_threads_at_once() -> None:
    with Stub() as stub:
        model, together = OpenAIModel("tiny", api_base=stub.url), threading.Barrier(3)
        texts: list[str] = []

        async def several() -> None:
            for _ in range(5):
                await asyncio.to_thread(together.wait)
                texts.append((await model.complete(CHAT)).text)
            await model.close()

        threads = [threading.Thread(target=asyncio.run, args=(several(),)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert texts == ["you said 2 words"] * 15


def test_a_loop_that_ended_without_a_close_does_not_trouble_the_next_one_nor_is_another_client_needed() -> None:
    code = """
        import asyncio, sys
        from harness.model import Message, Request
        from harness.models.openai_api import OpenAIModel

        model = OpenAIModel("tiny", api_base=sys.argv[1])
        request = Request(messages=(Message(role="user", content="hello there"),))

        async def last():
            print((await model.complete(request)).text)
            await model.close()

        print(asyncio.run(model.complete(request)).text)
        asyncio.run(last())
        print({"openai", "httpx", "httpx2"} & set(sys.modules))
    """
    with Stub() as stub:
        command = [sys.executable, "-c", textwrap.dedent(code), stub.url]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["you said 2 words", "you said 2 words", "set()"]
    assert done.stderr == ""


# what is sent


async def test_a_request_says_who_asks_and_the_key_only_if_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(always) as raw:
        await ask(raw.url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-123")
        monkeypatch.setenv("OPENAI_ORG_ID", "org-7")
        monkeypatch.setenv("OPENAI_PROJECT_ID", "proj-8")
        await ask(raw.url)
    bare, full = (head.split("\r\n") for head in raw.heads)
    assert bare[0] == "POST /v1/chat/completions HTTP/1.1"
    assert "Content-Type: application/json" in bare
    assert [line for line in bare if line.startswith("User-Agent: instar/")]
    assert not [line for line in bare if line.lower().startswith(("authorization", "cookie", "openai-"))]
    assert {"Authorization: Bearer sk-123", "OpenAI-Organization: org-7", "OpenAI-Project: proj-8"} <= set(full)


async def test_the_query_of_an_address_stays_behind_the_path() -> None:
    async with serving(always) as raw:
        await ask(raw.url + "/?api-version=2")
    assert raw.heads[0].startswith("POST /v1/chat/completions?api-version=2 HTTP/1.1")


async def test_extra_fields_reach_the_server_as_they_are() -> None:
    extra = {"top_p": 0.5, "chat_template_kwargs": {"enable_thinking": False}, "temperature": 0.25}
    form = {"type": "json_schema", "json_schema": {"name": "mine", "strict": False, "schema": {"type": "object"}}}
    chat = CHAT.model_copy(update={"extra": extra | {"response_format": form}, "schema_": {"type": "object"}})
    with Stub() as stub:
        (answer,) = await ask(stub.url, chat)
        await ask(stub.url, Request(prompt="once", extra=extra))
    sent, text = stub.seen[0][1], stub.seen[1][1]
    assert {name: sent[name] for name in extra} == extra == {name: text[name] for name in extra}
    assert sent["response_format"] == form
    assert answer.mode == "constrained"


async def test_a_format_among_the_extra_fields_does_not_count_as_a_held_choice() -> None:
    with Stub() as stub:
        request = CHAT.model_copy(update={"extra": {"response_format": {"type": "json_object"}}})
        (answer,) = await ask(stub.url, request)
    assert answer.mode is None


@pytest.mark.parametrize("field", ["model", "messages", "prompt", "stream", "stream_options"])
@pytest.mark.parametrize("request_", [CHAT, Request(prompt="once")])
async def test_extra_fields_cannot_change_who_is_asked_what_or_how(field: str, request_: Request) -> None:
    async with serving(always) as raw:
        refused = await failure(raw.url, request_.model_copy(update={"extra": {field: True}}))
    assert isinstance(refused, ModelRefused)
    assert f"extra fields hold {field}" in str(refused)
    assert raw.heads == []


async def test_choices_and_a_format_among_the_extra_fields_are_refused() -> None:
    request = CHAT.model_copy(update={"choices": ("a", "b"), "extra": {"response_format": {"type": "text"}}})
    assert "response_format" in str(await failure("http://127.0.0.1:9/v1", request))


async def test_a_body_of_megabytes_and_of_odd_letters_arrives_whole() -> None:
    said = "wörd 漢字 \ud83d " * 100_000
    request = Request.model_construct(
        **{**dict(CHAT), "messages": (CHAT.messages[0].model_copy(update={"content": said}),)}
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        async with serving(always) as raw:
            await ask(raw.url, request)
    assert raw.bodies[0]["messages"][0]["content"] == said


@pytest.mark.parametrize("key", ["sk-1\nX-Evil: 1", "sk-é", "sk-\x00"])
def test_a_key_that_no_header_can_hold_is_refused_and_not_repeated(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    if "\x00" in key:
        monkeypatch.setattr(os, "environ", {**os.environ, "MY_KEY": key})
    else:
        monkeypatch.setenv("MY_KEY", key)
    with pytest.raises(ModelRefused, match="MY_KEY holds no key") as caught:
        OpenAIModel("tiny", api_base="http://127.0.0.1:9/v1", api_key_env="MY_KEY")
    assert "sk-" not in str(caught.value)


# odd answers


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed_and_the_key_goes_nowhere(
    monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-123456789")
    async with serving(always) as other, serving(
        answering(b"", status, location=f"{other.url}/chat/completions?token=sk-123456789")
    ) as raw:  # fmt: skip
        told = await failure(raw.url)
        assert (len(raw.heads), other.heads) == (1, [])
        assert f"points to {other.url}/chat/completions. Cure: set api_base" in str(told)
    assert isinstance(told, ModelRefused)
    assert "123456789" not in str(told)


async def test_a_compressed_answer_is_read() -> None:
    async with serving(answering(gzip.compress(json.dumps(ANSWER).encode()), content_encoding="gzip")) as raw:
        assert (await ask(raw.url))[0].text == "hi"
    assert "gzip" in raw.heads[0]


async def test_an_answer_in_chunks_is_read() -> None:
    content = json.dumps(ANSWER).encode()

    async def serve(raw: Raw, line: Line) -> None:
        while await raw.read(line):
            await line.raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            for place in range(0, len(content), 7):
                piece = content[place : place + 7]
                await line.raw(b"%x\r\n%s\r\n" % (len(piece), piece))
            await line.raw(b"0\r\n\r\n")

    async with serving(serve) as raw:
        assert [answer.text for answer in await ask(raw.url, CHAT, CHAT)] == ["hi", "hi"]
    assert raw.lines == 1


@pytest.mark.parametrize(
    ("content", "charset", "text"),
    [
        ("schön".encode("latin-1"), "iso-8859-1", "schön"),
        ("schön".encode("latin-1"), "utf-8", "sch�n"),
        ("schön".encode("latin-1"), "no-such-thing", "sch�n"),
        ("漢".encode()[:2], "utf-8", "�"),
        (rb"cut \ud83d off", "utf-8", "cut ? off"),
        ("schön".encode(), "iso-8859-1", "schön"),
    ],
)
async def test_letters_of_any_charset_come_back_as_text_that_can_be_kept(
    content: bytes, charset: str, text: str
) -> None:
    body = b'{"choices": [{"message": {"content": "' + content + b'"}}]}'
    async with serving(answering(body, content_type=f"application/json; charset={charset}")) as raw:
        (answer,) = await ask(raw.url)
    assert answer.text == text
    assert Completion.model_validate_json(answer.model_dump_json()) == answer


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "answered with no JSON: ''"),
        (b"<html>\n  <p>Sign in to the hotel</p>\n</html>", "no JSON: '<html> <p>Sign in to the hotel</p> </html>'"),
        (b"null", "no JSON: 'null'"),
        (b"[1, 2]", "no completion: '[1, 2]'"),
        (b'"well"', "no completion"),
        (b"[" * 100_000, "no JSON"),
        (b'data: {"choices": []}\n\ndata: [DONE]\n\n', "no JSON"),
        ({"choices": []}, "no completion"),
        ({"choices": None}, "no completion"),
        ({"choices": [{"message": {"content": 7}}]}, "no completion"),
        ({"choices": [{"message": {"content": ["hi"]}}]}, "no completion"),
        ({"choices": [{"message": {"content": "x", "tool_calls": [{"id": "1"}]}}]}, "no completion"),
        ({"choices": [{"message": {"content": "x"}}], "usage": {"prompt_tokens": "many"}}, "no completion"),
        ({"choices": [{"message": {"content": "x"}, "logprobs": {"content": [{"logprob": None}]}}]}, "no completion"),
        (b'{"choices": [{"text": "x", "logprobs": {"token_logprobs": [-Infinity]}}]}', "no completion"),
        ({"error": "overloaded"}, "no completion"),
    ],
)  # fmt: skip
async def test_an_answer_that_is_no_completion_is_a_fault_that_shows_it(body: Any, said: str) -> None:
    async with serving(answering(body)) as raw:
        fault = await failure(raw.url)
    assert isinstance(fault, ModelFault)
    assert fault.kind == "answer"
    assert said in str(fault)
    assert len(raw.heads) == 1


@pytest.mark.parametrize(
    ("choice", "text"),
    [
        ({"message": {"content": None}}, ""),
        ({"message": {"content": None, "refusal": "I cannot"}}, "I cannot"),
        ({"message": {"content": [{"type": "thinking", "thinking": []}, {"type": "text", "text": "yes"}]}}, "yes"),
        ({"message": {"content": []}}, ""),
        ({"text": "plain"}, "plain"),
        ({"message": {"content": "x", "tool_calls": None}, "finish_reason": None, "logprobs": None}, "x"),
    ],
)
async def test_answers_that_only_look_odd_are_read(choice: Any, text: str) -> None:
    async with serving(answering({"choices": [choice], "usage": None, "error": None})) as raw:
        assert (await ask(raw.url))[0].text == text


def completion(usage: Any = None, **choice: Any) -> dict[str, Any]:
    """A completion that is right but for what is said here."""
    return {"choices": [{"message": {"content": "hi"}, **choice}], "usage": usage}


@pytest.mark.parametrize("number", [-5, 10**400, 2**33, 1.5, True, "12", [3], float("inf"), float("nan"), {}])
@pytest.mark.parametrize("field", ["prompt_tokens", "completion_tokens", "cached_tokens"])
async def test_a_number_of_tokens_that_cannot_be_true_is_no_completion_and_never_counted(
    field: str, number: Any
) -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 1, field: number, "prompt_tokens_details": {field: number}}
    async with serving(answering(completion(usage))) as raw:
        for prices in ({}, {"price_in": 1.0, "price_out": 1.0}):
            fault = await failure(raw.url, **prices)
            assert (type(fault), fault.kind) == (ModelFault, "answer")
            assert "no completion" in str(fault)


async def test_whole_numbers_that_are_written_with_a_point_and_missing_ones_are_read() -> None:
    async with serving(answering(completion({"prompt_tokens": 7.0, "completion_tokens": None}))) as raw:
        used = (await ask(raw.url))[0].usage
    assert (used.prompt_tokens, used.output_tokens, used.cached_tokens) == (7, 0, 0)


@pytest.mark.parametrize("ids", [[1, -1], [True], [1.0], ["7"], [10**400], "77", {"a": 1}, [None]])
@pytest.mark.parametrize("field", ["prompt_token_ids", "token_ids"])
async def test_ids_of_tokens_that_cannot_be_any_are_no_completion(field: str, ids: Any) -> None:
    async with serving(answering(completion(**{field: ids}))) as raw:
        assert (await failure(raw.url)).kind == "answer"


@pytest.mark.parametrize("value", [True, "-0.5", 10**400, float("nan"), float("-inf"), [1], None])
async def test_log_probabilities_that_are_none_are_no_completion(value: Any) -> None:
    for logprobs in ({"content": [{"logprob": -1.0}, {"logprob": value}]}, {"token_logprobs": [-1.0, value]}):
        async with serving(answering(completion(logprobs=logprobs))) as raw:
            assert (await failure(raw.url)).kind == "answer"


async def test_no_part_of_an_answer_holds_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    key = "sk-very-secret-123"
    monkeypatch.setenv("OPENAI_API_KEY", key)
    call = {"id": key, "type": "function", "function": {"name": f"f {key}", "arguments": {"a": key}}}
    message = {"content": f"it is {key}", "tool_calls": [call]}
    body = {"id": key, "model": key, **completion(message=message, finish_reason=f"stop {key}")}
    async with serving(answering(body)) as raw:
        (answer,) = await ask(raw.url)
    assert "secret" not in answer.model_dump_json()
    (made,) = answer.tool_calls
    assert (made.id, made.name, made.arguments, answer.finish_reason) == ("***", "f ***", '{"a": "***"}', "stop ***")


@pytest.mark.parametrize("word", ["x" * 40_000, "line\nbreak", "\u202e", "\x1b[2J", 7, ["stop"]])
async def test_a_servers_own_words_are_short_and_printable_or_the_answer_is_no_completion(word: Any) -> None:
    call = {"id": word, "type": "function", "function": {"name": "f", "arguments": "{}"}}
    for choice in ({"finish_reason": word}, {"message": {"content": "", "tool_calls": [call]}}):
        async with serving(answering(completion(**choice))) as raw:
            assert (await failure(raw.url)).kind == "answer"


async def test_a_very_long_name_of_a_function_is_the_models_own_failure_and_is_cut() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f" * 10_000, "arguments": "{}"}}
    async with serving(answering(completion(message={"content": "", "tool_calls": [call]}))) as raw:
        (answer,) = await ask(raw.url)
    assert answer.tool_calls[0].name == "f" * 256


@pytest.mark.parametrize("number", [-1, 2**54, float("nan"), float("inf")])
@pytest.mark.parametrize("field", sorted(Usage.model_fields))
def test_no_usage_holds_a_number_that_a_budget_cannot_add_up(field: str, number: float) -> None:
    if number == 2**54 and field in ("dollars", "seconds"):
        number = -0.5
    with pytest.raises(ValidationError, match=field):
        Usage(**{field: number})


# a wrong address


WRONG = [b"", b"<html>Sign in</html>", b'data: {"choices": []}\n\n', {"choices": []}, completion({"prompt_tokens": -5})]


@pytest.mark.parametrize("body", WRONG)
async def test_a_server_that_answers_and_never_gave_a_completion_is_refused_after_three_answers(body: Any) -> None:
    async with serving(answering(body)) as raw:
        model = OpenAIModel("tiny", api_base=raw.url)
        try:
            for _ in range(2):
                with pytest.raises(ModelFault):
                    await model.complete(CHAT)
            with pytest.raises(ModelRefused, match=r"none of 3 answers .* Cure: check api_base") as caught:
                await model.complete(CHAT)
        finally:
            await model.close()
        assert raw.url in str(caught.value)
        assert len(raw.heads) == 3


async def test_a_server_that_gave_a_completion_once_is_not_refused_for_odd_answers() -> None:
    answers = iter([b"<html>", b"<html>", ANSWER, *[b"<html>"] * 5, ANSWER])

    async def serve(raw: Raw, line: Line) -> None:
        while await raw.read(line):
            await line.send(next(answers))

    async with serving(serve) as raw:
        model = OpenAIModel("tiny", api_base=raw.url)
        outcomes = []
        try:
            for _ in range(9):
                try:
                    outcomes.append((await model.complete(CHAT)).text)
                except ModelFault as fault:
                    outcomes.append(fault.kind)
        finally:
            await model.close()
    assert outcomes == ["answer", "answer", "hi", *["answer"] * 5, "hi"]


async def test_odd_answers_between_other_faults_are_those_of_a_server_that_is_being_started() -> None:
    answers = iter([(b"<html>",), (b"", 503)] * 4 + [(ANSWER,)])

    async def serve(raw: Raw, line: Line) -> None:
        while await raw.read(line):
            await line.send(*next(answers))

    async with serving(serve) as raw:
        model = OpenAIModel("tiny", api_base=raw.url)
        try:
            for _ in range(8):
                with pytest.raises(ModelFault):
                    await model.complete(CHAT)
            assert (await model.complete(CHAT)).text == "hi"
        finally:
            await model.close()


async def test_a_run_at_a_wrong_address_ends_soon_with_what_is_there(tmp_path: Path) -> None:
    from evolve import run
    from harness.starter import starter

    page = b"<html>Sign in to the hotel</html>"
    async with serving(answering(page)) as raw:
        with pytest.raises(ModelRefused, match="Sign in to the hotel"):
            await asyncio.to_thread(
                run, starter("small"), "household", n=3, model="openai/tiny", options={"api_base": raw.url},
                out=str(tmp_path / "out"),
            )  # fmt: skip
        assert len(raw.heads) <= 5  # three, and what was asked at the same time


@pytest.mark.parametrize("code", [True, 10**400, 200, -1, 99_999])
async def test_a_code_within_an_answer_that_is_no_status_is_no_status(code: Any) -> None:
    async with serving(answering({"error": {"code": code, "message": "odd"}})) as raw:
        fault = await failure(raw.url)
    assert (type(fault), fault.kind) == (ModelFault, "answer")


async def test_an_answer_that_is_far_too_long_is_a_fault_and_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MOST", 2**20)
    bomb = gzip.compress(b'{"choices": "' + b"x" * 2**24)
    async with serving(answering(bomb, content_encoding="gzip")) as raw:
        assert "answered with more than 1 MB" in str(await failure(raw.url))


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
        b"",
    ],
)
async def test_what_is_no_http_is_a_fault_that_names_the_server(answer: bytes) -> None:
    async def serve(raw: Raw, line: Line) -> None:
        if await raw.read(line):
            await line.raw(answer)

    async with serving(serve) as raw:
        fault = await failure(raw.url)
        assert (type(fault), fault.kind, len(raw.heads)) == (ModelFault, "unreachable", 1)
    assert f"{raw.url} cannot be reached (openai/tiny): " in str(fault)
    assert "\n" not in str(fault)


# what a server says when it fails


def told(message: str, **codes: Any) -> dict[str, Any]:
    return {"error": {"message": message, **codes}}


@pytest.mark.parametrize(
    ("status", "body", "kind", "said"),
    [
        (400, told("odd value", code=None, param="top_p"), ModelRefused, "(400): odd value (top_p)"),
        (400, {"detail": [{"msg": "odd"}]}, ModelRefused, '{"detail": [{"msg": "odd"}]}'),
        (400, {"object": "error", "message": "odd", "type": "BadRequest"}, ModelRefused, "odd (BadRequest)"),
        (400, [told("API key not valid", status="INVALID")], ModelRefused, "(400): API key not valid"),
        (402, told("no credits"), ModelRefused, "no credits"),
        (403, told("region"), ModelRefused, "its rights (403"),
        (405, b"", ModelRefused, "(405)"),
        (408, b"", ModelFault, "did not answer in time"),
        (409, told("busy"), ModelFault, "busy"),
        (413, b"<h1>too\n large</h1>", ModelRefused, "<h1>too large</h1>"),
        (429, told("slow down", type="rate_limit"), ModelFault, "slow down (rate_limit)"),
        (429, told("no money", type="insufficient_quota"), ModelRefused, "no money left"),
        (500, "oops", ModelFault, "answered 500"),
        (501, told("not here"), ModelRefused, "not here"),
        (503, b"\xff\xfe", ModelFault, "answered 503"),
        (529, told("overloaded"), ModelFault, "overloaded"),
        (200, {"error": {"code": 429, "message": "upstream is busy"}}, ModelFault, "answered 429"),
        (200, {"error": {"code": 401, "message": "no"}}, ModelRefused, "refused the key"),
    ],
)  # fmt: skip
async def test_each_failure_of_a_server_has_its_kind_and_its_words(
    status: int, body: Any, kind: type[Exception], said: str
) -> None:
    async with serving(answering(body, status)) as raw:
        error = await failure(raw.url)
    assert type(error) is kind
    assert said in str(error)
    if kind is ModelFault:
        assert error.kind == ("time-out" if status == 408 else str(429 if status == 200 else status))


@pytest.mark.parametrize(
    ("body", "tokens", "limit"),
    [
        (told("the request exceeds", type="exceed_context_size_error", n_prompt_tokens=900, n_ctx=512), 900, 512),
        (told("maximum context length is 4096 tokens, you asked for 5000", code="x"), 5000, 4096),
        (told("no", code="context_length_exceeded"), None, None),
        ({"object": "error", "message": "prompt is too long"}, None, None),
    ],
)
async def test_an_overflow_is_known_by_its_code_or_words(body: Any, tokens: int | None, limit: int | None) -> None:
    async with serving(answering(body, 400)) as raw:
        overflow = await failure(raw.url)
    assert isinstance(overflow, ContextOverflow)
    assert (overflow.tokens, overflow.limit) == (tokens, limit)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "retry-after": "7"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "7"}, 7.0),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "nan"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({}, None),
    ],
)
async def test_the_time_to_wait_is_read_in_all_its_forms(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers) == seconds
    async with serving(
        answering(told("slow down"), 429, **{k.replace("-", "_"): v for k, v in headers.items()})
    ) as raw:
        assert (await failure(raw.url)).retry_after == seconds


def test_a_date_to_wait_for_may_lack_its_zone() -> None:
    soon = datetime.now(UTC) + timedelta(seconds=100)
    for date in (format_datetime(soon, usegmt=True), soon.strftime("%a, %d %b %Y %H:%M:%S")):
        assert retry_after({"retry-after": date}) == pytest.approx(100, abs=5)


# time


@pytest.mark.parametrize("before", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"])
async def test_a_call_takes_no_longer_than_its_time_wherever_the_server_stops(before: bytes) -> None:
    async def serve(raw: Raw, line: Line) -> None:
        if await raw.read(line):
            await line.raw(before)
            await raw.read(line)

    async with serving(serve) as raw:
        fault = await failure(raw.url, timeout=0.2)
        assert (type(fault), fault.kind) == (ModelFault, "time-out")
        assert raw.url in str(fault)


async def test_a_server_that_only_accepts_connections_is_unreachable_before_the_time_of_a_call_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "CONNECT", 0.2)

    async def silent(raw: Raw, line: Line) -> None:
        await line.reader.read()

    async with serving(silent) as raw:  # it never shakes hands for TLS
        fault = await failure(raw.url.replace("http:", "https:"), api_key_env="A_KEY", timeout=60)
    assert (type(fault), fault.kind) == (ModelFault, "unreachable")
    assert "no connection within 0.2 s" in str(fault)


# TLS


def certificate(folder: Path) -> ssl.SSLContext:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed: no certificate can be made")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-keyout", "key.pem", "-out", "cert.pem", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context


async def test_a_certificate_of_nobody_is_a_fault_with_its_cure_and_the_key_stays_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-123456789")
    async with serving(always, tls=certificate(tmp_path)) as raw:
        fault = await failure(raw.url)
    assert isinstance(fault, ModelFault)
    assert "SSL_CERT_FILE" in str(fault)
    assert raw.heads == []


async def test_a_certificate_that_is_named_is_trusted(tmp_path: Path) -> None:
    code = """
        import asyncio, sys
        from harness.model import Message, Request
        from harness.models.openai_api import OpenAIModel

        async def once():
            model = OpenAIModel("tiny", api_base=sys.argv[1])
            print((await model.complete(Request(messages=(Message(role="user", content="x"),)))).text)
            await model.close()

        asyncio.run(once())
    """
    async with serving(always, tls=certificate(tmp_path)) as raw:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-W", "error", "-c", textwrap.dedent(code), raw.url, stdout=subprocess.PIPE,
            env={**os.environ, "SSL_CERT_FILE": str(tmp_path / "cert.pem")},
        )  # fmt: skip
        out, _ = await process.communicate()
    assert out.decode().strip() == "hi"


async def test_http_spoken_to_https_and_the_other_way_round_is_a_fault(tmp_path: Path) -> None:
    async with serving(always, tls=certificate(tmp_path)) as raw:
        assert isinstance(await failure(raw.url.replace("https:", "http:")), ModelFault)
    with Stub() as stub:
        assert isinstance(await failure(stub.url.replace("http:", "https:")), ModelFault)


# proxies


async def test_a_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-123456789")
    async with serving(always) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url.removesuffix("/v1").replace("http://", "http://me:hunter22@"))
        assert (await ask("http://models.invalid/v1", CHAT, CHAT))[0].text == "hi"
    assert proxy.heads[0].startswith("POST http://models.invalid/v1/chat/completions HTTP/1.1")
    assert [line for line in proxy.heads[1].split("\r\n") if line == "Proxy-Authorization: Basic bWU6aHVudGVyMjI="]
    assert proxy.lines == 1


async def test_a_proxy_for_all_gets_a_tunnel_and_never_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-123456789")
    async with serving(answering(b"", 407)) as proxy:
        monkeypatch.setenv("all_proxy", proxy.url.removesuffix("/v1").replace("http://", "http://me:hunter22@"))
        fault = await failure("https://models.invalid/v1")
    assert proxy.heads[0].startswith("CONNECT models.invalid:443 HTTP/1.1")
    assert "sk-1" not in proxy.heads[0]
    assert isinstance(fault, ModelFault)
    assert "407" in str(fault)
    assert "hunter22" not in str(fault)


@pytest.mark.parametrize("skipped", ["127.0.0.1", "localhost,127.0.0.1", "*", "{host}"])
async def test_a_server_that_is_excepted_from_the_proxy_is_asked_directly(
    monkeypatch: pytest.MonkeyPatch, skipped: str
) -> None:
    async with serving(always) as proxy, serving(always) as raw:
        monkeypatch.setenv("http_proxy", proxy.url.removesuffix("/v1"))
        monkeypatch.setenv("no_proxy", skipped.format(host=raw.url.split("/")[2]))
        await ask(raw.url)
    assert (len(raw.heads), proxy.lines) == (1, 0)


async def test_a_proxy_that_is_not_there_is_a_fault_and_its_password_stays_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("http_proxy", "http://me:hunter22@127.0.0.1:9")
    fault = await failure("http://127.0.0.1:8/v1")
    assert isinstance(fault, ModelFault)
    assert "127.0.0.1:9" in str(fault)
    assert "hunter22" not in str(fault)


async def test_a_proxy_of_another_kind_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("all_proxy", "socks5://me:hunter22@127.0.0.1:9")
    refused = await failure("http://127.0.0.1:8/v1")
    assert isinstance(refused, ModelRefused)
    assert "socks5 proxy" in str(refused)
    assert "no_proxy=127.0.0.1" in str(refused)
    assert "hunter22" not in str(refused)


async def test_a_netrc_does_not_get_between_a_key_and_its_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password hunter22\n")
    (tmp_path / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-123")
    async with serving(always) as raw:
        await ask(raw.url)
    assert "Authorization: Bearer sk-123" in raw.heads[0].split("\r\n")
