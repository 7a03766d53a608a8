"""Mutants of what makes a key-value store exact: the maps, their rule, the sentinel, the memories in front of a store."""

from tests.proof.mutant import mutants

OF_STATES = mutants(
    """
@ trident/state/values.py
? tests/state/test_value_rules.py::test_who_won_is_the_same_for_each_and_for_all
# opaque: a replay builds on what the failed attempt wrote
-        if self.txid >= txid:
-            return False
+        if self.txid > txid:
+            return False
? tests/state/test_maps.py::test_a_replay_counts_once_where_the_kind_promises_it
# opaque: values do not say their attempt (Storm's rule)
-return winners.won(self.txid, self.attempt) or self.attempt == UNKNOWN_ATTEMPT
+return True
? tests/state/test_maps.py::test_h1_a_key_that_the_replay_no_longer_contains_counts_once
# opaque, in columns: a replay builds on what the failed attempt wrote
-return stand & (txids < txid)
+return stand & (txids <= txid)
# opaque, in columns: values do not say their attempt
-winners.won_each(txids, attempts) | (attempts == UNKNOWN_ATTEMPT)
+winners.won_each(txids, attempts) | (attempts >= UNKNOWN_ATTEMPT)
@ trident/state/maps.py
? tests/state/test_maps.py::test_prev_is_what_was_there_before_the_batch_however_often_it_updates
# opaque: the value before the batch is lost by a second update
-prevs = [written[k].prev if k in written else b for k, b in zip(keys, bases, strict=True)] if written else bases
+prevs = bases
# opaque: a second update does not see the first one of the commit
-        return [written[k].curr if k in written else b for k, b in zip(keys, bases, strict=True)] if written else bases
+        return bases
? tests/state/test_maps.py::test_a_key_may_be_updated_in_several_calls_of_a_batch
# opaque: a value of a later batch is built upon
-        later = found.first_after(txid)
-        if later is not None:
+        later = found.first_after(txid)
+        if later is None:
? tests/state/test_maps.py::test_h5_a_stored_txid_above_the_current_one_is_an_error_and_nothing_is_written
# opaque, in columns: what a commit wrote counts before the put
-        self.backing.multi_put(keys, table)
-        count_keys(written=len(keys))
+        self._unmerged = partial(zip, keys, table, strict=True)
+        self.backing.multi_put(keys, table)
+        count_keys(written=len(keys))
? tests/states/memory/test_memory_columns.py::test_within_a_commit_a_failed_put_of_columns_does_not_look_written
# opaque: a reader of a snapshot takes the next batch too
-values = self._before(snapshot.txid + 1, snapshot.winners, keys, stored, behind=snapshot.txid)
+values = self._before(snapshot.txid + 2, snapshot.winners, keys, stored, behind=snapshot.txid)
? tests/state/test_maps.py::test_a_snapshot_sees_committed_batches_only
@ trident/state/values.py
? tests/state/test_maps.py::test_a_replay_counts_once_where_the_kind_promises_it
# transactional: a replay is applied again (no skip on equality)
-return self.txid == txid
+return self.txid > txid
@ trident/state/maps.py
? tests/state/test_maps.py::test_a_key_may_be_updated_in_several_calls_of_a_batch
# transactional: the second update of a key is skipped as a replay
-stored.includes(txid) and key not in self._written:
+stored.includes(txid):
# transactional: each update is put at once, not at the commit
-    _puts_at_commit = True
+    _puts_at_commit = False
? tests/state/test_maps.py::test_a_crash_between_two_updates_of_a_key_loses_neither_of_a_transactional_batch
# transactional: a value of a later batch is built upon
-if stored is not None and stored.txid > txid:
+if False:
? tests/state/test_maps.py::test_h5_a_stored_txid_above_the_current_one_is_an_error_and_nothing_is_written
@ trident/state/map_commits.py
? tests/state/test_removals.py
# maps: of two updates of one key one is lost
-if len(set(keys)) != len(keys):
+if False:
? tests/state/test_maps.py::test_a_key_twice_in_one_update_is_refused_before_anything_is_read
# maps: the sentinel is not compared
-        if commit.incarnation is not None:
-            check_sentinel(
+        if False:
+            check_sentinel(
? tests/storekit/test_whole_commits.py::TestMapState
# maps: the writes of a commit that was given up count in the next
-        commit = txid if isinstance(txid, Txid) else Txid(txid)
-        self._forget()
+        commit = txid if isinstance(txid, Txid) else Txid(txid)
? tests/state/test_maps.py::test_a_crash_between_two_updates_of_a_key_loses_neither_of_a_transactional_batch
# maps: memory before the put
-            if not self._puts_at_commit:
-                self.backing.multi_put(keys, stored)
-                count_keys(written=len(keys))
-            self._written.update(zip(keys, stored, strict=True))
+            self._written.update(zip(keys, stored, strict=True))
+            if not self._puts_at_commit:
+                self.backing.multi_put(keys, stored)
+                count_keys(written=len(keys))
? tests/state/test_maps.py::test_within_a_commit_a_failed_put_does_not_look_written
# maps: the sentinel is sealed before the puts are durable
-        self.backing.end(begun)
+        if not self.backing.facts.commits_atomically:
+            self._lay_sentinel(begun, sealed=True)
+        self.backing.end(begun)
? tests/state/test_sentinel.py::test_a_commit_is_sealed_at_its_end
# maps: the puts begin before the older writer is fenced
-            # Before the first put, because from here on the earlier writer of the partition is fenced.
-            self._lay_sentinel(commit, sealed=self.backing.facts.commits_atomically)
-            self.backing.begin(commit)
+            self.backing.begin(commit)
+            self._lay_sentinel(commit, sealed=self.backing.facts.commits_atomically)
? tests/state/test_two_runs.py::test_without_the_ids_of_runs_what_only_the_first_run_wrote_counts
# maps: another commit than the one that began may end
-begun is None or begun != txid or (isinstance(txid, Txid) and txid.attempt != begun.attempt):
+begun is None or begun != txid:
? tests/state/test_maps.py::test_a_commit_needs_its_own_begin
# maps: readers are given the stored objects themselves
-return values if self.backing.facts.gives_copies else own_all(values)
+return values
? tests/state/test_snapshot_readers.py::test_a_read_value_is_the_readers_own
# removals: a removed key is deleted at once
-if by <= txid - REMOVAL_LAG}
+if by <= txid}
# removals: a key is deleted although it was written since
-if self._is_tombstone(found, by)]
+if self._is_tombstone(found, by) or True]
# removals: an attempt that lost deletes
-if by >= txid or not txid.winners.won(by, by.attempt)]:
+if by >= txid]:
@ trident/state/sentinel.py
? tests/state/test_sentinel.py::test_store_and_log_that_do_not_belong_together
# sentinel: a run that is second may write
-if found is not None and _is_second_run(found, txid):
+if False:
? tests/state/test_sentinel.py::test_another_run_of_this_very_commit_is_named
# sentinel: the fence is the wrong way round
-if (found.attempt, found.txid) > (txid.attempt, txid):
+if (found.attempt, found.txid) < (txid.attempt, txid):
? tests/state/test_sentinel.py::test_legal
# sentinel: a driver that the log does not know is taken for an own one
-return is_own or txid.epochs is None or epoch_of(found.attempt) in txid.epochs
+return True
? tests/state/test_sentinel.py::test_an_attempt_of_a_driver_that_the_log_does_not_know_is_a_mismatch
# sentinel: a commit that won is taken for a failed one
-has_lost = found.txid == txid or txid.winners.winner(found.txid) != found.attempt
+has_lost = True
# sentinel: an older commit than expected is good enough
-return floor < at <= (int(txid), txid.attempt) and has_lost
+return at <= (int(txid), txid.attempt) and has_lost
# sentinel: a commit whose last writes are lost is good enough
-return found == expected and (found.sealed or found.txid == 0 or found.txid >= txid)
+return found == expected
? tests/state/test_sentinel.py::test_an_expected_commit_without_its_seal_has_lost_its_end
# sentinel: an emptied store is taken for a new one
-return expected is None or expected.txid == 0
+return True
# sentinel: a later attempt is overwritten by an earlier one
-found.txid <= own.txid and found.attempt <= own.attempt
+found.txid <= own.txid
? tests/state/test_sentinel.py::test_what_a_writer_is_told_that_finds_another_sentinel
# sentinel: it is laid over another run of the same commit
-return found.run not in ("", own.run) and found == own
+return False
? tests/storekit/test_sentinel_order.py::test_the_rule_answers_each_case
# sentinel: the place of another state is written
-return found is not None and bool(place) and found.place not in ("", place)
+return False
? tests/state/test_sentinel.py::test_another_state_in_the_same_place_is_named
# sentinel: what another writer laid meanwhile is overwritten
-    if found is not seen and (found != seen or (found is not None and seen is not None and found[4:] != seen[4:])):
+    if False:
? tests/storekit/test_sentinel_order.py::test_the_rule_answers_each_case
# sentinel, in a plain map: a store that was emptied meanwhile is sealed
-        if begun == sentinel:
-            self._check_unchanged(sentinel, seen)
? tests/state/test_sentinel.py::test_a_store_that_was_emptied_between_the_sentinels_read_and_the_end_is_found
@ trident/state/txid.py
? tests/state/test_value_rules.py::test_who_won_is_the_same_for_each_and_for_all
# winners: an attempt counts beyond the batches that it won
-in_range &= txids < self.ranges[at + 1][0]
+in_range &= txids <= self.ranges[at + 1][0]
# winners: epochs that never wrote are known
-if last + 1 < epoch:
+if last < 0:
? tests/state/test_sentinel.py::test_epochs_are_kept_as_ranges
@ trident/state/cached.py
? tests/state/test_cached.py
# cache: filled before the put
-        try:
-            write()
-        except BaseException:
-            self._space = None  # any part may be written or not: only the store knows
-            raise
+        self._remember(keys, values)
+        write()
? tests/state/test_cached.py::test_within_a_commit_the_keys_of_a_failed_put_are_forgotten
# cache: keeps what it had when a put fails
-            self._space = None  # any part may be written or not: only the store knows
-            raise
+            raise
? tests/state/test_cached.py
? tests/state/test_read_through.py
# cache: deleted keys stay in it
-            self._write(partial(self.inner.multi_delete, keys), keys, [None] * len(keys))
+            self.inner.multi_delete(keys)
? tests/state/test_removals.py
# cache: a snapshot is read from memory
-        self.facts = replace(self.facts, past_caches=self.inner if behind is None else behind)
# cache: its owner is stale, another process committed since
-or ended is None or not follows(txid, ended):
+or ended is None:
# cache: counts although the store could not end the commit
-        self.inner.end(txid)
-        self._ended = txid  #
+        self._ended = txid
+        self.inner.end(txid)  #
? tests/state/test_cached.py::test_a_commit_that_the_store_could_not_end_leaves_nothing
# cache: another thread reads from the memory of a commit
-return self._committing == threading.get_ident() and not is_sentinel_key(keys)
+return self._committing is not None and not is_sentinel_key(keys)
? tests/state/test_cached.py::test_a_read_of_another_thread_leaves_nothing_in_the_memory
# cache: a sentinel is read from memory
-return self._committing == threading.get_ident() and not is_sentinel_key(keys)
+return self._committing == threading.get_ident()
? tests/state/test_cached.py::test_a_sentinel_under_a_reserved_key_is_always_asked_of_the_store
# outer cache: a fill that was interrupted leaves the space in use
-space, self._space = self._space, None  # if
+space = self._space  # if
? tests/state/test_read_through.py
"""
)
