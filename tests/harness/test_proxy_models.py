"""Behind the proxy: a server gets what the client said, and a model in this process what it can hold."""

from pathlib import Path
from typing import Any

import openai
import pytest
from openai_stub import Stub
from proxying import WEATHER, client, held, serving, user, written

from harness.models.connect import connect
from harness.models.openai_api import OpenAIModel

SCHEMA: Any = {
    "type": "json_schema",
    "json_schema": {
        "name": "weather", "strict": False,
        "schema": {"type": "object", "properties": {"sunny": {"type": "boolean"}}, "required": ["sunny"]},
    },
}  # fmt: skip


async def test_a_server_gets_the_clients_own_words_and_none_of_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THE_KEY", "sk-provider-0123456789")
    with Stub(key="sk-provider-0123456789") as stub:
        model = OpenAIModel("behind", api_base=stub.url, api_key_env="THE_KEY")
        async with serving(tmp_path, model) as (url, _), client(url) as openai_:
            answer = await openai_.chat.completions.create(
                model="whatever", messages=user("Hi"), top_p=0.5, stop="END", response_format=SCHEMA, n=1, user="me",
                stream=True, stream_options={"include_usage": True}, extra_body={"top_k": 20}, tool_choice="none",
            )  # fmt: skip
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in answer if chunk.choices])
        await model.close()
    assert text == '{"sunny": true}'
    [(path, body)] = stub.seen
    assert path == "/v1/chat/completions"
    assert body.pop("seed") is not None
    assert body == {
        "model": "behind", "messages": user("Hi"), "temperature": 1.0, "max_tokens": 2048, "stop": ["END"],
        "top_p": 0.5, "response_format": SCHEMA, "user": "me", "top_k": 20, "tool_choice": "none",
    }  # fmt: skip
    assert stub.keys == ["sk-provider-0123456789"]
    assert b"sk-provider" not in held(tmp_path)
    assert written(tmp_path)[0].turns[0].calls[0].mode == "constrained"


@pytest.mark.parametrize(
    ("fault", "error"),
    [("overflow", "context_length_exceeded"), ("401", "provider_key"), ("quota", "insufficient_quota")],
)
async def test_what_a_server_says_reaches_the_client_as_if_it_had_asked_itself(
    tmp_path: Path, fault: str, error: str
) -> None:
    with Stub(faults=[fault, fault]) as stub:
        model = OpenAIModel("behind", api_base=stub.url)
        async with serving(tmp_path, model) as (url, _), client(url) as openai_:
            with pytest.raises(openai.APIStatusError) as failed:
                await openai_.chat.completions.create(model="m", messages=user("Hi"))
        await model.close()
    assert failed.value.code == error


@pytest.mark.model
async def test_the_embedded_model_answers_with_text_a_schema_and_a_call_and_refuses_what_it_cannot_hold(
    tmp_path: Path,
) -> None:
    model = connect("embedded", {"logprobs": True})
    usual: dict[str, Any] = {
        "temperature": 0, "max_tokens": 24, "top_p": 1, "frequency_penalty": 0, "store": False, "logprobs": True,
        "parallel_tool_calls": False, "metadata": {"a": "b"}, "user": "me",
    }  # fmt: skip
    async with serving(tmp_path, model) as (url, _), client(url) as openai_:
        ask = openai_.chat.completions.create
        plain = await ask(model="m", messages=user("Say hello."), **usual)
        shaped = await ask(model="m", messages=user("Is it sunny?"), response_format=SCHEMA, **usual)
        called = await ask(
            model="m", messages=user("What is the weather in Rome?"), tools=[WEATHER], tool_choice="auto",
            **usual | {"max_tokens": 64},
        )  # fmt: skip
        without = await ask(model="m", messages=user("Hi"), tools=[WEATHER], tool_choice="none", **usual)
        for field in ({"top_k": 5}, {"top_p": 0.5}, {"tool_choice": "required"}):
            with pytest.raises(openai.BadRequestError, match=next(iter(field))):
                await ask(model="m", messages=user("Hi"), extra_body=field)
        with pytest.raises(openai.BadRequestError) as failed:
            await ask(model="m", messages=user("word " * 4000))
    await model.close()
    assert failed.value.code == "context_length_exceeded"
    assert plain.choices[0].message.content
    assert len(plain.choices[0].logprobs.content) == plain.usage.completion_tokens
    assert shaped.choices[0].message.content in ('{"sunny": true}', '{"sunny": false}')
    assert called.choices[0].message.tool_calls or called.choices[0].message.content
    assert not without.choices[0].message.tool_calls
    assert all(turn.calls[0].output_ids for turn in written(tmp_path)[0].turns)
