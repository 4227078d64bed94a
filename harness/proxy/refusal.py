"""What a client is told when it gets no answer, in the shape that OpenAI's clients understand.

The status and code decide what a client does next: it tries again, shortens its prompt, or gives up. So each of our
failures has one place here. No message repeats a key.
"""

import math
from typing import Any

from harness.model import ContextOverflow, ModelFault, ModelRefused
from harness.secrecy import mask


class Exhausted(Exception):
    """Nothing more may be spent on calls."""


class Refusal(Exception):
    """No answer: `status` of HTTP, `code` and `param` as OpenAI has them. `again`: asking again may help."""

    def __init__(
        self, status: int, message: str, *, code: str | None = None, param: str | None = None,
        kind: str = "invalid_request_error", again: bool = False, after: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.status, self.code, self.param, self.kind = status, code, param, kind
        self.again, self.after = again, after

    @property
    def body(self) -> dict[str, Any]:
        """The JSON that OpenAI would send."""
        return {"error": {"message": mask(str(self)), "type": self.kind, "param": self.param, "code": self.code}}

    @property
    def headers(self) -> dict[str, str]:
        """Whether and when to ask again; OpenAI's clients heed both."""
        told = {"x-should-retry": "true" if self.again else "false"}
        return told if self.after is None else told | {"retry-after": str(math.ceil(self.after))}


def bad(message: str, param: str | None = None) -> Refusal:
    """A request that is wrong, or that cannot be held."""
    return Refusal(400, message, code="invalid_value", param=param)


def over(message: str) -> Refusal:
    """No more calls for anybody: there is no money left."""
    return Refusal(429, message, code="insufficient_quota", kind="insufficient_quota")


def closed(message: str) -> Refusal:
    """No more calls for this key, though others may: no client asks again after a 403, and many do after a 429."""
    return Refusal(403, message, code="episode_over", kind="permission_denied")


def refusal_for(error: Exception) -> Refusal | None:
    """What to tell a client of a failure of the model or the budget; None for any other exception."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, Exhausted):
        return over(str(error))
    if isinstance(error, ContextOverflow):
        return Refusal(400, str(error), code="context_length_exceeded", param="messages")
    if isinstance(error, ModelFault):
        if not error.transient:
            return Refusal(400, str(error), code="provider_refused")
        after = 5.0 if error.retry_after is None else error.retry_after
        return Refusal(503, str(error), code="provider_failed", kind="server_error", again=True, after=after)
    if isinstance(error, ModelRefused):
        status = error.status or 400
        if status == 429:
            return over(str(error))
        if status in (401, 403):  # the provider's key is ours, and the client can do nothing about it
            return Refusal(502, str(error), code="provider_key", kind="server_error")
        return Refusal(status, str(error), code="provider_refused")
    return None
