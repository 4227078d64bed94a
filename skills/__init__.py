"""Skills: folders in the Agent Skills format, read, checked and disclosed in stages."""

from skills._sisters import check_sisters as _check_sisters

_check_sisters(__name__, __file__)

from skills.library import Library, tokens_of  # noqa: E402
from skills.skill import Skill, SkillFault  # noqa: E402

__all__ = ["Library", "Skill", "SkillFault", "tokens_of"]
