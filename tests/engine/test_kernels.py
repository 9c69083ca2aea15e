"""Operators in C++: attention by the textbook, with the same bits for a query in any company."""

import ctypes
import gc
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch._inductor.cpp_builder import CppBuilder
from torch._inductor.exc import CppCompileError, InvalidCxxCompiler
from torch.fx.experimental.proxy_tensor import make_fx

from engine import kernels
from engine.errors import UnbuildableOperators
from engine.packing import SAME_ROWS, PackedWeights
from tests.engine.test_packing import in_bfloat16

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # of inductor's

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def _built(compiler: None) -> None:
    """The operators, where there is a compiler."""
    kernels.load()


def states(
    heads: int, kv_heads: int, n: int, keys: int, dims: tuple[int, int], dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries as layers have them, and a cache's keys and values with room behind them."""
    random = torch.Generator().manual_seed(n + keys)
    query = torch.randn(1, n, heads, dims[0], generator=random).to(dtype).transpose(1, 2)
    key, value = (
        torch.randn(1, kv_heads, keys + 5, dim, generator=random).to(dtype) for dim in dims
    )
    return query, key, value


def hidden(heads: int, n: int, keys: int) -> Tensor:
    """[1, 1, heads * n, keys], additive; each node of a tree sees about half of the keys."""
    random = torch.Generator().manual_seed(keys)
    mask = torch.zeros(n, keys).masked_fill_(
        torch.rand(n, keys, generator=random) < 0.5, -torch.inf
    )
    mask[:, 0] = 0
    return mask.repeat(heads, 1)[None, None]


def by_key(mask: Tensor) -> Tensor:
    """[1, 1, rows, keys] -> [1, keys, 1, rows or more]."""
    padded = nn.functional.pad(mask, (0, 0, 0, -mask.shape[2] % kernels.ROWS_STEP))
    return padded.permute(0, 3, 1, 2).contiguous()


def attended(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, softcap: float | None = None
) -> Tensor:
    result: Tensor = torch.ops.recap.attend_by_key(query, key, value, by_key(mask), 0.3, softcap)
    return result


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "n", "keys", "dims"),
    [
        (4, 4, 1, 1, (8, 8)),
        (6, 2, 5, 40, (64, 64)),
        (7, 1, 9, 67, (20, 20)),
        (2, 1, 33, 130, (80, 48)),
        (2, 1, 3, 3000, (64, 64)),
    ],
)
def test_attention_is_the_textbook_s(
    dtype: torch.dtype,
    softcap: float | None,
    heads: int,
    kv_heads: int,
    n: int,
    keys: int,
    dims: tuple[int, int],
) -> None:
    query, key, value = states(heads, kv_heads, n, keys, dims, dtype)
    mask = hidden(heads // kv_heads, n, keys)
    output = attended(query, key, value, mask, softcap)
    repeated = [
        it[:, :, :keys].double().repeat_interleave(heads // kv_heads, 1) for it in (key, value)
    ]
    products = 0.3 * query.double() @ repeated[0].mT
    if softcap is not None:
        products = softcap * (products / softcap).tanh()
    weights = (products + mask[:, :, :n].double()).softmax(-1)
    expected = (weights @ repeated[1]).transpose(1, 2)
    assert output.dtype == dtype
    assert output.is_contiguous()
    tolerance = max(2 * torch.finfo(dtype).eps, 5e-6)
    torch.testing.assert_close(output.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_a_query_has_the_same_bits_alone_and_among_others(
    dtype: torch.dtype, softcap: float | None
) -> None:
    query, key, value = states(6, 2, 40, 200, (64, 64), dtype)
    together = attended(query, key, value, hidden(3, 40, 200), softcap)
    for n in (1, 2, 5, 6, 17):
        few = hidden(1, 40, 200)[:, :, :n].repeat(1, 1, 3, 1)
        assert torch.equal(attended(query[:, :, :n], key, value, few, softcap), together[:, :n])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_queries_whose_numbers_are_not_side_by_side_are_taken_too(dtype: torch.dtype) -> None:
    query, key, value = states(4, 2, 6, 30, (64, 64), dtype)
    scattered = query.transpose(2, 3).contiguous().transpose(2, 3)
    mask = hidden(2, 6, 30)
    expected = attended(query, key, value, mask)
    assert torch.equal(attended(scattered, key, value, mask), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("gap", [1, 7, 31, 64])
def test_a_query_has_the_same_bits_with_keys_that_it_does_not_see_between_and_behind(
    dtype: torch.dtype, gap: int
) -> None:
    query, key, value = states(2, 1, 4, 90, (64, 64), dtype)
    seen = torch.tensor([*range(60), *range(60 + gap, 90 + gap)])
    keys, values = (
        it.new_full((1, 1, 200, 64), 1000).index_copy_(2, seen, it[:, :, :90])
        for it in (key, value)
    )
    apart = torch.full((1, 1, 8, 200), -torch.inf).index_fill_(3, seen, 0)
    expected = attended(query, key, value, torch.zeros(1, 1, 8, 90))
    assert torch.equal(attended(query, keys, values, apart), expected)


@pytest.mark.parametrize(
    ("heads", "dims", "mask"),
    [
        (4, (8, 8), (1, 8, 1, 3)),  # fewer rows than a vector
        (4, (8, 8), (1, 14, 1, 16)),  # more keys than there are
        (4, (9, 8), (1, 8, 1, 16)),  # not the keys' dims
        (3, (8, 8), (1, 8, 1, 16)),  # not a multiple of the key-value heads
    ],
)
def test_what_does_not_fit_together_is_refused(
    heads: int, dims: tuple[int, int], mask: tuple[int, ...]
) -> None:
    _, key, value = states(4, 2, 3, 8, (8, 8), torch.float32)
    query, _, _ = states(heads, 1, 3, 8, dims, torch.float32)
    with pytest.raises(RuntimeError):
        torch.ops.recap.attend_by_key(query, key, value, torch.zeros(mask), 1.0, None)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64], ids=str)
def test_a_pass_writes_where_its_slots_say(dtype: torch.dtype) -> None:
    buffers = torch.zeros(2, 2, 1, 3, 9, 6, dtype=dtype)  # keys and values of two layers
    random = torch.Generator().manual_seed(0)
    # Heads behind nodes, as layers have them; and in no order that a copy could follow.
    keys = torch.randn(1, 4, 3, 6, generator=random).to(dtype).transpose(1, 2)
    values = torch.randn(1, 3, 6, 4, generator=random).to(dtype).transpose(2, 3)
    slots = torch.tensor([5, 0, 7, 8])
    torch.ops.recap.write(*buffers, 1, 0, slots, keys, values)
    for buffer, row, written in ((buffers[0], 1, keys), (buffers[1], 0, values)):
        assert torch.equal(buffer[row][:, :, slots], written)
        assert int(buffer.count_nonzero()) == written.numel()


@pytest.mark.parametrize(("row", "slots"), [(0, [-1]), (0, [9]), (1, [0]), (-1, [0]), (0, [0, 1])])
def test_a_place_that_is_not_there_is_refused(row: int, slots: list[int]) -> None:
    buffers, states = torch.zeros(2, 1, 1, 1, 9, 4), torch.zeros(2, 1, 1, 1, 4)
    with pytest.raises(RuntimeError):
        torch.ops.recap.write(*buffers, row, 0, torch.tensor(slots), *states)


@pytest.fixture
def layers() -> list[nn.Linear]:
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        pytest.skip("no oneDNN")
    random = torch.Generator().manual_seed(0)
    made = [nn.Linear(24, size) for size in (5, 9)]
    for layer in made:
        for weights in layer.parameters():
            weights.data = torch.randn(weights.shape, generator=random)
    return made


@torch.inference_mode()
def test_packed_layers_are_multiplied_by_their_key(layers: list[nn.Linear]) -> None:
    weights = PackedWeights(layers)
    rows = torch.randn(1, 3, 24, generator=torch.Generator().manual_seed(1))
    expected = weights.product(rows)
    weights.hand_over()
    product = torch.ops.recap.packed_linear(rows, weights.key, 14)
    assert torch.equal(product, expected)
    assert torch.equal(weights.product(rows), expected)
    key = weights.key
    weights.hand_over()
    assert weights.key == key


@pytest.fixture
def in_threads() -> Iterator[Callable[[int], None]]:
    """Sets how many threads PyTorch uses, for one test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def in_half(outputs: int, inputs: int, bias: bool = False) -> nn.Linear:
    """A layer in bfloat16 whose products are numbers around one."""
    random = torch.Generator().manual_seed(0)
    layer = nn.Linear(inputs, outputs, bias=bias).requires_grad_(False)
    layer.weight.copy_(torch.randn(outputs, inputs, generator=random) / inputs**0.5)
    return layer.bfloat16()


@in_bfloat16
@torch.inference_mode()
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("outputs", "inputs"),
    [
        (4, 7),
        (19, 33),
        (65, 576),  # one more than are completed together
        (126, 96),
        (127, 480),
        (255, 96),
        (960, 576),
        (83, 4000),  # inputs in several pieces, the last of them not full
        (67, 18944),
    ],
)
def test_a_layer_in_bfloat16_gives_each_row_the_same_bits_among_any_others(
    outputs: int, inputs: int, bias: bool, threads: int, in_threads: Callable[[int], None]
) -> None:
    in_threads(threads)
    layer = in_half(outputs, inputs, bias)
    weights = PackedWeights([layer])
    weights.hand_over()
    rows = torch.randn(70, inputs, generator=torch.Generator().manual_seed(1)).bfloat16()
    expected = nn.functional.linear(rows.double(), layer.weight.double())
    if bias:
        expected += layer.bias.double()
    for n in (1, 2, 9, 40, 64, 70):
        product = weights.product(rows[None, :n])
        assert product.shape == (1, n, outputs)
        assert product.dtype == torch.bfloat16
        torch.testing.assert_close(product[0].double(), expected[:n], rtol=0.01, atol=0.01)
    most = 64 if kernels.multiplies(torch.bfloat16, torch.bfloat16) else SAME_ROWS
    together = weights.product(rows[:most])
    for n in range(1, most):
        assert torch.equal(weights.product(rows[most - n : most]), together[most - n :])


@in_bfloat16
@torch.inference_mode()
@pytest.mark.parametrize(("outputs", "rows"), [(3, 5), (19, 0)])
def test_hardly_any_outputs_or_rows_are_multiplied_too(outputs: int, rows: int) -> None:
    layer = in_half(outputs, 64)
    weights = PackedWeights([layer])
    weights.hand_over()
    given = torch.randn(1, rows, 64).bfloat16()
    torch.testing.assert_close(weights.product(given), layer(given), rtol=0.01, atol=0.01)


@torch.inference_mode()
@pytest.mark.parametrize("narrow", kernels.HALVES, ids=str)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("outputs", "inputs"),
    [(3, 8), (4, 7), (19, 33), (65, 576), (127, 480), (83, 4000), (67, 18944)],
)
def test_floats_by_weights_in_half_precision_are_the_products_of_floats(
    outputs: int,
    inputs: int,
    bias: bool,
    threads: int,
    narrow: torch.dtype,
    in_threads: Callable[[int], None],
) -> None:
    in_threads(threads)
    layer = in_half(outputs, inputs, bias).to(narrow).float()
    weights = PackedWeights([layer], narrow)
    weights.hand_over()
    rows = torch.randn(130, inputs, generator=torch.Generator().manual_seed(1))
    expected = nn.functional.linear(rows.double(), layer.weight.double())
    if bias:
        expected += layer.bias.double()
    scale = float(expected.square().mean().sqrt())
    for n in (1, 2, 3, 7, 9, 40, 96, 97, 130):
        product = weights.product(rows[None, :n])
        assert product.shape == (1, n, outputs)
        assert product.dtype == torch.float32
        torch.testing.assert_close(product[0].double(), expected[:n], rtol=0, atol=1e-5 * scale)


@torch.inference_mode()
@pytest.mark.parametrize(("outputs", "inputs"), [(19, 33), (960, 576), (83, 4000)])
def test_such_a_product_has_the_same_bits_among_any_others(outputs: int, inputs: int) -> None:
    if not kernels.load().recap_widens():
        pytest.skip("not by these vectors")
    weights = PackedWeights([in_half(outputs, inputs)], torch.bfloat16)
    weights.hand_over()
    rows = torch.randn(64, inputs, generator=torch.Generator().manual_seed(1))
    together = weights.product(rows)
    for n in range(1, 64):
        assert torch.equal(weights.product(rows[64 - n :]), together[64 - n :])


@in_bfloat16
@torch.inference_mode()
@pytest.mark.parametrize("amx", [False, True])
def test_weights_are_taken_as_they_are_where_that_is_faster(
    amx: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not kernels.load().recap_multiplies():
        pytest.skip("not by these vectors")
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    layers = [in_half(32, 96), in_half(48, 96)]
    weights = PackedWeights(layers)
    weights.lend(layers)
    weights.hand_over()
    rows = torch.randn(5, 96).bfloat16()
    assert weights.product(rows).count_nonzero() == 5 * 80
    for layer in layers:
        layer.weight.zero_()
    assert weights.product(rows).count_nonzero() == (5 * 80 if amx else 0)


@torch.inference_mode()
def test_packed_layers_that_nobody_has_any_more_are_let_go_whatever_is_traced(
    layers: list[nn.Linear],
) -> None:
    weights = PackedWeights(layers)
    weights.hand_over()
    key = weights.key

    def let_go(rows: Tensor) -> Tensor:
        nonlocal weights
        del weights
        gc.collect()
        return rows + 1

    traced = make_fx(let_go)(torch.zeros(1))
    assert "release" not in traced.code
    with pytest.raises((RuntimeError, IndexError)):
        torch.ops.recap.packed_linear(torch.zeros(1, 3, 24), key, 14)


LONG = """C++ compile error

Command:
g++ main.cpp

Output:
main.cpp:1:10: fatal error: Python.h: No such file or directory"""


@pytest.mark.usefixtures("nothing_built")
@pytest.mark.parametrize(
    ("step", "failure", "reason"),
    [
        ("__init__", InvalidCxxCompiler("no-such-compiler"), "no-such-compiler is not found"),
        (
            "build",
            CppCompileError(["g++", "main.cpp"], LONG),
            "Python.h: No such file or directory",
        ),
    ],
)
def test_operators_that_cannot_be_built_are_told_of_with_the_reason_and_not_promised_again(
    monkeypatch: pytest.MonkeyPatch, step: str, failure: Exception, reason: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise failure

    assert kernels.promising()
    monkeypatch.setattr(CppBuilder, step, fail)
    with pytest.raises(UnbuildableOperators, match=re.escape(reason)):
        kernels.load.__wrapped__()
    assert reason in kernels.refusal_file().read_text()
    assert not kernels.promising()


def test_where_nothing_can_be_kept_nothing_is_promised_and_building_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert not kernels.promising()
    with pytest.raises(UnbuildableOperators, match=r"Not a directory|File exists"):
        kernels.load.__wrapped__()


SOUND, DAMAGED = b"sound", b"cut short"


@pytest.fixture
def building(monkeypatch: pytest.MonkeyPatch, nothing_built: None) -> list[bytes]:
    """What building makes, one after the other; nothing is compiled, nor loaded twice."""
    made: list[bytes] = []

    def build(builder: CppBuilder) -> None:
        Path(builder.get_target_file_path()).write_bytes(made.pop(0))

    def load(file: str) -> SimpleNamespace:
        if not Path(file).exists() or Path(file).read_bytes() != SOUND:
            raise OSError("cannot be loaded")
        functions = ("recap_release", "recap_release_layer", "recap_multiplies", "recap_widens")
        return SimpleNamespace(**{name: SimpleNamespace() for name in functions})

    monkeypatch.setattr(CppBuilder, "build", build)
    monkeypatch.setattr(ctypes, "CDLL", load)
    return made


@pytest.mark.parametrize("before", [None, DAMAGED], ids=["none", "damaged"])
def test_a_library_is_built_where_there_is_no_sound_one_and_then_kept(
    building: list[bytes], before: bytes | None
) -> None:
    building += [SOUND, b"built again"]
    file = kernels.library_file()
    file.parent.mkdir(parents=True)
    kernels.refusal_file().touch()
    if before is not None:
        file.write_bytes(before)
    for _ in range(2):
        kernels.load.__wrapped__()
    assert building == [b"built again"]
    assert file.read_bytes() == SOUND
    left = {it.suffix for it in file.parent.iterdir()}
    assert left <= {".so", ".lock"}


def test_what_was_built_and_cannot_be_loaded_is_not_kept(building: list[bytes]) -> None:
    building.append(DAMAGED)
    with pytest.raises(UnbuildableOperators, match="cannot be loaded"):
        kernels.load.__wrapped__()
    assert not kernels.library_file().exists()
    assert not kernels.promising()


@pytest.mark.usefixtures("nothing_built")
def test_another_compiler_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    kernels.refusal_file().parent.mkdir(parents=True)
    kernels.refusal_file().write_text(f"{kernels.compiler()}\nso")
    assert not kernels.promising()
    monkeypatch.setenv("CXX", shutil.which(kernels.compiler()) or "")
    assert kernels.promising()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere clang's threads are PyTorch's")
@pytest.mark.usefixtures("compiler")
def test_clang_whose_threads_are_not_pytorch_s_is_refused() -> None:
    command = [kernels.compiler(), "-E", "-fopenmp", "-D__clang__", str(kernels.SOURCE)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "error: #error" in ran.stderr
    assert "need GCC" in ran.stderr


def test_another_pytorch_or_cpu_gets_another_library(monkeypatch: pytest.MonkeyPatch) -> None:
    files = [kernels.library_file()]
    for owner, name, value in (
        (torch, "__version__", "9.9"),
        (kernels, "cpu_name", lambda: "another"),
        (kernels, "cpu_features", lambda: "fewer"),
        (torch.backends.cpu, "get_cpu_capability", lambda: "ANOTHER"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, value)
            files.append(kernels.library_file())
    assert len(set(files)) == 5


def test_what_else_lies_beside_the_sources_does_not_count(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "cpp"
    shutil.copytree(kernels.SOURCE.parent, folder)
    file = kernels.library_file()
    monkeypatch.setattr(kernels, "SOURCE", folder / kernels.SOURCE.name)
    (folder / ".DS_Store").write_bytes(b"\xff")
    assert kernels.library_file() == file
    (folder / "more.h").touch()
    assert kernels.library_file() != file


def test_a_library_that_is_there_needs_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert kernels.promising()


@pytest.mark.usefixtures("nothing_built")
def test_without_a_compiler_nothing_is_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert not kernels.promising()


def test_vectors_are_those_that_pytorch_computes_with(monkeypatch: pytest.MonkeyPatch) -> None:
    names = []
    for capability in ("AVX2", "AVX512"):
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda it=capability: it)
        names.append(str(kernels._vectors()))
    assert names == ["avx2", "avx512"]


def test_models_in_other_numbers_or_places_are_not_served() -> None:
    model = SimpleNamespace(dtype=torch.float32, parameters=nn.Linear(2, 2).parameters)
    assert kernels.serve(model)
    elsewhere = nn.Linear(2, 2, device="meta")
    for change in (
        {"dtype": torch.float64},
        {"parameters": elsewhere.parameters},
        {"parameters": nn.ModuleList([elsewhere, nn.Linear(2, 2)]).parameters},
    ):
        assert not kernels.serve(SimpleNamespace(**(vars(model) | change)))


def test_what_the_top_k_of_many_leave_is_estimated_closely() -> None:
    random = torch.Generator().manual_seed(0)
    rows = torch.randn(4, 50_000, generator=random) * torch.tensor([[1.0], [2], [4], [8]])
    ids, probs = torch.ops.recap.top(rows, 8)
    expected = rows.softmax(-1).topk(8)
    assert torch.equal(ids, expected.indices)
    torch.testing.assert_close(probs, expected.values, rtol=0.05, atol=0)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("at", [0, 49_999])
def test_after_an_overflow_no_probability_is_known(bad: float, at: int) -> None:
    rows = torch.zeros(2, 50_000)
    rows[0, at] = bad
    ids, probs = torch.ops.recap.top(rows, 8)
    assert not probs[0].any()
    assert ids.min() >= 0
    assert ids.max() < 50_000
    torch.testing.assert_close(probs[1], torch.full((8,), 1 / 50_000))


@in_bfloat16
@torch.inference_mode()
def test_a_lone_row_has_the_bits_that_it_has_among_others() -> None:
    random = torch.Generator().manual_seed(0)
    layer = nn.Linear(576, 1536, bias=False).bfloat16()
    layer.weight.data = torch.randn(1536, 576, generator=random).bfloat16()
    weights = PackedWeights([layer])
    weights.hand_over()
    rows = torch.randn(1, 40, 576, generator=random).bfloat16()
    for few in (rows, rows[0]):
        together = weights.product(few[..., :8, :])
        for i in range(8):
            alone = weights.product(few[..., i : i + 1, :])
            assert torch.equal(alone, together[..., i : i + 1, :])
