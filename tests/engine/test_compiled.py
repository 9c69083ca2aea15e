"""Compiled passes compute what others compute, and are compiled once for all lengths and trees."""

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from platformdirs import user_cache_path
from torch import Tensor
from torch._inductor.runtime.cache_dir_utils import default_cache_dir
from torch.profiler import ProfilerActivity, profile
from transformers import LlamaConfig

from engine import compiled, kernels
from engine.attention import NAME as TREE_ATTENTION
from engine.compiled import CapturedForward, require_compiler
from engine.errors import UnbuildableOperators, UncompilableModel, UsageError
from engine.events import Committed, Encoded, Finished, Notice
from engine.families import FAMILIES
from engine.kv_cache import TreeCache
from engine.loading import load_model
from engine.packing import PackedWeights, pack
from engine.prompts import EncodedPrompt
from engine.session import Request, Session, SessionOptions
from engine.target import Target
from engine.tree import DraftTree
from tests.engine.test_packing import check_bits, in_bfloat16
from tests.engine.test_target import tree_of
from tests.models import FLAGSHIPS, random_model, text_sizes
from tests.zoo import Zoo, conversations

CPU = torch.device("cpu")


@pytest.fixture
def inductor(compiler: None) -> Iterator[None]:
    """Compiling with all that belongs to it, where there is a compiler."""
    yield
    torch._dynamo.reset()


@pytest.fixture
def traced_only(inductor: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling as always, but for the slow part: the traced graph runs as it is."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))


def check_equal(target: Target, reference: Target, prompt: EncodedPrompt, vocab: int) -> None:
    """Passes over trees of several sizes behind a growing text; nothing is compiled for them."""
    for each in (target, reference):
        each.prefill(prompt, room=0)
    with torch.compiler.set_stance("fail_on_recompile"):
        for path in ([0, 2, 4], [0], [0, 1], [0, 2, 4, 6, 7, 8]):
            for tree in (DraftTree([7]), tree_of(10, vocab)):
                expected = reference.verify(tree)
                torch.testing.assert_close(target.verify(tree), expected, rtol=0, atol=2e-4)
            for each in (target, reference):
                each.keep(path)


@pytest.mark.usefixtures("traced_only")
@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_is_compiled_in_one_piece_for_every_length(zoo: Zoo, family: str) -> None:
    loaded = zoo.loaded(family, torch.float32, None)
    vocab = loaded.model.config.get_text_config().vocab_size
    target, reference = (Target(loaded.model, loaded.family) for _ in range(2))
    target.compile()
    for messages in conversations(loaded.family.vision)[1:4]:
        check_equal(target, reference, loaded.encoder.encode(messages), vocab)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # of inductor's own imports
@pytest.mark.usefixtures("inductor")
def test_inductor_s_code_computes_the_same(zoo: Zoo) -> None:
    loaded = zoo.loaded("llama", torch.float32, None)
    vocab = loaded.model.config.get_text_config().vocab_size
    target, reference = (Target(loaded.model, loaded.family) for _ in range(2))
    target.compile()
    for messages in conversations(vision=False)[:2]:
        check_equal(target, reference, loaded.encoder.encode(messages), vocab)


@in_bfloat16
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # of inductor's own imports
@pytest.mark.usefixtures("inductor")
def test_packed_layers_on_one_input_are_one_product_in_inductor_s_code(zoo: Zoo) -> None:
    # Its layers are none that operators compute as a whole.
    loaded = load_model(str(zoo.folder_of("gemma", None)), "cpu", "bfloat16")
    target, reference = (Target(loaded.model, loaded.family) for _ in range(2))
    target.compile()
    layers = loaded.model.config.num_hidden_layers
    for messages in conversations(vision=False)[:2]:
        prompt, tree = loaded.encoder.encode(messages), tree_of(10, 90)
        for each in (target, reference):
            each.prefill(prompt, room=16)
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiled:
            together = target.verify(tree)
        calls = [it for it in profiled.events() or () if it.name == "recap::packed_linear"]
        assert [call.input_shapes[0][-2] for call in calls] == [len(tree)] * (4 * layers + 1)
        scale = float(together.abs().max())
        torch.testing.assert_close(together, reference.verify(tree), rtol=0, atol=0.05 * scale)
        assert torch.equal(target.verify(DraftTree([10]))[0], together[0])


@in_bfloat16
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # of inductor's own imports
@pytest.mark.usefixtures("inductor")
@pytest.mark.parametrize("family", ["gemma2", "qwen2_5_vl"])
def test_compiled_nodes_have_the_bits_that_they_would_have_without_other_branches(
    zoo: Zoo, family: str
) -> None:
    loaded = load_model(str(zoo.folder_of(family, None)), "cpu", "bfloat16")
    target = Target(loaded.model, loaded.family)
    target.compile()
    check_bits(target, loaded)


@in_bfloat16
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # of inductor's own imports
@pytest.mark.usefixtures("inductor")
def test_models_of_the_same_shapes_are_not_taken_for_each_other() -> None:
    pairs = [
        [Target(model, FAMILIES["llama"]) for _ in range(2)] for model in map(packed_llama, (1, 2))
    ]
    for target, _ in pairs:
        target.compile()
    for target, reference in pairs:
        for each in (target, reference):
            each.prefill(EncodedPrompt(torch.tensor([[1, 2, 3]]), {}, 0, ""), room=16)
        expected = reference.verify(tree_of(10, 90))
        scale = float(expected.abs().max())
        torch.testing.assert_close(
            target.verify(tree_of(10, 90)), expected, rtol=0, atol=0.05 * scale
        )


@in_bfloat16
@pytest.mark.usefixtures("traced_only")
def test_compiled_passes_multiply_by_weights_as_they_are_where_others_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernels.load()
    if not kernels.multiplies(torch.bfloat16, torch.bfloat16):
        pytest.skip("oneDNN multiplies here")
    target = Target(packed_llama(0), FAMILIES["llama"])
    monkeypatch.setattr(PackedWeights, "lay_out", lambda _: pytest.fail("laid out for oneDNN"))
    target.compile()
    assert target.form == "compiled"


def packed_llama(seed: int) -> Any:
    model = random_model(LlamaConfig(**text_sizes(96)), [], seed=seed).bfloat16()
    model.set_attn_implementation(TREE_ATTENTION)
    pack(model)
    return model


def stretched_llama() -> Any:
    """Its rotary frequencies depend on the length of the text, which a compiler cannot follow."""
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    model = random_model(LlamaConfig(**text_sizes(96), rope_parameters=rope), [], seed=1)
    model.set_attn_implementation(TREE_ATTENTION)
    return model


@pytest.mark.parametrize("chosen", [False, True])
def test_what_was_compiled_outlives_a_restart_unless_the_user_says_where_it_goes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, chosen: bool
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = (
        tmp_path / "theirs" if chosen else user_cache_path("recap", appauthor=False) / "inductor"
    )
    # Importing torch's inductor sets the variable, too.
    monkeypatch.setenv(compiled.CACHE_DIR, str(folder) if chosen else default_cache_dir())
    monkeypatch.setattr(compiled, "give_to_operators", lambda _: None)
    model = SimpleNamespace(device=CPU, dtype=torch.float32)
    compiled.compiled(lambda ids, *_: ids, model)
    assert os.environ[compiled.CACHE_DIR] == str(folder)


@pytest.mark.usefixtures("traced_only")
def test_a_model_that_cannot_be_compiled_stays_as_it_was() -> None:
    target = Target(stretched_llama(), FAMILIES["llama"])
    with pytest.raises(UncompilableModel, match="cannot be compiled"):
        target.compile()
    target.prefill(EncodedPrompt(torch.tensor([[1, 2, 3]]), {}, 0, ""), room=4)
    assert target.verify(DraftTree([4])).shape == (1, 96)


@pytest.mark.usefixtures("traced_only")
def test_a_session_says_what_it_compiles_before_its_first_request(zoo: Zoo) -> None:
    loaded = zoo.loaded(FLAGSHIPS[0], torch.float32, None)
    session = Session(loaded, SessionOptions(memory=False, compile=True))
    request = Request(conversations(vision=False)[0], max_tokens=3)
    first, second = (list(session.generate(request)) for _ in range(2))
    assert [type(event) for event in first[:3]] == [Notice, Notice, Encoded]
    assert isinstance(first[0], Notice)
    assert "compiling" in first[0].message
    assert {type(event) for event in second} == {Encoded, Committed, Finished}


@pytest.mark.usefixtures("inductor")
def test_other_numbers_than_kernels_take_are_not_compiled(zoo: Zoo) -> None:
    loaded = zoo.loaded("llama", torch.float64, None)
    with pytest.raises(UncompilableModel, match=r"\(in torch\.float64\)"):
        Target(loaded.model, loaded.family).compile()


def test_a_model_for_a_gpu_is_compiled_without_the_operators_in_c() -> None:
    code = (
        "import torch\n"
        "from engine import kernels, packing\n"
        "packing.SharedProducts()(torch.fx.Graph())\n"
        "assert kernels.load.cache_info().currsize == 0\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.usefixtures("compiler")
def test_a_model_is_not_compiled_without_operators(
    zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise UnbuildableOperators("operators in C++ cannot be built (so)")

    monkeypatch.setattr(kernels, "load", fail)
    loaded = zoo.loaded(FLAGSHIPS[0], torch.float32, None)
    with pytest.raises(UncompilableModel, match=r"cannot be compiled \(operators .* \(so\)\)"):
        Target(loaded.model, loaded.family).compile()


@pytest.mark.usefixtures("uncompilable")
def test_a_session_answers_without_what_cannot_be_compiled(zoo: Zoo) -> None:
    loaded = zoo.loaded(FLAGSHIPS[0], torch.float32, None)
    session = Session(loaded, SessionOptions(memory=False, compile=True))
    events = list(session.generate(Request(conversations(vision=False)[0], max_tokens=3)))
    assert events[1] == Notice("this model cannot be compiled (so); it answers as it is")
    assert isinstance(events[-1], Finished)


def test_what_was_interrupted_is_compiled_before_the_next_request(
    zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[Target] = []

    def compile_(target: Target) -> None:
        compiled.append(target)
        if len(compiled) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(Target, "compile", compile_)
    loaded = zoo.loaded(FLAGSHIPS[0], torch.float32, None)
    session = Session(loaded, SessionOptions(memory=False, compile=True))
    request = Request(conversations(vision=False)[0], max_tokens=3)
    with pytest.raises(KeyboardInterrupt):
        list(session.generate(request))
    for _ in range(2):
        assert isinstance(list(session.generate(request))[-1], Finished)
    assert len(compiled) == 2


def test_a_session_that_is_to_compile_asks_for_a_compiler(
    zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(UsageError, match="no-such-compiler"):
        Session(zoo.loaded(FLAGSHIPS[0], torch.float32, None), SessionOptions(compile=True))


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(UsageError, match="no-such-compiler"):
        require_compiler(CPU)


def test_triton_is_needed_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(UsageError, match="triton"):
        require_compiler(torch.device("cuda"))


def test_other_devices_are_refused() -> None:
    with pytest.raises(UsageError, match="not mps"):
        require_compiler(torch.device("mps"))


def test_compiling_and_spreading_over_devices_exclude_each_other() -> None:
    with pytest.raises(UsageError, match="--device-map"):
        SessionOptions(device_map="auto", compile=True)


def test_a_graph_is_captured_once_a_shape_and_again_when_its_buffers_moved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    captured: list[tuple[int, int]] = []

    def capture(_: CapturedForward, ids: Tensor, __: Tensor, mask: Tensor, ___: TreeCache) -> Any:
        captured.append((ids.shape[1], mask.shape[3]))
        return SimpleNamespace(replay=lambda: None), (torch.tensor(len(captured)), ids)

    monkeypatch.setattr(CapturedForward, "_capture", capture)
    monkeypatch.setattr("torch.cuda.graph_pool_handle", object)
    forward = CapturedForward(lambda *_: (torch.empty(0), torch.empty(0)))
    ids, mask, cache = torch.zeros(1, 64), torch.zeros(1, 1, 64, 1024), TreeCache(1, 0)

    def run(n: int, keys: int) -> int:
        cache.slots = ids[0, :n]
        logits, _ = forward(ids[:, :n], ids[:, :n], mask[:, :, :n, :keys], cache)
        return int(logits)

    assert [run(1, 512), run(8, 512), run(1, 512), run(1, 1024), run(8, 512)] == [1, 2, 1, 3, 2]
    cache.buffers.append(torch.zeros(1))
    assert [run(1, 512), run(1, 512)] == [4, 4]
    cache.buffers[0] = cache.buffers[0].as_strided((1,), (2,))
    assert [run(1, 512), run(1, 512)] == [5, 5], "the same address, but other strides"
    assert captured == [(1, 512), (8, 512), (1, 1024), (1, 512), (1, 512)]


def test_shapes_are_few_where_graphs_are_captured() -> None:
    assert compiled.pass_shapes(torch.device("cuda")) is compiled.CAPTURED
    assert [compiled.pass_shapes(CPU).padded(n) for n in (1, 2, 9)] == [2, 2, 9]
