"""JUnit XML and benchmark files of run, sweep and compare, read back by parsers that are not ours."""
import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

program = str(Path(sys.argv[1]).resolve())
scenario = """
name: plain
model: meta-llama/Llama-3.1-8B-Instruct
engine: {preset: vllm-v1, max_model_len: 4096, max_num_seqs: 16, max_num_batched_tokens: 512, num_gpu_blocks_override: 400}
step_time: {model: constant, step: 10ms}
workload: {requests: 40, arrivals: {process: poisson, rate: 5/s}, prompt_tokens: 100, output_tokens: 20}
"""


def kvsim(folder, *arguments, **variables):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GITHUB_")} | variables
    return subprocess.run([program, *arguments], cwd=folder, env=environment, text=True, capture_output=True)


def cases(path):
    root = ElementTree.parse(path).getroot()
    assert root.tag == "testsuites"
    out = {}
    for suite in root.findall("testsuite"):
        assert int(suite.get("tests")) == len(suite.findall("testcase"))
        for case in suite.findall("testcase"):
            assert case.get("classname") == suite.get("name")
            out[suite.get("name"), case.get("name")] = case
    assert int(root.get("tests")) == len(out)
    return out


with tempfile.TemporaryDirectory() as temporary:
    folder = Path(temporary)
    (folder / "s.yaml").write_text(scenario)

    # run: a name and an expression with everything that XML reserves.
    holds, fails = "completed >= 1 and verdict != 'a<b>&c'", "ttft_p99 < 1us or (completed < 1 and not preemptions > 0)"
    done = kvsim(folder, "s.yaml", "--out", "o", "--quiet", "--junit", "deep/er/run.xml", "--assert", "preemptions == 0",
                 "--assert", fails, "--benchmark-json", "bench.json")
    assert done.returncode == 1, done.stderr
    read = cases(folder / "deep/er/run.xml")
    suite = next(iter(read))[0]
    assert read[suite, fails].find("failure").get("message").startswith(fails + ": FAIL (ttft_p99_ms is ")
    assert read[suite, "preemptions == 0"].find("failure") is None
    assert "::error" not in done.stderr
    both = json.loads((folder / "bench.json").read_text())
    smaller = json.loads((folder / "bench.smaller.json").read_text())
    bigger = json.loads((folder / "bench.bigger.json").read_text())
    assert sorted(f["name"] for f in both) == sorted(f["name"] for f in smaller + bigger)
    assert any(f["name"].endswith("ttft_p99_ms") and f["unit"] == "ms" for f in smaller)
    assert any(f["name"].endswith("request_throughput_req_s") and f["unit"] == "req/s" for f in bigger)
    assert all("range" not in f for f in both)

    # Annotations by themselves under GitHub, on standard error; the summary only when asked for.
    done = kvsim(folder, "s.yaml", "--out", "o", "--format", "csv", "--assert", fails, GITHUB_ACTIONS="true",
                 GITHUB_STEP_SUMMARY=str(folder / "summary.md"))
    assert done.returncode == 1 and "::error title=" in done.stderr and "::" not in done.stdout
    assert not (folder / "summary.md").exists()
    (folder / "summary.md").write_text("before\n")
    done = kvsim(folder, "s.yaml", "--out", "o", "--quiet", "--assert", fails, "--github",
                 GITHUB_STEP_SUMMARY=str(folder / "summary.md"))
    assert done.returncode == 1 and (folder / "summary.md").read_text().startswith("before\n### kvsim run: **failed**")
    # A summary that is nearly full stays below 1 MiB.
    (folder / "summary.md").write_text("x" * (1024 * 1024 - 1500))
    kvsim(folder, "s.yaml", "--out", "o", "--quiet", *["--assert", fails] * 20, "--github",
          GITHUB_STEP_SUMMARY=str(folder / "summary.md"))
    text = (folder / "summary.md").read_text()
    assert len(text.encode()) < 1024 * 1024 and "Cut here" in text

    # sweep: a suite a run; one point fails.
    done = kvsim(folder, "sweep", "s.yaml", "--vary", "engine.num_gpu_blocks_override=400,3", "--repeat", "2", "--quiet", "--out", "w",
                 "--junit", "sweep.xml", "--assert", "completed == 40", "--benchmark-json", "w.json")
    assert done.returncode == 1, done.stderr
    read = cases(folder / "sweep.xml")
    assert len(read) == 8
    good, bad = "engine.num_gpu_blocks_override=400 seed=1", "engine.num_gpu_blocks_override=3 seed=2"
    assert read[good, "completed == 40"].find("failure") is None and read[good, "run"].find("failure") is None
    assert read[bad, "run"].find("failure") is not None and read[bad, "completed == 40"].find("skipped") is not None
    assert all("± " in figure["range"] for figure in json.loads((folder / "w.json").read_text()))

    # compare: control characters from a file's cells.
    table = "scenario,kvsim_version,seed,ttft_p99_ms\n\"a\x01\x1b[31m<&\nb\",1,1,%s\n"
    (folder / "base.csv").write_text(table % 10)
    (folder / "new.csv").write_text(table % 20)
    done = kvsim(folder, "compare", "base.csv", "new.csv", "--junit", "c.xml", "--github",
                 GITHUB_STEP_SUMMARY=str(folder / "c.md"))
    assert done.returncode == 1, done.stderr
    (name,) = cases(folder / "c.xml")
    assert name == ("a??[31m<&\nb", "ttft_p99_ms"), name
    assert "\x1b" not in (folder / "c.md").read_text() and "\x1b" not in done.stdout
print("ok")
