"""One text names any model, so that a harness file, a command line and a test choose it the same way.

An option that the chosen backend does not know is an error, not a setting that silently does nothing.
"""

from collections.abc import Callable
from typing import Any, get_args

from harness.model import Model, ModelOptions, ModelRefused

POSSIBLE = """a model is one of
  embedded                  SmolLM2-135M inside this process, fetched once (98 MB)
  gguf:FILE                 a GGUF file of your own inside this process
  openai/NAME               any OpenAI-compatible server (options api_base, api_key_env)
  litellm/PROVIDER/NAME     any provider that litellm knows; PROVIDER/NAME alone means the same
  scripted:MODULE:ATTR      a Python function of the request; also scripted:FILE.py:ATTR"""


def connect(spec: str, options: ModelOptions | None = None) -> Model:
    """The model that `spec` names. Raises ModelRefused when it names none, or when its library or file is missing.

    Options of `embedded` and `gguf:`: threads, instances, context, logprobs, reuse. Of `openai/` and `litellm/`:
    api_base, api_key_env, timeout, price_in, price_out (dollars per million tokens), logprobs.
    """
    options = dict(options or {})
    spec = spec.strip()
    if spec == "embedded":
        from harness.models.embedded import NAME, fast_gguf
        from harness.models.gguf import GGUFModel

        return _build(spec, GGUFModel, fast_gguf(), {"name": NAME} | options)
    kind, _, rest = spec.partition(":")
    if kind == "gguf" and rest:
        from harness.models.gguf import GGUFModel

        return _build(spec, GGUFModel, rest, options)
    if kind == "scripted" and rest:
        from harness.models.scripted import load_scripted

        return _build(spec, load_scripted, rest, options)
    provider, slash, name = spec.partition("/")
    if slash and provider and name and not any(part.isspace() for part in spec):
        if provider == "openai":
            from harness.models.openai_api import OpenAIModel

            return _build(spec, OpenAIModel, name, options)
        from harness.models.litellm_api import LiteLLMModel

        return _build(spec, LiteLLMModel, name if provider == "litellm" else spec, options)
    raise ModelRefused(f"{spec!r} names no model: {POSSIBLE}")


def _build(spec: str, backend: Callable[..., Model], subject: Any, options: dict[str, Any]) -> Model:
    import inspect

    parts = inspect.signature(backend, eval_str=True).parameters
    known = {name: part.annotation for name, part in parts.items() if part.kind is part.KEYWORD_ONLY}
    if unknown := sorted(set(options) - set(known)):
        raise ModelRefused(f"{spec} has no option {', '.join(unknown)}; it knows {', '.join(known) or 'none'}")
    for name, value in options.items():
        if not _fits(value, known[name]):  # the value is not repeated: it may be a key in the wrong place
            wanted = getattr(known[name], "__name__", None) or str(known[name])
            raise ModelRefused(f"{spec}: the option {name} is a {type(value).__name__}. Cure: give it as {wanted}")
    return backend(subject, **options)


def _fits(value: Any, annotation: Any) -> bool:
    """Whether `value` is of the annotated type; a whole number passes for a float, and true for nothing but a bool."""
    wanted = get_args(annotation) or (annotation,)
    if isinstance(value, bool):
        return bool in wanted
    return isinstance(value, wanted) or (isinstance(value, int) and float in wanted)
