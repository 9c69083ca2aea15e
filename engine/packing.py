"""Linear layers of a model on a CPU, multiplied by what is fastest for the few rows of a pass.

A library lays a weight matrix out anew in every call that gets it as PyTorch keeps it, and that
takes longer than the product itself: laid out once by oneDNN, SmolLM2-135M's products in bfloat16
take about half the time (two cores with AMX, 1 to 16 rows), and in float32, which else is MKL's, a
third to a quarter (two cores of Zen 5). In float32 that depends on the CPU, and is tried.

In bfloat16, on CPUs that have instructions for it but no AMX, the operator of `engine.kernels`
multiplies by weights as they are, in two thirds of oneDNN's time (Zen 5, 16 rows).

In float32, weights that a checkpoint holds in half precision stay in it (`engine.narrowing`), and
the operator widens them as it reads them: the same products out of half the memory, in a third to
two thirds of oneDNN's time (Zen 3, two cores, 1 to 16 rows).

In bfloat16 products also come out the same, bit by bit, in a pass over one token and in one over up
to `SAME_ROWS`: without that, answers depend on the tree. On some CPUs oneDNN sums a row that is
alone in another way than rows together; it gets company there.
"""

import platform
from collections.abc import Callable, Sequence
from itertools import count
from time import perf_counter
from typing import Any
from weakref import finalize

import torch
from torch import Tensor, nn
from torch._inductor.custom_graph_pass import CustomGraphPass

from engine import kernels

SAME_ROWS = 32
"""Rows up to which a row's product does not depend on how many others there are (measured with
oneDNN 3.7 and 3.11); the layout is made for half as many, the usual size of a pass."""
ALIGNED = 64
"""Bytes of a line of a cache: products of vectors that lie across two take up to a sixth longer."""
COMPARED = 1 << 15
"""Numbers of a product that are compared to find out whether lone rows are summed in another way:
where they are, one in about 5,000 comes out different (oneDNN 3.11, Zen 5)."""
TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Names of layers that get the same input, as transformers' models have them."""


TRIED_BYTES, TRIED_LEAST = 1 << 26, 1 << 22
"""How much of a float32 model's weights the trial takes: more than caches hold; and below how much
it is not worth one."""
TRIED_ROWS, TRIED_ROUNDS = (1, 8), 5


def worth_packing(model: Any) -> bool:
    """Whether this model is on an x86 CPU, and packed it is faster there.

    So it is in bfloat16 if the CPU multiplies that in hardware, in float32 unless it is tiny.
    """
    weights = model.get_input_embeddings().weight
    if (
        weights.device.type != "cpu" or not on_x86() or not torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    ):
        return False
    if weights.dtype == torch.float32:
        return sum(layer.weight.nbytes for layer in _first_linears(model)) >= TRIED_LEAST
    return weights.dtype == torch.bfloat16 and fast_bfloat16()


@torch.inference_mode()
def worth_laying_out(model: Any) -> bool:
    """Whether products of few rows by this model's first weights are faster in oneDNN's layout.

    In bfloat16, where it is worth packing, they are.
    """
    if model.dtype == torch.bfloat16:
        return True
    layers = _first_linears(model)
    packed = [PackedWeights([layer]).product for layer in layers]
    for rows in TRIED_ROWS:
        inputs = [torch.ones(rows, layer.in_features) for layer in layers]
        rounds = [(_seconds(layers, inputs), _seconds(packed, inputs)) for _ in range(TRIED_ROUNDS)]
        as_they_are, better = map(min, zip(*rounds, strict=True))
        if better > as_they_are:
            return False
    return True


def _first_linears(model: Any) -> list[nn.Linear]:
    """Linear layers of the language part, as many as a trial takes."""
    layers: list[nn.Linear] = []
    size = 0
    for layer in model.get_decoder().modules():
        if type(layer) is nn.Linear and size < TRIED_BYTES:
            layers.append(layer)
            size += layer.weight.nbytes
    return layers


def _seconds(products: Sequence[Callable[[Tensor], Tensor]], inputs: Sequence[Tensor]) -> float:
    started = perf_counter()
    for product, rows in zip(products, inputs, strict=True):
        product(rows)
    return perf_counter() - started


def on_x86() -> bool:
    """Whether the CPU is of the kind that all of this was measured on."""
    return platform.machine() in ("x86_64", "AMD64")


def fast_bfloat16() -> bool:
    """Whether the CPU multiplies bfloat16 matrices in hardware (AVX512-BF16 or AMX)."""
    checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, check, bool)() for check in checks)


def keeps_bits(model: Any) -> bool:
    """Whether products are in half precision, and a row's do not depend on the others."""
    return model.dtype == torch.bfloat16 and isinstance(model.get_output_embeddings(), PackedLinear)


def pack(
    model: Any,
    *,
    spare: bool = False,
    narrow: torch.dtype | None = None,
    lay_out: bool = True,
) -> None:
    """Replace the linear layers of a model's language part and output head.

    Layers that read the same, as `TOGETHER` names them, become one product. In oneDNN's layout, and
    narrowed, the weights of a head that is tied to embeddings take memory once more; with `spare`,
    which `engine.operators.unpacked` needs, all do.

    Args:
        narrow: half precision that a float32 model's weights are kept in, and lose nothing by it.
        lay_out: whether oneDNN may have them in its layout.
    """
    names = {id(module): name for name, module in model.named_modules()}

    def replace(layers: Sequence[nn.Linear]) -> None:
        if layers:
            weights = PackedWeights(layers, narrow, lay_out=lay_out)
            weights.lend(layers)
            for i, layer in enumerate(layers):
                packed = PackedLinear(layer, weights, i, spare=spare)
                model.set_submodule(names[id(layer)], packed)

    decoder, head = model.get_decoder(), model.get_output_embeddings()
    for block in decoder.modules():
        children = {name: it for name, it in block.named_children() if type(it) is nn.Linear}
        groups = [[children[name] for name in group if name in children] for group in TOGETHER]
        grouped = {id(layer) for group in groups for layer in group}
        groups += [[layer] for layer in children.values() if id(layer) not in grouped]
        for group in groups:
            replace(group)
    if type(head) is nn.Linear:
        tied = head.weight is model.get_input_embeddings().weight
        replace([head])
        model.get_output_embeddings().parameters_packed *= not tied


def parameter_count(model: Any) -> int:
    """How many numbers the model's weights are, whether they are packed or not."""
    count: int = model.num_parameters()
    return count + sum(layer.parameters_packed for layer in _packed(model))


def hand_over(model: Any) -> None:
    """Let packed layers be multiplied by the operators of `engine.kernels`, which are loaded."""
    for layer in _packed(model):
        layer.weights.hand_over()


def lay_out(model: Any) -> None:
    """Let packed layers take oneDNN's layout before their first products do."""
    for layer in _packed(model):
        layer.weights.lay_out()


class PackedWeights:
    """The weights of some linear layers on the same input, in one matrix.

    Attributes:
        narrow: half precision that they are in, to multiply floats by; None: they are as the
            layers have them.
        key: by which `recap::packed_linear` knows them; None where they were not handed over.
    """

    def __init__(
        self,
        layers: Sequence[nn.Linear],
        narrow: torch.dtype | None = None,
        *,
        lay_out: bool = True,
    ) -> None:
        """`layers`: all with a bias or all without; `narrow`: as the attribute; `lay_out`: whether
        oneDNN may have the weights in its layout."""
        self.sizes = [layer.out_features for layer in layers]
        self._features = sum(self.sizes)
        biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
        assert len(biases) in (0, len(layers))
        self._bias = torch.cat(biases) if biases else None
        weights = [layer.weight.detach() for layer in layers]
        if narrow:
            weights = [weight.to(narrow) for weight in weights]
        self.narrow = narrow
        self._rows_dtype = torch.float32 if narrow else weights[0].dtype
        # Out of a file they come at any address.
        apart = len(weights) > 1 or weights[0].data_ptr() % ALIGNED
        self._whole = torch.cat(weights) if apart else weights[0]
        self._to_lay_out = lay_out
        self._lonely = False
        self._rows: Tensor | None = None
        self._parts: dict[int, Tensor] = {}
        self.key: int | None = None

    def lend(self, layers: Sequence[nn.Linear]) -> None:
        """Let the layers that these weights are of have views of the matrix, instead of their own,
        unless theirs are wider.

        Embeddings that are tied to one have it, too.
        """
        for layer, part in zip(layers, torch.split(self._whole, self.sizes), strict=True):
            if layer.weight.dtype == part.dtype:
                layer.weight.data = part

    def product(self, rows: Tensor) -> Tensor:
        """[..., all features] of [..., in features]."""
        if self.key is not None:
            product: Tensor = _PRODUCT(rows, self.key, self._features)
            return product
        self.lay_out()
        if self._lonely and rows.numel() == rows.shape[-1]:
            return self._product(torch.cat([rows, rows], -2))[..., :1, :]
        return self._product(rows)

    def lay_out(self) -> None:
        """Take oneDNN's layout, unless this was done or something else has the weights.

        What is narrow becomes wide, and is as PyTorch keeps it: no trial told what is faster.
        """
        if self.key is not None:
            return
        if self._whole.dtype != self._rows_dtype:
            self._whole = self._whole.to(self._rows_dtype)
            self._to_lay_out = False
        if not self._to_lay_out:
            return
        self._to_lay_out = False
        features = self._whole.shape[1]
        self._whole = torch.ops.mkldnn._reorder_linear_weight(self._whole, SAME_ROWS // 2)
        self._lonely = self._rows_dtype == torch.bfloat16 and self._differs_alone(features)

    def _product(self, rows: Tensor) -> Tensor:
        if not self._whole.is_mkldnn:
            return nn.functional.linear(rows, self._whole, self._bias)
        product: Tensor = torch.ops.mkldnn._linear_pointwise(
            rows, self._whole, self._bias, "none", [], ""
        )
        return product

    def _differs_alone(self, features: int) -> bool:
        """Whether some row's product depends on its being alone."""
        shape = (self._features, features, torch.get_num_threads())
        if shape not in _LONELY:
            random = torch.Generator().manual_seed(0)
            pairs = -(-COMPARED // (2 * shape[0]))
            rows = torch.randn(pairs, 2, features, generator=random).bfloat16()
            _LONELY[shape] = any(
                not torch.equal(
                    self._product(pair), torch.cat(list(map(self._product, pair[:, None])))
                )
                for pair in rows
            )
        return _LONELY[shape]

    def hand_over(self) -> None:
        """Let `recap::packed_linear` have the weights as long as these live."""
        if self.key is None:
            if not kernels.multiplies(self._rows_dtype, self._whole.dtype):
                self.lay_out()
            self.key = next(_KEYS)
            torch.ops.recap.hold(self.key, self._whole, self._bias, self._lonely)
            finalize(self, kernels.load().recap_release, self.key).atexit = False

    def part(self, i: int, rows: Tensor) -> Tensor:
        """What layer i makes of these rows; computed when the first of the layers asks."""
        if len(self.sizes) == 1:
            return self.product(rows)
        if rows is not self._rows or i not in self._parts:
            self._rows = rows
            self._parts = dict(enumerate(self.product(rows).split_with_sizes(self.sizes, -1)))
        part = self._parts.pop(i)
        if not self._parts:
            self._rows = None
        return part


class PackedLinear(nn.Module):
    """A linear layer, [..., in features] to [..., out features].

    Attributes:
        weights: its own and those of the layers on the same input.
        parameters_packed: how many of the model's parameters are in here and nowhere else.
    """

    def __init__(self, layer: nn.Linear, weights: PackedWeights, i: int, *, spare: bool) -> None:
        """`i`: the layer's place among those of `weights`; `spare`: keep it, as `original`."""
        super().__init__()
        self.weights, self._i = weights, i
        self._spare = (layer,) if spare else None  # in a tuple it is no submodule
        self.parameters_packed = sum(weight.numel() for weight in layer.parameters())

    @property
    def original(self) -> nn.Linear:
        """What this was made of."""
        assert self._spare, "packed without a spare"
        return self._spare[0]

    def forward(self, rows: Tensor) -> Tensor:
        """The product, plus bias."""
        weights = self.weights
        if not torch.compiler.is_compiling():
            return weights.part(self._i, rows)
        # `SharedProducts` leaves one of these calls to the layers of a group.
        product = weights.product(rows)
        return product.split_with_sizes(weights.sizes, -1)[self._i]


def _packed(model: Any) -> list["PackedLinear"]:
    return [module for module in model.modules() if isinstance(module, PackedLinear)]


class SharedProducts(CustomGraphPass):
    """Makes one call of equal calls for a product; a step of inductor."""

    def __call__(self, graph: torch.fx.Graph) -> None:
        """Of equal calls all but the first go."""
        first: dict[tuple[Any, ...], torch.fx.Node] = {}
        for node in graph.find_nodes(
            op="call_function", target=torch.ops.recap.packed_linear.default
        ):
            same = first.setdefault(node.args, node)
            if same is not node:
                node.replace_all_uses_with(same)
                graph.erase_node(node)

    def uuid(self) -> str:
        """Part of the name under which inductor keeps what it made."""
        return f"{__name__}.SharedProducts 1"


_LONELY: dict[tuple[int, int, int], bool] = {}
"""By shape of the weights and number of threads, whether lone rows need company."""
_KEYS = count()

# An operator of its own (in C++): a compiler cannot see a packed weight as a tensor.
_LIBRARY: Any = torch.library.Library("recap", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define("packed_linear(Tensor rows, int key, int out_features) -> Tensor")
torch.library.register_fake(
    "recap::packed_linear",
    lambda rows, _, out_features: rows.new_empty((*rows.shape[:-1], out_features)),
    lib=_LIBRARY,
)
_PRODUCT = torch.ops.recap.packed_linear.default
