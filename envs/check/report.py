"""What a conformance check found: one result a rule, each with what was seen and the cure.

`skipped` means that a rule does not apply; `undecided` means that it could not be looked at (the world broke, time
ran out). A report is only good when nothing failed and nothing is undecided: what was not seen is not vouched for.
"""

from collections import Counter
from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict

Status = Literal["passed", "warned", "failed", "skipped", "undecided"]


class Result(BaseModel):
    """One rule's outcome. `message` says what was seen (or, when it passed, on what evidence), `cure` what to do."""

    model_config = ConfigDict(frozen=True)

    name: str
    status: Status
    message: str = ""
    cure: str = ""
    seconds: float = 0.0


class Report(BaseModel):
    """All results for one benchmark; `str()` is the text to print."""

    model_config = ConfigDict(frozen=True)

    benchmark: str
    seed: int
    results: tuple[Result, ...]

    @property
    def ok(self) -> bool:
        """Whether every rule that applies was seen to hold (warnings allowed)."""
        return bool(self.results) and not any(result.status in ("failed", "undecided") for result in self.results)

    def of(self, *statuses: Status) -> tuple[Result, ...]:
        """The results with one of `statuses`."""
        return tuple(result for result in self.results if result.status in statuses)

    def __getitem__(self, name: str) -> Result:
        """The result of the rule `name`; KeyError when there is none."""
        for result in self.results:
            if result.name == name:
                return result
        raise KeyError(name)

    def __str__(self) -> str:
        width = max((len(result.name) for result in self.results), default=0)
        lines = [f"environment '{self.benchmark}', seed {self.seed}"]
        for result in self.results:
            lines.append(f"{result.status:<9} {result.name:<{width}}  {result.message}".rstrip())
            if result.cure:
                lines.append(f"{'':<9} {'':<{width}}  cure: {result.cure}")
        counts = Counter(result.status for result in self.results)
        said = ", ".join(f"{counts[status]} {status}" for status in get_args(Status) if counts[status])
        lines.append(f"{'good' if self.ok else 'not good'}: {said or 'nothing was checked'}")
        return "\n".join(lines)
