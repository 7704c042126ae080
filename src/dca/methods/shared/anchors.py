"""What a finished head measures the distance of an image to: the text of each class, its images, or both.

text    u_{m,y}
means   x̄_y / ‖x̄_y‖, the mean of the training features of a class
both    (u_{m,y} + x̄_y / ‖x̄_y‖) / ‖ · ‖
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor
from torch.nn import functional as F

from dca.core.actions import set_option
from dca.core.errors import UserError
from dca.core.wording import counted
from dca.methods.shared.shots import Shots

Anchors = Literal["text", "means", "both"]


def anchors_of(u: Tensor, shots: Shots, anchors: Anchors) -> Tensor:
    """Unit vectors (M, C, D), from unit text features u (M, C, D) and the training features of the classes.

    Raises:
        UserError: If a class has no images, and the text is not all that is asked for.
    """
    if anchors == "text":
        return u
    if without := int((shots.counts == 0).sum()):
        found = counted(without, "class", "have")
        raise UserError(
            f"anchors={anchors} needs images of every class; {found} none", hint=set_option("anchors", "text")
        )
    means = F.normalize(shots.means(), dim=-1)
    return F.normalize(u + means, dim=-1) if anchors == "both" else means.expand_as(u)
