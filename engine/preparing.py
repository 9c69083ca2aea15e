"""What takes its time before the first answer, said before it is done, and how long it took."""

from collections.abc import Iterator
from time import perf_counter

from engine import kernels
from engine.errors import UnbuildableOperators, UncompilableModel
from engine.events import Notice
from engine.packing import lay_out
from engine.target import Target


def prepare(target: Target, *, compile: bool, drafting: bool = False) -> Iterator[Notice]:
    """Make a target's passes as fast as is asked; what cannot be done is left out.

    Args:
        compile: whether passes are compiled.
        drafting: whether there is a drafter, too, that operators make faster on any device.
    """
    if compile and target.form != "compiled":
        yield from _compile(target)
    if target.form == "eager" or drafting:
        yield from use_operators(target, drafting=drafting)
    if target.form == "eager":
        lay_out(target.model)


def _compile(target: Target) -> Iterator[Notice]:
    yield Notice("compiling the model; a minute or so at first, less in later runs")
    started = perf_counter()
    try:
        target.compile()
    except UncompilableModel as error:
        yield Notice(f"{error}; it answers as it is")
    else:
        yield Notice(f"compiled in {perf_counter() - started:.0f} s")


def use_operators(target: Target, *, drafting: bool = False) -> Iterator[Notice]:
    """Have operators in C++; a target's passes use them where they serve its model and it is not
    compiled. They are built if need be.

    What a compiler failed to build it is not asked for again, and nothing is said.
    """
    serving = target.form == "eager" and kernels.serve(target.model)
    if not (serving or drafting) or not kernels.promising():
        return
    there = kernels.library_file().exists()
    if not there:
        yield Notice("building operators for this CPU; up to a minute, once")
    started = perf_counter()
    try:
        if serving:
            target.use_operators()
        else:
            kernels.load()
    except UnbuildableOperators as error:
        again = f"; it is tried again once {kernels.refusal_file()} is deleted"
        yield Notice(
            f"{error}; answers take a little longer without"
            f"{again if kernels.refusal_file().exists() else ''}"
        )
    else:
        if not there:
            yield Notice(f"built in {perf_counter() - started:.0f} s")
