"""Imports the topology that `MODULE:TOPOLOGY` names."""

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Collection
from pathlib import Path
from types import ModuleType
from typing import Any

from trident.errors import TopologyError, TridentError, describe
from trident.roles import has
from trident.setting_types import close_to
from trident.topology import TridentTopology

_KEPT = ("trident", "states", "spouts", "__main__")  # what no declaration brings along


class NoSuchTarget(TopologyError):
    """There is no such module, or nothing of that name in it."""


def load_topology(target: str) -> TridentTopology:
    """Import `MODULE:TOPOLOGY`: a topology, a function without arguments that returns one, or what `exactly_once` returned."""
    topology: TridentTopology = load_one_of(target, (TridentTopology,))
    return topology


def load_both(
    former: str, new: str, load: Callable[[str], TridentTopology] = load_topology
) -> tuple[TridentTopology, TridentTopology]:
    """Import two declarations of one topology, each with the modules of its own folder, also if they have the same names."""
    folders = folder_of(former), folder_of(new)
    if folders[0] == folders[1]:
        return load(former), load(new)
    _forget_folder(folders[1])  # where what the former imports when it is called is looked up, too
    declared = load(former)
    _forget_folder(folders[0])
    return declared, load(new)


def _forget_folder(folder: Path) -> None:
    loaded = [(name, module) for name, module in [*sys.modules.items()] if "." not in name and name not in _KEPT]
    forget_modules([name for name, module in loaded if _is_in(folder, module)])
    sys.path[:] = [path for path in sys.path if path != str(folder)]


def _is_in(folder: Path, module: ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    if file is None:
        return False
    path = Path(file)
    return folder == (path.parent.parent if path.stem == "__init__" else path.parent)


def forget_modules(names: Collection[str]) -> None:
    """Let what is loaded next import modules and packages with these names for itself."""
    for name in [name for name in sys.modules if name.partition(".")[0] in names]:
        del sys.modules[name]


def parts_of(target: str) -> tuple[str, str]:
    module, _, name = target.rpartition(":")
    if not module or not name:
        example = f"{target.partition(':')[0] or 'word_count.py'}:topology"
        raise NoSuchTarget(f"{target!r}: expected MODULE:TOPOLOGY, as in {example}")
    return module, name


def load_one_of(target: str, kinds: tuple[type, ...], folder: Path | None = None) -> Any:
    """Import what `MODULE:NAME` names, as `load_topology`; it is looked up in `folder`, not the working directory, first."""
    name, attribute = parts_of(target)
    module = _module(name, folder)
    value: Any = module
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise NoSuchTarget(f"module {name!r} has no {attribute!r}{_offer(module, attribute)}")
        value = getattr(value, part)
    return _make_value(value, name, attribute, kinds)


def folder_of(target: str) -> Path:
    """Return the folder that MODULE and what it imports are looked up in first."""
    path = Path(target.rpartition(":")[0])
    return path.resolve().parent if path.suffix == ".py" else Path.cwd()


def _module(name: str, folder: Path | None) -> ModuleType:
    path = (folder or Path()) / name
    if path.suffix == ".py" and not path.is_file():
        raise NoSuchTarget(f"there is no file {name!r} (looked in {folder or Path.cwd()})")
    first = str(folder or folder_of(f"{name}:"))  # for this process and the workers of a local Spark
    if first not in sys.path:
        sys.path.insert(0, first)
    inherited = [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]
    if first not in inherited:
        os.environ["PYTHONPATH"] = os.pathsep.join([first, *inherited])
    return _import_module(name, path.stem, path.resolve()) if path.suffix == ".py" else _import_module(name, name)


def _import_module(shown: str, name: str, path: Path | None = None) -> ModuleType:
    try:
        return importlib.import_module(name) if path is None else _from_file(name, path)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise NoSuchTarget(f"there is no module {error.name!r} (looked in {Path.cwd()} first)") from None
        raise TopologyError(f"{shown} cannot be imported: {_why(error)}") from error
    except TridentError:
        raise
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        raise TopologyError(f"{shown} cannot be imported: {_why(error)}") from error


_OURS = Path(__file__).parents[1]  # the folder with the packages of this distribution


def _why(error: BaseException) -> str:
    """Return what a module raised when it was imported, and where."""
    if isinstance(error, SystemExit):
        return f'it ends the program{_place(error)}; put what does that under `if __name__ == "__main__":`'
    if isinstance(error, SyntaxError):
        line = f": {error.text.strip()}" if error.text else ""
        return f"{type(error).__name__}: {error.msg}, in {error.filename}, line {error.lineno}{line}"
    package = ((error.name if isinstance(error, ImportError) else None) or "").partition(".")[0]
    file = getattr(sys.modules.get(package), "__file__", None)
    if package in ("states", "spouts") and file and _OURS not in Path(file).parents[1:2]:
        return f"{file} hides the package {package!r} of trident-spark ({error}): give that file or its folder another name"
    return f"{describe(error)}{_place(error)}"


def _from_file(name: str, path: Path) -> ModuleType:
    there = sys.modules.get(name)
    if there is not None and getattr(there, "__file__", None) and Path(str(there.__file__)).resolve() == path:
        return there  # a second run would make second classes and functions, which are not equal to the first
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs, as `import` does; functions are pickled by this name
    spec.loader.exec_module(module)
    return module


def _place(error: BaseException) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    return f" (in {frames[-1].filename}, line {frames[-1].lineno})" if frames[1:] else ""


def _make_value(value: Any, module: str, attribute: str, kinds: tuple[type, ...]) -> Any:
    if not isinstance(value, kinds) and has(value, "topology"):  # what `exactly_once` returns
        value = value.topology
    made = value
    if not isinstance(value, kinds) and callable(value):
        try:
            made = value()
        except TridentError:
            raise
        except (Exception, SystemExit) as error:  # a user's function may raise anything
            raise TopologyError(f"{module}:{attribute}() failed: {describe(error)}{_place(error)}") from error
    if not isinstance(made, kinds):
        what = f"{attribute}() returned a" if made is not value else f"{attribute} is a"
        raise TopologyError(
            f"{module}:{what} {type(made).__name__}; expected a {' or '.join(kind.__name__ for kind in kinds)} or a function "
            "without arguments that returns one"
        )
    return made


def _offer(module: ModuleType, attribute: str) -> str:
    topologies = [name for name, value in vars(module).items() if isinstance(value, TridentTopology)]
    if topologies:
        return f"; its topologies are: {', '.join(topologies)}"
    return close_to(attribute, vars(module), "; it has no topology")
