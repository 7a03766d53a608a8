"""Mutants of what makes a key-value store exact: the maps, their rule, the sentinel, the memories in front of a store."""

from __future__ import annotations

from tests.proof.mutant import Mutant

_VALUES, _OPAQUE, _MAPS = "trident/state/values.py", "trident/state/opaque_map.py", "trident/state/maps.py"
_COMMITS, _SENTINEL, _WINNERS = "trident/state/map_commits.py", "trident/state/sentinel.py", "trident/state/winners.py"
_CACHED, _MEMORY = "trident/state/wrappers/cached.py", "trident/state/wrappers/commit_memory.py"
_THROUGH, _REMOVALS = "trident/state/wrappers/read_through.py", "trident/state/removals.py"

_MAP_TESTS = ("tests/state/test_maps.py", "tests/state/test_value_rules.py", "tests/state/test_crash_schedules.py")
_SENTINEL_TESTS = (
    "tests/state/test_sentinel.py",
    "tests/storekit/test_sentinel_order.py",
    "tests/state/test_two_runs.py",
)
_CACHE_TESTS = ("tests/state/wrappers/test_cached.py",)
_THROUGH_TESTS = ("tests/state/wrappers/test_read_through.py",)
_REMOVAL_TESTS = ("tests/state/test_removals.py",)

OF_STATES = (
    Mutant(
        "opaque: a replay builds on what the failed attempt wrote",
        _VALUES,
        "        if self.txid >= txid:\n            return False",
        "        if self.txid > txid:\n            return False",
        _MAP_TESTS,
    ),
    Mutant(
        "opaque: values do not say their attempt (Storm's rule)",
        _VALUES,
        "return winners.won(self.txid, self.attempt) or self.attempt == UNKNOWN_ATTEMPT",
        "return True",
        _MAP_TESTS,
    ),
    Mutant(
        "opaque, in columns: a replay builds on what the failed attempt wrote",
        _VALUES,
        "return stand & (txids < txid)",
        "return stand & (txids <= txid)",
        ("tests/state/test_value_rules.py", "tests/states/memory/test_memory_columns.py"),
    ),
    Mutant(
        "opaque, in columns: values do not say their attempt",
        _VALUES,
        "winners.won_each(txids, attempts) | (attempts == UNKNOWN_ATTEMPT)",
        "winners.won_each(txids, attempts) | (attempts >= UNKNOWN_ATTEMPT)",
        ("tests/state/test_value_rules.py", "tests/states/memory/test_memory_columns.py"),
    ),
    Mutant(
        "opaque: the value before the batch is lost by a second update",
        _OPAQUE,
        "prevs = [written[k].prev if k in written else b for k, b in zip(keys, bases, strict=True)] if written else bases",
        "prevs = bases",
        _MAP_TESTS,
    ),
    Mutant(
        "opaque: a second update does not see the first one of the commit",
        _OPAQUE,
        "        return [written[k].curr if k in written else b for k, b in zip(keys, bases, strict=True)] if written else bases",
        "        return bases",
        _MAP_TESTS,
    ),
    Mutant(
        "opaque: a value of a later batch is built upon",
        _OPAQUE,
        "if any(written_by > txid for written_by, _ in heads):",
        "if False:",
        _MAP_TESTS,
    ),
    Mutant(
        "opaque, in columns: a value of a later batch is built upon",
        _OPAQUE,
        "        later = found.first_after(txid)\n        if later is not None:",
        "        later = found.first_after(txid)\n        if later is None:",
        ("tests/states/memory/test_memory_columns.py::test_columns_and_a_dict_tell_the_same_of_any_schedule",),
    ),
    Mutant(
        "opaque, in columns: what a commit wrote counts before the put",
        _OPAQUE,
        "        self.backing.multi_put_columns(found, new)\n        count_keys(asked=len(new), written=len(new))\n"
        "        self._combined = parts, new  #",
        "        self._combined = parts, new\n        self.backing.multi_put_columns(found, new)\n"
        "        count_keys(asked=len(new), written=len(new))  #",
        (
            "tests/states/memory/test_memory_columns.py::test_within_a_commit_a_failed_put_of_columns_does_not_look_written",
        ),
    ),
    Mutant(
        "opaque: a reader of a snapshot takes the next batch too",
        _OPAQUE,
        "return self._given(self._before(snapshot.txid + 1, snapshot.winners, keys, stored, behind=snapshot.txid))",
        "return self._given(self._before(snapshot.txid + 2, snapshot.winners, keys, stored, behind=snapshot.txid))",
        ("tests/state/test_reading.py", "tests/state/test_snapshot_readers.py"),
    ),
    Mutant(
        "transactional: a replay is applied again (no skip on equality)",
        _VALUES,
        "return self.txid == txid",
        "return self.txid > txid",
        _MAP_TESTS,
    ),
    Mutant(
        "transactional: the second update of a key is skipped as a replay",
        _MAPS,
        "stored.includes(txid) and key not in self._written:",
        "stored.includes(txid):",
        _MAP_TESTS,
    ),
    Mutant(
        "transactional: each update is put at once, not at the commit",
        _MAPS,
        "    _puts_at_commit = True",
        "    _puts_at_commit = False",
        _MAP_TESTS,
    ),
    Mutant(
        "transactional: a value of a later batch is built upon",
        _MAPS,
        "if stored is not None and stored.txid > txid:",
        "if False:",
        _MAP_TESTS,
    ),
    Mutant(
        "maps: of two updates of one key one is lost",
        _COMMITS,
        "if len(set(keys)) != len(keys):",
        "if False:",
        _MAP_TESTS,
    ),
    Mutant(
        "maps: the sentinel is not compared",
        _COMMITS,
        "        if commit.incarnation is not None:\n            check_sentinel(",
        "        if commit.incarnation is None:\n            check_sentinel(",
        ("tests/state/test_two_runs.py::test_only_one_run_of_an_attempt_counts",),
    ),
    Mutant(
        "maps: the writes of a commit that was given up count in the next",
        _COMMITS,
        "        commit = Txid.of(txid)\n        self._forget()\n",
        "        commit = Txid.of(txid)\n",
        _MAP_TESTS,
    ),
    Mutant(
        "maps: memory before the put",
        _COMMITS,
        "            if not self._puts_at_commit:\n                self.backing.multi_put(keys, stored)\n"
        "                count_keys(written=len(keys))\n            self._written.update(zip(keys, stored, strict=True))",
        "            self._written.update(zip(keys, stored, strict=True))\n            if not self._puts_at_commit:\n"
        "                self.backing.multi_put(keys, stored)\n                count_keys(written=len(keys))",
        _MAP_TESTS,
    ),
    Mutant(
        "maps: the sentinel is sealed before the puts are durable",
        _COMMITS,
        "        self.backing.end(begun)\n        self._removals.end(begun)\n",
        "        if not self.backing.facts.commits_atomically:\n            self._lay_sentinel(begun, sealed=True)\n"
        "        self.backing.end(begun)\n        self._removals.end(begun)\n",
        (*_SENTINEL_TESTS, *_MAP_TESTS),
    ),
    Mutant(
        "maps: the puts begin before the older writer is fenced",
        _COMMITS,
        "            # Before the first put, because from here on the earlier writer of the partition is fenced.\n"
        "            self._lay_sentinel(commit, sealed=self.backing.facts.commits_atomically)\n            self.backing.begin(commit)",
        "            self.backing.begin(commit)\n"
        "            self._lay_sentinel(commit, sealed=self.backing.facts.commits_atomically)",
        (*_SENTINEL_TESTS, *_MAP_TESTS),
    ),
    Mutant(
        "maps: another commit than the one that began may end",
        _COMMITS,
        "begun is None or begun != txid or (isinstance(txid, Txid) and txid.attempt != begun.attempt):",
        "begun is None or begun != txid:",
        _MAP_TESTS,
    ),
    Mutant(
        "maps: readers are given the stored objects themselves",
        _COMMITS,
        "return values if self.backing.facts.gives_copies else owned(values)",
        "return values",
        ("tests/state/test_snapshot_readers.py::test_a_read_value_is_the_readers_own",),
    ),
    Mutant(
        "removals: a removed key is deleted at once",
        _REMOVALS,
        "if by <= txid - REMOVAL_LAG}",
        "if by <= txid}",
        _REMOVAL_TESTS,
    ),
    Mutant(
        "removals: a key is deleted although it was written since",
        _REMOVALS,
        "if self._left(found, by)]",
        "if self._left(found, by) or True]",
        _REMOVAL_TESTS,
    ),
    Mutant(
        "removals: an attempt that lost deletes",
        _REMOVALS,
        "if by >= txid or not txid.winners.won(by, by.attempt)]:",
        "if by >= txid]:",
        _REMOVAL_TESTS,
    ),
    Mutant(
        "sentinel: a run that is second may write",
        _SENTINEL,
        "if found is not None and _is_second_run(found, txid):",
        "if False:",
        _SENTINEL_TESTS,
    ),
    Mutant(
        "sentinel: the fence is the wrong way round",
        _SENTINEL,
        "if (found.attempt, found.txid) > (txid.attempt, txid):",
        "if (found.attempt, found.txid) < (txid.attempt, txid):",
        _SENTINEL_TESTS,
    ),
    Mutant(
        "sentinel: a driver that the log does not know is taken for an own one",
        _SENTINEL,
        "return is_own or txid.epochs is None or epoch_of(found.attempt) in txid.epochs",
        "return True",
        _SENTINEL_TESTS,
    ),
    Mutant(
        "sentinel: a commit that won is taken for a failed one",
        _SENTINEL,
        "has_lost = found.txid == txid or txid.winners.winner(found.txid) != found.attempt",
        "has_lost = True",
        _SENTINEL_TESTS,
    ),
    Mutant(
        "sentinel: an older commit than expected is good enough",
        _SENTINEL,
        "return floor < at <= (int(txid), txid.attempt) and has_lost",
        "return at <= (int(txid), txid.attempt) and has_lost",
        _SENTINEL_TESTS,
    ),
    Mutant(
        "sentinel: a commit whose last writes are lost is good enough",
        _SENTINEL,
        "return found == expected and (found.sealed or found.txid == 0 or found.txid >= txid)",
        "return found == expected",
        _SENTINEL_TESTS,
    ),
    Mutant(
        "sentinel: an emptied store is taken for a new one",
        _SENTINEL,
        "return expected is None or expected.txid == 0",
        "return True",
        _SENTINEL_TESTS,
    ),
    Mutant(
        "sentinel: a later attempt is overwritten by an earlier one",
        _SENTINEL,
        "found.txid <= own.txid and found.attempt <= own.attempt",
        "found.txid <= own.txid",
        _SENTINEL_TESTS,
    ),
    Mutant(
        "sentinel: it is laid over another run of the same commit",
        _SENTINEL,
        'return found == own and found.run not in ("", own.run)',
        "return False",
        _SENTINEL_TESTS,
    ),
    Mutant(
        "sentinel: the place of another state is written",
        _SENTINEL,
        'return bool(place) and found.place not in ("", place)',
        "return False",
        _SENTINEL_TESTS,
    ),
    Mutant(
        "sentinel: what another writer laid meanwhile is overwritten",
        _SENTINEL,
        "    if found != seen or (found is not None and seen is not None and found[4:] != seen[4:]):\n",
        "    if False:\n",
        _SENTINEL_TESTS,
    ),
    Mutant(
        "sentinel, in a plain map: a store that was emptied meanwhile is sealed",
        _SENTINEL,
        "        if begun == sentinel:\n            self._check_unchanged(sentinel, seen)\n",
        "",
        (*_SENTINEL_TESTS, "tests/state/test_maps.py"),
    ),
    Mutant(
        "winners: an attempt counts beyond the batches that it won",
        _WINNERS,
        "in_range &= txids < self.ranges[at + 1][0]",
        "in_range &= txids <= self.ranges[at + 1][0]",
        ("tests/state/test_value_rules.py", "tests/state/test_values.py"),
    ),
    Mutant(
        "winners: epochs that never wrote are known",
        _WINNERS,
        "if last + 1 < epoch:",
        "if last < 0:",
        (*_SENTINEL_TESTS, "tests/state/test_values.py", "tests/coordination/test_log_contract.py"),
    ),
    Mutant(
        "cache: filled before the put",
        _CACHED,
        "        cache = self._cache\n        try:\n            self.delegate.multi_put(keys, values)\n"
        "        except BaseException:\n            # Any part may be written or not: only the store knows.\n"
        "            for key in keys:\n                cache.pop(key, None)\n            raise\n        if self._remembers(keys):\n",
        "        cache = self._cache\n        cache.update(zip(keys, values, strict=True))\n"
        "        self.delegate.multi_put(keys, values)\n        if self._remembers(keys):\n",
        (*_CACHE_TESTS, "tests/state/test_crash_schedules.py"),
    ),
    Mutant(
        "cache: keeps what it had when a put fails",
        _CACHED,
        "            for key in keys:\n                cache.pop(key, None)\n            raise\n",
        "            raise\n",
        _CACHE_TESTS,
    ),
    Mutant(
        "cache: deleted keys stay in it",
        _CACHED,
        "            self._cache.pop(key, None)\n        super().multi_delete(keys)",
        "            pass\n        super().multi_delete(keys)",
        _REMOVAL_TESTS,
    ),
    Mutant(
        "cache: a snapshot is read from memory",
        _CACHED,
        '        """Read from the store, past the memory: what a snapshot read of an opaque map asks for."""\n'
        "        return self.delegate.multi_get(keys)",
        "        return self.multi_get(keys)",
        _CACHE_TESTS,
    ),
    Mutant(
        "cache: its owner is stale, another process committed since",
        _MEMORY,
        "if ended is None or not follows(txid, ended):",
        "if ended is None:",
        _CACHE_TESTS,
    ),
    Mutant(
        "cache: counts although the store could not end the commit",
        _MEMORY,
        "        self.inner.end(txid)\n        self._ended = txid  #",
        "        self._ended = txid\n        self.inner.end(txid)  #",
        (*_CACHE_TESTS, *_THROUGH_TESTS),
    ),
    Mutant(
        "cache: another thread reads from the memory of a commit",
        _MEMORY,
        "return self._committing == threading.get_ident() and not is_sentinel_key(keys)",
        "return self._committing is not None and not is_sentinel_key(keys)",
        (*_CACHE_TESTS, *_THROUGH_TESTS),
    ),
    Mutant(
        "cache: a sentinel is read from memory",
        _MEMORY,
        "return self._committing == threading.get_ident() and not is_sentinel_key(keys)",
        "return self._committing == threading.get_ident()",
        (*_CACHE_TESTS, *_THROUGH_TESTS, *_SENTINEL_TESTS),
    ),
    Mutant(
        "outer cache: it is kept when a put fails",
        _THROUGH,
        "        except BaseException:\n"
        "            self._space = None  # any part may be written or not: only the durable map knows\n            raise",
        "        except BaseException:\n            raise",
        _THROUGH_TESTS,
    ),
    Mutant(
        "outer cache: a fill that was interrupted leaves the space in use",
        _THROUGH,
        "space, self._space = self._space, None  # if",
        "space = self._space  # if",
        _THROUGH_TESTS,
    ),
)
