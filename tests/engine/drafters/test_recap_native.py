"""RECAP's drafter in C++ beside the one in Python: the same to the last bit, whatever happens."""

import gc
import pickle
import sys
from collections.abc import Callable, Sequence
from copy import deepcopy
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import kernels
from engine.drafters import recap, recap_native
from engine.drafters.recap import Recap, RecapDrafter
from engine.drafters.recap_native import NativeRecapDrafter, quickened
from engine.drafters.registry import METHODS
from engine.logits import Predictions
from engine.memory.states import StateMemory
from engine.memory.table import Tables
from engine.memory.transitions import PhraseMemory, TokenMemory
from engine.options import DrafterOptions
from engine.states import WORDS
from engine.tree import DraftTree, accepted_path
from tests.engine.drafters.drawn import PICTURE, predicted
from tests.engine.memory.tables import phrase_tables, phrases, table, tables


@pytest.fixture(autouse=True)
def _built(compiler: None) -> None:
    """The operators, where there is a compiler."""
    kernels.load()


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What both take for the time."""
    now = [0.0]
    for module in (recap, recap_native):
        monkeypatch.setattr(module, "perf_counter", lambda: now[0])
    return now


class Twins:
    """A drafter in Python and one in C++, of which whatever is asked is compared."""

    def __init__(self, options: DrafterOptions, tables: Tables, pictures: frozenset[int]) -> None:
        made = (RecapDrafter(options, TokenMemory(*tables), pictures) for _ in range(2))
        self.python: Recap = next(made)
        native = quickened(next(made))
        assert isinstance(native, NativeRecapDrafter)
        self.native: Recap = native

    def all(self, method: str, *given: Any) -> Any:
        """What both answer."""
        one, other = (getattr(each, method)(*given) for each in (self.python, self.native))
        assert one == other
        return one

    def known(self) -> tuple[int, int]:
        """How many longer keys and tokens both know."""
        one, other = (
            (each.contextual_keys, len(each.memory)) for each in (self.python, self.native)
        )
        assert one == other
        return one

    def news(self) -> Tables | None:
        """What both would save."""
        one, other = self.python.memory.news(), self.native.memory.news()
        assert (one is None) == (other is None)
        for ours, theirs in zip(one or (), other or (), strict=True):
            for name in ours.DTYPES:
                assert getattr(ours, name).tolist() == getattr(theirs, name).tolist(), name
        return one

    def mark_saved(self) -> None:
        """As if that had been saved."""
        for each in (self.python, self.native):
            each.memory.mark_saved()

    def pickled(self) -> None:
        """Go on with what is read from a file of either's state."""
        self.python, self.native = pickle.loads(pickle.dumps((self.python, self.native), 4))


def drawn_options(chance: Random) -> DrafterOptions:
    return DrafterOptions(
        k=chance.choice([2, 4, 8]),
        nodes=chance.choice([0, 3, 15, 48, 200]),
        adaptive=chance.random() < 0.6,
        max_depth=chance.choice([3, 16]),
        min_probability=chance.choice([0, 0.002, 0.05]),
        specificity=chance.choice([*3 * [(1.0, 2.0, 4.0)], (1.0, 0.0, 3.0), (0.0, 2.0, 4.0)]),
        states=chance.choice([8.0, 8.0, 1.5, 0.0]),
        entropy_weighting=chance.random() < 0.8,
        suffix=chance.random() < 0.8,
        suffix_min_match=chance.choice([1, 2, 3]),
        persistence=chance.random() < 0.85,
        phrases=chance.random() < 0.8,
    )


def drawn_states(chance: Random, count: int) -> Any:
    """Some like a state that was there before, some like none."""
    rows = []
    for _ in range(count):
        number = Random(chance.randrange(6)).getrandbits(64 * WORDS)
        for _ in range(chance.choice([0, 0, 2, 10, 40, 128])):
            number ^= 1 << chance.randrange(64 * WORDS)
        rows.append([number >> 64 * word & (1 << 64) - 1 for word in range(WORDS)])
    return np.array(rows, np.uint64).reshape(count, WORDS)


def foreseen(
    chance: Random, k: int, vocab: int, contexts: Sequence[tuple[int, ...]], states: bool = False
) -> Any:
    """What a target that changes its mind now and then predicts after some tokens."""
    ids, probs = np.empty((len(contexts), k), np.int64), np.empty((len(contexts), k), np.float32)
    for i, context in enumerate(contexts):
        mood = np.random.default_rng([chance.choice([0, 0, 0, 1, 2]), *context])
        ids[i] = mood.permutation(vocab)[:k]
        probs[i] = np.sort(mood.dirichlet(np.full(k, 0.3)))[::-1] * mood.uniform(0.5, 1)
    known = drawn_states(chance, len(contexts)) if states else None
    return Predictions(ids[:, 0].tolist(), ids, probs, known)


def some_path(chance: Random, tree: DraftTree, choices: Sequence[int]) -> list[int]:
    """What was accepted; now and then more than was chosen, for there to be long paths."""
    if chance.random() < 0.6:
        return accepted_path(tree, choices)
    path = [0]
    for node in range(1, len(tree)):
        if tree.parents[node] == path[-1] and chance.random() < 0.5:
            path.append(node)
    return path


@pytest.mark.parametrize("seed", range(40))
def test_trees_and_what_is_learned_are_those_of_python(
    seed: int, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = Random(seed)
    for name, values in (("MOST", (3, 64)), ("LIMIT", (50, 300, 1 << 18))):
        monkeypatch.setattr(StateMemory, name, chance.choice(values))
    options, vocab = drawn_options(chance), chance.choice([12, 30, 80])
    pictures = chance.choice([frozenset[int](), frozenset({5})])
    slope, bend = chance.choice([0.01, 0.05, 0.2]), chance.choice([1, 1, 3])
    stored = Tables.empty(1)
    twins = Twins(options, stored, pictures)

    def passes(count: int) -> None:
        for _ in range(count):
            depth = chance.choice([0, 1, 5, 30])
            tree = twins.all("propose", depth)
            contexts = [
                (token, tree.tokens[parent])
                for token, parent in zip(tree.tokens, tree.parents, strict=True)
            ]
            predictions = foreseen(chance, options.k, vocab, contexts, options.states > 0)
            path = some_path(chance, tree, predictions.choices)
            clock[0] += (1 + slope * len(tree)) ** bend * chance.choice([1, 1, 1.1, 3])
            twins.all("learn", path, predictions)
            committed = [tree.tokens[node] for node in path[1:]]
            committed.append(predictions.choices[path[-1]])
            twins.all("observe", committed)

    for request in range(6):
        prompt = [chance.randrange(vocab) for _ in range(chance.choice([0, 3, 30, 700]))]
        kept = len(prompt) // 2 if request and chance.random() < 0.3 else 0
        if kept:
            twins.all("resume", prompt[:kept], prompt[kept:])
        else:
            twins.all("start", prompt)
        if prompt and options.states and chance.random() < 0.9:
            twins.all("recognise", drawn_states(chance, len(prompt) - kept))
        seeded = range(len(prompt) - kept)[-16:]
        if seeded:
            contexts = [(prompt[kept + i],) for i in seeded]
            predictions = foreseen(chance, options.k, vocab, contexts)
            twins.all("seed", seeded, predictions)
        twins.all("observe", [prompt[0] if prompt else 1])
        passes(25)
        twins.known()
        pace = twins.all("pace")
        if chance.random() < 0.5:
            twins.all("settle")
            news = twins.news()
            twins.mark_saved()
            assert twins.news() is None
            if news and options.persistence and chance.random() < 0.5:
                stored = stored.merged_with(news)
                twins = Twins(options, stored, pictures)
                twins.all("resume_pace", pace)
        if chance.random() < 0.3:
            twins.pickled()


@given(tables(max_id=9), phrase_tables(max_id=9), st.integers(2, 6))
def test_whatever_a_file_holds_is_recalled_alike(tokens: Any, longer: Any, k: int) -> None:
    options = DrafterOptions(k=k, nodes=64, adaptive=False, min_probability=0.0)
    twins = Twins(options, Tables(tokens, longer), frozenset())
    for last in range(10):
        for before in range(0, 10, 3):
            twins.all("start", [1, before, last])
            twins.all("propose", 3)
    twins.known()


def test_the_longer_keys_stored_longest_ago_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PhraseMemory, "MOST", 50)
    monkeypatch.setattr(recap_native, "PHRASES_MOST", 50)
    twins = Twins(DrafterOptions(k=2), Tables.empty(1), frozenset())
    chance = Random(0)
    for _ in range(12):
        text = [chance.randrange(9) for _ in range(chance.choice([5, 20]))]
        twins.all("start", text)
        predictions = foreseen(chance, 2, 9, [(token,) for token in text])
        twins.all("seed", range(len(text)), predictions)
        twins.all("settle")
        news = twins.news()
        assert news is not None
        assert len(news.phrases.keys) <= 50
        twins.all("propose", 9)


def test_a_path_ends_where_its_probability_is_too_small_for_a_number() -> None:
    options = DrafterOptions(
        k=2, nodes=1024, max_depth=1024, adaptive=False, min_probability=0, suffix=False
    )
    twins = Twins(options, Tables.empty(1), frozenset())
    twins.all("start", [1])
    twins.all("seed", [0], predicted([(1, 0.25), (2, 0.0)]))
    assert 100 < len(twins.all("propose", 1024)) < 1025


def taught() -> NativeRecapDrafter:
    tables = Tables(table({7: [(8, 0.5), (9, 0.25)]}), phrases({(1, 2): 7}))
    options = DrafterOptions(k=2, adaptive=False, suffix=False)
    native = NativeRecapDrafter(options, tables, PICTURE)
    native.start([1, 2, 3])
    native.seed([2], predicted([(4, 0.9), (7, 0.05)]))
    return native


def drafted(drafter: NativeRecapDrafter, *text: int) -> list[int]:
    drafter.observe(text)
    return drafter.propose(9).tokens


def test_copies_go_their_own_ways() -> None:
    first = taught()
    second = deepcopy(first)
    for each in (first, second):
        each.resume((), [1, 2, 3])
        assert drafted(each, 1, 2, 3)[1:3] == [4, 7]
        assert drafted(each, 7)[1] == 8
    second.propose(0)
    second.learn([0], predicted([(5, 0.9), (6, 0.05)]))
    assert drafted(second, 7)[1] == 5
    assert drafted(first, 7)[1] == 8


def with_a_wrong_length(learned: bytes) -> bytes:
    """Of contexts, with which the budget begins that is last in it."""
    budget = len(learned) - int.from_bytes(learned[:8], sys.byteorder)
    return learned[:budget] + b"\xff" * 8 + learned[budget + 8 :]


@pytest.mark.parametrize(
    "damage",
    [
        lambda learned: b"",
        lambda learned: learned[:-1],
        lambda learned: learned + b"0",
        lambda learned: bytes(len(learned)),
        lambda learned: b"\xff" * len(learned),
        lambda learned: learned[:8] + b"\x7f" + learned[9:],
        lambda learned: learned[:16] + b"\x7f" + learned[17:],
        with_a_wrong_length,
    ],
)
def test_a_damaged_state_is_refused(damage: Callable[[bytes], bytes]) -> None:
    state = taught().__getstate__()
    state["learned"] = damage(state["learned"])
    with pytest.raises(ValueError, match="no state of a drafter"):
        NativeRecapDrafter.__new__(NativeRecapDrafter).__setstate__(state)


@pytest.mark.parametrize(
    "pace",
    [
        {"costs": 3},
        {"claims": {}},
        {"costs": {"0": {"seconds": [1], "seen": [1], "passes": 1}}},
        {"costs": {"0": {"seconds": [1.0] * 8, "seen": [1.0] * 8, "passes": 1 << 63}}},
    ],
)
def test_a_pace_that_does_not_fit_is_not_taken(pace: dict[str, Any]) -> None:
    native = taught()
    before = native.pace()
    native.resume_pace(before | pace)
    assert native.pace() == before


def test_what_it_learned_is_there_for_as_long_as_its_memory() -> None:
    memory = taught().memory
    gc.collect()
    assert len(memory) == 2
    with pytest.raises(TypeError, match="its drafter's"):
        deepcopy(memory)


def test_a_pace_behind_impossible_contexts_is_not_taken() -> None:
    native = taught()
    pace = native.pace()
    cost = {"seconds": [1.0] * 8, "seen": [1.0] * 8, "passes": 9}
    native.resume_pace(pace | {"costs": {"64": cost}})
    assert native.pace() == pace
    native.resume_pace(pace | {"costs": {"3": cost}})
    assert native.pace()["costs"] == {"3": cost}


def test_only_recap_is_drafted_in_cpp() -> None:
    for method, entry in METHODS.items():
        drafter = entry.make(entry.published, TokenMemory(), PICTURE)
        same = quickened(drafter) is drafter
        assert same == (method != "recap")
