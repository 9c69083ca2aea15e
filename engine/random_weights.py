"""A model of a config at its true size with random weights: as slow as the real one, and no wiser.

Lets a machine be measured without a checkpoint's download. Whole models are made, vision towers
included.
"""

from typing import Any

from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

from engine.attention import NAME as TREE_ATTENTION
from engine.errors import UsageError
from engine.families import Family, family_of
from engine.loading import (
    Device,
    Dtype,
    device_named,
    dtype_named,
    explained,
    load_config,
    own_dtype,
)
from engine.narrowing import narrow_dtype
from engine.packing import pack, worth_laying_out, worth_packing


def random_model(name: str, device: Device = "auto", dtype: Dtype = "auto") -> tuple[Any, Family]:
    """A transformers model in eval mode, made where it runs, and its family.

    Args:
        name: a config.json, or a model as `engine.loading.load_config` takes it.
        device, dtype: as `engine.loading.load_model` takes them.

    Raises:
        UsageError: the device is not there, or the model is quantised.
        ModelError: no such config, a family that is not supported, or too large for the device.
    """
    place, config = device_named(device), load_config(name)
    family = family_of(config)
    if getattr(config, "quantization_config", None) is not None:
        raise UsageError(f"{name}: quantised; name the config of the model that it was made from")
    auto: Any = AutoModelForImageTextToText if family.vision else AutoModelForCausalLM
    with explained(name, {}), place:
        model = auto.from_config(
            config,
            dtype=dtype_named(dtype, config, place),
            attn_implementation={"text_config": TREE_ATTENTION}
            if family.vision
            else TREE_ATTENTION,
            trust_remote_code=False,
        )
    narrow = narrow_dtype(own_dtype(config), model.dtype, place)
    if narrow:  # at the price of what a checkpoint's weights do not lose
        pack(model, narrow=narrow)
    elif worth_packing(model):
        pack(model, lay_out=worth_laying_out(model))
    return model.eval(), family
