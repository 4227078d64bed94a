"""The `choice` loop: the model picks one of the admissible moves, and cannot say anything else.

This makes very small models usable: the answer is constrained to the moves of the present situation. A world
that offers no choices cannot be played this way, and the first observation says so.
"""

from harness.agent import Agent
from harness.episode import Episode, NoChoices


async def choice(agent: Agent, episode: Episode) -> None:
    """Play `episode` by constrained choice."""
    while not episode.over:
        situation = agent.situation(episode)
        if not situation.moves:
            raise NoChoices(
                f"task {episode.task.id}: the environment offers no choices, and the choice loop needs them. "
                'Cure: begin with instar init NEW --starter react, or set [control] loop = "react" in harness.toml'
            )
        items, memories = agent.remember(episode, situation.text)
        request = agent.request(agent.values(episode, situation, memories), choices=tuple(situation.moves))
        completion = await episode.ask(agent.model, request)
        move = completion.text if completion.text in situation.moves else completion.text.strip()
        retrieved = [item.id for item in items]
        if move in situation.moves:
            await episode.act(situation.moves[move][0], situation=situation.text, move=move, retrieved=retrieved)
        else:
            await episode.reject(situation=situation.text, retrieved=retrieved)
