"""Prints a completion script, made from the flags as --help is; it does not run sfsample at each key."""

from collections.abc import Iterator

from sfsample.cli.commands import COMMANDS, ENTRIES
from sfsample.cli.file_options import CompletionCommand
from sfsample.cli.history_flags import HISTORY_ACTIONS
from sfsample.cli.output_file import Output
from sfsample.cli.parse import FlagHelp, describe
from sfsample.core.printable import printable_lines

# bash expands the words of `compgen -W` once more, and processes choose their names: others are left out
_HARMLESS = " | sort -u | grep -xE '[[:alnum:]_.:+@-]+'"
_LISTINGS = {  # flag -> command of the shell that lists its values; it runs only when one is completed
    "--pid": "ls /proc | grep -xE '[0-9]+'",
    "--name": f"cat /proc/[0-9]*/comm 2>/dev/null{_HARMLESS}",
    "--user": f"cut -d: -f1 /etc/passwd{_HARMLESS}",
    "--unit": "systemctl list-units --type=service --plain --no-legend 2>/dev/null"
              f" | cut -d' ' -f1{_HARMLESS}",
    "--service": "sfsample history list --json 2>/dev/null | grep -o '\"service\": *\"[^\"]*'"
                 f" | cut -d'\"' -f4{_HARMLESS}",
}  # fmt: skip
_PATHS = ("FILE", "DIR")  # placeholders of values that are paths


def run(command: CompletionCommand) -> int:
    """Print the script; return the exit code."""
    lines = {"bash": bash_script, "zsh": zsh_script, "fish": fish_script}[command.shell]()
    Output("-").write(printable_lines(lines))
    return 0


def zsh_script() -> Iterator[str]:
    """Yield the lines of the script for zsh, which can run the script for bash."""
    yield "#compdef sfsample"
    yield "autoload -U bashcompinit && bashcompinit"
    yield from bash_script()


def bash_script() -> Iterator[str]:
    """Yield the lines of the script for bash; if the script has no suggestion, bash suggests files."""
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
                listing = _listing(flag)
                choices = f"$({listing})" if listing else " ".join(flag.choices)
                yield f'        {names}) COMPREPLY=($(compgen -W "{choices}" -- "$word")); return ;;'
    yield "    esac"
    yield '    case "$command" in'
    for command in ENTRIES:
        flags = describe(command)
        words = [word for flag in flags for word in flag.names or flag.choices]
        yield f'        "{command}") words="{" ".join(words)}" ;;'
    yield "    esac"
    yield f'    [ "$COMP_CWORD" != 1 ] || words="{" ".join(COMMANDS)} $words"'
    yield '    COMPREPLY=($(compgen -W "$words" -- "$word"))'
    yield "}"
    yield "complete -o default -F _sfsample sfsample"


def _listing(flag: FlagHelp) -> str:
    """Return the command that lists the values of a flag, "" if there is none."""
    return next((_LISTINGS[name] for name in flag.names if name in _LISTINGS), "")


def fish_script() -> Iterator[str]:
    """Yield the lines of the script for fish."""
    yield "complete -c sfsample -f"
    for name, entry in COMMANDS.items():
        yield f"complete -c sfsample -n __fish_use_subcommand -a {name} -d {_quote(entry.summary)}"
    for command in ENTRIES:
        condition = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in command.split())
        if command == "record":  # the default command: its flags are valid without its name
            others = " ".join(name for name in COMMANDS if name != command)
            condition = f"not __fish_seen_subcommand_from {others}"
        for flag in describe(command):
            yield from _fish_flag(flag, f"complete -c sfsample -n {_quote(condition)}")


def _fish_flag(flag: FlagHelp, complete: str) -> Iterator[str]:
    listing = _listing(flag)
    words = f"({listing})" if listing else " ".join(flag.choices)
    choices = f" -a {_quote(words)}" if words else ""
    if not flag.names:
        yield f"{complete}{choices or ' -F'}"
        return
    names = "".join(f" -l {name[2:]}" if name.startswith("--") else f" -s {name[1:]}" for name in flag.names)
    value = ""
    if flag.value:
        value = " -r -F" if flag.value in _PATHS and not choices else f" -x{choices}"
    yield f"{complete}{names}{value} -d {_quote(flag.help)}"


def _quote(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
