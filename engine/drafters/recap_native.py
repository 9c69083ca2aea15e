"""The RECAP drafter in C++ (`engine/cpp/drafting.h`): the same trees in a fifth of the time.

`engine.drafters.recap` is what it does, and stands in where operators cannot be built. Here are the
calls, and what is kept as Python keeps it: tables of a file, claims, and learned rows to be saved.
"""

import ctypes
from collections.abc import Sequence
from contextlib import suppress
from ctypes import POINTER, byref, c_bool, c_char_p, c_double, c_int64, c_void_p, sizeof
from functools import cache
from time import perf_counter
from typing import Any, NoReturn
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from engine import kernels
from engine.budget import Budget, Calibration, PassCost
from engine.drafters.base import Drafter
from engine.drafters.recap import (
    CONTEXTUAL_2,
    CONTEXTUAL_3,
    COPIED,
    EARLIER_2,
    EARLIER_3,
    KEYED,
    LONGEST_TRUST,
    PRIOR_TRUST,
    READ,
    STAND_IN,
    STEADY,
    SUFFIX,
    TOKEN,
    Recap,
    RecapDrafter,
    suffix_trust,
)
from engine.logits import Predictions
from engine.memory.states import NEARNESS, StateMemory
from engine.memory.table import (
    LONGEST_RUN,
    PHRASE_K,
    PHRASES_MOST,
    PhraseTable,
    Tables,
    TransitionTable,
)
from engine.memory.transitions import Recent, predictions_of, token_table
from engine.options import DrafterOptions
from engine.states import WORDS
from engine.tree import DraftTree

LENGTHS = 64
"""Of contexts, behind which costs are kept."""


class _Settings(ctypes.Structure):
    """`Settings` of `drafting.h`."""

    _fields_ = (
        *((name, c_int64) for name in ("k", "nodes", "adaptive", "max_depth")),
        ("min_probability", c_double),
        *((name, c_double) for name in ("one", "two", "three", "states")),
        ("nearness", c_double * len(NEARNESS)),
        *((name, c_int64) for name in ("nearest", "most_seen", "all_seen")),
        ("read", c_double),
        *((name, c_int64) for name in ("by_confidence", "suffix", "suffix_min_match")),
        *((name, c_int64) for name in ("persistence", "phrases", "most_phrases", "width")),
        *((name, c_int64) for name in ("token", "copied", "stand_in")),
        *((name, c_int64) for name in ("contextual_2", "contextual_3", "earlier_2", "earlier_3")),
        ("steadiest", c_int64),
        ("steady", c_int64 * 16),
        ("sources", c_int64 * 32),
        ("trust", c_double * (LONGEST_TRUST + 1)),
        ("cell_count", c_int64),
        ("cells", c_int64 * (Calibration.STEPS + 1)),
        ("claims_remembered", c_double),
    )


class _Table(ctypes.Structure):
    """`Table` of `memories.h`: where the arrays of a file's table are."""

    _fields_ = (
        *((name, c_void_p) for name in ("keys", "ids", "probs", "runs")),
        *((name, c_int64) for name in ("count", "k")),
    )


class _Tree(ctypes.Structure):
    """`Tree` of `drafting.h`: where the columns of a draft tree are."""

    _fields_ = tuple(
        (name, c_void_p) for name in ("tokens", "parents", "depths", "sources", "probabilities")
    )


class _Numbers(ctypes.Structure):
    """`PassCost::Numbers` of `budget.h`."""

    _fields_ = (
        ("seconds", c_double * len(PassCost.KNOTS)),
        ("seen", c_double * len(PassCost.KNOTS)),
        ("passes", c_int64),
    )


@cache
def _library() -> Any:
    """The library, and of its functions what they take. Its calls are short, and keep the GIL."""
    library: Any = ctypes.PyDLL("recap", handle=kernels.load()._handle)
    assert library.recap_settings_size() == sizeof(_Settings)
    make = library.recap_drafter
    tables = (POINTER(_Table), POINTER(_Table))
    make.argtypes = (POINTER(_Settings), c_void_p, c_int64, *tables, c_void_p, c_void_p)
    make.restype = c_void_p
    for name, (takes, gives) in _CALLS.items():
        function = getattr(library, f"recap_{name}")
        function.argtypes, function.restype = (c_void_p, *takes), gives
    return library


_PREDICTIONS = (c_void_p, c_void_p, c_int64)
_CALLS: dict[str, tuple[tuple[Any, ...], Any]] = {
    "drafter_delete": ((), None),
    "settle": ((), None),
    "start": ((), None),
    "resume": ((), None),
    "read": ((c_void_p, c_int64, c_bool), None),
    "seed": ((c_void_p, c_int64, *_PREDICTIONS), None),
    "recognise": ((c_void_p, c_int64), None),
    "propose": ((c_int64, POINTER(_Tree)), c_int64),
    "learn": ((c_void_p, c_int64, *_PREDICTIONS, c_void_p), c_int64),
    "observe_pass": ((c_int64, c_int64, c_double), None),
    "costs": ((c_void_p, c_void_p), c_int64),
    "set_costs": ((c_int64, c_void_p, c_void_p), None),
    "counts": ((c_void_p,), None),
    "written_tokens": ((c_void_p, c_void_p, c_void_p), None),
    "written_phrases": ((c_void_p, c_void_p, c_void_p), None),
    "mark_saved": ((), None),
    "save": ((c_char_p,), c_int64),
    "restore": ((c_char_p, c_int64), c_bool),
}
"""What functions of `drafter_calls.h` take behind a drafter, and what they give."""


class NativeMemory:
    """What one drafter learned, as far as it outlives requests; as `TokenMemory`, but nothing is
    looked up or stored in it from here."""

    def __init__(self, handle: int, tables: Tables, width: int) -> None:
        """`handle`: of the drafter, which goes with this; `tables`: of a file, which it reads;
        `width`: of rows, at most."""
        self.tables = tables
        self._handle = handle
        self._width = width
        finalize(self, _library().recap_drafter_delete, handle).atexit = False

    def __reduce__(self) -> NoReturn:
        raise TypeError("it is its drafter's, which can be copied")

    def __len__(self) -> int:
        return len(self.tables.tokens.keys) + self._counts()[1]

    @property
    def contextual_keys(self) -> int:
        """Keys of two and three tokens of the present request."""
        return self._counts()[0]

    @property
    def changed(self) -> bool:
        """Whether rows were written that are not saved."""
        return self._counts()[2] > 0

    def news(self) -> Tables | None:
        """The rows that were written since the last save; None when there are none."""
        _, _, tokens, phrases = self._counts()
        return Tables(self._tokens(tokens), self._phrases(phrases)) if tokens + phrases else None

    def mark_saved(self) -> None:
        """Nothing that is in here now needs to be written again."""
        _library().recap_mark_saved(self._handle)

    def _counts(self) -> list[int]:
        counts = np.empty(4, np.int64)
        _library().recap_counts(self._handle, _at(counts))
        return counts.tolist()

    def _tokens(self, count: int) -> TransitionTable:
        if not count:
            return TransitionTable.empty(1)
        facts, ids, probs = _room(count, 2, self._width)
        _library().recap_written_tokens(self._handle, _at(facts), _at(ids), _at(probs))
        recent: dict[int, Recent] = {}
        rows = map(predictions_of, ids, probs)
        for (token, _, *lengths), (newest, before) in zip(facts.tolist(), rows, strict=True):
            for row, length in zip((newest, before), lengths, strict=True):
                row.ids, row.probs = row.ids[:length], row.probs[:length]
            recent[token] = (newest, before) if before.ids else (newest,)
        return token_table(recent, dict(facts[:, :2].tolist()))

    def _phrases(self, count: int) -> PhraseTable:
        if not count:
            return PhraseTable.empty(PHRASE_K)
        facts, ids, probs = _room(count, 1, self._width)
        _library().recap_written_phrases(self._handle, _at(facts), _at(ids), _at(probs))
        order = facts[:, 0].argsort()
        keys, stamps, runs, lengths = facts[order].T
        k = min(PHRASE_K, int(lengths.min()))
        return PhraseTable(
            keys=keys.astype(np.uint64),
            next_ids=ids[order, 0, :k],
            probs=probs[order, 0, :k],
            stamps=stamps.astype(np.uint32),
            runs=runs.clip(max=LONGEST_RUN).astype(np.uint8),
        )


class NativeRecapDrafter(Recap):
    """As `RecapDrafter`, without what that one's memories learned since they came from a file."""

    memory: NativeMemory

    def __init__(
        self, options: DrafterOptions, tables: Tables, placeholders: frozenset[int]
    ) -> None:
        """`placeholders`: ids of image and video features, never keyed, drafted or matched.

        Raises:
            UnbuildableOperators: there is no library.
        """
        self.options = options
        self._placeholders = placeholders
        claims = Calibration(PRIOR_TRUST).numbers()
        self._claimed, self._came = (np.array(claims[name]) for name in ("claimed", "true"))
        tables = Tables(*map(_contiguous, tables))
        width = max(options.k, *(table.k for table in tables))
        never = np.array(sorted(placeholders), np.int64)
        self._handle: int = _library().recap_drafter(
            byref(_settings(options, width)),
            _at(never),
            len(never),
            *(byref(_table(table)) for table in tables),
            _at(self._claimed),
            _at(self._came),
        )
        self.memory = NativeMemory(self._handle, tables, width)
        self._columns = np.empty((4, options.nodes + 1), np.int64)
        self._probabilities = np.empty(options.nodes + 1)
        self._tree = _Tree(*map(_at, (*self._columns, self._probabilities)))
        self._began = 0.0
        self.start(())

    @property
    def contextual_keys(self) -> int:
        """Keys of two and three tokens in the contextual memory."""
        return self.memory.contextual_keys

    def pace(self) -> dict[str, Any]:
        """What was learned of the machine's speed and of how often claims hold, ready for JSON."""
        lengths = np.empty(LENGTHS, np.int64)
        costs = (_Numbers * LENGTHS)()
        count = _library().recap_costs(self._handle, _at(lengths), costs)
        numbers = {
            str(length): {
                "seconds": list(cost.seconds),
                "seen": list(cost.seen),
                "passes": cost.passes,
            }
            for length, cost in zip(lengths[:count].tolist(), costs, strict=False)
        }
        return {
            "costs": numbers,
            "claims": {"claimed": self._claimed.tolist(), "true": self._came.tolist()},
        }

    def resume_pace(self, pace: dict[str, Any]) -> None:
        """Go on with what `pace` gave; what does not fit is not taken."""
        budget, calibration = Budget(), Calibration(PRIOR_TRUST)
        with suppress(AttributeError, TypeError, ValueError, KeyError, ZeroDivisionError):
            budget.restore(pace["costs"])
            calibration.restore(**pace["claims"])
            costs = {int(length): cost for length, cost in budget.numbers().items()}
            if any(length not in range(LENGTHS) for length in costs):
                return
            numbers = (_Numbers * len(costs))(
                *(
                    _Numbers(tuple(cost["seconds"]), tuple(cost["seen"]), cost["passes"])
                    for cost in costs.values()
                )
            )
            lengths = np.array(list(costs), np.int64)
            _library().recap_set_costs(self._handle, len(costs), _at(lengths), numbers)
            claims = calibration.numbers()
            self._claimed[:], self._came[:] = claims["claimed"], claims["true"]

    def start(self, prompt: Sequence[int]) -> None:
        """Drop the contextual memory and read the prompt."""
        _library().recap_start(self._handle)
        if not self.options.persistence:
            self.memory.tables = Tables.empty(1)
        self.resume((), prompt)

    def settle(self) -> None:
        """Leave what this request has learned to later ones."""
        _library().recap_settle(self._handle)

    def resume(self, kept: Sequence[int], new: Sequence[int]) -> None:
        """Read the conversation as it stands now; its contextual memory stays."""
        _library().recap_resume(self._handle)
        self._new = len(new)
        for tokens, prompt in ((kept, False), (new, True)):
            _library().recap_read(self._handle, _numbers(tokens), len(tokens), prompt)

    def recognise(self, states: NDArray[np.uint64]) -> None:
        """Learn in which states the target read the prompt, as if it had predicted it."""
        assert len(states) == self._new
        _library().recap_recognise(self._handle, _states(states), len(states))

    def seed(self, positions: Sequence[int], predictions: Predictions) -> None:
        """Learn what the target predicts inside the prompt."""
        count = len(positions)
        _library().recap_seed(self._handle, _numbers(positions), count, *_rows(predictions))

    def observe(self, tokens: Sequence[int]) -> None:
        """Read tokens that were committed."""
        _library().recap_read(self._handle, _numbers(tokens), len(tokens), False)

    def learn(self, path: Sequence[int], predictions: Predictions) -> None:
        """Write back every node's prediction; the accepted path last, so that it prevails."""
        length = len(path)
        states = None if predictions.states is None else _states(predictions.states)
        foreseen = _library().recap_learn(
            self._handle, _numbers(path), length, *_rows(predictions), states
        )
        seconds = perf_counter() - self._began
        _library().recap_observe_pass(self._handle, length, foreseen, seconds)

    def propose(self, max_depth: int) -> DraftTree:
        """Best-first search for the paths that are most likely to be accepted."""
        self._began = perf_counter()
        size = _library().recap_propose(self._handle, max_depth, byref(self._tree))
        tokens, parents, depths, sources = self._columns[:, :size].tolist()
        return DraftTree(tokens, parents, depths, sources, self._probabilities[:size].tolist())

    def __getstate__(self) -> dict[str, Any]:
        size = _library().recap_save(self._handle, None)
        learned = ctypes.create_string_buffer(size)
        _library().recap_save(self._handle, learned)
        return {
            "options": self.options,
            "tables": self.memory.tables,
            "placeholders": self._placeholders,
            "claims": (self._claimed, self._came),
            "learned": learned.raw,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Raises ValueError where it is damaged."""
        NativeRecapDrafter.__init__(self, state["options"], state["tables"], state["placeholders"])
        self._claimed[:], self._came[:] = state["claims"]
        learned: bytes = state["learned"]
        if not _library().recap_restore(self._handle, learned, len(learned)):
            raise ValueError("no state of a drafter")


def quickened(drafter: Drafter) -> Drafter:
    """A drafter that was made and has learned nothing yet, in C++ where there are operators and it
    is one of RECAP's."""
    if not isinstance(drafter, RecapDrafter) or not kernels.loaded():
        return drafter
    return NativeRecapDrafter(drafter.options, drafter.memory.tables, drafter.placeholders)


def _settings(options: DrafterOptions, width: int) -> _Settings:
    one, two, three = options.specificity
    trust = [suffix_trust(options, match) for match in range(LONGEST_TRUST + 1)]
    sources = {COPIED: SUFFIX, **KEYED}
    settings = _Settings(
        k=options.k,
        nodes=options.nodes,
        adaptive=options.adaptive,
        max_depth=options.max_depth,
        min_probability=options.min_probability,
        one=one,
        two=two,
        three=three,
        states=options.states,
        nearest=StateMemory.NEAREST,
        most_seen=StateMemory.MOST,
        all_seen=StateMemory.LIMIT,
        read=READ,
        by_confidence=options.entropy_weighting,
        suffix=options.suffix,
        suffix_min_match=options.suffix_min_match,
        persistence=options.persistence,
        phrases=options.phrases,
        most_phrases=PHRASES_MOST,
        width=width,
        token=TOKEN,
        copied=COPIED,
        stand_in=STAND_IN,
        contextual_2=CONTEXTUAL_2,
        contextual_3=CONTEXTUAL_3,
        earlier_2=EARLIER_2,
        earlier_3=EARLIER_3,
        steadiest=len(STEADY) - 1,
        cell_count=len(Calibration.EDGES) + 1,
        claims_remembered=Calibration.MEMORY,
    )
    settings.nearness[:] = NEARNESS
    settings.trust[:] = trust
    settings.cells[:] = Calibration.CELLS
    settings.steady[: len(STEADY)] = STEADY
    for kind, source in sources.items():
        settings.sources[kind] = source
    return settings


def _table(table: TransitionTable | PhraseTable) -> _Table:
    runs = _at(table.runs) if isinstance(table, PhraseTable) else None
    places = map(_at, (table.keys, table.next_ids, table.probs))
    return _Table(*places, runs, len(table.keys), table.k)


def _contiguous(table: Any) -> Any:
    """The same table, its rows as C has them: those of a file may be a view of more columns."""
    columns = {name: getattr(table, name) for name in table.DTYPES}
    if all(column.flags.c_contiguous for column in columns.values()):
        return table  # to make it anew would check it anew
    return type(table)(**{name: np.ascontiguousarray(column) for name, column in columns.items()})


def _room(rows: int, predictions: int, width: int) -> tuple[NDArray[Any], ...]:
    """For facts, ids and probabilities of so many keys."""
    shape = (rows, predictions, width)
    return np.empty((rows, 4), np.int64), np.empty(shape, np.int32), np.empty(shape, np.float32)


def _rows(predictions: Predictions) -> tuple[int, int, int]:
    """Where ids and probabilities are, and how many of each position."""
    ids, probs = predictions.top_ids, predictions.top_probs
    assert ids.flags.c_contiguous
    assert ids.dtype == np.int64
    assert probs.flags.c_contiguous
    assert probs.dtype == np.float32
    return _at(ids), _at(probs), ids.shape[1]


def _states(states: NDArray[np.uint64]) -> int:
    """Where states are."""
    assert states.flags.c_contiguous
    assert states.flags.aligned
    assert states.dtype == np.uint64
    assert states.shape[1] == WORDS
    return _at(states)


def _numbers(values: Sequence[int]) -> Any:
    return (c_int64 * len(values))(*values)


def _at(array: NDArray[Any]) -> int:
    return array.ctypes.data
