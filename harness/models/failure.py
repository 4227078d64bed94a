"""What became of a call that failed, in plain facts, and which of our errors that is.

Any library's error or answer is first read into a `Failure`; only `fault_from` decides what it means, so that a rate
limit is the same thing whoever met it. Words of a server are masked whole before they are cut, since half a key is
still a secret.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from time import time
from typing import Any

from harness.model import ContextOverflow, ModelFault, ModelRefused
from harness.secrecy import mask

_OVERFLOW = re.compile(
    r"context.?(length|size|window)|maximum context|prompt is too long|too many (input )?tokens|input is too long", re.I
)


@dataclass(frozen=True, slots=True)
class Failure:
    """Facts of a failed call: what was said, unmasked, and the HTTP `status`, None where no whole answer came.

    `late`: the time was up. `overflow`: the prompt does not fit, whatever was said. `code`: the server's own codes.
    `tokens` and `limit` of an overflow, where the server tells them. `retry_after` in seconds.
    """

    said: str
    status: int | None = None
    late: bool = False
    overflow: bool = False
    code: str = ""
    tokens: int | None = None
    limit: int | None = None
    retry_after: float | None = None


def answered(
    status: int, said: str, body: object, headers: Mapping[str, str], *, late: bool = False, overflow: bool = False
) -> Failure:
    """The failure that a server told in `body` (parsed, or None) and `headers` (any case, if they are a multidict)."""
    told = told_in(body)
    tokens, limit = told.get("n_prompt_tokens"), told.get("n_ctx")  # llama.cpp
    both = isinstance(tokens, int) and isinstance(limit, int)
    return Failure(
        said=said,
        status=status,
        late=late or status == 408,
        overflow=overflow,
        code=" ".join(str(told[key]) for key in ("code", "type") if told.get(key)),
        tokens=tokens if both else None,
        limit=limit if both else None,
        retry_after=retry_after(headers),
    )


def told_in(body: object) -> Mapping[str, Any]:
    """The part of an answer's body that describes an error; empty when there is none."""
    if isinstance(body, list) and body:  # Google's
        body = body[0]
    if not isinstance(body, dict):
        return {}
    return body["error"] if isinstance(body.get("error"), dict) else body


def words(body: object, text: str) -> str:
    """What a server said in an answer that is an error: its message with its codes, or all of the text on one line."""
    told = told_in(body)
    message = told.get("message")
    if not isinstance(message, str) or not message:
        return " ".join(text.split())
    codes = [str(told[key]) for key in ("code", "type", "param") if told.get(key) and str(told[key]) not in message]
    return " ".join(message.split()) + (f" ({', '.join(dict.fromkeys(codes))})" if codes else "")


def fault_from(failure: Failure, *, name: str, address: str, key_hint: str, secret: str | None) -> Exception:
    """Our error for a failed call of the model `name` at `address`."""
    said, status = mask(failure.said, secret)[:600], failure.status
    if failure.late:
        return ModelFault(
            f"{address} did not answer in time ({name}): raise 'timeout', or look at the server", kind="time-out"
        )
    if status is None:
        return ModelFault(f"{address} cannot be reached ({name}): {said}", kind="unreachable")
    if status < 300:
        return ModelFault(f"{address} ({name}) answered with {said}", kind="answer")
    if status in (401, 403):
        return ModelRefused(
            f"{address} refused the key or its rights ({status}, {name}): {key_hint}", status=status, said=said
        )
    code = mask(failure.code, secret)
    if failure.overflow or (status in (400, 413, 422) and ("context" in code or _OVERFLOW.search(said))):
        tokens, limit = (failure.tokens, failure.limit) if failure.limit is not None else _numbers(said)
        return ContextOverflow(f"{name} at {address}: the prompt does not fit: {said}", tokens=tokens, limit=limit)
    if status == 404:
        return ModelRefused(
            f"{address} has no model or path for {name!r} ({said}): check the model's name and api_base",
            status=status, said=said,
        )  # fmt: skip
    if status < 400:  # nobody follows it, so that it is no better next time, whether it calls itself temporary or not
        return ModelRefused(f"{address} has moved ({status}, {name}): {said}", status=status, said=said)
    if status == 429 and "insufficient_quota" in (code + said):
        return ModelRefused(f"{address}: the account has no money left for {name} ({said})", status=status, said=said)
    if status in (409, 425, 429) or (status >= 500 and status != 501):
        return ModelFault(
            f"{address} answered {status} ({name}): {said}", retry_after=failure.retry_after, kind=str(status)
        )
    return ModelRefused(f"{address} refused the request to {name} ({status}): {said}", status=status, said=said)


def _numbers(said: str) -> tuple[int | None, int | None]:
    """(prompt tokens, limit) of an overflow: the larger and smaller number of the message."""
    limit = re.search(r"(?:length|size|window|limit|maximum)\D{0,40}?(\d{3,})", said)
    numbers = [int(number) for number in re.findall(r"\d{3,}", said)]
    least = int(limit.group(1)) if limit else min(numbers, default=None)
    more = [number for number in numbers if least is not None and number > least]
    return min(more, default=None), least


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait, from retry-after-ms, or from Retry-After as a number or a date."""
    for name, scale in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        value = headers.get(name)
        if not value:
            continue
        try:
            return max(0.0, float(value) * scale)
        except ValueError:
            pass
        try:
            return max(0.0, parsedate_to_datetime(value).timestamp() - time())
        except ValueError:
            pass
    return None


def parsed(text: str) -> object:
    """`text` as JSON; None when it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
