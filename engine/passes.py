"""Verify passes: a draft tree -> logits at its nodes, in one forward of a model's language part.

What a forward reads lies in buffers that are kept from pass to pass. Passes are padded (see
`PassShapes`): with keys that nobody sees and, for whoever wants few shapes, with nodes whose
logits nobody reads. Decides nothing; knows neither prompts nor pictures.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from engine.attention import evenly_summed, place_in_sum
from engine.kv_cache import TreeCache, cache_argument
from engine.masks import Masks, MasksByKey, TreeMasks
from engine.packing import SAME_ROWS
from engine.transfers import send
from engine.tree import LANES, DraftTree, places


@dataclass(frozen=True, slots=True)
class PassShapes:
    """The shapes that passes take.

    Attributes:
        nodes: sizes to which trees are padded, ascending; a larger tree is padded to a multiple of
            the last. None at all: trees stay as they are.
        extent: the number of keys is padded to a multiple of this.
        least: a smaller tree is padded to this many nodes.
        lanes: a tree's keys stand in so many (`engine.tree.places`), for a node's sums to have the
            terms, in the places, that they have without its neighbours; 1 is side by side.
        by_key: masks are as operators in C++ take them (`engine.kernels`).
    """

    nodes: tuple[int, ...] = ()
    extent: int = 1
    least: int = 1
    lanes: int = 1
    by_key: bool = False

    def padded(self, n: int) -> int:
        """Nodes that a pass over a tree of n nodes computes."""
        if not self.nodes:
            return max(n, self.least)
        most = self.nodes[-1]
        return next((size for size in self.nodes if size >= n), -(-n // most) * most)

    def keys(self, n: int) -> int:
        """Keys that a pass attends to, of which n are not padding."""
        return -(-n // self.extent) * self.extent


USUAL = PassShapes(extent=32)
"""Trees as they are. Keys in whole vectors: attention on a CPU then gives a node the same bits
whatever the size of its tree (PyTorch 2.13, x86)."""

BIT_BY_BIT = replace(USUAL, lanes=LANES)
"""The same where products keep a row's bits, too."""

WITH_OPERATORS = PassShapes(by_key=True)
"""Of passes with operators in C++, whose attention keeps bits wherever keys are."""

SPARE = 1
"""Slots that no pass reads: a forward that was compiled for keys in part of a buffer is compiled
anew for keys in all of it."""


class LanguagePart:
    """Decoder and output head of a transformers model: what it is without its vision tower."""

    def __init__(self, model: Any) -> None:
        self._decoder: nn.Module = model.get_decoder()
        self._head: nn.Module = model.get_output_embeddings()
        self._softcap = getattr(model.config.get_text_config(), "final_logit_softcapping", None)
        self._device = model.get_input_embeddings().weight.device
        self._cache_name = cache_argument(model)

    def __call__(
        self, ids: Tensor, positions: Tensor, masks: Masks, cache: TreeCache
    ) -> tuple[Tensor, Tensor]:
        """One forward; keys and values go to the cache's `slots`, nothing is committed.

        Args:
            ids: [1, n] int64.
            positions: [1, n] int64 rotary positions; [3, 1, n] for M-RoPE.
            masks: as of `TreeMasks` or `MasksByKey`; as many keys are read as they are for.

        Returns:
            [n, vocab] float32 logits, and the [n, width] that they were made of.
        """
        # Not the whole model: PaliGemma's forward takes no mask for each layer type.
        output = self._decoder(
            input_ids=ids,
            attention_mask=masks,
            position_ids=positions,
            use_cache=True,
            **{self._cache_name: cache},
        )
        hidden = output.last_hidden_state[0]
        return self.logits(hidden), hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """[m, vocab] float32, of the decoder's output for m tokens."""
        logits: Tensor = self._head(hidden)
        if self._softcap is not None:  # as the model's forward does it behind the head
            logits = self._softcap * torch.tanh(logits / self._softcap)
        return logits.to(self._device).float()


Forward = Callable[[Tensor, Tensor, Masks, TreeCache], tuple[Tensor, Tensor]]
"""`LanguagePart.__call__`, as it is, compiled, or as a captured graph."""


class VerifyPasses:
    """Runs trees through a forward; owns what it reads.

    Attributes:
        places: behind the committed tokens, where keys of the last tree's nodes are.
        hidden: [n, width] of what the logits of the last pass were made; good until the next one.
    """

    def __init__(self, model: Any, mrope: bool, forward: Forward, shapes: PassShapes) -> None:
        """`mrope`: whether the model's rotary positions have three axes."""
        self.forward = forward
        self.shapes = shapes
        self.places: list[int] = []
        self.hidden = torch.empty(0)
        self._mrope = mrope
        device = model.get_input_embeddings().weight.device
        config = model.config.get_text_config()
        self._masks = (
            MasksByKey(config) if shapes.by_key else TreeMasks(config, model.dtype, device)
        )
        self._numbers = torch.empty((3, 0), dtype=torch.int64, device=device)

    def run(self, tree: DraftTree, cache: TreeCache, position: int) -> Tensor:
        """[n, vocab] float32 logits at the n nodes of a tree behind what `cache` holds.

        Args:
            position: the root's rotary position.
        """
        n, start = len(tree), cache.length
        tree = _padded(tree, self.shapes.padded(n))
        lanes = self._lanes(len(tree))
        self.places = places(tree.parents, lanes)
        keys = self.shapes.keys(start + max(self.places) + 1)
        if lanes > 1:
            keys = evenly_summed(keys)
        cache.reserve(keys - start + SPARE)
        ids, positions, slots = self._write(tree, position, start)
        masks = self._masks.of(tree, self.places, start, keys)
        cache.slots = slots
        try:
            logits, hidden = self.forward(ids, positions, masks, cache)
        finally:
            cache.slots = None
        self.hidden = hidden[:n]
        return logits[:n]

    def exact(self, path: list[int], start: int) -> list[int]:
        """As much of a path of the last tree as has, in half precision, a pass's bits without tree.

        Where branches are many, a node's key may stand in another part of a sum than it would.

        Args:
            start: how many tokens were committed before that tree.
        """
        if self._lanes(len(self.places)) == 1:
            return path
        for depth, node in enumerate(path):
            if place_in_sum(start + self.places[node]) != place_in_sum(start + depth):
                return path[:depth]
        return path

    def _lanes(self, nodes: int) -> int:
        """Of a pass over so many; in a large one products depend on a row's neighbours anyway."""
        return self.shapes.lanes if nodes <= SAME_ROWS else 1

    def _write(self, tree: DraftTree, position: int, start: int) -> tuple[Tensor, Tensor, Tensor]:
        """Ids, positions and slots of a tree's nodes, in one transfer."""
        n = len(tree)
        if n > self._numbers.shape[1]:
            self._numbers = self._numbers.new_empty((3, n + 64))
        positions = [position + depth for depth in tree.depths]
        slots = [start + place for place in self.places]
        numbers = self._numbers[:, :n]
        send(torch.tensor([tree.tokens, positions, slots]), numbers)
        ids, rotary, into = numbers
        return ids[None], rotary.expand(3, 1, n) if self._mrope else rotary[None], into


def _padded(tree: DraftTree, size: int) -> DraftTree:
    """The tree with more children of its root, so that it has `size` nodes."""
    more = size - len(tree)
    if not more:
        return tree
    return DraftTree(
        tokens=tree.tokens + tree.tokens[:1] * more,
        parents=tree.parents + [0] * more,
        depths=tree.depths + [1] * more,
    )
