"""mini-swe-agent with its own scripted model: one thread an episode; nothing is saved."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor

sys.path.append(os.path.dirname(__file__))
os.environ |= {"MSWEA_SILENT_STARTUP": "1", "MSWEA_COST_TRACKING": "ignore_errors"}

from clock import STEPS, Counter, measure
from minisweagent.agents.default import DefaultAgent
from minisweagent.exceptions import Submitted
from minisweagent.models.test_models import DeterministicModel, make_output

LAST = "submit"


class World:
    """The game behind mini-swe-agent's environment: a command is an action."""

    config = None

    def __init__(self) -> None:
        self.game = Counter()

    def execute(self, action, cwd=""):
        """Do a command."""
        if action["command"] == LAST:
            result = {"exit_status": "Submitted", "submission": "done"}
            raise Submitted({"role": "exit", "content": "done", "extra": result})
        return {"output": self.game.step(action["command"]), "returncode": 0, "exception_info": ""}

    def get_template_vars(self, **kwargs):
        """None."""
        return {}

    def serialize(self):
        """Nothing."""
        return {}


def episode(_: int) -> bool:
    """Play one; whether it was won."""
    commands = ["add"] * STEPS + [LAST]
    outputs = [make_output(f"I do {command}.", [{"command": command}], cost=0.0) for command in commands]
    model, world = DeterministicModel(outputs=outputs, cost_per_call=0.0), World()
    agent = DefaultAgent(
        model, world, system_template="You play a counter game.", instance_template="{{task}}", cost_limit=0.0
    )
    agent.run("Count to ten.")
    return world.game.count == STEPS


def play(n: int, at_once: int) -> int:
    """How many of n were won."""
    with ThreadPoolExecutor(at_once) as pool:
        return sum(pool.map(episode, range(n)))


measure(play)
