"""Several candidates against one baseline, corrected for their number: more tries must not mean more lucky winners.

Each candidate's comparison is made at the level at which Holm's procedure tests it, so its interval, its winner and its
adjusted p value say the same. An undecided candidate claims nothing, and counts among the tries all the same, since
what a run lost may hang together with how it scored. The candidates are not compared with each other.
"""

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict

from evolve.exact import holm
from evolve.stats import MAX_MISSING, Comparison, Scores, compare


class Entry(BaseModel):
    """One candidate; `comparison` is at the level that the correction left to it, and so is its winner."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    comparison: Comparison
    p_adjusted: float | None  # None: undecided


class Contest(BaseModel):
    """Candidates in the order given; all their claims together are wrong with a chance of at most 1 - `level`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    baseline: str
    level: float
    correction: str
    candidates: tuple[Entry, ...]

    @property
    def better(self) -> tuple[str, ...]:
        """Candidates shown to be better than the baseline."""
        return tuple(entry.name for entry in self.candidates if entry.comparison.winner == "candidate")


def contest(
    baseline: Scores, candidates: Mapping[str, Scores], *, name: str = "baseline", level: float = 0.95,
    reward_range: tuple[float, float] | None = (0.0, 1.0), max_missing: float = MAX_MISSING,
) -> Contest:  # fmt: skip
    """Compare each of `candidates` with `baseline` as `compare` does, with Holm's (1979) correction.

    Raises ValueError for no candidate, or a score outside the range.
    """
    if not candidates:
        raise ValueError("there is no candidate to compare with the baseline")

    def at(confidence: float, scores: Scores) -> Comparison:
        return compare(baseline, scores, level=confidence, reward_range=reward_range, max_missing=max_missing)

    found = {candidate: at(level, scores) for candidate, scores in candidates.items()}
    p_values = [c.p_value if c.decided and c.p_value is not None else 1.0 for c in found.values()]
    adjusted, left = holm(p_values), len(p_values)
    for i in sorted(range(len(p_values)), key=lambda i: p_values[i]):  # at what level each is tested
        candidate = list(found)[i]
        if left > 1:
            found[candidate] = at(1 - (1 - level) / left, candidates[candidate])
        if found[candidate].winner is not None:
            left -= 1  # one that is not shown stops the procedure: all that follow are held to its level
    return Contest(
        baseline=name, level=level, correction="Holm" if len(found) > 1 else "none",
        candidates=tuple(
            Entry(name=candidate, comparison=c, p_adjusted=p if c.decided else None)
            for (candidate, c), p in zip(found.items(), adjusted, strict=True)
        ),
    )  # fmt: skip
