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
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, Self

from numba import config, njit, types
from numba.core import event
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_lock import global_compiler_lock
from numba.core.compiler_machinery import register_pass
from numba.core.registry import cpu_target
from numba.core.typed_passes import NativeLowering

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
    plain = types.unliteral(argument)
    return types.int64 if plain in _NARROW else plain


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


class KernelLocator:
    """Shows numba where a kernel is kept: in the cache folder, wherever its source lies.

    Numba's own locators put a digest of the source's path between, so that machine code would be
    lost with every move of the package. The folder is named by the content of all sources, so
    neither their path nor their age has to say anything more.
    """

    def __init__(self, function: Callable[..., Any], source: str) -> None:
        self._py_file = source
        self._line = function.__code__.co_firstlineno

    @classmethod
    def from_function(cls, function: Callable[..., Any], source: str) -> Self:
        """Return the locator of ``function``, as numba asks for it."""
        return cls(function, source)

    def ensure_cache_path(self) -> None:
        """Do nothing: the folder was made when it was chosen."""

    def get_cache_path(self) -> str:
        """Return the folder."""
        return str(config.CACHE_DIR)  # type: ignore[attr-defined]

    def get_source_stamp(self) -> str:
        """Return what changes with the source and not with the folder: nothing does."""
        return ""

    def get_disambiguator(self) -> str:
        """Return what distinguishes functions of one name, and processors.

        Numba keeps one list for all processors, and two that add to it at once would give two
        processors one file of machine code.
        """
        return f"{self._line}-{processor()}"


def processor() -> str:
    """Return the name of the processor that kernels are compiled for, with its features."""
    triple, name, features = cpu_target.target_context.codegen().magic_tuple()
    return f"{name}-{zlib.crc32(f'{triple} {features}'.encode()):08x}"


class _Kernel(event.Listener):
    """A declared kernel: its full name, numba's dispatcher, and the exact types of its arguments.

    It listens while it is made ready, because only numba knows what the cache does not have.
    """

    def __init__(self, name: str, dispatcher: Any, signature: str) -> None:
        self.name = name
        self.dispatcher = dispatcher
        self._signature = signature
        self._is_ready = False
        # What numba asks, with the arguments, at a call for whose types it has no machine code.
        dispatcher._compile_for_args = self._begun

    def _begun(self, *_: Any) -> Any:
        """Return what the first call runs: the dispatcher once more, which knows the types now.

        The machine code itself would take arguments of other types for its own.
        """
        self.ready()
        return self.dispatcher

    def ready(self) -> None:
        """Load or compile it, unless it is ready."""
        with global_compiler_lock:
            if not self._is_ready:
                with (
                    kernel_cache.reserved(self.name, processor()),
                    event.install_listener(COMPILES, self),
                    _without_collector(),
                ):
                    self._make()
                self.dispatcher.disable_compile()
                self._is_ready = True

    def _make(self) -> None:
        try:
            if not self._take():
                self.dispatcher.compile(self._signature)
        except OSError:
            # It is there, and is compiled again by the next process: the cache cannot be written.
            if not self.dispatcher.signatures:
                raise

    def _take(self) -> bool:
        """Load the machine code that the cache has; say whether it has any.

        Numba does the same in :meth:`compile`, but first imports and registers everything that code
        can be made of. That takes a quarter of a second, and a process that has code needs nothing
        of it.
        """
        dispatcher = self.dispatcher
        found = dispatcher._cache._load_overload(self._signature, dispatcher.targetctx)
        if found is None:
            return False
        dispatcher.targetctx.insert_user_function(found.entry_point, found.fndesc, [found.library])
        dispatcher.add_overload(found)
        return True

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
        # A setting of the whole process, but only read here, when the cache of a function is made.
        before = config.CACHE_LOCATOR_CLASSES  # type: ignore[attr-defined]
        if config.CACHE_DIR:  # type: ignore[attr-defined]
            locator = f"{__name__}.{KernelLocator.__name__}"
            config.CACHE_LOCATOR_CLASSES = locator  # type: ignore[attr-defined]
        try:
            dispatcher = njit(cache=True, **_OPTIONS, **_KERNEL)(function)
        finally:
            config.CACHE_LOCATOR_CLASSES = before  # type: ignore[attr-defined]
        name = f"{function.__module__}.{function.__name__}"
        _KERNELS.append(_Kernel(name, dispatcher, signature))
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
