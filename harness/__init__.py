"""The harness: the folder an agent lives in, its models and loops, what it did, and the runner that lets it act."""

from harness._sisters import check_sisters as _check_sisters

_check_sisters(__name__, __file__)
