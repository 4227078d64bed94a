"""What every chat server has in common: ask, and when it lacks a feature, ask in another way and remember it.

Whether an answer is held to its choices decides how good it is, so that must not change because of one bad reply on
the way: a refused request is first asked again as it was, and a server lacks a feature only if it says so itself, and
has never shown that it has it. How each answer was held is part of it.
"""

import math
import re
from abc import ABC, abstractmethod
from typing import Any

from harness.model import Completion, Mode, ModelFault, ModelRefused, Request
from harness.models.failure import Failure, fault_from
from harness.models.wire import chat_arguments, log
from harness.secrecy import wrong_address

_BAD = (400, 422)  # the request itself is wrong, says the server
_ODD = 3  # answers in a row that are no completion, of a server that never gave one: it is another kind of server
_FORMAT = re.compile(r"response_format|json_schema|enum|grammar|schema", re.I)


class ChatModel(ABC):
    """Base of the backends that speak the OpenAI shape; `lacks` names what the server turned out to lack."""

    _key: str | None = None
    _key_hint = ""

    def __init__(
        self, name: str, address: str, api_base: str | None, timeout: float, price_in: float | None,
        price_out: float | None,
    ) -> None:  # fmt: skip
        if (price_in is None) != (price_out is None):
            raise ModelRefused("give both price_in and price_out (dollars per million tokens), or neither")
        for label, value in (("price_in", price_in), ("price_out", price_out)):
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise ModelRefused(f"{label} = {value}: a price is a number of dollars, 0 or more")
        if not (math.isfinite(timeout) and timeout > 0):
            raise ModelRefused(f"timeout = {timeout}: give a number of seconds above 0")
        if fault := wrong_address(api_base):
            raise ModelRefused(fault)
        self.name = name
        self.address = address
        self.prices = None if price_in is None or price_out is None else (float(price_in), float(price_out))
        self.lacks: set[str] = set()
        self._answered = False  # any request of this process, with a completion
        self._odd = 0  # answers in a row that were none
        self._held = False  # a constrained one

    async def complete(self, request: Request) -> Completion:
        """Answer `request`. A request that alone is refused, where others were answered, is a fault of its own.

        A server that answers, and has never given a completion, is soon refused: it is not the one that is meant.
        """
        try:
            completion = await self._complete(request)
        except ModelRefused as refused:
            if refused.status in (*_BAD, 413) and self._answered:
                raise ModelFault(
                    f"the provider refused this prompt ({refused.status}, {self.name}): {refused.said}",
                    transient=False, kind=str(refused.status),
                ) from None  # fmt: skip
            raise
        except ModelFault as fault:
            self._odd = self._odd + 1 if fault.kind == "answer" else 0
            if self._answered or self._odd < _ODD:
                raise
            raise ModelRefused(
                f"{fault}: none of {self._odd} answers of {self.address} in a row was a completion, nor any before. "
                "Cure: check api_base: it is the address to which /chat/completions is added, and mostly ends in /v1"
            ) from None
        self._answered = True
        return completion

    @abstractmethod
    async def _complete(self, request: Request) -> Completion: ...

    @abstractmethod
    async def _ask(self, endpoint: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The answer of `endpoint`, or our error."""

    async def _steadily(self, endpoint: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The answer of `endpoint`; a refusal counts only when the same request is refused twice."""
        try:
            return await self._ask(endpoint, arguments)
        except ModelRefused as refused:
            if refused.status not in _BAD:
                raise
            return await self._ask(endpoint, arguments)

    async def _chat(self, request: Request, extra: dict[str, Any]) -> tuple[dict[str, Any], Mode | None]:
        """The answer, and how it was held to the request's choices or schema."""
        plain, swapped = "response_format" in self.lacks, "max_tokens" in self.lacks
        bound = request.choices is not None or request.schema_ is not None
        while True:
            limit = "max_completion_tokens" if swapped else "max_tokens"
            arguments = chat_arguments(request, plain=plain, limit_name=limit) | extra
            if "seed" in self.lacks:
                arguments.pop("seed", None)
            try:
                answer = await self._steadily("chat", arguments)
            except ModelRefused as refused:
                if refused.status not in _BAD:
                    raise
                if not swapped and "max_completion_tokens" in refused.said:
                    swapped = True
                elif request.choices is not None and not plain and not self._held and _FORMAT.search(refused.said):
                    plain = True
                else:
                    raise
                continue
            if swapped:
                self.learn("max_tokens", "wants max_completion_tokens instead of max_tokens")
            if not bound:
                return answer, None
            if request.schema_ is not None or not plain:
                self._held = True
                return answer, "constrained"
            if not self._held:  # else another request has shown meanwhile that it can
                self.learn("response_format", "refused response_format: choices are matched in its plain text")
            return answer, "plain"

    def fault(self, failure: Failure) -> Exception:
        """Our error for a failed call, without the key."""
        return fault_from(failure, name=self.name, address=self.address, key_hint=self._key_hint, secret=self._key)

    def learn(self, feature: str, what: str) -> None:
        """Remember that the server lacks `feature`, and say once what is done instead."""
        if feature not in self.lacks:
            self.lacks.add(feature)
            log.warning("%s (%s) %s", self.name, self.address, what)
