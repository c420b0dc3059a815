"""A pickle as data: its opcodes are read one by one, and nothing that it names is ever imported or called.

`pickle.load` runs what a file tells it to run. Here a file may build dictionaries, lists, tuples, text and
numbers, and arrays of bytes in the way NumPy writes them; anything else is refused.
"""

from __future__ import annotations

import math
import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tertium.errors import InputError
from tertium.labels.formats.text import read_bytes

_MAKE_ARRAY = ("numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct")
_ARRAY, _KIND = "numpy ndarray", "numpy dtype"
_BYTE_KINDS = ("u1", "|u1")


class _RefusedError(ValueError):
    """The pickle does more than describe data."""


@dataclass(frozen=True)
class _Name:
    """A name that the file gives; it stays a name."""

    text: str


@dataclass
class InertArray:
    """An array of bytes as the file describes it."""

    shape: tuple[int, ...] = ()
    data: bytes = b""

    def values(self) -> npt.NDArray[np.uint8]:
        """Return the array."""
        return np.frombuffer(self.data, dtype=np.uint8).reshape(self.shape)


class _Kind:
    """NumPy's type of bytes; the only one there is."""


class _Mark:
    """Where the items of a list or a dictionary begin on the stack."""


def read_pickle(path: Path) -> Any:
    """Return what a pickle of plain data describes; text that Python 2 wrote as bytes becomes text."""
    data = read_bytes(path)
    machine = _Machine()
    try:
        for opcode, argument, place in pickletools.genops(data):
            try:
                machine.step(opcode.name, argument)
            except _RefusedError as error:
                raise InputError(
                    f"{path}: byte {place}: the pickle {error}, which is not plain data; it is not read, and "
                    "nothing in it was run"
                ) from None
        return machine.result()
    except InputError:
        raise
    except (ValueError, TypeError, IndexError, KeyError, OverflowError, EOFError, RecursionError) as error:
        raise InputError(f"{path}: not a pickle, or a damaged one ({error})") from None


class _Machine:
    """A stack and a memo, as pickles use them."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def result(self) -> Any:
        if len(self._stack) != 1:
            raise ValueError(f"it leaves {len(self._stack)} values")
        return self._stack[0]

    def step(self, name: str, argument: Any) -> None:
        if name in _NOTHING:
            return
        if name in _VALUES:
            self._stack.append(_text(argument))
        elif name in _FRESH:
            self._stack.append(_FRESH[name]())
        elif name in _PUTS:
            self._memo[len(self._memo) if argument is None else argument] = self._stack[-1]
        elif name in _GETS:
            self._stack.append(self._memo[argument])
        elif name in _ACTIONS:
            _ACTIONS[name](self)
        elif name == "GLOBAL":
            self._stack.append(_permitted(argument))
        else:
            raise _RefusedError(f"uses {name}")

    def pop(self, count: int) -> list[Any]:
        if len(self._stack) < count:
            raise IndexError("the stack is empty")
        taken = self._stack[len(self._stack) - count :]
        del self._stack[len(self._stack) - count :]
        return taken

    def pop_items(self) -> list[Any]:
        """Take what lies above the last mark."""
        above = 0
        while not isinstance(self._stack[-1 - above], _Mark):  # an IndexError where there is none
            above += 1
        return self.pop(above + 1)[1:]

    def push_tuple(self, items: list[Any]) -> None:
        self._stack.append(tuple(items))

    def extend(self, items: list[Any]) -> None:
        if not isinstance(self._stack[-1], list):
            raise TypeError("items for what is no list")
        self._stack[-1].extend(items)

    def update(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if not isinstance(target, dict) or len(items) % 2:
            raise TypeError("items for what is no dictionary")
        if not all(isinstance(key, str | int) for key in items[::2]):  # a deep tuple's hash can end Python
            raise TypeError("a key that is neither text nor a number")
        target.update(zip(items[::2], items[1::2], strict=True))

    def join_name(self) -> None:
        module, name = self.pop(2)
        self._stack.append(_permitted(f"{module} {name}"))

    def make(self) -> None:
        """Stand for a call: of NumPy's two functions for arrays, which are not called either."""
        function, arguments = self.pop(2)
        if not isinstance(function, _Name) or not isinstance(arguments, tuple):
            raise _RefusedError("calls something")
        if function.text in _MAKE_ARRAY and arguments[:1] == (_Name(_ARRAY),):
            self._stack.append(InertArray())
        elif function.text == _KIND and arguments[:1] and arguments[0] in _BYTE_KINDS:
            self._stack.append(_Kind())
        else:
            raise _RefusedError(f"makes another object with {function.text.replace(' ', '.')}")

    def fill(self) -> None:
        """Give an array its shape and bytes; the state of the type of bytes says nothing."""
        target, state = self.pop(2)
        if isinstance(target, InertArray):
            target.shape, target.data = _array_state(state)
        elif not isinstance(target, _Kind):
            raise _RefusedError("sets the state of an object")
        self._stack.append(target)


def _array_state(state: Any) -> tuple[tuple[int, ...], bytes]:
    if not isinstance(state, tuple) or len(state) != 5:
        raise TypeError("an array without shape and bytes")
    _, shape, kind, by_column, data = state
    if isinstance(data, str):  # Python 2 had no bytes
        data = data.encode("latin-1")
    if not isinstance(shape, tuple) or not all(type(length) is int and length >= 0 for length in shape):
        raise TypeError("an array without a shape")
    if not isinstance(kind, _Kind) or by_column is not False or not isinstance(data, bytes):
        raise TypeError("an array that is not of bytes, row by row")
    if math.prod(shape) != len(data):
        raise ValueError(f"an array of shape {shape} with {len(data):,} bytes")
    return shape, data


def _permitted(name: str) -> _Name:
    if name not in (*_MAKE_ARRAY, _ARRAY, _KIND):
        raise _RefusedError(f'names "{name.replace(" ", ".")}"')
    return _Name(name)


def _text(value: Any) -> Any:
    """Return bytes that are text as text, so that the keys of Python 2 and 3 are the same."""
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return value


_NOTHING = ("PROTO", "FRAME", "STOP")
_STRINGS = ("BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINUNICODE", "SHORT_BINUNICODE")
_VALUES = (*_STRINGS, "BININT", "BININT1", "BININT2", "LONG1")
_FRESH: dict[str, Callable[[], Any]] = {
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "MARK": _Mark,
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
}
_PUTS = ("BINPUT", "LONG_BINPUT", "MEMOIZE")
_GETS = ("BINGET", "LONG_BINGET")
_ACTIONS: dict[str, Callable[[_Machine], None]] = {
    "TUPLE": lambda machine: machine.push_tuple(machine.pop_items()),
    "TUPLE1": lambda machine: machine.push_tuple(machine.pop(1)),
    "TUPLE2": lambda machine: machine.push_tuple(machine.pop(2)),
    "TUPLE3": lambda machine: machine.push_tuple(machine.pop(3)),
    "APPEND": lambda machine: machine.extend(machine.pop(1)),
    "APPENDS": lambda machine: machine.extend(machine.pop_items()),
    "SETITEM": lambda machine: machine.update(machine.pop(2)),
    "SETITEMS": lambda machine: machine.update(machine.pop_items()),
    "STACK_GLOBAL": _Machine.join_name,
    "REDUCE": _Machine.make,
    "BUILD": _Machine.fill,
}
