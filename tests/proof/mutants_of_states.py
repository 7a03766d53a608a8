"""Mutants of what makes a key-value store exact: the maps, their rule, the sentinel, the memories in front of a store."""

from __future__ import annotations

from tests.proof.mutant import Mutant

_VALUES, _MAPS = "trident/state/values.py", "trident/state/maps.py"
_COMMITS, _SENTINEL, _WINNERS = "trident/state/map_commits.py", "trident/state/sentinel.py", "trident/state/txid.py"
_CACHED = "trident/state/cached.py"

_CACHE_TESTS = ("tests/state/test_cached.py",)
_THROUGH_TESTS = ("tests/state/test_read_through.py",)
_REMOVAL_TESTS = ("tests/state/test_removals.py",)

OF_STATES = (
    Mutant(
        "opaque: a replay builds on what the failed attempt wrote",
        _VALUES,
        "        if self.txid >= txid:\n            return False",
        "        if self.txid > txid:\n            return False",
        ("tests/state/test_maps.py::test_a_replay_counts_once_where_the_kind_promises_it",),
    ),
    Mutant(
        "opaque: values do not say their attempt (Storm's rule)",
        _VALUES,
        "return winners.won(self.txid, self.attempt) or self.attempt == UNKNOWN_ATTEMPT",
        "return True",
        ("tests/state/test_maps.py::test_h1_a_key_that_the_replay_no_longer_contains_counts_once",),
    ),
    Mutant(
        "opaque, in columns: a replay builds on what the failed attempt wrote",
        _VALUES,
        "return stand & (txids < txid)",
        "return stand & (txids <= txid)",
        ("tests/state/test_value_rules.py::test_who_won_is_the_same_for_each_and_for_all",),
    ),
    Mutant(
        "opaque, in columns: values do not say their attempt",
        _VALUES,
        "winners.won_each(txids, attempts) | (attempts == UNKNOWN_ATTEMPT)",
        "winners.won_each(txids, attempts) | (attempts >= UNKNOWN_ATTEMPT)",
        ("tests/state/test_value_rules.py::test_who_won_is_the_same_for_each_and_for_all",),
    ),
    Mutant(
        "opaque: the value before the batch is lost by a second update",
        _MAPS,
        "prevs = [written[k].prev if k in written else b for k, b in zip(keys, bases, strict=True)] if written else bases",
        "prevs = bases",
        ("tests/state/test_maps.py::test_prev_is_what_was_there_before_the_batch_however_often_it_updates",),
    ),
    Mutant(
        "opaque: a second update does not see the first one of the commit",
        _MAPS,
        "        return [written[k].curr if k in written else b for k, b in zip(keys, bases, strict=True)] if written else bases",
        "        return bases",
        ("tests/state/test_maps.py::test_a_key_may_be_updated_in_several_calls_of_a_batch",),
    ),
    Mutant(
        "opaque: a value of a later batch is built upon",
        _MAPS,
        "        later = found.first_after(txid)\n        if later is not None:",
        "        later = found.first_after(txid)\n        if later is None:",
        ("tests/state/test_maps.py::test_h5_a_stored_txid_above_the_current_one_is_an_error_and_nothing_is_written",),
    ),
    Mutant(
        "opaque, in columns: what a commit wrote counts before the put",
        _MAPS,
        "        self.backing.multi_put(keys, table)\n        count_keys(written=len(keys))\n",
        "        self._unmerged = partial(zip, keys, table, strict=True)\n        self.backing.multi_put(keys, table)\n"
        "        count_keys(written=len(keys))\n",
        (
            "tests/states/memory/test_memory_columns.py::test_within_a_commit_a_failed_put_of_columns_does_not_look_written",
        ),
    ),
    Mutant(
        "opaque: a reader of a snapshot takes the next batch too",
        _MAPS,
        "values = self._before(snapshot.txid + 1, snapshot.winners, keys, stored, behind=snapshot.txid)",
        "values = self._before(snapshot.txid + 2, snapshot.winners, keys, stored, behind=snapshot.txid)",
        ("tests/state/test_maps.py::test_a_snapshot_sees_committed_batches_only",),
    ),
    Mutant(
        "transactional: a replay is applied again (no skip on equality)",
        _VALUES,
        "return self.txid == txid",
        "return self.txid > txid",
        ("tests/state/test_maps.py::test_a_replay_counts_once_where_the_kind_promises_it",),
    ),
    Mutant(
        "transactional: the second update of a key is skipped as a replay",
        _MAPS,
        "stored.includes(txid) and key not in self._written:",
        "stored.includes(txid):",
        ("tests/state/test_maps.py::test_a_key_may_be_updated_in_several_calls_of_a_batch",),
    ),
    Mutant(
        "transactional: each update is put at once, not at the commit",
        _MAPS,
        "    _puts_at_commit = True",
        "    _puts_at_commit = False",
        ("tests/state/test_maps.py::test_a_crash_between_two_updates_of_a_key_loses_neither_of_a_transactional_batch",),
    ),
    Mutant(
        "transactional: a value of a later batch is built upon",
        _MAPS,
        "if stored is not None and stored.txid > txid:",
        "if False:",
        ("tests/state/test_maps.py::test_h5_a_stored_txid_above_the_current_one_is_an_error_and_nothing_is_written",),
    ),
    Mutant(
        "maps: of two updates of one key one is lost",
        _COMMITS,
        "if len(set(keys)) != len(keys):",
        "if False:",
        ("tests/state/test_maps.py::test_a_key_twice_in_one_update_is_refused_before_anything_is_read",),
    ),
    Mutant(
        "maps: the sentinel is not compared",
        _COMMITS,
        "        if commit.incarnation is not None:\n            check_sentinel(",
        "        if False:\n            check_sentinel(",
        ("tests/storekit/test_whole_commits.py::TestMapState",),
    ),
    Mutant(
        "maps: the writes of a commit that was given up count in the next",
        _COMMITS,
        "        commit = txid if isinstance(txid, Txid) else Txid(txid)\n        self._forget()\n",
        "        commit = txid if isinstance(txid, Txid) else Txid(txid)\n",
        ("tests/state/test_maps.py::test_a_crash_between_two_updates_of_a_key_loses_neither_of_a_transactional_batch",),
    ),
    Mutant(
        "maps: memory before the put",
        _COMMITS,
        "            if not self._puts_at_commit:\n                self.backing.multi_put(keys, stored)\n"
        "                count_keys(written=len(keys))\n            self._written.update(zip(keys, stored, strict=True))",
        "            self._written.update(zip(keys, stored, strict=True))\n            if not self._puts_at_commit:\n"
        "                self.backing.multi_put(keys, stored)\n                count_keys(written=len(keys))",
        ("tests/state/test_maps.py::test_within_a_commit_a_failed_put_does_not_look_written",),
    ),
    Mutant(
        "maps: the sentinel is sealed before the puts are durable",
        _COMMITS,
        "        self.backing.end(begun)\n",
        "        if not self.backing.facts.commits_atomically:\n            self._lay_sentinel(begun, sealed=True)\n"
        "        self.backing.end(begun)\n",
        ("tests/state/test_sentinel.py::test_a_commit_is_sealed_at_its_end",),
    ),
    Mutant(
        "maps: the puts begin before the older writer is fenced",
        _COMMITS,
        "            # Before the first put, because from here on the earlier writer of the partition is fenced.\n"
        "            self._lay_sentinel(commit, sealed=self.backing.facts.commits_atomically)\n            self.backing.begin(commit)",
        "            self.backing.begin(commit)\n"
        "            self._lay_sentinel(commit, sealed=self.backing.facts.commits_atomically)",
        ("tests/state/test_two_runs.py::test_without_the_ids_of_runs_what_only_the_first_run_wrote_counts",),
    ),
    Mutant(
        "maps: another commit than the one that began may end",
        _COMMITS,
        "begun is None or begun != txid or (isinstance(txid, Txid) and txid.attempt != begun.attempt):",
        "begun is None or begun != txid:",
        ("tests/state/test_maps.py::test_a_commit_needs_its_own_begin",),
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
        _COMMITS,
        "if by <= txid - REMOVAL_LAG}",
        "if by <= txid}",
        _REMOVAL_TESTS,
    ),
    Mutant(
        "removals: a key is deleted although it was written since",
        _COMMITS,
        "if self._is_tombstone(found, by)]",
        "if self._is_tombstone(found, by) or True]",
        _REMOVAL_TESTS,
    ),
    Mutant(
        "removals: an attempt that lost deletes",
        _COMMITS,
        "if by >= txid or not txid.winners.won(by, by.attempt)]:",
        "if by >= txid]:",
        _REMOVAL_TESTS,
    ),
    Mutant(
        "sentinel: a run that is second may write",
        _SENTINEL,
        "if found is not None and _is_second_run(found, txid):",
        "if False:",
        ("tests/state/test_sentinel.py::test_another_run_of_this_very_commit_is_named",),
    ),
    Mutant(
        "sentinel: the fence is the wrong way round",
        _SENTINEL,
        "if (found.attempt, found.txid) > (txid.attempt, txid):",
        "if (found.attempt, found.txid) < (txid.attempt, txid):",
        ("tests/state/test_sentinel.py::test_legal",),
    ),
    Mutant(
        "sentinel: a driver that the log does not know is taken for an own one",
        _SENTINEL,
        "return is_own or txid.epochs is None or epoch_of(found.attempt) in txid.epochs",
        "return True",
        ("tests/state/test_sentinel.py::test_an_attempt_of_a_driver_that_the_log_does_not_know_is_a_mismatch",),
    ),
    Mutant(
        "sentinel: a commit that won is taken for a failed one",
        _SENTINEL,
        "has_lost = found.txid == txid or txid.winners.winner(found.txid) != found.attempt",
        "has_lost = True",
        ("tests/state/test_sentinel.py::test_store_and_log_that_do_not_belong_together",),
    ),
    Mutant(
        "sentinel: an older commit than expected is good enough",
        _SENTINEL,
        "return floor < at <= (int(txid), txid.attempt) and has_lost",
        "return at <= (int(txid), txid.attempt) and has_lost",
        ("tests/state/test_sentinel.py::test_store_and_log_that_do_not_belong_together",),
    ),
    Mutant(
        "sentinel: a commit whose last writes are lost is good enough",
        _SENTINEL,
        "return found == expected and (found.sealed or found.txid == 0 or found.txid >= txid)",
        "return found == expected",
        ("tests/state/test_sentinel.py::test_an_expected_commit_without_its_seal_has_lost_its_end",),
    ),
    Mutant(
        "sentinel: an emptied store is taken for a new one",
        _SENTINEL,
        "return expected is None or expected.txid == 0",
        "return True",
        ("tests/state/test_sentinel.py::test_store_and_log_that_do_not_belong_together",),
    ),
    Mutant(
        "sentinel: a later attempt is overwritten by an earlier one",
        _SENTINEL,
        "found.txid <= own.txid and found.attempt <= own.attempt",
        "found.txid <= own.txid",
        ("tests/state/test_sentinel.py::test_what_a_writer_is_told_that_finds_another_sentinel",),
    ),
    Mutant(
        "sentinel: it is laid over another run of the same commit",
        _SENTINEL,
        'return found.run not in ("", own.run) and found == own',
        "return False",
        ("tests/storekit/test_sentinel_order.py::test_the_rule_answers_each_case",),
    ),
    Mutant(
        "sentinel: the place of another state is written",
        _SENTINEL,
        'return found is not None and bool(place) and found.place not in ("", place)',
        "return False",
        ("tests/state/test_sentinel.py::test_another_state_in_the_same_place_is_named",),
    ),
    Mutant(
        "sentinel: what another writer laid meanwhile is overwritten",
        _SENTINEL,
        "    if found is not seen and (found != seen or (found is not None and seen is not None and found[4:] != seen[4:])):\n",
        "    if False:\n",
        ("tests/storekit/test_sentinel_order.py::test_the_rule_answers_each_case",),
    ),
    Mutant(
        "sentinel, in a plain map: a store that was emptied meanwhile is sealed",
        _SENTINEL,
        "        if begun == sentinel:\n            self._check_unchanged(sentinel, seen)\n",
        "",
        (
            "tests/state/test_sentinel.py::test_a_store_that_was_emptied_between_the_sentinels_read_and_the_end_is_found",
        ),
    ),
    Mutant(
        "winners: an attempt counts beyond the batches that it won",
        _WINNERS,
        "in_range &= txids < self.ranges[at + 1][0]",
        "in_range &= txids <= self.ranges[at + 1][0]",
        ("tests/state/test_value_rules.py::test_who_won_is_the_same_for_each_and_for_all",),
    ),
    Mutant(
        "winners: epochs that never wrote are known",
        _WINNERS,
        "if last + 1 < epoch:",
        "if last < 0:",
        ("tests/state/test_sentinel.py::test_epochs_are_kept_as_ranges",),
    ),
    Mutant(
        "cache: filled before the put",
        _CACHED,
        "        try:\n            write()\n        except BaseException:\n"
        "            self._space = None  # any part may be written or not: only the store knows\n            raise\n",
        "        self._remember(keys, values)\n        write()\n",
        ("tests/state/test_cached.py::test_within_a_commit_the_keys_of_a_failed_put_are_forgotten",),
    ),
    Mutant(
        "cache: keeps what it had when a put fails",
        _CACHED,
        "            self._space = None  # any part may be written or not: only the store knows\n            raise\n",
        "            raise\n",
        (*_CACHE_TESTS, *_THROUGH_TESTS),
    ),
    Mutant(
        "cache: deleted keys stay in it",
        _CACHED,
        "            self._write(partial(self.inner.multi_delete, keys), keys, [None] * len(keys))\n",
        "            self.inner.multi_delete(keys)\n",
        _REMOVAL_TESTS,
    ),
    Mutant(
        "cache: a snapshot is read from memory",
        _CACHED,
        "        self.facts = replace(self.facts, past_caches=self.inner if behind is None else behind)\n",
        "",
        _CACHE_TESTS,
    ),
    Mutant(
        "cache: its owner is stale, another process committed since",
        _CACHED,
        "or ended is None or not follows(txid, ended):",
        "or ended is None:",
        _CACHE_TESTS,
    ),
    Mutant(
        "cache: counts although the store could not end the commit",
        _CACHED,
        "        self.inner.end(txid)\n        self._ended = txid  #",
        "        self._ended = txid\n        self.inner.end(txid)  #",
        ("tests/state/test_cached.py::test_a_commit_that_the_store_could_not_end_leaves_nothing",),
    ),
    Mutant(
        "cache: another thread reads from the memory of a commit",
        _CACHED,
        "return self._committing == threading.get_ident() and not is_sentinel_key(keys)",
        "return self._committing is not None and not is_sentinel_key(keys)",
        ("tests/state/test_cached.py::test_a_read_of_another_thread_leaves_nothing_in_the_memory",),
    ),
    Mutant(
        "cache: a sentinel is read from memory",
        _CACHED,
        "return self._committing == threading.get_ident() and not is_sentinel_key(keys)",
        "return self._committing == threading.get_ident()",
        ("tests/state/test_cached.py::test_a_sentinel_under_a_reserved_key_is_always_asked_of_the_store",),
    ),
    Mutant(
        "outer cache: a fill that was interrupted leaves the space in use",
        _CACHED,
        "space, self._space = self._space, None  # if",
        "space = self._space  # if",
        _THROUGH_TESTS,
    ),
)
