"""The life of a turn, from a stored question to a stored end. `run` tells the story; the other rooms are its parts."""
