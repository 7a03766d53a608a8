"""What goes wrong in a cluster: each error says what was tried, what was found and what to do."""

from __future__ import annotations

from trident.errors import TridentError


class ClusterError(TridentError):
    """A cluster, or one of its daemons, could not do what was asked."""


class ClusterUnreachable(ClusterError):
    """The servers that keep a cluster's state, or a daemon, do not answer."""


class NoLeader(ClusterError):
    """No Nimbus leads the cluster."""


class NoSuchTopology(ClusterError):
    """The cluster has no topology of this name or id."""


class NotRunning(ClusterError):
    """What only the driver of a topology knows was asked for, and it has none."""


class NameTaken(ClusterError):
    """The cluster has a topology of this name."""


class BadPackage(ClusterError):
    """A package of code is damaged, was made by another version, or does not hold the topology."""

    can_heal = False


class RequirementsFailed(ClusterError):
    """The requirements of a package cannot be installed on this machine just now."""


class UpgradeRefused(ClusterError):
    """New code does not fit the log of the topology that runs."""


class NotAllowed(ClusterError):
    """The token is missing or wrong."""
