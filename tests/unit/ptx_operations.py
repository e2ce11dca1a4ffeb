"""What PTX's instructions do with a thread's registers: a statement for each, and what these call."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

DTYPES = {
    "u64": np.uint64,
    "s64": np.int64,
    "f64": np.float64,
    "u32": np.uint32,
    "s32": np.int32,
    "f32": np.float32,
    "u16": np.uint16,
    "s16": np.int16,
    "u8": np.uint8,
    "s8": np.int8,
}
"""The views of a thread's registers, each of 64 bits, of which what is shorter takes the lowest."""

_WHOLE = ("u32", "s32", "u64", "s64")
_SHORT = ("u16", "s16")
_REAL = ("f32", "f64")


def _view(kind: str) -> str:
    """Return the view in which numbers of a type stand."""
    return "u64" if kind == "pred" else kind.replace("b", "u")


def _at(kind: str, operand: str) -> str:
    view = _view(kind)
    each = 64 // int(view[1:])
    return f"{view}[{operand}]" if each == 1 else f"{view}[{each} * {operand}]"


def _operations() -> dict[str, str]:
    """Return the statement of each instruction that only looks at registers, by its name and type."""
    all_of: dict[str, str] = {}

    def add(name: str, kind: str, value: str, result: str | None = None) -> None:
        operands = {each: _at(kind, each) for each in "abc"}
        operands.update(true=_at("pred", "c") + " != 0", count=_at("u32", "b"))
        all_of[f"{name}.{kind}"] = f"{_at(result or kind, 'd')} = {value.format(**operands)}"

    for kind in (*_WHOLE, *_SHORT, *_REAL):
        add("add", kind, "{a} + {b}")
        add("sub", kind, "{a} - {b}")
        add("neg", kind, "-{a}")
        add("mul" if kind[0] == "f" else "mul.lo", kind, "{a} * {b}")
        add("selp", kind, "{a} if {true} else {b}")
        for name, sign in (("eq", "=="), ("ne", "!="), ("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">=")):
            unordered = f"{{a}} {sign} {{b}}"
            if kind[0] == "f":
                either = "({a} != {a} or {b} != {b})"
                add(f"setp.{name}u", kind, f"{unordered} or {either}", "pred")
                unordered = f"{unordered} and not {either}"
            add(f"setp.{name}", kind, unordered, "pred")
    for kind in _REAL:
        add("div", kind, "{a} / {b}")
        add("rcp", kind, f"np.float{kind[1:]}(1.0) / {{a}}")
        add("sqrt", kind, "np.sqrt({a})")
        add("abs", kind, "abs({a})")
        add("fma", kind, f"_fma_{kind}({{a}}, {{b}}, {{c}})")
        add("min", kind, "{b} if {a} != {a} or {b} < {a} else {a}")
        add("max", kind, "{b} if {a} != {a} or {b} > {a} else {a}")
        add("setp.num", kind, "{a} == {a} and {b} == {b}", "pred")
        add("setp.nan", kind, "{a} != {a} or {b} != {b}", "pred")
        add("cvt.rmi." + kind, kind, "np.floor({a})")
        add("cvt.rpi." + kind, kind, "np.ceil({a})")
        add("cvt.rzi." + kind, kind, "np.trunc({a})")
        add("cvt.rni." + kind, kind, "np.rint({a})")
        for whole in _WHOLE:
            for mode, to_whole in (("rzi", "trunc"), ("rmi", "floor"), ("rpi", "ceil"), ("rni", "rint")):
                add(f"cvt.{mode}.{whole}", kind, f"_whole_{whole}(np.{to_whole}({{a}}))", whole)
            add("cvt.rn." + kind, whole, f"np.float{kind[1:]}({{a}})", kind)
    add("cvt.f64", "f32", "np.float64({a})", "f64")
    add("cvt.rn.f32", "f64", "np.float32({a})", "f32")
    for kind in _WHOLE:
        add("min", kind, "{b} if {b} < {a} else {a}")
        add("max", kind, "{b} if {b} > {a} else {a}")
        add("mad.lo", kind, "{a} * {b} + {c}")
        if kind[0] == "s":
            add("abs", kind, "abs({a})")
            add("div", kind, "_quotient({a}, {b})")
            add("rem", kind, "{a} - _quotient({a}, {b}) * {b}")
            add("shr", kind, f"{{a}} >> min({{count}}, np.uint32({int(kind[1:]) - 1}))")
        else:
            add("div", kind, "{a} // {b}")
            add("rem", kind, "{a} % {b}")
            add("shr", kind, f"{{a}} >> {{count}} if {{count}} < {kind[1:]} else np.uint64(0)")
        add("mul.hi", kind, f"_upper_{kind}({{a}}, {{b}})")
    for kind in ("s32", "u32", "s16", "u16"):
        wide = kind[0] + str(2 * int(kind[1:]))
        of_wide = f"np.{DTYPES[wide].__name__}"
        add("mul.wide", kind, f"{of_wide}({{a}}) * {of_wide}({{b}})", wide)
        add("mad.wide", kind, f"{of_wide}({{a}}) * {of_wide}({{b}}) + {_at(wide, 'c')}", wide)
    for kind in ("b16", "b32", "b64"):
        add("and", kind, "{a} & {b}")
        add("or", kind, "{a} | {b}")
        add("xor", kind, "{a} ^ {b}")
        add("not", kind, "~{a}")
        add("selp", kind, "{a} if {true} else {b}")
        add("setp.eq", kind, "{a} == {b}", "pred")
        add("setp.ne", kind, "{a} != {b}", "pred")
        add("shl", kind, f"{{a}} << {{count}} if {{count}} < {kind[1:]} else np.uint64(0)")
        add("shr", kind, f"{{a}} >> {{count}} if {{count}} < {kind[1:]} else np.uint64(0)")
    for kind in ("b32", "b64"):
        add("popc", kind, "_bits_set(np.uint64({a}))", "u32")
        add("clz", kind, f"_leading_zeros(np.uint64({{a}}), {kind[1:]})", "u32")
        field = (
            f"_field(np.uint64({{a}}), np.uint64({{b}}), {_at('u32', 'c')}, {_at('u32', 'e')}, {kind[1:]})"
        )
        add("bfi", kind, field)
    for kind in (*_WHOLE, *_SHORT, "u8", "s8"):
        for result in (*_WHOLE, *_SHORT, "u8", "s8"):
            # What is narrower goes to a register of more bits, of which others look at all.
            wide = result if int(result[1:]) >= 16 else result[0] + "16"
            narrow = f"np.{DTYPES[result].__name__}({{a}})"
            add("cvt." + result, kind, narrow, wide)
    for kind in ("b16", "u16", "s16", "b32", "u32", "s32", "f32", "b64", "u64", "s64", "f64"):
        add("mov", kind, "{a}")
    add("mov", "pred", "{a}")
    add("not", "pred", "{a} == 0")
    add("and", "pred", "{a} != 0 and {b} != 0")
    add("or", "pred", "{a} != 0 or {b} != 0")
    add("xor", "pred", "({a} != 0) != ({b} != 0)")
    all_of["lower.b64"] = "u32[2 * d] = u32[2 * a]"
    all_of["upper.b64"] = "u32[2 * d] = u32[2 * a + 1]"
    all_of["join.b64"] = "u32[2 * d], u32[2 * d + 1] = u32[2 * a], u32[2 * b]"
    all_of["cvta.shared.u64"] = "u64[d] = u64[a] + shared_at"
    all_of["cvta.to.shared.u64"] = "u64[d] = u64[a] - shared_at"
    all_of["cvta.local.u64"] = "u64[d] = u64[a] + local_at"
    all_of["cvta.to.local.u64"] = "u64[d] = u64[a] - local_at"
    all_of["cvta.global.u64"] = all_of["cvta.to.global.u64"] = "u64[d] = u64[a]"
    for kind in (*_WHOLE, *_SHORT, "u8", "s8"):
        all_of[f"ld.{kind}"] = f"{kind[0]}64[d] = _read_{kind}(address)"
    for kind in ("u8", "u16", "u32", "u64"):
        all_of[f"st.{kind}"] = f"_write_{kind}(address, {_at(kind, 'b')})"
    for kind in ("u32", "s32", "u64", "s64", "f32", "f64"):
        for name, value in (
            ("exch", "{b}"),
            ("add", "old + {b}"),
            ("min", "min(old, {b})"),
            ("max", "max(old, {b})"),
            ("cas", "{c} if old == {b} else old"),
        ):
            given = value.format(b=_at(kind, "b"), c=_at(kind, "c"))
            change = f"_write_{kind}(address, np.{DTYPES[kind].__name__}({given}))"
            all_of[f"atom.{name}.{kind}"] = f"old = _read_{kind}(address)\n{change}\n{_at(kind, 'd')} = old"
    return all_of


def _reader(kind: str) -> Any:
    dtype = numba.from_dtype(np.dtype(DTYPES[kind]))

    @intrinsic
    def read(typing, address):
        def generate(context, builder, signature, given):
            place = builder.inttoptr(given[0], context.get_value_type(dtype).as_pointer())
            return builder.load(place, align=1)

        return dtype(types.uint64), generate

    return read


def _writer(kind: str) -> Any:
    dtype = numba.from_dtype(np.dtype(DTYPES[kind]))

    @intrinsic
    def write(typing, address, value):
        def generate(context, builder, signature, given):
            place = builder.inttoptr(given[0], context.get_value_type(dtype).as_pointer())
            builder.store(given[1], place, align=1)
            return context.get_dummy_value()

        return types.void(types.uint64, dtype), generate

    return write


def _fma(kind: Any) -> Any:
    @intrinsic
    def fma(typing, a, b, c):
        def generate(context, builder, signature, given):
            return builder.fma(*given)

        return kind(kind, kind, kind), generate

    return fma


def _upper(kind: str) -> Any:
    dtype = numba.from_dtype(np.dtype(DTYPES[kind]))
    bits = int(kind[1:])

    @intrinsic
    def upper(typing, a, b):
        def generate(context, builder, signature, given):
            wide = ir.IntType(2 * bits)
            widen = builder.sext if kind[0] == "s" else builder.zext
            product = builder.mul(*(widen(each, wide) for each in given))
            return builder.trunc(builder.lshr(product, wide(bits)), ir.IntType(bits))

        return dtype(dtype, dtype), generate

    return upper


@numba.njit
def _quotient(a, b):
    if b == 0:
        return a * 0
    one = a // b  # towards minus infinity
    return one + 1 if one < 0 and one * b != a else one


@numba.njit
def _bits_set(a):
    n = 0
    while a:
        a &= a - np.uint64(1)
        n += 1
    return n


@numba.njit
def _leading_zeros(a, bits):
    n = bits
    while a:
        a >>= np.uint64(1)
        n -= 1
    return n


@numba.njit
def _field(a, b, begin, length, bits):
    """See `bfi`: the lowest `length` bits of a in place of those of b from `begin` on."""
    begin, length = min(np.int64(begin) & 255, bits), np.int64(length) & 255
    for at in range(begin, min(begin + length, bits)):
        one = np.uint64(1) << np.uint64(at)
        b = b & ~one if (a >> np.uint64(at - begin)) & np.uint64(1) == 0 else b | one
    return b


def _to_whole(kind: str) -> Any:
    dtype, bits = numba.from_dtype(np.dtype(DTYPES[kind])), int(kind[1:])
    first, end = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if kind[0] == "s" else (0, 2**bits)
    last, beyond = end - 1, float(end)

    @numba.njit
    def to_whole(real):
        if real != real:
            return dtype(0)
        if real <= first:
            return dtype(first)
        return dtype(last) if real >= beyond else dtype(real)

    return to_whole


STATEMENTS = _operations()
"""The statement of each instruction, by its name and type."""


def functions() -> dict[str, Any]:
    """Return what the statements call, by name."""
    named: dict[str, Any] = {"np": np, "_quotient": _quotient, "_bits_set": _bits_set, "_field": _field}
    named |= {
        "_leading_zeros": _leading_zeros,
        "_fma_f32": _fma(types.float32),
        "_fma_f64": _fma(types.float64),
    }
    for kind in ("u8", "s8", "u16", "s16", *_WHOLE, *_REAL):
        named[f"_read_{kind}"], named[f"_write_{kind}"] = _reader(kind), _writer(kind)
    for kind in _WHOLE:
        named[f"_upper_{kind}"], named[f"_whole_{kind}"] = _upper(kind), _to_whole(kind)
    return named


def branches(first: int) -> list[str]:
    """Return the lines in which a program does what the number `op` stands for, from `first` on.

    They look at the registers with operands a, b, c and e and for the result d, at an `address`, at where the
    thread's memory begins, `shared_at` and `local_at`, and at the views of its registers, named as in DTYPES.
    """
    lines = []
    for number, (name, statement) in enumerate(STATEMENTS.items(), start=first):
        lines.append(f"elif op == {number}:  # {name}")
        lines += [f"    {line}" for line in statement.splitlines()]
    return lines
