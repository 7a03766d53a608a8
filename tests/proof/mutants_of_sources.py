"""Mutants of spouts, of what a batch contains, of keys and partitions, and of requests."""

from __future__ import annotations

from tests.proof.mutant import Mutant

_SOURCES, _BATCH_SPOUTS = "trident/run/sources.py", "trident/run/batch_spouts.py"
_PARTITIONED = "trident/run/partitioned_spouts.py"


OF_SOURCES = (
    Mutant(
        "sources: the definition of a batch is not logged",
        _SOURCES,
        "not traits.is_guess) and name not in logged:",
        "not traits.is_guess) and name in logged:",
        ("tests/run/test_recovery.py::test_a_replay_uses_the_logged_definition_or_asks_for_another",),
    ),
    Mutant(
        "sources: a definition is logged, but not durable",
        _SOURCES,
        "self._sync or is_chosen)",
        "False)",
        ("tests/run/test_power_loss.py::test_after_a_power_loss_a_state_that_stores_no_attempt_is_exact",),
    ),
    Mutant(
        "sources: a replay asks the spout again",
        _SOURCES,
        "self._answer(name, lambda: logged[name])",
        "self._answer(name, self._coordinators[name].initialize_transaction, txid, self._earlier(name, txid, in_flight))",
        ("tests/run/test_recovery.py::test_a_replay_uses_the_logged_definition_or_asks_for_another",),
    ),
    Mutant(
        "sources: a further source takes part in a batch that was begun without it",
        _SOURCES,
        "frozenset(opened.log.state.definitions)",
        "frozenset[int]()",
        (
            "tests/run/test_changed_topologies.py::"
            "test_a_further_source_has_no_part_in_a_batch_that_was_begun_without_it",
        ),
    ),
    Mutant(
        "sources: a batch begins where the last committed one ended, not the one in flight",
        _SOURCES,
        "for before in range(txid - 1, self._log.state.txid, -1):",
        "for before in range(0):",
        ("tests/run/test_loop.py::test_every_batch_passes_its_points_in_order",),
    ),
    Mutant(
        "sources: a spout that takes part commits for a fenced driver",
        _SOURCES,
        "                self._log.check_owner()  # a fenced driver must not commit anywhere\n",
        "",
        ("tests/spout/test_partitioned_company.py::test_a_driver_that_was_replaced_commits_nothing_in_the_source",),
    ),
    Mutant(
        "sources: other rows are accepted from a transactional spout",
        _BATCH_SPOUTS,
        'if any(found.get(each, was) != was for each, was in definition.items() if each in ("rows", "checksum")):',
        "if False:",
        ("tests/run/test_recovery.py::test_a_batch_spout_that_emits_other_rows_after_a_restart_is_told_so",),
    ),
    Mutant(
        "partitioned spouts: a partition that is gone is passed over",
        _PARTITIONED,
        "        lost = [name for name in entries if name not in there]\n",
        "        lost: list[str] = []\n",
        ("tests/spout/test_partitioned.py::test_a_replay_of_a_lost_partition_waits_for_it",),
    ),
    Mutant(
        "partitioned spouts: a partition without rows loses its place",
        _PARTITIONED,
        "latest = {**last, **{one.partition: one.metadata for one in given}}",
        "latest = {one.partition: one.metadata for one in given}",
        ("tests/spout/test_partitioned.py::test_a_partition_that_was_away_goes_on_where_it_was",),
    ),
    Mutant(
        "partitioned spouts: a replay with other rows is accepted",
        "trident/run/partitioned_spouts.py",
        "        if rows != part.rows or (part.crc is not None and crc != part.crc):\n",
        "        if rows != part.rows:\n",
        ("tests/spout/test_partitioned.py::test_a_replay_with_other_rows_is_refused",),
    ),
    Mutant(
        "partitioned spouts: an emitter may change the metadata in the log",
        "trident/run/partitioned_spouts.py",
        "part.partition, deepcopy(metadata))",
        "part.partition, metadata)",
        ("tests/spout/test_partitioned_engines.py::test_an_emitter_may_change_metadata_in_place",),
    ),
    Mutant(
        "files: a replay goes on where the failed attempt had ended",
        "spouts/files/file_coordinator.py",
        "if not self._loaded or previous != self._last:",
        "if not self._loaded:",
        (
            "tests/spouts/files/test_text_files.py::test_a_definition_that_was_never_logged_is_made_again_from_the_one_before",
        ),
    ),
    Mutant(
        "files: what was found before an error is lost (a position saved early)",
        "spouts/files/file_coordinator.py",
        "            self._loaded = False  # no definition has what was found before the error, so start again from `previous`\n",
        "",
        ("tests/spouts/files/test_text_errors.py::test_an_error_while_a_batch_is_defined_loses_nothing",),
    ),
    Mutant(
        "files: a restart begins at the beginning",
        "spouts/files/file_coordinator.py",
        'Positions((previous or {}).get("done", ()))',
        "Positions()",
        ("tests/spouts/files/test_text_files.py::test_a_file_of_several_names_is_read_once_also_as_names_come_and_go",),
    ),
    Mutant(
        "files: a file that was replaced is read on",
        "spouts/files/file_coordinator.py",
        "self._look(path, self._positions[path], 0, False, Tail(self._rule))",
        "pass",
        (
            "tests/spouts/files/test_text_errors.py::test_a_file_that_was_read_and_replaced_by_one_of_the_same_size_is_found",
        ),
    ),
    Mutant(
        "files: a line that is not finished is read",
        "spouts/files/tails.py",
        'return self.rule.now() - self.since >= (WAIT_S if self.rule.tail == "hold" else self.rule.tail)',
        "return True",
        ("tests/spouts/files/test_tails.py::test_a_line_that_is_continued_within_ten_seconds_is_one_line",),
    ),
    Mutant(
        "messages: an ack before its emit",
        "spouts/messages.py",
        "            self._out[message.id] = message\n            self._emit(",
        "            self._out[message.id] = message\n            self._done.append(message)\n            self._emit(",
        ("tests/spouts/test_deliveries.py::test_nothing_is_lost_and_nothing_is_acked_before_the_topology_did",),
    ),
    Mutant(
        "messages: one that could not be buried is acknowledged",
        "spouts/messages.py",
        "            self._wait(message, self._policy.longest_pause_s)\n            return\n",
        "            self._done.append(message)\n            return\n",
        ("tests/spouts/test_deliveries.py",),
    ),
    Mutant(
        "Kafka: the offset of the highest record that is done is committed (offsets saved early)",
        "spouts/kafka/offset_commits.py",
        "        low = self.low\n",
        "        low = self.position\n",
        ("tests/spouts/kafka/test_offset_window.py",),
    ),
    Mutant(
        "planner: rows go by the hash of the wrong fields",
        "trident/engine/routing.py",
        "return _by_place(table, places_of(table, routing.fields.names, partitions), partitions)",
        "return _by_place(table, places_of(table, table.schema.names, partitions), partitions)",
        ("tests/engine/test_repartitioning.py::test_where_tuples_go",),
    ),
    Mutant(
        "planner: rows of a state go by another hash than its keys",
        "trident/steps/key_columns.py",
        "return [crc32(data) % partitions for data in",
        "return [(crc32(data) >> 1) % partitions for data in",
        ("tests/steps/test_steps.py", "tests/state/encoding/test_codec.py"),
    ),
    Mutant(
        "planner: two forms of one key are in two partitions",
        "trident/steps/key_columns.py",
        "crc32(encode(canonical_key(key))) % partitions",
        "crc32(encode(key)) % partitions",
        ("tests/steps/test_steps.py", "tests/state/encoding/test_codec.py"),
    ),
    Mutant(
        "planner: a replay sees the rows of an exchange in another order",
        "trident/engine/routing.py",
        "    for frame in sorted(frames, key=lambda frame: (frame.port, frame.order)):\n        if not frame.step:\n            by_port",
        "    for frame in frames:\n        if not frame.step:\n            by_port",
        ("tests/engine/test_repartitioning.py",),
    ),
    Mutant(
        "planner: a query sees its own batch",
        "trident/plan/planner.py",
        "lambda one: 0 if isinstance(one, QueryNode) else 2 if isinstance(one, PersistNode) else 1",
        "lambda one: 2 if isinstance(one, QueryNode) else 0 if isinstance(one, PersistNode) else 1",
        ("tests/plan/test_planner.py",),
    ),
    Mutant(
        "planner: a topology that means something else goes on with the log",
        "trident/plan/evolution.py",
        "if (was, current_names(of, over, self._fields)) != (is_, _names(over)):",
        "if False:",
        ("tests/plan/test_meaning.py",),
    ),
)
