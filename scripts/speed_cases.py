"""The scenarios whose cost is measured, and how: shared by scripts/bench and scripts/check_instructions."""

import collections
import csv
import json
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Lengths and seats of every case. One H100 serves about 42 such requests a second without prefix caching.
BASE = """\
name: speed
model: meta-llama/Llama-3.1-8B-Instruct
hardware: {gpu: H100-SXM-80GB}
engine: {preset: vllm-v1, max_num_seqs: 256, enable_prefix_caching: false}
workload:
  requests: 20000
  arrivals: {process: poisson, rate: 40/s}
  prompt_tokens: {distribution: lognormal, p50: 400, p90: 1000}
  output_tokens: {distribution: lognormal, p50: 150, p90: 380}
output: {requests: false, timeline: false}
"""

TRACE = """\
name: conversation
model: meta-llama/Llama-3.1-8B-Instruct
hardware: {gpu: H100-SXM-80GB}
engine: {preset: vllm-v1, max_num_seqs: 256}
workload:
  trace: {path: %s, format: mooncake}
  rate_scale: 0.5
output: {requests: false, timeline: false}
"""

# The KV cache holds about 1.06 of these a second.
LONG_OUTPUTS = "workload.output_tokens={distribution: lognormal, p50: 3000, p90: 7600}"
SHARED_PROMPTS = ["engine.enable_prefix_caching=true", "workload.prefix={groups: 10, tokens: 1000}"]
# A threshold above every prompt decides nothing, but only the per-request engine knows thresholds.
PER_REQUEST = "engine.long_prefill_token_threshold=1000000"


def rate(per_second):
    return f"workload.arrivals.rate={per_second:g}/s"


@dataclass
class Case:
    name: str
    what: str
    sets: list = field(default_factory=list)
    options: list = field(default_factory=list)
    goal: float = 0  # requests per CPU second; 0: none stated
    goal_instructions: float = 0  # per request
    requests: int = 1_000_000
    # Instructions are those of 2 x counted requests less those of `counted`. At least 10,000, so that the run that finds the
    # capacity, which takes up to 10,000 requests, is the same in both.
    counted: int = 20_000
    trace: bool = False
    benchmark: str = ""  # not a run of the program but this benchmark of kvsim_bench, NAME/REQUESTS


# The table of the speed goals.
CASES = [
    Case("load50", "caching off, load 0.5", [rate(21)], goal=4e6, goal_instructions=2000),
    Case("load95", "caching off, load 0.95", [rate(40)], goal=4e6, goal_instructions=2000),
    Case("prefix", "caching on, 10 system prompts of 1000 tokens", [rate(28), *SHARED_PROMPTS], goal=2e6,
         goal_instructions=4000),
    Case("trace", "caching on, conversation trace x 0.5", goal=12_031 / 0.25, requests=12_031, counted=6_000, trace=True),
    Case("long", "outputs 20x longer, caching off", [LONG_OUTPUTS, rate(0.9)], goal=1.5e6, goal_instructions=6000),
    Case("kv_bound", "outputs 20x longer, KV-bound", [LONG_OUTPUTS, rate(2), "workload.max_concurrency=256"], goal=0.7e6,
         goal_instructions=12_000),
    Case("identities", "block identities kept, every step recorded, nothing written", goal=0.3e6, goal_instructions=16_000,
         requests=200_000, counted=10_000, benchmark="identities"),
    Case("step_log", "the same, written (--steps /dev/null)", [rate(40)], ["--steps", "/dev/null"], requests=100_000,
         counted=10_000),
    Case("one_by_one", "the per-request form", [rate(40), PER_REQUEST], requests=100_000, counted=10_000),
    Case("sglang", "preset sglang, outputs 20x longer", ["engine.preset=sglang", LONG_OUTPUTS, rate(0.9)], requests=20_000,
         counted=10_000),
    Case("vllm_v0", "preset vllm-v0, outputs 20x longer", ["engine.preset=vllm-v0", LONG_OUTPUTS, rate(0.9)], requests=20_000,
         counted=10_000),
]
BY_NAME = {case.name: case for case in CASES}


def conversation_trace(folder):
    """The Mooncake conversation trace where it is at hand, else one of its structure; (path, description)."""
    shared = Path(os.environ.get("KVSIM_SHARED", ROOT.parent / "shared"))
    real = shared / "data/traces/conversation_trace.jsonl"
    if real.is_file():
        return real, "Mooncake conversation trace"
    made = Path(folder) / "conversation_like.jsonl"
    write_conversation_like(made)
    return made, "generated trace of the conversation trace's structure"


def write_conversation_like(path, rows=12031, seed=1):
    """12,031 rows in one hour as in the Mooncake conversation trace: about 12k prompt tokens, 340 output tokens, hash chains of
    512-token blocks that all start with one common block, 36 % of the blocks seen before because sessions come back with a longer
    prompt."""
    draw = random.Random(seed)
    sessions = []
    fresh = 1
    with open(path, "w", encoding="ascii") as out:
        for row in range(rows):
            if sessions and draw.random() < 0.36:
                index = min(len(sessions) - 1, int(draw.expovariate(1 / 400)))
                chain = sessions.pop(-1 - index)
            else:
                chain = [0]
            grow = 1 + int(draw.expovariate(1 / 14.5))
            chain = chain + list(range(fresh, fresh + grow))
            fresh += grow
            if len(chain) > 240:
                chain = [0] + chain[-12:]
            length = 512 * (len(chain) - 1) + draw.randint(1, 512)
            output = max(1, min(2000, int(draw.lognormvariate(5.5, 0.8))))
            record = {"timestamp": row * 3_600_000 // rows, "input_length": length, "output_length": output, "hash_ids": chain}
            out.write(json.dumps(record) + "\n")
            sessions.append(chain[:-1])  # the last, partial block changes when the prompt grows


class Runner:
    """Runs kvsim on a case; `folder` is scratch space."""

    def __init__(self, program, folder):
        self.program = str(program)
        self.folder = Path(folder)
        self.benchmarks = Path(program).parent / "tests/bench/kvsim_bench"
        (self.folder / "base.yaml").write_text(BASE)
        self.trace_source = None

    def has(self, case):
        return not case.benchmark or self.benchmarks.exists()

    def command(self, case, sets=(), requests=None):
        if case.benchmark:
            return [str(self.benchmarks), f"--benchmark_filter=^{case.benchmark}/{requests or case.requests}$",
                    "--benchmark_min_time=0", "--benchmark_format=json"]
        scenario = self.folder / "base.yaml"
        chosen = list(case.sets)
        if case.trace:
            scenario = self.folder / "trace.yaml"
            if not scenario.exists():
                path, self.trace_source = conversation_trace(self.folder)
                scenario.write_text(TRACE % path)
        chosen += sets
        if requests is not None and not (case.trace and requests >= case.requests):
            chosen.append(f"workload.requests={requests}")
        command = [self.program, str(scenario), "--quiet", "--log-level", "error", "--out", str(self.folder / "out"), *case.options]
        for assignment in chosen:
            command += ["--set", assignment]
        return command

    def run(self, case, sets=(), requests=None, repeat=1):
        """Figures of the fastest of `repeat` runs."""
        command = self.command(case, sets, requests)
        best = None
        for _ in range(repeat):
            measured = run_measured(command)
            if best is None or measured["cpu_s"] < best["cpu_s"]:
                best = measured
        columns = summary_row(self.folder / "out/summary.csv")
        best["requests"] = int(columns["requests"])
        best["steps"] = int(columns["steps"])
        best["load"] = float(columns["load"] or 0)
        best["batch"] = float(columns["batch_size_mean"] or 0)
        best["preemptions"] = int(columns["preemptions"]) / best["requests"]
        return best

    def benchmark_rate(self, case, repeat=3):
        """Requests per CPU second of the fastest of `repeat` runs of the case's benchmark."""
        command = self.command(case)
        runs = [json.loads(subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True).stdout)
                for _ in range(repeat)]
        return max(run["benchmarks"][0]["items_per_second"] for run in runs)

    def instructions(self, case, sets=(), counted=None):
        """Self instructions by function, per request: the difference of two runs, so that set-up and output cancel."""
        counted = counted or case.counted
        low = count_instructions(self.command(case, sets, counted), self.folder)
        high = count_instructions(self.command(case, sets, 2 * counted), self.folder)
        return {name: (high[name] - low[name]) / counted for name in high}

    def set_up_instructions(self):
        """Of the whole program with one request, dynamic linking and output included."""
        return sum(count_instructions(self.command(BY_NAME["load95"], (), 1), self.folder).values())


def summary_row(path):
    with open(path, encoding="utf-8", newline="") as file:
        return next(csv.DictReader(file))


def run_measured(command):
    """User and system time and peak memory of one child, nothing of its siblings."""
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    watched = 0
    while True:
        watched = max(watched, peak_so_far(child.pid))
        ended, status, usage = os.wait4(child.pid, os.WNOHANG)
        if ended:
            break
        time.sleep(0.001)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        sys.exit(f"failed with {child.returncode}: {' '.join(command)}")
    # The kernel counts this interpreter's memory at the fork into the child's maximum.
    peak = usage.ru_maxrss * 1024
    if peak <= resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024:
        peak = watched
    return {"cpu_s": usage.ru_utime + usage.ru_stime, "peak_bytes": peak}


def peak_so_far(pid):
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except OSError:
        return 0
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found[1]) * 1024 if found else 0


def have_callgrind():
    return shutil.which("valgrind") is not None


def count_instructions(command, folder):
    """Counter of instructions by function of the whole program."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        profile = Path(scratch) / "callgrind.out"
        own = [str(Path(scratch) / "out") if part == str(Path(folder) / "out") else part for part in command]
        result = subprocess.run(["valgrind", "--tool=callgrind", f"--callgrind-out-file={profile}", *own],
                                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
        if result.returncode != 0:
            sys.exit(f"callgrind failed: {' '.join(own)}\n{result.stderr}")
        return read_callgrind(profile)


def read_callgrind(path):
    """Self cost by function name. Format: https://valgrind.org/docs/manual/cl-format.html; names are written out once, later
    only their number; the line after `calls=` is the callee's cost."""
    names = {}

    def resolve(text):
        number, _, name = text.strip().partition(" ")
        if name:
            names[number] = name
        return names.get(number, number)

    cost = collections.Counter()
    function = ""
    inclusive = False
    with open(path, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if line[0].isdigit() or line[0] in "+-*":
                parts = line.split()
                if not inclusive and len(parts) > 1:
                    cost[function] += int(parts[1])
                inclusive = False
            elif line.startswith("fn="):
                function = resolve(line[3:])
            elif line.startswith("cfn="):
                resolve(line[4:])
            elif line.startswith("calls="):
                inclusive = True
    return cost


def short_name(function):
    """Without namespaces, template arguments and parameters."""
    name = function.replace("(anonymous namespace)::", "").replace("kvsim::", "")
    while True:
        bare = re.sub(r"<[^<>]*>", "", name)
        if bare == name:
            break
        name = bare
    name = name.split("(", 1)[0].split("'", 1)[0].strip()
    return name.split(" ")[-1] if "operator" not in name else name


def build():
    """The program of a Release build in build/, as scripts/run makes it."""
    folder = ROOT / "build"
    subprocess.run(["bash", "-euc", 'source "$0/scripts/common.sh"; build_targets kvsim', str(ROOT)], check=True)
    cache = folder.joinpath("CMakeCache.txt").read_text(encoding="utf-8")
    if "CMAKE_BUILD_TYPE:STRING=Release" not in cache:
        sys.exit(f"{folder} is not a Release build: figures of it would mean nothing")
    return folder / "kvsim"
