"""A GGUF file run inside this process: no server to start, no key, and the event loop never waits for C++.

A choice is held by a grammar over the model's own tokens, a schema by a grammar over JSON, and tools are a schema;
what llama.cpp cannot hold is refused.
"""

import asyncio
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.model import Completion, ContextOverflow, ModelFault, ModelRefused, Request, ToolCall, Usage
from harness.models import figures
from harness.models.grammar import check_choices, check_json, schema_grammar, tools_read, tools_schema, tools_told
from harness.models.llama import Instance, Job, Pool, library


class GGUFModel:
    """A local model. `instances` copies work in parallel, each with `threads` threads and `context` tokens.

    The file is checked at once (ModelRefused names it), loaded at the first request. `logprobs` also returns the ids
    and log-probabilities of the output: the model's own distribution, before temperature and constraint. `reuse` False
    forgets every prompt: slower by far, but the answer then never depends, by a rounding, on what was asked before.
    """

    deterministic = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        threads: int = 1,
        instances: int = 1,
        context: int = 2048,
        name: str | None = None,
        logprobs: bool = False,
        reuse: bool = True,
    ) -> None:
        for label, value in (("threads", threads), ("instances", instances), ("context", context)):
            if value < 1:
                raise ModelRefused(f"{label} = {value}: a GGUF model needs at least 1")
        self.path = check_gguf(path)
        library()
        self.name = name or f"gguf/{self.path.stem}"
        self.context = context
        self._logprobs = logprobs
        self._reuse = reuse
        self._pool = Pool([Instance(self.path, threads, context) for _ in range(instances)])

    async def complete(self, request: Request) -> Completion:
        """Answer `request`. A choice is always one of the choices: `max_tokens` and `stop` do not cut it."""
        job = _job(request, self._logprobs, self._reuse)
        seconds, answer = await asyncio.wrap_future(self._pool.submit(job))
        try:
            return self._read(request, answer, job.lead, seconds)
        except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:  # it would say the same again
            said = f"({error!r}): {answer}"[:300]
            raise ModelFault(
                f"{self.name} answered with something that is no completion {said}", kind="answer", transient=False
            ) from error

    async def close(self) -> None:
        """Let running requests end, refuse waiting ones, free the copies and their threads; idempotent."""
        await asyncio.gather(*(asyncio.wrap_future(done) for done in self._pool.close()))
        self._pool.join()

    def _read(self, request: Request, answer: Mapping[str, Any], lead: str, seconds: float) -> Completion:
        if error := answer.get("error"):
            raise _fault(error, self.name)
        choice, timings = answer["choices"][0], answer["timings"]
        text: str = choice["text"] if request.prompt is not None else choice["message"]["content"] or ""
        finish = str(choice["finish_reason"])
        calls: tuple[ToolCall, ...] = ()
        used = answer["usage"]
        prompt_tokens, output_tokens = figures.count(used["prompt_tokens"]), figures.count(used["completion_tokens"])
        if request.choices is not None:
            text = text.removeprefix(lead)
            if text not in request.choices:  # the grammar allows nothing else, so the context ended first
                raise ContextOverflow(
                    f"{self.name}: {prompt_tokens} prompt tokens leave no room for an answer in {self.context}: "
                    "shorten the prompt or raise 'context'",
                    tokens=prompt_tokens + output_tokens,
                    limit=self.context,
                )
        elif request.schema_ is not None and finish == "stop" and not request.stop:
            check_json(text, request.schema_)
        elif request.tools:
            text, calls = tools_read(text, request)
            finish = "tool_calls" if calls else finish
        tokens = (choice.get("logprobs") or {}).get("content")
        return Completion(
            text=text,
            tool_calls=calls,
            finish_reason=finish,
            mode="constrained" if request.choices is not None or request.schema_ is not None else None,
            usage=Usage(
                prompt_tokens=prompt_tokens,
                cached_tokens=figures.count(timings["cache_n"]),
                output_tokens=output_tokens,
                dollars=0.0,
                seconds=seconds,
            ),
            output_ids=figures.ids([t["id"] for t in tokens]) if tokens else None,
            output_logprobs=figures.logprobs([t["logprob"] for t in tokens]) if tokens else None,
        )


def check_gguf(path: str | os.PathLike[str]) -> Path:
    """`path` if it begins like a GGUF file, else ModelRefused that names it. Looks at 24 bytes, not at the weights."""
    file = Path(path).expanduser()
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            head = stream.read(24)
    except OSError as error:
        raise ModelRefused(f"the model file {file} cannot be read ({error.strerror}): check the path") from error
    if head[:4] != b"GGUF":
        raise ModelRefused(f"{file} is not a GGUF file (it begins with {head[:4]!r}): hand in a .gguf model")
    if len(head) < 24 or size < 1024:
        raise ModelRefused(f"{file} is a GGUF file of only {size} bytes, so it is cut short: fetch it again")
    return file


def _job(request: Request, logprobs: bool, reuse: bool) -> Job:
    """The request in llama.cpp's words; ModelRefused when it contradicts itself or asks for what cannot be held."""
    if (request.prompt is not None) == bool(request.messages):
        raise ModelRefused("a request needs either messages or a prompt, and not both")
    if sum((request.choices is not None, request.schema_ is not None, bool(request.tools))) > 1:
        raise ModelRefused("a GGUF model holds one constraint at a time: choices, schema or tools")
    if request.extra:
        raise ModelRefused(f"a GGUF model in this process takes no {', '.join(sorted(request.extra))}: leave it out")
    body: dict[str, Any] = {
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "samplers": ["temperature"],  # nothing but the temperature shapes the distribution: no hidden top-k
        "cache_prompt": reuse,
        "stop": list(request.stop),
    }
    if request.seed is not None:
        body["seed"] = request.seed % 0xFFFFFFFF  # 32 bits there, and the highest number would mean "any"
    lead = end = ""
    if request.prompt is not None:
        if request.tools:
            raise ModelRefused("tools need messages, not a plain prompt")
        body["prompt"] = request.prompt
        lead = " " if request.prompt and not request.prompt[-1].isspace() else ""
        end = "\n"  # a plain text goes on after an action: the line's end must compete with "1" -> "10"
    else:
        body["messages"] = [{"role": said.role, "content": said.content} for said in tools_told(request)]
    if logprobs:
        body |= {"logprobs": 1} if request.prompt is not None else {"logprobs": True, "top_logprobs": 1}
    answers: tuple[str, ...] = ()
    if request.choices is not None:
        check_choices(request.choices)
        end = "" if any("\n" in choice for choice in request.choices) else end
        answers = tuple(lead + choice + end for choice in request.choices)
        body["max_tokens"] = 4 + max(len(answer.encode("utf-8", "replace")) for answer in answers)
        body["stop"] = [end] if end else []
    elif request.schema_ is not None:
        body["grammar"] = schema_grammar(request.schema_)
    elif request.tools:
        body["grammar"] = schema_grammar(tools_schema(request.tools))
    try:
        text = json.dumps([body, answers], ensure_ascii=False)
        text.encode()
    except UnicodeEncodeError as error:
        raise ModelRefused(f"the request holds a character that is no text ({error.reason}): clean it first") from error
    return Job(body, request.prompt if request.prompt is not None else text, lead, answers)


def _fault(error: Mapping[str, Any], name: str) -> Exception:
    message = f"{name}: {error.get('message')}"
    if error.get("type") == "exceed_context_size_error":
        return ContextOverflow(message, tokens=error.get("n_prompt_tokens"), limit=error.get("n_ctx"))
    return ModelRefused(message) if error.get("code") == 400 else ModelFault(message)
