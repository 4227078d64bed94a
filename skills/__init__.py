"""Skills: folders in the Agent Skills format, read, checked and disclosed in stages."""

from skills._sisters import check_sisters as _check_sisters

_check_sisters(__name__, __file__)
