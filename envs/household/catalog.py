"""What a household can hold: one table of places and what fits there, from which everything else follows.

The kinds are ALFWorld's, and what may be done here may be done there, though some of its rarer things and
places are left out; so what an agent learns here holds there. An object is only ever found where it fits, which
an expert may rely on.
"""

from collections.abc import Mapping

FOOD = "apple bread egg lettuce potato tomato"
DISHES = "bowl cup mug plate"
CUTLERY = "butterknife fork knife ladle spatula spoon"
COOKWARE = "kettle pan pot"
SHAKERS = "peppershaker saltshaker"
BOTTLES = "glassbottle winebottle"
WASH = "cloth dishsponge soapbar soapbottle spraybottle"
PAPER = "tissuebox toiletpaper"
SMALL = "cd cellphone creditcard keychain pen pencil watch"
DECOR = "alarmclock candle statue vase"
SOFT = "book box cellphone creditcard keychain laptop newspaper pillow remotecontrol"

_FITS: Mapping[str, tuple[str, ...]] = {
    "armchair": (SOFT,),
    "bathtubbasin": ("cloth dishsponge soapbar",),
    "bed": ("book cellphone laptop pillow",),
    "cabinet": (DISHES, COOKWARE, SHAKERS, BOTTLES, WASH, PAPER, "candle vase"),
    "cart": (WASH, PAPER, "candle"),
    "coffeemachine": ("mug",),
    "coffeetable": (
        "book bowl box candle cellphone creditcard keychain laptop newspaper",
        "pen pencil plate remotecontrol statue tissuebox vase watch",
    ),
    "countertop": (FOOD, DISHES, CUTLERY, COOKWARE, SHAKERS, BOTTLES, WASH, PAPER, "book candle"),
    "desk": (SMALL, "alarmclock book bowl box laptop mug statue tissuebox vase"),
    "diningtable": (FOOD, DISHES, CUTLERY, COOKWARE, SHAKERS, BOTTLES, "book laptop newspaper tissuebox vase"),
    "drawer": (CUTLERY, SHAKERS, SMALL, "book candle cloth newspaper remotecontrol soapbar toiletpaper"),
    "dresser": (SMALL, DECOR, "book bowl box laptop mug newspaper remotecontrol"),
    "fridge": (FOOD, DISHES, BOTTLES, "pan pot"),
    "garbagecan": (FOOD, PAPER, "cd cloth dishsponge newspaper pen pencil soapbar soapbottle spraybottle winebottle"),
    "microwave": (DISHES, "apple bread egg potato tomato"),
    "ottoman": (SOFT,),
    "safe": ("cd cellphone creditcard keychain statue vase",),
    "shelf": (SMALL, DECOR, WASH, PAPER, SHAKERS, BOTTLES, "book bowl box cup mug newspaper plate remotecontrol"),
    "sidetable": (SMALL, DECOR, "book bowl box cup laptop mug newspaper plate remotecontrol tissuebox"),
    "sinkbasin": (DISHES, CUTLERY, COOKWARE, "apple cloth dishsponge egg lettuce potato soapbar tomato"),
    "sofa": (SOFT,),
    "stoveburner": (COOKWARE,),
    "toaster": (),
    "toilet": (WASH, PAPER, "candle"),
    "toiletpaperhanger": ("toiletpaper",),
    "tvstand": ("remotecontrol statue tissuebox vase watch",),
}

#: Receptacle kind -> object kinds that fit in or on it, in alphabetical order.
FITS: Mapping[str, tuple[str, ...]] = {
    place: tuple(sorted(set(" ".join(things).split()))) for place, things in _FITS.items()
}
#: Lamps stand where they stand: they are used, never carried.
LAMPS: tuple[str, ...] = ("desklamp", "floorlamp")
#: Where a lamp may stand.
LAMP_HOMES = frozenset({"coffeetable", "desk", "dresser", "shelf", "sidetable"})

OPENABLE = frozenset({"cabinet", "drawer", "fridge", "microwave", "safe"})
CLEANABLE = frozenset(f"{DISHES} {CUTLERY} {COOKWARE} apple cloth dishsponge egg lettuce potato soapbar tomato".split())
HEATABLE = frozenset(["apple", "bread", "cup", "egg", "mug", "plate", "potato", "tomato"])
#: What things can be put into; ALFWorld describes these by what is in them, and nothing ever is.
HOLLOW = frozenset(f"{DISHES} box pan pot".split())
COOLABLE = frozenset(f"{FOOD} {DISHES} pan pot winebottle".split())
#: Verb -> (kinds it works on, kind of receptacle that does it, state it gives).
TREATMENTS: Mapping[str, tuple[frozenset[str], str, str]] = {
    "clean": (CLEANABLE, "sinkbasin", "clean"),
    "cool": (COOLABLE, "fridge", "cool"),
    "heat": (HEATABLE, "microwave", "hot"),
}

#: Room -> receptacle kind -> how many of that kind a full-sized room may have.
ROOMS: Mapping[str, Mapping[str, int]] = {
    "kitchen": {
        "cabinet": 8, "coffeemachine": 1, "countertop": 3, "diningtable": 2, "drawer": 6, "fridge": 1, "garbagecan": 1,
        "microwave": 1, "shelf": 3, "sidetable": 1, "sinkbasin": 1, "stoveburner": 4, "toaster": 1,
    },
    "living room": {
        "armchair": 2, "coffeetable": 2, "desk": 1, "diningtable": 1, "drawer": 6, "dresser": 1, "garbagecan": 1,
        "ottoman": 1, "safe": 1, "shelf": 5, "sidetable": 3, "sofa": 2, "tvstand": 1,
    },
    "bedroom": {
        "armchair": 1, "bed": 2, "cabinet": 2, "desk": 2, "drawer": 8, "dresser": 1, "garbagecan": 1, "safe": 1,
        "shelf": 6, "sidetable": 3,
    },
    "bathroom": {
        "bathtubbasin": 1, "cabinet": 6, "cart": 1, "countertop": 2, "drawer": 6, "garbagecan": 1, "shelf": 3,
        "sidetable": 1, "sinkbasin": 2, "toilet": 1, "toiletpaperhanger": 1,
    },
}  # fmt: skip

_BELONGS = {
    "kitchen": (FOOD, DISHES, CUTLERY, COOKWARE, SHAKERS, BOTTLES, "book dishsponge soapbottle statue vase"),
    "living room": (SMALL, DECOR, SOFT, "bowl mug plate tissuebox"),
    "bedroom": (SMALL, DECOR, SOFT, "bowl cloth mug tissuebox"),
    "bathroom": (WASH, PAPER, "candle"),
}  # fmt: skip
#: Room -> object kinds that one expects there.
BELONGS: Mapping[str, frozenset[str]] = {room: frozenset(" ".join(words).split()) for room, words in _BELONGS.items()}


def kind(name: str) -> str:
    """The kind of a numbered thing: "mug" for "mug 1"."""
    return name.rpartition(" ")[0]


def fits(thing: str, place: str) -> bool:
    """Whether object kind `thing` may be in or on receptacle kind `place`."""
    return place in LAMP_HOMES if thing in LAMPS else thing in FITS[place]
