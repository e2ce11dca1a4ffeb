"""Arguments that many calls of a kernel have in common, which numba takes apart once."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.core.datamodel import models
from numba.core.registry import cpu_target
from numba.extending import NativeValue, intrinsic, register_model, typeof_impl, unbox

from dist_classicrl._jit import classes_in, jit, jit_for, overloads


class Bound:
    """A NamedTuple of arrays and numbers, laid out once as compiled code has it.

    In each call numba looks at each array of each argument, some 30 ns for one. At this it looks as at a
    single number, and `taken` gives kernels the tuple. So a kernel that was compiled for one of another type
    would read something else: each is called with what it was compiled for, see `compiled_for`.

    Attributes
    ----------
    value : NamedTuple
        Its arrays stay where they are as long as this is used: none is resized in place.
    address : int
        Of the memory that has it.
    """

    __slots__ = ("_memory", "address", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        kind, context = numba.typeof(value), cpu_target.target_context
        size = context.get_abi_sizeof(context.get_value_type(kind))
        self._memory = np.zeros(size // 8 + 1, np.uint64)
        self.address = int(self._memory.ctypes.data)
        put = jit_for(_put, *classes_in((kind,)))
        if hasattr(put, "get_overload"):  # else numba is told not to compile
            put(value, self.address)

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy has arrays of its own, which are elsewhere.
        return Bound, (self.value,)


def taken(bound: Bound) -> Any:
    """Return the value of a `Bound`, in Python and in jitted code."""
    return bound.value


class BoundType(types.Type):
    """The numba type of a `Bound`."""

    def __init__(self, value: Any) -> None:
        self.value = value
        super().__init__(f"Bound({value.name})")


register_model(BoundType)(models.OpaqueModel)


@typeof_impl.register(Bound)
def _typeof_bound(bound: Bound, context: Any) -> BoundType:
    return BoundType(numba.typeof(bound.value))


@unbox(BoundType)
def _unbox_bound(kind: BoundType, bound: Any, c: Any) -> NativeValue:
    address = c.pyapi.object_getattr_string(bound, "address")
    pointer = c.pyapi.long_as_voidptr(address)
    c.pyapi.decref(address)
    return NativeValue(pointer)


@overloads(taken, inline=True)
def _overload_taken(bound):  # type: ignore[no-untyped-def]
    return lambda bound: _load(bound)  # type: ignore[call-arg]  # which it gives to itself


@intrinsic
def _load(typing_context: Any, bound: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = context.get_value_type(bound.value)
        return _loaded(builder, builder.bitcast(arguments[0], kind.as_pointer()), kind)

    return bound.value(bound), generate


def _loaded(builder: Any, pointer: Any, kind: Any) -> Any:
    """Load what is there part by part, of which the compiler leaves out what is not used."""
    if not isinstance(kind, ir.Aggregate):
        return builder.load(pointer)
    value = ir.Constant(kind, ir.Undefined)
    zero = ir.Constant(ir.IntType(32), 0)
    for place, part in enumerate(kind.elements):
        at = builder.gep(pointer, [zero, ir.Constant(ir.IntType(32), place)], inbounds=True)
        value = builder.insert_value(value, _loaded(builder, at, part), place)
    return value


@intrinsic
def _store(typing_context: Any, value: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[1], arguments[0].type.as_pointer())
        builder.store(arguments[0], pointer)
        return context.get_dummy_value()

    return types.void(value, types.int64), generate


@jit
def _put(value: Any, address: int) -> None:
    _store(value, address)  # type: ignore[call-arg]
