"""Decoder layers of a model's language part, each as one operator of `engine.kernels`.

As transformers has them they take some thirty operators, most of whose work takes less time than
calling them. A layer of a kind that is known is replaced where a trial says that the operator
computes the same.
"""

from itertools import count
from typing import Any
from weakref import finalize

import torch
from torch import Tensor, nn

from engine import kernels
from engine.kernels import DECODE, by_key
from engine.kv_cache import TreeCache, cache_argument
from engine.masks import MasksByKey
from engine.norms import CLOSE, FusedNorm
from engine.substitutes import substitute
from engine.tree import DraftTree, places

KNOWN = frozenset(
    {
        *("LlamaDecoderLayer", "MistralDecoderLayer", "Qwen2DecoderLayer", "Qwen2VLDecoderLayer"),
        *("Qwen2_5_VLDecoderLayer", "Qwen3DecoderLayer", "Qwen3VLTextDecoderLayer"),
    }
)
"""Classes of transformers whose layers are a norm, attention with rotary positions and a sum, then
a norm, products gated by a sigmoid linear unit, and a sum."""
DTYPES = (torch.float32, torch.bfloat16)
"""In what the operator computes."""
NORMS = ("input_layernorm", "post_attention_layernorm")
TRIED_BEHIND, TRIED_TOKENS = 5, 3


class FusedLayer(nn.Module):
    """A decoder layer, [1, n, dims] to [1, n, dims]; outside of passes it is what it replaces.

    Attributes:
        original: what it replaces.
    """

    def __init__(self, original: nn.Module, norms: list[FusedNorm], cache_name: str) -> None:
        """`norms`: before attention, before the gated products and, where there are, of queries
        and keys; `cache_name`: of the argument that is the cache."""
        super().__init__()
        self.original = original
        self._cache_name = cache_name
        attention: Any = original.self_attn
        mlp: Any = original.mlp
        self._index: int = attention.layer_idx
        self._key = next(_KEYS)
        products = (attention.q_proj, attention.o_proj, mlp.gate_proj, mlp.down_proj)
        torch.ops.recap.hold_layer(
            self._key,
            [product.weights.key for product in products],
            [norm.scale for norm in norms],
            [norm.eps for norm in norms],
            [norm.rounded for norm in norms],
            *(size // attention.head_dim for size in attention.q_proj.weights.sizes[:2]),
            attention.scaling,
        )
        finalize(self, kernels.load().recap_release_layer, self._key).atexit = False

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """As transformers calls a decoder layer."""
        cache, mask = kwargs.get(self._cache_name), kwargs.get("attention_mask")
        angles = kwargs.get("position_embeddings")
        in_pass = isinstance(mask, Tensor) and by_key(mask)
        if in_pass and angles is not None and isinstance(cache, TreeCache):
            destination = cache.destination(self._index)
            if destination is not None:
                computed: Tensor = DECODE(hidden_states, *angles, mask, *destination, self._key)
                return computed
        theirs: Tensor = self.original(hidden_states, *args, **kwargs)
        return theirs


_KEYS = count()


@torch.inference_mode()
def fuse_layers(model: Any) -> None:
    """Replace the decoder layers of a model's language part that are not, and that can be.

    Operators must be loaded, linear layers handed over to them, and norms replaced.
    """
    if model.dtype in DTYPES:
        substitute(model, FusedLayer, lambda layer: _fused(layer, model))


def _fused(layer: Any, model: Any) -> FusedLayer | None:
    """The same layer as one operator, if it is one that this can compute."""
    if type(layer).__name__ not in KNOWN:
        return None
    try:
        return _tried(layer, model)
    except Exception:  # of another release of transformers, or somebody else's class
        return None


def _tried(layer: Any, model: Any) -> FusedLayer | None:
    norms = _norms(layer)
    gate = torch.linspace(-8, 8, 64)
    if norms is None or not _multiplied_together(layer):
        return None
    if not torch.allclose(layer.mlp.act_fn(gate), nn.functional.silu(gate), atol=1e-4):
        return None
    cache_name = cache_argument(model)
    fused = FusedLayer(layer, norms, cache_name)
    return fused if _computes_the_same(fused, model, cache_name) else None


def _norms(layer: Any) -> list[FusedNorm] | None:
    """Its norms in the operator's order; None where it is not the operator's business."""
    norms = [getattr(layer, name, None) for name in NORMS]
    of_heads = [getattr(layer.self_attn, name, None) for name in ("q_norm", "k_norm")]
    if any(norm is not None for norm in of_heads):
        norms += of_heads
    found = [norm for norm in norms if isinstance(norm, FusedNorm)]
    return found if len(found) == len(norms) else None


def _multiplied_together(layer: Any) -> bool:
    """Whether operators multiply by its weights, those on the same input in one product."""
    attention, mlp = layer.self_attn, layer.mlp
    groups = (
        (attention.q_proj, attention.k_proj, attention.v_proj),
        (attention.o_proj,),
        (mlp.gate_proj, mlp.up_proj),
        (mlp.down_proj,),
    )
    for first, *others in groups:
        weights = getattr(first, "weights", None)
        if weights is None or weights.key is None or len(weights.sizes) != 1 + len(others):
            return False
        if any(getattr(other, "weights", None) is not weights for other in others):
            return False
    return True


def _computes_the_same(fused: FusedLayer, model: Any, cache_name: str) -> bool:
    """Whether it does what it replaces, up to `CLOSE` roundings."""
    config, dtype = model.config.get_text_config(), model.dtype
    attention: Any = fused.original.self_attn
    behind, tokens, dim = TRIED_BEHIND, TRIED_TOKENS, attention.head_dim
    random = torch.Generator().manual_seed(0)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random)

    # Small numbers, as what a layer adds to large ones would be lost in their roundings.
    hidden = (0.1 * numbers(1, tokens, config.hidden_size)).to(dtype)
    angles = numbers(1, tokens, dim // 2).repeat(1, 1, 2)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    _, keys, _ = attention.k_proj.weights.sizes
    before = numbers(1, keys // dim, behind, dim).to(dtype)
    tree = DraftTree([0])
    for parent in range(tokens - 1):
        tree.add(0, parent // 2, 0, 1.0)
    masks = MasksByKey(config).of(tree, places(tree.parents, 1), behind, behind + tokens)

    def run(layer: nn.Module) -> list[Tensor]:
        cache = TreeCache(1, 0)
        cache.reserve(behind + tokens)
        cache.update(before, before, attention.layer_idx)
        cache.keep(range(behind))
        cache.slots = torch.arange(behind, behind + tokens)
        output = layer(
            hidden,
            attention_mask=masks if isinstance(masks, Tensor) else next(iter(masks.values())),
            position_ids=cache.slots[None],
            position_embeddings=(cos, sin),
            use_cache=True,
            **{cache_name: cache},
        )
        return [output - hidden, *cache.buffers]

    for found, expected in zip(run(fused), run(fused.original), strict=True):
        size = expected.float().abs() + expected.float().square().mean(-1, keepdim=True).sqrt()
        off = (found.float() - expected.float()).abs()
        if not bool((off <= CLOSE * torch.finfo(dtype).eps * size).all()):
            return False
    return True
