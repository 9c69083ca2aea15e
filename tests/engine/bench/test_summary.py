"""What a benchmark's records say, against numbers worked out by hand."""

import pytest

from engine.bench.document import Record
from engine.bench.speedups import Spread
from engine.bench.summary import Failure, FirstDifference, Row, summarise
from engine.stats import SOURCES
from tests.engine.bench.documents import document, failed, outside, record, whole

C3, TOKEN, SUFFIX = map(SOURCES.index, ("contextual-3", "token", "suffix"))


def rows(*records: Record, failures: dict[str, str] | None = None) -> dict[str, Row]:
    """Overall rows by contender."""
    made = document(*records, failures=failures)
    return {row.contender: row for row in summarise(made).overall}


class TestRates:
    """Pooled over a contender's records."""

    def test_mat_is_tokens_of_passes_over_passes(self) -> None:
        # A long answer weighs more: (4 + 2 + 1 + 1) / 4, not the mean of 3 and 1.
        row = rows(record("recap", "a", commits=(4, 2)), record("recap", "b", commits=(1, 1)))
        assert row["recap"].mean_acceptance_length == 2.0
        assert row["recap"].passes == 4

    def test_nodes_and_times_are_a_pass(self) -> None:
        row = rows(
            record("recap", "a", commits=(2, 2), nodes=5, draft_s=0.006, decode_s=0.05),
            record("recap", "b", commits=(1, 1), nodes=1, decode_s=0.03),
        )["recap"]
        assert row.nodes_per_pass == 3.0
        assert row.ms_per_pass == pytest.approx(20.0)
        assert row.draft_ms_per_pass == pytest.approx(1.5)
        assert row.decode_tokens_per_s == pytest.approx(6 / 0.08)

    def test_depths_count_the_passes_that_got_there(self) -> None:
        row = rows(
            record("recap", "a", commits=(3, 1), nodes=4, depth=4),
            record("recap", "b", commits=(2,), nodes=1),
        )["recap"]
        assert row.passes_by_depth == (3, 2, 2, 2)
        assert row.acceptance_by_depth == pytest.approx((2 / 3, 0.5, 0, 0))

    def test_sources_are_shares_of_what_was_accepted(self) -> None:
        row = rows(
            record("recap", "a", commits=(4, 1), sources=(C3, TOKEN)),
            record("recap", "b", commits=(2,), sources=(SUFFIX,)),
        )["recap"]
        assert row.sources == {"contextual-3": 0.75, "suffix": 0.25}

    def test_the_time_to_the_first_token_is_a_median(self) -> None:
        times = {"a": 1, "b": 9, "c": 2}
        row = rows(*(record("recap", task, ttft_s=s) for task, s in times.items()))
        assert row["recap"].ttft_s == 2

    def test_memory_is_the_highest_peak(self) -> None:
        peaks = {"a": 5, "b": 7}
        row = rows(*(record("recap", t, peak_memory_bytes=p) for t, p in peaks.items()))
        assert row["recap"].peak_memory_bytes == 7
        assert row["recap"].peak_gpu_memory_bytes is None

    def test_drafts_that_cannot_be_seen_are_no_figures(self) -> None:
        made = outside("transformers-lookup", commits=(2, 1, 1), decode_s=0.5)
        row = rows(made)["transformers-lookup"]
        assert row.mean_acceptance_length == pytest.approx(4 / 3)
        assert row.decode_tokens_per_s == 8.0
        assert (row.nodes_per_pass, row.draft_ms_per_pass) == (None, None)
        assert (row.sources, row.acceptance_by_depth) == ({}, ())

    def test_tokens_that_came_with_the_prefill_are_no_decoding(self) -> None:
        made = outside("transformers-lookup", commits=(2, 2), decode_s=0.5)
        made["new_tokens"] = 8
        assert rows(made)["transformers-lookup"].decode_tokens_per_s == 8.0


class TestSpeedups:
    """Against the plain loop, and against transformers' own."""

    def test_a_speed_up_is_a_ratio_of_times_per_token(self) -> None:
        # Plain: 1 s for the 4 tokens of passes; recap: 0.375 s for 3. Both whole: 2 s for 5 and 4.
        row = rows(
            record("plain", commits=(1, 1, 1, 1), decode_s=1.0, total_s=2.0),
            record("recap", commits=(3,), decode_s=0.375, total_s=2.0),
        )["recap"]
        assert row.plain.decode == Spread(2.0, 2.0, 2.0, 1)
        assert row.plain.e2e == Spread(0.8, 0.8, 0.8, 1)
        assert row.plain.total == 1.0

    def test_it_is_the_median_over_prompts_and_repetitions_with_quartiles(self) -> None:
        # The machine halves its speed in the second repetition, which the pairs do not show.
        recap_s = {"a": 1.0, "b": 0.5, "c": 0.25}
        records = [
            record(name, task, repetition=repetition, decode_s=slow * seconds)
            for repetition, slow in enumerate((1, 2))
            for task in "abc"
            for name, seconds in (("plain", 1.0), ("recap", recap_s[task]))
        ]
        decode = rows(*records)["recap"].plain.decode
        assert decode == Spread(median=2.0, low=1.25, high=3.5, count=6)

    def test_total_compares_whole_times_of_what_both_finished(self) -> None:
        row = rows(
            record("plain", "a", total_s=6.0),
            record("recap", "a", total_s=2.0),
            record("plain", "b", total_s=2.0),
            record("recap", "b", total_s=2.0),
            record("plain", "c", total_s=100.0),
            failed("recap", "c"),
        )["recap"]
        assert row.plain.total == 2.0

    def test_both_baselines_are_compared_with(self) -> None:
        row = rows(
            outside("transformers", decode_s=3.0),
            record("plain", decode_s=1.5),
            record("recap", decode_s=1.0),
        )["recap"]
        assert row.plain.decode == Spread(1.5, 1.5, 1.5, 1)
        assert row.generate.decode == Spread(3.0, 3.0, 3.0, 1)

    def test_without_a_baseline_there_is_none(self) -> None:
        row = rows(record("recap"))["recap"]
        assert (row.plain.decode, row.plain.e2e, row.plain.total) == (None, None, None)

    def test_an_answer_of_one_token_has_no_decode_time_but_is_a_whole_request(self) -> None:
        row = rows(
            record("plain", commits=(), decode_s=0.0, total_s=3.0),
            record("recap", commits=(), decode_s=0.0, total_s=2.0),
        )["recap"]
        assert row.plain.decode is None
        assert row.mean_acceptance_length is None
        assert row.plain.e2e == Spread(1.5, 1.5, 1.5, 1)
        assert (row.prompts, row.identical) == (1, 1)


class TestIdentity:
    """Answers that are the plain loop's token for token."""

    def test_it_is_counted_by_prompt_and_the_largest_gap_named(self) -> None:
        row = rows(
            *(record("plain", task) for task in "abc"),
            record("recap", "a"),
            record("recap", "b", difference=(7, 0.01)),
            record("recap", "c", difference=(40, 0.5)),
        )["recap"]
        assert (row.identical, row.compared) == (1, 3)
        assert row.difference == FirstDifference("c", 0, position=40, gap=0.5)

    def test_a_prompt_is_identical_if_every_repetition_is(self) -> None:
        row = rows(
            record("plain"),
            record("plain", repetition=1),
            record("recap"),
            record("recap", repetition=1, difference=(3, None)),
        )["recap"]
        assert (row.identical, row.compared) == (0, 1)
        assert row.difference == FirstDifference("a", 0, position=3, gap=None)

    def test_turns_of_a_task_are_prompts_of_their_own(self) -> None:
        row = rows(
            *(record("plain", turn=turn) for turn in (0, 1)),
            record("recap"),
            record("recap", turn=1, difference=(0, 0.1)),
        )["recap"]
        assert (row.prompts, row.identical, row.compared) == (2, 1, 2)

    def test_what_the_plain_loop_failed_at_is_not_compared(self) -> None:
        row = rows(failed("plain", "a"), record("recap", "a"), record("plain", "b"))["recap"]
        assert (row.prompts, row.identical, row.compared) == (1, 0, 0)


class TestFailures:
    """They are counted and named, never averaged in."""

    def test_a_failed_prompt_is_named_once_with_its_error(self) -> None:
        row = rows(
            record("plain", "a"),
            record("plain", "b"),
            record("recap", "a", ttft_s=1.0),
            failed("recap", "b", "no memory left"),
            failed("recap", "b", "no memory left again", repetition=1),
        )["recap"]
        assert row.failures == (Failure("b", 0, "no memory left"),)
        assert (row.prompts, row.compared, row.ttft_s) == (1, 1, 1.0)
        assert row.plain.decode is not None
        assert row.plain.decode.count == 1

    def test_a_contender_that_cannot_run_is_a_row_all_the_same(self) -> None:
        row = rows(record("plain"), failures={"racer": "no such package"})["racer"]
        assert row.failed == "no such package"
        assert (row.prompts, row.mean_acceptance_length, row.plain.decode) == (0, None, None)


def test_rows_are_sorted_by_decode_speed_up_those_without_last() -> None:
    made = document(
        record("plain", decode_s=1.0),
        record("slow", decode_s=2.0),
        record("fast", decode_s=0.5),
        failures={"lost": "it broke"},
    )
    summary = summarise(made)
    assert [row.contender for row in summary.overall] == ["fast", "plain", "slow", "lost"]


def test_categories_keep_their_own_records_and_the_overall_order() -> None:
    made = document(
        record("plain", "a", category="qa", decode_s=1.0),
        record("recap", "a", category="qa", decode_s=2.0, commits=(2, 2)),
        record("plain", "b", category="rag", decode_s=1.0),
        record("recap", "b", category="rag", decode_s=0.1, commits=(4, 4)),
    )
    categories = summarise(made).categories
    assert list(categories) == ["qa", "rag"]
    for found in categories.values():
        assert [row.contender for row in found] == ["recap", "plain"]
    assert [found[0].mean_acceptance_length for found in categories.values()] == [2.0, 4.0]
    assert {row.category for row in categories["rag"]} == {"rag"}


def test_a_run_that_was_cut_short_is_summarised_as_far_as_it_got() -> None:
    made = whole()
    made["records"] = made["records"][:7]
    summary = summarise(made)
    assert len(summary.overall) == len(made["contenders"])
    assert len(summary.categories) == 6


def test_nothing_at_all_is_no_figures() -> None:
    summary = summarise(document())
    assert (summary.overall, summary.categories) == ((), {})
