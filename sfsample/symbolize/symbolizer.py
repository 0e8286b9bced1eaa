"""Turns locations into names, after sampling, once for each distinct location."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from time import thread_time

from sfsample.core.filesystem import ProcessRoot, Root
from sfsample.errors import FormatError, SfsampleError
from sfsample.formats.elf.image import ElfImage
from sfsample.formats.gopclntab.places import WRAPPER, places_at
from sfsample.modules.debug_files import SYSTEM_DEBUG_DIR, DebugFiles
from sfsample.modules.location import Location, pid_of
from sfsample.modules.module import Module
from sfsample.modules.unwind_tables import UnwindTables
from sfsample.symbolize.dwarf_lines import DwarfLines, SourcePlace
from sfsample.symbolize.missing import MissingName, generated_without_name, module_without_name
from sfsample.symbolize.module_symbols import ModuleSymbols
from sfsample.symbolize.named_frame import NamedFrame, address_text, clean_name, python_frame, wait_frame
from sfsample.symbolize.options import DEFAULT_SYMBOL_OPTIONS, SymbolOptions
from sfsample.symbolize.perf_map import PerfMaps
from sfsample.symbolize.spelling import simplify, spell
from sfsample.symbolize.symbol_table import Symbol, SymbolTables

# CPU time for the names of modules.  A hostile program can make the look-up long, although each step has a
# limit.  All names of a usual program take less than a second, 1 GB of DWARF takes 10 s.
_MAX_CPU_S = 300
_MAX_OFFSET = 1024  # bytes from the start of a variable; the name of a lock has no larger offset


class Symbolizer:
    """Names the locations of one result.  Symbolizers keep tables, so each result needs a new symbolizer.

    `process_roots`: process key -> root directory, in which the perf map is searched.
    Invariant: the debug file of a module is searched only in the root of the processes that map the module,
    so no other process can give names to functions of the module (tests/symbolize/test_symbolizer.py).
    """

    def __init__(
        self,
        options: SymbolOptions = DEFAULT_SYMBOL_OPTIONS,
        process_roots: Mapping[int, ProcessRoot] | None = None,
    ) -> None:
        self._options = options
        self._process_roots = {} if process_roots is None else process_roots
        self._perf_maps = PerfMaps(self._process_roots)
        self._dwarf_lines = DwarfLines(options.progress)
        self._symbols: dict[UnwindTables, ModuleSymbols] = {}
        self._symbol_tables = SymbolTables()
        self._first_module: dict[UnwindTables, Module] = {}  # first module with these tables
        self._frames: dict[Location, tuple[NamedFrame, ...]] = {}  # distinct locations of the result
        self._given_up = ""  # reason why no more names are looked up
        self._cpu_s = 0.0  # CPU time that names of modules have taken
        self._failures: dict[str, None] = {}  # texts, each once

    def symbol(self, module: Module, vaddr: int) -> Symbol | None:
        """Return the function symbol that covers `vaddr`, or None."""
        return self._symbols_of(module).find(vaddr)

    def frames(self, location: Location) -> tuple[NamedFrame, ...]:
        """Return the functions at a location, at least one; the innermost inlined function comes first."""
        module = location.module
        first = module and self._first_module.setdefault(module.tables, module)
        key = location._replace(module=first, found="")  # `found` has no influence on the name
        if key not in self._frames:
            self._frames[key] = self._name_frames(key)
        path, build_id = (clean_name(module.path), module.build_id) if module else (None, None)
        return tuple(
            frame._replace(module=path, build_id=build_id, address=location.address, found=location.found)
            for frame in self._frames[key]
        )

    def _name_frames(self, location: Location) -> tuple[NamedFrame, ...]:
        try:
            return self._look_up(location)
        except Exception as failure:  # noqa: BLE001 - other modules keep their names
            where = location.module.path if location.module else f"process {pid_of(location.pid)}"
            self._failures[f"{where}: the look-up of names failed: {failure!r}"] = None
            return (_unnamed(location),)

    def give_up(self, why: str) -> None:
        """Look up no names from now on."""
        self._given_up = why

    def missing_names(self) -> list[MissingName]:
        """Return the modules and processes with unnamed locations, with reasons; most locations first."""
        unnamed = [location for location, frames in self._frames.items() if frames[-1].function is None]
        modules = Counter(location.module for location in unnamed if location.module)
        processes = Counter(location.pid for location in unnamed if not location.module and location.pid)
        roots, maps = self._process_roots, self._perf_maps
        missing = [
            module_without_name(
                module, self._given_up or self._symbols_of(module).why_unnamed(), roots, count
            )
            for module, count in modules.items()
        ]
        missing += [
            MissingName(f"process {pid_of(key)}", count, why)
            if (why := self._given_up or maps.problems.get(key, ""))
            else generated_without_name(pid_of(key), roots.get(key), count, maps.has_map(key))
            for key, count in processes.items()
        ]
        return sorted(missing, key=lambda entry: (-entry.places, entry.where))

    @property
    def problems(self) -> list[str]:
        """Texts about files that could not be read."""
        modules = [problem for symbols in self._symbols.values() for problem in symbols.problems]
        maps = [f"process {pid_of(key)}: {problem}" for key, problem in self._perf_maps.problems.items()]
        return [*modules, *self._dwarf_lines.problems, *maps, *self._failures]

    def _look_up(self, location: Location) -> tuple[NamedFrame, ...]:
        if location.python is not None:
            return (python_frame(location.python, executed=self._options.lines),)
        if location.wait is not None:
            return (wait_frame(location.wait, self._lock_variable(location)),)
        if location.kernel:
            return (_marked_frame(location.kernel, None, "k"),)
        if self._given_up:
            return (_unnamed(location),)
        if location.module is None:
            return (self._generated_frame(location),)
        begun = thread_time()
        try:
            return self._native_frames(location.module, location)
        finally:
            self._cpu_s += thread_time() - begun
            if self._cpu_s > _MAX_CPU_S:
                self.give_up(f"the look-up of names took {_MAX_CPU_S} s of CPU and was ended")

    def _lock_variable(self, location: Location) -> str | None:
        """Return the variable with the lock of a wait; in a large array of locks, without the offset."""
        from sfsample.symbolize.variables import variable_at  # seldom needed, so imported here

        module = location.module
        if module is None:
            return None
        name = variable_at([module], module.address(location.address)) or ""
        variable, _, offset = name.partition("+")
        return name if offset and int(offset, 16) < _MAX_OFFSET else variable or None

    def _native_frames(self, module: Module, location: Location) -> tuple[NamedFrame, ...]:
        go = self._go_frames(module, location)
        if go:
            return go
        frame, symbol = _unnamed(location), self.symbol(module, location.lookup)
        if symbol is not None:
            function = clean_name(spell(symbol.name, self._options))
            offset = location.address - symbol.start
            frame = NamedFrame(function, function, clean_name(symbol.name), symbol_offset=offset)
        if not (self._options.lines or self._options.inlines):
            return (frame,)
        dwarf = self._symbols_of(module).dwarf_image()
        places = self._dwarf_lines.at(dwarf, location.lookup) if dwarf else []
        return _with_places(frame, places, self._options)

    def _go_frames(self, module: Module, location: Location) -> tuple[NamedFrame, ...]:
        """Return the frames by the table of Go functions; empty if the table lacks the address."""
        table = module.tables.go
        try:
            places = places_at(table, location.address, location.lookup) if table else []
        except FormatError as damage:
            module.note_damage(damage)
            return ()
        if not places:
            return ()
        if WRAPPER.search(places[-1].function) and not self._options.go_places:
            places = places[:-1] or places  # the function of the `go` statement is inlined into the wrapper
        name, offset = clean_name(places[-1].function), location.address - places[-1].start
        frame = NamedFrame(name, name, name, symbol_offset=offset)
        sources = [SourcePlace(place.function, place.file, place.line) for place in places]
        options = self._options
        if options.go_places:
            options = replace(options, lines=True, inlines=True)
        return _with_places(frame, sources, options)

    def _generated_frame(self, location: Location) -> NamedFrame:
        """Return the frame of code that lies in no file.

        A recording names generated code when it samples the code.  The program may write the name later.  So
        sfsample reads the perf map again, and uses a name if only one function has been at the address.
        """
        seen = location.generated
        if seen is not None and seen.name:
            return _marked_frame(seen.name, location.address - seen.start, "j")
        maps, pid, at = self._perf_maps, location.pid, location.lookup
        function = maps.find(pid, at) if pid else None
        if function is None or (seen is not None and maps.is_reused(pid, at)):
            return _unnamed(location)
        return _marked_frame(function.name, location.address - function.start, "j")

    def _symbols_of(self, module: Module) -> ModuleSymbols:
        tables = module.tables
        if tables not in self._symbols:
            roots = [tables.root] if tables.root else []
            debug_files = DebugFiles(roots, self._options.debug_dirs, self._options.fetch)
            self._symbols[tables] = ModuleSymbols(module, debug_files, self._symbol_tables)
        return self._symbols[tables]


class OfflineSymbolizer:
    """Names places in the modules of a profile from another machine, by path, build-id and vaddr.

    The search covers the debug files of `--debug-dir`, of the system and of debuginfod servers.  The search
    also covers the programs themselves, by name in `--debug-dir`, and at the path in the profile.
    Invariant: a file is used only if its build-id is right (tests/symbolize/test_symbolizer_offline.py).
    """

    def __init__(self, options: SymbolOptions) -> None:
        self._options = options
        self._symbolizer = Symbolizer(options)
        self._module = cache(self._find_module)
        self._here = Root()

    def frames(self, path: str, build_id: str, address: int, *, exact: bool) -> tuple[NamedFrame, ...]:
        """Return the functions at a vaddr, innermost first; `exact`: the vaddr is no return address."""
        module = self._module(path, build_id)
        if module is None:
            return ()
        return self._symbolizer.frames(Location(module, address, address if exact else address - 1))

    def _find_module(self, path: str, build_id: str) -> Module | None:
        images = self._images(path, build_id)
        return next((Module(image, 0, path) for image in images if image.build_id == build_id), None)

    def _images(self, path: str, build_id: str) -> Iterator[ElfImage]:
        for name in self._candidates(path, build_id):
            data = self._here.map(name)
            if data is not None:
                with suppress(FormatError):
                    yield ElfImage(data, name)
        try:
            data = self._options.fetch(build_id) if self._options.fetch else None
            if data is not None:
                yield ElfImage(data, path)
        except SfsampleError as failure:  # failure of a server, or damage of the received file
            self._options.progress(f"{path}: {failure}")

    def _candidates(self, path: str, build_id: str) -> Iterator[str]:
        directories = [os.path.abspath(directory) for directory in self._options.debug_dirs]
        for directory in (*directories, SYSTEM_DEBUG_DIR):
            yield f"{directory}/.build-id/{build_id[:2]}/{build_id[2:]}.debug"
        for directory in directories:
            yield f"{directory}/{path}"
            yield f"{directory}/{os.path.basename(path)}"
            yield f"{directory}/{os.path.basename(path)}.debug"
        yield path


def _unnamed(location: Location) -> NamedFrame:
    path = location.module.path if location.module else None
    return NamedFrame(address_text(path, location.address))


def _marked_frame(name: str, offset: int | None, kind: str) -> NamedFrame:
    """Return the frame of a kernel function, or of generated code; the text ends with the kind."""
    function = clean_name(name)
    return NamedFrame(f"{function}_[{kind}]", function, function, kind=kind, symbol_offset=offset)


def _with_places(
    frame: NamedFrame, places: list[SourcePlace], options: SymbolOptions
) -> tuple[NamedFrame, ...]:
    """Return the frames, innermost first.  The last of `places` names a frame without a symbol."""
    if not places:
        return (frame,)
    *inlined, outer = places
    if frame.function is None and outer.symbol:
        function = _function_name(outer, options)
        frame = frame._replace(text=function, function=function, raw=clean_name(outer.symbol))
    frames = [_inlined(place, options) for place in inlined] if options.inlines else []
    return (*frames, _with_line(frame, outer, options))


def _function_name(place: SourcePlace, options: SymbolOptions) -> str:
    """Return the name of a function.  DWARF may have a mangled or a plain name."""
    text = spell(place.symbol, options)
    if options.simplify and place.is_cxx and text == place.symbol and not text.startswith("_Z"):
        text = simplify(text)
    return clean_name(text)


def _inlined(place: SourcePlace, options: SymbolOptions) -> NamedFrame:
    function = _function_name(place, options)
    frame = NamedFrame(function, function, clean_name(place.symbol), inlined=True)
    return _with_line(frame, place, options)


def _with_line(frame: NamedFrame, place: SourcePlace, options: SymbolOptions) -> NamedFrame:
    """Add file and line to the fields and the text of a frame.  An inlined frame's text ends with `_[i]`."""
    text = frame.text
    if options.lines and place.file and place.line:
        file = clean_name(place.file)
        text = f"{text} ({os.path.basename(file)}:{place.line})"
        frame = frame._replace(file=file, line=place.line)
    return frame._replace(text=f"{text}_[i]" if frame.inlined else text)
