"""Synchronisation: rules that combine replicas and base model, their simulator, and collectives between devices."""

from crossbow.conf import shown
from crossbow.synch.asynchronous import (
    EASGD,
    SSP,
    AsynchronousSGD,
    Default,
    Hogwild,
    PartiallySynchronous,
    WeedOut,
)
from crossbow.synch.averaging import ModelAveraging, PolyakRuppert
from crossbow.synch.collective import Collective, HostCollective
from crossbow.synch.cost import ExchangeCost, exchange_cost
from crossbow.synch.diloco import DiLoCo
from crossbow.synch.gossip import Gossip
from crossbow.synch.grouping import Grouping
from crossbow.synch.rule import BarrierRule, FreeRule, PeerRule, Rule
from crossbow.synch.sequence import RulePhase, RuleSequence, has_two_levels
from crossbow.synch.simulator import simulate
from crossbow.synch.sma import SMA, SynchronousEASGD
from crossbow.synch.ssgd import SSGD
from crossbow.synch.trajectory import Trajectory
from crossbow.synch.two_level import TwoLevel
from crossbow.types import ConfigurationError

RULES: dict[str, type[Rule]] = {
    rule.name: rule
    for rule in (
        SMA,
        SynchronousEASGD,
        SSGD,
        ModelAveraging,
        PolyakRuppert,
        DiLoCo,
        Default,
        Hogwild,
        AsynchronousSGD,
        SSP,
        PartiallySynchronous,
        WeedOut,
        EASGD,
        Gossip,
        Grouping,
    )
}
"""Rules by their name on the command line."""
Phase = RulePhase
"""Former name of `RulePhase`."""
LONG_NAMES = {"asynchronous-sgd": "async", "s-sgd": "ssgd"}
"""Alternative names."""


def rule_class(name: str) -> type[Rule]:
    """The rule with this name. Raises ConfigurationError, which lists the known names."""
    known = LONG_NAMES.get(name, name) if isinstance(name, str) else None
    if known not in RULES:
        raise ConfigurationError(f"rule must be one of {', '.join(RULES)}. Received: {shown(name)}")
    return RULES[known]


def has_barrier(rule: Rule | RuleSequence | TwoLevel | None) -> bool:
    """Whether all rules have a clock tick. None is the default rule, SMA."""
    if isinstance(rule, RuleSequence):
        return all(map(has_barrier, rule.rules))
    return rule is None or isinstance(rule, BarrierRule | TwoLevel)


__all__ = [
    "EASGD",
    "RULES",
    "SMA",
    "SSGD",
    "SSP",
    "AsynchronousSGD",
    "BarrierRule",
    "Collective",
    "Default",
    "DiLoCo",
    "ExchangeCost",
    "FreeRule",
    "Gossip",
    "Grouping",
    "Hogwild",
    "HostCollective",
    "ModelAveraging",
    "PartiallySynchronous",
    "PeerRule",
    "Phase",
    "PolyakRuppert",
    "Rule",
    "RulePhase",
    "RuleSequence",
    "SynchronousEASGD",
    "Trajectory",
    "TwoLevel",
    "WeedOut",
    "exchange_cost",
    "has_barrier",
    "has_two_levels",
    "rule_class",
    "simulate",
]
