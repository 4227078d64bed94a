"""A GGUF file run inside this process: no server to start, no key, and the event loop never waits for C++.

llama.cpp blocks its caller, so each loaded copy of the model (an instance) owns one thread and does one request at a
time; a request goes to the idle instance that already knows most of its prompt. Threads and copies belong to the
model, not to an event loop: loops may come and go, and a cancelled caller only stops listening.
"""

import asyncio
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.model import Completion, ContextOverflow, ModelFault, ModelRefused, Request, Usage
from harness.models.grammar import choices_grammar, schema_grammar, tools_read, tools_schema, tools_told

#: Memory in MiB that an instance may use to keep the prompts of other episodes warm while it works on one.
PROMPT_CACHE_MIB = 512


class GGUFModel:
    """A local model. `instances` copies work in parallel, each with `threads` threads and `context` tokens.

    The file is checked at once (ModelRefused names it), loaded at the first request. `logprobs` also returns the ids
    and log-probabilities of the output: the model's own distribution, before temperature and constraint.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        threads: int = 1,
        instances: int = 1,
        context: int = 2048,
        name: str | None = None,
        logprobs: bool = False,
    ) -> None:
        for label, value in (("threads", threads), ("instances", instances), ("context", context)):
            if value < 1:
                raise ModelRefused(f"{label} = {value}: a GGUF model needs at least 1")
        self.path = check_gguf(path)
        _library()
        self.name = name or f"gguf/{self.path.stem}"
        self.context = context
        self._logprobs = logprobs
        self._pool = _Pool([_Instance(self.path, threads, context) for _ in range(instances)])

    async def complete(self, request: Request) -> Completion:
        """Answer `request`. A choice is always one of the choices: `max_tokens` and `stop` do not cut it."""
        body, lead = _body(request, self._logprobs)
        key = request.prompt if request.prompt is not None else repr(body["messages"])
        seconds, answer = await asyncio.wrap_future(self._pool.submit(_Job(body, key)))
        return self._read(request, answer, lead, seconds)

    async def close(self) -> None:
        """Let running requests end, refuse waiting ones, free the copies and their threads; idempotent."""
        await asyncio.gather(*(asyncio.wrap_future(done) for done in self._pool.close()))
        self._pool.join()

    def _read(self, request: Request, answer: Mapping[str, Any], lead: str, seconds: float) -> Completion:
        if error := answer.get("error"):
            raise _fault(error, self.name)
        choice, timings = answer["choices"][0], answer["timings"]
        text: str = choice["text"] if request.prompt is not None else choice["message"]["content"] or ""
        finish, calls = str(choice["finish_reason"]), ()
        prompt_tokens, output_tokens = answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]
        if request.choices is not None:
            text = text.removeprefix(lead)
            if text not in request.choices:  # the grammar allows nothing else, so the context ended first
                raise ContextOverflow(
                    f"{self.name}: {prompt_tokens} prompt tokens leave no room for an answer in {self.context}: shorten "
                    "the prompt or raise 'context'",
                    tokens=prompt_tokens + output_tokens,
                    limit=self.context,
                )
        elif request.tools:
            text, calls = tools_read(text, request)
            finish = "tool_calls" if calls else finish
        tokens = (choice.get("logprobs") or {}).get("content")
        return Completion(
            text=text,
            tool_calls=calls,
            finish_reason=finish,
            usage=Usage(
                prompt_tokens=prompt_tokens,
                cached_tokens=timings["cache_n"],
                output_tokens=output_tokens,
                dollars=0.0,
                seconds=seconds,
            ),
            model=self.name,
            output_ids=tuple(t["id"] for t in tokens) if tokens else None,
            output_logprobs=tuple(t["logprob"] for t in tokens) if tokens else None,
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


def _library() -> Any:
    try:
        import xllamacpp
    except ImportError as error:
        raise ModelRefused(f"a GGUF model needs xllamacpp ({error}): pip install 'instar[local]'") from error
    return xllamacpp


@dataclass(eq=False)
class _Job:
    """One request on its way: `key` is its text, compared with what an instance has seen."""

    body: dict[str, Any]
    key: str
    future: "Future[tuple[float, dict[str, Any]]]" = field(default_factory=Future)


class _Instance:
    """One loaded copy of the model and the one thread that may touch it."""

    def __init__(self, path: Path, threads: int, context: int) -> None:
        self.path, self.threads, self.context = path, threads, context
        self.executor = ThreadPoolExecutor(1, thread_name_prefix=f"gguf-{path.stem}")
        self.seen: deque[str] = deque(maxlen=16)
        self._server: Any = None

    def run(self, body: dict[str, Any]) -> dict[str, Any]:
        if self._server is None:
            self._server = self._load()
        ask = self._server.handle_completions if "prompt" in body else self._server.handle_chat_completions
        answer: dict[str, Any] = ask(body)
        return answer

    def unload(self) -> None:
        self._server = None  # its destructor ends llama.cpp's own threads

    def _load(self) -> Any:
        library = _library()
        params = library.CommonParams()
        params.model.path = str(self.path)
        params.n_ctx = self.context
        params.n_parallel = 1
        params.n_gpu_layers = 0
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = self.threads
        params.cache_ram_mib = PROMPT_CACHE_MIB
        params.warmup = params.fit_params = params.ui = False
        params.verbosity = -1
        params.n_threads_http = 1
        params.api_keys = [secrets.token_hex(16)]  # it also listens on a local port, which nobody else shall use
        try:
            return library.Server(params)
        except RuntimeError as error:
            raise ModelRefused(
                f"{self.path} cannot be loaded (cut short, damaged, or of an unknown kind): fetch it again ({error})"
            ) from error

    def overlap(self, key: str) -> int:
        """How many leading characters of `key` this instance has worked on before."""
        return max((_shared(key, other) for other in self.seen), default=0)


class _Pool:
    """Hands each job to the idle instance that knows most of it; first come, first served."""

    def __init__(self, instances: list[_Instance]) -> None:
        self._instances = instances
        self._idle = list(instances)
        self._waiting: deque[_Job] = deque()
        self._lock = threading.Lock()
        self._closed = False

    def submit(self, job: _Job) -> "Future[tuple[float, dict[str, Any]]]":
        with self._lock:
            if self._closed:
                raise ModelRefused("this GGUF model is closed: open it again")
            self._waiting.append(job)
            self._dispatch()
        return job.future

    def close(self) -> "list[Future[None]]":
        """Refuse what waits; the futures end when the instances are unloaded."""
        with self._lock:
            if self._closed:
                return []
            self._closed = True
            waiting, self._waiting = self._waiting, deque()
            unloading = [instance.executor.submit(instance.unload) for instance in self._instances]
        for job in waiting:
            if job.future.set_running_or_notify_cancel():
                job.future.set_exception(ModelFault("the GGUF model was closed before it came to this request"))
        return unloading

    def join(self) -> None:
        for instance in self._instances:
            instance.executor.shutdown()

    def _dispatch(self) -> None:  # the lock is held
        while self._idle and self._waiting:
            job = self._waiting.popleft()
            if job.future.set_running_or_notify_cancel():
                instance = max(self._idle, key=lambda idle: idle.overlap(job.key))  # noqa: B023 used at once
                self._idle.remove(instance)
                instance.seen.append(job.key)
                instance.executor.submit(self._work, instance, job)

    def _work(self, instance: _Instance, job: _Job) -> None:
        began = time.perf_counter()
        try:
            job.future.set_result((time.perf_counter() - began, instance.run(job.body)))
        except ModelRefused as error:
            job.future.set_exception(error)
        except Exception as error:  # noqa: BLE001 a C++ failure of any kind is a fault of the service, told to the caller
            job.future.set_exception(ModelFault(f"llama.cpp failed on {instance.path}: {error!r}"))
        finally:
            with self._lock:
                self._idle.append(instance)
                if not self._closed:
                    self._dispatch()


def _body(request: Request, logprobs: bool) -> tuple[dict[str, Any], str]:
    """llama.cpp's request, and the space that its answer will begin with."""
    body: dict[str, Any] = {
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "samplers": ["temperature"],  # nothing but the temperature shapes the distribution: no hidden top-k
        "cache_prompt": True,
        "stop": list(request.stop),
    }
    if request.seed is not None:
        body["seed"] = request.seed % 0xFFFFFFFF  # 32 bits there, and the highest number would mean "any"
    lead = ""
    if (request.prompt is not None) == bool(request.messages):
        raise ModelRefused("a request needs either messages or a prompt, and not both")
    if request.prompt is not None:
        if request.tools:
            raise ModelRefused("tools need messages, not a plain prompt")
        body["prompt"] = request.prompt
        lead = " " if request.prompt and not request.prompt[-1].isspace() else ""
    else:
        plain = tools_told(request)
        body["messages"] = [{"role": message.role, "content": message.content} for message in plain]
    if sum((request.choices is not None, request.schema_ is not None, bool(request.tools))) > 1:
        raise ModelRefused("a GGUF model holds one constraint at a time: choices, schema or tools")
    if request.choices is not None:
        # A plain text goes on after an action, so the line's end must compete with "1" -> "10"; a chat has its own end.
        end = "\n" if request.prompt is not None and not any("\n" in choice for choice in request.choices) else ""
        body["grammar"] = choices_grammar(request.choices, lead=lead, end=end)
        body["max_tokens"] = 4 + max(len(choice.encode("utf-8", "replace")) for choice in request.choices)
        body["stop"] = [end] if end else []
    elif request.schema_ is not None:
        body["grammar"] = schema_grammar(request.schema_)
    elif request.tools:
        body["grammar"] = schema_grammar(tools_schema(request.tools))
    if logprobs:
        body |= {"logprobs": 1} if request.prompt is not None else {"logprobs": True, "top_logprobs": 1}
    try:
        repr(body).encode()
    except UnicodeEncodeError as error:
        raise ModelRefused(f"the request holds a character that is no text ({error.reason}): clean it first") from error
    return body, lead


def _fault(error: Mapping[str, Any], name: str) -> Exception:
    message = f"{name}: {error.get('message')}"
    if error.get("type") == "exceed_context_size_error":
        return ContextOverflow(message, tokens=error.get("n_prompt_tokens"), limit=error.get("n_ctx"))
    return ModelRefused(message) if error.get("code") == 400 else ModelFault(message)


def _shared(one: str, other: str) -> int:
    """Length of the common prefix, by bisection: slices compare in C."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
