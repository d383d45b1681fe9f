"""Draws docs/images/flow.svg: the way from a checkpoint to artifacts that passed.

    python docs/draw_flow.py            # writes the picture
    python docs/draw_flow.py --check    # exit 1 where the file is another

Boxes have a fill and a text colour of their own, and everything between them is a mid grey, so that
the picture is legible on a light page and on a dark one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

FILE = Path(__file__).resolve().parent / "images" / "flow.svg"
WIDTH, HEIGHT = 1000, 372
FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
GREY = "#7d8590"
BLUE, SLATE, GREEN, RED = "#1f4e8c", "#475467", "#1a6b3c", "#a1342b"
TITLE = "How modelc works"
SUMMARY = (
    "A checkpoint is captured as a graph and converted to a format. The artifact and the eager "
    "model run on the same feeds, drawn over a stated domain. Where they agree the artifact has "
    "passed; where they differ the next capture is tried, and at last the artifact is rejected, "
    "with the layer that first differs."
)


@dataclass(frozen=True, kw_only=True)
class Box:
    """A box with a title and smaller lines below it; `x` and `y` are its upper left corner."""

    x: int
    y: int
    title: str
    lines: tuple[str, ...]
    fill: str = SLATE
    width: int = 156
    height: int = 112

    @property
    def right(self) -> tuple[int, int]:
        """The middle of its right side."""
        return self.x + self.width, self.y + self.height // 2

    @property
    def left(self) -> tuple[int, int]:
        """The middle of its left side."""
        return self.x, self.y + self.height // 2

    @property
    def top(self) -> tuple[int, int]:
        """The middle of its upper side."""
        return self.x + self.width // 2, self.y

    @property
    def bottom(self) -> tuple[int, int]:
        """The middle of its lower side."""
        return self.x + self.width // 2, self.y + self.height


_TOP, _LOW = 64, 244
CHECKPOINT = Box(
    x=12,
    y=_TOP,
    title="Checkpoint",
    lines=(".safetensors, .pt", "Hugging Face folder", "TorchScript, .pt2"),
)
CAPTURE = Box(x=214, y=_TOP, title="Capture", lines=("torch.export", "script, trace"))
CONVERT = Box(
    x=416, y=_TOP, title="Convert", lines=("TorchScript, .pt2", "ONNX, OpenVINO", "TensorRT")
)
VALIDATE = Box(
    x=618,
    y=_TOP,
    title="Validate",
    lines=("every artifact", "against eager,", "on every feed"),
    fill=BLUE,
)
PASSED = Box(
    x=832, y=_TOP, title="Passed", lines=("artifact, domain", "and manifest.json"), fill=GREEN
)
EAGER = Box(
    x=12,
    y=_LOW,
    title="Eager model",
    lines=("float32 outputs, and", "float64 to measure", "its own roundoff"),
)
FEEDS = Box(
    x=214,
    y=_LOW,
    width=358,
    title="Feeds over a domain",
    lines=(
        "for example batch 1..8, height 32..256",
        "your samples, drawn values, edge cases",
    ),
)
REJECTED = Box(
    x=832,
    y=_LOW,
    title="Rejected",
    lines=("moved to rejected/,", "first wrong layer", "and its source line"),
    fill=RED,
)
BOXES = (CHECKPOINT, CAPTURE, CONVERT, VALIDATE, PASSED, EAGER, FEEDS, REJECTED)


def main() -> int:
    """Write the picture, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    if parser.parse_args().check:
        return int(not FILE.exists() or FILE.read_text(encoding="utf-8") != picture())
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(picture(), encoding="utf-8")
    return 0


def picture() -> str:
    """The whole SVG."""
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'role="img" aria-labelledby="title summary" font-family="{FONT}">'
    )
    head = (
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        f'markerHeight="7" orient="auto-start-reverse"><path d="M0 0 8 4 0 8z" fill="{GREY}"/>'
        "</marker></defs>"
    )
    parts = [
        svg,
        f'<title id="title">{escape(TITLE)}</title>',
        f'<desc id="summary">{escape(SUMMARY)}</desc>',
        head,
        *(box_svg(box) for box in BOXES),
        *arrows(),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def arrows() -> list[str]:
    """The lines between the boxes, with their words."""
    middle = VALIDATE.x + VALIDATE.width // 2
    gap = PASSED.x - 29
    retry = _TOP - 30
    return [
        arrow((CHECKPOINT.right, CAPTURE.left)),
        arrow((CAPTURE.right, CONVERT.left)),
        arrow((CONVERT.right, VALIDATE.left)),
        arrow((CHECKPOINT.bottom, EAGER.top)),
        arrow((EAGER.right, FEEDS.left)),
        arrow((FEEDS.right, (middle, FEEDS.right[1]), VALIDATE.bottom)),
        label(middle + 8, FEEDS.right[1] + 20, "eager's outputs", anchor="middle"),
        arrow((VALIDATE.right, PASSED.left)),
        label((VALIDATE.right[0] + PASSED.x) // 2, PASSED.left[1] - 9, "agrees", anchor="middle"),
        arrow(((gap, VALIDATE.right[1]), (gap, REJECTED.left[1]), REJECTED.left)),
        label(gap - 6, (_TOP + _LOW + 112) // 2, "differs", anchor="end"),
        arrow((VALIDATE.top, (middle, retry), (CAPTURE.top[0], retry), CAPTURE.top), dashed=True),
        label(
            (middle + CAPTURE.top[0]) // 2, retry - 9, "differs: the next capture", anchor="middle"
        ),
    ]


def box_svg(box: Box) -> str:
    """One box."""
    centre = box.x + box.width // 2
    block = 20 + 19 * len(box.lines)
    first = box.y + (box.height - block) // 2 + 15
    texts = [f'<text x="{centre}" y="{first}" font-size="17" font-weight="600">{box.title}</text>']
    for number, line in enumerate(box.lines, start=1):
        y = first + 5 + 19 * number
        texts.append(f'<text x="{centre}" y="{y}" font-size="13.5">{escape(line)}</text>')
    return (
        f'<rect x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}" rx="9" '
        f'fill="{box.fill}"/>\n<g fill="#fff" text-anchor="middle">\n' + "\n".join(texts) + "\n</g>"
    )


def arrow(points: Sequence[tuple[int, int]], *, dashed: bool = False) -> str:
    """A line along the points, with a head at its end."""
    path = " ".join(f"{x},{y}" for x, y in points)
    dash = ' stroke-dasharray="5 4"' if dashed else ""
    return (
        f'<polyline points="{path}" fill="none" stroke="{GREY}" stroke-width="1.8"{dash} '
        'marker-end="url(#head)"/>'
    )


def label(x: int, y: int, text: str, *, anchor: str = "start") -> str:
    """Words beside a line."""
    return (
        f'<text x="{x}" y="{y}" font-size="13.5" fill="{GREY}" text-anchor="{anchor}">'
        f"{escape(text)}</text>"
    )


if __name__ == "__main__":
    sys.exit(main())
