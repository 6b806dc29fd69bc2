"""The few machine instructions the kernels need beyond what Numba offers: CRC-32C and prefetch.

Owns the kernel decorator, so that every compiled function has the same safety settings. Knows nothing about Kafka.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from headstone.log.kernel_cache import kept_apart

_compiled: Callable[[Any], Any] = njit(cache=True, nogil=True, boundscheck=True, error_model="numpy")


def kernel(function: Callable[..., Any]) -> Any:
    """Bounds are checked: a bad length in a file must end in an error, never in a crash of the process (costs ~15 %)."""
    with kept_apart():
        return _compiled(function)


HAS_CRC_INSTRUCTION: bool = platform.machine() in ("x86_64", "AMD64") and bool(
    llvm.get_host_cpu_features().get("sse4.2")
)
CASTAGNOLI = 0x82F63B78


def _crc_tables() -> np.ndarray[Any, np.dtype[np.uint32]]:
    tables = np.zeros((8, 256), dtype=np.uint32)
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (CASTAGNOLI if crc & 1 else 0)
        tables[0, byte] = crc
    for k in range(1, 8):
        previous = tables[k - 1]
        tables[k] = tables[0][previous & 0xFF] ^ (previous >> 8)
    return tables


TABLES = _crc_tables()


@intrinsic
def prefetch(typingctx: Any, array: Any, index: Any) -> Any:
    """Ask for the cache line of array[index]; a hint, never a fault."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        view = context.make_array(signature.args[0])(context, builder, args[0])
        pointer = builder.bitcast(builder.gep(view.data, [args[1]]), ir.IntType(8).as_pointer())
        i32 = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(8).as_pointer(), i32, i32, i32])
        function = builder.module.declare_intrinsic("llvm.prefetch", [ir.IntType(8).as_pointer()], kind)
        builder.call(function, [pointer, i32(0), i32(3), i32(1)])
        return context.get_dummy_value()

    return types.void(array, types.intp), codegen


@intrinsic
def load_u64(typingctx: Any, data: Any, index: Any) -> Any:
    """Eight bytes at data[index:] in machine order; the caller has checked the bounds."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        view = context.make_array(signature.args[0])(context, builder, args[0])
        pointer = builder.bitcast(builder.gep(view.data, [args[1]]), ir.IntType(64).as_pointer())
        load = builder.load(pointer)
        load.align = 1
        return load

    return types.uint64(data, types.intp), codegen


@intrinsic
def copy_bytes(typingctx: Any, target: Any, position: Any, source: Any, start: Any, size: Any) -> Any:
    """memcpy between two byte arrays; the caller has checked the bounds."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        to = context.make_array(signature.args[0])(context, builder, args[0])
        source_view = context.make_array(signature.args[2])(context, builder, args[2])
        byte_pointer = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte_pointer, byte_pointer, ir.IntType(64), ir.IntType(1)])
        function = builder.module.declare_intrinsic("llvm.memcpy", [byte_pointer, byte_pointer, ir.IntType(64)], kind)
        to_pointer = builder.gep(to.data, [args[1]])
        from_pointer = builder.gep(source_view.data, [args[3]])
        builder.call(function, [to_pointer, from_pointer, args[4], ir.IntType(1)(0)])
        return context.get_dummy_value()

    return types.void(target, types.intp, source, types.intp, types.intp), codegen


@intrinsic
def _crc_u64(typingctx: Any, crc: Any, value: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        i64 = ir.IntType(64)
        function = builder.module.globals.get("llvm.x86.sse42.crc32.64.64")
        if function is None:
            function = ir.Function(builder.module, ir.FunctionType(i64, [i64, i64]), "llvm.x86.sse42.crc32.64.64")
        return builder.call(function, args)

    return types.uint64(types.uint64, types.uint64), codegen


@kernel
def _crc32c_table(data: Any, start: int, end: int) -> Any:
    crc = np.uint32(0xFFFFFFFF)
    i = start
    while end - i >= 8:
        low = crc ^ np.uint32(load_u64(data, i) & np.uint64(0xFFFFFFFF))
        high = np.uint32(load_u64(data, i) >> np.uint64(32))
        crc = (
            TABLES[7, low & 0xFF]
            ^ TABLES[6, (low >> 8) & 0xFF]
            ^ TABLES[5, (low >> 16) & 0xFF]
            ^ TABLES[4, low >> 24]
            ^ TABLES[3, high & 0xFF]
            ^ TABLES[2, (high >> 8) & 0xFF]
            ^ TABLES[1, (high >> 16) & 0xFF]
            ^ TABLES[0, high >> 24]
        )
        i += 8
    while i < end:
        crc = TABLES[0, (crc ^ data[i]) & 0xFF] ^ (crc >> np.uint32(8))
        i += 1
    return crc ^ np.uint32(0xFFFFFFFF)


@kernel
def _crc32c_instruction(data: Any, start: int, end: int) -> Any:
    crc = np.uint64(0xFFFFFFFF)
    i = start
    while end - i >= 8:
        crc = _crc_u64(crc, load_u64(data, i))
        i += 8
    tail = np.uint32(crc)
    while i < end:
        tail = TABLES[0, (tail ^ data[i]) & 0xFF] ^ (tail >> np.uint32(8))
        i += 1
    return tail ^ np.uint32(0xFFFFFFFF)


crc32c: Callable[[Any, int, int], Any] = _crc32c_instruction if HAS_CRC_INSTRUCTION else _crc32c_table
"""CRC-32C of data[start:end]."""
