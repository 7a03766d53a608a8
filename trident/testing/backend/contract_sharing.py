"""Checks of a backing map: other instances, other processes, other states, and optional abilities."""

from collections.abc import Sequence
from typing import Any

from trident.state.interfaces import Key
from trident.state.sentinel import SENTINEL_KEY
from trident.testing.backend.contract import KEYS, MapContract, keys_of, rows, values_of
from trident.testing.backend.store_under_test import METHODS, Store, Writer
from trident.testing.contract import Promise, answer_in_another_process, broken, expect, promise

# Pairs of (topology, state) that lie close: one is the beginning of the other, or matches it as a pattern. No two have
# the same `StateConf.prefix`.
NEIGHBOURS = (
    ("", "s"), ("", "ss"), ("", "s/s"), ("/s", "ss"), ("s", "s"), ("", "S"), ("", "s "), ("", "s*"), ("", "s%"),
    ("", "_"), ("", "?"), ("", "[s]"), ("", "s\\"), ("", "s:"), ("", "s/"), ("", "é"), ("", "e\u0301"),
)  # fmt: skip


class MapSharing(MapContract):
    """Checks of a store with several users."""

    @promise(Promise.REOPENED)
    def test_another_instance_reads_what_was_written(self) -> None:
        before, writer, pairs = self.reader(), self.store.writer(), rows(20)
        writer.commit(pairs, 1)
        self.expect_rows(pairs, "read by another instance", before)

    @promise(Promise.REOPENED)
    def test_what_another_writer_wrote_is_read(self) -> None:
        first, second, reader, pairs = self.store.writer(), self.store.writer(), self.reader(), rows(20)
        absent = rows(5, 100)
        first.commit(pairs, 1)
        for each in (first, reader):
            wanted = [*values_of(pairs), *[None] * 5]
            expect(each.read(keys_of([*pairs, *absent])), wanted, "read keys, some of which are absent")
        changed = [(key, value + 1000) for key, value in [*pairs, *absent]]
        second.commit(changed, 2, 1)
        self.expect_rows(changed, "read what another writer wrote", first, second, reader)
        first.begin(3, 2)
        expect(first.read(keys_of(changed)), values_of(changed), "read in a commit what another writer wrote before")
        first.end(3, 2)

    @promise(Promise.REOPENED)
    def test_instances_in_turn_agree_with_a_dict(self) -> None:
        chance, wanted = self.random("agreement"), dict[Key, Any]()
        writers = [self.store.writer() for _ in range(3)]
        pool: list[Key] = [*KEYS[:12], *keys_of(rows(20))]
        for txid in range(1, 31):
            writer = chance.choice(writers)
            writer.begin(txid, txid)
            for _ in range(chance.choice([0, 1, 1, 2])):
                some = chance.sample(pool, chance.randint(0, len(pool)))
                pairs = [(key, chance.choice([None, 0, 1, 2, "", "a", [1]])) for key in some]
                writer.put(pairs, txid, txid)
                wanted.update(pairs)
            writer.end(txid, txid)
            chance.shuffle(pool)
            for each in chance.sample(writers, 2):
                expect(each.read(pool), [wanted.get(key) for key in pool], f"read {len(pool)} keys after commit {txid}")

    @promise(Promise.DURABLE, "durable")
    def test_another_process_reads_what_was_written(self) -> None:
        _, pairs = self.commit_rows(50)
        given = self.store.factory, self.store.kind, self.claims
        what = "the factory cannot be opened in another process"
        found = answer_in_another_process(what, _read, given, self.store.topology, keys_of(pairs))
        expect(found, values_of(pairs), "read in another process")

    @promise(Promise.PREFIX, "shared")
    def test_states_that_share_a_store_do_not_meet(self) -> None:
        keys: list[Key] = [("",), ("s",), ("/",), ("s", "s"), ("key",), ("s/key",), ("/s/key",)]
        for txid, name in enumerate(NEIGHBOURS, 1):
            self._writer(name).commit([(key, f"{name} {key}") for key in keys], txid)
        for name in NEIGHBOURS:
            expect(self._writer(name).read(keys), [f"{name} {key}" for key in keys], f"read state {name}")

    @promise(Promise.PARTITIONS, "repartitions")
    def test_a_key_is_found_with_any_number_of_partitions(self) -> None:
        """The place of a key does not depend on the partition that wrote it."""
        pairs = rows(20)
        self.store.writer("state", 1, 2).commit(pairs, 1)
        for partition, partitions in ((0, 1), (0, 2), (2, 3)):
            found = self.store.writer("state", partition, partitions).read(keys_of(pairs))
            expect(found, values_of(pairs), f"read from partition {partition} of {partitions} what 1 of 2 wrote")

    @promise(Promise.ATOMIC, "isolated")
    def test_no_other_instance_sees_puts_before_the_commit_ends(self) -> None:
        writer, pairs = self.commit_rows(20)
        changed = [(key, value + 1000) for key, value in pairs]
        writer.begin(2)
        for half in (changed[:10], changed[10:]):
            writer.put(half, 2)
            self.expect_rows(pairs, "read while a commit is under way")
        writer.end(2)
        self.expect_rows(changed, "read after the commit", writer)

    @promise(Promise.ATOMIC, "atomic_commit")
    def test_puts_of_a_commit_that_never_ended_are_never_seen(self) -> None:
        writer, pairs = self.commit_rows(20)
        writer.begin(2)
        writer.put([(key, -1) for key in keys_of(pairs)], 2)
        other = self.store.writer()
        other.commit([(("other",), 1)], 2, 1)
        self.expect_rows([*pairs, (("other",), 1)], "read after a commit that did not end", other)
        writer.commit([(("again",), 1)], 2, 2)
        self.expect_rows([*pairs, (("again",), 1)], "read after the next commit of the writer that ended none", writer)

    @promise(Promise.REMOVAL, "removes")
    def test_deleted_keys_are_gone_and_no_others(self) -> None:
        writer, pairs = self.commit_rows(self.claims.chunk + 10)
        gone = keys_of(pairs)[: self.claims.chunk + 1]
        writer.delete([*gone, ("never written",)], 2)
        writer.delete([], 3)
        left = [(key, None if key in set(gone) else value) for key, value in pairs]
        self.expect_rows(left, "read after a deletion", writer)
        writer.commit([(gone[0], "back")], 4)
        self.expect_rows([(gone[0], "back"), (gone[1], None)], "read a key that came back", writer)

    @promise(Promise.LISTING, "lists")
    def test_every_key_is_listed_once(self) -> None:
        writer = self.store.writer()
        if self.claims.shared:
            self._writer(("", "state2")).commit([(("of another state",), 1)], 1)
        expect(self._listed_keys(writer), [], "keys of an empty state")
        keys = [*(KEYS if self.claims.max_key_bytes is None else KEYS[:20]), *keys_of(rows(2 * self.claims.chunk + 1))]
        for txid in (1, 2):
            writer.commit([(key, txid) for key in keys], txid)
        for each in (writer, self.reader()):
            expect(self._listed_keys(each), sorted(map(repr, keys)), "keys that are listed")

    @promise(Promise.LISTING, "lists")
    def test_keys_that_stay_are_listed_once_while_others_come(self) -> None:
        writer, pairs = self.commit_rows(2 * self.claims.chunk + 1)
        reader = self.store.map(reads=True)
        found: list[Key] = []
        for number, page in enumerate(reader.key_pages()):
            found += page
            if number < 3:
                writer.commit([*pairs[:10], *rows(10, 10**6 * (number + 1))], number + 2)
        staying = set(keys_of(pairs))
        expect(sorted(key for key in found if key in staying), sorted(staying), "keys that stayed as a list was read")

    @promise(Promise.RESET, "resets")
    def test_an_emptied_state_is_empty_and_no_other_is(self) -> None:
        names = NEIGHBOURS if self.claims.shared else NEIGHBOURS[:1]
        pairs = rows(self.claims.chunk + 1)
        for name in names:
            self._writer(name).commit(pairs if name == names[0] else pairs[:5], 1)
        for name in (names[0], names[7 % len(names)]):
            emptied = self._writer(name)
            emptied.backing.reset()
            for each in (emptied, self._writer(name)):
                expect(each.read(keys_of(pairs)), [None] * len(pairs), f"read state {name} after it was emptied")
            self._writer(name).commit(pairs[:5], 2)
            for other in names:
                found = self._writer(other).read(keys_of(pairs[:5]))
                expect(found, values_of(pairs[:5]), f"{other} after {name}.reset()")

    @promise(Promise.CLAIMS)
    def test_it_claims_what_it_has(self) -> None:
        """What a map can do is found by its methods, so a claim without them, and they without a claim, are wrong."""
        backing = self.store.map()
        real = self.claims.with_abilities_of(backing)
        for name in METHODS:
            claim, there = (getattr(each, name) not in (False, "no") for each in (self.claims, real))
            if claim != there:
                broken(f"Limits({name}=…) {'claims' if claim else 'does not claim'} what the map has {'' if there else 'not '}"
                       f"the methods for ({type(backing).__name__})")  # fmt: skip

    def _writer(self, name: tuple[str, str]) -> Writer:
        return self.store.writer(name[1], topology=name[0])

    @staticmethod
    def _listed_keys(writer: Writer) -> list[str]:
        keys = [key for page in writer.backing.key_pages() for key in page]
        return sorted(repr(key) for key in keys if key[0] != SENTINEL_KEY)


def _read(store: tuple[Any, ...], topology: str, keys: Sequence[Key]) -> list[Any]:
    opened = Store(*store)
    opened.topology = topology
    return Writer(opened.map(reads=True), opened.kind).read(keys)
