"""The model zoo: networks, and scripts that train them."""

from crossbow import interruption

interruption.end_quietly_while_importing()
