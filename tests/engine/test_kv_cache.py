"""The cache keeps what was committed, in order, whatever was written behind it."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from engine.kv_cache import GROWTH_STEP, TreeCache

Shape = tuple[int, int]
"""Heads and head size."""

EQUAL: Sequence[tuple[Shape, Shape]] = [((2, 4), (2, 4)), ((2, 4), (2, 4))]
DIFFERENT: Sequence[tuple[Shape, Shape]] = [((2, 4), (2, 4)), ((1, 8), (1, 8)), ((2, 6), (2, 4))]
LAYERS = pytest.mark.parametrize("layers", [EQUAL, DIFFERENT], ids=["equal", "different"])


class Written:
    """Forwards over a cache, and what a plain list of the kept tokens would hold."""

    def __init__(self, layers: Sequence[tuple[Shape, Shape]], room: int = 4) -> None:
        self.cache = TreeCache(len(layers), room)
        self._layers = layers
        self._random = torch.Generator().manual_seed(0)
        self._kept = [[torch.empty(1, heads, 0, dim) for heads, dim in pair] for pair in layers]
        self._last: list[list[Tensor]] = []

    def forward(self, tokens: int) -> None:
        """Every layer writes; what it gets back must be all that was kept, then its own."""
        self.cache.reserve(tokens)
        self._last = []
        for layer, shapes in enumerate(self._layers):
            pair = [self._states(heads, tokens, dim) for heads, dim in shapes]
            seen = self.cache.update(pair[0], pair[1], layer)
            for kept, states, given in zip(self._kept[layer], pair, seen, strict=True):
                assert torch.equal(given, torch.cat([kept, states], 2))
            self._last.append(pair)

    def keep(self, slots: Sequence[int]) -> None:
        self.cache.keep(slots)
        self._kept = [
            [
                torch.cat([kept, states[:, :, list(slots)]], 2)
                for kept, states in zip(*both, strict=True)
            ]
            for both in zip(self._kept, self._last, strict=True)
        ]
        assert self.cache.get_seq_length() == self.cache.length == self._kept[0][0].shape[2]

    def truncate(self, length: int) -> None:
        self.cache.truncate(length)
        self._kept = [[kept[:, :, :length] for kept in pair] for pair in self._kept]

    @property
    def capacities(self) -> set[int]:
        """Tokens that its buffers have room for."""
        return {buffer.shape[3] for buffer in self.cache.buffers}

    def _states(self, heads: int, tokens: int, dim: int) -> Tensor:
        return torch.randn(1, heads, tokens, dim, generator=self._random)


@LAYERS
def test_a_path_stays_and_its_siblings_go(layers: Sequence[tuple[Shape, Shape]]) -> None:
    written = Written(layers)
    written.forward(5)
    written.keep(range(5))
    for tokens, path in [(4, [0]), (6, [0, 2, 5]), (3, [0, 1, 2]), (7, [0, 1, 3, 4]), (1, [0])]:
        written.forward(tokens)
        written.keep(path)
    written.forward(2)


@LAYERS
def test_growing_beyond_the_room_loses_nothing(layers: Sequence[tuple[Shape, Shape]]) -> None:
    written = Written(layers, room=3)
    written.forward(3)
    written.keep(range(3))
    assert written.capacities == {3}
    written.forward(2)
    assert written.capacities == {3 + GROWTH_STEP}
    written.keep([0, 1])
    written.forward(2 * GROWTH_STEP)
    written.keep(range(0, 2 * GROWTH_STEP, 3))
    written.forward(1)


def test_room_that_was_asked_for_is_there_without_growing() -> None:
    written = Written(EQUAL, room=12)
    written.forward(3)
    written.keep(range(3))
    written.forward(9)
    written.keep(range(9))
    assert written.capacities == {12}


def test_slots_are_told_to_layers_on_every_device() -> None:
    cache = TreeCache(2, 8)
    cache.slots = torch.tensor([2, 0])
    for layer, device in enumerate(("cpu", "meta")):
        states = torch.ones(1, 2, 2, 4, device=device)
        keys, values = cache.update(states, states, layer)
        assert keys.device == values.device == states.device
    assert cache.buffers[0][0, 0, 0, :, 0].tolist() == [1, 0, 1, 0, 0, 0, 0, 0]


def test_a_forward_that_was_abandoned_leaves_no_trace() -> None:
    written = Written(EQUAL)
    written.forward(3)
    written.keep(range(3))
    written.forward(4)
    written.forward(4)
    written.keep([0, 3])
    written.forward(1)


def test_a_conversation_can_be_cut_back() -> None:
    written = Written(EQUAL)
    written.forward(6)
    written.keep(range(6))
    written.truncate(2)
    written.forward(3)
    written.keep([0, 2])
    written.truncate(99)
    assert written.cache.length == 4


def test_a_model_reads_lengths_for_its_own_masks_and_positions() -> None:
    written = Written(DIFFERENT)
    assert written.cache.get_seq_length() == 0
    written.forward(3)
    written.keep(range(3))
    assert written.cache.get_mask_sizes(4, 0) == (7, 0)
    assert written.cache.is_sliding == [False] * 3
