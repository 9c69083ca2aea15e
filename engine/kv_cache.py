"""Keys and values of one request: room for the prompt, the answer and a draft tree.

Every forward writes behind the committed tokens, and only `keep` makes what it wrote permanent. A
forward that was abandoned half-way leaves a valid cache. Knows nothing of trees but slots.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

GROWTH_STEP = 256
"""Tokens by which buffers grow at least, so that growing is rare."""


_Kind = tuple[int, int, int, torch.dtype, torch.device]
_Place = tuple[_Kind, int]


class TreeCache(Cache):  # type: ignore[misc]  # transformers is not typed
    """A transformers cache of batch size 1 that keeps an arbitrary path of the last forward.

    Layers whose keys (or values) have equal shape share one buffer [layers, 1, kv heads,
    capacity, head dim], so that keeping a path is one copy a buffer and not one a layer. A model
    with layers of several shapes gets buffers for all its layers in each of them.
    Sliding-window layers keep every token as well: the window is the mask's business.
    """

    def __init__(self, layers: int, capacity: int) -> None:
        """Room for `capacity` tokens in up to `layers` layers; allocated when first written to."""
        super().__init__(layers=[])
        self.length = 0
        self._capacity = capacity
        self._most_layers = layers
        self._buffers: dict[_Kind, Tensor] = {}
        self._rows: dict[int, tuple[_Place, _Place]] = {}
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def capacity(self) -> int:
        """Tokens that fit before the buffers must grow."""
        return self._capacity

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Put [1, kv heads, n, head dim] behind the committed tokens; return all, committed first.

        Called by the model's attention layers. Room must have been made with `reserve`.
        """
        if layer_idx not in self._layers:
            self._rows[layer_idx] = (self._place(0, key_states), self._place(1, value_states))
            self._slice(layer_idx)
        keys, values = self._layers[layer_idx]
        end = self.length + key_states.shape[-2]
        keys[:, :, self.length : end] = key_states
        values[:, :, self.length : end] = value_states
        return keys[:, :, :end], values[:, :, :end]

    def reserve(self, tokens: int) -> None:
        """Make room for a forward over `tokens` tokens behind the committed ones."""
        needed = self.length + tokens
        if needed > self._capacity:
            self._grow(max(needed, self._capacity + GROWTH_STEP))

    def keep(self, slots: Sequence[int]) -> None:
        """Make these tokens of the last forward permanent, in this order; forget the others.

        Args:
            slots: ascending indices into the last forward's tokens.
        """
        start, count = self.length, len(slots)
        moved = next((i for i, slot in enumerate(slots) if slot != i), count)
        if moved < count:
            source = torch.tensor(slots[moved:]) + start
            for buffer in self._buffers.values():
                kept = buffer.index_select(3, source.to(buffer.device))
                buffer[:, :, :, start + moved : start + count] = kept
        self.length = start + count

    def truncate(self, length: int) -> None:
        """Forget everything behind the first `length` tokens."""
        self.length = min(self.length, length)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Committed tokens, for the model's own position arithmetic."""
        return self.length

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Key length and offset of the mask that the model builds for a prefill."""
        return self.length + query_length, 0

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """-1: no limit of its own."""
        return -1

    @property
    def is_sliding(self) -> list[bool]:
        """No layer drops old tokens."""
        return [False] * max(len(self._layers), 1)

    def _place(self, part: int, states: Tensor) -> _Place:
        """A row for a layer's keys (part 0) or values (1) in the buffer of their kind."""
        _, heads, _, dim = states.shape
        kind = (part, heads, dim, states.dtype, states.device)
        if kind not in self._buffers:
            shape = (self._most_layers, 1, heads, self._capacity, dim)
            self._buffers[kind] = states.new_empty(shape)
        return kind, sum(place[part][0] == kind for place in self._rows.values())

    def _grow(self, capacity: int) -> None:
        for kind, buffer in self._buffers.items():
            layers, batch, heads, _, dim = buffer.shape
            larger = buffer.new_empty((layers, batch, heads, capacity, dim))
            larger[:, :, :, : self.length] = buffer[:, :, :, : self.length]
            self._buffers[kind] = larger
        self._capacity = capacity
        for layer in self._rows:
            self._slice(layer)

    def _slice(self, layer: int) -> None:
        key, value = self._rows[layer]
        self._layers[layer] = (self._buffers[key[0]][key[1]], self._buffers[value[0]][value[1]])
