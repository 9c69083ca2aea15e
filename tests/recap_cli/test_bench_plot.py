"""The charts: what is drawn of whom. How they look has to be looked at."""

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from engine.errors import UsageError
from recap_cli import bench_plot
from recap_cli.bench_plot import check, draw, plot
from tests.engine.bench.documents import document, failed, outside, record, whole


def charts(*records: Any, **others: Any) -> list[Any]:
    """Speed-ups, categories, depths and costs, as matplotlib's axes."""
    return list(draw(document(*records, **others)).axes)


def labels(axes: Any) -> list[str]:
    return [label.get_text() for label in axes.get_yticklabels()]


def test_a_picture_is_of_the_kind_that_its_name_says(tmp_path: Path) -> None:
    path = tmp_path / "charts.png"
    plot(whole(3), path)
    with Image.open(path) as picture:
        assert picture.format == "PNG"
        assert picture.width == 1690


def test_the_picture_grows_with_the_contenders() -> None:
    few, many = (draw(whole(contenders)).get_size_inches() for contenders in (9, 20))
    assert few[0] == many[0]
    assert many[1] - few[1] > 11 * 0.25


def test_speed_ups_are_bars_with_the_fastest_on_top() -> None:
    speed, *_ = charts(
        record("plain"),
        record("recap", decode_s=0.5),
        outside("transformers", decode_s=2.0),
        failures={"sam": "it broke"},
    )
    assert labels(speed) == ["recap  2.00x", "plain  1.00x", "transformers  0.50x"]
    assert [bar.get_width() for bar in speed.patches] == [2.0, 1.0, 0.5]
    assert speed.yaxis_inverted()


def test_the_control_s_quartiles_are_a_band() -> None:
    times = {"a": 0.5, "b": 1.0, "c": 2.0}
    speed, *_ = charts(
        *(record("plain", task) for task in times),
        *(record("plain-control", task, decode_s=seconds) for task, seconds in times.items()),
    )
    band = speed.patches[-1]
    assert (band.get_x(), band.get_width()) == (0.75, 0.75)
    assert "band: plain-control" in speed.get_title()


def test_those_who_draft_have_a_cell_a_category_and_a_line() -> None:
    _, categories, depths, costs = charts(
        record("plain", "a", category="some_name"),
        record("recap", "a", category="some_name", commits=(3, 3)),
        record("plain", "b", category="two"),
        failed("recap", "b", category="two"),
    )
    assert labels(categories) == ["recap"]
    assert [text.get_text() for text in categories.texts] == ["3.00", "-"]
    assert [each.get_text() for each in categories.get_xticklabels()] == ["some name", "two"]
    [line] = depths.lines
    assert line.get_label() == "recap"
    assert line.get_ydata().tolist() == [1.0, 1.0]
    assert "plain" in {points.get_label() for points in costs.collections}


def test_the_cost_of_a_pass_starts_at_nothing() -> None:
    *_, costs = charts(record("plain", decode_s=0.04), record("recap", commits=(2, 2)))
    assert costs.get_ylim()[0] == 0


@pytest.mark.parametrize(
    "records", [[], [outside("transformers")], [failed("plain")], [record("plain", commits=())]]
)
def test_a_benchmark_with_little_in_it_can_be_drawn(records: list[Any]) -> None:
    assert len(charts(*records)) == 4


def test_contenders_are_told_apart_by_more_than_colour() -> None:
    names = [f"recap:{size}" for size in range(30)]
    *_, depths, _ = charts(*(record(name, commits=(2,)) for name in names))
    looks = {(line.get_marker(), line.get_linestyle()) for line in depths.lines}
    assert len(looks) == 30


class TestCheck:
    """What can be known before a long run."""

    def test_without_matplotlib_the_way_out_is_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(bench_plot, "find_spec", lambda _: None)
        with pytest.raises(UsageError, match=r"matplotlib: pip install 'recap-vlm\[plot\]'"):
            check(tmp_path / "charts.png")

    @pytest.mark.parametrize("name", ["charts", "charts.jpeg", "none/charts.png"])
    def test_a_file_that_cannot_be_one_is_named(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(UsageError, match=f"{tmp_path / name}: "):
            check(tmp_path / name)

    def test_a_folder_in_its_place_is_said_when_it_is_written(self, tmp_path: Path) -> None:
        (tmp_path / "charts.png").mkdir()
        with pytest.raises(UsageError, match="cannot write"):
            plot(document(record("plain")), tmp_path / "charts.png")
