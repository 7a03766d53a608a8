"""Which changes of a state go on with what is stored, and how the values of its former declarations are read.

An aggregate may be added, removed, renamed or moved, and a type may become wider. The log then knows the former types of the
values, the last attempt of each, and under which name a value of that type has each field of the declared one; None: it has not
(the aggregate is newer, or was removed in between and counts from then on).
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

from trident.fields import struct_fields, struct_type, widens
from trident.graph import Evolution
from trident.state.kinds import StateType
from trident.state.txid import BESIDE_MEANING, CALLED, FORMER, KEPT, LIMITS, SERIALIZER, STORED_UNDER, TOTAL_KEY

# Among the facts of a state:
MEMBERS = "members"  # of each aggregate in its value what it is, over which fields, and the fields that it has
STORED_AS = "stored_as"  # the names by which its store knows key and value, where others are declared
SINCE = "since"  # by the names of aggregates that came later, the first batch that they count
MOVED_FROM = "moved_from"  # how the place is opened from which it was moved; of these facts what the state has no more
REWRITTEN = "rewritten"  # the batch at which all values were given the form of the declaration
GENERATION = "generation"  # how often what was stored has got another meaning

ALLOW = "allow_changed_topology=True (--conf allow_changed_topology=true)"
BESIDE = (
    'count again beside it: declare the topology under another name, as in TridentTopology("{name}-2"), with places of their '
    "own for states that have a table, path or prefix, and for its log and checkpoint if you name one. It reads its sources "
    "from where they begin, and counts all that they still have"
)

OF_ITS_FORM = (SERIALIZER, TOTAL_KEY)  # facts that rows which are written again in another place need not keep
_FIXED = {  # the facts that may not change, and what to declare: STATE is the state's name, BEFORE the fact in the log
    "kind": "declare it BEFORE, as its values were written",
    SERIALIZER: "declare it with the serializer 'BEFORE', which wrote its values. For another one, give the new declaration "
    "another table or prefix, and move the state there: trident state move OLD.py:topology STATE --to NEW.py:topology",
    TOTAL_KEY: "declare it with snapshot_key=BEFORE, where its total is: under another one it begins with nothing",
    "window": BESIDE,
}

Facts = Mapping[str, Any]  # of a state


class RefusedChange(NamedTuple):
    """What a log does not go on with: the change, and what to do."""

    text: str
    remedy: str


def named_type(field: str) -> tuple[str, str]:
    name, _, type_ = field.rpartition(": ")
    return name, type_


class Evolving:
    """A state that the log knows, and as it is declared now. `fields`: those of its sources, none of which is a renamed one."""

    def __init__(
        self, name: str, known: Facts, own: Facts, rename: Mapping[str, str], migrates: bool, fields: AbstractSet[str]
    ) -> None:
        self.taken: list[str] = []
        self.refused: list[RefusedChange] = []
        self._name, self._what = name, f"state {name!r}"
        self._known, self._own, self._rename = known, own, rename
        self._had, self._has = known.get(MEMBERS, {}), own.get(MEMBERS, {})
        self._fields = {old: new for old, new in rename.items() if new not in fields}  # that have another name
        self._others = fields
        self._names: dict[str, str | None] = {}
        self._was: dict[str, str | None] = {}  # by the name of an aggregate what it was called; None: it is new
        self._migrates = self._widens = False
        self._key_and_kind()
        if self.refused:
            return
        if MEMBERS in known and MEMBERS in own:
            self._members()
        elif any(known.get(fact) != own.get(fact) for fact in ("value", "by", "of")) or any(
            self._remembers_more(name, name) for name in own.get(LIMITS, ())
        ):
            self._refuse("by", _aggregate_text(known), _aggregate_text(own), self._names_or_beside())
        if migrates and (self.refused or self._widens):
            self.taken, self.refused, self._migrates = [f"{self._what}: values are migrated by its function"], [], True
        if not self.refused:
            self._check_kind()

    def _names_or_beside(self) -> str:
        """Return the advice for what windows and joins keep: it has the names of its fields in it."""
        given = ("key", "of" if "window" in self._own else "value")
        fields = [[named_type(one) for fact in given for one in facts[fact]] for facts in (self._known, self._own)]
        pairs = dict.fromkeys((old[0], new[0]) for old, new in zip(*fields, strict=False) if old[0] != new[0])
        if MEMBERS in self._own or not pairs or [one[1] for one in fields[0]] != [one[1] for one in fields[1]]:
            return BESIDE
        step = ", ".join(f'{old}=col("{new}")' for old, new in pairs)
        return f"if only names are others, give them back in a step before it, select({step}, …); if not, {BESIDE}"

    def _check_kind(self) -> None:
        """Only an opaque state's values say, by the attempt that wrote them, which declaration they are of."""
        if self._own["kind"] != StateType.OPAQUE.value and (self._migrates or self._changes_values()):
            self._refuse("value", type_of(self._known), type_of(self._own), self._of_one_form())
            self.taken = []

    def _knows_no_writer(self) -> bool:
        """Whether no value may get other fields, as of a struct in a state that is not opaque."""
        return self._own["kind"] != StateType.OPAQUE.value and bool(struct_fields(type_of(self._own)))

    def _of_one_form(self) -> str:
        kind = self._own["kind"]
        return f"a {kind} state does not say which declaration wrote a value. Declare it as it was; or {BESIDE}"

    def facts_to_record(self, attempt: int, first: int) -> dict[str, Any]:
        """Return what the log is to know of the state: former types up to `attempt`, new aggregates from batch `first` on."""
        known, own = self._known, dict(self._own)
        if self.refused:  # and taken as it is
            own |= {fact: known[fact] for fact in (KEPT, FORMER, STORED_UNDER, CALLED) if fact in known}
            return {**own, GENERATION: known.get(GENERATION, 0) + 1}
        own |= {fact: known[fact] for fact in (KEPT, REWRITTEN, STORED_UNDER, CALLED) if fact in known}
        since = {new: known.get(SINCE, {}).get(old) if old else first for new, old in self._was.items()}
        more = {
            FORMER: self._former_types(attempt),
            SINCE: {name: txid for name, txid in since.items() if txid},
            STORED_AS: self._stored_names(),
            GENERATION: known.get(GENERATION, 0) + self._migrates,
        }
        if MEMBERS not in own or more[STORED_AS] == [*_names(own["key"]), *_names(own["value"][:1])]:
            del more[STORED_AS]  # what windows and joins keep has no columns of these names
        return own | {fact: value for fact, value in more.items() if value}

    def _former_types(self, attempt: int) -> list[Any]:
        """Return the former types of the values, the last of them up to an attempt, under the names of now."""
        known = list(map(_triple, self._known.get(FORMER, ())))
        if self._migrates:
            return [*([until, type_, None] for until, type_, _ in known), [attempt, type_of(self._known), None]]
        names = self._names.items()  # the former ones by those of now
        former = [
            [until, type_, None if of is None else {new: old and of.get(old) for new, old in names}]
            for until, type_, of in known
        ]
        return [*former, [attempt, type_of(self._known), self._names]] if self._changes_values() else former

    def _changes_values(self) -> bool:
        known, own = struct_fields(type_of(self._known)), struct_fields(type_of(self._own))
        if not known or not own:
            return type_of(self._known) != type_of(self._own)
        return dict(known) != dict(own) or any(new != old for new, old in self._names.items())

    def _stored_names(self) -> list[str]:
        known = self._known
        stored = known.get(STORED_AS) or [*_names(known["key"]), *_names(known["value"][:1])]
        is_single = not struct_fields(type_of(self._own))
        value = stored[len(known["key"]) :] if is_single and known["value"] else _names(self._own["value"][:1])
        return [*stored[: len(known["key"])], *value]

    def _key_and_kind(self) -> None:
        known, own = self._known, self._own
        for fact, remedy in _FIXED.items():
            before, now = known.get(fact), own.get(fact)
            if before != now and not (fact in OF_ITS_FORM and None in (before, now)):  # it may not be known
                self._refuse(
                    fact, str(before), str(now), remedy.replace("BEFORE", str(before)).replace("STATE", self._name)
                )
        missing = sorted(set(known["streams"]) - set(own["streams"]))
        if missing:
            added = [one for one in own["streams"] if one not in known["streams"]]
            remedy = (
                f"call the stream {missing[0]!r} as before: under the name {added[0]!r} its source is read from its start, and "
                "what is counted already is counted again. If it is another source, with rows that are not counted yet, start "
                f"once with {ALLOW}"
                if added
                else f"if its totals are to go on without what {', '.join(map(repr, missing))} brings, start once with {ALLOW}"
            )
            self._refuse("streams", ", ".join(known["streams"]), ", ".join(own["streams"]), remedy)
        self._key()

    def _key(self) -> None:
        known, own = self._known, self._own
        if len(known["key"]) != len(own["key"]):
            self._refuse_key()
            return
        for before, now in zip(map(named_type, known["key"]), map(named_type, own["key"]), strict=True):
            if before == now:
                continue
            is_there = before[0] in _names(own["key"])
            if before[1] != now[1] or is_there or now[0] in self._others:
                self._refuse_key()
                return
            if "by" in own and MEMBERS not in own and "window" not in own:
                continue  # a join, which says in `by` what it joins, and has what to do there
            if self._fields.get(before[0]) != now[0]:
                self._refuse("key", before[0], now[0], renaming(before[0], now[0]) + f"; if not, {BESIDE}")
                return
            self.taken.append(
                f"{self._what}: key {before[0]!r} is called {now[0]!r}; its store still knows it as {before[0]!r}"
            )

    def _refuse_key(self) -> None:
        before, now = (f"({', '.join(facts['key'])})" for facts in (self._known, self._own))
        self._refuse("key", before, now, BESIDE)

    def _members(self) -> None:
        former = {name: self._former(name) for name in self._has}
        removed = [name for name in self._had if name not in former.values()]
        added = [name for name, old in former.items() if old is None]
        self._refuse_taken_names()
        self._refuse_renamed(added, removed)
        is_struct = [bool(struct_fields(type_of(facts))) for facts in (self._known, self._own)]
        if not self.refused and (is_struct[0] != is_struct[1] or len(added) == len(self._has)):
            self._refuse("value", ", ".join(self._known["value"]), ", ".join(self._own["value"]), remedy=BESIDE)
        for name, old in former.items():
            if old is not None and not self.refused:
                self._compare_member(name, old)
        if not self.refused:
            self._was = former
            self._note_names(removed)

    def _refuse_taken_names(self) -> None:
        """Refuse a new name that another aggregate has: nothing would tell a later start of it from the first one."""
        for old, new in self._rename.items():
            if not ({old, new} <= self._had.keys() and new in self._has):
                continue
            if self._knows_no_writer():
                self._refuse("value", old, new, self._of_one_form())
            elif old not in self._has:
                remedy = f"give {old!r} a new name; or leave it out of rename=, if {new!r} is to go on with what it had"
                self._refuse("value", old, new, remedy)
            elif old < new and self._rename.get(new) == old:
                self._refuse("value", f"{old}, {new}", f"{new}, {old}", names_exchanged(old, new))

    def _refuse_renamed(self, added: Sequence[str], removed: Sequence[str]) -> None:
        """Refuse a new aggregate that is what a removed one was: it is that one, or begins with nothing; no one knows."""
        for name in added:
            same = [old for old in removed if _is_same(self._had[old], self._has[name], self._fields)]
            if same and self._knows_no_writer():
                self._refuse("value", same[0], name, self._of_one_form())
            elif same:
                begin = f"to begin {name!r} with nothing, run without {same[0]!r} for a batch, then add {name!r}"
                more = f"; {begin if len(removed) < len(self._had) else f'if not, {BESIDE}'}"
                self._refuse("value", same[0], name, renaming(same[0], name) + more)

    def _note_names(self, removed: Sequence[str]) -> None:
        for name, old in self._was.items():
            outputs = _names(self._has[name][2])
            before = [None] * len(outputs) if old is None else _names(self._had[old][2])
            self._names.update(zip(outputs, before, strict=True))
            if old is None:
                until = "null for a key until it is next written; it counts from the next batch on"
                self.taken.append(f"{self._what}: {name!r} is new, {self._has[name][0]}: {until}")
        gone = (name for *_, outputs in self._had.values() for name in _names(outputs))
        self._names.update((name, name) for name in gone if name not in self._names)
        self.taken += [f"{self._what}: {old!r} is no longer there" for old in removed]
        again = [new for new, old in self._names.items() if old != new and new in self._names.values()]
        if again:
            remedy = f"two starts, each with a batch: the first renames {again[0]!r}, the second has the new one"
            self._refuse("value", again[0], again[0], remedy)

    def _former(self, name: str) -> str | None:
        renamed = [
            old for old, new in self._rename.items() if new == name and old in self._had and old not in self._has
        ]
        return name if name in self._had else renamed[0] if renamed else None

    def _remembers_more(self, name: str, old: str) -> bool:
        """Whether an aggregate is to remember more values of a key than it did: those that it dropped are in no store."""
        own = self._own.get(LIMITS, {}).get(name, 0)
        return bool(own > self._known.get(LIMITS, {}).get(old, own))

    def _is_another(self, name: str, old: str) -> bool:
        """Whether an aggregate is of another class, over other fields, or remembers something else, or more."""
        (was, of, outputs), (is_, over, fields) = self._had[old], self._has[name]
        if (was, current_names(of, over, self._fields)) != (is_, _names(over)):
            return True
        beside = [[one.removeprefix(call) for one in _names(some)] for call, some in ((old, outputs), (name, fields))]
        return beside[0] != beside[1] or self._remembers_more(name, old)

    def _compare_member(self, name: str, old: str) -> None:
        (_, of, outputs), (_, over, fields) = self._had[old], self._has[name]
        if self._is_another(name, old):
            call, calls = (_call_text(facts, one) for facts, one in ((self._known, old), (self._own, name)))
            self._refuse(repr(name), call, calls, self._remedy(name, old))
            return
        pairs = zip(map(named_type, [*of, *outputs]), map(named_type, [*over, *fields]), strict=True)
        for at, (before, now) in enumerate(pairs):
            if not widens(before[1], now[1]):
                remedy = f"declare {now[0]!r} as {before[1]}, or as a type that holds each {before[1]}"
                if at >= len(of) > 0:  # which no one declares
                    declared = f"declare that as before ({', '.join(of)})"
                    remedy = f"it follows from its input: {declared}; or {self._remedy(name, old)}"
                self._refuse(repr(name), f"{before[0]}: {before[1]}", f"{now[0]}: {now[1]}", remedy)
                return
        if name != old:
            self.taken.append(f"{self._what}: {old!r} is called {name!r}")
        types = [" ".join(named_type(one)[1] for one in some) for some in (outputs, fields)]
        if types[0] != types[1]:
            self._widens = True
            self.taken.append(f"{self._what}: {name!r} {types[0]} -> {types[1]}")

    def _remedy(self, name: str, old: str) -> str:
        (was, of, _), (is_, over, _) = self._had[old], self._has[name]
        gone, come = ([one for one in some if one not in rest] for some, rest in ((of, over), (over, of)))
        old_type, new_type = ([named_type(one)[1] for one in some] for some in (gone, come))
        is_other = not self._others.isdisjoint(_names(come))
        if was == is_ and len(gone) == 1 and old_type == new_type and not is_other:
            return renaming(*_names([*gone, *come])) + f"; if not, {BESIDE}"
        if self._knows_no_writer():
            return self._of_one_form()
        if not struct_fields(type_of(self._own)):
            return BESIDE
        return (
            f"give what is new a name of its own, {name}_2: it counts from the next batch on, beside {name!r}, or in its place "
            f"if {name!r} is left out"
        )

    def _refuse(self, fact: str, before: str, now: str, remedy: str) -> None:
        self.refused.append(RefusedChange(f"{self._what}: {fact} {before} -> {now}", remedy))


def evolution_of(facts: Facts) -> Evolution | None:
    """Return how a state is stored of which the log is to know these facts; None: as it is declared."""
    former, declared, name = list(map(_triple, facts.get(FORMER, ()))), type_of(facts) or None, facts.get(STORED_UNDER)
    if not former and STORED_AS not in facts:
        return None if name is None else Evolution((), None, None, (), None, name)
    width = len(facts["key"])
    stored_as = facts.get(STORED_AS) or [*_names(facts["key"]), *_names(facts["value"][:1])]
    read = stored = declared
    if struct_fields(declared):
        read, stored = _structs(declared, former)
    types = tuple((until, type_, names) for until, type_, names in former)
    return Evolution(types, read, stored, tuple(stored_as[:width]), next(iter(stored_as[width:]), None), name)


def _structs(declared: str | None, former: Sequence[Sequence[Any]]) -> tuple[str, str]:
    known = {name: type_ for _, type_, _ in former for name, type_ in struct_fields(type_)}
    names = [one for *_, of in former for one in (of or {}).items()]
    read = dict(struct_fields(declared))
    read |= {name: known.get(name, "") for name, _ in names if name not in read}
    stored = read | {old: known[old] for _, old in names if old is not None and old not in read}
    return struct_type(list(read), list(read.values())), struct_type(list(stored), list(stored.values()))


def goes_on(before: Facts | None, now: Facts) -> bool:
    """Whether what a state, or a stream, has had goes on: its facts are the same, or were taken as compatible."""
    if before is None or "kind" not in now:
        return before == now or (before is not None and before.get("spout") == now.get("spout"))
    own = [{fact: one.get(fact) for fact in one if fact not in BESIDE_MEANING} for one in (before, now)]
    return own[0] == own[1] or (MEMBERS in before and before.get(GENERATION) == now.get(GENERATION))


def type_of(facts: Facts) -> str:
    return named_type(facts["value"][0])[1] if facts["value"] else ""


def _triple(former: Sequence[Any]) -> Sequence[Any]:
    return former if len(former) > 2 else [*former, None]


def _names(fields: Sequence[str]) -> list[str]:
    return [named_type(field)[0] for field in fields]


def current_names(of: Sequence[str], over: Sequence[str], rename: Mapping[str, str]) -> list[str]:
    now = _names(over)
    return [rename[one] if one not in now and rename.get(one) in now else one for one in _names(of)]


def _is_same(known: Sequence[Any], own: Sequence[Any], rename: Mapping[str, str]) -> bool:
    return known[0] == own[0] and current_names(known[1], own[1], rename) == _names(own[1])


def renaming(old: str, new: str) -> str:
    return f'if it has another name and is the same: TridentTopology(…, rename={{"{old}": "{new}"}})'


def names_exchanged(old: str, new: str) -> str:
    steps = f"{old!r} to a third, {new!r} to {old!r}, the third to {new!r}"
    return f"three starts, each with a batch and one change of name: {steps}"


def _call_text(facts: Facts, name: str) -> str:
    by, of, outputs = facts[MEMBERS][name]
    keeps = [f"keeps {facts[LIMITS][name]}"] if name in facts.get(LIMITS, ()) else []
    return f"{by}({', '.join([*of, *keeps, *outputs[1:]])})"


def _aggregate_text(facts: Facts) -> str:
    keeps = "".join(f", {name} keeps {most}" for name, most in facts.get(LIMITS, {}).items())
    return f"{facts.get('by')}({', '.join(facts.get('of') or ())}) as ({', '.join(facts.get('value') or ())}){keeps}"
