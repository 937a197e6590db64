"""The architecture, read from the imports: directions, no cycles, public names."""

import ast
import functools
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import manyfit
from manyfit.config.typed.moved_classes import MOVED

PACKAGE = Path(manyfit.__file__).parent
LAYERS = ["core", "config", "store", "data", "learn", "run", "study", "report", "ui", "cli"]
DOORS = {
    "callbacks": "run",
    "datasets": "data",
    "executors": "study",
    "feeders": "data",
    "inference": "run",
    "metrics": "learn",
    "pipeline": "run",
    "samplers": "study",
    "schedules": "learn",
    "spec": "study",
    "stoppers": "study",
    "testing": "cli",
    "trainers": "run",
    "wrapper": "run",
}
"""Where a door stands: it may import from this layer and those below it, and no layer imports it."""
DOORS_BELOW = {"wrapper": "trainers"}
"""A door that is built on another one."""
THIRD_PARTY_FORBIDDEN = {
    "core": ["torch", "numpy", "yaml", "pydantic", "click", "rich"],
    "config": ["torch", "numpy", "pandas"],
}
LAZY_ONLY = {"store": ["torch", "mlflow", "tensorboard"], "data": ["torch"], "report": ["torch"]}
"""What a layer may use, but only once it is needed."""


@functools.cache
def modules():
    return {
        ".".join(("manyfit", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(
            ".__init__"
        ): path
        for path in PACKAGE.rglob("*.py")
        if "templates" not in path.parts
    }


@functools.cache
def parsed(path):
    return ast.parse(path.read_text())


def imports(path, top_level_only):
    """The modules that a file imports; blocks for type checkers do not count as top level."""
    tree = parsed(path)
    nodes = list(tree.body) if top_level_only else list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def layer_of(module):
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else None


def test_everything_is_in_a_layer_or_a_door():
    found = {path.stem for path in PACKAGE.iterdir() if path.is_dir() or path.suffix == ".py"}
    assert found <= {*LAYERS, *DOORS, "__init__", "__main__", "__pycache__"}


CLASS_PATH = re.compile(r"manyfit(\.[a-z_]+)+(\.[A-Z]\w*)?")


def strings(path):
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_class_paths_in_texts_lead_somewhere():
    for module, path in modules().items():
        if module == "manyfit.config.typed.moved_classes":
            continue
        for text in strings(path):
            if CLASS_PATH.fullmatch(text) and text.count(".") > 1:  # others are tags
                name = text
                while name not in modules():
                    name = name.rpartition(".")[0]
                found = importlib.import_module(name)
                for part in filter(None, text[len(name) :].split(".")):
                    assert hasattr(found, part), f"{module} names {text}"
                    found = getattr(found, part)


def test_former_class_paths_lead_to_what_moved():
    """Each entry leads to something, none to a former path, and none would be hashed in two ways."""
    assert len(set(MOVED.values())) == len(MOVED)
    assert not set(MOVED) & set(MOVED.values())
    for path in MOVED.values():
        module, _, name = path.rpartition(".")
        assert hasattr(importlib.import_module(module), name), path


def test_imports_point_downwards():
    for module, path in modules().items():
        layer = layer_of(module)
        if layer is None or layer in ("__main__",):
            continue
        height = LAYERS.index(DOORS.get(layer, layer))
        for imported in imports(path, top_level_only=False):
            if not imported.startswith("manyfit."):
                continue
            other = layer_of(imported)
            is_below = DOORS_BELOW.get(layer) == other
            assert other == layer or is_below or other not in DOORS, f"{module} imports the door {imported}"
            if other in LAYERS:
                assert LAYERS.index(other) <= height, f"{module} imports {imported}, which is above it"


ROOMS = {
    "config": ["tree", "typed", "schema", "dialects", "", "study"],
    "run": ["loop", "callbacks", "build", "evaluation", "session", "travel", ""],
    "study": ["work", "executors", "ledger", "search", "drive", ""],
}
"""The rooms of a layer from the ground up; the empty name stands for the files beside them."""


@pytest.mark.parametrize("layer", ROOMS)
def test_rooms_import_from_those_below(layer):
    order = ROOMS[layer]
    found = {path.name for path in (PACKAGE / layer).iterdir() if path.is_dir()} - {"__pycache__"}
    assert found == set(order) - {""}

    def room_of(module):
        parts = module.split(".")
        return parts[2] if len(parts) > 2 and parts[2] in found else ""

    known = modules()
    for module, path in known.items():
        if layer_of(module) != layer or module == f"manyfit.{layer}":
            continue
        for imported in imports(path, top_level_only=False):
            if imported in known and layer_of(imported) == layer and imported != f"manyfit.{layer}":
                assert order.index(room_of(imported)) <= order.index(room_of(module)), (
                    f"{module} imports {imported}, which is in a room above it"
                )


@pytest.mark.parametrize("layer", ROOMS)
def test_each_room_says_what_it_holds(layer):
    """Its `__init__` names every module in it."""
    for folder in [PACKAGE / layer, *(PACKAGE / layer / room for room in ROOMS[layer] if room)]:
        text = (folder / "__init__.py").read_text()
        for entry in folder.iterdir():
            name = entry.stem
            if name.startswith("_") or (entry.is_dir() and not (entry / "__init__.py").exists()):
                continue
            assert f"`{name}`" in text, f"{folder.name}/__init__.py does not mention {name}"


@pytest.mark.parametrize("layer", LAZY_ONLY)
def test_what_is_heavy_is_imported_late(layer):
    for module, path in modules().items():
        if layer_of(module) == layer:
            tops = {name.partition(".")[0] for name in imports(path, top_level_only=True)}
            assert not tops & set(LAZY_ONLY[layer]), module


def test_there_are_no_cycles():
    known = modules()
    graph = {
        name: {i for i in imports(path, top_level_only=True) if i in known and i != name}
        for name, path in known.items()
    }
    # Importing a.b runs a/__init__ first; what `a` imports counts, unless it is an ancestor of the importer.
    done, stack = set(), []

    def visit(name):
        if name in stack:
            pytest.fail("import cycle: " + " → ".join([*stack[stack.index(name) :], name]))
        if name in done:
            return
        stack.append(name)
        for other in sorted(graph[name]):
            if not name.startswith(f"{other}."):
                visit(other)
        stack.pop()
        done.add(name)

    for name in sorted(graph):
        visit(name)


@pytest.mark.parametrize("layer", sorted(THIRD_PARTY_FORBIDDEN))
def test_layers_do_not_know(layer):
    for module, path in modules().items():
        if layer_of(module) != layer:
            continue
        for imported in imports(path, top_level_only=False):
            assert imported.split(".")[0] not in THIRD_PARTY_FORBIDDEN[layer], f"{module} imports {imported}"


def test_run_does_not_know_kinds_of_learners():
    """What differs between kinds, the kind knows: `run/` asks it, and never what kind it is talking to."""
    for module, path in modules().items():
        if layer_of(module) != "run":
            continue
        for imported in imports(path, top_level_only=False):
            assert not re.match(r"manyfit\.learn\.(torch|keras|estimator)\b", imported), module
        text = path.read_text()
        assert not re.search(r"isinstance\([^)]*[lL]earner", text), module
        assert not re.search(r"\b(has|get)attr\([^)]*learner", text), module
        assert not re.search(r"\bis_(keras|estimator|torch)\b", text), module


def test_only_the_table_knows_dialects():
    """What belongs to one layout, its file knows; everybody else asks the table."""
    for module, path in modules().items():
        if module.startswith("manyfit.config.dialects."):
            continue
        for imported in imports(path, top_level_only=False):
            assert not re.match(r"manyfit\.config\.dialects\.(five_components|variant)", imported), module


def test_public_names():
    assert len(manyfit._PUBLIC) <= 20
    for name in manyfit.__all__:
        assert getattr(manyfit, name) is not None
    assert set(manyfit._PUBLIC) | {"__version__"} == set(manyfit.__all__)
    with pytest.raises(AttributeError, match="nothing_like_that"):
        manyfit.nothing_like_that


HEAVY = {"torch", "pandas", "ray", "keras", "tensorflow", "optuna", "mlflow", "numpy", "rich", "tensorboard"}


def loaded_after(code, *words, cwd=None):
    script = f"import sys\nsys.argv = {['manyfit', *map(str, words)]!r}\ntry:\n    {code}\nexcept SystemExit as stop:\n    print('exit', stop.code)\n"
    script += "print('LOADED', *sorted({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=cwd)
    return set(done.stdout.rpartition("LOADED")[2].split()), done.stdout


@pytest.mark.parametrize(
    "words", [["--help"], ["train", "--help"], ["config", "--help"], ["--version"], ["completion", "bash"]]
)
def test_help_is_light(words):
    loaded, out = loaded_after("from manyfit.cli import main; main()", *words)
    assert not loaded & (HEAVY | {"yaml", "pydantic"})
    assert out


def test_import_is_light():
    loaded, _ = loaded_after("import manyfit")
    assert not loaded & (HEAVY | {"yaml", "pydantic", "click"})


def test_checking_a_config_without_torch_classes_is_light(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "runs/a").mkdir(parents=True)
    (tmp_path / "src/settings.py").write_text(
        "from dataclasses import dataclass\n@dataclass\nclass Own:\n    x: int = 1\n"
    )
    (tmp_path / "runs/a/config.yaml").write_text(
        "seed: ${own.x}\nown: {class: settings.Own, x: 5}\ntrain: {epochs: 3}\n"
    )
    loaded, out = loaded_after(
        "from manyfit.cli import main; main()", "config", "check", "runs/a", cwd=tmp_path
    )
    assert "exit 2" in out, "the model is missing, and that is said"
    assert not loaded & {"torch", "pandas", "ray", "keras", "tensorflow", "optuna"}


def test_the_data_that_ships_needs_no_torch():
    loaded, _ = loaded_after("from manyfit.datasets import Digits; Digits().source('train')")
    assert "torch" not in loaded


def test_docstrings_of_the_core_run():
    import doctest
    import importlib

    for module in modules():
        if module.endswith("__main__"):
            continue
        assert doctest.testmod(importlib.import_module(module)).failed == 0, module


VERBS = {"embed", "feed", "need", "seed"}
"""Verbs that look like participles."""
SHARED_NAMES = {"command", "Stop"}
"""One command for each file of `cli/`; `Stop` is a section of a config and a decision of a stopper."""


def functions(path):
    """Every function with its class, its name, and whether it is a value to its readers."""
    for owner in ast.walk(parsed(path)):
        for node in getattr(owner, "body", []) if isinstance(owner, ast.Module | ast.ClassDef) else []:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                is_value = any("property" in ast.unparse(mark) for mark in node.decorator_list)
                yield getattr(owner, "name", ""), node, is_value


PARTICIPLES = {("Ragged", "padded"), ("Board", "ranked"), ("", "batched")}
"""Names that users' code calls."""


def test_functions_are_verbs():
    found = [
        (module, owner, node.name)
        for module, path in modules().items()
        for owner, node, is_value in functions(path)
        if re.fullmatch(r"_?(\w+ed|found|kept|made|opened|shown|taken|told)", node.name)
        and not is_value
        and not any(node.name.removeprefix("_").removeprefix("re") == verb for verb in VERBS)
        and (owner, node.name) not in PARTICIPLES
        and node.name.count("_") <= node.name.startswith("_")
    ]
    assert not found


def test_public_names_have_one_meaning():
    homes = {}
    for module, path in modules().items():
        for node in parsed(path).body:
            name = getattr(node, "name", "_")
            if not name.startswith("_") and name not in SHARED_NAMES:
                homes.setdefault(name, []).append(module)
    assert not {name: found for name, found in homes.items() if len(found) > 1}


def test_files_and_functions_are_short():
    files = {module: len(path.read_text().splitlines()) for module, path in modules().items()}
    assert not {module: length for module, length in files.items() if length > 400}
    lengths = {
        f"{module}.{owner}.{node.name}": node.end_lineno - node.lineno + 1
        for module, path in modules().items()
        for owner, node, _ in functions(path)
    }
    assert not {name: length for name, length in lengths.items() if length > 60}
