"""PTX, read: the instructions of a kernel as arrays of numbers, and registers for all that they name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from ptx_operations import STATEMENTS

BRANCH, RETURN, BARRIER, TRAP = range(4)
FLOW = ("bra", "ret", "bar", "trap")
_CODES = {name: at for at, name in enumerate((*FLOW, *STATEMENTS))}
READS, WRITES, CHANGES = range(3)
GLOBAL, SHARED, LOCAL = range(3)
NARROW = 4
"""Added to the space of an address that stands in a register of 32 bits."""


class Code(NamedTuple):
    """A program: of each instruction what it does and with which registers."""

    op: np.ndarray
    guard: np.ndarray  # the register that says whether it is done, or not, where below zero
    d: np.ndarray  # where the result goes, or the instruction to go on at
    a: np.ndarray
    b: np.ndarray
    c: np.ndarray
    e: np.ndarray
    offset: np.ndarray
    bytes: np.ndarray  # that it touches; 0: none
    aligned: np.ndarray
    space: np.ndarray
    kind: np.ndarray  # a read, a write, or both at once


_INSTRUCTION = re.compile(r"(?:@(!?)(%p\d+)\s+)?([a-z]\w*(?:\.[\w:]+)*)\s*([^;]*);")
_PLACE = re.compile(r"\[([^+\]]+)\+?(-?\d+)?\]")
_ARRAY = re.compile(r"(\.extern )?\.(?:shared|local) \.align \d+ \.b8\s+(\w+)\[(\d*)\]")
SPECIAL = ("%tid.x", "%ntid.x", "%ctaid.x", "%nctaid.x", "%dynamic_smem_size")
_PLAIN = {"rn", "uni", "wrap", "relaxed", "gpu", "nc", "volatile"}
"""Parts of names that say nothing here, as all is done in order and rounded to the nearest."""
_WITHOUT_RESULT = {
    "bra": "bra",
    "ret": "ret",
    "exit": "ret",
    "bar.sync": "bar",
    "barrier.sync": "bar",
    "trap": "trap",
}
_ATOMIC = ("add", "exch", "cas", "min", "max")


class Program:
    """A kernel's PTX, made ready: its instructions, and registers for all that they name.

    Parameters
    ----------
    text : str
        One entry, that calls nothing.

    Raises
    ------
    NotImplementedError
        If there is something in it that the machine does not do, with the line.
    """

    def __init__(self, text: str) -> None:
        self.registers: dict[str, int] = {"": 0}
        self.constants: dict[int, int] = {}  # what is in a register from the start
        self.static_bytes = self.local_bytes = 0  # of a block's shared memory, and of a thread's own
        self.lines: list[str] = []
        self._line = ""
        self._rows: list[list[int]] = []
        self._symbols: dict[str, int] = {}
        self._bits: dict[str, int] = {}
        self._labels: dict[str, int] = {}
        self._jumps: list[tuple[int, str]] = []
        head, body = text[text.index(".entry") :].split("{", 1)
        for name in SPECIAL:
            self._register(name)
        parameters = re.findall(r"\.param .*?(\w+),?\n", head.split("(", 1)[1])
        self.parameters = [self._register(name) for name in parameters]
        self._place_arrays(text)
        for line in body[: body.rindex("}")].splitlines():
            self._read(line.strip())
        for row, label in self._jumps:
            self._rows[row][2] = self._labels[label]
        self.code = Code(*map(np.ascontiguousarray, np.array(self._rows, np.int64).T))

    def _place_arrays(self, text: str) -> None:
        """Give arrays their places: those whose size a launch says all begin where the others end."""
        found = _ARRAY.finditer(text)
        dynamic = []
        for one in found:
            is_extern, name, size = one.groups()
            if ".local" in one[0]:
                self._symbols[name], self.local_bytes = 0, -(-int(size) // 16) * 16
            elif is_extern or not size:
                dynamic.append(name)
            else:
                self._symbols[name] = self.static_bytes
                self.static_bytes += -(-int(size) // 16) * 16
        self._symbols.update(dict.fromkeys(dynamic, self.static_bytes))

    def _read(self, line: str) -> None:
        self._line = line
        if line.startswith(".reg"):
            kind, name = re.match(r"\.reg \.(\w+)\s+(%[a-zA-Z]+)", line).groups()
            self._bits[name] = 1 if kind == "pred" else int(kind[1:])
        elif line.endswith(":"):
            self._labels[line[:-1]] = len(self._rows)
        elif line and not line.startswith(("//", ".", "{", "}")):
            found = _INSTRUCTION.fullmatch(line)
            if found is None:
                raise self._unknown()
            self._take(*found.groups())

    def _unknown(self) -> NotImplementedError:
        return NotImplementedError(f"This machine does not know: {self._line}")

    def _register(self, name: str) -> int:
        return self.registers.setdefault(name, len(self.registers))

    def _operand(self, text: str) -> int:
        """Return the register of an operand; one with its value where it is a constant or a symbol."""
        if text in self.registers:
            return self.registers[text]
        if text.startswith("%"):
            if re.match("%[a-zA-Z]+", text)[0] not in self._bits:
                raise self._unknown()
            return self._register(text)
        if text in self._symbols:
            value = self._symbols[text]
        elif text.startswith(("0d", "0f")):
            value = int(text[2:], 16)
        else:
            value = int(text, 0) & 0xFFFFFFFFFFFFFFFF
        register = self._register(f"={value}")
        self.constants[register] = value
        return register

    def _add(self, name: str, guard: int, operands: Sequence[str], **more: int) -> None:
        if name not in _CODES:
            raise self._unknown()
        registers = [*map(self._operand, operands), 0, 0, 0, 0, 0][:5]
        rest = [more.get(each, 0) for each in ("offset", "bytes", "aligned", "space", "kind")]
        self._rows.append([_CODES[name], guard, *registers, *rest])
        self.lines.append(self._line)

    def _take(self, negated: str, guarded: str, name: str, rest: str) -> None:
        guard = 0 if not guarded else self._register(guarded) * (-1 if negated else 1)
        parts = name.split(".")
        if parts[0] != "cvt":
            parts = [each for each in parts if each not in _PLAIN]
        operands = [each.strip() for each in re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+", rest)]
        flow = _WITHOUT_RESULT.get(".".join(parts))
        if flow is not None:
            if flow == "bra":
                self._jumps.append((len(self._rows), operands[0]))
            elif flow == "bar" and operands != ["0"]:
                raise self._unknown()
            self._add(flow, guard, [])
        elif parts[:2] == ["ld", "param"]:
            self._add("mov.b64", guard, [operands[0], operands[1][1:-1]])
        elif parts[0] in ("ld", "st", "atom", "red"):
            self._take_memory(parts, guard, operands)
        elif parts[0] == "mov" and "{" in operands[1]:
            self._add("join.b64", guard, [operands[0], *_each(operands[1])])
        elif parts[0] == "mov" and "{" in operands[0]:
            for half, to in zip(("lower", "upper"), _each(operands[0]), strict=True):
                self._add(f"{half}.b64", guard, [to, operands[1]])
        else:
            self._add(".".join(parts), guard, operands)

    def _take_memory(self, parts: list[str], guard: int, operands: list[str]) -> None:
        """Take what reads or writes; of several values at once one after the other, which PTX allows."""
        what, kind = parts[0], parts[-1]
        if what == "red":
            operands = ["", *operands]
        place, values = operands[:2] if what == "st" else (operands[1], operands[0])
        base, offset = _PLACE.fullmatch(place).groups()
        spaces = [at for at, each in enumerate(("global", "shared", "local")) if each in parts]
        more = {"space": spaces[0] if spaces else GLOBAL}
        if self._bits.get(re.match(r"\W*[a-zA-Z_]+", base)[0]) == 32:
            more["space"] += NARROW
        if what == "ld":
            name, more["kind"] = f"ld.{kind[0].replace('f', 'u').replace('b', 'u')}{kind[1:]}", READS
        elif what == "st":
            name, more["kind"] = f"st.u{kind[1:]}", WRITES
        else:
            (operation,) = set(parts) & set(_ATOMIC)
            name, more["kind"] = f"atom.{operation}.{kind.replace('b', 'u')}", CHANGES
        each, size = _each(values), int(kind[1:]) // 8
        for at, value in enumerate(each):
            given = {"offset": int(offset or 0) + at * size, "bytes": size}
            given["aligned"] = size if at else size * len(each)
            registers = ["", base, value] if what == "st" else [value, base, *operands[2:]]
            self._add(name, guard, registers, **given, **more)


def _each(operands: str) -> list[str]:
    return [one.strip() for one in operands.strip("{} ").split(",")]
