"""`sfsample completion SHELL`: prints a completion script for bash, zsh or fish.

The script is made from the same description of the flags as --help, so it offers the flags that exist and no
others.  It does not run sfsample while the user types.
"""

from collections.abc import Iterator

from sfsample.cli.commands import COMMANDS, ENTRIES
from sfsample.cli.file_options import CompletionCommand
from sfsample.cli.history_flags import HISTORY_ACTIONS
from sfsample.cli.output_file import Output
from sfsample.cli.parse import FlagHelp, describe
from sfsample.core.printable import printable_lines

_PATHS = ("FILE", "DIR")  # placeholders of values that are paths
_SUMMARIES = {name: entry.summary for name, entry in COMMANDS.items()}


def run(command: CompletionCommand) -> int:
    """Print the script; return the exit code."""
    lines = {"bash": bash_script, "zsh": zsh_script, "fish": fish_script}[command.shell]()
    Output("-").write(printable_lines(lines))
    return 0


def _positional_choices(flags: list[FlagHelp]) -> list[str]:
    return [choice for flag in flags if not flag.names for choice in flag.choices]


def bash_script() -> Iterator[str]:
    """Yield the lines of the script for bash."""
    yield "_sfsample() {"
    yield "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} command=record words"
    yield f'    case " {" ".join(COMMANDS)} " in *" ${{COMP_WORDS[1]}} "*) command=${{COMP_WORDS[1]}} ;; esac'
    yield f'    case "$command" in history) case " {" ".join(HISTORY_ACTIONS)} " in'
    yield '        *" ${COMP_WORDS[2]} "*) command="history ${COMP_WORDS[2]}" ;; esac ;;'
    yield "    esac"
    yield '    case "$command $before" in'
    for command in ENTRIES:
        for flag in describe(command):
            if flag.names and flag.value:
                names = "|".join(f'"{command} {name}"' for name in flag.names)
                yield f"        {names}) {_bash_value(flag)}; return ;;"
    yield "    esac"
    yield '    case "$command" in'
    for command in ENTRIES:
        flags = describe(command)
        words = [*(name for flag in flags for name in flag.names), *_positional_choices(flags)]
        yield f'        "{command}") words="{" ".join(words)}" ;;'
    yield "    esac"
    yield f'    [ "$COMP_CWORD" != 1 ] || words="{" ".join(COMMANDS)} $words"'
    yield '    COMPREPLY=($(compgen -W "$words" -- "$word"))'
    yield '    [ "${#COMPREPLY[@]}" != 0 ] || compopt -o default'
    yield "}"
    yield "complete -F _sfsample sfsample"


def _bash_value(flag: FlagHelp) -> str:
    if flag.choices:
        return f'COMPREPLY=($(compgen -W "{" ".join(flag.choices)}" -- "$word"))'
    if flag.value.startswith("PID"):
        return 'COMPREPLY=($(compgen -W "$(cd /proc && echo [0-9]*)" -- "$word"))'
    return "COMPREPLY=(); compopt -o default" if flag.value in _PATHS else "COMPREPLY=()"


def zsh_script() -> Iterator[str]:
    """Yield the lines of the script for zsh."""
    yield "#compdef sfsample"
    yield "_sfsample() {"
    yield "    local command=record"
    yield f"    case $words[2] in ({'|'.join(COMMANDS)}) command=$words[2] ;; esac"
    yield "    if (( CURRENT == 2 )); then"
    yield f"        local -a commands=({' '.join(_quote(f'{name}:{_SUMMARIES[name]}') for name in COMMANDS)})"
    yield "        _describe command commands"
    yield "    fi"
    yield f"    case $words[3] in ({'|'.join(HISTORY_ACTIONS)})"
    yield '        [[ $command != history ]] || command="history $words[3]" ;;'
    yield "    esac"
    yield "    case $command in"
    for command in ENTRIES:
        flags = describe(command)
        specs = " ".join(spec for flag in flags for spec in _zsh_specs(flag))
        words = _positional_choices(flags)
        rest = f"({' '.join(words)})" if words else "_files"
        yield f"        ({_quote(command)}) _arguments {specs} '*:word:{rest}' ;;"
    yield "    esac"
    yield "}"
    yield "compdef _sfsample sfsample"


def _zsh_specs(flag: FlagHelp) -> Iterator[str]:
    if flag.choices:
        action = f"({' '.join(flag.choices)})"
    else:
        action = "_pids" if flag.value.startswith("PID") else "_files"
    value = f":{_zsh_text(flag.value)}:{action}" if flag.value else ""
    for name in flag.names:
        yield _quote(f"{name}[{_zsh_text(flag.help)}]{value}")


def _zsh_text(text: str) -> str:
    return "".join(f"\\{letter}" if letter in "[]:\\" else letter for letter in text)


def fish_script() -> Iterator[str]:
    """Yield the lines of the script for fish."""
    yield "complete -c sfsample -f"
    for command in COMMANDS:
        yield f"complete -c sfsample -n __fish_use_subcommand -a {command} -d {_quote(_SUMMARIES[command])}"
    for command in ENTRIES:
        condition = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in command.split())
        if command == "record":  # the default command: its flags are valid without its name
            others = " ".join(name for name in COMMANDS if name != command)
            condition = f"not __fish_seen_subcommand_from {others}"
        for flag in describe(command):
            yield from _fish_flag(flag, f"complete -c sfsample -n {_quote(condition)}")


def _fish_flag(flag: FlagHelp, complete: str) -> Iterator[str]:
    choices = f" -a {_quote(' '.join(flag.choices))}" if flag.choices else ""
    if not flag.names:
        yield f"{complete}{choices or ' -F'}"
        return
    names = "".join(f" -l {name[2:]}" if name.startswith("--") else f" -s {name[1:]}" for name in flag.names)
    value = ""
    if flag.value:
        value = " -r -F" if flag.value in _PATHS and not choices else f" -x{choices}"
    yield f"{complete}{names}{value} -d {_quote(flag.help)}"


def _quote(text: str) -> str:
    """Quote for bash, zsh and fish, which read it alike."""
    return "'" + text.replace("'", "'\\''") + "'"
