"""What every chat server has in common: ask, and when it lacks a feature, ask once in another way and remember it.

The other way is learnt only when it worked, so that a request which is wrong in itself changes nothing.
"""

from abc import ABC, abstractmethod
from typing import Any

from harness.model import Completion, ModelRefused, Request
from harness.models.wire import chat_arguments, log


class ChatModel(ABC):
    """Base of the backends that speak the OpenAI shape; `lacks` names what the server turned out to lack."""

    def __init__(self, name: str, address: str, price_in: float | None, price_out: float | None) -> None:
        if (price_in is None) != (price_out is None):
            raise ModelRefused("give both price_in and price_out (dollars per million tokens), or neither")
        self.name = name
        self.address = address
        self.prices = None if price_in is None or price_out is None else (float(price_in), float(price_out))
        self.lacks: set[str] = set()

    @abstractmethod
    async def complete(self, request: Request) -> Completion: ...

    @abstractmethod
    async def _ask(self, endpoint: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The answer of `endpoint`, or our error with the library's as its cause."""

    async def _chat(self, request: Request, extra: dict[str, Any]) -> dict[str, Any]:
        plain, swapped = "response_format" in self.lacks, "max_tokens" in self.lacks
        while True:
            limit = "max_completion_tokens" if swapped else "max_tokens"
            arguments = chat_arguments(request, plain=plain, limit_name=limit) | extra
            if "seed" in self.lacks:
                arguments.pop("seed", None)
            try:
                answer = await self._ask("chat", arguments)
            except ModelRefused as refused:
                if status_of(refused) not in (400, 422):
                    raise
                if not swapped and "max_completion_tokens" in str(refused):
                    swapped = True
                elif request.choices is not None and not plain:
                    plain = True
                else:
                    raise
                continue
            if swapped:
                self.learn("max_tokens", "wants max_completion_tokens instead of max_tokens")
            if plain and request.choices is not None:
                self.learn("response_format", "refused response_format: choices are matched in its plain text")
            return answer

    def learn(self, feature: str, what: str) -> None:
        """Remember that the server lacks `feature`, and say once what is done instead."""
        if feature not in self.lacks:
            self.lacks.add(feature)
            log.warning("%s (%s) %s", self.name, self.address, what)


def status_of(error: Exception) -> int | None:
    """HTTP status behind one of our errors."""
    return getattr(error.__cause__, "status_code", None)
