"""Parts of the fluent surface, each a family of calls; `Stream`, `GroupedStream` and `TridentTopology` have them all."""
