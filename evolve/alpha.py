"""One run's error budget: P(a useless edit is ever accepted) <= alpha, over all candidates of the run.

Proof sketch. Candidate k gets alpha_k, fixed before its pairs are drawn, and its gate accepts a useless edit with
chance <= alpha_k whatever happened before. The ledger keeps (sum of the alphas of those not accepted) + alpha_k <=
alpha; an accepted candidate gives its share back. Let V be the first useless edit accepted. Then P(V exists) =
sum_k E[1{V >= k, k useless} P(k accepted | past)] <= E[sum of alpha_k over useless k <= V]. Useless edits before V
were not accepted, so their alpha was never given back, and the sum is at most alpha. What was given back before V
was useful. (The idea is the fallback procedure of Wiens 2003, made online.)
"""

import math
from dataclasses import dataclass, field


@dataclass
class AlphaLedger:
    """Shares one run's `alpha` among its candidates so that P(a useless edit is ever accepted) <= alpha.

    Call `next()` before a candidate's first pair and `settle` after its final verdict. The j-th candidate that was
    not accepted costs alpha * 6 / (pi^2 j^2), or alpha / `planned` when a run knows how many failures it can afford.
    An accepted one is free (see the module's proof) unless `refund` is False.
    """

    alpha: float = 0.05
    planned: int | None = None
    refund: bool = True
    spent: float = 0.0
    failures: int = 0
    _open: float | None = field(init=False, repr=False, default=None)

    def next(self) -> float:
        """The level for the next candidate; RuntimeError when `planned` is used up or the last one is not settled."""
        if self._open is not None:
            raise RuntimeError("the previous candidate has not been settled: call settle() with its outcome first")
        if self.planned is not None and self.failures >= self.planned:
            raise RuntimeError(f"all {self.planned} planned tests are spent: this run can accept no further edit")
        j = self.failures + 1
        self._open = self.alpha * 6 / (math.pi * j) ** 2 if self.planned is None else self.alpha / self.planned
        return self._open

    def settle(self, accepted: bool) -> None:
        """Book the outcome of the candidate that `next` was called for."""
        if self._open is None:
            raise RuntimeError("no candidate is open: call next() first")
        if not (accepted and self.refund):
            self.spent += self._open
            self.failures += 1
        self._open = None
