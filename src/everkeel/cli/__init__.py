"""The `everkeel` command. `commands` lists what it can do, `main` runs one, `output` is how they all speak.

A command is a module with two functions, imported only when it is used:

    def add(parser: argparse.ArgumentParser) -> None: ...   # its arguments
    def run(args: argparse.Namespace) -> int: ...           # does it; answers the exit code
"""

from everkeel.cli.main import main as main
