"""The machine that plays PTX: what instructions come to, and what it sees threads do that they must not."""

import math
import re

import numpy as np
import pytest
from ptx_machine import play
from ptx_program import Program

pytestmark = pytest.mark.slow  # the machine takes long to compile

HEAD = """.version 8.0
.target sm_90
.address_size 64
.visible .entry kernel(
{parameters}
)
{{
.reg .pred %p<9>;
.reg .b16 %rs<9>;
.reg .f32 %f<9>;
.reg .b32 %r<9>;
.reg .f64 %fd<9>;
.reg .b64 %rd<9>;
{body}
}}
"""


def program(body, arrays=1, before=""):
    """Return a kernel that is given arrays, whose addresses are in %rd1, %rd2 and so on."""
    names = [f"kernel_param_{at}" for at in range(7 * arrays)]
    loads = [f"ld.param.u64 %rd{at + 1}, [kernel_param_{7 * at + 4}];" for at in range(arrays)]
    parameters = ",\n".join(f".param .u64 {name}" for name in names)
    lines = "\n".join([*loads, *(line.strip() for line in body.strip().splitlines())])
    return Program(before + HEAD.format(parameters=parameters, body=lines))


WHOLES = np.array([0, 1, 2, 63, 64, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 7], np.uint64)
REALS = np.array([0.0, -0.0, 1.5, -2.5, 1e300, -1e300, 2.0**62, 2.0**63, -(2.0**63), np.inf, np.nan, 0.1])


def results_of(instruction, kinds, *operands):
    """Return what an instruction makes of operands, arrays of 64-bit patterns, in registers of these kinds.

    Each thread takes one of each.
    """
    result, *given = kinds
    place = ["mov.u32 %r1, %tid.x;", "mul.wide.u32 %rd8, %r1, 8;"]
    loads = [f"add.s64 %rd{at + 1}, %rd{at + 1}, %rd8;" for at in range(len(given) + 1)]
    names = [f"%{kind}{at + 2}" for at, kind in enumerate(given)]
    for at in reversed(range(len(given))):  # an operand may take the place of its address
        kind = {"rd": "u64", "r": "u32", "fd": "f64"}[given[at]]
        loads.append(f"ld.global.{kind} {names[at]}, [%rd{at + 2}];")
    store = [f"st.global.{ {'rd': 'u64', 'r': 'u32', 'fd': 'f64'}.get(result) } [%rd1], %{result}8;"]
    if result == "p":
        store = ["selp.b64 %rd8, 1, 0, %p8;", "st.global.u64 [%rd1], %rd8;"]
    lines = [*place, *loads, f"{instruction} %{result}8, {', '.join(names)};", *store, "ret;"]
    found = np.zeros(operands[0].size, np.uint64)
    play(program("\n".join(lines), 1 + len(given)), (1, found.size), (found, *operands))
    return found


def pairs(numbers):
    """Return the first and the second of all pairs of numbers."""
    return np.repeat(numbers, numbers.size), np.tile(numbers, numbers.size)


def signed(value, bits=64):
    value = int(value) & (2**bits - 1)
    return value - 2**bits if value >> (bits - 1) else value


def truncated(a, b):
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


@pytest.mark.parametrize(
    ("instruction", "twin"),
    [
        ("add.s64", lambda a, b: a + b),
        ("sub.s64", lambda a, b: a - b),
        ("mul.lo.s64", lambda a, b: a * b),
        ("mul.hi.u64", lambda a, b: a * b >> 64),
        ("mul.hi.s64", lambda a, b: signed(a) * signed(b) >> 64),
        ("div.s64", lambda a, b: truncated(signed(a), signed(b)) if b else None),
        ("rem.s64", lambda a, b: signed(a) - truncated(signed(a), signed(b)) * signed(b) if b else None),
        ("div.u64", lambda a, b: a // b if b else None),
        ("min.s64", lambda a, b: min(signed(a), signed(b))),
        ("max.u64", lambda a, b: max(a, b)),
        ("xor.b64", lambda a, b: a ^ b),
    ],
)
def test_whole_numbers_are_those_of_python(instruction, twin):
    every = pairs(WHOLES)
    found = results_of(instruction, ("rd", "rd", "rd"), *every)
    for a, b, one in zip(*map(np.ndarray.tolist, (*every, found)), strict=True):
        right = twin(a, b)
        assert right is None or one == right % 2**64, (instruction, a, b)


@pytest.mark.parametrize(
    ("instruction", "kinds", "twin"),
    [
        ("mul.wide.s32", ("rd", "r", "r"), lambda a, b: signed(a, 32) * signed(b, 32)),
        ("mul.wide.u32", ("rd", "r", "r"), lambda a, b: (a % 2**32) * (b % 2**32)),
        ("shl.b64", ("rd", "rd", "r"), lambda a, b: a << min(b % 2**32, 64)),
        ("shr.u64", ("rd", "rd", "r"), lambda a, b: a >> min(b % 2**32, 64)),
        ("shr.s64", ("rd", "rd", "r"), lambda a, b: signed(a) >> min(b % 2**32, 63)),
        ("cvt.s64.s32", ("rd", "r"), lambda a, b: signed(a, 32)),
        ("cvt.u64.u32", ("rd", "r"), lambda a, b: a % 2**32),
        ("cvt.s64.s16", ("rd", "r"), lambda a, b: signed(a, 16)),
        ("setp.lt.s64", ("p", "rd", "rd"), lambda a, b: signed(a) < signed(b)),
        ("setp.lt.u64", ("p", "rd", "rd"), lambda a, b: a < b),
        ("setp.ge.s32", ("p", "r", "r"), lambda a, b: signed(a, 32) >= signed(b, 32)),
        ("setp.gt.u32", ("p", "r", "r"), lambda a, b: a % 2**32 > b % 2**32),
    ],
)
def test_numbers_of_other_lengths_are_those_of_python(instruction, kinds, twin):
    every = pairs(WHOLES)
    found = results_of(instruction, kinds, *every[: len(kinds) - 1])
    for a, b, one in zip(*map(np.ndarray.tolist, (*every, found)), strict=True):
        assert one == twin(a, b) % 2**64, (instruction, a, b)


@pytest.mark.parametrize(
    ("instruction", "result", "twin"),
    [
        ("add.rn.f64", "fd", lambda a, b: a + b),
        ("mul.rn.f64", "fd", lambda a, b: a * b),
        ("min.f64", "fd", lambda a, b: np.fmin(a, b)),
        ("max.f64", "fd", lambda a, b: np.fmax(a, b)),
        ("setp.lt.f64", "p", lambda a, b: a < b),
        ("setp.ltu.f64", "p", lambda a, b: (a < b) | (a != a) | (b != b)),
        ("setp.neu.f64", "p", lambda a, b: a != b),
        ("setp.ne.f64", "p", lambda a, b: (a != b) & (a == a) & (b == b)),
        ("setp.num.f64", "p", lambda a, b: (a == a) & (b == b)),
    ],
)
def test_real_numbers_are_those_of_numpy(instruction, result, twin):
    every = pairs(REALS)
    found = results_of(instruction, (result, "fd", "fd"), *(each.view(np.uint64) for each in every))
    with np.errstate(all="ignore"):
        right = twin(*every)
    assert np.array_equal(found if result == "p" else found.view(np.float64), right, equal_nan=True)


def test_real_numbers_become_whole_ones_as_on_a_card():
    found = results_of("cvt.rzi.s64.f64", ("rd", "fd"), REALS.view(np.uint64))
    for real, one in zip(REALS.tolist(), found.view(np.int64).tolist(), strict=True):
        # No number wraps around.
        right = 0 if math.isnan(real) else int(max(-(2**63), min(2**63 - 1, real)))
        assert one == right, real
    lower = results_of("cvt.rmi.f64.f64", ("fd", "fd"), REALS.view(np.uint64)).view(np.float64)
    assert np.array_equal(lower, np.floor(REALS), equal_nan=True)


def test_bits_are_counted_and_fields_put_in():
    set_bits, zeros = (results_of(f"{name}.b64", ("r", "rd"), WHOLES) for name in ("popc", "clz"))
    assert set_bits.tolist() == [whole.bit_count() for whole in WHOLES.tolist()]
    assert zeros.tolist() == [64 - whole.bit_length() for whole in WHOLES.tolist()]
    given = (np.array([number], np.uint64) for number in (0b101, 2**64 - 1, 4, 3))
    found = results_of("bfi.b64", ("rd", "rd", "rd", "r", "r"), *given)
    assert found.tolist() == [2**64 - 1 - 0b0100000]


def sums(threads, seed):
    """Let threads of two blocks add their numbers up with atomic additions."""
    adding = program(
        """
        mov.u32 %r1, %tid.x;
        mov.u32 %r2, %ctaid.x;
        mad.lo.s32 %r3, %r2, 100, %r1;
        cvt.u64.u32 %rd2, %r3;
        atom.global.add.u64 %rd3, [%rd1], %rd2;
        setp.lt.s32 %p1, %r1, 1;
        @%p1 bra $L_one;
        ret;
        $L_one:
        st.global.u64 [%rd1+8], %rd3;
        ret;
        """
    )
    array = np.zeros(2, np.uint64)
    play(adding, (2, threads), (array,), seed=seed, in_disorder=("",))
    return array


def test_atomic_additions_add_up_in_every_order_and_orders_differ():
    found = [sums(5, seed) for seed in range(20)]
    assert {int(array[0]) for array in found} == {520}
    assert len({int(array[1]) for array in found}) > 1  # what the one that wrote last had found there


BETWEEN = """
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ntid.x;
    mul.wide.u32 %rd2, %r1, 8;
    mov.u64 %rd3, shared;
    add.s64 %rd4, %rd3, %rd2;
    cvt.u64.u32 %rd5, %r1;
    st.shared.u64 [%rd4], %rd5;
    bar.sync 0;
    sub.s32 %r3, %r2, %r1;
    add.s32 %r3, %r3, -1;
    mul.wide.s32 %rd6, %r3, 8;
    add.s64 %rd7, %rd3, %rd6;
    ld.shared.u64 %rd8, [%rd7];
    add.s64 %rd4, %rd1, %rd2;
    st.global.u64 [%rd4], %rd8;
    ret;
"""
SHARED = ".shared .align 8 .b8 shared[64];\n"


def test_a_barrier_lets_threads_read_what_others_wrote():
    for seed in range(10):
        array = np.zeros(8, np.uint64)
        play(program(BETWEEN, before=SHARED), (1, 8), (array,), seed=seed)
        assert array.tolist() == list(range(8))[::-1]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (BETWEEN.replace("    bar.sync 0;\n", ""), "what another thread does, with no barrier between"),
        (BETWEEN.replace("[%rd4], %rd8", "[%rd1], %rd8"), "what another thread does"),
        (BETWEEN.replace("st.global.u64 [%rd4]", "st.global.u64 [%rd4+16]"), "touches what is no argument's"),
        (BETWEEN.replace("ld.shared.u64 %rd8, [%rd7]", "ld.shared.u64 %rd8, [%rd7+32]"), "is no argument's"),
        (BETWEEN.replace("[%rd4], %rd8", "[%rd4+4], %rd8"), "no multiple of its bytes"),
        (BETWEEN.replace("ld.shared.u64 %rd8", "ld.shared.v2.u64 {%rd5, %rd8}"), "no multiple of its bytes"),
        (
            BETWEEN.replace(
                "bar.sync 0;",
                "setp.lt.u32 %p1, %r1, 3;\n@%p1 bra $L_own;\nbar.sync 0;\nret;\n$L_own:\nbar.sync 0;",
            ),
            "waits at a barrier while others wait at another",
        ),
        ("$L_on:\nbra.uni $L_on;\nret;", "does not end"),
        ("trap;", "comes to a trap"),
    ],
)
def test_what_threads_must_not_do_is_told(body, says):
    kernel = program(body, before=SHARED)
    with pytest.raises(AssertionError, match=re.escape(says)):
        play(kernel, (1, 8), (np.zeros(9, np.uint64),), most=10_000)


def test_blocks_have_memory_of_their_own_and_no_barrier_between():
    one = """
        mov.u32 %r1, %ctaid.x;
        cvt.u64.u32 %rd2, %r1;
        mov.u64 %rd3, shared;
        st.shared.u64 [%rd3], %rd2;
        bar.sync 0;
        ld.shared.u64 %rd4, [%rd3];
        mul.wide.u32 %rd5, %r1, 8;
        add.s64 %rd6, %rd1, %rd5;
        st.global.u64 [%rd6], %rd4;
        ret;
    """
    array = np.zeros(8, np.uint64)
    play(program(one, before=SHARED), (8, 1), (array,))
    assert array.tolist() == list(range(8))
    same = one.replace("[%rd6], %rd4", "[%rd1], %rd4")
    with pytest.raises(AssertionError, match="what another thread does"):
        play(program(same, before=SHARED), (8, 1), (array,))


@pytest.mark.parametrize(
    "line",
    ["shfl.sync.idx.b32 %r1, %r2, 0, 31, -1;", "ex2.approx.ftz.f32 %f1, %f2;", "mov.u32 %r1, %laneid;"],
)
def test_what_the_machine_does_not_know_is_named(line):
    with pytest.raises(NotImplementedError, match=re.escape(f"does not know: {line}")):
        program(f"{line}\nret;")
