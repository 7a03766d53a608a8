"""Mutants of the log: what a record means, how it survives a crash, who may write it."""

from tests.proof.mutant import mutants

OF_LOGS = mutants(
    """
@ trident/log/log_state.py
? tests/log/test_log_records.py::test_only_the_next_batch_can_be_committed
# log: a batch is recorded although the one before is not
-isinstance(record, records.CommitRecord) and record.txid != self.txid + 1:
+isinstance(record, records.CommitRecord) and record.txid <= self.txid:
# log: a definition that was logged is replaced
-if record.spout in known and known[record.spout] != record.definition:
+if False:
? tests/log/test_log_records.py::test_a_definition_never_changes
# log: the attempt that won is not noted
-        self.winners = self.winners.with_winner(record.txid, record.attempt)
? tests/log/test_log_records.py::test_winners_grow_with_failures_only
# log: which partitions a batch touched is not noted
-self.touched.setdefault(state, {}).update(dict.fromkeys(partitions, sentinel))
+self.touched.setdefault(state, {})
? tests/log/test_log_records.py::test_the_sentinel_of_a_partition_is_that_of_its_last_touch
# log: a spout that had nothing loses its place
-{spout: one for spout, one in definitions.items() if one is not None}
+dict(definitions)
? tests/log/test_log_records.py::test_a_spout_that_had_nothing_in_an_adopted_batch_stays_where_it_was
# log: a reader may see a batch before its winner
-        self._define_last(record.spouts)
-        self.winners = self.winners.with_winner(record.txid, record.attempt)
+        self.txid = record.txid
+        self._define_last(record.spouts)
+        self.winners = self.winners.with_winner(record.txid, record.attempt)
? tests/log/test_log_records.py
? tests/log/test_log_contract.py
@ trident/log/framing.py
? tests/log/test_log_files.py::test_of_two_records_not_durable_a_crash_may_leave_a_part_of_the_second
# log in files: a torn record is accepted
-if _checksum(payload, base + at) == checksum else None
+if checksum or True else None
# log in files: damage in the middle is taken for a torn end
-    if follower is not None:
-        reason
+    if follower == -1:
+        reason
? tests/log/test_log_files.py::test_a_record_after_a_sync_tells_that_one_before_it_is_damaged
# log in files: the checksum does not know its place
-return crc32(payload, crc32(_PLACE.pack(offset, len(payload))))
+return crc32(payload, crc32(_PLACE.pack(0, len(payload))))
? tests/log/test_log_files.py::test_a_definition_that_holds_pieces_of_a_log_is_torn_like_any_other
@ trident/log/log_reader.py
? tests/log/test_log_files.py::test_a_reader_passes_over_a_record_that_a_claim_may_have_fenced
# log in files: a record of a fenced driver is read
-if has_records and not trust_last and self._being_replaced(segment, later):
+if False:
@ trident/log/file_log.py
? tests/log/test_log_files.py::test_a_takeover_within_an_append_fences_it_and_loses_nothing_reported
# log in files: a record counts although another driver took over meanwhile
-            # Check again: a driver that claimed the log since the first check may have read it without this record.
-            self._check_claim()
+            pass
@ trident/log/log_interface.py
? tests/log/test_log_files.py::test_a_record_that_cannot_be_made_durable_does_not_count
# log in files: the state is ahead of the disk
-                self._append(payload, written, durable, beside)
-            except (FencedError, LogError) as error:
-                self._dead = error
-                raise
-            self.state.fold(written)
+                self.state.fold(written)
+                self._append(payload, written, durable, beside)
+            except (FencedError, LogError) as error:
+                self._dead = error
+                raise
@ trident/log/file_log.py
? tests/log/test_log_files.py::test_a_record_that_cannot_be_made_durable_does_not_count
# log in files: a record is not synced
-        self._file.write(data)
-        if durable:
-            self._file.sync()
-        self._size
+        self._file.write(data)
+        self._size
? tests/log/test_log_files.py::test_a_writer_whose_log_was_restored_from_a_copy_stops
# log in files: a segment gets its name before it is durable (a rotation too early)
-            file.sync()
-            # It may become the newest segment only now, complete and durable.
-            temporary.rename(self.path / segment.file)
+            temporary.rename(self.path / segment.file)
+            file.sync()
# log in files: the segment before is removed as well
-names = [each.file for each in listing.segments if each < keep]
+names = [each.file for each in listing.segments if each <= keep and each != self._segment]
? tests/log/test_log_files.py::test_a_definition_that_holds_pieces_of_a_log_is_torn_like_any_other
# log in files: a failed record stays in the file
-                self._file.cut(self._size)
+                pass
@ trident/log/lock.py
? tests/log/test_log_files.py::test_a_cut_record_is_told_and_is_gone
# claim: an epoch is used twice
-        epoch = before.epoch + 1
+        epoch = len(before.claims) + 1
# claim: a running driver is replaced without being asked to
-if not takeover and before.claims and
+if takeover and before.claims and
? tests/log/test_log_files.py::test_a_takeover_within_an_append_fences_it_and_loses_nothing_reported
# claim: a driver that slept claims an epoch of the past
-        if highest > epoch:
-            claim.release()
+        if highest < 0:
+            claim.release()
? tests/log/test_log_contract.py::TestFiles::test_of_two_claims_at_once_the_second_is_refused
# claim: a copy of the log is taken for the log
-if not os.access(self._next, os.F_OK) and _file_at(self._own) == self._file:
+if not os.access(self._next, os.F_OK) and _file_at(self._own):
? tests/log/test_log_files.py::test_a_writer_whose_log_was_restored_from_a_copy_stops
@ trident/log/zookeeper_records.py
? tests/log/test_zookeeper_faults.py::test_a_driver_whose_log_was_begun_again_is_fenced
# log in ZooKeeper: records are written without the claim
-Check(f"{_CLAIM}/{self._own}")
+Check("/")
# log in ZooKeeper: records may follow records that are gone
-Put(f"/{HEAD}", head.data, head.tag)
+Put(f"/{HEAD}", head.data)
? tests/log/test_zookeeper_faults.py::TestFaultsOfZooKeeperLog::test_a_log_that_was_set_back_is_not_continued
@ trident/nodes/zookeeper_nodes.py
? tests/log/test_zookeeper_faults.py::TestFaultsOfZooKeeperLog::test_a_record_is_there_once_though_the_connection_is_cut
# log in ZooKeeper: an append whose answer was lost fails
-if refusal and repeated else refusal
+if refusal and not repeated else refusal
@ trident/log/zookeeper_records.py
? tests/log/test_zookeeper_faults.py::TestZooKeeperLog::test_of_two_claims_at_once_the_second_is_refused
# log in ZooKeeper: two drivers claim the same epoch
-Put(f"/{HEAD}", head.data, tag)
+Put(f"/{HEAD}", head.data)
@ trident/nodes/object_store.py
? tests/log/test_object_log.py::TestObjectLog::test_a_takeover_fences_the_first_at_its_next_append
# log in an object store: the head is replaced without a condition
-return self._put_once(name, data, "create" if tag is None else tag)
+return self._put_once(name, data, "overwrite")
# log in an object store: a put that was refused is taken for one whose answer was lost
-if found is not None and found.data == data:
+if found is not None:
# log in an object store: a store without conditions is accepted
-        if not self._call(request):
+        if self._call(request) is None:
? tests/log/test_object_log.py::test_a_store_that_ignores_conditions_is_refused
@ trident/log/postgres_records.py
? tests/log/test_postgres_log.py::TestPostgresLog::test_of_two_claims_at_once_the_second_is_refused
# log in PostgreSQL: a claim is taken whoever has it
-AND (id, turn) IN ((%(old_id)s, %(old_turn)s), (%(id)s, %(turn)s)) RETURNING 1
+RETURNING 1
@ trident/log/stored_log.py
? tests/log/test_postgres_log.py::TestPostgresLog::test_a_takeover_fences_the_first_at_its_next_append
# log in PostgreSQL: a refused append counts
-        if tag is None:
-            self._check_head
+        if tag == 0:
+            self._check_head
@ trident/log/log_interface.py
? tests/log/test_postgres_log.py::TestPostgresLog::test_everything_is_there_after_a_restart
# log in PostgreSQL: the end of the log is not read again after the claim
-state = read() or LogState(incarnation
+state = LogState(incarnation
@ trident/log/postgres_records.py
? tests/states/postgres/test_one_transaction.py::test_a_table_emptied_before_the_transaction_is_found_and_not_recorded
# log in PostgreSQL: records are appended whoever has the claim
-WHERE topology = %(topology)s AND id = %(id)s AND turn = %(old_turn)s
+WHERE topology = %(topology)s
? tests/log/test_postgres_log.py::TestPostgresLog::test_a_busy_driver_is_replaced_between_two_of_its_records
# log in PostgreSQL: a record stays although its state was not written
-            if refused is not None:
-                raise self._psycopg.Rollback
# log in PostgreSQL: record and state are written although the sentinel is another's
-(SELECT count(*) FROM head) > 0 AND (SELECT count(*) FROM fence) > 0 THEN 1
+(SELECT count(*) FROM head) > 0 THEN 1
@ trident/nodes/polled_nodes.py
? tests/cluster/state/test_state_on_servers.py::test_a_change_is_made_once_though_the_answer_to_its_commit_is_lost
# nodes in PostgreSQL: a change whose answer was lost is made again
-if own is not None and own.data != mark:
+if own is not None:
# nodes in PostgreSQL: a session that is set again is ended
-seconds + elapsed if node.version == version else 0.0
+seconds + elapsed
? tests/nodes/test_leased_nodes.py::test_a_session_that_is_set_again_goes_on
# nodes in PostgreSQL: what a session owns outlasts it
-            table.end(session.rpartition("/")[2])
? tests/nodes/test_leased_nodes.py::test_a_session_that_is_silent_is_ended_and_its_process_finds_out
# nodes in PostgreSQL: a change is not counted
-SET version = version + 1 WHERE path = %s
+SET version = version WHERE path = %s
? tests/cluster/state/test_cluster_state.py::test_a_data_watch_tells_once
# nodes in PostgreSQL: a compare-and-set takes any version
-WHERE path = ? AND version = coalesce(?, version)"
+WHERE path = ? AND coalesce(?, version) > -7"
? tests/cluster/state/test_cluster_state.py::test_compare_and_set_needs_the_version
"""
)
