"""What the tests of several packages use: servers, runs of topologies, commits to a store, and the run of tests itself."""
