"""Every comparison: our method and options, the repository, and what is not the same on purpose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from side_by_side import clip_svd, cross_modal, frozen, gallop, vpt
from side_by_side import repositories as repos
from side_by_side.comparing import Observed
from side_by_side.setting import Setting


@dataclass(frozen=True)
class Case:
    """One comparison. observe: their observation and ours, from the folder of the repository. note: for the table."""

    method: str
    repository: repos.Repository
    observe: Callable[[Path, Setting], tuple[Observed, Observed]]
    note: str


CASES = (
    Case(
        "tip_adapter",
        repos.TIP_ADAPTER,
        frozen.tip_adapter,
        "includes the search of α and β on validation images. Theirs has a range per dataset; here both search [12, 10]"
        ". They store keys and values in float16",
    ),
    Case(
        "tip_adapter_f",
        repos.TIP_ADAPTER,
        frozen.tip_adapter_f,
        "as above, after one step at rate 0; their choice of the epoch on test images does not show in one step",
    ),
    Case(
        "cross_modal",
        repos.CROSS_MODAL,
        cross_modal.linear,
        "heads with and without WiSE-FT (0.5). Start at the text features, as in their README; `linear_probe.sh` starts"
        " at random. Their scale is exp(4.60517), ours the checkpoint's 100",
    ),
    Case(
        "cross_modal form=partial",
        repos.CROSS_MODAL,
        cross_modal.partial,
        "gradients of the head, and of last block, final norm and projection of the image tower; WiSE-FT as above",
    ),
    Case(
        "vpt placement=original",
        repos.VPT,
        vpt.original,
        "tokens in all blocks. Their token code runs on CLIP's tower, because their ViT has no ln_pre, and text"
        " features replace their trained linear head",
    ),
    Case(
        "vpt placement=maple",
        repos.MAPLE,
        vpt.maple,
        "tokens in all blocks but the last. They round the tokens to float16",
    ),
    Case(
        "vpt placement=dapt",
        repos.DAPT,
        vpt.dapt,
        'tokens before the first block. Their text context holds "a photo of a" and is not trained; their two other'
        " loss terms belong to `dapt` and are left out. They train in float16",
    ),
    Case(
        "gda",
        repos.GDA,
        frozen.gda,
        "includes the search of α on validation images. Ours in float64, too: weights are in the hundreds",
    ),
    Case(
        "proker",
        repos.PROKER,
        frozen.proker,
        "includes the search of β and λ on validation images, with the grid of Caltech101. Logits are those that the"
        " argmax is taken of, times τ",
    ),
    Case(
        "lp_plus_plus bias=true",
        repos.LP_PLUS_PLUS,
        frozen.lp_plus_plus,
        "300 iterations, and which of them counts on validation images. Their bias starts at random values, here at 0;"
        " they train in float16",
    ),
    Case(
        "clip_svd",
        repos.CLIP_SVD,
        clip_svd.clip_svd,
        "from singular values 10 % off CLIP's. They decompose in float32, which alone moves these logits by 2e-3, and"
        " train with float16 autocast",
    ),
    Case(
        "gallop",
        repos.GALLOP,
        gallop.gallop,
        "their loss gets our draw of one global prompt per image; with dropout below 0.75 it could draw one twice, ours"
        " not. They train with float16 autocast",
    ),
)
