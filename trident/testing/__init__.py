"""What users test their own topologies and back-ends with."""
