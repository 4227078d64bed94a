"""Two policies to measure by: an expert that explores as a person would, and blind chance.

The expert looks at nothing an agent could not see: it visits the places where such a thing may be, open ones
first, remembers what it saw, and then does what the goal asks. So its episodes can be taught from.
"""

import random
from collections.abc import Callable

from envs.household import catalog
from envs.household.layout import TREATMENT
from envs.household.world import World
from envs.task import Observation


class Explorer:
    """Plays one episode of `world`; `act` gives the next command, judging by what has been seen so far."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._seen: dict[str, list[str]] = {}

    def act(self) -> str:
        """The next command; raises RuntimeError when nothing sensible is left to do."""
        world, goal = self.world, self.world.layout
        visible = world.visible()
        if world.at is not None and visible is not None:
            self._seen[world.at] = list(visible)
        held = world.holding
        if held is not None and catalog.kind(held) != goal.object:
            return self._put(held, self._homes(catalog.kind(held)))
        if held is None:
            return self._fetch(goal.object)
        if goal.type == "look_at_obj_in_light":
            return self._use(goal.target)
        verb = TREATMENT.get(goal.type)
        if verb is not None:
            _, tool, state = catalog.TREATMENTS[verb]
            if state not in world.states.get(held, ()):
                place = self._places(tool)[0]
                return f"{verb} {held} with {place}" if world.at == place else f"go to {place}"
        return self._put(held, self._destinations())

    def _places(self, kind: str) -> list[str]:
        return [name for name in self.world.contents if catalog.kind(name) == kind]

    def _homes(self, kind: str) -> list[str]:
        return [name for name in self.world.contents if catalog.fits(kind, catalog.kind(name))]

    def _destinations(self) -> list[str]:
        """The target places, best first: where most of what is wanted already lies."""
        wanted = self.world.layout.object

        def lying(name: str) -> int:
            return sum(catalog.kind(thing) == wanted for thing in self._seen.get(name, ()))

        return sorted(self._places(self.world.layout.target), key=lambda name: -lying(name))

    def _put(self, held: str, places: list[str]) -> str:
        if not places:
            raise RuntimeError(f"the household has no place for {held}")
        stray = catalog.kind(held) != self.world.layout.object
        place = self.world.at if stray and self.world.at in places else places[0]
        if self.world.at != place:
            return f"go to {place}"
        return f"open {place}" if self.world.closed(place) else f"move {held} to {place}"

    def _find(self, kind: str, leave: str | None = None) -> tuple[str, str] | None:
        """(thing, place) of a `kind` that was seen, here first, not counting what lies in the place to `leave`."""
        places = sorted((name for name in self._seen if name != leave), key=lambda name: name != self.world.at)
        found = ((thing, name) for name in places for thing in self._seen[name] if catalog.kind(thing) == kind)
        return next(found, None)

    def _fetch(self, kind: str) -> str:
        two = self.world.layout.type == "pick_two_obj_and_place"
        found = self._find(kind, leave=self._destinations()[0] if two else None)
        if found is None:
            return self._explore(kind)
        thing, place = found
        if self.world.at != place:
            return f"go to {place}"
        return f"open {place}" if self.world.closed(place) else f"take {thing} from {place}"

    def _use(self, lamp: str) -> str:
        found = self._find(lamp)
        if found is None:
            return self._explore(lamp)
        thing, place = found
        return f"use {thing}" if self.world.at == place else f"go to {place}"

    def _explore(self, kind: str) -> str:
        world = self.world
        unseen = [name for name in self._homes(kind) if name not in self._seen]
        if world.at in unseen:  # one stands before it and has not seen it: it is closed
            return f"open {world.at}"
        if not unseen:  # someone else moved things since; look again
            self._seen.clear()
            unseen = [name for name in self._homes(kind) if name != world.at]
        if not unseen:
            raise RuntimeError(f"this household has no place for a {kind} (goal: {world.layout.goal()})")
        # Things to put into the target do not start there, and what stands open is looked at quicker.
        target = world.layout.target
        unseen.sort(key=lambda name: (catalog.kind(name) == target, catalog.kind(name) in catalog.OPENABLE))
        return f"go to {unseen[0]}"


def expert(env: object, rng: random.Random) -> Callable[[Observation], str]:
    """A policy for a `Household`, good for any number of episodes; it needs no luck and leaves `rng` alone."""
    player: Explorer | None = None

    def act(observation: Observation) -> str:
        nonlocal player
        world = getattr(env, "world", None)
        if not isinstance(world, World):
            raise RuntimeError("the household expert needs a Household that has been reset")
        if player is None or player.world is not world:
            player = Explorer(world)
        return player.act()

    return act


def chance(env: object, rng: random.Random) -> Callable[[Observation], str]:
    """A policy that picks uniformly among the admissible commands with `rng`."""

    def act(observation: Observation) -> str:
        if not observation.choices:
            raise RuntimeError("the random policy needs an observation with choices")
        return rng.choice(observation.choices)

    return act
