"""A training run as a deterministic transition function.

A `Program` says how to build the training state, how one optimiser step changes it, and what the records must show.
Everything else - data order, seeds, recording, replay - is the witness's business, so that recording, rebuilding and
replaying go through the same code. A step must be self-contained: given the state before it, its number and its batch,
nothing else may decide the state after it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch

from protocol.corpus import Packing
from protocol.errors import ProtocolError, UsageError
from protocol.manifest import is_identifier
from protocol.plain import from_plain, to_plain

if TYPE_CHECKING:
    from witness.data import Corpus


class State(Mapping[str, Any]):
    """The live components of a training state, by name: `state.model`, `state["optimizer"]`.

    Args:
        components: what `Program.build` returned.
        settles: whether the run's arithmetic gives every NaN one pattern; the census then does so in plain data.
    """

    __slots__ = ("_components", "settles", "step")

    def __init__(self, components: Mapping[str, Any], *, settles: bool = False) -> None:
        for name in components:
            if not (isinstance(name, str) and is_identifier(name)) or name in ("step", "program"):
                raise UsageError(
                    "program",
                    f"build() names a component {name!r}; use ASCII identifiers other than 'step' and 'program'",
                )
        self._components = dict(components)
        self.settles = settles
        self.step = 0
        """Number of the step being executed, counted from 1."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self._components[name]
        except KeyError:
            raise AttributeError(
                f"the state has no component {name!r}; build() returned {sorted(self._components)}"
            ) from None

    def __getitem__(self, name: str) -> Any:
        return self._components[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._components)

    def __len__(self) -> int:
        return len(self._components)


class Program:
    """Subclass this and implement `build`, `step` and `hyperparameters`.

    Constructor arguments are recorded in the manifest, so that a replayer can make the same object: give plain data
    (numbers, text, lists, dicts, tuples) or dataclasses of these, defined beside the program.
    """

    arguments: ClassVar[tuple[tuple[Any, ...], dict[str, Any]]]
    probe_samples: ClassVar[int] = 1
    """How many samples `probe` gets; drawn from the corpus by a seed that no one knows before the step."""
    batch_size: int = 16
    """Samples a step, where the caller names no number; set it on the class or in the constructor."""
    steps: int = 200
    """Steps of a run, where the caller names no number."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Remembers the constructor's arguments for the manifest."""
        program = super().__new__(cls)
        program.__dict__["_arguments"] = (args, kwargs)
        return program

    def packing(self) -> Packing:
        """How samples are cut from the corpus: here, one document each. Text models want windows."""
        return Packing("documents")

    def default_data(self) -> "Corpus":
        """The corpus where the caller names none: the English text that every Python carries."""
        from witness.data import embedded_text

        return embedded_text(self.packing())

    def build(self) -> Mapping[str, Any]:
        """Makes the initial state: modules, optimisers, schedulers, tensors, or anything with `state_dict()`.

        Generators are seeded before the call. Name the components: `{"model": model, "optimizer": optimizer}`.
        """
        raise NotImplementedError

    def step(self, state: State, batch: Any) -> Any:
        """Performs one optimiser step on `state` and returns the loss (a scalar tensor or a float).

        Gradients are None at entry. `state.step` is the number of this step, from 1.
        """
        raise NotImplementedError

    def hyperparameters(self, step: int) -> dict[str, Any]:
        """What the record of `step` must show (learning rate...): a pure function of the step's number."""
        raise NotImplementedError

    def collate(self, samples: Sequence[bytes]) -> Any:
        """Turns drawn samples into the batch: tensors, or lists, tuples and dicts of tensors.

        Augmentation belongs here: generators are seeded per step. The default stacks equally long samples into a
        uint8 tensor of shape `(batch, length)`.
        """
        lengths = sorted({len(sample) for sample in samples})
        if len(lengths) > 1:
            raise UsageError(
                "program", f"samples of {lengths[0]} to {lengths[-1]} bytes: define collate() in the program"
            )
        return torch.frombuffer(bytearray(b"".join(samples)), dtype=torch.uint8).view(len(samples), -1)

    def probe(self, state: State, batch: Any) -> torch.Tensor | None:
        """Outputs of the model on a small batch, for the fingerprint; None (the default) when there is no such thing.

        Runs without gradients, every module in evaluation mode, and must not change the state.
        """
        del state, batch
        return None

    def has_probe(self) -> bool:
        """Whether the subclass defines `probe`."""
        return type(self).probe is not Program.probe


def plain_arguments(program: Program) -> Any:
    """The plain form of the arguments a program was made with.

    Raises:
        UsageError: `unencodable`, naming the argument.
    """
    args, kwargs = program.__dict__["_arguments"]

    def hook(value: Any) -> tuple[str, Any]:
        if is_dataclass(value) and not isinstance(value, type):
            return "dataclass", [type(value).__qualname__, {f.name: getattr(value, f.name) for f in fields(value)}]
        raise UsageError(
            "unencodable",
            f"an argument of {type(program).__qualname__} is a {type(value).__qualname__}, which no replayer "
            "could make again",
            next_action="pass plain data or dataclasses of plain data to the program and build the object inside it",
        )

    return to_plain([list(args), kwargs], hook, path="arguments")


def instantiate(kind: type[Program], namespace: Mapping[str, Any], arguments: Any) -> Program:
    """Makes a program from its class and the plain form of its arguments.

    Args:
        kind: the class.
        namespace: the module's globals, where dataclasses of the arguments are looked up by name.
        arguments: from the manifest.

    Raises:
        ProtocolError: `program-arguments`.
    """

    def hook(tag: str, body: Any) -> Any:
        if tag == "dataclass" and isinstance(body, list) and len(body) == 2 and isinstance(body[1], dict):
            cls = namespace.get(body[0])
            if isinstance(cls, type) and is_dataclass(cls):
                return cls(**body[1])
        raise ProtocolError("program-arguments", f"the program has no dataclass for {str(body)[:80]!r}")

    try:
        value = from_plain(arguments, hook)
    except ProtocolError as error:
        raise ProtocolError("program-arguments", str(error)) from error
    if not (isinstance(value, list) and len(value) == 2 and isinstance(value[0], list) and isinstance(value[1], dict)):
        raise ProtocolError("program-arguments", "arguments are [positional, keyword]")
    return kind(*value[0], **value[1])
