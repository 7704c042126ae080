"""Pickles from strangers as plain data.

A pickle is a program, and a hostile one can run any function. Two gates keep that out:

1. `scan_pickle` reads its instructions without following them: only those that its caller allows may occur, in a file
   of limited size, with no number in it that only wastes memory.
2. An unpickler (`Unpickler.find_class`) of the caller then knows a few names, and all of them stand for inert records.
"""

from __future__ import annotations

import pickletools
from collections.abc import Collection

# Instructions that make numbers, texts, lists, tuples, dictionaries, and objects of a class without calling a function.
PLAIN = frozenset({
    "PROTO", "FRAME", "STOP", "MARK", "MEMOIZE", "BINPUT", "LONG_BINPUT", "PUT", "BINGET", "LONG_BINGET", "GET",
    "NONE", "NEWTRUE", "NEWFALSE", "INT", "LONG", "LONG1", "BININT", "BININT1", "BININT2",
    "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
    "EMPTY_LIST", "LIST", "APPEND", "APPENDS", "EMPTY_DICT", "DICT", "SETITEM", "SETITEMS",
    "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3",
    "GLOBAL", "STACK_GLOBAL", "NEWOBJ", "BUILD",
})  # fmt: skip
MEMO = frozenset({"BINPUT", "LONG_BINPUT", "PUT"})


def scan_pickle(content: bytes, most_bytes: int, allowed: Collection[str] = PLAIN) -> None:
    """Check the instructions of a pickle without following them.

    Args:
        content: The pickle.
        most_bytes: The most that it may have.
        allowed: Names of the instructions that it may hold.

    Raises:
        ValueError: Another instruction, a number that only wastes memory, or a damaged pickle.
    """
    if len(content) > most_bytes:
        raise ValueError(f"larger than {most_bytes:,} bytes")
    for instruction, argument, _ in pickletools.genops(content):
        if instruction.name not in allowed:
            raise ValueError(f"instruction {instruction.name}")
        if instruction.name in MEMO and int(argument or 0) > len(content):
            raise ValueError(f"memo {argument}")
