"""A `Completion` in the words of OpenAI's API: as one object, or as the events of a stream.

The models here answer at once and whole, so a stream is the whole answer in well-formed pieces. Logprobs are told under
the ids of their tokens, since the texts of single tokens are not kept.
"""

import secrets
import time
from collections.abc import Iterator, Mapping
from typing import Any

from harness.model import Completion
from harness.proxy.wire_in import Asked


def chat_answer(completion: Completion, asked: Asked, model: str) -> dict[str, Any]:
    """The `chat.completion` object."""
    message: dict[str, Any] = {"role": "assistant", "content": _content(completion), "refusal": None}
    if completion.tool_calls:
        message["tool_calls"] = _calls(completion)
    choice = {
        "index": 0, "message": message, "logprobs": _logprobs(completion) if asked.logprobs else None,
        "finish_reason": _finish(completion),
    }  # fmt: skip
    answer = _head("chat.completion", model) | {"choices": [choice], "usage": _usage(completion)}
    if asked.token_ids:  # as vLLM has them
        choice["token_ids"] = completion.output_ids
        answer["prompt_token_ids"] = completion.prompt_ids
    return answer


def chat_chunks(completion: Completion, asked: Asked, model: str) -> Iterator[dict[str, Any]]:
    """The `chat.completion.chunk` objects of a stream."""
    head = _head("chat.completion.chunk", model) | ({"usage": None} if asked.usage else {})

    def chunk(delta: Mapping[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
        choice = {"index": 0, "delta": dict(delta), "logprobs": None, "finish_reason": finish, **more}
        return head | {"choices": [choice]}

    yield chunk({"role": "assistant", "content": "", "refusal": None})
    if completion.text:
        more: dict[str, Any] = {"logprobs": _logprobs(completion)} if asked.logprobs else {}
        if asked.token_ids:
            more["token_ids"] = completion.output_ids
        yield chunk({"content": completion.text}, **more)
    for number, call in enumerate(_calls(completion)):
        function = call["function"]
        yield chunk({"tool_calls": [call | {"index": number, "function": function | {"arguments": ""}}]})
        if function["arguments"]:
            yield chunk({"tool_calls": [{"index": number, "function": {"arguments": function["arguments"]}}]})
    yield chunk({}, _finish(completion))
    if asked.usage:
        yield head | {"choices": [], "usage": _usage(completion)}


def response_answer(completion: Completion, asked: Asked, model: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """The `response` object, with what the client's `body` said repeated in it as OpenAI does."""
    cut = completion.finish_reason == "length"
    status = "incomplete" if cut else "completed"
    output: list[dict[str, Any]] = []
    if completion.text or not completion.tool_calls:
        part = {"type": "output_text", "text": completion.text, "annotations": [], "logprobs": []}
        output.append(
            {"id": _id("msg"), "type": "message", "role": "assistant", "status": status, "content": [part]}
        )  # fmt: skip
    for call in completion.tool_calls:
        output.append(
            {"id": _id("fc"), "type": "function_call", "status": "completed", "call_id": call.id, "name": call.name,
             "arguments": call.arguments}
        )  # fmt: skip
    used = completion.usage
    return {
        "id": _id("resp"), "object": "response", "created_at": int(time.time()), "status": status, "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "instructions": body.get("instructions"), "max_output_tokens": asked.request.max_tokens, "model": model,
        "output": output, "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
        "previous_response_id": body.get("previous_response_id"), "temperature": asked.request.temperature,
        "text": body.get("text") or {"format": {"type": "text"}}, "tool_choice": body.get("tool_choice") or "auto",
        "tools": body.get("tools") or [], "top_p": body.get("top_p"), "truncation": "disabled",
        "metadata": body.get("metadata") or {}, "store": body.get("store") is not False,
        "usage": {
            "input_tokens": used.prompt_tokens, "input_tokens_details": {"cached_tokens": used.cached_tokens},
            "output_tokens": used.output_tokens, "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": used.prompt_tokens + used.output_tokens,
        },
    }  # fmt: skip


def response_events(answer: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The events of a stream that ends in `answer`."""
    for number, event in enumerate(_events(answer)):
        yield event | {"sequence_number": number}


def _events(answer: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    begun = {**answer, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for index, item in enumerate(answer["output"]):
        where = {"output_index": index, "item_id": item["id"]}
        message = item["type"] == "message"
        empty: dict[str, Any] = {"content": []} if message else {"arguments": ""}
        bare = item | {"status": "in_progress"} | empty
        yield {"type": "response.output_item.added", "output_index": index, "item": bare}
        if message:
            part = item["content"][0]
            inside = where | {"content_index": 0}
            yield {"type": "response.content_part.added", **inside, "part": part | {"text": ""}}
            if part["text"]:
                yield {"type": "response.output_text.delta", **inside, "delta": part["text"], "logprobs": []}
            yield {"type": "response.output_text.done", **inside, "text": part["text"], "logprobs": []}
            yield {"type": "response.content_part.done", **inside, "part": part}
        else:
            told = item["arguments"]
            yield {"type": "response.function_call_arguments.delta", **where, "delta": told}
            yield {"type": "response.function_call_arguments.done", **where, "arguments": told, "name": item["name"]}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": f"response.{answer['status']}", "response": dict(answer)}


def models(names: list[str]) -> dict[str, Any]:
    """The list of models."""
    return {"object": "list", "data": [model(name) for name in names]}


def model(name: str) -> dict[str, Any]:
    """One model."""
    return {"id": name, "object": "model", "created": 0, "owned_by": "instar"}


def _head(kind: str, name: str) -> dict[str, Any]:
    return {"id": _id("chatcmpl"), "object": kind, "created": int(time.time()), "model": name}


def _id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(12)}" if kind != "chatcmpl" else f"chatcmpl-{secrets.token_hex(12)}"


def _content(completion: Completion) -> str | None:
    return completion.text if completion.text or not completion.tool_calls else None


def _finish(completion: Completion) -> str:
    return "tool_calls" if completion.tool_calls and completion.finish_reason == "stop" else completion.finish_reason


def _calls(completion: Completion) -> list[dict[str, Any]]:
    return [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in completion.tool_calls
    ]


def _usage(completion: Completion) -> dict[str, Any]:
    used = completion.usage
    return {
        "prompt_tokens": used.prompt_tokens, "completion_tokens": used.output_tokens,
        "total_tokens": used.prompt_tokens + used.output_tokens,
        "prompt_tokens_details": {"cached_tokens": used.cached_tokens},
    }  # fmt: skip


def _logprobs(completion: Completion) -> dict[str, Any] | None:
    if completion.output_logprobs is None:
        return None
    ids = completion.output_ids or ()
    return {
        "content": [
            {"token": f"token_id:{ids[n]}" if n < len(ids) else "", "logprob": logprob, "bytes": None,
             "top_logprobs": []}
            for n, logprob in enumerate(completion.output_logprobs)
        ],
        "refusal": None,
    }  # fmt: skip
