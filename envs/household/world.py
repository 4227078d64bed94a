"""The rules of the household: what can be done now, and what happens when it is done.

One table holds every command that works in the present state. It is the list of admissible actions and the
only way an action is carried out, so what is offered and what works cannot come apart; whatever else is said,
nothing happens. Wording and order are those of ALFWorld 2.1.2, but for lists, which count upwards here; left out
are slicing and receptacles that share one spot.
"""

from collections.abc import Callable, Sequence

from envs.household import catalog
from envs.household.layout import TREATMENT, Layout

NOTHING = "Nothing happens."
HELP = (
    "You can: look, inventory, help, go to (place), open (place), close (place), take (object) from (place), "
    "move (object) to (place), examine (place or object), use (lamp), clean (object) with (sinkbasin), "
    "heat (object) with (microwave), cool (object) with (fridge)."
)
_Command = tuple[Callable[["World", str, str], str], str, str]


def listing(names: Sequence[str]) -> str:
    """Things in a row, as ALFWorld says it: "a mug 1, a apple 1, and a pen 2", or "nothing"."""
    if len(names) < 2:
        return f"a {names[0]}" if names else "nothing"
    return f"a {', a '.join(names[:-1])}, and a {names[-1]}"


def _order(name: str) -> tuple[str, int]:
    place, _, number = name.rpartition(" ")
    return place, int(number)


class World:
    """One household in play. Read its state freely; only `act` changes it."""

    __slots__ = ("_choices", "_commands", "_go", "at", "contents", "holding", "layout", "lit", "opened", "states")

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.contents: dict[str, list[str]] = {
            place: sorted(content, key=_order) for place, content in layout.receptacles
        }
        self.at: str | None = None
        self.holding: str | None = None
        self.opened: set[str] = set()
        self.lit: set[str] = set()
        self.states: dict[str, set[str]] = {}
        self._go = {f"go to {name}": (World._go_to, name, "") for name in sorted(self.contents)}
        self._commands: dict[str, _Command] | None = None
        self._choices: tuple[str, ...] = ()

    def commands(self) -> dict[str, _Command]:
        """Every command that works now, in alphabetical order."""
        if self._commands is None:
            self._commands = self._find_commands()
            every = self.layout.information
            self._choices = tuple(text for text, act in self._commands.items() if every or act[0] not in _TELLING)
        return self._commands

    def choices(self) -> tuple[str, ...]:
        """The commands to offer: all that work, or only those that change something if the layout says so."""
        self.commands()
        return self._choices

    def act(self, action: str) -> str:
        """Do `action`, whatever its case and spacing, and say what happened, be it "Nothing happens."."""
        commands = self.commands()
        command = commands.get(action) or commands.get(" ".join(action.lower().split()))
        return NOTHING if command is None else command[0](self, command[1], command[2])

    def look(self) -> str:
        """Where one stands and, in the middle of the room, which receptacles there are."""
        if self.at is None:
            room = listing(list(self.contents))
            return f"You are in the middle of a room. Looking quickly around you, you see {room}."
        return f"You are facing the {self.at}. Next to it, you see nothing."

    def visible(self) -> list[str] | None:
        """What is in or on the receptacle one stands at; None in the middle of the room or before a closed one."""
        return None if self.at is None or self.closed(self.at) else self.contents[self.at]

    def closed(self, name: str) -> bool:
        """Whether receptacle `name` can be opened and is not."""
        return catalog.kind(name) in catalog.OPENABLE and name not in self.opened

    def solved(self) -> bool:
        """Whether the goal holds now."""
        goal = self.layout
        if goal.type == "look_at_obj_in_light":
            if self.at is None or self.holding is None or catalog.kind(self.holding) != goal.object:
                return False
            return any(catalog.kind(thing) == goal.target and thing in self.lit for thing in self.contents[self.at])
        verb = TREATMENT.get(goal.type)
        state = catalog.TREATMENTS[verb][2] if verb else None
        needed = 2 if goal.type == "pick_two_obj_and_place" else 1
        for name, content in self.contents.items():
            if catalog.kind(name) == goal.target:
                found = [thing for thing in content if catalog.kind(thing) == goal.object]
                if len(found if state is None else [t for t in found if state in self.states.get(t, ())]) >= needed:
                    return True
        return False

    def _find_commands(self) -> dict[str, _Command]:
        at, held = self.at, self.holding
        commands: dict[str, _Command] = {}
        content: Sequence[str] = ()
        place = ""
        if at is not None:
            place = catalog.kind(at)
            content = self.visible() or ()
        if at and held and place == "sinkbasin" and catalog.kind(held) in catalog.CLEANABLE:
            commands[f"clean {held} with {at}"] = (World._treat, "clean", held)
        if at and at in self.opened:
            commands[f"close {at}"] = (World._close, at, "")
        if at and held and place == "fridge" and catalog.kind(held) in catalog.COOLABLE:
            commands[f"cool {held} with {at}"] = (World._treat, "cool", held)
        for name in sorted(name for name in (at, held) if name):
            commands[f"examine {name}"] = (World._examine, name, "")
        commands.update(self._go)
        if at is not None:
            del commands[f"go to {at}"]
        if at and held and place == "microwave" and catalog.kind(held) in catalog.HEATABLE:
            commands[f"heat {held} with {at}"] = (World._treat, "heat", held)
        commands["help"] = (World._help, "", "")
        commands["inventory"] = (World._inventory, "", "")
        commands["look"] = (World._look, "", "")
        if at is None:
            return commands
        shut = self.closed(at)
        if held and not shut and catalog.kind(held) in catalog.FITS[place]:
            commands[f"move {held} to {at}"] = (World._move, held, at)
        if shut:
            commands[f"open {at}"] = (World._open, at, "")
        lamps = [thing for thing in content if catalog.kind(thing) in catalog.LAMPS]
        if held is None:
            for thing in sorted(content):
                if thing not in lamps:
                    commands[f"take {thing} from {at}"] = (World._take, thing, at)
        for lamp in sorted(lamps):
            commands[f"use {lamp}"] = (World._use, lamp, "")
        return commands

    def _go_to(self, name: str, _: str) -> str:
        self.at, self._commands = name, None
        return f"You arrive at {name}. {self._examine(name, '')}"

    def _open(self, name: str, _: str) -> str:
        self.opened.add(name)
        self._commands = None
        return f"You open the {name}. {self._examine(name, '')}"

    def _close(self, name: str, _: str) -> str:
        self.opened.discard(name)
        self._commands = None
        return f"You close the {name}."

    def _take(self, thing: str, name: str) -> str:
        self.contents[name].remove(thing)
        self.holding, self._commands = thing, None
        return f"You pick up the {thing} from the {name}."

    def _move(self, thing: str, name: str) -> str:
        self.contents[name].append(thing)
        self.contents[name].sort(key=_order)  # what was done earlier does not show
        self.holding, self._commands = None, None
        return f"You move the {thing} to the {name}."

    def _treat(self, verb: str, thing: str) -> str:
        states = self.states.setdefault(thing, set())
        if verb != "clean":  # what is hot is not cool
            states -= {"cool", "hot"}
        states.add(catalog.TREATMENTS[verb][2])
        return f"You {verb} the {thing} using the {self.at}."

    def _use(self, lamp: str, _: str) -> str:
        self.lit.add(lamp)  # ALFWorld's lamps never go out again
        return f"You turn on the {lamp}."

    def _examine(self, name: str, _: str) -> str:
        if name not in self.contents:
            return self._describe(name)
        if self.closed(name):
            return f"The {name} is closed."
        inside = listing(self.contents[name])
        return (
            f"The {name} is open. In it, you see {inside}."
            if name in self.opened
            else f"On the {name}, you see {inside}."
        )

    def _describe(self, thing: str) -> str:
        if catalog.kind(thing) in catalog.HOLLOW:
            return f"This is a normal {thing}. In it, you see nothing."
        states = self.states.get(thing, set())
        if "clean" in states and len(states) > 1:
            return f"This is a {'hot' if 'hot' in states else 'cool'} and clean {thing}."
        for state, word in (("hot", "hot"), ("clean", "clean"), ("cool", "cold")):
            if state in states:
                return f"This is a {word} {thing}."
        return f"There's nothing special about {thing}."

    def _inventory(self, _: str, __: str) -> str:
        return f"You are carrying: a {self.holding}." if self.holding else "You are not carrying anything."

    def _look(self, _: str, __: str) -> str:
        return self.look()

    def _help(self, _: str, __: str) -> str:
        return HELP


#: What only tells and changes nothing.
_TELLING = frozenset({World._examine, World._help, World._inventory, World._look})
