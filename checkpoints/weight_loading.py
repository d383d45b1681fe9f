"""Load tensors by name into a module, and report what does not fit and what is NaN or Inf."""

from __future__ import annotations

import difflib
import math
from collections import OrderedDict
from dataclasses import dataclass
from itertools import chain, permutations
from typing import TYPE_CHECKING, Any

from ..core.errors import CheckpointError, Hint, Option, first_line
from ..core.torch_tools import intercept_calls
from .mapped_weights import FileMappings, MappedTakeover

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import torch
    from torch.overrides import TorchFunctionMode

# DataParallel; Lightning and wrappers; compile
PREFIXES = ("module.", "model.", "net.", "_orig_mod.")
_SHOWN = 10
_TO_PLAIN = {"quantized": "tensor.dequantize()", "nested": "tensor.to_padded_tensor(0.0)"}


@dataclass(frozen=True, kw_only=True)
class KeyRenaming:
    """The prefixes to strip from a checkpoint's keys, in order."""

    prefixes: tuple[str, ...]

    def __call__(self, key: str) -> str:
        """The module's name for a checkpoint's key."""
        for prefix in self.prefixes:
            key = key.removeprefix(prefix)
        return key

    @property
    def notes(self) -> tuple[str, ...]:
        """What was stripped, for the user."""
        return tuple(f"the prefix {prefix!r} was cut from the keys" for prefix in self.prefixes)


def find_renaming(keys: Iterable[str], expected: Iterable[str]) -> KeyRenaming:
    """The fewest known prefixes that, cut off, make the most keys match the module."""
    names, wanted = list(keys), set(expected)
    orders = [
        KeyRenaming(prefixes=order)
        for count in range(len(PREFIXES) + 1)
        for order in permutations(PREFIXES, count)
    ]

    def matches(rename: KeyRenaming) -> int:
        cut = {rename(name) for name in names}
        return len(cut & wanted) if len(cut) == len(names) else -1

    return max(orders, key=matches)


class ModuleFiller:
    """A module being filled, in one go or in portions: what fits goes in at once.

    Weights of a mapped file are not copied where nobody can tell.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        rename: KeyRenaming,
        *,
        versions: Mapping[str, object] | None = None,
        others: Mapping[str, object] | None = None,
    ) -> None:
        """Begin to fill a module.

        Args:
            module: takes the weights.
            rename: from the checkpoint's keys to the module's.
            versions: what the checkpoint records of its modules, by their names there.
            others: entries of the state dict that are not tensors, as packed weights are.
        """
        self.module = module
        self.rename = rename
        self._versions = {rename(f"{k}.").removesuffix("."): v for k, v in (versions or {}).items()}
        own = module.state_dict()
        named = {rename(key): value for key, value in (others or {}).items()}
        self._others = {name: value for name, value in named.items() if name in own}
        self.mismatched: list[str] = []
        self.unexpected: set[str] = set()
        self.missing: set[str] | None = None
        self.half: set[str] = set()
        self.cast: dict[tuple[str, str], list[str]] = {}
        self._taking = MappedTakeover()
        unshare_elements((*module.parameters(), *module.buffers()))

    def add(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Put tensors, under the checkpoint's own keys, into the module."""
        import torch

        own = self.module.state_dict()
        fitting: dict[str, torch.Tensor] = {}
        for key, tensor in tensors.items():
            name = self.rename(key)
            if isinstance(own.get(name), torch.Tensor):
                check_form(key, tensor, tensor_form(own[name]))
                self._note_cast(key, tensor.dtype, own[name].dtype)
            if name in own and not _can_hold(own[name], tensor):
                found, wanted = tuple(tensor.shape), tuple(own[name].shape)
                self.mismatched.append(f"{name} is {found} where the module has {wanted}")
                fitting[name] = own[name]
            else:
                fitting[name] = tensor
        del own  # its views would count as others that share the memory
        self._taking.places = FileMappings()  # those of this portion among them
        missing, unexpected = self._load({**fitting, **self._others})
        self.unexpected.update(unexpected)
        # each portion lacks what the others bring: missing is what all of them lack
        lacking = set(missing)
        self.missing = lacking if self.missing is None else self.missing & lacking

    def _note_cast(self, key: str, found: torch.dtype, wanted: torch.dtype) -> None:
        """Keep what is to be said of a tensor whose dtype is not the module's.

        Raises:
            CheckpointError: it is complex and the module is not: half of it would be lost.
        """
        import torch

        then, now = (str(dtype).removeprefix("torch.") for dtype in (found, wanted))
        if found.is_complex and not wanted.is_complex:
            raise CheckpointError(
                f"{key} is {then} where the module has {now}: its imaginary part would be lost",
                hint="save what the module computes with, or build a module with complex weights",
            )
        if found in (torch.float16, torch.bfloat16):
            self.half.add(then)
        elif found != wanted:
            self.cast.setdefault((then, now), []).append(key)

    def _load(self, state: dict[str, object]) -> tuple[Sequence[str], Sequence[str]]:
        """What is missing, and what the module does not have.

        Where a module wants a version and the checkpoint records none, as safetensors do not, the
        code's own versions hold.
        """
        own = getattr(self.module.state_dict(), "_metadata", {})
        errors: list[Exception] = []
        for versions in [self._versions] if self._versions else [{}, own]:
            given = OrderedDict(state)
            if versions:
                given._metadata = versions  # type: ignore[attr-defined] # as torch keeps it
            try:
                with _make_takeover_mode(self._taking):
                    found = self.module.load_state_dict(given, strict=False)
            except Exception as error:  # noqa: BLE001 - the module's own code raises anything
                errors.append(error)
            else:
                return found.missing_keys, found.unexpected_keys
        raise CheckpointError(
            f"the module does not take the weights: {first_line(errors[0])}",
            hint="see whether module.load_state_dict takes them by itself",
        ) from errors[0]

    def finish(self, path: str, *, strict: bool) -> tuple[str, ...]:
        """The notes of this filling.

        Raises:
            CheckpointError: `strict`, and checkpoint and module do not match.
        """
        own = self.module.state_dict(keep_vars=True)
        missing = set(own) if self.missing is None else self.missing
        present = {_storage_place(own[name]) for name in own if name not in missing}
        lacking = [n for n in own if n in missing and _storage_place(own[n]) not in present]
        extra = sorted(self.unexpected)
        parts = [
            _names_text("missing", lacking, extra),
            _names_text("unexpected", extra, lacking),
            _names_text("of another shape", self.mismatched, ()),
        ]
        found = [part for part in parts if part]
        if found and strict:
            raise CheckpointError(
                f"{path} does not fit the module: {'; '.join(found)}",
                hint=Hint(
                    "check ",
                    Option("model"),
                    " and ",
                    Option("model-arg"),
                    ", or add ",
                    Option("no-strict"),
                    " to go on without these",
                ),
                option="model",
            )
        if found and (kept := len(lacking) + len(self.mismatched)):
            found.append(f"kept as the factory drew them from seed 0: {kept} of {len(own)} tensors")
        kinds = " and ".join(sorted(self.half))
        halves = [f"the checkpoint's weights are {kinds}"] if kinds else []
        return (*self.rename.notes, *halves, *self._casts(), *found)

    def _casts(self) -> Iterator[str]:
        for (then, now), keys in sorted(self.cast.items()):
            count = "1 tensor was" if len(keys) == 1 else f"{len(keys)} tensors were"
            yield f"{count} cast from {then} to {now}: {_first_names(keys)}"


def _make_takeover_mode(taking: MappedTakeover) -> TorchFunctionMode:
    """A mode in which a module's own loading takes mapped memory over instead of copying it.

    So what modules do to their state dict while they load it is done as ever.
    """
    import torch

    def take_over(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if func is torch.Tensor.copy_ and len(args) == 2 and taking.take(*args):  # noqa: PLR2004
            return args[0]
        return func(*args, **kwargs)

    return intercept_calls(take_over)


def unshare_elements(tensors: Iterable[torch.Tensor]) -> None:
    """Give each tensor whose elements share memory, as `expand` makes them, memory for each.

    Nothing can be written into such a tensor. Its values stay, and so does the object.
    """
    from torch.nn.parameter import is_lazy

    for tensor in tensors:
        if not is_lazy(tensor) and _is_self_overlapping(tensor):
            tensor.data = tensor.data.contiguous()


def _is_self_overlapping(tensor: torch.Tensor) -> bool:
    import torch

    if tensor.layout is not torch.strided:
        return False
    return any(
        not stride and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )


def _can_hold(own: object, tensor: torch.Tensor) -> bool:
    import torch
    from torch.nn.parameter import is_lazy

    return not isinstance(own, torch.Tensor) or is_lazy(own) or own.shape == tensor.shape


def _storage_place(tensor: object) -> tuple[object, ...]:
    """Where the elements lie: equal for tied weights."""
    import torch
    from torch.nn.parameter import is_lazy

    if not isinstance(tensor, torch.Tensor) or is_lazy(tensor):
        return (id(tensor),)
    if tensor.layout is not torch.strided or tensor.numel() == 0:
        return (id(tensor),)
    return (tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()))


def _names_text(word: str, names: Sequence[str], others: Sequence[str]) -> str:
    """`2 missing: a.weight (close: a.weigth), b.bias`."""
    if not names:
        return ""
    shown: list[str] = []
    for name in names[:_SHOWN]:
        near = difflib.get_close_matches(name, others[:1000], n=1)
        shown.append(f"{name} (close: {near[0]})" if near else name)
    return f"{len(names)} {word}: {_first_names(shown, of=len(names))}"


def _first_names(names: Sequence[str], *, of: int | None = None) -> str:
    """The first names, and how many more there are."""
    more = (of or len(names)) - _SHOWN
    return f"{', '.join(names[:_SHOWN])}{f' and {more} more' if more > 0 else ''}"


def tensor_form(tensor: torch.Tensor) -> str:
    """How a tensor holds its values: `dense`, `sparse_coo`, `quantized`, `meta`, `nested`, ..."""
    import torch

    if tensor.is_meta:
        return "meta"
    if tensor.is_nested:
        return "nested"
    if tensor.is_quantized:
        return "quantized"
    return "dense" if tensor.layout is torch.strided else str(tensor.layout).removeprefix("torch.")


def check_form(name: str, tensor: torch.Tensor, wanted: str = "dense") -> None:
    """Refuse a tensor without values, a nested one, and one of another form than is wanted.

    Raises:
        CheckpointError: it is one of these.
    """
    form = tensor_form(tensor)
    if form not in ("meta", "nested") and form == wanted:
        return
    meta = "meta" in (form, wanted)
    raise CheckpointError(
        f"the tensor {name} is {form} where the module has a {wanted} one",
        hint="build the module on the cpu: a tensor on the meta device has no values"
        if meta
        else f"save it as a plain tensor: {_TO_PLAIN.get(form, 'tensor.to_dense()')}",
    )


# Which weights of a module hold NaN or Inf, looked for without a copy of them.


_BLOCK_SIZE = 1 << 22  # elements that are counted at once


@dataclass(frozen=True, kw_only=True)
class NonFiniteWeight:
    """One weight with how many of its elements are NaN, and how many are Inf."""

    name: str
    nan: int
    inf: int

    def __str__(self) -> str:
        counts = ((self.nan, "NaN"), (self.inf, "Inf"))
        told = " and ".join(f"{count} {word}" for count, word in counts if count)
        return f"{self.name} has {told}"


def find_nonfinite_weights(module: torch.nn.Module) -> tuple[NonFiniteWeight, ...]:
    """Parameters with NaN or Inf, then buffers with NaN: Inf in a buffer is most often a mask."""
    named = ((name, one, True) for name, one in module.named_parameters())
    buffers = ((name, one, False) for name, one in module.named_buffers())
    found = (
        _count_nonfinite(name, one, inf=inf)
        for name, one, inf in chain(named, buffers)
        if _is_plain_tensor(one) and not _is_all_finite(one)
    )
    return tuple(one for one in found if one.nan or one.inf)


def _is_plain_tensor(tensor: torch.Tensor) -> bool:
    """Whether it has elements that can be asked: a class of tensors of its own need not answer."""
    import torch

    floats = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    if not plain or tensor.layout is not torch.strided or tensor.device.type == "meta":
        return False
    return tensor.dtype in floats and tensor.numel() > 0


def _is_all_finite(tensor: torch.Tensor) -> bool:
    """Whether all is finite: the smallest and the largest say so, and need no memory."""
    import torch

    low, high = torch.aminmax(tensor.detach())
    return math.isfinite(float(low)) and math.isfinite(float(high))


def _count_nonfinite(name: str, tensor: torch.Tensor, *, inf: bool) -> NonFiniteWeight:
    flat = tensor.detach().reshape(-1)
    blocks = [flat[start : start + _BLOCK_SIZE] for start in range(0, flat.numel(), _BLOCK_SIZE)]
    return NonFiniteWeight(
        name=name,
        nan=sum(int(block.isnan().sum()) for block in blocks),
        inf=sum(int(block.isinf().sum()) for block in blocks) if inf else 0,
    )
