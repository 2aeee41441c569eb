"""Pictures as Mermaid flowcharts. No colours: readers have light and dark pages, and Mermaid's themes fit both."""

from __future__ import annotations

from everkeel.sagas.diagram import SEVERAL, Cell, Picture

# Mermaid looks for %%{directives}%% everywhere, in labels too.
_ENTITIES = {'"': "#quot;", "<": "#lt;", ">": "#gt;", "&": "#amp;", **{one: f"#{ord(one)};" for one in "#`\\%{}"}}


def mermaid(picture: Picture) -> str:
    """The flowchart: solid arrows are the way forward, dotted ones the way back."""
    number = {cell.key: index for index, cell in enumerate(picture.cells)}
    lines = ["flowchart TD", f"    %% {_comment(picture.title)}"]
    grouped = {key for keys in picture.groups for key in keys}
    for index, keys in enumerate(picture.groups):
        lines.append(f'    subgraph g{index}["{SEVERAL}"]')
        for key in keys:
            lines += [f"        {line}" for line in _nodes(picture.by_key[key], number[key])]
        lines.append("    end")
    for cell in picture.cells:
        if cell.key not in grouped:
            lines += [f"    {line}" for line in _nodes(cell, number[cell.key])]
    lines += [f"    s{number[key]} --> s{number[cell.key]}" for cell in picture.cells for key in cell.after]
    lines += [f"    s{number[cell.key]} -.-|undone by| c{number[cell.key]}" for cell in picture.cells if cell.undo]
    lines += [f"    c{number[late]} -.-> c{number[early]}" for late, early in picture.way_back]
    lines += ["    classDef pivot stroke-width:4px", "    classDef undo stroke-dasharray:5 4"]
    for kind, chosen in (
        ("pivot", [f"s{number[cell.key]}" for cell in picture.cells if cell.pivot]),
        ("undo", [f"c{number[cell.key]}" for cell in picture.cells if cell.undo]),
    ):
        if chosen:
            lines.append(f"    class {','.join(chosen)} {kind}")
    return "\n".join(lines) + "\n"


def _nodes(cell: Cell, number: int) -> list[str]:
    pivot = ("PIVOT",) if cell.pivot else ()
    nodes = [f's{number}["{_label((cell.name, *pivot, *cell.notes))}"]']
    if cell.undo is not None:
        nodes.append(f'c{number}(["{_label((cell.undo, *cell.undo_notes))}"])')
    return nodes


def _label(lines: tuple[str, ...]) -> str:
    return "<br/>".join(_escaped(line) for line in lines)


def _escaped(text: str) -> str:
    """Text that stays text: no markup, no Markdown, no end of the label.

    >>> _escaped('pay "now" <b>')
    'pay #quot;now#quot; #lt;b#gt;'
    """
    return "".join(_ENTITIES.get(one, one if one.isprintable() else " ") for one in text)


def _comment(text: str) -> str:
    return "".join(one if one.isprintable() and one not in '{}%"' else " " for one in text)  # %%{...}%% is a directive
