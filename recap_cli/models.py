"""`--list-models`: the models that have short names, on stdout, as a table or in JSON."""

import sys

import orjson
from rich.console import Console
from rich.table import Table

from engine.catalogue import MODELS, is_cached
from engine.families import FAMILIES


def print_models(*, json: bool) -> None:
    """Write a model a line, as wide as it is; with `json` one array of objects."""
    rows = [
        {
            "name": model.alias,
            "family": FAMILIES[model.model_type].name,
            "size": model.size,
            "licence": model.licence,
            "here": is_cached(model.id),
            "model": model.id,
        }
        for model in MODELS
    ]
    if json:
        sys.stdout.buffer.write(orjson.dumps(rows, option=orjson.OPT_APPEND_NEWLINE))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in rows[0]:
        table.add_column(heading.upper(), no_wrap=True)
    for row in rows:
        table.add_row(*map(str, (row | {"here": "yes" if row["here"] else "no"}).values()))
    # A narrow terminal wraps lines, where Rich would cut them.
    Console(file=sys.stdout, width=200, markup=False, highlight=False).print(table)
