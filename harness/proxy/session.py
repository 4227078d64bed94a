"""A session is what a client's key stands for: whoever answers it, counts its calls, and plays its world.

`EpisodeSession` is a foreign agent's way into an `Episode`: its calls and actions go through the same limits, retries
and record as those of any loop here. What ends the episode is kept in `error`, for whoever plays it to raise: a client
is told, but what it does then is its own affair.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from envs import EnvFault
from harness.episode import Episode, EpisodeLimit
from harness.model import Completion, ContextOverflow, Model, ModelRefused, Request
from harness.proxy.refusal import Refusal, closed, refusal_for
from harness.proxy.wire_in import Defaults, fitting


class Session:
    """What the server needs of a key. `model` answers; `defaults` hold where a client says nothing."""

    model: Model
    defaults: Defaults = Defaults()

    async def ask(self, request: Request) -> Completion:
        """The answer. Raises what `refusal_for` knows."""
        raise NotImplementedError

    def task(self) -> dict[str, Any]:
        """The task, and what is to be seen now."""
        raise Refusal(404, "this key has no world: its agent brings its own", code="no_world")

    async def act(self, action: str) -> dict[str, Any]:
        """Do `action` in the world; what is to be seen then."""
        raise Refusal(404, "this key has no world: its agent brings its own", code="no_world")

    async def finish(self, score: float | None, reason: str) -> dict[str, Any]:
        """End the episode with a score of the client's: any number, also one that no float holds."""
        raise Refusal(409, "the world scores this episode, and nobody else", code="scored_by_world")


class EpisodeSession(Session):
    """`episode`, played from outside. One call or action at a time, so that each call belongs to one action.

    `situation` words the moment before an action, for a memory; `retrieved` are the ids of what the agent was told
    from one; `told` is what else `GET /instar/task` says.
    """

    def __init__(
        self, episode: Episode, model: Model, defaults: Defaults, *, situation: Callable[[], str] = str,
        retrieved: Sequence[str] = (), told: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.episode, self.model, self.defaults = episode, model, defaults
        self.error: Exception | None = None
        self.stumble: ContextOverflow | ModelRefused | None = None  # the last call, where it was the agent's to mend
        self.answered = 0
        self.ended = asyncio.Event()  # the world is done, or something is in `error`
        self._situation, self._retrieved, self._told = situation, tuple(retrieved), dict(told or {})
        self._turn = asyncio.Lock()

    async def ask(self, request: Request) -> Completion:
        """The model's answer, retried and counted by the episode."""
        async with self._turn:
            if self.ended.is_set():
                raise closed(f"no more calls: {self._why()}")
            try:
                completion = await self.episode.ask(self.model, fitting(request, self.model))
            except ContextOverflow as overflow:
                self.stumble = overflow  # a foreign agent may know how to shorten its prompt
                raise
            except ModelRefused as refused:
                self.stumble = refused
                if refused.status in (401, 403, 404, 429):
                    self.end(refused)  # no request will fare better
                raise
            except Exception as error:
                self.end(error)
                if refusal_for(error) is None:
                    raise closed(f"no more calls: {error}") from error
                raise
            self.stumble = None
            self.answered += 1
            return completion

    def task(self) -> dict[str, Any]:
        """Goal, what is to be seen, the world's tools, and the limits."""
        episode = self.episode
        try:
            offered = episode.tools()
        except EnvFault as fault:
            raise self._broke(fault) from fault
        tools = [{"name": t.name, "description": t.description, "parameters": dict(t.parameters)} for t in offered]
        return {
            "task": episode.task.id, "goal": episode.task.goal, **self._told, "tools": tools,
            "steps": len(episode.turns), "max_steps": episode.max_steps, **self._seen(),
        }  # fmt: skip

    async def act(self, action: str) -> dict[str, Any]:
        """Do `action` and write the turn down, with the calls since the last one."""
        async with self._turn:
            if self.ended.is_set():
                raise Refusal(409, f"nothing can be done any more: {self._why()}", code="episode_over")
            try:
                await self.episode.act(action, situation=self._situation(), retrieved=self._retrieved)
            except EpisodeLimit as limit:  # the action was done; it was the last one
                self.end(limit)
            except Exception as error:
                raise self._broke(error) from error
            if self.episode.over:
                self.ended.set()
            return self._seen()

    def end(self, error: Exception) -> None:
        """The episode ends with `error`; the first one counts."""
        self.error = self.error or error
        self.ended.set()

    async def drain(self) -> None:
        """Wait for the call or action in flight."""
        async with self._turn:
            return

    def _broke(self, error: Exception) -> Refusal:
        self.end(error)
        return Refusal(500, f"the world broke: {error}", code="world_broke", kind="server_error")

    def _seen(self) -> dict[str, Any]:
        seen = self.episode.observation
        return {
            "observation": seen.text, "choices": None if seen.choices is None else list(seen.choices),
            "done": self.episode.over, "stopped": str(self.error) if self.error is not None else "",
        }  # fmt: skip

    def _why(self) -> str:
        return str(self.error) if self.error is not None else "the episode is over"
