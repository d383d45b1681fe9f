"""HTML: one page that opens from disk and asks nothing of a network."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Sequence
from functools import cache
from hashlib import sha256
from importlib import resources

from ..core.manifest import Manifest
from . import html_artifacts, html_feeds, html_layers, html_verdicts
from .commands import FOLDER, commands_of, unsaid
from .lineage import tree
from .markup import Child, Markup, code, join, table, tag
from .rows import rows_of
from .words import day_text, short

GENERATOR = "modelc report"
_Section = tuple[str, str, Child]  # id, title, content; None leaves the section out


def render(manifest: Manifest) -> str:
    """The manifest as a page: styles, script and charts are all in it."""
    rows = rows_of(manifest)
    checkpoint = manifest.checkpoint.path.replace("\\", "/").rpartition("/")[2]
    said = (
        f"{manifest.checkpoint.factory or manifest.checkpoint.kind} · sha256 "
        f"{short(manifest.checkpoint.digest)} · {day_text(manifest.created)} · "
        f"modelc {manifest.modelc}"
    )
    sections: list[_Section] = [
        ("summary", "Summary", html_verdicts.summary(rows, manifest) if rows else None),
        ("verdicts", "Verdicts by feed", html_verdicts.matrix(rows, manifest) if rows else None),
        ("reasons", "Reasons", html_verdicts.reasons(rows) if rows else None),
        ("layers", "Error by layer", html_layers.layers(manifest)),
        ("branches", "Branches", html_feeds.branches(manifest)),
        ("warnings", "Warnings while captured", html_feeds.warned(manifest)),
        ("outputs", "Output values", html_layers.outputs(manifest)),
        ("accuracy", "Accuracy", html_artifacts.accuracy(rows)),
        ("tradeoffs", "INT8 trade-offs", html_artifacts.tradeoffs(rows)),
        ("precision", "Precision", html_artifacts.precision(rows)),
        ("latency", "Latency", html_artifacts.latency(rows)),
        ("calibration", "Calibration", html_artifacts.calibration(rows)),
        ("attempts", "What was tried", html_artifacts.attempts(rows)),
        ("feeds", "Feeds", html_feeds.feeds(manifest)),
        ("lineage", "Lineage", html_artifacts.lineage(tree(manifest))),
        ("files", "Files", html_artifacts.files(rows)),
        ("commands", "Commands", _commands(manifest)),
        ("environment", "Environment", _environment(manifest)),
    ]
    return page(checkpoint or "checkpoint", said, html_verdicts.banner(rows, manifest), sections)


def page(title: str, said: str, banner: Markup, sections: Sequence[_Section]) -> str:
    """A whole page of these sections; those without content are left out."""
    shown = [section for section in sections if section[2]]
    links = [tag("a", name, href=f"#{key}") for key, name, _ in shown]
    parts = [tag("section", tag("h2", name), content, id=key) for key, name, content in shown]
    toggle = tag("button", "Theme", id="theme", type="button", hidden="")
    header = tag(
        "header",
        tag("div", tag("span", "modelc", class_="mark"), toggle, class_="top"),
        tag("h1", title),
        tag("p", said, class_="quiet"),
    )
    skip = tag("a", "Skip to the content", href="#main", class_="skip")
    nav = tag("nav", links, aria_label="Parts of this page")
    main = tag("main", banner, parts, id="main", tabindex=-1)
    body = tag("body", skip, header, nav, main, _script())
    return f"<!doctype html>\n{tag('html', _head(title), body, lang='en')}\n"


def _head(title: str) -> Markup:
    """Scripts other than the page's own are refused by the page itself, and so is every request."""
    digest = b64encode(sha256(_asset("page.js").encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="generator", content=GENERATOR),
        _equiv("Content-Security-Policy", policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"{title} · modelc"),
        tag("style", Markup(_asset("page.css"))),
    )


def _equiv(name: str, content: str) -> Markup:
    return tag("meta", http_equiv=name, content=content)


def _script() -> Markup:
    return tag("script", Markup(_asset("page.js")))


@cache
def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _commands(manifest: Manifest) -> Markup | None:
    found = [
        tag("div", tag("p", one.purpose), tag("pre", code(one.text), class_="command"))
        for one in commands_of(manifest)
    ]
    left = unsaid(manifest.order)
    if left:
        told = ", ".join(f"{key}={value}" for key, value in left.items())
        found.append(tag("p", f"Ordered as well: {told}", class_="quiet"))
    where = f"{FOLDER} stands for the folder that holds manifest.json."
    return join([tag("p", where, class_="quiet"), *found]) if found else None


def _environment(manifest: Manifest) -> Markup:
    made_with: dict[str, set[str]] = {}
    for artifact in manifest.artifacts:
        for name, version in artifact.versions.items():
            made_with.setdefault(name, set()).add(version)
    found = {name: {version} for name, version in manifest.environment.items()}
    for name, versions in made_with.items():
        found.setdefault(name, set()).update(versions)
    cells = ((name, ", ".join(sorted(versions))) for name, versions in found.items())
    notes: Iterable[Markup] = (tag("p", note, class_="note") for note in manifest.notes)
    return join([table("Versions", "what", "version", rows=cells), *notes])
