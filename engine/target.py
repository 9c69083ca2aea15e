"""The target: an unmodified transformers model as three calls: prefill, verify a tree, keep a path.

The one module that calls a model's forward. Knows positions, masks and the cache; decides nothing.
"""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from engine.families import Family
from engine.kv_cache import GROWTH_STEP, TreeCache
from engine.prefix import Rest
from engine.prompts import EncodedPrompt
from engine.tree import DraftTree, visibility


class Target:
    """A model and the cache of the request that it is answering.

    Between calls the cache holds every committed token but the last, which is the next tree's root.
    """

    def __init__(self, model: Any, family: Family) -> None:
        """`model`: a transformers model for causal or image-text-to-text generation, in eval mode,
        loaded with the attention of `engine.attention`."""
        self.model = model
        # Where a prompt enters; layers may be elsewhere, and move what they get themselves.
        self.device: torch.device = model.get_input_embeddings().weight.device
        self._mrope = family.rope == "mrope"
        self._cache_name = _cache_argument(model)
        self._masks = _LayerMasks(model)
        self._decoder: nn.Module = model.get_decoder()
        self._head: nn.Module = model.get_output_embeddings()
        self._softcap = getattr(model.config.get_text_config(), "final_logit_softcapping", None)
        self._layers: int = model.config.get_text_config().num_hidden_layers
        self._cache = TreeCache(self._layers, 0)
        self._position_delta = family.first_position
        self._prompt_hidden: Tensor | None = None

    @property
    def cached(self) -> int:
        """How many tokens the cache holds."""
        return self._cache.length

    @torch.inference_mode()
    def prefill(self, prompt: EncodedPrompt, room: int, rest: Rest | None = None) -> Tensor:
        """Run the prompt, pictures included, and commit it.

        Args:
            room: tokens that the cache should expect behind the prompt.
            rest: what of the prompt the cache does not hold already; None is all.

        Returns:
            [1, vocab] float32 logits of the token after the prompt.
        """
        kept, inputs = (rest.kept, rest.inputs) if rest else (0, prompt.model_inputs)
        new = prompt.input_ids.shape[1] - kept
        self._prompt_hidden = None
        if kept:
            self._cache.truncate(kept)
            self._cache.reserve(new + room)
        else:
            self._cache = TreeCache(self._layers, new + room)
        inputs = {name: self._own(value) for name, value in inputs.items()}
        if self._mrope:
            inputs["position_ids"] = self._place(prompt)[..., kept:]
        hook = self._head.register_forward_pre_hook(self._catch_hidden)
        try:
            output = self.model(
                input_ids=prompt.input_ids[:, kept:].to(self.device),
                use_cache=True,
                **{self._cache_name: self._cache},
                **inputs,
            )
        finally:
            hook.remove()
        self._cache.keep(range(new))
        logits: Tensor = output.logits[0]
        return logits.to(self.device).float()

    @torch.inference_mode()
    def prompt_logits(self, positions: Sequence[int]) -> Tensor:
        """[m, vocab] float32 logits after these positions of what was prefilled last."""
        assert self._prompt_hidden is not None, "prefill first"
        rows = torch.tensor(positions, device=self._prompt_hidden.device)
        return self._logits(self._prompt_hidden[0].index_select(0, rows))

    def forget_prompt(self) -> None:
        """Give back the prompt's hidden states; `prompt_logits` cannot be called after this."""
        self._prompt_hidden = None

    @torch.inference_mode()
    def verify(self, tree: DraftTree) -> Tensor:
        """One pass over a tree of n nodes. Returns [n, vocab] float32 logits, one row a node."""
        n, start = len(tree), self._cache.length
        self._cache.reserve(n)
        ids = torch.tensor([tree.tokens], device=self.device)
        first = start + self._position_delta
        positions = torch.tensor([tree.depths], device=self.device) + first
        if self._mrope:
            positions = positions.expand(3, 1, n)
        # The language model alone: PaliGemma's whole forward takes no mask for each layer type.
        hidden = self._decoder(
            input_ids=ids,
            attention_mask=self._masks.of(tree, start),
            position_ids=positions,
            use_cache=True,
            **{self._cache_name: self._cache},
        )
        return self._logits(hidden.last_hidden_state[0])

    @torch.inference_mode()
    def keep(self, path: Sequence[int]) -> None:
        """Commit these nodes of the tree that was verified last, root included."""
        self._cache.keep(path)

    def _logits(self, hidden: Tensor) -> Tensor:
        """[m, vocab] float32, of the language model's output for m tokens."""
        logits: Tensor = self._head(hidden)
        if self._softcap is not None:  # as the model's forward does it behind the head
            logits = self._softcap * torch.tanh(logits / self._softcap)
        return logits.to(self.device).float()

    def _place(self, prompt: EncodedPrompt) -> Tensor:
        """[3, 1, T] positions in time, height and width; those of what follows go on from there."""
        ids = prompt.input_ids.to(self.device)
        places = {
            name: self._own(value)
            for name, value in prompt.model_inputs.items()
            if name in ("image_grid_thw", "mm_token_type_ids")
        }
        if "image_grid_thw" not in places:
            self._position_delta = 0
            return torch.arange(ids.shape[1], device=self.device).expand(3, 1, -1)
        positions, deltas = _rope_owner(self.model).get_rope_index(ids, **places)
        self._position_delta = int(deltas.item())
        return positions  # type: ignore[no-any-return]

    def _own(self, value: Tensor) -> Tensor:
        """On the model's device; pictures in its precision."""
        return value.to(self.device, self.model.dtype if value.is_floating_point() else None)

    def _catch_hidden(self, _: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        """Keep the prompt's hidden states; let the head compute the last position's logits only.

        Logits of a whole prompt would take gigabytes with a vocabulary of 152k.
        """
        self._prompt_hidden = args[0]
        return (args[0][:, -1:],)


class _LayerMasks:
    """Additive 4D masks of decode passes, one for each layer type that the model has."""

    def __init__(self, model: Any) -> None:
        config = model.config.get_text_config()
        self._dtype = model.dtype
        self._device = model.get_input_embeddings().weight.device
        self._window: int | None = getattr(config, "sliding_window", None)
        # Mistral's config has no layer types: every layer has the window, if there is one.
        only = "full_attention" if self._window is None else "sliding_attention"
        self._kinds = sorted(set(getattr(config, "layer_types", None) or (only,)))
        self._buffer = torch.zeros((0, 0), dtype=self._dtype, device=self._device)
        self._dirty = (0, 0, 0)

    def of(self, tree: DraftTree, start: int) -> Tensor | dict[str, Tensor]:
        """[1, 1, n, start + n]: 0 where a node sees a token, -inf elsewhere."""
        full = self._full(tree, start)
        masks = {kind: self._windowed(full, tree, start, kind) for kind in self._kinds}
        return masks if len(masks) > 1 else masks[self._kinds[0]]

    def _full(self, tree: DraftTree, start: int) -> Tensor:
        n, end = len(tree), start + len(tree)
        rows, columns = self._buffer.shape
        if n > rows or end > columns:
            size = (max(n, rows), max(end, columns) + GROWTH_STEP)
            self._buffer = torch.zeros(size, dtype=self._dtype, device=self._device)
            self._dirty = (0, 0, 0)
        height, left, right = self._dirty
        self._buffer[:height, left:right] = 0
        hidden = torch.from_numpy(~visibility(tree.parents)).to(self._device)
        self._buffer[:n, start:end].masked_fill_(hidden, -torch.inf)
        self._dirty = (n, start, end)
        return self._buffer[None, None, :n, :end]

    def _windowed(self, full: Tensor, tree: DraftTree, start: int, kind: str) -> Tensor:
        if kind != "sliding_attention" or self._window is None:
            return full
        depths = torch.tensor(tree.depths, device=self._device)
        places = torch.cat([torch.arange(start, device=self._device), start + depths])
        distance = (start + depths)[:, None] - places[None, :]
        return full.masked_fill(distance >= self._window, -torch.inf)


def _cache_argument(model: Any) -> str:
    """`cache` from transformers 5.18 or so on, `past_key_values` before."""
    names = inspect.signature(model.forward).parameters
    return "cache" if "cache" in names else "past_key_values"


def _rope_owner(model: Any) -> Any:
    """The module that knows where pictures stand."""
    return next(part for part in model.modules() if hasattr(part, "get_rope_index"))
