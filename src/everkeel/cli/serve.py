"""`everkeel serve`: the control plane alone, over the policies of modules that it imports."""

from __future__ import annotations

import argparse
import logging
import os
import secrets
from typing import Any

from everkeel.cli.application import add_application, import_application
from everkeel.cli.output import FINE, CommandError, complain
from everkeel.telemetry.extras import missing


def add(parser: argparse.ArgumentParser) -> None:
    """Where, and of what."""
    parser.description = (
        "Run the control plane alone. It shows the policies of this very process: those of the modules given by "
        "--import or --app. To see those of a service, put it into the service: Everkeel(app).with_control_plane()."
    )
    parser.add_argument("--host", default="127.0.0.1", help="where to listen (default: 127.0.0.1, this machine only)")
    parser.add_argument("--port", type=_port, default=8642, help="(default: 8642; 0: any that is free)")
    parser.add_argument("--prefix", default="/everkeel", help="where it lives (default: /everkeel)")
    parser.add_argument("--config", metavar="FILE", help="configuration to load first, with its control table")
    parser.add_argument("--watch", action="store_true", help="load that file again when it changes")
    parser.add_argument("--new-token", action="store_true", help="make an admin's token for this run, and print it")
    parser.add_argument("--no-metrics", action="store_true", help="show no numbers")
    parser.add_argument("--no-control", action="store_true", help="allow no changes")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = (
        "Tokens: EVERKEEL_CONTROL_TOKENS='name:role:token,...', or control.tokens in the file. Without any, only\n"
        "/liveness answers.\n\nexamples:\n  everkeel serve --import shop.payments --new-token\n"
        "  everkeel serve --app shop.main:app --config everkeel.yaml --watch"
    )
    add_application(parser)


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"must be a number from 0 to 65535 (got {text!r})")
    return int(text)


def run(args: argparse.Namespace) -> int:
    """Serve until interrupted."""
    try:
        import uvicorn
    except ImportError as error:  # pragma: no cover - the tests have it
        raise CommandError(str(missing("everkeel serve", "uvicorn", "uvicorn"))) from error
    logging.basicConfig(level=logging.INFO, format="%(levelname)s:     %(name)s: %(message)s")  # the audit log, too
    plane = make_plane(args)
    # Live streams end when it is asked to stop; the timeout is for whatever hangs all the same.
    limits: dict[str, Any] = {"timeout_graceful_shutdown": 5, "server_header": False, "ws": "none"}
    uvicorn.run(plane, host=args.host, port=args.port, log_level="info", **limits)
    return FINE


def make_plane(args: argparse.Namespace) -> Any:
    """The plane that the arguments describe, over everything they import."""
    import_application(args)
    if args.config is not None or args.watch:
        from everkeel import config

        config.load(args.config, watch=args.watch)
    try:
        from everkeel.control import ControlPlane
        from everkeel.control.access import Token, tokens_of_environment
        from everkeel.control.configuration import control_table
    except ImportError as error:  # pragma: no cover - the tests have it
        raise CommandError(str(error)) from error
    options: dict[str, Any] = {"prefix": args.prefix.rstrip("/")}
    if args.new_token:
        secret = secrets.token_urlsafe(32)
        complain(f"EVERKEEL_TOKEN={secret}")
        known = [*tokens_of_environment(), *control_table().get("tokens", ())]
        options["tokens"] = [*known, Token(f"serve-{os.getpid()}", "admin", secret)]
    if args.no_metrics:
        options["enable_metrics"] = False
    if args.no_control:
        options["enable_control"] = False
    return ControlPlane(**options)
