"""Mutants of a running topology: the order of batches, their commit, executors, windows, readers, bolts."""

from __future__ import annotations

from tests.proof.mutant import Mutant

_COORDINATOR, _LOOP = "trident/run/coordinator.py", "trident/run/loop.py"
_ATTEMPTS, _COMMITTER = "trident/run/execution.py", "trident/run/committer.py"
_COMMITTING = "trident/run/committing.py"
_NUMBERS, _FIRING, _JOIN = (
    "trident/run/handed_batches.py", "trident/windows/firing.py", "trident/windows/join_update.py",
)  # fmt: skip
_TIME, _FEED = "trident/run/batch.py", "trident/read/change_feed.py"
_ACKER, _COLLECTORS = "trident/storm/execution/acker.py", "trident/storm/execution/collectors.py"
_RECOVERY, _FORGETTING = "trident/run/recovery.py", "trident/run/moving.py"

_COORDINATOR_TESTS = ("tests/run/test_coordinator.py",)
_LOOP_TESTS = ("tests/run/test_loop.py",)
_JOIN_TESTS = (
    "tests/windows/test_join_within.py::test_a_row_can_be_met_until_its_last_moment_and_does_not_come_alone_then",
    "tests/windows/test_join_within.py::test_both_engines_give_what_the_model_gives",
)
_NUMBER_TESTS = ("tests/run/test_checkpoints.py",)
_RECOVERY_TESTS = ("tests/run/test_recovery.py",)

OF_RUNS = (
    Mutant(
        "coordinator: a batch commits before the one before it is recorded",
        _COORDINATOR,
        "active = self._active.get(self.last_txid + 1)",
        "active = next((one for one in self._active.values() if one.status is AttemptStatus.PROCESSED), None)",
        _COORDINATOR_TESTS,
    ),
    Mutant(
        "coordinator: a failure leaves later batches alive",
        _COORDINATOR,
        "if txid >= attempt.txid]",
        "if txid == attempt.txid]",
        _COORDINATOR_TESTS,
    ),
    Mutant(
        "coordinator: a replay has the attempt of the one that failed",
        _COORDINATOR,
        "        self._retry += 1\n",
        "",
        _COORDINATOR_TESTS,
    ),
    Mutant(
        "coordinator: a message of a dead attempt counts",
        _COORDINATOR,
        "return active is not None and active.attempt == attempt",
        "return active is not None",
        _COORDINATOR_TESTS,
    ),
    Mutant(
        "coordinator: one batch more than allowed is in flight",
        _COORDINATOR,
        "if len(self._active) >= self._max_pending",
        "if len(self._active) > self._max_pending",
        _COORDINATOR_TESTS,
    ),
    Mutant(
        "loop: the record is written before the commit",
        _ATTEMPTS,
        "            try:\n                result = self._commit_states(batch, order)\n",
        "            try:\n                from trident.run.committer import Committed\n\n"
        "                every = {name: list(range(len(each))) for name, each in order.txids.items()}\n"
        "                self._report(LoopMessage(batch.attempt, Committed(touched=every)))\n"
        "                result = self._commit_states(batch, order)\n",
        ("tests/run/test_loop.py::test_a_failed_commit_is_replayed_and_its_writes_count_once",),
    ),
    Mutant(
        "loop: results of a dead attempt are taken",
        _LOOP,
        "if batch is None or batch.attempt != message.attempt:",
        "if batch is None:",
        ("tests/run/test_loop.py::test_a_spark_task_that_takes_too_long_is_replaced",),
    ),
    Mutant(
        "loop: a fenced driver begins to write",
        _LOOP,
        "        if self._opened.carrier is None:\n            self._log.check_owner()  # a fenced driver must not begin to write\n",
        "",
        ("tests/run/test_loop.py::test_a_driver_that_is_replaced_while_it_processes_does_not_begin_to_commit",),
    ),
    Mutant(
        "loop: the next batch may commit before the record is durable",
        _LOOP,
        "        record = CommitRecord(",
        "        self._coordinator.mark_committed(attempt)\n        record = CommitRecord(",
        _LOOP_TESTS,
    ),
    Mutant(
        "loop: a spout is told before the record (an ack too early)",
        _LOOP,
        "        record = CommitRecord(",
        "        self._sources.report_success(batch)\n        record = CommitRecord(",
        ("tests/run/test_loop.py::test_a_batch_spout_is_asked_again_for_a_batch_that_its_last_driver_left",),
    ),
    Mutant(
        "loop: dead letters are written after the record",
        _LOOP,
        "        if captured:\n            # Before the record: a dead letter that is written twice is found by its txid, a lost one is not.\n"
        "            self._opened.letters.write(attempt, captured, self._log.state.incarnation)\n",
        "",
        ("tests/run/test_dead_letters.py",),
    ),
    Mutant(
        "commit: a partition that failed does not fail the batch",
        _COMMITTER,
        "            if one.failure is not None:\n                raise one.failure\n",
        "            if one.failure is not None:\n                continue\n",
        ("tests/run/test_partitions_of_states.py::test_a_partition_that_fails_fails_the_batch",),
    ),
    Mutant(
        "commit: the record does not say which partitions were touched",
        _COMMITTER,
        "done.touched[node.state], done.keys[node.state] = sorted(commits), keys",
        "done.touched[node.state], done.keys[node.state] = [], keys",
        (
            "tests/run/test_partitions_of_states.py::test_no_update_of_a_partition_persist_is_lost_with_1_to_8_partitions",
        ),
    ),
    Mutant(
        "commit: two partitions may write one key",
        _COMMITTER,
        "            check_one_writer(node.state, {at: marks_of(states[at]) for at in commits}, txids[0])\n",
        "            pass\n",
        ("tests/run/test_partitions_of_states.py",),
    ),
    Mutant(
        "executors: a task without rows leaves what its first run wrote",
        _COMMITTING,
        "        if given is None and stages:\n",
        "        if given is None:\n",
        ("tests/run/test_committing.py",),
    ),
    Mutant(
        "executors: a task that Spark runs again writes again",
        _COMMITTING,
        "    if run == 0:\n        return",
        "    if run >= 0:\n        return",
        ("tests/run/test_committing.py::test_without_speculation_a_second_run_answers_that_the_batch_is_tried_again",),
    ),
    Mutant(
        "executors: all runs of a task are one",
        _COMMITTING,
        ".of_run(secrets.token_hex(8))",
        '.of_run("")',
        ("tests/run/test_committing.py",),
    ),
    Mutant(
        "foreachBatch: a batch that the log has is committed again",
        _NUMBERS,
        "if last is not None and found.is_same(last):",
        "if False:",
        _NUMBER_TESTS,
    ),
    Mutant(
        "foreachBatch: another batch of the same number is taken for a repetition",
        _NUMBERS,
        '            and _agree(self.planned_ms, definition["planned_ms"])\n',
        "",
        _NUMBER_TESTS,
    ),
    Mutant(
        "foreachBatch: a checkpoint that is ahead of the log is accepted",
        _NUMBERS,
        'if found.batch > last["batch"] + 1:',
        "if False:",
        _NUMBER_TESTS,
    ),
    Mutant(
        "windows: a window fires twice",
        _FIRING,
        "        self._before = self._frontier = self._store.directory.frontier\n",
        "        self._before, self._frontier = None, self._store.directory.frontier\n",
        ("tests/windows/test_windows.py::test_count_windows_are_storms_but_over_the_whole_stream",),
    ),
    Mutant(
        "windows: the watermark goes back",
        _FIRING,
        "self._frontier = ordinate if self._frontier is None else max(self._frontier, ordinate)",
        "self._frontier = ordinate",
        ("tests/windows/test_windows.py::test_windows_by_event_time",),
    ),
    Mutant(
        "windows: the watermark does not wait for late rows",
        "trident/windows/window_partitions.py",
        "later(before, max(reached - times.delay, FIRST_MS * times.per_ms))",
        "later(before, reached)",
        ("tests/windows/test_windows.py::test_windows_by_event_time",),
    ),
    Mutant(
        "windows: a replay has another time",
        _TIME,
        '            now, again = logged["now"], "begins_again" in logged\n',
        '            now, again = clock_ms, "begins_again" in logged\n',
        ("tests/run/test_batch_time.py",),
    ),
    Mutant(
        "windows: the time of batches goes back",
        _TIME,
        'max(clock_ms, previous["now"])',
        "clock_ms",
        ("tests/run/test_batch_time.py",),
    ),
    Mutant(
        "joins: two rows meet twice",
        _JOIN,
        "second = pairs(left.take(before), right.take(came[1]),",
        "second = pairs(left.take(np.arange(len(left.ids))), right.take(came[1]),",
        _JOIN_TESTS,
    ),
    Mutant(
        "joins: a row is dropped while another may still meet it",
        _JOIN,
        "over |= ends < watermark",
        "over |= ends <= watermark",
        _JOIN_TESTS,
    ),
    Mutant(
        "joins: a row that met one also comes alone",
        _JOIN,
        "np.flatnonzero(over & ~met)",
        "np.flatnonzero(over)",
        _JOIN_TESTS,
    ),
    Mutant(
        "changes: those of an attempt that lost are given",
        _FEED,
        "for key, value in pairs if winners.won(txid, value.attempt)]",
        "for key, value in pairs]",
        ("tests/read/test_random_feeds.py",),
    ),
    Mutant(
        "changes: those that are not kept any more are passed over",
        _FEED,
        "        if self.txid < gone:\n",
        "        if gone < 0:\n",
        ("tests/read/test_change_feed.py::test_who_comes_too_late_is_told_and_begins_with_a_snapshot",),
    ),
    Mutant(
        "changes: what a replica that lags does not have yet is passed over",
        _FEED,
        "        view.compare()  # a replica may lag, and have caught up by the end\n",
        "",
        ("tests/read/test_change_feed.py::test_a_replica_that_lags_and_catches_up_loses_no_changes",),
    ),
    Mutant(
        "changes: a feed goes on behind what it has not read",
        _FEED,
        "                last = txid\n                break\n",
        "                break\n",
        ("tests/read/test_change_feed.py::test_a_reading_that_has_many_rows_ends_and_the_next_goes_on_there",),
    ),
    Mutant(
        "start: a mismatch is not refused",
        _RECOVERY,
        'if policy == "refuse" or refused:',
        "if refused:",
        ("tests/run/test_recovery.py::test_a_store_that_was_emptied_is_found",),
    ),
    Mutant(
        "start: a successor's values are removed",
        _RECOVERY,
        "    log.check_owner()\n    instance.reset()\n",
        "    instance.reset()\n",
        ("tests/run/test_recovery.py::test_a_starter_that_was_replaced_empties_no_store",),
    ),
    Mutant(
        "forget: the deletion is not fenced",
        _FORGETTING,
        "            one.begin_commit(commit)\n            backing.multi_delete(some)\n            one.commit(commit)\n",
        "            backing.multi_delete(some)\n",
        ("tests/run/test_forgetting.py::test_a_driver_of_before_that_wakes_up_brings_no_key_back",),
    ),
    Mutant(
        "forget: the changes of the keys stay",
        _FORGETTING,
        "                backing.facts.kept_changes.forget(some)\n",
        "                pass\n",
        ("tests/run/test_forgetting.py::test_no_byte_of_a_key_is_left_and_all_else_is_as_it_was",),
    ),
    Mutant(
        "ackers: a tree that has not begun is complete",
        _ACKER,
        "if tree & _EDGES or not tree >> _TASK:",
        "if tree & _EDGES:",
        ("tests/storm/test_tuple_trees.py::test_a_tree_without_its_beginning_never_completes",),
    ),
    Mutant(
        "ackers: a tree that begins twice completes itself",
        _ACKER,
        "            if tree >> _TASK:  # begun twice: a second xor would cancel the first one, and complete a tree that is not\n"
        "                self._young[root] = tree\n                continue\n",
        "",
        ("tests/storm/test_tuple_trees.py::test_a_beginning_that_comes_twice_completes_nothing",),
    ),
    Mutant(
        "ackers: a failure before the beginning is forgotten",
        _ACKER,
        "            self._young[root] = tree | _FAILED",
        "            self._young[root] = tree",
        ("tests/storm/test_tuple_trees.py::test_a_failure_is_told_once_before_or_after_the_beginning",),
    ),
    Mutant(
        "ackers: a tree is forgotten one timeout too early",
        _ACKER,
        "_GENERATIONS = 3",
        "_GENERATIONS = 2",
        ("tests/storm/test_tuple_trees.py::test_a_tree_is_forgotten_after_three_rotations_without_news",),
    ),
    Mutant(
        "bolts: an ack leaves before the edges that the tuple emitted",
        _COLLECTORS,
        "                anchors.edge ^= edge\n",
        "",
        ("tests/storm/test_tuple_trees.py::test_a_message_is_acked_when_its_whole_tree_is_executed_and_not_before",),
    ),
    Mutant(
        "bolts: two anchors of one root share an edge",
        _COLLECTORS,
        "                    ids[root] = ids.get(root, 0) ^ edge",
        "                    ids[root] = edge",
        ("tests/storm/test_tuple_trees.py::test_bolts_may_hold_tuples_back_and_anchor_to_many",),
    ),
    Mutant(
        "windows: how far they have fired is not stored",
        _FIRING,
        "        directory.frontier = frontier\n        self._store.write()",
        "        self._store.write()",
        ("tests/windows/test_windows.py::test_count_windows_are_storms_but_over_the_whole_stream",),
    ),
    Mutant(
        "windows: late rows of a window that has fired are counted in",
        _FIRING,
        "        if not over:\n            return table\n",
        "        if over is not None:\n            return table\n",
        ("tests/windows/test_windows.py::test_windows_by_event_time",),
    ),
    Mutant(
        "windows: a window that has fired keeps its rows",
        _FIRING,
        "        for pane in [pane for pane in directory.panes if self._grid.is_over(pane, frontier)]:\n"
        "            self._store.remove(pane)\n        directory",
        "        directory",
        ("tests/windows/test_window_store.py::test_what_fired_is_deleted_from_the_store",),
    ),
    Mutant(
        "foreachBatch: a batch with a name is written twice",
        "trident/run/handed_batches.py",
        "if name in names or name == floor:",
        "if name == floor:",
        _NUMBER_TESTS,
    ),
    Mutant(
        "commit: keys of two partitions that are the same are not compared",
        "trident/run/entries.py",
        "            if other != partition:\n",
        "            if other is None:\n",
        ("tests/run/test_partitions_of_states.py::test_a_key_updated_by_two_partitions_is_refused_before_any_write",),
    ),
    Mutant(
        "executors: a worker takes one partition for another",
        _COMMITTING,
        "        place = name, partition, read_only\n",
        "        place = name, 0, read_only\n",
        ("tests/run/test_worker_states.py::test_only_the_partitions_used_last_stay_open",),
    ),
    Mutant(
        "dead letters: those of an attempt that lost are shown",
        "trident/run/dead_letters.py",
        "            if txid <= log.txid and log.winners.winner(txid) == attempt:\n",
        "            if txid <= log.txid:\n",
        ("tests/run/test_dead_letters.py::test_letters_of_a_life_that_did_not_commit_them_go_with_it",),
    ),
    Mutant(
        "dead letters: two batches put the same one back",
        "trident/run/replays.py",
        "            taken = with_letters(taken, definitions.get(LETTERS) or {})\n",
        "            pass\n",
        ("tests/run/test_dead_letters.py::test_a_letter_comes_in_where_it_was_left_out_and_nowhere_else",),
    ),
    Mutant(
        "start: the partitions that were dropped are not fenced",
        _RECOVERY,
        "for instance in [*partitions, *found.instances[len(partitions) :]]:",
        "for instance in partitions:",
        ("tests/run/test_recovery.py::test_a_takeover_with_fewer_partitions_fences_the_old_driver_in_those_that_went",),
    ),
    Mutant(
        "start: the batches that an adopted store has are run again",
        _RECOVERY,
        "        [state.txid, *(sentinel.txid for found in founds for sentinel in found.sentinels if sentinel is not None)]\n",
        "        [state.txid]\n",
        _RECOVERY_TESTS,
    ),
    Mutant(
        "moves: the copy is not compared",
        "trident/run/moving.py",
        "        self._verify(source, total)\n",
        "",
        ("tests/run/test_moving.py",),
    ),
    Mutant(
        "moves: the place before may still be written",
        "trident/run/moving.py",
        "        self._finish()\n        self._mark_source(len(source.states))\n",
        "        self._finish()\n",
        ("tests/run/test_moving.py",),
    ),
    Mutant(
        "moves: a half filled place counts as moved",
        "trident/run/moving.py",
        "Sentinel(with_note(self._log.state.incarnation, _MOVING), self._txid, self._attempt)",
        "Sentinel(self._log.state.incarnation, self._txid, self._attempt)",
        ("tests/run/test_moving.py",),
    ),
    Mutant(
        "readers: a store that is ahead of the log is read",
        "trident/state/sentinel.py",
        "    if found.txid > after:\n",
        "    if found.txid < 0:\n",
        ("tests/state/test_reading.py::test_store_and_log_that_do_not_belong_together",),
    ),
    Mutant(
        "readers: a store whose last writes are lost is read",
        "trident/state/sentinel.py",
        '    if found == before.expected:\n        return "the end of that batch was lost"\n',
        "",
        ("tests/state/test_reading.py::test_store_and_log_that_do_not_belong_together",),
    ),
    Mutant(
        "readers: a read that was overtaken is not repeated",
        "trident/read/state_partitions.py",
        "if number == rounds - 1 or not was_overtaken(error):",
        "if number >= 0:",
        ("tests/read/test_views.py::test_reads_from_threads_never_mix_two_batches",),
    ),
    Mutant(
        "bolts: a tree that timed out is not failed",
        "trident/storm/execution/collectors.py",
        "        return list(timed_out.values())\n",
        "        return []\n",
        ("tests/storm/test_answers.py::test_an_unanswered_tuple_times_out_and_is_emitted_again",),
    ),
    Mutant(
        "requests: an answer goes to another request",
        "trident/drpc/batching.py",
        "rows_of[number].append(list(row))",
        "rows_of[-1 - number].append(list(row))",
        ("tests/drpc/test_requests.py",),
    ),
    Mutant(
        "requests: a request sees the rows of others",
        "trident/drpc/batching.py",
        "own = [source.filter(pc.equal(source.column(_REQUEST), number)) for source in sources]",
        "own = list(sources)",
        ("tests/drpc/test_requests.py",),
    ),
    Mutant(
        "requests: one that fails fails its neighbours",
        "trident/drpc/batching.py",
        "if len(requests) > 1 and not isinstance(",
        "if len(requests) < 1 and not isinstance(",
        ("tests/drpc/test_local.py::test_a_request_that_fails_fails_alone",),
    ),
)
