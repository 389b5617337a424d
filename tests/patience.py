"""How long tests wait for what has to come: far longer than it takes, so that a busy machine decides nothing."""

PATIENCE_S = 60.0
