"""The command line that all scripts share: defaults, bad values, help."""

import doctest
import re
from pathlib import Path

import pytest

from crossbow import SMA, ConfigurationError, SolverConf
from crossbow.scripts import rule_options as rule_options_module
from crossbow.scripts import setting_options as setting_options_module
from tests.scripts.options import confs, parser

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
    "--alpha-steps",
    "--tau",
    "--learning-rate",
    "--learning-rate-policy",
    "--momentum",
    "--weight-decay",
    "--seed",
    "--target-accuracy",
    "--time-limit",
    "--log",
    "--patience",
    "--quiet",
}
"""What every model script understands; users rely on it."""


def test_defaults() -> None:
    found = confs()
    assert found.model.batch_size == 9
    assert found.model.rule == SMA()
    assert found.solver == SolverConf(learning_rate=0.25, momentum=0.5)
    assert found.system.devices == ("cpu",)
    assert found.system.learners_per_device == "auto"
    assert found.system.seed == 0
    assert not found.system.check_numerics
    assert found.system.winograd
    options = parser().parse_args([])
    assert options.dataset == "digits"
    assert str(options.output_directory) == "output/example"


def test_every_option_arrives() -> None:
    found = confs(
        "--batch-size 4 --learners 3 --devices cpu:0/2,cpu:1/2 --threads-per-learner 2 --rule sma --alpha 0.25 "
        "--tau 2 --base-momentum 0.5 --learning-rate 0.5 --learning-rate-policy multistep --gamma 0.2 "
        "--step-values 2,5 --learning-rate-step-unit epochs --warmup-steps 1 --momentum 0.75 "
        "--weight-decay 0.001 --seed 7 --kernels reference --precision float64 "
        "--check-numerics --no-winograd"
    )
    assert found.model.batch_size == 4
    assert found.model.rule == SMA(alpha=0.25, tau=2, base_momentum=0.5)
    assert found.system.learners_per_device == 3
    assert found.system.devices == ("cpu:0/2", "cpu:1/2")
    assert found.system.threads_per_learner == 2
    assert found.system.kernels == "reference"
    assert found.system.precision == "float64"
    assert found.system.check_numerics
    assert not found.system.winograd
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


def test_an_option_as_it_is_typed() -> None:
    for module in (setting_options_module, rule_options_module):
        assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--alpha 0", "SMA: alpha must be a finite number > 0 and ≤ 1"),
        ("--alpha 1.5", "Received: alpha=1.5"),
        ("--alpha-steps 30:2", "SMA: alpha_steps must be pairs of a time > 0 and an alpha in (0, 1]"),
        ("--base-momentum 1", "base_momentum must be a finite number ≥ 0 and < 1"),
        ("--momentum 1", "SolverConf: momentum must be a finite number ≥ 0 and < 1. Received: momentum=1.0"),
        ("--learning-rate 0", "learning_rate must be a finite number > 0"),
        ("--weight-decay -1", "weight_decay"),
        ("--learning-rate-policy step", "step_size"),
        ("--learning-rate-policy multistep", "step_values"),
        ("--learning-rate-policy multistep --step-values 5,2", "strictly increasing"),
        # Every option that is accepted does something, or says what is so without it.
        ("--no-restart", "--no-restart does nothing with --learning-rate-policy fixed. Received: --no-restart"),
        ("--rule ssgd --alpha 0.5", "--alpha does nothing with --rule ssgd. Received: --alpha 0.5"),
        ("--rule ssgd --tau 2", "--tau does nothing"),
        ("--rule ssgd --alpha-steps 30:0.1,60:0.05", "Received: --alpha-steps 30:0.1,60:0.05. Options of ssgd"),
        ("--rule ssgd --groups 0,1/2", "Received: --groups 0,1/2. Options of ssgd"),
        (
            "--rule ssp --alpha 1",
            "--alpha does nothing with --rule ssp. Received: --alpha 1. Options of ssp: --bound, ",
        ),
        ("--rule grouping --groups 0,2", "Grouping: groups must be lists of learners from 0 on"),
        ("--rule async --weight 3", "AsynchronousSGD: weight must be a number in (0, 1]"),
        ("--gamma 0.5", "--gamma does nothing with --learning-rate-policy fixed. Received: --gamma 0.5"),
        ("--gamma 0.1", "--gamma does nothing with --learning-rate-policy fixed. Received: --gamma 0.1"),
        ("--learning-rate-policy exp --power 2", "--power does nothing with --learning-rate-policy exp"),
        ("--power 0.75", "--power does nothing with --learning-rate-policy fixed. Received: --power 0.75"),
        (
            "--learning-rate-policy inv --gamma 0 --power 0.75",
            "--power does nothing with --learning-rate-policy inv and --gamma 0. Received: --power 0.75",
        ),
        (
            "--learning-rate-policy inv --power 0 --gamma 0.5",
            "--gamma does nothing with --learning-rate-policy inv and --power 0. Received: --gamma 0.5",
        ),
        ("--learning-rate-policy inv --step-size 2", "--step-size does nothing with --learning-rate-policy inv"),
        ("--step-values 3,5", "with --learning-rate-policy fixed. Received: --step-values 3,5"),
        (
            "--learning-rate-step-unit epochs",
            "--learning-rate-step-unit does nothing with --learning-rate-policy fixed and --warmup-steps 0. "
            "Received: --learning-rate-step-unit epochs",
        ),
        ("--learning-rate-step-unit tasks", "--learning-rate-step-unit does nothing with --learning-rate-policy fixed"),
        (
            "--learning-rate-policy inv --gamma 0 --learning-rate-step-unit epochs",
            "does nothing with --learning-rate-policy inv and --gamma 0 and --warmup-steps 0",
        ),
        ("--maximum-learning-rate 1", "--maximum-learning-rate does nothing with --learning-rate-policy fixed"),
        ("--minimum-momentum 0.1", "--minimum-momentum does nothing with --learning-rate-policy fixed"),
        ("--super-convergence", "with --learning-rate-policy fixed. Received: --super-convergence"),
        ("--annihilation-steps 3", "--annihilation-steps does nothing without --super-convergence. Received:"),
        ("--final-learning-rate 0", "--final-learning-rate does nothing with --learning-rate-policy fixed"),
        ("--momentum 0 --momentum-method nesterov", "--momentum-method does nothing with --momentum 0. Received:"),
        ("--momentum 0 --momentum-method polyak", "--momentum-method does nothing with --momentum 0. Received:"),
        ("--regularisation l1", "--regularisation does nothing with --weight-decay 0. Received: --regularisation l1"),
        ("--regularisation l2", "--regularisation does nothing with --weight-decay 0. Received: --regularisation l2"),
        ("--clip-gradient-norm 0", "SolverConf: clip_gradient_norm must be a finite number > 0 or None"),
        ("--learning-rate-policy lsr --step-values 3", "warmup_steps must be an integer ≥ 1 with policy='lsr'"),
        ("--learning-rate-policy clr --step-size 3", "maximum_learning_rate must be > learning_rate=0.25"),
        (
            "--learning-rate-policy clr --step-size 3 --maximum-learning-rate 1 --super-convergence",
            "annihilation_steps must be an integer ≥ 1 with super_convergence=True",
        ),
        (
            "--rule async --between diloco",
            "TwoLevel: within must be a rule with a barrier, as SMA(). Received: within=Asyn",
        ),
        ("--between easgd", "TwoLevel: between must be a rule with a barrier, as SMA(). Received: between=EASGD"),
        ("--between ssgd", "between must be a rule whose learners send weights, as ModelAveraging(tau=64). Received"),
        (
            "--rule sma:2,easgd:3 --between diloco",
            "within must be a rule with a barrier, as SMA(). Received: within=EASGD(",
        ),
        ("--data-directory somewhere", "or sequence. Received: digits (1,797 images bundled with scikit-learn)"),
    ],
)
def test_bad_configurations(arguments: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        confs(arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--dataset cifar", "argument --dataset: invalid choice: 'cifar'"),
        ("--rule downpour", "argument --rule: invalid choice: 'downpour' (choose from sma, "),
        ("--rule ssgd:5,downpour:3", "argument --rule: invalid choice: 'downpour'"),
        ("--rule ssgd,sma", "expected numbers of merges ≥ 1, as async:100,ssgd:200. Received: 'ssgd,sma'"),
        ("--rule ssgd:0", "expected numbers of merges ≥ 1"),
        ("--rule diloco:tau=5", "expected the settings of a rule as options, as --rule diloco --tau 50. Received"),
        ("--rule dilcoo:tau=5", "invalid choice: 'dilcoo'"),
        ("--between fedavg", "argument --between: rule must be one of sma, "),
        ("--between diloco:eta=2", "expected settings of diloco: tau=…, outer-learning-rate=…, outer-momentum=…. Rec"),
        ("--between diloco:tau=x", "argument --between: expected an integer ≥ 1. Received: 'x'"),
        ("--between sma:alpha=7", "argument --between: SMA: alpha must be"),
        ("--alpha-steps 30", "expected times and numbers, as 30:0.1,60:0.05. Received: '30'"),
        ("--alpha-steps 30:x", "expected times and numbers, as 30:0.1,60:0.05. Received: '30:x'"),
        ("--rule ssgd:x", "expected numbers of merges ≥ 1"),
        ("--learners 0", "argument --learners: expected an integer ≥ 1 or 'auto'. Received: '0'"),
        ("--learners many", "expected an integer ≥ 1 or 'auto'. Received: 'many'"),
        ("--epochs 0", "argument --epochs: expected an integer ≥ 1. Received: '0'"),
        ("--epochs 1.5", "expected an integer ≥ 1. Received: '1.5'"),
        ("--batch-size x", "argument --batch-size: expected an integer ≥ 1. Received: 'x'"),
        ("--target-accuracy 98", "argument --target-accuracy: expected a number ≥ 0 and ≤ 1. Received: '98'"),
        ("--time-limit 0", "argument --time-limit: expected a number > 0. Received: '0'"),
        ("--learning-rate nan", "argument --learning-rate: expected a number. Received: 'nan'"),
        ("--step-values 1,x", "argument --step-values: expected integers, separated by commas. Received: '1,x'"),
        ("--seed -1", "argument --seed: expected an integer ≥ 0"),
        ("--output-directory=~nobody-has-this-name/x", "expected a path whose home directory exists. Received: '~nob"),
        (
            "--learner 2",
            "unrecognized arguments: --learner 2. Did you mean --learners? Options of sma: --alpha, --tau, ",
        ),
        ("--lr=0.1", "unrecognized arguments: --lr=0.1. Did you mean --learning-rate? Options of sma: --alpha, "),
        ("--rule ssp --staleness 3", "unrecognized arguments: --staleness 3. Options of ssp: --bound, --weight"),
        (
            "--rule async:2,ssgd:2 x",
            "unrecognized arguments: x. Options of async: --weight, --sends, --tau; Options of",
        ),
    ],
)
def test_bad_values(arguments: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        parser().parse_args(arguments.split())
    assert end.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert message in lines[-1]
    assert len(lines) == 2


def test_a_home_directory_that_the_shell_leaves_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert parser().parse_args(["--output-directory=~/runs/1"]).output_directory == tmp_path / "runs" / "1"


def test_help_has_units_and_defaults() -> None:
    text = " ".join(parser().format_help().split())
    for part in (
        "(default: 7 with digits, 3 with mnist)",
        "(default: 9)",
        "(default: 0.25 with sgd, else 0.01, or 0.001 with adam, adamw and rmsprop)",
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
    needed_by_their_policies = {"--step-size", "--step-values", "--maximum-learning-rate", "--annihilation-steps"}
    assert without == needed_by_their_policies | {"--colour-distortion", "--log-all", "--quiet", "--resume"}  # flags
