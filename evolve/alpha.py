"""One run's error budget: P(a useless edit is ever accepted) <= alpha, over all candidates of the run.

A run that can afford `planned` failures gives each candidate alpha / planned; one that is accepted gives its share
back, so only failures count.

Proof sketch. Candidate k gets its level before its pairs are drawn, and its gate accepts a useless edit with chance <=
alpha / planned whatever happened before. Let V be the first useless edit accepted. Then P(V exists) =
sum_k E[1{V >= k, k useless} P(k accepted | past)] <= E[number of useless k <= V] * alpha / planned. Useless edits
before V were not accepted, so each counted as a failure, and `next` gives no level after `planned` failures: there are
at most `planned` of them, V included, and the sum is at most alpha. What was given back before V was useful. (The idea
is the fallback procedure of Wiens 2003, made online.)
"""

from dataclasses import dataclass, field


@dataclass
class AlphaLedger:
    """Shares one run's `alpha` among its candidates so that P(a useless edit is ever accepted) <= alpha.

    Call `next()` before a candidate's first pair and `settle` after its final verdict.
    """

    alpha: float
    planned: int
    failures: int = field(init=False, default=0)
    _open: bool = field(init=False, repr=False, default=False)

    def next(self) -> float:
        """The level for the next candidate; RuntimeError when `planned` is used up or the last one is not settled."""
        if self._open:
            raise RuntimeError("the previous candidate has not been settled: call settle() with its outcome first")
        if self.failures >= self.planned:
            raise RuntimeError(f"all {self.planned} planned tests are spent: this run can accept no further edit")
        self._open = True
        return self.alpha / self.planned

    def settle(self, accepted: bool) -> None:
        """Book the outcome of the candidate that `next` was called for."""
        if not self._open:
            raise RuntimeError("no candidate is open: call next() first")
        self.failures += not accepted
        self._open = False
