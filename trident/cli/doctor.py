"""`trident doctor`: what a topology can use here, and what mends the rest, without starting Java or connecting anywhere."""

import importlib
import importlib.metadata
import platform
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from trident import __version__
from trident.cli.console import print_json, say, show
from trident.errors import EnvironmentProblem, describe
from trident.extras import ALWAYS, EXTRAS, Extra, check_pyspark
from trident.spark.environment import look_at_java

_DISTRIBUTION = "trident-spark"
_GROUPS = ("trident.stores", "trident.spouts")
_WITHOUT = "--engine in_process"
_FLOOR = re.compile(r"""([\w.-]+)(?:\[[^\]]*\])?>=([\d.]+)(?:.*extra == ['"]([\w-]+))?""")


@dataclass(frozen=True)
class Checkup:
    """What was found of one thing: its problem, if it cannot be used, and the command that mends it, if there is one."""

    version: str = ""
    path: str = ""
    problem: str | None = None
    mend: str = ""


def doctor(as_json: bool = False) -> int:
    here = {
        "trident": Checkup(__version__, str(Path(__file__).parents[1])),
        "python": Checkup(platform.python_version(), sys.executable),
        "java": _java(),
        "pyspark": _pyspark(),
        "packages": _extra("", ALWAYS),
    }
    extras = {name: _extra(name, extra) for name, extra in EXTRAS.items()}
    others = list(_others())
    if here["pyspark"].problem is not None or extras["spark"].problem is None:
        extras["spark"] = here["pyspark"]  # says more
    problems = [each.problem for each in here.values() if each.problem is not None]
    if as_json:
        named = {name: _fields(each, EXTRAS[name]) for name, each in extras.items()}
        found = {name: _fields(each) for name, each in here.items()}
        more = [{"name": name, **_fields(each, extra)} for name, extra, each in others]
        print_json({"ready": not problems, **found, "extras": named, "others": more})
    else:
        _print(here, extras, others)
        say("")
        for problem in problems:
            say(f"problem: {problem}", "bold red")
        if problems:
            say(f"topologies cannot run on Spark here; without it they run with {_WITHOUT}", "yellow")
        else:
            say("topologies can run here: trident run MODULE:TOPOLOGY", "green")
    return 1 if problems else 0


def _java() -> Checkup:
    try:
        path, found = look_at_java()
    except EnvironmentProblem as problem:
        return Checkup(problem=str(problem))
    return Checkup("" if found is None else found.text, str(path))


def _pyspark() -> Checkup:
    try:
        version = check_pyspark(_WITHOUT)
    except EnvironmentProblem as problem:
        return Checkup(problem=str(problem), mend=_install("spark"))
    return Checkup(version, str(Path(importlib.import_module("pyspark").__file__ or "").parent))


def _others() -> Iterator[tuple[str, Extra, Checkup]]:
    """Give the stores and spouts of other packages, by their entry points; what is wrong with one stops no other."""
    seen = set[str]()
    for distribution in importlib.metadata.distributions():
        try:
            entries = [entry for entry in distribution.entry_points if entry.group in _GROUPS]
        except Exception as error:  # noqa: BLE001  any package may have broken files
            name = distribution.metadata["Name"]
            yield name, Extra({}), Checkup(problem=f"the entry points of {name} cannot be read: {describe(error)}")
            continue
        if entries and (name := distribution.metadata["Name"]) not in seen:  # a second one of a name is never imported
            seen.add(name)
            yield from ((entry.name, *_other(name, entry)) for entry in entries)


def _other(name: str, entry: importlib.metadata.EntryPoint) -> tuple[Extra, Checkup]:
    try:
        extra = entry.load()
        if not isinstance(extra, Extra):
            return Extra({}), Checkup(problem=f"{entry.value} of {name} is {extra!r:.80}, not a trident.storekit.Extra")
        return extra, _extra(entry.name, Extra({name: entry.module, **extra.packages}), name)
    except (Exception, SystemExit) as error:  # noqa: BLE001  as above
        return Extra({}), Checkup(problem=f"{entry.value} of {name} cannot be imported: {describe(error)}")


def _extra(name: str, extra: Extra, of: str = _DISTRIBUTION) -> Checkup:
    found: dict[str, str] = {}
    absent, wrong = [], []
    for package, module in extra.packages.items():
        try:
            imported = importlib.import_module(module)
        except ModuleNotFoundError as error:
            absent.append(package if error.name in (None, module.partition(".")[0]) else f"{error.name}, for {package}")
            continue
        except Exception as error:  # noqa: BLE001  a broken package may raise anything
            return Checkup(
                problem=f"{package} cannot be imported: {describe(error)}",
                mend=f"pip install --force-reinstall {package}",
            )
        found[package] = _version_of(package, imported)
        floor = _floors(name, of).get(package, "")
        if found[package] and _number(found[package]) < _number(floor):
            wrong.append(f"{package} {found[package]} is older than {floor}")
    problem = "; ".join([*([f"missing: {', '.join(absent)}"] if absent else []), *wrong]) or None
    version = ", ".join(f"{package} {version}".strip() for package, version in found.items())
    return Checkup(version, problem=problem, mend=_install(name, of) if problem else "")


def _version_of(package: str, module: Any) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:  # a platform's own
        return str(getattr(module, "__version__", ""))


@cache
def _floors(extra: str, of: str) -> dict[str, str]:
    """Return the oldest version of each package that Trident or another package, or this extra of it, asks for."""
    try:
        asked = importlib.metadata.requires(of) or []
    except importlib.metadata.PackageNotFoundError:  # a folder on the path, or a zip
        return {}
    found: dict[str, str] = {}
    for match in filter(None, map(_FLOOR.match, asked)):  # those without an extra come first
        if match[3] == extra or match[1] not in found:
            found[match[1]] = match[2]
    return found


def _number(version: str) -> list[int]:
    match = re.match(r"[\d.]*", version)
    return [int(part) for part in (match[0] if match else "").split(".") if part]


def _install(extra: str, of: str = _DISTRIBUTION) -> str:
    if of != _DISTRIBUTION and extra not in importlib.metadata.metadata(of).get_all("Provides-Extra", []):
        extra = ""
    return f"pip install '{of}[{extra}]'" if extra else f"pip install {of}"


def _fields(each: Checkup, of: Extra | None = None) -> dict[str, Any]:
    extra = {} if of is None else {"names": of.names, "more": of.more}
    return {"usable": each.problem is None, **{name: value or None for name, value in vars(each).items()}, **extra}


def _print(
    here: Mapping[str, Checkup], extras: Mapping[str, Checkup], others: Sequence[tuple[str, Extra, Checkup]]
) -> None:
    found = {title: here[title.lower()] for title in ("Trident", "Python", "Java", "PySpark")}
    versions = {
        title: "none" if each.problem else each.version or "not known without starting it"
        for title, each in found.items()
    }
    show([(title, versions[title], each.path) for title, each in found.items()], "", "version", "where")
    say("")
    told = {name: _finding(each) for name, each in extras.items()}
    if here["pyspark"].problem:
        told["spark"] = "see below"
    uses = [(name, EXTRAS[name].uses, text) for name, text in told.items()]
    uses += [(name, extra.uses, _finding(each)) for name, extra, each in others]
    show([("-", ALWAYS.uses, _finding(here["packages"])), *uses], "extra", "for", "here")


def _finding(each: Checkup) -> str:
    return each.version if each.problem is None else "; ".join(filter(None, [each.problem, each.mend]))
