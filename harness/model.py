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
from typing import Annotated, Any, Literal, Protocol

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
        return Digests().of(self)


class Digests:
    """Digests of requests that follow one another: of a conversation that grows, only what is new is read.

    What is hashed is the request as JSON with sorted keys and no spaces, in ASCII.
    """

    def __init__(self) -> None:
        self._said: tuple[Message, ...] = ()
        self._hash = hashlib.sha256()  # of the request until after `_said`
        self._asked: tuple[object, ...] | None = None
        self._head = self._tail = ""  # what comes before the messages and after them

    def of(self, request: Request) -> str:
        """The digest of `request`."""
        said, known = request.messages, len(self._said)
        if not self._asks_alike(request):
            head, self._tail = _around(request)
            if head != self._head:
                self._head, self._hash, known = head, hashlib.sha256(head.encode()), 0
        if known and said[:known] != self._said:
            self._hash, known = hashlib.sha256(self._head.encode()), 0
        if len(said) > known:
            new = ",".join(map(_spoken, said[known:]))
            self._hash.update((f",{new}" if known else new).encode())
        self._said = said
        whole = self._hash.copy()
        whole.update(self._tail.encode())
        return whole.hexdigest()

    def _asks_alike(self, request: Request) -> bool:
        """Whether all but the messages is surely as it was; JSON data may be equal (1 and true) and not alike."""
        asked: tuple[object, ...] | None = None
        if not request.tools and request.schema_ is None and not request.extra:
            asked = (
                request.choices, request.max_tokens, request.prompt, request.seed, request.stop,
                repr(request.temperature),
            )  # fmt: skip
        before, self._asked = self._asked, asked
        return asked is not None and asked == before


def _around(request: Request) -> tuple[str, str]:
    """What comes before the messages and what comes after them."""
    first: dict[str, Any] = {"choices": request.choices, "max_tokens": request.max_tokens}
    if request.extra:  # it came later than the first journals
        first["extra"] = request.extra
    rest = {
        "prompt": request.prompt, "schema": request.schema_, "seed": request.seed, "stop": request.stop,
        "temperature": request.temperature, "tools": request.tools,
    }  # fmt: skip
    return f'{_json(first)[:-1]},"messages":[', f"],{_json(rest)[1:]}"


_json = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def _spoken(message: Message) -> str:
    """A message as JSON; written out here, since this is done for each message of each call."""
    made = ",".join(
        f'{{"arguments":{_json(call.arguments)},"id":{_json(call.id)},"name":{_json(call.name)}}}'
        for call in message.tool_calls
    )
    said, to = _json(message.content), "null" if message.tool_call_id is None else _json(message.tool_call_id)
    return f'{{"content":{said},"role":"{message.role}","tool_call_id":{to},"tool_calls":[{made}]}}'


#: What a budget can add up: no number of tokens is below 0 or beyond what a float holds, no price or time is NaN.
Tokens = Annotated[int, Field(ge=0, le=2**53)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Usage(BaseModel):
    """Cost of one call. `dollars` None means unknown, which is not the same as free."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    prompt_tokens: Tokens = 0
    cached_tokens: Tokens = 0
    output_tokens: Tokens = 0
    dollars: Amount | None = None
    seconds: Amount = 0.0


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
