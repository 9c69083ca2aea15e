"""The target: an unmodified transformers model as three calls: prefill, verify a tree, keep a path.

Knows prompts, their positions and the cache; how a tree runs is `engine.passes`. Decides nothing.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from engine.compiled import compiled, pass_shapes
from engine.families import Family
from engine.kv_cache import TreeCache, cache_argument
from engine.operators import give_to_operators
from engine.packing import SAME_ROWS, keeps_bits
from engine.passes import (
    BIT_BY_BIT,
    USUAL,
    WITH_OPERATORS,
    LanguagePart,
    PassShapes,
    VerifyPasses,
)
from engine.prefix import Rest
from engine.prompts import EncodedPrompt
from engine.states import states_of
from engine.transfers import sent
from engine.tree import DraftTree

WARM_UP_TOKENS, WARM_UP_NODES = 100, 7
"""What passes are compiled with: no 0 or 1, which a compiler takes for constants."""


Form = Literal["eager", "operators", "compiled"]
"""How passes run: as transformers has them, with operators in C++, or compiled."""


class Target:
    """A model and the cache of the request that it is answering.

    Between calls the cache holds every committed token but the last, which is the next tree's root.

    Attributes:
        form: how passes run.
    """

    def __init__(self, model: Any, family: Family, shapes: PassShapes | None = None) -> None:
        """`model`: a transformers model for causal or image-text-to-text generation, in eval mode,
        loaded with the attention of `engine.attention`. `shapes`: of eager passes; None is for
        the bits of half precision where the model's products keep them, too."""
        self.model = model
        self.form: Form = "eager"
        # Where a prompt enters; layers may be elsewhere, and move what they get themselves.
        self.device: torch.device = model.get_input_embeddings().weight.device
        self._mrope = family.rope == "mrope"
        self._cache_name = cache_argument(model)
        self._text = LanguagePart(model)
        if shapes is None:
            shapes = BIT_BY_BIT if keeps_bits(model) else USUAL
        self._passes = VerifyPasses(model, self._mrope, self._text, shapes)
        self._head: nn.Module = model.get_output_embeddings()
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
        self._cache.truncate(kept)
        self._cache.reserve(new + room)
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

    def use_operators(self) -> None:
        """Make verify passes faster with `engine.kernels`, which must `serve` the model.

        Raises:
            UnbuildableOperators: it cannot be done; passes stay as they were.
        """
        give_to_operators(self.model)
        self._cache.write = torch.ops.recap.write.default
        self._passes = VerifyPasses(self.model, self._mrope, self._text, WITH_OPERATORS)
        self.form = "operators"

    @torch.inference_mode()
    def compile(self) -> None:
        """Make verify passes faster; takes a while, and has no effect on what they compute.

        Raises:
            UncompilableModel: it cannot be done; passes stay as they were.
        """
        forward = compiled(self._text, self.model)
        cache = TreeCache(self._layers, 0)
        cache.reserve(WARM_UP_TOKENS)
        cache.keep(range(WARM_UP_TOKENS))
        self._passes.run(DraftTree([0]), cache, 0)  # which allocates the cache
        passes = VerifyPasses(self.model, self._mrope, forward, pass_shapes(self.device))
        tree = DraftTree([0])
        for _ in range(WARM_UP_NODES - 1):
            tree.add(0, len(tree) - 1, 0, 1.0)
        passes.run(tree, cache, 0)
        self._passes = passes
        self.form = "compiled"

    @property
    def same_nodes(self) -> int | None:
        """Up to how many nodes a pass in half precision computes each as if it were alone.

        None where nothing is known of that.
        """
        return SAME_ROWS if keeps_bits(self.model) else None

    def padded(self, n: int) -> int:
        """Nodes that a pass over a tree of n nodes computes."""
        return self._passes.shapes.padded(n)

    @torch.inference_mode()
    def prompt_logits(self, positions: Sequence[int]) -> Tensor:
        """[m, vocab] float32 logits after these positions of what was prefilled last."""
        assert self._prompt_hidden is not None, "prefill first"
        rows = sent(positions, self._prompt_hidden.device)
        return self._text.logits(self._prompt_hidden[0].index_select(0, rows))

    def prompt_states(self) -> NDArray[np.uint64]:
        """[m, WORDS] states (`engine.states`) at all positions of what was prefilled last."""
        assert self._prompt_hidden is not None, "prefill first"
        return states_of(self._prompt_hidden[0])

    def forget_prompt(self) -> None:
        """Give back the prompt's hidden states; `prompt_logits` cannot be called after this."""
        self._prompt_hidden = None

    @torch.inference_mode()
    def verify(self, tree: DraftTree) -> Tensor:
        """One pass over a tree of n nodes. Returns [n, vocab] float32 logits, one row a node."""
        root = self._cache.length + self._position_delta
        return self._passes.run(tree, self._cache, root)

    @property
    def hidden(self) -> Tensor:
        """[n, width] of what the logits of the last pass were made; good until the next one."""
        return self._passes.hidden.to(self.device)

    def exact(self, path: list[int]) -> list[int]:
        """As much of an accepted path of the tree that was verified last as may be committed.

        In half precision on some CPUs that can be less than all: the rest was computed right, but
        not with the bits that it would have without the tree's other branches.
        """
        return self._passes.exact(path, self._cache.length)

    @torch.inference_mode()
    def keep(self, path: Sequence[int]) -> None:
        """Commit these nodes of the tree that was verified last, root included."""
        self._cache.keep([self._passes.places[node] for node in path])

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


def _rope_owner(model: Any) -> Any:
    """The module that knows where pictures stand."""
    return next(part for part in model.modules() if hasattr(part, "get_rope_index"))
