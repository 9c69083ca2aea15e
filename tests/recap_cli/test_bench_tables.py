"""A benchmark's tables: which there are, what their cells say, and what is said beside them."""

from typing import Any

from engine.bench.document import Document
from engine.stats import SOURCES
from recap_cli.bench_tables import tables
from recap_cli.grids import Grid
from tests.engine.bench.documents import document, failed, outside, record, whole

SPEED, DIFFERENCES, PASSES, DEPTHS, BY_SOURCE = (
    "Speed",
    "Largest logit gap",
    "Passes",
    "Accepted at depth",
    "Accepted drafts",
)


def grid(made: Document, title: str) -> Grid:
    """The one whose title begins so."""
    [found] = [each for each in tables(made).grids if each.title.startswith(title)]
    return found


def cells(made: Document, title: str) -> dict[str, dict[str, str]]:
    """Cells of a grid by contender and head."""
    found = grid(made, title)
    return {name: dict(zip(found.columns[1:], row, strict=True)) for name, *row in found.rows}


def pair(**changes: Any) -> Document:
    """Plain, and a contender that is twice as fast at one prompt."""
    return document(record("plain", decode_s=1.0), record("recap", decode_s=0.5, **changes))


def test_all_tables_of_a_whole_benchmark() -> None:
    titles = [each.title.partition(":")[0] for each in tables(whole()).grids]
    assert titles == [
        "Speed",
        "Largest logit gap at which an answer first differs from plain's",
        "Passes",
        "Accepted at depth, of the passes whose tree got there",
        "Accepted drafts by source",
        "Decode speed-up by category",
        "MAT by category",
    ]


def test_plain_alone_has_speed_and_passes() -> None:
    made = document(record("plain"))
    assert [each.title.partition(":")[0] for each in tables(made).grids] == ["Speed", "Passes"]


class TestSpeed:
    """Who is fastest, and whether the text is the same."""

    def test_cells(self) -> None:
        assert cells(pair(), SPEED) == {
            "recap": {
                "same tokens": "1/1",
                "decode speed-up": "2.00x",
                "whole request": "1.00x",
                "total time": "1.00x",
            },
            "plain": {
                "same tokens": "1/1",
                "decode speed-up": "1.00x",
                "whole request": "1.00x",
                "total time": "1.00x",
            },
        }

    def test_quartiles_are_shown_where_there_are_several_ratios(self) -> None:
        times = {"a": 1.0, "b": 0.5, "c": 0.25}
        made = document(
            *(record("plain", task) for task in times),
            *(record("recap", task, decode_s=seconds) for task, seconds in times.items()),
        )
        quartiles = {name: row["quartiles"] for name, row in cells(made, SPEED).items()}
        assert quartiles == {"recap": "1.50-3.00", "plain": "-"}

    def test_transformers_is_compared_with_where_it_took_part(self) -> None:
        made = document(
            record("plain"), record("recap", total_s=1.0), outside("transformers", total_s=3.0)
        )
        assert cells(made, SPEED)["recap"]["over generate()"] == "3.00x"
        assert any("generate()" in note for note in grid(made, SPEED).notes)
        assert not any("generate()" in note for note in grid(pair(), SPEED).notes)

    def test_the_control_is_explained(self) -> None:
        made = document(record("plain"), record("plain-control"))
        assert "plain-control is plain once more" in grid(made, SPEED).notes[-1]

    def test_failures_are_counted_and_named(self) -> None:
        made = document(
            *(record("plain", task) for task in "abcde"),
            failed("racer", "a", "no room\nleft"),
            *(failed("recap", task, "it broke") for task in "abcd"),
            record("recap", "e"),
            failures={"sam": "no such thing", "suffix": "no such thing"},
        )
        assert grid(made, SPEED).notes[1:] == (
            "recap failed at 4 prompts (a, b, c and 1 more): it broke",
            "racer failed at 1 prompt (a): no room\nleft",
            "sam, suffix answered nothing: no such thing",
        )
        assert cells(made, SPEED)["sam"]["decode speed-up"] == "-"


class TestDifferences:
    """Where answers leave the plain loop's."""

    def test_who_differs_is_named_with_the_largest_gap(self) -> None:
        made = document(
            record("plain", "a"),
            record("plain", "b", turn=1),
            record("recap", "a", difference=(3, 0.125)),
            record("recap", "b", turn=1, difference=(40, 0.5)),
            record("racer", "a"),
        )
        assert cells(made, DIFFERENCES) == {
            "recap": {"answers": "2", "gap": "0.5", "at token": "40", "prompt": "b (turn 2)"}
        }

    def test_a_gap_may_be_unknown(self) -> None:
        assert cells(pair(difference=(3, None)), DIFFERENCES)["recap"]["gap"] == "-"


class TestPasses:
    """What a pass costs and commits."""

    def test_cells(self) -> None:
        made = document(
            record("recap", commits=(3, 2), nodes=12, draft_s=0.001, decode_s=0.05, ttft_s=0.25)
        )
        assert cells(made, PASSES)["recap"] == {
            "MAT": "2.50",
            "nodes /pass": "12.0",
            "ms /pass": "25.0",
            "draft ms": "0.50",
            "tokens /s": "100.0",
            "first token": "250 ms",
        }

    def test_memory_is_shown_if_it_is_each_request_s_own(self) -> None:
        made = pair(peak_memory_bytes=3 * 2**20, peak_gpu_memory_bytes=7 * 2**20)
        row = cells(made, PASSES)["recap"]
        assert (row["peak"], row["GPU peak"]) == ("3 MB", "7 MB")
        made["settings"]["peak_memory"] = "process"
        assert "peak" not in cells(made, PASSES)["recap"]

    def test_what_cannot_be_seen_is_no_figure(self) -> None:
        made = document(record("plain"), outside("transformers", decode_s=0.5))
        row = cells(made, PASSES)["transformers"]
        assert (row["MAT"], row["ms /pass"], row["tokens /s"]) == ("1.00", "250.0", "4.0")
        assert (row["nodes /pass"], row["draft ms"]) == ("-", "-")


def test_depths_and_sources_are_shares_of_those_who_draft() -> None:
    sources = tuple(map(SOURCES.index, ("suffix", "token")))
    made = document(
        record("plain"), record("recap", commits=(4, 2, 1), nodes=4, depth=4, sources=sources)
    )
    assert cells(made, DEPTHS) == {"recap": {"1": "67%", "2": "33%", "3": "33%", "4": "0%"}}
    assert cells(made, BY_SOURCE) == {"recap": {"token": "25%", "suffix": "75%"}}


def test_depths_that_hardly_a_pass_reached_are_left_out() -> None:
    made = document(record("recap", commits=[1] * 198 + [3, 3], nodes=1))
    assert cells(made, DEPTHS) == {"recap": {"1": "1%"}}


class TestCategories:
    """Two tables, where there is more than one."""

    made = document(
        record("plain", "a", category="math_reasoning"),
        record("recap", "a", category="math_reasoning", decode_s=0.5),
        record("plain", "b", category="qa"),
        record("recap", "b", category="qa", commits=(3, 3), decode_s=0.5),
        outside("transformers", "a", category="math_reasoning"),
    )

    def test_cells(self) -> None:
        speed = cells(self.made, "Decode speed-up by category")
        assert speed["recap"] == {"math reasoning": "2.00x", "qa": "6.00x"}
        assert speed["transformers"] == {"math reasoning": "1.00x", "qa": "-"}
        assert cells(self.made, "MAT by category") == {
            "recap": {"math reasoning": "1.00", "qa": "3.00"},
            "plain": {"math reasoning": "1.00", "qa": "1.00"},
            "transformers": {"math reasoning": "1.00", "qa": "-"},
        }

    def test_one_category_is_no_table(self) -> None:
        assert not [each for each in tables(pair()).grids if "category" in each.title]


def test_words_that_depend_on_the_picture_stand_beside_the_rest() -> None:
    pair: dict[str, Any] = {"category": "pairs", "pieces": ["A", " red", " star", ".", ""]}
    made = document(
        record("plain", commits=(1, 1, 1, 1), **pair),
        record("recap:one-token", commits=(2, 1, 1), **pair),
        record("recap", commits=(1, 3), decode_s=0.5, **pair),
    )
    assert grid(made, "Words that depend on the picture").rows == (
        ("recap", "2", "50%", "2.00", "2", "50%", "2.00"),
        ("recap:one-token", "2", "50%", "2.00", "2", "0%", "1.00"),
    )


class TestCircumstances:
    """What was run where, in a line."""

    def test_all_of_it(self) -> None:
        assert tables(pair()).circumstances == (
            "some/model, bfloat16 on cpu; prompts.jsonl, 1 prompt, at most 128 new tokens;"
            " 1 repetition, 1 to warm up, memory cold; A CPU, 2 threads on 2 cores, 8 GB,"
            " Linux 6.8 x86_64; python 3.11.9, recap 0.1.0, torch 2.13.0; 2026-01-02"
        )

    def test_a_gpu_comes_first(self) -> None:
        made = pair()
        made["machine"] |= {"gpu": "A GPU", "memory_bytes": None}
        assert "A GPU, A CPU, 2 threads on 2 cores, Linux" in tables(made).circumstances

    def test_compiled_passes_are_named(self) -> None:
        made = pair()
        made["settings"] |= {"compile": True}
        assert "bfloat16 on cpu, passes of our loop compiled; " in tables(made).circumstances

    def test_operators_are_named(self) -> None:
        made = pair()
        made["settings"] |= {"operators": True}
        assert "bfloat16 on cpu, with operators in C++; " in tables(made).circumstances

    def test_what_is_unfinished_says_so(self) -> None:
        made = document(record("plain", "a"), record("plain", "b"), record("recap", "a"))
        made["tasks"][0]["turns"] = 2
        assert tables(made).circumstances.startswith("unfinished: 3 of 6 requests; ")
