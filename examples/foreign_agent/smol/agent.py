"""An agent of smolagents with one tool: an action in the world."""

import os
import subprocess

from smolagents import OpenAIModel, ToolCallingAgent, tool


def run(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


@tool
def act(action: str) -> str:
    """Do one action in the world and see what happens.

    Args:
        action: The action, one of the possible ones.
    """
    return run("instar-act", action)


model = OpenAIModel("instar", api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])
agent = ToolCallingAgent(tools=[act], model=model, max_steps=12)
agent.run(run("instar-task"))
