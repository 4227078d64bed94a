"""Evolution: the loop that changes a harness or its memory and keeps only what evidence supports."""

from evolve._sisters import check_sisters as _check_sisters

_check_sisters(__name__, __file__)
