"""A benchmark's results in every format, and made anew from the document."""

import csv
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.bench.document import Document, to_json
from engine.errors import UsageError
from recap_cli.bench_report import Format, check_output, publish, write
from tests.engine.bench.documents import document, failed, record, whole
from tests.recap_cli.conftest import ROOT, Outcome

Recap = Callable[..., Outcome]


def written(made: Document, format: Format = Format.TABLE) -> str:
    """What is written to something that is no terminal."""
    stream = io.StringIO()
    write(made, format, stream)
    return stream.getvalue()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The document of a small benchmark."""
    path = tmp_path / "bench.json"
    path.write_bytes(to_json(whole(5)))
    return path


class TestTables:
    """For reading, and for pasting into a README."""

    @pytest.mark.parametrize("columns", [80, 120])
    def test_they_fit_the_screen_and_are_not_cut(
        self, monkeypatch: pytest.MonkeyPatch, columns: int
    ) -> None:
        monkeypatch.setenv("COLUMNS", str(columns))
        text = written(whole(20))
        assert max(map(len, text.splitlines())) <= columns
        assert "…" not in text
        assert "\x1b" not in text

    def test_the_fastest_stands_first_and_what_it_ran_on_last(self) -> None:
        lines = written(document(record("plain"), record("recap", decode_s=0.5))).splitlines()
        assert lines[0] == "Speed"
        assert lines[4].split() == ["recap", "1/1", "2.00x", "1.00x", "1.00x"]
        assert lines[5].split() == ["plain", "1/1", "1.00x", "1.00x", "1.00x"]
        assert lines[-1].endswith("2026-01-02")

    def test_markdown_has_the_same_tables(self) -> None:
        made = document(record("plain"), record("recap", decode_s=0.5, difference=(2, 0.25)))
        lines = written(made, Format.MD).splitlines()
        assert "| recap | 0/1 | 2.00x | 1.00x | 1.00x |" in lines
        assert [line for line in lines if line.startswith("**")] == [
            "**Speed**",
            "**Largest logit gap at which an answer first differs from plain's**",
            "**Passes: MAT is tokens a pass commits**",
        ]


class TestData:
    """For programs."""

    def test_json_is_the_document(self) -> None:
        made = whole(5)
        assert json.loads(written(made, Format.JSON)) == made

    def test_jsonl_is_a_record_a_line(self) -> None:
        made = whole(5)
        lines = written(made, Format.JSONL).splitlines()
        assert [json.loads(line) for line in lines] == made["records"]

    def test_csv_is_the_summary_a_line_a_row(self) -> None:
        made = document(
            record("plain", "a"),
            record("recap", "a", commits=(3, 1), decode_s=0.5, difference=(3, 0.125)),
            failed("recap", "b", category="two"),
        )
        rows = list(csv.DictReader(io.StringIO(written(made, Format.CSV))))
        assert [(row["contender"], row["category"]) for row in rows] == [
            *(("recap", ""), ("plain", "")),
            *(("recap", "one"), ("plain", "one")),
            *(("recap", "two"), ("plain", "two")),
        ]
        overall = rows[0]
        assert {name: overall[name] for name in overall if overall[name]} == {
            "contender": "recap",
            "prompts": "1",
            "failed_prompts": "1",
            "compared": "1",
            "identical": "0",
            "difference_task": "a",
            "difference_turn": "0",
            "difference_position": "3",
            "difference_gap": "0.125",
            "passes": "2",
            "mean_acceptance_length": "2.0",
            "nodes_per_pass": "1.0",
            "ms_per_pass": "250.0",
            "draft_ms_per_pass": "0.0",
            "decode_tokens_per_s": "8.0",
            "ttft_s": "0.0",
            **dict.fromkeys(("decode_speedup", "decode_speedup_q1", "decode_speedup_q3"), "4.0"),
            **dict.fromkeys(("e2e_speedup", "e2e_speedup_q1", "e2e_speedup_q3"), "1.666667"),
            "total_speedup": "1.0",
            "acceptance_depth_1": "1.0",
            "acceptance_depth_2": "1.0",
            **{f"source_{name}": "0.0" for name in ("contextual-3", "contextual-2", "token")},
            **{f"source_{name}": "0.0" for name in ("earlier-3", "earlier-2")},
            **{f"source_{name}": "0.0" for name in ("lookup", "history", "recycled")},
            "source_suffix": "1.0",
        }

    def test_columns_do_not_depend_on_the_benchmark(self) -> None:
        heads = {written(whole(n), Format.CSV).partition("\n")[0] for n in (3, 9)}
        assert len(heads) == 1


class TestReport:
    """`recap bench report FILE`."""

    def test_it_makes_the_table_anew(self, recap: Recap, file: Path) -> None:
        assert recap("bench", "report", str(file)) == Outcome(0, written(whole(5)), "")

    def test_json_of_json_is_the_same(self, recap: Recap, file: Path) -> None:
        assert recap("bench", "report", str(file), "--format", "json", "-o", "again.json").code == 0
        assert Path("again.json").read_bytes() == file.read_bytes()

    def test_a_file_holds_what_stdout_would(self, recap: Recap, file: Path) -> None:
        outcome = recap("bench", "report", str(file), "--format", "md", "-o", "ü.md")
        assert outcome == Outcome(0, "", "")
        assert Path("ü.md").read_text("utf-8") == written(whole(5), Format.MD)

    def test_charts_come_beside_it(self, recap: Recap, file: Path) -> None:
        outcome = recap("bench", "report", str(file), "--plot", "charts.png")
        assert outcome == Outcome(0, written(whole(5)), "")
        assert Path("charts.png").read_bytes().startswith(b"\x89PNG")

    def test_impossible_charts_are_refused_before_anything_is_written(
        self, recap: Recap, file: Path
    ) -> None:
        outcome = recap("bench", "report", str(file), "-o", "table.txt", "--plot", "charts.doc")
        message = "recap: error: charts.doc: charts are written as .png, .svg, .pdf\n"
        assert outcome == Outcome(2, "", message)
        assert not Path("table.txt").exists()

    def test_what_is_read_is_not_overwritten(self, recap: Recap, file: Path) -> None:
        before = file.read_bytes()
        outcome = recap("bench", "report", str(file), "--format", "md", "-o", str(file))
        assert outcome.code == 2
        assert "is what is read; name another file" in outcome.stderr
        assert file.read_bytes() == before

    def test_a_missing_document_is_named(self, recap: Recap, tmp_path: Path) -> None:
        (tmp_path / "table.txt").write_text("of another run")
        outcome = recap("bench", "report", "none.json", "-o", str(tmp_path / "table.txt"))
        message = "recap: error: cannot read none.json: No such file or directory\n"
        assert outcome == Outcome(2, "", message)
        assert (tmp_path / "table.txt").read_text() == "of another run"

    def test_what_is_no_document_is_named(self, recap: Recap, tmp_path: Path) -> None:
        (tmp_path / "none.json").write_text("{}")
        outcome = recap("bench", "report", str(tmp_path / "none.json"))
        assert outcome.code == 2
        assert outcome.stderr.startswith(f"recap: error: {tmp_path / 'none.json'} is no benchmark")

    @pytest.mark.parametrize("name", ["", "none/table.txt"])
    def test_a_place_for_results_is_refused_early(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(UsageError, match=str(tmp_path / name)):
            check_output(tmp_path / name)

    def test_a_file_that_cannot_be_written_is_named(self, tmp_path: Path) -> None:
        path = tmp_path / "none" / "table.txt"
        with pytest.raises(UsageError, match=f"cannot write {path}: No such file"):
            publish(document(record("plain")), Format.TABLE, path)

    def test_it_needs_no_torch(self, file: Path) -> None:
        code = (
            "import sys; from pathlib import Path; from recap_cli import bench_report;"
            "from recap_cli.bench_report import Format, report;"
            "[report(Path(sys.argv[1]), format) for format in Format];"
            "print(*({'torch', 'transformers', 'matplotlib'} & set(sys.modules)), file=sys.stderr)"
        )
        command = [sys.executable, "-c", code, str(file)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
        assert done.stderr == "\n"
