"""`--list-models`: the models that have short names, as a table on stdout."""

import sys

from rich.console import Console
from rich.table import Table

from engine.catalogue import MODELS, is_cached
from engine.families import FAMILIES


def print_models() -> None:
    """Write the table, a model a line, as wide as it is."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("NAME", "FAMILY", "SIZE", "LICENCE", "HERE", "MODEL"):
        table.add_column(heading, no_wrap=True)
    for model in MODELS:
        here = "yes" if is_cached(model.id) else "no"
        family = FAMILIES[model.model_type].name
        table.add_row(model.alias, family, model.size, model.licence, here, model.id)
    # A narrow terminal wraps lines, where Rich would cut them.
    Console(file=sys.stdout, width=200, markup=False, highlight=False).print(table)
