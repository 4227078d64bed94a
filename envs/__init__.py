"""Environments: tasks, benchmarks and the worlds in which agents act. Knows none of its sisters."""

from envs._sisters import check_sisters as _check_sisters

_check_sisters(__name__, __file__)

from envs.benchmark import Benchmark, Evaluator, Policy  # noqa: E402
from envs.env import Env, EnvFault  # noqa: E402
from envs.lease import ContainerLease, FolderLease, LeaseError, ProcessLease  # noqa: E402
from envs.split import fixed  # noqa: E402
from envs.task import Observation, Step, Task, Tool  # noqa: E402

__all__ = [
    "Benchmark",
    "ContainerLease",
    "Env",
    "EnvFault",
    "Evaluator",
    "FolderLease",
    "LeaseError",
    "Observation",
    "Policy",
    "ProcessLease",
    "Step",
    "Task",
    "Tool",
    "fixed",
]
