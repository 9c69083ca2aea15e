"""Keys and values of one request: room for the prompt, the answer and a draft tree.

The first forward's tensors are packed into buffers that grow in steps; later forwards write
behind the committed tokens, and only `keep` makes what they wrote permanent. A forward that was
abandoned half-way therefore leaves a valid cache. Knows nothing of trees but slots.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

GROWTH_STEP = 256
"""Tokens by which buffers grow at least, so that growing is rare."""


class TreeCache(Cache):  # type: ignore[misc]  # transformers is not typed
    """A transformers cache of batch size 1 that keeps an arbitrary path of the last forward.

    Layers whose keys (or values) have equal shape share one buffer [layers, 1, kv heads,
    capacity, head dim], so that keeping a path is one copy a buffer and not one a layer.
    Sliding-window layers keep every token as well: the window is the mask's business.
    """

    def __init__(self, room: int) -> None:
        """`room`: how many tokens are expected behind those of the first forward."""
        super().__init__(layers=[])
        self.length = 0
        self._room = room
        self._fresh: dict[int, tuple[Tensor, Tensor]] = {}
        self._buffers: list[Tensor] = []
        self._rows: dict[int, tuple[tuple[int, int], tuple[int, int]]] = {}
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def capacity(self) -> int:
        """Tokens that fit before the buffers must grow; 0 before the first `keep`."""
        return self._buffers[0].shape[3] if self._buffers else 0

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Put [1, kv heads, n, head dim] behind the committed tokens; return all, committed first.

        Called by the model's attention layers. Room must have been made with `reserve`.
        """
        if not self._buffers:
            self._fresh[layer_idx] = (key_states, value_states)
            return key_states, value_states
        keys, values = self._layers[layer_idx]
        end = self.length + key_states.shape[-2]
        keys[:, :, self.length : end] = key_states
        values[:, :, self.length : end] = value_states
        return keys[:, :, :end], values[:, :, :end]

    def reserve(self, tokens: int) -> None:
        """Make room for a forward over `tokens` tokens behind the committed ones."""
        needed = self.length + tokens
        if self._buffers and needed > self.capacity:
            self._grow(max(needed, self.capacity + GROWTH_STEP))

    def keep(self, slots: Sequence[int]) -> None:
        """Make these tokens of the last forward permanent, in this order; forget the others.

        Args:
            slots: ascending indices into the last forward's tokens.
        """
        if self._fresh:
            self._pack()
        start, count = self.length, len(slots)
        moved = next((i for i, slot in enumerate(slots) if slot != i), count)
        if moved < count:
            source = torch.tensor(slots[moved:], device=self._buffers[0].device) + start
            for buffer in self._buffers:
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
        return [False] * max(len(self._layers), len(self._fresh), 1)

    def _pack(self) -> None:
        """Move the first forward's tensors into one buffer for each shape and device."""
        groups: dict[tuple[object, ...], list[Tensor]] = {}
        rows = {}
        for layer, pair in self._fresh.items():
            places = []
            for states in pair:
                kind = (states.shape, states.dtype, states.device)
                group = groups.setdefault(kind, [])
                places.append((list(groups).index(kind), len(group)))
                group.append(states)
            rows[layer] = (places[0], places[1])
        self._rows = rows
        self._fresh = {}
        self._buffers = [_spacious(group, self._room) for group in groups.values()]
        self._slice_layers()

    def _grow(self, capacity: int) -> None:
        for i, buffer in enumerate(self._buffers):
            layers, batch, heads, _, dim = buffer.shape
            larger = buffer.new_empty((layers, batch, heads, capacity, dim))
            larger[:, :, :, : self.length] = buffer[:, :, :, : self.length]
            self._buffers[i] = larger
        self._slice_layers()

    def _slice_layers(self) -> None:
        self._layers = {
            layer: (self._buffers[key[0]][key[1]], self._buffers[value[0]][value[1]])
            for layer, (key, value) in self._rows.items()
        }


def _spacious(states: Sequence[Tensor], room: int) -> Tensor:
    """Stack [1, kv heads, n, head dim] tensors into [layers, 1, kv heads, n + room, head dim]."""
    batch, heads, length, dim = states[0].shape
    buffer = states[0].new_empty((len(states), batch, heads, length + room, dim))
    for row, tensor in enumerate(states):
        buffer[row, :, :, :length] = tensor
    return buffer
