"""A repetition penalty along every path of a tree, which many models' generation configs ask for.

It changes the logits of tokens that were seen, each once however often: so the columns of what
stands in the history suffice, and few single numbers where a path has tokens of its own. What the
history holds is taken up as it grows.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.transfers import sent
from engine.tree import DraftTree


class RepetitionPenalty:
    """As transformers' `RepetitionPenaltyLogitsProcessor` (CTRL, arXiv 1909.05858), for one
    request."""

    def __init__(self, penalty: float, device: torch.device) -> None:
        self._penalty = penalty
        self._seen: set[int] = set()
        self._columns = torch.empty(0, dtype=torch.int64, device=device)
        self._read = 0

    def apply(self, logits: Tensor, tree: DraftTree, history: Sequence[int]) -> None:
        """Penalise [n, vocab] float32 logits in place.

        Args:
            history: prompt and committed tokens, the root included; it only ever grows.
        """
        news = list(set(history[self._read :]) - self._seen)
        self._read = len(history)
        self._seen.update(news)
        own = self._own_tokens(tree)
        nodes = [node for node, tokens in enumerate(own) for _ in tokens]
        tokens = [token for some in own for token in some]
        if news or nodes:
            numbers = sent([*news, *nodes, *tokens], logits.device)
            new, *at = numbers.split_with_sizes([len(news), len(nodes), len(nodes)])
            self._columns = torch.cat([self._columns, new])
        logits.index_copy_(1, self._columns, self._penalised(logits.index_select(1, self._columns)))
        if nodes:
            logits.index_put_(tuple(at), self._penalised(logits[tuple(at)]))

    def _own_tokens(self, tree: DraftTree) -> list[list[int]]:
        """What stands on the path to each node, and not in the history."""
        own: list[list[int]] = [[]]
        for token, parent in zip(tree.tokens[1:], tree.parents[1:], strict=True):
            known = token in self._seen or token in own[parent]
            own.append(own[parent] if known else [*own[parent], token])
        return own

    def _penalised(self, scores: Tensor) -> Tensor:
        return torch.where(scores < 0, scores * self._penalty, scores / self._penalty)
