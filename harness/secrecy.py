"""A key goes to its server and nowhere else: not onto the screen, not into a journal, not into a report.

Text that a server sent is masked whole, before it is cut, since half a key is still a secret. A setting that could hold
a key is refused before anything is written down, and the refusal does not repeat it.
"""

import os
import re
from urllib.parse import parse_qsl, urlsplit

_NAMES = re.compile(r"(_|^)(KEY|TOKEN|SECRET|PASSWORD)$")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
#: How the keys of well-known providers begin, also where they would pass for the name of a variable.
_KEYS = re.compile(r"sk[-_]|gsk_|hf_|xai-|AIza|AKIA|gh[pousr]_|github_pat_|glpat-|r8_|pplx-|nvapi-")
_SECRET_PART = re.compile(r"key|token|secret|sig|pass|auth|credential", re.I)
SHORT = 8  # characters below which a value is too likely to be part of plain text


def mask(text: str, *secrets: str | None) -> str:
    """`text` with the `secrets`, and whatever the environment calls a key, token, secret or password, starred out."""
    known = [value for name, value in os.environ.items() if _NAMES.search(name.upper()) and len(value.strip()) >= SHORT]
    for secret in sorted({s.strip() for s in (*secrets, *known) if s and s.strip()}, key=len, reverse=True):
        text = text.replace(secret, "***")
        if (escaped := ascii(secret)[1:-1]) != secret:
            text = text.replace(escaped, "***")
    return text


def wrong_variable(name: object) -> str:
    """Why `name` cannot be that of an environment variable with a key; "" when it can. It is never repeated."""
    if isinstance(name, str) and _VARIABLE.fullmatch(name) and not _KEYS.match(name):
        return ""
    return (
        "api_key_env is no name of an environment variable (letters, digits and _, such as OPENAI_API_KEY). If it is "
        "the key itself: never write a key there. Cure: export MY_KEY=..., and give api_key_env the name MY_KEY"
    )


def wrong_address(address: object) -> str:
    """Why `address` must not be an api_base: it is no URL, or it holds a password or key. It is never repeated."""
    if address is None:
        return ""
    try:
        parts = urlsplit(address if isinstance(address, str) else "")
        _ = parts.port
    except ValueError:
        return "api_base is no address of a server. Cure: one such as http://127.0.0.1:8000/v1"
    if "@" in parts.netloc or any(_SECRET_PART.search(key) for key, _ in parse_qsl(parts.query, True)):
        return (
            "api_base holds a password or a key, which would be written into the run. Cure: leave it out of the "
            "address, put the key into an environment variable, and name that with api_key_env"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return "api_base is no address of a server. Cure: one such as http://127.0.0.1:8000/v1"
    return ""
