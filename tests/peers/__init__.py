"""Other engines, measured beside ours on the same machine, in one run: `make bench-peers`.

compare runs everything. llamacpp and openvino_genai_peer run inside the peers' environments and import nothing of ours.
"""
