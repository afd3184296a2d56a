"""How replicas and base model are combined: the rules, and the collectives between devices."""

from crossbow.conf import shown
from crossbow.synch.collective import Collective, FakeCollective, HostCollective
from crossbow.synch.rule import Rule
from crossbow.synch.sma import SMA
from crossbow.synch.ssgd import SSGD
from crossbow.types import ConfigurationError

RULES: dict[str, type[SMA] | type[SSGD]] = {rule.name: rule for rule in (SMA, SSGD)}
"""The rules by their name on the command line."""


def rule_class(name: str) -> type[SMA] | type[SSGD]:
    """The rule of that name. Raises ConfigurationError that names the known ones."""
    if not isinstance(name, str) or name not in RULES:
        raise ConfigurationError(f"rule must be one of {', '.join(RULES)}. Received: {shown(name)}")
    return RULES[name]


__all__ = ["RULES", "SMA", "SSGD", "Collective", "FakeCollective", "HostCollective", "Rule", "rule_class"]
