"""How contenders are written, and what each of them starts from."""

import pytest

from engine.bench.contenders import ABLATIONS, DEFAULT, Contender, contenders
from engine.bench.document import CONTROL, GENERATE, PLAIN
from engine.drafters.registry import METHODS
from engine.errors import UsageError
from engine.options import DrafterOptions


def named(*names: str) -> dict[str, Contender]:
    """The contenders of these names, besides those who always take part."""
    return {each.name: each for each in contenders(names) if each.method not in (PLAIN, GENERATE)}


def test_both_baselines_and_the_control_always_take_part() -> None:
    assert [each.name for each in contenders(["recap"])] == [PLAIN, CONTROL, GENERATE, "recap"]
    assert contenders(["plain"])[-1].name == PLAIN, "those that are named stand where they are"


def test_nobody_named_is_every_method_at_its_published_size() -> None:
    found = {each.name: each for each in contenders([])}
    assert set(found) == {PLAIN, CONTROL, GENERATE, *DEFAULT}
    assert set(METHODS) <= set(found)
    for name in METHODS.keys() & set(DEFAULT):
        assert found[name].options == METHODS[name].published


def test_the_control_is_the_plain_loop() -> None:
    control = next(each for each in contenders([]) if each.name == CONTROL)
    assert (control.method, control.options.nodes) == (PLAIN, 0)


@pytest.mark.parametrize("spec", ["racer:32", "racer:nodes=32"])
def test_a_size_has_one_name(spec: str) -> None:
    (racer,) = named(spec).values()
    assert (racer.name, racer.options.nodes) == ("racer:32", 32)


def test_recap_s_size_is_fixed_where_it_is_given() -> None:
    found = named("recap", "recap:16", "recap:adaptive:nodes=16", "recap:16:adaptive")
    assert [each.options.adaptive for each in found.values()] == [True, False, False, True]


def test_a_chain_of_any_size_may_be_one_chain() -> None:
    found = named("prompt-lookup:32", "suffix:8", "racer:128")
    assert found["prompt-lookup:32"].options.max_depth == 32
    assert found["suffix:8"].options.max_depth == 64
    assert found["racer:128"].options.max_depth == METHODS["racer"].published.max_depth


def test_parts_add_up() -> None:
    (ours,) = named("recap:16:no-suffix:max_depth=8:min_probability=0.05").values()
    assert ours.options == DrafterOptions(
        nodes=16, adaptive=False, suffix=False, max_depth=8, min_probability=0.05
    )


def test_ablations_are_a_group_and_change_recap_s_options_only() -> None:
    found = named("ablations")
    assert list(found) == [f"recap:{name}" for name in ABLATIONS]
    assert all(each.method == "recap" for each in found.values())
    assert len({each.options for each in found.values()} | {DrafterOptions()}) == 1 + len(ABLATIONS)
    assert found["recap:one-token"].options.specificity == (1.0, 0.0, 0.0)
    assert not found["recap:one-token"].options.suffix


def test_a_sweep_adds_sizes_to_those_that_draft_and_have_none() -> None:
    names = [each.name for each in contenders(["recap", "racer:32", "transformers-lookup"], [4, 8])]
    assert names == [
        *(PLAIN, CONTROL, GENERATE),
        *("recap", "recap:4", "recap:8", "racer:32"),
        *("transformers-lookup", "transformers-lookup:4", "transformers-lookup:8"),
    ]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["eagle"], "no method 'eagle'; choose from default, ablations, recap"),
        (["recap", "recap"], "recap takes part twice"),
        (["racer:32", "racer:nodes=32"], "racer:32 takes part twice"),
        (["recap:fast"], "recap:fast: give a size, or one of adaptive, one-token"),
        (["racer:no-suffix"], "racer:no-suffix: give a size, or one of k=N, nodes=N"),
        (["recap:k=many"], "recap:k=many: give a size"),
        (["recap:seeding=1"], "recap:seeding=1: give a size"),
        (["plain:4"], "plain takes no options"),
        (["transformers:4"], "transformers takes no options"),
        (["transformers-lookup:k=4"], "transformers-lookup takes no options but a size"),
        (["recap:4096"], "nodes must be from 0 to 1024, not 4096"),
    ],
)
def test_what_there_is_not_is_refused(names: list[str], message: str) -> None:
    with pytest.raises(UsageError) as refusal:
        contenders(names)
    assert str(refusal.value).startswith(message)


@pytest.mark.parametrize(
    ("spec", "cold", "warm", "file"),
    [
        ("recap", "cold", "warm", "file"),
        ("token-recycling", "cold", "warm", "file"),
        ("suffix", "cold", "warm", "cold"),
        ("ngram-cache", "cold", "warm", "cold"),
        ("prompt-lookup", "none", "none", "none"),
        ("sam", "none", "none", "none"),
        ("recap:no-persistence", "none", "none", "none"),
        ("transformers-lookup", "none", "none", "none"),
    ],
)
def test_what_a_contender_starts_from(spec: str, cold: str, warm: str, file: str) -> None:
    each = contenders([spec])[-1]
    assert [each.starts(start) for start in ("cold", "warm", "x.safetensors")] == [cold, warm, file]


def test_a_row_holds_what_is_not_usual() -> None:
    (ours,) = named("recap:16:no-suffix").values()
    assert ours.row("warm") == {
        "name": "recap:16:no-suffix",
        "method": "recap",
        "options": {"nodes": 16, "adaptive": False, "suffix": False},
        "memory": "warm",
        "failed": None,
    }
