"""A feed that a fault brings with it, on which it shows if anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from modelc.core.contract import Array
from modelc.core.signature import FLOATS, Signature


@dataclass(frozen=True, kw_only=True)
class Feeding:
    """A feed of a fault's own: some sizes (others at their largest), and what is in it.

    Floats are normal times `scale`; `everywhere` fills the first input, where it is integers.
    """

    sizes: Mapping[str, int] = field(default_factory=dict)
    scale: float = 1.0
    everywhere: int | None = None

    def feed(self, signature: Signature) -> dict[str, Array]:
        """Draw it, the same each time; masks are all ones."""
        generator = np.random.default_rng(0)
        found: dict[str, Array] = {}
        for number, spec in enumerate(signature.inputs):
            shape = [self.sizes.get(dim.name or "", dim.high) for dim in spec.dims]
            if spec.dtype in FLOATS:
                array: Array = self.scale * generator.standard_normal(shape)
            elif number == 0 and self.everywhere is not None:
                array = np.full(shape, self.everywhere)
            elif spec.values is None or (spec.values.low, spec.values.high) == (0, 1):
                array = np.ones(shape)
            else:
                low, high = int(spec.values.low), int(spec.values.high)
                array = generator.integers(low, high, shape, endpoint=True)
            found[spec.name] = array.astype(spec.dtype)
        return found
