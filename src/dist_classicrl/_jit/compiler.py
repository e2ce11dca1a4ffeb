"""Numba's compiler, less the work on code of which the time to make it is longer than it runs."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core.callwrapper import PyCallWrapper
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.compiler_machinery import register_pass
from numba.core.lowering import Lower
from numba.core.typed_passes import NativeLowering


class KernelCompiler(Compiler):
    """Compiles a kernel, or a part of one: `pipeline_class` of `numba.njit`."""

    def define_pipelines(self) -> list[Any]:
        """Return numba's own passes, with `_Lowering` for its last."""
        pipelines: list[Any] = super().define_pipelines()
        for pipeline in pipelines:
            pipeline.passes = [
                (_Lowering if kind is NativeLowering else kind, what) for kind, what in pipeline.passes
            ]
            pipeline.finalize()
        return pipelines


class _Lower(Lower):
    def create_cpython_wrapper(self, release_gil: bool = False) -> None:
        """Make the entry for callers in Python, which takes the arrays out of all NamedTuples."""
        if self.genlower:
            super().create_cpython_wrapper(release_gil)
            return
        module = self.context.create_module("wrapper")
        kind = self.context.call_conv.get_function_type(self.fndesc.restype, self.fndesc.argtypes)
        callee = ir.Function(module, kind, self.fndesc.llvm_func_name)
        entry, _ = PyCallWrapper(
            self.context, module, callee, self.fndesc, self.env, self.call_helper, release_gil
        ).build()
        # Optimizing it takes as long as many a kernel does, and saves a microsecond of a call.
        entry.attributes.add("optnone")
        entry.attributes.add("noinline")
        self.library.add_ir_module(module)


class _PartLibrary(JITCodeLibrary):
    """What is only ever compiled into its callers, and optimized there with all around it."""

    def _optimize_final_module(self) -> None:
        codegen = self._codegen
        passes, builder = codegen._module_pass_manager(
            loop_vectorize=codegen._loopvect, slp_vectorize=False, opt=codegen._opt_level, cost="cheap"
        )
        passes.run(self._final_module, builder)


@register_pass(mutates_CFG=True, analysis_only=False)
class _Lowering(NativeLowering):
    _name = "lowering_of_kernels"

    @property
    def lowering_class(self) -> type:
        """What makes LLVM's language of a function."""
        return _Lower

    def run_pass(self, state: Any) -> bool:
        """Make machine code of a function."""
        if state.library is None and state.flags.no_cpython_wrapper:
            state.library = _PartLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
            state.library.enable_object_caching()
        return bool(super().run_pass(state))
