"""Weights that stay in half precision while a model computes in float32."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedModel

from engine import kernels
from engine.families import FAMILIES
from engine.loading import LoadedModel, load_model
from engine.narrowing import holds, narrow_dtype
from engine.operators import unpacked
from engine.packing import PackedLinear, parameter_count
from tests.engine.test_loading import put
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
    assert holds(str(tmp_path), torch.bfloat16) is None
    assert holds("nobody/nothing", torch.bfloat16) is None


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[type]:
    """The classes of models that are loaded, once for each time."""
    loaded: list[type] = []
    original = PreTrainedModel.from_pretrained.__func__

    def noted(cls: type, *args: Any, **kwargs: Any) -> Any:
        loaded.append(cls)
        return original(cls, *args, **kwargs)

    monkeypatch.setattr(PreTrainedModel, "from_pretrained", classmethod(noted))
    return loaded


def sharded(folder: str) -> None:
    """Its weights in several files, as large models have them."""
    path = Path(folder)
    weights = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    names = sorted(weights)
    where: dict[str, str] = {}
    for i, some in enumerate((names[::2], names[1::2]), start=1):
        file = f"model-0000{i}-of-00002.safetensors"
        save_file({name: weights[name] for name in some}, path / file, {"format": "pt"})
        where |= dict.fromkeys(some, file)
    index = {"metadata": {"total_size": 0}, "weight_map": where}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))


def test_a_sharded_checkpoint_is_loaded_once_whatever_else_the_folder_holds(
    zoo: Zoo, tmp_path: Path, loads: list[type]
) -> None:
    folder = halved(zoo.folder_of("llama", None), tmp_path / "model", torch.bfloat16)
    sharded(folder)
    save_file({"lora": torch.zeros(2, 2)}, Path(folder, "adapter_model.safetensors"))
    Path(folder, "consolidated.safetensors").write_text("version https://git-lfs.github.com")
    loaded = load_model(folder, "cpu", "float32")
    assert {layer.weights.narrow for layer in packed(loaded.model)} == {torch.bfloat16}
    assert len(loads) == 1
    assert answers(session(loaded), vision=False) == reference(loaded, "llama")


def test_of_a_model_in_the_cache_the_files_that_are_read_tell(
    zoo: Zoo, tmp_path: Path, loads: list[type], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = halved(zoo.folder_of("llama", None), tmp_path / "model", torch.bfloat16)
    sharded(folder)
    hub = tmp_path / "hub"
    put(Path(folder), hub, "someone/large")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(hub))
    monkeypatch.setattr("engine.loading._hub_answers", lambda: False)
    loaded = load_model("someone/large", "cpu", "float32")
    assert {layer.weights.narrow for layer in packed(loaded.model)} == {torch.bfloat16}
    assert len(loads) == 1


def test_a_checkpoint_that_is_known_to_be_wide_is_loaded_once(
    zoo: Zoo, tmp_path: Path, loads: list[type]
) -> None:
    folder = halved(
        zoo.folder_of("llama", None), tmp_path / "model", torch.bfloat16, wide="proj.weight"
    )
    assert not packed(load_model(folder, "cpu", "float32").model)
    assert len(loads) == 1


def test_only_matrices_of_numbers_and_of_the_language_part_tell(tmp_path: Path) -> None:
    weights = {
        "model.layers.0.weight": torch.zeros(2, 2, dtype=torch.bfloat16),
        "model.norm.weight": torch.zeros(2),
        "position_ids": torch.zeros(1, 2, dtype=torch.int64),
        "vision_tower.positions": torch.zeros(2, 2),
    }
    save_file(weights, tmp_path / "model.safetensors")
    assert holds(str(tmp_path), torch.bfloat16) is True
    assert holds(str(tmp_path), torch.float16) is False
    (tmp_path / "model.safetensors").write_bytes(b"cut short")
    assert holds(str(tmp_path), torch.bfloat16) is None
