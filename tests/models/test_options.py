from __future__ import annotations

import argparse
import re

import pytest

from crossbow import SMA, SSGD, ConfigurationError, SolverConf
from models.options import Configurations, Defaults, configurations, new_parser

DEFAULTS = Defaults(epochs={"digits": 7, "mnist": 3}, batch_size=9, learning_rate=0.25, momentum=0.5)

REQUIRED = {
    "--dataset",
    "--data-directory",
    "--output-directory",
    "--epochs",
    "--batch-size",
    "--learners",
    "--devices",
    "--rule",
    "--alpha",
    "--tau",
    "--learning-rate",
    "--learning-rate-policy",
    "--momentum",
    "--weight-decay",
    "--seed",
    "--target-accuracy",
    "--time-limit",
}
"""What every model script understands; users rely on it."""


def parser() -> argparse.ArgumentParser:
    return new_parser("example", "Trains an example.", DEFAULTS)[0]


def confs(arguments: str = "") -> Configurations:
    return configurations(parser().parse_args(arguments.split()), DEFAULTS)


def test_defaults() -> None:
    found = confs()
    assert found.model.batch_size == 9
    assert found.model.rule == SMA()
    assert found.solver == SolverConf(learning_rate=0.25, momentum=0.5)
    assert found.system.devices == ("cpu",)
    assert found.system.learners_per_device == "auto"
    assert found.system.seed == 0
    options = parser().parse_args([])
    assert options.dataset == "digits"
    assert str(options.output_directory) == "output/example"


def test_every_option_arrives() -> None:
    found = confs(
        "--batch-size 4 --learners 3 --devices cpu:0/2,cpu:1/2 --threads-per-learner 2 --rule sma --alpha 0.25 "
        "--tau 2 --base-momentum 0.5 --learning-rate 0.5 --learning-rate-policy multistep --gamma 0.2 "
        "--step-values 2,5 --learning-rate-step-unit epochs --warmup-steps 1 --momentum 0.75 "
        "--weight-decay 0.001 --seed 7 --kernels reference --precision float64"
    )
    assert found.model.batch_size == 4
    assert found.model.rule == SMA(alpha=0.25, tau=2, base_momentum=0.5)
    assert found.system.learners_per_device == 3
    assert found.system.devices == ("cpu:0/2", "cpu:1/2")
    assert found.system.threads_per_learner == 2
    assert found.system.kernels == "reference"
    assert found.system.precision == "float64"
    assert found.system.seed == 7
    assert found.solver == SolverConf(
        learning_rate=0.5,
        policy="multistep",
        gamma=0.2,
        step_values=(2, 5),
        learning_rate_step_unit="epochs",
        warmup_steps=1,
        momentum=0.75,
        weight_decay=0.001,
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--learning-rate-policy inv --gamma 0.5 --power 2", SolverConf(policy="inv", gamma=0.5, power=2)),
        ("--learning-rate-policy step --step-size 3", SolverConf(policy="step", step_size=3)),
        ("--learning-rate-policy exp --gamma 0.9", SolverConf(policy="exp", gamma=0.9)),
        (
            "--warmup-steps 2 --learning-rate-step-unit epochs",
            SolverConf(warmup_steps=2, learning_rate_step_unit="epochs"),
        ),
    ],
)
def test_policies(arguments: str, expected: SolverConf) -> None:
    assert confs(f"--learning-rate 0.01 --momentum 0 {arguments}").solver == expected


@pytest.mark.parametrize(
    ("arguments", "policy", "gamma"),
    [
        ("", "inv", 0.003),
        ("--gamma 0.5", "inv", 0.5),
        ("--learning-rate-policy exp", "exp", SolverConf().gamma),
        ("--learning-rate-policy fixed", "fixed", SolverConf().gamma),
        ("--learning-rate-step-unit epochs", "inv", SolverConf().gamma),  # the default is one for tasks
    ],
)
def test_a_models_own_policy(arguments: str, policy: str, gamma: float) -> None:
    defaults = Defaults(epochs={"digits": 7}, batch_size=9, learning_rate=0.25, policy="inv", gamma=0.003)
    parser, _ = new_parser("example", "Trains an example.", defaults)
    solver = configurations(parser.parse_args(arguments.split()), defaults).solver
    assert (solver.policy, solver.gamma) == (policy, gamma)
    assert "(default: 0.003 with inv in tasks, else 0.1)" in " ".join(parser.format_help().split())


def test_the_rule_ssgd() -> None:
    assert confs("--rule ssgd").model.rule == SSGD()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--alpha 0", "SMA: alpha must be a number in (0, 1]"),
        ("--alpha 1.5", "Received: alpha=1.5"),
        ("--base-momentum 1", "base_momentum must be a number in [0, 1)"),
        ("--momentum 1", "SolverConf: momentum must be a finite number ≥ 0 and < 1. Received: momentum=1.0"),
        ("--learning-rate 0", "learning_rate must be a finite number > 0"),
        ("--weight-decay -1", "weight_decay"),
        ("--learning-rate-policy step", "step_size"),
        ("--learning-rate-policy multistep", "step_values"),
        ("--learning-rate-policy multistep --step-values 5,2", "strictly increasing"),
        # Every option that is accepted does something.
        ("--rule ssgd --alpha 0.5", "--alpha does nothing with --rule ssgd. Received: --alpha 0.5"),
        ("--rule ssgd --tau 2", "--tau does nothing"),
        ("--gamma 0.5", "--gamma does nothing with --learning-rate-policy fixed"),
        ("--learning-rate-policy exp --power 2", "--power does nothing with --learning-rate-policy exp"),
        ("--learning-rate-policy inv --step-size 2", "--step-size does nothing"),
        ("--learning-rate-step-unit epochs", "--learning-rate-step-unit does nothing"),
        ("--data-directory somewhere", "--data-directory belongs to --dataset mnist"),
    ],
)
def test_bad_configurations(arguments: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        confs(arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--dataset cifar", "argument --dataset: invalid choice: 'cifar'"),
        ("--rule easgd", "argument --rule: invalid choice"),
        ("--learners 0", "argument --learners: expected auto or an integer ≥ 1. Received: '0'"),
        ("--learners many", "expected auto or an integer ≥ 1. Received: 'many'"),
        ("--epochs 0", "argument --epochs: expected an integer ≥ 1. Received: '0'"),
        ("--epochs 1.5", "expected an integer ≥ 1. Received: '1.5'"),
        ("--batch-size x", "argument --batch-size: expected an integer ≥ 1. Received: 'x'"),
        ("--target-accuracy 98", "argument --target-accuracy: expected a number ≥ 0 and ≤ 1. Received: '98'"),
        ("--time-limit 0", "argument --time-limit: expected a number > 0. Received: '0'"),
        ("--learning-rate nan", "argument --learning-rate: expected a number. Received: 'nan'"),
        ("--step-values 1,x", "argument --step-values: expected integers, separated by commas. Received: '1,x'"),
        ("--seed -1", "argument --seed: expected an integer ≥ 0"),
        ("--learn 2", "unrecognized arguments: --learn"),
    ],
)
def test_bad_values(arguments: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        parser().parse_args(arguments.split())
    assert end.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert message in lines[-1]
    assert len(lines) == 2


def test_help_has_units_and_defaults() -> None:
    text = " ".join(parser().format_help().split())
    for part in (
        "(default: 7 with digits, 3 with mnist)",
        "(default: 9)",
        "(default: 0.25)",
        "SECONDS",
        "a fraction in [0, 1]",
        "(default: auto)",
        "(default: output/example)",
    ):
        assert part in text
    actions = {action.option_strings[-1]: action.help or "" for action in parser()._actions}
    del actions["--help"]
    assert actions.keys() >= REQUIRED
    without = {option for option, text in actions.items() if "default:" not in text}
    assert without == {"--step-size", "--step-values"}, "these two are needed by their policies"
