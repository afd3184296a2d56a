"""Texts about a run for the console, before and after training, and for the first line of its log."""

from __future__ import annotations

import argparse
from typing import Any

from crossbow import Dataflow, Dataset, ExecutionContext, SystemConf
from crossbow.dataflow.graph import loss_weights, losses, main_losses
from crossbow.runtime.device import cores_text
from crossbow.runtime.summary import RunSummary
from crossbow.scripts.rule_options import exchanges_text, rule_text
from crossbow.scripts.solver_options import solver_text
from crossbow.synch import has_barrier, has_two_levels


def weights_of_losses(dataflow: Dataflow) -> dict[str, float]:
    """The weights of all losses by name, the main loss first; empty if there is only one loss, of weight 1."""
    found = sorted(losses(dataflow.graph), key=lambda vertex: vertex not in main_losses(dataflow.graph))
    weights = dict(zip((vertex.name for vertex in found), loss_weights(found), strict=True))
    return {} if list(weights.values()) == [1.0] else weights


def print_configuration(
    model: str,
    variant: str,
    options: argparse.Namespace,
    context: ExecutionContext,
    data: Dataset,
    weights: dict[str, float],
    initial: list[str],
) -> None:
    """Print the model, the data, the devices and the settings of the training."""
    summary = context.summary()
    named = f" ({variant})" if variant else ""
    check = 0 if data.check is None else len(data.check)
    shape, what = "×".join(map(str, data.image_shape)), "images" if len(data.image_shape) == 3 else "examples of shape"
    rows = [
        ("model", f"{model}{named}, {summary.parameters:,} parameters"),
        ("data", f"{options.dataset}, {len(data.train):,} training and {check:,} test {what} {shape}"),
    ]
    if len(summary.ranks) > 1:
        hosts = ", ".join(dict.fromkeys(rank.host for rank in summary.ranks))
        shared = ", with shared memory" if summary.shared_memory else ""
        sums = f", sums in a {summary.sum_order}" if summary.sum_order else ""
        learners = f"{summary.learners} learners together"
        rows.append(("ranks", f"{len(summary.ranks)} on {hosts}{shared}{sums}; {learners}; below: rank 0"))
    for device in summary.devices:
        learners = count(device.learners, "learner")
        if device.threads_per_learner is not None:
            threads = count(device.threads_per_learner, "thread")
            rows.append(("device", f"{device.name} ({cores_text(device.cores)}), {learners} × {threads}"))
        else:
            rows.append(("device", f"{device.name}, {learners}"))
    rows += [
        ("kernels", f"{summary.library}, {context.system.precision}"),
        ("rule", _rule_text(context)),
        ("batch", f"{context.model.batch_size} images a learner; {summary.tasks_per_epoch:.4g} tasks an epoch"),
        ("loader", _loader_text(context.system)),
        ("solver", solver_text(context.solver)),
        *([("loss", _loss_text(weights))] if weights else []),
        ("length", _length_text(options, context.system.seed)),
        ("output", str(options.output_directory)),
    ]
    for name, text in rows:
        print(f"{name:8} {text}")
    print(*initial, sep="\n", end="\n" * bool(initial))
    print(flush=True)


def header(
    model: str, variant: str, dataset: str, context: ExecutionContext, weights: dict[str, float]
) -> dict[str, Any]:
    """The description of the run for the log. `run.json` has the whole configuration."""
    summary, system = context.summary(), context.system
    devices = [
        {
            "device": device.name,
            "learners": device.learners,
            "threads_per_learner": device.threads_per_learner,
        }
        for device in summary.devices
    ]
    return {
        "model": model,
        "variant": variant,
        "dataset": dataset,
        **_ranks(summary),
        "devices": devices,
        "kernels": summary.library,
        "precision": system.precision,
        "winograd": system.winograd,
        "rule": _rule_text(context),
        "batch_size": context.model.batch_size,
        "seed": system.seed,
        "order": system.order,
        "files_together": system.group_of_files,
        "on_bad_record": system.on_bad_record,
        **({"losses": weights} if weights else {}),
    }


def _ranks(summary: RunSummary) -> dict[str, Any]:
    """The hosts of several ranks, and the way in which ranks compute sums."""
    if len(summary.ranks) == 1:
        return {}
    sums = {"sum_order": summary.sum_order} if summary.sum_order else {}
    return {"ranks": [rank.host for rank in summary.ranks], **sums}


def _rule_text(context: ExecutionContext) -> str:
    summary = context.summary()
    two_levels = has_two_levels(summary.rule)
    learners = sum(device.learners for device in summary.devices) if two_levels else summary.learners
    text = rule_text(summary.rule, learners, len(summary.ranks)) + exchanges_text(context.model)
    if not has_barrier(summary.rule):
        return f"{text}; what comes of it depends on timing"
    return f"{text}, an average every {count(summary.tasks_per_tick, 'task')}"


def _loss_text(weights: dict[str, float]) -> str:
    terms = [name if weight == 1 else f"{weight:g} × {name}" for name, weight in weights.items()]
    return f"{' + '.join(terms)}; in tests {terms[0]}"


def _loader_text(system: SystemConf) -> str:
    order = "all examples shuffled"
    if system.group_of_files is not None:
        order = f"files shuffled, and examples in groups of {count(system.group_of_files, 'file')}"
    return f"{count(system.loader_threads, 'thread')}; {order}"


def _length_text(options: argparse.Namespace, seed: int) -> str:
    text = count(options.epochs, "epoch")
    if options.time_limit is not None:
        text += f", at most {options.time_limit:g} s"
    if options.target_accuracy is not None:
        text += f", or test accuracy {options.target_accuracy:.2%}"
    return f"{text}; seed {seed}"


def count(number: float, what: str) -> str:
    """A number with its unit, in the plural unless it is 1.

    >>> count(1, "epoch"), count(2.5, "epoch"), count(1500, "task")
    ('1 epoch', '2.50 epochs', '1,500 tasks')
    """
    text = f"{number:,.0f}" if number == int(number) else f"{number:,.2f}"
    return f"{text} {what}{'' if number == 1 else 's'}"
