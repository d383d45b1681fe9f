"""Kills workers and raylets while a project runs on Ray: python benchmarks/fleet_faults.py.

Starts three real raylets on this machine, runs 12 models with two steps each, and kills a worker in
a step, a raylet in a step and a raylet between two steps. Every step has to pass, and none may be
built to its end twice. Needs Ray, as does every process that it starts (PYTHONPATH).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from modelc.benchmarks.growth import write_project

STEPS = ("torchscript", "pt2")
STORE_BYTES = 80 * 2**20
_START_WAIT = 20  # attempts, each of up to 10 s
Fault = Callable[["FleetBed"], bool]


@dataclass
class FleetBed:
    """A project, a cluster and a storage in one folder."""

    folder: Path
    cluster: Any = None
    nodes: list[Any] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    hit: set[str] = field(default_factory=set)  # models whose worker was killed

    @property
    def storage(self) -> Path:
        """The folder that stands for the storage of all hosts."""
        return self.folder / "storage"

    def write(self, count: int, to: str) -> None:
        """Write the project."""
        write_project(self.folder, count)
        file = self.folder / "modelc.toml"
        text = file.read_text(encoding="utf-8")
        file.write_text(text.replace('to = "torchscript"', f"to = {to}"), encoding="utf-8")

    def clear(self) -> None:
        """Remove all results, so that the next run is a cold one."""
        for name in ("storage", "out", "cache"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        caches = Path(tempfile.gettempdir()).glob(f"modelc-fleet-{os.getuid()}")
        for place in caches:
            shutil.rmtree(place, ignore_errors=True)

    def events(self) -> dict[str, list[tuple[str, dict[str, Any]]]]:
        """Return the events of each task so far."""
        found = {}
        for path in sorted(self.storage.glob("tasks/*/*.events")):
            parts = sorted(path.iterdir(), key=lambda part: int(part.name))
            lines = b"".join(part.read_bytes() for part in parts).splitlines()
            found[path.stem] = [tuple(json.loads(line)) for line in lines]
        return found

    def entered(self, task: str) -> list[str]:
        """Return the steps that a task entered."""
        return [found["artifact"] for name, found in self.events()[task] if name == "Entered"]

    def is_over(self, task: str) -> bool:
        """Whether a task has written its result."""
        return any(self.storage.glob(f"tasks/*/{task}.result"))

    def completed(self) -> Counter[tuple[str, str]]:
        """Count for each step of each model how often it was built to its end."""
        counts: Counter[tuple[str, str]] = Counter()
        for task in self.events():
            entered = self.entered(task)
            ended = entered if self.is_over(task) else entered[:-1]
            counts.update((task.rpartition("-")[0], step) for step in ended)
        return counts


@contextmanager
def cluster_of(bed: FleetBed, count: int) -> Iterator[None]:
    """Start a head without CPUs, and `count` raylets with one each."""
    from ray._private import services
    from ray.cluster_utils import Cluster

    if not isinstance(services.get_node, partial):
        services.get_node = partial(_get_node_patiently, services.get_node)
    os.environ.setdefault("RAY_agent_register_timeout_ms", "200000")  # 15 s ends a busy raylet
    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": STORE_BYTES}
    bed.cluster = Cluster(initialize_head=True, head_node_args=head)
    bed.nodes = []
    for number in range(count):
        node = {"num_cpus": 1, "labels": {"zone": f"z{number}"}}
        added = bed.cluster.add_node(object_store_memory=STORE_BYTES, **node)
        bed.nodes.append(added)
    try:
        yield
    finally:
        bed.cluster.shutdown()


def _get_node_patiently(get_node: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Wait for a node that starts: Ray waits for 30 s, which a busy machine exceeds."""
    for _ in range(_START_WAIT):
        try:
            return get_node(*args, **options)
        except RuntimeError:
            time.sleep(1.0)
    return get_node(*args, **options)


def run_on_cluster(bed: FleetBed, faults: list[Fault], *more: str) -> tuple[int, float]:
    """Run the project on the cluster, and apply each fault once its moment is there."""
    command = [sys.executable, "-m", "modelc", "run", "-q", "-k", "--on", "ray"]
    command += ["--storage", f"file://{bed.storage}", "--cache-dir", "cache", *more]
    environment = {**os.environ, "RAY_ADDRESS": bed.cluster.address}
    began = time.perf_counter()
    run = subprocess.Popen(
        command, cwd=bed.folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip
    left = list(faults)
    while run.poll() is None:
        left = [fault for fault in left if not fault(bed)]
        time.sleep(0.02)
    wall = time.perf_counter() - began
    output, _ = run.communicate()
    bed.notes.append(output)
    if left:
        raise SystemExit(f"{len(left)} faults found no moment\n{output}")
    return run.returncode, wall


def busy_in_step(bed: FleetBed, *, after: int) -> str:
    """Return a task that is at work after it entered that many steps; empty if there is none.

    A second worker on one step would be a failure, so that models that were hit are left out.
    """
    for task in bed.events():
        model = task.rpartition("-")[0]
        if model not in bed.hit and not bed.is_over(task) and len(bed.entered(task)) == after:
            return task
    return ""


def kill_worker(bed: FleetBed) -> bool:
    """Kill the worker of a task in its first step."""
    task = busy_in_step(bed, after=1)
    found = task and _find_worker(task.rpartition("-")[0])
    if not found:
        return False
    os.kill(found, signal.SIGKILL)
    bed.hit.add(task.rpartition("-")[0])
    print(f"killed the worker of {task}, process {found}", flush=True)
    return True


def kill_worker_of(model: str, times: int) -> Fault:
    """Return a fault that kills the workers of one model in its first step, so many times."""
    killed: set[str] = set()

    def kill(bed: FleetBed) -> bool:
        for task in bed.events():
            first = task.rpartition("-")[0] == model and bed.entered(task) == [STEPS[0]]
            found = _find_worker(model) if first and task not in killed else 0
            if found:
                os.kill(found, signal.SIGKILL)
                killed.add(task)
                print(f"killed the worker of {task}, process {found}", flush=True)
        return len(killed) >= times

    return kill


def kill_raylet(*, after: int) -> Fault:
    """Return a fault that kills the raylet of a task that entered that many steps."""

    def kill(bed: FleetBed) -> bool:
        task = busy_in_step(bed, after=after)
        found = task and _find_worker(task.rpartition("-")[0])
        node = found and _raylet_of(bed, found)
        if not node:
            return False
        bed.cluster.remove_node(node, allow_graceful=False)
        bed.nodes.remove(node)
        bed.hit.add(task.rpartition("-")[0])
        print(f"killed the raylet of {task} after it entered {after} steps", flush=True)
        return True

    return kill


def _find_worker(model: str) -> int:
    import psutil

    for one in psutil.process_iter(["pid", "cmdline"]):
        if " ".join(one.info["cmdline"] or ()).startswith(f"ray::modelc {model}"):
            return int(one.info["pid"])
    return 0


def _raylet_of(bed: FleetBed, worker: int) -> Any:
    """Return the node whose raylet is the parent of a worker."""
    import psutil

    try:
        parents = {one.pid for one in psutil.Process(worker).parents()}
    except psutil.NoSuchProcess:
        return None
    for node in bed.nodes:
        raylets = node.all_processes.get("raylet", ())
        if any(one.process.pid in parents for one in raylets):
            return node
    return None


def check(bed: FleetBed, expected: dict[str, int]) -> list[str]:
    """Return what is wrong: the states of the artifacts, and steps that were built twice."""
    record = json.loads((bed.folder / "out" / "run.json").read_text(encoding="utf-8"))
    states = Counter(one["state"] for model in record["models"] for one in model["artifacts"])
    twice = {step: count for step, count in bed.completed().items() if count > 1}
    faults = [] if states == expected else [f"states are {dict(states)}"]
    return faults + ([f"built twice: {twice}"] if twice else [])


def main() -> int:
    """Run on one machine, on a cluster, and on a cluster with faults; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=12)
    names = ("one", "whole", "kills", "twice", "label")
    parser.add_argument("--cases", nargs="+", choices=names, default=list(names))
    args = parser.parse_args()
    faults: list[str] = []
    with tempfile.TemporaryDirectory(prefix="modelc-bed-") as folder:
        bed = FleetBed(folder=Path(folder))
        bed.write(args.models, json.dumps(list(STEPS)))
        passed = {"passed": args.models * len(STEPS)}
        cases = {
            "one": lambda: _time_one_machine(bed),
            "whole": lambda: _run_case(bed, "no faults", [], passed),
            "kills": lambda: _run_case(
                bed,
                "a worker and two raylets killed",
                [kill_worker, kill_raylet(after=1), kill_raylet(after=2)],
                passed,
            ),
            "twice": lambda: _run_case(
                bed,
                "two workers killed on one step",
                [kill_worker_of("m0001", 2)],
                {"passed": passed["passed"] - 1, "failed": 1},
            ),
        }
        cases["label"] = lambda: _check_label(FleetBed(folder=Path(folder) / "label"))
        for name in args.cases:
            faults += cases[name]()
    print("\n".join(faults) or "all as it has to be")
    return int(bool(faults))


def _check_label(bed: FleetBed) -> list[str]:
    """Return what is wrong with a run whose engines need a label that no node has."""
    bed.write(1, '["onnx", "tensorrt"]')
    with cluster_of(bed, 1):
        code, wall = run_on_cluster(bed, [], "--node-label", "zone=none")
    record = json.loads((bed.folder / "out" / "run.json").read_text(encoding="utf-8"))
    reasons = {one["name"]: one["reason"] for one in record["models"][0]["artifacts"]}
    print(f"a label that no node has: exit {code}, {wall:.1f} s, {reasons}", flush=True)
    return [] if code == 4 and "zone=none" in reasons["tensorrt"] else ["the label"]  # noqa: PLR2004


def _time_one_machine(bed: FleetBed) -> list[str]:
    bed.clear()
    began = time.perf_counter()
    command = [sys.executable, "-m", "modelc", "run", "-q", "-k", "-j", "2", "--cache-dir", "cache"]
    code = subprocess.run(command, cwd=bed.folder, capture_output=True, check=False).returncode
    print(f"one machine, -j 2: exit {code}, {time.perf_counter() - began:.1f} s", flush=True)
    return [] if code == 0 else ["one machine failed"]


def _run_case(bed: FleetBed, name: str, kills: list[Fault], expected: dict[str, int]) -> list[str]:
    bed.clear()
    bed.hit.clear()
    with cluster_of(bed, 3):
        code, wall = run_on_cluster(bed, kills)
    found = check(bed, expected)
    print(f"{name}: exit {code}, {wall:.1f} s {'; '.join(found)}", flush=True)
    if found:
        print(bed.notes[-1])
    return [f"{name}: {text}" for text in found]


if __name__ == "__main__":
    sys.exit(main())
