"""`sfsample completion SHELL`: completion for bash, zsh and fish, made from what --help is made from.

Law: a flag that exists is offered and no other; nothing runs sfsample while the user types.
"""

from argparse import Namespace
from collections.abc import Iterator

from sfsample.cli.console import Output
from sfsample.cli.flags import COMMANDS, GROUPS
from sfsample.cli.parse import Flag, described

_PATHS = ("FILE", "DIR")
_WHAT = {name: what for _, commands in GROUPS for name, _, what, _ in commands}


def run(arguments: Namespace) -> int:
    """Print it."""
    lines = {"bash": _bash, "zsh": _zsh, "fish": _fish}[arguments.shell]()
    Output("-").write("".join(f"{line}\n" for line in lines))
    return 0


def _flags(command: str) -> list[Flag]:
    return described(command)[1]


def _words(command: str) -> str:
    """Return what can stand where no value is expected."""
    flags = _flags(command)
    choices = [choice for flag in flags if not flag.names for choice in flag.choices]
    return " ".join([name for flag in flags for name in flag.names] + choices)


def _bash() -> Iterator[str]:
    yield "_sfsample() {"
    yield "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} command=record words"
    yield f'    case " {" ".join(COMMANDS)} " in *" ${{COMP_WORDS[1]}} "*) command=${{COMP_WORDS[1]}} ;; esac'
    yield '    case "$command $before" in'
    for command in COMMANDS:
        for flag in _flags(command):
            if flag.names and flag.value:
                names = "|".join(f'"{command} {name}"' for name in flag.names)
                yield f"        {names}) {_bash_value(flag)}; return ;;"
    yield "    esac"
    yield '    case "$command" in'
    for command in COMMANDS:
        yield f'        {command}) words="{_words(command)}" ;;'
    yield "    esac"
    yield f'    [ "$COMP_CWORD" != 1 ] || words="{" ".join(COMMANDS)} $words"'
    yield '    COMPREPLY=($(compgen -W "$words" -- "$word"))'
    yield '    [ "${#COMPREPLY[@]}" != 0 ] || compopt -o default'
    yield "}"
    yield "complete -F _sfsample sfsample"


def _bash_value(flag: Flag) -> str:
    if flag.choices:
        return f'COMPREPLY=($(compgen -W "{" ".join(flag.choices)}" -- "$word"))'
    if flag.value.startswith("PID"):
        return 'COMPREPLY=($(compgen -W "$(cd /proc && echo [0-9]*)" -- "$word"))'
    return "COMPREPLY=(); compopt -o default" if flag.value in _PATHS else "COMPREPLY=()"


def _zsh() -> Iterator[str]:
    yield "#compdef sfsample"
    yield "_sfsample() {"
    yield "    local command=record"
    yield f"    case $words[2] in ({'|'.join(COMMANDS)}) command=$words[2] ;; esac"
    yield "    if (( CURRENT == 2 )); then"
    yield f"        local -a commands=({' '.join(_quote(f'{name}:{_WHAT[name]}') for name in COMMANDS)})"
    yield "        _describe command commands"
    yield "    fi"
    yield "    case $command in"
    for command in COMMANDS:
        specs = " ".join(spec for flag in _flags(command) for spec in _zsh_specs(flag))
        words = [choice for flag in _flags(command) if not flag.names for choice in flag.choices]
        rest = f"({' '.join(words)})" if words else "_files"
        yield f"        ({command}) _arguments {specs} '*:word:{rest}' ;;"
    yield "    esac"
    yield "}"
    yield "compdef _sfsample sfsample"


def _zsh_specs(flag: Flag) -> Iterator[str]:
    action = (
        f"({' '.join(flag.choices)})"
        if flag.choices
        else "_pids"
        if flag.value.startswith("PID")
        else "_files"
    )
    value = f":{_zsh_text(flag.value)}:{action}" if flag.value else ""
    for name in flag.names:
        yield _quote(f"{name}[{_zsh_text(flag.help)}]{value}")


def _zsh_text(text: str) -> str:
    return "".join(f"\\{letter}" if letter in "[]:\\" else letter for letter in text)


def _fish() -> Iterator[str]:
    yield "complete -c sfsample -f"
    for command in COMMANDS:
        yield f"complete -c sfsample -n __fish_use_subcommand -a {command} -d {_quote(_WHAT[command])}"
    for command in COMMANDS:
        here = f"__fish_seen_subcommand_from {command}"
        if command == "record":  # the default: its flags come without its name too
            here = f"not __fish_seen_subcommand_from {' '.join(name for name in COMMANDS if name != command)}"
        for flag in _flags(command):
            yield from _fish_flag(flag, f"complete -c sfsample -n {_quote(here)}")


def _fish_flag(flag: Flag, start: str) -> Iterator[str]:
    choices = f" -a {_quote(' '.join(flag.choices))}" if flag.choices else ""
    if not flag.names:
        yield f"{start}{choices or ' -F'}"
        return
    names = "".join(f" -l {name[2:]}" if name.startswith("--") else f" -s {name[1:]}" for name in flag.names)
    value = (
        "" if not flag.value else f" -x{choices}" if choices else " -r -F" if flag.value in _PATHS else " -x"
    )
    yield f"{start}{names}{value} -d {_quote(flag.help)}"


def _quote(text: str) -> str:
    """Quote for a shell; all three read it alike."""
    return "'" + text.replace("'", "'\\''") + "'"
