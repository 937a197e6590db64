"""A hash of user code: a class, a function or an object, with everything of the user's that it refers to."""

from __future__ import annotations

import dis
import functools
import hashlib
import inspect
import sys
import textwrap
from collections.abc import Iterator, Mapping
from importlib.machinery import PathFinder
from pathlib import Path, PurePath
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

from manyfit.core.installed import is_installed
from manyfit.core.source_code import dump_undocumented, hash_source, imports_of

CARRIED: Final[dict[str, str]] = {}
"""Hashes of classes that came from another process without their source, by path."""
PLAIN: Final = (type(None), bool, int, float, complex, str, bytes, PurePath)


def hash_code(target: Any, with_values: bool = True) -> str:
    """Return a hash of a class, a function or an object that changes with its code and its values.

    It covers functions, classes, modules and plain values of the user's that the code names, also those that
    it imports inside of functions. Comments and docstrings are ignored. Without `with_values`, lists, arrays
    and other values that a program may change are ignored, too.
    """
    if isinstance(target, type) and (known := CARRIED.get(class_path(target))) is not None:
        return known
    walk = _Walk(with_values)
    walk.add(target)
    return walk.digest.hexdigest()


def class_path(target: Any) -> str:
    """Return the path of a class or a function."""
    return f"{getattr(target, '__module__', '')}.{getattr(target, '__qualname__', type(target).__name__)}"


class _Walk:
    """Adds a value, and what it refers to, to a hash."""

    def __init__(self, with_values: bool) -> None:
        self._with_values = with_values
        self.digest = hashlib.sha256()
        self._seen: dict[int, Any] = {}
        """Values by identity; they are kept, so that no identity is used twice."""
        self._modules: set[str] = set()

    def _write(self, *words: object) -> None:
        for word in words:
            self.digest.update(f"{word}\0".encode(errors="surrogatepass"))

    def add(self, value: Any) -> None:
        """Add a value."""
        if isinstance(value, PLAIN):
            self._write(type(value).__name__, repr(value) if not isinstance(value, PurePath) else value)
            return
        if id(value) in self._seen:
            self._write("seen", type(value).__name__)
            return
        self._seen[id(value)] = value
        if isinstance(value, ModuleType):
            self._add_module(value.__name__)
        elif isinstance(value, FunctionType):
            self._add_function(value)
        elif isinstance(value, type):
            self._add_class(value)
        elif isinstance(value, MethodType | functools.partial | staticmethod | classmethod | property):
            self._write(type(value).__name__)
            for name in ("func", "args", "keywords", "__func__", "__self__", "fget", "fset"):
                self.add(getattr(value, name, None))
        else:
            self._add_object(value)

    def _add_object(self, value: Any) -> None:
        self._write(class_path(type(value)))
        if not self._with_values and not isinstance(value, tuple):
            return
        if (array := as_array(value)) is not None:
            self._write(array.dtype, array.shape, list(getattr(value, "columns", ())))
            self.digest.update(array.tobytes() if array.dtype != object else repr(array.tolist()).encode())
            return
        if isinstance(value, Mapping):
            for key in sorted(value, key=repr):
                self._write(repr(key))
                self.add(value[key])
        elif isinstance(value, list | tuple):
            for item in value:
                self.add(item)
        elif isinstance(value, set | frozenset):
            self._write(*sorted(map(repr, value)))
        elif is_users(type(value).__module__):
            self.add(type(value))
            self.add(getattr(value, "__dict__", None))
        elif " at 0x" not in (text := repr(value)):  # otherwise, it differs from process to process
            self._write(text)

    def _add_class(self, cls: type) -> None:
        self._write("class", class_path(cls))
        if not is_users(cls.__module__):
            return
        for base in cls.__bases__:
            self.add(base)
        for name, value in vars(cls).items():
            if not name.startswith("__") or callable(value):
                self._write(name)
                self.add(value)

    def _add_function(self, function: FunctionType) -> None:
        self._write("function", class_path(function))
        if not is_users(function.__module__):
            return
        try:
            self._write(dump_undocumented(textwrap.dedent(inspect.getsource(function))))
        except (OSError, TypeError, SyntaxError):  # typed in, or a part of an expression
            for code in nested_codes(function.__code__):
                self._write(code.co_code.hex(), [c for c in code.co_consts if isinstance(c, PLAIN)])
        self.add(function.__defaults__)
        self.add(function.__kwdefaults__)
        for cell in function.__closure__ or ():
            self.add(read_cell(cell))
        for code in nested_codes(function.__code__):
            instructions = list(dis.get_instructions(code))
            loaded = {each.argval for each in instructions if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
            for name in code.co_names:  # also names of attributes, which may be those of other globals
                if name in loaded and name in function.__globals__:
                    self._write(name)
                    self.add(function.__globals__[name])
            for instruction in instructions:
                if instruction.opname == "IMPORT_NAME":
                    self._add_module(str(instruction.argval))

    def _add_module(self, name: str) -> None:
        self._write("module", name)
        file = find_file(name)
        if file is None or not is_users(name, str(file)) or name in self._modules:
            return
        self._modules.add(name)
        self._write(hash_source(file))
        for other in dict.fromkeys(imports_of(name, file)):
            if (found := find_file(other)) is not None and is_users(other, str(found)):
                self._add_module(other)


def is_users(module: str, file: str = "") -> bool:
    """Return whether a module is the user's own, rather than part of Python or of an installed package."""
    if module == "__main__":
        return True
    found = file or getattr(sys.modules.get(module), "__file__", None)
    is_library = module.partition(".")[0] in sys.stdlib_module_names
    return bool(found) and not is_library and not is_installed(module, str(found))


def find_file(module: str) -> Path | None:
    """Return the source file of a module of the user's; it need not be imported, and is not."""
    top, *below = module.split(".")
    if top in sys.stdlib_module_names or top == "manyfit":
        return None
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None and (found := PathFinder.find_spec(top)) is not None and found.origin is not None:
        folder = Path(found.origin).parent.joinpath(*below)
        places = [folder / "__init__.py", folder.with_suffix(".py")] if below else [Path(found.origin)]
        file = next((str(place) for place in places if place.is_file()), None)
    return Path(file) if file and file.endswith(".py") else None


def as_array(value: Any) -> Any:
    """Return a tensor, an array or a table as an array; None for other values."""
    if hasattr(value, "detach") and hasattr(value, "cpu"):
        return value.detach().cpu().numpy()
    if hasattr(value, "to_numpy") and hasattr(value, "index"):
        return value.to_numpy()
    return value if hasattr(value, "tobytes") and hasattr(value, "dtype") else None


def nested_codes(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of a function, and that of the functions inside of it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from nested_codes(constant)


def read_cell(cell: Any) -> Any:
    """Return the value of a variable of an enclosing function; None if it has none yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return None
