"""From the target's logits to its greedy choices and to what the memories keep of them.

The choice is what `generate(do_sample=False)` computes: the argmax, lowest id on a tie, in float32,
after the logits processors that the model's generation config asks for. Knows no model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList
from transformers.generation import logits_process as lp

from engine import kernels
from engine.errors import ModelError
from engine.repetition import RepetitionPenalty
from engine.states import packed_states, states_of
from engine.transfers import sent
from engine.tree import DraftTree

BLOCK = 64
"""Vocabulary entries a block when the top k are looked for."""
BLOCK_MASS = 1.5
"""A block's exponentials by that of its largest entry, on average: with SmolLM2-135M on Spec-Bench
this puts half of all probabilities within 2 % of the softmax, and nine in ten within 10 %."""
SMALL = 4096
"""Vocabularies up to this size are searched as a whole."""


@dataclass(frozen=True, slots=True)
class Predictions:
    """What the target predicts at n positions.

    Attributes:
        choices: [n] its greedy next tokens.
        top_ids: [n, k] int64, its most probable next tokens, best first; k may be 0.
        top_probs: [n, k] float32, their softmax probabilities; with large vocabularies estimates.
        states: [n, WORDS] uint64, its states (`engine.states`); None where nobody asked.
    """

    choices: list[int]
    top_ids: NDArray[np.int64]
    top_probs: NDArray[np.float32]
    states: NDArray[np.uint64] | None = None


def predict(logits: Tensor, k: int, hidden: Tensor | None = None) -> Predictions:
    """Choices and top k of [n, vocab] float32 logits, in one transfer to the CPU.

    Args:
        hidden: [n, width] of what the logits were made; None where no states are wanted.
    """
    n, vocab = logits.shape
    if k == 0:
        empty = np.empty((n, 0))
        return Predictions(_choices(logits), empty.astype(np.int64), empty.astype(np.float32))
    ids, probs = _top(logits, min(k, vocab))
    if logits.device.type == "cpu":
        top_ids, top_probs = ids.numpy(), probs.numpy()
        states = None if hidden is None else states_of(hidden)
        return Predictions(_firsts(logits, top_ids, top_probs), top_ids, top_probs, states)
    return in_one_transfer(logits, ids, probs, hidden)


def in_one_transfer(
    logits: Tensor, ids: Tensor, probs: Tensor, hidden: Tensor | None
) -> Predictions:
    """Choices, and what is on a device of the rest, as integers.

    Floats go as their bits: MPS has no float64, which would hold both.
    """
    parts = [logits.argmax(-1, keepdim=True).int(), ids.int(), probs.view(torch.int32)]
    if hidden is not None:
        parts.append(packed_states(hidden))
    choices, top, chances, *state = np.split(
        torch.cat(parts, 1).cpu().numpy(), np.cumsum([part.shape[1] for part in parts[:-1]]), 1
    )
    return Predictions(
        choices[:, 0].tolist(),
        top.astype(np.int64),
        np.ascontiguousarray(chances).view(np.float32),
        state[0].copy().view(np.uint64) if state else None,  # of one row, it is not aligned
    )


def _choices(logits: Tensor) -> list[int]:
    """The argmax of each row, the lowest id on a tie; NumPy's is ten times as fast on a CPU."""
    if logits.device.type == "cpu":
        return logits.numpy().argmax(-1).tolist()  # type: ignore[no-any-return]
    return logits.argmax(-1).tolist()


def _firsts(logits: Tensor, ids: NDArray[np.int64], probs: NDArray[np.float32]) -> list[int]:
    """The argmax of each row, the lowest id on a tie, where the k largest are known, on a CPU."""
    if ids.shape[1] == 1:
        return _choices(logits)
    choices: list[int] = ids[:, 0].tolist()
    for row in np.flatnonzero(~(probs[:, 0] > probs[:, 1])).tolist():
        choices[row : row + 1] = _choices(logits[row : row + 1])
    return choices


def _top(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """[n, k] int64 ids of the k most probable tokens of each row, best first, and probabilities.

    In a large vocabulary they are found among the k blocks with the largest maxima, which is exact
    up to ties and several times faster than a top-k over whole rows. The exponentials of all other
    blocks are estimated from their maxima: computing them would take most of the time. On a CPU an
    operator in C++ does much the same, once operators are loaded.
    """
    n, vocab = logits.shape
    if logits.device.type == "cpu" and kernels.loaded():
        ids, probs = kernels.TOP(logits, k)
        return ids, probs
    if vocab <= SMALL:
        probs, ids = logits.softmax(-1).topk(k)
        return ids, _known(probs)
    blocks = -(-vocab // BLOCK)
    if blocks * BLOCK != vocab:
        logits = torch.nn.functional.pad(logits, (0, blocks * BLOCK - vocab), value=-torch.inf)
    blocked = logits.view(n, blocks, BLOCK)
    maxima = blocked.amax(-1)
    chosen = maxima.topk(min(k, blocks)).indices
    candidates = blocked.gather(1, chosen[..., None].expand(-1, -1, BLOCK)).flatten(1)
    values, places = candidates.topk(k)
    ids = chosen.gather(1, places // BLOCK) * BLOCK + places % BLOCK
    ids.clamp_(max=vocab - 1)  # padding, where fewer than k tokens are possible
    best = values[:, :1]
    others = (maxima - best).exp().scatter_(1, chosen, 0).sum(-1, keepdim=True)
    total = (candidates - best).exp().sum(-1, keepdim=True) + BLOCK_MASS * others
    return ids, _known((values - best).exp() / total)


def _known(probs: Tensor) -> Tensor:
    """Probabilities; after an overflow nothing is known."""
    return probs.nan_to_num().clamp(max=1.0)


class GreedyRules:
    """The logits processors of a model's generation config, applied along every path of a tree."""

    def __init__(self, config: GenerationConfig, eos_ids: Sequence[int]) -> None:
        """Raises ModelError where the config asks for what greedy verification cannot do."""
        refused = [
            name
            for name, neutral in _NOT_SUPPORTED.items()
            if getattr(config, name, None) not in (None, neutral)
        ]
        if refused:
            raise ModelError(f"the model's generation config asks for {refused[0]}; not supported")
        self._config = config
        self._eos_ids = list(eos_ids)
        self._processors = LogitsProcessorList()
        self._penalty: RepetitionPenalty | None = None

    def start(self, prompt_tokens: int, max_tokens: int, device: torch.device) -> None:
        """Set up for a request whose prompt has this many tokens, placeholders included."""
        config, eos = self._config, self._eos_ids
        made: list[lp.LogitsProcessor] = []
        if config.sequence_bias:
            made.append(lp.SequenceBiasLogitsProcessor(config.sequence_bias))
        if config.repetition_penalty not in (None, 1.0):
            made.append(lp.RepetitionPenaltyLogitsProcessor(config.repetition_penalty))
        if config.no_repeat_ngram_size:
            made.append(lp.NoRepeatNGramLogitsProcessor(config.no_repeat_ngram_size))
        if config.bad_words_ids:
            made.append(lp.NoBadWordsLogitsProcessor(config.bad_words_ids, eos or None))
        if config.min_length and eos:
            made.append(lp.MinLengthLogitsProcessor(config.min_length, eos, str(device)))
        if config.min_new_tokens and eos:
            least = config.min_new_tokens
            args = (prompt_tokens, least, eos, str(device))
            made.append(lp.MinNewTokensLengthLogitsProcessor(*args))
        if config.forced_eos_token_id is not None:
            last = prompt_tokens + max_tokens
            forced = config.forced_eos_token_id
            made.append(lp.ForcedEOSTokenLogitsProcessor(last, forced, str(device)))
        if config.remove_invalid_values:
            made.append(lp.InfNanRemoveLogitsProcessor())
        if config.exponential_decay_length_penalty is not None:
            penalty = config.exponential_decay_length_penalty
            made.append(lp.ExponentialDecayLengthPenalty(penalty, eos, prompt_tokens))
        if config.suppress_tokens:
            made.append(lp.SuppressTokensLogitsProcessor(config.suppress_tokens, str(device)))
        alone = [type(each) for each in made] == [lp.RepetitionPenaltyLogitsProcessor]
        self._penalty = RepetitionPenalty(config.repetition_penalty, device) if alone else None
        self._processors = LogitsProcessorList(made)

    @torch.inference_mode()
    def apply(self, logits: Tensor, tree: DraftTree, history: Sequence[int]) -> Tensor:
        """Process [n, vocab] float32 logits in place, each node seeing the tokens up to itself.

        Args:
            history: prompt and committed tokens, the root included; within a request it grows.

        Returns:
            The same logits.
        """
        if self._penalty:
            self._penalty.apply(logits, tree, history)
            return logits
        if not self._processors:
            return logits
        past = sent(history, logits.device)
        paths = _paths(tree)
        for depth in range(max(tree.depths) + 1):
            nodes = [node for node, at in enumerate(tree.depths) if at == depth]
            tails = sent([paths[node] for node in nodes], logits.device)
            ids = torch.cat([past.expand(len(nodes), -1), tails.view(len(nodes), depth)], 1)
            rows = sent(nodes, logits.device)
            scores = cast(torch.FloatTensor, logits.index_select(0, rows))
            scores = self._processors(cast(torch.LongTensor, ids), scores)
            logits.index_copy_(0, rows, scores)
        return logits


def _paths(tree: DraftTree) -> list[list[int]]:
    """The drafted tokens from the root, excluded, down to each node."""
    paths: list[list[int]] = [[]]
    for token, parent in zip(tree.tokens[1:], tree.parents[1:], strict=True):
        paths.append([*paths[parent], token])
    return paths


_NOT_SUPPORTED = {
    "guidance_scale": 1,
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1,
    "forced_bos_token_id": None,
    "begin_suppress_tokens": None,
    "watermarking_config": None,
}
"""What is refused, and the value with which it does nothing."""
