"""Attention masks of verify passes, in buffers that are kept from pass to pass.

Additive: 0 where a node sees a token, -inf elsewhere. A node sees what is committed, its ancestors
and itself; in layers with a sliding window only what is nearer than that. A node has its numbers
once for each of the query heads that share a key-value head, as attention takes them, so that no
layer has to make them; as many share one in all layers. Knows no model's forward.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.kernels import ROWS_STEP
from engine.transfers import send, sent
from engine.tree import DraftTree, visibility

COLUMNS_STEP = 256
"""Columns by which a buffer grows at least."""

Masks = Tensor | dict[str, Tensor]
"""One mask, or one for each layer type of a model that has several."""


class _Masks(ABC):
    """Masks for the layer types that a model's config names."""

    def __init__(self, text_config: Any, device: torch.device) -> None:
        """`text_config`: the config of the model's language part."""
        self._window: int | None = getattr(text_config, "sliding_window", None)
        # Mistral's config has no layer types: every layer has the window, if there is one.
        only = "full_attention" if self._window is None else "sliding_attention"
        self._kinds = sorted(set(getattr(text_config, "layer_types", None) or (only,)))
        heads = text_config.num_attention_heads
        self._group: int = heads // (getattr(text_config, "num_key_value_heads", None) or heads)
        self._device = device

    def of(self, tree: DraftTree, places: Sequence[int], start: int, extent: int) -> Masks:
        """For a tree of n nodes behind `start` committed tokens, at least one; over `extent` keys.

        A node's key is in slot `start` plus its place; keys behind the tree are hidden. A result is
        good until the next call.
        """
        full = self._see(tree, places, start, extent)
        masks = dict.fromkeys(self._kinds, full)
        if "sliding_attention" in masks and self._window is not None:
            far = None
            if start + max(tree.depths) >= self._window:
                far = self._far(tree, places, start, extent, self._window)
            masks["sliding_attention"] = self._slide(full, far)
        return masks if len(masks) > 1 else masks[self._kinds[0]]

    @abstractmethod
    def _see(self, tree: DraftTree, places: Sequence[int], start: int, extent: int) -> Tensor:
        """The mask of layers without a window."""

    @abstractmethod
    def _slide(self, full: Tensor, far: Tensor | None) -> Tensor:
        """The mask of layers with one; never `full` itself, which is another case to a compiler.

        Args:
            far: as of `_far`; None where all keys are in every node's window.
        """

    def _far(
        self, tree: DraftTree, places: Sequence[int], start: int, extent: int, window: int
    ) -> Tensor:
        """[n, extent] bool: which keys are not in a node's window."""
        own, slots = sent([tree.depths, places], self._device) + start
        positions = torch.arange(extent, device=self._device).index_copy_(0, slots, own)
        far: Tensor = own[:, None] - positions >= window
        return far


class TreeMasks(_Masks):
    """[1, 1, heads a key-value head * n, extent], all nodes of the first of these heads first; one
    row for a root alone."""

    def __init__(self, text_config: Any, dtype: torch.dtype, device: torch.device) -> None:
        """`text_config`: the config of the model's language part."""
        super().__init__(text_config, device)
        self._full = torch.empty((0, 0), dtype=dtype, device=device)
        self._sliding = self._full
        self._open = self._end = 0

    def _see(self, tree: DraftTree, places: Sequence[int], start: int, extent: int) -> Tensor:
        """Writes what changed since the last pass, in all rows: tokens committed since, and trees.

        Before, columns up to `_open` were seen by all, and from `_end` on by none.
        """
        visible = visibility(tree.parents, places)
        if len(tree) > 1:
            visible = np.tile(visible, (self._group, 1))
        rows = len(visible)
        self._make_room(rows, extent)
        first, end = min(self._open, start), start + visible.shape[1]
        if start - first > COLUMNS_STEP:  # a prompt, or a buffer that has grown
            self._full[:, first:start] = 0
            first = start
        news = np.full((len(self._full), max(self._end, end) - first), -np.inf, np.float32)
        news[:, : start - first] = 0
        news[:rows, start - first : end - first][visible] = 0
        send(torch.from_numpy(news), self._full[:, first : first + news.shape[1]])
        self._open, self._end = start, end
        return _cut(self._full, rows, extent)

    def _make_room(self, rows: int, extent: int) -> None:
        most, columns = self._full.shape
        # Never all columns of a buffer: to a compiler that is another case.
        wide = extent < columns
        if rows <= most and wide:
            return
        size = (max(rows, most), columns if wide else extent + COLUMNS_STEP)
        self._full = self._full.new_full(size, -torch.inf)
        if "sliding_attention" in self._kinds and self._window is not None:
            self._sliding = torch.empty_like(self._full)
        self._open = self._end = 0

    def _slide(self, full: Tensor, far: Tensor | None) -> Tensor:
        rows, extent = full.shape[2:]
        sliding = _cut(self._sliding, rows, extent).copy_(full)
        if far is not None:
            sliding.masked_fill_(far.repeat(rows // len(far), 1), -torch.inf)
        return sliding


class MasksByKey(_Masks):
    """[1, extent, 1, heads a key-value head * n or more] float32, for operators in C++.

    What all see is zero, of however many rows, so that a pass writes the rows of its tree alone.
    """

    def __init__(self, text_config: Any) -> None:
        """`text_config`: the config of the model's language part."""
        super().__init__(text_config, torch.device("cpu"))
        self._numbers = torch.zeros(0)
        self._written = slice(0)

    def _see(self, tree: DraftTree, places: Sequence[int], start: int, extent: int) -> Tensor:
        width = -(-self._group * len(tree) // ROWS_STEP) * ROWS_STEP
        if extent * width > len(self._numbers):
            self._numbers = torch.zeros((extent + COLUMNS_STEP) * width)
            self._written = slice(0)
        numbers = self._numbers.numpy()
        numbers[self._written] = 0
        self._written = slice(start * width, extent * width)
        visible = np.tile(visibility(tree.parents, places).T, self._group)
        rows = numbers[self._written].reshape(-1, width)
        rows[:] = -np.inf
        rows[: visible.shape[0], : visible.shape[1]][visible] = 0
        return self._numbers[: extent * width].view(1, extent, 1, width)

    def _slide(self, full: Tensor, far: Tensor | None) -> Tensor:
        sliding = full.clone()
        if far is not None:
            far = far.T.repeat(1, self._group)
            sliding[0, :, 0, : far.shape[1]].masked_fill_(far, -torch.inf)
        return sliding


def _cut(buffer: Tensor, rows: int, extent: int) -> Tensor:
    """[1, 1, rows, extent]; cut first, so that no stride tells how many rows the buffer has."""
    return buffer[:rows, :extent][None, None]
