"""What was asked is not asked again: the answers that a run's journal holds, and what tries that broke had paid.

Answers of a deterministic model serve all episodes of the run. Those of any other serve only the tries of their own
episode, each the equal request of the same number: repeats of an episode then show how much the model varies.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from harness.journal import Event, Journal
from harness.model import Completion, Usage
from harness.trajectory import Call, Lost, total_dollars

#: What a call and the completion that it recorded have in common, beside the text.
_SAME = ("tool_calls", "finish_reason", "mode", "usage", "prompt_ids", "output_ids", "output_logprobs")


class Record:
    """The answers in `journal` by digest. What it holds already is read when a deterministic model first asks."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._answers: dict[str, Completion] | None = None

    def answer(self, digest: str) -> Completion | None:
        """The answer that serves all episodes, if there is one."""
        if not _serves_all(digest):
            return None
        if self._answers is None:
            self._answers = {}
            for event in (*self._journal.events("step"), *_ends(self._journal, None)):
                for call in _calls(event):
                    if _serves_all(call["digest"]):
                        self._answers.setdefault(call["digest"], _answer(call))
        return self._answers.get(digest)

    def learn(self, call: Call) -> None:
        """Know the answer to `call` from now on."""
        if self._answers is not None and _serves_all(call.digest) and call.digest not in self._answers:
            same = {key: getattr(call, key) for key in _SAME}
            self._answers[call.digest] = Completion(text=call.output, **same)

    def earlier(self, key: str) -> "Earlier":
        """The tries of episode `key` until now."""
        tries: dict[int, list[dict[str, Any]]] = {}
        for event in (*self._journal.events("step", key), *_ends(self._journal, key)):
            tries.setdefault(event.body["attempt"], []).extend(_calls(event))
        return Earlier([calls for _, calls in sorted(tries.items())])


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

    def pays(self, digest: str) -> bool:
        """Whether an earlier try paid for this answer; says so once, since the answer is then counted."""
        paid = digest in self._paid
        self._paid.discard(digest)
        return paid

    def lost(self, asked: Iterable[Call]) -> Lost:
        """What these tries asked and the last one, which `asked`, did not; what was replayed is not lost.

        Of two tries that asked the same, the later one was served by the earlier one's answer: it counts once.
        """
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


def _ends(journal: Journal, key: str | None) -> Iterator[Event]:
    """The ends of tries: those that broke and were followed by another one, and those that stood."""
    yield from journal.events("lost", key)
    yield from journal.events("episode", key)


def _calls(event: Event) -> list[dict[str, Any]]:
    body = event.body["turn"].get("calls", []) if event.kind == "step" else event.body["unfinished"]
    return list(body)


def _serves_all(digest: str) -> bool:
    return "#" not in digest.rpartition(":")[2]


def _answer(call: Mapping[str, Any]) -> Completion:
    return Completion.model_validate({"text": call["output"], **{key: call[key] for key in _SAME if key in call}})
