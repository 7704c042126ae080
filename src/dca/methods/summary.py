"""Tables of methods: what each one learns, and how many values it trains on a backbone of a given shape."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dca.clip import VIT_B_16, CLIPConfig
from dca.clip.weights import blank
from dca.methods.interface import Method, Problem

CLASSES = 100


def parameter_count(
    method: type[Method], config: CLIPConfig = VIT_B_16, classes: int = CLASSES, shots: int = 16, **chosen: Any
) -> int:
    """Number of trained values on a backbone of this shape, whose weights are not needed.

    chosen: options other than the defaults. One class name is a single token, as in nearly every
    dataset, since LAMM learns as many tokens per name as the shortest name has.
    """
    names = ("class", *(f"class {c}" for c in range(1, classes)))
    return method.build(blank(config), Problem(names=names, shots=shots), method.Options(**chosen)).count_trained()


def summary(method: type[Method]) -> dict[str, Any]:
    """One row of the tables."""
    trained = parameter_count(method)
    return {
        "name": method.name,
        "paper": method.paper,
        "trains_on": method.trains_on,
        "learns_from": learns_from(method, trained),
        "trained_parameters": trained,
        "summary": (method.__doc__ or "").splitlines()[0],
    }


def learns_from(method: type[Method], trained: int) -> str:
    """What the trained values come from; `trains_on` names only the input of the training loop."""
    if method.trains_on == "nothing":
        return "frozen features, solved" if trained else "nothing is trained"
    return "frozen features" if method.trains_on == "features" else method.trains_on


def table(methods: Iterable[type[Method]]) -> str:
    """Markdown with one row per method: what it learns, and from what."""
    lines = ["| method | what it is | learns from | trained values | paper |", "|---|---|---|---:|---|"]
    for row in map(summary, methods):
        what, learns = row["summary"].rstrip("."), row["learns_from"]
        lines.append(f"| `{row['name']}` | {what} | {learns} | {row['trained_parameters']:,} | {row['paper']} |")
    return "\n".join(lines)
