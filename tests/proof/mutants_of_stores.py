"""Mutants of the stores: who may write a partition, and what a store does with a commit."""

from __future__ import annotations

from tests.proof.mutant import Mutant

_FENCE, _WHOLE = "trident/storekit/record_fence.py", "trident/storekit/whole_commits.py"
_REDIS, _SQL = "states/redis/fence.py", "states/postgres/typed_rows.py"
_MEMCACHED, _MEMCACHED_FENCE = "states/memcached/state.py", "states/memcached/fence.py"

_WHOLE_TESTS = ("tests/storekit/test_whole_commits.py",)

OF_STORES = (
    Mutant(
        "stores: a sentinel that could not be laid counts as laid",
        _FENCE,
        "        if now != data:\n            raise self.displaced(record.sentinel, now, seen)",
        "        if now is None:\n            raise self.displaced(record.sentinel, now, seen)",
        _WHOLE_TESTS,
    ),
    Mutant(
        "stores: the check of the own sentinel finds nothing",
        _FENCE,
        "        if data != self._own_data:",
        "        if data is None:",
        (
            "tests/stores/test_store_contracts.py::TestFencedMap::test_a_writer_that_was_replaced_before_its_put_writes_nothing[memcached]",
        ),
    ),
    Mutant(
        "stores, whole commits: the rule of sentinels is not asked again at the end",
        _WHOLE,
        "            self._fence.check_move(self._claim)  # the sentinel may have been read again since\n",
        "",
        (
            "tests/storekit/test_whole_commits.py::test_a_claim_that_was_overtaken_stays_refused_after_the_sentinel_was_read_again",
        ),
    ),
    Mutant(
        "stores, whole commits: puts of a commit that was given up are written",
        _WHOLE,
        "        self._puts = {}\n\n    def commit_with_record",
        "        self._puts = self._puts or {}\n\n    def commit_with_record",
        _WHOLE_TESTS,
    ),
    Mutant(
        "stores, whole commits: a second run lays the same bytes",
        _WHOLE,
        "(os.urandom(8).hex(),)",
        '("",)',
        _WHOLE_TESTS,
    ),
    Mutant(
        "PostgreSQL: the sentinel's row is not compared",
        "states/postgres/map.py",
        "WHERE key = %(name)b AND value = %(found)b RETURNING 1",
        "WHERE key = %(name)b RETURNING 1",
        (
            "tests/stores/test_store_contracts.py::TestFencedMap::test_a_sentinel_that_was_moved_since_it_was_read_is_not_moved[postgres]",
        ),
    ),
    Mutant(
        "PostgreSQL: rows are written although the fence found nothing",
        _SQL,
        "SELECT given.* FROM fence, unnest({arrays})",
        "SELECT given.* FROM unnest({arrays})",
        (
            "tests/stores/test_store_contracts.py::TestFencedMap::test_a_writer_that_was_replaced_before_its_put_writes_nothing[postgres]",
        ),
    ),
    Mutant(
        "PostgreSQL: rows are deleted although the fence found nothing",
        _SQL,
        "DELETE FROM {table} AS own USING fence, {asked}",
        "DELETE FROM {table} AS own USING {asked}",
        (
            "tests/stores/test_store_contracts.py::TestFencedMap::test_a_writer_that_was_replaced_deletes_nothing[postgres]",
        ),
    ),
    Mutant(
        "Redis: writes do not compare the sentinel",
        _REDIS,
        "if ARGV[2] ~= '' then\n  local found",
        "if false then\n  local found",
        (
            "tests/stores/test_store_contracts.py::TestFencedMap::test_a_writer_that_was_replaced_before_its_put_writes_nothing[redis]",
        ),
    ),
    Mutant(
        "Redis: a sentinel is laid over whatever is there",
        _REDIS,
        "if (found or '') ~= ARGV[4] then return found end\n",
        "",
        (
            "tests/stores/test_store_contracts.py::TestFencedMap::test_a_sentinel_that_was_moved_since_it_was_read_is_not_moved[redis]",
        ),
    ),
    Mutant(
        "Redis: writes that the server lost are not missed",
        _REDIS,
        "< tonumber(ARGV[3]) then return 0 end",
        "< 0 then return 0 end",
        (
            "tests/states/redis/test_redis_rollback.py::test_writes_that_a_server_lost_within_the_commit_are_written_again",
        ),
    ),
    Mutant(
        "Redis: of the copies of a sentinel the one that is farthest ahead counts",
        _REDIS,
        "return min(found, key=lambda one",
        "return max(found, key=lambda one",
        (
            "tests/states/redis/test_redis_cluster.py::test_a_run_that_died_while_it_laid_its_sentinel_is_found_by_the_next",
        ),
    ),
    Mutant(
        "Memcached: a chunk is sent without a look at the sentinel",
        _MEMCACHED,
        "        self._guard.check_own()  # after the tokens were read, before the writes are sent: see the top of the module\n",
        "",
        (
            "tests/stores/test_store_contracts.py::TestFencedMap::test_a_writer_that_was_replaced_before_its_put_writes_nothing[memcached]",
        ),
    ),
    Mutant(
        "Memcached: the end of a commit does not look at the servers",
        _MEMCACHED,
        "        self._forget_tokens()\n        self._guard.check_own()\n        self._guard.check_health()\n",
        "        self._forget_tokens()\n",
        (
            "tests/states/memcached/test_memcached_losses.py::test_the_end_of_a_commit_looks_at_the_servers_that_do_not_have_the_sentinel_too",
        ),
    ),
    Mutant(
        "Memcached: a sentinel is laid over one that came since it was read",
        _MEMCACHED_FENCE,
        "            if now not in (found, new):\n                return now\n",
        "",
        ("tests/states/memcached/test_memcached.py",),
    ),
    Mutant(
        "Delta: a commit that was refused counts as made",
        "states/delta/map.py",
        "        if not is_written:\n",
        "        if is_written is None:\n",
        ("tests/states/delta/test_delta_sentinel.py",),
    ),
    Mutant(
        "Delta: another writer's commit is taken for a compaction",
        "states/delta/fence.py",
        "return unchanged.issuperset(range(since + 1, newest + 1))",
        "return True",
        ("tests/states/delta/test_delta_sentinel.py::test_a_paused_writer_is_fenced_once_its_successor_has_committed",),
    ),
    Mutant(
        "Delta: a second run of a task stages",
        "states/delta/staging.py",
        "if any(name[:4] == own[:4] and name.run != own.run for name in self._names()):",
        "if False:",
        ("tests/states/delta/test_delta_staging.py::test_a_second_run_of_a_task_is_refused",),
    ),
    Mutant(
        "Delta: what a task staged is published over another version than it read",
        "states/delta/staging.py",
        "        if table.version != staged.version and not moved_by_compactions(table, staged.version):\n            return False\n",
        "",
        (
            "tests/states/delta/test_delta_staging.py::test_a_version_of_another_writer_after_the_task_began_refuses_what_it_staged",
        ),
    ),
    Mutant(
        "Delta: the published table goes back to an earlier batch",
        "states/delta/publishing.py",
        "(shown.is_same(due) or shown.is_later(due))",
        "shown.is_same(due)",
        ("tests/states/delta/test_delta_published.py::test_a_replaced_writer_that_wakes_up_shows_no_earlier_batch",),
    ),
    Mutant(
        "Cassandra: a put does not look who is the writer",
        "states/cassandra/map.py",
        "            self._rows.put(keys, values, at, self._fence.check)",
        "            self._rows.put(keys, values, at, lambda: None)",
        (
            "tests/states/cassandra/test_cassandra_faults.py::test_a_writer_that_wakes_up_between_windows_is_fenced_and_changes_nothing",
        ),
    ),
    Mutant(
        "Cassandra: two puts of one commit have the same timestamp",
        "states/cassandra/map.py",
        "        self._number += 1\n",
        "",
        (
            "tests/states/cassandra/test_cassandra_faults.py::test_a_key_that_is_put_twice_in_a_commit_has_the_later_value",
        ),
    ),
    Mutant(
        "Cassandra: the writes of an adopted state lose against those before",
        "states/cassandra/fence.py",
        "            floor = 0 if found is None else found.ceiling\n",
        "            floor = 0 if found is None else found.floor\n",
        (
            "tests/states/cassandra/test_cassandra_faults.py::test_a_sentinel_that_is_laid_again_may_go_back_and_its_writes_count",
        ),
    ),
)
