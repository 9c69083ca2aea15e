"""Keys and values of one request: room for the prompt, the answer and a draft tree.

Every forward writes behind the committed tokens, and only `keep` makes what it wrote permanent. A
forward that was abandoned half-way leaves a valid cache. Knows nothing of trees but slots.

A prefill gets back what it may see. A pass that is compiled or captured once and run at any length
must not depend on that length: it says by a tensor where it writes (`slots`), gets back whole
buffers, and reads as many keys as its mask is for.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from engine.transfers import sent

GROWTH_STEP = 256
"""Tokens by which buffers grow at least, so that growing is rare."""


_Kind = tuple[int, int, int, torch.dtype, torch.device]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a layer's keys and values lie: which buffer, and which row of it."""

    keys: int
    keys_row: int
    values: int
    values_row: int


class TreeCache(Cache):  # type: ignore[misc]  # transformers is not typed
    """A transformers cache of batch size 1 that keeps an arbitrary path of the last forward.

    Layers whose keys (or values) have equal shape share one buffer [layers, 1, kv heads,
    capacity, head dim], so that keeping a path is one copy a buffer and not one a layer. A model
    with layers of several shapes gets buffers for all its layers in each of them.
    Sliding-window layers keep every token as well: the window is the mask's business. What is not
    written yet is zero, as a masked key that is not a number would spoil what it is masked in.

    Attributes:
        length: committed tokens.
        slots: [n] int64, where the next forward's n tokens go; None is behind the committed ones.
        write: how they get there: as `recap::write`.
        buffers: all there are.
    """

    def __init__(self, layers: int, capacity: int) -> None:
        """Room for `capacity` tokens in up to `layers` layers; allocated when first written to."""
        super().__init__(layers=[])
        self.length = 0
        self.slots: Tensor | None = None
        self.write: Callable[..., None] = _write
        self.buffers: list[Tensor] = []
        self._capacity = capacity
        self._most_layers = layers
        self._kinds: list[_Kind] = []
        self._places: dict[int, _Place] = {}

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Put [1, kv heads, n, head dim] behind the committed tokens, or where `slots` says.

        Called by the model's attention layers. Room must have been made with `reserve`.

        Returns:
            Committed keys and values, then the new ones; with `slots` the whole buffers instead.
        """
        if layer_idx not in self._places:
            self._places[layer_idx] = self._place(key_states, value_states)
        destination = self.destination(layer_idx)
        if destination is not None:
            write = torch.ops.recap.write if torch.compiler.is_compiling() else self.write
            write(*destination, key_states, value_states)
            all_keys, all_values, keys_row, values_row = destination[:4]
            return all_keys[keys_row], all_values[values_row]
        at = self._places[layer_idx]
        keys, values = self.buffers[at.keys], self.buffers[at.values]
        end = self.length + key_states.shape[-2]
        keys[at.keys_row, :, :, self.length : end] = key_states
        values[at.values_row, :, :, self.length : end] = value_states
        return keys[at.keys_row, :, :, :end], values[at.values_row, :, :, :end]

    def destination(self, layer_idx: int) -> tuple[Tensor, Tensor, int, int, Tensor] | None:
        """Buffers of a layer's keys and values, its rows in them, and `slots`: as `write` has them.

        None outside of passes, and where the layer has not written yet.
        """
        at = self._places.get(layer_idx)
        if at is None or self.slots is None:
            return None
        keys, values = self.buffers[at.keys], self.buffers[at.values]
        slots = self.slots.to(keys.device)  # layers may be on several
        return keys, values, at.keys_row, at.values_row, slots

    def reserve(self, tokens: int) -> None:
        """Make room for a forward over `tokens` tokens behind the committed ones."""
        needed = self.length + tokens
        if needed > self._capacity:
            self._grow(max(needed, self._capacity + GROWTH_STEP))

    def keep(self, slots: Sequence[int]) -> None:
        """Make these tokens of the last forward permanent, in this order; forget the others.

        Args:
            slots: where the last forward put them, counted from the committed ones on.
        """
        start, count = self.length, len(slots)
        moved = next((i for i, slot in enumerate(slots) if slot != i), count)
        if moved < count:
            source = [start + slot for slot in slots[moved:]]
            devices = {buffer.device for buffer in self.buffers}
            sources = {device: sent(source, device) for device in devices}
            for buffer in self.buffers:
                kept = buffer.index_select(3, sources[buffer.device])
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
        return [False] * max(len(self._places), 1)

    def _place(self, keys: Tensor, values: Tensor) -> _Place:
        """Rows for a layer that writes for the first time."""
        places = self._places.values()
        key, value = self._buffer(0, keys), self._buffer(1, values)
        return _Place(
            key,
            sum(place.keys == key for place in places),
            value,
            sum(place.values == value for place in places),
        )

    def _buffer(self, part: int, states: Tensor) -> int:
        """The buffer for keys (part 0) or values (1) of this kind."""
        _, heads, _, dim = states.shape
        kind = (part, heads, dim, states.dtype, states.device)
        if kind not in self._kinds:
            shape = (self._most_layers, 1, heads, self._capacity, dim)
            self._kinds.append(kind)
            self.buffers.append(states.new_zeros(shape))
        return self._kinds.index(kind)

    def _grow(self, capacity: int) -> None:
        for i, buffer in enumerate(self.buffers):
            layers, batch, heads, _, dim = buffer.shape
            larger = buffer.new_zeros((layers, batch, heads, capacity, dim))
            larger[:, :, :, : self.length] = buffer[:, :, :, : self.length]
            self.buffers[i] = larger
        self._capacity = capacity


def _write(
    keys: Tensor,
    values: Tensor,
    keys_row: int,
    values_row: int,
    slots: Tensor,
    key_states: Tensor,
    value_states: Tensor,
) -> None:
    keys[keys_row].index_copy_(2, slots, key_states)
    values[values_row].index_copy_(2, slots, value_states)


def cache_argument(model: Any) -> str:
    """`cache` from transformers 5.18 or so on, `past_key_values` before."""
    names = inspect.signature(model.forward).parameters
    return "cache" if "cache" in names else "past_key_values"


# An operator of its own: a compiler that sees single writes into rows of a buffer copies all of it.
_LIBRARY: Any = torch.library.Library("recap", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define(
    "write(Tensor(a!) keys, Tensor(b!) values, int keys_row, int values_row, Tensor slots, "
    "Tensor key_states, Tensor value_states) -> ()"
)
_LIBRARY.impl("write", _write, "CompositeExplicitAutograd")
torch.library.register_fake("recap::write", lambda *_: None, lib=_LIBRARY)
