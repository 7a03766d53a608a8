"""The families of calls of the fluent surface; `Stream`, `GroupedStream` and `TridentTopology` have them all."""
