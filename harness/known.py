"""What an episode may be answered without asking anybody, as plain data: it can be taken to wherever it is played.

It is what earlier tries of this very episode were answered, and what a replay lets another run answer.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from harness.model import Completion
from harness.trajectory import Call

#: What a call and the completion that it recorded have in common, beside the text.
SAME = ("tool_calls", "finish_reason", "mode", "usage", "prompt_ids", "output_ids", "output_logprobs")

#: How the digest of a call ends whose answer a replay forced: it was sampled for another request.
TAPED = "#taped"


@dataclass(frozen=True)
class Known:
    """Answers by the request's digest, and `forced` ones by turn and number of the call, whatever is asked there."""

    answers: Mapping[str, Completion] = field(default_factory=dict)
    forced: Mapping[tuple[int, int], Completion] = field(default_factory=dict)

    def answer(self, digest: str, turn: int, number: int) -> Completion | None:
        """The answer to call `number` of turn `turn`, if it is known."""
        return self.forced.get((turn, number)) or self.answers.get(digest)


def answered(call: Call) -> Completion:
    """The completion that `call` recorded."""
    return Completion(text=call.output, **{name: getattr(call, name) for name in SAME})
