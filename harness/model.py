"""A language model is one async method: a request in, a completion out, and every cost of it counted.

A request is a chat (`messages`), or plain `prompt` text for models that continue better than they converse. It may
constrain the answer to a JSON schema or to one of `choices`; a backend that cannot hold a constraint says so
(`ModelRefused`) and never ignores it. Failures are of three kinds, because they mean different things to a run:
`ModelRefused` (our request or key is wrong: stop), `ModelFault` (the service failed: missing data, try again),
`ContextOverflow` (the harness wrote too much: its own failure). A bad answer is no error: it is the model's own.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, JsonValue


class ModelRefused(Exception):
    """The request can never work (wrong key, unknown model, unsupported constraint): stop and tell the user.

    `status` and `said`: the server's HTTP status and words, where it was the server that refused.
    """

    def __init__(self, message: str, *, status: int | None = None, said: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.said = said


class ModelFault(Exception):
    """The service failed this time (unreachable, rate limit, time-out, 5xx). `retry_after`: seconds, if it said so.

    `transient` False: asking again gives the same, and other requests may well be answered (a content filter).
    `kind`: an HTTP status, "unreachable", "time-out", or "answer" for one that is no completion; "429" is a rate limit.
    """

    transient = True
    kind = "fault"

    def __init__(
        self, message: str, *, retry_after: float | None = None, transient: bool = True, kind: str = "fault"
    ) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.transient = transient
        self.kind = kind


class ContextOverflow(Exception):
    """The prompt does not fit the model: shorten it; trying again is useless. `tokens`, `limit`: None where untold."""

    def __init__(self, message: str, *, tokens: int | None = None, limit: int | None = None) -> None:
        super().__init__(message)
        self.tokens = tokens
        self.limit = limit


class ToolCall(BaseModel):
    """A function the model wants called. `arguments` is raw JSON text: it may be malformed, and then says so later."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    name: str
    arguments: str


class Message(BaseModel):
    """One chat message; `tool_calls` on the assistant's, `tool_call_id` on a tool's answer."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None


class Request(BaseModel):
    """What is asked: `messages` or `prompt`, not both; at most one of `choices` and `schema_` (a JSON schema)."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    messages: tuple[Message, ...] = ()
    prompt: str | None = None
    choices: tuple[str, ...] | None = None
    schema_: dict[str, JsonValue] | None = Field(default=None, alias="schema")
    tools: tuple[dict[str, JsonValue], ...] = ()  # OpenAI function tools: {"type": "function", "function": {...}}
    temperature: float = 0.0
    max_tokens: int = 256
    stop: tuple[str, ...] = ()
    seed: int | None = None
    extra: dict[str, JsonValue] = Field(default_factory=dict)  # other fields of a server's API, sent as they are

    def digest(self) -> str:
        """Hash of the content: equal requests have equal digests on every machine, and in every version."""
        content = self.model_dump(mode="json", by_alias=True)
        if not self.extra:
            del content["extra"]  # it came later than the first journals
        text = json.dumps(content, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


class Usage(BaseModel):
    """Cost of one call. `dollars` None means unknown, which is not the same as free."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    dollars: float | None = None
    seconds: float = 0.0


#: How an answer was held to choices or a schema: by the server, or by matching its plain text.
Mode = Literal["constrained", "plain"]


class Completion(BaseModel):
    """What came back. Token ids and logprobs are kept when the server gives them (training needs the sampled ids)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str = "stop"
    mode: Mode | None = None
    usage: Usage = Usage()
    prompt_ids: tuple[int, ...] | None = None
    output_ids: tuple[int, ...] | None = None
    output_logprobs: tuple[float, ...] | None = None


class Model(Protocol):
    """Any language model. `name` goes into the journal and the run key.

    One that has `deterministic = True` gives equal requests equal answers, and is not asked again what the run's record
    knows. Others are asked anew in each episode, so that repeats show how much they vary.
    """

    @property
    def name(self) -> str: ...

    async def complete(self, request: Request) -> Completion:
        """Answer `request`; raises ModelRefused, ModelFault or ContextOverflow, nothing else."""
        ...

    async def close(self) -> None:
        """Free connections, threads and memory; idempotent."""
        ...


#: Settings of a backend from `[model]` in harness.toml: name, api_base, api_key_env, timeout, threads, gguf, ...
ModelOptions = Mapping[str, Any]
