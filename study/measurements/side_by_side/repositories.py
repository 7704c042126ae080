"""The authors' repositories: where they lie, at which commit, and how to get them."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Repository:
    """A repository on GitHub, by its full name "owner/name". at: the commit to take, if not the newest."""

    full_name: str
    at: str = ""

    def find(self, folder: Path) -> Path | None:
        """Its work tree in `folder`, as owner+name or name; None if there is none."""
        owner, name = self.full_name.split("/")
        return next((path for path in (folder / f"{owner}+{name}", folder / name) if path.is_dir()), None)

    def how_to_get(self, folder: Path) -> str:
        """The command that brings it."""
        target = folder / self.full_name.replace("/", "+")
        clone = f"git clone https://github.com/{self.full_name} {target}"
        return f"{clone} && git -C {target} checkout {self.at}" if self.at else clone


def commit(tree: Path) -> str:
    """The commit of a work tree, short, with "+" if Python files differ from it; "unknown" if it is no clone."""

    def git(*arguments: str) -> str | None:
        done = subprocess.run(["git", "-C", str(tree), *arguments], capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else None

    # Otherwise a plain folder inside another clone would be given the commit of that one.
    if not (tree / ".git").exists():
        return "unknown"
    found = git("rev-parse", "--short=7", "HEAD")
    if not found:
        return "unknown"
    return found + ("+" if git("diff", "HEAD", "--name-only", "--diff-filter=AM", "--", "*.py") else "")


TIP_ADAPTER = Repository("gaopengcuhk/Tip-Adapter")
CROSS_MODAL = Repository("linzhiqiu/cross_modal_adaptation")
VPT = Repository("KMnP/vpt")
MAPLE = Repository("muzairkhattak/multimodal-prompt-learning")
DAPT = Repository("mlvlab/DAPT")
GDA = Repository("mrflogs/ICLR24")
CLIP_SVD = Repository("HealthX-Lab/CLIP-SVD")
GALLOP = Repository("MarcLafon/gallop")
LP_PLUS_PLUS = Repository("FereshteShakeri/FewShot-CLIP-Strong-Baseline")
# The authors' history up to March 2025 lies in a fork of somebody else, whose later commits change their code.
PROKER = Repository("omarnust/BReg-Adapter", at="f2ecb3d")
