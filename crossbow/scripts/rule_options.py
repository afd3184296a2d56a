"""The command line's part on the rule: its options, the rule they say, and that in words."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from typing import Any

from crossbow.conf import STEPWISE_POLICIES, ModelConf
from crossbow.scripts.values import integer, number, refuse_others, those_given, value_text
from crossbow.solver import Pace
from crossbow.synch import RULES, SMA, Rule, RulePhase, RuleSequence, rule_class
from crossbow.synch.elastic import Elastic
from crossbow.types import ConfigurationError


def add_rule(group: argparse._ArgumentGroup) -> None:
    """The rule, what its exchanges are like, and what else a rule may have."""
    _add_exchanges(group)
    _add_parameters(group)
    _add_variables(group)


def _add_exchanges(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--rule",
        type=_rules,
        metavar="RULE",
        default=SMA.name,
        help=f"how learners are combined, see docs/rules.md: {', '.join(RULES)}; or several in turn, each with its "
        "number of merges, as async:100,ssgd:200 (default: %(default)s)",
    )
    group.add_argument(
        "--alpha",
        type=number(),
        metavar="A",
        help="sma, synchronous-easgd: strength of the correction, in (0, 1] (default: 1/k with k learners, 1/2 with "
        "one); easgd: the same (default: 1/2); polyak-ruppert: in [0, 1] (default: 0, none)",
    )
    group.add_argument(
        "--alpha-steps",
        type=_steps,
        metavar="T:A,…",
        help="the same rules: from then on alpha is A; T in --learning-rate-step-unit, as 30:0.1,60:0.05"
        " (default: none)",
    )
    group.add_argument(
        "--tau", type=integer(1), metavar="N", help="tasks of a learner between two exchanges (default: 1)"
    )
    group.add_argument(
        "--base-momentum",
        type=number(),
        metavar="M",
        help="sma: momentum of the average model, in [0, 1) (default: 0)",
    )


def _add_parameters(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--weight",
        metavar="W",
        help="async, ssp: of each contribution, in (0, 1], as 0.25 or 1/4; or 1/staleness (default: 1)",
    )
    group.add_argument("--sends", choices=("delta", "gradient"), help="async: what a learner sends (default: delta)")
    group.add_argument(
        "--bound",
        type=integer(0),
        metavar="N",
        help="ssp: tasks that a learner may be ahead when it begins one (default: 0)",
    )
    group.add_argument(
        "--max-advance",
        type=integer(1),
        metavar="N",
        help="partially-synchronous: contributions ahead at which there is a barrier (default: 1)",
    )
    group.add_argument(
        "--window",
        type=integer(1),
        metavar="N",
        help="weed-out: who is not among the last N to finish is left out (default: the number of learners)",
    )
    group.add_argument(
        "--probability",
        type=number(0, 1),
        metavar="P",
        help="gossip: of sending to another learner (default: 0.01)",
    )
    group.add_argument(
        "--groups",
        type=_groups,
        metavar="G",
        help="grouping: the learners of each group, as 0,1/2,3, or a number of groups (default: by speed)",
    )


def _add_variables(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--skip",
        type=number(0, 1),
        metavar="P",
        default=0.0,
        help="async, ssp, partially-synchronous, weed-out, default, hogwild, grouping: the probability with which each "
        "variable is left out of a merge (default: 0)",
    )
    group.add_argument(
        "--local-variables",
        type=lambda text: tuple(text.split(",")),
        metavar="NAMES",
        default=(),
        help="names or patterns, as *norm*, of variables that every learner keeps to itself (default: none)",
    )
    group.add_argument(
        "--no-restart",
        dest="restart",
        action="store_false",
        help=f"{', '.join(STEPWISE_POLICIES)}: learners do not start again from the average model where the learning "
        "rate steps down (default: they do)",
    )


PARAMETERS = tuple(dict.fromkeys(field.name for rule in RULES.values() for field in dataclasses.fields(rule)))  # type: ignore[arg-type]
"""Those of all rules: each is an option."""

BEFORE_ANY_STEP = Pace(rate=0.0, momentum=0.0)
"""When a rule's alpha is that with which it begins."""


def parameters(rule: type[Rule]) -> tuple[str, ...]:
    """The parameters of a rule that are options.

    >>> parameters(RULES["sma"]), parameters(RULES["ssgd"]), parameters(RULES["ssp"])
    (('alpha', 'tau', 'base_momentum', 'alpha_steps'), (), ('bound', 'weight'))
    """
    names = (field.name for field in dataclasses.fields(rule))  # type: ignore[arg-type]
    return tuple(name for name in names if name != "tau" or not rule.every_step)


def rule_conf(options: argparse.Namespace) -> Rule | RuleSequence:
    """The rule that the options say; each of several gets the options that it knows. Raises ConfigurationError, also
    for an option that would do nothing."""
    phases, known = _phases(options), _known(options)
    given = those_given(options, *PARAMETERS)
    others = {name: value for name, value in given.items() if not any(name in names for names in known.values())}
    refuse_others(others, f"with --rule {options.rule}", hint="; ".join(rule_hints(options)))
    rules = [
        rule_class(name)(**{option: value for option, value in given.items() if option in known[name]})
        for name, _, _ in phases
    ]
    if not phases[0][1]:
        return rules[0]
    return RuleSequence(tuple(RulePhase(rule, int(count)) for rule, (_, _, count) in zip(rules, phases, strict=True)))


def rule_hints(options: argparse.Namespace) -> list[str]:
    """Which options the rule has, or each of several."""
    return [f"Options of {rule}: {_options_text(names)}" for rule, names in _known(options).items()]


def _phases(options: argparse.Namespace) -> list[tuple[str, str, str]]:
    """Of each rule in turn its name, a colon and its number of merges; of one alone the name."""
    return [part.partition(":") for part in options.rule.split(",")]


def _known(options: argparse.Namespace) -> dict[str, tuple[str, ...]]:
    return {name: parameters(rule_class(name)) for name, _, _ in _phases(options)}


def _options_text(names: Sequence[str]) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in names) or "none"


def _rules(text: str) -> str:
    """A rule's name; or several, each with a number of merges."""
    text = "".join(text.split())
    phases = [part.split(":") for part in text.split(",")]
    for name, *_ in phases:
        try:
            rule_class(name)
        except ConfigurationError:
            raise argparse.ArgumentTypeError(f"invalid choice: {name!r} (choose from {', '.join(RULES)})") from None
    alone = len(phases) == 1 and len(phases[0]) == 1
    if not alone and not all(len(rest) == 1 and rest[0].isdecimal() and int(rest[0]) for _, *rest in phases):
        raise argparse.ArgumentTypeError(f"expected numbers of merges ≥ 1, as async:100,ssgd:200. Received: {text!r}")
    return text


def rule_text(rule: Rule | RuleSequence, learners: int) -> str:
    """A rule with its parameters.

    >>> rule_text(SMA(), 4), rule_text(RULES["ssp"](bound=2), 4)
    ('sma, alpha 0.25, tau 1, base momentum 0', 'ssp, bound 2, weight 1')
    >>> rule_text(RULES["easgd"](alpha_steps=((30, 0.1), (60, 0.05))), 4)
    'easgd, alpha 0.5, tau 1, alpha steps 30:0.1,60:0.05'
    >>> rule_text(RuleSequence((RulePhase(RULES["hogwild"](), 5), RulePhase(RULES["ssgd"](), 2))), 4)
    'hogwild for 5 merges; ssgd for 2 merges; and again'
    """
    if isinstance(rule, RuleSequence):
        phases = [f"{rule_text(each, learners)} for {merges} merges" for each, merges in rule.phases]
        return "; ".join([*phases, "and again"])
    values: dict[str, Any] = {name: getattr(rule, name) for name in parameters(type(rule))}
    if isinstance(rule, Elastic):
        values["alpha"] = rule.strength(BEFORE_ANY_STEP, learners)
    return ", ".join([rule.name, *(_value_text(name, value) for name, value in values.items() if value != ())])


def exchanges_text(model: ModelConf) -> str:
    """What else is not as usual.

    >>> exchanges_text(ModelConf(skip=0.1, local_variables=("*norm*", "*bias"), restart=False))
    ', skip 0.1, local variables *norm*,*bias, no restart'
    """
    unusual = [f"skip {model.skip:g}"] if model.skip else []
    unusual += [f"local variables {','.join(model.local_variables)}"] if model.local_variables else []
    unusual += [] if model.restart else ["no restart"]
    return "".join(f", {text}" for text in unusual)


def _value_text(name: str, value: Any) -> str:
    if name == "groups" and value is None:
        value = "by speed"
    text = f"{value:.4g}" if isinstance(value, float) else value_text(name, value)
    return f"{name.replace('_', ' ')} {text}"


def _steps(text: str) -> tuple[tuple[float, float], ...]:
    """Pairs of numbers; which are right is the rule's to say."""
    try:
        steps = tuple(tuple(float(number) for number in step.split(":")) for step in text.split(","))
        return tuple((time, alpha) for time, alpha in steps)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected times and numbers, as 30:0.1,60:0.05. Received: {text!r}") from None


def _groups(text: str) -> int | tuple[tuple[int, ...], ...]:
    try:
        if text.isdigit():
            return int(text)
        return tuple(tuple(int(learner) for learner in group.split(",")) for group in text.split("/"))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected groups of learners, as 0,1/2,3, or their number. Received: {text!r}"
        ) from None
