"""A symbol's name as it is shown.

Law: never empty for a name that was not empty; what cannot be taken apart stays whole.  Nothing here cleans
text: `names.clean_name` does.
"""

import re

from sfsample.symbolize.demangle import demangle
from sfsample.symbolize.options import SymbolOptions

# what compilers add to the parts and copies that they make of a function; `.llvm.` has a hash behind it
_CLONE = re.compile(r"(?:\.(?:cold|warm|unlikely|part|constprop|isra|lto_priv|localalias|llvm|__uniq|resume"
                    r"|cleanup|destroy)(?:\.[0-9A-F]+)*)+(?=@|$)")  # fmt: skip
_RUST = re.compile(r"17h[0-9a-f]{16}E")  # ends a legacy name of Rust, which begins like one of C++
_VERSION = re.compile(r"@(?!plt$).*")  # of a symbol: ld writes it into .symtab, and not into .dynsym
_OPERATOR = re.compile(r"\boperator(?:<=>|<<=?|>>=?|->\*?|[<>]=?|\(\)|\[\]|\+\+|--|&&|\|\|"
                       r'|[-+*/%^&|=!]=?|[~,]|"" ?\w+| ?[A-Za-z_][\w:]*(?:\[\])?)')  # fmt: skip
_UNIT = re.compile(r"\((?:anonymous namespace|anonymous class|lambda|'[^()]*'|\{[^()]*\})\)")
_OPEN, _CLOSE = "<(", ">)"
_TAILS = (" const", " volatile", " &", " &&", " noexcept")


def spell(name: str, naming: SymbolOptions) -> str:
    """Return a name of a symbol table as the user wants it."""
    if naming.merge_clones:
        name = _CLONE.sub("", name) or name
    if naming.raw:
        return name
    name = _VERSION.sub("", name) or name
    text = demangle(name)
    is_cxx = text != name and name.startswith("_Z") and not _RUST.search(name)
    return simplify(text) if naming.simplify and is_cxx else text


def simplify(text: str) -> str:
    """Return a demangled name without template arguments, parameters and return type.

    `void a::f<int>(b::c<d>) const` is `a::f`; `operator<` and `(anonymous namespace)` stay.
    """
    kept, at, depth = [], 0, 0
    while at < len(text):
        whole = None if depth else _OPERATOR.match(text, at) or _UNIT.match(text, at)
        if whole:
            kept.append(whole[0])
            at = whole.end()
            continue
        letter = text[at]
        depth -= letter in _CLOSE and not text.endswith("-", 0, at)
        if not depth and letter not in _CLOSE + _OPEN:
            kept.append(letter)
        depth += letter in _OPEN
        if depth < 0:
            return text
        at += 1
    return _without_type("".join(kept)) or text


def _without_type(name: str) -> str:
    """Return what is left when a return type stands before the name and qualifiers behind it."""
    clone = name.find(" [clone")
    name, clones = (name[:clone], name[clone:]) if clone >= 0 else (name, "")
    for tail in _TAILS * 2:
        name = name.removesuffix(tail)
    operator = _OPERATOR.search(name)
    unit = _UNIT.search(name)
    end = min((found.start() for found in (operator, unit) if found), default=len(name))
    start = name.rfind(" ", 0, end) + 1
    return name[start:].strip() + clones
