"""The measures of DESIGN section 4 against numbers worked out by hand."""

import orjson
import pytest

from engine.stats import SOURCES, DecodeStats
from engine.tree import DraftTree

C3, C2, TOKEN, SUFFIX = map(SOURCES.index, ("contextual-3", "contextual-2", "token", "suffix"))


def chain(*sources: int) -> DraftTree:
    tree = DraftTree([0])
    for node, source in enumerate(sources):
        tree.add(node + 1, node, source, 0.5)
    return tree


def three_passes() -> DecodeStats:
    stats = DecodeStats(new_tokens=1)
    stats.count_pass(chain(C3, C2, SUFFIX), [0, 1, 2], 3)
    bushy = DraftTree([0])
    for token in (1, 2, 3):
        bushy.add(token, 0, TOKEN, 0.2)
    bushy.add(4, 2, SUFFIX, 0.1)
    stats.count_pass(bushy, [0, 2], 2)
    stats.count_pass(DraftTree([0]), [0], 1)
    return stats


def test_counts_of_tokens_and_passes() -> None:
    stats = three_passes()
    assert (stats.new_tokens, stats.passes, stats.pass_tokens) == (7, 3, 6)
    assert (stats.drafted, stats.accepted) == (7, 3)


def test_mean_acceptance_length_is_tokens_a_pass_with_the_bonus_token() -> None:
    assert three_passes().mean_acceptance_length == 2.0


def test_draft_acceptance_rate_is_accepted_over_drafted() -> None:
    assert three_passes().draft_acceptance_rate == pytest.approx(3 / 7)


def test_the_histogram_counts_passes_by_tokens_committed() -> None:
    assert three_passes().acceptance_histogram == {3: 1, 2: 1, 1: 1}


def test_acceptance_by_depth_counts_the_passes_that_got_there() -> None:
    # Depth 1: two trees, both accepted; depth 2: two trees, one accepted; depth 3: one, none.
    assert three_passes().acceptance_by_depth == [1.0, 0.5, 0.0]


def test_sources_count_what_was_drafted_and_what_was_accepted() -> None:
    stats = three_passes()
    nothing = dict.fromkeys(SOURCES, 0)
    drafted = {"contextual-3": 1, "contextual-2": 1, "token": 3, "suffix": 2}
    assert stats.source_drafted == nothing | drafted
    assert stats.source_accepted == nothing | {"contextual-3": 1, "contextual-2": 1, "token": 1}


def test_a_cut_at_the_stop_token_cuts_the_measures() -> None:
    stats = DecodeStats(new_tokens=1)
    # Four drafts fitted, but the second was the stop token: the pass commits one draft and it.
    stats.count_pass(chain(SUFFIX, SUFFIX, SUFFIX, SUFFIX), [0, 1], 2)
    assert stats.mean_acceptance_length == 2.0
    assert stats.source_accepted["suffix"] == 1
    assert stats.acceptance_by_depth == [1.0, 0.0, 0.0, 0.0]


def test_speeds_are_of_the_passes_alone() -> None:
    stats = three_passes()
    stats.ttft_s, stats.decode_s, stats.draft_s = 9.0, 0.5, 0.03
    assert stats.decode_tokens_per_s == pytest.approx(12.0)
    assert stats.ms_per_pass == pytest.approx(500 / 3)
    assert stats.draft_ms_per_pass == pytest.approx(10.0)


def test_the_size_of_a_tree_is_a_mean_over_passes() -> None:
    assert three_passes().tree_size == pytest.approx(7 / 3)


def test_before_the_first_pass_every_measure_is_zero() -> None:
    stats = DecodeStats()
    assert stats.mean_acceptance_length == stats.draft_acceptance_rate == stats.tree_size == 0
    assert stats.decode_tokens_per_s == stats.ms_per_pass == stats.draft_ms_per_pass == 0
    assert stats.acceptance_by_depth == []


def test_measures_have_their_names_and_go_into_json() -> None:
    measures = orjson.loads(orjson.dumps(three_passes().measures()))
    assert measures["mean_acceptance_length"] == 2.0
    assert measures["draft_acceptance_rate"] == pytest.approx(3 / 7, abs=1e-4)
    assert measures["acceptance_histogram"] == {"1": 1, "2": 1, "3": 1}
    assert measures["acceptance_by_depth"] == [1.0, 0.5, 0.0]
    assert measures["passes_by_depth"] == [2, 2, 1]
    assert measures["sources"]["token"] == {"drafted": 3, "accepted": 1}
    assert {"ttft_s", "decode_tokens_per_s", "ms_per_pass", "draft_ms_per_pass"} <= measures.keys()


def test_two_requests_do_not_share_counts() -> None:
    three_passes()
    assert DecodeStats().acceptance_histogram == {}
    assert sum(DecodeStats().source_drafted.values()) == 0
