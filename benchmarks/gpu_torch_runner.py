"""PyTorch's contestants on a GPU, in its fastest configuration.

There is no data feed and no averaging; the faster memory format and fused SGD are used.

eager    a step runs operator by operator
graphs   the whole step (forward, backward, optimiser) is captured once as a CUDA graph and replayed; each batch is
         copied to the location that the graph reads
streams  k models, each captured as its own graph and replayed on its own stream, so that they run concurrently
vmap     k replicas, each with its own weights and batch, as one model by `torch.func.vmap`; eager, or also captured

With precision "bfloat16" the forward pass is under `torch.autocast`. Batches are prepared in advance, in GPU memory.
Everything except graphs also runs on PyTorch's CPU.
"""

from __future__ import annotations

import copy
import functools
import statistics
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from benchmarks.gpu_host import HostTime
from benchmarks.gpu_networks import GPU_NETWORKS
from benchmarks.networks import CLASSES, LEARNING_RATE, MOMENTUM

BATCHES = 32
"""Number of batches that are prepared in advance, and used in turn; fewer if they would exceed BATCH_BYTES."""
BATCH_BYTES = 2 << 30
STEPS_AHEAD = 4
"""Maximum number of pending steps on the GPU: enough to keep it busy, and few enough to stop in time."""
WARM_STEPS = 5
TRIAL_STEPS = 20
"""Number of steps to choose a memory format, and to measure the duration of a step."""
TRIAL_SECONDS = 0.5
"""Maximum time in seconds for each of these trials."""


class Training(Protocol):
    """A training step: images (B, C, H, W) or (k, B, C, H, W), and their labels."""

    def step(self, images: Any, labels: Any) -> None:
        """Forward, backward and the optimiser's step."""


class TorchGpuRunner:
    """Trains one model, several at once (`streams` > 0), or several replicas as one by vmap (`replicas` > 0)."""

    def __init__(
        self,
        network: str,
        batch: int,
        graphs: bool = False,
        replicas: int = 0,
        streams: int = 0,
        precision: str = "float32",
        device: int = 0,
        where: str = "cuda",
    ) -> None:
        import torch

        _set_precision(precision)
        torch.manual_seed(0)
        self._cuda = where == "cuda"
        self._device = torch.device(f"cuda:{device}" if self._cuda else where)
        if self._cuda:
            torch.cuda.set_device(self._device)
        self.images = batch * max(replicas, streams, 1)
        self._network, self._batch, self._graphs = GPU_NETWORKS[network].network, batch, graphs
        self._replicas, self._models = replicas, streams
        self._streams: list[Any] = [torch.cuda.Stream() for _ in range(streams)] if self._cuda else []
        # There is no cache of rounded weights: each weight is used once in a step, and a graph must not store a cache.
        self._autocast = functools.partial(
            torch.autocast, self._device.type, torch.bfloat16, precision == "bfloat16", cache_enabled=False
        )
        self._under_way: deque[Any] = deque()
        self._number = 0
        self.channels_last = False
        """Whether channels-last is the faster memory format."""

    def warm_up(self) -> float:
        """Choose the memory format, and run until warm. Returns the duration of a step in seconds."""
        # vmap turns the replicas' convolutions into grouped ones, whose tensors are concatenated anew each time.
        formats = (False,) if self._replicas else (False, True)
        seconds = {}
        models, self._models = self._models, min(self._models, 1)  # the best format for one model suits several
        for channels_last in formats:
            self._make(channels_last)
            seconds[channels_last] = self._trial()
        self.channels_last = min(formats, key=lambda it: seconds[it])
        if self.channels_last != formats[-1] or models > 1:
            self._models = models
            self._make(self.channels_last)
            return self._trial()
        return seconds[self.channels_last]

    def run(self, begin: float, end: float) -> float:
        """Train until `end`. Returns images per second since `begin`; both are times of `time.monotonic`."""
        self._train(begin)
        start = time.monotonic()
        steps = self._train(end)
        return steps * self.images / (time.monotonic() - start)

    def observe(self, end: float) -> HostTime:
        """Train until `end`, and time the calls of the steps."""
        taken: list[int] = []
        step, clock = self._step, time.perf_counter_ns

        def timed() -> None:
            began = clock()
            step()
            taken.append(clock() - began)

        self._train(end, timed)
        return HostTime(statistics.median(taken) / 1e3)

    def close(self) -> None:
        """Release all resources."""
        self._training = self._batches = None
        self._under_way.clear()

    @staticmethod
    def about(device: int) -> dict[str, str]:
        """Versions. Raises an exception whose message says what is missing."""
        import torch

        if torch.version.cuda is None:
            raise RuntimeError(f"expected a PyTorch with CUDA. Received: {torch.__version__}")
        if not torch.cuda.is_available():
            raise RuntimeError(f"expected a GPU that PyTorch {torch.__version__} can use. Received: none")
        return {
            "PyTorch": f"{torch.__version__}, CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}, "
            f"on {torch.cuda.get_device_name(device)}"
        }

    @staticmethod
    def free_memory(device: int) -> int | None:
        """Free bytes of the GPU after cached memory is released; None without a GPU."""
        import torch

        if not torch.cuda.is_available():
            return None
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info(device)[0])

    def _make(self, channels_last: bool) -> None:
        """Create the training and its batches, replacing the previous ones."""
        import torch

        self.close()
        if self._cuda:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        replicas, shape = self._replicas, (self._batch, *self._network.image_shape)
        together = replicas or self._models
        stacked = (together,) if together else ()
        images = torch.rand((*stacked, *shape), device=self._device)
        count = max(2, min(BATCHES, BATCH_BYTES // (images.numel() * images.element_size())))
        form = torch.channels_last if channels_last else torch.contiguous_format
        self._batches = [
            (
                self._images((*stacked, *shape), form),
                torch.randint(0, CLASSES, (*stacked, self._batch), device=self._device),
            )
            for _ in range(count)
        ]
        training: Training
        if replicas:
            training = _Replicas([self._model() for _ in range(replicas)], self._autocast)
        elif self._models:
            training = _AtOnce([self._on_stream(number, form) for number in range(self._models)])
        else:
            training = _Single(self._model().to(memory_format=form), self._autocast)
        if self._graphs and not self._models:
            training = _Captured(training, *self._batches[0])
        self._training = training
        self._synchronise()

    def _images(self, shape: tuple[int, ...], form: Any) -> Any:
        """Random images, with each batch in this memory format."""
        import torch

        images = torch.rand(shape, device=self._device)
        if len(shape) == 4:
            return images.contiguous(memory_format=form)
        return [batch.contiguous(memory_format=form) for batch in images] if self._models else images

    def _on_stream(self, number: int, form: Any) -> tuple[Training, Callable[[], AbstractContextManager[Any]]]:
        """One of several concurrent models, captured if requested, and a function that selects its stream."""
        import torch

        training: Training = _Single(self._model().to(memory_format=form), self._autocast)
        stream = self._streams[number] if self._streams else None
        if self._graphs:
            images, labels = self._batches[0]
            training = _Captured(training, images[number], labels[number], stream)
        return training, functools.partial(torch.cuda.stream, stream)  # a no-op for None

    def _model(self) -> Any:
        model = self._network.torch().to(self._device)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        if parameters != self._network.parameters:
            raise ValueError(f"expected a network of {self._network.parameters:,} parameters. Received: {parameters:,}")
        return model

    def _trial(self) -> float:
        """Duration of a step in seconds, when warm."""
        for _ in range(WARM_STEPS):
            self._step()
        self._synchronise()
        began = now = time.monotonic()
        steps = 0
        while steps < TRIAL_STEPS and now - began < TRIAL_SECONDS:
            self._step()
            self._limit()
            steps, now = steps + 1, time.monotonic()
        self._synchronise()
        return (time.monotonic() - began) / steps

    def _train(self, end: float, step: Callable[[], None] | None = None) -> int:
        """Train until `end`, for at least one step. Returns the number of steps."""
        steps, step = 0, step or self._step
        while steps == 0 or time.monotonic() < end:
            step()
            steps += 1
            self._limit()
        self._synchronise()
        return steps

    def _step(self) -> None:
        self._training.step(*self._batches[self._number % len(self._batches)])
        self._number += 1

    def _limit(self) -> None:
        """Wait until the number of pending steps is below the limit."""
        if not self._cuda:
            return
        import torch

        events = [torch.cuda.Event() for _ in self._streams or (None,)]
        for event, stream in zip(events, self._streams or (None,), strict=True):
            event.record(stream)
        self._under_way.append(events)
        if len(self._under_way) > STEPS_AHEAD:
            for event in self._under_way.popleft():
                event.synchronize()

    def _synchronise(self) -> None:
        self._under_way.clear()
        if self._cuda:
            import torch

            torch.cuda.synchronize()


class _Single:
    """One model with its optimiser."""

    def __init__(self, model: Any, autocast: Callable[[], AbstractContextManager[Any]]) -> None:
        self.model, self._autocast = model, autocast
        self.optimiser = _sgd(list(model.parameters()))

    def step(self, images: Any, labels: Any) -> None:
        from torch.nn.functional import cross_entropy

        self.optimiser.zero_grad(set_to_none=True)
        with self._autocast():
            loss = cross_entropy(self.model(images), labels)
        loss.backward()
        self.optimiser.step()


class _Replicas:
    """Several models as one: every parameter is a stack of the models'."""

    def __init__(self, models: list[Any], autocast: Callable[[], AbstractContextManager[Any]]) -> None:
        from torch.func import functional_call, grad_and_value, stack_module_state, vmap
        from torch.nn.functional import cross_entropy

        parameters, self.buffers = stack_module_state(models)
        self.parameters = {name: stack.detach() for name, stack in parameters.items()}
        skeleton = copy.deepcopy(models[0]).to("meta")

        def loss(parameters: Any, buffers: Any, images: Any, labels: Any) -> Any:
            with autocast():
                return cross_entropy(functional_call(skeleton, (parameters, buffers), (images,)), labels)

        self._gradients = vmap(grad_and_value(loss), randomness="different")
        self.optimiser = _sgd(list(self.parameters.values()))

    def step(self, images: Any, labels: Any) -> None:
        gradients, _ = self._gradients(self.parameters, self.buffers, images, labels)
        for name, stack in self.parameters.items():
            stack.grad = gradients[name]
        self.optimiser.step()


class _AtOnce:
    """Several trainings, each on its own stream and batches."""

    def __init__(self, trainings: list[tuple[Training, Callable[[], AbstractContextManager[Any]]]]) -> None:
        self.trainings = trainings

    def step(self, images: Any, labels: Any) -> None:
        for (training, on_stream), x, y in zip(self.trainings, images, labels, strict=True):
            with on_stream():
                training.step(x, y)


class _Captured:
    """A training whose whole step is a CUDA graph, which reads each batch from the location of the first one."""

    def __init__(self, training: Any, images: Any, labels: Any, stream: Any = None) -> None:
        """stream: the stream to capture on. Concurrent graphs need different ones, because each stream has its own
        library workspaces."""
        import torch

        self._training = training  # the graph writes to its memory
        self._images, self._labels = images.clone(), labels.clone()
        beside = stream or torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):  # algorithms are selected, and momentum is allocated, before capturing
            for _ in range(WARM_STEPS):
                training.step(self._images, self._labels)
        torch.cuda.current_stream().wait_stream(beside)
        training.optimiser.zero_grad(set_to_none=True)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, stream=stream):
            training.step(self._images, self._labels)

    def step(self, images: Any, labels: Any) -> None:
        self._images.copy_(images)
        self._labels.copy_(labels)
        self._graph.replay()


def _sgd(parameters: list[Any]) -> Any:
    import torch

    kind = {"fused": True} if parameters[0].is_cuda else {"foreach": True}
    return torch.optim.SGD(parameters, lr=LEARNING_RATE, momentum=MOMENTUM, **kind)  # type: ignore[arg-type]


def _set_precision(precision: str) -> None:
    import torch

    tf32 = {"float32": False, "tf32": True, "bfloat16": True}[precision]
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = True
