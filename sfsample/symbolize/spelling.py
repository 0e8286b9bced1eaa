"""Spells a symbol as the user wants to see it: demangled or raw, with or without suffixes and arguments.

C++ (Itanium ABI) and Rust (v0 and legacy) are demangled.  `named_frame.clean_name` cleans the text later.

Invariant: nothing raises or hangs, and a name never becomes empty (tests/symbolize/test_spelling.py,
tests/symbolize/test_spelling_demangle.py).  A name that cannot be demangled or parsed stays as it is.
"""

import re

from sfsample.symbolize.options import SymbolOptions

_PREFIXES = ("_Z", "_R")
_MAX_NAME_CHARS = 10_000  # characters; the longest of half a million symbols of LLVM and others has 1,230
# suffixes that compilers give to parts and copies of a function; a hash follows `.llvm.`
_CLONE = re.compile(r"(?:\.(?:cold|warm|unlikely|part|constprop|isra|lto_priv|localalias|llvm|__uniq|resume"
                    r"|cleanup|destroy)(?:\.[0-9A-F]+)*)+(?=@|$)")  # fmt: skip
_RUST = re.compile(r"17h[0-9a-f]{16}E")  # end of a legacy Rust symbol, which begins like a C++ symbol
_VERSION = re.compile(r"@(?!plt$).*")  # symbol version, which ld writes into .symtab only
_OPERATOR = re.compile(r"\boperator(?:<=>|<<=?|>>=?|->\*?|[<>]=?|\(\)|\[\]|\+\+|--|&&|\|\|"
                       r'|[-+*/%^&|=!]=?|[~,]|"" ?\w+| ?[A-Za-z_][\w:]*(?:\[\])?)')  # fmt: skip
_PARENTHESIZED_NAME = re.compile(r"\((?:anonymous namespace|anonymous class|lambda|'[^()]*'|\{[^()]*\})\)")
_OPEN, _CLOSE = "<(", ">)"
_QUALIFIERS = (" const", " volatile", " &", " &&", " noexcept")


def spell(name: str, options: SymbolOptions) -> str:
    """Return the spelling of a symbol, by the options."""
    if options.merge_clones:
        name = _CLONE.sub("", name) or name
    if options.raw:
        return name
    name = _VERSION.sub("", name) or name
    text = demangle(name)
    is_cxx = text != name and name.startswith("_Z") and not _RUST.search(name)
    return simplify(text) if options.simplify and is_cxx else text


def simplify(text: str) -> str:
    """Return a demangled name without template arguments, parameters and return type.

    `void a::f<int>(b::c<d>) const` becomes `a::f`; `operator<` and `(anonymous namespace)` stay.
    A name that cannot be parsed is returned unchanged.
    """
    parts, at, depth = [], 0, 0
    while at < len(text):
        part = None if depth else _OPERATOR.match(text, at) or _PARENTHESIZED_NAME.match(text, at)
        if part:
            parts.append(part[0])
            at = part.end()
            continue
        letter = text[at]
        depth -= letter in _CLOSE and not text.endswith("-", 0, at)
        if not depth and letter not in _CLOSE + _OPEN:
            parts.append(letter)
        depth += letter in _OPEN
        if depth < 0:
            return text
        at += 1
    return _without_type("".join(parts)) or text


def _without_type(name: str) -> str:
    """Return a function name without the return type before it and the qualifiers after it."""
    clone = name.find(" [clone")
    name, clones = (name[:clone], name[clone:]) if clone >= 0 else (name, "")
    for qualifier in _QUALIFIERS * 2:
        name = name.removesuffix(qualifier)
    operator = _OPERATOR.search(name)
    parenthesized = _PARENTHESIZED_NAME.search(name)
    end = min((match.start() for match in (operator, parenthesized) if match), default=len(name))
    start = name.rfind(" ", 0, end) + 1
    return name[start:].strip() + clones


def demangle(name: str) -> str:
    """Return `name` demangled in the style of c++filt and rustc-demangle, or unchanged.

    A clone keeps its suffix: `f(int) [clone .cold]`.  A symbol version (`@GLIBCXX_3.4`) stays.  The hash of a
    legacy Rust symbol is dropped.
    """
    if not name.startswith(_PREFIXES) or len(name) > _MAX_NAME_CHARS:
        return name
    mangled, at, version = name.partition("@")
    try:
        from demangle import demangle as library_demangle

        text: str = library_demangle(mangled, language=("itanium", "rust"), style="gnu")
    except Exception:  # noqa: BLE001 - hostile names reach code of a library, which may not be installed
        return name
    return (text or mangled) + at + version
