"""How a text table is written: the options of every command that reads one."""

from typing import Annotated

import typer

Delimiter = Annotated[
    str | None, typer.Option(help="For CSV; by default found in the first line. 'tab' for tabs.")
]
Encoding = Annotated[
    str | None, typer.Option(help="For CSV, such as cp1252; by default UTF-8, or as marked.")
]
Decimal = Annotated[str, typer.Option(help="For CSV: the decimal sign, a point or a comma.")]
