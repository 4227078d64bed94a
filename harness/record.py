"""What was asked is not asked again: the answers that a run's journal holds, and what tries that broke had paid.

Answers of a deterministic model serve all episodes of the run. Those of any other serve only the tries of their own
episode, each the equal request of the same number: repeats of an episode then show how much the model varies.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from harness.journal import Journal, serves_all
from harness.known import SAME, TAPED, Known, answered
from harness.model import Completion, Usage
from harness.trajectory import Call, Lost, Trajectory, total_dollars


class Record:
    """The answers in `journal` by digest."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def answer(self, digest: str) -> Completion | None:
        """The answer that serves all episodes, if there is one."""
        found = self._journal.answer(digest) if serves_all(digest) else None
        return None if found is None else _answer(found)

    def earlier(self, key: str) -> "Earlier":
        """The tries of episode `key` until now."""
        tries: dict[int, list[dict[str, Any]]] = {}
        for attempt, call in self._journal.calls(key):
            tries.setdefault(attempt, []).append(call)
        return Earlier([calls for _, calls in sorted(tries.items())])


class Tape:
    """What one episode of another run was answered: equal requests get equal answers.

    In its first `steps` turns the answers are those of the tape whatever is asked, call by call, so that an episode
    comes to the same point with another harness; there is no answer where the tape has no such call.
    """

    def __init__(self, trajectory: Trajectory | None, steps: int = 0) -> None:
        turns = trajectory.turns if trajectory is not None else ()
        self._forced = {(t, n): call for t, turn in enumerate(turns[:steps]) for n, call in enumerate(turn.calls)}
        self._calls = {call.digest: call for call in reversed(trajectory.all_calls)} if trajectory is not None else {}

    def answer(self, digest: str, turn: int, number: int) -> Completion | None:
        """The answer to call `number` of turn `turn`."""
        call = self._forced.get((turn, number)) or self._calls.get(digest)
        return None if call is None else answered(call)

    def known(self, earlier: "Earlier") -> Known:
        """What this tape and `earlier` tries answer, as data."""
        taped = {digest: answered(call) for digest, call in self._calls.items()}
        forced = {place: answered(call) for place, call in self._forced.items()}
        return Known({**earlier.known().answers, **taped}, forced)

    def told(self, call: Call, turn: int, number: int) -> Call:
        """`call` as it is written down: an answer that was forced is an answer to nothing else."""
        forced = (turn, number) in self._forced
        return call.model_copy(update={"digest": call.digest + TAPED}) if forced else call


class Earlier:
    """Earlier tries of one episode, each with its calls in order."""

    def __init__(self, tries: Sequence[Sequence[Mapping[str, Any]]] = ()) -> None:
        self._tries = tries
        self._calls = {call["digest"]: call for calls in reversed(tries) for call in calls}
        self._paid = {call["digest"] for calls in tries for call in calls if not call.get("cached")}

    def answer(self, digest: str) -> Completion | None:
        """The first answer that an earlier try got."""
        call = self._calls.get(digest)
        return None if call is None else _answer(call)

    def known(self) -> Known:
        """All that these tries were answered, as data."""
        return Known({digest: _answer(call) for digest, call in self._calls.items()})

    def pays(self, digest: str) -> bool:
        """Whether an earlier try paid for this answer; says so once, since the answer is then counted."""
        paid = digest in self._paid
        self._paid.discard(digest)
        return paid

    def lost(self, asked: Iterable[Call]) -> Lost:
        """What these tries asked and the last one, which `asked`, did not; what was replayed is not lost.

        Of two tries that asked the same, the later one was served by the earlier one's answer: it counts once.
        """
        if not self._tries:
            return Lost()
        most: Counter[str] = Counter()
        for calls in self._tries:
            most |= Counter(call["digest"] for call in calls)
        gone = (most - Counter(call.digest for call in asked)).elements()
        usages = [Usage.model_validate(self._calls[digest].get("usage", {})) for digest in gone]
        usage = Usage(
            prompt_tokens=sum(u.prompt_tokens for u in usages), cached_tokens=sum(u.cached_tokens for u in usages),
            output_tokens=sum(u.output_tokens for u in usages), dollars=total_dollars(u.dollars for u in usages),
            seconds=sum(u.seconds for u in usages),
        )  # fmt: skip
        return Lost(calls=len(usages), usage=usage)


def _answer(call: Mapping[str, Any]) -> Completion:
    return Completion.model_validate({"text": call["output"], **{key: call[key] for key in SAME if key in call}})
