"""`everkeel generate`: a protected service and its client from an OpenAPI document, again and again."""

from __future__ import annotations

import argparse

from everkeel.cli.output import FINE, add_json, emit_json, paint


def add(parser: argparse.ArgumentParser) -> None:
    """The document, the folder, and what to do about what is there."""
    parser.add_argument("document", metavar="SPEC", help="an OpenAPI 3.0 or 3.1 document, in YAML or JSON")
    parser.add_argument(
        "-o", "--output", metavar="DIR", required=True, help="the folder of the service; made if needed"
    )
    parser.add_argument("--package", metavar="NAME", help="the Python package (default: from the document's title)")
    parser.add_argument("--dry-run", action="store_true", help="show what would change, and write nothing")
    parser.add_argument("--force", action="store_true", help="write over generated files that were edited by hand")
    add_json(parser)
    parser.epilog = (
        "Bodies in handlers/ are yours: generating again keeps them and renews the signatures. "
        "Files that are written once (pyproject.toml, README.md) are never touched again."
    )


def run(args: argparse.Namespace) -> int:
    """Write it, and say what was written; the diff of what changed goes first."""
    from everkeel.openapi import generate

    plan = generate(args.document, args.output, package=args.package, force=args.force)
    if not args.dry_run:
        plan.write()
    if args.json:
        files = [{"path": change.path, "kind": change.kind, "note": change.note} for change in plan.changes]
        emit_json({"written": not args.dry_run, "files": files, "diff": plan.diff})
        return FINE
    for line in plan.diff.splitlines():
        colour = {"+": "green", "-": "red", "@": "blue"}.get(line[:1])
        print(paint(line, colour) if colour else line)
    for change in plan.changes:
        if change.kind != "same" or change.note:
            print(f"{change.kind:8}{change.path}" + (f"  ({change.note})" if change.note else ""))
    counts = {kind: sum(change.kind == kind for change in plan.changes) for kind in ("new", "changed", "same", "kept")}
    said = ", ".join(f"{number} {kind}" for kind, number in counts.items() if number) or "nothing"
    print(f"{'would write' if args.dry_run else 'wrote'} {args.output}: {said}")
    return FINE
