"""The harness: the folder an agent lives in, its models and loops, what it did, and the runner that lets it act."""

from harness._sisters import check_sisters as _check_sisters

_check_sisters(__name__, __file__)

__version__ = "0.1.0"

from harness.agent import Agent  # noqa: E402
from harness.folder import Harness  # noqa: E402
from harness.settings import HarnessError  # noqa: E402
from harness.trajectory import Trajectory, Turn  # noqa: E402

__all__ = ["Agent", "Harness", "HarnessError", "Trajectory", "Turn"]
