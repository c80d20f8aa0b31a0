"""Who measured what: SOURCES.md, made from sources.csv and the tables.

`python -m xstage.scenarios.published.sources` prints it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from importlib.resources import files

from .csv_lines import read_lines
from .load import load_links, load_published

_HEAD = """\
# Sources of the published measurements

Made by `python -m xstage.scenarios.published.sources` from sources.csv and the tables; a test keeps them in step.
Only numbers were taken, and what they are numbers of; each row of a table has the full address. Licences are those of the
repositories, as far as they are known. Nobody named here has checked what is made of these numbers.

| source | who | what was taken | licence | megamoe | attention_tp | links |
|---|---|---|---|---:|---:|---:|
"""


def sources_page() -> str:
    """The text of SOURCES.md."""
    lines = [line.cells for line in read_lines(files(__package__).joinpath("sources.csv"))[1]]
    prefixes = [line["prefix"] for line in lines]
    counts = Counter(
        (prefix_of(address, prefixes), table) for table, addresses in all_addresses().items() for address in addresses
    )
    rows = [
        f"| {line['prefix']} | {line['who']} | {line['taken']} | {line['licence']} | "
        + " | ".join(str(counts[line["prefix"], table] or "") for table in all_addresses())
        + " |"
        for line in lines
    ]
    return _HEAD + "\n".join(rows) + "\n"


def all_addresses() -> dict[str, list[str]]:
    """The source of every row, by table."""
    return {
        "megamoe": list(load_published("megamoe").source_url),
        "attention_tp": list(load_published("attention_tp").source_url),
        "links": list(load_links().source),
    }


def prefix_of(address: str, prefixes: Iterable[str]) -> str:
    """The source that an address belongs to. Raises `LookupError` if sources.csv lacks it."""
    fitting = [prefix for prefix in prefixes if address == prefix or address.startswith((f"{prefix}/", f"{prefix} "))]
    if len(fitting) != 1:
        raise LookupError(f"{address} belongs to {len(fitting)} lines of sources.csv")
    return fitting[0]


if __name__ == "__main__":
    print(sources_page(), end="")
