"""`everkeel completion bash|zsh|fish`: a static script, made from the parsers, so it cannot know less than they do."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import NamedTuple

SHELLS = ("bash", "zsh", "fish")


def add(parser: argparse.ArgumentParser) -> None:
    """Which shell."""
    parser.add_argument("shell", choices=SHELLS, help="which shell")
    parser.epilog = (
        'bash: eval "$(everkeel completion bash)" in ~/.bashrc. zsh: everkeel completion zsh > a file named _everkeel '
        "in $fpath. fish: everkeel completion fish > ~/.config/fish/completions/everkeel.fish"
    )


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    from everkeel.cli.commands import COMMANDS
    from everkeel.cli.main import build

    places = list(_places(build(COMMANDS), ()))
    print({"bash": _bash, "zsh": _zsh, "fish": _fish}[args.shell](places), end="")
    return 0


class Place(NamedTuple):
    """Somewhere in a command line: the commands before it, and the words that may follow, with their help."""

    path: tuple[str, ...]
    words: list[tuple[str, str]]


def _places(parser: argparse.ArgumentParser, path: tuple[str, ...]) -> Iterator[Place]:
    words: list[tuple[str, str]] = []
    inside: list[tuple[str, argparse.ArgumentParser]] = []
    for action in parser._actions:  # argparse has no public way to ask a parser what it takes
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, one in action.choices.items():
                words.append((name, helps.get(name, "")))
                inside.append((name, one))
        elif action.option_strings:
            words += [(option, action.help or "") for option in action.option_strings if option.startswith("--")]
        elif action.choices is not None:
            words += [(str(choice), action.help or "") for choice in action.choices]
    yield Place(path, [(word, _plain(text)) for word, text in words])
    for name, one in inside:
        yield from _places(one, (*path, name))


def _plain(text: str) -> str:
    """One line that is safe between single quotes in every shell; of `(default: %(default)s)`, nothing."""
    kept = text.split("(default: %")[0]
    return " ".join(kept.replace("'", "").replace('"', "").replace(":", " -").replace("%%", "%").split())


def _bash(places: list[Place]) -> str:
    cases = "".join(
        f'    "{" ".join(place.path)}") words="{" ".join(word for word, _ in place.words)}" ;;\n' for place in places
    )
    return f"""\
# bash completion of everkeel
_everkeel() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" place="" words="" word
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case "$word" in -*) ;; *) _everkeel_words "${{place:+$place }}$word" && place="${{place:+$place }}$word" ;; esac
  done
  _everkeel_words "$place"
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
_everkeel_words() {{
  case "$1" in
{cases}    *) return 1 ;;
  esac
}}
complete -o default -F _everkeel everkeel
"""


def _zsh(places: list[Place]) -> str:
    cases = "".join(f"    '{' '.join(place.path)}') options=({' '.join(_described(place))}) ;;\n" for place in places)
    return f"""\
#compdef everkeel
# zsh completion of everkeel
_everkeel_words() {{
  case "$1" in
{cases}    *) return 1 ;;
  esac
}}
_everkeel() {{
  local place='' word
  local -a options
  for word in ${{words[2,CURRENT-1]}}; do
    [[ $word == -* ]] || {{ _everkeel_words "${{place:+$place }}$word" && place="${{place:+$place }}$word" }}
  done
  options=()
  _everkeel_words "$place"
  _describe 'everkeel' options || _files
}}
if [[ $funcstack[1] == _everkeel ]]; then _everkeel "$@"; else compdef _everkeel everkeel; fi
"""


def _described(place: Place) -> Iterator[str]:
    for word, text in place.words:
        yield f"'{word}:{text}'"


def _fish(places: list[Place]) -> str:
    lines = ["# fish completion of everkeel"]
    for place in places:
        seen = [f"__fish_seen_subcommand_from {name}" for name in place.path]
        deeper = [word for word, _ in place.words if not word.startswith("-")]
        if deeper:
            seen.append(f"not __fish_seen_subcommand_from {' '.join(deeper)}")
        condition = f" -n '{'; and '.join(seen)}'" if seen else ""
        for word, text in place.words:
            what = f"-l {word[2:]}" if word.startswith("--") else f"-f -a {word}"
            lines.append(f"complete -c everkeel{condition} {what} -d '{text}'")
    return "\n".join(lines) + "\n"
