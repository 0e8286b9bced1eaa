"""Prints the completion script of a shell.  The script contains all flags, so it seldom runs sfsample."""

from collections.abc import Iterator
from itertools import chain

from sfsample.cli.commands import COMMANDS, ENTRIES
from sfsample.cli.file_options import CompletionCommand
from sfsample.cli.history_flags import HISTORY_ACTIONS
from sfsample.cli.output_file import Output
from sfsample.cli.parse import describe
from sfsample.core.printable import printable_lines

# Filter of names.  bash expands the words of `compgen -W`, so a name like `$(reboot)` would be executed.
_HARMLESS = " | sort -u | grep -xE '[[:alnum:]_.:+@-]+'"
_LISTINGS = {  # flag -> shell command that lists the values of the flag, when the user completes a value
    "--pid": "ls /proc | grep -xE '[0-9]+'",
    "--name": f"cat /proc/[0-9]*/comm 2>/dev/null{_HARMLESS}",
    "--user": f"cut -d: -f1 /etc/passwd{_HARMLESS}",
    "--unit": "systemctl list-units --type=service --plain --no-legend 2>/dev/null"
              f" | cut -d' ' -f1{_HARMLESS}",
    "--service": "sfsample history list --json 2>/dev/null | grep -o '\"service\": *\"[^\"]*'"
                 f" | cut -d'\"' -f4{_HARMLESS}",
}  # fmt: skip


def run(command: CompletionCommand) -> int:
    """Print the script; return the exit code."""
    zsh_head = ("#compdef sfsample", "autoload -U bashcompinit && bashcompinit")  # zsh then runs bash code
    lines = (zsh_head if command.shell == "zsh" else (), bash_script())
    Output("-").write(printable_lines(chain(*lines)))
    return 0


def bash_script() -> Iterator[str]:
    """Yield the lines of the script.  If the script suggests no word, the shell suggests files."""
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
                listing = next((_LISTINGS[name] for name in flag.names if name in _LISTINGS), "")
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
