"""Other engines, measured beside ours on the same machine, in one run: `make bench-peers`."""
