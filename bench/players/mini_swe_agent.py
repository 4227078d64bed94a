"""mini-swe-agent, one thread an episode: `mock`, a model of prepared answers; `saved`, with its trajectory file written
after each step, as its command does; `http`, through litellm and a server."""

import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.players.game import STEPS, SYSTEM, Counter

_END = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
os.environ |= {
    "MSWEA_SILENT_STARTUP": "1", "MSWEA_COST_TRACKING": "ignore_errors", "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}  # fmt: skip


def load() -> None:
    """Import what a run needs."""
    import minisweagent.agents.default
    import minisweagent.models.test_models  # noqa: F401


def prepare(variant: str, at_once: int, url: str) -> Callable[[int], list[float]]:
    """Play n games."""
    from minisweagent.agents.default import DefaultAgent
    from minisweagent.exceptions import Submitted
    from minisweagent.models.test_models import DeterministicModel, make_output

    pool, folder = ThreadPoolExecutor(at_once), Path(tempfile.mkdtemp())

    class World:
        def __init__(self, name: str) -> None:
            self.game, self.config, self.reward = Counter(name), None, 0.0

        def execute(self, action: dict[str, Any], cwd: str = "") -> dict[str, Any]:
            if action["command"] == _END:
                raise Submitted({"role": "exit", "content": "done", "extra": {"exit_status": "Submitted"}})
            seen, self.reward, _ = self.game.act("inc")
            return {"output": seen, "returncode": 0, "exception_info": ""}

        def get_template_vars(self, **more: Any) -> dict[str, Any]:
            return {}

        def serialize(self) -> dict[str, Any]:
            return {}

    def model() -> Any:
        if variant == "http":
            from minisweagent.models.litellm_model import LitellmModel

            options = {"api_base": url, "api_key": "none"}
            return LitellmModel(model_name="openai/shell", model_kwargs=options, cost_tracking="ignore_errors")
        commands = [*(f"echo {turn}" for turn in range(STEPS)), _END]
        outputs = [make_output("I increment it once more.", [{"command": each}], cost=0.0) for each in commands]
        return DeterministicModel(outputs=outputs, cost_per_call=0.0)

    def game(number: int) -> float:
        world = World(str(number))
        agent = DefaultAgent(
            model(), world, system_template=SYSTEM, instance_template="{{task}}", cost_limit=0.0,
            output_path=folder / f"{number}.json" if variant == "saved" else None,
        )  # fmt: skip
        agent.run(world.game.look())
        return world.reward

    return lambda n: list(pool.map(game, range(n)))
