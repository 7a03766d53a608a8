"""What users of a cluster have: `ClusterClient`, which asks Nimbus and reads the cluster's state."""

from trident.cluster.client.cluster_client import ClusterClient

__all__ = ["ClusterClient"]
