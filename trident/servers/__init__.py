"""What everything that talks to a kind of server shares: its address, account and TLS, its sessions, its errors and advice."""
