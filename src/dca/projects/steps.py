"""Steps: changes of a folder that can be undone and redone, and that a kill at any moment leaves whole.

A step is a list of moves inside the folder, so undoing it moves everything back. What a step removes lies in the trash
until the step is forgotten. A step is a file of JSON lines, whose name says where it stands:

    000012.begun      its moves are under way: they are completed when the folder is opened again
    000012.done
    000012.returning  it is being undone: that is completed, too
    000012.undone     it can be redone, until another step is made

No move ever replaces a file, so a move that was made before a kill is recognised and left out.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from dca.core.errors import UserError
from dca.core.files import encode_utf8, explain_write_errors, write_bytes
from dca.core.text import pluralize

BEGUN, DONE, RETURNING, UNDONE = "begun", "done", "returning", "undone"


@dataclass(frozen=True)
class Move:
    """A file or folder that changes its path; both are relative to the folder of the project.

    source: None for a folder that is made.
    """

    source: str | None
    target: str


@dataclass
class Step:
    """One change. words: what it does, for "undo ...". adds: whether photos may still be added to it."""

    number: int
    words: str
    state: str
    moves: list[Move] = field(default_factory=list)
    adds: bool = False

    def __str__(self) -> str:
        return f"{self.words} {pluralize(self.photos, 'photo')}" if self.adds else self.words

    @property
    def photos(self) -> int:
        """How many files it moves."""
        return sum(move.source is not None for move in self.moves)


class Journal:
    """The steps of a folder.

    Args:
        root: The folder.
        private: A hidden folder inside it, for the steps and the trash.
        most: How many steps are kept.
        trash_bytes: How much of the trash is kept.
    """

    def __init__(self, root: Path, private: Path, *, most: int, trash_bytes: int) -> None:
        self._root, self._folder, self._trash = root, private / "steps", private / "trash"
        self._most, self._trash_bytes = most, trash_bytes
        self.steps: list[Step] = []

    def open(self) -> None:
        """Read the steps, and complete what a kill has interrupted."""
        if not self._folder.is_dir():
            return
        for file in sorted(self._folder.iterdir()):
            number, _, state = file.name.partition(".")
            if number.isdecimal() and state in (BEGUN, DONE, RETURNING, UNDONE):
                self.steps.append(_read_step(file, int(number), state))
        for step in self.steps:
            if step.state == BEGUN:
                self._move_on(step)
            elif step.state == RETURNING:
                self._move_back(step)

    @property
    def last_done(self) -> Step | None:
        """The step that `undo` takes back."""
        return next((step for step in reversed(self.steps) if step.state == DONE), None)

    @property
    def first_undone(self) -> Step | None:
        """The step that `redo` makes again."""
        return next((step for step in self.steps if step.state == UNDONE), None)

    @property
    def done(self) -> int:
        """How many steps can be undone."""
        return sum(step.state == DONE for step in self.steps)

    def trash_path(self, name: str, *, ahead: int = 0) -> str:
        """A path in the trash of the next step. ahead: number of paths that the caller has taken before."""
        return f"{self._trash.relative_to(self._root).as_posix()}/{self._next_number:06}/{ahead}-{name}"

    @property
    def _next_number(self) -> int:
        return self.steps[-1].number + 1 if self.steps else 1

    def make(self, words: str, moves: Sequence[Move]) -> Step:
        """Make a step: it is written down before its first move."""
        self._forget_undone()
        step = Step(self._next_number, words, BEGUN, list(moves))
        self._write(step)
        self.steps.append(step)
        self._move_on(step)
        self._forget_oldest()
        return step

    def begin_adding(self, words: str) -> Step:
        """Begin a step to which `add` adds files one by one."""
        self._forget_undone()
        step = Step(self._next_number, words, DONE, adds=True)
        self._write(step)
        self.steps.append(step)
        self._forget_oldest()
        return step

    def add(self, step: Step, move: Move) -> None:
        """Note a file that is about to be written, or a folder that is about to be made, by a step that adds."""
        line = encode_utf8(json.dumps([move.source, move.target], ensure_ascii=False) + "\n")
        with explain_write_errors(self._file(step)), self._file(step).open("ab") as file:
            file.write(line)
        step.moves.append(move)

    def undo(self) -> Step | None:
        """Take back the last step; None if there is none."""
        step = self.last_done
        if step is not None:
            self._rename(step, RETURNING)
            self._move_back(step)
        return step

    def redo(self) -> Step | None:
        """Make the step again that was undone last; None if there is none."""
        step = self.first_undone
        if step is not None:
            self._rename(step, BEGUN)
            self._move_on(step)
        return step

    def _move_on(self, step: Step) -> None:
        for move in step.moves:
            if move.source is None:
                with explain_write_errors(self._root / move.target):
                    (self._root / move.target).mkdir(parents=True, exist_ok=True)
            else:
                self._move(move.source, move.target)
        self._rename(step, DONE)

    def _move_back(self, step: Step) -> None:
        for move in reversed(step.moves):
            if move.source is None:
                with suppress(OSError):  # something else lies in it by now, and stays
                    (self._root / move.target).rmdir()
            else:
                self._move(move.target, move.source)
        self._rename(step, UNDONE)

    def _move(self, source: str, target: str) -> None:
        """Move a file or folder, unless that has been done, or something else has taken its place."""
        one, other = self._root / source, self._root / target
        if os.path.lexists(other) and not _same(one, other):
            return
        with explain_write_errors(other):
            other.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):
                one.rename(other)

    def _write(self, step: Step) -> None:
        lines: list[object] = [{"words": step.words, "adds": step.adds}]
        lines += [[move.source, move.target] for move in step.moves]
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        with explain_write_errors(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
        write_bytes(self._file(step), encode_utf8(text))

    def _rename(self, step: Step, state: str) -> None:
        file = self._file(step)
        step.state = state
        with explain_write_errors(file):
            file.rename(self._file(step))

    def _file(self, step: Step) -> Path:
        return self._folder / f"{step.number:06}.{step.state}"

    def _forget_undone(self) -> None:
        for step in [step for step in self.steps if step.state == UNDONE]:
            self._forget(step)

    def _forget_oldest(self) -> None:
        """Forget the oldest steps beyond the limits; the last one can always be undone."""
        sizes = [_folder_bytes(self._trash_of(step)) for step in self.steps]
        while len(self.steps) > 1 and (len(self.steps) > self._most or sum(sizes) > self._trash_bytes):
            self._forget(self.steps[0])
            del sizes[0]

    def _forget(self, step: Step) -> None:
        """Forget a step: its file first, so that nothing is ever moved back from a trash that is half gone."""
        with explain_write_errors(self._folder):
            self._file(step).unlink(missing_ok=True)
        shutil.rmtree(self._trash_of(step), ignore_errors=True)
        self.steps.remove(step)

    def _trash_of(self, step: Step) -> Path:
        return self._trash / f"{step.number:06}"


def _read_step(file: Path, number: int, state: str) -> Step:
    """Read a step; a last line that a kill has cut off is left out."""
    step = Step(number, "a change", state)
    try:
        head, *lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
        facts = json.loads(head)
        step.words, step.adds = str(facts["words"]), bool(facts["adds"])
        for line in lines:
            if line.endswith("\n"):
                source, target = json.loads(line)
                step.moves.append(Move(_inside(source), _inside(target) or ""))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{file}: not a readable step ({error})", hint="delete this file: it only serves to undo"
        ) from None
    return step


def _inside(path: object) -> str | None:
    """A path of a step; raises unless it stays in the folder."""
    if path is None:
        return None
    parts = Path(str(path)).parts
    if not parts or ".." in parts or Path(str(path)).is_absolute():
        raise ValueError(f"{path!r} is not inside the project")
    return str(path)


def _same(one: Path, other: Path) -> bool:
    """Whether two names are one file: "Cat" and "cat" are, where the system ignores case."""
    with suppress(OSError):
        return one.samefile(other)
    return False


def _folder_bytes(folder: Path) -> int:
    """Bytes of the files in a folder; 0 where there is none."""
    total = 0
    for inner, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(inner, name)).st_size
    return total
