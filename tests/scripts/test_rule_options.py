"""The rule's options, and a rule in words."""

import re

import pytest

from crossbow import SMA, SSGD
from crossbow.scripts.rule_options import rule_settings, rule_text
from crossbow.synch import (
    EASGD,
    RULES,
    SSP,
    AsynchronousSGD,
    Default,
    DiLoCo,
    Gossip,
    Grouping,
    Hogwild,
    ModelAveraging,
    PartiallySynchronous,
    PolyakRuppert,
    Rule,
    RuleSequence,
    SynchronousEASGD,
    TwoLevel,
    WeedOut,
)
from tests.scripts.options import confs, parser


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("ssgd", SSGD()),
        ("sma --between model-averaging:tau=64", TwoLevel(SMA(), ModelAveraging(tau=64))),
        ("ssgd --between diloco", TwoLevel(SSGD(), DiLoCo())),
        (
            "sma --tau 2 --between sma:alpha=0.25,alpha-steps=3:0.1,5:0.2,tau=4",
            TwoLevel(SMA(tau=2), SMA(alpha=0.25, alpha_steps=((3, 0.1), (5, 0.2)), tau=4)),
        ),
        ("synchronous-easgd --alpha 0.25 --tau 4", SynchronousEASGD(alpha=0.25, tau=4)),
        ("model-averaging --tau 3", ModelAveraging(tau=3)),
        ("polyak-ruppert --alpha 0.5", PolyakRuppert(alpha=0.5)),
        ("diloco --tau 20 --outer-learning-rate 0.5 --outer-momentum 0.8", DiLoCo(20, 0.5, 0.8)),
        ("sma --alpha-steps 1:0.1 --learning-rate-step-unit epochs", SMA(alpha_steps=((1, 0.1),))),
        ("sma --alpha-steps 30:0.1,60.5:0.05", SMA(alpha_steps=((30, 0.1), (60.5, 0.05)))),
        ("default --tau 2", Default(tau=2)),
        ("hogwild", Hogwild()),
        ("async", AsynchronousSGD()),
        ("async --weight 1/4 --tau 2", AsynchronousSGD(weight=0.25, tau=2)),
        ("async --sends gradient --weight 1/staleness", AsynchronousSGD(weight="1/staleness", sends="gradient")),
        ("ssp --bound 3 --weight 0.5", SSP(bound=3, weight=0.5)),
        ("partially-synchronous --max-advance 4", PartiallySynchronous(max_advance=4)),
        ("weed-out --window 8", WeedOut(window=8)),
        ("easgd --alpha 0.1 --tau 10", EASGD(alpha=0.1, tau=10)),
        ("gossip --probability 0.5", Gossip(probability=0.5)),
        ("grouping --groups 0,2/1", Grouping(((0, 2), (1,)))),
        ("grouping --groups 2", Grouping(2)),
        ("grouping", Grouping()),
        ("async:100,ssgd:200", RuleSequence(((AsynchronousSGD(), 100), (SSGD(), 200)))),
        ("sma:5,easgd:1 --alpha 0.25", RuleSequence(((SMA(alpha=0.25), 5), (EASGD(alpha=0.25), 1)))),
        ("ssgd:7", RuleSequence(((SSGD(), 7),))),
        (
            "sma:5,ssgd:3 --alpha 0.25 --between diloco",
            RuleSequence(((TwoLevel(SMA(alpha=0.25), DiLoCo()), 5), (TwoLevel(SSGD(), DiLoCo()), 3))),
        ),
    ],
)
def test_rules(arguments: str, expected: Rule | RuleSequence) -> None:
    found = confs(f"--rule {arguments}").model.rule
    assert found == expected
    assert rule_text(expected, 3).startswith(re.split("[ :]", arguments)[0])


def test_spaces_between_rules_do_not_matter() -> None:
    assert parser().parse_args(["--rule", "async:100, ssgd:200"]).rule == "async:100,ssgd:200"


def test_the_alpha_in_words_is_the_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "alpha 0.25" in rule_text(SMA(alpha_steps=((30, 0.1),)), 4)  # that with which it begins
    monkeypatch.setattr(SMA, "strength", lambda rule, pace, learners: learners / 8)
    assert "alpha 0.375" in rule_text(SMA(), 3)


def test_every_rule_and_every_parameter_is_an_option() -> None:
    options = vars(parser().parse_args([]))
    assert set(rule_settings()) <= set(options)
    help_text = parser().format_help()
    assert all(name in help_text for name in RULES)
