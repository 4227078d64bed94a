"""Environments: tasks, benchmarks and the worlds in which agents act. Knows none of its sisters."""

from envs._sisters import check_sisters as _check_sisters

_check_sisters(__name__, __file__)

from envs.benchmark import Benchmark, Evaluator, Policy  # noqa: E402
from envs.env import Env, EnvFault  # noqa: E402
from envs.split import fixed  # noqa: E402
from envs.task import Observation, Step, Task, Tool  # noqa: E402

__all__ = ["Benchmark", "Env", "EnvFault", "Evaluator", "Observation", "Policy", "Step", "Task", "Tool", "fixed"]
