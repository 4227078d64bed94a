"""OpenAI's own client cannot tell the proxy from OpenAI: chat, streams, tools, schemas, and what is refused."""

import json
from pathlib import Path
from typing import Any

import openai
import pytest
from proxying import WEATHER, Scripted, client, post, said, serving, user, written

from harness.model import Message, ToolCall
from harness.proxy.refusal import Refusal
from harness.proxy.wire_in import Defaults, read_chat


async def test_an_answer_has_text_usage_and_finish_reason_and_is_a_turn_of_the_journal(tmp_path: Path) -> None:
    async with serving(tmp_path, lambda request: said("Hello.")) as (url, _), client(url) as openai_:
        answer = await openai_.chat.completions.create(model="whatever", messages=user("Hi"))
    assert answer.choices[0].message.content == "Hello."
    assert answer.choices[0].finish_reason == "stop"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (7, 3, 10)
    [trajectory] = written(tmp_path)
    assert (trajectory.task, trajectory.goal, trajectory.score) == ("task", "Hi", None)
    assert (trajectory.status, trajectory.reason) == ("truncated", "the proxy was stopped")
    [turn] = trajectory.turns
    assert (turn.observation, turn.action) == ("Hi", "Hello.")
    assert turn.calls[0].usage.dollars == 0.5


async def test_tool_calls_go_out_and_their_results_come_back_as_the_client_has_them(tmp_path: Path) -> None:
    model = Scripted(
        lambda request: (
            said("", ("weather", '{"city": "Rome"}'))
            if request.messages[-1].role == "user"
            else said(f"It is {request.messages[-1].content}.")
        )
    )
    async with serving(tmp_path, model) as (url, _), client(url) as openai_:
        messages: list[Any] = [{"role": "developer", "content": "Be brief."}, *user("Weather in Rome?")]
        first = await openai_.chat.completions.create(
            model="m", messages=messages, tools=[WEATHER], tool_choice="auto", parallel_tool_calls=False
        )
        assert first.choices[0].finish_reason == "tool_calls"
        assert first.choices[0].message.content is None
        [call] = first.choices[0].message.tool_calls
        assert json.loads(call.function.arguments) == {"city": "Rome"}
        messages += [first.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
        second = await openai_.chat.completions.create(model="m", messages=messages, tools=[WEATHER])
    assert second.choices[0].message.content == "It is sunny."
    asked = model.asked[1].messages
    assert asked[0] == Message(role="system", content="Be brief.")
    assert asked[2].tool_calls == (ToolCall(id=call.id, name="weather", arguments='{"city": "Rome"}'),)
    assert asked[3].tool_call_id == call.id
    assert model.asked[0].extra == {"tool_choice": "auto", "parallel_tool_calls": False}
    turns = written(tmp_path)[0].turns
    assert [turn.observation for turn in turns] == ["Weather in Rome?", "sunny"]
    assert json.loads(turns[0].action) == [{"name": "weather", "arguments": '{"city": "Rome"}'}]


@pytest.mark.parametrize("usage", [True, False])
async def test_a_stream_carries_text_calls_and_the_usage_that_was_asked_for(tmp_path: Path, usage: bool) -> None:
    answer = said("Let me see.", ("weather", '{"city": "Rome"}'), ("weather", '{"city": "Oslo"}'))
    async with serving(tmp_path, lambda request: answer) as (url, _), client(url) as openai_:
        stream = await openai_.chat.completions.create(
            model="m", messages=user("Weather?"), tools=[WEATHER], stream=True,
            **({"stream_options": {"include_usage": True}} if usage else {}),
        )  # fmt: skip
        chunks = [chunk async for chunk in stream]
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert deltas[0].role == "assistant"
    assert "".join(delta.content or "" for delta in deltas) == "Let me see."
    calls: dict[int, list[str]] = {}
    for part in (part for delta in deltas for part in delta.tool_calls or ()):
        calls.setdefault(part.index, ["", ""])
        calls[part.index][0] += part.function.name or ""
        calls[part.index][1] += part.function.arguments or ""
    assert calls == {0: ["weather", '{"city": "Rome"}'], 1: ["weather", '{"city": "Oslo"}']}
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "tool_calls"
    assert [c.usage.total_tokens for c in chunks if c.usage] == ([10] if usage else [])
    assert len({chunk.id for chunk in chunks}) == 1


async def test_the_stream_helper_of_the_sdk_puts_the_answer_together_again(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, lambda request: said("Sunny.")) as (url, _),
        client(url) as openai_,
        openai_.chat.completions.stream(model="m", messages=user("Weather?")) as stream,
    ):
        final = await stream.get_final_completion()
    assert final.choices[0].message.content == "Sunny."


async def test_logprobs_and_token_ids_come_back_where_they_were_asked_for_and_known(tmp_path: Path) -> None:
    answer = said("Hi", prompt_ids=(1, 2), output_ids=(5, 6), output_logprobs=(-0.1, -0.2))
    async with serving(tmp_path, lambda request: answer) as (url, _), client(url) as openai_:
        asked = await openai_.chat.completions.create(
            model="m", messages=user("Hi"), logprobs=True, extra_body={"return_token_ids": True}
        )
        plain = await openai_.chat.completions.create(model="m", messages=user("Hi"))
    content = asked.choices[0].logprobs.content
    assert [(part.token, part.logprob) for part in content] == [("token_id:5", -0.1), ("token_id:6", -0.2)]
    assert asked.choices[0].model_extra["token_ids"] == [5, 6]
    assert asked.model_extra["prompt_token_ids"] == [1, 2]
    assert plain.choices[0].logprobs is None
    [trajectory] = written(tmp_path)
    assert trajectory.turns[1].calls[0].output_ids == (5, 6)


async def test_a_schema_is_held_and_parsed_by_the_client(tmp_path: Path) -> None:
    from pydantic import BaseModel

    class Weather(BaseModel):
        degrees: int

    model = Scripted(lambda request: said('{"degrees": 21}'))
    async with serving(tmp_path, model) as (url, _), client(url) as openai_:
        answer = await openai_.chat.completions.parse(model="m", messages=user("?"), response_format=Weather)
    assert answer.choices[0].message.parsed == Weather(degrees=21)
    [request] = model.asked
    assert request.schema_["required"] == ["degrees"]
    assert request.extra["response_format"]["json_schema"]["name"] == "Weather"


def test_what_a_client_says_is_kept_and_what_it_leaves_out_has_the_defaults() -> None:
    said = {
        "model": "m", "messages": user("Hi"), "temperature": 0.3, "max_completion_tokens": 9, "max_tokens": 5,
        "stop": "END", "seed": 4, "top_p": 0.9, "frequency_penalty": None, "reasoning_effort": "low", "n": 1,
        "user": "u", "stream_options": {"include_usage": True}, "top_k": 20,
    }  # fmt: skip
    request = read_chat(said, Defaults()).request
    assert (request.temperature, request.max_tokens, request.stop, request.seed) == (0.3, 9, ("END",), 4)
    assert request.extra == {"top_p": 0.9, "reasoning_effort": "low", "user": "u", "top_k": 20}
    bare = read_chat({"messages": user("Hi")}, Defaults(temperature=0.0, max_tokens=64)).request
    assert (bare.temperature, bare.max_tokens, bare.extra) == (0.0, 64, {})


def test_parts_of_text_are_joined_and_idle_fields_of_a_message_are_left_out() -> None:
    parts = [{"type": "text", "text": "One.", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "Two."}]
    messages = [
        {"role": "user", "content": parts},
        {
            "role": "assistant",
            "content": None,
            "refusal": "No.",
            "function_call": None,
            "annotations": [],
            "audio": None,
        },
        {"role": "tool", "tool_call_id": "c", "name": "weather", "content": [{"type": "text", "text": "sunny"}]},
        {"role": "user", "content": []},
    ]
    asked = read_chat({"messages": messages}, Defaults()).request.messages
    assert [message.content for message in asked] == ["One.\nTwo.", "No.", "sunny", ""]


CANNOT = [
    ({"messages": []}, "messages"),
    ({}, "messages"),
    ({"messages": user("x"), "n": 2}, "n"),
    ({"messages": user("x"), "functions": [{}]}, "functions"),
    ({"messages": user("x"), "modalities": ["text", "audio"]}, "modalities"),
    ({"messages": user("x"), "tools": [{"type": "custom"}]}, "tools[0]"),
    ({"messages": user("x"), "max_tokens": 0}, "max_tokens"),
    ({"messages": user("x"), "temperature": -1}, "temperature"),
    ({"messages": user("x"), "temperature": float("nan")}, "temperature"),
    ({"messages": user("x"), "stop": [3]}, "stop"),
    ({"messages": user("x"), "stream": "yes"}, "stream"),
    ({"messages": user("x"), "seed": True}, "seed"),
    ({"messages": user("x"), "response_format": {"type": "json_schema"}}, "response_format"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": "x", "name": "Bob"}]}, "messages[0].name"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
    ({"messages": [{"role": "assistant", "content": "", "reasoning_content": "hm"}]}, "messages[0].reasoning_content"),
    ({"messages": [{"role": "assistant", "tool_calls": [{"type": "custom"}]}]}, "messages[0].tool_calls[0]"),
    ({"messages": user([{"type": "image_url", "image_url": {"url": "x"}}])}, "messages[0].content[0]"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("body", "param"), CANNOT, ids=[param for _, param in CANNOT])
def test_what_cannot_be_held_is_refused_with_the_field_that_says_it(body: dict[str, Any], param: str) -> None:
    with pytest.raises(Refusal) as refused:
        read_chat(body, Defaults())
    assert refused.value.status == 400
    assert refused.value.body["error"]["param"] == param


async def test_a_refusal_reaches_the_client_as_its_own_exception_and_nothing_is_asked(tmp_path: Path) -> None:
    model = Scripted(lambda request: said("?"))
    picture: Any = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}]}]
    async with serving(tmp_path, model) as (url, _), client(url) as openai_:
        with pytest.raises(openai.BadRequestError, match="only text can be held for now") as refused:
            await openai_.chat.completions.create(model="m", messages=picture)
        assert refused.value.param == "messages[0].content[0]"
        status, body = await post(f"{url}/v1/chat/completions", [1], Authorization="Bearer sk-instar-x")
    assert (status, body["error"]["message"]) == (400, "the body must be a JSON object")
    assert model.asked == []
    assert written(tmp_path) == []


async def test_models_are_listed_and_an_unknown_path_is_an_error_in_the_same_shape(tmp_path: Path) -> None:
    async with serving(tmp_path, lambda request: said("?")) as (url, _), client(url) as openai_:
        assert [model.id async for model in openai_.models.list()] == ["scripted"]
        assert (await openai_.models.retrieve("scripted")).owned_by == "instar"
        with pytest.raises(openai.NotFoundError, match="answered by this proxy's"):
            await openai_.models.retrieve("gpt-9")
        with pytest.raises(openai.NotFoundError, match="/v1/embeddings"):
            await openai_.embeddings.create(model="m", input="x")
