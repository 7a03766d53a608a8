"""What everything that talks to a server of a kind shares: its address, account and TLS, its sessions, its errors and advice.

Logs, clusters, states and spouts build on it. A module for each kind of server, which imports that server's driver when first
needed.
"""
