"""Weights that stay in half precision while a model computes in float32."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

from engine import kernels
from engine.families import FAMILIES
from engine.loading import LoadedModel, load_model
from engine.narrowing import holds, narrow_dtype
from engine.operators import unpacked
from engine.packing import PackedLinear, parameter_count
from tests.zoo import Zoo, answers, conversations, generated, session

CPU = torch.device("cpu")

pytestmark = pytest.mark.skipif(
    narrow_dtype(torch.bfloat16, torch.float32, CPU) is None,
    reason="not by these vectors, or no compiler",
)


def halved(folder: Path, to: Path, dtype: torch.dtype, *, wide: str = "") -> str:
    """A copy of a model whose checkpoint is in half precision, but for weights of this name."""
    shutil.copytree(folder, to)
    (file,) = to.glob("*.safetensors")
    weights = {
        name: weight if wide and name.endswith(wide) else weight.to(dtype)
        for name, weight in load_file(file).items()
    }
    save_file(weights, file, {"format": "pt"})
    config = json.loads((to / "config.json").read_text())
    for part in (config, *(it for it in config.values() if isinstance(it, dict))):
        part.pop("dtype", None)
    config["dtype"] = str(dtype).removeprefix("torch.")
    (to / "config.json").write_text(json.dumps(config))
    return str(to)


def packed(model: Any) -> list[PackedLinear]:
    return [module for module in model.modules() if isinstance(module, PackedLinear)]


def reference(loaded: LoadedModel, family: str) -> list[list[int]]:
    """What transformers' `generate` answers in float32."""
    vision = loaded.family.vision
    auto: Any = AutoModelForImageTextToText if vision else AutoModelForCausalLM
    attention = "eager" if family in ("gemma2", "paligemma2") else "sdpa"
    model = auto.from_pretrained(
        loaded.name, dtype=torch.float32, attn_implementation=attention
    ).eval()
    return [generated(model, loaded.encoder.encode(each)) for each in conversations(vision)]


@pytest.mark.parametrize("dtype", kernels.HALVES, ids=str)
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_answers_are_those_of_the_model_in_float32(
    zoo: Zoo, family: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    folder = halved(zoo.folder_of(family, None), tmp_path / "model", dtype)
    loaded = load_model(folder, "cpu", "float32")
    assert {layer.weights.narrow for layer in packed(loaded.model)} == {dtype}
    assert {weight.dtype for weight in loaded.model.parameters()} == {torch.float32}
    assert answers(session(loaded), loaded.family.vision) == reference(loaded, family)


@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen2_5_vl"])
def test_of_narrow_weights_nothing_else_is_kept(zoo: Zoo, family: str, tmp_path: Path) -> None:
    before = zoo.load(family).model
    folder = halved(zoo.folder_of(family, None), tmp_path / "model", torch.bfloat16)
    model = load_model(folder, "cpu", "float32").model
    assert parameter_count(model) == parameter_count(before)
    narrow = sum(layer.parameters_packed for layer in packed(model))
    assert narrow > 0
    assert sum(it.numel() for it in model.parameters()) == parameter_count(model) - narrow


def test_with_a_spare_the_model_comes_back_in_float32(zoo: Zoo, tmp_path: Path) -> None:
    folder = halved(zoo.folder_of("llama", None), tmp_path / "model", torch.bfloat16)
    loaded = load_model(folder, "cpu", "float32", spare=True)
    assert {layer.weights.narrow for layer in packed(loaded.model)} == {torch.bfloat16}
    ours = answers(session(loaded), vision=False)
    with unpacked(loaded.model):
        prompts = [loaded.encoder.encode(each) for each in conversations(vision=False)]
        assert ours == [generated(loaded.model, prompt) for prompt in prompts]


def test_where_operators_cannot_be_built_weights_are_widened(
    zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = halved(zoo.folder_of("qwen2", None), tmp_path / "model", torch.bfloat16)
    loaded = load_model(folder, "cpu", "float32")
    monkeypatch.setattr(kernels, "promising", lambda: False)
    assert answers(session(loaded), vision=False) == reference(loaded, "qwen2")
    assert load_model(folder, "cpu", "float32").model.lm_head.weight.dtype == torch.float32


@pytest.mark.parametrize(
    "but",
    [pytest.param("down_proj.weight", id="matrices"), pytest.param("norm.weight", id="norms")],
)
def test_a_checkpoint_that_holds_more_than_its_config_says_is_loaded_as_it_is(
    zoo: Zoo, but: str, tmp_path: Path
) -> None:
    folder = halved(zoo.folder_of("llama", None), tmp_path / "model", torch.bfloat16, wide=but)
    loaded = load_model(folder, "cpu", "float32")
    assert bool(packed(loaded.model)) == (but == "norm.weight")
    assert answers(session(loaded), vision=False) == reference(loaded, "llama")


@pytest.mark.parametrize(
    ("own", "computed", "device", "expected"),
    [
        (torch.bfloat16, torch.float32, "cpu", torch.bfloat16),
        (torch.float16, torch.float32, "cpu", torch.float16),
        (torch.float32, torch.float32, "cpu", None),
        (torch.bfloat16, torch.bfloat16, "cpu", None),
        (torch.bfloat16, torch.float32, "meta", None),
    ],
)
def test_weights_stay_narrow_where_floats_are_computed_on_a_cpu(
    own: torch.dtype, computed: torch.dtype, device: str, expected: torch.dtype | None
) -> None:
    assert narrow_dtype(own, computed, torch.device(device)) == expected


def test_without_a_compiler_they_are_widened_as_they_are_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernels, "promising", lambda: False)
    assert narrow_dtype(torch.bfloat16, torch.float32, CPU) is None


def test_what_holds_no_safetensors_does_not_tell(tmp_path: Path) -> None:
    assert not holds(str(tmp_path), torch.bfloat16)
    assert not holds("nobody/nothing", torch.bfloat16)
