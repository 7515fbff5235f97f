"""Lowers what kernels are made of: a part is linked into each kernel that calls it, nowhere else.

Numba would make each helper a function of its own: optimized, translated and wrapped for Python
and for C, although nobody but a kernel ever calls it. A part is typed and written down once; only
the kernels that it has become part of are optimized and translated.

The rule: a part has no address. It cannot be called from Python, nor be handed to a kernel; and it
takes every signed number as an int64, so that ``f(0)`` and ``f(i)`` are one part and not two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from numba import njit, types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import register_pass
from numba.core.typed_passes import NativeLowering


class _PartLibrary(JITCodeLibrary):
    """The code of one part and of those that it calls, as it was written down."""

    def finalize(self) -> None:
        """Collect what is called; whoever links this library optimizes all of it."""
        for library in dict.fromkeys(self._linking_libraries):
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class _PartLowering(NativeLowering):
    """Writes a part down, and makes it known to the kernels that are compiled next."""

    _name = "part_lowering"

    def run_pass(self, state: Any) -> bool:
        """Do it for the function of ``state``."""
        state.library = _PartLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        super().run_pass(state)
        key = object()  # by which calls are found; elsewhere it is the function for Python to call
        state["cr"] = state["cr"]._replace(cfunc=key)
        state.targetctx.insert_user_function(key, state["cr"].fndesc, [state.library])
        return True


class PartCompiler(CompilerBase):
    """Numba's own way to compile a function, but for its last stage."""

    def define_pipelines(self) -> list[Any]:
        """Return the one pipeline."""
        pipeline = DefaultPassBuilder.define_nopython_pipeline(self.state)
        pipeline.passes = [
            (_PartLowering if each is NativeLowering else each, words)
            for each, words in pipeline.passes
        ]
        pipeline.finalize()
        return [pipeline]


_UNWRAPPED: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}

_NARROW = frozenset({types.int8, types.int16, types.int32})


def part(function: Callable[..., Any], **options: Any) -> Any:
    """Declare a part; ``options`` are numba's."""
    dispatcher: Any = njit(pipeline_class=PartCompiler, **_UNWRAPPED, **options)(function)
    template_of = dispatcher.get_call_template

    def widened(arguments: Any, named: Any) -> Any:
        return template_of(tuple(_wide(each) for each in arguments), named)

    def noted(compiled: Any) -> None:
        dispatcher.overloads[tuple(compiled.signature.args)] = compiled

    def refused(*_: Any) -> NoReturn:
        raise TypeError(f"only kernels call it. part={function.__module__}.{function.__name__}")

    dispatcher.get_call_template = widened
    dispatcher.add_overload = noted
    dispatcher._compile_for_args = refused
    return dispatcher


def _wide(argument: Any) -> Any:
    plain = types.unliteral(argument)
    return types.int64 if plain in _NARROW else plain
