"""Copies of a GGUF model and the one thread that each of them owns, because llama.cpp blocks its caller.

A job goes to the idle copy that already knows most of its prompt. Threads and copies belong to the pool, not to an
event loop: loops may come and go, and a cancelled caller only stops listening.
"""

import http.client
import json
import secrets
import threading
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from harness.model import ModelFault, ModelRefused
from harness.models.grammar import answer_rule, choice_grammar

#: Memory in MiB that an instance may use to keep the prompts of other episodes warm while it works on one.
PROMPT_CACHE_MIB = 512


def library() -> Any:
    try:
        import xllamacpp
    except ImportError as error:
        raise ModelRefused(
            f"a GGUF model needs xllamacpp ({error}). Cure: make setup, or pip install -e '.[local]' in a checkout"
        ) from error
    return xllamacpp


@dataclass(eq=False)
class Job:
    """One request on its way: `key` is its text, compared with what an instance has seen.

    `answers` are the whole texts of its choices, which begin with `lead` (a space after a plain prompt).
    """

    body: dict[str, Any]
    key: str
    lead: str = ""
    answers: tuple[str, ...] = ()
    future: "Future[tuple[float, dict[str, Any]]]" = field(default_factory=Future)


class Instance:
    """One loaded copy of the model and the one thread that may touch it."""

    def __init__(self, path: Path, threads: int, context: int) -> None:
        self.path, self.threads, self.context = path, threads, context
        self.executor = ThreadPoolExecutor(1, thread_name_prefix=f"gguf-{path.stem}")
        self.seen: deque[str] = deque(maxlen=16)
        self._server: Any = None
        self._rules: dict[str, str] = {}
        self._key = secrets.token_hex(16)  # llama.cpp also listens on a local port, which nobody else shall use

    def run(self, job: Job) -> dict[str, Any]:
        if self._server is None:
            self._server = self._load()
        body = job.body
        if job.answers:
            body["grammar"] = choice_grammar(self._rule(answer) for answer in job.answers)
        ask = self._server.handle_completions if "prompt" in body else self._server.handle_chat_completions
        answer: dict[str, Any] = ask(body)
        return answer

    def _rule(self, text: str) -> str:
        """`text` in the model's own tokens. Only its local port tells them; answers recur, so they are remembered."""
        if (known := self._rules.get(text)) is not None:
            return known
        address = urlsplit(self._server.listening_address)
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=30)
        with closing(connection):
            question = json.dumps({"content": text, "parse_special": False, "with_pieces": True})
            headers = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
            connection.request("POST", "/tokenize", question, headers)
            tokens = json.loads(connection.getresponse().read())["tokens"]
        if len(self._rules) >= 50_000:
            self._rules.clear()
        self._rules[text] = answer_rule((token["id"], token["piece"]) for token in tokens)
        return self._rules[text]

    def unload(self) -> None:
        self._server = None  # its destructor ends llama.cpp's own threads

    def _load(self) -> Any:
        xllamacpp = library()
        params = xllamacpp.CommonParams()
        params.model.path = str(self.path)
        params.n_ctx = self.context
        params.n_parallel = 1
        params.n_gpu_layers = 0
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = self.threads
        params.cache_ram_mib = PROMPT_CACHE_MIB
        params.warmup = params.fit_params = params.ui = False
        params.verbosity = -1
        params.n_threads_http = 1
        params.api_keys = [self._key]
        try:
            return xllamacpp.Server(params)
        except RuntimeError as error:
            raise ModelRefused(
                f"{self.path} cannot be loaded (cut short, damaged, or of an unknown kind): fetch it again ({error})"
            ) from error

    def overlap(self, key: str) -> int:
        """How many leading characters of `key` this instance has worked on before."""
        return max((_shared(key, other) for other in self.seen), default=0)


class Pool:
    """Hands each job to the idle instance that knows most of it; first come, first served."""

    def __init__(self, instances: list[Instance]) -> None:
        self._instances = instances
        self._idle = list(instances)
        self._waiting: deque[Job] = deque()
        self._lock = threading.Lock()
        self._closed = False

    def submit(self, job: Job) -> "Future[tuple[float, dict[str, Any]]]":
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
                instance = max(self._idle, key=lambda idle: idle.overlap(job.key))
                self._idle.remove(instance)
                instance.seen.append(job.key)
                instance.executor.submit(self._work, instance, job)

    def _work(self, instance: Instance, job: Job) -> None:
        began = time.perf_counter()
        fault: Exception | None = None
        answer: dict[str, Any] = {}
        try:
            answer = instance.run(job)
        except ModelRefused as error:
            fault = error
        except Exception as error:  # noqa: BLE001 a C++ failure of any kind is a fault of the service, told to the caller
            fault = ModelFault(f"llama.cpp failed on {instance.path}: {error!r}")
        seconds = time.perf_counter() - began
        with self._lock:  # idle before the caller hears of it, so that its next request finds its warm copy free
            self._idle.append(instance)
            if not self._closed:
                self._dispatch()
        if fault is None:
            job.future.set_result((seconds, answer))
        else:
            job.future.set_exception(fault)


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
