"""An agent is a harness with a model, a memory to recall from, and skills: everything that decides an action.

A player is anything that can play an episode: an agent, or a fixed policy (expert, random) that asks no model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from envs import Benchmark, EnvFault
from envs.benchmark import PolicyMaker
from harness.border import border, shown
from harness.episode import Episode, NoChoices, Recall, Remembered
from harness.folder import Harness
from harness.model import Message, Model, Request
from harness.settings import LimitSettings
from harness.situation import Situation, describe


class Player(Protocol):
    """Whoever plays episodes, within `limits`. `version` and `model_name` go into the trajectory.

    `steps` and `calls`: the most actions and model calls of an episode, which a budget reserves.
    """

    @property
    def version(self) -> str: ...
    @property
    def model_name(self) -> str: ...
    @property
    def limits(self) -> LimitSettings: ...
    def steps(self, benchmark: Benchmark) -> int: ...
    def calls(self, benchmark: Benchmark) -> int: ...
    async def play(self, episode: Episode) -> None: ...


class _OnHarness:
    """What every player that stands on a harness has from it."""

    harness: Harness

    @property
    def version(self) -> str:
        """The harness's version."""
        return self.harness.version

    @property
    def limits(self) -> LimitSettings:
        """The harness's `[limits]`."""
        return self.harness.settings.limits

    def steps(self, benchmark: Benchmark) -> int:
        """The most steps an episode may take."""
        return min(self.limits.steps or benchmark.max_steps, benchmark.max_steps)

    def situation(self, episode: Episode) -> Situation:
        """The present moment in the wording the harness chose."""
        control = self.harness.settings.control
        return describe(control.wording, episode.task.goal, episode.turns, episode.observation, control.history)


@dataclass
class Agent(_OnHarness):
    """A harness at work. `recall` None is an agent without memory (the control of every memory recipe)."""

    harness: Harness
    model: Model
    recall: Recall | None = None
    skills: str = ""

    @classmethod
    def equip(cls, harness: Harness, model: Model, recall: Recall | None = None) -> "Agent":
        """An agent with its folder's skills disclosed as the harness says. Raises HarnessError for a faulty skill."""
        from harness.disclosure import disclose

        return cls(harness, model, recall, disclose(harness))

    @property
    def model_name(self) -> str:
        """The model's name."""
        return self.model.name

    def calls(self, benchmark: Benchmark) -> int:
        """The most model calls an episode may make."""
        return self.limits.calls or self.steps(benchmark)

    async def play(self, episode: Episode) -> None:
        """Play `episode` with the loop the harness names."""
        from harness.loops import loop

        await loop(self.harness)(self, episode)

    def remember(self, episode: Episode, query: str) -> tuple[Sequence[Remembered], str]:
        """Items recalled for `query`, and their text for the prompt, cut to the memory's token budget.

        Only what fits is returned, since only what was in the prompt may be credited. The best comes last, next to
        the present situation, where small models heed it most.
        """
        if self.recall is None:
            return (), ""
        room = self.harness.settings.memory.tokens * 4  # four characters a token, on the safe side for English
        kept: list[Remembered] = []
        shown: list[str] = []
        for item in self.recall(query, episode.stream("recall")):
            text = (
                self.harness.render("memory", {"key": item.key, "body": item.body})
                if "memory" in self.harness.prompts
                else f"{item.key}\n{item.body}\n\n"
            )
            if len(text) > room:
                continue  # a shorter one, less near, may still fit
            room -= len(text)
            kept.append(item)
            shown.append(text)
        return kept, "".join(reversed(shown))

    def values(self, episode: Episode, situation: Situation, memories: str) -> dict[str, str]:
        """What prompt placeholders stand for, now."""
        return {
            "goal": episode.task.goal,
            "observation": episode.observation.text,
            "situation": situation.text,
            "history": _told(episode, self.harness.settings.control.history),
            "choices": "\n".join(f"- {move}" for move in situation.moves),
            "memories": memories,
            "skills": self.skills,
        }

    def request(self, values: Mapping[str, str], **rest: Any) -> Request:
        """The `step` prompt filled with `values`, in the form of `[control] form` (chat: under `system`, if any)."""
        model, form = self.harness.settings.model, self.harness.settings.control.form
        base: dict[str, Any] = {"temperature": model.temperature, "max_tokens": model.max_tokens, **rest}
        text = self.harness.render("step", values)
        if form == "completion":
            return Request(prompt=text.rstrip(), **base)
        system = self.harness.render("system", values) if "system" in self.harness.prompts else ""
        head = (Message(role="system", content=system),) if system else ()
        return Request(messages=(*head, Message(role="user", content=text)), **base)

    def opening(self, episode: Episode) -> tuple[list[Message], list[str]]:
        """How a conversation begins: the `system` and `step` prompts filled in, and the ids recalled into them."""
        situation = self.situation(episode)
        items, memories = self.remember(episode, situation.text)
        values = self.values(episode, situation, memories)
        talk = [
            Message(role="system", content=self.harness.render("system", values)),
            Message(role="user", content=self.harness.render("step", values)),
        ]
        return talk, [item.id for item in items]


@dataclass
class PolicyPlayer(_OnHarness):
    """Plays a fixed policy: no model, no cost. Without `make` it wanders: a random move, then a random action of it.

    With `recall` it does the best recalled move that is possible: what a memory is worth without any model. The wording
    is `harness`'s, so that what it did can be remembered and recalled by agents on that harness.
    """

    name: str
    harness: Harness
    make: PolicyMaker | None = None
    recall: Recall | None = None

    @property
    def model_name(self) -> str:
        """Named after the policy."""
        return f"policy:{self.name}"

    def calls(self, benchmark: Benchmark) -> int:
        """None: a policy asks no model."""
        return 0

    async def play(self, episode: Episode) -> None:
        """Follow the policy to the end. Raises NoChoices when there is nothing to choose from."""
        rng = episode.stream("policy")
        with border():
            policy = self.make(episode.env, rng) if self.make is not None else None
        while not episode.over:
            situation = self.situation(episode)
            if policy is not None:
                with border():
                    action = policy(episode.observation)
                if not isinstance(action, str):
                    raise EnvFault(f"the policy '{self.name}' chose {shown(action)}, which is no text")
            elif situation.moves:
                move = self._recalled(episode, situation)
                action = (
                    situation.moves[move][0] if move else rng.choice(situation.moves[rng.choice([*situation.moves])])
                )
            else:
                raise NoChoices(
                    f"task {episode.task.id}: the environment offers no choices, so nothing can wander in it"
                )
            move = next((move for move, actions in situation.moves.items() if action in actions), action)
            await episode.act(action, situation=situation.text, move=move)

    def _recalled(self, episode: Episode, situation: Situation) -> str | None:
        found = self.recall(situation.text, episode.stream("recall")) if self.recall is not None else ()
        return next((item.body for item in found if item.body in situation.moves), None)


def _told(episode: Episode, n: int) -> str:
    """The last `n` actions that reached the world, each with what was seen after it."""
    seen = [turn.observation for turn in episode.turns[1:]] + [episode.observation.text]
    done = [(turn.action, after) for turn, after in zip(episode.turns, seen, strict=False) if not turn.invalid]
    return "\n".join(f"> {action}\n{after}" for action, after in done[-n:]) if n else ""
