"""Load tensors by name into a module, and report mismatches, NaN and Inf."""

from __future__ import annotations

import difflib
import math
from collections import OrderedDict
from dataclasses import dataclass
from itertools import chain, permutations
from typing import TYPE_CHECKING, Any

from ..core.errors import CheckpointError, ErrorCode, Hint, Option, first_line
from ..core.torch_tools import intercept_calls
from .mapped_weights import FileMappings, MappedTakeover
from .torchao_weights import is_torchao

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

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
        """Return the module's name for a checkpoint's key."""
        for prefix in self.prefixes:
            key = key.removeprefix(prefix)
        return key

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the stripped prefixes."""
        return tuple(f"the prefix {prefix!r} was removed from the keys" for prefix in self.prefixes)


def find_renaming(keys: Iterable[str], expected: Iterable[str]) -> KeyRenaming:
    """Return the fewest known prefixes whose removal makes the most keys match the module."""
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
    """Fills a module with tensors, at once or in portions.

    Weights of a memory-mapped file are used without a copy where possible.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        rename: KeyRenaming,
        *,
        versions: Mapping[str, object] | None = None,
        others: Mapping[str, object] | None = None,
    ) -> None:
        """Prepare to fill a module.

        Args:
            module: receives the weights.
            rename: from the checkpoint's keys to the module's.
            versions: version records of the checkpoint's modules, by name.
            others: entries of the state dict that are not tensors, such as packed weights.
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
        self._takeover = MappedTakeover()
        unshare_elements((*module.parameters(), *module.buffers()))

    def add(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Load tensors, by the checkpoint's keys, into the module."""
        import torch

        own = self.module.state_dict()
        fitting: dict[str, torch.Tensor] = {}
        for key, tensor in tensors.items():
            name = self.rename(key)
            if is_torchao(tensor) and isinstance(own.get(name), torch.Tensor):
                fitting[name] = self._place(key, tensor)
                continue
            if isinstance(own.get(name), torch.Tensor):
                check_form(key, tensor, tensor_form(own[name]))
                self._note_cast(key, tensor.dtype, own[name].dtype)
            if name in own and not _can_hold(own[name], tensor):
                found, wanted = tuple(tensor.shape), tuple(own[name].shape)
                self.mismatched.append(f"{name} is {found}, the module's is {wanted}")
                fitting[name] = own[name]
            else:
                fitting[name] = tensor
        del own  # its views would count as sharing the memory
        self._takeover.places = FileMappings()  # including those of this portion
        missing, unexpected = self._load({**fitting, **self._others})
        self.unexpected.update(unexpected)
        # a name is missing only if all portions lack it
        lacking = set(missing)
        self.missing = lacking if self.missing is None else self.missing & lacking

    def _place(self, key: str, tensor: torch.Tensor) -> torch.Tensor:
        """Make a tensor of torchao the parameter itself, since its integers cannot be copied to it.

        Returns what is left to load, which changes nothing.
        """
        from torch import nn

        name = self.rename(key)
        own = self.module.get_parameter(name)
        if own.shape != tensor.shape:
            found, wanted = tuple(tensor.shape), tuple(own.shape)
            self.mismatched.append(f"{name} is {found}, the module's is {wanted}")
            return own
        given = nn.Parameter(tensor, requires_grad=False)
        for part in self.module.modules():  # a tied weight is the parameter of several
            for label, parameter in part._parameters.items():
                if parameter is own:
                    part._parameters[label] = given
        return given

    def _note_cast(self, key: str, found: torch.dtype, wanted: torch.dtype) -> None:
        """Record a tensor whose dtype differs from the module's.

        Raises:
            CheckpointError: it is complex and the module's is not.
        """
        import torch

        then, now = (str(dtype).removeprefix("torch.") for dtype in (found, wanted))
        if found.is_complex and not wanted.is_complex:
            raise CheckpointError(
                f"{key} is {then}, the module's is {now}: the imaginary part would be lost",
                hint="save real weights, or build a module with complex weights",
                code=ErrorCode.MISFIT_WEIGHTS,
            )
        if found in (torch.float16, torch.bfloat16):
            self.half.add(then)
        elif found != wanted:
            self.cast.setdefault((then, now), []).append(key)

    def _load(self, state: dict[str, object]) -> tuple[Sequence[str], Sequence[str]]:
        """Load the state; return missing and unexpected names.

        If a module requires a version and the checkpoint has none, as with safetensors, the code's
        own versions are used.
        """
        own = getattr(self.module.state_dict(), "_metadata", {})
        errors: list[Exception] = []
        for versions in [self._versions] if self._versions else [{}, own]:
            given = OrderedDict(state)
            if versions:
                given._metadata = versions  # type: ignore[attr-defined] # as torch keeps it
            try:
                with _make_takeover_mode(self._takeover):
                    found = self.module.load_state_dict(given, strict=False)
            except Exception as error:  # noqa: BLE001 - the module's own code raises anything
                errors.append(error)
            else:
                return found.missing_keys, found.unexpected_keys
        raise CheckpointError(
            f"the module rejects the weights: {first_line(errors[0])}",
            hint="try module.load_state_dict in Python",
        ) from errors[0]

    def finish(self, path: str, *, strict: bool) -> tuple[str, ...]:
        """Return notes on the loaded weights.

        Raises:
            CheckpointError: `strict` is set, and checkpoint and module do not match.
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
                    " to continue without these",
                ),
                option="model",
                code=ErrorCode.MISFIT_WEIGHTS,
            )
        if found and (kept := len(lacking) + len(self.mismatched)):
            found.append(f"{kept} of {len(own)} tensors keep the factory's random values (seed 0)")
        kinds = " and ".join(sorted(self.half))
        halves = [f"the checkpoint's weights are {kinds}"] if kinds else []
        casts = [
            f"{'1 tensor was' if len(keys) == 1 else f'{len(keys)} tensors were'} cast from "
            f"{then} to {now}: {_first_names(keys)}"
            for (then, now), keys in sorted(self.cast.items())
        ]
        return (*self.rename.notes, *halves, *casts, *found)


def _make_takeover_mode(takeover: MappedTakeover) -> TorchFunctionMode:
    """Return a mode in which a module's own loading uses mapped memory instead of copying it."""
    import torch

    def take_over(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if func is torch.Tensor.copy_ and len(args) == 2 and takeover.take(*args):  # noqa: PLR2004
            return args[0]
        return func(*args, **kwargs)

    return intercept_calls(take_over)


def unshare_elements(tensors: Iterable[torch.Tensor]) -> None:
    """Make tensors with overlapping elements, as `expand` creates them, contiguous in place.

    Such tensors cannot be written to.
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
    """Return the location of the elements, equal for tied weights."""
    import torch
    from torch.nn.parameter import is_lazy

    if not isinstance(tensor, torch.Tensor) or is_lazy(tensor):
        return (id(tensor),)
    if tensor.layout is not torch.strided or tensor.numel() == 0:
        return (id(tensor),)
    return (tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()))


def _names_text(word: str, names: Sequence[str], others: Sequence[str]) -> str:
    """Format `2 missing: a.weight (close: a.weigth), b.bias`."""
    if not names:
        return ""
    shown: list[str] = []
    for name in names[:_SHOWN]:
        near = difflib.get_close_matches(name, others[:1000], n=1)
        shown.append(f"{name} (close: {near[0]})" if near else name)
    return f"{len(names)} {word}: {_first_names(shown, of=len(names))}"


def _first_names(names: Sequence[str], *, of: int | None = None) -> str:
    """Format the first names, and the number of the others."""
    more = (of or len(names)) - _SHOWN
    return f"{', '.join(names[:_SHOWN])}{f' and {more} more' if more > 0 else ''}"


def tensor_form(tensor: torch.Tensor) -> str:
    """Return how a tensor stores its values: `dense`, `sparse_coo`, `quantized`, `meta`, ..."""
    import torch

    if tensor.is_meta:
        return "meta"
    if tensor.is_nested:
        return "nested"
    if tensor.is_quantized:
        return "quantized"
    return "dense" if tensor.layout is torch.strided else str(tensor.layout).removeprefix("torch.")


def check_form(name: str, tensor: torch.Tensor, wanted: str = "dense") -> None:
    """Check that a tensor has values and the wanted form.

    Raises:
        CheckpointError: it is on the meta device, nested, or has another form.
    """
    form = tensor_form(tensor)
    if form not in ("meta", "nested") and form == wanted:
        return
    meta = "meta" in (form, wanted)
    raise CheckpointError(
        f"the tensor {name} is {form}, the module's is {wanted}",
        hint="build the module on the cpu: a tensor on the meta device has no values"
        if meta
        else f"save it as a plain tensor: {_TO_PLAIN.get(form, 'tensor.to_dense()')}",
        code=ErrorCode.MISFIT_WEIGHTS,
    )


# Which weights of a module hold NaN or Inf, looked for without a copy of them.


_BLOCK_SIZE = 1 << 22  # elements per block


@dataclass(frozen=True, kw_only=True)
class NonFiniteWeight:
    """One weight with its numbers of NaN and Inf."""

    name: str
    nan: int
    inf: int

    def __str__(self) -> str:
        counts = ((self.nan, "NaN"), (self.inf, "Inf"))
        text = " and ".join(f"{count} {word}" for count, word in counts if count)
        return f"{self.name} has {text}"


def find_nonfinite_weights(module: torch.nn.Module) -> tuple[NonFiniteWeight, ...]:
    """Find parameters with NaN or Inf, and buffers with NaN: Inf in a buffer is mostly a mask."""
    named = ((name, one, True) for name, one in module.named_parameters())
    buffers = ((name, one, False) for name, one in module.named_buffers())
    found = (
        _count_nonfinite(name, one, inf=inf)
        for name, one, inf in chain(named, buffers)
        if _is_plain_tensor(one) and not _is_all_finite(one)
    )
    return tuple(one for one in found if one.nan or one.inf)


def _is_plain_tensor(tensor: torch.Tensor) -> bool:
    """Whether it is a dense float tensor of torch's own class."""
    import torch

    floats = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    if not plain or tensor.layout is not torch.strided or tensor.device.type == "meta":
        return False
    return tensor.dtype in floats and tensor.numel() > 0


def _is_all_finite(tensor: torch.Tensor) -> bool:
    """Whether all elements are finite, by minimum and maximum, which need no memory."""
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
