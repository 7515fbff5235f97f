"""The one way a kernel is declared: typed, compiled once a machine, free of the interpreter lock.

A kernel is a plain function over arrays. It never raises: it returns a code from this module and
the position of what it refused, and the caller makes the :class:`CorruptError`. Array bounds are
not checked by the compiler, so every kernel checks each length that it reads from data before it
follows it.

A kernel is made ready by its first call: its machine code is loaded from the cache, or compiled and
kept there. So a command compiles what its log needs and nothing else. The cache's folder is set by
:mod:`keeplast.columns` before this module is imported.

A *part* is what kernels are made of: it is linked into each kernel that calls it, nowhere else.
Numba would make each helper a function of its own: optimized, translated and wrapped for Python and
for C, although only kernels ever call it. A part is typed and written down once; only the kernels
that it has become part of are optimized and translated.

The rule: a part has no address. It cannot be called from Python, nor be handed to a kernel. It
takes every signed number as an int64, so that ``f(0)`` and ``f(i)`` are one part and not two.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NoReturn

import numpy as np
from llvmlite.binding import ObjectFileRef
from numba import config, njit, types
from numba._dynfunc import make_function
from numba.core import event
from numba.core.caching import CompileResultCacheImpl, FunctionCache
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder, compile_result
from numba.core.compiler_lock import global_compiler_lock
from numba.core.compiler_machinery import register_pass
from numba.core.registry import cpu_target
from numba.core.typed_passes import NativeLowering
from numba.np.numpy_support import from_dtype, map_layout

from keeplast import kernel_cache


class _PartLibrary(JITCodeLibrary):
    """The code of one part and of those that it calls, as it was written down."""

    def finalize(self) -> None:
        """Collect what is called; the library that links this one optimizes all of it."""
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
        key = object()  # calls are found by it; elsewhere it is the function for Python to call
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
    return types.int64 if types.unliteral(argument) in _NARROW else types.unliteral(argument)


OK = 0
BAD_SIZE = 1
BAD_MAGIC = 2
BAD_COUNT = 3
BAD_CODEC = 4
BAD_CRC = 5
BAD_RECORD = 6
BAD_CONTROL = 7
BAD_PRODUCER = 8
BAD_ORDER = 9
BAD_TIMESTAMP = 10
TOO_MANY = 11
BAD_LEGACY = 12

PROBLEMS = {
    BAD_SIZE: "batch size out of range",
    BAD_MAGIC: "unknown magic",
    BAD_COUNT: "record count and batch do not agree",
    BAD_CODEC: "unknown codec",
    BAD_CRC: "crc mismatch",
    BAD_RECORD: "record does not fit its batch",
    BAD_CONTROL: "control record key is invalid",
    BAD_PRODUCER: "producer fields contradict each other",
    BAD_ORDER: "offsets do not ascend inside the batch",
    BAD_TIMESTAMP: "timestamp out of range",
    BAD_LEGACY: "old-format message does not fit its set",
}
"""What each code means, in the words of the error it becomes."""

COMPILES = "numba:compile"
"""What numba calls the event that something is compiled."""

_KERNELS: list[_Kernel] = []


# No reference counts: without this, every call that is handed an array adds and subtracts one
# atomically, which costs more than most of these functions do. In return a kernel cannot make an
# array; whatever it fills is handed in.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}

# Nothing calls from C.
_KERNEL: dict[str, Any] = {"no_cfunc_wrapper": True}


def inline(function: Callable[..., Any]) -> Any:
    """Declare a small function that kernels call; it becomes part of each of them."""
    return part(function, forceinline=True, **_OPTIONS)


def outline(function: Callable[..., Any]) -> Any:
    """Declare a larger function that kernels call."""
    return part(function, **_OPTIONS)


@cache
def processor() -> str:
    """Return the name of the processor that kernels are compiled for, with its features."""
    triple, name, features = cpu_target.target_context.codegen().magic_tuple()
    return f"{name}-{zlib.crc32(f'{triple} {features}'.encode()):08x}"


class KernelFiles(CompileResultCacheImpl):
    """What numba asks of how a kernel is kept: in the cache folder, wherever its source lies.

    The folder is named by the content of all sources, so neither their path nor their age has to
    say anything more. Numba's own names have a digest of the source's path, so machine code would
    be lost with every move of the package. They have no processor: numba keeps one list for all,
    and two that add to it at once would give two processors one file of machine code.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        """Name the files of ``function``; numba would ask a setting of the whole process."""
        self._lineno = function.__code__.co_firstlineno
        self._py_file = function.__code__.co_filename
        self._locator = self
        self._filename_base = (
            f"{function.__module__.rpartition('.')[2]}.{function.__name__}-{self._lineno}-"
            f"{processor()}.{sys.implementation.cache_tag}"
        )

    def ensure_cache_path(self) -> None:
        """Do nothing: the folder was made when it was chosen."""

    def get_cache_path(self) -> str:
        """Return the folder."""
        return str(config.CACHE_DIR)  # type: ignore[attr-defined]

    def get_source_stamp(self) -> str:
        """Return what changes with the source and not with the folder: nothing does."""
        return ""

    def reduce(self, compiled: Any) -> Any:
        """Return what is kept: machine code, and what Python needs to call it.

        Numba keeps LLVM's code too, for other functions to link; no kernel calls a kernel. To parse
        that and to list what is in it took four fifths of the time in which a kernel was loaded.
        """
        (_, _, (code, _)), descriptor, own, signature, *_, others = compiled._reduce()
        return code, descriptor.llvm_cpython_wrapper_name, signature, own, others

    def rebuild(self, context: Any, kept: Any) -> Any:
        """Return what a dispatcher calls: machine code linked as it was kept."""
        code, name, signature, own, others = kept
        engine = (codegen := context.codegen())._engine
        engine._ee.add_object_file(ObjectFileRef.from_data(code))
        engine.finalize_object()
        for each in (own, *others):
            codegen.set_env(each.env_name, each)
        called = make_function(
            sys.modules[__name__], name, "", engine.get_function_address(name), own, others
        )
        return compile_result(signature=signature, entry_point=called, objectmode=False)


class _KernelCache(FunctionCache):
    """Numba's cache of one function, with names of ours."""

    _impl_class = KernelFiles

    def _index_key(self, signature: Any, _: Any) -> str:
        """Return what the names of the folder and the file do not say."""
        return str(signature)


class _Kernel(event.Listener):
    """A declared kernel: its full name, numba's dispatcher, and the exact types of its arguments.

    It listens while it is made ready, because only numba knows what the cache does not have.
    """

    def __init__(self, name: str, dispatcher: Any, signature: str) -> None:
        self.name = name
        self.dispatcher = dispatcher
        self._signature = signature
        # What numba asks, with the arguments, at a call for whose types it has no machine code.
        dispatcher._compile_for_args = self._begun
        dispatcher.typeof_pyval = self._type_of

    def _begun(self, *_: Any) -> Any:
        """Return what the first call runs: the dispatcher once more, which knows the types now.

        The machine code itself would take arguments of other types for its own.
        """
        self.ready()
        return self.dispatcher

    def _type_of(self, argument: Any) -> Any:
        """Return the type of an argument, asked once for each kind of array.

        Numba would ask whether it is masked, and so import ``numpy.ma``: a tenth of the time of a
        round of 96 MiB, once a process.
        """
        if type(argument) is np.ndarray and argument.dtype.isbuiltin == 1:
            number, layout = from_dtype(argument.dtype), map_layout(argument)
            return types.Array(number, argument.ndim, layout, readonly=not argument.flags.writeable)
        return type(self.dispatcher).typeof_pyval(self.dispatcher, argument)

    def ready(self) -> None:
        """Load or compile it, unless it is ready."""
        with global_compiler_lock:
            if not self.dispatcher.signatures:
                with event.install_listener(COMPILES, self), _without_collector():
                    self._make()
                self.dispatcher.disable_compile()

    def _make(self) -> None:
        if self._take():
            return
        with kernel_cache.reserved(self.name, processor()):
            try:
                if not self._take():
                    self.dispatcher.compile(self._signature)
            except OSError:
                # It is there, and the next process compiles it: the cache cannot be written.
                if not self.dispatcher.signatures:
                    raise

    def _take(self) -> bool:
        """Load the machine code that the cache has; say whether it has any that is whole.

        Numba does the same in :meth:`compile`, but first imports and registers everything that code
        can be made of. That takes a quarter of a second, and a process that has code needs nothing
        of it. Nor is a kernel registered that only Python calls.
        """
        dispatcher = self.dispatcher
        # A host that lost power may have kept the name of a file, and nothing else.
        with contextlib.suppress(EOFError):
            found = dispatcher._cache._load_overload(self._signature, dispatcher.targetctx)
            if found is not None:
                dispatcher.add_overload(found)
        return bool(dispatcher.signatures)

    def on_start(self, event: Any) -> None:
        """Hear that something is compiled: this kernel, or a part of it."""
        if event.data["dispatcher"] is self.dispatcher:
            kernel_cache.compiling()

    def on_end(self, event: Any) -> None:
        """Hear that it is done."""


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Leave garbage for later: a compiler makes little, and many objects to visit."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def kernel(signature: str) -> Callable[[Callable[..., Any]], Any]:
    """Declare a kernel with its exact argument types; its first call makes it ready."""

    def declare(function: Callable[..., Any]) -> Any:
        dispatcher = njit(**_OPTIONS, **_KERNEL)(function)
        dispatcher._cache = _KernelCache(function)
        _KERNELS.append(
            _Kernel(f"{function.__module__}.{function.__name__}", dispatcher, signature)
        )
        return dispatcher

    return declare


def names() -> list[str]:
    """Return the full names of all declared kernels, in order of declaration."""
    return [each.name for each in _KERNELS]


def make_ready(name: str) -> None:
    """Make the one kernel of that full name ready; KeyError when there is none."""
    {each.name: each for each in _KERNELS}[name].ready()


def load() -> None:
    """Make every kernel ready, for a caller that takes the cache's folder elsewhere."""
    for each in _KERNELS:
        each.ready()
