"""Pictures of what is defined: a saga's steps and what undoes them, and a registry's events and theirs.

    print(to_mermaid(order))                            # for a README: GitHub and GitLab draw it
    Path("order.svg").write_text(to_svg(order))         # for everything else; light and dark, no script, nothing loaded
    print(to_text(order))                               # for a terminal

Drawn from the definition itself, so that a picture cannot be out of date:
`everkeel saga show order --import shop.sagas`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeAlias

from everkeel.sagas.choreography import Choreography, Reaction
from everkeel.sagas.compensations import Compensation, CompensationRegistry
from everkeel.sagas.definition import Saga
from everkeel.sagas.steps import NOTHING, Step

if TYPE_CHECKING:
    Drawable: TypeAlias = Saga[Any, Any, Any] | Choreography | CompensationRegistry

__all__ = ["to_mermaid", "to_svg", "to_text"]

SEVERAL = "at the same time"


@dataclass(frozen=True, slots=True)
class Cell:
    """One step (or event), and beside it what undoes it."""

    key: str
    """Its identity in the picture."""
    name: str
    notes: tuple[str, ...] = ()
    undo: str | None = None
    """What undoes it; None: nothing does, and the notes say why."""
    undo_notes: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    """Keys of those that it waits for."""
    pivot: bool = False


@dataclass(frozen=True)
class Picture:
    """What is to be drawn, before anybody has decided where."""

    title: str
    about: str
    cells: tuple[Cell, ...]
    ordered: bool = True
    """False: cells stand below each other, and none comes after another."""

    @cached_property
    def by_key(self) -> Mapping[str, Cell]:
        """Each cell by its key."""
        return {cell.key: cell for cell in self.cells}

    @cached_property
    def ranks(self) -> Sequence[Sequence[Cell]]:
        """Cells in rows: each below everything that it waits for, and as high as that lets it be."""
        if not self.ordered:
            return [[cell] for cell in self.cells]
        rank: dict[str, int] = {}
        left = list(self.cells)
        while left:  # definitions are checked for cycles: each round places at least one
            for cell in [one for one in left if all(name in rank for name in one.after)]:
                rank[cell.key] = 1 + max((rank[name] for name in cell.after), default=-1)
                left.remove(cell)
        rows: list[list[Cell]] = [[] for _ in range(1 + max(rank.values(), default=-1))]
        for cell in self.cells:
            rows[rank[cell.key]].append(cell)
        return rows

    @cached_property
    def groups(self) -> Sequence[Sequence[str]]:
        """Keys of those that begin at the same time because they wait for the same."""
        found: dict[tuple[str, ...], list[str]] = {}
        if self.ordered:
            for cell in self.cells:
                found.setdefault(tuple(sorted(cell.after)), []).append(cell.key)
        return [keys for keys in found.values() if len(keys) > 1]

    @cached_property
    def way_back(self) -> Sequence[tuple[str, str]]:
        """Pairs of cells that have compensations: the second is undone when the first is."""

        def before(key: str) -> list[str]:
            # Whoever has nothing to undo is passed by.
            found: list[str] = []
            for other in self.by_key[key].after:
                found += [other] if self.by_key[other].undo is not None else before(other)
            return list(dict.fromkeys(found))

        return [(cell.key, other) for cell in self.cells if cell.undo is not None for other in before(cell.key)]


def to_mermaid(what: Drawable) -> str:
    """A flowchart in Mermaid's language; all text in it is escaped.

    >>> from everkeel.sagas import Saga, Step
    >>> def reserve(context): ...
    >>> def release(context): ...
    >>> print(to_mermaid(Saga("order", Step("reserve", reserve, release))).splitlines()[0])
    flowchart TD
    """
    from everkeel.sagas.diagram_mermaid import mermaid

    return mermaid(picture_of(what))


def to_svg(what: Drawable) -> str:
    """An SVG document, drawn here; it follows the reader's light or dark theme."""
    from everkeel.sagas.diagram_svg import svg

    return svg(picture_of(what))


def to_text(what: Drawable) -> str:
    """Lines for a terminal."""
    picture = picture_of(what)
    title = _plain(picture.title)
    lines = [f"{title} ({picture.about})" if picture.about else title]
    width = max((len(_plain(cell.name)) for cell in picture.cells), default=0)
    together = {key for keys in picture.groups for key in keys}
    for number, row in enumerate(picture.ranks, 1):
        for index, cell in enumerate(row):
            mark = f"{number:>3}." if index == 0 else "   +"
            undo = "" if cell.undo is None else f"undone by {_plain(cell.undo)}"
            words = [undo, *map(_plain, cell.undo_notes), "PIVOT" if cell.pivot else "", *map(_plain, cell.notes)]
            if cell.key in together and index:
                words.append(SEVERAL)
            waits = ", ".join(_plain(picture.by_key[key].name) for key in cell.after)
            if waits and number > 1 and set(cell.after) != {one.key for one in picture.ranks[number - 2]}:
                words.append(f"after {waits}")
            lines.append(f"{mark} {_plain(cell.name):{width}}  {'; '.join(word for word in words if word)}".rstrip())
    return "\n".join(lines)


def picture_of(what: Drawable) -> Picture:
    """What is to be drawn of a saga or of a registry; a TypeError for anything else."""
    if isinstance(what, Saga):
        cells = [_of_step(step, what.after[step.name]) for step in what.steps]
        return Picture(f"saga {what.name}", _about(what), tuple(cells))
    if isinstance(what, Choreography):
        cells = [_of_reaction(step, what.after[step.name], what.starts) for step in what.steps]
        return Picture(f"saga {what.name}", f"choreographed, {_about(what)}", tuple(cells))
    if isinstance(what, CompensationRegistry):
        cells = [_of_compensation(number, one) for number, one in enumerate(what)]
        return Picture("What undoes what", f"{len(cells)} registered", tuple(cells), ordered=False)
    raise TypeError(f"a saga, a choreography or a CompensationRegistry can be drawn (got {type(what).__qualname__})")


# ------------------------------------------------------------------ what is said of each


def _about(saga: Saga[Any, Any, Any] | Choreography) -> str:
    deadline = "no deadline" if saga.deadline is None else f"deadline {saga.deadline:g} s"
    return f"version {saga.version}, {deadline}"


def _of_step(step: Step, after: tuple[str, ...]) -> Cell:
    notes = []
    if step.when is not None:
        notes.append(f"only if {named(step.when, 'its condition holds')}")
    if step.pivot:
        notes.append("no way back once it is done")
    elif step.compensation is NOTHING:
        notes.append("nothing to undo")
    elif step.compensation is None:
        notes.append("tried until it is done")  # only after the pivot: definitions see to that
    undo = named(step.compensation) if step.undoable else None
    return Cell(step.name, step.name, tuple(notes), undo, (), after, step.pivot)


def _of_reaction(step: Reaction, after: tuple[str, ...], starts: str) -> Cell:
    notes = [] if after else [f"on {starts}"]
    notes.append(f"{step.by} says {step.done}" if step.by else f"says {step.done}")
    notes += [f"or no: {rejected}" for rejected in step.rejected]
    if step.pivot:
        notes.append("no way back once it is done")
    undo_notes = () if step.undone is None else (f"confirmed by {step.undone}",)
    return Cell(step.name, step.name, tuple(notes), step.compensation, undo_notes, after, step.pivot)


def _of_compensation(number: int, one: Compensation) -> Cell:
    place = " ".join(word for word in (one.saga, one.step) if word)
    notes = tuple(note for note in (place and f"in {place}", one.note) if note)
    by = (f"by {one.by}" if one.by else "", f"confirmed by {one.confirmed_by}" if one.confirmed_by else "")
    return Cell(str(number), one.event, notes, one.undone_by, tuple(word for word in by if word))


def named(function: Any, nameless: str = "a function without a name") -> str:
    """A function as the people who wrote it know it.

    >>> named(named), named(partial(named)), named(lambda: 1, "its condition holds")
    ('named', 'named', 'its condition holds')
    """
    while isinstance(function, partial):
        function = function.func
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    name = name.rpartition("<locals>.")[2]
    return nameless if name == "<lambda>" else name


def _plain(text: str) -> str:
    """Nothing that does something to a terminal."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
